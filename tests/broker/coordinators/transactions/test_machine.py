"""Transactions of one partition: every command in every state, deadlines, and replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinators.account import MemoryAccount
from broker.coordinators.transactions.commands import Complete, Producer
from broker.coordinators.transactions.machine import TransactionConfig
from broker.coordinators.transactions.transitions import EPOCH_MAX
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.transactions import TransactionRecord
from protocol.stored.transactions import TransactionState as State
from protocol.work import finish
from tests.broker.coordinators.transactions.transaction_driver import (
    EPOCH_MS,
    ID,
    TIMEOUT_MS,
    Driver,
)

NONE = ErrorCode.none
FENCED = ErrorCode.producer_fenced
CONCURRENT = ErrorCode.concurrent_transactions
INVALID_STATE = ErrorCode.invalid_txn_state
UNSUPPORTED = ErrorCode.unsupported_version
OTHER_PRODUCER = ErrorCode.invalid_producer_id_mapping


@pytest.fixture
def driver() -> Driver:
    return Driver()


def in_state(driver: Driver, state: State, version: int = 2) -> Producer:
    """Bring the id into a state; return the producer as it knows itself then."""
    producer = driver.begin()
    if state is State.EMPTY:
        return producer
    assert driver.add(producer, version=version) is NONE
    if state is State.ONGOING:
        return producer
    commits = state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    reply = driver.end(producer, commits=commits, version=version)
    assert reply.error is NONE
    if state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        assert driver.complete() is True
    assert driver.state() is state
    return Producer(NONE, *reply[1:]) if version >= 2 else producer


# --- producers begin ---


def test_the_first_producer(driver: Driver) -> None:
    assert driver.init() == Producer(NONE, 1001, 0)
    assert driver.state() is State.EMPTY
    assert driver.transaction().timeout_ms == TIMEOUT_MS
    assert driver.transaction().updated_ms == EPOCH_MS + driver.now_ms


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_next_producer_has_the_next_epoch(driver: Driver, state: State) -> None:
    before = in_state(driver, state)
    assert driver.init(timeout_ms=7) == Producer(NONE, before.producer_id, before.producer_epoch + 1)
    assert driver.state() is State.EMPTY
    assert driver.transaction().timeout_ms == 7
    assert driver.transaction().started_ms == -1
    assert driver.add(before) is FENCED


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_while_a_transaction_ends_none_begins(driver: Driver, state: State) -> None:
    in_state(driver, state)
    assert driver.init() is CONCURRENT


def test_an_open_transaction_is_aborted_first(driver: Driver) -> None:
    old = in_state(driver, State.ONGOING)
    assert driver.init() == Producer(CONCURRENT)
    assert driver.state() is State.PREPARE_ABORT
    assert driver.transaction().producer_epoch == old.producer_epoch + 1
    assert driver.prepared == [ID]
    assert driver.init() is CONCURRENT
    assert driver.complete()
    assert driver.init() == Producer(NONE, old.producer_id, old.producer_epoch + 2)
    for command in (driver.add, driver.end):
        assert command(old) is FENCED


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("client", [0, 2])
def test_before_level_2_a_fencing_epoch_is_the_only_one(driver: Driver, level: int, client: int) -> None:
    """What the coordinator aborts by itself has the version of its own level, whatever the client's was."""
    old = in_state(driver, State.ONGOING, client)
    driver.level = level
    assert driver.init() == Producer(CONCURRENT)
    made = driver.transaction()
    assert (made.state, made.producer_epoch, made.last_producer_epoch, made.client_version) == (
        State.PREPARE_ABORT,
        old.producer_epoch + 1,
        -1,
        0,
    )
    assert driver.end(old, commits=False, version=0) is FENCED
    assert driver.complete()
    assert driver.init() == Producer(NONE, old.producer_id, old.producer_epoch + 2)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_times_out_is_aborted_by_the_version_of_the_cluster(driver: Driver, level: int) -> None:
    driver.level = level
    in_state(driver, State.ONGOING, 0)
    driver.advance(TIMEOUT_MS + 1)
    assert driver.state() is State.PREPARE_ABORT
    assert driver.transaction().client_version == (2 if level == 2 else 0)
    assert driver.transaction().last_producer_epoch == (0 if level == 2 else -1)


