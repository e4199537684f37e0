"""Short OffsetCommits by hand: consumers send one each few seconds, all of them.

Owns: reading a request of few partitions, and packing the response to it. Does not own: meaning, nor any
other OffsetCommit, which the general codec reads.
Invariant: what is read and packed here is what the generated message types read and write (a property test
holds the two together); whatever is not the plain case is left to them by None.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from protocol.errors import MalformedRequest
from protocol.primitives import (
    INT32,
    NO_TAGS,
    TopicKey,
    pack_count,
    pack_topic,
    read_text,
    read_uuid,
    read_uvarint,
)

SHORT_ROWS_MAX: Final = 16
"""Topics, and partitions of each, of a request that is read here."""
_BYTES_MAX: Final = 16 << 10
"""No text in it is longer than texts may be."""
_SHORT_TEXT: Final = 0x7F
_FLEXIBLE: Final = 8
_TOPIC_IDS: Final = 10
_INSTANCE_ID: Final = 7
_LEADER_EPOCH: Final = 6
_RETENTION: Final = range(2, 5)
_RETENTION_MAX_MS: Final = 1 << 40
_THROTTLE: Final = 3

_INT64: Final = Struct(">q")
_PARTITION: Final = Struct(">iqi")
_PARTITION_V5: Final = Struct(">iq")
_COMMITTED: Final = Struct(">ih")
_COMMITTED_FLEXIBLE: Final = Struct(">ihx")
_HEAD: Final = Struct(">ii")
"""Size and correlation id."""
_HEAD_THROTTLE: Final = Struct(">iii")
_HEAD_FLEXIBLE: Final = Struct(">iixi")

Row = tuple[int, int, int, str | None]
"""Partition, offset, leader epoch, metadata."""


class ShortCommit(NamedTuple):
    """An OffsetCommit of few partitions."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int
    topics: list[tuple[TopicKey, list[Row]]]
    places: tuple[int, ...] = ()
    """Where in the frame the offsets are."""

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(row[1] for _, rows in self.topics for row in rows)


def parse_short_commit(frame: memoryview, at: int, version: int) -> ShortCommit | None:
    """Return the request whose body begins at `at`; None for one that the general codec is to read."""
    if len(frame) - at > _BYTES_MAX:
        return None
    try:
        return _parsed(frame, at, version, version >= _FLEXIBLE)
    except (StructError, IndexError, MalformedRequest):
        return None


def _parsed(frame: memoryview, at: int, version: int, flexible: bool) -> ShortCommit | None:
    group_id, at = _text(frame, at, flexible)
    (generation,) = INT32.unpack_from(frame, at)
    member_id, at = _text(frame, at + 4, flexible)
    instance_id, retention_ms = None, -1
    if version >= _INSTANCE_ID:
        instance_id, at = _text(frame, at, flexible)
    elif version in _RETENTION:
        (retention_ms,) = _INT64.unpack_from(frame, at)
        at += 8
    if group_id is None or member_id is None or not -1 <= retention_ms <= _RETENTION_MAX_MS:
        return None
    count, at = _count(frame, at, flexible)
    topics: list[tuple[TopicKey, list[Row]]] = []
    places: list[int] = []
    has_epoch = version >= _LEADER_EPOCH
    for _ in range(count):
        topic: TopicKey | None
        if version >= _TOPIC_IDS:
            topic, at = read_uuid(frame, at)
            if not topic.int:
                return None
        else:
            topic, at = _text(frame, at, flexible)
            if topic is None:
                return None
        rows, at = _count(frame, at, flexible)
        partitions: list[Row] = []
        for _ in range(rows):
            places.append(at + INT32.size)
            if has_epoch:
                index, offset, leader_epoch = _PARTITION.unpack_from(frame, at)
                at += 16
            else:
                index, offset = _PARTITION_V5.unpack_from(frame, at)
                leader_epoch = -1
                at += 12
            metadata, at = _text(frame, at, flexible)
            if flexible:
                at = _no_tags(frame, at)
            partitions.append((index, offset, leader_epoch, metadata))
        if flexible:
            at = _no_tags(frame, at)
        topics.append((topic, partitions))
    if flexible:
        _no_tags(frame, at)
    return ShortCommit(group_id, generation, member_id, instance_id, retention_ms, topics, tuple(places))


def _text(frame: memoryview, at: int, flexible: bool) -> tuple[str | None, int]:
    """`read_text`, without a call for a length of one byte."""
    if not flexible or frame[at] > _SHORT_TEXT:
        return read_text(frame, at, flexible)
    size = frame[at]
    at += 1
    if size < 2:
        return ("" if size else None), at
    end = at + size - 1
    if end > len(frame):
        raise MalformedRequest("a text is cut off")
    return str(frame[at:end], "utf-8", "replace"), end


def _count(frame: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """Return the length of an array; refuse one that is not short."""
    if flexible:
        count, at = read_uvarint(frame, at)
        count -= 1
    else:
        (count,) = INT32.unpack_from(frame, at)
        at += 4
    if not 1 <= count <= SHORT_ROWS_MAX:
        raise MalformedRequest(f"{count} rows")
    return count, at


def _no_tags(frame: memoryview, at: int) -> int:
    if frame[at]:
        raise MalformedRequest("tagged fields")
    return at + 1


def encode_commit(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[Row]]],
    errors: Sequence[int],
) -> bytes:
    """Return the whole response with its size; `errors` has one for each partition of the request."""
    flexible = version >= _FLEXIBLE
    codes = iter(errors)
    committed = _COMMITTED_FLEXIBLE if flexible else _COMMITTED
    out = [pack_count(len(topics), flexible)]
    for topic, rows in topics:
        out.append(pack_topic(topic, flexible))
        out.append(pack_count(len(rows), flexible))
        out += [committed.pack(row[0], next(codes)) for row in rows]
        if flexible:
            out.append(NO_TAGS)
    if flexible:
        out.append(NO_TAGS)
        body = b"".join(out)
        return _HEAD_FLEXIBLE.pack(len(body) + 9, correlation_id, 0) + body
    body = b"".join(out)
    if version >= _THROTTLE:
        return _HEAD_THROTTLE.pack(len(body) + 8, correlation_id, 0) + body
    return _HEAD.pack(len(body) + 4, correlation_id) + body
