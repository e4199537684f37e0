"""What the machine takes and refuses, alone and in whole lives."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.image import Image
from broker.control.metadata_records import PartitionChanged, PartitionImage, TopicCreated, TopicDeleted
from broker.coordinators.machine import DecisionDraft, Instant
from broker.coordinators.tier.machine import TierCommand, TierMachine
from protocol.errors import ErrorCode, KafkaError
from remote.cold.events import Tombstone
from remote.cold.fold import TierFold
from remote.cold.segments import (
    NEXT_PARTITION_STATES,
    NEXT_STATES,
    LogStartMoved,
    PartitionState,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
    TierEvent,
)
from tests.broker.coordinators.tier.tier_driver import USER, deletion, finished, segment, started, update

NOW = Instant(0, 0)
EPOCH = 4


class Shell:
    """A machine over a log that takes everything at once."""

    def __init__(self) -> None:
        self.image = Image()
        self.leads = True
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.heard: list[TieredPartition] = []
        row = PartitionImage(
            index=0, leader=1, leader_epoch=EPOCH, partition_epoch=0, replicas=(1,), isr=(1,)
        )
        self.image.apply_slot(1, [TopicCreated(name="t", topic_id=USER.topic_id, partitions=(row,))])
        self.machine = self.new_machine()
        self.machine.loaded(NOW)

    def new_machine(self) -> TierMachine:
        return TierMachine(
            image=lambda: self.image,
            leads=lambda: self.leads,
            on_loaded=lambda machine: None,
            on_applied=lambda machine, partition: self.heard.append(partition),
        )

    def tell(
        self, event: TierEvent, *, leader_epoch: int | None = EPOCH, expects: SegmentState | None = None
    ) -> bool:
        command = TierCommand(event=event, leader_epoch=leader_epoch, expects=expects)
        decision = self.machine.decide(command, DecisionDraft(NOW, 0))
        for row in decision.records:
            key, value = self.machine.encode(row)
            self.rows.append((key, value))
            self.machine.apply(row, offset=len(self.rows) - 1, producer_id=-1)
        assert decision.response is not None
        return decision.response

    def refuses(
        self, event: TierEvent, *, leader_epoch: int | None = EPOCH, expects: SegmentState | None = None
    ) -> ErrorCode:
        """Nothing is appended, whatever the reason."""
        before = len(self.rows)
        with pytest.raises(KafkaError) as caught:
            self.tell(event, leader_epoch=leader_epoch, expects=expects)
        assert len(self.rows) == before
        return caught.value.code

    def replayed(self, *, last_of_each_key: bool) -> TierFold:
        rows = list(enumerate(self.rows))
        if last_of_each_key:
            last = {key: at for at, (key, _) in rows}
            rows = [(at, row) for at, row in rows if last[row[0]] == at]
        machine = self.new_machine()
        for at, (key, value) in rows:
            row = machine.decode(key, value)
            assert row is not None
            machine.apply(row, offset=at, producer_id=-1)
        return machine.fold

    def delete_topic(self) -> None:
        self.image.apply_slot(self.image.seq + 1, [TopicDeleted(topic_id=USER.topic_id)])


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_a_life_leaves_nothing(shell: Shell) -> None:
    assert shell.tell(started())
    assert shell.tell(finished(custom=b"c"))
    fold = shell.machine.fold.get(USER)
    assert fold is not None
    assert [each.custom for each in fold.finished()] == [b"c"]
    assert shell.tell(update(SegmentState.DELETE_STARTED))
    assert shell.tell(update(SegmentState.DELETE_FINISHED))
    assert shell.machine.fold == TierFold()
    last = dict(shell.rows)
    assert set(last.values()) == {None}
    assert shell.heard and set(shell.heard) == {USER}


def test_the_start_of_a_begun_copy_is_written_again_for_who_wants_a_commit_of_it(shell: Shell) -> None:
    begun = SegmentState.COPY_STARTED
    assert shell.refuses(started(), expects=begun) is ErrorCode.invalid_record
    assert shell.tell(started())
    assert not shell.tell(started(), expects=begun)
    assert shell.rows[0] == shell.rows[1]
    assert len(shell.rows) == 2
    old = shell.refuses(started(), expects=begun, leader_epoch=EPOCH - 1)
    assert old is ErrorCode.fenced_leader_epoch
    for state in (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED):
        assert shell.tell(update(state))
        assert shell.refuses(started(), expects=begun) is ErrorCode.invalid_record
    assert shell.machine.fold == TierFold()


def log_start(offset: int) -> LogStartMoved:
    return LogStartMoved(partition=USER, topic="t", log_start=offset, broker_id=1, event_timestamp_ms=9)


def test_the_highest_log_start_counts_and_goes_with_the_partition(shell: Shell) -> None:
    assert shell.tell(log_start(7))
    assert shell.tell(log_start(12))
    assert not shell.tell(log_start(12))
    assert not shell.tell(log_start(9))
    assert len(shell.rows) == 2
    fold = shell.machine.fold.get(USER)
    assert fold is not None
    assert fold.log_start == fold.implied_start == 12
    assert shell.refuses(log_start(20), leader_epoch=EPOCH - 1) is ErrorCode.fenced_leader_epoch
    shell.delete_topic()
    for state in PartitionState:
        assert shell.tell(deletion(state), leader_epoch=None)
    assert shell.machine.fold == TierFold()
    for last_of_each_key in (True, False):
        assert shell.replayed(last_of_each_key=last_of_each_key) == TierFold()
    assert set(dict(shell.rows).values()) == {None}


def test_what_is_told_again_leaves_nothing_and_is_not_refused(shell: Shell) -> None:
    for event in (
        started(),
        finished(custom=b"c"),
        update(SegmentState.DELETE_STARTED),
        update(SegmentState.DELETE_FINISHED),
    ):
        assert shell.tell(event)
        before = len(shell.rows)
        assert not shell.tell(event)
        assert len(shell.rows) == before


def test_that_a_copy_is_finished_is_committed_again_for_whoever_wants_to_know(shell: Shell) -> None:
    """And changes nothing. Of a copy that goes it is refused."""
    claim = finished(custom=b"c")
    assert shell.refuses(claim, expects=SegmentState.COPY_FINISHED) is ErrorCode.invalid_record
    shell.tell(started())
    assert shell.refuses(claim, expects=SegmentState.COPY_FINISHED) is ErrorCode.invalid_record
    shell.tell(claim)
    fold = shell.machine.fold.get(USER)
    assert fold is not None
    rows, known = len(shell.rows), list(fold.finished())
    assert not shell.tell(claim, expects=SegmentState.COPY_FINISHED)
    assert len(shell.rows) == rows + 1
    assert list(fold.finished()) == known
    shell.tell(update(SegmentState.DELETE_STARTED))
    assert shell.refuses(claim, expects=SegmentState.COPY_FINISHED) is ErrorCode.invalid_record


def test_what_was_decided_about_another_state_is_refused(shell: Shell) -> None:
    """Of a leader that gives a copy up while the word that it is finished was under way."""
    shell.tell(started())
    shell.tell(finished())
    going = update(SegmentState.DELETE_STARTED)
    assert shell.refuses(going, expects=SegmentState.COPY_STARTED) is ErrorCode.invalid_record
    assert shell.tell(going, expects=SegmentState.COPY_FINISHED)
    assert not shell.tell(going, expects=SegmentState.COPY_FINISHED), "told again it changes nothing"
    assert shell.tell(update(SegmentState.DELETE_FINISHED), expects=SegmentState.DELETE_STARTED)


def test_custom_metadata_is_carried_on(shell: Shell) -> None:
    shell.tell(started())
    shell.tell(finished(custom=b"c"))
    shell.tell(update(SegmentState.DELETE_STARTED))
    row = shell.machine.decode(*shell.rows[-1])
    assert row is not None
    assert isinstance(row.change, SegmentUpdated)
    assert row.change.custom == b"c"


@pytest.mark.parametrize("before", [None, *SegmentState])
@pytest.mark.parametrize("after", [*SegmentState])
def test_only_legal_transitions_are_taken(
    shell: Shell, before: SegmentState | None, after: SegmentState
) -> None:
    path = {
        None: [],
        SegmentState.COPY_STARTED: [started()],
        SegmentState.COPY_FINISHED: [started(), finished()],
        SegmentState.DELETE_STARTED: [started(), update(SegmentState.DELETE_STARTED)],
        SegmentState.DELETE_FINISHED: [
            started(),
            update(SegmentState.DELETE_STARTED),
            update(SegmentState.DELETE_FINISHED),
        ],
    }[before]
    for event in path:
        shell.tell(event)
    event = started() if after is SegmentState.COPY_STARTED else update(after)
    # what is deleted is forgotten
    known = None if before is SegmentState.DELETE_FINISHED else before
    if after in NEXT_STATES[known] or (known is None and after is SegmentState.DELETE_FINISHED):
        shell.tell(event)
    else:
        assert shell.refuses(event) is ErrorCode.invalid_record


@pytest.mark.parametrize("before", [None, PartitionState.DELETE_MARKED, PartitionState.DELETE_STARTED])
@pytest.mark.parametrize("after", [*PartitionState])
def test_only_legal_steps_of_a_deletion_are_taken(
    shell: Shell, before: PartitionState | None, after: PartitionState
) -> None:
    for step in PartitionState:
        if before is not None and step <= before:
            shell.tell(deletion(step))
    if after in NEXT_PARTITION_STATES[before] or (before is None and after is PartitionState.DELETE_FINISHED):
        shell.tell(deletion(after))
    else:
        assert shell.refuses(deletion(after)) is ErrorCode.invalid_record


def test_a_deletion_ends_with_the_last_segment(shell: Shell) -> None:
    shell.tell(started())
    shell.tell(deletion(PartitionState.DELETE_MARKED))
    shell.tell(deletion(PartitionState.DELETE_STARTED))
    assert shell.refuses(started(2, base=10, end=20)) is ErrorCode.invalid_record
    assert shell.refuses(deletion(PartitionState.DELETE_FINISHED)) is ErrorCode.invalid_record
    shell.tell(update(SegmentState.DELETE_STARTED))
    assert shell.refuses(deletion(PartitionState.DELETE_FINISHED)) is ErrorCode.invalid_record
    shell.tell(update(SegmentState.DELETE_FINISHED))
    shell.tell(deletion(PartitionState.DELETE_FINISHED))
    assert shell.machine.fold == TierFold()
    assert shell.tell(started(3)), "the partition may be tiered again"


@pytest.mark.parametrize(
    "changes",
    [
        {"base": 10, "end": 10},
        {"epochs": ()},
        {"epochs": ((0, 1),)},
        {"epochs": ((1, 0), (0, 5))},
        {"epochs": ((0, 0), (1, 10))},
        {"size_bytes": -1},
        {"state": SegmentState.COPY_FINISHED},
    ],
)
def test_a_copy_that_cannot_be_is_refused(shell: Shell, changes: dict[str, object]) -> None:
    assert shell.refuses(started(**changes)) is ErrorCode.invalid_record


def test_an_id_is_that_of_one_copy(shell: Shell) -> None:
    shell.tell(started())
    assert shell.refuses(started(end=11)) is ErrorCode.invalid_record


def test_who_may_tell(shell: Shell) -> None:
    assert shell.refuses(started(), leader_epoch=EPOCH - 1) is ErrorCode.fenced_leader_epoch
    assert shell.refuses(started(), leader_epoch=EPOCH + 1) is ErrorCode.unknown_leader_epoch
    beyond = TieredPartition(USER.topic_id, 1)
    assert shell.refuses(started(partition=beyond)) is ErrorCode.unknown_topic_or_partition
    stranger = TieredPartition(UUID(int=77), 0)
    assert shell.refuses(started(partition=stranger)) is ErrorCode.unknown_topic_id
    assert shell.refuses(started(), leader_epoch=None) is ErrorCode.invalid_request
    shell.leads = False
    assert shell.refuses(started()) is ErrorCode.not_leader_or_follower


def test_a_deposed_leader_is_refused_once_the_image_knows(shell: Shell) -> None:
    shell.tell(started())
    shell.image.apply_slot(2, [PartitionChanged(topic_id=USER.topic_id, partition=0, leader=2)])
    assert shell.refuses(finished()) is ErrorCode.fenced_leader_epoch
    assert shell.tell(finished(), leader_epoch=EPOCH + 1)


def test_a_deleted_topic_is_spoken_of_by_the_sweep_alone(shell: Shell) -> None:
    shell.tell(started())
    shell.delete_topic()
    assert shell.refuses(finished()) is ErrorCode.unknown_topic_id
    assert shell.tell(update(SegmentState.DELETE_STARTED), leader_epoch=None)


def test_tombstones_that_were_left_out_are_written_when_it_is_told_again(shell: Shell) -> None:
    shell.tell(started())
    shell.tell(update(SegmentState.DELETE_STARTED))
    decision = shell.machine.decide(
        TierCommand(event=update(SegmentState.DELETE_FINISHED), leader_epoch=EPOCH), DecisionDraft(NOW, 0)
    )
    first = decision.records[0]
    shell.rows.append(shell.machine.encode(first))
    shell.machine.apply(first, offset=len(shell.rows) - 1, producer_id=-1)
    assert not shell.tell(update(SegmentState.DELETE_FINISHED))
    assert shell.machine.fold == TierFold()


EVENTS = st.one_of(
    st.builds(
        lambda number, at: started(number, base=10 * at, end=10 * at + 10),
        st.integers(1, 4),
        st.integers(0, 3),
    ),
    st.builds(
        update,
        st.sampled_from(SegmentState),
        st.integers(1, 4),
        custom=st.sampled_from([None, b"c"]),
    ),
    st.builds(deletion, st.sampled_from(PartitionState)),
)


@given(st.lists(EVENTS, max_size=40))
def test_any_sequence_folds_alike_from_the_whole_log_and_from_a_compacted_one(
    events: list[TierEvent],
) -> None:
    shell = Shell()
    for event in events:
        before, rows = shell.machine.fold.get(USER), len(shell.rows)
        try:
            is_new = shell.tell(event)
        except KafkaError as error:
            assert error.code is ErrorCode.invalid_record
            assert len(shell.rows) == rows
            continue
        assert is_new == (len(shell.rows) > rows), before
        assert not shell.tell(event)
    assert shell.replayed(last_of_each_key=False) == shell.machine.fold
    assert shell.replayed(last_of_each_key=True) == shell.machine.fold
    live = {key for key, value in dict(shell.rows).items() if value is not None}
    fold = shell.machine.fold.get(USER)
    if fold is None:
        assert not live, "a partition without copies leaves no row"


def test_rows_of_every_kind_are_read_back(shell: Shell) -> None:
    for event in (started(), finished(), update(SegmentState.DELETE_STARTED)):
        shell.tell(event)
        row = shell.machine.decode(*shell.rows[-1])
        assert row is not None and row.change == event
    shell.tell(update(SegmentState.DELETE_FINISHED))
    decoded = [shell.machine.decode(key, value) for key, value in shell.rows]
    kinds = [type(row.change) for row in decoded if row is not None]
    assert kinds[-2:] == [Tombstone, Tombstone]
    assert segment().partition == USER
