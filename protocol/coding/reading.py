"""Readers of messages, made from their schemas.

Owns: the cursor, the bounds of a message, a reader for every kind of field. Does not own: large messages
(reading_in_turns). Invariant: whatever the bytes, a reader gives a value or raises MalformedRequest,
StructError or OverflowError, in memory bounded by the bytes' length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from struct import Struct, unpack_from
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from protocol.coding.schema import (
    EPOCH,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT16,
    Field,
    Schema,
    item_size_min,
    struct_schema,
)
from protocol.errors import ErrorCode, MalformedRequest, TooManyRows, error_code
from protocol.primitives import TAGS_MAX, UVARINT_MAX, uuid_of

if TYPE_CHECKING:
    from kio.static.protocol import Entity

STRING_BYTES_MAX = 0x7FFF
"""Of a string in a request, as in Kafka, whatever its version could say."""
PAUSE_ROWS = 16
PAUSE_BYTES = 8 << 10
"""What is read in turns between two yields: so many rows, or so many bytes."""
LONG_TEXT_BYTES = 1 << 10
"""A text of more is read with its hash, which it keeps. To hash it costs more than to read it, and happens
where it is first looked up or put in a set: there thousands of names would be read in full in one step."""


class Cursor:
    __slots__ = ("at", "buffer", "elements_left", "kept", "pause_at", "rows_left", "rows_max", "unpaused")

    def __init__(
        self,
        buffer: memoryview,
        elements_max: int,
        rows_max: int = UVARINT_MAX,
        kept: list[Any] | None = None,
    ) -> None:
        self.buffer = buffer
        self.at = 0
        self.elements_left = elements_max
        self.rows_left = self.rows_max = rows_max
        if kept is not None:
            self.kept = kept
            self.unpaused = 0
            """Rows since the last yield."""
            self.pause_at = PAUSE_BYTES


Reader: TypeAlias = Callable[[Cursor], Any]


def _fixed_reader(layout: Struct) -> Reader:
    unpack_from, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> Any:
        at = cursor.at
        (value,) = unpack_from(cursor.buffer, at)
        cursor.at = at + size
        return value

    return read


read_int8 = _fixed_reader(INT8)
_read_int16 = _fixed_reader(INT16)
read_int32 = _fixed_reader(INT32)
_read_int64 = _fixed_reader(INT64)


def _read_bool(cursor: Cursor) -> bool:
    return bool(read_int8(cursor))


def read_varint(cursor: Cursor) -> int:
    """Return what primitives.read_uvarint does, from a cursor."""
    buffer, at = cursor.buffer, cursor.at
    if at < len(buffer) and (value := buffer[at]) < 0x80:
        cursor.at = at + 1
        return value
    value = shift = 0
    while at < len(buffer):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UVARINT_MAX:
                break
            cursor.at = at
            return value
        shift += 7
        if shift > 28:
            break
    raise MalformedRequest(f"varint at {cursor.at}")


def take(cursor: Cursor, size: int) -> memoryview:
    at = cursor.at
    end = at + size
    if end > len(cursor.buffer):
        raise MalformedRequest(f"{size} bytes wanted at {at}, {len(cursor.buffer) - at} are left")
    cursor.at = end
    return cursor.buffer[at:end]


def _read_uuid(cursor: Cursor) -> UUID | None:
    data = bytes(take(cursor, 16))
    return uuid_of(data) if any(data) else None


def _read_error_code(cursor: Cursor) -> ErrorCode:
    return error_code(_read_int16(cursor))


_TIMEDELTA_MS_MAX = 999_999_999 * 86_400_000


def _read_timedelta_i32(cursor: Cursor) -> timedelta:
    return timedelta(milliseconds=read_int32(cursor))


def _read_timedelta_i64(cursor: Cursor) -> timedelta:
    """Return at most what a timedelta holds, 2.7 million years: clients send Long.MAX_VALUE for ever."""
    return timedelta(milliseconds=max(-_TIMEDELTA_MS_MAX, min(_read_int64(cursor), _TIMEDELTA_MS_MAX)))


def _read_datetime(cursor: Cursor) -> datetime:
    return EPOCH + timedelta(milliseconds=_read_int64(cursor))


def _read_nullable_datetime(cursor: Cursor) -> datetime | None:
    value = _read_int64(cursor)
    return None if value == -1 else EPOCH + timedelta(milliseconds=value)


LAYOUTS = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}

_READERS: dict[str, Reader] = {
    "bool": _read_bool,
    "int8": read_int8,
    "int16": _read_int16,
    "uint16": _fixed_reader(UINT16),
    "error_code": _read_error_code,
    "int32": read_int32,
    "timedelta_i32": _read_timedelta_i32,
    "int64": _read_int64,
    "float64": _fixed_reader(FLOAT64),
    "timedelta_i64": _read_timedelta_i64,
    "datetime_i64": _read_datetime,
    "uuid": _read_uuid,
}


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")  # what Java makes of bytes that are no UTF-8


def _long_text(data: memoryview) -> str:
    text = _text(data)
    hash(text)
    return text


_BLOBS: dict[str, Callable[[memoryview], Any]] = {"string": _text, "bytes": bytes, "records": memoryview}
_LONG_BLOBS: dict[str, Callable[[memoryview], Any]] = {**_BLOBS, "string": _long_text}


def read_size(cursor: Cursor, is_flexible: bool, layout: Reader) -> int:
    """A length or count; null is any below zero, as in Kafka."""
    size: int = read_varint(cursor) - 1 if is_flexible else layout(cursor)
    return size


def _blob_reader(kafka_type: str, is_flexible: bool, is_nullable: bool, is_request: bool) -> Reader:
    layout = _read_int16 if kafka_type == "string" else read_int32
    convert, convert_long = _BLOBS[kafka_type], _LONG_BLOBS[kafka_type]
    size_max = STRING_BYTES_MAX if kafka_type == "string" and is_request else UVARINT_MAX

    def read(cursor: Cursor) -> Any:
        size: int = read_varint(cursor) - 1 if is_flexible else layout(cursor)
        if 0 <= size <= size_max:
            at = cursor.at
            end = at + size
            if end > len(cursor.buffer):
                raise MalformedRequest(f"{size} bytes wanted at {at}, {len(cursor.buffer) - at} are left")
            cursor.at = end
            data = cursor.buffer[at:end]
            return convert(data) if size <= LONG_TEXT_BYTES else convert_long(data)
        if size > 0:
            raise MalformedRequest(f"string of {size} bytes at {cursor.at}")
        if is_nullable:
            return None
        raise MalformedRequest(f"null at {cursor.at} where none is allowed")

    return read


def _array_reader(read_item: Reader, field: Field, is_flexible: bool) -> Reader:
    begin = array_beginning(field, is_flexible)
    size_min = max(1, item_size_min(field, is_flexible))
    layout = LAYOUTS.get(field.kafka_type or "")

    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = begin(cursor)
        if count < 0:
            return None
        if layout is not None:
            at = cursor.at
            cursor.at = at + count * size_min
            return unpack_from(f">{count}{layout}", cursor.buffer, at)
        return tuple([read_item(cursor) for _ in range(count)])

    return read


def array_beginning(field: Field, is_flexible: bool) -> Callable[[Cursor], int]:
    """Make what reads the count of an array, below zero for null, and refuses too many items."""
    size_min = max(1, item_size_min(field, is_flexible))
    is_nullable = field.is_nullable
    weight = 3 if field.struct is None else 0  # a plain item costs an eighth of a struct

    def begin(cursor: Cursor) -> int:
        count = read_size(cursor, is_flexible, read_int32)
        if count < 0:
            if is_nullable:
                return count
            raise MalformedRequest(f"null array at {cursor.at} where none is allowed")
        if count * size_min > len(cursor.buffer) - cursor.at:
            raise MalformedRequest(f"array of {count} at {cursor.at} is larger than the message")
        cursor.rows_left -= count
        if cursor.rows_left < 0:
            raise TooManyRows(cursor.rows_max - cursor.rows_left)
        cursor.elements_left -= count >> weight
        if cursor.elements_left < 0:
            raise MalformedRequest(f"array of {count} at {cursor.at} makes too many elements for a message")
        return count

    return begin


def field_reader(field: Field, is_flexible: bool, classes: ModuleType | None) -> Reader:
    read: Reader
    if field.struct is not None:
        read = entity_reader(field.struct, classes)
        if field.is_nullable and not field.is_array:
            read = _nullable_struct_reader(read)
    else:
        assert field.kafka_type is not None
        if field.kafka_type in _READERS:
            read = _READERS[field.kafka_type]
            if field.is_nullable and field.kafka_type == "datetime_i64":
                read = _read_nullable_datetime
        else:
            is_nullable = field.is_nullable and not field.is_array
            read = _blob_reader(field.kafka_type, is_flexible, is_nullable, classes is not None)
    return _array_reader(read, field, is_flexible) if field.is_array else read


def _nullable_struct_reader(read_struct: Reader) -> Reader:
    def read(cursor: Cursor) -> Any:  # KIP-893
        return None if read_int8(cursor) < 0 else read_struct(cursor)

    return read


@cache
def entity_reader(cls: type[Entity], classes: ModuleType | None) -> Reader:
    schema = struct_schema(cls)
    steps = reading_steps(schema, classes)
    is_flexible = schema.is_flexible
    tagged = {f.tag: (f.name, field_reader(f, is_flexible, classes)) for f in schema.tagged}
    make = cls if classes is None else getattr(classes, cls.__name__)

    def read(cursor: Cursor) -> Any:
        values: dict[str, Any] = {}
        for names, read_step in steps:
            if names.__class__ is str:
                values[names] = read_step(cursor)
            else:
                values.update(zip(names, read_step(cursor), strict=True))
        if is_flexible:
            if cursor.at < len(cursor.buffer) and not cursor.buffer[cursor.at]:
                cursor.at += 1  # no tagged fields, as nearly always
            else:
                _read_tags(cursor, tagged, values)
        return make(**values)

    return read


def reading_steps(schema: Schema, classes: ModuleType | None) -> list[tuple[Any, Reader]]:
    """(name, reader), or (names, reader) for fields of fixed size that follow each other and are read as
    one.
    """
    steps: list[tuple[Any, Reader]] = []
    run: list[Field] = []

    def end_run() -> None:
        if len(run) == 1:
            steps.append((run[0].name, field_reader(run[0], schema.is_flexible, classes)))
        elif run:
            layout = Struct(">" + "".join(LAYOUTS[field.kafka_type or ""] for field in run))
            steps.append((tuple(field.name for field in run), _run_reader(layout)))
        run.clear()

    for field in schema.fields:
        if field.kafka_type in LAYOUTS and not field.is_array:
            run.append(field)
            continue
        end_run()
        steps.append((field.name, field_reader(field, schema.is_flexible, classes)))
    end_run()
    return steps


def _run_reader(layout: Struct) -> Reader:
    unpack_from, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> Any:
        at = cursor.at
        values = unpack_from(cursor.buffer, at)
        cursor.at = at + size
        return values

    return read


def _read_tags(
    cursor: Cursor, known: Mapping[int | None, tuple[str, Reader]], values: dict[str, Any]
) -> None:
    for _ in range(tag_count(cursor)):
        tag = read_varint(cursor)
        size = read_varint(cursor)
        end = cursor.at + size
        take(cursor, size)
        if tag not in known:
            continue
        cursor.at = end - size
        name, read_field = known[tag]
        values[name] = read_field(cursor)
        if cursor.at != end:
            raise MalformedRequest(f"tagged field {name} is not {size} bytes long")


def tag_count(cursor: Cursor) -> int:
    count = read_varint(cursor)
    if count * 2 > len(cursor.buffer) - cursor.at:
        raise MalformedRequest(f"{count} tagged fields are larger than the message")
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields in one place")
    return count
