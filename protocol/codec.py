"""A codec for any message that a kio-style dataclass describes, compiled from it on first use.

Owns: what the schema says of each field, reading bytes, writing plain dictionaries. Does not own: which
schema an API's version has (messages.py), headers and framing (wire.py), Produce and Fetch by hand
(produce.py, fetch.py).

Reading gives kio's dataclasses, or the class of the same name in a module of classes (attribute names are
kio's: `timeout` is a timedelta). Writing takes `Fields`: nested dictionaries under kio's attribute names,
written once for all versions. Keys the version lacks are dropped, absent ones get the schema's default, a
required one that is missing is a bug and raises. Milliseconds may be given where kio has timedelta or
datetime, ints where it has enums.

Invariant: whatever the bytes, decoding gives a value or MalformedRequest, in memory bounded by the bytes'
length.

Large messages are read and written in turns (`protocol.work`), with the same results and errors: whatever an
array or a long field takes is cut into pieces of about 50 µs. A reader or writer in turns is made only for
what can be long; the plain one of a field that is always short serves both forms.

kio has a reader and a writer, but its native reader allocates what an array's count field asks for before it
looks at the bytes: five bytes from anybody abort the process. It also rejects tagged fields it does not know,
which Kafka skips (KIP-482), and copies record sets, which here are views on the frame for the log to stamp
in place. kio's writer takes three times as long and needs the dataclasses built first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from struct import Struct, unpack_from
from struct import error as StructError
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin
from uuid import UUID

from protocol.errors import ErrorCode, MalformedRequest, TooManyRows, error_code
from protocol.primitives import TAGS_MAX, UVARINT_MAX, Buffer, write_uvarint
from protocol.work import Work

if TYPE_CHECKING:  # it would load the four header types, which wire.py reads by hand
    from kio.static.protocol import Entity

Fields: TypeAlias = Mapping[str, Any]

ELEMENTS_MAX = 1 << 18
"""Structs, or eights of plain array items, in one message, if a codec is given no other bound; each takes
about 3 µs of the loop."""
STRING_BYTES_MAX = 0x7FFF
"""Of a string in a request, as in Kafka, whatever its version could say."""
PIECE_BYTES = 256 << 10
"""A message that is written in turns is cut into pieces of about this size."""
_PAUSE_ROWS = 16
_PAUSE_BYTES = 8 << 10
_COPIED_BYTES = 64 << 10
_NUMBERS = 4096


class MissingField(Exception):
    """A required field that a handler did not give: a bug of ours."""


class EntityCodec:
    """Reader and writer of one kio dataclass, or of any with the same metadata (see stored).

    Decoding gives the class itself, or the one of its name in `classes`, and so for the structs inside.
    """

    __slots__ = ("_elements_max", "_read", "_read_in_turns", "_write_in_turns", "schema", "write")

    def __init__(
        self,
        cls: type[Entity],
        elements_max: int = ELEMENTS_MAX,
        classes: ModuleType | None = None,
    ) -> None:
        self.schema = struct_schema(cls)
        self._elements_max = elements_max
        self._read = _entity_reader(cls, classes)
        self._read_in_turns = _entity_reader_in_turns(cls, classes)
        self.write = _entity_writer(cls)
        self._write_in_turns = _entity_writer_in_turns(cls)

    def __repr__(self) -> str:
        return f"EntityCodec({self.schema.cls.__module__}.{self.schema.cls.__name__})"

    def decode(self, body: Buffer) -> Any:
        """Return the value that `body` starts with."""
        cursor = _Cursor(memoryview(body), self._elements_max)
        try:
            return self._read(cursor)
        except (StructError, OverflowError) as error:
            raise MalformedRequest(f"{self.schema.cls.__name__} at {cursor.at}: {error}") from error

    def decode_in_turns(self, body: Buffer, *, rows_max: int, kept: list[Any]) -> Work[Any]:
        """Return what `decode` does, or raise TooManyRows before anything is made of the row too many.

        Whatever is an item of an array also goes to `kept`, for the caller to let go of it in turns.
        """
        cursor = _Cursor(memoryview(body), self._elements_max, rows_max, kept)
        try:
            if self._read_in_turns is None:
                return self._read(cursor)
            return (yield from self._read_in_turns(cursor))
        except (StructError, OverflowError) as error:
            raise MalformedRequest(f"{self.schema.cls.__name__} at {cursor.at}: {error}") from error

    def encode(self, fields: Fields) -> bytes:
        out = bytearray()
        self.write(out, fields)
        return bytes(out)

    def encode_in_turns(self, fields: Fields, kept: list[Any]) -> Work[list[bytes]]:
        """Return what `encode` does, in pieces. Items of arrays go to `kept`, as in `decode_in_turns`."""
        out = _Pieces(kept)
        if self._write_in_turns is None:
            self.write(out.data, fields)
        else:
            yield from self._write_in_turns(out, fields)
        return out.end()


# --- schema ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kafka_type: str | None  # None for a struct
    struct: type[Entity] | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any  # MISSING: required


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    cls: type[Entity]
    is_flexible: bool
    fields: tuple[_Field, ...]  # in wire order
    tagged: tuple[_Field, ...]  # by tag
    size_min: int


@cache
def struct_schema(cls: type[Entity]) -> Schema:
    described = [_describe(field) for field in fields(cls)]
    plain = tuple(field for field in described if field.tag is None)
    tagged = tuple(sorted((f for f in described if f.tag is not None), key=lambda f: f.tag or 0))
    is_flexible = cls.__flexible__
    return Schema(
        cls=cls,
        is_flexible=is_flexible,
        fields=plain,
        tagged=tagged,
        size_min=sum(_size_min(f, is_flexible) for f in plain) + is_flexible,
    )


def _describe(field: Any) -> _Field:
    kind = field.type
    nullable = type(None) in get_args(kind) and get_origin(kind) is not tuple
    if nullable:
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    is_array = get_origin(kind) is tuple
    if is_array:
        kind = get_args(kind)[0]
    default = field.default
    if default is MISSING and field.name == "throttle_time":
        default = 0  # every response has it and hardly any answer means it
    return _Field(
        name=field.name,
        kafka_type=field.metadata.get("kafka_type"),
        struct=kind if hasattr(kind, "__flexible__") else None,
        is_array=is_array,
        is_nullable=nullable,
        tag=field.metadata.get("tag"),
        default=default,
    )


_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def _size_min(field: _Field, is_flexible: bool) -> int:
    if field.is_array:
        return 1 if is_flexible else 4
    return _item_size_min(field, is_flexible)


def _item_size_min(field: _Field, is_flexible: bool) -> int:
    if field.struct is not None:
        return 1 if field.is_nullable and not field.is_array else struct_schema(field.struct).size_min
    assert field.kafka_type is not None
    if field.kafka_type in _SIZES:
        return _SIZES[field.kafka_type]
    if is_flexible:
        return 1
    return 2 if field.kafka_type == "string" else 4


# --- reading ---

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_UINT16 = Struct(">H")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_FLOAT64 = Struct(">d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Cursor:
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
            self.pause_at = _PAUSE_BYTES


_Reader: TypeAlias = Callable[[_Cursor], Any]


def _fixed_reader(layout: Struct) -> _Reader:
    unpack_from, size = layout.unpack_from, layout.size

    def read(cursor: _Cursor) -> Any:
        at = cursor.at
        (value,) = unpack_from(cursor.buffer, at)
        cursor.at = at + size
        return value

    return read


_read_int8 = _fixed_reader(_INT8)
_read_int16 = _fixed_reader(_INT16)
_read_int32 = _fixed_reader(_INT32)
_read_int64 = _fixed_reader(_INT64)


def _read_bool(cursor: _Cursor) -> bool:
    return bool(_read_int8(cursor))


def _read_varint(cursor: _Cursor) -> int:
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


def _take(cursor: _Cursor, size: int) -> memoryview:
    at = cursor.at
    end = at + size
    if end > len(cursor.buffer):
        raise MalformedRequest(f"{size} bytes wanted at {at}, {len(cursor.buffer) - at} are left")
    cursor.at = end
    return cursor.buffer[at:end]


def _read_uuid(cursor: _Cursor) -> UUID | None:
    data = bytes(_take(cursor, 16))
    return UUID(bytes=data) if any(data) else None


def _read_error_code(cursor: _Cursor) -> ErrorCode:
    return error_code(_read_int16(cursor))


_TIMEDELTA_MS_MAX = 999_999_999 * 86_400_000


def _read_timedelta_i32(cursor: _Cursor) -> timedelta:
    return timedelta(milliseconds=_read_int32(cursor))


def _read_timedelta_i64(cursor: _Cursor) -> timedelta:
    """Return at most what a timedelta holds, 2.7 million years: clients send Long.MAX_VALUE for ever."""
    return timedelta(milliseconds=max(-_TIMEDELTA_MS_MAX, min(_read_int64(cursor), _TIMEDELTA_MS_MAX)))


def _read_datetime(cursor: _Cursor) -> datetime:
    return _EPOCH + timedelta(milliseconds=_read_int64(cursor))


def _read_nullable_datetime(cursor: _Cursor) -> datetime | None:
    value = _read_int64(cursor)
    return None if value == -1 else _EPOCH + timedelta(milliseconds=value)


_READERS: dict[str, _Reader] = {
    "bool": _read_bool,
    "int8": _read_int8,
    "int16": _read_int16,
    "uint16": _fixed_reader(_UINT16),
    "error_code": _read_error_code,
    "int32": _read_int32,
    "timedelta_i32": _read_timedelta_i32,
    "int64": _read_int64,
    "float64": _fixed_reader(_FLOAT64),
    "timedelta_i64": _read_timedelta_i64,
    "datetime_i64": _read_datetime,
    "uuid": _read_uuid,
}


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")  # what Java makes of bytes that are no UTF-8


_BLOBS: dict[str, Callable[[memoryview], Any]] = {"string": _text, "bytes": bytes, "records": memoryview}


def _read_size(cursor: _Cursor, is_flexible: bool, layout: _Reader) -> int:
    """A length or count; null is any below zero, as in Kafka."""
    size: int = _read_varint(cursor) - 1 if is_flexible else layout(cursor)
    return size


def _blob_reader(kafka_type: str, is_flexible: bool, is_nullable: bool, is_request: bool) -> _Reader:
    layout = _read_int16 if kafka_type == "string" else _read_int32
    convert = _BLOBS[kafka_type]
    size_max = STRING_BYTES_MAX if kafka_type == "string" and is_request else UVARINT_MAX

    def read(cursor: _Cursor) -> Any:
        size: int = _read_varint(cursor) - 1 if is_flexible else layout(cursor)
        if 0 <= size <= size_max:
            at = cursor.at
            end = at + size
            if end > len(cursor.buffer):
                raise MalformedRequest(f"{size} bytes wanted at {at}, {len(cursor.buffer) - at} are left")
            cursor.at = end
            return convert(cursor.buffer[at:end])
        if size > 0:
            raise MalformedRequest(f"string of {size} bytes at {cursor.at}")
        if is_nullable:
            return None
        raise MalformedRequest(f"null at {cursor.at} where none is allowed")

    return read


def _array_reader(read_item: _Reader, field: _Field, is_flexible: bool) -> _Reader:
    begin = _array_beginning(field, is_flexible)
    item_size_min = max(1, _item_size_min(field, is_flexible))
    layout = _LAYOUTS.get(field.kafka_type or "")

    def read(cursor: _Cursor) -> tuple[Any, ...] | None:
        count = begin(cursor)
        if count < 0:
            return None
        if layout is not None:
            at = cursor.at
            cursor.at = at + count * item_size_min
            return unpack_from(f">{count}{layout}", cursor.buffer, at)
        return tuple([read_item(cursor) for _ in range(count)])

    return read


def _array_beginning(field: _Field, is_flexible: bool) -> Callable[[_Cursor], int]:
    """Make what reads the count of an array, below zero for null, and refuses too many items."""
    item_size_min = max(1, _item_size_min(field, is_flexible))
    is_nullable = field.is_nullable
    weight = 3 if field.struct is None else 0  # a plain item costs an eighth of a struct

    def begin(cursor: _Cursor) -> int:
        count = _read_size(cursor, is_flexible, _read_int32)
        if count < 0:
            if is_nullable:
                return count
            raise MalformedRequest(f"null array at {cursor.at} where none is allowed")
        if count * item_size_min > len(cursor.buffer) - cursor.at:
            raise MalformedRequest(f"array of {count} at {cursor.at} is larger than the message")
        cursor.rows_left -= count
        if cursor.rows_left < 0:
            raise TooManyRows(cursor.rows_max - cursor.rows_left)
        cursor.elements_left -= count >> weight
        if cursor.elements_left < 0:
            raise MalformedRequest(f"array of {count} at {cursor.at} makes too many elements for a message")
        return count

    return begin


def _field_reader(field: _Field, is_flexible: bool, classes: ModuleType | None) -> _Reader:
    read: _Reader
    if field.struct is not None:
        read = _entity_reader(field.struct, classes)
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


def _nullable_struct_reader(read_struct: _Reader) -> _Reader:
    def read(cursor: _Cursor) -> Any:  # KIP-893
        return None if _read_int8(cursor) < 0 else read_struct(cursor)

    return read


@cache
def _entity_reader(cls: type[Entity], classes: ModuleType | None) -> _Reader:
    schema = struct_schema(cls)
    steps = _steps(schema, classes)
    is_flexible = schema.is_flexible
    tagged = {f.tag: (f.name, _field_reader(f, is_flexible, classes)) for f in schema.tagged}
    make = cls if classes is None else getattr(classes, cls.__name__)

    def read(cursor: _Cursor) -> Any:
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


def _steps(schema: Schema, classes: ModuleType | None) -> list[tuple[Any, _Reader]]:
    """(name, reader), or (names, reader) for fields of fixed size that follow each other and are read as
    one.
    """
    steps: list[tuple[Any, _Reader]] = []
    run: list[_Field] = []

    def end_run() -> None:
        if len(run) == 1:
            steps.append((run[0].name, _field_reader(run[0], schema.is_flexible, classes)))
        elif run:
            layout = Struct(">" + "".join(_LAYOUTS[field.kafka_type or ""] for field in run))
            steps.append((tuple(field.name for field in run), _run_reader(layout)))
        run.clear()

    for field in schema.fields:
        if field.kafka_type in _LAYOUTS and not field.is_array:
            run.append(field)
            continue
        end_run()
        steps.append((field.name, _field_reader(field, schema.is_flexible, classes)))
    end_run()
    return steps


_LAYOUTS = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}


def _run_reader(layout: Struct) -> _Reader:
    unpack_from, size = layout.unpack_from, layout.size

    def read(cursor: _Cursor) -> Any:
        at = cursor.at
        values = unpack_from(cursor.buffer, at)
        cursor.at = at + size
        return values

    return read


def _read_tags(
    cursor: _Cursor, known: Mapping[int | None, tuple[str, _Reader]], values: dict[str, Any]
) -> None:
    for _ in range(_tag_count(cursor)):
        tag = _read_varint(cursor)
        size = _read_varint(cursor)
        end = cursor.at + size
        _take(cursor, size)
        if tag not in known:
            continue
        cursor.at = end - size
        name, read_field = known[tag]
        values[name] = read_field(cursor)
        if cursor.at != end:
            raise MalformedRequest(f"tagged field {name} is not {size} bytes long")


def _tag_count(cursor: _Cursor) -> int:
    count = _read_varint(cursor)
    if count * 2 > len(cursor.buffer) - cursor.at:
        raise MalformedRequest(f"{count} tagged fields are larger than the message")
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields in one place")
    return count


# --- reading in turns ---

_ReaderInTurns: TypeAlias = Callable[[_Cursor], Work[Any]]


def _field_reader_in_turns(
    field: _Field, is_flexible: bool, classes: ModuleType | None
) -> _ReaderInTurns | None:
    """Return None for what is short whatever the bytes: then the plain reader does."""
    if field.is_array:
        return _array_reader_in_turns(field, is_flexible, classes)
    if field.struct is not None:
        read = _entity_reader_in_turns(field.struct, classes)
        return read if read is None or not field.is_nullable else _nullable_struct_reader_in_turns(read)
    if field.kafka_type == "bytes":
        return _bytes_reader_in_turns(is_flexible, field.is_nullable)
    return None


def _array_reader_in_turns(field: _Field, is_flexible: bool, classes: ModuleType | None) -> _ReaderInTurns:
    begin = _array_beginning(field, is_flexible)
    item = replace(field, is_array=False, is_nullable=False)
    read_item = _field_reader(item, is_flexible, classes)
    read_item_in_turns = _field_reader_in_turns(item, is_flexible, classes)
    layout = _LAYOUTS.get(field.kafka_type or "")
    size = _item_size_min(field, is_flexible)

    def read_numbers(cursor: _Cursor, count: int) -> Work[tuple[Any, ...]]:
        numbers: list[Any] = []
        while len(numbers) < count:
            some = min(count - len(numbers), _NUMBERS)
            numbers += unpack_from(f">{some}{layout}", cursor.buffer, cursor.at)
            cursor.at += some * size
            yield
        return tuple(numbers)

    def read(cursor: _Cursor) -> Work[tuple[Any, ...] | None]:
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
            if cursor.unpaused >= _PAUSE_ROWS or cursor.at >= cursor.pause_at:
                cursor.unpaused = 0
                cursor.pause_at = cursor.at + _PAUSE_BYTES
                yield
        return tuple(items)

    return read


def _nullable_struct_reader_in_turns(read_struct: _ReaderInTurns) -> _ReaderInTurns:
    def read(cursor: _Cursor) -> Work[Any]:
        return None if _read_int8(cursor) < 0 else (yield from read_struct(cursor))

    return read


def _bytes_reader_in_turns(is_flexible: bool, is_nullable: bool) -> _ReaderInTurns:
    def read(cursor: _Cursor) -> Work[bytes | None]:
        size = _read_size(cursor, is_flexible, _read_int32)
        if size < 0:
            if is_nullable:
                return None
            raise MalformedRequest(f"null at {cursor.at} where none is allowed")
        return (yield from copied([_take(cursor, size)]))

    return read


def copied(pieces: Sequence[Buffer]) -> Work[bytes]:
    """Return the pieces as one."""
    if sum(map(len, pieces)) <= _COPIED_BYTES:
        return b"".join(pieces)
    out = BytesIO()  # gives its bytes away without another copy
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), _COPIED_BYTES):
            out.write(view[at : at + _COPIED_BYTES])
            yield
    return out.getvalue()


@cache
def _entity_reader_in_turns(cls: type[Entity], classes: ModuleType | None) -> _ReaderInTurns | None:
    schema = struct_schema(cls)
    is_flexible = schema.is_flexible
    in_turns: dict[Any, _ReaderInTurns | None] = {
        field.name: _field_reader_in_turns(field, is_flexible, classes)
        for field in (*schema.fields, *schema.tagged)
    }
    if not any(in_turns.values()):
        return None
    steps = [(names, read, in_turns.get(names)) for names, read in _steps(schema, classes)]
    tagged = {
        field.tag: (field.name, _field_reader(field, is_flexible, classes), in_turns[field.name])
        for field in schema.tagged
    }
    make = cls if classes is None else getattr(classes, cls.__name__)

    def read(cursor: _Cursor) -> Work[Any]:
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
    cursor: _Cursor,
    known: Mapping[int | None, tuple[str, _Reader, _ReaderInTurns | None]],
    values: dict[str, Any],
) -> Work[None]:
    for _ in range(_tag_count(cursor)):
        tag = _read_varint(cursor)
        size = _read_varint(cursor)
        end = cursor.at + size
        _take(cursor, size)
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


# --- writing ---

_Writer: TypeAlias = Callable[[bytearray, Any], None]


def _fixed_writer(layout: Struct) -> _Writer:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


_write_int16 = _fixed_writer(_INT16)
_write_int32 = _fixed_writer(_INT32)
_write_int64 = _fixed_writer(_INT64)


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += bytes(16) if value is None else value.bytes


def _milliseconds(value: Any) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(milliseconds=1)
    return -1 if value is None else int(value)


def _write_milliseconds_i32(out: bytearray, value: Any) -> None:
    out += _INT32.pack(value if value.__class__ is int else _milliseconds(value))


def _write_milliseconds_i64(out: bytearray, value: Any) -> None:
    out += _INT64.pack(value if value.__class__ is int else _milliseconds(value))


_WRITERS: dict[str, _Writer] = {
    "bool": _write_bool,
    "int8": _fixed_writer(_INT8),
    "int16": _write_int16,
    "uint16": _fixed_writer(_UINT16),
    "error_code": _write_int16,
    "int32": _write_int32,
    "timedelta_i32": _write_milliseconds_i32,
    "int64": _write_int64,
    "float64": _fixed_writer(_FLOAT64),
    "timedelta_i64": _write_milliseconds_i64,
    "datetime_i64": _write_milliseconds_i64,
    "uuid": _write_uuid,
}


def _write_compact_size(out: bytearray, size: int) -> None:
    if size < 0x7F:
        out.append(size + 1)
    else:
        write_uvarint(out, size + 1)


def _blob_writer(kafka_type: str, is_flexible: bool, is_nullable: bool) -> _Writer:
    write_size = (
        _write_compact_size if is_flexible else _write_int16 if kafka_type == "string" else _write_int32
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


def _array_writer(write_item: _Writer, is_flexible: bool, is_nullable: bool) -> _Writer:
    write_size = _write_compact_size if is_flexible else _write_int32

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


def _nullable_struct_writer(write_struct: _Writer) -> _Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_struct(out, value)

    return write


def _field_writer(field: _Field, is_flexible: bool) -> _Writer:
    write: _Writer
    if field.struct is not None:
        write = _entity_writer(field.struct)
        if field.is_nullable and not field.is_array:
            write = _nullable_struct_writer(write)
    else:
        assert field.kafka_type is not None
        if field.kafka_type in _WRITERS:
            write = _WRITERS[field.kafka_type]
        else:
            write = _blob_writer(field.kafka_type, is_flexible, field.is_nullable and not field.is_array)
    return _array_writer(write, is_flexible, field.is_nullable) if field.is_array else write


@cache
def _entity_writer(cls: type[Entity]) -> _Writer:
    schema = struct_schema(cls)
    rows = [(f.name, f.default, _field_writer(f, schema.is_flexible)) for f in schema.fields]
    write_tags = _tags_writer(schema) if schema.tagged else None
    is_flexible = schema.is_flexible

    def write(out: bytearray, values: Any) -> None:
        if not isinstance(values, Mapping):
            values = _Attributes(values)
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


def _tags_writer(schema: Schema) -> _Writer:
    rows = []
    for field in schema.tagged:
        write_field = _field_writer(field, schema.is_flexible)
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


class _Attributes:
    """A dataclass instance read like a mapping."""

    __slots__ = ("_entity",)

    def __init__(self, entity: Any) -> None:
        self._entity = entity

    def get(self, name: str, default: Any) -> Any:
        return getattr(self._entity, name, default)


# --- writing in turns ---


class _Pieces:
    """What is written in turns: what is behind, and `data`, the beginning of the next piece."""

    __slots__ = ("data", "kept", "pieces", "unpaused")

    def __init__(self, kept: list[Any]) -> None:
        self.data = bytearray()
        self.pieces: list[bytes] = []
        self.kept = kept
        self.unpaused = 0
        """Rows since the last yield."""

    def cut(self) -> None:
        if self.data:
            self.pieces.append(bytes(self.data))
            self.data.clear()

    def end(self) -> list[bytes]:
        self.cut()
        return self.pieces


_WriterInTurns: TypeAlias = Callable[[_Pieces, Any], Work[None]]


def _field_writer_in_turns(field: _Field, is_flexible: bool) -> _WriterInTurns | None:
    """Return None for what is short whatever the value: then the plain writer does."""
    if field.is_array:
        return _array_writer_in_turns(field, is_flexible)
    if field.struct is not None:
        write = _entity_writer_in_turns(field.struct)
        return write if write is None or not field.is_nullable else _nullable_struct_writer_in_turns(write)
    if field.kafka_type in ("bytes", "records"):
        return _bytes_writer_in_turns(is_flexible, _field_writer(field, is_flexible))
    return None


def _bytes_writer_in_turns(is_flexible: bool, write_short: _Writer) -> _WriterInTurns:
    write_size = _write_compact_size if is_flexible else _write_int32

    def write(out: _Pieces, value: Any) -> Work[None]:
        if value is None or len(value) <= _COPIED_BYTES:
            write_short(out.data, value)
            return
        write_size(out.data, len(value))
        out.cut()
        out.pieces.append(value if value.__class__ is bytes else (yield from copied([value])))

    return write


def _array_writer_in_turns(field: _Field, is_flexible: bool) -> _WriterInTurns:
    item = replace(field, is_array=False, is_nullable=False)
    write_item = _field_writer(item, is_flexible)
    write_item_in_turns = _field_writer_in_turns(item, is_flexible)
    write_none = _array_writer(write_item, is_flexible, field.is_nullable)
    write_size = _write_compact_size if is_flexible else _write_int32

    def write(out: _Pieces, value: Any) -> Work[None]:
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
            if out.unpaused >= _PAUSE_ROWS:
                out.unpaused = 0
                if len(out.data) >= PIECE_BYTES:
                    out.cut()
                yield

    return write


def _nullable_struct_writer_in_turns(write_struct: _WriterInTurns) -> _WriterInTurns:
    def write(out: _Pieces, value: Any) -> Work[None]:
        if value is None:
            out.data.append(0xFF)
        else:
            out.data.append(1)
            yield from write_struct(out, value)

    return write


@cache
def _entity_writer_in_turns(cls: type[Entity]) -> _WriterInTurns | None:
    schema = struct_schema(cls)
    is_flexible = schema.is_flexible
    rows = [
        (f.name, f.default, _field_writer(f, is_flexible), _field_writer_in_turns(f, is_flexible))
        for f in schema.fields
    ]
    write_tags = _tags_writer(schema) if schema.tagged else None
    write_tags_in_turns = _tags_writer_in_turns(schema)
    if write_tags_in_turns is None and not any(in_turns for *_, in_turns in rows):
        return None

    def write(out: _Pieces, values: Any) -> Work[None]:
        if not isinstance(values, Mapping):
            values = _Attributes(values)
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
        write_field = _field_writer(field, schema.is_flexible)
        usual = bytearray()
        write_field(usual, field.default)
        in_turns = _field_writer_in_turns(field, schema.is_flexible)
        rows.append((field.name, field.tag or 0, write_field, in_turns, bytes(usual)))
    if not any(in_turns for _, _, _, in_turns, _ in rows):
        return None

    def write(out: _Pieces, values: Any) -> Work[None]:
        count = 0
        section: list[bytes] = []
        for name, tag, write_field, write_field_in_turns, usual in rows:
            value = values.get(name, MISSING)
            if value is MISSING:
                continue
            inner = _Pieces(out.kept)
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
            if len(piece) > _COPIED_BYTES:
                out.cut()
                out.pieces.append(piece)
            else:
                out.data += piece

    return write
