"""Bytes ↔ values: the wire protocol, record batches and persisted formats. Pure: no I/O, clock or randomness.

kio registers hypothesis strategies for its types whenever hypothesis can be imported, which costs a
development install 0.15 s at every start. Its first import, here, is told that hypothesis is absent, unless a
test has loaded it.
"""

from __future__ import annotations

import sys


def _load_kio_types() -> None:
    if "hypothesis" in sys.modules or "kio.static._phantom" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_load_kio_types()
