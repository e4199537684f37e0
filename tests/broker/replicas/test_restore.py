"""Replicas that begin where the tier ends (KIP-1023), or have nothing but the tier."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Any

import pytest

from broker.replicas.leader_questions import AskedLeader
from broker.replicas.restore import OffsetAndEpoch
from protocol.apis import Api
from protocol.errors import ErrorCode
from remote.cold.fold import TierFold
from remote.cold.segments import TieredPartition
from remote.cold.storage_manager import IndexKind
from storage.log import TieredOffset
from tests.broker.raw_client import batch_of
from tests.broker.replicas import test_tiering as own
from tests.broker.replicas.tier_driver import Storage, Tier
from tests.broker.replication_driver import Replicas, log_of
from tests.sim.disk import Disk, SimFiles

ON = {"follower_fetch_last_tiered_offset_enable": "true"}
BACKOFF_MS = 100


def tiered(count: int = 2, **properties: str) -> tuple[Replicas, Tier]:
    world = Replicas(count, remote_log_storage_system_enable="false", **properties)
    return world, Tier(world)


async def fill(world: Replicas, tier: Tier, node_id: int, segments: int, per_segment: int = 3) -> None:
    """Closed segments of single records; the active one is empty."""
    for _ in range(segments):
        for _ in range(per_segment):
            await world.append(node_id, b"%d" % log_of(world, node_id).log_end_offset)
        tier.roll(node_id)


def create(world: Replicas, *replicas: int, **configs: str) -> None:
    world.create(*replicas, remote_storage_enable="true", **configs)


def join(world: Replicas, *replicas: int) -> None:
    world.change(replicas=replicas)


async def delete_records(world: Replicas, node_id: int, offset: int) -> None:
    """Below `offset`, and from the disk as well."""
    held, node = log_of(world, node_id), world.nodes[node_id]
    node.here(held.advance_log_start, offset)
    await world.until(lambda: held.log_start_offset >= offset)
    node.here(held.expire, world.now_ms())


def bounds(world: Replicas, node_id: int) -> tuple[int, int, int]:
    held = log_of(world, node_id)
    return held.log_start_offset, held.local_log_start_offset, held.log_end_offset


async def agree(world: Replicas, *node_ids: int) -> None:
    """Until these logs end alike and everything in them is committed; they may begin differently."""
    logs = [log_of(world, node_id) for node_id in node_ids]
    await world.until(lambda: len({n for log in logs for n in (log.log_end_offset, log.high_watermark)}) == 1)
    start = max(log.local_log_start_offset for log in logs)
    first, *others = (batches(log, start) for log in logs)
    assert all(other == first for other in others)


def batches(held: Any, offset: int) -> bytes:
    found = b""
    while offset < held.log_end_offset:
        part = held.read(offset, 1 << 20, bound=held.log_end_offset, min_one=True)
        found += part.read()
        offset = part.next_offset
    return found


def epochs(world: Replicas, node_id: int) -> list[tuple[int, int]]:
    held = log_of(world, node_id)
    return [entry for entry in held.epochs.entries() if entry[1] < held.log_end_offset]


# --- where a follower begins ---


@pytest.mark.requirement("1023-07", "1023-09", "1023-16")
def test_the_example_of_the_proposal() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        for epoch, records in ((0, 3), (1, 2), (2, 2), (3, 1)):
            if epoch:
                world.change(leader=1)
            for _ in range(records):
                await world.append(1, b"x")
                if log_of(world, 1).log_end_offset in (3, 6):
                    tier.roll(1)
        await tier.copy(1)
        held = log_of(world, 1)
        held.set_config(world.nodes[1].member.log_config("t"))
        assert held.tiered_end == 6
        await free_below(tier, 1, 3)
        assert bounds(world, 1) == (0, 3, 8)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 6, 8)
        assert epochs(world, 2) == epochs(world, 1) == [(0, 0), (1, 3), (2, 5), (3, 7)]
        assert [base for base, _ in tier.storage.read] == [3, 3]

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-21")
def test_a_follower_asks_for_the_pending_offset_and_counts_nothing_on_from_the_last_tiered_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its epoch comes with it; the offset after the last tiered one may be of another, or of none."""
    asked: list[int] = []
    ask = AskedLeader.offset

    async def offset(self: AskedLeader, timestamp: int) -> OffsetAndEpoch:
        asked.append(timestamp)
        return await ask(self, timestamp)

    monkeypatch.setattr(AskedLeader, "offset", offset)

    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        world.change(leader=1)
        await world.append(1, b"of the next epoch")
        await tier.copy(1)
        await tier.free(1)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 9, 10)
        assert epochs(world, 2) == epochs(world, 1) == [(0, 0), (1, 9)]
        assert asked == [-1, -2, -6]

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-17")
def test_a_replica_with_little_on_its_disk_leads_like_any_other() -> None:
    """Nobody is passed over for it, as in Kafka: what it does not have is read from the tier."""

    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 4)
        await tier.copy(1)
        await world.append(1, b"last")
        await tier.free(1)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 12, 13)
        world.kill(1)
        world.change(leader=2, isr=(2,))
        await world.until(lambda: world.nodes[2].partition().is_leader)
        await world.append(2, b"more")
        assert bounds(world, 2) == (0, 12, 14)
        with pytest.raises(TieredOffset):
            log_of(world, 2).read(0, 1 << 20, bound=14, min_one=True)

    world, tier = tiered(**ON)
    world.run(main)


async def free_below(tier: Tier, node_id: int, offset: int) -> None:
    """Delete locally what is tiered below `offset`."""
    held = tier.log(node_id)
    tiered_end, held.tiered_end = held.tiered_end, offset
    await tier.free(node_id)
    held.tiered_end = tiered_end


