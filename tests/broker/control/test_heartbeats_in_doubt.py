"""Members while something is slow, lost, late or out of order: what is promised then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.control import cluster as cluster_module
from broker.control import ledger as ledger_module
from broker.control.brokers import UnregisterBroker, election
from broker.control.cluster import Cluster
from broker.control.command_queue import QUEUE_MAX_COMMANDS, CommandQueue, EmptySlot
from broker.control.image import Delta
from broker.control.metadata_log import MetadataLog, parse_slot
from broker.control.metadata_records import encode_record
from protocol.errors import ErrorCode, KafkaError
from remote.keys import snapshot_key
from tests.broker.at_once import AtOnce
from tests.broker.control.cluster_driver import Site, recorded
from tests.broker.control.test_heartbeats import controllers, create, run, until


def cut_off(site: Site, node_id: int) -> None:
    """From its peers and from the store."""
    site.isolate(node_id)
    site.no_store.add(node_id)


def reconnect(site: Site) -> None:
    site.cut.clear()
    site.no_store.clear()


# --- one controller ---


def test_who_reads_of_its_successor_is_the_controller_no_more() -> None:
    """Else it would write on in the epoch of the other."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.isolate(1)
        await until(lambda: members[1].is_controller or members[2].is_controller)
        assert members[0].is_controller
        await members[0]._read_on()
        assert controllers(site) in ([2], [3])
        with pytest.raises(KafkaError) as refused:
            await members[0].submit(EmptySlot())
        assert refused.value.code is ErrorCode.not_controller

    run(story)


def test_a_slot_is_written_in_the_epoch_of_its_writer() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        site.isolate(1)
        rival = MetadataLog(site.world(99).store, site.world(99).random, AtOnce())
        image, ledger = members[0].image, members[0].ledger
        bump = election(image, 2)
        await rival.win(
            image.seq + 1,
            controller_epoch=2,
            previous_hash=ledger.last_hash,
            records=[encode_record(bump)],
        )
        await ledger.catch_up()
        late = await ledger.commit([], [], after=image.seq, controller_epoch=1)
        assert late is None, "its epoch is over"
        assert len(site.slots()) == image.seq

    run(story)


def test_a_slot_is_known_as_ours_though_others_went_on_before_the_reply() -> None:
    """Answered as lost, what was committed would be asked for a second time."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        ledger = members[0].ledger
        win = ledger._log.win

        async def won_and_overtaken(seq: int, **kwargs: Any) -> bytes | None:
            data = await win(seq, **kwargs)
            assert data is not None
            mine = parse_slot(data)
            bump = encode_record(election(ledger.image, 2))
            theirs = await win(seq + 1, controller_epoch=2, previous_hash=mine.hash, records=[bump])
            assert theirs is not None
            assert len(await ledger.take([mine, parse_slot(theirs)])) == 2
            return data

        ledger._log.win = won_and_overtaken  # type: ignore[method-assign]
        assert await create(members[0], "t") is ErrorCode.none
        assert "t" in members[0].image.topics

    run(story)


def test_commands_are_worked_off_by_a_node_elected_again_while_it_learned_that_it_had_lost() -> None:
    async def story(site: Site) -> None:
        member = await site.started()
        tried: list[int] = []

        class Log:
            image = member.image

            async def commit(self, *slot: object, after: int, controller_epoch: int) -> Delta | None:
                tried.append(controller_epoch)
                return None if controller_epoch == 1 else Delta(seq=2)

        later: list[asyncio.Future[None]] = []

        async def elected_again(controller_epoch: int) -> None:
            queue.open(2)
            later.append(asyncio.ensure_future(queue.submit(EmptySlot())))
            await asyncio.sleep(1)

        async def publish(*deltas: Delta) -> None:
            pass

        writer = SimpleNamespace(
            rules=member.rules,
            publish=publish,
            slot_lost=elected_again,
            end_membership=site.fenced.append,
            spawn=member.spawn,
        )
        queue = CommandQueue(cast(Any, Log()), cast(Any, writer), AtOnce())
        queue.open(1)
        with pytest.raises(KafkaError) as refused:
            await queue.submit(EmptySlot())
        assert refused.value.code is ErrorCode.not_controller
        await asyncio.wait_for(later[0], 5)
        assert tried == [1, 2]

    run(story)


# --- a slow store, and one that hangs ---


@pytest.mark.parametrize("seed", range(8))
def test_whom_the_controller_answers_while_its_store_hangs_is_not_silent(seed: int) -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        fenced: set[int] = set()
        members[0].subscribe(
            lambda _: fenced.update(id_ for id_, broker in members[0].image.brokers.items() if broker.fenced)
        )
        site.profile.down = True
        asked = asyncio.ensure_future(_try_create(members[0], "t"))
        await asyncio.sleep(30)
        site.profile.heal()
        await asked
        await asyncio.sleep(10)
        assert not fenced

    run(story, seed)


def test_a_controller_without_its_store_is_replaced_and_stays() -> None:
    """It hears of its successor from the others, and goes on as a member."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.no_store.add(1)
        asked = asyncio.ensure_future(_try_create(members[0], "t"))
        await until(lambda: members[1].is_controller or members[2].is_controller)
        await until(lambda: not members[0].is_controller, within_s=5)
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert not any(broker.fenced for broker in members[1].image.brokers.values())
        assert await create(members[0], "u") is ErrorCode.none
        await until(lambda: "u" in members[0].image.topics)
        site.no_store.clear()
        await asked
        assert controllers(site) in ([2], [3])

    run(story)


