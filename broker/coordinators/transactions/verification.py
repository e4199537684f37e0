"""Asking the transaction coordinator about partitions that are to be written to.

Owns: which broker is asked, several questions to it in one request, deadlines, and the errors that a producer
gets for those of the coordinator. Does not own: what is asked for when (Produce, TxnOffsetCommit), nor what a
transaction includes (the transaction coordinator).
Invariant: every question ends by its deadline; one request is under way to each broker, in which each
transaction stands once; a partition without an error is part of the transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from broker.control.image import Image
from broker.coordinators.topic_coordinator import partition_of
from broker.net.channel import Channel, PeerLost
from broker.turns import Turns
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

TRANSACTIONS_TOPIC: Final = "__transaction_state"
QUESTIONS_MAX: Final = 10_000
"""To one broker, that wait for a request to be answered."""
PARTITIONS_MAX: Final = 1_000
"""In one request to another broker, which with as many topics and transactions takes them all
(request.rows.max)."""
_ROWS_PER_STEP: Final = 16
_ADDS_FROM: Final = 5
"""The version of AddPartitionsToTxn that can add partitions as transaction version 2 does."""
_VERSION_OF_EPOCHS: Final = 2

Name = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether partitions are part of a producer's transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[Name]
    adds: bool = False
    """Whether they are included in it first, as transaction version 2 does."""
    maps_abortable: bool
    """Whether the client does not know TRANSACTION_ABORTABLE."""

    def parts(self) -> list[Question]:
        """Return it in pieces that a request has room for; itself where it is one."""
        partitions = self.partitions
        if len(partitions) <= PARTITIONS_MAX:
            return [self]
        return [
            replace(self, partitions=partitions[at : at + PARTITIONS_MAX])
            for at in range(0, len(partitions), PARTITIONS_MAX)
        ]

    def all_with(self, code: ErrorCode) -> dict[Name, ErrorCode]:
        return dict.fromkeys(self.partitions, code)


class Verifier(Protocol):
    """Asks whether partitions are part of a transaction: `TransactionVerifier`, or what stands for it in a
    test."""

    async def check(self, question: Question, *, timeout_ms: int) -> Mapping[Name, ErrorCode]:
        """Return an error for each partition that may not be written to in the transaction."""

    def check_now(self, question: Question) -> Mapping[Name, ErrorCode] | None:
        """`check` without adding anything, where nothing has to be waited for; None elsewhere."""


class Coordinator(Protocol):
    """The transaction coordinator of this broker."""

    def verifying(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[Name]
    ) -> Work[Mapping[Name, ErrorCode]] | None:
        """Tell which partitions are in the transaction; None where that has to be waited for."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Name],
        *,
        verify_only: bool,
        transaction_version: int,
    ) -> Mapping[Name, ErrorCode]:
        """Add the partitions to the transaction, or tell which are in it. KafkaError refuses all of them."""


class Channels(Protocol):
    def to(self, node_id: int, purpose: str) -> Channel: ...


class _Asked:
    """A question to another broker, and its answer."""

    __slots__ = ("answer", "question")

    def __init__(self, question: Question) -> None:
        self.question = question
        self.answer: asyncio.Future[Mapping[Name, ErrorCode]] = asyncio.get_running_loop().create_future()

    def ended(self, errors: Mapping[Name, ErrorCode]) -> None:
        if not self.answer.done():
            self.answer.set_result(errors)

    def ended_with(self, code: ErrorCode) -> None:
        self.ended(self.question.all_with(code))


