"""The small requests about a partition's offsets: ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Owns: their per-partition errors. Does not own: Produce and Fetch (their own modules), the look-ups themselves
(the log). Invariant: an error of one partition is answered in its place and stops no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from broker.control.internal_topics import INTERNAL_TOPICS
from broker.handlers.dispatch import Context, Handler
from broker.handlers.follower_fetch import modes_of_followers
from broker.handlers.results import ROWS_AT_ONCE
from broker.ports import Offload
from broker.replicas.offset_lookup import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    LookUps,
    finding,
)
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory
from broker.replicas.replica_manager import CommitFuture, ReplicaManager
from broker.replicas.tier_reads import TierReads, lies_in_tier
from broker.turns import Turns
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.peers import STORED_END, STORED_END_FROM
from protocol.work import Work
from storage.times import Steps

if TYPE_CHECKING:
    from protocol.requests.delete_records import DeleteRecordsRequest
    from protocol.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest
    from protocol.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest

_SPECIAL_FROM: Final[Mapping[int, int]] = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
    STORED_END: STORED_END_FROM,
}
WRITE_WAIT_S: Final = 5.0
"""How long a DeleteRecords without time left waits for this broker's own disk: the time-out of the request is
meant for the followers."""
_OFFSET_NOT_AVAILABLE_FROM: Final = 5
_ISOLATION_LEVELS: Final = (0, 1)
_CONSUMER: Final = -1
_DEBUGGER: Final = -2
"""Asks one replica about itself, leader or not."""
_HIGH_WATERMARK: Final = -1
LOOK_UPS_AT_ONCE: Final = 16
"""In the tier, for one request: thousands that begin in one turn of the loop would hold it for seconds."""


Row: TypeAlias = dict[str, Any]
"""One partition of a response, whose result is filled in."""


class OffsetHandlers:
    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        turns: Turns,
        offload: Offload,
        tier: TierReads | None = None,
    ) -> None:
        """Without a `tier` no time is looked up in it."""
        self._replicas = replicas
        self._purgatory = purgatory
        self._turns = turns
        self._look_ups = LookUps(turns, offload)
        self._tier = tier

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.LIST_OFFSETS: self.list_offsets,
            Api.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            Api.DELETE_RECORDS: self.delete_records,
        }

    # --- looking up ---

    async def list_offsets(self, ctx: Context, request: ListOffsetsRequest) -> Fields:
        """Return the answer, late if times are to be looked up in the tier."""
        if request.isolation_level not in _ISOLATION_LEVELS:
            raise KafkaError(ErrorCode.unknown_server_error, f"no isolation level {request.isolation_level}")
        topics, look_ups = await self._turns.run(_rows(ctx, request))
        late: list[tuple[Row, LookUp]] = []
        await self._look_ups.run(self._look_up_all(look_ups, late))
        response: Fields = {"throttle_time": 0, "topics": topics}
        if not late or self._tier is None:
            return response
        wait_s = request.timeout.total_seconds()
        return await self._look_up_in_tier(
            self._tier, late, wait_s if wait_s > 0 else self._tier.list_wait_s(), response
        )

    def _look_up_all(self, look_ups: list[tuple[Row, LookUp]], late: list[tuple[Row, LookUp]]) -> Steps[None]:
        """Fill in the answers, but for those that have to come from the tier: add these to `late`."""
        for at, (answer, look_up) in enumerate(look_ups, 1):
            if (yield from self._look_up(look_up, answer)):
                late.append((answer, look_up))
            if at % ROWS_AT_ONCE == 0:
                yield None

    def _look_up(self, look_up: LookUp, answer: Row) -> Steps[bool]:
        """Fill in the answer; return True if it has to come from the tier."""
        asked = look_up.asked
        try:
            if asked.timestamp < 0 and look_up.version < _SPECIAL_FROM.get(asked.timestamp, 1 << 15):
                raise KafkaError(ErrorCode.unsupported_version)
            partition = self._find(look_up)
            if asked.timestamp == STORED_END:
                self._tell_stored(partition, answer)
                return False
            if asked.timestamp >= 0 and lies_in_tier(partition):
                if self._tier is None:
                    raise KafkaError(ErrorCode.offset_not_available)
                return True
            found = yield from finding(partition, asked.timestamp, look_up.isolation)
            self._find(look_up)  # whoever leads by now may have another log
            look_up.found(answer, found)
        except KafkaError as failure:
            look_up.failed(answer, failure.code)
        return False

    def _tell_stored(self, partition: Partition, answer: Row) -> None:
        """Tell up to where the WAL tier has it, -1 where it does not use that."""
        answer["error_code"] = ErrorCode.none
        if partition.tail is None:
            return
        modes = modes_of_followers(partition, self._replicas.now())
        answer["offset"] = partition.tail.stored_to
        answer["leader_epoch"] = partition.leader_epoch
        answer["pointed_followers"] = tuple(sorted(node for node, is_pointed in modes.items() if is_pointed))
        answer["direct_followers"] = tuple(
            sorted(node for node, is_pointed in modes.items() if not is_pointed)
        )

    def _find(self, look_up: LookUp) -> Partition:
        asked = look_up.asked
        find = self._replicas.find if look_up.from_leader else self._replicas.replica
        partition = find(look_up.topic, asked.partition_index, asked.current_leader_epoch)
        if isinstance(partition, ErrorCode):
            raise KafkaError(partition)
        return partition

    async def _look_up_in_tier(
        self,
        tier: TierReads,
        late: list[tuple[Row, LookUp]],
        wait_s: float,
        response: Fields,
    ) -> Fields:
        deadline = asyncio.get_running_loop().time() + wait_s
        left = iter(late)

        async def look(answer: Row, look_up: LookUp) -> None:
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(0)
                    found = await tier.offset_for_timestamp(
                        self._find(look_up), look_up.asked.timestamp, look_up.isolation, self._look_ups
                    )
                self._find(look_up)  # whoever leads by now may have another log
            except TimeoutError:
                tier.expired_lists += 1
                look_up.failed(answer, ErrorCode.request_timed_out)
            except KafkaError as failure:
                look_up.failed(answer, failure.code)
            else:
                look_up.found(answer, found)

        async def work() -> None:
            for answer, look_up in left:
                await look(answer, look_up)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(LOOK_UPS_AT_ONCE, len(late))):
                group.create_task(work())
        return response

    def offset_for_leader_epoch(self, ctx: Context, request: OffsetForLeaderEpochRequest) -> Work[Fields]:
        topics = []
        for topic in request.topics:
            partitions: list[Row] = []
            yield
            for asked in topic.partitions:
                answer: Row = {"partition": asked.partition, "leader_epoch": -1, "end_offset": -1}
                found = self._replicas.find(topic.topic, asked.partition, asked.current_leader_epoch)
                if isinstance(found, ErrorCode):
                    answer["error_code"] = found
                else:
                    answer["error_code"] = ErrorCode.none
                    epoch, end = found.log.end_offset_for_epoch(asked.leader_epoch)
                    answer["leader_epoch"], answer["end_offset"] = epoch, end
                partitions.append(answer)
                if len(partitions) % ROWS_AT_ONCE == 0:
                    yield
            topics.append({"topic": topic.topic, "partitions": partitions})
        return {"throttle_time": 0, "topics": topics}

    # --- DeleteRecords ---

    async def delete_records(self, ctx: Context, request: DeleteRecordsRequest) -> Fields:
        """Return the answer once every live replica has deleted as much on its disk, or the time is up."""
        waits: list[tuple[Row, Deletion]] = []
        try:
            topics = await self._turns.run(self._delete_all(request, waits))
            return await self._deleted_everywhere(waits, {"throttle_time": 0, "topics": topics})
        finally:
            for _, deletion in waits:
                deletion.abandoned()

    def _delete_all(
        self, request: DeleteRecordsRequest, waits: list[tuple[Row, Deletion]]
    ) -> Work[list[Fields]]:
        """Begin what is asked, and add to `waits` what does not end at once."""
        asked: dict[str, dict[int, int]] = {}
        for topic in request.topics:
            yield
            for at, each in enumerate(topic.partitions, 1):
                # of a partition named twice the last offset counts, as in Kafka
                asked.setdefault(topic.name, {})[each.partition_index] = each.offset
                if at % ROWS_AT_ONCE == 0:
                    yield
        wait_s = request.timeout.total_seconds()
        topics: list[Fields] = []
        for name, offsets in asked.items():
            partitions: list[Row] = []
            for index, offset in offsets.items():
                answer: Row = {"partition_index": index, "low_watermark": -1, "error_code": ErrorCode.none}
                partitions.append(answer)
                yield
                try:
                    deletion = self._delete_before(name, index, offset, wait_s)
                except KafkaError as error:
                    answer["error_code"] = error.code
                    continue
                answer["low_watermark"] = deletion.partition.low_watermark
                if not deletion.is_deleted_everywhere:
                    waits.append((answer, deletion))
            topics.append({"name": name, "partitions": partitions})
        return topics

    async def _deleted_everywhere(self, waits: list[tuple[Row, Deletion]], response: Fields) -> Fields:
        for answer, deletion in waits:
            try:
                await deletion.future
            except KafkaError as error:
                answer["error_code"] = error.code
            answer["low_watermark"] = deletion.partition.low_watermark
        return response

    def _delete_before(self, topic: str, index: int, offset: int, wait_s: float) -> Deletion:
        """Begin to delete here what is below `offset`; KafkaError when nothing is deleted."""
        found = self._replicas.find(topic, index)
        if found is ErrorCode.unknown_topic_or_partition:
            raise KafkaError(found)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"records of {topic} are not deleted by clients"
            )
        partition = self._replicas.partition(topic, index)
        if not partition.log.config.is_deleted:
            raise KafkaError(ErrorCode.policy_violation, "cleanup.policy keeps the records")
        target = partition.log.high_watermark if offset == _HIGH_WATERMARK else offset
        if target < 0:
            raise KafkaError(ErrorCode.offset_out_of_range)
        deletion = Deletion(partition, target, self._purgatory)
        deletion.begin(wait_s)
        return deletion


def _rows(ctx: Context, request: ListOffsetsRequest) -> Work[tuple[list[Fields], list[tuple[Row, LookUp]]]]:
    """Return the answer to be filled in, and what is to be looked up for it: what is named once."""
    isolation = request.isolation_level if request.replica_id == _CONSUMER else None
    from_leader = request.replica_id != _DEBUGGER
    topics: dict[str, dict[int, Row]] = {}
    named: dict[tuple[str, int], tuple[Row, LookUp] | None] = {}
    for topic in request.topics:
        yield
        for at, each in enumerate(topic.partitions, 1):
            if at % ROWS_AT_ONCE == 0:
                yield
            key = (topic.name, each.partition_index)
            if key in named:
                named[key] = None
                continue
            answer = topics.setdefault(topic.name, {})[each.partition_index] = {
                "partition_index": each.partition_index,
                "error_code": ErrorCode.invalid_request,
                "timestamp": -1,
                "offset": -1,
                "leader_epoch": -1,
            }
            named[key] = answer, LookUp(topic.name, each, isolation, from_leader, ctx.api_version)
    rows: list[Fields] = []
    for name, partitions in topics.items():
        rows.append({"name": name, "partitions": list(partitions.values())})
        yield
    return rows, [each for each in named.values() if each is not None]


class LookUp(NamedTuple):
    """What ListOffsets asks of one partition."""

    topic: str
    asked: ListOffsetsPartition
    isolation: int | None
    from_leader: bool
    version: int

    def found(self, answer: Row, found: tuple[int, int, int]) -> None:
        answer["error_code"] = ErrorCode.none
        answer["timestamp"], answer["offset"], answer["leader_epoch"] = found

    def failed(self, answer: Row, code: ErrorCode) -> None:
        if code is ErrorCode.offset_not_available and self.version < _OFFSET_NOT_AVAILABLE_FROM:
            code = ErrorCode.leader_not_available
        answer["error_code"] = code


class Deletion(CommitFuture):
    """The wait for one partition of a DeleteRecords: first for the log start to be durable here, then for
    every live follower to report one as high. A change of role or a failed disk ends it."""

    __slots__ = ("_is_durable", "_is_late", "_purgatory")

    def __init__(self, partition: Partition, target: int, purgatory: Purgatory) -> None:
        super().__init__(partition, target, asyncio.get_running_loop())
        self._purgatory = purgatory
        self._is_durable = False
        self._is_late = False

    @property
    def is_deleted_everywhere(self) -> bool:
        return self.future.done() and self.future.exception() is None

    def begin(self, wait_s: float) -> None:
        self.partition.wait_deleted(self)
        try:
            self.partition.log.advance_log_start(self.needed, self._log_start_written)
        except KafkaError:
            self.abandoned()
            raise
        if not self.done:
            self._purgatory.watch(self, wait_s)

    def _log_start_written(self, error: KafkaError | None) -> None:
        self._is_durable = True
        if error is not None:
            self.partition.wait_deleted_no_more(self)
            self.failed(error.code)
            return
        self.partition.log_start_moved()
        if self._is_late and not self.done:
            self.expired()
        # not at once: this may be called amid another log's change
        self.future.get_loop().call_soon(self._purgatory.wake_followers, self.partition)

    def expired(self) -> None:
        if self._is_durable or self._is_late:
            self.partition.wait_deleted_no_more(self)
            self.failed(ErrorCode.request_timed_out)
        else:
            self._is_late = True
            self._purgatory.watch(self, WRITE_WAIT_S)

    def abandoned(self) -> None:
        self.finish()
        self.future.cancel()
        self.partition.wait_deleted_no_more(self)
