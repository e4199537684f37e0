"""Which file a producer writes its manifest to.

Owns names that no other producer has, and the clock of the wrappers. Does not own what is in a file (writer).
Invariant: a file that is there is never opened again, so what a killed writer left stays as it was.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

from tools.verify.manifest.writer import ManifestWriter

NAMES_TRIED: Final = 1000
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")


def open_manifest(
    directory: Path,
    *,
    writer: str,
    cluster_id: str = "",
    is_idempotent: bool,
    is_ordered: bool,
    is_unique: bool,
    keeps_rows: bool,
) -> ManifestWriter:
    """Make the directory if it is not there, and a new file in it. Raise OSError when that cannot be."""
    directory.mkdir(parents=True, exist_ok=True)
    started_ms = time.time_ns() // 1_000_000  # noqa: TID251 (a producer's start, for people)
    stem = f"{_UNFIT.sub('_', writer)[:100] or 'producer'}-{started_ms}-{os.getpid()}"
    for number in range(NAMES_TRIED):
        name = f"{stem}-{number}.manifest" if number else f"{stem}.manifest"
        try:
            return ManifestWriter(
                directory / name,
                started_ms=started_ms,
                clock=time.monotonic,
                writer=writer,
                cluster_id=cluster_id,
                is_idempotent=is_idempotent,
                is_ordered=is_ordered,
                is_unique=is_unique,
                keeps_rows=keeps_rows,
            )
        except FileExistsError:
            continue
    raise FileExistsError(f"{directory}: {NAMES_TRIED} manifests of one millisecond")
