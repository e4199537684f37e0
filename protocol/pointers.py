"""Where records lie that a leader points its follower to instead of sending them: tagged fields of a Fetch.

Owns: these fields, there and back. Does not own: the Fetch around them (fetch.py), what may be pointed to
(remote.wal.tail), reading what is pointed to. Invariant: a Fetch without these fields is Kafka's, byte for
byte; whatever the bytes, reading gives what was packed or MalformedRequest.

A request that may be answered so says it once, with an empty field. Each of its partitions may say from where
pointers are wanted, where that is not its offset. A response lists each object once; a partition names it by
its place in that list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import MalformedRequest
from protocol.peers import OUR_TAGS_FROM
from protocol.primitives import pack_uvarint, read_uvarint

POINTER_TAG: Final = OUR_TAGS_FROM
"""The one tag, in the request, in its partitions, in the response and in its partitions."""
FROM_OFFSET: Final = -1
"""Pointers are wanted from the partition's own offset."""
BYTES: Final = -2
"""No pointers are wanted: the records themselves."""
NOTHING: Final = (1 << 63) - 1
"""Neither, for now: what was pointed to is still being read."""

_FROM: Final = Struct(">q")
_OBJECT: Final = Struct(">iqIq")
_SLICE: Final = Struct(">HQIIqqi")


class ObjectPlace(NamedTuple):
    """Where an object of the WAL tier lies: its stream and its number there."""

    node_id: int
    broker_epoch: int
    generation: int
    seq: int


class SlicePointer(NamedTuple):
    """Consecutive batches of one partition in one object."""

    object: int
    """Which of the objects that the response lists."""
    position: int
    size: int
    crc32c: int
    start: int
    end: int
    """Exclusive; compaction leaves gaps at both ends."""
    batch_epoch: int
    """The one that is stamped on the batches."""


def pack_takes_pointers() -> bytes:
    """Return what a request carries, behind the number of its tagged fields, that takes pointers."""
    return _TAG + b"\x00"


def pack_from(pointed: int) -> bytes:
    """Return the tagged field, without a number of fields before it, of one partition that is asked for."""
    return _TAG + bytes((_FROM.size,)) + _FROM.pack(pointed)


def read_from(field: memoryview) -> int:
    if len(field) != _FROM.size:
        raise MalformedRequest(f"where pointers are wanted from, in {len(field)} bytes")
    pointed: int = _FROM.unpack(field)[0]
    return pointed


def pack_pointers(pointers: Sequence[SlicePointer]) -> bytes:
    """Return the tagged field, without a number of fields before it, of one partition that is answered."""
    return _field(len(pointers), [_SLICE.pack(*pointer) for pointer in pointers])


def read_pointers(field: memoryview) -> tuple[SlicePointer, ...]:
    return tuple(map(SlicePointer._make, _SLICE.iter_unpack(_entries(field, _SLICE))))


def pack_objects(objects: Iterable[ObjectPlace]) -> bytes:
    """Return the tagged field, without a number of fields before it, of a response."""
    packed = [_OBJECT.pack(*place) for place in objects]
    return _field(len(packed), packed)


def read_objects(field: memoryview) -> tuple[ObjectPlace, ...]:
    return tuple(map(ObjectPlace._make, _OBJECT.iter_unpack(_entries(field, _OBJECT))))


def _field(count: int, packed: list[bytes]) -> bytes:
    body = pack_uvarint(count) + b"".join(packed)
    return _TAG + pack_uvarint(len(body)) + body


def _entries(field: memoryview, layout: Struct) -> memoryview:
    count, at = read_uvarint(field, 0)
    if len(field) - at != count * layout.size:
        raise MalformedRequest(f"{count} pointers or objects in {len(field) - at} bytes")
    return field[at:]


_TAG: Final = pack_uvarint(POINTER_TAG)
