"""Produce and Fetch by hand: the two requests and responses that carry all the data.

Owns: reading both requests, packing both responses, and the shapes of requests that repeat: of a
single-partition Produce, and of a Fetch that goes on with the same partitions. Does not own: meaning. No
partition, log or error policy is known here. Invariant: what is read and packed here is what the generated
message types read and write, byte for byte (a property test holds the two together); every length is checked
against the frame before it is used.

By hand because a generic encoder makes a whole broker 2.5 to 5 times dearer, and a generic decoder copies the
records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from protocol.errors import MalformedRequest
from protocol.records import HEADER_LAYOUT, HEADER_SIZE

TopicKey: TypeAlias = "str | UUID"
"""A topic's name, or its id from Produce v13 and Fetch v13 on."""

PRODUCE_FLEXIBLE: Final = 9
PRODUCE_TOPIC_IDS: Final = 13
FETCH_FLEXIBLE: Final = 12
FETCH_TOPIC_IDS: Final = 13

_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_PAIR: Final = Struct(">ii")
_ACKS_TIMEOUT: Final = Struct(">hi")
_NO_TAGS: Final = b"\x00"


# ------------------------------------------------------------------------------------------------ primitives


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buf: memoryview | bytearray, at: int) -> tuple[int, int]:
    """The value and the position after it; five bytes at most."""
    byte = buf[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        at += 1
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at + 1
    raise MalformedRequest("a varint is longer than 5 bytes")


def skip_tags(buf: memoryview, at: int) -> int:
    """Past a tagged-field section; unknown tags are skipped, as Kafka does."""
    count, at = read_uvarint(buf, at)
    for _ in range(count):
        _tag, at = read_uvarint(buf, at)
        size, at = read_uvarint(buf, at)
        at += size
        if at > len(buf):
            raise MalformedRequest("a tagged field is longer than the request")
    return at


def _slice(buf: memoryview, at: int, size: int) -> memoryview:
    if size < 0 or at + size > len(buf):
        raise MalformedRequest(f"a field of {size} bytes is longer than the rest of the request")
    return buf[at : at + size]


def _read_text(buf: memoryview, at: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        size, at = read_uvarint(buf, at)
        size -= 1
    else:
        size = _I16.unpack_from(buf, at)[0]
        at += 2
    if size < 0:
        return None, at
    return str(_slice(buf, at, size), "utf-8", "replace"), at + size  # what Java makes of other bytes


def _read_name(buf: memoryview, at: int, flexible: bool) -> tuple[str, int]:
    name, at = _read_text(buf, at, flexible)
    if name is None:
        raise MalformedRequest("a topic name is null")
    return name, at


def _read_uuid(buf: memoryview, at: int) -> tuple[UUID, int]:
    return UUID(bytes=_slice(buf, at, 16).tobytes()), at + 16


def _read_count(buf: memoryview, at: int, flexible: bool, smallest: int) -> tuple[int, int]:
    """An array's length, refused when its smallest elements could not fit in what is left."""
    if flexible:
        count, at = read_uvarint(buf, at)
        count -= 1
    else:
        count = _I32.unpack_from(buf, at)[0]
        at += 4
    if count < 0:
        raise MalformedRequest("an array is null")
    if count * smallest > len(buf) - at:
        raise MalformedRequest(f"an array of {count} is longer than the rest of the request")
    return count, at


def _pack_topic(topic: TopicKey, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return pack_text(topic, flexible)


def pack_text(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = text.encode()
    if flexible:
        return uvarint(len(data) + 1) + data
    return _I16.pack(len(data)) + data


def _pack_count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)


# --------------------------------------------------------------------------------------------------- Produce


class ProduceRequest:
    """A Produce request; records are views on the frame, None where the client sent null."""

    __slots__ = ("acks", "single_at", "timeout_ms", "topics", "transactional_id")

    def __init__(
        self,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]],
        single_at: int,
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics
        self.single_at = single_at
        """Where the records' length stands when there is just one partition and no tagged field, else -1."""


def parse_produce(frame: memoryview, at: int, version: int) -> ProduceRequest:
    """Versions 3 and newer."""
    try:
        return _parse_produce(frame, at, version)
    except (StructError, IndexError) as error:
        raise MalformedRequest(f"Produce v{version} is cut short or garbled: {error}") from None


def _parse_produce(frame: memoryview, at: int, version: int) -> ProduceRequest:
    flexible = version >= PRODUCE_FLEXIBLE
    transactional_id, at = _read_text(frame, at, flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    topic_count, at = _read_count(frame, at + 6, flexible, 2)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    single_at = -1
    only = False
    for _ in range(topic_count):
        topic: TopicKey
        if version >= PRODUCE_TOPIC_IDS:
            topic, at = _read_uuid(frame, at)
        else:
            topic, at = _read_name(frame, at, flexible)
        count, at = _read_count(frame, at, flexible, 5)
        only = topic_count == 1 and count == 1
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count):
            index = _I32.unpack_from(frame, at)[0]
            at += 4
            single_at = at
            if flexible:
                size, at = read_uvarint(frame, at)
                size -= 1
            else:
                size = _I32.unpack_from(frame, at)[0]
                at += 4
            if size < 0:
                partitions.append((index, None))
            else:
                partitions.append((index, _slice(frame, at, size)))
                at += size
            if flexible:
                at = skip_tags(frame, at)
        topics.append((topic, partitions))
        if flexible:
            at = skip_tags(frame, at)
    if flexible:
        at = skip_tags(frame, at)
    end = at
    if only and topics[0][1][0][1] is not None and end == len(frame):
        records = topics[0][1][0][1]
        assert records is not None
        width = len(uvarint(len(records) + 1)) + 3 if flexible else 4
        if single_at + width + len(records) != end:
            single_at = -1
    else:
        single_at = -1
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, single_at)


class Hint(NamedTuple):
    """Who leads now, -1 for nobody, told with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951)."""

    leader_id: int
    leader_epoch: int
    address: Address | None
    """None where the client's listener does not reach it."""


class Address(NamedTuple):
    host: str
    port: int
    rack: str | None


class ProduceResult:
    """What one partition of a Produce is answered."""

    __slots__ = ("append_time", "base_offset", "error", "hint", "index", "message", "record_errors", "start")

    def __init__(
        self,
        index: int,
        error: int,
        base_offset: int = -1,
        append_time: int = -1,
        start: int = -1,
        message: str | None = None,
        record_errors: Sequence[tuple[int, str | None]] = (),
        hint: Hint | None = None,
    ) -> None:
        self.index = index
        self.error = error
        self.base_offset = base_offset
        self.append_time = append_time
        self.start = start
        self.message = message
        self.record_errors = record_errors
        self.hint = hint


_PRODUCED: Final = Struct(">ihqq")
_PRODUCED_V5: Final = Struct(">ihqqq")


def encode_produce(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProduceResult]]],
    throttle_ms: int = 0,
) -> bytes:
    """The whole response with its size."""
    flexible = version >= PRODUCE_FLEXIBLE
    out = [b"", _NO_TAGS if flexible else b"", _pack_count(len(topics), flexible)]
    addresses: dict[int, Address] = {}
    for topic, results in topics:
        out.append(_pack_topic(topic, flexible))
        out.append(_pack_count(len(results), flexible))
        for result in results:
            if version >= 5:
                out.append(
                    _PRODUCED_V5.pack(
                        result.index, result.error, result.base_offset, result.append_time, result.start
                    )
                )
            else:
                out.append(_PRODUCED.pack(result.index, result.error, result.base_offset, result.append_time))
            if version >= 8:
                out.append(_pack_count(len(result.record_errors), flexible))
                for at, why in result.record_errors:
                    out.append(_I32.pack(at))
                    out.append(pack_text(why, flexible))
                    if flexible:
                        out.append(_NO_TAGS)
                out.append(pack_text(result.message, flexible))
            if flexible:
                hint = result.hint if version >= 10 else None
                out.append(_pack_leader(0, hint))
                if hint is not None and hint.address is not None:
                    addresses[hint.leader_id] = hint.address
        if flexible:
            out.append(_NO_TAGS)
    out.append(_I32.pack(throttle_ms))
    if flexible:
        out.append(_pack_endpoints(addresses))
    body = b"".join(out)
    return _PAIR.pack(len(body) + 4, correlation_id) + body


