"""The transaction coordinator of this broker: one replicated machine for each partition of
`__transaction_state` it leads.

Owns: asking the machines, new producer ids for those that need one, ending prepared transactions (markers,
then the record that they are over), and the rounds of expiry. Does not own: where an id is and the life of
its machine (`broker.coordinators.topic_coordinator`), what is decided (`machine`), how markers reach their
partitions (`marker_sender`), nor requests and responses (`broker.handlers.transactions`).
Invariant: a prepared transaction whose machine is loaded here is having its markers sent, or is queued for
that, or its machine's timer queues it; at most `ENDINGS_AT_ONCE` and `SLOW_MAX` have theirs sent at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from broker.config.broker import BrokerConfig
from broker.control.feature_levels import TRANSACTION_VERSION
from broker.control.image import Delta
from broker.coordinators.account import MemoryAccount, MemoryShare
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import StateConfig
from broker.coordinators.topic_coordinator import (
    ClusterView,
    LeadershipSource,
    TopicCoordinator,
    portions,
)
from broker.coordinators.transactions.commands import (
    NEEDS_ID,
    AddPartitions,
    Complete,
    EndTransaction,
    ExpireIds,
    InitProducer,
    Producer,
    TransactionCommand,
)
from broker.coordinators.transactions.machine import (
    TransactionConfig,
    TransactionMachine,
    TransactionStatistics,
)
from broker.coordinators.transactions.marker_sender import MarkerSender
from broker.coordinators.transactions.marker_writer import Marker
from broker.coordinators.transactions.transitions import PREPARED
from broker.ports import World
from broker.turns import Turns
from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.transactions import Transaction
from protocol.work import Work

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
ENDINGS_AT_ONCE: Final = 1_000
SLOW_S: Final = 1.0
"""A transaction whose end takes longer makes room for others: its partitions may have no leader for long."""
SLOW_MAX: Final = 1_000
"""Of these; with as many, each gives up at its next pause, and its machine tells of it again later."""
BYTES_MAX: Final = 256 << 20
HOST_BYTES_MAX: Final = 192 << 20
"""Of the ids that clients of one host brought: those of others find room beside them."""
HOLD_S: Final = 0.1
"""How long a producer waits for the end of its last transaction before it is told to ask again."""
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 1.0
"""Before the record that a transaction is over is tried again."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCoordinatorStatistics:
    partitions: int
    loading: int
    waiting: int
    ending: int
    """Transactions that are decided and not over."""
    queued_markers: int
    retried_markers: int
    """Partitions that were told again."""
    machines: tuple[TransactionStatistics, ...]


