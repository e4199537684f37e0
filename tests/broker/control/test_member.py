"""A node in its cluster: waiting for a change, its tasks, which node it may ask."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config.broker import from_properties
from broker.control.member import PROBE_S, Member
from broker.net.channel import PeerLost
from protocol.errors import ErrorCode, KafkaError
from tests.broker.at_once import AtOnce
from tests.broker.control.cluster_driver import Site


def new_member(site: Site) -> Member:
    return Member(from_properties({"log.dirs": "/data/1"}, standalone=True), site.world(0), AtOnce())


def test_all_that_wait_for_a_change_are_woken_by_the_next_one() -> None:
    site = Site()

    async def story() -> None:
        member = new_member(site)
        member.announce_change()  # nothing waits for it
        first = member.next_change()
        assert member.next_change() is first
        member.announce_change()
        assert first.done()
        second = member.next_change()
        assert second is not first and not second.done()
        second.cancel()
        member.announce_change()  # what gave up is no hindrance

    site.run(story())


def test_waiting_ends_with_the_change_that_was_waited_for_or_with_the_time() -> None:
    site = Site()

    async def story() -> None:
        member = new_member(site)
        began_s, known = member.now_s(), [False]

        async def learn() -> None:
            await asyncio.sleep(1.0)
            member.announce_change()  # not what was waited for
            await asyncio.sleep(1.0)
            known[0] = True
            member.announce_change()

        learning = asyncio.create_task(learn())
        await member.wait_until(lambda: known[0], 10.0)
        assert member.now_s() - began_s == pytest.approx(2.0, abs=0.001)
        await member.wait_until(lambda: known[0], 10.0)
        assert member.now_s() - began_s == pytest.approx(2.0, abs=0.001)
        await member.wait_until(lambda: False, 3.0)
        assert member.now_s() - began_s == pytest.approx(5.0, abs=0.001)
        await learning

    site.run(story())


def test_no_task_outlives_the_member() -> None:
    site = Site()

    async def story() -> None:
        member = new_member(site)
        ended: list[str] = []

        async def work(name: str) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)  # what it has to put in order
                ended.append(name)

        async def fail() -> None:
            raise OSError("one that failed keeps none of the others")

        short = member.spawn(asyncio.sleep(0))
        await short
        for task in (member.spawn(work("a")), member.spawn(fail()), member.spawn(work("b"))):
            assert not task.done()
        await asyncio.sleep(0)
        await member.end_tasks()
        assert sorted(ended) == ["a", "b"]

    site.run(story())


def test_the_controller_is_asked_while_there_is_one_and_this_node_goes_on() -> None:
    site = Site()

    async def story() -> None:
        member = await site.started()
        assert member.controller_to_ask() == 1
        await member.stop()
        with pytest.raises(KafkaError) as refused:
            member.controller_to_ask()
        assert refused.value.code is ErrorCode.not_controller
        unborn = new_member(site)
        with pytest.raises(KafkaError):
            unborn.controller_to_ask()

    site.run(story())


@pytest.mark.parametrize(
    ("met", "expected"),
    [(None, True), (PeerLost("refused", refused=True), False), (PeerLost("no answer in time"), None)],
)
def test_only_a_closed_port_proves_that_nothing_listens(met: Exception | None, expected: bool | None) -> None:
    site = Site()

    async def story() -> None:
        member = new_member(site)

        async def ask(*_: object, timeout_s: float) -> None:
            assert timeout_s == PROBE_S
            if met is not None:
                raise met

        member.channels = cast(Any, SimpleNamespace(to=lambda *_: SimpleNamespace(ask=ask)))
        assert await member.is_listening(2) is expected

    site.run(story())
