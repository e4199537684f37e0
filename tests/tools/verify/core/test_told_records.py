"""The brokers' own topics are read out of their replicas' logs, whatever is damaged in some of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.verify.histories import History
from tests.verify.stores import COLD_TOLD, GROUPS, NOW_MS, WAL_TOLD, build
from tests.verify.world import Replica, World
from tools.verify.core.stores import FileSource, Listed, Source, open_source
from tools.verify.core.told_records import ToldRecords


class Log(NamedTuple):
    files: tuple[Listed, ...]
    high_watermark: int
    log_start: int


Record = tuple[int, bytes | None, bytes | None]


def log_of(replica: Replica, root: Path) -> tuple[Source, Log]:
    source = open_source(f"file://{root}/d{replica.directory}")
    name = replica.folder.partition("/")[2]
    return source, Log(tuple(source.list(f"{name}/")), replica.high, -1)


def written(history: History) -> list[Record]:
    return [
        (batch.base + record.delta, record.key, record.value)
        for batch in history.batches
        for record in batch.records
        if batch.marker is None
    ]


def read(replicas: list[Replica], root: Path) -> tuple[list[Record], list[tuple[int, int]]]:
    told = ToldRecords([log_of(each, root) for each in replicas])
    found = [(each.offset, each.key, each.value) for each in told.records()]
    return found, told.holes


def told_logs(world: World) -> list[tuple[History, list[Replica]]]:
    """Of the topics of the brokers that hold something, each with its leader's log first."""
    return [
        (history, sorted(world.of(history), key=lambda each: not each.is_leader))
        for history in world.histories
        if history.topic.name in (COLD_TOLD, WAL_TOLD, GROUPS) and history.batches
    ]


@pytest.mark.parametrize("seed", range(12))
def test_what_was_written_is_read(seed: int, tmp_path: Path) -> None:
    world = build(seed, NOW_MS)
    world.write_to(tmp_path / "made")
    for history, replicas in told_logs(world):
        assert read(replicas, tmp_path / "made") == (written(history), [])
        assert read(replicas[:1], tmp_path / "made") == (written(history), [])


def damage(world: World, replica: Replica, number: int, rng: Random) -> tuple[int, int]:
    """Alter a batch of a replica, and return its offsets."""
    batches = [
        (segment, position, batch)
        for segment in replica.segments
        for batch, position in zip(segment.batches, segment.positions, strict=True)
    ]
    segment, position, batch = batches[number % len(batches)]
    data = bytearray(world.files[replica.path(segment)])
    data[position + rng.randrange(21, len(batch.data))] ^= 4
    world.files[replica.path(segment)] = bytes(data)
    return batch.base, batch.end


@pytest.mark.parametrize("seed", range(30))
def test_what_is_damaged_in_one_replica_is_read_from_another(seed: int, tmp_path: Path) -> None:
    world, rng = build(seed, NOW_MS), Random(seed)
    cases = []
    for history, replicas in told_logs(world):
        whole = [each for each in replicas[1:] if each.end == replicas[0].end and not each.is_diverged]
        if whole:
            damage(world, replicas[0], rng.randrange(9), rng)
            cases.append((history, [replicas[0], *whole]))
    world.write_to(tmp_path / "made")
    for history, replicas in cases:
        assert read(replicas, tmp_path / "made") == (written(history), [])


@pytest.mark.parametrize("seed", range(12))
def test_what_no_replica_has_sound_is_a_hole(seed: int, tmp_path: Path) -> None:
    world, rng = build(seed, NOW_MS), Random(seed)
    cases = []
    for history, replicas in told_logs(world):
        number = rng.randrange(len(history.batches))
        base = history.batches[number].base
        hole = history.batches[number].base, history.batches[number].end
        for replica in replicas:
            numbers = [
                at
                for at, batch in enumerate(batch for each in replica.segments for batch in each.batches)
                if batch.base == base
            ]
            if numbers:
                assert damage(world, replica, numbers[0], rng) == hole
        cases.append((history, replicas, hole))
    world.write_to(tmp_path / "made")
    for history, replicas, hole in cases:
        found, holes = read(replicas, tmp_path / "made")
        assert holes == [hole]
        assert found == [each for each in written(history) if not hole[0] <= each[0] < hole[1]]


def test_a_segment_that_is_gone_is_a_hole(tmp_path: Path) -> None:
    for seed in range(40):
        world = build(seed, NOW_MS)
        for history, (first, *_) in told_logs(world):
            if len(first.segments) < 3 or not first.segments[1].batches:
                continue
            world.write_to(tmp_path / "made")
            source, log = log_of(first, tmp_path / "made")
            (tmp_path / "made" / first.path(first.segments[1])).unlink()
            told = ToldRecords([(source, log)])
            gone = first.segments[1]
            assert [each.offset for each in told.records()] == [
                offset for offset, _, _ in written(history) if not gone.base <= offset < gone.end
            ]
            assert told.holes == [(gone.base, gone.end)]
            return
    pytest.fail("no log has three segments")


def test_a_replica_that_ends_early_is_helped_out(tmp_path: Path) -> None:
    for seed in range(40):
        world = build(seed, NOW_MS)
        for history, replicas in told_logs(world):
            short = [each for each in replicas if each.end < replicas[0].end and not each.is_diverged]
            if not short:
                continue
            world.write_to(tmp_path / "made")
            assert read([short[0], replicas[0]], tmp_path / "made") == (written(history), [])
            found, holes = read([short[0]], tmp_path / "made")
            assert found == [each for each in written(history) if each[0] < short[0].high]
            assert holes == []
            return
    pytest.fail("no replica ends early")


def test_of_no_replica_nothing_is_told() -> None:
    told = ToldRecords([])
    assert (list(told.records()), told.holes) == ([], [])
    nothing = ToldRecords([(FileSource("/nowhere"), Log((), -1, -1))])
    assert (list(nothing.records()), nothing.holes) == ([], [])


def test_checkpoints_that_are_not_to_be_believed_hide_nothing(tmp_path: Path) -> None:
    """A log start behind the end, and a leader without a watermark beside a follower with an old one."""
    for seed in range(40):
        world = build(seed, NOW_MS)
        world.write_to(tmp_path / "made")
        for history, replicas in told_logs(world):
            if len(replicas) < 2 or not 0 < replicas[1].high < replicas[0].end:
                continue
            source, log = log_of(replicas[0], tmp_path / "made")
            other = log_of(replicas[1], tmp_path / "made")
            odd = log._replace(high_watermark=-1, log_start=replicas[0].end + 1)
            told = ToldRecords([(source, odd), other])
            assert [each.offset for each in told.records()] == [at for at, _, _ in written(history)]
            assert told.holes == []
            return
    pytest.fail("no follower is behind")
