"""Finding record batches, sound and damaged, in pieces of any size."""

from __future__ import annotations

import itertools
import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.verify.core.logs import batch, marker
from tools.verify.core import batches as scanning
from tools.verify.core.batches import RunScanner, Scanned, batches
from tools.verify.core.facts import Mark, ProducerRun, Run
from tools.verify.core.tables import SUM_MASK


def scan(data: bytes, pieces: int = 1 << 30, *, first: int = 0, limit: int = scanning.BATCH_LIMIT) -> Scanned:
    scanner = RunScanner("p", first=first, batch_limit=limit)
    for start in range(0, len(data), pieces):
        scanner.feed(data[start : start + pieces])
    return scanner.finish()


def log(seed: int, count: int = 40, *, epochs: int = 3) -> list[bytes]:
    """Batches of plain and idempotent producers and of transactions."""
    rng = random.Random(seed)
    offset = rng.choice([0, 5, 70_000])
    epoch = 0
    out: list[bytes] = []
    sequences = {1: 0, 2: 2**31 - 3}
    while len(out) < count:
        epoch += rng.random() < epochs / count
        values = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 5))]
        kind = rng.randrange(5)
        if kind < 2:
            out.append(batch(offset, values, epoch=epoch, timestamp=1000 + offset))
        elif kind == 2:
            out.append(marker(offset, 2, 0, is_commit=rng.random() < 0.5, epoch=epoch, coordinator_epoch=4))
            values = [b""]
        else:
            producer = rng.choice([1, 2])
            sequence = sequences[producer]
            sequences[producer] = sequence + len(values) & 0x7FFFFFFF
            out.append(
                batch(
                    offset,
                    values,
                    epoch=epoch,
                    attributes=16 if producer == 2 else 0,
                    producer=(producer, 0, sequence),
                )
            )
        offset += len(values)
    return out


def digest_of(data: bytes) -> dict[int, tuple[int, int, int]]:
    """By bucket, in plain numbers: batches, and the sums of both halves."""
    out: dict[int, tuple[int, int, int]] = {}
    bits = (1 << 64) - 1
    for each in batches(data):
        mixed = each.base_offset * 0x9E3779B97F4A7C15 & bits
        mixed ^= each.size << 32 | each.crc
        mixed = mixed + (each.leader_epoch & 0xFFFFFFFF) * 0xC2B2AE3D27D4EB4F & bits
        mixed ^= mixed >> 33
        mixed = mixed * 0xFF51AFD7ED558CCD & bits
        mixed ^= mixed >> 33
        mixed = mixed * 0xC4CEB9FE1A85EC53 & bits
        mixed ^= mixed >> 33
        count, low, high = out.get(each.base_offset >> 14, (0, 0, 0))
        out[each.base_offset >> 14] = (
            count + 1,
            low + (mixed & 0xFFFFFFFF) & SUM_MASK,
            high + (mixed >> 32) & SUM_MASK,
        )
    return out


def runs_of(data: bytes) -> list[tuple[int, ...]]:
    """(first, end, epoch, batches, records) of what has no hole."""
    out: list[list[int]] = []
    for each in batches(data):
        if out and out[-1][1] == each.base_offset and out[-1][2] == each.leader_epoch:
            out[-1][1] = each.last_offset + 1
            out[-1][3] += 1
            out[-1][4] += each.record_count
        else:
            row = [each.base_offset, each.last_offset + 1, each.leader_epoch, 1, each.record_count]
            out.append(row)
    return [tuple(row) for row in out]