class TransactionVerifier:
    def __init__(
        self,
        *,
        node_id: int,
        image: Callable[[], Image],
        channels: Channels,
        coordinator: Coordinator | None,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        timeout_s: Callable[[], float],
    ) -> None:
        """`timeout_s` is how long another broker may take for an answer."""
        self._timeout_s = timeout_s
        self._node_id = node_id
        self._image = image
        self._channels = channels
        self.coordinator = coordinator
        """The one of this broker."""
        self._spawn = spawn
        self._turns = turns
        self._waiting: dict[int, deque[_Asked]] = {}
        """What is to be asked of each broker with which a request is under way."""
        self.failures = 0
        """Partitions that were not found to be part of their transaction."""

    def __repr__(self) -> str:
        return f"<TransactionVerifier {sum(map(len, self._waiting.values()))} questions>"

    async def check(self, question: Question, *, timeout_ms: int) -> Mapping[Name, ErrorCode]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                errors = await self._ask(question)
        except TimeoutError:
            errors = question.all_with(ErrorCode.network_exception)
        except KafkaError as error:
            errors = question.all_with(error.code)
        return self._told(errors, question)

    def check_now(self, question: Question) -> Mapping[Name, ErrorCode] | None:
        if self.coordinator is None or self._coordinator_of(question.transactional_id) != self._node_id:
            return None
        try:
            work = self.coordinator.verifying(
                question.transactional_id, question.producer_id, question.producer_epoch, question.partitions
            )
            if work is None:
                return None
            done = self._turns.begin(work)
        except KafkaError as error:
            return self._told(question.all_with(error.code), question)
        if done is None:
            work.close()
            return None
        return self._told(done[0], question)

    def _told(self, errors: Mapping[Name, ErrorCode], question: Question) -> Mapping[Name, ErrorCode]:
        told = {
            name: _told(code, question.maps_abortable)
            for name, code in errors.items()
            if code is not ErrorCode.none
        }
        self.failures += len(told)
        return told

    async def _ask(self, question: Question) -> Mapping[Name, ErrorCode]:
        node_id = self._coordinator_of(question.transactional_id)
        if node_id == self._node_id and self.coordinator is not None:
            return await self.coordinator.add_partitions(
                question.transactional_id,
                question.producer_id,
                question.producer_epoch,
                question.partitions,
                verify_only=not question.adds,
                transaction_version=_VERSION_OF_EPOCHS,
            )
        if node_id is None or node_id == self._node_id:
            raise KafkaError(ErrorCode.coordinator_not_available)
        asked = [_Asked(part) for part in question.parts()]
        waiting = self._waiting.get(node_id)
        if waiting is None:
            self._waiting[node_id] = deque(asked)
            self._spawn(self._ask_all(node_id))
        elif len(waiting) + len(asked) > QUESTIONS_MAX:
            raise KafkaError(ErrorCode.coordinator_not_available, "too many questions wait for that broker")
        else:
            waiting.extend(asked)
        if len(asked) == 1:
            return await asked[0].answer
        errors: dict[Name, ErrorCode] = {}
        for some_errors in await asyncio.gather(*(each.answer for each in asked)):
            errors.update(some_errors)
        return errors

    def _coordinator_of(self, transactional_id: str) -> int | None:
        image = self._image()
        topic = image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        partition = image.partition(TRANSACTIONS_TOPIC, partition_of(transactional_id, len(topic.partitions)))
        broker = None if partition is None else image.brokers.get(partition.leader)
        return None if broker is None or broker.fenced else broker.id

    # --- other brokers ---

    async def _ask_all(self, node_id: int) -> None:
        """Ask what waits, one request after the other."""
        waiting = self._waiting[node_id]
        asked: dict[str, _Asked] = {}
        try:
            while waiting:
                asked = _next_request(waiting)
                if asked:
                    await self._ask_some(node_id, asked)
        finally:
            del self._waiting[node_id]
            for each in (*asked.values(), *waiting):
                each.ended_with(ErrorCode.network_exception)

    async def _ask_some(self, node_id: int, asked: Mapping[str, _Asked]) -> None:
        try:
            fields = await self._turns.run(_request(each.question for each in asked.values()))
            response = await self._channels.to(node_id, "transactions").ask(
                Api.ADD_PARTITIONS_TO_TXN, _ADDS_FROM, fields, timeout_s=self._timeout_s()
            )
        except PeerLost:
            code = ErrorCode.network_exception
        else:
            await self._turns.run(_take_answers(response, asked))
            code = response.error_code
            if code is ErrorCode.cluster_authorization_failed:
                code = ErrorCode.invalid_txn_state
        if code is ErrorCode.none:
            code = ErrorCode.network_exception  # for a transaction that the answer leaves out
        for each in asked.values():
            each.ended_with(code)


def _next_request(waiting: deque[_Asked]) -> dict[str, _Asked]:
    """Take the questions of the next request, each transaction once; one more waits for the request after."""
    taken: dict[str, _Asked] = {}
    count = 0
    for _ in range(len(waiting)):
        asked = waiting.popleft()
        if asked.answer.done():
            continue  # its deadline has passed
        transactional_id, more = asked.question.transactional_id, len(asked.question.partitions)
        if transactional_id in taken or (taken and count + more > PARTITIONS_MAX):
            waiting.append(asked)
            continue
        taken[transactional_id] = asked
        count += more
    return taken


def _request(questions: Iterable[Question]) -> Work[Fields]:
    transactions: list[Fields] = []
    for question in questions:
        topics: dict[str, list[int]] = {}
        for at, (topic, index) in enumerate(question.partitions, 1):
            topics.setdefault(topic, []).append(index)
            if at % _ROWS_PER_STEP == 0:
                yield
        transactions.append(
            {
                "transactional_id": question.transactional_id,
                "producer_id": question.producer_id,
                "producer_epoch": question.producer_epoch,
                "verify_only": not question.adds,
                "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
            }
        )
        yield
    return {"transactions": transactions}


def _take_answers(response: Any, asked: Mapping[str, _Asked]) -> Work[None]:
    for result in response.results_by_transaction:
        found = asked.get(result.transactional_id)
        if found is None:
            continue
        errors: dict[Name, ErrorCode] = {}
        for topic in result.topic_results:
            for row in topic.results_by_partition:
                errors[topic.name, row.partition_index] = row.partition_error_code
                if len(errors) % _ROWS_PER_STEP == 0:
                    yield
        for name in found.question.partitions:
            # what an answer leaves out was not agreed to
            errors.setdefault(name, ErrorCode.network_exception)
        found.ended(errors)
        yield


def _told(code: ErrorCode, maps_abortable: bool) -> ErrorCode:
    """Return what a producer is told for an error of the coordinator."""
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and maps_abortable:
        return ErrorCode.invalid_txn_state
    return code
