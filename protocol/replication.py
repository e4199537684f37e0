"""A follower's Fetch by hand: the request it sends and the response it appends from.

Owns: both, in the one version that our brokers ask each other with. Does not own: sessions, positions or
what is done with the records, which stay views on the response. Invariant: what is packed and read here is
what the generated message types write and read (a property test holds the two together); no record is
decoded, and every length is checked against the frame before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from uuid import UUID

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.hot import FetchItem, pack_text, read_uvarint, uvarint

REPLICA_FETCH_VERSION: Final = 17

_HEAD: Final = Struct(">hhi")
_LIMITS: Final = Struct(">iiibii")
_ITEM: Final = Struct(">iiqiqiB")
_REPLICA_STATE: Final = Struct(">BBBiqB")
_REPLICA_STATE_BYTES: Final = 13
_REPLICA_STATE_TAG: Final = 1
_RESPONSE: Final = Struct(">iBihi")
_PARTITION: Final = Struct(">ihqqq")
_I32: Final = Struct(">i")
_EPOCH_END: Final = Struct(">iq")
_ABORTED_BYTES: Final = 16
_PREFERRED_BYTES: Final = 4
_UUID_BYTES: Final = 16
_LEAST_PARTITION_BYTES: Final = 37
_LEAST_TOPIC_BYTES: Final = 18


class FetchedPartition(NamedTuple):
    """What a leader answers for one partition."""

    topic_id: UUID
    partition: int
    error: int
    high_watermark: int
    log_start: int
    diverging: tuple[int, int] | None
    """(epoch, end offset): past that the two logs differ."""
    records: memoryview


class FetchedByReplica(NamedTuple):
    correlation_id: int
    throttle_ms: int
    error: int
    session_id: int
    partitions: list[FetchedPartition]


def encode_replica_fetch(
    correlation_id: int,
    client_id: str,
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    items: Iterable[FetchItem],
    forgotten: Iterable[tuple[UUID, int]],
) -> bytes:
    """The request frame without its size. Neighbours of one topic share its id."""
    out = [
        _HEAD.pack(Api.FETCH, REPLICA_FETCH_VERSION, correlation_id),
        pack_text(client_id, False),
        b"\x00",
        _LIMITS.pack(max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch),
    ]
    topics: list[tuple[UUID, list[bytes]]] = []
    for topic_id, index, epoch, offset, last_epoch, size, log_start in items:
        assert isinstance(topic_id, UUID)
        if not topics or topics[-1][0] != topic_id:
            topics.append((topic_id, []))
        topics[-1][1].append(_ITEM.pack(index, epoch, offset, last_epoch, log_start, size, 0))
    _pack_topics(out, topics)
    gone: list[tuple[UUID, list[bytes]]] = []
    for topic_id, index in forgotten:
        if not gone or gone[-1][0] != topic_id:
            gone.append((topic_id, []))
        gone[-1][1].append(_I32.pack(index))
    _pack_topics(out, gone)
    out.append(b"\x01")  # an empty rack id
    out.append(_REPLICA_STATE.pack(1, _REPLICA_STATE_TAG, _REPLICA_STATE_BYTES, replica_id, replica_epoch, 0))
    return b"".join(out)


def _pack_topics(out: list[bytes], topics: Sequence[tuple[UUID, list[bytes]]]) -> None:
    out.append(uvarint(len(topics) + 1))
    for topic_id, rows in topics:
        out.append(topic_id.bytes)
        out.append(uvarint(len(rows) + 1))
        out.extend(rows)
        out.append(b"\x00")


def parse_replica_fetch(frame: memoryview) -> FetchedByReplica:
    """The response frame without its size; `records` are views on it."""
    try:
        return _parse(frame)
    except (StructError, IndexError) as error:
        raise MalformedRequest(f"a Fetch response is cut short or garbled: {error}") from None


def _parse(frame: memoryview) -> FetchedByReplica:
    correlation_id, tags, throttle_ms, error, session_id = _RESPONSE.unpack_from(frame)
    if tags:
        raise MalformedRequest("a Fetch response with tags in its header")
    topics, at = _count(frame, _RESPONSE.size, _LEAST_TOPIC_BYTES)
    partitions: list[FetchedPartition] = []
    for _ in range(topics):
        topic_id = UUID(bytes=_take(frame, at, _UUID_BYTES).tobytes())
        count, at = _count(frame, at + _UUID_BYTES, _LEAST_PARTITION_BYTES)
        for _ in range(count):
            fetched, at = _parse_partition(frame, at, topic_id)
            partitions.append(fetched)
        at = _skip_tags(frame, at)
    _skip_tags(frame, at)
    return FetchedByReplica(correlation_id, throttle_ms, error, session_id, partitions)


def _parse_partition(frame: memoryview, at: int, topic_id: UUID) -> tuple[FetchedPartition, int]:
    index, error, high_watermark, _last_stable, log_start = _PARTITION.unpack_from(frame, at)
    at = _skip_aborted(frame, at + _PARTITION.size)
    size, at = read_uvarint(frame, at + _PREFERRED_BYTES)
    records = _take(frame, at, max(size - 1, 0))
    at += len(records)
    diverging = None
    tags, at = read_uvarint(frame, at)
    for _ in range(tags):
        tag, at = read_uvarint(frame, at)
        tag_size, at = read_uvarint(frame, at)
        field = _take(frame, at, tag_size)
        if tag == 0:
            epoch, end = _EPOCH_END.unpack_from(field)
            diverging = (epoch, end) if end >= 0 else None
        at += tag_size
    return FetchedPartition(topic_id, index, error, high_watermark, log_start, diverging, records), at


def _skip_aborted(frame: memoryview, at: int) -> int:
    """A follower learns of aborted transactions from their markers."""
    count, at = read_uvarint(frame, at)
    for _ in range(count - 1):
        at = _skip_tags(frame, at + _ABORTED_BYTES)
    return at


def _count(frame: memoryview, at: int, smallest: int) -> tuple[int, int]:
    count, at = read_uvarint(frame, at)
    count = max(count - 1, 0)
    if count * smallest > len(frame) - at:
        raise MalformedRequest(f"an array of {count} is longer than the rest of the response")
    return count, at


def _take(frame: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(frame):
        raise MalformedRequest(f"a field of {size} bytes is longer than the rest of the response")
    return frame[at : at + size]


def _skip_tags(frame: memoryview, at: int) -> int:
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        _tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        at += len(_take(frame, at, size))
    return at
