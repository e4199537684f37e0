"""What messages are made of: unsigned varints, tagged fields, texts, counts.

Owns: reading and writing them, with one limit for all APIs. Does not own: messages. The codec reads with a
cursor of its own, for speed, under the same limit (a test feeds all readers the same bytes).
Invariant: whatever the bytes, reading gives a value and the position after it, or MalformedRequest; what
struct and an index say of a cut field is left to the reader of the whole message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from struct import Struct
from typing import Final, TypeAlias
from uuid import UUID

from protocol.errors import MalformedRequest
from protocol.work import Work

Buffer: TypeAlias = bytes | bytearray | memoryview
TopicKey: TypeAlias = str | UUID
"""A topic's name, or its id from Produce 13 and Fetch 13 on."""

UVARINT_MAX: Final = 0x7FFFFFFF
"""Kafka reads an unsigned varint of at most five bytes into a Java int; nothing it sizes may be larger."""
TAGS_MAX: Final = 64
"""Tagged fields in one place; no version of any message has a quarter of it, and each takes time to skip."""
NO_TAGS: Final = b"\x00"
UUIDS_MAX: Final = 4096
"""Kept for whoever reads the same again: a broker hears of the same topics in every request."""
COPIED_BYTES: Final = 64 << 10
"""Of a long field, copied in one go."""

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")

# --- varints ---


def pack_uvarint(value: int) -> bytes:
    """Return the unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


def write_uvarint(out: bytearray, value: int) -> None:
    """Append the unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_uvarint(buf: Buffer, at: int) -> tuple[int, int]:
    """Return the value and the position after it."""
    try:
        byte = buf[at]
        if byte < 0x80:
            return byte, at + 1
        value = byte & 0x7F
        for shift in (7, 14, 21, 28):
            at += 1
            byte = buf[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > UVARINT_MAX:
                    break
                return value, at + 1
    except IndexError:
        raise MalformedRequest(f"a varint is cut off at {at}") from None
    raise MalformedRequest(f"a varint that ends at {at} has more than 31 bits")


ROWS_AT_ONCE: Final = 256
"""A request or an answer of so many rows is read, carried out or packed in one go; a longer one in turns."""
ROWS_A_STEP: Final = 32
"""How many rows of a longer one lie between two yields: about 100 µs."""
BYTES_A_STEP: Final = 64 << 10
"""Or so many bytes, where names are long."""
NO_LIMIT: Final = 2**31 - 1

# --- tagged fields ---


def skip_tags(buf: Buffer, at: int) -> int:
    """Return the position after a section of tagged fields; unknown ones are skipped (KIP-482)."""
    return at + 1 if at < len(buf) and not buf[at] else read_tag(memoryview(buf), at, -1)[1]


def read_tag(buf: memoryview, at: int, wanted: int) -> tuple[memoryview | None, int]:
    """Return the bytes of one tagged field, None without it, and the position after the section."""
    fields, at = read_tags(buf, at)
    return fields.get(wanted), at


def read_tags(buf: memoryview, at: int) -> tuple[dict[int, memoryview], int]:
    """Return the bytes of each tagged field by its tag, and the position after the section."""
    found: dict[int, memoryview] = {}
    count, at = read_uvarint(buf, at)
    if count * 2 > len(buf) - at:
        raise MalformedRequest(f"{count} tagged fields are longer than the rest of the message")
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields in one place")
    for _ in range(count):
        tag, at = read_uvarint(buf, at)
        size, at = read_uvarint(buf, at)
        found[tag] = take(buf, at, size)
        at += size
    return found, at


# --- fields ---


def take(buf: memoryview, at: int, size: int) -> memoryview:
    """Return a view on `size` bytes, all of which must be there."""
    if size < 0 or at + size > len(buf):
        raise MalformedRequest(f"a field of {size} bytes is longer than the rest of the message")
    return buf[at : at + size]


def read_text(buf: memoryview, at: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        size, at = read_uvarint(buf, at)
        size -= 1
    else:
        size = INT16.unpack_from(buf, at)[0]
        at += 2
    if size < 0:
        return None, at
    return str(take(buf, at, size), "utf-8", "replace"), at + size  # what Java makes of other bytes


def read_name(buf: memoryview, at: int, flexible: bool) -> tuple[str, int]:
    name, at = read_text(buf, at, flexible)
    if name is None:
        raise MalformedRequest("a topic name is null")
    return name, at


def read_uuid(buf: memoryview, at: int) -> tuple[UUID, int]:
    return uuid_of(take(buf, at, 16).tobytes()), at + 16


@lru_cache(maxsize=UUIDS_MAX)
def uuid_of(data: bytes) -> UUID:
    """Return the UUID of these 16 bytes. Of the same bytes it is mostly the same object, so that a look-up by
    it need not compare."""
    return UUID(bytes=data)


def read_count(buf: memoryview, at: int, flexible: bool, smallest: int) -> tuple[int, int]:
    """Return an array's length; it is refused when its smallest elements could not fit in what is left."""
    if flexible:
        count, at = read_uvarint(buf, at)
        count -= 1
    else:
        count = INT32.unpack_from(buf, at)[0]
        at += 4
    if count < 0:
        raise MalformedRequest("an array is null")
    if count * smallest > len(buf) - at:
        raise MalformedRequest(f"an array of {count} is longer than the rest of the message")
    return count, at


def check_rows(rows: int, rows_max: int) -> None:
    """Refuse a request of more rows, topics and partitions together, before anything is made for them."""
    if rows > rows_max:
        raise MalformedRequest(f"{rows} rows or more, request.rows.max is {rows_max}")


def pack_topic(topic: TopicKey, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return pack_text(topic, flexible)


def pack_text(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = text.encode()
    if flexible:
        return pack_uvarint(len(data) + 1) + data
    return INT16.pack(len(data)) + data


def pack_count(count: int, flexible: bool) -> bytes:
    return pack_uvarint(count + 1) if flexible else INT32.pack(count)


# --- long fields ---


def copied(pieces: Sequence[Buffer]) -> Work[bytes]:
    """Return the pieces as one."""
    if sum(map(len, pieces)) <= COPIED_BYTES:
        return b"".join(pieces)
    out = BytesIO()  # gives its bytes away without another copy
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), COPIED_BYTES):
            out.write(view[at : at + COPIED_BYTES])
            yield
    return out.getvalue()
