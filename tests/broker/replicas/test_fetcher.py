"""Replicas over a network in memory: what one leads the others have, whatever happens on the way."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from broker.net.channel import Channel
from broker.replicas import fetcher
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.fetch import FetchedPartition
from tests.broker.raw_client import batch_of
from tests.broker.replication_driver import Replicas, log_of


@pytest.mark.parametrize("seed", range(3))
def test_what_is_acknowledged_by_all_is_on_every_replica(seed: int) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(20):
            appended = await world.append(1, b"%d" % at)
            assert appended.first_offset == at
            for node_id in world.nodes:
                assert log_of(world, node_id).log_end_offset > at
        await world.agree(1, 2, 3)
        assert world.nodes[3].values() == [b"%d" % at for at in range(20)]
        assert world.isr() == (1, 2, 3)

    Replicas(seed=seed).run(main)


def test_many_partitions_of_many_leaders_are_copied_at_once() -> None:
    async def main(world: Replicas) -> None:
        for topic, replicas in (("a", (1, 2, 3)), ("b", (2, 3, 1)), ("c", (3, 1, 2))):
            world.create(*replicas, topic=topic, partitions=20)
        for topic, leader in (("a", 1), ("b", 2), ("c", 3)):
            await asyncio.gather(*(world.append(leader, b"x", topic=topic) for _ in range(10)))
        for topic in "abc":
            for index in (0, 19):
                await world.agree(1, 2, 3, topic=topic, index=index)
        assert len(world.nodes[1].fetchers._fetchers) == 2

    Replicas().run(main)


def test_a_large_answer_and_a_batch_above_every_limit_arrive_whole() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for _ in range(5):
            await world.append(1, bytes(300_000))
        await world.agree(1, 2)

    Replicas(2, replica_fetch_max_bytes="1000", replica_fetch_response_max_bytes="2000").run(main)


def test_a_follower_that_catches_up_with_much_keeps_up_with_the_rest() -> None:
    """What is behind fills every answer, and what is in sync is still in it, in batches of any size."""

    async def main(world: Replicas) -> None:
        for topic in "abc":
            world.create(1, 2, topic=topic)
        world.create(1, 2)
        world.kill(2)
        for topic in "abc":
            for _ in range(200):
                await world.append(1, bytes(900), acks=1, topic=topic)
        await world.start(2)
        await world.until(lambda: world.isr() == (1, 2))
        for size in (10, 5000) * 5:
            await world.append(1, bytes(size))
        assert all(world.isr(topic) == (1,) for topic in "abc")
        for topic in "abc":
            await world.agree(1, 2, topic=topic)

    Replicas(2, replica_fetch_max_bytes="1000", replica_fetch_response_max_bytes="3000").run(main)


def test_a_follower_keeps_producers_as_the_leader_does() -> None:
    """The next leader refuses a duplicate as this one would."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        records = batch_of(b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=0)
        fields = {"transactional_id": None, "acks": -1, "timeout": 10_000}
        topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
        first = await world.ask(1, Api.PRODUCE, 9, **fields, topic_data=[topic])
        await world.agree(1, 2)
        assert log_of(world, 2).producer_table.entries.keys() == {7}
        world.kill(1)
        again = await world.ask(2, Api.PRODUCE, 9, **fields, topic_data=[topic])
        for response in (first, again):
            answer = response.responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        assert log_of(world, 2).log_end_offset == 2

    Replicas(2).run(main)


