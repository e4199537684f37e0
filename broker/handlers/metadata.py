"""What clients learn of brokers and topics, in every version: Metadata, DescribeTopicPartitions,
DescribeCluster.

Owns: the shapes of these responses, where each error goes in them, making a topic because a client asked
for it. Does not own: the image (control/image.py), the rules of a new topic (control/topics.py). Invariant:
everything an answer says about brokers and topics comes from one image, read without a wait between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.cluster import Cluster
from broker.control.image import Image, TopicImage
from broker.control.internal_topics import INTERNAL_TOPICS
from broker.control.metadata_records import PartitionImage
from broker.control.topics import NewTopic, internal_topic, invalid_topic_name
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.describe_cluster import DescribeClusterRequest
    from protocol.requests.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
    from protocol.requests.metadata import MetadataRequest


Row: TypeAlias = dict[str, object]
"""One item of a response, which a version may put otherwise."""

_NO_ID: Final = UUID(int=0)
_NOT_ASKED: Final = -(2**31)
# Bits by Kafka's numbers of the operations: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
# CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
_TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
_BROKER_ENDPOINT: Final = 1
_CONTROLLER_ENDPOINT: Final = 2
AUTO_CREATE_WAIT_S: Final = 1.0
"""How long a client waits for a topic that it creates by asking; after that it is to ask again."""


class MetadataHandlers:
    def __init__(self, *, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.METADATA: self.metadata,
            Api.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
            Api.DESCRIBE_CLUSTER: self.describe_cluster,
        }

    def metadata(self, ctx: Context, request: MetadataRequest) -> Fields | Awaitable[Fields]:
        """Answer at once, unless a missing topic is created first or a broker seems to have just ended."""
        if _misses_topic_ids(ctx.api_version, request):
            return _metadata_refused(request)
        image = self._cluster.image
        if (
            request.allow_auto_topic_creation
            and self._cluster.broker_config.auto_create_topics_enable
            and not _wants_all(ctx.api_version, request)
            and not _ids(request)
        ):
            names = dict.fromkeys(topic.name for topic in request.topics or ())
            missing = [
                name
                for name in names
                if name is not None and name not in image.topics and invalid_topic_name(name) is None
            ]
            if missing:
                return self._metadata_later(ctx, request, missing)
        if self._cluster.has_lost_peer():
            return self._metadata_after_doubt(ctx, request)
        return self._metadata(ctx, request)

    async def _metadata_later(self, ctx: Context, request: MetadataRequest, missing: Sequence[str]) -> Fields:
        await self._auto_create(missing)
        return self._metadata(ctx, request)

    async def _metadata_after_doubt(self, ctx: Context, request: MetadataRequest) -> Fields:
        await self._cluster.wait_doubt_over()
        return self._metadata(ctx, request)

    async def _auto_create(self, names: Sequence[str]) -> None:
        topics = [_auto_created(self._cluster.broker_config, name) for name in names]
        try:
            async with asyncio.timeout(AUTO_CREATE_WAIT_S):
                await self._cluster.create_topics(topics)
        except (KafkaError, TimeoutError):
            # The answer says which topics are there; the client asks again for the others.
            return

    def _metadata(self, ctx: Context, request: MetadataRequest) -> Fields:
        view = _View(ctx, self._cluster.image)
        topics = _metadata_topics(view, request)
        if request.include_topic_authorized_operations:
            # An id that no topic has allows nothing.
            topics = (
                fields
                if fields["name"] is None
                else {**fields, "topic_authorized_operations": _TOPIC_OPERATIONS}
                for fields in topics
            )
        return _metadata_of(view, request, list(topics))

    def describe_topic_partitions(self, ctx: Context, request: DescribeTopicPartitionsRequest) -> Fields:
        cluster = self._cluster
        cursor = request.cursor
        after = "" if cursor is None else cursor.topic_name
        asked = {topic.name for topic in request.topics}
        wrong = _wrong_cursor(cursor, asked)
        if wrong:
            errors = [_topic_error(name, ErrorCode.invalid_request) for name in sorted(asked)]
            return {"throttle_time": 0, "topics": errors, "next_cursor": None}
        limit = max(
            1, min(cluster.broker_config.max_request_partition_size_limit, request.response_partition_limit)
        )
        names = sorted(name for name in asked or cluster.image.topics if name >= after)
        start = 0 if cursor is None else cursor.partition_index
        view = _View(ctx, cluster.image)
        topics: list[Row] = []
        next_cursor: Fields | None = None
        for name in names:
            first = start if name == after else 0
            if limit <= 0:
                next_cursor = {"topic_name": name, "partition_index": first}
                break
            topic = cluster.image.topics.get(name)
            if topic is None:
                if asked:
                    topics.append({**_missing(name), "topic_authorized_operations": _TOPIC_OPERATIONS})
                continue
            end = min(len(topic.partitions), first + limit)
            topics.append(_described(view, topic, first, end))
            if end < len(topic.partitions):
                next_cursor = {"topic_name": name, "partition_index": end}
                break
            limit -= max(0, end - first)
        return {"throttle_time": 0, "topics": topics, "next_cursor": next_cursor}

    def describe_cluster(self, ctx: Context, request: DescribeClusterRequest) -> Fields:
        image = self._cluster.image
        endpoint_type = request.endpoint_type
        if endpoint_type != _BROKER_ENDPOINT:
            code, message = _wrong_endpoint(endpoint_type)
            return {
                "throttle_time": 0,
                "error_code": code,
                "error_message": message,
                "endpoint_type": _BROKER_ENDPOINT,
                "cluster_id": "",
                "brokers": [],
            }
        view = _View(ctx, image)
        brokers = view.brokers("broker_id", fenced_too=request.include_fenced_brokers)
        wants_operations = request.include_cluster_authorized_operations
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "error_message": None,
            "endpoint_type": _BROKER_ENDPOINT,
            "cluster_id": image.cluster_id,
            "controller_id": view.controller_id(),
            "brokers": [
                {**fields, "is_fenced": image.brokers[broker_id].fenced}
                for broker_id, fields in brokers.items()
            ],
            "cluster_authorized_operations": _CLUSTER_OPERATIONS if wants_operations else _NOT_ASKED,
        }


# --- Metadata ---


def _misses_topic_ids(version: int, request: MetadataRequest) -> bool:
    """Ids may be asked for since version 12; the schema had them two versions earlier."""
    return version < 12 and any(
        topic.name is None or topic.topic_id not in (None, _NO_ID) for topic in request.topics or ()
    )


def _metadata_refused(request: MetadataRequest) -> Fields:
    topics = [
        _topic_error(topic.name or "", ErrorCode.invalid_request, topic.topic_id)
        for topic in request.topics or ()
    ]
    return {"throttle_time": 0, "brokers": [], "cluster_id": None, "controller_id": -1, "topics": topics}


def _wants_all(version: int, request: MetadataRequest) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _ids(request: MetadataRequest) -> list[UUID]:
    found = (topic.topic_id for topic in request.topics or ())
    return [topic_id for topic_id in dict.fromkeys(found) if topic_id not in (None, _NO_ID)]


def _auto_created(config: BrokerConfig, name: str) -> NewTopic:
    return internal_topic(config, name) or NewTopic(name=name)


def _metadata_of(view: _View, request: MetadataRequest, topics: list[Row]) -> Fields:
    wants_cluster = request.include_cluster_authorized_operations
    return {
        "throttle_time": 0,
        "brokers": list(view.brokers().values()),
        "cluster_id": view.image.cluster_id,
        "controller_id": view.controller_id(),
        "topics": topics,
        "cluster_authorized_operations": _CLUSTER_OPERATIONS if wants_cluster else _NOT_ASKED,
        "error_code": ErrorCode.none,
    }


def _metadata_topics(view: _View, request: MetadataRequest) -> Iterable[Row]:
    image = view.image
    if _wants_all(view.version, request):
        return map(view.topic, image.topics.values())
    ids = _ids(request)
    if ids:
        return (
            _topic_error(None, ErrorCode.unknown_topic_id, topic_id)
            if (topic := image.topic_by_id(topic_id)) is None
            else view.topic(topic)
            for topic_id in ids
        )
    names = dict.fromkeys(topic.name for topic in request.topics or ())
    return (
        _missing(name) if name is None or (topic := image.topics.get(name)) is None else view.topic(topic)
        for name in names
    )


def _missing(name: str | None) -> Row:
    if name is None or invalid_topic_name(name) is not None:
        return _topic_error(name, ErrorCode.invalid_topic_exception)
    return _topic_error(name, ErrorCode.unknown_topic_or_partition)


def _topic_error(name: str | None, code: ErrorCode, topic_id: UUID | None = None) -> Row:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
    }


class _View:
    """An image as clients of one listener and version see it."""

    def __init__(self, ctx: Context, image: Image) -> None:
        self.image = image
        self.version = ctx.api_version
        self._listener = ctx.connection.listener
        self._reachable = {
            broker.id for broker in image.live_brokers() if broker.endpoint(self._listener) is not None
        }
        self._no_listener = (
            ErrorCode.listener_not_found if ctx.api_version >= 6 else ErrorCode.leader_not_available
        )

    def controller_id(self) -> int:
        """Commands go to the controller, so that is the one to name; else any broker that is there."""
        if self.image.controller_id in self._reachable:
            return self.image.controller_id
        return min(self._reachable, default=-1)

    def brokers(self, id_name: str = "node_id", *, fenced_too: bool = False) -> dict[int, Row]:
        """Return those that have an address for this listener, by id."""
        brokers = self.image.brokers.values() if fenced_too else self.image.live_brokers()
        return {
            broker.id: {
                id_name: broker.id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
            }
            for broker in brokers
            if (endpoint := broker.endpoint(self._listener)) is not None
        }

    def topic(self, topic: TopicImage) -> Row:
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.internal,
            "partitions": [
                self._first_version(partition) if self.version == 0 else self.partition(partition)
                for partition in topic.partitions
            ],
        }

    def partition(self, partition: PartitionImage) -> Row:
        return {
            "error_code": self._leader_error(partition),
            "partition_index": partition.index,
            "leader_id": partition.leader if partition.leader in self._reachable else -1,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": partition.replicas,
            "isr_nodes": partition.isr,
            "offline_replicas": [id_ for id_ in partition.replicas if id_ not in self._reachable],
        }

    def _first_version(self, partition: PartitionImage) -> Row:
        """Metadata began with naming only those that are there."""
        row = self.partition(partition)
        replicas = tuple(filter(self._reachable.__contains__, partition.replicas))
        isr = tuple(filter(self._reachable.__contains__, partition.isr))
        if row["error_code"] is ErrorCode.none and (replicas, isr) != (partition.replicas, partition.isr):
            row["error_code"] = ErrorCode.replica_not_available
        return {**row, "replica_nodes": replicas, "isr_nodes": isr}

    def _leader_error(self, partition: PartitionImage) -> ErrorCode:
        if partition.leader in self._reachable:
            return ErrorCode.none
        if partition.leader not in self.image.brokers:
            return ErrorCode.leader_not_available
        return self._no_listener


# --- DescribeTopicPartitions ---


def _wrong_cursor(cursor: Cursor | None, asked: set[str]) -> bool:
    if cursor is None:
        return False
    return cursor.partition_index < 0 or (bool(asked) and cursor.topic_name not in asked)


def _described(view: _View, topic: TopicImage, first: int, end: int) -> Row:
    partitions = [
        {
            **view.partition(partition),
            "error_code": ErrorCode.none,
            "eligible_leader_replicas": [],
            "last_known_elr": [],
        }
        for partition in topic.partitions[first:end]
    ]
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": partitions,
        "topic_authorized_operations": _TOPIC_OPERATIONS,
    }


# --- DescribeCluster ---


def _wrong_endpoint(endpoint_type: int) -> tuple[ErrorCode, str]:
    if endpoint_type == _CONTROLLER_ENDPOINT:
        return (
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        )
    return ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
