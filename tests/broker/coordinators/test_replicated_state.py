"""The shell around a machine: order, batching, failure, loading, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

import pytest

from broker.coordinators.groups.classic import Heartbeat, Join, Sync
from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.membership import State
from broker.coordinators.groups.offsets import (
    Commit,
    DeleteGroups,
    DeleteOffsets,
    OffsetToCommit,
    TxnCommit,
)
from broker.coordinators.groups.shard import ConsumerSettings, GroupConfig
from broker.coordinators.machine import Instant, TransactionalProducer
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import StateConfig
from broker.turns import Turns
from protocol import records as batches
from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.offsets import CommittedOffset, GroupRecord, OffsetRecord, encode_coordinator_record
from protocol.work import Work
from storage.log import NewMarker
from tests.broker.coordinators.fake_log import FakeLog, settle
from tests.broker.coordinators.fake_log import turns as at_will
from tests.broker.coordinators.groups.consumer_driver import JOINING, ConsumerDriver
from tests.broker.coordinators.groups.group_driver import subscription

TOPIC = "__consumer_offsets"


MakeState = Callable[..., ReplicatedState[GroupMachine]]


@pytest.fixture(params=[False, True], ids=["replicated", "alone"])
def disk(request: pytest.FixtureRequest) -> FakeLog:
    return FakeLog(is_alone=request.param)


@pytest.fixture
async def make(disk: FakeLog) -> AsyncIterator[MakeState]:
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def make_state(
        *,
        turns: Turns | None = None,
        make_machine: Callable[[], GroupMachine] = lambda: GroupMachine(
            GroupConfig(initial_rebalance_delay_ms=0)
        ),
        **config: Any,
    ) -> ReplicatedState[GroupMachine]:
        state: ReplicatedState[GroupMachine] = ReplicatedState(
            topic=TOPIC,
            index=0,
            leader_epoch=3,
            make_machine=make_machine,
            partitions=disk,
            now_ms=lambda: 1_700_000_000_000,
            spawn=spawn,
            turns=turns or at_will(),
            config=StateConfig(**config),
        )
        state.start()
        return state

    yield make_state
    for task in list(tasks):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def state(make: MakeState) -> ReplicatedState[GroupMachine]:
    made = make()
    await made.wait_settled()
    return made


def commit(offset: int, *, group_id: str = "g", partition: int = 0, **changes: Any) -> Commit:
    return Commit(group_id=group_id, offsets=(OffsetToCommit("t", partition, offset),), **changes)


def join(group_id: str = "g", member_id: str = "", **changes: Any) -> Join:
    values: dict[str, Any] = {
        "new_member_id": "m",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (("range", subscription("t")),),
        "requires_known_member": False,
    }
    return Join(group_id=group_id, member_id=member_id, **(values | changes))


def offset_of(state: ReplicatedState[GroupMachine], partition: int = 0, group_id: str = "g") -> int | None:
    found = state.machine.durable.get(group_id, "t", partition)
    return None if found is None else found.offset


async def until(condition: Callable[[], bool]) -> None:
    """For what a deadline a millisecond away brings about."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def code_of(asked: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await asked
    return caught.value.code


async def stable_member(state: ReplicatedState[GroupMachine]) -> None:
    reply = await state.ask(join())
    sync = Sync(group_id="g", member_id="m", generation=reply["generation_id"], assignments={"m": b"a"})
    assert (await state.ask(sync))["assignment"] == b"a"


# --- order and batching ---


