"""What clients learn of brokers and topics, in every version: Metadata, DescribeTopicPartitions,
DescribeCluster.

Owns: the shapes of these responses, where each error goes in them, making a topic because a client asked
for it. Does not own: the image (control/image.py), the rules of a new topic (control/topics.py). Invariant:
everything an answer says about brokers and topics comes from one image, however many turns it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.checks import PARTITIONS_MAX
from broker.control.cluster import Cluster
from broker.control.image import Image, TopicImage
from broker.control.internal_topics import INTERNAL_TOPICS
from broker.control.metadata_records import PartitionImage
from broker.control.topics import NewTopic, internal_topic, invalid_topic_name
from broker.handlers.results import ROWS_AT_ONCE, distinct, rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work, in_order

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

    def metadata(self, ctx: Context, request: MetadataRequest) -> Work[Fields] | Awaitable[Fields]:
        """Answer, unless a missing topic is created first or a broker seems to have just ended."""
        asked = request.topics or ()
        image = self._cluster.image
        creates = self._may_create(ctx, request) and (
            len(asked) > ROWS_AT_ONCE or any(topic.name not in image.topics for topic in asked)
        )
        if creates or self._cluster.has_lost_peer():
            return self._metadata_later(ctx, request)
        return self._metadata(ctx, request)

    def _may_create(self, ctx: Context, request: MetadataRequest) -> bool:
        return (
            request.allow_auto_topic_creation
            and self._cluster.broker_config.auto_create_topics_enable
            and not _wants_all(ctx.api_version, request)
        )

    async def _metadata_later(self, ctx: Context, request: MetadataRequest) -> Fields:
        turns = self._cluster.turns
        if self._may_create(ctx, request):
            image = self._cluster.image.kept()
            missing = await turns.run(_missing_names(image, ctx.api_version, request))
            if missing:
                await self._auto_create(missing)
                return await turns.run(self._metadata(ctx, request))
        if self._cluster.has_lost_peer():
            await self._cluster.wait_doubt_over()
        return await turns.run(self._metadata(ctx, request))

    async def _auto_create(self, names: Sequence[str]) -> None:
        if len(names) > PARTITIONS_MAX:
            return  # as the controller would say
        config = self._cluster.broker_config
        topics = await self._cluster.turns.run(rows(lambda name: _auto_created(config, name), names))
        try:
            async with asyncio.timeout(AUTO_CREATE_WAIT_S):
                await self._cluster.create_topics(topics)
        except (KafkaError, TimeoutError):
            # The answer says which topics are there; the client asks again for the others.
            return

    def _metadata(self, ctx: Context, request: MetadataRequest) -> Work[Fields]:
        if (yield from _misses_topic_ids(ctx.api_version, request)):
            return (yield from _metadata_refused(request))
        view = _View(ctx, self._cluster.image.kept())
        topics = yield from _metadata_topics(view, request)
        if request.include_topic_authorized_operations:
            for fields in topics:
                # An id that no topic has allows nothing.
                if fields["name"] is not None:
                    fields["topic_authorized_operations"] = _TOPIC_OPERATIONS
        return _metadata_of(view, request, topics)

    def describe_topic_partitions(
        self, ctx: Context, request: DescribeTopicPartitionsRequest
    ) -> Work[Fields]:
        cluster = self._cluster
        cursor = request.cursor
        after = "" if cursor is None else cursor.topic_name
        asked = yield from distinct(topic.name for topic in request.topics)
        if _wrong_cursor(cursor, asked):
            named = yield from in_order(asked)
            errors = yield from rows(lambda name: _topic_error(name, ErrorCode.invalid_request), named)
            return {"throttle_time": 0, "topics": errors, "next_cursor": None}
        limit = max(
            1, min(cluster.broker_config.max_request_partition_size_limit, request.response_partition_limit)
        )
        image = cluster.image.kept()
        names = yield from in_order(asked or image.topics)
        start = 0 if cursor is None else cursor.partition_index
        view = _View(ctx, image)
        topics: list[Row] = []
        next_cursor: Fields | None = None
        for at, name in enumerate(names, 1):
            if at % ROWS_AT_ONCE == 0:
                yield
            if name < after:
                continue
            first = start if name == after else 0
            if limit <= 0:
                next_cursor = {"topic_name": name, "partition_index": first}
                break
            topic = image.topics.get(name)
            if topic is None:
                if asked:
                    topics.append({**_missing(name), "topic_authorized_operations": _TOPIC_OPERATIONS})
                continue
            end = min(len(topic.partitions), first + limit)
            topics.append((yield from _described(view, topic, first, end)))
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


def _misses_topic_ids(version: int, request: MetadataRequest) -> Work[bool]:
    """Ids may be asked for since version 12; the schema had them two versions earlier."""
    if version >= 12:
        return False
    wrong = yield from rows(
        lambda topic: topic.name is None or topic.topic_id not in (None, _NO_ID), request.topics or ()
    )
    return any(wrong)


def _metadata_refused(request: MetadataRequest) -> Work[Fields]:
    topics = yield from rows(
        lambda topic: _topic_error(topic.name or "", ErrorCode.invalid_request, topic.topic_id),
        request.topics or (),
    )
    return {"throttle_time": 0, "brokers": [], "cluster_id": None, "controller_id": -1, "topics": topics}


def _wants_all(version: int, request: MetadataRequest) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _ids(request: MetadataRequest) -> Work[list[UUID]]:
    """Return each id that is asked for, once."""
    found: dict[UUID, None] = {}
    for at, topic in enumerate(request.topics or (), 1):
        if topic.topic_id is not None and topic.topic_id != _NO_ID:
            found[topic.topic_id] = None
        if at % ROWS_AT_ONCE == 0:
            yield
    return list(found)


def _missing_names(image: Image, version: int, request: MetadataRequest) -> Work[list[str]]:
    """Return the topics, each once, that could be created by asking for them."""
    if (yield from _misses_topic_ids(version, request)) or (yield from _ids(request)):
        return []
    missing: dict[str, None] = {}
    for at, topic in enumerate(request.topics or (), 1):
        name = topic.name
        if name is not None and name not in image.topics and invalid_topic_name(name) is None:
            missing[name] = None
        if at % ROWS_AT_ONCE == 0:
            yield
    return list(missing)


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


def _metadata_topics(view: _View, request: MetadataRequest) -> Work[list[Row]]:
    """Return what is asked for, each topic once however often it is named."""
    image = view.image
    topics: list[Row] = []
    if _wants_all(view.version, request):
        wanted: Iterable[Work[Row]] = map(view.topic, image.topics.values())
    else:
        ids = yield from _ids(request)
        if ids:
            wanted = (_identified(view, topic_id) for topic_id in ids)
        else:
            names = yield from distinct(topic.name for topic in request.topics or ())
            wanted = (_named(view, name) for name in names)
    for at, each in enumerate(wanted, 1):
        topics.append((yield from each))
        if at % ROWS_AT_ONCE == 0:
            yield
    return topics


def _named(view: _View, name: str | None) -> Work[Row]:
    topic = None if name is None else view.image.topics.get(name)
    return _missing(name) if topic is None else (yield from view.topic(topic))


def _identified(view: _View, topic_id: UUID) -> Work[Row]:
    topic = view.image.topic_by_id(topic_id)
    if topic is None:
        return _topic_error(None, ErrorCode.unknown_topic_id, topic_id)
    return (yield from view.topic(topic))


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
        "partitions": (),
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

    def topic(self, topic: TopicImage) -> Work[Row]:
        make = self._first_version if self.version == 0 else self.partition
        partitions = yield from rows(make, topic.partitions)
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.internal,
            "partitions": partitions,
        }

    def partition(self, partition: PartitionImage) -> Row:
        return {
            "error_code": self._leader_error(partition),
            "partition_index": partition.index,
            "leader_id": partition.leader if partition.leader in self._reachable else -1,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": partition.replicas,
            "isr_nodes": partition.isr,
            "offline_replicas": tuple(id_ for id_ in partition.replicas if id_ not in self._reachable),
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


def _wrong_cursor(cursor: Cursor | None, asked: Collection[str]) -> bool:
    if cursor is None:
        return False
    return cursor.partition_index < 0 or (bool(asked) and cursor.topic_name not in asked)


def _described(view: _View, topic: TopicImage, first: int, end: int) -> Work[Row]:
    partitions = yield from rows(view.partition, topic.partitions[first:end])
    for row in partitions:
        row |= {"error_code": ErrorCode.none, "eligible_leader_replicas": (), "last_known_elr": ()}
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
