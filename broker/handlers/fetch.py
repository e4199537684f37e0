"""Fetch: what may be read, the wait for more, and the answer in pieces that need not pass through memory.

Owns: reading for clients with all its bounds and errors, which replica is nearest to them, the long poll,
building the response. Does not own: the session's bookkeeping (fetch_sessions), packing (protocol.hot),
sending (network), what followers ask (replica_fetch). Invariant: a client sees nothing at or past the high
watermark, with read_committed nothing past the last stable offset; the first batch is served whole whatever
the limits are, so that a reader always advances.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from broker.control.cluster import Cluster
from broker.handlers.leader_hints import leader_hint
from broker.net.connection import Answer, AnswerSlot, Connection, Frame
from broker.net.sending import SENDFILE_MIN, Bulk
from broker.replicas.fetch_sessions import INVALID_FETCH_SESSION_EPOCH, FetchSessions, FetchTurn, Wanted
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.replica_manager import ReplicaManager
from protocol.errors import ErrorCode, KafkaError
from protocol.hot import (
    FETCH_SHAPES_FROM,
    FETCH_TOPIC_IDS,
    Address,
    FetchRequest,
    FetchShape,
    fetch_head,
    fetch_partition_head,
    fetch_partition_tail,
    fetch_tail,
    fetch_topic_head,
    fetch_topic_tail,
    parse_fetch,
)
from storage.log import AbstractLog, LogSlice

logger = logging.getLogger(__name__)

_SIZE: Final = Struct(">i")
_SEEN_BYTES_MAX: Final = 64 * 1024
"""Of a request that is kept with what it was parsed to, some 2,000 partitions."""
_READ_COMMITTED: Final = 1
_ZSTD_FROM: Final = 10
_STORAGE_ERROR_FROM: Final = 6
_RACK_FROM: Final = 11
_HINT_FROM: Final = 16
NOBODY_IS_LEADER: Final = (
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
_LEADER_MOVED: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
_NO_ABORTED: Final[tuple[tuple[int, int], ...]] = ()


class Read:
    """What one partition gives to one Fetch."""

    __slots__ = (
        "aborted",
        "diverging",
        "error",
        "high_watermark",
        "last_stable",
        "part",
        "preferred",
        "start",
        "wanted",
    )

    def __init__(
        self,
        wanted: Wanted,
        high_watermark: int = -1,
        last_stable: int = -1,
        start: int = -1,
        part: LogSlice | None = None,
        aborted: Iterable[tuple[int, int]] | None = None,
        error: ErrorCode = ErrorCode.none,
    ) -> None:
        self.wanted = wanted
        self.high_watermark = high_watermark
        self.last_stable = last_stable
        self.start = start
        self.part = part
        self.aborted = aborted if aborted is None else list(aborted)
        self.error = error
        self.diverging: tuple[int, int] | None = None
        self.preferred = -1


class Fetched:
    """All reads of one pass. `is_due` when the answer must not wait for more bytes."""

    __slots__ = ("available", "is_due", "reads", "size")

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.size = 0
        self.available = 0
        """What min_bytes is held against: a partition that has more than was read counts with all it may
        give, because Kafka would fill that with a piece of the next batch."""
        self.is_due = False

    @property
    def failures(self) -> int:
        return sum(read.error is not ErrorCode.none for read in self.reads)


class Followers(Protocol):
    """Who answers a Fetch that names a replica."""

    def answer_follower(
        self,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> Answer: ...


class Seen(NamedTuple):
    """The last Fetch of a connection. Without a session its turn serves the next one too: where the
    partitions were found is kept, only the offsets are new."""

    shape: FetchShape
    version: int
    request: FetchRequest
    turn: FetchTurn


class Fetch:
    is_privileged = False
    """Whether its sessions stand above those of consumers."""

    def __init__(
        self,
        *,
        followers: Followers | None,
        near: ReplicaSelector | None = None,
        replicas: ReplicaManager,
        cluster: Cluster,
        sessions: FetchSessions,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        max_bytes: int,
    ) -> None:
        self._followers = followers
        self._near = near
        self._replicas = replicas
        self._cluster = cluster
        self._sessions = sessions
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._max_bytes = max_bytes

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        view = memoryview(frame)
        request = parse_fetch(view, body_at, version)
        turn = self._sessions.turn(request, uses_ids=version >= FETCH_TOPIC_IDS, now_ms=self._now_ms())
        connection.memo.last_fetch = None
        is_small = len(frame) <= _SEEN_BYTES_MAX
        if request.replica_id < 0 and version >= FETCH_SHAPES_FROM and is_small and _repeats(request, turn):
            shape = FetchShape(view, body_at, version, request)
            connection.memo.last_fetch = Seen(shape, version, request, turn)
        return self._answer(connection, request, turn, version, correlation_id)

    def repeat(self, connection: Connection, frame: Frame) -> Answer:
        """The answer to a Fetch that goes on with what the last one asked for, None to any other. `handle`
        does the same by the long way."""
        seen: Seen | None = connection.memo.last_fetch
        found = None if seen is None else seen.shape.read(frame)
        if seen is None or found is None:
            return None
        correlation_id, session_epoch, items = found
        request, turn = seen.request, seen.turn
        if items is not None:
            request.items = items
        if request.session_id:
            request.session_epoch = session_epoch
            turn = self._sessions.turn(
                request, uses_ids=seen.version >= FETCH_TOPIC_IDS, now_ms=self._now_ms()
            )
        elif session_epoch != request.session_epoch:
            return None
        elif items is not None:
            for wanted, item in zip(turn.wanted, items, strict=True):
                wanted.update(item)
        return self._answer(connection, request, turn, seen.version, correlation_id)

    def _answer(
        self,
        connection: Connection,
        request: FetchRequest,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
    ) -> Answer:
        if turn.error:
            return _pack_error(version, correlation_id, turn.error, 0)
        if request.replica_id >= 0 and self._followers is not None:
            return self._followers.answer_follower(connection, turn, request, version, correlation_id)
        fetched = self.read(turn, request, version)
        min_bytes = min(request.min_bytes, request.max_bytes, self._max_bytes)
        if fetched.available >= min_bytes or fetched.is_due or request.max_wait_ms <= 0:
            answer = self.respond(connection, turn, version, correlation_id, fetched)
            connection.unsent += len(answer) if isinstance(answer, bytes) else answer.size
            return answer
        partitions = [wanted.partition for wanted in turn.wanted if wanted.partition is not None]
        if not partitions:
            return self.respond(connection, turn, version, correlation_id, fetched)
        wait = FetchWait(
            self, connection, turn, request, version, correlation_id, min_bytes, partitions, fetched.failures
        )
        self._purgatory.watch(wait, request.max_wait_ms / 1000)
        return wait.slot

    def watch(self, waiter: Waiter, wait_s: float) -> None:
        self._purgatory.watch(waiter, wait_s)

    # --------------------------------------------------------------------------------------------- reading

    def read(self, turn: FetchTurn, request: FetchRequest, version: int) -> Fetched:
        fetched = Fetched()
        room = min(request.max_bytes, self._max_bytes)
        committed = request.isolation == _READ_COMMITTED
        only_changes = turn.session is not None
        near = self._near if request.rack else None
        generation = self._replicas.generation
        reads = fetched.reads
        for wanted in turn.wanted:
            if wanted.generation != generation:
                error = self._resolve(wanted, version)
                if error is not None:
                    aborted = _NO_ABORTED if error in NOBODY_IS_LEADER else None
                    reads.append(Read(wanted, aborted=aborted, error=_known_to(version, error)))
                    fetched.is_due = fetched.is_due or error not in NOBODY_IS_LEADER
                    continue
            partition: Partition = wanted.partition
            if near is not None:
                preferred = near.select(partition, request.rack, wanted.offset)
                if preferred >= 0:
                    reads.append(_elsewhere(wanted, partition, preferred))
                    fetched.is_due = True
                    continue
            held = partition.log
            high_watermark, start = held.high_watermark, held.log_start_offset
            last_stable = held.last_stable_offset
            offset = wanted.offset
            bound = last_stable if committed else high_watermark
            if (
                offset == bound
                and (wanted.leader_epoch < 0 or wanted.leader_epoch == partition.leader_epoch)
                and (wanted.last_epoch < 0 or wanted.last_epoch == partition.leader_epoch)
            ):
                # a reader at the end, which is what most fetches of an idle topic are
                if (
                    not only_changes
                    or high_watermark != wanted.sent_high_watermark
                    or start != wanted.sent_start
                ):
                    aborted = _NO_ABORTED if committed else None
                    reads.append(Read(wanted, high_watermark, last_stable, start, None, aborted))
                continue
            read = self._read_one(
                wanted, partition, bound, room, version, min_one=fetched.size == 0, committed=committed
            )
            if read.part is not None:
                size = read.part.size
                fetched.size += size
                fetched.available += size if read.part.next_offset >= bound else max(size, wanted.max_bytes)
                room = max(0, room - size)
            elif read.error is not ErrorCode.none or read.diverging is not None:
                fetched.is_due = True
            reads.append(read)
        return fetched

    def _resolve(self, wanted: Wanted, version: int) -> ErrorCode | None:
        """Finds the partition and keeps it until the next change of metadata; an error is looked up each
        time. Who can be sent to a follower may read from one.
        """
        wanted.partition = None
        wanted.generation = -1
        topic = wanted.topic
        if isinstance(topic, UUID):
            name = self._cluster.image.topic_names.get(topic)
            if name is None:
                return ErrorCode.unknown_topic_id
        else:
            name = topic
        reads_followers = version >= _RACK_FROM and not self.is_privileged
        found = self._replicas.replica(name, wanted.index)
        if isinstance(found, ErrorCode):
            return found
        if isinstance(topic, UUID) and found.topic_id != topic:
            return ErrorCode.inconsistent_topic_id
        if not found.is_leader and not reads_followers:
            error = found.epoch_error(wanted.leader_epoch)
            return ErrorCode.not_leader_or_follower if error is ErrorCode.none else error
        wanted.partition = found
        wanted.generation = self._replicas.generation
        return None

    def _read_one(
        self,
        wanted: Wanted,
        partition: Partition,
        bound: int,
        room: int,
        version: int,
        *,
        min_one: bool,
        committed: bool,
    ) -> Read:
        held = partition.log
        error = partition.epoch_error(wanted.leader_epoch)
        if error is not ErrorCode.none:
            return Read(wanted, error=error)
        if version < _ZSTD_FROM and held.config.compression_type == "zstd":
            return Read(wanted, error=ErrorCode.unsupported_compression_type)
        read = Read(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
        if committed:
            read.aborted = []
        try:
            if wanted.last_epoch >= 0:
                read.diverging = divergence(held, wanted)
                if read.diverging is not None:
                    return read
            if (room > 0 and wanted.max_bytes > 0) or min_one or not _is_inside(held, wanted.offset):
                part = held.read(wanted.offset, min(wanted.max_bytes, room), bound=bound, min_one=min_one)
                if part is not None and part.size > 0:
                    read.part = part
                    if committed:
                        read.aborted = held.aborted_in(wanted.offset, part.next_offset)
        except KafkaError as failure:
            return Read(wanted, error=_known_to(version, failure.code))
        return read

    # ------------------------------------------------------------------------------------------- answering

    def respond(
        self, connection: Connection, turn: FetchTurn, version: int, correlation_id: int, fetched: Fetched
    ) -> bytes | Bulk:
        session_id = 0
        reads = fetched.reads
        if turn.session is not None:
            session = turn.session
            if session.epoch != turn.epoch:
                return _pack_error(version, correlation_id, INVALID_FETCH_SESSION_EPOCH, session.id)
            session_id = session.id
            reads = [read for read in reads if is_news(read)]
            session.to_back([read.wanted for read in reads if read.part is not None])
        elif turn.creates:
            for read in reads:
                is_news(read)
            session_id = self._sessions.create(
                turn.wanted,
                uses_ids=version >= FETCH_TOPIC_IDS,
                now_ms=self._now_ms(),
                is_privileged=self.is_privileged,
            )
        return self._pack(connection, version, correlation_id, session_id, reads)

    def _pack(
        self, connection: Connection, version: int, correlation_id: int, session_id: int, reads: list[Read]
    ) -> bytes | Bulk:
        listener = connection.listener
        pieces: list[Any] = [b"", b""]
        addresses: dict[int, Address] = {}
        topics = at = records_size = 0
        while at < len(reads):
            topic = reads[at].wanted.topic
            stop = at + 1
            while stop < len(reads) and reads[stop].wanted.topic == topic:
                stop += 1
            pieces.append(fetch_topic_head(version, topic, stop - at))
            for read in reads[at:stop]:
                records_size += self._pack_partition(listener, version, read, pieces, addresses)
            pieces.append(fetch_topic_tail(version))
            topics += 1
            at = stop
        pieces.append(fetch_tail(version, addresses))
        pieces[1] = fetch_head(version, correlation_id, 0, session_id, topics)
        if records_size < SENDFILE_MIN:
            try:
                body = b"".join([piece if piece.__class__ is bytes else piece.read() for piece in pieces])
            except OSError:
                _drop_unreadable(reads, version)
                return self._pack(connection, version, correlation_id, session_id, reads)
            return _SIZE.pack(len(body)) + body
        size = sum(len(piece) if piece.__class__ is bytes else piece.size for piece in pieces)
        pieces[0] = _SIZE.pack(size)
        return Bulk(_joined(pieces), size + 4)

    def _pack_partition(
        self, listener: str, version: int, read: Read, pieces: list[Any], addresses: dict[int, Address]
    ) -> int:
        """Adds its pieces; the size of its records."""
        wanted, part = read.wanted, read.part
        size = 0 if part is None else part.size
        pieces.append(
            fetch_partition_head(
                version,
                wanted.index,
                read.error.value,
                read.high_watermark,
                read.last_stable,
                read.start,
                read.aborted,
                size,
                read.preferred,
            )
        )
        partition = wanted.partition
        if partition is not None:
            stats = partition.stats
            stats.fetch += 1
            if part is not None:
                stats.bytes_out += size
                pieces.append(part)
            elif read.error is not ErrorCode.none:
                stats.failed_fetch += 1
        hint = None
        if version >= _HINT_FROM and read.error in _LEADER_MOVED:
            hint = leader_hint(self._cluster.image, wanted.topic, wanted.index, listener)
            if hint is not None and hint.address is not None:
                addresses[hint.leader_id] = hint.address
        pieces.append(fetch_partition_tail(version, read.diverging, hint))
        return size


class FetchWait(Waiter):
    """A long poll. It stands at every partition it reads and looks again when one of them moves."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_failures",
        "_fetch",
        "_min_bytes",
        "_partitions",
        "_request",
        "_turn",
        "_version",
        "slot",
    )

    def __init__(
        self,
        fetch: Fetch,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        min_bytes: int,
        partitions: list[Partition],
        failures: int,
    ) -> None:
        super().__init__()
        self.slot: AnswerSlot = connection.slot()
        self._fetch = fetch
        self._connection = connection
        self._turn = turn
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._min_bytes = min_bytes
        self._partitions = partitions
        self._failures = failures
        connection.waiter = self
        for partition in partitions:
            partition.data_waiters[self] = None

    def poke(self) -> None:
        fetched = self._fetch.read(self._turn, self._request, self._version)
        failed = fetched.failures > self._failures
        if failed or fetched.is_due or fetched.available >= self._min_bytes:
            self._answer(fetched)

    def expired(self) -> None:
        self._answer(self._fetch.read(self._turn, self._request, self._version))

    def abandoned(self) -> None:
        self.finish()
        self._leave()

    def broke(self, error: Exception) -> None:
        self.abandoned()
        logger.error("a Fetch failed after its wait", exc_info=error)
        self._connection.close("its Fetch failed")

    def _answer(self, fetched: Fetched) -> None:
        self.finish()
        self._leave()
        connection = self._connection
        answer = self._fetch.respond(connection, self._turn, self._version, self._correlation_id, fetched)
        connection.answer(self.slot, answer)
        connection.resume()

    def _leave(self) -> None:
        for partition in self._partitions:
            partition.data_waiters.pop(self, None)
        self._partitions = []


