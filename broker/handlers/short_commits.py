"""OffsetCommit of few partitions, from its frame to its answer.

Owns: the way of such a request without tasks or steps: what is committed of it, and the answer as soon as
the coordinator has one. Does not own: longer requests (`broker.handlers.groups`), the bytes
(protocol.offset_commit), what a commit leads to (`broker.coordinators.groups.offsets`).
Invariant: it answers what the long way answers; the slot of a request that was asked is answered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.coordinators.groups.offsets import Commit, OffsetToCommit
from broker.net.connection import Answer, AnswerSlot, Connection
from protocol.errors import ErrorCode, KafkaError
from protocol.offset_commit import ShortCommit, encode_commit, parse_short_commit

if TYPE_CHECKING:
    from broker.control.cluster import Cluster
    from broker.coordinators.groups.coordinator import GroupCoordinator
    from broker.net.connection import Frame

KNOWS_EPOCHS_FROM: Final = 9


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
        image = self._cluster.image
        offsets: list[OffsetToCommit] = []
        codes: list[ErrorCode | None] = []
        for key, rows in asked.topics:
            missing = ErrorCode.unknown_topic_or_partition
            if isinstance(key, str):
                topic = image.topics.get(key)
            else:
                topic = image.topic_by_id(key)
                if topic is None:
                    missing = ErrorCode.unknown_topic_id
            for index, offset, leader_epoch, metadata in rows:
                if topic is None or not 0 <= index < len(topic.partitions):
                    codes.append(missing)
                    continue
                codes.append(None)
                offsets.append(OffsetToCommit(topic.name, index, offset, leader_epoch, metadata, topic.id))
        reply = _Reply(connection, version, correlation_id, asked, codes)
        if not offsets:
            reply.give(())
        else:
            try:
                self._groups.tell(
                    asked.group_id,
                    Commit(
                        asked.group_id,
                        tuple(offsets),
                        asked.member_id,
                        asked.generation,
                        asked.instance_id,
                        asked.retention_ms,
                        version >= KNOWS_EPOCHS_FROM,
                    ),
                    reply,
                )
            except KafkaError as error:
                reply.set_exception(error)
        return reply.answer_or_slot()


class _Reply:
    """The place where the coordinator puts the outcome of a commit."""

    __slots__ = ("_answer", "_asked", "_codes", "_connection", "_correlation_id", "_slot", "_version")

    def __init__(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        asked: ShortCommit,
        codes: list[ErrorCode | None],
    ) -> None:
        """`codes` has None for each partition that is to be committed."""
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._asked = asked
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
        codes = errors
        if len(errors) != len(self._codes):
            following = iter(errors)
            codes = [next(following) if code is None else code for code in self._codes]
        self._answer = answer = encode_commit(self._version, self._correlation_id, self._asked.topics, codes)
        if self._slot is not None:
            self._connection.answer(self._slot, answer)
            self._connection.resume()
