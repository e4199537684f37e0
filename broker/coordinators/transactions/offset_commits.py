"""Commits of a group's offsets as part of a transaction.

Owns: asking the transaction coordinator about the offsets partition before the first commit of a transaction
there, and the errors that a client gets for its answer. Does not own: what a group lets be committed
(`groups.offsets`), the question itself (verification), what counts at its end (the group's log).
Invariant: a commit reaches the log only with a verification that began before the coordinator was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from broker.coordinators.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.groups.offsets import TxnCommit
from broker.coordinators.shell.log import coordinator_error
from broker.coordinators.transactions.verification import Question, Verifier
from protocol.errors import ErrorCode, KafkaError
from storage.producers import UNASKED, Verification


class VerifyingLogs(Protocol):
    """The partitions of this broker, as far as they are asked about."""

    def begin_verification(
        self, topic: str, index: int, producer_id: int, producer_epoch: int, *, adds: bool
    ) -> Verification | None: ...


_LIKE_LOADING: Final = ErrorCode.network_exception
"""Older clients do not expect it, and look for no other coordinator while one loads."""


class TransactionalCommits:
    def __init__(
        self,
        *,
        groups: GroupCoordinator,
        logs: VerifyingLogs,
        verifier: Verifier,
        is_enabled: Callable[[], bool],
        timeout_ms: Callable[[], int],
    ) -> None:
        """`is_enabled` tells whether clients that add partitions themselves are checked."""
        self._groups = groups
        self._logs = logs
        self._verifier = verifier
        self._is_enabled = is_enabled
        self._timeout_ms = timeout_ms

    async def commit(
        self, transactional_id: str, command: TxnCommit, *, adds: bool, maps_abortable: bool
    ) -> tuple[ErrorCode, ...]:
        """Commit; return an error or none for each offset. `adds` includes the group in the transaction."""
        if not command.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        groups = self._groups
        groups.machine(command.group_id)  # another broker's group, or one that loads, is refused first
        producer = command.producer
        verified: Verification | None = UNASKED
        if adds or self._is_enabled():
            index = groups.partition_for(command.group_id)
            try:
                verified = self._logs.begin_verification(
                    OFFSETS_TOPIC, index, producer.producer_id, producer.producer_epoch, adds=adds
                )
            except KafkaError as error:
                raise KafkaError(coordinator_error(error.code), error.message) from None
            if verified is not None:
                question = Question(
                    transactional_id=transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    partitions=[(OFFSETS_TOPIC, index)],
                    adds=adds,
                    maps_abortable=maps_abortable,
                )
                errors = await self._verifier.check(question, timeout_ms=self._timeout_ms())
                code = errors.get((OFFSETS_TOPIC, index), ErrorCode.none)
                if code is _LIKE_LOADING:
                    code = ErrorCode.coordinator_load_in_progress
                if code is not ErrorCode.none:
                    raise KafkaError(coordinator_error(code))
            if not self._is_enabled():
                verified = UNASKED
        return await groups.ask(
            command.group_id, replace(command, producer=producer._replace(verified=verified))
        )
