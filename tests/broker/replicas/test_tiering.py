"""The tier of whole brokers: what is copied, who hears of it, what goes, who settles what another began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.config.values import ResourceType
from broker.control.metadata_records import ConfigChanged
from broker.replicas.tiering import Tiering
from protocol.errors import ErrorCode, KafkaError
from protocol.records import build_batch
from remote.cold.claim import LATE_UPLOAD_S
from remote.cold.segments import RemoteSegment, TieredPartition
from remote.keys import parse_tier_key
from tests.broker.replication_driver import START_MS, Replicas, log_of

METADATA = "__remote_log_metadata"
RECORD = 100


def world_of(count: int = 3, **properties: str) -> Replicas:
    return Replicas(
        count,
        remote_log_manager_task_interval_ms="1000",
        **{
            "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
            "rlmm.config.remote.log.metadata.topic.replication.factor": str(count),
            **properties,
        },
    )


def run(main: Callable[[Replicas], Awaitable[None]], world: Replicas | None = None) -> None:
    (world or world_of()).run(main)


def make(world: Replicas, *replicas: int, topic: str = "t", partitions: int = 1, **configs: str) -> None:
    """The metadata topic on all nodes, led by the first, and a tiered topic with small segments."""
    nodes = tuple(world.nodes)
    if METADATA not in world.controller.image.topics:
        make_metadata(world, *nodes)
    tiered = {
        "remote_storage_enable": "true",
        "segment_ms": "350",
        "local_retention_bytes": "1",
        "retention_ms": "-1",
        "local_retention_ms": "-1",
        "file_delete_delay_ms": "0",
    }
    world.create(*(replicas or nodes), topic=topic, partitions=partitions, **{**tiered, **configs})


def make_metadata(world: Replicas, *nodes: int, **configs: str) -> None:
    world.create(*nodes, topic=METADATA, partitions=2, cleanup_policy="compact", **configs)


def configure(world: Replicas, topic: str = "t", **configs: str | None) -> None:
    for name, value in configs.items():
        world.controller.publish(
            ConfigChanged(
                resource_type=ResourceType.TOPIC,
                resource_name=topic,
                name=name.replace("_", "."),
                value=value,
            )
        )


async def fill(world: Replicas, node_id: int, count: int = 20, topic: str = "t") -> None:
    """Records whose times are a tenth of a second apart, so that four fill a segment."""
    node = world.nodes[node_id]
    for _ in range(count):
        end = node.partition(topic=topic).log.log_end_offset
        batch = build_batch([(None, b"%d" % end * RECORD, (), START_MS + 100 * end)])
        await node.run(node.replicas.append(topic, 0, bytearray(batch), timeout_ms=30_000, origin="client"))


def tiering(world: Replicas, node_id: int) -> Tiering:
    found = world.nodes[node_id].components.tiering
    assert found is not None
    return found


def key_of(topic: str = "t") -> TieredPartition:
    return TieredPartition(Replicas.id_of(topic), 0)


def copies(world: Replicas, node_id: int, topic: str = "t") -> list[RemoteSegment]:
    fold = tiering(world, node_id).metadata.fold(key_of(topic))
    return [] if fold is None else list(fold.finished())


def closed_end(world: Replicas, node_id: int, topic: str = "t") -> int:
    """Where the active segment begins."""
    return int(log_of(world, node_id, topic).segments[-1].base_offset)


async def all_copied(world: Replicas, *node_ids: int, topic: str = "t") -> None:
    """Until each of them knows that everything closed is in the tier."""

    def ends() -> set[int]:
        return {log_of(world, each, topic).tiered_end for each in node_ids}

    await world.until(lambda: ends() == {closed_end(world, node_ids[0], topic)})


async def expire_locally(world: Replicas, *node_ids: int, topic: str = "t") -> None:
    """Apply retention; the first segment goes once the disk knows the log start."""
    for _ in range(3):
        for node_id in node_ids:
            node = world.nodes[node_id]
            while node.here(log_of(world, node_id, topic).expire, world.now_ms()):
                pass
        await asyncio.sleep(0.05)


def objects(world: Replicas, suffix: str = "") -> list[str]:
    return sorted(key for key in world.store.objects if key.startswith("tier/") and key.endswith(suffix))


def clean(world: Replicas, node_id: int, topic: str = "t") -> bool:
    """Whether the bucket has the objects of all finished copies, and no others."""
    fold = tiering(world, node_id).metadata.fold(key_of(topic))
    if fold is None:
        return not objects(world)
    wanted = {str(segment.id) for segment in fold.finished()}
    return not fold.unfinished_count and not fold.deleting_count and len(objects(world)) == 2 * len(wanted)


def test_what_is_closed_is_copied_and_every_replica_hears_how_far() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        assert closed_end(world, 1) > 0
        assert len(objects(world, ".log")) == len(objects(world, ".idx")) == len(copies(world, 1))
        assert copies(world, 1) == copies(world, 2) == copies(world, 3)

    run(main)


@pytest.mark.requirement("1241-11")
def test_only_what_is_copied_leaves_the_disk() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        world.store.is_away = True
        await fill(world, 1)
        await expire_locally(world, 1, 2, 3)
        assert all(log_of(world, each).local_log_start_offset == 0 for each in (1, 2, 3))
        world.store.is_away = False
        await all_copied(world, 1, 2, 3)
        await expire_locally(world, 1, 2, 3)
        for each in (1, 2, 3):
            log = log_of(world, each)
            assert log.log_start_offset == 0 < log.local_log_start_offset <= log.tiered_end

    run(main)


def test_without_a_metadata_topic_nothing_is_copied_and_nothing_goes() -> None:
    async def refuse(name: str) -> None:
        raise KafkaError(ErrorCode.invalid_replication_factor)

    async def main(world: Replicas) -> None:
        for node in world.nodes.values():
            node.member.ensure_internal = refuse  # type: ignore[method-assign]
        world.create(1, 2, 3, remote_storage_enable="true", segment_ms="350", local_retention_bytes="1")
        await fill(world, 1)
        await asyncio.sleep(60)
        await expire_locally(world, 1, 2, 3)
        assert log_of(world, 1).local_log_start_offset == 0
        assert objects(world) == []
        make_metadata(world, 1, 2, 3)
        await all_copied(world, 1, 2, 3)

    run(main)


def test_a_new_leader_settles_the_copy_that_the_old_one_began() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        world.store.hangs_at = ".log"
        await fill(world, 1)
        await world.until(lambda: objects(world, ".idx"))
        world.kill(1)
        world.store.hangs_at = None
        world.change(leader=2, isr=(2, 3))
        await fill(world, 2, 5)
        await all_copied(world, 2, 3)
        await world.until(lambda: clean(world, 2), timeout_s=4 * LATE_UPLOAD_S)
        assert {segment.broker_id for segment in copies(world, 2)} == {2}

    run(main)


def test_a_leader_that_was_deposed_finishes_nothing() -> None:
    async def main(world: Replicas) -> None:
        make_metadata(world, 3, 1, 2)
        make(world)
        world.store.hangs_at = ".log"
        await fill(world, 1)
        await world.until(lambda: objects(world, ".idx"))
        world.hold(1)
        world.change(leader=2)
        world.store.hangs_at = None
        await all_copied(world, 2, 3)
        await world.until(lambda: clean(world, 2), timeout_s=4 * LATE_UPLOAD_S)
        assert {segment.broker_id for segment in copies(world, 2)} == {2}
        world.let_go(1)
        await all_copied(world, 1, 2, 3)

    run(main)


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
def test_copies_outlive_a_power_cut_where_their_records_are_synced(replicas: tuple[int, ...]) -> None:
    """Records of one replica are; those of several where the topic is set so."""

    async def main(world: Replicas) -> None:
        make_metadata(world, *replicas, **({} if len(replicas) == 1 else {"flush_messages": "1"}))
        make(world, 1)
        await fill(world, 1)
        await all_copied(world, 1)
        known = copies(world, 1)
        for node_id in (1, 2, 3):
            world.kill(node_id, is_noticed=False)
            world.nodes[node_id].disk.power_cut("nothing")
        for node_id in (3, 2, 1):
            await world.start(node_id)
        await world.until(lambda: copies(world, 1) == known, timeout_s=100)
        assert len(known) > 2

    run(main)


def test_a_store_that_is_away_costs_nothing_but_time() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        world.store.is_away = True
        await fill(world, 1)
        await asyncio.sleep(120)
        assert not copies(world, 1)
        world.store.is_away = False
        await all_copied(world, 1, 2, 3)
        await world.until(lambda: clean(world, 1), timeout_s=4 * LATE_UPLOAD_S)

    run(main)


def test_retention_takes_the_oldest_copies_and_every_replica_follows() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        await expire_locally(world, 1, 2, 3)
        before = len(copies(world, 1))
        configure(world, retention_bytes="1500")
        await world.until(lambda: log_of(world, 1).log_start_offset == copies(world, 1)[0].base_offset > 0)
        await world.until(lambda: clean(world, 1), timeout_s=4 * LATE_UPLOAD_S)
        start = log_of(world, 1).log_start_offset
        assert start == copies(world, 1)[0].base_offset
        assert 0 < len(copies(world, 1)) < before
        await world.until(lambda: all(log_of(world, each).log_start_offset == start for each in (2, 3)))

    run(main)


def test_what_a_deleted_topic_left_is_cleared() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        world.delete()
        await world.until(lambda: not objects(world), timeout_s=600)

    run(main)


def test_a_topic_that_is_tiered_no_more_leaves_nothing_there() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        await expire_locally(world, 1, 2, 3)
        configure(world, remote_storage_enable="false", remote_log_delete_on_disable="true")
        await world.until(lambda: clean(world, 1) and not objects(world), timeout_s=4 * LATE_UPLOAD_S)
        log = log_of(world, 1)
        assert log.log_start_offset == log.local_log_start_offset > 0
        await fill(world, 1)
        assert not objects(world)
        configure(world, remote_storage_enable="true", remote_log_delete_on_disable=None)
        await all_copied(world, 1, 2, 3)

    run(main)


def test_a_follower_that_had_more_in_the_tier_alone_than_its_leader_says_so() -> None:
    """With the tier gone, its log begins with its files: it might lead one day."""

    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        await expire_locally(world, 2)
        assert log_of(world, 1).local_log_start_offset == 0
        configure(world, remote_storage_enable="false", remote_log_delete_on_disable="true")
        await world.until(lambda: clean(world, 1) and not objects(world), timeout_s=4 * LATE_UPLOAD_S)
        follower = log_of(world, 2)
        assert follower.log_start_offset == follower.local_log_start_offset > 0
        assert log_of(world, 1).log_start_offset == 0

    run(main)


def test_copies_may_be_off_while_what_is_there_stays() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        kept = copies(world, 1)
        configure(world, remote_log_copy_disable="true", local_retention_bytes="-2")
        await fill(world, 1)
        await asyncio.sleep(30)
        assert copies(world, 1) == kept
        configure(world, remote_log_copy_disable="false")
        await all_copied(world, 1, 2, 3)

    run(main)


def test_a_broker_that_starts_again_copies_on_and_clears_what_it_left() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        world.store.hangs_at = ".log"
        await fill(world, 1)
        await world.until(lambda: objects(world, ".idx"))
        world.kill(1)
        world.store.hangs_at = None
        await world.start(1)
        await world.until(lambda: world.nodes[1].partition().is_leader)
        await fill(world, 1, 3)
        await all_copied(world, 1)
        await world.until(lambda: clean(world, 1), timeout_s=4 * LATE_UPLOAD_S)

    run(main, world_of(1))


def test_segments_that_are_closed_in_one_turn_wait_for_no_further_record() -> None:
    async def main(world: Replicas) -> None:
        make_metadata(world, 1)
        make(world, 1, segment_ms="10000000")
        await fill(world, 1, 2)
        await asyncio.sleep(5)
        partition, replicas = world.nodes[1].partition(), world.nodes[1].replicas
        log = partition.log

        async def close_two() -> None:
            log.roll(log.log_end_offset, START_MS)
            batch = build_batch([(None, b"more", (), START_MS)])
            log.append_records(
                bytearray(batch), leader_epoch=partition.leader_epoch, now_ms=START_MS, origin="client"
            )
            replicas.touch(partition)
            replicas.flush()
            log.roll(log.log_end_offset, START_MS)

        await world.nodes[1].run(close_two())
        await world.until(lambda: len(copies(world, 1)) == 2)
        assert partition.commit_waits == 0

    run(main, world_of(1))


def test_an_unclean_leader_copies_its_own_lineage() -> None:
    async def main(world: Replicas) -> None:
        make(world, 1, 2, min_insync_replicas="1")
        await fill(world, 1, 6)
        await all_copied(world, 1, 2)
        world.kill(2)
        await world.until(lambda: world.isr() == (1,))
        await fill(world, 1, 10)
        await all_copied(world, 1)
        world.kill(1)
        await world.start(2)
        log_of(world, 2).may_lack_end = False  # as after a clean stop
        world.change(leader=2, isr=(2,), unclean=True)
        await fill(world, 2, 12)
        await all_copied(world, 2)
        await world.until(lambda: clean(world, 2), timeout_s=4 * LATE_UPLOAD_S)
        epochs = log_of(world, 2).epochs
        for segment in copies(world, 2):
            for epoch, start in segment.epochs:
                assert epochs.epoch_for(start) == epoch

    run(main, world_of(3))


def test_a_damaged_local_segment_stops_the_copies_until_somebody_gives_it_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Replicas) -> None:
        make(world, 1, remote_log_copy_disable="true", local_retention_bytes="-2")
        await fill(world, 1)
        held = log_of(world, 1)
        damaged, sound = held.segments[1:3]
        node = world.nodes[1]
        node.here(damaged.file.pwrite, b"\1", 16)  # the magic of the first batch
        configure(world, remote_log_copy_disable="false")
        await world.until(lambda: tiering(world, 1).damaged_count == 1)
        await asyncio.sleep(60)
        assert held.tiered_end == damaged.base_offset
        said = [each.message for each in caplog.records if "is damaged" in each.message]
        assert len(said) == 1
        assert "DeleteRecords past that segment" in said[0]
        node.here(held.advance_log_start, sound.base_offset)
        await all_copied(world, 1)
        assert tiering(world, 1).damaged_count == 0

    run(main, world_of(3))


def limit(world: Replicas, **properties: str) -> None:
    """Change what all brokers are told."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    for node in world.nodes.values():
        node.member.broker_config = node.member.config.with_dynamic(default=named, broker={})


