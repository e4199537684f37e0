"""The sizes in which the cold tier writes, checks and reads objects.

Owns: which of them belong together. Does not own: what each is for (put_from, SegmentData, ChunkCache).
Invariant: a chunk that is read consists of whole blocks that can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote.cold.chunks import CHUNK_BYTES
from remote.cold.storage_manager import BLOCK_BYTES
from remote.store.upload import PART_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSizes:
    """Ours. A simulation takes small ones, so that small objects have several of each."""

    part_bytes: int = PART_BYTES
    """Of an upload."""
    block_bytes: int = BLOCK_BYTES
    """With a checksum of its own."""
    chunk_bytes: int = CHUNK_BYTES
    """Read from the store at once."""

    def __post_init__(self) -> None:
        assert self.chunk_bytes % self.block_bytes == 0, self