def test_a_follower_that_knows_of_a_new_epoch_first_waits_for_its_leader() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.hold(1)
        world.change(leader=1)
        await asyncio.sleep(2)
        world.let_go(1)
        await world.append(1, b"a")
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_what_was_asked_in_an_earlier_epoch_is_not_appended_in_the_next() -> None:
    """The same leader again, and the log ends where it did: only the epoch says that another may have led."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="other")
        await world.append(1, b"a")
        await world.agree(1, 2)
        node = world.nodes[2]
        (fetcher,) = node.fetchers._fetchers.values()
        before = node.fetchers._positions[node.partition()]
        asked = before.item(1000)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"stale", acks=1)
        part = log_of(world, 1).read(1, 1000, bound=2, min_one=True)
        world.change(leader=1)
        position = node.fetchers._positions[node.partition()]
        answer = FetchedPartition(*position.key, 0, 2, 0, None, memoryview(part.read()))
        assert (position.key, position.item(1000).offset) == (before.key, asked.offset)
        await node.run(fetcher._take_all({position.key: asked}, [answer]))
        assert (log_of(world, 2).log_end_offset, log_of(world, 2).high_watermark) == (1, 1)
        await node.run(fetcher._take_all({position.key: position.item(1000)}, [answer]))
        assert log_of(world, 2).log_end_offset == 2

    Replicas(2).run(main)


@pytest.mark.parametrize(("operation", "skip"), [("open", 0), ("open", 1), ("create", 0), ("rename", 0)])
def test_a_follower_without_a_descriptor_goes_on_when_there_is_one_again(operation: str, skip: int) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, segment_bytes=str(1 << 20))
        await world.append(1, b"a")
        await world.agree(1, 2)
        log_of(world, 2).release_files()
        disk = world.nodes[2].disk
        disk.fail(operation, errno.EMFILE, path_part="t-0", skip=skip, times=2)
        for _ in range(4):
            await world.append(1, b"b" * 900_000)
        assert not disk.armed
        await world.agree(1, 2)
        assert world.isr() == (1, 2)

    Replicas(2).run(main)


def test_a_cut_that_finds_no_descriptor_is_made_when_there_is_one_again() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"common")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"lost", acks=1)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"kept", acks=1)
        log_of(world, 1).release_files()
        disk = world.nodes[1].disk
        disk.fail("open", errno.EMFILE, path_part="t-0", times=2)
        world.fabric.heal()
        await world.agree(1, 2)
        assert not disk.armed
        assert world.nodes[1].values() == [b"common", b"kept"]

    Replicas(2).run(main)


def test_a_log_past_the_end_of_its_leaders_is_cut_when_there_is_a_descriptor_again() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for _ in range(3):
            await world.append(1, b"a")
        await world.agree(1, 2)
        fetchers, disk = world.nodes[2].fetchers, world.nodes[2].disk
        (position,), (fetcher,) = fetchers._positions.values(), fetchers._fetchers.values()

        async def two(*_: Any) -> dict[Any, int]:
            return {position.key: 2}

        fetcher._list_offsets = two  # type: ignore[method-assign,assignment]
        log_of(world, 2).release_files()
        disk.fail("open", errno.EMFILE, path_part="t-0", times=2)
        position.needs_reset = True
        await world.until(lambda: not position.needs_reset)
        assert not disk.armed
        await world.append(1, b"b")
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_a_damaged_batch_is_not_appended_and_holds_up_no_other_partition() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="u")
        await world.append(1, b"a")
        await world.agree(1, 2)
        await world.append(1, b"u", topic="u")
        world.fabric.cut("node1", "node2")
        await world.append(1, b"b", acks=1)
        held = log_of(world, 1)
        part = held.read(1, 1000, bound=2, min_one=True)
        whole = part.read()
        part.file.pwrite(b"\xff", part.position + part.size - 1)
        world.fabric.reset_some(1.0)
        world.fabric.heal()
        await world.append(1, b"v", topic="u")
        await asyncio.sleep(3)
        assert log_of(world, 2).log_end_offset == 1
        part.file.pwrite(whole[-1:], part.position + part.size - 1)
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_lost_connections_and_sessions_cost_nothing_but_time() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(30):
            await world.append(1, b"%d" % at)
            if at % 7 == 3:
                world.fabric.reset_some(0.7)
        await world.agree(1, 2, 3)
        assert world.nodes[2].values() == [b"%d" % at for at in range(30)]

    Replicas(max_incremental_fetch_session_cache_slots="1").run(main)


def test_a_follower_asks_in_the_way_that_its_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    waits, timeouts, of_one = set[int](), set[float](), set[int]()
    encode, ask = fetcher.encode_replica_fetch, Channel.ask_frame

    def encoded(*args: Any, **fields: Any) -> bytes:
        asked.append((fields["min_bytes"], fields["max_bytes"]))
        waits.add(fields["max_wait_ms"])
        of_one.update(item.max_bytes for item in fields["items"])
        return encode(*args, **fields)

    async def answered(channel: Channel, frame: bytes, *, timeout_s: float) -> memoryview:
        timeouts.add(timeout_s)
        return await ask(channel, frame, timeout_s=timeout_s)

    monkeypatch.setattr(fetcher, "encode_replica_fetch", encoded)
    monkeypatch.setattr(Channel, "ask_frame", answered)

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"x")
        await world.agree(1, 2)
        assert set(asked) == {(3, 5_000)}
        assert (timeouts, of_one) == ({7.0}, {4_000})
        assert 200 in waits
        (follower,) = world.nodes[2].fetchers._fetchers.values()
        assert follower._backoff_s() == 0.25

    settings = {
        "replica.fetch.backoff.ms": "250",
        "replica.fetch.max.bytes": "4000",
        "replica.fetch.min.bytes": "3",
        "replica.fetch.response.max.bytes": "5000",
        "replica.fetch.wait.max.ms": "200",
        "replica.socket.timeout.ms": "7000",
    }
    Replicas(2, **{name.replace(".", "_"): text for name, text in settings.items()}).run(main)
