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

kio has a reader and a writer, but its native reader allocates what an array's count field asks for before it
looks at the bytes: five bytes from anybody abort the process. It also rejects tagged fields it does not know,
which Kafka skips (KIP-482), and copies record sets, which here are views on the frame for the log to stamp
in place. kio's writer takes three times as long and needs the dataclasses built first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct, unpack_from
from struct import error as StructError
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin
from uuid import UUID

from protocol.errors import ErrorCode, MalformedRequest, error_code
from protocol.primitives import UVARINT_MAX, Buffer, write_uvarint

if TYPE_CHECKING:  # it would load the four header types, which wire.py reads by hand
    from kio.static.protocol import Entity

Fields: TypeAlias = Mapping[str, Any]

ELEMENTS_MAX = 1 << 18
"""Structs, or eights of plain array items, in one message, if a codec is given no other bound; each takes
about 3 µs of the loop."""


class MissingField(Exception):
    """A required field that a handler did not give: a bug of ours."""


class EntityCodec:
    """Reader and writer of one kio dataclass, or of any with the same metadata (see stored).

    Decoding gives the class itself, or the one of its name in `classes`, and so for the structs inside.
    """

    __slots__ = ("_elements_max", "_read", "schema", "write")

    def __init__(
        self,
        cls: type[Entity],
        elements_max: int = ELEMENTS_MAX,
        classes: ModuleType | None = None,
    ) -> None:
        self.schema = struct_schema(cls)
        self._elements_max = elements_max
        self._read = _entity_reader(cls, classes)
        self.write = _entity_writer(cls)

    def __repr__(self) -> str:
        return f"EntityCodec({self.schema.cls.__module__}.{self.schema.cls.__name__})"

    def decode(self, body: Buffer) -> Any:
        """Return the value that `body` starts with."""
        cursor = _Cursor(memoryview(body), self._elements_max)
        try:
            return self._read(cursor)
        except (StructError, OverflowError) as error:
            raise MalformedRequest(f"{self.schema.cls.__name__} at {cursor.at}: {error}") from error

    def encode(self, fields: Fields) -> bytes:
        out = bytearray()
        self.write(out, fields)
        return bytes(out)


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
    __slots__ = ("at", "buffer", "elements_left")

    def __init__(self, buffer: memoryview, elements_max: int) -> None:
        self.buffer = buffer
        self.at = 0
        self.elements_left = elements_max


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


def _blob_reader(kafka_type: str, is_flexible: bool, is_nullable: bool) -> _Reader:
    layout = _read_int16 if kafka_type == "string" else _read_int32
    convert = _BLOBS[kafka_type]

    def read(cursor: _Cursor) -> Any:
        size: int = _read_varint(cursor) - 1 if is_flexible else layout(cursor)
        if size >= 0:
            at = cursor.at
            end = at + size
            if end > len(cursor.buffer):
                raise MalformedRequest(f"{size} bytes wanted at {at}, {len(cursor.buffer) - at} are left")
            cursor.at = end
            return convert(cursor.buffer[at:end])
        if is_nullable:
            return None
        raise MalformedRequest(f"null at {cursor.at} where none is allowed")

    return read


def _array_reader(read_item: _Reader, field: _Field, is_flexible: bool) -> _Reader:
    item_size_min = max(1, _item_size_min(field, is_flexible))
    is_nullable = field.is_nullable
    weight = 3 if field.struct is None else 0  # a plain item costs an eighth of a struct
    layout = _LAYOUTS.get(field.kafka_type or "")

    def read(cursor: _Cursor) -> tuple[Any, ...] | None:
        count = _read_size(cursor, is_flexible, _read_int32)
        if count < 0:
            if is_nullable:
                return None
            raise MalformedRequest(f"null array at {cursor.at} where none is allowed")
        if count * item_size_min > len(cursor.buffer) - cursor.at:
            raise MalformedRequest(f"array of {count} at {cursor.at} is larger than the message")
        cursor.elements_left -= count >> weight
        if cursor.elements_left < 0:
            raise MalformedRequest(f"array of {count} at {cursor.at} makes too many elements for a message")
        if layout is not None:
            at = cursor.at
            cursor.at = at + count * item_size_min
            return unpack_from(f">{count}{layout}", cursor.buffer, at)
        return tuple([read_item(cursor) for _ in range(count)])

    return read


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
            read = _blob_reader(field.kafka_type, is_flexible, field.is_nullable and not field.is_array)
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
    return count


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
