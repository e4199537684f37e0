"""Records of every codec are those that were written, others are refused, and nothing grows too large."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verify import kafka_bytes as kafka
from tools.verify.core import records
from tools.verify.core.heads import Batch, head
from tools.verify.core.records import BadRecords, read_records

BYTES = st.none() | st.binary(max_size=30)
RECORDS = st.lists(
    st.builds(
        kafka.Rec,
        st.just(0),
        st.integers(-5, 5000),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=4), BYTES), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def batch_of(rows: list[kafka.Rec], **more: object) -> tuple[bytes, Batch]:
    made = kafka.Batch(40, 40 + len(rows) - 1, 3, tuple(rows), 1000, 9000, **more)  # type: ignore[arg-type]
    data = kafka.encode_batch(made)
    return data, head(data, 0)


@pytest.mark.parametrize("codec", range(5))
@given(rows=RECORDS)
def test_records_are_read_as_they_were_written(codec: int, rows: list[kafka.Rec]) -> None:
    made = [row._replace(delta=at) for at, row in enumerate(rows)]
    data, batch = batch_of(made, codec=codec)
    assert [tuple(each) for each in read_records(data, batch)] == [
        (40 + row.delta, 1000 + row.time_delta, row.key, row.value) for row in made
    ]


def test_a_batch_may_have_the_time_of_its_append() -> None:
    data, batch = batch_of([kafka.Rec(0, 77, None, b"x")], attributes=kafka.LOG_APPEND_TIME)
    assert [each.timestamp for each in read_records(data, batch)] == [9000]


def test_offsets_may_have_gaps() -> None:
    made = kafka.Batch(40, 60, 3, (kafka.Rec(3, 0, b"k", b"v"), kafka.Rec(9, 0, b"k", b"v")), 0, 0)
    data = kafka.encode_batch(made)
    assert [each.offset for each in read_records(data, head(data, 0))] == [43, 49]


def test_members_of_gzip_may_follow_each_other() -> None:
    rows = [kafka.encode_record(kafka.Rec(at, 0, b"k", b"v")) for at in range(2)]
    packed = b"".join(kafka.compress(kafka.GZIP, row) for row in rows)
    made = kafka.Batch(0, 1, 0, (), 0, 0, codec=kafka.GZIP)
    data = kafka.encode_batch(made, count=2, records=packed)
    assert [each.offset for each in read_records(data, head(data, 0))] == [0, 1]


BAD = {
    "more than there are": {"count": 3},
    "fewer than there are": {"count": 1},
    "as many as no memory holds": {"count": (1 << 31) - 1},
    "less than none": {"count": -1},
    "no records": {"records": b"\xff" * 40},
    "a record past the end": {"records": b"\x80\x01" + bytes(30)},
    "a record that ends early": {"records": b"\x10" + bytes(30)},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_record_is_refused(name: str) -> None:
    made = kafka.Batch(0, 1, 0, (kafka.Rec(0, 0, b"k", b"v"), kafka.Rec(1, 0, b"k", b"v")), 0, 0)
    data = kafka.encode_batch(made, **BAD[name])  # type: ignore[arg-type]
    with pytest.raises(BadRecords):
        read_records(data, head(data, 0))


def test_an_offset_outside_its_batch_is_refused() -> None:
    made = kafka.Batch(5, 5, 0, (kafka.Rec(1, 0, b"k", b"v"),), 0, 0)
    data = kafka.encode_batch(made)
    with pytest.raises(BadRecords, match="offset 6"):
        read_records(data, head(data, 0))


@pytest.mark.parametrize("codec", range(8))
@given(packed=st.binary(max_size=200), count=st.integers(0, 10))
def test_any_bytes_are_records_or_refused(codec: int, packed: bytes, count: int) -> None:
    data = kafka.encode_batch(kafka.Batch(0, 9, 0, (), 0, 0, codec=codec), count=count, records=packed)
    try:
        found = list(read_records(data, head(data, 0)))
    except BadRecords:
        return
    assert len(found) == count


@pytest.mark.parametrize("codec", range(1, 5))
def test_packed_bytes_that_were_altered_are_records_or_refused(codec: int) -> None:
    rng = Random(codec)
    rows = b"".join(kafka.encode_record(kafka.Rec(at, at, b"key", rng.randbytes(20))) for at in range(10))
    refused = 0
    for framed in (False, True):
        packed = kafka.compress(codec, rows, is_framed=framed)
        for _ in range(150):
            altered = bytearray(packed)
            altered[rng.randrange(len(altered))] ^= 1 << rng.randrange(8)
            cut = altered[: rng.randrange(len(altered))] if rng.random() < 0.3 else altered
            data = kafka.encode_batch(
                kafka.Batch(0, 9, 0, (), 0, 0, codec=codec), count=10, records=bytes(cut)
            )
            try:
                list(read_records(data, head(data, 0)))
            except BadRecords:
                refused += 1
    assert refused > 60


BOMBS = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
import gzip, cramjam
from tests.verify import kafka_bytes as kafka
from tools.verify.core.heads import head
from tools.verify.core.records import BadRecords, read_records
plain = bytes(160 << 20)
packed = {
    1: gzip.compress(plain, 1),
    2: bytes(cramjam.snappy.compress_raw(plain)),
    3: bytes(cramjam.lz4.compress(plain)),
    4: bytes(cramjam.zstd.compress(plain)),
}
packed[2], framed = packed[2], kafka.SNAPPY_HEAD + (len(packed[2]).to_bytes(4, "big") + packed[2]) * 3
del plain
for codec, records in [*packed.items(), (2, framed)]:
    for count in (1, (1 << 31) - 1):
        batch = kafka.encode_batch(kafka.Batch(0, 9, 0, (), 0, 0, codec=codec), count=count, records=records)
        try:
            read_records(batch, head(batch, 0))
        except BadRecords:
            print("refused", codec)
"""


def test_what_unpacks_to_more_than_there_is_memory_for_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for codec in (1, 2, 3, 4, 2) for word in ("refused", str(codec)) * 2]


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_packs_well_is_unpacked(codec: int) -> None:
    rows = [kafka.Rec(0, 0, None, bytes(3 << 20))]
    data, batch = batch_of(rows, codec=codec)
    assert len(data) < 300_000
    assert [len(each.value or b"") for each in read_records(data, batch)] == [3 << 20]


def test_snappy_says_how_large_it_was() -> None:
    """The bound on what a block may hold is no narrower than snappy itself."""
    plain = bytes(records.RECORDS_BYTES_MAX // 4)
    packed = bytes(cramjam.snappy.compress_raw(plain))
    assert bytes(records.unpack(2, memoryview(packed))) == plain
