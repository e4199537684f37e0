"""A follower that reads from the store what its leader points to: in order, once, and never past what is
missing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from broker.config.values import ResourceType
from broker.control.metadata_records import ConfigChanged
from broker.handlers.follower_fetch import GATHER_S
from broker.replicas.wal.hydrating import REPORT_WAIT_S, SLOW_SHARE
from protocol.pointers import BYTES, FROM_OFFSET
from remote.wal.hydrator import AWAY_MAX_S
from tests.broker.replicas.wal_driver import ENABLED, followed, stats_of
from tests.broker.replication_driver import Replicas, log_of

LEADER, FOLLOWER = 1, 2


def end(world: Replicas, node_id: int = FOLLOWER, topic: str = "t") -> int:
    found: int = log_of(world, node_id, topic).log_end_offset
    return found


def is_even(world: Replicas, *topics: str) -> Callable[[], bool]:
    """Whether the follower has, and may show, all that the leader has."""

    def check() -> bool:
        for topic in topics or ("t",):
            leader, follower = log_of(world, LEADER, topic), log_of(world, FOLLOWER, topic)
            if {follower.log_end_offset, follower.high_watermark} != {leader.log_end_offset}:
                return False
        return True

    return check


def switch(world: Replicas, value: str) -> None:
    name = "remote.wal.storage.enable"
    changed = ConfigChanged(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value)
    world.controller.publish(changed)


def fetcher_of(world: Replicas, *, takes_pointers: bool = True) -> Any:
    return world.nodes[FOLLOWER].fetchers._fetchers[LEADER, takes_pointers]


def fetches_of(fetcher: Any) -> list[tuple[float, dict[Any, Any]]]:
    """Return a list that gets each Fetch from here on: when, and what it says of each partition."""
    seen: list[tuple[float, dict[Any, Any]]] = []
    real = fetcher._session.__class__.tell

    def tell(session: Any, looked_at: Any) -> Any:
        found = real(session, looked_at)
        if fetcher._session is session:
            seen.append((fetcher.now(), dict(session.told)))
        return found

    fetcher._session.__class__ = type("Seen", (fetcher._session.__class__,), {"tell": tell, "__slots__": ()})
    return seen


@pytest.mark.requirement("1176-17", "1176-35", "1176-36")
def test_what_is_stored_comes_from_the_store_alone() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        for at in range(5):
            await wal.append(b"%d" % at)
            await wal.copy()
            await world.until(is_even(world))
        stats = stats_of(world.nodes[FOLLOWER])
        assert (stats.hydrated_slices, stats.direct_bytes_in, stats.hydration_failures) == (5, 0, 0)
        assert stats.get_s.total == stats.append_s.total == 5
        assert stats_of(world.nodes[LEADER]).direct_bytes_out == 0
        assert world.nodes[FOLLOWER].values() == [b"%d" % at for at in range(5)]
        assert world.nodes[FOLLOWER].partition().stored_to == 5
        await world.agree(LEADER, FOLLOWER)
        fetcher = fetcher_of(world)
        assert not fetcher.hydrating._reads
        assert world.nodes[FOLLOWER].fetchers.hydrator.bytes_held == 0

    Replicas(2).run(main)


@pytest.mark.requirement("1176-13")
def test_one_range_of_an_object_serves_all_partitions() -> None:
    async def main(world: Replicas) -> None:
        topics = ("a", "b", "c")
        wal = await followed(world, *topics)
        for topic in topics:
            await wal.append(b"x" * 500, topic=topic)
        told = await wal.copy(*topics, padding=bytes(100))
        await world.until(is_even(world, *topics))
        first, last = told[0], told[-1]
        assert world.store.ranges == [(wal.key(0), first.position, last.position + last.size)]

    Replicas(2).run(main)


@pytest.mark.requirement("1176-13")
def test_what_lies_between_slices_is_not_read_where_it_is_more_than_they_are() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world, "a", "b")
        for topic in ("a", "b"):
            await wal.append(b"x", topic=topic)
        told = await wal.copy("a", "b", padding=bytes(70_000))
        await world.until(is_even(world, "a", "b"))
        wanted = [(wal.key(0), each.position, each.position + each.size) for each in told]
        assert sorted(world.store.ranges) == wanted

    Replicas(2).run(main)


def test_slices_are_appended_in_order_whichever_is_read_first() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        world.store.held[wal.key(0)] = asyncio.Event()
        for value in (b"a", b"b", b"c"):
            await wal.append(value)
            await wal.copy()
        await world.until(lambda: len(world.store.ranges) == 3)
        await asyncio.sleep(0.3)
        assert end(world) == 0
        world.store.held[wal.key(0)].set()
        await world.until(is_even(world))
        assert world.nodes[FOLLOWER].values() == [b"a", b"b", b"c"]
        stats = stats_of(world.nodes[FOLLOWER])
        assert (stats.hydrated_slices, stats.direct_bytes_in) == (3, 0)

    Replicas(2).run(main)


def test_a_slice_that_begins_below_the_logs_end_is_trimmed() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        for value in (b"a", b"b", b"c"):
            await wal.append(value)
        # the first two come directly; the object holds all three
        log = log_of(world, FOLLOWER)
        part = log_of(world, LEADER).read(0, 1 << 20, bound=2, min_one=True)
        log.append_as_follower(memoryview(part.read()))
        assert end(world) == 2
        fetcher = fetcher_of(world)
        fetcher.look_at_all()
        await wal.copy()
        await world.until(is_even(world))
        assert world.nodes[FOLLOWER].values() == [b"a", b"b", b"c"]
        stats = stats_of(world.nodes[FOLLOWER])
        assert (stats.hydrated_slices, stats.hydration_failures, stats.direct_bytes_in) == (1, 0, 0)

    Replicas(2).run(main)


@pytest.mark.requirement("1176-29")
def test_what_was_pointed_to_in_an_earlier_epoch_is_not_appended_in_the_next() -> None:
    """The log ends where it did, and the same broker leads: only the epoch tells. Another partition keeps the
    reads of that leader going."""

    async def main(world: Replicas) -> None:
        wal = await followed(world, "t", "u")
        held = world.store.held[wal.key(0)] = asyncio.Event()
        await wal.append(b"stale")
        await wal.append(b"kept", topic="u")
        await wal.copy("t", "u")
        await world.until(lambda: world.store.ranges)
        world.fabric.cut("node1", "node2")
        world.change(leader=LEADER)
        held.set()
        await asyncio.sleep(0.3)
        assert (end(world), end(world, topic="u")) == (0, 1)
        assert stats_of(world.nodes[FOLLOWER]).hydrated_slices == 1
        assert world.nodes[FOLLOWER].fetchers.hydrator.bytes_held == 0
        world.fabric.heal()
        await world.until(is_even(world, "t", "u"))

    Replicas(2).run(main)


def test_a_log_that_is_cut_while_a_slice_is_read_does_not_get_it() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        await wal.append(b"a")
        await wal.append(b"b")
        await wal.copy()
        await world.until(is_even(world))
        held = world.store.held[wal.key(1)] = asyncio.Event()
        await wal.append(b"c")
        await wal.copy()
        await world.until(lambda: len(world.store.ranges) == 2)
        node = world.nodes[FOLLOWER]
        (position,) = node.fetchers._positions.values()
        world.fabric.cut("node1", "node2")
        node.here(fetcher_of(world)._truncate, position, 0, 1)
        assert (end(world), node.partition().stored_to) == (1, 1)
        held.set()
        await asyncio.sleep(0.3)
        assert end(world) == 1
        world.fabric.heal()
        await world.until(is_even(world))
        assert node.values() == [b"a", b"b", b"c"]
        assert stats_of(node).hydration_failures == 0

    Replicas(2).run(main)


@pytest.mark.requirement("1176-42")
@pytest.mark.parametrize("trouble", ["gone", "damaged", "short", "slow"])
def test_what_cannot_be_read_is_asked_of_the_leader_and_nothing_is_passed_over(trouble: str) -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        leader, objects = world.nodes[LEADER].partition(), world.store.objects
        for value in (b"a", b"b", b"c"):
            await wal.append(value * 100)
            (extent,) = await wal.copy(tells=False)
            if value == b"b":
                key = wal.key(1)
                whole = objects[key]
                if trouble == "gone":
                    await world.store.delete(key)
                elif trouble == "slow":
                    world.store.hangs_at = key
                elif trouble == "short":
                    objects[key] = whole[:-1]
                else:
                    objects[key] = whole[:-50] + b"?" + whole[-49:]
            wal.tell([(leader, extent)])
        await world.until(is_even(world))
        assert world.nodes[FOLLOWER].values() == [value * 100 for value in (b"a", b"b", b"c")]
        stats = stats_of(world.nodes[FOLLOWER])
        assert stats.hydration_failures
        assert stats.direct_bytes_in
        before = stats.hydrated_slices, stats.direct_bytes_in
        await asyncio.sleep(AWAY_MAX_S)
        await wal.append(b"d")
        await wal.copy()
        await world.until(is_even(world))
        assert (stats.hydrated_slices, stats.direct_bytes_in) == (before[0] + 1, before[1])

    Replicas(2).run(main)


@pytest.mark.requirement("1176-42")
def test_a_store_that_is_away_is_left_alone_and_the_leader_sends_all() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world, "t", "u")
        await wal.append(b"a")
        await wal.copy()
        await world.until(is_even(world))
        world.store.is_away = True
        for _ in range(20):
            for topic in ("t", "u"):
                await wal.append(b"b", topic=topic)
                await wal.copy(topic)
            await world.until(is_even(world, "t", "u"), 3)
            await asyncio.sleep(0.5)
        # 20 s: a try after 0.5, 1, 2, 4 and 5 s, each of two attempts
        assert len(world.store.ranges) < 25
        world.store.is_away = False
        stats = stats_of(world.nodes[FOLLOWER])
        before = stats.hydrated_slices
        for _ in range(20):
            await wal.append(b"c")
            await wal.copy()
            await asyncio.sleep((AWAY_MAX_S + 1) / 20)
        await world.until(is_even(world, "t", "u"))
        assert stats.hydrated_slices > before
        await world.agree(LEADER, FOLLOWER)

    Replicas(2).run(main)


def test_a_report_waits_for_a_slow_read_no_longer_than_it_may() -> None:
    """What is read quickly is reported while another object is still on its way, and by no long poll."""

    async def main(world: Replicas) -> None:
        wal = await followed(world, "t", "u")
        await asyncio.sleep(GATHER_S)  # before that a new leader lets nobody wait
        world.store.held[wal.key(0)] = asyncio.Event()
        await wal.append(b"slow")
        await wal.copy()
        await world.until(lambda: world.store.ranges)
        begun = world.loop.now
        await wal.append(b"quick", topic="u")
        await wal.copy("u")
        await world.until(is_even(world, "u"))
        assert world.loop.now - begun < 0.3
        await asyncio.sleep(0.3)
        begun = world.loop.now
        world.store.held[wal.key(0)].set()
        await world.until(is_even(world))
        assert world.loop.now - begun < REPORT_WAIT_S + 0.02

    Replicas(2, replica_fetch_wait_max_ms="20000", replica_lag_time_max_ms="20000").run(main)


@pytest.mark.parametrize("slow_s", [0.15, 0.4, 0.9])
def test_while_a_read_is_slow_the_leader_is_asked_seldom_and_others_lose_nothing(slow_s: float) -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world, "t", "u")
        await asyncio.sleep(GATHER_S)
        slow = world.store.held[wal.key(0)] = asyncio.Event()
        seen = fetches_of(fetcher_of(world))
        await wal.append(b"slow")
        await wal.copy()
        await world.until(lambda: world.store.ranges)
        begun = world.loop.now
        await asyncio.sleep(slow_s * 0.9)
        asked = [at for at, _ in seen if at > begun]
        assert len(asked) <= 3 + 12 * slow_s
        await wal.append(b"quick", topic="u")
        await wal.copy("u")
        quick = world.loop.now
        await world.until(is_even(world, "u"))
        assert world.loop.now - quick < 0.02, "it was told while a Fetch stayed at the leader"
        await asyncio.sleep(begun + slow_s - world.loop.now)
        slow.set()
        await world.until(is_even(world))
        late_s = world.loop.now - begun - slow_s
        assert late_s < min(SLOW_SHARE * slow_s, REPORT_WAIT_S) + 0.02

    Replicas(2, replica_fetch_wait_max_ms="20000", replica_lag_time_max_ms="20000").run(main)


def test_memory_is_bounded_and_what_had_no_room_comes_later() -> None:
    async def main(world: Replicas) -> None:
        topics = [f"t{at}" for at in range(8)]
        wal = await followed(world, *topics)
        hydrator = world.nodes[FOLLOWER].fetchers.hydrator
        hydrator.bytes_max = 64 << 10
        for topic in topics:
            world.store.held[wal.key(wal.objects)] = asyncio.Event()
            await wal.append(bytes(20_000), topic=topic)
            await wal.copy(topic)
        await world.until(lambda: hydrator.bytes_held > 40_000)
        await asyncio.sleep(0.5)
        assert hydrator.bytes_held <= 64 << 10
        for event in world.store.held.values():
            event.set()
        await world.until(is_even(world, *topics))
        stats = stats_of(world.nodes[FOLLOWER])
        assert (hydrator.bytes_held, stats.hydrated_slices, stats.direct_bytes_in) == (0, 8, 0)

    Replicas(2).run(main)


def test_a_slice_that_memory_never_has_room_for_comes_from_the_leader() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        world.nodes[FOLLOWER].fetchers.hydrator.bytes_max = 10_000
        await wal.append(bytes(20_000))
        await wal.copy()
        await world.until(is_even(world))
        assert (world.store.ranges, stats_of(world.nodes[FOLLOWER]).hydrated_slices) == ([], 0)

    Replicas(2).run(main)


def test_nothing_is_appended_after_a_stop() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        await wal.append(b"a")
        held = world.store.held[wal.key(0)] = asyncio.Event()
        await wal.copy()
        await world.until(lambda: world.store.ranges)
        node = world.nodes[FOLLOWER]
        hydrator = node.fetchers.hydrator
        node.here(node.fetchers.stop)
        held.set()
        await asyncio.sleep(0.3)
        assert (end(world), hydrator.bytes_held, hydrator._under_way) == (0, 0, 0)
        assert not hydrator.on_away

    Replicas(2).run(main)


def test_the_setting_may_be_switched_at_any_time() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        node = world.nodes[FOLLOWER]
        for at in range(4):
            switch(world, "false" if at % 2 == 0 else "true")
            await world.until(lambda at=at: list(node.fetchers._fetchers) == [(LEADER, at % 2 == 1)])
            await wal.append(b"%d" % at)
            await wal.copy()
            await world.until(is_even(world))
        assert stats_of(node).hydrated_slices == 2
        assert node.values() == [b"0", b"1", b"2", b"3"]

    Replicas(2).run(main)


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_is_read_while_the_setting_is_switched_off_is_not_appended(is_alone: bool) -> None:
    async def main(world: Replicas) -> None:
        topics = ("t",) if is_alone else ("t", "u")
        wal = await followed(world, *topics)
        held = world.store.held[wal.key(0)] = asyncio.Event()
        for topic in topics:
            await wal.append(b"a", topic=topic)
        await wal.copy(*topics)
        await world.until(lambda: world.store.ranges)
        switch(world, "false")
        await world.until(is_even(world))
        held.set()
        await world.until(is_even(world, *topics))
        await wal.append(b"b")
        await world.until(is_even(world, *topics))
        assert world.nodes[FOLLOWER].values() == [b"a", b"b"]
        assert stats_of(world.nodes[FOLLOWER]).hydrated_slices == len(topics) - 1
        assert world.nodes[FOLLOWER].fetchers.hydrator.bytes_held == 0

    Replicas(2).run(main)


def test_a_log_that_cannot_be_written_loses_no_slice() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        log_of(world, FOLLOWER).release_files()
        disk = world.nodes[FOLLOWER].disk
        disk.fail("open", errno.EMFILE, path_part="t-0", times=2)
        await wal.append(b"a")
        await wal.copy()
        await world.until(is_even(world))
        assert not disk.armed
        assert world.nodes[FOLLOWER].values() == [b"a"]
        stats = stats_of(world.nodes[FOLLOWER])
        assert (stats.hydrated_slices, stats.direct_bytes_in) == (1, 0)

    Replicas(2).run(main)


def test_a_gap_of_compaction_at_the_end_of_a_slice_is_passed() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        await wal.append(b"a")
        node = world.nodes[LEADER]
        (extent,) = await wal.copy(tells=False)
        # the slice ends at 3, where its last batch ended before it was compacted away
        held = log_of(world, LEADER)
        held.log_end_offset = 3
        wal.tell([(node.partition(), extent._replace(end=3))])
        await wal.append(b"d")
        await wal.copy()
        await world.until(is_even(world))
        assert node.values() == world.nodes[FOLLOWER].values() == [b"a", b"d"]
        stats = stats_of(world.nodes[FOLLOWER])
        assert (stats.hydrated_slices, stats.direct_bytes_in) == (2, 0)

    Replicas(2).run(main)


@pytest.mark.parametrize(
    ("begun_at", "kept"),
    [
        pytest.param(3, [b"a", b"b", b"c", b"d"], id="into the first batch"),
        pytest.param(5, [b"c", b"d"], id="into the second"),
        pytest.param(7, [b"d"], id="all of it"),
    ],
)
def test_what_is_deleted_while_its_slice_is_read_is_gone_at_the_follower_too(
    begun_at: int, kept: list[bytes]
) -> None:
    """The follower is told that it asks for what is gone, and begins anew inside of the slice."""

    async def main(world: Replicas) -> None:
        wal = await followed(world)
        world.change(isr=(LEADER,))
        world.store.held[wal.key(0)] = asyncio.Event()
        await wal.append(b"a", b"a", b"a", b"b")
        await wal.append(b"c", b"c", b"c")
        leader = world.nodes[LEADER].partition()
        await world.until(lambda: leader.log.high_watermark == 7)
        await wal.copy()
        await world.until(lambda: world.store.ranges)
        leader.log.advance_log_start(begun_at)
        await asyncio.sleep(0.5)
        world.store.held[wal.key(0)].set()
        await world.until(is_even(world))
        await wal.append(b"d")
        await wal.copy()
        await world.until(is_even(world))
        follower = world.nodes[FOLLOWER]
        assert list(dict.fromkeys(follower.values())) == kept
        assert log_of(world, FOLLOWER).log_start_offset == begun_at
        assert (follower.partition().stored_to, stats_of(follower).direct_bytes_in) == (8, 0)
        await world.until(lambda: world.isr() == (LEADER, FOLLOWER))

    Replicas(2).run(main)


def test_requests_name_where_pointers_are_wanted_from() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        seen = fetches_of(fetcher_of(world))
        world.store.held[wal.key(0)] = asyncio.Event()
        await wal.append(b"a", b"b")
        await wal.copy()
        await asyncio.sleep(0.5)
        (key,) = seen[-1][1]
        assert (seen[-1][1][key].offset, seen[-1][1][key].pointed) == (0, 2)
        world.store.held[wal.key(0)].set()
        await world.until(is_even(world))
        assert (seen[-1][1][key].offset, seen[-1][1][key].pointed) == (2, FROM_OFFSET)
        assert all(said[key].pointed != BYTES for _, said in seen if key in said)

    Replicas(2).run(main)


def test_many_small_slices_leave_the_loop_its_turns() -> None:
    async def main(world: Replicas) -> None:
        topics = [f"t{at}" for at in range(100)]
        wal = await followed(world, *topics)
        for topic in topics:
            await wal.append(b"x", topic=topic)
        turns: list[int] = []
        hydrating = fetcher_of(world).hydrating
        append_next = hydrating._append_next

        def counted(position: Any) -> Any:
            turns.append(turn)
            return append_next(position)

        hydrating._append_next = counted
        await wal.copy(*topics)
        turn = 0
        while not is_even(world, *topics)():  # counts the turns of the loop
            turn += 1
            await asyncio.sleep(0)
        assert stats_of(world.nodes[FOLLOWER]).hydrated_slices == len(topics)
        assert max(turns.count(each) for each in set(turns)) <= 80, "two calls for each slice, and 32 slices"

    Replicas(2).run(main)


def test_a_slice_that_waits_keeps_its_own_bytes_and_not_all_that_was_read_with_it() -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world, "t", "u")
        world.store.held[wal.key(0)] = asyncio.Event()
        await wal.append(b"slow")
        await wal.copy("t")
        await wal.append(b"small")
        await wal.append(bytes(1_000_000), topic="u")
        await wal.copy("t", "u")
        await world.until(is_even(world, "u"))
        positions = world.nodes[FOLLOWER].fetchers._positions.values()
        (waiting,) = [each for at in positions for each in at.slices._slices if each.data is not None]
        assert len(waiting.data.obj) == waiting.pointer.size < 1000
        world.store.held[wal.key(0)].set()
        await world.until(is_even(world, "t"))
        assert world.nodes[FOLLOWER].values() == [b"slow", b"small"]

    Replicas(2).run(main)


def test_records_from_the_leader_take_the_place_of_slices_on_their_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A leader that uses the tier no more sends what it pointed to, and more."""

    async def main(world: Replicas) -> None:
        wal = await followed(world)
        world.store.held[wal.key(0)] = asyncio.Event()
        await wal.append(b"a")
        await wal.copy()
        await world.until(lambda: world.store.ranges)
        await wal.append(b"b")
        world.nodes[LEADER].partition().tail = None
        await world.until(is_even(world))
        hydrator = world.nodes[FOLLOWER].fetchers.hydrator
        assert hydrator.bytes_held == 0
        world.store.held[wal.key(0)].set()
        await asyncio.sleep(0.3)
        assert world.nodes[FOLLOWER].values() == [b"a", b"b"]
        assert stats_of(world.nodes[FOLLOWER]).hydration_failures == 0
        assert "not appended" not in caplog.text

    Replicas(2).run(main)


