"""What brokers ask of the controller over the inter-broker listener, in Kafka's own messages.

Owns: these requests as commands, and the answers as responses. Does not own: which client counts as a
broker (dispatch), the rules (control/leaders.py, control/brokers.py), the commit (control/cluster.py).
Invariant: only the controller answers; any other broker says that it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

from broker.control.brokers import AllocateProducerIds
from broker.control.cluster import Cluster
from broker.control.leaders import AlterPartition, IsrChange, IsrResult
from broker.handlers.results import rows
from protocol.apis import PeerApi
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.allocate_producer_ids import AllocateProducerIdsRequest
    from protocol.requests.alter_partition import AlterPartitionRequest
    from protocol.requests.broker_heartbeat import BrokerHeartbeatRequest
    from protocol.requests.broker_registration import BrokerRegistrationRequest


_NO_ID: Final = UUID(int=0)


class PeerHandlers:
    def __init__(self, *, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {
            PeerApi.ALTER_PARTITION: self.alter_partition,
            PeerApi.BROKER_HEARTBEAT: self.broker_heartbeat,
            PeerApi.BROKER_REGISTRATION: self.broker_registration,
            PeerApi.ALLOCATE_PRODUCER_IDS: self.allocate_producer_ids,
        }

    async def broker_heartbeat(self, ctx: Context, request: BrokerHeartbeatRequest) -> Fields:
        return await self._cluster.heartbeats.heartbeat(request, ctx.connection)

    async def broker_registration(self, ctx: Context, request: BrokerRegistrationRequest) -> Fields:
        try:
            return await self._cluster.heartbeats.register(request)
        except KafkaError as error:
            return {"throttle_time": 0, "error_code": error.code, "broker_epoch": -1}

    async def alter_partition(self, ctx: Context, request: AlterPartitionRequest) -> Fields:
        cluster = self._cluster
        changes = await cluster.turns.run(_isr_changes(request))
        command = AlterPartition(
            broker_id=request.broker_id, broker_epoch=request.broker_epoch, changes=tuple(changes)
        )
        results = await cluster.submit(command, timeout_ms=cluster.broker_config.request_timeout_ms)
        topics = await cluster.turns.run(_altered_topics(request, results))
        return {"throttle_time": 0, "error_code": ErrorCode.none, "topics": topics}

    async def allocate_producer_ids(self, ctx: Context, request: AllocateProducerIdsRequest) -> Fields:
        cluster = self._cluster
        command = AllocateProducerIds(broker_id=request.broker_id, broker_epoch=request.broker_epoch)
        block = await cluster.submit(command, timeout_ms=cluster.broker_config.request_timeout_ms)
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "producer_id_start": block.start,
            "producer_id_len": len(block),
        }


def _isr_changes(request: AlterPartitionRequest) -> Work[list[IsrChange]]:
    changes: list[IsrChange] = []
    for topic in request.topics:
        for partition in topic.partitions:
            changes.append(
                IsrChange(
                    topic_id=topic.topic_id or _NO_ID,
                    partition=partition.partition_index,
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch,
                    isr=tuple(
                        (member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs
                    ),
                )
            )
            yield
    return changes


def _altered_topics(request: AlterPartitionRequest, results: Iterable[IsrResult]) -> Work[list[Fields]]:
    """The answers in the shape of the request, which the results follow."""
    following = iter(results)
    topics: list[Fields] = []
    for topic in request.topics:
        altered = yield from rows(_altered, islice(following, len(topic.partitions)))
        topics.append({"topic_id": topic.topic_id, "partitions": altered})
        yield
    return topics


def _altered(result: IsrResult) -> Fields:
    partition = result.image
    if partition is None:
        assert result.error is not None
        return {
            "partition_index": result.partition,
            "error_code": result.error.code,
            "leader_id": 0,
            "leader_epoch": 0,
            "isr": [],
            "partition_epoch": 0,
        }
    return {
        "partition_index": result.partition,
        "error_code": ErrorCode.none,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": partition.isr,
        "partition_epoch": partition.partition_epoch,
    }