@pytest.mark.requirement("1023-01", "1023-06", "1023-08")
def test_without_the_flag_a_follower_begins_where_the_leaders_local_log_does() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 4)
        await world.append(1, b"last")
        await tier.copy(1)
        await free_below(tier, 1, 6)
        assert bounds(world, 1) == (0, 6, 13)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 6, 13)
        assert epochs(world, 2) == [(0, 0)]

    world, tier = tiered()
    world.run(main)


@pytest.mark.requirement("1023-04", "1023-15")
def test_a_leader_that_still_has_everything_is_copied_from_the_start() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 0, 9)
        assert tier.storage.read == []

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-08", "1023-14")
def test_a_follower_that_has_records_begins_where_the_leaders_local_log_does() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2)
        await fill(world, tier, 1, 1)
        await world.agree(1, 2)
        world.kill(2)
        await world.until(lambda: world.isr() == (1,))
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await free_below(tier, 1, 6)
        await world.start(2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 6, 12)

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-09", "1023-13")
def test_a_follower_begins_also_at_the_end_of_a_log_that_is_in_the_tier_whole() -> None:
    """Kafka answers -1 there, and its follower waits for somebody to produce."""

    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        assert bounds(world, 1) == (0, 9, 9)
        join(world, 1, 2)
        await world.until(lambda: world.isr() == (1, 2))
        assert bounds(world, 2) == (0, 9, 9)
        assert log_of(world, 2).high_watermark == 9
        await world.append(1, b"more")
        await agree(world, 1, 2)

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-05", "1023-07", "1023-14")
def test_the_gate_is_asked_also_below_the_leaders_log_start() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 4)
        await tier.copy(1, end=9)
        await free_below(tier, 1, 6)
        await delete_records(world, 1, 4)
        assert bounds(world, 1) == (4, 6, 12)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (4, 9, 12)
        assert epochs(world, 2) == [(0, 4)]

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-05", "1023-08")
def test_below_the_log_start_without_the_flag() -> None:
    """First to the leader's log start, and from there by the old rule."""

    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 4)
        await tier.copy(1, end=9)
        await free_below(tier, 1, 6)
        await delete_records(world, 1, 4)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (4, 6, 12)

    world, tier = tiered()
    world.run(main)


@pytest.mark.requirement("1023-10", "1023-12", "1023-13")
def test_nothing_is_uploaded_and_the_log_starts_late() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        held = log_of(world, 1)
        await delete_records(world, 1, 6)
        assert held.tiered_end == 0
        assert bounds(world, 1) == (6, 6, 9)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (6, 6, 9)
        assert tier.storage.read == []

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-11")
def test_a_leader_that_does_not_know_its_tier_yet_is_asked_again() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 4)
        await tier.copy(1, end=9)
        await free_below(tier, 1, 6)
        log_of(world, 1).tiered_end = 0
        join(world, 1, 2)
        await asyncio.sleep(5)
        assert bounds(world, 2) == (0, 0, 0)
        assert log_of(world, 2).log_end_offset == 0
        tier.tell(1)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 9, 12)
        assert world.nodes[2].partition().stats.failed_aux_state_builds > 1

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-20")
@pytest.mark.parametrize("log_start", [0, 10])
@pytest.mark.parametrize("local", ["kept", "in part", "gone"])
@pytest.mark.parametrize("flag", ["true", "false"])
@pytest.mark.parametrize("is_tiered", [True, False])
def test_the_matrix_of_the_proposal(log_start: int, local: str, flag: str, *, is_tiered: bool) -> None:
    """200 records, of which 150 are in the tier and the log start may be 10."""

    async def main(world: Replicas) -> None:
        world.create(1, remote_storage_enable="true" if is_tiered else "false")
        for _ in range(20):
            await world.append(1, *[b"x"] * 10)
            tier.roll(1)
        local_start = log_start
        if is_tiered:
            await tier.copy(1, end=150)
            local_start = {"kept": log_start, "in part": 100, "gone": 150}[local]
            if local_start:
                await free_below(tier, 1, local_start)
        await delete_records(world, 1, log_start)
        assert bounds(world, 1) == (log_start, local_start, 200)
        join(world, 1, 2)
        await agree(world, 1, 2)
        jumps = is_tiered and flag == "true" and (local != "kept" or log_start > 0)
        assert bounds(world, 2) == (log_start, 150 if jumps else local_start, 200)

    world, tier = tiered(follower_fetch_last_tiered_offset_enable=flag)
    world.run(main)


@pytest.mark.requirement("1023-02", "1023-06")
def test_a_follower_below_the_local_start_is_told_so_with_the_log_start() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        await free_below(tier, 1, 3)
        world.kill(2)
        answer = await world.fetch(1, 1, replica_id=2)
        assert answer.error_code is ErrorCode.offset_moved_to_tiered_storage
        assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (6, -1, 0)

    world, tier = tiered()
    world.run(main)


# --- what it knows then ---


def test_producers_are_those_of_the_whole_log() -> None:
    """The next leader refuses a duplicate as this one would."""

    async def main(world: Replicas) -> None:
        create(world, 1)
        records = batch_of(b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=0)
        await produce(world, 1, records)
        tier.roll(1)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        await tier.free(1)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 8, 8)
        assert log_of(world, 2).producer_table.entries.keys() == {7}
        world.change(leader=2)
        again = await produce(world, 2, records)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
        assert log_of(world, 2).log_end_offset == 8

    world, tier = tiered(**ON)
    world.run(main)


async def produce(world: Replicas, node_id: int, records: Any) -> Any:
    topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    fields = {"transactional_id": None, "acks": 1, "timeout": 10_000, "topic_data": [topic]}
    answer = await world.ask(node_id, Api.PRODUCE, 9, **fields)
    return answer.responses[0].partition_responses[0]


