"""DescribeProducers: what a log knows of its producers.

Owns: what it refuses. Does not own: what a log knows (the log), producer ids (transactions). Invariant: an
error of one partition is answered in its place and stops no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.control.cluster import Cluster
from broker.control.topics import invalid_topic_name
from broker.handlers.dispatch import Context, Handler
from broker.handlers.results import ROWS_AT_ONCE
from broker.replicas.partition import Partition
from broker.replicas.replica_manager import ReplicaManager
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.work import Work

if TYPE_CHECKING:
    from protocol.requests.describe_producers import DescribeProducersRequest


class ProducerHandlers:
    def __init__(self, *, replicas: ReplicaManager, cluster: Cluster) -> None:
        self._replicas = replicas
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.DESCRIBE_PRODUCERS: self.describe_producers,
        }

    def describe_producers(self, ctx: Context, request: DescribeProducersRequest) -> Work[Fields]:
        topics = []
        answered: set[tuple[str, int]] = set()
        rows, rows_max = 0, self._cluster.broker_config.request_rows_max
        for topic in request.topics:
            partitions: list[dict[str, Any]] = []
            yield
            for index in topic.partition_indexes:
                answer: dict[str, Any] = {
                    "partition_index": index,
                    "error_code": ErrorCode.none,
                    "error_message": None,
                    "active_producers": [],
                }
                partitions.append(answer)
                if len(partitions) % ROWS_AT_ONCE == 0:
                    yield
                found = self._replicas.replica(topic.name, index)
                if isinstance(found, ErrorCode):
                    is_a_name = invalid_topic_name(topic.name) is None
                    answer["error_code"] = found if is_a_name else ErrorCode.invalid_topic_exception
                elif (topic.name, index) in answered and rows >= rows_max:
                    # Kafka repeats all of it as often as it is asked for.
                    answer["error_code"] = ErrorCode.invalid_request
                    answer["error_message"] = "the partition is named more than once"
                else:
                    answered.add((topic.name, index))
                    producers = answer["active_producers"] = yield from _described(found)
                    rows += len(producers)
            topics.append({"name": topic.name, "partitions": partitions})
        return {"throttle_time": 0, "topics": topics}


def _described(partition: Partition) -> Work[list[Fields]]:
    rows: list[Fields] = []
    for producer in partition.log.producer_table.active():
        rows.append(
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": producer.current_txn_start_offset,
            }
        )
        if len(rows) % ROWS_AT_ONCE == 0:
            yield
    return rows