@given(st.integers(0, 1000), st.sampled_from([1, 7, 60, 61, 62, 300, 1000, 4096, 1 << 20]))
def test_facts_of_sound_bytes_do_not_depend_on_the_pieces(seed: int, pieces: int) -> None:
    data = b"".join(log(seed))
    found = scan(data, pieces)
    assert found.faults == []
    assert (found.size, found.crc, found.valid_end) == (len(data), crc32c(data), len(data))
    assert found == scan(data)
    assert [(r.first, r.end, r.leader_epoch, r.batches, r.records) for r in found.runs] == runs_of(data)
    assert sum(run.size for run in found.runs) == len(data)
    assert {d.bucket: (d.batches, d.low, d.high) for d in found.digests} == digest_of(data)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        *(("batches.FOLDED", value) for value in (1, 7)),
        *(("batches.LITTLE", value) for value in (0, 1 << 20)),
        *((f"{module}.FEW", value) for module in ("tables", "batches") for value in (0, 3, 1 << 20)),
    ],
)
def test_nor_on_how_many_are_taken_at_once(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        parts = log(seed)
        data = bytearray(b"".join(parts))
        found = [scan(bytes(data), 3000)]
        data[len(data) // 2] ^= 1
        found.append(scan(bytes(data), 3000))
        with monkeypatch.context() as patch:
            patch.setattr(f"tools.verify.core.{limit}", value)
            assert scan(bytes(data), 3000) == found[1], seed
            assert scan(b"".join(parts), 3000) == found[0], seed


def test_a_plain_view_of_the_batches() -> None:
    data = batch(5, [b"a", b"b"], epoch=3, producer=(9, 1, 7)) + marker(7, 9, is_commit=True)
    one, two = batches(data + b"\0" * 70, position=100)
    assert (one.position, one.base_offset, one.last_offset, one.leader_epoch) == (100, 5, 6, 3)
    assert (one.producer_id, one.producer_epoch, one.base_sequence, one.record_count) == (9, 1, 7, 2)
    assert not one.is_control
    assert two.is_control
    assert two.is_transactional
    assert two.position == 100 + one.size


def test_sequences_wrap_and_each_break_of_them_begins_a_run() -> None:
    top = 2**31 - 1
    data = (
        batch(0, [b"a", b"b"], producer=(7, 0, top - 1))
        + batch(2, [b"c"], producer=(7, 0, 0))
        + batch(3, [b"d"], producer=(7, 0, 2))
        + batch(4, [b"e"], producer=(7, 1, 0), timestamp=5)
    )
    assert scan(data).producers == [
        ProducerRun("p", 7, 0, top - 1, 0, 0, 3, 1_700_000_000_000),
        ProducerRun("p", 7, 0, 2, 2, 3, 4, 1_700_000_000_000),
        ProducerRun("p", 7, 1, 0, 0, 4, 5, 5),
    ]
    assert scan(data, 50).producers == scan(data).producers


def test_transactions_begin_once_and_end_with_their_marker() -> None:
    data = (
        batch(0, attributes=16, producer=(7, 0, 0))
        + batch(1, attributes=16, producer=(8, 0, 0))
        + batch(2, attributes=16, producer=(7, 0, 1))
        + marker(3, 7, 1, is_commit=False, coordinator_epoch=12)
        + batch(4, attributes=16, producer=(7, 1, 0))
        + marker(5, 8, is_commit=True)
    )
    for pieces in (40, 1 << 20):
        assert scan(data, pieces).marks == [
            Mark("p", 7, 0, 0, 0),
            Mark("p", 8, 0, 1, 0),
            Mark("p", 7, 1, 3, 2, 12),
            Mark("p", 7, 1, 4, 0),
            Mark("p", 8, 0, 5, 1, 0),
        ]


def test_holes_between_offsets_end_a_run_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.verify.core.tables.GAPS_SPLIT", 2)
    data = b"".join(batch(offset) for offset in (0, 1, 5, 9, 12, 13, 20))
    for pieces in (10, 200, 1 << 20):
        found = scan(data, pieces)
        runs = [(run.first, run.end, run.has_gaps) for run in found.runs]
        assert runs == [(0, 2, False), (5, 6, False), (9, 21, True)]
        assert not found.faults


def test_what_compaction_left_of_a_batch_is_a_gap_within() -> None:
    data = batch(3, [b"a"], delta=4) + batch(8, [], delta=1, producer=(7, 0, 0)) + batch(10)
    (run,) = scan(data).runs
    assert run == Run("p", 0, len(data), 3, 11, 0, 3, 2, 0, 1_700_000_000_000, True)
    assert not scan(data).faults


# --- damage ---

FIELDS = {
    "base": (0, 8),
    "length": (8, 12),
    "magic": (16, 17),
    "crc": (17, 21),
    "attributes": (21, 23),
    "delta": (23, 27),
    "first_timestamp": (27, 35),
    "max_timestamp": (35, 43),
    "producer": (43, 57),
    "count": (57, 61),
    "records": (61, 70),
}
CODES = {"base": "offset-back", "length": "bad-length", "magic": "bad-magic"}
LOG = [batch(10 + 2 * at, [b"v" * 20, b"w" * at], epoch=1) for at in range(12)]


@pytest.mark.parametrize("pieces", [61, 1 << 20])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("which", [0, 5, 11])
def test_each_byte_of_a_batch_that_changes_is_one_fault_at_its_place(
    field: str, which: int, pieces: int
) -> None:
    position = sum(map(len, LOG[:which]))
    first = 10 + 2 * which
    for at, flip in itertools.product(range(*FIELDS[field]), (0x01, 0xFF)):
        data = bytearray(b"".join(LOG))
        data[position + at] ^= flip
        found = scan(bytes(data), pieces, first=10)
        base = int.from_bytes(data[position : position + 8], "big", signed=True)
        if field == "base" and which == 11 and first < base < 1 << 62:
            assert not found.faults
            assert [(run.first, run.end) for run in found.runs] == [(10, first), (base, base + 2)]
            continue
        assert [(f.code, f.position) for f in found.faults] == [(CODES.get(field, "bad-crc"), position)]
        (fault,) = found.faults
        if which < 11:
            assert (fault.first, fault.end) == (first, first + 2)
        elif field != "base":
            assert (fault.first, fault.end) == (first, -1)
        kept = [(run.first, run.end) for run in found.runs]
        assert kept == [part for part in ((10, first), (first + 2, 34)) if part[0] < part[1]]


def test_a_raised_epoch_byte_ends_a_run() -> None:
    data = bytearray(b"".join(LOG))
    data[len(LOG[0]) + 15] = 2
    assert [run.leader_epoch for run in scan(bytes(data)).runs] == [1, 2, 1]


@pytest.mark.parametrize("pieces", [17, 1 << 20])
def test_a_tail_cut_at_any_byte_is_torn(pieces: int) -> None:
    whole = b"".join(LOG)
    for left in range(1, len(LOG[-1])):
        data = whole[: len(whole) - len(LOG[-1]) + left]
        found = scan(data, pieces)
        (fault,) = found.faults
        assert (fault.code, fault.position, fault.first) == ("torn-tail", len(data) - left, 32), left
        assert found.valid_end == len(data) - left
        assert found.size == len(data)


@pytest.mark.parametrize(
    "junk", [b"\xff" * 5, b"\xde\xad" * 40, b"\0" * 200, b"hello world, this is not a batch" * 9]
)
def test_what_belongs_to_no_batch_is_named(junk: bytes) -> None:
    data = b"".join(LOG)
    for pieces in (17, 1 << 20):
        (fault,) = scan(data + junk, pieces).faults
        assert (fault.code, fault.position) == ("trailing-bytes", len(data))


@pytest.mark.parametrize("pieces", [33, 1 << 20])
def test_batches_that_are_there_twice_or_moved_are_out_of_order(pieces: int) -> None:
    twice = [*LOG[:4], LOG[3], *LOG[4:]]
    (fault,) = scan(b"".join(twice), pieces).faults
    assert (fault.code, fault.position) == ("offset-back", sum(map(len, LOG[:4])))
    assert (fault.first, fault.end) == (16, 18)
    swapped = [*LOG[:4], LOG[5], LOG[4], *LOG[6:]]
    (fault,) = scan(b"".join(swapped), pieces).faults
    assert (fault.code, fault.position, fault.first, fault.end) == (
        "offset-back",
        sum(map(len, LOG[:4])),
        20,
        22,
    )


def test_counts_that_cannot_be_are_named_though_the_checksum_is_right() -> None:
    data = batch(0, [b"a", b"b"], count=3) + batch(2, count=-1) + batch(3)
    assert [(f.code, f.first) for f in scan(data).faults] == [("count-mismatch", 0), ("count-mismatch", 2)]
    assert [(run.first, run.end) for run in scan(data).runs] == [(0, 4)]


def test_several_damaged_batches_are_each_named() -> None:
    data = bytearray(b"".join(LOG))
    starts = [sum(map(len, LOG[:at])) for at in range(len(LOG))]
    data[starts[2] + 65] ^= 1
    data[starts[3] + 9] ^= 0x40
    data[starts[7] + 16] = 1
    del data[starts[9] : starts[10]]
    found = scan(bytes(data))
    assert [(f.code, f.position, f.first, f.end) for f in found.faults] == [
        ("bad-crc", starts[2], 14, 16),
        ("bad-length", starts[3], 16, 18),
        ("bad-magic", starts[7], 24, 26),
    ]
    assert [(run.first, run.end) for run in found.runs] == [(10, 14), (18, 24), (26, 28), (30, 34)]


def test_a_page_of_zeros_over_several_batches_is_one_fault_each_side_of_it() -> None:
    batches_of_log = [batch(at, [b"z" * 100]) for at in range(100)]
    data = bytearray(b"".join(batches_of_log))
    size = len(batches_of_log[0])
    data[20 * size + 80 : 30 * size + 10] = bytes(10 * size - 70)
    found = scan(bytes(data))
    assert [(f.position, f.first, f.end) for f in found.faults] == [(20 * size, 20, 31)]
    assert [(run.first, run.end) for run in found.runs] == [(0, 20), (31, 100)]


# --- hostile bytes ---


@given(st.binary(max_size=2000), st.integers(1, 300), st.integers(0, 30))
def test_any_bytes_are_read_to_their_end(junk: bytes, pieces: int, seed: int) -> None:
    data = b"".join(log(seed, 3)) + junk + b"".join(log(seed, 2))
    found = scan(data, pieces, limit=5000)
    assert found.size == len(data)
    assert found.crc == crc32c(data)


def test_lengths_of_two_gigabytes_cost_no_memory_and_the_search_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanning, "SEARCH_LIMIT", 1 << 20)
    evil = struct.pack(">qiibI", 1, 300_000, 0, 2, 0) + bytes(44)
    data = batch(0) + struct.pack(">qi", 1, 2**31 - 1) + evil * 30_000
    scanner = RunScanner("p", batch_limit=400_000)
    for start in range(0, len(data), 100_000):
        scanner.feed(data[start : start + 100_000])
    (fault,) = scanner.finish().faults
    assert (fault.code, fault.position) == ("bad-length", len(batch(0)))
    assert "not searched" in fault.actual


def test_facts_of_a_kind_are_bounded_and_what_is_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.verify.core.tables.FACTS_LIMIT", 10)
    data = b"".join(batch(at, epoch=at, producer=(at, 0, 0), attributes=16) for at in range(30))
    found = scan(data)
    assert len(found.runs) == len(found.marks) == len(found.producers) == 10
    assert found.dropped == 60


@pytest.mark.parametrize("pieces", [1 << 20, 5_000, 700])
@pytest.mark.parametrize("odd", [0, 31, 32, 33, 40, 150, 199])
def test_batches_of_one_size_are_followed_past_one_of_another_and_to_a_damaged_one(
    odd: int, pieces: int
) -> None:
    rows = [batch(at, [b"y" * (9 if at == odd else 5)]) for at in range(200)]
    data = b"".join(rows)
    found = scan(data, pieces)
    assert found.faults == []
    assert [(run.first, run.end, run.batches, run.size) for run in found.runs] == [(0, 200, 200, len(data))]
    position = sum(map(len, rows[:odd]))
    for at, code in ((8, "bad-length"), (70, "bad-crc")):
        damaged = bytearray(data)
        damaged[position + at] ^= 0x40
        (fault,) = scan(bytes(damaged), pieces).faults
        assert fault.position == position
        assert fault.code in (code, "torn-tail", "trailing-bytes") if odd == 199 else fault.code == code
