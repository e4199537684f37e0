"""Fetch by hand, both sides of it: what a broker reads and answers, what a follower asks and appends from.

Owns: reading any Fetch request and packing its response; packing the request of a follower, in the one
version that our brokers ask each other with, and reading what it is answered; the shape of a Fetch that goes
on with the same partitions. Does not own: sessions, positions, meaning: no partition, log or error policy is
known here.
Invariant: what is read and packed here is what the generated message types read and write, byte for byte (a
property test holds the two together); no record is decoded, records stay views on the frame; every length is
checked against the frame before it is used.

By hand for the reason that produce.py gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple
from uuid import UUID

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.leader_hint import LEADER, Address, Hint, pack_endpoints
from protocol.pointers import (
    FROM_OFFSET,
    POINTER_TAG,
    ObjectPlace,
    SlicePointer,
    pack_from,
    pack_objects,
    pack_pointers,
    pack_takes_pointers,
    read_from,
    read_objects,
    read_pointers,
)
from protocol.primitives import (
    INT32,
    NO_LIMIT,
    NO_TAGS,
    ROWS_A_STEP,
    ROWS_AT_ONCE,
    TopicKey,
    check_rows,
    pack_count,
    pack_text,
    pack_topic,
    pack_uvarint,
    read_count,
    read_name,
    read_tag,
    read_tags,
    read_text,
    read_uuid,
    read_uvarint,
    skip_tags,
    take,
)
from protocol.work import Work, finish

FETCH_FLEXIBLE: Final = 12
FETCH_TOPIC_IDS: Final = 13

_PAIR: Final = Struct(">ii")
_CLIENT_ID_AT: Final = 8
_STEP: Final = ROWS_A_STEP - 1

# --- request ---


class FetchItem(NamedTuple):
    """One partition that a Fetch asks for."""

    topic: TopicKey
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: int
    log_start: int = -1
    """Of a follower's own log."""
    pointed: int = FROM_OFFSET
    """From where a follower that takes pointers wants them; or BYTES, or NOTHING."""


class FetchRequest:
    __slots__ = (
        "forgotten",
        "isolation",
        "item_ats",
        "items",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "rack",
        "replica_epoch",
        "replica_id",
        "session_epoch",
        "session_id",
        "takes_pointers",
    )

    def __init__(
        self,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: int,
        session_id: int,
        session_epoch: int,
        replica_id: int,
        items: list[FetchItem],
        forgotten: list[tuple[TopicKey, int]],
        rack: str,
        item_ats: list[int],
        replica_epoch: int = -1,
        takes_pointers: bool = False,
    ) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.replica_id = replica_id
        self.items = items
        self.forgotten = forgotten
        self.rack = rack
        self.replica_epoch = replica_epoch
        """The broker epoch of the follower that asks."""
        self.takes_pointers = takes_pointers
        """Whether the follower reads what it is pointed to in the store."""
        self.item_ats = item_ats
        """Where each item's index stands in the frame."""


_LIMITS: Final = Struct(">iiib")
_ITEM_V4: Final = Struct(">iqi")
_ITEM_V5: Final = Struct(">iqqi")
_ITEM_V9: Final = Struct(">iiqqi")
_ITEM_V12: Final = Struct(">iiqiqi")


