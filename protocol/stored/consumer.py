"""What consumers put into JoinGroup and SyncGroup: subscriptions and assignments (ConsumerProtocol).

Owns: both formats in all versions. Does not own: what a group makes of them.
Invariant: a newer version than is known is read by its beginning, as Kafka reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from struct import Struct
from struct import error as StructError
from typing import Any

from protocol.codec import EntityCodec, Fields
from protocol.errors import MalformedRequest
from protocol.primitives import Buffer
from protocol.stored.schema import VERSION, BadRecord, version_of
from protocol.work import Work

_CONSUMER_PROTOCOL_VERSION_MAX = 3
_TOPICS_PER_STEP = 128
_INT32 = Struct(">i").unpack_from
_INT32_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    generation_id: int = -1
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    user_data: bytes | None = None


def subscribed_topics(metadata: Buffer) -> Work[tuple[str, ...] | None]:
    """The topics of a consumer's subscription; None if it cannot be read, as with protocols that are not
    consumers'.

    Read as version 0, which every later one begins with, so that user data of any kind does not matter.
    """
    topics = []
    view = memoryview(metadata)
    try:
        if VERSION.unpack_from(view)[0] < 0:
            return None
        (count,) = _INT32(view, VERSION.size)
        at = VERSION.size + _INT32_SIZE
        for _ in range(count):
            (size,) = VERSION.unpack_from(view, at)
            at += VERSION.size + size
            if size < 0 or at > len(view):
                return None
            topics.append(str(view[at - size : at], "utf-8"))
            if len(topics) % _TOPICS_PER_STEP == 0:
                yield
        (size,) = _INT32(view, at)
    except (StructError, UnicodeDecodeError):
        return None
    return None if count < 0 or at + _INT32_SIZE + size > len(view) else tuple(topics)


def decode_subscription(metadata: Buffer) -> Subscription:
    stored = _decode_consumer("subscription", metadata)
    return Subscription(
        topics=tuple(stored.topics),
        user_data=stored.user_data,
        owned_partitions=_partitions(getattr(stored, "owned_partitions", ())),
        generation_id=getattr(stored, "generation_id", -1),
        rack_id=getattr(stored, "rack_id", None),
    )


def decode_assignment(assignment: Buffer) -> Assignment:
    stored = _decode_consumer("assignment", assignment)
    return Assignment(partitions=_partitions(stored.assigned_partitions), user_data=stored.user_data)


def encode_subscription(subscription: Subscription, version: int = 3) -> bytes:
    values = {one.name: getattr(subscription, one.name) for one in fields(subscription)}
    values["owned_partitions"] = _partition_fields(subscription.owned_partitions)
    return VERSION.pack(version) + _consumer_codec("subscription", version).encode(values)


def encode_assignment(assignment: Assignment, version: int = 3) -> bytes:
    values = {
        "assigned_partitions": _partition_fields(assignment.partitions),
        "user_data": assignment.user_data,
    }
    return VERSION.pack(version) + _consumer_codec("assignment", version).encode(values)


def _decode_consumer(kind: str, data: Buffer) -> Any:
    version = version_of(data)
    if version < 0:
        raise BadRecord(f"consumer {kind} version {version}")
    # A newer version begins with what the newest known one has; Kafka reads it so.
    codec = _consumer_codec(kind, min(version, _CONSUMER_PROTOCOL_VERSION_MAX))
    try:
        return codec.decode(memoryview(data)[2:])
    except MalformedRequest as error:
        raise BadRecord(f"consumer {kind}: {error}") from error


@cache
def _consumer_codec(kind: str, version: int) -> EntityCodec:
    module = import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    return EntityCodec(getattr(module, f"ConsumerProtocol{kind.title()}"))


def _partitions(topics: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((topic.topic, tuple(topic.partitions)) for topic in topics)


def _partition_fields(topics: tuple[tuple[str, tuple[int, ...]], ...]) -> list[Fields]:
    return [{"topic": topic, "partitions": partitions} for topic, partitions in topics]
