"""A node with several log directories, one of which was changed: what it alone was in sync with and held
there nobody leads, what it still holds it leads on; wherever its process ends on the way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from broker.control import joining
from broker.control.cluster import Cluster
from broker.control.image import TopicImage
from broker.control.metadata_records import NO_LEADER, PartitionImage
from broker.control.topics import CreateTopics, NewTopic
from tests.broker.control.cluster_driver import Site

BOTH = "/data/1/a,/data/1/b"


async def settled(until: Callable[[], bool], within_s: float = 40) -> None:
    for _ in range(int(within_s * 20)):
        if until():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to that")


async def make(member: Cluster, *names: str, replicas: tuple[int, ...] = (1,), **configs: str) -> None:
    settings = tuple((name.replace("_", "."), value) for name, value in configs.items())
    topics = tuple(NewTopic(name=name, assignments=((0, replicas),), configs=settings) for name in names)
    for result in await member.submit(CreateTopics(topics=topics)):
        assert result.error is None


def only(*names: str) -> Callable[[TopicImage, int], bool]:
    """A node that has the logs of these topics."""
    return lambda topic, index: topic.name in names


def part(member: Cluster, name: str) -> PartitionImage:
    found = member.image.partition(name, 0)
    assert found is not None
    return found


def state(member: Cluster, name: str) -> tuple[int, tuple[int, ...]]:
    return part(member, name).leader, part(member, name).isr


def change_disk(site: Site, path: str) -> None:
    site.files().rmtree(path)


def registered(site: Site, member: Cluster) -> set[Any]:
    return set(member.image.brokers[1].directories)


def test_of_two_directories_the_one_that_was_changed_is_led_by_nobody() -> None:
    site = Site()

    async def story() -> None:
        first = await site.started(dirs=BOTH)
        before = registered(site, first)
        await make(first, "lost", "kept")
        await site.kill(first)
        change_disk(site, "/data/1/a")
        second = await site.started(dirs=BOTH, has_log=only("kept"))
        assert state(second, "lost") == (NO_LEADER, ())
        assert state(second, "kept") == (1, (1,))
        assert len(registered(site, second)) == 2
        assert len(registered(site, second) & before) == 1
        await make(second, "made-later")
        await site.kill(second)
        third = await site.started(dirs=BOTH, has_log=only("kept"))
        assert state(third, "lost") == (NO_LEADER, ())
        assert state(third, "kept") == (1, (1,))
        assert state(third, "made-later") == (1, (1,)), "with all disks there, what has no log never had one"

    site.run(story())


def test_what_others_have_goes_on_with_them_and_what_was_made_meanwhile_is_not_lost() -> None:
    site = Site()

    async def story() -> None:
        controller = await site.started(node_id="2", dirs="/data/2")
        first = await site.started(dirs=BOTH)
        await make(controller, "lost", "kept")
        await make(controller, "shared", replicas=(1, 2))
        await site.kill(first)
        change_disk(site, "/data/1/a")
        back = site.member(dirs=BOTH)
        await back.read()
        held = only("kept")
        made: list[asyncio.Task[None]] = []

        def has_log(topic: TopicImage, index: int) -> bool:
            if not made:
                made.append(asyncio.ensure_future(make(controller, "new")))
            return held(topic, index)

        await back.join(has_log=has_log)
        site.alive[1] = back
        await made[0]
        await settled(lambda: back.image == controller.image)
        assert state(back, "lost") == (NO_LEADER, ())
        assert state(back, "kept") == (1, (1,))
        assert state(back, "shared") == (2, (2,))
        assert state(back, "new") == (1, (1,))

    site.run(story())


def test_where_losing_records_is_allowed_another_replica_takes_over_and_not_the_empty_one() -> None:
    site = Site()

    async def story() -> None:
        controller = await site.started(node_id="2", dirs="/data/2")
        first = await site.started(dirs=BOTH)
        await make(controller, "lost", replicas=(1, 2), unclean_leader_election_enable="true")
        second = site.alive.pop(2)
        third = await site.started(node_id="3", dirs="/data/3")
        await site.kill(second)
        await settled(lambda: third.is_controller or first.is_controller)
        await settled(lambda: state(first, "lost") == (1, (1,)))
        back = await site.started(node_id="2", dirs="/data/2")
        await site.kill(first)
        await settled(lambda: back.is_controller or third.is_controller)
        change_disk(site, "/data/1/a")
        again = await site.started(dirs=BOTH, has_log=only())
        assert state(again, "lost") == (2, (2,))

    site.run(story())


@pytest.mark.parametrize(("allowed", "expected"), [("true", (2, (2,))), ("false", (NO_LEADER, (1,)))])
def test_a_replica_that_comes_back_while_nobody_in_sync_lives_leads_where_that_is_allowed(
    allowed: str, expected: tuple[int, tuple[int, ...]]
) -> None:
    site = Site()

    async def story() -> None:
        third = await site.started(node_id="3", dirs="/data/3")
        first = await site.started(dirs="/data/1")
        second = await site.started(node_id="2", dirs="/data/2")
        await make(third, "t", replicas=(1, 2), unclean_leader_election_enable=allowed)
        await site.kill(second)
        await settled(lambda: state(third, "t") == (1, (1,)))
        await site.kill(first)
        await settled(lambda: state(third, "t") == (NO_LEADER, (1,)))
        back = await site.started(node_id="2", dirs="/data/2")
        assert state(back, "t") == (NO_LEADER, (1,))
        await asyncio.sleep(10)
        assert state(third, "t") == expected

    site.run(story())


def test_a_disk_that_cannot_be_read_may_come_back_and_is_not_forgotten() -> None:
    site = Site()

    async def story() -> None:
        first = await site.started(dirs=BOTH)
        before = registered(site, first)
        await make(first, "lost", "kept")
        await site.kill(first)
        # Its other directory is not there to be read: nobody can tell what is lost.
        second = await site.started(dirs="/data/1/b")
        assert state(second, "lost") == (1, (1,))
        assert registered(site, second) == before
        await site.kill(second)
        change_disk(site, "/data/1/a")
        third = await site.started(dirs=BOTH, has_log=only("kept"))
        assert state(third, "lost") == (NO_LEADER, ())
        assert state(third, "kept") == (1, (1,))

    site.run(story())


def test_a_disk_whose_label_cannot_be_read_now_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    async def story() -> None:
        first = await site.started(dirs=BOTH)
        before = registered(site, first)
        await make(first, "there")
        await site.kill(first)
        with monkeypatch.context() as patch:
            read = joining.read_directories
            patch.setattr(joining, "read_directories", lambda *args, **kwargs: read(*args, **kwargs)[1:])
            second = await site.started(dirs=BOTH, has_log=only("there"))
        assert registered(site, second) == before
        assert state(second, "there") == (1, (1,))

    site.run(story())


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_wherever_it_ends_on_the_way_the_next_life_finishes(seed: int, others: int) -> None:
    """Killed again and again after some steps, each time with the store and the controller where they are."""
    site = Site(seed)
    rng = random.Random(seed)

    async def story() -> None:
        for node in range(2, 2 + others):
            await site.started(node_id=str(node), dirs=f"/data/{node}")
        first = await site.started(dirs=BOTH)
        leader = next(member for member in site.alive.values() if member.is_controller)
        await make(leader, *(f"lost-{at}" for at in range(3)), "kept")
        await settled(lambda: first.image == leader.image)
        await site.kill(first)
        change_disk(site, "/data/1/a")
        for _ in range(4):
            member = site.member(dirs=BOTH)
            life = asyncio.ensure_future(live(site, member, has_log=only("kept")))
            await asyncio.sleep(rng.uniform(0, 0.2))
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            assert life.cancelled() or life.exception() is None
            await site.kill(member)
        last = await site.started(dirs=BOTH, has_log=only("kept"))
        for at in range(3):
            assert state(last, f"lost-{at}") == (NO_LEADER, ())
        assert state(last, "kept") == (1, (1,))
        assert len(registered(site, last)) == 2

    site.run(story())


async def live(site: Site, member: Cluster, *, has_log: Callable[[TopicImage, int], bool]) -> None:
    await member.read()
    site.alive[1] = member
    await member.join(has_log=has_log)
    assert state(member, "lost-0") == (NO_LEADER, ()), "from here on it would serve"
    await asyncio.sleep(1)


def test_what_keeps_it_from_giving_up_what_is_lost_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    caplog.set_level(logging.INFO, "broker.control.joining")

    async def story() -> None:
        controller = await site.started(node_id="2", dirs="/data/2")
        first = await site.started(dirs=BOTH)
        await make(controller, "lost")
        await site.kill(first)
        change_disk(site, "/data/1/a")
        back = site.member(dirs=BOTH)
        await back.read()

        asked = 0

        def has_log(topic: TopicImage, index: int) -> bool:
            nonlocal asked
            asked += 1
            if asked == 1:
                site.profile.down = True
                site.refuse(1, 2)
            return False

        joined = asyncio.ensure_future(back.join(has_log=has_log))
        site.alive[1] = back
        await asyncio.sleep(60)
        assert asked > 10
        assert not joined.done()
        site.profile.heal()
        site.refusing.clear()
        await asyncio.wait_for(joined, 30)
        assert state(back, "lost") == (NO_LEADER, ())
        told = [record for record in caplog.records if "postponed" in record.message]
        assert 1 <= len(told) <= 3, len(told)

    site.run(story())


@pytest.mark.parametrize("has_topics", [True, False])
def test_a_node_that_comes_back_with_nothing_says_so_in_one_line(
    caplog: pytest.LogCaptureFixture, has_topics: bool
) -> None:
    site = Site()
    caplog.set_level(logging.INFO, "broker.control.joining")

    def told() -> list[str]:
        return [record.message for record in caplog.records if "is empty" in record.message]

    async def story() -> None:
        first = await site.started(dirs=BOTH)
        if has_topics:
            await make(first, "lost", "gone")
        await site.kill(first)
        second = await site.started(dirs=BOTH)
        await site.kill(second)
        assert told() == []
        for path in BOTH.split(","):
            change_disk(site, path)
        third = await site.started(dirs=BOTH)
        assert len(told()) == has_topics, "what had no replica lost nothing"
        assert all(f"{BOTH.replace(',', ', ')} is empty, and node 1" in line for line in told())
        assert all("replicas of 2 partitions: of 2 it had the only copy" in line for line in told())
        await site.kill(third)
        await site.started(dirs=BOTH)
        assert len(told()) == has_topics, "from then on it has what it has"

    site.run(story())