def _repeats(request: FetchRequest, turn: FetchTurn) -> bool:
    """Whether the next request may be like this one: within a session, or without one and each partition
    asked for once."""
    if request.session_id:
        return request.session_epoch > 0
    return request.session_epoch < 0 and len(list(turn.wanted)) == len(request.items)


def _drop_unreadable(reads: list[Read], version: int) -> None:
    """A disk that cannot be read is out of use, and its partitions answer so; the others are not held up."""
    for read in reads:
        if read.part is None or read.wanted.partition is None:
            continue
        try:
            read.part.read()
        except OSError as error:
            read.wanted.partition.log.flush_failed(error)
            read.part = None
            read.error = _known_to(version, ErrorCode.kafka_storage_error)


def is_news(read: Read) -> bool:
    """Whether an incremental session must hear of this partition; remembers what it hears."""
    wanted = read.wanted
    changed = (
        read.part is not None
        or read.high_watermark != wanted.sent_high_watermark
        or read.start != wanted.sent_start
        or read.preferred >= 0
    )
    wanted.sent_high_watermark = read.high_watermark
    wanted.sent_start = read.start
    if read.error is not ErrorCode.none or read.diverging is not None:
        # so that it is told again once the error is gone, or what differed is cut off
        wanted.sent_high_watermark = -1
        return True
    return changed