def parse_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Return the request, of version 4 or newer."""
    return finish(parsing_fetch(frame, at, version, NO_LIMIT))


def parse_short_fetch(frame: memoryview, at: int, version: int, rows_max: int) -> FetchRequest | None:
    """Return the request; None if it has more than `ROWS_AT_ONCE` rows, which takes `parsing_fetch`."""
    try:
        next(_parsing_fetch(frame, at, version, rows_max))
    except StopIteration as end:
        request: FetchRequest = end.value
        return request
    except (StructError, IndexError, MalformedRequest) as error:
        raise _malformed(version, error) from None
    return None


def parsing_fetch(frame: memoryview, at: int, version: int, rows_max: int) -> Work[FetchRequest]:
    """`parse_fetch` in steps; at most `rows_max` topics and partitions together are taken."""
    try:
        return (yield from _parsing_fetch(frame, at, version, rows_max))
    except (StructError, IndexError, MalformedRequest) as error:
        raise _malformed(version, error) from None


def _malformed(version: int, error: Exception) -> MalformedRequest:
    what = f"Fetch v{version}"
    return MalformedRequest(
        f"{what}: {error}"
        if isinstance(error, MalformedRequest)
        else f"{what} is cut short or garbled: {error}"
    )


def _parsing_fetch(frame: memoryview, at: int, version: int, rows_max: int) -> Work[FetchRequest]:
    flexible = version >= FETCH_FLEXIBLE
    replica_id = replica_epoch = -1
    if version < FETCH_REPLICA_TAG:
        replica_id = INT32.unpack_from(frame, at)[0]
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(frame, at)
    at += 13
    session_id, session_epoch = 0, -1
    takes_pointers = False
    if version >= 7:
        session_id, session_epoch = _PAIR.unpack_from(frame, at)
        at += 8
    items: list[FetchItem] = []
    item_ats: list[int] = []
    at, rows = yield from _parsing_items(frame, at, version, rows_max, items, item_ats)
    forgotten: list[tuple[TopicKey, int]] = []
    if version >= 7:
        count, at = read_count(frame, at, flexible, 2)
        rows += count
        check_rows(rows, rows_max)
        for number in range(count):
            topic, at = _read_topic(frame, at, version)
            partitions, at = read_count(frame, at, flexible, 4)
            rows += partitions
            check_rows(rows, rows_max)
            for each in range(partitions):
                forgotten.append((topic, INT32.unpack_from(frame, at)[0]))
                at += 4
                if each & _STEP == _STEP and rows > ROWS_AT_ONCE:
                    yield
            if flexible:
                at = skip_tags(frame, at)
            if number & _STEP == _STEP and rows > ROWS_AT_ONCE:
                yield
    rack: str | None = ""
    if version >= 11:
        rack, at = read_text(frame, at, flexible)
        if rack is None:
            raise MalformedRequest("the rack id is null")
    if flexible:
        replica_id, replica_epoch, takes_pointers = _parse_fetch_tags(frame, at, version, replica_id)
    assert rack is not None
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        replica_id,
        items,
        forgotten,
        rack,
        item_ats,
        replica_epoch,
        takes_pointers,
    )


def _read_topic(frame: memoryview, at: int, version: int) -> tuple[TopicKey, int]:
    if version >= FETCH_TOPIC_IDS:
        return read_uuid(frame, at)
    return read_name(frame, at, version >= FETCH_FLEXIBLE)


def _parsing_items(
    frame: memoryview, at: int, version: int, rows_max: int, items: list[FetchItem], item_ats: list[int]
) -> Work[tuple[int, int]]:
    """Fill in the items; return the position behind them, and how many rows they are."""
    flexible = version >= FETCH_FLEXIBLE
    count, at = read_count(frame, at, flexible, 2)
    rows = count
    check_rows(rows, rows_max)
    for number in range(count):
        topic, at = _read_topic(frame, at, version)
        partitions, at = read_count(frame, at, flexible, 16)
        rows += partitions
        check_rows(rows, rows_max)
        for each in range(partitions):
            item_ats.append(at)
            if flexible:
                index, epoch, offset, last, start, size = _ITEM_V12.unpack_from(frame, at)
                at += 32
                pointed = FROM_OFFSET
                if frame[at] == 0:
                    at += 1
                else:
                    field, at = read_tag(frame, at, POINTER_TAG)
                    pointed = FROM_OFFSET if field is None else read_from(field)
                items.append(FetchItem(topic, index, epoch, offset, last, size, start, pointed))
            elif version >= 9:
                index, epoch, offset, start, size = _ITEM_V9.unpack_from(frame, at)
                at += 28
                items.append(FetchItem(topic, index, epoch, offset, -1, size, start))
            elif version >= 5:
                index, offset, start, size = _ITEM_V5.unpack_from(frame, at)
                at += 24
                items.append(FetchItem(topic, index, -1, offset, -1, size, start))
            else:
                index, offset, size = _ITEM_V4.unpack_from(frame, at)
                at += 16
                items.append(FetchItem(topic, index, -1, offset, -1, size))
            if each & _STEP == _STEP and rows > ROWS_AT_ONCE:
                yield
        if flexible:
            at = skip_tags(frame, at)
        if number & _STEP == _STEP and rows > ROWS_AT_ONCE:
            yield
    return at, rows


def _parse_fetch_tags(frame: memoryview, at: int, version: int, replica_id: int) -> tuple[int, int, bool]:
    """Return the replica id and its broker epoch, which moved into a tagged field with version 15, and
    whether it takes pointers."""
    fields, _ = read_tags(frame, at)
    takes_pointers = POINTER_TAG in fields
    field = fields.get(_REPLICA_STATE_TAG)
    if field is None or version < FETCH_REPLICA_TAG:
        return replica_id, -1, takes_pointers
    replica_id, replica_epoch = _read_struct(field, _REPLICA_STATE)
    return replica_id, replica_epoch, takes_pointers


def _read_struct(field: memoryview, layout: Struct) -> tuple[int, ...]:
    """Return the fields of a tagged struct, which ends with tagged fields of its own."""
    values = layout.unpack_from(field)
    if skip_tags(field, layout.size) != len(field):
        raise MalformedRequest(f"a tagged field is not {len(field)} bytes long")
    return values


_REPLICA_STATE_TAG: Final = 1
_REPLICA_STATE: Final = Struct(">iq")


# --- repeated requests ---


class FetchShape:
    """A Fetch as its client sends it again and again: only the correlation id, the session's epoch and the
    numbers of its partitions (epochs, offset, size) change.

    One struct reads such a frame, and what stands between those numbers must be as it was. Of a Fetch of more
    than `FETCH_ITEMS_SHAPED` partitions only the exact repetition is known.
    """

    __slots__ = (
        "_fixed",
        "_items",
        "_kind",
        "_last",
        "_lead",
        "_length",
        "_session_epoch",
        "_stride",
        "_unpack",
    )

    def __init__(self, frame: memoryview, body_at: int, version: int, request: FetchRequest) -> None:
        """Take the shape of `request`, read from `frame`, of version `FETCH_SHAPES_FROM` or newer."""
        self._length = len(frame)
        self._kind = _KIND.unpack_from(frame)[0]
        self._last = bytes(frame[_CLIENT_ID_AT:])
        self._session_epoch = request.session_epoch
        self._items = [(item.topic, item.partition, item.pointed) for item in request.items]
        numbers = _ITEM_V12_NUMBERS if version >= FETCH_FLEXIBLE else _ITEM_V9_NUMBERS
        self._stride = len(numbers) + 1
        self._unpack: Callable[[Any], tuple[Any, ...]] | None = None
        if len(self._items) > FETCH_ITEMS_SHAPED:
            return
        width = Struct(">" + numbers).size
        epoch_at = body_at + (0 if version >= FETCH_REPLICA_TAG else 4) + _LIMITS.size + 4
        starts = [at + 4 for at in request.item_ats]
        stops = [epoch_at + 4, *(start + width for start in starts)]
        gaps = tuple(start - stop for start, stop in zip([*starts, self._length], stops, strict=True))
        self._unpack = _unpack_fetch(epoch_at - _CLIENT_ID_AT, gaps, numbers)
        self._lead, _, *fields = self._unpack(self._last)
        self._fixed = fields[:: self._stride]

    def read(self, frame: memoryview | bytearray) -> tuple[int, int, list[FetchItem] | None] | None:
        """Return (correlation id, session epoch, items), where None for the items means those of the last
        time; None for a frame of another shape.
        """
        if len(frame) != self._length:
            return None
        kind, correlation_id = _KIND.unpack_from(frame)
        if kind != self._kind:
            return None
        body = bytes(frame[_CLIENT_ID_AT:])
        if body == self._last:
            return correlation_id, self._session_epoch, None
        if self._unpack is None:
            return None
        lead, session_epoch, *fields = self._unpack(body)
        stride = self._stride
        if lead != self._lead or fields[::stride] != self._fixed:
            return None
        self._last, self._session_epoch = body, session_epoch
        items = []
        at = 1
        for topic, index, pointed in self._items:
            if stride > _ITEM_V9_STRIDE:
                epoch, offset, last, start, size = fields[at : at + 5]
            else:
                epoch, offset, start, size = fields[at : at + 4]
                last = -1
            items.append(_new_tuple(FetchItem, (topic, index, epoch, offset, last, size, start, pointed)))
            at += stride
        return correlation_id, session_epoch, items


FETCH_SHAPES_FROM: Final = 9
FETCH_REPLICA_TAG: Final = 15
FETCH_ITEMS_SHAPED: Final = 32
_KIND: Final = Struct(">Ii")
_ITEM_V9_NUMBERS: Final = "iqqi"
_ITEM_V12_NUMBERS: Final = "iqiqi"
_ITEM_V9_STRIDE: Final = len(_ITEM_V9_NUMBERS) + 1
# a named tuple's own constructor costs as much as reading its numbers
_new_tuple = tuple.__new__


@lru_cache(maxsize=256)
def _unpack_fetch(lead: int, gaps: tuple[int, ...], numbers: str) -> Callable[[Any], tuple[Any, ...]]:
    """(lead, session epoch, gap, then numbers and a gap for each item), from the client id on."""
    return Struct(f">{lead}si" + numbers.join(f"{gap}s" for gap in gaps)).unpack_from


# --- response ---

_FETCHED_V4: Final = Struct(">ihqq")
_FETCHED_V5: Final = Struct(">ihqqq")
_PLAIN_V12: Final = Struct(">ihqqqBi")
_PLAIN_V11: Final = Struct(">ihqqqiii")
_EPOCH_END: Final = Struct(">iq")
_ABORTED: Final = Struct(">qq")
_FETCH_HEAD_V7: Final = Struct(">iihi")
_FETCH_HEAD_V12: Final = Struct(">iBihi")


def fetch_head(version: int, correlation_id: int, error: int, session_id: int, topic_count: int) -> bytes:
    """Return what stands from the correlation id to the number of topics, without the size."""
    if version >= FETCH_FLEXIBLE:
        return _FETCH_HEAD_V12.pack(correlation_id, 0, 0, error, session_id) + pack_uvarint(topic_count + 1)
    if version >= 7:
        return _FETCH_HEAD_V7.pack(correlation_id, 0, error, session_id) + INT32.pack(topic_count)
    return _PAIR.pack(correlation_id, 0) + INT32.pack(topic_count)


def fetch_tail(
    version: int, addresses: Mapping[int, Address] | None = None, objects: Collection[ObjectPlace] = ()
) -> bytes:
    """Return what ends a response: where the leaders listen that it names, or the objects it points to."""
    if version < FETCH_FLEXIBLE:
        return b""
    if objects:
        return b"\x01" + pack_objects(objects)  # to a follower, which is told no addresses
    return pack_endpoints(addresses) if addresses and version >= 16 else NO_TAGS


@lru_cache(maxsize=1024)
def fetch_topic_head(version: int, topic: TopicKey, partition_count: int) -> bytes:
    flexible = version >= FETCH_FLEXIBLE
    return pack_topic(topic, flexible) + pack_count(partition_count, flexible)


def fetch_topic_tail(version: int) -> bytes:
    return NO_TAGS if version >= FETCH_FLEXIBLE else b""


def fetch_partition_head(
    version: int,
    index: int,
    error: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    records_size: int,
    preferred_read_replica: int = -1,
) -> bytes:
    """Return everything of a partition before its records."""
    if aborted is None and preferred_read_replica < 0:
        if version >= FETCH_FLEXIBLE:
            return _PLAIN_V12.pack(
                index, error, high_watermark, last_stable_offset, log_start_offset, 0, -1
            ) + pack_uvarint(records_size + 1)
        if version >= 11:
            return _PLAIN_V11.pack(
                index, error, high_watermark, last_stable_offset, log_start_offset, -1, -1, records_size
            )
    flexible = version >= FETCH_FLEXIBLE
    if version >= 5:
        head = _FETCHED_V5.pack(index, error, high_watermark, last_stable_offset, log_start_offset)
    else:
        head = _FETCHED_V4.pack(index, error, high_watermark, last_stable_offset)
    out = [head]
    if aborted is None:
        out.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
    else:
        out.append(pack_count(len(aborted), flexible))
        for producer_id, first_offset in aborted:
            out.append(_ABORTED.pack(producer_id, first_offset))
            if flexible:
                out.append(NO_TAGS)
    if version >= 11:
        out.append(INT32.pack(preferred_read_replica))
    out.append(pack_count(records_size, flexible))
    return b"".join(out)


def fetch_partition_tail(
    version: int,
    diverging: tuple[int, int] | None = None,
    hint: Hint | None = None,
    pointers: Sequence[SlicePointer] = (),
) -> bytes:
    """Return what follows a partition's records: nothing, no tags, or where logs part, the leader, and where
    records lie that are not sent."""
    if version < FETCH_FLEXIBLE:
        return b""
    if diverging is None and hint is None and not pointers:
        return NO_TAGS
    out = [b""]
    if diverging is not None:
        out.append(b"\x00\x0d" + _EPOCH_END.pack(*diverging) + NO_TAGS)
    if hint is not None:
        out.append(b"\x01\x09" + LEADER.pack(hint.leader_id, hint.leader_epoch) + NO_TAGS)
    if pointers:
        out.append(pack_pointers(pointers))
    out[0] = pack_uvarint(len(out) - 1)
    return b"".join(out)


# --- what followers ask and are answered ---

REPLICA_FETCH_VERSION: Final = 17

_ASK_HEAD: Final = Struct(">hhi")
_ASK_LIMITS: Final = Struct(">iiibii")
_ASK_ITEM: Final = Struct(">iiqiqiB")
_ASK_STATE: Final = Struct(">BBiqB")
_ASK_STATE_BYTES: Final = 13
_ANSWER_HEAD: Final = Struct(">iBihi")
_DIVERGING_TAG: Final = 0
_ABORTED_BYTES: Final = 16
_PREFERRED_BYTES: Final = 4
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
    pointers: tuple[SlicePointer, ...] = ()
    """Where the records lie that are not sent."""


class FetchedByReplica(NamedTuple):
    correlation_id: int
    throttle_ms: int
    error: int
    session_id: int
    partitions: list[FetchedPartition]
    objects: tuple[ObjectPlace, ...] = ()
    """What the partitions' pointers point to."""


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
    takes_pointers: bool = False,
) -> bytes:
    """Return the request frame without its size. Neighbours of one topic share its id."""
    out = [
        _ASK_HEAD.pack(Api.FETCH, REPLICA_FETCH_VERSION, correlation_id),
        pack_text(client_id, False),
        b"\x00",
        _ASK_LIMITS.pack(max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch),
    ]
    topics: list[tuple[UUID, list[bytes]]] = []
    for topic_id, index, epoch, offset, last_epoch, size, log_start, pointed in items:
        assert isinstance(topic_id, UUID)
        if not topics or topics[-1][0] != topic_id:
            topics.append((topic_id, []))
        says_from = pointed != FROM_OFFSET
        row = _ASK_ITEM.pack(index, epoch, offset, last_epoch, log_start, size, says_from)
        topics[-1][1].append(row + pack_from(pointed) if says_from else row)
    _pack_topics(out, topics)
    gone: list[tuple[UUID, list[bytes]]] = []
    for topic_id, index in forgotten:
        if not gone or gone[-1][0] != topic_id:
            gone.append((topic_id, []))
        gone[-1][1].append(INT32.pack(index))
    _pack_topics(out, gone)
    out.append(b"\x01")  # an empty rack id
    out.append(b"\x02" if takes_pointers else b"\x01")
    out.append(_ASK_STATE.pack(_REPLICA_STATE_TAG, _ASK_STATE_BYTES, replica_id, replica_epoch, 0))
    if takes_pointers:
        out.append(pack_takes_pointers())
    return b"".join(out)


