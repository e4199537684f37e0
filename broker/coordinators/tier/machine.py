"""What may be said about copies in the cold tier: the machine behind one partition of the metadata topic.

Owns: which event is taken and which is refused, and the rows a taken one becomes. Does not own: what the
events mean together (remote.cold.fold), their bytes (remote.cold.events), the log they are written to
(broker.coordinators.replicated_state).

Invariants: an event is in the log only if it was legal after all before it, and if the leader that told it
was, as far as this broker's image goes, the leader of its partition; a refused event leaves nothing. An event
told again leaves nothing either, and is not refused: whoever lost an answer asks again. Only of a begun copy
the start is written once more for whoever asks for a commit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from broker.control.image import Image
from broker.control.internal_topics import REMOTE_LOG_METADATA
from broker.coordinators.machine import DecisionDraft, Instant
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from remote.cold.events import Tombstone, decode_event, encode_event, tombstones
from remote.cold.fold import PartitionFold, TierFold
from remote.cold.segments import (
    LogStartMoved,
    PartitionDeletion,
    PartitionState,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
    TierEvent,
    partition_of,
)

TOPIC: Final = REMOTE_LOG_METADATA


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCommand:
    """One event, and in which leader epoch of the partition it speaks of it is told.

    Without an epoch it is told about a topic that is no more, by the leader of the metadata partition itself.
    """

    event: TierEvent
    leader_epoch: int | None
    expects: SegmentState | None = None
    """Told only of a copy that is in this state, or in the event's own; None for any. With the start of a
    copy: it is begun already, and its teller wants a commit of that."""

    def decide(self, state: TierMachine, draft: DecisionDraft[TierRow], /) -> TierDecision:
        return state.decide(self, draft)


class TierRow(NamedTuple):
    """One row of the metadata topic, with what it means."""

    key: bytes
    value: bytes | None
    change: TierEvent | Tombstone


TierDecision: TypeAlias = Decision[TierRow, bool]
"""Answers whether the event was new."""


class TierMachine:
    def __init__(
        self,
        *,
        image: Callable[[], Image],
        leads: Callable[[], bool],
        on_loaded: Callable[[TierMachine], None],
        on_applied: Callable[[TierMachine, TieredPartition], None],
    ) -> None:
        """`leads` tells whether the image still names this broker the leader: what it decides after that
        might be about topics that the next leader has not heard of."""
        self.fold = TierFold()
        self.end = 0
        """Past the last row that was applied."""
        self._image = image
        self._leads = leads
        self._on_loaded = on_loaded
        self._on_applied = on_applied
        self._is_loaded = False

    # --- deciding ---

    def decide(self, command: TierCommand, draft: DecisionDraft[TierRow]) -> TierDecision:
        event = command.event
        self._check_teller(command)
        partition = self.fold.get(partition_of(event))
        if _is_forgotten(partition, event):
            return Decision(records=_left_over(partition, event), response=False)
        if isinstance(event, SegmentUpdated):
            _check_state(partition, event, command.expects)
            event = _with_custom(partition, event)
        if _is_claim(command) and not _is_told(partition, event):
            raise KafkaError(ErrorCode.invalid_record, "the copy is not, or no more, what its teller says")
        refusal = self.fold.refusal(event) or _refusal_to_forget(partition, event)
        if refusal is not None:
            raise KafkaError(ErrorCode.invalid_record, refusal)
        if _is_told(partition, event):
            return Decision(records=_rows(partition, event) if _is_claim(command) else (), response=False)
        return Decision(records=_rows(partition, event), response=True)

    def _check_teller(self, command: TierCommand) -> None:
        """Refuse what another than the partition's leader tells, as far as this broker's image goes."""
        if not self._leads():
            raise KafkaError(ErrorCode.not_leader_or_follower, f"another broker leads this part of {TOPIC}")
        partition = partition_of(command.event)
        topic = self._image().topic_by_id(partition.topic_id)
        if command.leader_epoch is None:
            if topic is not None:
                raise KafkaError(ErrorCode.invalid_request, f"topic {topic.name} is there")
            return
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id, f"no topic has the id {partition.topic_id}")
        if not 0 <= partition.number < len(topic.partitions):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"{topic.name} has no partition {partition.number}"
            )
        current = topic.partitions[partition.number].leader_epoch
        if command.leader_epoch != current:
            is_old = command.leader_epoch < current
            raise KafkaError(
                ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch,
                f"{topic.name}-{partition.number} is in leader epoch {current}, "
                f"the event comes from {command.leader_epoch}",
            )

    def tick(self, now: Instant) -> TierDecision:
        raise AssertionError("this machine has no deadlines")

    def next_deadline_ms(self) -> int | None:
        return None

    def resume(self, now: Instant) -> None:
        """Do nothing: no peer has a deadline here."""

    def scope(self, command: TierCommand) -> Hashable | None:
        """Return the segment. All segments of a partition at once count for the deletion of it."""
        event = command.event
        if isinstance(event, PartitionDeletion):
            return None
        if isinstance(event, SegmentStarted):
            return event.segment.partition, event.segment.id
        return event.partition, None if isinstance(event, LogStartMoved) else event.id

    def share(self, command: TierCommand) -> None:
        return None

    # --- applying ---

    def loaded(self, now: Instant) -> None:
        self._is_loaded = True
        self._on_loaded(self)

    def apply(self, record: TierRow, *, offset: int, producer_id: int) -> None:
        self.fold.apply(record.change)
        self.end = max(self.end, offset + 1)
        if self._is_loaded:
            self._on_applied(self, changed_partition(record.change))

    def apply_marker(self, *, producer_id: int, committed: bool) -> None:
        """Do nothing: nobody writes here in a transaction."""

    def encode(self, record: TierRow) -> tuple[bytes, bytes | None]:
        return record.key, record.value

    def decode(self, key: bytes, value: bytes | None) -> TierRow | None:
        return TierRow(key, value, decode_event(key, value))


def changed_partition(change: TierEvent | Tombstone) -> TieredPartition:
    return change.partition if isinstance(change, Tombstone) else partition_of(change)


def _is_forgotten(partition: PartitionFold | None, event: TierEvent) -> bool:
    """Whether the event ends what nobody knows of: nothing tells a deletion that is finished from one that
    never began."""
    match event:
        case SegmentUpdated(state=SegmentState.DELETE_FINISHED):
            return partition is None or partition.segment(event.id) is None
        case PartitionDeletion(state=PartitionState.DELETE_FINISHED):
            return partition is None or (partition.deletion is None and not _has_segments(partition))
        case _:
            return False


def _check_state(
    partition: PartitionFold | None, event: SegmentUpdated, expects: SegmentState | None
) -> None:
    """Refuse what was decided about a copy in another state than it has: an end of it that was under way may
    have come before."""
    known = None if partition is None else partition.segment(event.id)
    if expects is not None and known is not None and known.state not in (expects, event.state):
        raise KafkaError(
            ErrorCode.invalid_record, f"the copy is {known.state.name} and no longer {expects.name}"
        )


def _left_over(partition: PartitionFold | None, event: TierEvent) -> tuple[TierRow, ...]:
    """Return the tombstones that an append cut short has left out."""
    if partition is None or not isinstance(event, SegmentUpdated) or event.id not in partition.deleted():
        return ()
    return _tombstones(tombstones(event.partition, event.id))


def _is_claim(command: TierCommand) -> bool:
    """Whether it is told again that a copy is begun, or finished, only to have that committed. Without a
    commit, one might answer that leads the metadata no more."""
    event = command.event
    if isinstance(event, SegmentStarted):
        return command.expects is not None
    return isinstance(event, SegmentUpdated) and command.expects is event.state


def _is_told(partition: PartitionFold | None, event: TierEvent) -> bool:
    """Whether an event that is legal changes nothing."""
    if partition is None:
        return False
    match event:
        case SegmentStarted(segment=segment):
            return partition.segment(segment.id) is not None
        case SegmentUpdated():
            known = partition.segment(event.id)
            return known is not None and known.state is event.state
        case PartitionDeletion():
            return partition.deletion is event.state
        case LogStartMoved():
            return event.log_start <= partition.log_start


def _refusal_to_forget(partition: PartitionFold | None, event: TierEvent) -> str | None:
    """Refuse to call a deletion finished that has left segments."""
    is_end = isinstance(event, PartitionDeletion) and event.state is PartitionState.DELETE_FINISHED
    if is_end and partition is not None and _has_segments(partition):
        return "the partition still has segments in the tier"
    return None


def _has_segments(partition: PartitionFold) -> bool:
    return bool(partition.finished_count or partition.unfinished_count or partition.deleting_count)


def _with_custom(partition: PartitionFold | None, event: SegmentUpdated) -> SegmentUpdated:
    """Carry on what the storage manager left with the copy: compaction keeps the last update alone."""
    known = None if partition is None else partition.segment(event.id)
    if event.custom is not None or known is None or known.custom is None:
        return event
    return replace(event, custom=known.custom)


def _rows(partition: PartitionFold | None, event: TierEvent) -> tuple[TierRow, ...]:
    """Return the row of an event; the last one in a life takes all rows of that life with it."""
    key, value = encode_event(event)
    row = TierRow(key, value, event)
    match event:
        case SegmentUpdated(state=SegmentState.DELETE_FINISHED):
            return (row, *_tombstones(tombstones(event.partition, event.id)))
        case PartitionDeletion(state=PartitionState.DELETE_FINISHED):
            has_log_start = partition is not None and partition.log_start > 0
            keys = tombstones(event.partition, None, has_log_start=has_log_start)
            return (row, *_tombstones(keys))
        case _:
            return (row,)


def _tombstones(keys: list[bytes]) -> tuple[TierRow, ...]:
    return tuple(TierRow(key, None, decode_event(key, None)) for key in keys)
