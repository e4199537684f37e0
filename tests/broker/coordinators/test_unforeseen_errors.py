"""Errors that nobody foresaw in a coordinator: who hears of them, and that the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.coordinators import replicated_state
from broker.coordinators.groups.classic import Join, Sync
from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.offsets import Commit, OffsetToCommit
from broker.coordinators.groups.shard import GroupConfig
from broker.coordinators.machine import Instant
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import StateConfig
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.offsets import CoordinatorRecord, OffsetRecord
from protocol.work import Work
from tests.broker.coordinators.fake_log import FakeLog, settle
from tests.broker.coordinators.fake_log import turns as at_will
from tests.broker.coordinators.groups.group_driver import subscription


@dataclass(frozen=True)
class Bad:
    """A command that breaks where it is decided: at once, or at a later step."""

    group_id: str = "bad"
    steps: int | None = None

    def decide(self, shard: Any, draft: Any) -> Any:
        if self.steps is None:
            raise ZeroDivisionError
        return self._later(self.steps)

    def _later(self, steps: int) -> Work[Any]:
        for _ in range(steps):
            yield
        raise ZeroDivisionError


@dataclass(frozen=True)
class Later:
    """A command which a later one answers."""

    group_id: str = "bad"

    def decide(self, shard: Any, draft: Any) -> Any:
        shard.later = draft.token
        return draft.decision(soft=True)


@dataclass(frozen=True)
class BadForTwo(Bad):
    """A command that breaks once it has answered another one."""

    def decide(self, shard: Any, draft: Any) -> Any:
        draft.reply(shard.later, "joined")
        return super().decide(shard, draft)


@dataclass
class Faults:
    applies: str = ""
    """The topic whose offsets cannot be applied."""
    encodes: str = ""
    """The same, encoded."""
    ticks: int = 0
    """How many ticks still break."""
    loads: int = 0


@dataclass
class Site:
    disk: FakeLog = field(default_factory=FakeLog)
    faults: Faults = field(default_factory=Faults)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, work: Any) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    def start(self, turns: Turns | None = None) -> ReplicatedState[GroupMachine]:
        state: ReplicatedState[GroupMachine] = ReplicatedState(
            topic="__consumer_offsets",
            index=7,
            leader_epoch=3,
            make_machine=lambda: Breaking(self.faults),
            partitions=self.disk,
            now_ms=lambda: 1_700_000_000_000,
            spawn=self.spawn,
            turns=turns or at_will(),
            config=StateConfig(),
        )
        state.start()
        return state


class Breaking(GroupMachine):
    def __init__(self, faults: Faults) -> None:
        super().__init__(GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=1))
        self.faults = faults

    def apply(self, record: CoordinatorRecord, *, offset: int, producer_id: int) -> None:
        super().apply(record, offset=offset, producer_id=producer_id)
        if isinstance(record, OffsetRecord) and record.topic == self.faults.applies:
            raise ZeroDivisionError

    def encode(self, record: CoordinatorRecord) -> Any:
        if isinstance(record, OffsetRecord) and record.topic == self.faults.encodes:
            raise ZeroDivisionError
        return super().encode(record)

    def tick(self, now: Instant) -> Work[Any]:
        if self.faults.ticks:
            self.faults.ticks -= 1
            list(self.timers.due(now.mono_ms))
            raise ZeroDivisionError
        return super().tick(now)

    def loaded(self, now: Instant) -> Work[None]:
        if self.faults.loads:
            self.faults.loads -= 1
            raise ZeroDivisionError
        return super().loaded(now)


@pytest.fixture(params=[False, True], ids=["replicated", "alone"])
async def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(replicated_state, "LOAD_RETRY_S", 0.01)
    made = Site(disk=FakeLog(is_alone=request.param))
    yield made
    for task in made.tasks:
        assert not task.done() or task.exception() is None, "it would end the broker"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def commit(offset: int, topic: str = "t", group_id: str = "g", count: int = 1) -> Commit:
    return Commit(
        group_id=group_id, offsets=tuple(OffsetToCommit(topic, number, offset) for number in range(count))
    )


async def code_of(asked: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        async with asyncio.timeout(10):
            await asked
    return caught.value.code


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not seen():  # noqa: ASYNC110 - a deadline brings it about
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", [None, 0, 3, 100])
async def test_a_command_that_cannot_be_decided_fails_alone(
    site: Site, steps: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    state = site.start()
    await state.wait_settled()
    machine = state.machine
    bad = asyncio.ensure_future(state.ask(Bad(steps=steps)))
    beside = asyncio.ensure_future(state.ask(commit(1)))
    assert await code_of(bad) is ErrorCode.unknown_server_error
    assert await beside == (ErrorCode.none,)
    assert state.machine is machine
    assert "__consumer_offsets-7: Bad failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("steps", [None, 0, 3, 100])
async def test_whoever_it_was_about_to_answer_hears_of_it(site: Site, steps: int | None) -> None:
    state = site.start()
    await state.wait_settled()
    machine = state.machine
    waiting = asyncio.ensure_future(state.ask(Later()))
    await settle()
    assert not waiting.done()
    bad = asyncio.ensure_future(state.ask(BadForTwo(steps=steps)))
    assert await code_of(bad) is ErrorCode.unknown_server_error
    assert await code_of(waiting) is ErrorCode.unknown_server_error
    assert state.waiting == 0
    assert await state.ask(commit(1)) == (ErrorCode.none,)
    assert state.machine is machine


async def test_one_that_waits_in_the_queue_fails_alone_too(site: Site) -> None:
    state = site.start()
    await state.wait_settled()
    site.disk.gate.clear()
    first = asyncio.ensure_future(state.ask(commit(1)))
    await settle()
    asked = [asyncio.ensure_future(state.ask(one)) for one in (commit(2), Bad(), Bad(steps=9), commit(3))]
    await settle()
    site.disk.gate.set()
    assert await code_of(asked[1]) is ErrorCode.unknown_server_error
    assert await code_of(asked[2]) is ErrorCode.unknown_server_error
    assert await asyncio.gather(first, asked[0], asked[3]) == [(ErrorCode.none,)] * 3


@pytest.mark.parametrize("count", [1, 400])
async def test_what_is_half_applied_is_read_from_the_log(
    site: Site, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    state = site.start()
    await state.wait_settled()
    machine = state.machine
    site.faults.applies = "bad"
    assert await code_of(state.ask(commit(5, "bad", count=count))) is ErrorCode.unknown_server_error
    assert state.status is Status.LOADING
    assert await code_of(state.ask(commit(1))) is ErrorCode.coordinator_load_in_progress
    assert "of OffsetRecord at offset 0" in caplog.text
    site.faults.applies = ""
    await state.wait_settled()
    assert state.machine is not machine
    assert len(list(state.machine.durable.partitions("g"))) == count
    assert await state.ask(commit(6)) == (ErrorCode.none,)


@pytest.mark.parametrize("count", [1, 400])
async def test_what_cannot_be_encoded_is_not_reckoned_with(site: Site, count: int) -> None:
    state = site.start()
    await state.wait_settled()
    site.faults.encodes = "bad"
    assert await code_of(state.ask(commit(5, "bad", count=count))) is ErrorCode.unknown_server_error
    await state.wait_settled()
    assert not list(state.machine.durable.partitions("g"))
    assert await state.ask(commit(6)) == (ErrorCode.none,)


async def test_deadlines_come_again_after_a_tick_that_broke(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    state = site.start()
    await state.wait_settled()
    joined = Join(
        group_id="g",
        member_id="",
        new_member_id="m",
        session_timeout_ms=300,
        rebalance_timeout_ms=20,
        protocol_type="consumer",
        protocols=(("range", subscription("t")),),
        requires_known_member=False,
    )
    reply = await state.ask(joined)
    generation = reply["generation_id"]
    await state.ask(Sync(group_id="g", member_id="m", generation=generation, assignments={"m": b"a"}))
    machine = state.machine
    site.faults.ticks = 1
    await until(lambda: not site.faults.ticks)
    assert "Tick failed" in caplog.text
    await state.wait_settled()
    assert state.machine is not machine
    await until(lambda: not state.machine.groups["g"].members)


async def test_a_log_that_cannot_be_loaded_is_tried_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.faults.loads = 3
    state = site.start()
    await state.wait_settled()
    assert site.faults.loads == 0
    assert caplog.text.count("cannot be loaded, will try again") == 3
    assert await state.ask(commit(6)) == (ErrorCode.none,)


async def test_closed_while_it_waits_to_load_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_state, "LOAD_RETRY_S", 1000.0)
    state = site.start()
    await state.wait_settled()
    site.faults.applies = "bad"
    assert await code_of(state.ask(commit(5, "bad"))) is ErrorCode.unknown_server_error
    state.close()
    await until(lambda: all(task.done() for task in site.tasks))
    assert state.status is Status.CLOSED