def test_what_was_begun_at_the_tier_is_still_so_after_a_restart() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        join(world, 1, 2)
        await world.until(lambda: world.isr() == (1, 2))
        await world.append(1, b"more")
        await agree(world, 1, 2)
        for _ in range(2):
            world.kill(2)
            await world.start(2)
            assert bounds(world, 2) == (0, 9, 10)
            assert epochs(world, 2) == [(0, 0)]
        await agree(world, 1, 2)

    world, tier = tiered(**ON)
    world.run(main)


# --- what goes wrong on the way ---


@pytest.mark.requirement("1023-11")
def test_a_store_that_is_away_holds_up_no_other_partition() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        world.create(1, 2, topic="other")
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        tier.storage.hangs = True
        join(world, 1, 2)
        await world.until(lambda: tier.storage.read)
        for _ in range(20):
            await world.append(1, b"y", topic="other")
        tier.storage.hangs, tier.storage.is_away = False, True
        await world.until(lambda: len(tier.storage.read) > 3, timeout_s=200)
        for _ in range(20):
            await world.append(1, b"y", topic="other")
        assert bounds(world, 2) == (0, 0, 0)
        tier.storage.is_away = False
        await world.until(lambda: world.isr() == (1, 2))
        assert bounds(world, 2) == (0, 9, 9)
        assert not world.nodes[2].failures

    world, tier = tiered(**ON)
    world.run(main)


def test_the_pauses_between_attempts_grow() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        tier.storage.is_away = True
        join(world, 1, 2)
        await asyncio.sleep(600)
        assert len(tier.storage.read) < 80

    world, tier = tiered(**ON)
    world.run(main)


def test_a_broker_whose_view_of_the_tier_is_behind_waits_for_it() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        metadata = tier.metadata[2]
        metadata.known = TierFold()
        tier.is_metadata_away = True
        join(world, 1, 2)
        await asyncio.sleep(20)
        assert bounds(world, 2) == (0, 0, 0)
        tier.is_metadata_away = False
        await world.until(lambda: world.isr() == (1, 2))
        assert bounds(world, 2) == (0, 9, 9)
        assert metadata.waits

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.parametrize("kind", [IndexKind.LEADER_EPOCH, IndexKind.PRODUCER_SNAPSHOT])
def test_nothing_is_begun_with_an_index_that_is_damaged(kind: IndexKind) -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        whole = Storage.fetch_index

        async def damaged(self: Storage, segment: Any, asked: IndexKind) -> bytes:
            data = await whole(self, segment, asked)
            return data[: len(data) // 2] if asked is kind else data

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Storage, "fetch_index", damaged)
            join(world, 1, 2)
            await asyncio.sleep(5)
            assert bounds(world, 2) == (0, 0, 0)
        await world.until(lambda: world.isr() == (1, 2))
        assert bounds(world, 2) == (0, 9, 9)

    world, tier = tiered(**ON)
    world.run(main)


def test_the_leader_and_the_pending_offset_move_during_a_restore() -> None:
    """What was read for one leader is not put into the log for the next."""

    async def main(world: Replicas) -> None:
        create(world, 1, 3)
        await fill(world, tier, 1, 3)
        await world.agree(1, 3)
        await tier.copy(1)
        await tier.free(1)
        tier.tell(3)
        tier.roll(3)
        await tier.free(3)
        assert bounds(world, 3) == (0, 9, 9)
        tier.storage.hangs = True
        world.change(replicas=(1, 3, 2))
        await world.until(lambda: tier.storage.read)
        tier.storage.hangs = False
        world.change(leader=3)
        for _ in range(3):
            await world.append(3, b"z")
        tier.roll(3)
        await tier.copy(3)
        await tier.free(3)
        assert log_of(world, 3).local_log_start_offset == 12
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        assert bounds(world, 2) == (0, 12, 12)
        assert epochs(world, 2) == epochs(world, 3) == [(0, 0), (1, 9)]

    world, tier = tiered(3, **ON)
    world.run(main)


def test_what_moved_on_after_the_log_was_begun_is_begun_again_further_on() -> None:
    """A follower that has no record yet jumps again, not to the leader's local start."""

    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        join(world, 1, 2)
        await world.until(lambda: bounds(world, 2) == (0, 9, 9))
        world.kill(2)
        await world.until(lambda: world.isr() == (1,))
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await free_below(tier, 1, 12)
        await world.start(2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 18, 18)

    world, tier = tiered(**ON)
    world.run(main)


def test_a_follower_begins_inside_a_copy_that_goes_on_with_what_its_leader_never_had() -> None:
    """An unclean election cut the log there: the producers at that offset are in no snapshot."""

    async def main(world: Replicas) -> None:
        create(world, 1, 2)
        await produce(world, 1, sent_by(6))
        tier.roll(1)
        await produce(world, 1, sent_by(7))
        await world.agree(1, 2)
        world.kill(2)
        await world.until(lambda: world.isr() == (1,))
        await produce(world, 1, sent_by(8))
        tier.roll(1)
        await tier.copy(1)
        world.kill(1)
        await world.start(2)
        log_of(world, 2).may_lack_end = False  # as after a clean stop
        world.change(leader=2, isr=(2,), unclean=True)
        held = log_of(world, 2)
        tier.roll(2)
        tier.tell(2)
        await tier.free(2)
        assert (bounds(world, 2), held.tiered_end) == ((0, 4, 4), 4)
        world.change(replicas=(2, 3))
        await world.until(lambda: set(world.isr()) == {2, 3})
        assert bounds(world, 3) == (0, 4, 4)
        assert log_of(world, 3).producer_table.entries.keys() == {6, 7}
        assert log_of(world, 3).epochs.entries() == [(0, 0)]
        await world.append(2, b"next")
        await agree(world, 2, 3)
        assert epochs(world, 3) == epochs(world, 2)

    world, tier = tiered(3, **ON)
    world.run(main)