def test_a_slow_store_does_not_keep_the_controller_from_fencing() -> None:
    """Each of its slots takes seconds, which is no stall of its own."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.profile.latency_min_s, site.profile.latency_max_s = 0.4, 0.5
        cut_off(site, 3)
        assert await until(lambda: members[0].image.brokers[3].fenced, within_s=30) < 20

    run(story)


def test_a_heartbeat_is_answered_though_the_store_hangs() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.isolate(3)
        await until(lambda: members[0].image.brokers[3].fenced)
        site.profile.down = True
        members[2]._leaving = True  # its own heartbeats rest
        await asyncio.sleep(4)
        site.cut.clear()
        members[2]._leaving = False
        begun = site.loop.time()
        answer = await members[2]._heartbeat(1)
        assert site.loop.time() - begun < 2.5
        assert answer.error_code is ErrorCode.request_timed_out

    run(story)


def test_nobody_stands_who_finds_new_slots_when_the_store_is_back() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        epoch = members[0].image.controller_epoch
        cut_off(site, 3)
        await asyncio.sleep(40)
        site.no_store.clear()
        await asyncio.sleep(10)
        site.cut.clear()
        await until(lambda: not members[0].image.brokers[3].fenced)
        assert members[0].image.controller_epoch == epoch
        assert controllers(site) == [1]

    run(story)


@pytest.mark.parametrize("seed", range(3))
def test_joining_outlasts_the_store(seed: int) -> None:
    async def story(site: Site) -> None:
        await site.started(node_id="1", dirs="/data/1")
        joining = site.member(node_id="2", dirs="/data/2")
        await joining.read()
        site.profile.down = True
        joined = asyncio.ensure_future(joining.join())
        await asyncio.sleep(120)
        site.profile.heal()
        await asyncio.wait_for(joined, 30)
        assert 2 in joining.image.brokers

    run(story, seed)


# --- who is written off ---


def test_a_broker_that_left_is_live_no_more() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await create(members[0], "t", 3)
        await asyncio.sleep(1)
        await members[2].leave()
        await site.kill(members[2])
        assert await until(lambda: members[0].image.brokers[3].fenced) < 10

    run(story)


@pytest.mark.parametrize("trouble", ["store", "wire"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_stop_does_not_wait_longer_than_it_says(who: int, trouble: str) -> None:
    """What is asked last is not waited for beyond the end."""

    async def story(site: Site) -> None:
        members = await site.trio()
        await create(members[0], "t", 3)
        await asyncio.sleep(1)
        if trouble == "store":
            site.profile.down = True
        else:
            cut_off(site, members[who].node_id)
        begun = site.loop.time()
        await members[who].leave()
        assert site.loop.time() - begun < cluster_module.LEAVE_WITHIN_S + 0.3

    run(story)


def test_a_fence_that_found_no_room_is_tried_again() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        site.profile.down = True
        asked = [asyncio.ensure_future(members[0].submit(EmptySlot()))]
        await asyncio.sleep(0.1)
        asked += [asyncio.ensure_future(members[0].submit(EmptySlot())) for _ in range(QUEUE_MAX_COMMANDS)]
        await site.kill(members[2])
        await asyncio.sleep(1)
        site.profile.heal()
        await asyncio.wait(asked)
        assert controllers(site) == [1]
        await until(lambda: members[0].image.brokers[3].fenced, within_s=15)

    run(story)


def test_who_was_attached_to_an_earlier_term_is_not_taken_for_alive() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        assert members[0].heartbeats._attached
        site.isolate(1)
        await until(lambda: members[1].is_controller or members[2].is_controller)
        await members[0]._read_on()
        site.alive.pop(2)
        site.alive.pop(3)
        site.cut.clear()
        for gone in members[1:]:
            await gone.stop()
        await until(lambda: members[0].is_controller)
        await until(lambda: all(members[0].image.brokers[id_].fenced for id_ in (2, 3)), within_s=1)

    run(story)


@pytest.mark.parametrize("is_alive", [True, False])
def test_the_id_of_one_who_lives_is_not_given_away_by_a_controller_who_has_just_begun(is_alive: bool) -> None:
    """It has heard of nobody yet. With the id the new process would take the right to what the other one
    alone holds."""

    async def story(site: Site) -> None:
        members = [
            await site.started(node_id=str(id_), dirs=f"/data/{id_}", listeners=f"PLAINTEXT://:909{id_}")
            for id_ in (1, 2, 3)
        ]
        await asyncio.sleep(1)
        await site.kill(members[0])
        await until(lambda: controllers(site))
        (leader,) = controllers(site)
        (other,) = (member for member in members[1:] if member.node_id != leader)
        twin = twin_of(other)
        heartbeats = site.alive[leader].heartbeats
        heartbeats._attached.clear()
        if is_alive:
            with pytest.raises(KafkaError) as refused:
                await heartbeats.register(twin)
            assert refused.value.code is ErrorCode.duplicate_broker_registration
            await asyncio.sleep(10)
            assert other.is_member()
            assert not site.fenced
        else:
            await site.kill(other)
            await heartbeats.register(twin)

    run(story)


def test_the_id_of_one_who_is_heard_again_while_its_port_is_tried_is_not_given_away() -> None:
    """It does not answer there in time: that proves nothing, and what it says meanwhile counts."""

    async def story(site: Site) -> None:
        members = [
            await site.started(node_id=str(id_), dirs=f"/data/{id_}", listeners=f"PLAINTEXT://:909{id_}")
            for id_ in (1, 2, 3)
        ]
        await asyncio.sleep(1)
        heartbeats = members[0].heartbeats
        attached = heartbeats._attached.pop(3)

        async def heard_again(node_id: int) -> None:
            await asyncio.sleep(0.1)
            heartbeats._attached[node_id] = attached

        members[0].is_listening = heard_again  # type: ignore[method-assign]
        with pytest.raises(KafkaError) as refused:
            await heartbeats.register(twin_of(members[2]))
        assert refused.value.code is ErrorCode.duplicate_broker_registration
        assert members[2].is_member()

    run(story)


def twin_of(member: Cluster) -> SimpleNamespace:
    """Another process with its id asks to be taken in."""
    listener = SimpleNamespace(name="PLAINTEXT", host="elsewhere", port=9192, security_protocol=0)
    return SimpleNamespace(
        cluster_id=member.image.cluster_id,
        broker_id=member.node_id,
        incarnation_id=UUID(int=77),
        log_dirs=[UUID(int=777)],
        listeners=[listener],
        rack=None,
        previous_broker_epoch=-1,
    )


# --- slots from peers ---


async def missed_slots(site: Site, members: list[Cluster], *names: str) -> list[bytes]:
    """Those that the third does not know."""
    await asyncio.sleep(1)
    cut_off(site, 3)
    for name in names:
        await create(members[0], name)
    return members[0].ledger.since(members[2].image.seq, max_bytes=1 << 20)


def test_what_was_applied_is_told_though_the_next_slot_is_damaged() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        (good,) = await missed_slots(site, members, "t")
        seen = recorded(members[2])
        await members[2]._take_slots(SimpleNamespace(slots=(good, b"damaged")))
        assert "t" in members[2].image.topics
        assert ["t" in delta.topics_created for delta in seen] == [True]

    run(story)


def test_slots_are_told_in_their_order_whoever_brought_them() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        slots = await missed_slots(site, members, "a", "b", "c", "d")
        told: list[int] = []

        def slow(delta: Delta) -> Iterator[None]:
            told.append(delta.seq)
            yield
            yield

        members[2].subscribe(slow)
        first = asyncio.ensure_future(members[2]._take_slots(SimpleNamespace(slots=slots[:3])))
        await asyncio.sleep(0)
        await members[2]._take_slots(SimpleNamespace(slots=slots[3:]))
        assert told == sorted(told)
        assert len(told) == 4, "what was applied was told when this returned"
        await first

    run(story)


def test_a_member_that_nobody_can_help_asks_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is out of its reach, and what it missed is no longer at hand."""
    monkeypatch.setattr(ledger_module, "RECENT_SLOTS", 2)

    async def story(site: Site) -> None:
        members = await site.trio()
        await missed_slots(site, members, "a", "b", "c", "d")
        asked = 0
        beat = members[2]._heartbeat

        async def counted(node_id: int, **kwargs: Any) -> Any:
            nonlocal asked
            asked += 1
            return await beat(node_id, **kwargs)

        members[2]._heartbeat = counted  # type: ignore[method-assign]
        site.cut.clear()
        await asyncio.sleep(10)
        assert asked < 100

    run(story)


