"""OffsetCommit of few partitions, from its frame to its answer.

Owns: the way of such a request without tasks or steps: what is committed of it, the answer as soon as the
coordinator has one, and what is remembered of a connection's last one. Does not own: longer requests
(`broker.handlers.groups`), the bytes (protocol.offset_commit), what a commit leads to
(`broker.coordinators.groups.offsets`).
Invariant: it answers what the long way answers; the slot of a request that was asked is answered once.

A consumer commits the same partitions again and again: a request that differs from the connection's last one
by its offsets is not read again, and its answer is that of the last one unless something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.coordinators.groups.offsets import Commit, OffsetToCommit
from broker.handlers.later import REMEMBERED_BYTES_MAX
from broker.net.connection import Answer, AnswerSlot, Connection
from protocol.errors import ErrorCode, KafkaError
from protocol.offset_commit import ShortCommit, encode_commit, parse_short_commit
from protocol.shapes import FrameShape, correlated

if TYPE_CHECKING:
    from broker.control.cluster import Cluster
    from broker.coordinators.groups.coordinator import GroupCoordinator
    from broker.net.connection import Frame

KNOWS_EPOCHS_FROM: Final = 9
_new_tuple = tuple.__new__
"""A named tuple of all its fields, in half the time."""


class LastCommit:
    """A request, and what is the same of those like it."""

    __slots__ = ("accepted", "asked", "shape", "version")

    def __init__(self, version: int, asked: ShortCommit, frame: Frame) -> None:
        self.version = version
        self.asked = asked
        is_kept = len(frame) <= REMEMBERED_BYTES_MAX
        self.shape = FrameShape(frame, asked.places, "q") if is_kept else None
        self.accepted = encode_commit(version, 0, asked.topics, (0,) * len(asked.places))
        """The answer where nothing is wrong."""


class ShortCommits:
    def __init__(self, *, groups: GroupCoordinator, cluster: Cluster) -> None:
        self._groups = groups
        self._cluster = cluster

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        """Answer it, now or later; return None for a request that is to go the long way."""
        asked = parse_short_commit(memoryview(frame), body_at, version)
        if asked is None:
            return None
        last = LastCommit(version, asked, frame)
        connection.memo.last_commit = last if last.shape is not None else None
        return self._ask(connection, last, asked.offsets, correlation_id)

    def repeat(self, connection: Connection, frame: Frame, correlation_id: int) -> Answer:
        """Answer a request that is the connection's last one but for its offsets; None for any other."""
        last: LastCommit | None = connection.memo.last_commit
        offsets = last.shape.read(frame) if last is not None and last.shape is not None else None
        if last is None or offsets is None:
            return None
        return self._ask(connection, last, offsets, correlation_id)

    def _ask(
        self, connection: Connection, like: LastCommit, offsets: tuple[int, ...], correlation_id: int
    ) -> Answer:
        asked = like.asked
        image = self._cluster.image
        wanted: list[OffsetToCommit] = []
        codes: list[ErrorCode | None] = []
        following = iter(offsets)
        for key, rows in asked.topics:
            missing = ErrorCode.unknown_topic_or_partition
            if isinstance(key, str):
                topic = image.topics.get(key)
            else:
                topic = image.topic_by_id(key)
                if topic is None:
                    missing = ErrorCode.unknown_topic_id
            for index, _, leader_epoch, metadata in rows:
                offset = next(following)
                if topic is None or not 0 <= index < len(topic.partitions):
                    codes.append(missing)
                    continue
                codes.append(None)
                wanted.append(
                    _new_tuple(OffsetToCommit, (topic.name, index, offset, leader_epoch, metadata, topic.id))
                )
        reply = _Reply(connection, correlation_id, like, codes)
        if not wanted:
            reply.give(())
        else:
            try:
                self._groups.tell(
                    asked.group_id,
                    Commit(
                        asked.group_id,
                        tuple(wanted),
                        asked.member_id,
                        asked.generation,
                        asked.instance_id,
                        asked.retention_ms,
                        like.version >= KNOWS_EPOCHS_FROM,
                    ),
                    reply,
                )
            except KafkaError as error:
                reply.set_exception(error)
        return reply.answer_or_slot()


class _Reply:
    """The place where the coordinator puts the outcome of a commit."""

    __slots__ = ("_answer", "_codes", "_connection", "_correlation_id", "_like", "_slot")

    def __init__(
        self,
        connection: Connection,
        correlation_id: int,
        like: LastCommit,
        codes: list[ErrorCode | None],
    ) -> None:
        """`codes` has None for each partition that is to be committed."""
        self._connection = connection
        self._correlation_id = correlation_id
        self._like = like
        self._codes = codes
        self._answer: bytes | None = None
        self._slot: AnswerSlot | None = None

    def answer_or_slot(self) -> bytes | AnswerSlot:
        """Return the answer if it is there, and a slot for it otherwise."""
        if self._answer is not None:
            self._connection.unsent += len(self._answer)
            return self._answer
        self._slot = self._connection.slot()
        return self._slot

    def done(self) -> bool:
        return self._answer is not None

    def set_result(self, errors: Sequence[ErrorCode]) -> None:
        self.give(errors)

    def set_exception(self, error: KafkaError) -> None:
        self.give((error.code,) * self._codes.count(None))

    def give(self, errors: Sequence[ErrorCode]) -> None:
        codes, like = errors, self._like
        if len(errors) != len(self._codes):
            following = iter(errors)
            codes = [next(following) if code is None else code for code in self._codes]
        if any(codes):
            answer = encode_commit(like.version, self._correlation_id, like.asked.topics, codes)
        else:
            answer = correlated(like.accepted, self._correlation_id)
        self._answer = answer
        if self._slot is not None:
            self._connection.answer(self._slot, answer)
            self._connection.resume()