def _pack_leader(tag: int, hint: Hint | None) -> bytes:
    if hint is None:
        return _NO_TAGS
    return b"\x01" + bytes((tag, 9)) + _PAIR.pack(hint.leader_id, hint.leader_epoch) + _NO_TAGS


def _pack_endpoints(addresses: Mapping[int, Address]) -> bytes:
    if not addresses:
        return _NO_TAGS
    out = [uvarint(len(addresses) + 1)]
    for node_id, address in addresses.items():
        out.append(_I32.pack(node_id))
        out.append(pack_text(address.host, True))
        out.append(_I32.pack(address.port))
        out.append(pack_text(address.rack, True))
        out.append(_NO_TAGS)
    body = b"".join(out)
    return b"\x01\x00" + uvarint(len(body)) + body


class ProduceAnswer:
    """The response to a single-partition Produce that went well, prepared once: only four numbers change."""

    __slots__ = ("_pack", "_prefix", "_size", "_suffix", "_with_start")

    def __init__(self, version: int, topic: TopicKey, index: int) -> None:
        flexible = version >= PRODUCE_FLEXIBLE
        sample = encode_produce(version, 0, [(topic, [ProduceResult(index, 0)])])
        head = len(_NO_TAGS if flexible else b"") + len(_pack_count(1, flexible)) * 2
        numbers_at = 8 + head + len(_pack_topic(topic, flexible)) + 6
        self._with_start = version >= 5
        width = 24 if self._with_start else 16
        self._size = len(sample) - 4
        self._prefix = sample[8:numbers_at]
        self._suffix = sample[numbers_at + width :]
        self._pack = _pack_produced(len(self._prefix), 3 if self._with_start else 2, len(self._suffix))

    def encode_run(self, correlation_ids: Sequence[int], offsets: Sequence[int], start: int) -> bytes:
        """The responses to a run of requests under CreateTime, one behind the other."""
        pack, size, prefix, suffix = self._pack, self._size, self._prefix, self._suffix
        if len(offsets) == 1 and self._with_start:
            return pack(size, correlation_ids[0], prefix, offsets[0], -1, start, suffix)
        asked = zip(correlation_ids, offsets, strict=True)
        if self._with_start:
            return b"".join([pack(size, each, prefix, base, -1, start, suffix) for each, base in asked])
        return b"".join([pack(size, each, prefix, base, -1, suffix) for each, base in asked])