def test_at_level_1_a_client_of_version_2_has_its_epochs(driver: Driver) -> None:
    """Its requests say which version it works by; the level is for clients to look at."""
    driver.level = 1
    me = in_state(driver, State.COMPLETE_COMMIT, 2)
    assert (me.producer_id, me.producer_epoch) == (1001, 1)
    assert driver.transaction().client_version == 2


def test_at_level_0_there_is_no_transaction_of_version_2(driver: Driver) -> None:
    driver.level = 0
    me = driver.begin()
    assert driver.add(me) is UNSUPPORTED
    assert driver.end(me, commits=False) is UNSUPPORTED
    assert driver.add(me, version=0) is NONE
    assert driver.add(me) is NONE, "it is in already, so nothing is written"
    assert driver.end(me) is UNSUPPORTED
    assert driver.state() is State.ONGOING
    assert driver.end(me, version=0) == Producer()
    assert driver.complete()


def test_what_was_begun_by_version_2_ends_at_level_0(driver: Driver) -> None:
    in_state(driver, State.PREPARE_COMMIT)
    driver.level = 0
    driver.crash()
    assert driver.complete()
    driver.crash()
    assert driver.state() is State.COMPLETE_COMMIT


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_level_says_how_records_are_written(driver: Driver, level: int) -> None:
    driver.level = level
    in_state(driver, State.COMPLETE_COMMIT, 2 if level else 0)
    assert {value and value[:2] for _, value in driver.log} == {b"\0\0" if level == 0 else b"\0\1"}
    driver.crash()
    assert driver.transaction().client_version == (0 if level == 0 else 2)
    driver.level = 2 - level
    driver.init()
    assert driver.log[-1][1][:2] == (b"\0\1" if driver.level else b"\0\0")  # type: ignore[index]
    driver.crash()


def test_a_producer_goes_on_after_an_error(driver: Driver) -> None:
    old = driver.begin()
    me = driver.init((old.producer_id, old.producer_epoch))
    assert me == Producer(NONE, old.producer_id, 1)
    # the same question again, because the answer was lost
    assert driver.init((old.producer_id, old.producer_epoch)) == me
    assert driver.init((me.producer_id, me.producer_epoch)) == Producer(NONE, old.producer_id, 2)
    assert driver.init((old.producer_id, old.producer_epoch)) is FENCED
    assert driver.init((old.producer_id + 1, 2)) is FENCED


def test_a_producer_does_not_go_on_after_another_began(driver: Driver) -> None:
    old = driver.begin()
    driver.begin()
    assert driver.init((old.producer_id, old.producer_epoch)) is FENCED


def test_a_producer_may_go_on_with_an_id_that_nobody_knows(driver: Driver) -> None:
    assert driver.init((77, 5)) == Producer(NONE, 1001, 0)


def test_an_id_without_epochs_is_replaced(driver: Driver) -> None:
    old = driver.begin()
    driver.set(producer_epoch=EPOCH_MAX - 1)
    assert driver.init() == Producer(NONE, old.producer_id + 1, 0)
    assert driver.transaction().previous_producer_id == old.producer_id


def test_a_producer_goes_on_over_the_end_of_its_epochs(driver: Driver) -> None:
    old = driver.begin()
    driver.set(producer_epoch=EPOCH_MAX - 1)
    last = (old.producer_id, EPOCH_MAX - 1)
    me = driver.init(last)
    assert me == Producer(NONE, old.producer_id + 1, 0)
    assert driver.init(last) == me, "the answer was lost"
    assert driver.init((old.producer_id, 3)) is FENCED


def test_a_fenced_producer_has_no_epoch_left(driver: Driver) -> None:
    old = driver.begin()
    driver.set(producer_epoch=EPOCH_MAX - 1)
    assert driver.init((old.producer_id, 5)) is ErrorCode.unknown_server_error


def test_fencing_uses_the_last_epoch(driver: Driver) -> None:
    old = driver.begin()
    driver.set(producer_epoch=EPOCH_MAX - 1)
    old = old._replace(producer_epoch=EPOCH_MAX - 1)
    assert driver.add(old) is NONE
    assert driver.init() == Producer(CONCURRENT)
    assert driver.transaction().producer_epoch == EPOCH_MAX
    driver.complete()
    assert driver.init() == Producer(NONE, old.producer_id + 1, 0)


