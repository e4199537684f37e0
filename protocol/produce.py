"""Produce by hand: it carries the data.

Owns: reading the request, packing the response, and the shape of a single-partition Produce that repeats.
Does not own: meaning. No partition, log or error policy is known here.
Invariant: what is read and packed here is what the generated message types read and write, byte for byte (a
property test holds the two together); every length is checked against the frame before it is used.

By hand because a generic encoder makes a whole broker 2.5 to 5 times dearer, and a generic decoder copies the
records. fetch.py does the same for the other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from protocol.errors import MalformedRequest
from protocol.leader_hint import Address, Hint, pack_endpoints, pack_leader
from protocol.primitives import (
    BYTES_A_STEP,
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
    read_text,
    read_uuid,
    read_uvarint,
    skip_tags,
    take,
)
from protocol.records import HEADER_LAYOUT, HEADER_SIZE, RECORD_BYTES_MIN, lone_record_size
from protocol.work import Work, finish, let_go

PRODUCE_FLEXIBLE: Final = 9
PRODUCE_TOPIC_IDS: Final = 13

_ACKS_TIMEOUT: Final = Struct(">hi")
_HEAD: Final = Struct(">ii")
"""Size and correlation id."""
_STEP: Final = ROWS_A_STEP - 1

# --- request ---


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
    """Return the request, of version 3 or newer."""
    return finish(parsing_produce(frame, at, version, NO_LIMIT))


def parse_short_produce(frame: memoryview, at: int, version: int, rows_max: int) -> ProduceRequest | None:
    """Return the request; None if it has more than `ROWS_AT_ONCE` rows, which takes `parsing_produce`."""
    try:
        next(_parsing_produce(frame, at, version, rows_max))
    except StopIteration as end:
        request: ProduceRequest = end.value
        return request
    except (StructError, IndexError, MalformedRequest) as error:
        raise _malformed(version, error) from None
    return None


def parsing_produce(frame: memoryview, at: int, version: int, rows_max: int) -> Work[ProduceRequest]:
    """`parse_produce` in steps; at most `rows_max` topics and partitions together are taken."""
    try:
        return (yield from _parsing_produce(frame, at, version, rows_max))
    except (StructError, IndexError, MalformedRequest) as error:
        raise _malformed(version, error) from None


def _malformed(version: int, error: Exception) -> MalformedRequest:
    what = f"Produce v{version}"
    return MalformedRequest(
        f"{what}: {error}"
        if isinstance(error, MalformedRequest)
        else f"{what} is cut short or garbled: {error}"
    )


def _parsing_produce(frame: memoryview, at: int, version: int, rows_max: int) -> Work[ProduceRequest]:
    flexible = version >= PRODUCE_FLEXIBLE
    transactional_id, at = read_text(frame, at, flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    topic_count, at = read_count(frame, at + 6, flexible, 2)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    single_at = -1
    only = False
    rows = topic_count
    check_rows(rows, rows_max)
    for number in range(topic_count):
        topic: TopicKey
        if version >= PRODUCE_TOPIC_IDS:
            topic, at = read_uuid(frame, at)
        else:
            topic, at = read_name(frame, at, flexible)
        count, at = read_count(frame, at, flexible, 5)
        only = topic_count == 1 and count == 1
        rows += count
        check_rows(rows, rows_max)
        partitions: list[tuple[int, memoryview | None]] = []
        for each in range(count):
            index = INT32.unpack_from(frame, at)[0]
            at += 4
            single_at = at
            if flexible:
                size, at = read_uvarint(frame, at)
                size -= 1
            else:
                size = INT32.unpack_from(frame, at)[0]
                at += 4
            if size < 0:
                partitions.append((index, None))
            else:
                partitions.append((index, take(frame, at, size)))
                at += size
            if flexible:
                at = skip_tags(frame, at)
            if each & _STEP == _STEP and rows > ROWS_AT_ONCE:
                yield
        topics.append((topic, partitions))
        if flexible:
            at = skip_tags(frame, at)
        if number & _STEP == _STEP and rows > ROWS_AT_ONCE:
            yield
    if flexible:
        at = skip_tags(frame, at)
    end = at
    if only and topics[0][1][0][1] is not None and end == len(frame):
        records = topics[0][1][0][1]
        assert records is not None
        width = len(pack_uvarint(len(records) + 1)) + 3 if flexible else 4
        if single_at + width + len(records) != end:
            single_at = -1
    else:
        single_at = -1
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, single_at)


# --- response ---


class ProduceResult:
    """The answer for one partition of a Produce."""

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
    """Return the whole response with its size."""
    flexible = version >= PRODUCE_FLEXIBLE
    out = [NO_TAGS if flexible else b"", pack_count(len(topics), flexible)]
    addresses: dict[int, Address] = {}
    for topic, results in topics:
        out.append(pack_topic(topic, flexible))
        out.append(pack_count(len(results), flexible))
        _pack_results(out, version, results, addresses)
        if flexible:
            out.append(NO_TAGS)
    _pack_end(out, version, addresses, throttle_ms)
    body = b"".join(out)
    return _HEAD.pack(len(body) + 4, correlation_id) + body


def encoding_produce(
    version: int, correlation_id: int, topics: list[tuple[TopicKey, list[ProduceResult]]]
) -> Work[list[bytes]]:
    """`encode_produce` in steps, and in pieces. Uses the topics up, which may have long names."""
    flexible = version >= PRODUCE_FLEXIBLE
    pieces: list[bytes] = [b""]
    parts: list[bytes] = []  # of the next piece, each what one step packed
    out = [NO_TAGS if flexible else b"", pack_count(len(topics), flexible)]
    addresses: dict[int, Address] = {}
    rows = names_size = size = 0
    topics.reverse()
    while topics:
        topic, results = topics.pop()
        head = pack_topic(topic, flexible) + pack_count(len(results), flexible)
        out.append(head)
        names_size += len(head)
        for at in range(0, len(results), ROWS_A_STEP):
            some = results[at : at + ROWS_A_STEP]
            _pack_results(out, version, some, addresses)
            rows += len(some)
            if rows >= ROWS_A_STEP or names_size >= BYTES_A_STEP:
                parts.append(b"".join(out))
                out.clear()
                size += len(parts[-1])
                if size >= BYTES_A_STEP:
                    pieces.append(b"".join(parts))
                    parts.clear()
                    size = 0
                rows = names_size = 0
                yield
        if flexible:
            out.append(NO_TAGS)
        yield from let_go(results)
    _pack_end(out, version, addresses, 0)
    pieces.append(b"".join([*parts, *out]))
    pieces[0] = _HEAD.pack(sum(map(len, pieces)) + 4, correlation_id)
    return pieces


def _pack_results(
    out: list[bytes], version: int, results: Sequence[ProduceResult], addresses: dict[int, Address]
) -> None:
    flexible = version >= PRODUCE_FLEXIBLE
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
            out.append(pack_count(len(result.record_errors), flexible))
            for at, why in result.record_errors:
                out.append(INT32.pack(at))
                out.append(pack_text(why, flexible))
                if flexible:
                    out.append(NO_TAGS)
            out.append(pack_text(result.message, flexible))
        if flexible:
            hint = result.hint if version >= 10 else None
            out.append(pack_leader(0, hint))
            if hint is not None and hint.address is not None:
                addresses[hint.leader_id] = hint.address


def _pack_end(out: list[bytes], version: int, addresses: dict[int, Address], throttle_ms: int) -> None:
    out.append(INT32.pack(throttle_ms))
    if version >= PRODUCE_FLEXIBLE:
        out.append(pack_endpoints(addresses))


class ProduceAnswer:
    """The response to a single-partition Produce that went well, prepared once: only four numbers change."""

    __slots__ = ("_pack", "_prefix", "_size", "_suffix", "_with_start")

    def __init__(self, version: int, topic: TopicKey, index: int) -> None:
        flexible = version >= PRODUCE_FLEXIBLE
        sample = encode_produce(version, 0, [(topic, [ProduceResult(index, 0)])])
        head = len(NO_TAGS if flexible else b"") + len(pack_count(1, flexible)) * 2
        numbers_at = 8 + head + len(pack_topic(topic, flexible)) + 6
        self._with_start = version >= 5
        width = 24 if self._with_start else 16
        self._size = len(sample) - 4
        self._prefix = sample[8:numbers_at]
        self._suffix = sample[numbers_at + width :]
        self._pack = _pack_produced(len(self._prefix), 3 if self._with_start else 2, len(self._suffix))

    def encode_run(self, correlation_ids: Sequence[int], offsets: Sequence[int], start: int) -> bytes:
        """Return the responses to a run of requests under CreateTime, one behind the other."""
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


# --- repeated requests ---


class ProduceShape:
    """A Produce whose head was seen before, when one whole batch fills the rest of it.

    For frames of one `length` everything up to the batch's own length is known beforehand: one struct reads
    such a frame (`unpack`), and `prefix` is what must stand between its correlation id and its leader epoch.
    After the batch comes `tail` and nothing else.
    """

    __slots__ = ("_end", "_flexible", "_head", "length", "lone", "prefix", "start", "stop", "tail", "unpack")

    def __init__(self, head: bytes, flexible: bool) -> None:
        """`head` is what stands from the client id to the partition's index."""
        self._head = head
        self._end = _CLIENT_ID_AT + len(head)
        self._flexible = flexible
        self.tail = NO_TAGS * 3 if flexible else b""
        self.length = -1
        self.prefix = b""
        self.start = self.stop = 0
        self.lone: bytes | None = None
        """What the records begin with when there is but one, as every client writes it."""
        self.unpack = _unpack_plain(0, 0)

    def fit(self, frame: memoryview) -> bool:
        """Take the shape of frames as long as this one; False if it has another head or no whole batch."""
        if frame[_CLIENT_ID_AT : self._end] != self._head:
            return False
        length = len(frame)
        rest = length - self._end - len(self.tail)
        if self._flexible:
            width = 2 if 128 < rest < 16386 else len(pack_uvarint(max(rest - 1, 0)))
            size = rest - width
            size_field = pack_uvarint(max(size + 1, 0))
            if len(size_field) != width:
                return False
        else:
            size = rest - 4
            size_field = INT32.pack(max(size, 0))
        if size < HEADER_SIZE + RECORD_BYTES_MIN:
            return False
        self.prefix = self._head + size_field + _BATCH_LEAD.pack(0, size - _BATCH_LEAD.size)
        self.start = self._end + len(size_field)
        self.stop = self.start + size
        self.lone = lone_record_size(size - HEADER_SIZE)
        self.unpack = _unpack_plain(len(self.prefix), len(self.lone or b""))
        self.length = length
        return True


_CLIENT_ID_AT: Final = 8
_BATCH_LEAD: Final = Struct(">qi")


@lru_cache(maxsize=256)
def _unpack_plain(prefix_size: int, first_size: int) -> Callable[[Any], tuple[Any, ...]]:
    """(API key and version, correlation id, prefix, magic, CRC, attributes, last offset delta, base and max
    timestamp, producer id, epoch and sequence, count, first bytes of the records)."""
    return Struct(f">Ii{prefix_size}s4x{HEADER_LAYOUT[3:]}{first_size}s").unpack_from
