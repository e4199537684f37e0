"""Writers of messages, made from their schemas.

Owns: a writer for every kind of field, and what stands for a field that a message lacks. Does not own: large
messages (writing_in_turns). Invariant: what is written is read back as it was; a required field that is
missing raises MissingField.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from datetime import datetime, timedelta
from functools import cache
from struct import Struct
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
    struct_schema,
)
from protocol.primitives import write_uvarint

if TYPE_CHECKING:
    from kio.static.protocol import Entity


class MissingField(Exception):
    """A required field that a handler did not give: a bug of ours."""


Writer: TypeAlias = Callable[[bytearray, Any], None]


def _fixed_writer(layout: Struct) -> Writer:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


_write_int16 = _fixed_writer(INT16)
write_int32 = _fixed_writer(INT32)
_write_int64 = _fixed_writer(INT64)


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += bytes(16) if value is None else value.bytes


def _milliseconds(value: Any) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    return -1 if value is None else int(value)


def _write_milliseconds_i32(out: bytearray, value: Any) -> None:
    out += INT32.pack(value if value.__class__ is int else _milliseconds(value))


def _write_milliseconds_i64(out: bytearray, value: Any) -> None:
    out += INT64.pack(value if value.__class__ is int else _milliseconds(value))


_WRITERS: dict[str, Writer] = {
    "bool": _write_bool,
    "int8": _fixed_writer(INT8),
    "int16": _write_int16,
    "uint16": _fixed_writer(UINT16),
    "error_code": _write_int16,
    "int32": write_int32,
    "timedelta_i32": _write_milliseconds_i32,
    "int64": _write_int64,
    "float64": _fixed_writer(FLOAT64),
    "timedelta_i64": _write_milliseconds_i64,
    "datetime_i64": _write_milliseconds_i64,
    "uuid": _write_uuid,
}


def write_compact_size(out: bytearray, size: int) -> None:
    if size < 0x7F:
        out.append(size + 1)
    else:
        write_uvarint(out, size + 1)


def _blob_writer(kafka_type: str, is_flexible: bool, is_nullable: bool) -> Writer:
    write_size = (
        write_compact_size if is_flexible else _write_int16 if kafka_type == "string" else write_int32
    )

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not is_nullable:
                raise TypeError("null where none is allowed")
            write_size(out, -1)
            return
        if value.__class__ is str:
            value = value.encode()
        write_size(out, len(value))
        out += value

    return write


def array_writer(write_item: Writer, is_flexible: bool, is_nullable: bool) -> Writer:
    write_size = write_compact_size if is_flexible else write_int32

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not is_nullable:
                raise TypeError("null where none is allowed")
            write_size(out, -1)
            return
        write_size(out, len(value))
        for item in value:
            write_item(out, item)

    return write


def _nullable_struct_writer(write_struct: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_struct(out, value)

    return write


def field_writer(field: Field, is_flexible: bool) -> Writer:
    write: Writer
    if field.struct is not None:
        write = entity_writer(field.struct)
        if field.is_nullable and not field.is_array:
            write = _nullable_struct_writer(write)
    else:
        assert field.kafka_type is not None
        if field.kafka_type in _WRITERS:
            write = _WRITERS[field.kafka_type]
        else:
            write = _blob_writer(field.kafka_type, is_flexible, field.is_nullable and not field.is_array)
    return array_writer(write, is_flexible, field.is_nullable) if field.is_array else write


@cache
def entity_writer(cls: type[Entity]) -> Writer:
    schema = struct_schema(cls)
    rows = [(f.name, f.default, field_writer(f, schema.is_flexible)) for f in schema.fields]
    write_tags = tags_writer(schema) if schema.tagged else None
    is_flexible = schema.is_flexible

    def write(out: bytearray, values: Any) -> None:
        if not isinstance(values, Mapping):
            values = Attributes(values)
        name = ""
        try:
            for name, default, write_field in rows:
                value = values.get(name, default)
                if value is MISSING:
                    raise MissingField(f"{cls.__name__}.{name} of version {cls.__version__}")
                write_field(out, value)
            if write_tags is not None:
                write_tags(out, values)
            elif is_flexible:
                out.append(0)
        except Exception as error:
            error.add_note(f"in {cls.__name__}, version {cls.__version__}, field {name}")
            raise

    return write


def tags_writer(schema: Schema) -> Writer:
    rows = []
    for field in schema.tagged:
        write_field = field_writer(field, schema.is_flexible)
        usual = bytearray()
        write_field(usual, field.default)
        rows.append((field.name, field.tag or 0, write_field, bytes(usual)))

    def write(out: bytearray, values: Any) -> None:
        count = 0
        section = bytearray()
        for name, tag, write_field, usual in rows:
            value = values.get(name, MISSING)
            if value is MISSING:
                continue
            data = bytearray()
            write_field(data, value)
            if data == usual:  # Kafka leaves out tagged fields that have their default
                continue
            write_uvarint(section, tag)
            write_uvarint(section, len(data))
            section += data
            count += 1
        out.append(count)
        out += section

    return write


class Attributes:
    """A dataclass instance read like a mapping."""

    __slots__ = ("_entity",)

    def __init__(self, entity: Any) -> None:
        self._entity = entity

    def get(self, name: str, default: Any) -> Any:
        return getattr(self._entity, name, default)
