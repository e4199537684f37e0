"""TxnOffsetCommit: the offsets of a group that are committed with a transaction.

Owns: the request as a command, and what older clients are told. Does not own: the rows of the answer
(offset_rows), what a group lets be committed, nor what the transaction coordinator is asked
(transactions.offset_commits).
Invariant: every partition that is named is answered in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.control.cluster import Cluster
from broker.control.image import Image
from broker.coordinators.groups.offsets import OffsetToCommit, TxnCommit
from broker.coordinators.machine import TransactionalProducer
from broker.coordinators.transactions.offset_commits import TransactionalCommits
from broker.handlers.offset_rows import OffsetRows, to_commit
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


class TransactionalOffsetHandlers:
    def __init__(self, *, commits: TransactionalCommits, cluster: Cluster, turns: Turns) -> None:
        self._commits = commits
        self._cluster = cluster
        self._turns = turns

    def routes(self) -> Mapping[int, Handler]:
        return {Api.TXN_OFFSET_COMMIT: self.txn_offset_commit}

    async def txn_offset_commit(self, ctx: Context, request: TxnOffsetCommitRequest) -> Fields:
        rows: OffsetRows[OffsetToCommit] = OffsetRows()
        topics = await self._turns.run(_rows(self._cluster.image, request, rows))
        if rows.wanted:
            errors = await self._commit(ctx, request, tuple(rows.wanted))
            await self._turns.run(rows.set_errors(errors))
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


def _rows(
    image: Image, request: TxnOffsetCommitRequest, rows: OffsetRows[OffsetToCommit]
) -> Work[list[Fields]]:
    topics: list[Fields] = []
    for asked in request.topics:
        yield
        answered = yield from rows.add(image.topics.get(asked.name), asked.partitions, to_commit)
        topics.append({"name": asked.name, "partitions": answered})
    return topics
