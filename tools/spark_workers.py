"""What tasks in Python spare the next ones of their worker.

Owns what PySpark has a worker do around every task, and how that comes to little. Does not own the tasks.
Invariant: only caches are touched, so whatever else runs in the worker finds all that it found before.
"""

from __future__ import annotations

import gc
import sys
from typing import Final
from zipimport import zipimporter

FREEZES: Final = 2
"""In the first tasks of a worker: its daemon collects garbage after every task, and late imports come with
the first."""
_frozen = 0


def settle() -> None:
    """Leave little to look through for the next task of this worker. Before each, PySpark forgets what is
    known of the path, which has every importer of an archive read its list of files anew: of PySpark's own
    that takes 0.17 s of CPU. An importer that is let go of is made again where it is wanted."""
    global _frozen
    if _frozen < FREEZES:
        _frozen += 1
        gc.collect()
        gc.freeze()
    for place, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimporter):
            sys.path_importer_cache.pop(place, None)
