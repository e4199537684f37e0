"""A reader of FORMAT.md's tables, and of bytes by those tables alone.

Owns: what the page calls a layout, a type, a key. Does not own any layout: it uses nothing of the broker, so
what it reads a stranger can read. Invariant: bytes are read to their end or refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

PAGE = Path(__file__).parent.parent / "FORMAT.md"
NUMBERS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
CRC_POLYNOMIAL = 0x82F63B78


class Refused(Exception):
    """Bytes that are not what the page says."""


class Field(NamedTuple):
    name: str
    type: str
    value: int | str | None
    """The only one it may have."""


class Kind(NamedTuple):
    """A row of the table of keys."""

    name: str
    key: re.Pattern[str]
    layout: str


def tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Each table with the heading above it, by its rows."""
    heading = ""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
        elif rows:
            yield heading, rows
            rows = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def plain(cell: str) -> str:
    return cell.strip("`")


def only_value(kind: str, meaning: str) -> int | str | None:
    """Bytes in hexadecimal, or a number that is the whole meaning or its first part."""
    if found := re.match(r"(?:[0-9A-F]{2} ?){4}", meaning):
        return found.group().replace(" ", "").lower()
    if (kind in NUMBERS or kind == "uvarint") and (found := re.match(r"\d+(?=$|[;,])", meaning)):
        return int(found.group())
    return None


class FormatPage:
    def __init__(self, text: str) -> None:
        self.layouts: dict[str, list[Field]] = {}
        self.kinds: list[Kind] = []
        self.records: dict[str, dict[str, Any]] = {}
        """Each record of the metadata log with its fields and their defaults; ... without one."""
        self.states: list[dict[str, tuple[int, set[str]]]] = []
        for heading, (head, _, *rows) in tables(text):
            if head[0] == "field":
                name = heading.removeprefix("layout ").strip("`")
                assert name not in self.layouts, name
                self.layouts[name] = [
                    Field(plain(row[0]), plain(row[1]), only_value(plain(row[1]), row[2])) for row in rows
                ]
            elif head[0] == "object":
                self.kinds += [Kind(row[0], re.compile(plain(row[1])), plain(row[2])) for row in rows]
            elif head[0] == "record":
                self._read_records(rows)
            elif head[0] == "state":
                self.states.append(
                    {plain(row[0]): (int(row[1]), set(map(plain, row[2].split(", ")))) for row in rows}
                )

    def _read_records(self, rows: list[list[str]]) -> None:
        name = ""
        for record, field, _, default in rows:
            name = plain(record) or name
            self.records.setdefault(name, {})[plain(field)] = json.loads(default) if default else ...

    def kind_of(self, key: str) -> Kind:
        (kind,) = (kind for kind in self.kinds if kind.key.search(key))
        return kind

    def read(self, layout: str, data: bytes) -> dict[str, Any]:
        """What all of the bytes say, in values that JSON has: bytes and checksums in hexadecimal. Of an index
        object it is what the head says."""
        if layout == "index object":
            data = data[: int.from_bytes(data[6:10], "big")]
        try:
            found, at = self._read_layout(layout, data, 0)
        except ValueError as error:  # of a text
            raise Refused(str(error)) from None
        if at != len(data):
            raise Refused(f"{len(data) - at} bytes after {layout}")
        return found

    def _read_layout(self, layout: str, data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for field in self.layouts[layout]:
            value, at = self._read_field(field.type, data, at)
            if field.value not in (None, value):
                raise Refused(f"{field.name} of {layout} is {value}, not {field.value}")
            found[field.name] = value
        return found, at

    def _read_field(self, kind: str, data: bytes, at: int) -> tuple[Any, int]:
        count, times, each = kind.partition(" × ")
        if times:
            if (count, each) == ("end", "bytes"):
                return data[at:].hex(), len(data)
            if count == "end":
                found = []
                while at < len(data):
                    value, at = self._read_field(each, data, at)
                    found.append(value)
                return found, at
            size, at = self._read_field("uvarint" if count == "c" else count, data, at)
            return self._read_many(each, size - (count == "c"), data, at)
        if kind in self.layouts:
            return self._read_layout(kind, data, at)
        return PRIMITIVES[kind](data, at) if kind in PRIMITIVES else take_hex(data, at, int(kind.split()[0]))

    def _read_many(self, kind: str, count: int, data: bytes, at: int) -> tuple[list[Any], int]:
        found = []
        for _ in range(count):
            value, at = self._read_field(kind, data, at)
            found.append(value)
        return found, at


# --- types ---

Reading = tuple[Any, int]


def take(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise Refused(f"{size} bytes at {at} of {len(data)}")
    return data[at : at + size]


def take_hex(data: bytes, at: int, size: int) -> Reading:
    return take(data, at, size).hex(), at + size


def number(kind: str) -> Callable[[bytes, int], Reading]:
    def read(data: bytes, at: int) -> Reading:
        size = NUMBERS[kind]
        return int.from_bytes(take(data, at, size), "big", signed=kind[0] == "i"), at + size

    return read


def uvarint(data: bytes, at: int) -> Reading:
    value = shift = 0
    while True:
        byte = take(data, at, 1)[0]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def sized(size_of: Callable[[bytes, int], Reading], make: Callable[[bytes], Any]) -> Callable[..., Reading]:
    def read(data: bytes, at: int) -> Reading:
        size, at = size_of(data, at)
        if size < 0:
            return None, at
        return make(take(data, at, size)), at + size

    return read


def less_one(data: bytes, at: int) -> Reading:
    value, at = uvarint(data, at)
    return value - 1, at


def tags(data: bytes, at: int) -> Reading:
    count, at = uvarint(data, at)
    found = {}
    for _ in range(count):
        tag, at = uvarint(data, at)
        found[str(tag)], at = sized(uvarint, bytes.hex)(data, at)
    return found, at


def crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ CRC_POLYNOMIAL * (crc & 1)
    return crc


CRC_OF_BYTES = [crc_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """As section 1 defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_OF_BYTES[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checked(covered: Callable[[bytes, int], bytes]) -> Callable[[bytes, int], Reading]:
    def read(data: bytes, at: int) -> Reading:
        told = take(data, at, 4)
        if int.from_bytes(told, "big") != crc32c(covered(data, at)):
            raise Refused(f"the checksum at {at}")
        return told.hex(), at + 4

    return read


PRIMITIVES: dict[str, Callable[[bytes, int], Reading]] = {
    **{kind: number(kind) for kind in NUMBERS},
    "uuid": lambda data, at: (str(UUID(bytes=take(data, at, 16))), at + 16),
    "text": sized(number("u16"), bytes.decode),
    "json": sized(number("u32"), json.loads),
    "blob": sized(number("u32"), bytes.hex),
    "uvarint": uvarint,
    "ctext": sized(less_one, bytes.decode),
    "cbytes": sized(less_one, bytes.hex),
    "tags": tags,
    "crc32c before": checked(lambda data, at: data[:at]),
    "crc32c after": checked(lambda data, at: data[at + 4 :]),
}