def test_the_epoch_that_is_only_for_fencing_cannot_be_guessed(driver: Driver) -> None:
    me = driver.begin()
    driver.set(producer_epoch=EPOCH_MAX - 1)
    driver.add(me._replace(producer_epoch=EPOCH_MAX - 1))
    driver.init()
    driver.complete()
    guessed = me._replace(producer_epoch=EPOCH_MAX)
    assert driver.transaction().producer_epoch == EPOCH_MAX
    assert driver.add(guessed) is FENCED
    for commits in (True, False):
        for version in (0, 2):
            assert driver.end(guessed, commits=commits, version=version) is FENCED


def test_a_transaction_of_that_epoch_is_aborted_all_the_same(driver: Driver) -> None:
    """Kafka lets such a one begin, and may have left it in the log."""
    in_state(driver, State.ONGOING)
    driver.set(producer_epoch=EPOCH_MAX)
    driver.advance(TIMEOUT_MS + 1)
    found = driver.transaction()
    assert (found.state, found.producer_epoch, found.client_version) == (State.PREPARE_ABORT, EPOCH_MAX, 0)


@pytest.mark.parametrize("transactional_id", ["y" * 32768, "é" * 16384])
def test_an_id_that_no_record_can_hold(driver: Driver, transactional_id: str) -> None:
    assert driver.init(transactional_id=transactional_id) is ErrorCode.unknown_server_error
    assert driver.begin(transactional_id="y" * 32767)
    driver.crash()
    assert "y" * 32767 in driver.machine.transactions


# --- partitions ---


def test_partitions_are_added(driver: Driver) -> None:
    me = driver.begin()
    driver.now_ms += 5
    assert driver.add(me, ("t", 0), ("t", 1)) is NONE
    started_ms = EPOCH_MS + driver.now_ms
    driver.now_ms += 5
    assert driver.add(me, ("u", 7), ("t", 2)) is NONE
    found = driver.transaction()
    assert found.partitions == {"t": frozenset({0, 1, 2}), "u": frozenset({7})}
    assert (found.started_ms, found.updated_ms) == (started_ms, started_ms + 5)
    assert found.client_version == 2
    records = len(driver.log)
    assert driver.add(me, ("t", 1), ("u", 7)) is NONE
    assert len(driver.log) == records, "what is included already is not written again"


@pytest.mark.parametrize("state", list(State)[:6])
def test_who_may_add_partitions(driver: Driver, state: State) -> None:
    me = in_state(driver, state)
    assert driver.add(me._replace(producer_id=5)) is OTHER_PRODUCER
    stored = driver.transaction()
    if state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert driver.add(me._replace(producer_epoch=me.producer_epoch + 1)) is FENCED
        assert driver.add(me._replace(producer_epoch=me.producer_epoch - 1)) is FENCED
        assert driver.add(me) is NONE
        assert driver.state() is State.ONGOING
    else:
        current = me._replace(producer_epoch=stored.producer_epoch)
        assert driver.add(current) is CONCURRENT
        assert driver.add(me._replace(producer_epoch=stored.producer_epoch - 1)) is FENCED


def test_nobody_adds_partitions_to_an_unknown_id(driver: Driver) -> None:
    assert driver.add(Producer(NONE, 1, 0)) is OTHER_PRODUCER
    assert driver.end(Producer(NONE, 1, 0)) is OTHER_PRODUCER
    assert driver.end(Producer(NONE, 1, 0), version=0) is OTHER_PRODUCER


def verify(driver: Driver, producer: Producer, *partitions: tuple[str, int]) -> Any:
    try:
        work = driver.machine.verify(ID, producer.producer_id, producer.producer_epoch, partitions)
        return finish(work)
    except KafkaError as error:
        return error.code


