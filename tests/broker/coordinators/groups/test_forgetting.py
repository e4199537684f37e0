"""Topics that are deleted while a partition of the coordinator loads, or loads again: their offsets go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from broker.coordinators.groups import forgetting
from broker.coordinators.groups.forgetting import Forgetting
from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.offsets import Commit, ExpireOffsets, OffsetToCommit
from broker.coordinators.groups.shard import GroupConfig
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import StateConfig
from protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.fake_log import FakeLog, turns

ID, NEW = UUID(int=7), UUID(int=8)


@dataclass
class Site:
    disk: FakeLog = field(default_factory=FakeLog)
    forgetting: Forgetting = field(default_factory=Forgetting)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        return task

    def start(self) -> ReplicatedState[GroupMachine]:
        state: ReplicatedState[GroupMachine] = ReplicatedState(
            topic="__consumer_offsets",
            index=0,
            leader_epoch=3,
            make_machine=lambda: GroupMachine(GroupConfig()),
            partitions=self.disk,
            now_ms=lambda: 1_700_000_000_000,
            spawn=self.spawn,
            turns=turns(),
            config=StateConfig(),
        )
        state.start()
        return state

    async def over(self) -> None:
        """Return when nothing is left to be told."""
        async with asyncio.timeout(10):
            while "0 topics on 0" not in repr(self.forgetting):  # noqa: ASYNC110 - tasks bring it about
                await asyncio.sleep(0)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(forgetting, "PAUSE_S", 0.001)
    made = Site()
    yield made
    for task in made.tasks:
        assert not task.done() or task.cancelled() or task.exception() is None, "it would end the broker"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def committed(state: ReplicatedState[GroupMachine], *, topic_id: UUID = ID, groups: int = 3) -> None:
    await state.wait_settled()
    for number in range(groups):
        offsets = (
            OffsetToCommit("t", 0, 5, -1, "", topic_id),
            OffsetToCommit("other", 0, 5, -1, "", UUID(int=9)),
        )
        await state.ask(Commit(group_id=f"g{number}", offsets=offsets))


def topics_of(state: ReplicatedState[GroupMachine]) -> set[str]:
    return {topic for topics in state.machine.durable.offsets.values() for topic in topics}


@pytest.mark.parametrize(
    ("failure", "is_kept"),
    [
        (ErrorCode.request_timed_out, False),
        (ErrorCode.request_timed_out, True),
        (ErrorCode.not_enough_replicas, False),
    ],
    ids=["lost by a reload", "known after a reload", "refused"],
)
async def test_what_fails_is_told_again(
    site: Site, failure: ErrorCode, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.coordinators.topic_coordinator.IDS_AT_ONCE", 1)
    state = site.start()
    await committed(state)
    site.disk.failures = [(failure, is_kept)]
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    await site.over()
    await state.wait_settled()
    assert topics_of(state) == {"other"}


async def test_a_partition_that_loads_hears_of_it_afterwards(site: Site) -> None:
    await committed(site.start())
    site.disk.is_on_all = False
    state = site.start()
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    for _ in range(20):
        await asyncio.sleep(0)
    assert state.status is Status.LOADING
    site.disk.is_on_all = True
    await site.over()
    assert topics_of(state) == {"other"}


async def test_a_reload_between_loading_and_telling(site: Site) -> None:
    state = site.start()
    await committed(state)
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    site.disk.failures = [(ErrorCode.request_timed_out, False)]
    with pytest.raises(KafkaError):
        await state.ask(Commit(group_id="g", offsets=(OffsetToCommit("u", 0, 1),)))
    await site.over()
    assert topics_of(state) == {"other"}


async def test_topics_of_one_name_after_each_other(site: Site) -> None:
    state = site.start()
    await committed(state, groups=1)
    site.disk.gate.clear()
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    site.forgetting.begin({NEW: "t"}, [state], site.spawn)
    assert repr(site.forgetting) == "<Forgetting 2 topics on 1 partitions>"
    site.disk.gate.set()
    await site.over()
    assert topics_of(state) == {"other"}


async def test_a_stop_does_not_wait_for_the_next_attempt(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "PAUSE_S", 1000.0)
    state = site.start()
    await committed(state)
    site.disk.failures = [(ErrorCode.not_enough_replicas, False)]
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    for _ in range(20):
        await asyncio.sleep(0)
    assert topics_of(state) == {"t", "other"}
    site.forgetting.stop()
    await site.over()


async def test_nothing_is_told_to_a_partition_that_is_closed(site: Site) -> None:
    state = site.start()
    await committed(state)
    site.disk.failures = [(ErrorCode.not_enough_replicas, False)] * 1000
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    for _ in range(20):
        await asyncio.sleep(0)
    state.close()
    await site.over()


async def test_what_cannot_be_told_in_time_is_left_to_the_next_look(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forgetting, "TELL_WITHIN_S", 0.001)
    await committed(site.start())
    site.disk.is_on_all = False
    state = site.start()
    site.forgetting.begin({ID: "t"}, [state], site.spawn)
    await site.over()
    assert state.status is Status.LOADING
    assert "offsets of 1 deleted topics are left" in caplog.text
    site.disk.is_on_all = True
    await state.wait_settled()
    # nobody knows of any topic here
    await state.ask(ExpireOffsets(group_ids=("g0", "g1", "g2")))
    assert not topics_of(state)