@pytest.mark.parametrize("is_local_gone", [True, False])
def test_a_follower_that_parts_below_its_local_start_begins_in_the_tier_again(*, is_local_gone: bool) -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2, 3)
        await produce(world, 1, sent_by(6))
        await world.append(1, b"a")
        tier.roll(1)
        await world.append(1, b"b")
        await world.agree(1, 2, 3)
        tier.roll(3)
        world.kill(3)
        await world.until(lambda: set(world.isr()) == {1, 2})
        await produce(world, 1, sent_by(7))
        tier.roll(1)
        await world.agree(1, 2)
        await tier.copy(1)
        tier.tell(2)
        tier.roll(2)
        await tier.free(2)
        assert bounds(world, 2) == (0, 6, 6)
        await world.append(1, b"c")
        await agree(world, 1, 2)
        world.kill(1)
        world.kill(2)
        await world.start(3)
        log_of(world, 3).may_lack_end = False  # as after a clean stop
        world.change(leader=3, isr=(3,), unclean=True)
        tier.tell(3)
        assert log_of(world, 3).tiered_end == 4
        if is_local_gone:
            await tier.free(3)
        local_start = log_of(world, 3).local_log_start_offset
        assert local_start == (4 if is_local_gone else 0)
        await world.append(3, b"d")
        await world.start(2)
        await world.until(lambda: set(world.isr()) == {2, 3})
        await agree(world, 2, 3)
        assert bounds(world, 2) == (0, local_start, 5)
        assert log_of(world, 2).producer_table.entries.keys() == {6}
        assert epochs(world, 2) == epochs(world, 3)

    world, tier = tiered(3)
    world.run(main)


def test_a_follower_that_parts_below_its_log_start_begins_anew_with_its_leaders_producers() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2, 3)
        await produce(world, 1, sent_by(6))
        await world.append(1, b"a")
        await world.agree(1, 2, 3)
        world.kill(3)
        await world.until(lambda: set(world.isr()) == {1, 2})
        await produce(world, 1, sent_by(7))
        tier.roll(1)
        tier.roll(2)
        await world.append(1, b"b")
        await world.agree(1, 2)
        for node_id in (1, 2):
            await delete_records(world, node_id, 5)
        assert bounds(world, 2) == (5, 5, 6)
        world.kill(1)
        world.kill(2)
        await world.start(3)
        log_of(world, 3).may_lack_end = False  # as after a clean stop
        world.change(leader=3, isr=(3,), unclean=True)
        await world.start(2)
        await world.until(lambda: set(world.isr()) == {2, 3})
        await agree(world, 2, 3)
        assert bounds(world, 2) == (0, 0, 3)
        assert log_of(world, 2).producer_table.entries.keys() == {6}

    world, tier = tiered(3)
    world.run(main)


def sent_by(producer_id: int) -> bytearray:
    return batch_of(b"x", b"y", producer_id=producer_id, producer_epoch=0, base_sequence=0)


def test_a_copy_that_goes_on_with_what_the_leader_never_had_is_passed_over_for_a_whole_one() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2)
        await world.append(1, b"a")
        await world.append(1, b"b")
        await world.agree(1, 2)
        world.kill(2)
        await world.until(lambda: world.isr() == (1,))
        await world.append(1, b"lost")
        tier.roll(1)
        await tier.copy(1)
        world.kill(1)
        await world.start(2)
        log_of(world, 2).may_lack_end = False  # as after a clean stop
        world.change(leader=2, isr=(2,), unclean=True)
        await world.append(2, b"c")
        tier.tell(2)
        held = log_of(world, 2)
        assert held.tiered_end == 2
        tier.roll(2)
        await tier.copy(2)
        assert held.tiered_end == 3
        await tier.free(2)
        world.change(replicas=(2, 3))
        await world.until(lambda: set(world.isr()) == {2, 3})
        assert bounds(world, 3) == (0, 3, 3)
        assert epochs(world, 3) == epochs(world, 2)

    world, tier = tiered(3, **ON)
    world.run(main)


# --- leading with nothing but the tier ---


def wipe(world: Replicas, node_id: int) -> None:
    node = world.nodes[node_id]
    node.disk = Disk(random.Random(99), world.now_ms, world.loop.trace)


@pytest.mark.requirement("1023-07")
def test_a_sole_replica_with_an_empty_disk_leads_from_the_end_of_the_tier() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        records = batch_of(b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=0)
        await produce(world, 1, records)
        tier.roll(1)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        await world.append(1, b"not copied")
        world.kill(1, is_noticed=False)
        wipe(world, 1)
        tier.storage.is_away = True
        await world.start(1)
        await asyncio.sleep(5)
        partition = world.nodes[1].partition()
        assert not partition.is_leader
        answer = await world.fetch(1, 0)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert (await world.produce(1, b"q")).error_code is ErrorCode.not_leader_or_follower
        tier.storage.is_away = False
        await world.until(lambda: partition.is_leader)
        assert bounds(world, 1) == (0, 8, 8)
        assert partition.epoch_start == 8
        assert log_of(world, 1).high_watermark == 8
        assert (await world.append(1, b"next")).first_offset == 8
        assert epochs(world, 1) == [(0, 0), (1, 8)]
        again = await produce(world, 1, records)
        assert again.base_offset == 0

    world, tier = tiered(1)
    world.run(main)


