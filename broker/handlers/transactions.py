"""Requests of transactional producers and about their transactions, in every version, to commands and back.

Owns: what a version lacks or names otherwise, which partitions exist, where an error goes in each response.
Does not own: transactions (`broker.coordinators.transactions`), what they do to logs (Produce, the markers'
handler), nor handing out producer ids (`broker.control.producer_ids`).
Invariant: an error of one transaction stays with it; every answer comes from the coordinator or the image
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.control.internal_topics import INTERNAL_TOPICS
from broker.coordinators.groups.coordinator import OFFSETS_TOPIC
from broker.coordinators.patterns import InvalidPattern, compiled
from broker.coordinators.transactions.transitions import BY_EPOCH
from broker.handlers.results import ROWS_AT_ONCE, distinct, rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.transactions import TransactionState
from protocol.work import Work

if TYPE_CHECKING:
    from broker.control.cluster import Cluster
    from broker.coordinators.groups.coordinator import GroupCoordinator
    from broker.coordinators.transactions.coordinator import TransactionCoordinator
    from broker.coordinators.transactions.machine import TransactionMachine
    from broker.handlers.dispatch import Context, Handler
    from broker.ports import Offload
    from broker.turns import Turns
    from protocol.requests.add_offsets_to_txn import AddOffsetsToTxnRequest
    from protocol.requests.add_partitions_to_txn import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
        AddPartitionsToTxnTransaction,
    )
    from protocol.requests.describe_transactions import DescribeTransactionsRequest
    from protocol.requests.end_txn import EndTxnRequest
    from protocol.requests.init_producer_id import InitProducerIdRequest
    from protocol.requests.list_transactions import ListTransactionsRequest

_MILLISECOND: Final = timedelta(milliseconds=1)
_BATCHED_FROM: Final = 4
"""Version of AddPartitionsToTxn: several transactions, asked for by brokers."""
_BY_EPOCH_FROM: Final = 5
"""Version of EndTxn."""
_STEPS_AT_ONCE: Final = 1 << 20
"""That a pattern takes on the loop, at most: all of its program for each character. About 1 ms."""
_STEPS_OF_A_CALL: Final = 8
"""As characters of an id."""
_FENCED_FROM: Final = 2
"""Version from which clients know PRODUCER_FENCED."""
_INIT_FENCED_FROM: Final = 4
"""The same of InitProducerId."""
TRANSACTIONS_AT_ONCE: Final = 100
"""Of one request. Whoever asks for more waits for these first."""
IDS_AT_ONCE: Final = 4_000
"""The same, in characters of their ids."""

_STATES: Final = {state.title: state for state in TransactionState}

Named = tuple[tuple[str, int], ...]
Refused = dict[tuple[str, int], ErrorCode]
ErrorOf = Callable[[tuple[str, int]], ErrorCode]


class TransactionHandlers:
    def __init__(
        self,
        *,
        transactions: TransactionCoordinator,
        groups: GroupCoordinator,
        cluster: Cluster,
        now_ms: Callable[[], int],
        turns: Turns,
        offload: Offload,
    ) -> None:
        self._transactions = transactions
        self._groups = groups
        self._cluster = cluster
        self._now_ms = now_ms
        self._turns = turns
        self._offload = offload
        self._thread = asyncio.Lock()
        """Held by the id that is matched in a thread."""

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.INIT_PRODUCER_ID: self.init_producer_id,
            Api.ADD_PARTITIONS_TO_TXN: self.add_partitions_to_txn,
            Api.ADD_OFFSETS_TO_TXN: self.add_offsets_to_txn,
            Api.END_TXN: self.end_txn,
            Api.DESCRIBE_TRANSACTIONS: self.describe_transactions,
            Api.LIST_TRANSACTIONS: self.list_transactions,
        }

    # --- producers ---

    async def init_producer_id(self, ctx: Context, request: InitProducerIdRequest) -> Fields:
        transactional_id = request.transactional_id
        producer_id, epoch = request.producer_id, request.producer_epoch
        if (producer_id == -1) != (epoch == -1):
            raise KafkaError(ErrorCode.invalid_request)
        if transactional_id is None:
            producer_id, epoch = await self._cluster.producer_ids.next(), 0
            return {
                "throttle_time": 0,
                "error_code": ErrorCode.none,
                "producer_id": producer_id,
                "producer_epoch": epoch,
            }
        try:
            made = await self._transactions.init_producer(
                transactional_id,
                timeout_ms=request.transaction_timeout // _MILLISECOND,
                expected=None if producer_id == -1 else (producer_id, epoch),
                host=ctx.connection.peer_host,
            )
        except KafkaError as error:
            raise _known(error, ctx.api_version, _INIT_FENCED_FROM) from None
        return {
            "throttle_time": 0,
            "error_code": made.error,
            "producer_id": made.producer_id,
            "producer_epoch": made.producer_epoch,
        }

    async def end_txn(self, ctx: Context, request: EndTxnRequest) -> Fields:
        try:
            made = await self._transactions.end_transaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                commits=request.committed,
                transaction_version=BY_EPOCH if ctx.api_version >= _BY_EPOCH_FROM else 0,
            )
        except KafkaError as error:
            raise _known(error, ctx.api_version, _FENCED_FROM) from None
        return {
            "throttle_time": 0,
            "error_code": made.error,
            "producer_id": made.producer_id,
            "producer_epoch": made.producer_epoch,
        }

    # --- partitions ---

    async def add_partitions_to_txn(self, ctx: Context, request: AddPartitionsToTxnRequest) -> Fields:
        if ctx.api_version < _BATCHED_FROM:
            named, error_of = await self._add(
                ctx,
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                request.v3_and_below_topics,
                verify_only=False,
            )
            topics = await self._turns.run(_topic_rows(named, error_of))
            return {"throttle_time": 0, "results_by_topic_v3_and_below": topics}
        results: list[Fields] = []
        for some in at_once(request.transactions):
            answered = await asyncio.gather(
                *(
                    self._add(
                        ctx,
                        each.transactional_id,
                        each.producer_id,
                        each.producer_epoch,
                        each.topics,
                        verify_only=each.verify_only,
                    )
                    for each in some
                )
            )
            for each, (named, error_of) in zip(some, answered, strict=True):
                topics = await self._turns.run(_topic_rows(named, error_of))
                results.append({"transactional_id": each.transactional_id, "topic_results": topics})
        return {"throttle_time": 0, "error_code": ErrorCode.none, "results_by_transaction": results}

    async def _add(
        self,
        ctx: Context,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topics: Sequence[AddPartitionsToTxnTopic],
        *,
        verify_only: bool,
    ) -> tuple[Named, ErrorOf]:
        """Return the partitions that are named, each once, and what tells the error of each."""
        named, refused = await self._turns.run(
            self._writable(topics, is_client=ctx.api_version < _BATCHED_FROM)
        )
        if refused:
            left = ErrorCode.operation_not_attempted
            return named, lambda each: refused.get(each, left)
        version = BY_EPOCH if ctx.api_version >= _BATCHED_FROM else 0
        try:
            answers = await self._transactions.add_partitions(
                transactional_id,
                producer_id,
                producer_epoch,
                named,
                verify_only=verify_only,
                transaction_version=version,
            )
        except KafkaError as error:
            code = _known(error, ctx.api_version, _FENCED_FROM).code
            return named, lambda _: code
        return named, answers.__getitem__

    def _writable(
        self, topics: Iterable[AddPartitionsToTxnTopic], *, is_client: bool
    ) -> Work[tuple[Named, Refused]]:
        """Return the partitions that are named, each once, and the error of those that cannot be written to:
        they do not exist, or are internal, which clients may not name and only AddOffsetsToTxn adds.
        """
        image = self._cluster.image
        named: dict[tuple[str, int], None] = {}
        refused: dict[tuple[str, int], ErrorCode] = {}
        for topic in topics:
            for at, index in enumerate(topic.partitions, 1):
                named[topic.name, index] = None
                if is_client and topic.name in INTERNAL_TOPICS:
                    refused[topic.name, index] = ErrorCode.topic_authorization_failed
                elif image.partition(topic.name, index) is None:
                    refused[topic.name, index] = ErrorCode.unknown_topic_or_partition
                if at % ROWS_AT_ONCE == 0:
                    yield
            yield
        return tuple(named), refused

    async def add_offsets_to_txn(self, ctx: Context, request: AddOffsetsToTxnRequest) -> Fields:
        try:
            # Of a partition that is not in the image its coordinator would never hear how the transaction
            # ended.
            await self._groups.ensure_topic()
            partition = (OFFSETS_TOPIC, self._groups.partition_for(request.group_id))
            answers = await self._transactions.add_partitions(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                (partition,),
                verify_only=False,
                transaction_version=0,  # later ones include the partition with the offsets
            )
        except KafkaError as error:
            raise _known(error, ctx.api_version, _FENCED_FROM) from None
        return {"throttle_time": 0, "error_code": answers[partition]}

    # --- reading ---

    def describe_transactions(self, ctx: Context, request: DescribeTransactionsRequest) -> Work[Fields]:
        rows: list[Fields] = []
        answered: set[str] = set()
        partitions, rows_max = 0, self._cluster.broker_config.request_rows_max
        for transactional_id in request.transactional_ids:
            if transactional_id in answered and partitions >= rows_max:
                # Kafka repeats all of it as often as it is asked for.
                row = _undescribed(transactional_id, ErrorCode.invalid_request)
            else:
                answered.add(transactional_id)
                row = yield from self._described(transactional_id)
                partitions += sum(len(topic["partitions"]) for topic in row["topics"])
            rows.append(row)
            yield
        return {"throttle_time": 0, "transaction_states": rows}

    def _described(self, transactional_id: str) -> Work[Fields]:
        if not transactional_id:
            return _undescribed(transactional_id, ErrorCode.invalid_request)
        try:
            found = self._transactions.transaction(transactional_id)
        except KafkaError as error:
            return _undescribed(transactional_id, error.code)
        if found is None:
            return _undescribed(transactional_id, ErrorCode.transactional_id_not_found)
        topics: list[Fields] = []
        for topic, indexes in found.partitions.items():
            topics.append({"topic": topic, "partitions": sorted(indexes)})
            yield
        return {
            "error_code": ErrorCode.none,
            "transactional_id": transactional_id,
            "transaction_state": found.state.title,
            "transaction_timeout": found.timeout_ms,
            "transaction_start_time": found.started_ms,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "topics": topics,
        }

    async def list_transactions(self, ctx: Context, request: ListTransactionsRequest) -> Fields:
        pattern = _compiled(request.transactional_id_pattern)
        fields = await self._turns.run(self._listing(request))
        if pattern is not None:
            rows = fields["transaction_states"]
            short, long = await self._turns.run(_by_work(pattern, rows))
            found = await self._turns.run(_matching(pattern, short))
            for row in long:
                # one at a time: nothing can stop a thread, and others need these too
                async with self._thread:
                    if await self._offload(partial(pattern.fullmatch, row["transactional_id"])) is not None:
                        found.append(row)
            fields["transaction_states"] = found
        return fields

    def _listing(self, request: ListTransactionsRequest) -> Work[dict[str, Any]]:
        known: set[TransactionState] = set()
        unknown: dict[str, None] = {}
        for at, name in enumerate(request.state_filters, 1):
            if name in _STATES:
                known.add(_STATES[name])
            else:
                unknown[name] = None
            if at % ROWS_AT_ONCE == 0:
                yield
        producer_ids = frozenset((yield from distinct(request.producer_id_filters)))
        machines: list[TransactionMachine] = self._transactions.machines()
        rows: list[Fields] = []
        for machine in machines:
            rows += yield from machine.listed(
                producer_ids=producer_ids,
                states=known if request.state_filters else None,
                open_longer_than_ms=request.duration_filter,
                now_ms=self._now_ms(),
            )
            yield
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "unknown_state_filters": list(unknown),
            "transaction_states": rows,
        }


def _known(error: KafkaError, version: int, fenced_from: int) -> KafkaError:
    """Return the error as clients of this version know it."""
    if error.code is ErrorCode.producer_fenced and version < fenced_from:
        return KafkaError(ErrorCode.invalid_producer_epoch, error.message)
    return error


def _topic_rows(named: Named, error_of: ErrorOf) -> Work[list[Fields]]:
    topics: dict[str, list[Fields]] = {}
    for at, (topic, index) in enumerate(named, 1):
        row = {"partition_index": index, "partition_error_code": error_of((topic, index))}
        topics.setdefault(topic, []).append(row)
        if at % ROWS_AT_ONCE == 0:
            yield
    return (yield from rows(_topic_row, topics.items()))


def _topic_row(answered: tuple[str, list[Fields]]) -> Fields:
    return {"name": answered[0], "results_by_partition": answered[1]}


def _undescribed(transactional_id: str, code: ErrorCode) -> Fields:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }


def at_once(
    transactions: Iterable[AddPartitionsToTxnTransaction],
) -> Iterator[list[AddPartitionsToTxnTransaction]]:
    """Yield transactions in rows that are asked about together: of each the partition of its id is found in
    one turn of the loop, by a walk over the id."""
    some: list[AddPartitionsToTxnTransaction] = []
    length = 0
    for each in transactions:
        more = len(each.transactional_id)
        if some and (len(some) == TRANSACTIONS_AT_ONCE or length + more > IDS_AT_ONCE):
            yield some
            some, length = [], 0
        some.append(each)
        length += more
    if some:
        yield some


def _compiled(pattern: str | None) -> Any:
    """Return the pattern that ids have to match as a whole, or None: an empty one is matched by all."""
    if not pattern:
        return None
    try:
        return compiled(pattern)
    except InvalidPattern as error:
        raise KafkaError(ErrorCode.invalid_regular_expression, f"no pattern: {error}") from None


def _by_work(pattern: Any, rows: Sequence[Fields]) -> Work[tuple[list[Fields], list[Fields]]]:
    """Return the rows whose ids are matched in a moment, and those for another thread."""
    length = _STEPS_AT_ONCE // max(pattern.programsize, 1)
    short: list[Fields] = []
    long: list[Fields] = []
    for at, row in enumerate(rows, 1):
        (short if len(row["transactional_id"]) <= length else long).append(row)
        if at % ROWS_AT_ONCE == 0:
            yield
    return short, long


def _matching(pattern: Any, rows: Sequence[Fields]) -> Work[list[Fields]]:
    found: list[Fields] = []
    steps = 0
    for row in rows:
        steps += (len(row["transactional_id"]) + _STEPS_OF_A_CALL) * pattern.programsize
        if pattern.fullmatch(row["transactional_id"]) is not None:
            found.append(row)
        if steps >= _STEPS_AT_ONCE:
            steps = 0
            yield
    return found