@pytest.mark.requirement("956-11")
def test_partitions_take_turns_segment_by_segment() -> None:
    async def main(world: Replicas) -> None:
        make_metadata(world, 1)
        make(world, topic="busy", remote_log_copy_disable="true", local_retention_bytes="-2")
        make(world, topic="quiet", remote_log_copy_disable="true", local_retention_bytes="-2")
        await fill(world, 1, 40, topic="busy")
        await fill(world, 1, 12, topic="quiet")
        for topic in ("busy", "quiet"):
            configure(world, topic, remote_log_copy_disable="false")
        await all_copied(world, 1, topic="busy")
        copied = [parse_tier_key(key) for key in world.store.objects if key.endswith(".idx")]
        topics = [key.topic_id for key in copied if key is not None]
        quiet = [at for at, topic_id in enumerate(topics) if topic_id == Replicas.id_of("quiet")]
        assert len(quiet) == 2
        assert quiet[-1] <= 4

    run(main, world_of(1, remote_log_manager_copier_thread_pool_size="1"))


@pytest.mark.requirement("956-12")
def test_a_quota_on_copies_does_not_hold_up_deletions() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        make(world, topic="other")
        await fill(world, 1, topic="other")
        await all_copied(world, 1, topic="other")
        limit(world, remote_log_manager_copy_max_bytes_per_second="1")
        await fill(world, 1)
        await asyncio.sleep(10)
        assert tiering(world, 1).copier.under_way
        before = len(copies(world, 1, "other"))
        configure(world, "other", retention_bytes="1")
        await world.until(lambda: len(copies(world, 1, "other")) < before, timeout_s=2 * LATE_UPLOAD_S)
        assert not copies(world, 1)
        limit(world)
        await all_copied(world, 1)

    run(main, world_of(1))


