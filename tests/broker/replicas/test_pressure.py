"""A log directory that is short of room: what is said, refused and given up, and when that ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.metadata_records import PartitionImage
from broker.replicas.partition import Partition, TopicStats
from broker.replicas.pressure import Oldest, Pressure, plan_drop
from protocol.errors import ErrorCode, KafkaError
from storage.log_manager import LogManager
from storage.policy import LogConfig
from tests.broker.replicas.test_partition import FakePeers
from tests.storage.support import NOW, append, batch_of, manager_on

TIERED = LogConfig(
    remote_storage_enable=True,
    segment_bytes=400,
    index_interval_bytes=100,
    retention_ms=-1,
    local_retention_ms=-1,
    file_delete_delay_ms=0,
)
WANTED = 1_000_000


class Room:
    """Partitions led here, in a directory with so much room."""

    def __init__(self, manager: LogManager) -> None:
        self.manager = manager
        self.free = WANTED
        self.wanted = WANTED
        self.time = 0.0
        self.woken: list[Partition] = []
        self.held: list[Partition] = []
        self.pressure = Pressure(
            files=self,  # type: ignore[arg-type]
            offload=_offload,  # type: ignore[arg-type]
            replicas=self,
            logs=manager,
            min_free_bytes=lambda: self.wanted,
            now_ms=lambda: NOW,
            clock=lambda: self.time,
        )

    def free_bytes(self, path: str) -> tuple[int, int]:
        return 10 * WANTED, self.free

    def partitions(self) -> Iterator[Partition]:
        yield from self.held

    def wake_everyone(self, partition: Partition) -> None:
        self.woken.append(partition)

    def add(self, topic: str, policy: str = "keep", *, segments: int = 4, timestamp: int = NOW) -> Partition:
        config = replace(TIERED, remote_log_pressure_policy=policy)
        log = self.manager.create(topic, UUID(bytes=topic.encode().ljust(16)), 0, config)
        partition = Partition(
            topic=topic,
            index=0,
            topic_id=log.topic_id,
            log=log,
            node_id=1,
            stats=TopicStats(),
            peers=FakePeers(),
        )
        view = PartitionImage(index=0, leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
        partition.lead(view, syncs=False, internal=False)
        while log.statistics().segments <= segments:
            append(log, batch_of(1, timestamp=timestamp, value_bytes=100), now_ms=timestamp)
        self.held.append(partition)
        return partition


async def _offload(call: Callable[[], Any]) -> Any:
    return call()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    manager = manager_on(tmp_path)
    yield Room(manager)
    manager.close(clean=False)


async def test_with_room_nothing_happens(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    kept = [room.add(policy, policy) for policy in ("keep", "refuse", "drop")]
    await room.pressure.look()
    assert [partition.log.log_start_offset for partition in kept] == [0, 0, 0]
    assert room.pressure.missing == {}
    assert caplog.records == []


async def test_keep_says_it_once_and_changes_nothing(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    kept = room.add("keeps")
    room.free = WANTED - 5
    await room.pressure.look()
    await room.pressure.look()
    assert list(room.pressure.missing.values()) == [5]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "keeps (keep)" in caplog.text
    assert kept.fast_log is kept.log
    room.free = WANTED
    await room.pressure.look()
    assert room.pressure.missing == {}
    assert "has room again" in caplog.text


async def test_a_topic_that_refuses_takes_nothing_until_there_is_room(room: Room) -> None:
    refuses, keeps = room.add("refuses", "refuse"), room.add("keeps")
    room.free = 0
    await room.pressure.look()
    assert refuses.fast_log is None
    with pytest.raises(KafkaError) as refused:
        refuses.check_room()
    assert refused.value.code is ErrorCode.kafka_storage_error
    keeps.check_room()
    assert keeps.fast_log is not None
    room.free = WANTED
    await room.pressure.look()
    refuses.check_room()
    assert refuses.fast_log is not None


async def test_a_topic_that_is_tiered_no_more_takes_again(room: Room) -> None:
    refuses = room.add("refuses", "refuse")
    room.free = 0
    await room.pressure.look()
    refuses.log.set_config(replace(refuses.log.config, remote_storage_enable=False))
    await room.pressure.look()
    refuses.check_room()


async def test_drop_gives_up_as_many_of_the_oldest_segments_as_bytes_are_missing(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    older = room.add("older", "drop", timestamp=NOW - 1000)
    newer = room.add("newer", "drop")
    sizes = [segment.size for segment in older.log.closed_segments(0, older.log.log_end_offset)]
    room.free = WANTED - sizes[0] - 1
    await room.pressure.look()
    assert older.log.log_start_offset == older.log.local_log_start_offset
    assert len(older.log.closed_segments(0, older.log.log_end_offset)) == len(sizes) - 2
    assert newer.log.log_start_offset == 0
    assert room.pressure.dropped_bytes == sizes[0] + sizes[1]
    assert room.woken == [older]
    assert "given up" in caplog.text


async def test_what_is_in_the_tier_goes_first_and_nothing_is_lost(room: Room) -> None:
    partition = room.add("drops", "drop")
    closed = partition.log.closed_segments(0, partition.log.log_end_offset)
    partition.log.tiered_end = closed[1].end_offset
    room.free = WANTED - 1
    await room.pressure.look()
    assert partition.log.local_log_start_offset == closed[1].end_offset
    assert partition.log.log_start_offset == 0
    assert room.pressure.dropped_bytes == 0


async def test_files_on_their_way_out_are_not_given_up_for_a_second_time(room: Room) -> None:
    partition = room.add("drops", "drop")
    room.free = WANTED - 1
    await room.pressure.look()
    start = partition.log.log_start_offset
    assert start > 0
    await room.pressure.look()
    assert partition.log.log_start_offset == start
    room.time += 60
    await room.pressure.look()
    assert partition.log.log_start_offset > start


async def test_a_follower_drops_nothing_of_its_own_accord(room: Room) -> None:
    partition = room.add("drops", "drop")
    partition.is_leader = False
    room.free = 0
    await room.pressure.look()
    assert partition.log.log_start_offset == 0


async def test_the_active_segment_stays_whatever_is_missing(room: Room) -> None:
    partition = room.add("drops", "drop")
    room.free = 0
    await room.pressure.look()
    assert partition.log.log_start_offset < partition.log.log_end_offset
    assert partition.log.statistics().segments == 1


async def test_a_directory_that_cannot_be_asked_is_no_shortage(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.add("drops", "drop")

    def fails(path: str) -> tuple[int, int]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(room, "free_bytes", fails)
    await room.pressure.look()
    assert room.pressure.missing == {}


async def test_a_limit_of_zero_looks_at_nothing(room: Room) -> None:
    refuses = room.add("refuses", "refuse")
    room.free = 0
    await room.pressure.look()
    room.wanted = 0
    await room.pressure.look()
    refuses.check_room()
    assert room.pressure.missing == {}


async def test_the_watch_looks_every_few_seconds(room: Room) -> None:
    room.add("keeps")
    room.free = 0
    watch = asyncio.ensure_future(room.pressure.watch_for_ever())
    await asyncio.sleep(0)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch


SEGMENTS = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100)), max_size=6), min_size=1, max_size=4
)


@given(missing=st.integers(-10, 1_000), rows=SEGMENTS)
def test_what_is_given_up_is_enough_and_no_segment_more(
    missing: int, rows: list[list[tuple[int, int]]]
) -> None:
    lists = [
        [Oldest(timestamp, at, offset, size) for offset, (timestamp, size) in enumerate(row, 1)]
        for at, row in enumerate(rows)
    ]
    starts = plan_drop(missing, lists)
    given_up = [lists[at][:start] for at, (start, _) in starts.items()]
    for (_, (_, size)), segments in zip(starts.items(), given_up, strict=True):
        assert size == sum(each.size for each in segments) > 0
    total = sum(size for _, size in starts.values())
    everything = sum(each.size for row in lists for each in row)
    if missing <= 0:
        assert starts == {}
    elif missing >= everything:
        assert total == everything
    else:
        assert total >= missing
        last = max(
            (max(each.max_timestamp for each in segments), at, segments[-1].size)
            for at, segments in zip(starts, given_up, strict=True)
        )
        assert total - last[2] < missing
