"""The program: `tidewal`, `python -m tidewal`, and each process that one of them starts by this file's path.

Owns the search path of its process: the application's folder comes first, whatever the current folder or
PYTHONPATH hold. Does not own commands (tools.cli). Invariant: only processes of `tidewal` get that path; a
program that imports the package does not.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

if not __package__:
    # by its path: Python has put this file's folder first, not the one that `tidewal` is in
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [*(each for each in sys.path if each != here), os.path.dirname(here)]

from tidewal import FOLDER


def main() -> NoReturn:
    sys.path[:] = [FOLDER, *(each for each in sys.path if each != FOLDER)]
    from tools import cli

    cli.main()


if __name__ == "__main__":
    main()
