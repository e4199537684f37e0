"""Where a message between brokers, or to our own tools, carries more than Kafka's does: fields of our own, as
tagged ones.

Owns: those schemas. Does not own: reading and writing them (messages.py).
Invariant: without the tagged fields each is Kafka's message, byte for byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode

OUR_TAGS_FROM = 10_000
STORED_END = -10_000
"""A special timestamp of ours for ListOffsets: up to where the WAL tier has a partition, and which followers
read from it. Kafka and older brokers answer it with UNSUPPORTED_VERSION; no other client is told the fields.
"""
STORED_END_FROM = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponse:
    """`slots`: objects of the metadata log that follow the offset the broker named."""

    __flexible__: ClassVar[bool] = True
    __version__: ClassVar[int] = 1
    throttle_time: timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    is_caught_up: bool = field(metadata={"kafka_type": "bool"}, default=False)
    is_fenced: bool = field(metadata={"kafka_type": "bool"}, default=True)
    should_shut_down: bool = field(metadata={"kafka_type": "bool"})
    slots: tuple[bytes, ...] = field(metadata={"kafka_type": "bytes", "tag": OUR_TAGS_FROM}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeResponse:
    """`metadata_offset`: how far the controller knew the metadata log when it answered."""

    __flexible__: ClassVar[bool] = True
    __version__: ClassVar[int] = 0
    response_data: bytes | None = field(metadata={"kafka_type": "bytes"}, default=None)
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    metadata_offset: int = field(metadata={"kafka_type": "int64", "tag": OUR_TAGS_FROM}, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """To STORED_END alone: which followers are pointed to the store, and which are sent records."""

    __flexible__: ClassVar[bool] = True
    __version__: ClassVar[int] = STORED_END_FROM
    partition_index: int = field(metadata={"kafka_type": "int32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    timestamp: int = field(metadata={"kafka_type": "int64"}, default=-1)
    offset: int = field(metadata={"kafka_type": "int64"}, default=-1)
    leader_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    pointed_followers: tuple[int, ...] = field(
        metadata={"kafka_type": "int32", "tag": OUR_TAGS_FROM}, default=()
    )
    direct_followers: tuple[int, ...] = field(
        metadata={"kafka_type": "int32", "tag": OUR_TAGS_FROM + 1}, default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    __flexible__: ClassVar[bool] = True
    __version__: ClassVar[int] = STORED_END_FROM
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    __api_key__: ClassVar[int] = int(Api.LIST_OFFSETS)
    __flexible__: ClassVar[bool] = True
    __version__: ClassVar[int] = STORED_END_FROM
    throttle_time: timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    topics: tuple[ListOffsetsTopicResponse, ...]


EXTENDED: Mapping[tuple[int, int, str], type[Any]] = {
    (int(PeerApi.BROKER_HEARTBEAT), 1, "response"): BrokerHeartbeatResponse,
    (int(PeerApi.ENVELOPE), 0, "response"): EnvelopeResponse,
    (int(Api.LIST_OFFSETS), STORED_END_FROM, "response"): ListOffsetsResponse,
}
"""By API, version and kind: the schema in place of Kafka's."""