def test_one_new_slot_is_read_with_few_requests() -> None:
    async def story(site: Site) -> None:
        member = await site.started()
        log = MetadataLog(site.world(99).store, site.world(99).random, AtOnce())
        read, asked = log.read, []

        async def counted(seq: int) -> Any:
            asked.append(seq)
            return await read(seq)

        log.read = counted  # type: ignore[method-assign]
        await create(member, "t")
        assert len(await log.read_on(member.image.seq - 1)) == 1
        assert len(asked) == 2
        for at in range(100):
            await create(member, f"t{at}")
        asked.clear()
        assert len(await log.read_on(1)) == member.image.seq - 1
        assert len(asked) < member.image.seq + 40

    run(story)


# --- keeping house ---


def test_a_snapshot_that_cannot_be_read_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "SNAPSHOT_EVERY_SLOTS", 5)

    async def story(site: Site) -> None:
        member = await site.started()
        await site.bucket.put(snapshot_key(1), b"of another release")
        for at in range(5):
            await create(member, f"t{at}")
        keeper = member._snapshot
        assert keeper is not None
        await asyncio.wait([keeper])
        assert keeper.exception() is None

    run(story)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_five_are_born_through_lost_replies(seed: int) -> None:
    async def story(site: Site) -> None:
        site.profile.error_before_chance = site.profile.error_after_chance = 0.3
        members = [site.member(node_id=str(id_), dirs=f"/data/{id_}") for id_ in range(1, 6)]

        async def start(member: Cluster) -> None:
            await member.read()
            site.alive[member.node_id] = member
            await member.join()

        await asyncio.gather(*map(start, members))
        site.profile.heal()
        await until(lambda: len({member.image.seq for member in members}) == 1)
        assert sorted(members[0].image.brokers) == [1, 2, 3, 4, 5]
        await until(lambda: len(controllers(site)) == 1, within_s=30)
        assert not site.fenced

    run(story, seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.data())
