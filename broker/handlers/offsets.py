"""The small requests about a partition's offsets: ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Owns: their per-partition errors. Does not own: Produce and Fetch (their own modules), the look-ups themselves
(the log). Invariant: an error of one partition is answered in its place and stops no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from broker.control.internal_topics import INTERNAL_TOPICS
from broker.handlers.dispatch import Context, Handler
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from broker.replicas.replica_manager import CommitFuture, ReplicaManager
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import Fields, get

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SPECIAL_FROM: Final[Mapping[int, int]] = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_OFFSET_NOT_AVAILABLE_FROM: Final = 5
_READ_COMMITTED: Final = 1
_CONSUMER: Final = -1
_DEBUGGER: Final = -2
"""Asks one replica about itself, whoever leads."""
_HIGH_WATERMARK: Final = -1
_UNKNOWN: Final = (-1, -1, -1)
"""(timestamp, offset, leader epoch) of nothing."""


class OffsetHandlers:
    def __init__(self, *, replicas: ReplicaManager, purgatory: Purgatory) -> None:
        self._replicas = replicas
        self._purgatory = purgatory

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.LIST_OFFSETS: self.list_offsets,
            Api.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            Api.DELETE_RECORDS: self.delete_records,
        }

    # --- looking up ---

    def list_offsets(self, ctx: Context, request: Any) -> Fields:
        asked = Counter(
            (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        )
        isolation = get(request, "isolation_level", 0) if request.replica_id == _CONSUMER else None
        from_leader = request.replica_id != _DEBUGGER
        topics: dict[str, dict[int, Fields]] = {}
        for topic in request.topics:
            for each in topic.partitions:
                if asked[topic.name, each.partition_index] > 1:
                    answer: Fields = {"error_code": ErrorCode.invalid_request}
                else:
                    answer = self._list_offset(ctx, topic.name, each, isolation, from_leader)
                topics.setdefault(topic.name, {})[each.partition_index] = {
                    "partition_index": each.partition_index,
                    "timestamp": -1,
                    "offset": -1,
                    "leader_epoch": -1,
                    **answer,
                }
        rows = [
            {"name": name, "partitions": list(partitions.values())} for name, partitions in topics.items()
        ]
        return {"throttle_time": 0, "topics": rows}

    def _list_offset(
        self, ctx: Context, topic: str, asked: Any, isolation: int | None, from_leader: bool
    ) -> Fields:
        try:
            if asked.timestamp < 0 and ctx.api_version < _SPECIAL_FROM.get(asked.timestamp, 1 << 15):
                raise KafkaError(ErrorCode.unsupported_version)
            look_up = self._replicas.find if from_leader else self._replicas.replica
            partition = look_up(topic, asked.partition_index, get(asked, "current_leader_epoch", -1))
            if isinstance(partition, ErrorCode):
                raise KafkaError(partition)
            timestamp, offset, epoch = _offset_at(partition, asked.timestamp, isolation)
        except KafkaError as failure:
            code = failure.code
            if code is ErrorCode.offset_not_available and ctx.api_version < _OFFSET_NOT_AVAILABLE_FROM:
                code = ErrorCode.leader_not_available
            return {"error_code": code}
        return {"error_code": ErrorCode.none, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}

    def offset_for_leader_epoch(self, ctx: Context, request: Any) -> Fields:
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                answer: dict[str, Any] = {"partition": asked.partition, "leader_epoch": -1, "end_offset": -1}
                found = self._replicas.find(topic.topic, asked.partition, asked.current_leader_epoch)
                if isinstance(found, ErrorCode):
                    answer["error_code"] = found
                else:
                    answer["error_code"] = ErrorCode.none
                    epoch, end = found.log.end_offset_for_epoch(asked.leader_epoch)
                    answer["leader_epoch"], answer["end_offset"] = epoch, end
                partitions.append(answer)
            topics.append({"topic": topic.topic, "partitions": partitions})
        return {"throttle_time": 0, "topics": topics}

    # --- DeleteRecords ---

    def delete_records(self, ctx: Context, request: Any) -> Fields | Awaitable[Fields]:
        """Answered when every live replica has deleted as much, or it was not so in time."""
        asked: dict[
            str, dict[int, int]
        ] = {}  # of a partition named twice the last offset counts, as in Kafka
        for topic in request.topics:
            for partition in topic.partitions:
                asked.setdefault(topic.name, {})[partition.partition_index] = partition.offset
        waits: list[tuple[dict[str, Any], Partition, int]] = []
        topics = []
        for name, offsets in asked.items():
            partitions = []
            for index, offset in offsets.items():
                answer: dict[str, Any] = {
                    "partition_index": index,
                    "low_watermark": -1,
                    "error_code": ErrorCode.none,
                }
                partitions.append(answer)
                try:
                    partition, target = self._delete_before(name, index, offset)
                except KafkaError as error:
                    answer["error_code"] = error.code
                    continue
                answer["low_watermark"] = partition.low_watermark
                if partition.low_watermark < target:
                    waits.append((answer, partition, target))
            topics.append({"name": name, "partitions": partitions})
        response: Fields = {"throttle_time": 0, "topics": topics}
        wait_s = request.timeout.total_seconds()
        return self._deleted_everywhere(waits, wait_s, response) if waits else response

    async def _deleted_everywhere(
        self, waits: list[tuple[dict[str, Any], Partition, int]], wait_s: float, response: Fields
    ) -> Fields:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        for answer, partition, target in waits:
            waiter = CommitFuture(partition, target, loop)
            partition.wait_deleted(waiter)
            self._purgatory.watch(waiter, max(deadline - loop.time(), 0))
            try:
                if partition.low_watermark < target:
                    await waiter.future
            except KafkaError as error:
                answer["error_code"] = error.code
            finally:
                waiter.finish()
                partition.wait_deleted_no_more(waiter)
            answer["low_watermark"] = partition.low_watermark
        return response

    def _delete_before(self, topic: str, index: int, offset: int) -> tuple[Partition, int]:
        """The partition and up to where its leader deleted."""
        replicas = self._replicas
        found = replicas.find(topic, index)
        if found is ErrorCode.unknown_topic_or_partition:
            raise KafkaError(found)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"records of {topic} are not deleted by clients"
            )
        partition = replicas.partition(topic, index)
        if not partition.log.config.is_deleted:
            raise KafkaError(ErrorCode.policy_violation, "cleanup.policy keeps the records")
        target = partition.log.high_watermark if offset == _HIGH_WATERMARK else offset
        if target < 0:
            raise KafkaError(ErrorCode.offset_out_of_range)
        partition.log.advance_log_start(target, lambda error: self._started(partition, error))
        return partition, target

    def _started(self, partition: Partition, error: KafkaError | None) -> None:
        """The log start is durable, so it counts here, and the followers may follow."""
        if error is None:
            partition.log_start_moved()
            self._purgatory.wake_followers(partition)


def _offset_at(partition: Partition, timestamp: int, isolation: int | None) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) for one of the special timestamps or a real one."""
    held = partition.log
    if timestamp == EARLIEST:
        return _at_offset(partition, held.log_start_offset)
    if timestamp == EARLIEST_LOCAL:
        return _at_offset(partition, held.local_log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # nothing of this log is tiered: Kafka's answer is -1 without an error
        return _UNKNOWN
    bound = held.log_end_offset
    if isolation is not None:
        bound = held.last_stable_offset if isolation == _READ_COMMITTED else held.high_watermark
    is_lagging = isolation is not None and partition.epoch_start > held.high_watermark
    if timestamp == LATEST:
        if is_lagging:
            raise KafkaError(ErrorCode.offset_not_available)
        return -1, bound, partition.leader_epoch
    if timestamp == MAX_TIMESTAMP:
        found = held.offset_of_max_timestamp()
    else:
        found = held.offset_for_timestamp(timestamp, bound)
    if found is not None and found[1] < bound:
        return found
    if is_lagging:
        raise KafkaError(ErrorCode.offset_not_available)
    return _UNKNOWN


def _at_offset(partition: Partition, offset: int) -> tuple[int, int, int]:
    epoch = partition.log.epoch_for_offset(offset)
    return -1, offset, -1 if epoch is None else epoch
