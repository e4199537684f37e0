"""The answer to a Fetch: what was read, packed in pieces that need not pass through memory.

Owns: what a session is told and what it knows already, the order and joining of the pieces, the hints to
other leaders. Does not own: reading (broker.replicas.read), the sessions themselves (fetch_sessions), bytes
on the wire (protocol.fetch), sending. Invariant: records are never copied into a response of `SENDFILE_MIN`
bytes of records or more; a disk that fails under an answer costs its own partitions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final

from broker.control.cluster import Cluster
from broker.handlers.leader_hints import leader_hint
from broker.net.connection import Connection
from broker.net.sending import SENDFILE_MIN, Bulk, answer_of
from broker.replicas.fetch_sessions import FetchSessions, FetchTurn, Holder, PartitionRequest
from broker.replicas.partition import Partition
from broker.replicas.read import FetchPass, PartitionRead, error_known_to
from protocol.errors import ErrorCode
from protocol.fetch import (
    FETCH_TOPIC_IDS,
    fetch_head,
    fetch_partition_head,
    fetch_partition_tail,
    fetch_tail,
    fetch_topic_head,
    fetch_topic_tail,
)
from protocol.leader_hint import Address
from protocol.pointers import ObjectPlace, SlicePointer
from protocol.primitives import BYTES_A_STEP, ROWS_A_STEP
from protocol.work import Work, let_go
from remote.cold.reader import RemoteSlice
from remote.wal.combined_object import Place
from remote.wal.extents import Extent
from storage.log import LogSlice

_SIZE: Final = Struct(">i")
_HINT_FROM: Final = 16
_LEADER_MOVED: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class FetchResponse:
    def __init__(
        self,
        *,
        cluster: Cluster,
        sessions: FetchSessions,
        now_ms: Callable[[], int],
        count: Callable[[Partition, PartitionRead], None],
        for_followers: bool = False,
    ) -> None:
        """`count` is called with each partition that is answered, for its statistics. The sessions of
        followers stand above those of consumers; followers need no hints, they have the image."""
        self._cluster = cluster
        self._sessions = sessions
        self._now_ms = now_ms
        self._count = count
        self._for_followers = for_followers

    def respond(
        self, connection: Connection, turn: FetchTurn, version: int, correlation_id: int, fetched: FetchPass
    ) -> bytes | Bulk:
        """Pack what was read, within a session only what changed."""
        session_id = 0
        reads = fetched.reads
        if turn.session is not None:
            session = turn.session
            if session.epoch != turn.epoch:
                return pack_error(version, correlation_id, ErrorCode.invalid_fetch_session_epoch, session.id)
            session_id = session.id
            reads = [read for read in reads if is_news(read)]
            session.to_back([read.wanted for read in reads if read.part is not None or read.pointers])
        elif turn.creates:
            for read in reads:
                is_news(read)
            session_id = self._create(connection, turn, version)
        return self._pack(connection, version, correlation_id, session_id, reads)

    def responding(
        self, connection: Connection, turn: FetchTurn, version: int, correlation_id: int, fetched: FetchPass
    ) -> Work[bytes | Bulk]:
        """`respond` in steps."""
        session_id = 0
        reads = fetched.reads
        news: list[PartitionRead] = []
        if turn.session is not None and turn.session.epoch != turn.epoch:
            error = ErrorCode.invalid_fetch_session_epoch
            return pack_error(version, correlation_id, error, turn.session.id)
        for at in range(0, len(reads), ROWS_A_STEP):
            news += [read for read in reads[at : at + ROWS_A_STEP] if is_news(read)]
            yield
        if turn.session is not None:
            session = turn.session
            session_id = session.id
            reads = news
            served = [read.wanted for read in reads if read.part is not None or read.pointers]
            for at in range(0, len(served), ROWS_A_STEP):
                session.to_back(served[at : at + ROWS_A_STEP])
                yield
        elif turn.creates:
            session_id = self._create(connection, turn, version)
        answer = yield from self._packing(
            connection,
            version,
            correlation_id,
            session_id,
            reads,
            is_joined=fetched.size < SENDFILE_MIN,
        )
        yield from let_go(news)
        yield from let_go(fetched.reads)
        if turn.session is None and not session_id:
            yield from turn.letting_go()
        return answer

    def _create(self, connection: Connection, turn: FetchTurn, version: int) -> int:
        return self._sessions.create(
            turn,
            uses_ids=version >= FETCH_TOPIC_IDS,
            now_ms=self._now_ms(),
            holder=holder_of(connection, self._sessions),
            is_privileged=self._for_followers,
        )

    def _pack(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        session_id: int,
        reads: list[PartitionRead],
    ) -> bytes | Bulk:
        out = _Pieces()
        pieces = out.pieces
        topics = at = 0
        while at < len(reads):
            topic = reads[at].wanted.topic
            stop = at + 1
            while stop < len(reads) and reads[stop].wanted.topic == topic:
                stop += 1
            pieces.append(_topic_head(version, reads[at].wanted, stop - at))
            self._pack_rows(out, pieces, connection.listener, version, reads[at:stop])
            pieces.append(fetch_topic_tail(version))
            topics += 1
            at = stop
        return self._sealed(out, connection, version, correlation_id, session_id, topics, reads)

    def _packing(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        session_id: int,
        reads: list[PartitionRead],
        *,
        is_joined: bool,
    ) -> Work[bytes | Bulk]:
        """`_pack` in steps; neighbouring bytes are joined in each, records too where they are few."""
        out = _Pieces()
        pieces = out.pieces
        topics = at = done = size = 0
        while at < len(reads):
            topic = reads[at].wanted.topic
            stop = at + 1
            while stop < len(reads) and reads[stop].wanted.topic == topic:
                stop += 1
                if not stop % 1024:
                    yield
            head = _topic_head(version, reads[at].wanted, stop - at)
            pieces.append(head)
            size += len(head)
            topics += 1
            while at < stop:
                end = min(at + ROWS_A_STEP, stop)
                rows: list[Any] = []
                some = reads[at:end]
                if is_joined:
                    _drop_unreadable(some, version)
                self._pack_rows(out, rows, connection.listener, version, some)
                if is_joined:
                    rows = [piece if piece.__class__ is bytes else piece.read() for piece in rows]
                pieces += rows
                done += end - at
                at = end
                if done >= ROWS_A_STEP or size >= BYTES_A_STEP:
                    done = size = 0
                    out.join_new()
                    yield
            pieces.append(fetch_topic_tail(version))
        _end(out, version, correlation_id, session_id, topics)
        size = _add_size(pieces)
        out.join_new()
        return answer_of(pieces) if is_joined else Bulk(pieces, size)

    def _pack_rows(
        self, out: _Pieces, pieces: list[Any], listener: str, version: int, reads: list[PartitionRead]
    ) -> None:
        """Append what some partitions of one topic are answered."""
        count = self._count
        gives_hints = version >= _HINT_FROM and not self._for_followers
        for read in reads:
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
            if part is not None:
                out.records_size += size
                pieces.append(part)
            if wanted.partition is not None:
                count(wanted.partition, read)
            hint = None
            if read.error in _LEADER_MOVED and gives_hints:
                hint = leader_hint(self._cluster.image, wanted.topic, wanted.index, listener)
                if hint is not None and hint.address is not None:
                    out.addresses[hint.leader_id] = hint.address
            pointers = _pointers(read.pointers, out.objects) if read.pointers else ()
            pieces.append(fetch_partition_tail(version, read.diverging, hint, pointers))

    def _sealed(
        self,
        out: _Pieces,
        connection: Connection,
        version: int,
        correlation_id: int,
        session_id: int,
        topics: int,
        reads: list[PartitionRead],
    ) -> bytes | Bulk:
        pieces = out.pieces
        _end(out, version, correlation_id, session_id, topics)
        if out.records_size < SENDFILE_MIN:
            try:
                body = b"".join([piece if piece.__class__ is bytes else piece.read() for piece in pieces])
            except OSError:
                _drop_unreadable(reads, version)
                return self._pack(connection, version, correlation_id, session_id, reads)
            return _SIZE.pack(len(body)) + body
        size = _add_size(pieces)
        return Bulk(_joined(pieces), size)


class _Pieces:
    """An answer while it is packed."""

    __slots__ = ("_joined", "addresses", "objects", "pieces", "records_size")

    def __init__(self) -> None:
        self.pieces: list[Any] = [b"", b""]
        """Bytes and log slices; the first two are filled in at the end."""
        self.addresses: dict[int, Address] = {}
        self.objects: dict[Place, int] = {}
        self.records_size = 0
        self._joined = len(self.pieces)

    def join_new(self) -> None:
        """Join neighbouring bytes among the pieces since the last time."""
        self.pieces[self._joined :] = _joined(self.pieces[self._joined :])
        self._joined = len(self.pieces)


def _end(out: _Pieces, version: int, correlation_id: int, session_id: int, topics: int) -> None:
    """Add what comes last, and the head."""
    out.pieces.append(fetch_tail(version, out.addresses, [_named(place) for place in out.objects]))
    out.pieces[1] = fetch_head(version, correlation_id, 0, session_id, topics)


def _add_size(pieces: list[Any]) -> int:
    """Put the size in front; return that of all together."""
    size: int = sum(len(piece) if piece.__class__ is bytes else piece.size for piece in pieces)
    pieces[0] = _SIZE.pack(size)
    return size + 4


def holder_of(connection: Connection, sessions: FetchSessions) -> Holder:
    """Return what sessions are held for; they hear when the connection is gone."""
    holder: Holder | None = connection.memo.holder
    if holder is None:
        holder = connection.memo.holder = Holder(connection.peer_host)
        connection.on_lost = partial(_lost, sessions, holder, connection.on_lost)
    return holder


def _lost(sessions: FetchSessions, holder: Holder, before: Callable[[], None] | None) -> None:
    sessions.left(holder)
    if before is not None:
        before()


def _topic_head(version: int, wanted: PartitionRequest, partition_count: int) -> bytes:
    """What names a topic that is not there is not kept: it may be as long as the client likes."""
    head = fetch_topic_head if wanted.partition is not None else fetch_topic_head.__wrapped__
    return head(version, wanted.topic, partition_count)


def _pointers(extents: Sequence[Extent], objects: dict[Place, int]) -> list[SlicePointer]:
    """Return the extents as pointers; `objects` numbers the objects in the order in which they are named."""
    return [
        SlicePointer(
            objects.setdefault(each.place, len(objects)),
            each.position,
            each.size,
            each.crc32c,
            each.start,
            each.end,
            each.batch_epoch,
        )
        for each in extents
    ]


def _named(place: Place) -> ObjectPlace:
    return ObjectPlace(*place.stream, place.seq)


def pack_error(version: int, correlation_id: int, error: ErrorCode, session_id: int) -> bytes:
    head = fetch_head(version, correlation_id, error, session_id, 0) + fetch_tail(version)
    return _SIZE.pack(len(head)) + head


def is_news(read: PartitionRead) -> bool:
    """Whether an incremental session must be told of this partition; remembers what it is told."""
    wanted = read.wanted
    changed = (
        read.part is not None
        or bool(read.pointers)
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


def _drop_unreadable(reads: list[PartitionRead], version: int) -> None:
    """Take disks of logs that cannot be read out of use, and answer their partitions with the error, those of
    the tier too; the others are not held up."""
    for read in reads:
        if read.part is None or read.wanted.partition is None:
            continue
        try:
            read.part.read()
        except OSError as error:
            if not isinstance(read.part, RemoteSlice):
                read.wanted.partition.log.flush_failed(error)
            read.part = None
            read.error = error_known_to(version, ErrorCode.kafka_storage_error)


def _joined(pieces: list[bytes | LogSlice]) -> list[bytes | LogSlice]:
    """The pieces with neighbouring bytes as one piece."""
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