class TransactionCoordinator(TopicCoordinator[TransactionMachine]):
    def __init__(
        self,
        *,
        config: BrokerConfig,
        world: World,
        cluster: ClusterView,
        replicas: LeadershipSource,
        turns: Turns,
        markers: MarkerSender,
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._config = config
        self._machine_config = TransactionConfig(
            id_expiration_ms=config.transactional_id_expiration_ms,
            retry_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        )
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._ending: set[tuple[int, str]] = set()
        self._queue: deque[tuple[int, str]] = deque()
        self._being_sent: dict[asyncio.Task[None], float] = {}
        """Since when, the oldest first."""
        self._slow: set[asyncio.Task[None]] = set()
        self._looks_again: asyncio.TimerHandle | None = None
        self._held: dict[str, list[asyncio.Future[None]]] = {}
        """Who waits for the end of an id's transaction."""
        self._expiry: asyncio.Task[None] | None = None
        super().__init__(
            topic=TRANSACTIONS_TOPIC,
            partitions_at_first=config.transaction_state_log_num_partitions,
            node_id=config.node_id,
            state_config=StateConfig(
                append_timeout_ms=config.request_timeout_ms,
                codec=Codec.NONE,
                batch_bytes_max=config.message_max_bytes,
            ),
            memory=MemoryAccount(bytes_max=BYTES_MAX, host_bytes_max=HOST_BYTES_MAX),
            world=world,
            cluster=cluster,
            replicas=replicas,
            turns=turns,
        )
        cluster.subscribe(self._cluster_changed)

    async def start(self, task_group: asyncio.TaskGroup) -> None:
        await super().start(task_group)
        self._expiry = task_group.create_task(self._expire_for_ever(), name="transactional id expiry")

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._queue.clear()
        if self._looks_again is not None:
            self._looks_again.cancel()
        for task in (*self._being_sent, *self._slow):
            task.cancel()
        await super().stop()

    def make_machine(self, index: int, share: MemoryShare) -> TransactionMachine:
        return TransactionMachine(
            self._machine_config,
            share,
            on_prepared=partial(self._prepared, index),
            on_ended=self._ended,
            level=self._level,
        )

    def _level(self) -> int:
        return self._cluster.image.features[TRANSACTION_VERSION]

    def statistics(self) -> TransactionCoordinatorStatistics:
        return TransactionCoordinatorStatistics(
            partitions=self.led,
            loading=self.loading,
            waiting=self.waiting,
            ending=len(self._ending),
            queued_markers=self._markers.queued,
            retried_markers=self._markers.retried,
            machines=tuple(machine.statistics() for machine in self.active_machines()),
        )

    # --- asking ---

    async def ask(self, transactional_id: str, command: TransactionCommand[R]) -> R:
        return await self._state(transactional_id).ask(command)

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return what is known of the id; raise as `ask` does when it cannot be asked."""
        return self._state(transactional_id).machine.transactions.get(transactional_id)

    async def init_producer(
        self, transactional_id: str, *, timeout_ms: int, expected: tuple[int, int] | None, host: str
    ) -> Producer:
        """Return the id and epoch of a producer that begins, or goes on after an error."""
        _check_named(transactional_id)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.invalid_transaction_timeout)
        command = InitProducer(
            transactional_id=transactional_id, timeout_ms=timeout_ms, expected=expected, host=host
        )
        reply = await self.ask(transactional_id, command)
        if reply is NEEDS_ID:
            new_id = await self._new_producer_id()
            reply = await self.ask(transactional_id, replace(command, new_producer_id=new_id))
        return reply

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
        *,
        verify_only: bool,
        transaction_version: int,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """Add the partitions to the transaction, or tell which are in it. Raise KafkaError for what refuses
        all of them.
        """
        _check_named(transactional_id)
        if verify_only:
            work = self.verifying(transactional_id, producer_id, producer_epoch, partitions)
            return await self._turns.run(work)
        command = AddPartitions(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=tuple(partitions),
            version=transaction_version,
        )
        try:
            code = await self.ask(transactional_id, command)
        except KafkaError as error:
            if error.code is not ErrorCode.concurrent_transactions:
                raise
            # Markers take a moment; a producer that must ask again waits longer than that.
            await self._wait_ended(transactional_id)
            code = await self.ask(transactional_id, command)
        return dict.fromkeys(partitions, code)

    def verifying(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
    ) -> Work[Mapping[tuple[str, int], ErrorCode]]:
        """Tell which partitions are in the transaction. Raise KafkaError for what refuses all of them."""
        _check_named(transactional_id)
        machine = self._state(transactional_id).machine
        return machine.verify(transactional_id, producer_id, producer_epoch, partitions)

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commits: bool,
        transaction_version: int,
    ) -> Producer:
        """Return once the outcome is decided for good; with the producer's next id and epoch where each
        transaction has an epoch of its own."""
        _check_named(transactional_id)
        command = EndTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            commits=commits,
            version=transaction_version,
        )
        reply = await self.ask(transactional_id, command)
        if reply is NEEDS_ID:
            new_id = await self._new_producer_id()
            reply = await self.ask(transactional_id, replace(command, new_producer_id=new_id))
        return reply

    async def _wait_ended(self, transactional_id: str) -> None:
        """Return when no transaction of the id is about to end, or after a moment."""
        found = self.transaction(transactional_id)
        if found is None or found.state not in PREPARED:
            return
        ended = asyncio.get_running_loop().create_future()
        self._held.setdefault(transactional_id, []).append(ended)
        try:
            async with asyncio.timeout(HOLD_S):
                await ended
        except TimeoutError:
            return
        finally:
            waiting = self._held.get(transactional_id, [])
            if ended in waiting:
                waiting.remove(ended)
            if not waiting:
                self._held.pop(transactional_id, None)

    def _ended(self, transactional_id: str) -> None:
        for ended in self._held.pop(transactional_id, ()):
            if not ended.done():
                ended.set_result(None)

    # --- ending ---

    def _prepared(self, index: int, transactional_id: str) -> None:
        key = (index, transactional_id)
        if key not in self._ending:
            self._ending.add(key)
            self._queue.append(key)
            self._send_next()

    def _send_next(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and self._tasks is not None:
            if len(self._being_sent) >= ENDINGS_AT_ONCE and not self._set_aside(loop.time()):
                if self._looks_again is None:
                    self._looks_again = loop.call_later(SLOW_S, self._look_again)
                return
            task = self._tasks.create_task(self._end(self._queue.popleft()))
            self._being_sent[task] = loop.time()
            task.add_done_callback(self._sent)

    def _set_aside(self, now_s: float) -> bool:
        """Make room by what takes long; return whether there was such."""
        oldest = next(iter(self._being_sent))
        if now_s - self._being_sent[oldest] < SLOW_S or len(self._slow) >= SLOW_MAX:
            return False
        del self._being_sent[oldest]
        self._slow.add(oldest)
        return True

    def _look_again(self) -> None:
        self._looks_again = None
        self._send_next()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._being_sent.pop(task, None)
        self._slow.discard(task)
        self._send_next()

    def _may_go_on(self, state: ReplicatedState[TransactionMachine]) -> bool:
        """Whether the task that asks may go on telling partitions of a transaction."""
        return self._loaded(state.index) is state and self._has_place()

    def _has_place(self) -> bool:
        """Whether the task that asks is not one of those that make room for others now."""
        return len(self._slow) < SLOW_MAX or asyncio.current_task() not in self._slow

    async def _end(self, key: tuple[int, str]) -> None:
        index, transactional_id = key
        try:
            # Looked at again after each end: the next transaction may be prepared already.
            while (state := self._loaded(index)) is not None:
                found = state.machine.transactions.get(transactional_id)
                if found is None or found.state not in PREPARED:
                    return
                goes_on = await self._end_one(state, transactional_id, found)
                if not goes_on and self._states.get(index) is state:
                    return  # and otherwise what leads here now was told that it is being ended
        finally:
            self._ending.discard(key)

    def _loaded(self, index: int) -> ReplicatedState[TransactionMachine] | None:
        state = self._states.get(index)
        return state if state is not None and state.status is Status.ACTIVE else None

    async def _end_one(
        self, state: ReplicatedState[TransactionMachine], transactional_id: str, found: Transaction
    ) -> bool:
        """Return whether to look at it again."""
        marker = Marker(
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=state.leader_epoch,
            committed=found.commits,
            transaction_version=found.client_version,
            partitions=tuple(
                (topic, number) for topic, numbers in found.partitions.items() for number in numbers
            ),
        )
        if marker.partitions and not await self._markers.tell(marker, lambda: self._may_go_on(state)):
            return False
        complete = Complete(transactional_id=transactional_id, prepared=found)
        # Every marker is there: nobody is told again, however long the log takes no record, unless too many
        # wait like this, who would hold up the transactions of other logs.
        pause_s = PAUSE_S
        while self._states.get(state.index) is state:
            try:
                await state.ask(complete)
            except KafkaError as error:
                logger.info("a transaction of %.100s is not noted as over yet: %s", transactional_id, error)
                await asyncio.sleep(pause_s)
                if not self._has_place():
                    return False
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                return True
        return False

    # --- following ---

    def _cluster_changed(self, delta: Delta) -> None:
        if delta.configs_changed:
            self.adopt_batch_bound()

    async def _expire_for_ever(self) -> None:
        """Delete the ids that are no longer used, one partition after the other, some at a time."""
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for state in list(self._states.values()):
                if state.status is not Status.ACTIVE:
                    continue
                for transactional_ids in portions(state.machine.transactions):
                    if state.status is Status.ACTIVE:
                        await self._ask_one(state, ExpireIds(transactional_ids=transactional_ids))
                    await asyncio.sleep(0)


def _check_named(transactional_id: str) -> None:
    if not transactional_id:
        raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