def test_an_empty_log_whose_tier_is_not_known_yet_is_not_led() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        world.kill(1, is_noticed=False)
        wipe(world, 1)
        tier.is_metadata_away = True
        await world.start(1)
        await asyncio.sleep(200)
        assert not world.nodes[1].partition().is_leader
        tier.is_metadata_away = False
        await world.until(lambda: world.nodes[1].partition().is_leader, timeout_s=100)
        assert bounds(world, 1) == (0, 6, 6)

    world, tier = tiered(1)
    world.run(main)


def test_an_empty_log_without_a_tier_is_led_as_it_is() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        assert world.nodes[1].partition().is_leader
        world.kill(1, is_noticed=False)
        await world.start(1)
        await world.until(lambda: world.nodes[1].partition().is_leader)
        assert (await world.append(1, b"first")).first_offset == 0

    world, _tier = tiered(1)
    world.run(main)


def test_an_unclean_winner_with_an_empty_log_restores_first_and_others_follow_it() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 3)
        await tier.copy(1)
        await tier.free(1)
        world.hold(2)
        tier.storage.is_away = True
        join(world, 1, 2, 3)
        world.let_go(2)
        world.kill(1)
        world.change(leader=2, isr=(2,), unclean=True)
        await asyncio.sleep(3)
        assert not world.nodes[2].partition().is_leader
        tier.storage.is_away = False
        await world.until(lambda: world.nodes[2].partition().is_leader)
        assert bounds(world, 2) == (0, 9, 9)
        assert (await world.append(2, b"next", acks=1)).first_offset == 9
        await agree(world, 2, 3)
        assert bounds(world, 3)[0] == 0

    world, tier = tiered(3, **ON)
    world.run(main)


def test_whoever_is_to_follow_instead_does_not_restore_to_lead() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 3)
        await fill(world, tier, 1, 2)
        await world.agree(1, 3)
        await tier.copy(1)
        world.kill(1)
        wipe(world, 1)
        world.change(leader=3)
        tier.storage.hangs = True
        await world.start(1)
        world.change(leader=1, isr=(1,), unclean=True)
        await world.until(lambda: tier.storage.read)
        world.change(leader=3, isr=(3,), unclean=True)
        await world.append(3, b"kept", acks=1)
        tier.storage.hangs = False
        await agree(world, 1, 3)
        assert not world.nodes[1].partition().is_leader
        assert bounds(world, 1) == (0, 0, 7)

    world, tier = tiered(3)
    world.run(main)


# --- leading with less than the tier has ---


async def cut_in_the_tier(world: Replicas, tier: Tier, *, from_epoch: int) -> None:
    """A sole replica with all of [0, 8) in the tier: producers 6 and 7, epochs (0, 0) and (1, 5), of which a
    power cut has left [0, 3) or [0, 6)."""
    create(world, 1)
    held = log_of(world, 1)
    await produce(world, 1, sent_by(6))
    await world.append(1, b"a")
    if from_epoch == 0:
        held.fsync()
    await produce(world, 1, sent_by(7))
    world.change(leader=1)
    await world.append(1, b"b")
    if from_epoch == 1:
        held.fsync()
    await world.append(1, b"c")
    await world.append(1, b"d")
    tier.roll(1)
    await tier.copy(1)
    assert held.tiered_end == 8
    world.kill(1, is_noticed=False)
    world.nodes[1].disk.power_cut("nothing")


@pytest.mark.parametrize("from_epoch", [0, 1])
def test_a_sole_replica_that_lost_its_end_with_the_power_goes_on_from_the_tier(from_epoch: int) -> None:
    async def main(world: Replicas) -> None:
        await cut_in_the_tier(world, tier, from_epoch=from_epoch)
        tier.storage.is_away = True
        await world.start(1)
        assert bounds(world, 1) == (0, 0, (3, 6)[from_epoch])
        await asyncio.sleep(3)
        assert not world.nodes[1].partition().is_leader
        tier.storage.is_away = False
        await world.until(lambda: world.nodes[1].partition().is_leader)
        assert bounds(world, 1) == (0, 8, 8)
        assert log_of(world, 1).producer_table.entries.keys() == {6, 7}
        assert (await world.append(1, b"next")).first_offset == 8
        assert epochs(world, 1) == [(0, 0), (1, 5), (2, 8)]
        tier.tell(1)
        assert log_of(world, 1).tiered_end == 8

    world, tier = tiered(1)
    world.run(main)


def test_a_log_of_another_history_than_the_tier_is_led_as_it_is() -> None:
    async def main(world: Replicas) -> None:
        await cut_in_the_tier(world, tier, from_epoch=0)
        tier.is_metadata_away = True
        await world.start(1)
        held = log_of(world, 1)
        held.may_lack_end = False  # as it was led before copies were looked for
        world.change(leader=1)
        await world.append(1, b"other")
        held.fsync()
        tier.is_metadata_away = False
        for _ in range(2):
            world.kill(1, is_noticed=False)
            await world.start(1)
            await world.until(lambda: world.nodes[1].partition().is_leader)
            assert bounds(world, 1) == (0, 0, 4)
        tier.tell(1)
        assert log_of(world, 1).tiered_end == 3

    world, tier = tiered(1)
    world.run(main)


def test_a_log_that_has_what_the_tier_lacks_is_led_as_it_is() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 1)
        log_of(world, 1).fsync()
        await fill(world, tier, 1, 1)
        log_of(world, 1).tiered_end = 3
        await tier.copy(1)
        world.kill(1, is_noticed=False)
        world.nodes[1].disk.power_cut("nothing")
        await world.start(1)
        await world.until(lambda: world.nodes[1].partition().is_leader)
        assert bounds(world, 1) == (0, 0, 3)

    world, tier = tiered(1)
    world.run(main)


