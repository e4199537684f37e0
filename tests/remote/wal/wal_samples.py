"""Random rows and objects of the WAL tier."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from protocol.checksum import crc32c
from remote.keys import Stream
from remote.wal.combined_object import Head, ObjectKind, Place, Row, encode_table, place_slices
from remote.wal.storage_manager import CombinedMetadata

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


# --- one that is known ---

SOME_PLACE = Place(Stream(1, 7, 0), 3)


def some_object(
    *,
    place: Place = SOME_PLACE,
    seq: int | None = None,
    put_id: bytes = b"p" * 16,
    kind: ObjectKind = ObjectKind.SLICES,
    slices: tuple[bytes, ...] = (b"first slice", b"second slice"),
) -> tuple[CombinedMetadata, bytes]:
    """Return an object as it is copied, and its bytes; a seal has no slices."""
    place = place if seq is None else place._replace(seq=seq)
    head = Head(
        kind=kind,
        cluster_id="cluster",
        place=place,
        put_id=put_id,
        metadata_seq=5,
        writer=(1, 7),
        written_ms=0,
    )
    held = slices if kind is ObjectKind.SLICES else ()
    placed = place_slices(
        head.cluster_id,
        [
            Row(
                topic_id=UUID(int=1),
                partition=number,
                leader_epoch=0,
                epoch_start=0,
                batch_epoch=0,
                start=10,
                end=20,
                log_start=0,
                position=0,
                size=len(each),
                crc32c=crc32c(each),
                previous=None,
            )
            for number, each in enumerate(held)
        ],
    )
    return CombinedMetadata(head=head, rows=tuple(placed)), encode_table(head, placed) + b"".join(held)
