"""Random rows and objects of the WAL tier."""

from __future__ import annotations

from hypothesis import strategies as st

from protocol.checksum import crc32c
from remote.keys import Stream
from remote.wal.combined_object import Head, ObjectKind, Place, Row, encode_table, place_slices

I32 = st.integers(0, 2**31 - 1)
I64 = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)

STREAMS = st.builds(Stream, I32, I64, U32)
PLACES = st.builds(Place, STREAMS, I64)


@st.composite
def rows(draw: st.DrawFn, data: bytes) -> Row:
    start = draw(st.integers(0, 2**62))
    return Row(
        topic_id=draw(st.uuids()),
        partition=draw(I32),
        leader_epoch=draw(I32),
        epoch_start=draw(I64),
        batch_epoch=draw(st.integers(-1, 2**31 - 1)),
        start=start,
        end=start + draw(st.integers(1, 2**61)),
        log_start=draw(I64),
        position=0,
        size=len(data),
        crc32c=crc32c(data),
        previous=draw(st.none() | PLACES),
    )


@st.composite
def heads(draw: st.DrawFn, kind: ObjectKind = ObjectKind.SLICES) -> Head:
    return Head(
        kind=kind,
        cluster_id=draw(st.text(max_size=30)),
        place=draw(PLACES),
        put_id=draw(st.binary(min_size=16, max_size=16)),
        metadata_seq=draw(I64),
        writer=draw(st.tuples(st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1))),
        written_ms=draw(I64),
    )


@st.composite
def objects(draw: st.DrawFn) -> tuple[Head, list[Row], list[bytes], bytes]:
    """Return an object: its head, rows and slices, and its bytes."""
    head = draw(heads())
    slices = draw(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6))
    placed = place_slices(head.cluster_id, [draw(rows(each)) for each in slices])
    return head, placed, slices, encode_table(head, placed) + b"".join(slices)