@lru_cache(maxsize=256)
def _pack_produced(prefix: int, numbers: int, suffix: int) -> Callable[..., bytes]:
    return Struct(f">ii{prefix}s{numbers}q{suffix}s").pack


class ProduceShape:
    """A Produce whose head was seen before, when one whole batch fills the rest of it.

    For frames of one `length` everything up to the batch's own length is known beforehand: one struct reads
    such a frame (`unpack`), and `prefix` is what must stand between its correlation id and its leader epoch.
    After the batch comes `tail` and nothing else.
    """

    __slots__ = ("_end", "_flexible", "_head", "length", "prefix", "start", "stop", "tail", "unpack")

    def __init__(self, head: bytes, flexible: bool) -> None:
        """`head` is what stands from the client id to the partition's index."""
        self._head = head
        self._end = _CLIENT_ID_AT + len(head)
        self._flexible = flexible
        self.tail = _NO_TAGS * 3 if flexible else b""
        self.length = -1
        self.prefix = b""
        self.start = self.stop = 0
        self.unpack = _unpack_plain(0)

    def fit(self, frame: memoryview) -> bool:
        """Takes the shape of frames as long as this one; False if it has another head or no whole batch."""
        if frame[_CLIENT_ID_AT : self._end] != self._head:
            return False
        length = len(frame)
        rest = length - self._end - len(self.tail)
        if self._flexible:
            width = 2 if 128 < rest < 16386 else len(uvarint(max(rest - 1, 0)))
            size = rest - width
            size_field = uvarint(max(size + 1, 0))
            if len(size_field) != width:
                return False
        else:
            size = rest - 4
            size_field = _I32.pack(max(size, 0))
        if size < HEADER_SIZE:
            return False
        self.prefix = self._head + size_field + _BATCH_LEAD.pack(0, size - _BATCH_LEAD.size)
        self.start = self._end + len(size_field)
        self.stop = self.start + size
        self.unpack = _unpack_plain(len(self.prefix))
        self.length = length
        return True