def asks_for_replica(frame: memoryview, at: int, version: int) -> bool:
    """Say whether a replica asks, without reading the rows: a request of `FETCH_REPLICA_TAG` and newer is
    looked at as `encode_replica_fetch` ends it. Whoever writes the same is taken for one."""
    if version < FETCH_REPLICA_TAG:
        return len(frame) >= at + 4 and bool(INT32.unpack_from(frame, at)[0] >= 0)
    pointers = pack_takes_pointers()
    end = len(frame) - len(pointers)
    if end > 0 and frame[end:] == pointers:
        count = 2
    else:
        count, end = 1, len(frame)
    start = end - _ASK_STATE.size
    if start <= at or frame[start - 1] != count:
        return False
    tag, size, replica_id, _, more = _ASK_STATE.unpack_from(frame, start)
    return bool((tag, size, more) == (_REPLICA_STATE_TAG, _ASK_STATE_BYTES, 0) and replica_id >= 0)


def _pack_topics(out: list[bytes], topics: Sequence[tuple[UUID, list[bytes]]]) -> None:
    out.append(pack_uvarint(len(topics) + 1))
    for topic_id, rows in topics:
        out.append(topic_id.bytes)
        out.append(pack_uvarint(len(rows) + 1))
        out.extend(rows)
        out.append(b"\x00")


