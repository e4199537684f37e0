"""What a stored batch becomes before it is sent on: the same records, as a producer would send them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from protocol.records import Record, build_batch, check_produced, iter_records, parse_header
from tools.pipelines.outgoing import Outgoing, Times, outgoing, signed

Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

maybe_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple)
contents = st.lists(
    st.tuples(st.integers(0, 2000), maybe_bytes, maybe_bytes, headers), min_size=1, max_size=12
)
codecs = st.sampled_from([0, 1, 2, 3, 4])


def stored(
    rows: Sequence[Content], *, base: int, gaps: bool, codec: int, append_time: int | None = None
) -> memoryview:
    step = 2 if gaps else 1
    records = [
        Record(base + at * step, time, key, value, names) for at, (time, key, value, names) in enumerate(rows)
    ]
    batch = build_batch(
        records,
        base_offset=base,
        codec=codec,
        leader_epoch=7,
        producer_id=99,
        producer_epoch=3,
        base_sequence=12,
        transactional=True,
        log_append_time=append_time,
        last_offset=records[-1].offset + (1 if gaps else 0),
    )
    return memoryview(batch)


def content(out: Outgoing) -> list[Content]:
    data = signed(out.data, 5, 0, 17)
    [(_, header)] = check_produced(data, walk=True)  # what any broker checks
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 0, 17)
    assert header.count == out.records
    assert not header.is_transactional
    return [(each.timestamp, each.key, each.value, each.headers) for each in iter_records(data, 0, header)]


@given(contents, st.integers(0, 2**40), st.booleans(), codecs, st.none() | st.integers(0, 10**12))
def test_all_records_go_out_as_they_are(
    rows: list[Content], base: int, gaps: bool, codec: int, append_time: int | None
) -> None:
    batch = stored(rows, base=base, gaps=gaps, codec=codec, append_time=append_time)
    header = parse_header(batch)
    out = outgoing(batch, header, base, header.next_offset)
    assert out is not None
    timed = rows if append_time is None else [(append_time, *row[1:]) for row in rows]
    assert content(out) == timed
    assert parse_header(out.data).codec == header.codec
    again = outgoing(batch, header, base, header.next_offset)
    assert again is not None
    assert signed(again.data, 5, 0, 17) == out.data


@given(contents, codecs, st.integers(0, 12), st.integers(0, 12), st.integers(0, 2000), st.integers(0, 2000))
def test_only_what_was_asked_for_goes_out(
    rows: list[Content], codec: int, skip: int, take: int, since: int, until: int
) -> None:
    batch = stored(rows, base=100, gaps=False, codec=codec)
    out = outgoing(batch, parse_header(batch), 100 + skip, 100 + skip + take, Times(since, until))
    wanted = [row for row in rows[skip : skip + take] if since <= row[0] < until]
    assert (content(out) if out is not None else []) == wanted


@given(contents, codecs, st.integers(0, 12), st.integers(0, 12))
def test_a_batch_that_is_asked_for_in_part_goes_out_in_part(
    rows: list[Content], codec: int, skip: int, take: int
) -> None:
    batch = stored(rows, base=100, gaps=False, codec=codec)
    out = outgoing(batch, parse_header(batch), 100 + skip, 100 + skip + take)
    assert (content(out) if out is not None else []) == rows[skip : skip + take]


def test_an_untouched_batch_keeps_its_compressed_bytes() -> None:
    batch = stored([(1, b"k", b"v" * 500, ())] * 3, base=10, gaps=False, codec=4)
    out = outgoing(batch, parse_header(batch), 0, 100)
    assert out is not None
    assert out.data[61:] == batch[61:]
