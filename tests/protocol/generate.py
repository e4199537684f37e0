"""Messages of any API version for property tests, drawn from kio's schemas.

Owns: strategies for Fields, and what a peer should decode from them. The encoder and decoder under test
have no part in either, so a mistake in them cannot hide here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from protocol.apis import SERVED
from protocol.coding.schema import struct_schema
from protocol.errors import ErrorCode
from protocol.messages import Kind, codec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS: tuple[Kind, Kind] = ("request", "response")


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _signed(8),
    "int16": _signed(16),
    "uint16": st.integers(0, 0xFFFF),
    "int32": _signed(32),
    "int64": _signed(64),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "error_code": st.sampled_from(ErrorCode).map(int),
    "timedelta_i32": _signed(32),
    "timedelta_i64": st.integers(-(10**12), 10**12),
    "datetime_i64": st.integers(0, 10**12),
    "uuid": st.none() | st.uuids(),
    "string": st.text(st.characters(codec="utf-8"), max_size=6) | st.just("x" * 200),
    "bytes": st.binary(max_size=6) | st.just(b"y" * 200),
    "records": st.binary(max_size=6) | st.just(b"z" * 200),
}


def versions() -> Iterator[tuple[int, int]]:
    for key, row in SERVED.items():
        for version in range(row.served_from, row.max_version + 1):
            yield key, version


def fields_of(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a message, tagged ones at times left out."""
    return _fields_of(schema.cls)


@cache
def _fields_of(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    schema = struct_schema(cls)

    def one(field: Any) -> st.SearchStrategy[Any]:
        nested = field.struct is not None
        item = fields_of(struct_schema(field.struct)) if nested else PRIMITIVES[field.kafka_type]
        if field.is_array:
            item = st.lists(item, max_size=2)
        return st.none() | item if field.is_nullable and field.tag is None else item

    return st.fixed_dictionaries(
        {field.name: one(field) for field in schema.fields},
        optional={field.name: one(field) for field in schema.tagged},
    )


def classes_of(key: int, kind: Kind) -> ModuleType | None:
    """Return where the classes are that messages of an API decode to; None: kio's."""
    return import_module(f"protocol.requests.{SERVED[key].kio_name}") if kind == "request" else None


def decoded(schema: Any, fields: dict[str, Any], classes: ModuleType | None = None) -> Any:
    """Return the message with these fields: kio's dataclass, or the class of its name in `classes`."""

    def one(field: Any, value: Any) -> Any:
        if value is None:
            return None
        if field.is_array:
            return tuple(item(field, each) for each in value)
        return item(field, value)

    def item(field: Any, value: Any) -> Any:
        if field.struct is not None:
            return decoded(struct_schema(field.struct), value, classes)
        match field.kafka_type:
            case "timedelta_i32" | "timedelta_i64":
                return timedelta(milliseconds=value)
            case "datetime_i64":
                return EPOCH + timedelta(milliseconds=value)
            case "error_code":
                return ErrorCode(value)
            case "uuid":
                return None if value == UUID(int=0) else value
        return value

    values = {
        field.name: one(field, fields[field.name])
        for field in (*schema.fields, *schema.tagged)
        if field.name in fields
    }
    return (getattr(classes, schema.cls.__name__) if classes else schema.cls)(**values)


def smallest(schema: Any) -> dict[str, Any]:
    """The least a message can hold: what a property test shrinks to, without one."""
    zero = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None, "float64": 0.0}

    def one(field: Any) -> Any:
        if field.is_array:
            return []
        if field.struct is not None:
            return None if field.is_nullable else smallest(struct_schema(field.struct))
        return zero.get(field.kafka_type, 0)

    return {field.name: one(field) for field in schema.fields}


def schema_of(key: int, version: int, kind: Kind) -> Any:
    return codec(key, version, kind).schema
