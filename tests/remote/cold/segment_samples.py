"""Copies for tests: headers and indexes drawn by hypothesis, and whole segments with what belongs to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from hypothesis import strategies as st

from protocol.checksum import crc32c
from remote.cold.segments import RemoteSegment, TieredPartition
from remote.cold.storage_manager import BLOCK_BYTES, IndexKind, SegmentData, SegmentHeader

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
CRC = st.integers(0, (1 << 32) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def headers(draw: st.DrawFn) -> SegmentHeader:
    block_bytes = draw(st.integers(1, 1 << 24))
    size_bytes = draw(st.integers(0, block_bytes * 5))
    count = -(-size_bytes // block_bytes)
    return SegmentHeader(
        cluster_id=draw(TEXT),
        partition=TieredPartition(draw(st.uuids()), draw(INT32)),
        topic=draw(TEXT),
        segment_id=draw(st.uuids()),
        base_offset=draw(INT64),
        end_offset=draw(INT64),
        broker_id=draw(INT32),
        leader_epoch=draw(INT32),
        started_ms=draw(INT64),
        max_timestamp_ms=draw(INT64),
        epochs=tuple(draw(st.lists(st.tuples(INT32, INT64), max_size=3))),
        size_bytes=size_bytes,
        batch_count=draw(CRC),
        crc32c=draw(CRC),
        block_bytes=block_bytes,
        block_crcs=tuple(draw(st.lists(CRC, min_size=count, max_size=count))),
    )


INDEXES = st.fixed_dictionaries({kind: st.binary(max_size=40) for kind in IndexKind})


class Copy:
    """A segment of bytes that come from a seed; they are no batches."""

    def __init__(
        self,
        size: int = 3000,
        *,
        seed: int = 1,
        topic_id: int = 1,
        base_offset: int = 100,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        rng = random.Random(seed)
        self.bytes = rng.randbytes(size)
        self.indexes: Mapping[IndexKind, bytes] = {
            IndexKind.OFFSET: rng.randbytes(80),
            IndexKind.TIMESTAMP: rng.randbytes(48),
            IndexKind.PRODUCER_SNAPSHOT: rng.randbytes(30),
            IndexKind.TRANSACTION: b"",
            IndexKind.LEADER_EPOCH: b"0\n2\n0 0\n3 110\n",
        }
        self.segment = RemoteSegment(
            partition=TieredPartition(UUID(int=topic_id), 7),
            topic="payments",
            id=UUID(int=rng.getrandbits(128)),
            base_offset=base_offset,
            end_offset=base_offset + 50,
            broker_id=1,
            max_timestamp_ms=1_700_000_000_000,
            event_timestamp_ms=1_700_000_100_000,
            size_bytes=size,
            epochs=((0, base_offset), (3, base_offset + 10)),
            has_aborted=False,
        )
        self.data = SegmentData(
            size=size,
            read=self.read,
            offset_index=self.indexes[IndexKind.OFFSET],
            time_index=self.indexes[IndexKind.TIMESTAMP],
            txn_index=self.indexes[IndexKind.TRANSACTION],
            producers=self.indexes[IndexKind.PRODUCER_SNAPSHOT],
            epochs_until_end=((0, 0), (3, 110)),
            batch_count=12,
            crc32c=crc32c(self.bytes),
            block_crcs=tuple(
                crc32c(self.bytes[start : start + block_bytes]) for start in range(0, size, block_bytes)
            ),
            block_bytes=block_bytes,
        )

    async def read(self, start: int, end: int) -> bytes:
        return self.bytes[start:end]

    def again(self, seed: int) -> Copy:
        """The same offsets copied anew, under another id."""
        other = Copy(len(self.bytes), seed=seed, block_bytes=self.data.block_bytes)
        other.segment = replace(self.segment, id=other.segment.id)
        return other
