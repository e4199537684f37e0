"""Several nodes of one cluster: who leads, who is taken for dead, and what each of them knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.control.cluster import Cluster
from broker.control.directories import StartupError
from broker.control.member import LOST_PEER_S
from broker.control.topics import CreateTopics, NewTopic
from protocol.apis import PeerApi
from protocol.errors import ErrorCode, KafkaError
from remote.store.object_store import PutResult
from tests.broker.control.cluster_driver import Site
from tests.sim.store import Bucket


async def until(what: Callable[[], object], *, within_s: float = 60.0) -> float:
    """Virtual seconds until it holds."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not what():
        assert loop.time() - begun < within_s, "never came true"
        await asyncio.sleep(0.01)
    return loop.time() - begun


def run(story: Callable[[Site], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    site = Site(seed)
    site.run(story(site))


async def create(member: Cluster, name: str, replication_factor: int = 1) -> ErrorCode:
    topic = NewTopic(name=name, partitions=3, replication_factor=replication_factor)
    (result,) = await member.create_topics([topic])
    return ErrorCode.none if result.error is None else result.error.code


def controllers(site: Site) -> list[int]:
    return [id_ for id_, member in site.alive.items() if member.is_controller]


# --- joining ---


def test_the_first_is_the_controller_and_takes_the_others_in() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        assert controllers(site) == [1]
        await until(lambda: len({member.image.seq for member in members}) == 1)
        assert [member.image for member in members] == [members[0].image] * 3
        assert sorted(members[0].image.brokers) == [1, 2, 3]
        epochs = [member.broker_epoch for member in members]
        assert epochs == [1, 2, 3], "an epoch is the slot of the registration"

    run(story)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_nodes_that_start_at_once_form_one_cluster(seed: int, nodes: int) -> None:
    async def story(site: Site) -> None:
        members = [site.member(node_id=str(id_), dirs=f"/data/{id_}") for id_ in range(1, nodes + 1)]

        async def start(member: Cluster) -> None:
            await member.read()
            site.alive[member.node_id] = member
            await member.join()

        await asyncio.gather(*map(start, members))
        await until(lambda: len({member.image.seq for member in members}) == 1)
        assert len({member.image.cluster_id for member in members}) == 1
        assert sorted(members[0].image.brokers) == list(range(1, nodes + 1))
        assert len(controllers(site)) == 1

    run(story, seed)


def test_a_node_joins_while_the_controller_is_silent_by_taking_its_place() -> None:
    async def story(site: Site) -> None:
        await site.trio()
        site.isolate(1)
        joined = await site.started(node_id="4", dirs="/data/4")
        assert 4 in joined.image.brokers
        await until(lambda: controllers(site) not in ([1], []))

    run(story)


def test_a_second_process_with_a_live_node_s_id_says_what_it_waits_for_and_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        twin = site.member(node_id="2", dirs="/data/twin")
        await twin.read()
        with pytest.raises(StartupError, match="another process runs as node 2"):
            await twin.join()
        assert members[1].is_member()
        assert not site.fenced
        said = [record.getMessage() for record in caplog.records if record.name == "broker.control.joining"]
        assert len(said) == 1
        assert "another process runs as node 2, or did a moment ago" in said[0]

    run(story)


def test_a_second_process_with_a_live_node_s_id_is_refused_where_there_is_no_controller_to_say_so() -> None:
    """It would stand for election at once, and the one that lives would take it for its successor."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await create(members[0], "t", replication_factor=3)
        await asyncio.sleep(1)
        twin = site.member(node_id="2", dirs="/data/twin", listeners="PLAINTEXT://:9192")
        await twin.read()
        await site.kill(members[0])
        with pytest.raises(StartupError, match="another process runs as node 2"):
            await twin.join()
        assert members[1].is_member()
        assert not site.fenced
        await until(lambda: controllers(site))
        assert all(2 in each.isr for each in members[1].image.topics["t"].partitions)

    run(story)


def test_nodes_whose_addresses_have_changed_start_again_where_the_old_ones_are_silent() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        for member in members:
            site.isolate(member.node_id)
            await member.stop()
        begun = site.loop.time()
        again = await site.started(node_id="2", dirs="/data/2", listeners="PLAINTEXT://:9192")
        assert again.is_controller
        assert site.loop.time() - begun < 15

    run(story)


def test_a_killed_node_comes_back_at_once() -> None:
    """The controller saw its connection go, so nobody waits for a session to end."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        await site.kill(members[1])
        begun = site.loop.time()
        again = await site.started(node_id="2", dirs="/data/2")
        assert site.loop.time() - begun < 1
        assert again.broker_epoch > members[1].broker_epoch

    run(story)


def test_a_node_that_vanished_in_silence_comes_back_when_its_session_is_over() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.isolate(2)
        site.alive.pop(2)
        await members[1].stop()
        site.cut.clear()
        begun = site.loop.time()
        await site.started(node_id="2", dirs="/data/2")
        assert site.loop.time() - begun < 9

    run(story)


def test_a_store_that_ignores_conditions_takes_no_second_node() -> None:
    class Careless(Bucket):
        async def put_if_absent(self, key: str, data: bytes) -> PutResult:
            await self.put(key, data)
            return PutResult.WON

    async def story(site: Site) -> None:
        await site.started(node_id="1", dirs="/data/1")
        careless = Careless()
        for key, data in site.bucket.objects.items():
            await careless.put(key, data)
        site.bucket = careless
        with pytest.raises(StartupError, match="does not honour conditional puts"):
            await site.started(node_id="2", dirs="/data/2")

    run(story)


# --- following ---


def test_slots_are_pushed_at_once() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        assert await create(members[0], "t") is ErrorCode.none
        assert await until(lambda: all("t" in member.image.topics for member in members)) < 0.1

    run(story)


def test_any_member_gets_a_topic_made() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        assert await create(members[2], "t") is ErrorCode.none
        assert "t" in members[2].image.topics, "it is there when the answer is"
        assert await create(members[1], "t") is ErrorCode.topic_already_exists
        made = await members[1].ensure_internal("__consumer_offsets")
        assert made.name == "__consumer_offsets"

    run(story)


def test_producer_ids_are_unique_over_members() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        taken = [await member.producer_ids.next() for member in members for _ in range(1200)]
        assert len(set(taken)) == len(taken)

    run(story)


def test_a_member_without_the_store_learns_from_its_peers() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.no_store.add(3)
        await create(members[0], "t")
        await until(lambda: "t" in members[2].image.topics, within_s=1)
        await site.kill(members[0])
        await until(lambda: members[1].is_controller)
        assert await create(members[1], "after") is ErrorCode.none
        await until(lambda: "after" in members[2].image.topics, within_s=5)
        assert not members[2].image.brokers[3].fenced

    run(story)


# --- silence ---


def test_a_closed_port_ends_a_member_at_once() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        await site.kill(members[2])
        assert await until(lambda: members[0].image.brokers[3].fenced) < 0.5
        assert not members[0].image.brokers[2].fenced

    run(story)


def test_a_port_that_closes_a_moment_after_its_connections_ends_a_member_at_once() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.resets[3] = 2
        await site.kill(members[2])
        assert await until(lambda: members[0].image.brokers[3].fenced) < 1.0

    run(story)


def test_a_member_that_dies_between_two_heartbeats_is_ended_at_once() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        async with members[2]._publishing:  # it takes the news of the next slot, and asks no more
            await create(members[0], "t")
            await until(lambda: not any(call.source == 3 for call in site.calls))
            await site.kill(members[2])
        assert await until(lambda: members[0].image.brokers[3].fenced) < 0.5

    run(story)


def test_who_asks_when_a_broker_just_died_hears_of_its_end() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        assert not members[1].has_lost_peer()
        await site.kill(members[0])
        await until(members[1].has_lost_peer)
        await members[1].wait_doubt_over()
        assert members[1].image.brokers[1].fenced
        assert not members[1].has_lost_peer()

    run(story)


def test_a_broker_that_closed_a_connection_and_lives_on_is_not_doubted_for_long() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        for call in [call for call in site.calls if (call.source, call.target) == (2, 1)]:
            call.lose()
        await until(members[1].has_lost_peer)
        asked_s = site.loop.time()
        await members[1].wait_doubt_over()
        assert site.loop.time() - asked_s <= LOST_PEER_S + 0.1
        assert not members[1].image.brokers[1].fenced

    run(story)


def test_a_closed_port_ends_the_controller_at_once() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        await site.kill(members[0])
        assert await until(lambda: controllers(site)) < 1.0
        (leader,) = controllers(site)
        image = site.alive[leader].image
        assert image.brokers[1].fenced
        await until(lambda: site.alive[2].image == site.alive[3].image)

    run(story)


def test_silence_fences_after_the_session() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.isolate(3)
        assert 5 < await until(lambda: members[0].image.brokers[3].fenced) < 9
        site.cut.clear()
        await until(lambda: not members[0].image.brokers[3].fenced, within_s=10)
        assert controllers(site) == [1]

    run(story)


def test_a_duel_is_not_begun_by_one_who_sees_the_log_grow() -> None:
    """A broker cut from its peers but not from the store: the controller lives, as the store tells."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        epoch = members[0].image.controller_epoch
        site.isolate(3)
        await asyncio.sleep(300)
        assert members[0].image.controller_epoch == epoch
        assert controllers(site) == [1]
        beats = site.slots()[-1]
        assert beats < 80, "for one that was written off the log grows slowly"

    run(story)


@pytest.mark.parametrize("nodes", [(1, 2), (2, 3)])
def test_two_that_refuse_each_other_do_not_depose_each_other_for_ever(nodes: tuple[int, int]) -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.refuse(*nodes)
        await asyncio.sleep(120)
        image = members[2].image
        assert image.controller_epoch <= 2
        assert [broker.fenced for broker in image.brokers.values()].count(True) <= 1
        site.refusing.clear()
        await until(lambda: len(members[2].image.live_brokers()) == 3)
        assert image.controller_epoch <= 2

    run(story)


def test_a_controller_that_cannot_write_is_replaced() -> None:
    """Alive and heard, but cut from the store: it says so as soon as it has something to write."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.no_store.add(1)
        asked = asyncio.ensure_future(create(members[0], "t"))
        assert await until(lambda: members[1].is_controller or members[2].is_controller) < 16
        site.no_store.clear()
        await until(lambda: not members[0].is_controller)
        with pytest.raises(KafkaError):
            await asked
        assert await create(members[0], "u") is ErrorCode.none
        await until(lambda: len({member.image.seq for member in members}) == 1)

    run(story)


def test_a_controller_cut_off_steps_down_when_it_writes() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.isolate(1)
        await until(lambda: members[1].is_controller or members[2].is_controller)
        await until(lambda: not members[0].is_controller, within_s=10)
        assert len(controllers(site)) == 1
        site.cut.clear()
        await until(lambda: not site.alive[controllers(site)[0]].image.brokers[1].fenced, within_s=40)
        assert len(controllers(site)) == 1

    run(story)


def test_a_stall_of_the_controller_fences_nobody() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        for _ in range(5):
            site.loop.stall(20)
            await asyncio.sleep(3)
        assert not any(broker.fenced for broker in members[0].image.brokers.values())

    run(story)


def test_nothing_happens_while_the_store_is_down() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.profile.down = True
        await asyncio.sleep(60)
        assert controllers(site) == [1]
        assert not any(broker.fenced for broker in members[0].image.brokers.values())
        site.profile.heal()
        assert await create(members[1], "t") is ErrorCode.none

    run(story)


def test_one_who_slept_through_a_trim_starts_again_from_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    from broker.control import cluster as cluster_module

    monkeypatch.setattr(cluster_module, "SNAPSHOT_EVERY_SLOTS", 5)

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.isolate(3)
        site.no_store.add(3)
        seen: list[str] = []
        members[2].subscribe(lambda delta: seen.extend(delta.topics_created))
        for name in ("a", "b"):
            await create(members[0], name)
        for day in range(4):
            site.clock_ms += 25 * 3_600_000
            for at in range(6):
                await create(members[0], f"t{day}-{at}")
        await until(lambda: site.slots()[0] > members[2].image.seq + 1)
        site.cut.clear()
        site.no_store.clear()
        await until(lambda: members[2].image == members[0].image, within_s=120)
        assert sorted(seen) == sorted(members[0].image.topics)
        assert not site.fenced

    run(story)


# --- leaving ---


def test_who_leaves_hands_over_first() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await create(members[0], "t", 3)
        await asyncio.sleep(1)
        await members[2].leave()
        led = [p.leader for p in members[0].image.topics["t"].partitions]
        assert 3 not in led
        assert members[0].image.brokers[3].fenced, "clients are sent to it no more"
        await site.kill(members[2])
        again = await site.started(node_id="3", dirs="/data/3")
        assert not again.image.brokers[3].fenced

    run(story)


def test_without_controlled_shutdown_nothing_is_handed_over() -> None:
    async def story(site: Site) -> None:
        members = await site.trio(controlled_shutdown_enable="false")
        await create(members[0], "t", 3)
        await asyncio.sleep(1)
        before = members[0].image.topics["t"].partitions
        assert 3 in [p.leader for p in before]
        await members[2].leave()
        assert members[0].image.topics["t"].partitions == before
        assert not members[0].image.brokers[3].fenced

    run(story)


def test_a_controller_leaves_and_another_follows() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await create(members[0], "t", 3)
        await asyncio.sleep(1)
        await members[0].leave()
        await site.kill(members[0])
        assert await until(lambda: controllers(site)) < 1.0
        image = site.alive[controllers(site)[0]].image
        assert 1 not in [p.leader for p in image.topics["t"].partitions]

    run(story)


def test_the_last_one_hands_nothing_over() -> None:
    async def story(site: Site) -> None:
        member = await site.started()
        await create(member, "t")
        before = site.slots()
        await member.leave()
        assert site.slots() == before

    run(story)


# --- what peers are told ---


def test_a_heartbeat_of_an_earlier_life_is_stale() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        wire = members[1].channels.to(1, "heartbeat")
        fields = {
            "broker_id": 2,
            "broker_epoch": members[1].broker_epoch - 1,
            "current_metadata_offset": 0,
            "want_fence": False,
            "want_shut_down": False,
        }
        answer = await wire.ask(PeerApi.BROKER_HEARTBEAT, 1, fields, timeout_s=3)
        assert answer.error_code is ErrorCode.stale_broker_epoch
        assert len(answer.slots) == members[0].image.seq
        elsewhere = await members[1].channels.to(3, "x").ask(PeerApi.BROKER_HEARTBEAT, 1, fields, timeout_s=3)
        assert elsewhere.error_code is ErrorCode.not_controller

    run(story)


def test_only_the_controller_decides() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        with pytest.raises(KafkaError) as caught:
            await members[1].submit(CreateTopics(topics=(NewTopic(name="t"),)))
        assert caught.value.code is ErrorCode.not_controller

    run(story)