def test_whatever_was_cut_or_down_the_cluster_is_whole_within_half_a_minute(
    seed: int, nodes: int, data: st.DataObject
) -> None:
    faults = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["isolate", "no-store", "store-down", "stall", "one-way", "heal"]),
                st.integers(1, nodes),
                st.floats(0, 15),
            ),
            max_size=6,
        )
    )

    async def story(site: Site) -> None:
        members = [await site.started(node_id=str(id_), dirs=f"/data/{id_}") for id_ in range(1, nodes + 1)]
        epochs: dict[int, set[int]] = {}
        for kind, node, seconds in faults:
            match kind:
                case "isolate":
                    site.isolate(node)
                case "no-store":
                    site.no_store.add(node)
                case "store-down":
                    site.profile.down = True
                case "stall":
                    site.loop.stall(seconds)
                case "one-way":
                    site.cut.add((node, node % nodes + 1))
                case _:
                    site.profile.heal()
                    reconnect(site)
            asked = asyncio.ensure_future(_try_create(members[node - 1], f"t{len(epochs)}"))
            await asyncio.sleep(seconds)
            asked.cancel()
        site.profile.heal()
        reconnect(site)

        def is_whole() -> bool:
            images = [member.image for member in members]
            return (
                len(controllers(site)) == 1
                and len({image.seq for image in images}) == 1
                and not any(broker.fenced for broker in images[0].brokers.values())
            )

        await until(is_whole, within_s=30)
        (leader,) = controllers(site)
        assert members[0].image.controller_id == leader
        made = asyncio.ensure_future(_create_at_last(members[-1], "after"))
        await asyncio.wait_for(made, 15)
        assert not site.fenced
        writers: dict[int, int] = {}
        for seq in site.slots():
            slot = parse_slot(site.bucket.objects[f"meta/{seq:020d}"], seq)
            assert slot.controller_epoch >= max(writers, default=0)
            writers[slot.controller_epoch] = seq

    run(story, seed)


async def _create_at_last(member: Cluster, name: str) -> None:
    while True:
        await _try_create(member, name)
        if name in member.image.topics:
            return
        await asyncio.sleep(0.1)


async def _try_create(member: Cluster, name: str) -> None:
    try:
        await create(member, name)
    except KafkaError:
        pass


def test_who_was_unregistered_is_told_so() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        await asyncio.sleep(1)
        await members[0].submit(UnregisterBroker(broker_id=3))
        await until(lambda: site.fenced)
        assert site.fenced == ["an operator unregistered node 3 of this cluster"]

    run(story)