@pytest.mark.parametrize("position", [(1 << 63) - 10, (1 << 64) - 1])
def test_a_pointer_past_what_an_object_can_hold_is_not_followed(position: int) -> None:
    async def main(world: Replicas) -> None:
        wal = await followed(world)
        await wal.append(b"a")
        (extent,) = await wal.copy(tells=False)
        wal.tell([(world.nodes[LEADER].partition(), extent._replace(position=position))])
        await world.until(is_even(world))
        assert world.store.ranges == []

    Replicas(2).run(main)


@pytest.mark.requirement("1176-17", "1176-42")
def test_acks_all_goes_by_the_store_and_without_it() -> None:
    """The whole road, with the leader's own uploads: through a store that is there, away, and there again."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, **ENABLED)
        await world.until(lambda: world.nodes[LEADER].partition().tail)
        for at in range(10):
            await world.append(LEADER, b"%d" % at)
        await world.agree(1, 2, 3)
        followers = [stats_of(world.nodes[node_id]) for node_id in (2, 3)]
        assert all(each.hydrated_slices and not each.direct_bytes_in for each in followers)
        world.store.is_away = True
        for at in range(10, 20):
            await world.append(LEADER, b"%d" % at)
        assert all(each.direct_bytes_in for each in followers)
        world.store.is_away = False
        begun = world.loop.now
        before = [each.hydrated_slices for each in followers]
        at = 20
        while any(each.hydrated_slices <= count for each, count in zip(followers, before, strict=True)):
            await world.append(LEADER, b"%d" % at)
            at += 1
        assert world.loop.now - begun < 10
        await world.agree(1, 2, 3)
        assert world.isr() == (1, 2, 3)
        assert world.nodes[3].values() == [b"%d" % value for value in range(at)]

    Replicas().run(main)