async def stop(world: Replicas, node_id: int) -> None:
    """Cleanly."""
    node = world.nodes[node_id]
    node.here(node.logs.close)
    world.kill(node_id, is_noticed=False)


@pytest.mark.parametrize("records", [0, 1])
def test_after_a_clean_stop_a_sole_replica_is_led_without_the_tiers_metadata(records: int) -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        for _ in range(records):
            await world.append(1, b"x")
        await stop(world, 1)
        tier.is_metadata_away = True
        await world.start(1, is_clean=True)
        await world.until(lambda: world.nodes[1].partition().is_leader)
        world.change(leader=1)
        assert (await world.append(1, b"next")).first_offset == records

    world, tier = tiered(1)
    world.run(main)


def test_a_clean_stop_before_the_tier_was_asked_leaves_the_log_in_doubt() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        world.kill(1, is_noticed=False)
        wipe(world, 1)
        tier.is_metadata_away = True
        for is_clean in (False, True):
            await world.start(1, is_clean=is_clean)
            await asyncio.sleep(3)
            assert not world.nodes[1].partition().is_leader
            await stop(world, 1)
        tier.is_metadata_away = False
        await world.start(1, is_clean=True)
        await world.until(lambda: world.nodes[1].partition().is_leader)
        assert bounds(world, 1) == (0, 6, 6)

    world, tier = tiered(1)
    world.run(main)


def test_an_empty_replica_that_others_were_in_sync_with_leads_without_the_tiers_metadata() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2, 3)
        tier.is_metadata_away = True
        world.kill(1)
        assert set(world.isr()) == {2, 3}
        leader = world.controller.image.partition("t", 0).leader
        await world.until(lambda: world.nodes[leader].partition().is_leader)
        assert (await world.append(leader, b"first")).first_offset == 0

    world, tier = tiered(3)
    world.run(main)


def test_a_log_that_led_again_elsewhere_meanwhile_is_not_begun_by_an_earlier_plan() -> None:
    """The role was lost while its store hung, the log grew under another leader, and the role came back."""

    async def main(world: Replicas) -> None:
        create(world, 1, 2)
        await fill(world, tier, 1, 2)
        await world.agree(1, 2)
        await tier.copy(1)
        world.kill(1)
        wipe(world, 1)
        await world.until(lambda: world.nodes[2].partition().is_leader)
        tier.storage.hangs = True
        await world.start(1)
        world.change(leader=1, isr=(1,), unclean=True)
        await world.until(lambda: tier.storage.read)
        world.change(leader=2, isr=(2,), unclean=True)
        await world.append(2, b"kept", acks=1)
        await world.until(lambda: set(world.isr()) == {1, 2})
        log_of(world, 1).may_lack_end = True
        world.change(leader=1, isr=(1,))
        assert not world.nodes[1].partition().is_leader
        tier.storage.hangs = False
        await world.until(lambda: world.nodes[1].partition().is_leader)
        assert bounds(world, 1)[2] == 7
        await world.until(lambda: not tier.restores[1]._at_work)

    world, tier = tiered(2)
    world.run(main)


def test_partitions_that_wait_for_metadata_hold_up_no_other_restore() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, topic="empty", partitions=20, remote_storage_enable="true")
        create(world, 2)
        await fill(world, tier, 2, 2)
        await tier.copy(2)
        await tier.free(2)
        world.kill(1, is_noticed=False)
        tier.metadata.clear()
        tier.is_metadata_away = True
        await world.start(1)
        await asyncio.sleep(1)
        assert not any(world.nodes[1].partition(index, "empty").is_leader for index in range(20))
        world.change(replicas=(2, 1))
        await world.until(lambda: set(world.isr()) == {1, 2}, timeout_s=10)
        tier.is_metadata_away = False
        await world.until(lambda: all(world.nodes[1].partition(i, "empty").is_leader for i in range(20)))

    world, tier = tiered(2, **ON)
    world.run(main)


def test_a_restore_ends_where_the_topic_is_tiered_no_more() -> None:
    """The follower came to know it first; then the leader has nothing in the tier any more."""

    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        await tier.free(1)
        tier.storage.is_away = True
        join(world, 1, 2)
        await world.until(lambda: tier.storage.read)
        own.configure(world, remote_storage_enable="false", remote_log_delete_on_disable="true")
        held = log_of(world, 1)
        world.nodes[1].here(held.advance_log_start, held.local_log_start_offset)
        await world.until(lambda: set(world.isr()) == {1, 2})
        await agree(world, 1, 2)
        assert bounds(world, 2) == (6, 6, 6)

    world, tier = tiered(2, **ON)
    world.run(main)


# --- epochs that were lost ---


def test_epochs_lost_with_their_file_come_back_from_the_tier() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 2)
        world.change(leader=1)
        await fill(world, tier, 1, 2)
        world.change(leader=1)
        await world.append(1, b"local")
        await tier.copy(1)
        await tier.free(1)
        before = epochs(world, 1)
        assert before == [(0, 0), (1, 6), (2, 12)]
        told: list[Any] = []
        world.on_build.append(lambda node: tier.restores[node.id].on_epochs.append(told.append))
        world.kill(1, is_noticed=False)
        disk = world.nodes[1].disk
        (path,) = [path for path in disk.snapshot() if path.endswith("leader-epoch-checkpoint")]
        disk.mount().unlink(path)
        tier.is_metadata_away = True
        await world.start(1)
        assert log_of(world, 1).epochs_incomplete
        tier.is_metadata_away = False
        await world.until(lambda: told)
        assert not log_of(world, 1).epochs_incomplete
        assert epochs(world, 1) == before
        assert log_of(world, 1).end_offset_for_epoch(0) == (0, 6)

    world, tier = tiered(1)
    world.run(main)


