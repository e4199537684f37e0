"""The largest legal requests of every API and version, generated from the message schemas.

Owns: which shapes a version has (one long array for each array field at any depth, of unknown names or of
one name again and again, longest strings, large blobs, unknown tags), and their bytes. Does not own sending
them, nor what the names stand for on a broker (`Known`). The encoder under test has no part in it.
Invariant: a request of any size costs a few passes over its bytes: one row is encoded, the others are copies
of it in which a counter is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from struct import pack
from typing import Any, Final
from uuid import UUID

from protocol.apis import SERVED, Api, request_header_version
from protocol.coding.schema import Schema, struct_schema
from protocol.messages import codec

CLIENT_ID: Final = b"hostile"
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
STRING_BYTES_MAX: Final = (1 << 15) - 1
_SLACK_BYTES: Final = 128 * 1024
"""For all that is around the long field."""


_SOME_ID: Final = UUID(int=1)


class Kind(Enum):
    DISTINCT = "distinct"
    """Rows of different names, ids or indexes; all but a few of them are unknown."""
    REPEATED = "repeated"
    """The same known row again and again."""
    LONGEST = "longest"
    """Rows whose strings have the greatest length."""
    BLOB = "blob"
    """One value as large as its type and the frame allow."""
    TAGS = "tags"
    """Tagged fields that nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What exists on the broker, for rows that are known to it."""

    topic: str = "known"
    topic_id: UUID = _SOME_ID
    group: str = "known"
    member_id: str = ""
    generation: int = -1
    transactional_id: str = "known"
    producer: tuple[int, int] = (-1, -1)
    """Id and epoch of the producer of that transactional id."""
    log_dir: str = "/nowhere"
    batch: bytes = b""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Values for single fields, by name or by parent and name with a dot between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    api: Api
    version: int
    path: tuple[str, ...]
    """The names from the message down to the field that is long; empty for tags."""
    kind: Kind

    def __str__(self) -> str:
        return f"{SERVED[self.api].name} v{self.version} {'.'.join(self.path) or 'message'} {self.kind.value}"


def versions() -> Iterator[tuple[Api, int]]:
    for key, row in SERVED.items():
        for version in range(row.served_from, row.max_version + 1):
            yield Api(key), version


def shapes_of(api: Api, version: int) -> list[Shape]:
    schema = codec(api, version, "request").schema
    found = [(path, kind) for path, kinds in _paths(schema, ()) for kind in kinds]
    if schema.is_flexible:
        found.append(((), Kind.TAGS))
    return [Shape(api=api, version=version, path=path, kind=kind) for path, kind in found]


def _paths(schema: Schema, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Kind]]]:
    for each in schema.fields:
        path = (*above, each.name)
        if each.is_array:
            kinds = [Kind.REPEATED]
            varies = _varying(each)
            if varies is not None:
                kinds.append(Kind.DISTINCT)
            if varies is not None and varies[1] == "string":
                kinds.append(Kind.LONGEST)
            yield path, kinds
        elif each.kafka_type in _BLOBS:
            yield path, [Kind.BLOB]
        if each.struct is not None and (each.is_array or not each.is_nullable):
            yield from _paths(struct_schema(each.struct), path)


_BLOBS: Final = frozenset({"string", "bytes", "records"})
_COUNTERS: Final = {"string": 8, "int32": 4, "uuid": 4, "int64": 4}
"""How many bytes of a value count the rows, by what can count."""


def _varying(array: Any) -> tuple[str | None, str] | None:
    """Return (name, type) of what tells one item from another, the name None for plain items."""
    if array.struct is None:
        return (None, array.kafka_type) if array.kafka_type in _COUNTERS else None
    plain = [each for each in struct_schema(array.struct).fields if not each.is_array]
    plain.sort(key=lambda each: each.is_nullable)
    for kafka_type in _COUNTERS:
        for each in plain:
            if each.kafka_type == kafka_type:
                return each.name, kafka_type
    return None


def request(
    shape: Shape,
    known: Known | None = None,
    *,
    rows_max: int,
    bytes_max: int = FRAME_BYTES_MAX,
    correlation_id: int = 1,
) -> tuple[bytearray, int]:
    """Return (the frame with its size, its rows), as large as both bounds allow."""
    writer = _Writer(shape, known or Known(), rows_max, bytes_max - _SLACK_BYTES)
    head = pack(">hhih", shape.api, shape.version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    if request_header_version(shape.api, shape.version) == 2:
        head += b"\0"
    out = writer.out
    out += bytes(4) + head
    writer.struct(codec(shape.api, shape.version, "request").schema, ())
    out[:4] = pack(">i", len(out) - 4)
    assert len(out) - 4 <= bytes_max
    return out, writer.rows


class _Writer:
    def __init__(self, shape: Shape, known: Known, rows_max: int, bytes_max: int) -> None:
        self.out = bytearray()
        self.rows = 0
        self._path, self._kind = shape.path, shape.kind
        self._known = known
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._values = {**_sound(known), **_special(shape, known), **known.fields}
        self._is_within = False
        self._counter_path: tuple[str, ...] | None = None
        self._counter: tuple[int, int, bool] | None = None
        """(place in the row, bytes, whether they are digits) of what counts the rows."""

    def struct(self, schema: Schema, above: tuple[str, ...]) -> None:
        for each in schema.fields:
            path = (*above, each.name)
            if each.is_array:
                self._array(each, path, schema.is_flexible)
            elif each.struct is not None and each.is_nullable:
                self.out.append(0xFF)
            elif each.struct is not None:
                self.struct(struct_schema(each.struct), path)
            else:
                self._plain(each, path, schema)
        if schema.is_flexible:
            if above == () and self._kind is Kind.TAGS:
                self._tags()
            else:
                self.out.append(0)

    def _array(self, array: Any, path: tuple[str, ...], is_flexible: bool) -> None:
        if path == self._path and self._kind is not Kind.BLOB:
            self._long_array(array, path, is_flexible)
        elif self._is_within or self._path[: len(path)] == path:
            self._count(1, is_flexible)
            self.rows += 1
            self._item(array, path, is_flexible)
        else:
            self._count(0, is_flexible)

    def _item(self, array: Any, path: tuple[str, ...], is_flexible: bool) -> None:
        if array.struct is not None:
            self.struct(struct_schema(array.struct), path)
        else:
            self._plain(array, path, None, is_flexible)

    def _long_array(self, array: Any, path: tuple[str, ...], is_flexible: bool) -> None:
        varies = _varying(array)
        if varies is not None and self._kind is not Kind.REPEATED:
            self._counter_path = path if varies[0] is None else (*path, varies[0])
        outer, self.out, rows_above, self.rows = self.out, bytearray(), self.rows, 1
        self._is_within = True
        self._item(array, path, is_flexible)
        self._is_within = False
        row, per_item, self.out = bytes(self.out), self.rows, outer
        count = max(1, min((self._rows_max - rows_above) // per_item, self._bytes_max // len(row)))
        self.rows = rows_above + count * per_item
        self._count(count, is_flexible)
        rows = bytearray(row) * count
        if self._counter is not None:
            place, size, is_text = self._counter
            digits = b"0123456789abcdef" if is_text else bytes(range(256))
            for power in range(size):
                rows[place + size - 1 - power :: len(row)] = column(digits, power, count)
        self.out += rows

    def _plain(
        self, each: Any, path: tuple[str, ...], schema: Schema | None, is_flexible: bool = False
    ) -> None:
        if schema is not None:
            is_flexible = schema.is_flexible
        kafka_type = each.kafka_type
        is_blob = path == self._path and self._kind is Kind.BLOB
        if kafka_type in _BLOBS:
            value = self._value(each, path)
            if is_blob:
                value = b"x" * (STRING_BYTES_MAX if kafka_type == "string" else self._bytes_max)
            elif path == self._counter_path:
                size = _COUNTERS["string"]
                value = b"u" * (STRING_BYTES_MAX if self._kind is Kind.LONGEST else size + 1)
            self._blob(value, kafka_type, is_flexible)
            if path == self._counter_path:
                size = _COUNTERS["string"]
                self._counter = len(self.out) - size, size, True
        elif kafka_type == "uuid":
            has_name = schema is not None and any(
                other.kafka_type == "string" and not other.is_array for other in schema.fields
            )
            value = UUID(int=0) if has_name else self._value(each, path) or UUID(int=0)
            self.out += value.bytes
            if path == self._counter_path:
                self._counter = len(self.out) - 4, 4, False
        else:
            value = self._value(each, path)
            self.out += pack(f">{_LAYOUTS[kafka_type]}", value)
            if path == self._counter_path:
                self._counter = len(self.out) - 4, 4, False

    def _value(self, each: Any, path: tuple[str, ...]) -> Any:
        for key in (".".join(path[-2:]), path[-1]):
            if key in self._values:
                return self._values[key]
        return "" if each.kafka_type in _BLOBS else None if each.kafka_type == "uuid" else 0

    def _blob(self, value: str | bytes | None, kafka_type: str, is_flexible: bool) -> None:
        data = value.encode() if isinstance(value, str) else value
        size = -1 if data is None else len(data)
        if is_flexible:
            self.out += uvarint(size + 1)
        else:
            self.out += pack(">h" if kafka_type == "string" else ">i", size)
        self.out += data or b""

    def _count(self, count: int, is_flexible: bool) -> None:
        self.out += uvarint(count + 1) if is_flexible else pack(">i", count)

    def _tags(self) -> None:
        tag = uvarint(1 << 20) + b"\0"
        count = min(self._rows_max, self._bytes_max // len(tag))
        self.out += uvarint(count) + tag * count
        self.rows += count


_LAYOUTS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}


def column(digits: bytes, power: int, count: int) -> bytes:
    """Return the digit of this power of each of the numbers below `count`."""
    run = len(digits) ** power
    if run >= count:
        return digits[:1] * count
    needed = digits[: min(len(digits), count // run + 1)]
    period = b"".join(bytes([digit]) * run for digit in needed)
    return (period * (count // len(period) + 1))[:count]


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sound(known: Known) -> dict[str, Any]:
    """Return values with which a request gets as far as it can, by field name or parent and name."""
    return {
        **dict.fromkeys(("topic", "name", "topic_name", "resource_name", "topic_names"), known.topic),
        **dict.fromkeys(
            ("group_id", "key", "groups", "coordinator_keys", "groups_names", "group_ids"), known.group
        ),
        **dict.fromkeys(("v3_and_below_transactional_id", "transactional_ids"), known.transactional_id),
        "topic_id": known.topic_id,
        "member_id": known.member_id,
        "generation_id": known.generation,
        "generation_id_or_member_epoch": known.generation,
        "member_epoch": known.generation,
        "path": known.log_dir,
        "records": known.batch,
        "acks": 1,
        "committed": True,
        "coordinator_epoch": 0,
        "duration_filter": -1,
        "feature": "group.version",
        "feature_updates.max_version_level": 1,
        "upgrade_type": 1,
        **dict.fromkeys(("resource_type_filter", "pattern_type_filter", "resource_pattern_type"), 3),
        **dict.fromkeys(("operation", "permission_type"), 3),
        "host": "*",
        "principal": "User:somebody",
        **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"), None),
        **dict.fromkeys(("subscribed_topic_names", "markers.topics.name"), known.topic),
        **dict.fromkeys(("subscribed_topic_regex", "instance_id", "server_assignor"), None),
        "state_filters": "Ongoing",
        "transactional_id_pattern": None,
        "transaction_result": True,
        "transaction_version": 2,
        "verify_only": False,
        "allow_auto_topic_creation": False,
        "allow_replication_factor_change": True,
        "broker_id": 9,
        "broker_ids": 1,
        "config_operation": 0,
        "configs.name": "retention.ms",
        "configuration_keys": "retention.ms",
        "count": 2,
        "current_leader_epoch": -1,
        "endpoint_type": 1,
        "group_instance_id": None,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "max_bytes": 1 << 20,
        "metadata": b"metadata",
        "num_partitions": 1,
        "partition_max_bytes": 1 << 20,
        **dict.fromkeys(("producer_id", "v3_and_below_producer_id"), known.producer[0]),
        **dict.fromkeys(("producer_epoch", "v3_and_below_producer_epoch"), known.producer[1]),
        "protocol_name": "range",
        "protocol_type": "consumer",
        "protocols.name": "range",
        "rebalance_timeout": 30_000,
        "replica_id": -1,
        "replicas": 1,
        "replication_factor": 1,
        "resource_type": 2,
        "resource_types": 16,
        "response_partition_limit": 2000,
        "retention_time": -1,
        "session_timeout": 30_000,
        "states_filter": "Stable",
        "timeout": 5000,
        "timestamp": 1,
        "transaction_timeout": 60_000,
        "transactional_id": None,
        "types_filter": "classic",
        "validate_only": True,
        "value": "3600000",
    }


TRANSACTIONAL: Final = frozenset(
    {
        Api.ADD_PARTITIONS_TO_TXN,
        Api.ADD_OFFSETS_TO_TXN,
        Api.END_TXN,
        Api.TXN_OFFSET_COMMIT,
        Api.DESCRIBE_TRANSACTIONS,
    }
)
"""What is asked about a transaction; others take null for a transactional id."""


def _special(shape: Shape, known: Known) -> dict[str, Any]:
    """Return what a shape needs besides, so that its long field is looked at."""
    if shape.api in TRANSACTIONAL:
        return {"transactional_id": known.transactional_id}
    if shape.api is Api.CREATE_TOPICS:
        counts = -1 if "assignments" in shape.path else 1
        return {"topics.name": "not-there-yet", "num_partitions": counts, "replication_factor": counts}
    return {}