_CLIENT_ID_AT: Final = 8
_BATCH_LEAD: Final = Struct(">qi")


@lru_cache(maxsize=256)
def _unpack_plain(prefix_size: int) -> Callable[[Any], tuple[Any, ...]]:
    """(API key and version, correlation id, prefix, magic, CRC, attributes, last offset delta, base and max
    timestamp, producer id, epoch and sequence, count)."""
    return Struct(f">Ii{prefix_size}s4x{HEADER_LAYOUT[3:]}").unpack_from


# ----------------------------------------------------------------------------------------------------- Fetch


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
        self.item_ats = item_ats
        """Where each item's index stands in the frame."""


_LIMITS: Final = Struct(">iiib")
_ITEM_V4: Final = Struct(">iqi")
_ITEM_V5: Final = Struct(">iqqi")
_ITEM_V9: Final = Struct(">iiqqi")
_ITEM_V12: Final = Struct(">iiqiqi")


def parse_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    """Versions 4 and newer."""
    try:
        return _parse_fetch(frame, at, version)
    except (StructError, IndexError) as error:
        raise MalformedRequest(f"Fetch v{version} is cut short or garbled: {error}") from None


def _parse_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    flexible = version >= FETCH_FLEXIBLE
    replica_id = replica_epoch = -1
    if version < FETCH_REPLICA_TAG:
        replica_id = _I32.unpack_from(frame, at)[0]
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(frame, at)
    at += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _PAIR.unpack_from(frame, at)
        at += 8
    item_ats: list[int] = []
    items, at = _parse_items(frame, at, version, item_ats)
    forgotten: list[tuple[TopicKey, int]] = []
    if version >= 7:
        count, at = _read_count(frame, at, flexible, 2)
        for _ in range(count):
            topic, at = _read_topic(frame, at, version)
            partitions, at = _read_count(frame, at, flexible, 4)
            for _ in range(partitions):
                forgotten.append((topic, _I32.unpack_from(frame, at)[0]))
                at += 4
            if flexible:
                at = skip_tags(frame, at)
    rack: str | None = ""
    if version >= 11:
        rack, at = _read_text(frame, at, flexible)
        if rack is None:
            raise MalformedRequest("the rack id is null")
    if flexible:
        replica_id, replica_epoch = _parse_fetch_tags(frame, at, version, replica_id)
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
    )


def _read_topic(frame: memoryview, at: int, version: int) -> tuple[TopicKey, int]:
    if version >= FETCH_TOPIC_IDS:
        return _read_uuid(frame, at)
    return _read_name(frame, at, version >= FETCH_FLEXIBLE)


def _parse_items(
    frame: memoryview, at: int, version: int, item_ats: list[int]
) -> tuple[list[FetchItem], int]:
    flexible = version >= FETCH_FLEXIBLE
    count, at = _read_count(frame, at, flexible, 2)
    items: list[FetchItem] = []
    for _ in range(count):
        topic, at = _read_topic(frame, at, version)
        partitions, at = _read_count(frame, at, flexible, 16)
        for _ in range(partitions):
            item_ats.append(at)
            if flexible:
                index, epoch, offset, last, start, size = _ITEM_V12.unpack_from(frame, at)
                at += 32
                at = at + 1 if frame[at] == 0 else skip_tags(frame, at)
                items.append(FetchItem(topic, index, epoch, offset, last, size, start))
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
        if flexible:
            at = skip_tags(frame, at)
    return items, at


def _parse_fetch_tags(frame: memoryview, at: int, version: int, replica_id: int) -> tuple[int, int]:
    """The replica id and its broker epoch, which moved into tag 1 with v15."""
    replica_epoch = -1
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        field = _slice(frame, at, size)
        if tag == 1 and version >= FETCH_REPLICA_TAG:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(field)
        at += size
    return replica_id, replica_epoch