def test_without_any_copy_of_it_a_log_starts_where_its_local_part_does() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 2)
        world.change(leader=1)
        await world.append(1, b"local")
        await tier.copy(1)
        await tier.free(1)
        world.kill(1, is_noticed=False)
        disk = world.nodes[1].disk
        (path,) = [path for path in disk.snapshot() if path.endswith("leader-epoch-checkpoint")]
        disk.mount().unlink(path)
        tier.fold = TierFold()
        await world.start(1)
        await world.until(lambda: bounds(world, 1) == (6, 6, 7))
        assert not log_of(world, 1).epochs_incomplete

    world, tier = tiered(1)
    world.run(main)


def test_nobody_restores_the_epochs_of_a_log_that_was_taken_away() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 2)
        await tier.copy(1)
        await tier.free(1)
        world.kill(1, is_noticed=False)
        disk = world.nodes[1].disk
        (path,) = [path for path in disk.snapshot() if path.endswith("leader-epoch-checkpoint")]
        disk.mount().unlink(path)
        tier.is_metadata_away = True
        await world.start(1)
        restores = tier.restores[1]
        await world.until(lambda: restores._completing)
        world.delete()
        await world.until(lambda: not restores._completing, timeout_s=200)

    world, tier = tiered(1)
    world.run(main)


# --- killed on the way ---


async def dies_in(world: Replicas, node_id: int, changes: int, *, mode: str | None) -> bool:
    """Kill a node at one of the changes of its disk that follow the reading of the copy; whether it came to
    that before it was done."""
    node = world.nodes[node_id]
    files = node.components.world.files
    assert isinstance(files, SimFiles)
    files.die_in_changes(changes, power=mode is not None)
    held = log_of(world, node_id)
    await world.until(lambda: not node.process.alive or held.log_end_offset == 8)
    if node.process.alive:
        files.die_at_change = None
        return False
    if mode is not None:
        node.disk.power_cut(mode)
    world.fence(node_id)
    return True


async def copied_log(world: Replicas, tier: Tier) -> None:
    """A log of [3, 8) all of which is in the tier, with a producer and two epochs."""
    create(world, 1)
    await fill(world, tier, 1, 1)
    records = batch_of(b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=0)
    await produce(world, 1, records)
    tier.roll(1)
    world.change(leader=1)
    await fill(world, tier, 1, 1)
    await tier.copy(1)
    await tier.free(1)
    await delete_records(world, 1, 3)


@pytest.mark.requirement("1023-07")
@pytest.mark.parametrize("mode", [None, "nothing", "subset", "all"])
def test_a_follower_that_is_killed_at_any_change_of_its_disk_begins_anew(mode: str | None) -> None:
    deaths = 0
    for at in count(1):
        world, tier = tiered(**ON)

        async def main(world: Replicas, tier: Tier = tier, at: int = at) -> None:
            nonlocal deaths
            await copied_log(world, tier)
            tier.storage.hangs = True
            join(world, 1, 2)
            await world.until(lambda: tier.storage.read)
            tier.storage.hangs = False
            if await dies_in(world, 2, at, mode=mode):
                deaths += 1
                await world.start(2)
            await world.until(lambda: world.isr() == (1, 2), timeout_s=100)
            for _ in range(2):
                assert bounds(world, 2) == (3, 8, 8)
                assert epochs(world, 2) == epochs(world, 1) == [(0, 3), (1, 5)]
                assert log_of(world, 2).producer_table.entries.keys() == {7}
                world.kill(2)
                await world.start(2)
            await world.append(1, b"more", acks=1)
            await agree(world, 1, 2)

        world.run(main)
        if deaths < at:
            break
    assert deaths > 5


@pytest.mark.parametrize("mode", [None, "nothing", "subset", "all"])
def test_a_leader_that_is_killed_while_it_restores_restores_again(mode: str | None) -> None:
    deaths = 0
    for at in count(1):
        world, tier = tiered(1)

        async def main(world: Replicas, tier: Tier = tier, at: int = at) -> None:
            nonlocal deaths
            await copied_log(world, tier)
            before = epochs(world, 1)
            world.kill(1, is_noticed=False)
            wipe(world, 1)
            tier.storage.hangs = True
            await world.start(1)
            await world.until(lambda: tier.storage.read)
            tier.storage.hangs = False
            if await dies_in(world, 1, at, mode=mode):
                deaths += 1
                await world.start(1)
            await world.until(lambda: world.nodes[1].partition().is_leader, timeout_s=100)
            held = log_of(world, 1)
            assert held.log_end_offset == 8
            assert held.log_start_offset in (0, 3)
            assert epochs(world, 1) == [(0, held.log_start_offset), *before[1:]]
            assert held.producer_table.entries.keys() == {7}

        world.run(main)
        if deaths < at:
            break
    assert deaths > 5


# --- what a leader tells ---


