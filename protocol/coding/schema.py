"""What the class of a message says of its fields: kinds, nullability, tags, defaults, least sizes.

Owns: the description, and the layouts of plain numbers. Does not own: bytes.
Invariant: the description follows from the class alone, and is made once for each.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:  # it would load the four header types, which wire.py reads by hand
    from kio.static.protocol import Entity

INT8 = Struct(">b")
INT16 = Struct(">h")
UINT16 = Struct(">H")
INT32 = Struct(">i")
INT64 = Struct(">q")
FLOAT64 = Struct(">d")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
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
    fields: tuple[Field, ...]  # in wire order
    tagged: tuple[Field, ...]  # by tag
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


def _describe(field: Any) -> Field:
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
    return Field(
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


def _size_min(field: Field, is_flexible: bool) -> int:
    if field.is_array:
        return 1 if is_flexible else 4
    return item_size_min(field, is_flexible)


def item_size_min(field: Field, is_flexible: bool) -> int:
    if field.struct is not None:
        return 1 if field.is_nullable and not field.is_array else struct_schema(field.struct).size_min
    assert field.kafka_type is not None
    if field.kafka_type in _SIZES:
        return _SIZES[field.kafka_type]
    if is_flexible:
        return 1
    return 2 if field.kafka_type == "string" else 4