def test_partitions_are_one_task_and_few_workers() -> None:
    async def main(world: Replicas) -> None:
        make(world, 1, topic="many", partitions=60)
        await asyncio.sleep(5.5)
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert sum(name.startswith("Tiering.") for name in names) == 1
        assert sum(name.startswith("WorkerGroup.") for name in names) == 0

    run(main, world_of(1))


@pytest.mark.parametrize("what", ["stop", "kill"])
def test_a_stop_amid_a_copy_leaves_no_task(what: str) -> None:
    async def main(world: Replicas) -> None:
        make(world)
        world.store.hangs_at = ".log"
        await fill(world, 1)
        await world.until(lambda: objects(world, ".idx"))
        tier = tiering(world, 1)
        if what == "stop":
            await world.nodes[1].run(tier.stop())
            assert not tier.copier.under_way
        else:
            world.kill(1)

    run(main)


LOCAL_BYTES = 2_000
MOST_DELAY = {"remote_copy_lag_ms": "-1", "remote_copy_lag_bytes": "-1"}


async def settled(world: Replicas) -> None:
    """Until nothing is due, and what is copied and beyond local retention has left the disk."""
    ((_, tenure),) = tiering(world, 1).led()
    await world.until(lambda: not tiering(world, 1).copier.due(tenure))
    await expire_locally(world, 1)


