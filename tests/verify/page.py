"""A writer of bytes by FORMAT.md's tables alone.

Owns: turning values into the bytes that a table of the page asks for. Does not own any layout: a table that
does not tell enough cannot be written, and that is the page's fault. Invariant: what is written here is read
back by `tests.format_page`, which uses nothing of the broker either.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from crc32c import crc32c

from tests.format_page import NUMBERS, PAGE, Field, FormatPage

FORMAT = FormatPage(PAGE.read_text())
STRUCTS = {
    kind: struct.Struct(">" + {1: "b", 2: "h", 4: "i", 8: "q"}[size])
    if kind[0] == "i"
    else struct.Struct(">" + {1: "B", 2: "H", 4: "I", 8: "Q"}[size])
    for kind, size in NUMBERS.items()
}
CRC_BEFORE, CRC_AFTER = "crc32c before", "crc32c after"

Values = Mapping[str, Any]


def encode(layout: str, values: Values) -> bytes:
    """The bytes of a layout. Fields with one value, and checksums, need not be given; a checksum that is
    given is written as it is."""
    out = bytearray()
    _layout(layout, values, out)
    return bytes(out)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _layout(layout: str, values: Values, out: bytearray) -> None:
    after = -1
    for field in FORMAT.layouts[layout]:
        if field.type == CRC_AFTER and field.name not in values:
            after = len(out)
            out += bytes(4)
        elif field.type == CRC_BEFORE and field.name not in values:
            out += crc32c(bytes(out)).to_bytes(4, "big")
        else:
            _field(field.type, _value(layout, field, values), out)
    if after >= 0:
        out[after : after + 4] = crc32c(bytes(out[after + 4 :])).to_bytes(4, "big")


def _value(layout: str, field: Field, values: Values) -> Any:
    if field.name in values:
        return values[field.name]
    if field.value is not None:
        return bytes.fromhex(field.value) if isinstance(field.value, str) else field.value
    if field.type == "tags":
        return {}
    raise KeyError(f"{field.name} of {layout}")


def _field(kind: str, value: Any, out: bytearray) -> None:
    if kind in STRUCTS:
        out += STRUCTS[kind].pack(value)
        return
    count, times, each = kind.partition(" × ")
    if times:
        if (count, each) == ("end", "bytes"):
            out += value
            return
        if count == "c":
            out += uvarint(len(value) + 1)
        elif count != "end":
            out += STRUCTS[count].pack(len(value))
        for one in value:
            _field(each, one, out)
    elif kind in FORMAT.layouts:
        _layout(kind, value, out)
    else:
        _primitive(kind, value, out)


def _primitive(kind: str, value: Any, out: bytearray) -> None:
    match kind:
        case "uuid":
            out += value.bytes if isinstance(value, UUID) else value
        case "text":
            data = value.encode()
            out += len(data).to_bytes(2, "big") + data
        case "json":
            data = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
            out += len(data).to_bytes(4, "big") + data
        case "blob":
            out += len(value).to_bytes(4, "big") + value
        case "uvarint":
            out += uvarint(value)
        case "ctext":
            data = value.encode()
            out += uvarint(len(data) + 1) + data
        case "cbytes":
            out += uvarint(0) if value is None else uvarint(len(value) + 1) + value
        case "tags":
            out += uvarint(len(value))
            for number, data in value.items():
                out += uvarint(number) + uvarint(len(data)) + data
        case "crc32c before" | "crc32c after":
            out += value.to_bytes(4, "big")
        case _:
            assert len(value) == int(kind.split()[0]), (kind, value)
            out += value
