"""TxnOffsetCommit: the offsets of a group that are committed with a transaction.

Owns: the request as a command, the answer for each partition, and what older clients are told. Does not own:
what a group lets be committed, nor what the transaction coordinator is asked (transactions.offset_commits).
Invariant: every partition that is named is answered in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.control.cluster import Cluster
from broker.control.image import Image
from broker.coordinators.groups.offsets import OffsetToCommit, TxnCommit
from broker.coordinators.machine import TransactionalProducer
from broker.coordinators.transactions.offset_commits import TransactionalCommits
from broker.handlers.results import ROWS_AT_ONCE
from broker.turns import Turns
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.txn_offset_commit import TxnOffsetCommitRequest

ABORTABLE_FROM: Final = 4
"""The version whose clients know TRANSACTION_ABORTABLE."""
ADDS_FROM: Final = 5
"""The version that includes the group in the transaction."""
_LOADING_FROM: Final = 2
"""Older clients may end when they hear of a coordinator that loads."""
Row: TypeAlias = dict[str, object]


class TransactionalOffsetHandlers:
    def __init__(self, *, commits: TransactionalCommits, cluster: Cluster, turns: Turns) -> None:
        self._commits = commits
        self._cluster = cluster
        self._turns = turns

    def routes(self) -> Mapping[int, Handler]:
        return {Api.TXN_OFFSET_COMMIT: self.txn_offset_commit}

    async def txn_offset_commit(self, ctx: Context, request: TxnOffsetCommitRequest) -> Fields:
        topics, rows, offsets = await self._turns.run(_to_commit(self._cluster.image, request))
        if offsets:
            errors = await self._commit(ctx, request, tuple(offsets))
            await self._turns.run(_set_errors(rows, errors))
        return {"throttle_time": 0, "topics": topics}

    async def _commit(
        self, ctx: Context, request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
    ) -> tuple[ErrorCode, ...]:
        command = TxnCommit(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            offsets=offsets,
            producer=TransactionalProducer(request.producer_id, request.producer_epoch),
        )
        version = ctx.api_version
        try:
            return await self._commits.commit(
                request.transactional_id,
                command,
                adds=version >= ADDS_FROM,
                maps_abortable=version < ABORTABLE_FROM,
            )
        except KafkaError as error:
            code = error.code
            if version < _LOADING_FROM and code is ErrorCode.coordinator_load_in_progress:
                code = ErrorCode.coordinator_not_available
            return (code,) * len(offsets)


def _to_commit(
    image: Image, request: TxnOffsetCommitRequest
) -> Work[tuple[list[Fields], list[Row], list[OffsetToCommit]]]:
    """Return the answer but for the errors of what is to be committed, and the rows of these."""
    offsets: list[OffsetToCommit] = []
    rows: list[Row] = []
    topics: list[Fields] = []
    for asked in request.topics:
        topic = image.topics.get(asked.name)
        answered: list[Row] = []
        yield
        for one in asked.partitions:
            row: Row = {
                "partition_index": one.partition_index,
                "error_code": ErrorCode.unknown_topic_or_partition,
            }
            answered.append(row)
            if len(answered) % ROWS_AT_ONCE == 0:
                yield
            if topic is None or not 0 <= one.partition_index < len(topic.partitions):
                continue
            rows.append(row)
            offsets.append(
                OffsetToCommit(
                    topic.name,
                    one.partition_index,
                    one.committed_offset,
                    one.committed_leader_epoch,
                    one.committed_metadata,
                    topic.id,
                )
            )
        topics.append({"name": asked.name, "partitions": answered})
    return topics, rows, offsets


def _set_errors(rows: Sequence[Row], errors: Sequence[ErrorCode]) -> Work[None]:
    for at, (row, code) in enumerate(zip(rows, errors, strict=True), 1):
        row["error_code"] = code
        if at % ROWS_AT_ONCE == 0:
            yield
