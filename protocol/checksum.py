"""CRC-32C, the checksum of record batches, of our own files and of what is put into an object store.

Owns: loading the native function without the package around it, which pulls in its command line and
importlib.metadata: 25 ms at every start of a broker. Does not own: what a checksum covers.
Invariant: nothing in the broker imports the package `crc32c` itself; a test looks at what a broker loads.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from typing import Any, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Crc(Protocol):
    def __call__(self, data: Buffer, crc: int = 0, /) -> int:
        """Return the checksum of what `crc` is that of, followed by `data`."""


def _load() -> Crc:
    package = PathFinder.find_spec("crc32c")
    if package is not None and package.submodule_search_locations:
        spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module: Any = spec.loader.create_module(spec)
            spec.loader.exec_module(module)
            return module.crc32c  # type: ignore[no-any-return]
    from crc32c import crc32c

    return crc32c


crc32c = _load()
