"""Readers that pause: those of `reading`, cut where a message may be long.

Owns: a reader in turns for every field that can be long. Does not own: bounds and short fields (reading).
Invariant: the same values and the same errors as at once; about 50 µs lie between two yields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from struct import unpack_from
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from protocol.coding.reading import (
    LAYOUTS,
    PAUSE_BYTES,
    PAUSE_ROWS,
    Cursor,
    Reader,
    array_beginning,
    field_reader,
    read_int8,
    read_int32,
    read_size,
    read_varint,
    reading_steps,
    tag_count,
    take,
)
from protocol.coding.schema import Field, item_size_min, struct_schema
from protocol.errors import MalformedRequest
from protocol.primitives import copied
from protocol.work import Work

if TYPE_CHECKING:
    from kio.static.protocol import Entity

_NUMBERS = 4096

_ReaderInTurns: TypeAlias = Callable[[Cursor], Work[Any]]


def _field_reader_in_turns(
    field: Field, is_flexible: bool, classes: ModuleType | None
) -> _ReaderInTurns | None:
    """Return None for what is short whatever the bytes: then the plain reader does."""
    if field.is_array:
        return _array_reader_in_turns(field, is_flexible, classes)
    if field.struct is not None:
        read = entity_reader_in_turns(field.struct, classes)
        return read if read is None or not field.is_nullable else _nullable_struct_reader_in_turns(read)
    if field.kafka_type == "bytes":
        return _bytes_reader_in_turns(is_flexible, field.is_nullable)
    return None


def _array_reader_in_turns(field: Field, is_flexible: bool, classes: ModuleType | None) -> _ReaderInTurns:
    begin = array_beginning(field, is_flexible)
    item = replace(field, is_array=False, is_nullable=False)
    read_item = field_reader(item, is_flexible, classes)
    read_item_in_turns = _field_reader_in_turns(item, is_flexible, classes)
    layout = LAYOUTS.get(field.kafka_type or "")
    size = item_size_min(field, is_flexible)

    def read_numbers(cursor: Cursor, count: int) -> Work[tuple[Any, ...]]:
        numbers: list[Any] = []
        while len(numbers) < count:
            some = min(count - len(numbers), _NUMBERS)
            numbers += unpack_from(f">{some}{layout}", cursor.buffer, cursor.at)
            cursor.at += some * size
            yield
        return tuple(numbers)

    def read(cursor: Cursor) -> Work[tuple[Any, ...] | None]:
        count = begin(cursor)
        if count < 0:
            return None
        if layout is not None:
            return (yield from read_numbers(cursor, count))
        items: list[Any] = []
        keep = cursor.kept.append
        for _ in range(count):
            if read_item_in_turns is None:
                one = read_item(cursor)
            else:
                one = yield from read_item_in_turns(cursor)
            items.append(one)
            keep(one)
            cursor.unpaused += 1
            if cursor.unpaused >= PAUSE_ROWS or cursor.at >= cursor.pause_at:
                cursor.unpaused = 0
                cursor.pause_at = cursor.at + PAUSE_BYTES
                yield
        return tuple(items)

    return read


def _nullable_struct_reader_in_turns(read_struct: _ReaderInTurns) -> _ReaderInTurns:
    def read(cursor: Cursor) -> Work[Any]:
        return None if read_int8(cursor) < 0 else (yield from read_struct(cursor))

    return read


def _bytes_reader_in_turns(is_flexible: bool, is_nullable: bool) -> _ReaderInTurns:
    def read(cursor: Cursor) -> Work[bytes | None]:
        size = read_size(cursor, is_flexible, read_int32)
        if size < 0:
            if is_nullable:
                return None
            raise MalformedRequest(f"null at {cursor.at} where none is allowed")
        return (yield from copied([take(cursor, size)]))

    return read


@cache
def entity_reader_in_turns(cls: type[Entity], classes: ModuleType | None) -> _ReaderInTurns | None:
    schema = struct_schema(cls)
    is_flexible = schema.is_flexible
    in_turns: dict[Any, _ReaderInTurns | None] = {
        field.name: _field_reader_in_turns(field, is_flexible, classes)
        for field in (*schema.fields, *schema.tagged)
    }
    if not any(in_turns.values()):
        return None
    steps = [(names, read, in_turns.get(names)) for names, read in reading_steps(schema, classes)]
    tagged = {
        field.tag: (field.name, field_reader(field, is_flexible, classes), in_turns[field.name])
        for field in schema.tagged
    }
    make = cls if classes is None else getattr(classes, cls.__name__)

    def read(cursor: Cursor) -> Work[Any]:
        values: dict[str, Any] = {}
        for names, read_step, read_step_in_turns in steps:
            if read_step_in_turns is not None:
                values[names] = yield from read_step_in_turns(cursor)
            elif names.__class__ is str:
                values[names] = read_step(cursor)
            else:
                values.update(zip(names, read_step(cursor), strict=True))
        if is_flexible:
            yield from _read_tags_in_turns(cursor, tagged, values)
        return make(**values)

    return read


def _read_tags_in_turns(
    cursor: Cursor,
    known: Mapping[int | None, tuple[str, Reader, _ReaderInTurns | None]],
    values: dict[str, Any],
) -> Work[None]:
    for _ in range(tag_count(cursor)):
        tag = read_varint(cursor)
        size = read_varint(cursor)
        end = cursor.at + size
        take(cursor, size)
        if tag not in known:
            continue
        cursor.at = end - size
        name, read_field, read_field_in_turns = known[tag]
        if read_field_in_turns is None:
            values[name] = read_field(cursor)
        else:
            values[name] = yield from read_field_in_turns(cursor)
        if cursor.at != end:
            raise MalformedRequest(f"tagged field {name} is not {size} bytes long")
