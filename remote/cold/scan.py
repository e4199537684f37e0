"""A look at the bytes of a closed segment before they go to the tier, and once more while they go.

Owns: reading a segment's file in blocks with their checksums, and telling that its batches follow each other
to its end. Does not own: the records within them, or what is done with a segment that is damaged. Invariant:
all of it may run in any thread and keeps one block in memory; what is handed to an upload is, block by block,
what was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.checksum import crc32c
from protocol.records import (
    HEADER_SIZE,
    LEADER_EPOCH,
    LEADER_EPOCH_AT,
    LENGTH,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    OFFSETS,
    OVERHEAD,
)
from remote.cold.storage_manager import BLOCK_BYTES
from remote.store.upload import read_apart, read_into
from storage.log import FileBytes

BLOCKS_AT_ONCE: Final = 8
"""Between two of these turns a cancellation is noticed."""
_offsets_of = OFFSETS.unpack_from
_length_of = LENGTH.unpack_from


class SegmentChanged(Exception):
    """The file does not hold what it held, or not what a segment holds: what was read is not to be used."""


class SegmentDamaged(SegmentChanged):
    """The file is no whole segment of batches: unless the log was cut, it stays so."""


class SegmentScan:
    """Reads [0, size) of a segment with the offsets [base, end), a few blocks with each `go_on`."""

    def __init__(
        self,
        file: FileBytes,
        size: int,
        *,
        base_offset: int,
        end_offset: int,
        block_bytes: int = BLOCK_BYTES,
        epochs_below: int = 0,
    ) -> None:
        self.batch_count = 0
        self.epochs: list[tuple[int, int]] = []
        """The leader epochs of the batches that begin below `epochs_below`, each with its first offset."""
        self._epochs_below = epochs_below
        self.crc32c = 0
        self.block_crcs: list[int] = []
        self._file = file
        self._size = size
        self._end_offset = end_offset
        self._block_bytes = block_bytes
        self._expected = base_offset
        """No batch begins before it."""
        self._at = 0
        """The position of the next batch."""

    def __repr__(self) -> str:
        return f"SegmentScan({self._file.path!r}, {len(self.block_crcs)} blocks, {self.batch_count} batches)"

    @property
    def is_done(self) -> bool:
        return len(self.block_crcs) * self._block_bytes >= self._size

    def go_on(self, blocks: int = BLOCKS_AT_ONCE) -> None:
        """Read some blocks; raise SegmentDamaged where the file is no whole segment, and OSError."""
        for _ in range(blocks):
            if self.is_done:
                break
            self._next_block()
        if self.is_done and self._at != self._size:
            raise SegmentDamaged(f"{self._file.path}: its last batch is cut")

    def _next_block(self) -> None:
        start = len(self.block_crcs) * self._block_bytes
        block = _read(self._file, start, min(start + self._block_bytes, self._size))
        self._walk(block, start)
        self.crc32c = crc32c(block, self.crc32c)
        self.block_crcs.append(crc32c(block))

    def _walk(self, block: memoryview, start: int) -> None:
        """Follow the batches that begin in this block."""
        at, end = self._at - start, len(block)
        while at < end:
            if end - at >= HEADER_SIZE:
                at += self._step(block, at)
            else:
                at += self._step(_read(self._file, start + at, start + at + HEADER_SIZE), 0)
        self._at = start + at

    def _step(self, data: memoryview, at: int) -> int:
        """Check a batch against the one before it; return its size."""
        base, last_delta = _offsets_of(data, at)
        size: int = _length_of(data, at + LENGTH_AT)[0] + OVERHEAD
        if (
            data[at + MAGIC_AT] != MAGIC
            or size < HEADER_SIZE
            or last_delta < 0
            or base < self._expected
            or base + last_delta >= self._end_offset
        ):
            raise SegmentDamaged(
                f"{self._file.path}: what follows {self.batch_count} batches is no batch of this segment"
            )
        if base < self._epochs_below:
            (epoch,) = LEADER_EPOCH.unpack_from(data, at + LEADER_EPOCH_AT)
            if not self.epochs or self.epochs[-1][0] != epoch:
                self.epochs.append((epoch, base))
        self._expected = base + last_delta + 1
        self.batch_count += 1
        return size


def read_again(
    file: FileBytes,
    start: int,
    end: int,
    *,
    size: int,
    block_crcs: Sequence[int],
    block_bytes: int = BLOCK_BYTES,
    buffer: memoryview | None = None,
) -> memoryview:
    """Return the bytes [start, end) for an upload, in the buffer if there is one; raise SegmentChanged
    where a whole block among them is not the one that was scanned."""
    data = _read(file, start, end, buffer)
    for block in range(-(-start // block_bytes), len(block_crcs)):
        first, last = block * block_bytes, min((block + 1) * block_bytes, size)
        if last > end:
            break
        if crc32c(data[first - start : last - start]) != block_crcs[block]:
            raise SegmentChanged(f"{file.path} has other bytes at {first} than a moment ago")
    return data


def _read(file: FileBytes, start: int, end: int, buffer: memoryview | None = None) -> memoryview:
    data = read_apart(file, start, end) if buffer is None else read_into(buffer, file, start)
    if len(data) != end - start:
        raise SegmentChanged(f"{file.path} ends at {start + len(data)}, before {end}")
    return data
