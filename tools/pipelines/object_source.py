"""A topic to copy from where no broker runs: its object store, data directories, or both.

Owns the pieces that pipelines read, out of the batches of a topic. Does not own where these lie (verify).
Invariant: as for any source: pieces follow each other, and what an aborted transaction wrote is in none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from broker.process import offload
from protocol.records import parse_header
from tools.console import Failure
from tools.topic_source import Aborted, Bounds, OffsetsGone, Piece
from tools.verify.core.keys import topic_bytes
from tools.verify.core.stores import BadSourceUrl, SourceFailed, open_source
from tools.verify.core.stretches import RawBatch
from tools.verify.core.topic import Missing, NoSuchTopic, TopicBytes, open_topic

BATCHES_AT_ONCE: Final = 64
"""Read in one turn of a thread."""


class ObjectSource:
    """A topic as it was when this was opened."""

    def __init__(self, topic: TopicBytes, *, read_committed: bool) -> None:
        self._topic = topic
        self._read_committed = read_committed
        self.topic_id = topic_bytes(topic.topic_id).hex() if topic.topic_id else ""
        self.cluster_id = topic.cluster_id
        self.partitions: Sequence[int] = topic.partitions()

    @classmethod
    async def open(cls, places: Sequence[str], topic: str, *, read_committed: bool = True) -> ObjectSource:
        """Look what is there; Failure if that is not the topic. `places`: a store's URL, data directories."""

        def look() -> TopicBytes:
            return open_topic([open_source(place) for place in places], topic)

        try:
            return cls(await offload(look), read_committed=read_committed)
        except (BadSourceUrl, NoSuchTopic, SourceFailed) as error:
            raise Failure(" ".join(f"{error}".split())) from None

    async def configs(self) -> Mapping[str, str]:
        return self._topic.configs

    async def bounds(self, partition: int) -> Bounds:
        found = self._topic.partition(partition)
        start, end = found.bounds
        if self._read_committed:
            end = await offload(lambda: found.stable_end)
        return Bounds(start, end)

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        found = self._topic.partition(partition)
        try:
            return await offload(lambda: found.offset_at(timestamp_ms))
        except (Missing, SourceFailed) as error:
            raise Failure(str(error)) from None

    async def read(self, partition: int, start: int, end: int) -> AsyncGenerator[Piece, None]:
        log_start = self._topic.bounds(partition).start
        if start < log_start:
            raise OffsetsGone(start, log_start)
        rows = self._topic.aborted(partition, start, end) if self._read_committed else []
        aborted = Aborted(rows)
        batches = self._topic.batches(partition, start, end)
        at = start
        while found := await offload(lambda: self._some(batches)):
            for batch in found:
                piece = _piece(batch, at, aborted)
                at = piece.end
                yield piece
        if at < end:  # what compaction took behind the last batch
            yield Piece(at, end, None, None)

    @staticmethod
    def _some(batches: Iterator[RawBatch]) -> list[RawBatch]:
        try:
            return list(islice(batches, BATCHES_AT_ONCE))
        except (Missing, SourceFailed) as error:
            raise Failure(str(error)) from None


def _piece(batch: RawBatch, at: int, aborted: Aborted) -> Piece:
    header = parse_header(batch.data, 0)
    is_data = not aborted.covers(header) and not header.is_control and header.count > 0
    if header.is_control:
        aborted.note_marker(batch.data, header)
    return Piece(at, header.next_offset, batch.data if is_data else None, header if is_data else None)
