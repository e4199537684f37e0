"""Batches that are walked by columns are those that are found one by one, and end at the same damage."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.verify import kafka_bytes as kafka
from tools.verify.core import stretches, topic_places
from tools.verify.core.heads import HEAD_SIZE, head, is_sound
from tools.verify.core.stores import FileSource
from tools.verify.core.stretches import RawBatch, Stretch, joined
from tools.verify.core.topic_places import Damaged, walk, walk_stretches

KEY = "log"
LONG = 40 << 10


def batches_of(rng: Random, count: int) -> list[bytes]:
    found, base = [], 0
    for number in range(count):
        size = rng.choice([5, 5, 5, rng.randrange(300)]) if number % 9 else LONG
        rows = tuple(kafka.Rec(n, n, None, bytes(size)) for n in range(rng.randrange(1, 4)))
        attributes = kafka.CONTROL if rng.random() < 0.1 else 0
        found.append(
            kafka.encode_batch(kafka.Batch(base, base + len(rows) - 1, 3, rows, 0, 9, attributes=attributes))
        )
        base += len(rows)
    return found


def one_by_one(data: bytes, end: int) -> tuple[list[tuple[int, bytes]], tuple[int, int] | None]:
    """Return the sound batches of data[:end] and their positions, and what is told of damage, if there is."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at + HEAD_SIZE <= min(len(data), end):
        size = head(data, at).size
        if not HEAD_SIZE <= size <= topic_places.FILE_BYTES_MAX:
            return found, (at, -1)
        if at + size > min(len(data), end):
            break
        if not is_sound(data, at, at + size):
            return found, (at, at + size)
        found.append((at, data[at : at + size]))
        at += size
    return found, None


def walked(folder: Path, size: int) -> tuple[list[tuple[int, bytes]], tuple[int, int] | None]:
    found: list[RawBatch] = []
    damage = None
    try:
        found.extend(walk(FileSource(f"{folder}"), KEY, 0, size))
    except Damaged as error:
        damage = error.position, error.following
    return [(each.head.position, bytes(each.data)) for each in found], damage


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 30), st.integers(0, 3), st.integers(64, 5000), st.integers(1, 60))
def test_the_same_batches_and_the_same_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, flips: int, piece: int, records: int
) -> None:
    monkeypatch.setattr(topic_places, "FILE_PIECE", piece)
    monkeypatch.setattr(stretches, "RECORDS_MAX", records)
    rng = Random(seed)
    batches = batches_of(rng, rng.randrange(1, 80))
    data = bytearray(b"".join(batches))
    for _ in range(flips):
        begin = sum(map(len, batches[: rng.randrange(len(batches))]))
        place = rng.choice([8, 9, 11, 16, 17, 61, rng.randrange(70)])
        data[min(begin + place, len(data) - 1)] ^= 1 << rng.randrange(8)
    del data[len(data) - rng.choice([0, 0, 1, 30, 70]) :]
    (tmp_path / KEY).write_bytes(data)
    size = len(data) + 1000 if rng.random() < 0.5 else rng.randrange(len(data) + 1)
    assert walked(tmp_path, size) == one_by_one(bytes(data), size)


def test_one_byte_of_any_batch_among_many_is_seen(tmp_path: Path) -> None:
    batches = batches_of(Random(1), 200)
    for which in (0, 1, 100, 199):
        begin = sum(map(len, batches[:which]))
        data = bytearray(b"".join(batches))
        data[begin + len(batches[which]) - 1] ^= 1
        (tmp_path / KEY).write_bytes(data)
        found, damage = walked(tmp_path, len(data))
        assert len(found) == which
        assert damage == (begin, begin + len(batches[which]))


def test_stretches_have_no_more_records_than_their_columns_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "RECORDS_MAX", 10)
    data = b"".join(batches_of(Random(2), 100))
    (tmp_path / KEY).write_bytes(data)
    found = list(walk_stretches(FileSource(f"{tmp_path}"), KEY, 0, len(data)))
    assert len(found) > 10
    assert all(each.counts()[:-1].sum() < 2 * 10 for each in found)
    assert b"".join(bytes(batch.data) for each in found for batch in each.batches()) == data


def stretch_with(offsets: list[tuple[int, int]]) -> Stretch:
    """Batches of these first and last offsets."""
    row = (kafka.Rec(0, 0, None, b""),)
    found = joined([kafka.encode_batch(kafka.Batch(0, 0, 3, row, 0, 9)) for _ in offsets])
    heads = found.heads.copy()
    heads["base"] = [first for first, _ in offsets]
    heads["delta"] = [last - first for first, last in offsets]
    return found._replace(heads=heads)


OFFSETS = st.integers(0, 40) | st.sampled_from([-(1 << 63), -5, (1 << 63) - 1, (1 << 63) - 3])
DELTAS = st.integers(0, 9) | st.sampled_from([-(1 << 31), -1, (1 << 31) - 1])


@given(st.lists(st.tuples(OFFSETS, DELTAS), min_size=1, max_size=12), OFFSETS, OFFSETS)
def test_choosing_by_offsets_is_as_one_by_one(rows: list[tuple[int, int]], first: int, end: int) -> None:
    offsets = [(base, base + delta) for base, delta in rows]
    stretch = stretch_with(offsets)
    limits = np.iinfo(np.int64)
    last = [min(max(each, limits.min), limits.max) for _, each in offsets]
    assert stretch.last_offsets().tolist() == last
    bases = [base for base, _ in offsets]
    over = [number for number, base in enumerate(bases) if base >= end]
    assert stretch.before(end).base_offsets().tolist() == bases[: over[0] if over else None]
    at, kept = first, []
    for base, each in zip(bases, last, strict=True):
        if each >= at:
            at = each + 1
            kept.append(base)
    assert stretch.rising_from(first).base_offsets().tolist() == kept


def test_control_batches_are_no_data() -> None:
    batches = batches_of(Random(3), 60)
    stretch = joined(batches)
    wanted = [data for data in batches if not head(data, 0).is_control]
    assert 0 < len(wanted) < len(batches)
    assert [bytes(each.data) for each in stretch.of_data().batches()] == wanted
