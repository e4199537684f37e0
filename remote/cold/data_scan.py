"""A walk through the data object of a copy whose index object is lost: it proves every batch and makes what
the index object said of them.

Owns: what makes bytes this segment's without their checksums, and the indexes, block checksums and producers
that follow from the batches. Does not own: fetching, what was before the segment (rebuild), the layout of the
index object. Invariant: after `finish` every batch passed its own CRC, offsets follow each other without a
gap from the segment's first to its last, and size, largest timestamp and leader epochs are those that the
metadata has; anything else is BadObject. All of it may run in any thread; memory does not grow with batches.

The CRC of a batch does not cover its base offset and its leader epoch. The first is proven by the offsets on
both sides of it: a segment with gaps, as compaction leaves them, is refused. The second is compared with the
epochs of the metadata.
"""

from __future__ import annotations

from typing import Final

from protocol.checksum import crc32c
from protocol.errors import CorruptBatch
from protocol.records import CRC_FROM, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from remote.bad_object import BadObject
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import (
    BLOCK_BYTES,
)
from storage.epochs import EpochCache
from storage.files import DiskFiles
from storage.index import AbortedTxn
from storage.loader import replay_producer
from storage.producers import ProducerTable
from storage.segment import SCAN_BYTES, Segment

CONTROL_BYTES_MAX: Final = 1 << 20
"""A marker has less than a hundred bytes; it is the only batch that is kept until its end."""


class DataScan:
    def __init__(
        self,
        segment: RemoteSegment,
        *,
        producers: ProducerTable,
        until: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """`producers` are those before the segment; batches below `until`, by default all, are added."""
        self.producers = producers
        self.aborted: list[AbortedTxn] = []
        self.batch_count = 0
        self.crc32c = 0
        self.block_crcs: list[int] = []
        self._segment = segment
        self._epochs = EpochCache(segment.epochs)
        self._until = segment.end_offset if until is None else until
        self._block_bytes = block_bytes
        self._block_crc = 0
        self._seen = 0
        """Bytes that were looked at."""
        self._expected = segment.base_offset
        self._head = bytearray()
        self._header: BatchHeader | None = None
        self._crc = 0
        self._left = 0
        """Bytes of the batch that are still to come."""
        self._body = bytearray()
        """Of a control batch, from its header on."""
        self._indexes = Segment(DiskFiles(), "", segment.base_offset, size=0, created_ms=0)
        self._indexes.reset_indexes()

    def __repr__(self) -> str:
        return f"DataScan({self._segment.id}, {self._seen} bytes, {self.batch_count} batches)"

    def feed(self, data: bytes | memoryview) -> None:
        """Look at the next bytes."""
        view = memoryview(data)
        self._sum(view)
        at = 0
        while at < len(view):
            at += self._take_head(view, at) if self._header is None else self._take_body(view, at)
        self._seen += len(view)

    def finish(self) -> None:
        """Check what can be told at the end alone."""
        segment = self._segment
        if self._block_crc_is_open:
            self.block_crcs.append(self._block_crc)
        if self._seen != segment.size_bytes or self._head or self._header is not None:
            raise BadObject(f"its data ends at byte {self._seen}, in a batch or not at {segment.size_bytes}")
        if self._expected != segment.end_offset:
            raise BadObject(f"its data ends at offset {self._expected}, not at {segment.end_offset}")
        if self._indexes.largest_timestamp != segment.max_timestamp_ms:
            newest = self._indexes.largest_timestamp
            raise BadObject(
                f"the newest record is of {newest}, that of the copy of {segment.max_timestamp_ms}"
            )

    @property
    def offset_index(self) -> bytes:
        return self._indexes.offsets.encode()

    @property
    def time_index(self) -> bytes:
        """The index as a segment has it that is closed: the largest timestamp is its last entry."""
        indexes = self._indexes
        if indexes.largest_timestamp >= 0:
            relative_offset = indexes.max_timestamp_offset - indexes.base_offset
            indexes.times.maybe_append(indexes.largest_timestamp, relative_offset)
        return indexes.times.encode()

    @property
    def _block_crc_is_open(self) -> bool:
        return self._seen % self._block_bytes > 0

    def _sum(self, view: memoryview) -> None:
        self.crc32c = crc32c(view, self.crc32c)
        at, position = 0, self._seen
        while at < len(view):
            size = min(self._block_bytes - position % self._block_bytes, len(view) - at)
            self._block_crc = crc32c(view[at : at + size], self._block_crc)
            at, position = at + size, position + size
            if position % self._block_bytes == 0:
                self.block_crcs.append(self._block_crc)
                self._block_crc = 0

    def _take_head(self, view: memoryview, at: int) -> int:
        part = view[at : at + HEADER_SIZE - len(self._head)]
        self._head += part
        if len(self._head) == HEADER_SIZE:
            self._begin(parse_header(self._head))
        return len(part)

    def _take_body(self, view: memoryview, at: int) -> int:
        part = view[at : at + self._left]
        self._crc = crc32c(part, self._crc)
        self._left -= len(part)
        header = self._header
        assert header is not None
        if header.is_control:
            self._body += part
        if self._left == 0:
            self._end(header)
        return len(part)

    def _begin(self, header: BatchHeader) -> None:
        position = self._indexes.size
        if header.magic != MAGIC:
            raise BadObject(f"the batch at {position} of its data has magic {header.magic}")
        if not HEADER_SIZE <= header.size <= self._segment.size_bytes - position:
            raise BadObject(f"the batch at {position} of its data has a size of {header.size} bytes")
        if header.is_control and header.size > CONTROL_BYTES_MAX:
            raise BadObject(f"the marker at {position} of its data has a size of {header.size} bytes")
        if header.base_offset != self._expected or header.last_offset_delta < 0:
            raise BadObject(
                f"the batch at {position} of its data is of offset {header.base_offset} where "
                f"{self._expected} comes next"
            )
        epoch = self._epochs.epoch_for(header.base_offset)
        if header.leader_epoch != epoch:
            raise BadObject(
                f"the batch of offset {header.base_offset} is of leader epoch {header.leader_epoch}, "
                f"that of the copy is {epoch}"
            )
        self._header = header
        self._crc = crc32c(memoryview(self._head)[CRC_FROM:])
        self._left = header.size - HEADER_SIZE
        self._body = bytearray(self._head) if header.is_control else self._body
        self._head = bytearray()
        if self._left == 0:
            self._end(header)

    def _end(self, header: BatchHeader) -> None:
        if self._crc != header.crc:
            raise BadObject(f"the batch of offset {header.base_offset} in its data fails its CRC")
        if header.producer_id >= 0 and header.base_offset < self._until:
            self._replay(header)
        self._indexes.appended(header.size, header.last_offset, header.max_timestamp, SCAN_BYTES)
        self._expected = header.next_offset
        self.batch_count += 1
        self._header = None
        self._body = bytearray()

    def _replay(self, header: BatchHeader) -> None:
        try:
            aborted = replay_producer(self.producers, bytes(self._body), header)
        except CorruptBatch as error:
            raise BadObject(f"the marker of offset {header.base_offset} cannot be read: {error}") from error
        if aborted is not None:
            self.aborted.append(aborted)
        if header.is_control:
            # all of a copy was committed: what a marker decided holds nothing back
            self.producers.replicated_to(header.next_offset)
