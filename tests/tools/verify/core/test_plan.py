"""The cut into tasks: everything once, of bounded size, the same whatever the order of the listing."""

from __future__ import annotations

import pickle
import random

from hypothesis import given
from hypothesis import strategies as st

from tools.verify.core.keys import StreamKey, tier_key, wal_key
from tools.verify.core.plan import (
    INDEX_OBJECTS,
    LIMITLESS,
    UNIT_BYTES,
    ColdUnit,
    LogUnit,
    Task,
    Unit,
    WalIndexUnit,
    WalUnit,
    cold_tasks,
    log_tasks,
    numbered,
    parts_of,
    requests_of,
    wal_tasks,
    weight_of,
)
from tools.verify.core.stores import FileSource, Listed

SOURCE = FileSource("/nowhere")
TOPIC = "8YyzoWtrSdOeHx4D8a3TXA"
SEGMENT = "AAAAAAAAAAAAAAAAAAAAAA"
MIB = 1 << 20


def cold(partition: int, base: int, size: int, index_size: int = 100) -> ColdUnit:
    data = Listed(tier_key(TOPIC, partition, base, SEGMENT, "log"), size, 5)
    index = Listed(tier_key(TOPIC, partition, base, SEGMENT, "idx"), index_size, 5)
    return ColdUnit(TOPIC, partition, base, SEGMENT, data, index, None)


def wal(stream: StreamKey, seq: int, size: int) -> WalUnit:
    return WalUnit(stream, seq, Listed(wal_key(stream, seq), size, 5), None)


def index(stream: StreamKey, seq: int) -> WalIndexUnit:
    key = wal_key(stream, seq).replace(f"/{seq:020d}", f"/index/{seq:020d}")
    return WalIndexUnit(stream, seq, Listed(key, 10, 5), (), False)


PART = UNIT_BYTES // 8


def units_of(tasks: list[Task]) -> list[Unit]:
    return [unit for task in tasks for unit in task.units]


@given(
    sizes=st.lists(st.integers(0, 40), max_size=60),
    limit=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_every_copy_is_in_one_task_of_bounded_size(sizes: list[int], limit: int, seed: int) -> None:
    units = [cold(at % 3, at, size * PART, 0) for at, size in enumerate(sizes)]
    tasks = numbered(cold_tasks(units, SOURCE, "c", limit * PART))
    assert sorted(map(str, units_of(tasks))) == sorted(map(str, units))
    for task in tasks:
        assert task.size == sum(unit.size for unit in task.units)
        assert weight_of(task) == sum(max(unit.size, UNIT_BYTES) for unit in task.units)
        assert weight_of(task) <= limit * PART or len(task.units) == 1
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert [weight_of(task) for task in tasks] == sorted(map(weight_of, tasks), reverse=True)
    shuffled = list(units)
    random.Random(seed).shuffle(shuffled)
    assert numbered(cold_tasks(shuffled, SOURCE, "c", limit * PART)) == tasks


@given(
    streams=st.integers(1, 3),
    count=st.integers(0, 30),
    starts=st.sets(st.integers(0, 700), max_size=4),
    limit=st.integers(10, 200),
)
def test_an_index_object_goes_with_every_task_that_has_an_object_of_it(
    streams: int, count: int, starts: set[int], limit: int
) -> None:
    keys = [StreamKey(node, 7, 0) for node in range(streams)]
    objects = {key: [wal(key, 20 * at, 10) for at in range(count)] for key in keys}
    indexes = {key: [index(key, at) for at in starts] for key in keys}
    tasks = wal_tasks(objects, indexes, SOURCE, "c", limit * PART)
    for task in tasks:
        assert sum(isinstance(unit, WalUnit) for unit in task.units) <= max(1, limit * PART // UNIT_BYTES)
    found = units_of(tasks)
    assert sorted(unit.name for unit in found if isinstance(unit, WalUnit)) == sorted(
        unit.name for key in keys for unit in objects[key]
    )
    told = [unit.name for unit in found if isinstance(unit, WalIndexUnit) and unit.is_first]
    assert sorted(told) == sorted(unit.name for key in keys for unit in indexes[key])
    for task in tasks:
        there = {(unit.stream, unit.seq) for unit in task.units if isinstance(unit, WalIndexUnit)}
        for unit in task.units:
            if isinstance(unit, WalUnit):
                about = {(unit.stream, at) for at in starts if at <= unit.seq < at + INDEX_OBJECTS}
                assert about <= there


def log(*sizes: int, bases: tuple[int, int] = (0, LIMITLESS), recovery: int = -1) -> LogUnit:
    files = [Listed(f"t-0/{100 * at:020d}.log", size, 5) for at, size in enumerate(sizes)]
    files.append(Listed("t-0/leader-epoch-checkpoint", 20, 5))
    return LogUnit(0, 1, "t-0", "t", TOPIC, 0, tuple(files), recovery, -1, -1, True, bases)


def test_a_piece_of_a_log_has_its_segments_and_the_last_one_what_is_of_all() -> None:
    first, last = log(10, 20, 30, bases=(0, 200)), log(10, 20, 30, bases=(200, LIMITLESS))
    assert [unit.size for unit in (first, last)] == [30, 50]
    assert [each.key[-10:] for each in first.own_files()] == ["000000.log", "000100.log"]
    tasks = log_tasks([last, first], [SOURCE], 40)
    assert [unit for task in tasks for unit in task.units] == [first, last]


def test_a_closed_piece_stays_the_same_while_its_log_grows() -> None:
    first = log(10, 20, 30, bases=(0, 200), recovery=250)
    grown = log(10, 20, 90, 5, bases=(0, 200), recovery=300)
    assert first.identity == grown.identity
    assert first.identity != log(10, 21, 30, bases=(0, 200), recovery=250).identity
    assert first.identity != log(10, 20, 30, bases=(0, 200), recovery=150).identity
    assert log(10, 20, bases=(100, LIMITLESS)).identity != log(10, 25, bases=(100, LIMITLESS)).identity


def test_what_is_planned_counts_requests_of_eight_mebibytes() -> None:
    stream = StreamKey(1, 2, 0)
    assert requests_of(cold(0, 0, 17 * MIB)) == 4
    assert requests_of(cold(0, 0, 0)) == 1
    assert requests_of(wal(stream, 0, 9 * MIB)) == 2
    assert requests_of(wal(stream, 0, 1)) == 1
    assert requests_of(log(9 * MIB, 1)) == 4
    tasks = cold_tasks([cold(0, 0, 8 * MIB), cold(0, 9, 1)], SOURCE, "", 256 * MIB)
    tasks += wal_tasks({stream: [wal(stream, 0, 5)]}, {stream: [index(stream, 0)]}, SOURCE, "", 256 * MIB)
    assert [tuple(part) for part in parts_of(tasks)] == [
        ("cold", 4, 8 * MIB + 201, 4),
        ("wal", 2, 15, 2),
    ]


def test_a_task_can_be_sent() -> None:
    task = cold_tasks([cold(0, 0, 3)], SOURCE, "c", 10)[0]
    assert pickle.loads(pickle.dumps(task)) == task