def test_verification(driver: Driver) -> None:
    me = driver.begin()
    driver.add(me, ("t", 0), version=0)
    assert verify(driver, me, ("t", 0), ("t", 1)) == {
        ("t", 0): NONE,
        ("t", 1): ErrorCode.transaction_abortable,
    }
    assert verify(driver, me._replace(producer_epoch=3), ("t", 0)) is FENCED
    assert verify(driver, me._replace(producer_id=3), ("t", 0)) is OTHER_PRODUCER
    driver.end(me, version=0)
    assert verify(driver, me, ("t", 0)) is CONCURRENT
    driver.complete()
    assert verify(driver, me, ("t", 0)) == {("t", 0): ErrorCode.transaction_abortable}


# --- ends ---


@pytest.mark.parametrize("commits", [True, False])
def test_an_epoch_for_each_transaction(driver: Driver, commits: bool) -> None:
    me = in_state(driver, State.ONGOING)
    driver.now_ms += 3
    reply = driver.end(me, commits=commits)
    assert reply == Producer(NONE, me.producer_id, me.producer_epoch + 1)
    assert driver.state() is (State.PREPARE_COMMIT if commits else State.PREPARE_ABORT)
    assert driver.prepared == [ID]
    assert driver.ended == []
    assert driver.end(me, commits=commits) is CONCURRENT
    assert driver.end(me, commits=not commits) is INVALID_STATE
    assert driver.end(reply, commits=commits) is FENCED
    assert driver.complete() is True
    assert driver.ended == [ID]
    assert driver.state() is (State.COMPLETE_COMMIT if commits else State.COMPLETE_ABORT)
    assert driver.transaction().partitions == {}
    assert driver.end(me, commits=commits) == reply, "the answer was lost"
    assert driver.add(reply) is NONE


@pytest.mark.parametrize(
    ("state", "commits", "again", "current"),
    [
        (State.EMPTY, False, FENCED, "bump"),
        (State.EMPTY, True, FENCED, INVALID_STATE),
        (State.COMPLETE_ABORT, False, "same", "bump"),
        (State.COMPLETE_ABORT, True, INVALID_STATE, INVALID_STATE),
        (State.COMPLETE_COMMIT, False, INVALID_STATE, "bump"),
        (State.COMPLETE_COMMIT, True, "same", INVALID_STATE),
    ],
)
def test_ends_where_nothing_is_open(
    driver: Driver, state: State, commits: bool, again: Any, current: Any
) -> None:
    """The table of Kafka's coordinator for transaction version 2."""
    me = in_state(driver, state)
    found = driver.transaction()
    before = me._replace(producer_epoch=me.producer_epoch - 1)
    assert driver.end(before, commits=commits) == (me if again == "same" else again)
    assert driver.transaction() == found
    reply = driver.end(me, commits=commits)
    if current == "bump":
        assert reply == me._replace(producer_epoch=me.producer_epoch + 1)
        assert driver.state() is State.PREPARE_ABORT
        assert driver.transaction().started_ms == EPOCH_MS + driver.now_ms
    else:
        assert reply is current
    assert driver.end(me._replace(producer_epoch=me.producer_epoch + 5), commits=commits) is FENCED
    assert driver.end(me._replace(producer_id=1), commits=commits) is OTHER_PRODUCER


def test_a_producer_whose_epochs_end_gets_another_id(driver: Driver) -> None:
    me = driver.begin()
    driver.set(producer_epoch=EPOCH_MAX - 1)
    me = me._replace(producer_epoch=EPOCH_MAX - 1)
    driver.add(me)
    reply = driver.end(me)
    assert reply == Producer(NONE, me.producer_id + 1, 0)
    found = driver.transaction()
    assert (found.producer_id, found.producer_epoch) == (me.producer_id, EPOCH_MAX), "that of the markers"
    driver.crash()
    driver.complete()
    assert driver.end(me) == reply, "the answer was lost"
    assert driver.end(me, commits=False) is INVALID_STATE
    assert driver.add(reply) is NONE
    assert driver.end(me) is OTHER_PRODUCER


@pytest.mark.parametrize("commits", [True, False])
def test_the_same_epoch_with_version_1(driver: Driver, commits: bool) -> None:
    me = in_state(driver, State.ONGOING, version=0)
    assert driver.end(me._replace(producer_epoch=1), commits=commits, version=0) is FENCED
    assert driver.end(me, commits=commits, version=0) == Producer()
    found = driver.transaction()
    assert (found.producer_epoch, found.client_version) == (me.producer_epoch, 0)
    assert driver.end(me, commits=commits, version=0) is CONCURRENT
    assert driver.end(me, commits=not commits, version=0) is INVALID_STATE
    driver.complete()
    assert driver.end(me, commits=commits, version=0) == Producer(), "the answer was lost"
    assert driver.end(me, commits=not commits, version=0) is INVALID_STATE
    assert driver.add(me, version=0) is NONE