def parse_replica_fetch(frame: memoryview) -> FetchedByReplica:
    """Return the response of a frame without its size; `records` are views on the frame."""
    try:
        return _parse_answer(frame)
    except (StructError, IndexError) as error:
        raise MalformedRequest(f"a Fetch response is cut short or garbled: {error}") from None


def _parse_answer(frame: memoryview) -> FetchedByReplica:
    correlation_id, tags, throttle_ms, error, session_id = _ANSWER_HEAD.unpack_from(frame)
    if tags:
        raise MalformedRequest("a Fetch response with tags in its header")
    topics, at = read_count(frame, _ANSWER_HEAD.size, True, _LEAST_TOPIC_BYTES)
    partitions: list[FetchedPartition] = []
    for _ in range(topics):
        topic_id, at = read_uuid(frame, at)
        count, at = read_count(frame, at, True, _LEAST_PARTITION_BYTES)
        for _ in range(count):
            fetched, at = _parse_answered(frame, at, topic_id)
            partitions.append(fetched)
        at = skip_tags(frame, at)
    objects, _ = read_tag(frame, at, POINTER_TAG)
    places = () if objects is None else read_objects(objects)
    for fetched in partitions:
        if fetched.pointers and any(pointer.object >= len(places) for pointer in fetched.pointers):
            raise MalformedRequest("a Fetch response points to an object that it does not list")
    return FetchedByReplica(correlation_id, throttle_ms, error, session_id, partitions, places)