_REPLICA_STATE: Final = Struct(">iq")


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
        """Of `request` as it was read from `frame`, which is of version `FETCH_SHAPES_FROM` or newer."""
        self._length = len(frame)
        self._kind = _KIND.unpack_from(frame)[0]
        self._last = bytes(frame[_CLIENT_ID_AT:])
        self._session_epoch = request.session_epoch
        self._items = [(item.topic, item.partition) for item in request.items]
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
        """(correlation id, session epoch, items), where no items are those of the last time; None for a frame
        of another shape."""
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
        for topic, index in self._items:
            if stride > _ITEM_V9_STRIDE:
                epoch, offset, last, start, size = fields[at : at + 5]
            else:
                epoch, offset, start, size = fields[at : at + 4]
                last = -1
            items.append(_new_tuple(FetchItem, (topic, index, epoch, offset, last, size, start)))
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


_FETCHED_V4: Final = Struct(">ihqq")
_FETCHED_V5: Final = Struct(">ihqqq")
_PLAIN_V12: Final = Struct(">ihqqqBi")
_PLAIN_V11: Final = Struct(">ihqqqiii")
_EPOCH_END: Final = Struct(">iq")
_ABORTED: Final = Struct(">qq")
_FETCH_HEAD_V7: Final = Struct(">iihi")
_FETCH_HEAD_V12: Final = Struct(">iBihi")


def fetch_head(version: int, correlation_id: int, error: int, session_id: int, topic_count: int) -> bytes:
    """From the correlation id to the number of topics, without the size."""
    if version >= FETCH_FLEXIBLE:
        return _FETCH_HEAD_V12.pack(correlation_id, 0, 0, error, session_id) + uvarint(topic_count + 1)
    if version >= 7:
        return _FETCH_HEAD_V7.pack(correlation_id, 0, error, session_id) + _I32.pack(topic_count)
    return _PAIR.pack(correlation_id, 0) + _I32.pack(topic_count)


def fetch_tail(version: int, addresses: Mapping[int, Address] | None = None) -> bytes:
    if version < FETCH_FLEXIBLE:
        return b""
    return _pack_endpoints(addresses) if addresses and version >= 16 else _NO_TAGS


@lru_cache(maxsize=1024)
def fetch_topic_head(version: int, topic: TopicKey, partition_count: int) -> bytes:
    flexible = version >= FETCH_FLEXIBLE
    return _pack_topic(topic, flexible) + _pack_count(partition_count, flexible)


def fetch_topic_tail(version: int) -> bytes:
    return _NO_TAGS if version >= FETCH_FLEXIBLE else b""


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
    """Everything of a partition before its records."""
    if aborted is None and preferred_read_replica < 0:
        if version >= FETCH_FLEXIBLE:
            return _PLAIN_V12.pack(
                index, error, high_watermark, last_stable_offset, log_start_offset, 0, -1
            ) + uvarint(records_size + 1)
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
        out.append(_pack_count(len(aborted), flexible))
        for producer_id, first_offset in aborted:
            out.append(_ABORTED.pack(producer_id, first_offset))
            if flexible:
                out.append(_NO_TAGS)
    if version >= 11:
        out.append(_I32.pack(preferred_read_replica))
    out.append(_pack_count(records_size, flexible))
    return b"".join(out)


def fetch_partition_tail(
    version: int, diverging: tuple[int, int] | None = None, hint: Hint | None = None
) -> bytes:
    """What follows a partition's records: nothing, no tags, or where the logs part and who leads now."""
    if version < FETCH_FLEXIBLE:
        return b""
    if diverging is None and hint is None:
        return _NO_TAGS
    out = [b""]
    if diverging is not None:
        out.append(b"\x00\x0d" + _EPOCH_END.pack(*diverging) + _NO_TAGS)
    if hint is not None:
        out.append(b"\x01\x09" + _PAIR.pack(hint.leader_id, hint.leader_epoch) + _NO_TAGS)
    out[0] = uvarint(len(out) - 1)
    return b"".join(out)