@pytest.mark.parametrize("commits", [True, False])
def test_version_1_ends_nothing_that_is_empty(driver: Driver, commits: bool) -> None:
    assert driver.end(driver.begin(), commits=commits, version=0) is INVALID_STATE


def test_only_the_transaction_that_was_told_is_over(driver: Driver) -> None:
    me = in_state(driver, State.ONGOING)
    assert driver.complete() is False
    driver.end(me)
    old = driver.transaction()
    driver.complete()
    driver.add(me._replace(producer_epoch=1))
    driver.end(me._replace(producer_epoch=1))
    late = driver.machine.transactions
    assert driver.transaction().producer_epoch == 2
    assert driver.ask(Complete(transactional_id=ID, prepared=old)) is False
    assert driver.state() is State.PREPARE_COMMIT
    assert late[ID].state is State.PREPARE_COMMIT


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_the_next_transaction_is_not_over_with_the_one_before(driver: Driver, is_reloaded: bool) -> None:
    """Before version 2 both have one epoch. Whoever does not know that the first is noted says it again."""
    me = driver.begin()
    driver.add(me, version=1)
    driver.end(me, version=0)
    first = driver.transaction()
    if is_reloaded:
        driver.crash()
    assert driver.ask(Complete(transactional_id=ID, prepared=first)) is True
    driver.advance(1)
    driver.add(me, version=1)
    driver.end(me, version=0)
    assert driver.transaction().producer_epoch == first.producer_epoch
    assert driver.ask(Complete(transactional_id=ID, prepared=first)) is False
    assert driver.state() is State.PREPARE_COMMIT
    assert driver.complete() is True


# --- time ---


def test_a_transaction_that_is_open_too_long_is_aborted(driver: Driver) -> None:
    me = in_state(driver, State.ONGOING)
    driver.advance(TIMEOUT_MS)
    assert driver.state() is State.ONGOING
    driver.advance(1)
    assert driver.state() is State.PREPARE_ABORT
    assert driver.transaction().producer_epoch == me.producer_epoch + 1
    assert driver.prepared == [ID]
    assert driver.machine.statistics().timed_out == 1
    assert driver.end(me) is INVALID_STATE
    driver.complete()
    assert driver.add(me) is FENCED
    assert driver.init((me.producer_id, me.producer_epoch)) == Producer(NONE, me.producer_id, 1)


def test_the_time_begins_with_the_first_partition(driver: Driver) -> None:
    me = in_state(driver, State.ONGOING)
    driver.advance(TIMEOUT_MS - 1)
    driver.add(me, ("t", 9))
    driver.advance(2)
    assert driver.state() is State.PREPARE_ABORT


def test_a_restart_gives_no_more_time(driver: Driver) -> None:
    in_state(driver, State.ONGOING)
    driver.advance(TIMEOUT_MS - 10)
    driver.crash()
    driver.advance(10)
    assert driver.state() is State.ONGOING
    driver.advance(1)
    assert driver.state() is State.PREPARE_ABORT


def test_one_that_should_have_been_aborted_while_nobody_led(driver: Driver) -> None:
    in_state(driver, State.ONGOING)
    driver.now_ms += 2 * TIMEOUT_MS
    driver.crash()
    driver.advance(0)
    assert driver.state() is State.PREPARE_ABORT


def test_a_timeout_that_could_not_be_written_is_tried_again(driver: Driver) -> None:
    driver.config = driver.machine.config = TransactionConfig(retry_ms=500)
    in_state(driver, State.ONGOING)
    driver.loses = True
    driver.advance(TIMEOUT_MS + 1)
    assert driver.state() is State.ONGOING
    driver.loses = False
    driver.advance(499)
    assert driver.state() is State.ONGOING
    driver.advance(1)
    assert driver.state() is State.PREPARE_ABORT