def _parse_answered(frame: memoryview, at: int, topic_id: UUID) -> tuple[FetchedPartition, int]:
    index, error, high_watermark, _last_stable, log_start = _FETCHED_V5.unpack_from(frame, at)
    at = _skip_aborted(frame, at + _FETCHED_V5.size)
    size, at = read_uvarint(frame, at + _PREFERRED_BYTES)
    records = take(frame, at, max(size - 1, 0))
    at += len(records)
    if frame[at] == 0:
        return FetchedPartition(topic_id, index, error, high_watermark, log_start, None, records), at + 1
    fields, at = read_tags(frame, at)
    diverging = None
    if _DIVERGING_TAG in fields:
        epoch, end = _read_struct(fields[_DIVERGING_TAG], _EPOCH_END)
        diverging = (epoch, end) if end >= 0 else None
    field = fields.get(POINTER_TAG)
    pointers = () if field is None else read_pointers(field)
    return FetchedPartition(
        topic_id, index, error, high_watermark, log_start, diverging, records, pointers
    ), at


def _skip_aborted(frame: memoryview, at: int) -> int:
    """Return the position after the aborted transactions, which a follower learns of from their markers."""
    count, at = read_uvarint(frame, at)
    for _ in range(count - 1):
        at = skip_tags(frame, at + _ABORTED_BYTES)
    return at
