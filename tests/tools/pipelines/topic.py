"""A topic in memory that pipelines read: batches with gaps, aborted transactions, log starts that move."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence

from protocol.records import Record, build_batch, parse_header
from tools.topic_source import Bounds, OffsetsGone, Piece

T0 = 1_700_000_000_000


class MemoryTopic:
    """A BatchSource over lists of pieces."""

    topic_id = "0123456789abcdef0123456789abcdef"
    cluster_id = "cluster"

    def __init__(self, partitions: int, seed: int) -> None:
        self.partitions: Sequence[int] = range(partitions)
        self.logs: dict[int, list[Piece]] = {number: [] for number in range(partitions)}
        self.starts = dict.fromkeys(range(partitions), 0)
        self.rows: list[tuple[int, int, bytes | None, bytes | None, int]] = []
        """Every record that was ever delivered: partition, offset, key, value, timestamp."""
        self._rng = random.Random(seed)

    def copy(self) -> MemoryTopic:
        """Return one that grows apart from here on."""
        other = MemoryTopic(len(self.partitions), 0)
        other.logs = {number: list(log) for number, log in self.logs.items()}
        other.starts, other.rows = dict(self.starts), list(self.rows)
        other._rng.setstate(self._rng.getstate())
        return other

    def grow(self, batches: int) -> None:
        """Append batches: some with offsets that compaction took, some that are not delivered."""
        rng = self._rng
        for _ in range(batches):
            partition = rng.choice(list(self.partitions))
            log = self.logs[partition]
            first = log[-1].end if log else 0
            span = rng.randint(1, 20)
            if rng.random() < 0.15:
                log.append(Piece(first, first + span, None, None))
                continue
            offsets = sorted(rng.sample(range(first, first + span), rng.randint(1, span)))
            records = [
                Record(offset, T0 + offset, b"k%d" % (offset % 7) if offset % 3 else None, rng.randbytes(20))
                for offset in offsets
            ]
            batch = memoryview(
                build_batch(
                    records, base_offset=first, last_offset=first + span - 1, codec=rng.choice((0, 0, 4))
                )
            )
            log.append(Piece(first, first + span, batch, parse_header(batch)))
            self.rows += [(partition, each.offset, each.key, each.value, each.timestamp) for each in records]

    def delete_below(self, partition: int, offset: int) -> None:
        self.starts[partition] = max(self.starts[partition], offset)

    async def configs(self) -> Mapping[str, str]:
        return {}

    async def bounds(self, partition: int) -> Bounds:
        log = self.logs[partition]
        return Bounds(self.starts[partition], log[-1].end if log else 0)

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        found = [row[1] for row in self.rows if row[0] == partition and row[4] >= timestamp_ms]
        return min(found, default=None)

    async def read(self, partition: int, start: int, end: int) -> AsyncGenerator[Piece, None]:
        if start < self.starts[partition]:
            raise OffsetsGone(start, self.starts[partition])
        for piece in list(self.logs[partition]):
            if piece.end > start and piece.first < end:
                yield piece._replace(first=max(piece.first, start))