def test_a_transaction_for_ever(driver: Driver) -> None:
    me = driver.begin(timeout_ms=2**31 - 1)
    driver.add(me)
    assert driver.machine.next_deadline_ms() is None


def test_many_that_time_out_together_do_so_in_portions(driver: Driver) -> None:
    for number in range(600):
        me = driver.begin(transactional_id=str(number))
        driver.add(me, transactional_id=str(number))
    driver.now_ms += TIMEOUT_MS + 1
    counts: list[int] = []
    while driver.machine.next_deadline_ms() is not None and len(counts) < 10:
        before = len(driver.log)
        driver.tick()
        counts.append(len(driver.log) - before)
        if sum(counts) == 600:
            break
    assert counts == [256, 256, 88]


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_what_is_not_over_is_told_of_after_loading_and_again(driver: Driver, state: State) -> None:
    in_state(driver, state)
    driver.prepared.clear()
    driver.crash()
    assert driver.prepared == []
    driver.advance(0)
    assert driver.prepared == [ID]
    driver.advance(driver.config.retry_ms)
    assert driver.prepared == [ID, ID]
    driver.complete()
    driver.advance(driver.config.retry_ms)
    assert driver.prepared == [ID, ID]
    assert driver.machine.next_deadline_ms() is None


@pytest.mark.parametrize("state", list(State)[:6])
def test_ids_expire(driver: Driver, state: State) -> None:
    me = in_state(driver, state)
    driver.now_ms += driver.config.id_expiration_ms - 1
    assert driver.expire() == 0
    driver.now_ms += 1
    may_expire = state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    assert driver.expire() == int(may_expire)
    assert (ID in driver.machine.transactions) is not may_expire
    if may_expire:
        assert driver.memory.held_bytes == 0
        assert driver.add(me) is OTHER_PRODUCER
        assert driver.init() == Producer(NONE, me.producer_id + 1, 0)


# --- memory ---


def test_ids_of_one_host_leave_room_for_others() -> None:
    driver = Driver(memory=MemoryAccount(bytes_max=100_000, host_bytes_max=50_000))
    codes = [driver.init(transactional_id=str(number), host="a") for number in range(60)]
    assert codes.count(ErrorCode.coordinator_not_available) == 60 - 48
    assert isinstance(driver.init(transactional_id="other", host="b"), Producer)
    assert driver.memory.held_bytes <= 100_000


def test_producers_that_the_log_named_go_on_however_many_they_are() -> None:
    driver = Driver(memory=MemoryAccount(bytes_max=100_000, host_bytes_max=10_000))
    for number in range(30):
        assert isinstance(driver.init(transactional_id=str(number), host=str(number % 5)), Producer)
    me = driver.begin(host="me")
    driver.crash()
    assert driver.add(me, ("t", 0)) is NONE
    assert driver.add(me, *(("t", index) for index in range(2_000))) is ErrorCode.coordinator_not_available


def test_a_transaction_takes_no_more_partitions_than_there_is_room_for() -> None:
    driver = Driver(memory=MemoryAccount(bytes_max=10_000, host_bytes_max=10_000))
    me = driver.begin(host="a")
    assert driver.add(me, *(("t", index) for index in range(50))) is NONE
    held = driver.memory.held_bytes
    too_many = [("t", index) for index in range(1_000)]
    assert driver.add(me, *too_many) is ErrorCode.coordinator_not_available
    assert driver.memory.held_bytes == held
    driver.end(me)
    driver.complete()
    assert driver.memory.held_bytes < held
    driver.machine.memory.release()
    assert driver.memory.held_bytes == 0


# --- reading ---


def listed(driver: Driver, **changes: Any) -> list[str]:
    values: dict[str, Any] = {
        "producer_ids": (),
        "states": None,
        "open_longer_than_ms": -1,
        "now_ms": EPOCH_MS + driver.now_ms,
    }
    return [row["transactional_id"] for row in finish(driver.machine.listed(**(values | changes)))]


def test_what_is_listed(driver: Driver) -> None:
    first = driver.begin(transactional_id="a")
    driver.add(first, transactional_id="a")
    driver.now_ms += 100
    second = driver.begin(transactional_id="b")
    assert listed(driver) == ["a", "b"]
    assert listed(driver, producer_ids={second.producer_id}) == ["b"]
    assert listed(driver, states={State.ONGOING}) == ["a"]
    assert listed(driver, states=set()) == []
    assert listed(driver, open_longer_than_ms=99, states={State.ONGOING}) == ["a"]
    assert listed(driver, open_longer_than_ms=100, states={State.ONGOING}) == []