def divergence(held: AbstractLog, wanted: Wanted) -> tuple[int, int] | None:
    """Where the log the client read from and this one part (KIP-595), or None when they agree so far."""
    epoch, end = held.end_offset_for_epoch(wanted.last_epoch)
    if epoch < 0 or end < 0:
        raise KafkaError(ErrorCode.offset_out_of_range, "the last fetched epoch is unknown")
    if wanted.offset < held.log_start_offset:
        raise KafkaError(ErrorCode.offset_out_of_range)
    if epoch < wanted.last_epoch or end < wanted.offset:
        return epoch, end
    return None


def _elsewhere(wanted: Wanted, partition: Partition, preferred: int) -> Read:
    """No data, but who to ask for it."""
    held = partition.log
    read = Read(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
    read.preferred = preferred
    return read


def _is_inside(held: AbstractLog, offset: int) -> bool:
    return held.log_start_offset <= offset <= held.log_end_offset


def _known_to(version: int, code: ErrorCode) -> ErrorCode:
    """Clients before v6 take NOT_LEADER_OR_FOLLOWER as a reason to look elsewhere, and 56 as unknown."""
    if code is ErrorCode.kafka_storage_error and version < _STORAGE_ERROR_FROM:
        return ErrorCode.not_leader_or_follower
    return code


def _joined(pieces: list[bytes | LogSlice]) -> list[bytes | LogSlice]:
    """Neighbouring bytes as one piece."""
    out: list[bytes | LogSlice] = []
    run: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            run.append(piece)
        else:
            out.append(b"".join(run))
            out.append(piece)
            run = []
    out.append(b"".join(run))
    return [piece for piece in out if not isinstance(piece, bytes) or piece]


def _pack_error(version: int, correlation_id: int, error: int, session_id: int) -> bytes:
    head = fetch_head(version, correlation_id, error, session_id, 0) + fetch_tail(version)
    return _SIZE.pack(len(head)) + head
