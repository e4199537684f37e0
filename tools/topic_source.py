"""Where a pipeline reads from: committed batches of a topic, in the order of their offsets.

Owns the interface, and reading it from a broker: fetches, leaders that move, aborted transactions. Does not
own what is done with the batches (export, replay).
Invariant: pieces follow each other without a hole from the offset that was asked for: whoever noted the end
of one goes on exactly there; what an aborted transaction wrote is in no piece.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.records import (
    HEADER_SIZE,
    OVERHEAD,
    BatchHeader,
    ControlType,
    check_stored,
    iter_records,
    parse_control,
    parse_header,
)
from tools import topics
from tools.client import Client, RequestFailed
from tools.console import Failure
from tools.patience import patiently

T = TypeVar("T")

FETCH_BYTES: Final = 8 << 20
PATIENCE_S: Final = 60.0
EARLIEST: Final = -2
LATEST: Final = -1


class Bounds(NamedTuple):
    start: int
    end: int
    """Exclusive: nothing at or above it may be read yet."""


class Piece(NamedTuple):
    """The offsets [first, end), and what of them is delivered."""

    first: int
    end: int
    batch: memoryview | None
    """One whole batch with data, as it is stored; None where there is none."""
    header: BatchHeader | None


class OffsetsGone(Exception):
    """The log starts above the offset that was asked for."""

    def __init__(self, wanted: int, log_start: int) -> None:
        super().__init__(f"offsets {wanted} to {log_start} are gone")
        self.wanted = wanted
        self.log_start = log_start


class BatchSource(Protocol):
    @property
    def topic_id(self) -> str:
        """The id of the topic, 32 hexadecimal digits."""
        ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def partitions(self) -> Sequence[int]: ...

    async def configs(self) -> Mapping[str, str]:
        """Return what is configured for this topic itself."""
        ...

    async def bounds(self, partition: int) -> Bounds: ...

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset with a record of that time or later; None without one."""
        ...

    def read(self, partition: int, start: int, end: int) -> AsyncGenerator[Piece, None]:
        """Pieces from `start` to `end` or shortly beyond; raise OffsetsGone where the log begins later."""
        ...


class BrokerSource:
    """A topic of a running cluster; one client for all partitions."""

    def __init__(self, client: Client, topic: str, *, read_committed: bool = True) -> None:
        self._client = client
        self._topic = topic
        self._read_committed = read_committed
        self.topic_id = ""
        self.cluster_id = ""
        self.partitions: Sequence[int] = ()

    async def open(self) -> BrokerSource:
        """Learn what the topic is; Failure without it."""
        answer = await self._client.refresh([self._topic])
        row = answer.topics[0]
        if row.error_code != ErrorCode.none:
            raise Failure(f"topic {self._topic}: {row.error_code.name.upper()}")
        known = self._client.known
        topic_id = known.topic_ids.get(self._topic)
        self.topic_id = topic_id.hex if topic_id is not None else ""
        self.cluster_id = known.cluster_id or ""
        self.partitions = known.partitions[self._topic]
        return self

    async def configs(self) -> Mapping[str, str]:
        async def ask() -> Mapping[str, str | None]:
            return await topics.configs_of(self._client, self._topic)

        found: Mapping[str, str | None] = await answered(self._client, self._topic, ask)
        return {name: value for name, value in found.items() if value is not None}

    async def bounds(self, partition: int) -> Bounds:
        start = await self._offset(partition, EARLIEST)
        return Bounds(start, max(start, await self._offset(partition, LATEST)))

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        found = await self._offset(partition, timestamp_ms)
        return None if found < 0 else found

    async def read(self, partition: int, start: int, end: int) -> AsyncGenerator[Piece, None]:
        at = start
        while at < end:
            answer = await self._fetch(partition, at)
            if answer.error_code == ErrorCode.offset_out_of_range:
                log_start = (await self.bounds(partition)).start
                if log_start > at:
                    raise OffsetsGone(at, log_start)
                raise Failure(
                    f"{self._topic}-{partition} ends below {end} now: an unclean election cut it, "
                    "and what was read above is not in the log any more"
                )
            aborted = Aborted(answer.aborted_transactions or () if self._read_committed else ())
            for piece in pieces(answer.records or b"", at, aborted):
                yield piece
                at = piece.end
                if at >= end:
                    return

    async def _fetch(self, partition: int, offset: int) -> Any:
        async def fetch() -> Any:
            answer = await self._client.fetch(
                self._topic,
                partition,
                offset,
                max_bytes=FETCH_BYTES,
                read_committed=self._read_committed,
            )
            if answer.error_code not in (ErrorCode.none, ErrorCode.offset_out_of_range):
                raise KafkaError(answer.error_code, f"fetch from {self._topic}-{partition}")
            return answer

        return await answered(self._client, self._topic, fetch)

    async def _offset(self, partition: int, timestamp_ms: int) -> int:
        async def ask() -> int:
            error, offset, _ = await self._client.list_offset(
                self._topic, partition, timestamp_ms, read_committed=self._read_committed
            )
            if error != ErrorCode.none:
                raise KafkaError(error, f"offsets of {self._topic}-{partition}")
            return offset

        return int(await answered(self._client, self._topic, ask))


async def answered(client: Client, topic: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until it is answered, for as long as an election or a restart may take; then Failure."""
    try:
        return await patiently(client, topic, ask, patience_s=PATIENCE_S, also=(RequestFailed,))
    except KafkaError as error:
        raise Failure(f"{topic}: {error}") from None
    except RequestFailed as error:
        raise Failure(f"{topic}: not answered for {PATIENCE_S:.0f} s: {error}") from None


class Aborted:
    """Which producers' data is aborted, as batches pass in order."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._coming = sorted(((row.first_offset, row.producer_id) for row in rows), reverse=True)
        self._open: set[int] = set()

    def covers(self, header: BatchHeader) -> bool:
        """Whether the batch was written in a transaction that was aborted."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        return header.is_transactional and header.producer_id in self._open

    def note_marker(self, batch: memoryview, header: BatchHeader) -> None:
        for record in iter_records(batch, 0, header):
            if parse_control(record)[0] == ControlType.ABORT:
                self._open.discard(header.producer_id)


def pieces(records: bytes | memoryview, start: int, aborted: Aborted) -> list[Piece]:
    """Return the pieces of a record set from `start` on. What is cut off at its end is left for later."""
    found: list[Piece] = []
    view, at, offset = memoryview(records), 0, start
    while len(view) - at >= HEADER_SIZE:
        header = parse_header(view, at)
        size = header.length + OVERHEAD
        if size > len(view) - at and header.length > 0:
            break
        check_stored(view, at, header)
        batch = view[at : at + size]
        at += size
        if header.next_offset <= start:
            continue
        is_data = not header.is_control and not aborted.covers(header) and header.count > 0
        if header.is_control:
            aborted.covers(header)
            aborted.note_marker(batch, header)
        found.append(
            Piece(offset, header.next_offset, batch if is_data else None, header if is_data else None)
        )
        offset = header.next_offset
    return found