def test_states_are_counted(driver: Driver) -> None:
    in_state(driver, State.COMPLETE_COMMIT)
    driver.begin(transactional_id="other")
    counted = driver.machine.statistics()
    assert {state: n for state, n in counted.states.items() if n} == {
        State.COMPLETE_COMMIT: 1,
        State.EMPTY: 1,
    }
    assert (counted.committed, counted.aborted) == (1, 0)
    driver.crash()
    assert driver.machine.statistics().states == counted.states


# --- any sequence ---

IDS = ("x", "y")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("init"), st.sampled_from(IDS), st.sampled_from(["new", "known", "last", "other"])),
        st.tuples(st.just("add"), st.sampled_from(IDS), st.integers(0, 3), st.sampled_from([0, 2])),
        st.tuples(st.just("end"), st.sampled_from(IDS), st.booleans(), st.sampled_from([0, 2])),
        st.tuples(st.just("complete"), st.sampled_from(IDS)),
        st.tuples(st.just("pass"), st.sampled_from([1, 50_000, TIMEOUT_MS, 700_000_000])),
        st.tuples(st.just("exhaust"), st.sampled_from(IDS)),
        st.tuples(st.just("expire")),
        st.tuples(st.just("level"), st.integers(0, 2)),
        st.tuples(st.just("crash")),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(STEPS)
def test_any_sequence_and_its_replay(steps: list[tuple[Any, ...]]) -> None:
    """Producers that know their last answer, ask again, and are fenced: epochs of an id only grow, each
    transaction that is prepared is told of, and a replay of the records gives the same state."""
    driver = Driver()
    known: dict[str, Producer] = {}
    epochs: dict[int, int] = {}
    for step in steps:
        kind, *rest = step
        transactional_id = rest[0] if rest and rest[0] in IDS else ""
        me = known.get(transactional_id, Producer(NONE, 5, 0))
        if kind == "init":
            expected = {
                "new": None,
                "known": (me.producer_id, me.producer_epoch),
                "last": (me.producer_id, me.producer_epoch - 1),
                "other": (3, 3),
            }[rest[1]]
            reply = driver.init(expected, transactional_id=transactional_id)
            if isinstance(reply, Producer) and reply.error is NONE:
                known[transactional_id] = reply
        elif kind == "add":
            driver.add(me, ("t", rest[1]), transactional_id=transactional_id, version=rest[2])
        elif kind == "end":
            reply = driver.end(me, commits=rest[1], transactional_id=transactional_id, version=rest[2])
            if isinstance(reply, Producer) and reply.producer_id >= 0:
                known[transactional_id] = reply
        elif kind == "complete" and transactional_id in driver.machine.transactions:
            driver.complete(transactional_id)
        elif kind == "exhaust" and transactional_id in driver.machine.transactions:
            found = driver.machine.transactions[transactional_id]
            if found.state is State.EMPTY:
                made = replace(found, producer_epoch=EPOCH_MAX - 1)

                driver.take([TransactionRecord(transactional_id=transactional_id, transaction=made)])
                known[transactional_id] = Producer(NONE, made.producer_id, made.producer_epoch)
        elif kind == "pass":
            driver.advance(rest[0])
        elif kind == "expire":
            driver.expire()
        elif kind == "level":
            driver.level = rest[0]
        elif kind == "crash":
            driver.crash()
        for name, found in driver.machine.transactions.items():
            assert 0 <= found.producer_epoch <= EPOCH_MAX
            assert found.producer_epoch >= epochs.get(found.producer_id, 0)
            epochs[found.producer_id] = found.producer_epoch
            if found.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
                assert name in driver.prepared or driver.machine.next_deadline_ms() is not None
            assert (found.state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)) <= (
                not found.partitions
            )
        assert sum(driver.machine.states.values()) == len(driver.machine.transactions)
    driver.crash()
    driver.crash()
    driver.machine.memory.release()
    assert driver.memory.held_bytes == 0
