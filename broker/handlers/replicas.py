"""Requests of operators about leaders and replicas, in every version: elections, reassignments,
moving a replica between directories, the quorum, and brokers that leave for good.

Owns: the shapes of these responses and where each error goes in them. Does not own: the rules
(control/leaders.py, control/brokers.py), the commit (control/cluster.py). Invariant: what was not committed
is not answered as done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.control.brokers import UnregisterBroker
from broker.control.cluster import Cluster
from broker.control.image import LOOKED_AT_ONCE, BrokerImage, Image, TopicImage
from broker.control.internal_topics import METADATA_TOPIC
from broker.control.leaders import (
    AlterPartitionReassignments,
    ElectionResult,
    ElectLeaders,
    PartitionRef,
    Reassignment,
    ReassignmentResult,
)
from broker.handlers.results import ROWS_AT_ONCE, decision_timeout_ms, distinct, error_fields, rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.work import Work
from storage.log_manager import LogManager

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.alter_partition_reassignments import AlterPartitionReassignmentsRequest
    from protocol.requests.alter_replica_log_dirs import AlterReplicaLogDirsRequest
    from protocol.requests.describe_quorum import DescribeQuorumRequest
    from protocol.requests.elect_leaders import ElectLeadersRequest, TopicPartitions
    from protocol.requests.list_partition_reassignments import ListPartitionReassignmentsRequest
    from protocol.requests.unregister_broker import UnregisterBrokerRequest


_UNKNOWN_TIME: Final = -1
_METADATA_PARTITION: Final = 0
_FINE: Final[Fields] = {"error_code": ErrorCode.none, "error_message": ""}
"""DescribeQuorum and UnregisterBroker say nothing where others say null."""


class ReplicaHandlers:
    def __init__(
        self,
        *,
        cluster: Cluster,
        logs: LogManager,
        now_ms: Callable[[], int],
        absolute_path: Callable[[str], str],
    ) -> None:
        self._cluster = cluster
        self._logs = logs
        self._now_ms = now_ms
        self._absolute_path = absolute_path

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.ELECT_LEADERS: self.elect_leaders,
            Api.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            Api.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            Api.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
            Api.DESCRIBE_QUORUM: self.describe_quorum,
            Api.UNREGISTER_BROKER: self.unregister_broker,
        }

    def _timeout_ms(self, timeout: timedelta) -> int:
        return decision_timeout_ms(timeout, self._cluster.broker_config)

    async def elect_leaders(self, ctx: Context, request: ElectLeadersRequest) -> Fields:
        cluster = self._cluster
        asked = request.topic_partitions
        partitions = None if asked is None else tuple(await cluster.turns.run(_elections(asked)))
        command = ElectLeaders(election_type=request.election_type, partitions=partitions)
        results = await cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        answers = (
            _elected_anywhere(cluster.image.kept(), results) if asked is None else _elected_in(asked, results)
        )
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "replica_election_results": await cluster.turns.run(answers),
        }

    async def alter_partition_reassignments(
        self, ctx: Context, request: AlterPartitionReassignmentsRequest
    ) -> Fields:
        if not request.topics:
            return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": "", "responses": []}
        turns = self._cluster.turns
        allows = request.allow_replication_factor_change
        command = AlterPartitionReassignments(
            reassignments=tuple(await turns.run(_reassignments(request))),
            allow_replication_factor_change=allows,
        )
        results = await self._cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        return {
            "throttle_time": 0,
            "allow_replication_factor_change": allows,
            **error_fields(None),
            "responses": await turns.run(_reassigned(request, results)),
        }

    def list_partition_reassignments(
        self, ctx: Context, request: ListPartitionReassignmentsRequest
    ) -> Work[Fields]:
        image = self._cluster.image.kept()
        if request.topics is None:
            asked: Iterable[tuple[TopicImage, Iterable[int]]] = (
                (topic, range(len(topic.partitions))) for topic in image.topics.values()
            )
        else:
            asked = (
                (image.topics[topic.name], topic.partition_indexes)
                for topic in request.topics
                if topic.name in image.topics
            )
        topics: list[Fields] = []
        for topic, indexes in asked:
            moving = yield from _moving(topic, indexes)
            if moving:
                topics.append({"name": topic.name, "partitions": moving})
            yield
        return {"throttle_time": 0, **error_fields(None), "topics": topics}

    def alter_replica_log_dirs(self, ctx: Context, request: AlterReplicaLogDirsRequest) -> Work[Fields]:
        """Answer that a replica stays in the directory it was made in: every other one is refused as full.

        A replica that is named again is answered once, for the directory that was named last.
        """
        ours = {self._absolute_path(log_dir): log_dir for log_dir in self._logs.dirs}
        wanted: dict[tuple[str, int], str] = {}
        for chosen in request.dirs:
            for topic in chosen.topics:
                for at, index in enumerate(topic.partitions, 1):
                    wanted[topic.name, index] = chosen.path
                    if at % ROWS_AT_ONCE == 0:
                        yield
                yield
        by_topic: dict[str, list[Fields]] = {}
        for at, ((name, index), path) in enumerate(wanted.items(), 1):
            row = {"partition_index": index, "error_code": self._moved(name, index, path, ours)}
            by_topic.setdefault(name, []).append(row)
            if at % ROWS_AT_ONCE == 0:
                yield
        results = yield from rows(
            lambda item: {"topic_name": item[0], "partitions": item[1]}, by_topic.items()
        )
        return {"throttle_time": 0, "results": results}

    def _moved(self, topic: str, index: int, path: str, ours: Mapping[str, str]) -> ErrorCode:
        if path not in ours:
            return ErrorCode.log_dir_not_found
        if ours[path] in self._logs.offline_dirs:
            return ErrorCode.kafka_storage_error
        partition = self._cluster.image.partition(topic, index)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        held = self._logs.logs.get((topic, index))
        if held is None:
            here = self._cluster.node_id in partition.replicas
            return ErrorCode.kafka_storage_error if here else ErrorCode.replica_not_available
        if held.log_dir in self._logs.offline_dirs:
            return ErrorCode.kafka_storage_error
        return ErrorCode.none if held.log_dir == ours[path] else ErrorCode.log_dir_not_found

    def describe_quorum(self, ctx: Context, request: DescribeQuorumRequest) -> Work[Fields]:
        """Describe the metadata log as Kafka does its own. Every live broker may come to lead it, so all are
        voters; what is in the image is committed.
        """
        cluster = self._cluster
        image = cluster.image
        if not _asks_for_the_log(request):
            return (yield from _no_such_quorum(request))
        voters = image.live_brokers()
        clock = Clock(now_s=cluster.now_s(), now_ms=self._now_ms())
        quorum = {
            "partition_index": _METADATA_PARTITION,
            **_FINE,
            "leader_id": image.controller_id,
            "leader_epoch": image.controller_epoch,
            "high_watermark": image.seq,
            "current_voters": [_voter(cluster, broker, clock) for broker in voters],
            "observers": [],
        }
        return {
            **_FINE,
            "topics": [{"topic_name": METADATA_TOPIC, "partitions": [quorum]}],
            "nodes": [
                {
                    "node_id": broker.id,
                    "listeners": [
                        {"name": endpoint.listener, "host": endpoint.host, "port": endpoint.port}
                        for endpoint in broker.endpoints
                    ],
                }
                for broker in voters
            ],
        }

    async def unregister_broker(self, ctx: Context, request: UnregisterBrokerRequest) -> Fields:
        cluster = self._cluster
        command = UnregisterBroker(broker_id=request.broker_id)
        await cluster.submit(command, timeout_ms=cluster.broker_config.request_timeout_ms)
        return {"throttle_time": 0, **_FINE}


# --- elections ---


def _elections(asked: Iterable[TopicPartitions]) -> Work[list[PartitionRef]]:
    partitions: list[PartitionRef] = []
    for topic in asked:
        partitions += yield from rows(
            lambda index, name=topic.topic: (name, index),  # type: ignore[misc]
            topic.partitions,
        )
        yield
    return partitions


def _elected_in(asked: Iterable[TopicPartitions], results: Iterable[ElectionResult]) -> Work[list[Fields]]:
    following = iter(results)
    topics: list[Fields] = []
    for topic in asked:
        partitions = yield from rows(_elected, islice(following, len(topic.partitions)))
        topics.append({"topic": topic.topic, "partition_result": partitions})
        yield
    return topics


def _elected_anywhere(image: Image, results: Iterable[ElectionResult]) -> Work[list[Fields]]:
    """Kafka names every topic, also where no partition was in need of an election."""
    by_topic: dict[str, list[Fields]] = {}
    for at, result in enumerate(results, 1):
        by_topic.setdefault(result.topic, []).append(_elected(result))
        if at % ROWS_AT_ONCE == 0:
            yield

    def row(name: str) -> Fields:
        return {"topic": name, "partition_result": by_topic.get(name, ())}

    topics = yield from distinct(chain(image.topics, by_topic))
    return (yield from rows(row, topics))


def _elected(result: ElectionResult) -> Fields:
    return {"partition_id": result.partition, **error_fields(result.error)}


# --- reassignments ---


def _reassignments(request: AlterPartitionReassignmentsRequest) -> Work[list[Reassignment]]:
    reassignments: list[Reassignment] = []
    for topic in request.topics:
        for partition in topic.partitions:
            replicas = None if partition.replicas is None else tuple(partition.replicas)
            reassignments.append(
                Reassignment(topic=topic.name, partition=partition.partition_index, replicas=replicas)
            )
            yield
    return reassignments


def _reassigned(
    request: AlterPartitionReassignmentsRequest, results: Iterable[ReassignmentResult]
) -> Work[list[Fields]]:
    following = iter(results)
    topics: list[Fields] = []
    for topic in request.topics:
        partitions = yield from rows(
            lambda result: {"partition_index": result.partition, **error_fields(result.error)},
            islice(following, len(topic.partitions)),
        )
        topics.append({"name": topic.name, "partitions": partitions})
        yield
    return topics


def _moving(topic: TopicImage, indexes: Iterable[int]) -> Work[list[Fields]]:
    moving: list[Fields] = []
    for at, index in enumerate(indexes, 1):
        if at % LOOKED_AT_ONCE == 0:
            yield
        if not 0 <= index < len(topic.partitions):
            continue
        partition = topic.partitions[index]
        if partition.is_reassigned:
            moving.append(
                {
                    "partition_index": partition.index,
                    "replicas": partition.replicas,
                    "adding_replicas": partition.adding,
                    "removing_replicas": partition.removing,
                }
            )
    return moving


# --- the quorum ---


def _voter(cluster: Cluster, broker: BrokerImage, clock: Clock) -> Fields:
    """Its heartbeats tell what a voter's fetches would."""
    progress = cluster.heartbeats.progress_of(broker.id)
    return {
        "replica_id": broker.id,
        "replica_directory_id": broker.directories[0],
        "log_end_offset": progress.seq,
        "last_fetch_timestamp": clock.ms_of(progress.heard_s),
        "last_caught_up_timestamp": clock.ms_of(progress.caught_up_s),
    }


class Clock(NamedTuple):
    """One moment on the loop's clock and on the wall's."""

    now_s: float
    now_ms: int

    def ms_of(self, at_s: float | None) -> int:
        return _UNKNOWN_TIME if at_s is None else self.now_ms - round((self.now_s - at_s) * 1000)


def _asks_for_the_log(request: DescribeQuorumRequest) -> bool:
    if len(request.topics) != 1:
        return False
    (topic,) = request.topics
    indexes = [each.partition_index for each in topic.partitions[:2]]
    return topic.topic_name == METADATA_TOPIC and indexes == [_METADATA_PARTITION]


def _no_such_quorum(request: DescribeQuorumRequest) -> Work[Fields]:
    unknown = {
        "error_code": ErrorCode.unknown_topic_or_partition,
        "error_message": "This server does not host this topic-partition.",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [],
        "observers": [],
    }
    topics: list[Fields] = []
    for topic in request.topics:
        partitions = yield from rows(
            lambda one: {"partition_index": one.partition_index, **unknown}, topic.partitions
        )
        topics.append({"topic_name": topic.topic_name, "partitions": partitions})
        yield
    return {**_FINE, "topics": topics, "nodes": []}
