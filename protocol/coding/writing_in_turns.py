"""Writers that pause: those of `writing`, cut where a message may be long.

Owns: the pieces of a message, a writer in turns for every field that can be long. Does not own: short fields
(writing). Invariant: the pieces together are the bytes that are written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from protocol.coding.reading import PAUSE_ROWS
from protocol.coding.schema import Field, Schema, struct_schema
from protocol.coding.writing import (
    Attributes,
    MissingField,
    Writer,
    array_writer,
    field_writer,
    tags_writer,
    write_compact_size,
    write_int32,
)
from protocol.primitives import COPIED_BYTES, copied, write_uvarint
from protocol.work import Work

if TYPE_CHECKING:
    from kio.static.protocol import Entity

PAUSE_BYTES = 64 << 10
"""What is written in turns between two yields where rows are long; see PAUSE_ROWS for others."""
PIECE_BYTES = 256 << 10
"""A message that is written in turns is cut into pieces of about this size."""


class Pieces:
    """What is written in turns: what is behind, and `data`, the beginning of the next piece."""

    __slots__ = ("data", "kept", "pause_at", "pieces", "unpaused")

    def __init__(self, kept: list[Any]) -> None:
        self.data = bytearray()
        self.pieces: list[bytes] = []
        self.kept = kept
        self.unpaused = 0
        """Rows since the last yield."""
        self.pause_at = PAUSE_BYTES

    def pause(self) -> None:
        """Begin a step."""
        if len(self.data) >= PIECE_BYTES:
            self.cut()
        self.unpaused = 0
        self.pause_at = len(self.data) + PAUSE_BYTES

    def cut(self) -> None:
        if self.data:
            self.pieces.append(bytes(self.data))
            self.data.clear()

    def end(self) -> list[bytes]:
        self.cut()
        return self.pieces


_WriterInTurns: TypeAlias = Callable[[Pieces, Any], Work[None]]


def _field_writer_in_turns(field: Field, is_flexible: bool) -> _WriterInTurns | None:
    """Return None for what is short whatever the value: then the plain writer does."""
    if field.is_array:
        return _array_writer_in_turns(field, is_flexible)
    if field.struct is not None:
        write = entity_writer_in_turns(field.struct)
        return write if write is None or not field.is_nullable else _nullable_struct_writer_in_turns(write)
    if field.kafka_type in ("bytes", "records"):
        return _bytes_writer_in_turns(is_flexible, field_writer(field, is_flexible))
    return None


def _bytes_writer_in_turns(is_flexible: bool, write_short: Writer) -> _WriterInTurns:
    write_size = write_compact_size if is_flexible else write_int32

    def write(out: Pieces, value: Any) -> Work[None]:
        if value is None or len(value) <= COPIED_BYTES:
            write_short(out.data, value)
            return
        write_size(out.data, len(value))
        out.cut()
        out.pieces.append(value if value.__class__ is bytes else (yield from copied([value])))

    return write


def _array_writer_in_turns(field: Field, is_flexible: bool) -> _WriterInTurns:
    item = replace(field, is_array=False, is_nullable=False)
    write_item = field_writer(item, is_flexible)
    write_item_in_turns = _field_writer_in_turns(item, is_flexible)
    write_none = array_writer(write_item, is_flexible, field.is_nullable)
    write_size = write_compact_size if is_flexible else write_int32

    def write(out: Pieces, value: Any) -> Work[None]:
        if not value:
            write_none(out.data, value)
            return
        items = tuple(value)
        write_size(out.data, len(items))
        keep = out.kept.append
        for one in items:
            if write_item_in_turns is None:
                write_item(out.data, one)
            else:
                yield from write_item_in_turns(out, one)
            keep(one)
            out.unpaused += 1
            if out.unpaused >= PAUSE_ROWS or len(out.data) >= out.pause_at:
                out.pause()
                yield

    return write


def _nullable_struct_writer_in_turns(write_struct: _WriterInTurns) -> _WriterInTurns:
    def write(out: Pieces, value: Any) -> Work[None]:
        if value is None:
            out.data.append(0xFF)
        else:
            out.data.append(1)
            yield from write_struct(out, value)

    return write


@cache
def entity_writer_in_turns(cls: type[Entity]) -> _WriterInTurns | None:
    schema = struct_schema(cls)
    is_flexible = schema.is_flexible
    rows = [
        (f.name, f.default, field_writer(f, is_flexible), _field_writer_in_turns(f, is_flexible))
        for f in schema.fields
    ]
    write_tags = tags_writer(schema) if schema.tagged else None
    write_tags_in_turns = _tags_writer_in_turns(schema)
    if write_tags_in_turns is None and not any(in_turns for *_, in_turns in rows):
        return None

    def write(out: Pieces, values: Any) -> Work[None]:
        if not isinstance(values, Mapping):
            values = Attributes(values)
        name = ""
        try:
            for name, default, write_field, write_field_in_turns in rows:
                value = values.get(name, default)
                if value is MISSING:
                    raise MissingField(f"{cls.__name__}.{name} of version {cls.__version__}")
                if write_field_in_turns is None:
                    write_field(out.data, value)
                else:
                    yield from write_field_in_turns(out, value)
            if write_tags_in_turns is not None:
                yield from write_tags_in_turns(out, values)
            elif write_tags is not None:
                write_tags(out.data, values)
            elif is_flexible:
                out.data.append(0)
        except Exception as error:
            error.add_note(f"in {cls.__name__}, version {cls.__version__}, field {name}")
            raise

    return write


def _tags_writer_in_turns(schema: Schema) -> _WriterInTurns | None:
    """The section is put together before it is written: its fields' sizes come first."""
    rows = []
    for field in schema.tagged:
        write_field = field_writer(field, schema.is_flexible)
        usual = bytearray()
        write_field(usual, field.default)
        in_turns = _field_writer_in_turns(field, schema.is_flexible)
        rows.append((field.name, field.tag or 0, write_field, in_turns, bytes(usual)))
    if not any(in_turns for _, _, _, in_turns, _ in rows):
        return None

    def write(out: Pieces, values: Any) -> Work[None]:
        count = 0
        section: list[bytes] = []
        for name, tag, write_field, write_field_in_turns, usual in rows:
            value = values.get(name, MISSING)
            if value is MISSING:
                continue
            inner = Pieces(out.kept)
            if write_field_in_turns is None:
                write_field(inner.data, value)
            else:
                yield from write_field_in_turns(inner, value)
            pieces = inner.end()
            if pieces == [usual]:  # Kafka leaves out tagged fields that have their default
                continue
            head = bytearray()
            write_uvarint(head, tag)
            write_uvarint(head, sum(map(len, pieces)))
            section += (bytes(head), *pieces)
            count += 1
        out.data.append(count)
        for piece in section:
            if len(piece) > COPIED_BYTES:
                out.cut()
                out.pieces.append(piece)
            else:
                out.data += piece

    return write
