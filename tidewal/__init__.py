"""Tidewal, a Kafka broker: where an installation keeps the application.

Owns the place of the application's packages and of the program that runs it. Does not own the application,
whose own names are found by the processes of `tidewal` alone: in an installation they lie in a folder of this
package, beside which other people's `tools` and `tests` are undisturbed; in a checkout they lie at its top.
Invariant: importing this package changes nothing and costs nothing.
"""

from __future__ import annotations

import os
from typing import Final

PACKAGES: Final = ("broker", "protocol", "remote", "storage", "tools")
_HERE: Final = os.path.dirname(os.path.abspath(__file__))
_INSTALLED: Final = os.path.join(_HERE, "_app")
FOLDER: Final = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(_HERE)
"""What PACKAGES are imported from."""
PROGRAM: Final = os.path.join(_HERE, "__main__.py")
"""What Python runs by its path for one more process of `tidewal`, whatever the current folder holds."""