async def special(world: Replicas, timestamp: int, *, replica: int = -1, version: int = 11) -> Any:
    partitions = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]
    fields = {"replica_id": replica, "isolation_level": 0, "timeout": 0}
    topics = [{"name": "t", "partitions": partitions}]
    answer = await world.ask(1, Api.LIST_OFFSETS, version, **fields, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code if found.error_code else (found.offset, found.leader_epoch)


@pytest.mark.requirement("1023-02", "1023-03", "1023-13", "1023-22")
def test_the_special_offsets_of_a_tiered_log() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        assert [await special(world, each) for each in (-2, -4, -5, -6)] == [
            (0, 0),
            (0, 0),
            (-1, -1),
            (-1, -1),
        ]
        assert await special(world, -6, replica=2) == (0, 0)
        await fill(world, tier, 1, 2)
        world.change(leader=1)
        await fill(world, tier, 1, 1)
        assert [await special(world, each) for each in (-5, -6)] == [(-1, -1), (0, 0)]
        await tier.copy(1, end=6)
        await free_below(tier, 1, 3)
        assert [await special(world, each) for each in (-2, -4, -5, -6)] == [(0, 0), (3, 0), (5, 0), (6, 1)]
        log_of(world, 1).tiered_end = 0
        assert [await special(world, each) for each in (-5, -6)] == [(-1, -1), (-1, -1)]
        await tier.copy(1)
        assert [await special(world, each) for each in (-5, -6)] == [(8, 1), (-1, -1)]
        assert await special(world, -6, replica=2) == (9, 1)
        assert await special(world, -5, version=8) is ErrorCode.unsupported_version
        assert await special(world, -6, version=10) is ErrorCode.unsupported_version

    world, tier = tiered(1)
    world.run(main)


@pytest.mark.requirement("1023-13", "1023-22")
def test_a_log_that_is_not_tiered_has_nothing_to_upload() -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        await world.append(1, b"x")
        for replica in (-1, 2):
            assert [await special(world, each, replica=replica) for each in (-4, -5, -6)] == [
                (0, 0),
                (-1, -1),
                (-1, -1),
            ]

    Replicas(1).run(main)


# --- with the brokers' own tier ---


async def expired(world: Replicas, node_id: int) -> None:
    """Until local retention has left nothing that is in the tier."""
    held = log_of(world, node_id)
    while not held.local_log_start_offset >= held.segments[-1].base_offset > 0:
        await own.expire_locally(world, node_id)


def test_a_replica_joins_where_the_brokers_own_tier_ends() -> None:
    async def main(world: Replicas) -> None:
        own.make(world, 1, 2)
        await own.fill(world, 1)
        await own.all_copied(world, 1, 2)
        for node_id in (1, 2):
            await expired(world, node_id)
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        await agree(world, 1, 2, 3)
        assert bounds(world, 3) == (0, own.closed_end(world, 1), 20)
        assert epochs(world, 3) == epochs(world, 1)
        await own.all_copied(world, 3)

    own.world_of(3, **ON).run(main)


@pytest.mark.parametrize("lost", ["newest", "all", "newest, damaged"])
def test_a_sole_replica_with_a_new_disk_leads_also_without_the_newest_index_objects(lost: str) -> None:
    async def main(world: Replicas) -> None:
        own.make(world, 3)
        await own.fill(world, 3)
        await own.all_copied(world, 3)
        end = own.closed_end(world, 3)
        known = epochs(world, 3)
        world.kill(3, is_noticed=False)
        wipe(world, 3)
        indexes = sorted(own.objects(world, ".idx"))
        for key in indexes if lost == "all" else indexes[-1:]:
            data = bytearray(world.store.objects.pop(key))
            if "damaged" in lost:
                data[-1] ^= 1
                data[60] ^= 1
                world.store.objects[key] = bytes(data)
        await world.start(3)
        await world.until(lambda: world.nodes[3].partition().is_leader)
        assert bounds(world, 3) == (0, end, end)
        assert epochs(world, 3) == known
        assert (await world.append(3, b"next")).first_offset == end

    own.world_of(3).run(main)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_sole_replica_with_a_new_disk_leads_where_the_brokers_own_tier_ends(*, is_clean: bool) -> None:
    async def main(world: Replicas) -> None:
        own.make(world, 3)
        await own.fill(world, 3)
        await own.all_copied(world, 3)
        end = own.closed_end(world, 3)
        world.kill(3, is_noticed=False)
        if is_clean:
            world.fence(3)
        wipe(world, 3)
        await world.start(3)
        await world.until(lambda: world.nodes[3].partition().is_leader)
        assert bounds(world, 3) == (0, end, end)
        assert (await world.append(3, b"next")).first_offset == end
        await own.fill(world, 3)
        await own.all_copied(world, 3)
        assert own.clean(world, 3)

    own.world_of(3).run(main)


def told_start(world: Replicas, node_id: int) -> int:
    partition = world.nodes[node_id].partition()
    metadata = world.nodes[node_id].components.tier_metadata
    assert metadata is not None
    fold = metadata.fold(TieredPartition(partition.topic_id, 0))
    return 0 if fold is None else fold.log_start


@pytest.mark.parametrize("is_past_the_tier", [False, True])
def test_a_sole_replica_with_a_new_disk_starts_where_records_were_deleted(*, is_past_the_tier: bool) -> None:
    """Inside the newest copy, or past it, where no copy tells it."""

    async def main(world: Replicas) -> None:
        own.make(world, 3)
        await own.fill(world, 3)
        await own.all_copied(world, 3)
        end = own.closed_end(world, 3)
        start = log_of(world, 3).high_watermark if is_past_the_tier else end - 1
        assert (start > end) is is_past_the_tier
        await delete_records(world, 3, start)
        await world.until(lambda: told_start(world, 3) == start, timeout_s=100)
        world.kill(3, is_noticed=False)
        wipe(world, 3)
        await world.start(3)
        await world.until(lambda: world.nodes[3].partition().is_leader)
        next_offset = max(start, end)
        assert bounds(world, 3) == (start, next_offset, next_offset)
        assert (await world.append(3, b"next")).first_offset == next_offset

    own.world_of(3).run(main)


def test_an_empty_tiered_topic_is_led_again_after_a_restart() -> None:
    async def main(world: Replicas) -> None:
        own.make(world, 1)
        world.kill(1, is_noticed=False)
        await world.start(1)
        await world.until(lambda: world.nodes[1].partition().is_leader)
        assert (await world.append(1, b"first")).first_offset == 0

    own.world_of(1).run(main)
