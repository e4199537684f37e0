"""A language for schemas that kio lacks: records with a version before them and fields that come and go.

Owns: schemas, the codec of each version, the version before the fields, BadRecord. Does not own: any record.
Invariant: a record is read and written by the same codec as messages are (protocol.codec); bytes that are
not in the format they claim raise BadRecord.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from functools import cache
from struct import Struct
from typing import Any, cast
from uuid import UUID

from protocol.codec import EntityCodec, Fields
from protocol.errors import MalformedRequest
from protocol.primitives import Buffer, copied
from protocol.work import Work, let_go

VERSION = Struct(">h")


class BadRecord(Exception):
    """Stored bytes that are not in the format they claim."""


_REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A field and the versions that have it; `kafka_type` None stands for the nested schema: an array of it,
    or one if `is_array` is False.
    """

    name: str
    kafka_type: str | None
    is_array: bool | None = None
    """Left out, whatever is nested is an array, and nothing else."""
    since: int = 0
    until: int = 1 << 15
    is_nullable: bool = False
    tag: int | None = None
    default: Any = _REQUIRED
    items: StoredSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredSchema:
    """Found by identity: its codec is looked up for every record."""

    name: str
    versions: range
    flexible_from: int
    columns: tuple[Column, ...]


_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "bytes": bytes,
    "int8": int,
    "int16": int,
    "int32": int,
    "int64": int,
    "uuid": UUID,
}


@cache
def _class(schema: StoredSchema, version: int) -> type[Any]:
    """A dataclass like those kio generates from Kafka's schemas, which has none for these."""
    columns: list[tuple[str, Any, Any]] = []
    for column in schema.columns:
        if not column.since <= version <= column.until:
            continue
        metadata: dict[str, Any] = {}
        python_type: Any
        if column.items is not None:
            python_type = _class(column.items, version)
        else:
            assert column.kafka_type is not None
            metadata["kafka_type"] = column.kafka_type
            python_type = _PYTHON_TYPES[column.kafka_type]
        if column.items is not None if column.is_array is None else column.is_array:
            python_type = tuple[python_type, ...]
        if column.is_nullable:
            python_type |= None
        if column.tag is not None:
            metadata["tag"] = column.tag
        if column.default is _REQUIRED:
            columns.append((column.name, python_type, field(metadata=metadata)))
        else:
            columns.append((column.name, python_type, field(metadata=metadata, default=column.default)))
    return make_dataclass(
        schema.name,
        columns,
        frozen=True,
        slots=True,
        kw_only=True,
        namespace={"__flexible__": version >= schema.flexible_from, "__version__": version},
    )


@cache
def _codec(schema: StoredSchema, version: int) -> EntityCodec:
    if version not in schema.versions:
        raise BadRecord(f"{schema.name} version {version}")
    return EntityCodec(_class(schema, version))


def encode_versioned(schema: StoredSchema, version: int, values: Fields) -> bytes:
    return VERSION.pack(version) + _codec(schema, version).encode(values)


def encoding_versioned(schema: StoredSchema, version: int, values: Fields) -> Work[bytes]:
    """`encode_versioned`, in turns."""
    kept: list[Any] = []
    pieces = yield from _codec(schema, version).encode_in_turns(values, kept)
    yield from let_go(kept)
    return VERSION.pack(version) + (yield from copied(pieces))


def version_of(data: Buffer) -> int:
    if len(data) < 2:
        raise BadRecord(f"{len(data)} bytes have no version")
    return cast(int, VERSION.unpack_from(data)[0])


def decode_versioned(schema: StoredSchema, version: int, data: Buffer) -> Any:
    try:
        return _codec(schema, version).decode(memoryview(data)[2:])
    except MalformedRequest as error:
        raise BadRecord(f"{schema.name} version {version}: {error}") from error