@pytest.mark.requirement("1241-13", "1241-15")
@pytest.mark.parametrize("lag", [{}, MOST_DELAY], ids=["no lag", "all of local retention"])
@pytest.mark.parametrize("records", [4, 80])
def test_an_outage_costs_room_on_the_disk_and_gives_it_back(lag: dict[str, str], records: int) -> None:
    async def main(world: Replicas) -> None:
        make(world, 1, local_retention_bytes=str(LOCAL_BYTES), **lag)
        await fill(world, 1, 40)
        await settled(world)
        log = log_of(world, 1)
        before, end, closed = log.size, log.log_end_offset, log.tiered_end
        assert 0 < log.local_log_start_offset <= closed
        world.store.is_away = True
        await fill(world, 1, records)
        await asyncio.sleep(120)
        await expire_locally(world, 1)
        assert log.local_log_start_offset <= log.tiered_end == closed, "what is not copied stays"
        assert log.log_start_offset == 0
        assert log.size <= before + log.size_from(end)
        if records > 40:
            assert log.size > 2 * before
        world.store.is_away = False
        await settled(world)
        assert log.size <= before + max(segment.size for segment in log.segments)
        assert log.log_start_offset == 0 == copies(world, 1)[0].base_offset
        assert log.tiered_end > closed or records < 8

    run(main, world_of(1))


@pytest.mark.requirement("1241-16")
def test_with_the_most_delay_and_no_more_retention_than_local_segments_are_copied_and_then_go() -> None:
    async def main(world: Replicas) -> None:
        make(world, 1, retention_bytes=str(LOCAL_BYTES), local_retention_bytes="-2", **MOST_DELAY)
        await fill(world, 1, 40)
        await settled(world)
        log = log_of(world, 1)
        await world.until(lambda: log.log_start_offset > 0)
        await world.until(lambda: clean(world, 1), timeout_s=4 * LATE_UPLOAD_S)
        await expire_locally(world, 1)
        assert tiering(world, 1).copier.copied > 0
        assert tiering(world, 1).removal.deleted > 0
        assert log.local_log_start_offset >= log.log_start_offset
        assert LOCAL_BYTES <= log.size <= LOCAL_BYTES + 2 * max(segment.size for segment in log.segments)

    run(main, world_of(1))
