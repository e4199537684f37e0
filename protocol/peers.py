"""Where a message between brokers carries more than Kafka's does: fields of our own, as tagged ones.

Owns: those schemas. Does not own: reading and writing them (messages.py).
Invariant: without the tagged fields each is Kafka's message, byte for byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from protocol.apis import PeerApi
from protocol.errors import ErrorCode

OUR_TAGS_FROM = 10_000


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


EXTENDED: Mapping[tuple[int, int, str], type[Any]] = {
    (int(PeerApi.BROKER_HEARTBEAT), 1, "response"): BrokerHeartbeatResponse,
    (int(PeerApi.ENVELOPE), 0, "response"): EnvelopeResponse,
}
"""By API, version and kind: the schema in place of Kafka's."""