async def test_commits_that_arrive_together_share_one_append(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    answers = await asyncio.gather(*(state.ask(commit(n, partition=n)) for n in range(50)))
    assert answers == [(ErrorCode.none,)] * 50
    assert disk.counts() == [50]
    assert [offset_of(state, n) for n in range(50)] == list(range(50))


async def test_commits_that_arrive_during_an_append_share_the_next(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    disk.gate.clear()
    first = asyncio.ensure_future(state.ask(commit(1)))
    await disk.appending.wait()
    others = [asyncio.ensure_future(state.ask(commit(n, partition=n))) for n in range(2, 10)]
    await settle()
    disk.gate.set()
    await asyncio.gather(first, *others)
    assert disk.counts() == [1, 8]


async def test_a_small_round_of_a_log_that_is_alone_takes_one_pass_of_the_loop(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    disk.is_alone = True
    asked = [asyncio.ensure_future(state.ask(commit(n, partition=n))) for n in range(3)]
    await asyncio.sleep(0)  # they ask
    assert disk.counts() == []
    await asyncio.sleep(0)
    assert disk.counts() == [3]
    assert [offset_of(state, n) for n in range(3)] == [0, 1, 2]
    assert await asyncio.gather(*asked) == [(ErrorCode.none,)] * 3


async def test_a_log_that_is_alone_gets_what_had_to_wait_in_order(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    disk.is_alone = True
    results = await asyncio.gather(
        state.ask(commit(1)), state.ask(DeleteGroups(group_ids=("g",))), state.ask(commit(2))
    )
    assert results[1] == (ErrorCode.none,)
    assert disk.counts() == [1, 2, 1]
    assert offset_of(state) == 2


@pytest.mark.parametrize("is_kept", [False, True])
async def test_after_an_unknown_outcome_a_log_that_is_alone_is_read_again(
    state: ReplicatedState[GroupMachine], disk: FakeLog, is_kept: bool
) -> None:
    disk.is_alone = True
    disk.failures = [(ErrorCode.kafka_storage_error, is_kept)]
    assert await code_of(state.ask(commit(1))) is ErrorCode.not_coordinator
    await state.wait_settled()
    assert offset_of(state) == (1 if is_kept else None)
    assert await state.ask(commit(2)) == (ErrorCode.none,)
    assert offset_of(state) == 2


async def test_a_refusal_of_a_log_that_is_alone_changes_nothing(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    disk.is_alone = True
    disk.failures = [(ErrorCode.message_too_large, False)]
    assert await code_of(state.ask(commit(1))) is ErrorCode.unknown_server_error
    assert state.status is Status.ACTIVE
    assert offset_of(state) is None
    assert await state.ask(commit(2)) == (ErrorCode.none,)


async def test_nobody_is_answered_before_it_is_durable(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    disk.gate.clear()
    asked = asyncio.ensure_future(state.ask(commit(1)))
    await disk.appending.wait()
    await settle()
    assert not asked.done()
    assert offset_of(state) is None
    disk.gate.set()
    assert await asked == (ErrorCode.none,)
    assert offset_of(state) == 1


async def test_a_deletion_sees_the_commits_before_it(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    results = await asyncio.gather(
        state.ask(commit(1)), state.ask(DeleteGroups(group_ids=("g",))), state.ask(commit(2))
    )
    assert results[1] == (ErrorCode.none,)
    assert disk.counts() == [1, 2, 1]
    assert offset_of(state) == 2


async def test_commits_of_one_group_apply_in_order(state: ReplicatedState[GroupMachine]) -> None:
    await asyncio.gather(*(state.ask(commit(n)) for n in range(100)))
    assert offset_of(state) == 99


async def test_groups_do_not_wait_for_each_other_s_rounds(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    await asyncio.gather(state.ask(commit(1)), state.ask(join("h")))
    assert state.machine.groups["h"].state is State.COMPLETING_REBALANCE


async def test_a_large_round_is_split_and_stays_in_order(disk: FakeLog, make: MakeState) -> None:
    state = make(batch_bytes_max=4_096)
    await state.wait_settled()
    offsets = tuple(OffsetToCommit("t", n, n, metadata="x" * 100) for n in range(200))
    await state.ask(Commit(group_id="g", offsets=offsets))
    assert sum(disk.counts()) == 200
    assert all(len(batch) <= 4_096 for batch in disk.batches)
    assert [offset_of(state, n) for n in range(200)] == list(range(200))
    found = state.machine.durable.get("g", "t", 150)
    assert found is not None
    assert found.record_offset == 150


async def test_the_queue_is_bounded(
    state: ReplicatedState[GroupMachine], disk: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.coordinators.shell.deciding.QUEUED_COMMANDS_MAX", 3)
    disk.gate.clear()
    asked = [asyncio.ensure_future(state.ask(commit(0)))]
    await disk.appending.wait()
    asked += [asyncio.ensure_future(state.ask(commit(n))) for n in range(1, 6)]
    await settle()
    disk.gate.set()
    results = await asyncio.gather(*asked, return_exceptions=True)
    refused = [r.code for r in results if isinstance(r, KafkaError)]
    assert refused == [ErrorCode.coordinator_not_available] * 2
    assert offset_of(state) == 3


async def test_offsets_are_not_deleted_before_an_earlier_commit_is_applied(
    state: ReplicatedState[GroupMachine],
) -> None:
    await state.ask(commit(1))
    delete = DeleteOffsets(group_id="g", partitions=(("t", 1),))
    answers = await asyncio.gather(state.ask(commit(5, partition=1)), state.ask(delete))
    assert list(answers) == [(ErrorCode.none,), (ErrorCode.none,)]
    assert offset_of(state, 1) is None, "the delete saw the commit that was asked for before it"


async def test_a_commit_is_not_decided_before_an_earlier_sync_of_its_group_is_durable(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    reply = await state.ask(join())
    generation = reply["generation_id"]
    before = len(disk.batches)
    sync = Sync(group_id="g", member_id="m", generation=generation, assignments={"m": b"a"})
    synced, committed = await asyncio.gather(
        state.ask(sync), state.ask(commit(5, member_id="m", generation=generation))
    )
    assert synced["assignment"] == b"a"
    assert committed == (ErrorCode.none,)
    assert disk.counts()[before:] == [1, 1], "the commit was decided while the sync was not in the log yet"
    assert offset_of(state) == 5


@pytest.fixture
async def consumers(make: MakeState) -> tuple[ReplicatedState[GroupMachine], ConsumerDriver]:
    """A group of three that the server assigns, of whom the first two are in epochs of the past."""
    driver = ConsumerDriver(settings=ConsumerSettings(assignment_interval_ms=0))
    driver.create("t", 8)
    state = make(make_machine=driver.made)
    await state.wait_settled()
    for number, member_id in enumerate("abc"):
        answer = await state.ask(driver.command(member_id, 0, **JOINING))
        assert answer["member_epoch"] == 2 + number
    return state, driver


async def test_members_come_closer_to_their_targets_in_one_append(
    consumers: tuple[ReplicatedState[GroupMachine], ConsumerDriver], disk: FakeLog
) -> None:
    state, driver = consumers
    before = len(disk.batches)
    asked = [driver.command(member_id, epoch, claims=()) for member_id, epoch in (("a", 2), ("b", 3))]
    answers = await asyncio.gather(*map(state.ask, asked))
    assert [answer["member_epoch"] for answer in answers] == [4, 4]
    assert disk.counts()[before:] == [2]


async def test_a_member_is_not_decided_on_before_its_last_step_is_in_the_log(
    consumers: tuple[ReplicatedState[GroupMachine], ConsumerDriver], disk: FakeLog
) -> None:
    state, driver = consumers
    before = len(disk.batches)
    asked = driver.command("a", 2, claims=())
    answers = await asyncio.gather(state.ask(asked), state.ask(asked))
    assert [answer["member_epoch"] for answer in answers] == [4, 4]
    assert disk.counts()[before:] == [1], "the second one did not see what came of the first"


async def test_members_are_not_decided_on_beside_a_change_of_their_target(
    consumers: tuple[ReplicatedState[GroupMachine], ConsumerDriver], disk: FakeLog
) -> None:
    state, driver = consumers
    before = len(disk.batches)
    answers = await asyncio.gather(
        state.ask(driver.command("a", 2, claims=())),
        state.ask(driver.command("d", 0, **JOINING)),
        state.ask(driver.command("b", 3, claims=())),
        state.ask(commit(5, member_id="c", generation=4)),
    )
    assert [answer["member_epoch"] for answer in answers[:3]] == [4, 5, 5]
    assert disk.counts()[before:][0] == 1
    assert disk.counts()[before:][2:] == [1, 1], "a commit is judged by what is in the log"


# --- waiting ---


async def test_a_join_waits_without_holding_up_others(state: ReplicatedState[GroupMachine]) -> None:
    await stable_member(state)
    waiting = asyncio.ensure_future(state.ask(join(new_member_id="n")))
    await settle()
    assert not waiting.done()
    beat = Heartbeat(group_id="g", member_id="m", generation=1)
    assert await state.ask(beat) is ErrorCode.rebalance_in_progress
    await state.ask(join(member_id="m"))
    assert (await waiting)["generation_id"] == 2
    assert state.waiting == 0


async def test_whoever_is_gone_leaves_nothing_behind(state: ReplicatedState[GroupMachine]) -> None:
    await stable_member(state)
    waiting = asyncio.ensure_future(state.ask(join(new_member_id="n")))
    await settle()
    assert state.waiting == 1
    waiting.cancel()
    await settle()
    assert state.waiting == 0
    assert (await state.ask(join(member_id="m")))["generation_id"] == 2


async def test_deadlines_strike_by_themselves(state: ReplicatedState[GroupMachine]) -> None:
    await state.ask(join(session_timeout_ms=1, requires_known_member=True))
    group = state.machine.groups["g"]
    assert group.pending_join
    await until(lambda: not group.pending_join)
    await state.ask(join(session_timeout_ms=1))
    await until(lambda: group.state is State.EMPTY)
    await until(lambda: "g" in state.machine.durable.groups)
    assert state.machine.durable.groups["g"].generation == 2


async def test_a_deadline_waits_its_turn_behind_an_append(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    await state.ask(join(session_timeout_ms=1, requires_known_member=True))
    disk.gate.clear()
    asked = asyncio.ensure_future(state.ask(commit(1, group_id="h")))
    await disk.appending.wait()
    group = state.machine.groups["g"]
    await until(lambda: state._alarm._timer is None)
    assert group.pending_join
    disk.gate.set()
    await asked
    await settle()
    assert not group.pending_join


async def test_a_deadline_that_strikes_late_finds_everyone_innocent(
    state: ReplicatedState[GroupMachine],
) -> None:
    await stable_member(state)
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    state.machine.timers.set(("session", "g", "m"), now_ms - 5_000)
    state._deadline_passed(now_ms - 5_000)
    await settle()
    assert state.machine.groups["g"].state is State.STABLE
    assert await state.ask(Heartbeat(group_id="g", member_id="m", generation=1)) is ErrorCode.none


# --- failure ---


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.request_timed_out, ErrorCode.coordinator_not_available),
        (ErrorCode.not_enough_replicas_after_append, ErrorCode.coordinator_not_available),
    ],
)
@pytest.mark.parametrize("is_kept", [True, False])
async def test_an_append_whose_outcome_is_unknown_reloads_the_machine(
    state: ReplicatedState[GroupMachine],
    disk: FakeLog,
    failure: ErrorCode,
    answer: ErrorCode,
    is_kept: bool,
) -> None:
    await stable_member(state)
    waiting = asyncio.ensure_future(state.ask(join(new_member_id="n")))
    await settle()
    disk.failures.append((failure, is_kept))
    assert await code_of(state.ask(commit(5, group_id="h"))) is answer
    assert state.status is Status.LOADING
    assert await code_of(waiting) is answer
    assert await code_of(state.ask(commit(5))) is ErrorCode.coordinator_load_in_progress
    with pytest.raises(KafkaError):
        _ = state.machine
    await state.wait_settled()
    assert offset_of(state, group_id="h") == (5 if is_kept else None)
    assert state.machine.groups["g"].state is State.STABLE


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
async def test_a_commit_that_surely_was_not_appended_costs_nobody_else(
    state: ReplicatedState[GroupMachine], disk: FakeLog, failure: ErrorCode, answer: ErrorCode
) -> None:
    await stable_member(state)
    disk.failures.append((failure, False))
    queued = asyncio.ensure_future(state.ask(commit(1, group_id="h")))
    assert await code_of(queued) is answer
    assert state.status is Status.ACTIVE
    assert await state.ask(commit(2, group_id="h")) == (ErrorCode.none,)


async def test_a_record_that_no_batch_holds_costs_nobody_else(disk: FakeLog, make: MakeState) -> None:
    state = make(batch_bytes_max=4_000)
    await state.wait_settled()
    metadata = "x" * 4_000
    large = Commit(group_id="h", offsets=(OffsetToCommit("t", 0, 1, metadata=metadata),))
    asked = [asyncio.ensure_future(state.ask(each)) for each in (commit(1), large, commit(2, group_id="i"))]
    assert await asked[0] == (ErrorCode.none,)
    assert await code_of(asked[1]) is ErrorCode.unknown_server_error
    assert await asked[2] == (ErrorCode.none,)
    assert len(disk.batches) == 1
    assert offset_of(state, group_id="h") is None


async def test_appends_that_fail_for_one_reason_cost_one_line(
    state: ReplicatedState[GroupMachine], disk: FakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Every member of every group commits every few seconds, and tries again at once."""
    for _ in range(2):
        for _ in range(3):
            disk.failures.append((ErrorCode.not_enough_replicas, False))
            assert await code_of(state.ask(commit(1))) is ErrorCode.coordinator_not_available
        assert await state.ask(commit(2)) == (ErrorCode.none,)
    assert len([line for line in caplog.messages if "append failed" in line]) == 2


async def test_an_assignment_that_was_not_appended_is_taken_back(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    await state.ask(join())
    disk.failures.append((ErrorCode.not_enough_replicas, False))
    sync = Sync(group_id="g", member_id="m", generation=1)
    assert await code_of(state.ask(sync)) is ErrorCode.coordinator_not_available
    await state.wait_settled()
    assert "g" not in state.machine.groups


async def test_commands_queued_behind_a_failure_are_told(
    state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    disk.gate.clear()
    first = asyncio.ensure_future(state.ask(commit(1)))
    await disk.appending.wait()
    second = asyncio.ensure_future(state.ask(commit(2)))
    await settle()
    disk.failures.append((ErrorCode.request_timed_out, True))
    disk.gate.set()
    assert await code_of(first) is ErrorCode.coordinator_not_available
    assert await code_of(second) is ErrorCode.coordinator_not_available
    await state.wait_settled()
    assert offset_of(state) == 1


async def test_closing_tells_everyone(state: ReplicatedState[GroupMachine], disk: FakeLog) -> None:
    await stable_member(state)
    waiting = asyncio.ensure_future(state.ask(join(new_member_id="n")))
    disk.gate.clear()
    committing = asyncio.ensure_future(state.ask(commit(1, group_id="h")))
    await disk.appending.wait()
    state.close()
    assert await code_of(waiting) is ErrorCode.not_coordinator
    assert await code_of(committing) is ErrorCode.not_coordinator
    disk.gate.set()
    await settle()
    assert await code_of(state.ask(commit(1))) is ErrorCode.not_coordinator
    assert state.waiting == 0


# --- loading ---


async def test_a_restart_reads_what_was_written(
    state: ReplicatedState[GroupMachine], disk: FakeLog, make: MakeState
) -> None:
    await stable_member(state)
    await asyncio.gather(*(state.ask(commit(n, group_id=f"g{n}")) for n in range(20)))
    await state.ask(DeleteGroups(group_ids=("g3",)))
    again = make()
    assert await code_of(again.ask(commit(1))) is ErrorCode.coordinator_load_in_progress
    await again.wait_settled()
    assert again.machine.durable == state.machine.durable
    assert again.machine.groups["g"].state is State.STABLE
    assert again.machine.next_deadline_ms() is not None


@pytest.mark.parametrize("codec", list(Codec))
async def test_compressed_batches_are_read_and_written(disk: FakeLog, make: MakeState, codec: Codec) -> None:
    state = make(codec=codec)
    await state.wait_settled()
    await asyncio.gather(*(state.ask(commit(n, partition=n)) for n in range(30)))
    assert [batches.parse_header(batch).codec for batch in disk.batches] == [codec]
    again = make()
    await again.wait_settled()
    assert again.machine.durable == state.machine.durable


@pytest.mark.parametrize(
    "error", [KafkaError(ErrorCode.kafka_storage_error), OSError(errno.EIO, "Input/output error")]
)
async def test_a_log_that_cannot_be_read_is_tried_again(
    disk: FakeLog, make: MakeState, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("broker.coordinators.replicated_state.LOAD_RETRY_S", 0)
    disk.read_error = error
    state = make()
    await settle()
    assert await code_of(state.ask(commit(1))) is ErrorCode.coordinator_load_in_progress
    disk.read_error = None
    await state.wait_settled()
    assert state.status is Status.ACTIVE


async def test_closing_ends_the_loading(disk: FakeLog, make: MakeState) -> None:
    disk.read_error = KafkaError(ErrorCode.kafka_storage_error)
    state = make()
    await settle()
    state.close()
    await state.wait_settled()
    assert state.status is Status.CLOSED


async def test_what_an_election_could_still_lose_is_not_told(disk: FakeLog, make: MakeState) -> None:
    disk.is_on_all = False
    state = make()
    await settle()
    assert await code_of(state.ask(commit(5))) is ErrorCode.coordinator_load_in_progress
    disk.is_on_all = True
    await state.wait_settled()
    assert state.status is Status.ACTIVE


def write(disk: FakeLog, rows: list[tuple[bytes | None, bytes | None]], **options: Any) -> None:
    batch = batches.build_batch(
        [(key, value, (), 1) for key, value in rows], base_offset=disk.end, leader_epoch=0, **options
    )
    disk.batches.append(bytes(batch))
    disk.end += len(rows)


def offset_row(offset: int, partition: int = 0) -> tuple[bytes, bytes | None]:
    committed = CommittedOffset(offset=offset, commit_timestamp_ms=1)
    record = OffsetRecord(group_id="g", topic="t", partition=partition, committed=committed)
    return encode_coordinator_record(record)


async def test_transactions_in_the_log_count_when_they_committed(disk: FakeLog, make: MakeState) -> None:
    for producer_id, partition in ((7, 0), (8, 1), (9, 2)):
        options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        write(disk, [offset_row(producer_id, partition)], transactional=True, **options)
    for producer_id, committed in ((7, True), (8, False)):
        marker = batches.end_txn_marker(
            producer_id=producer_id,
            producer_epoch=0,
            commit=committed,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=disk.end,
        )
        disk.batches.append(bytes(marker))
        disk.end += 1
    state = make()
    await state.wait_settled()
    assert [offset_of(state, n) for n in range(3)] == [7, None, None]
    assert state.machine.durable.is_pending("g", "t", 2)


@pytest.mark.parametrize(("after", "expected"), [(None, 7), (2, 2)])
async def test_plain_and_transactional_commits_count_in_the_order_of_the_log(
    disk: FakeLog, make: MakeState, after: int | None, expected: int
) -> None:
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    write(disk, [offset_row(0), offset_row(1)])
    write(disk, [offset_row(7)], transactional=True, **options)
    if after is not None:
        write(disk, [offset_row(after)])
    marker = batches.end_txn_marker(
        producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=1, base_offset=disk.end
    )
    disk.batches.append(bytes(marker))
    state = make()
    await state.wait_settled()
    assert offset_of(state) == expected


async def test_records_nobody_knows_are_passed_over(disk: FakeLog, make: MakeState) -> None:
    unknown_kind = (b"\x00\x63rest", b"value")
    broken_value = (offset_row(0, partition=1)[0], b"\x00\x63")
    write(disk, [(None, b"no key"), unknown_kind, broken_value, offset_row(5)])
    tombstone = encode_coordinator_record(GroupRecord(group_id="other", metadata=None))
    write(disk, [tombstone])
    state = make()
    await state.wait_settled()
    assert state.machine.durable.offsets["g"]["t"].keys() == {0}
    assert offset_of(state) == 5


class Told(GroupMachine):
    """Notes that it was loaded, which its owner may tell others at once."""

    is_told = False

    def loaded(self, now: Instant) -> Work[None]:
        yield from super().loaded(now)
        self.is_told = True


@pytest.fixture
async def busy_turns() -> Turns:
    """Turns in which nothing ends within the turn of the loop in which it begins."""
    steps = chain([0], repeat(1))
    return Turns(loop=asyncio.get_running_loop(), elapsed_s=lambda: 0.0, steps=lambda: next(steps))


async def test_it_is_active_as_soon_as_its_machine_is_loaded(make: MakeState, busy_turns: Turns) -> None:
    machine = Told(GroupConfig())
    state = make(turns=busy_turns, make_machine=lambda: machine)
    while not machine.is_told:
        assert state.status is Status.LOADING
        await asyncio.sleep(0)
    assert state.status is Status.ACTIVE
    assert state.machine is machine


async def test_closed_before_its_machine_is_loaded_it_never_is(make: MakeState, busy_turns: Turns) -> None:
    machine = Told(GroupConfig())
    state = make(turns=busy_turns, make_machine=lambda: machine)
    await until(lambda: busy_turns.in_work > 0)
    state.close()
    await until(lambda: busy_turns.in_work == 0)
    assert not machine.is_told


# --- transactions ---


def txn_commit(offset: int, producer_id: int = 7, *, group_id: str = "g", partition: int = 0) -> TxnCommit:
    return TxnCommit(
        group_id=group_id,
        offsets=(OffsetToCommit("t", partition, offset),),
        producer=TransactionalProducer(producer_id, 0),
    )


def end_of(producer_id: int = 7, *, committed: bool = True) -> NewMarker:
    return NewMarker(producer_id, 0, 0, committed, 0)


async def test_transactions_and_markers_share_a_round_in_their_order(
    disk: FakeLog, state: ReplicatedState[GroupMachine]
) -> None:
    disk.gate.clear()
    first = asyncio.create_task(state.ask(commit(1, group_id="other")))
    await disk.appending.wait()
    asked = [
        asyncio.create_task(work)
        for work in (
            state.ask(txn_commit(5)),
            state.ask(txn_commit(6, 8, partition=1)),
            state.write_marker(end_of(7)),
            state.ask(commit(2, partition=2)),
            state.write_marker(end_of(8, committed=False)),
        )
    ]
    await settle()
    disk.gate.set()
    await asyncio.gather(first, *asked)
    assert disk.rounds == [5]
    assert [offset_of(state, n) for n in range(3)] == [5, None, 2]
    headers = [batches.parse_header(batch) for batch in disk.batches[1:]]
    assert [header.producer_id for header in headers] == [7, 8, 7, -1, 8]
    assert [header.is_control for header in headers] == [False, False, True, False, True]
    assert [header.is_transactional for header in headers] == [True, True, True, False, True]


async def test_what_is_refused_of_a_transaction_fails_alone(
    disk: FakeLog, state: ReplicatedState[GroupMachine]
) -> None:
    disk.refused = [ErrorCode.invalid_txn_state, None, ErrorCode.invalid_producer_epoch]
    disk.gate.clear()
    first = asyncio.create_task(state.ask(commit(1, group_id="other")))
    await disk.appending.wait()
    late = asyncio.create_task(code_of(state.ask(txn_commit(5))))
    sound = asyncio.create_task(state.ask(txn_commit(6, 8, partition=1)))
    stale = asyncio.create_task(code_of(state.write_marker(end_of(9))))
    await settle()
    disk.gate.set()
    await asyncio.gather(first, late, sound, stale)
    assert (late.result(), stale.result()) == (
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_epoch,
    )
    assert state.status is Status.ACTIVE
    assert not state.machine.durable.is_pending("g", "t", 0)
    await state.write_marker(end_of(8))
    assert offset_of(state, 1) == 6


async def test_one_that_is_closed_while_a_round_is_answered_does_not_load_again(
    disk: FakeLog, make: MakeState
) -> None:
    """A part of the round is in the log in half, so that the log would have to be read again."""
    made = make(batch_bytes_max=2_000)
    await made.wait_settled()

    class Closing:
        def done(self) -> bool:
            return False

        def set_result(self, result: object) -> None:
            made.close()

        def set_exception(self, exception: KafkaError) -> None:
            raise AssertionError(exception)

    long = tuple(OffsetToCommit("t", number, 1, metadata="m" * 400) for number in range(4))
    split = TxnCommit(group_id="g", offsets=long, producer=TransactionalProducer(7, 0))
    disk.refused = [None, ErrorCode.invalid_txn_state]
    disk.gate.clear()
    first = asyncio.create_task(made.ask(commit(1, group_id="other")))
    await disk.appending.wait()
    asked = asyncio.create_task(code_of(made.ask(split)))
    await settle()
    made.tell(commit(2, group_id="another"), Closing())
    disk.gate.set()
    await first
    assert await asked is ErrorCode.not_coordinator
    await settle()
    assert made.status is Status.CLOSED


async def test_after_a_marker_of_unknown_outcome_the_log_tells_what_counts(
    disk: FakeLog, state: ReplicatedState[GroupMachine]
) -> None:
    await state.ask(txn_commit(5))
    disk.failures = [(ErrorCode.request_timed_out, True)]
    assert await code_of(state.write_marker(end_of())) is ErrorCode.coordinator_not_available
    await state.wait_settled()
    assert offset_of(state) == 5


async def test_a_command_about_all_groups_waits_for_open_rounds(
    disk: FakeLog, state: ReplicatedState[GroupMachine]
) -> None:
    """A transaction that ends and a group that is deleted: whichever comes second sees the first."""
    await state.ask(txn_commit(5))
    ended = asyncio.create_task(state.write_marker(end_of()))
    deleted = asyncio.create_task(state.ask(DeleteGroups(group_ids=("g",))))
    await asyncio.gather(ended, deleted)
    assert deleted.result() == (ErrorCode.none,)
    assert offset_of(state) is None
    await state.ask(commit(1))
    assert offset_of(state) == 1


async def test_a_round_has_few_transactions(disk: FakeLog, state: ReplicatedState[GroupMachine]) -> None:
    disk.gate.clear()
    first = asyncio.create_task(state.ask(commit(1, group_id="other")))
    await disk.appending.wait()
    asked = [asyncio.create_task(state.ask(txn_commit(n, n, group_id=f"g{n}"))) for n in range(40)]
    await settle()
    disk.gate.set()
    await asyncio.gather(first, *asked)
    assert max(disk.rounds) <= 16
    assert sum(disk.rounds) == 40


# --- long commands ---


@pytest.fixture
async def slow_state(disk: FakeLog, make: MakeState) -> ReplicatedState[GroupMachine]:
    """One whose work goes on by one step in each turn of the loop."""
    made = make(turns=Turns(loop=asyncio.get_running_loop(), elapsed_s=lambda: 0.0, steps=lambda: 1))
    await made.wait_settled()
    return made


def large_commit(count: int = 2_000) -> Commit:
    return Commit(group_id="g", offsets=tuple(OffsetToCommit("t", at, at) for at in range(count)))


async def test_others_run_while_a_large_command_is_decided_written_and_applied(
    slow_state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    asked = asyncio.ensure_future(slow_state.ask(large_commit()))
    turns_of_the_loop = 0
    while not asked.done():
        await asyncio.sleep(0)
        turns_of_the_loop += 1
    assert set(asked.result()) == {ErrorCode.none}
    assert turns_of_the_loop > 2_000 // 32 + 2 * 2_000 // 16
    assert offset_of(slow_state, 1_999) == 1_999
    assert disk.counts() == [2_000]


async def test_what_comes_during_a_large_command_is_decided_after_it(
    slow_state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    large = asyncio.ensure_future(slow_state.ask(large_commit()))
    await settle()
    assert not disk.batches, "it is under way"
    await slow_state.ask(commit(7, partition=5))
    assert large.done()
    assert offset_of(slow_state, 5) == 7


async def test_closing_amid_a_large_command_ends_it(
    slow_state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    asked = asyncio.ensure_future(slow_state.ask(large_commit()))
    await settle()
    slow_state.close()
    assert await code_of(asked) is ErrorCode.not_coordinator
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert disk.batches == []


async def test_who_asks_for_much_and_goes_does_not_stop_it(
    slow_state: ReplicatedState[GroupMachine], disk: FakeLog
) -> None:
    asked = asyncio.ensure_future(slow_state.ask(large_commit()))
    await settle()
    asked.cancel()
    await slow_state.ask(commit(7, group_id="other"))
    assert offset_of(slow_state, 1_999) == 1_999
