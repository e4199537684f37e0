"""What the coordinators of clients share: machines over the partitions of one internal topic.

Owns: which partition an id belongs to, where its coordinator is, the topic's creation on first use, and the
life of the machines (loaded with leadership, closed without). Does not own: what machines decide, how one is
run (`broker.coordinators.replicated_state`), nor requests and responses (`broker.handlers`).
Invariant: a machine lives exactly as long as this broker leads its partition in one leader epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from broker.config.broker import BrokerConfig
from broker.control.image import Delta, Image
from broker.coordinators.account import MemoryAccount, MemoryShare
from broker.coordinators.java_hash import java_hash, java_hash_kept
from broker.coordinators.machine import Machine
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import CoordinatorLog, StateConfig
from broker.endpoint import Endpoint
from broker.ports import World
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from storage.policy import LogConfig

logger = logging.getLogger(__name__)

CREATION_WAIT_S: Final = 5.0
LOADING_WAIT_S: Final = 1.0
IDS_AT_ONCE: Final = 100
"""In one command about many ids; those of clients wait until it is over."""

MachineT = TypeVar("MachineT", bound="Machine[Any, Any]")


class LeadershipSource(CoordinatorLog, Protocol):
    """The replica manager, as far as it concerns a coordinator."""

    @property
    def on_leadership(self) -> list[Callable[[str, int, int | None], None]]: ...


class ClusterView(Protocol):
    @property
    def image(self) -> Image: ...

    @property
    def broker_config(self) -> BrokerConfig: ...

    def subscribe(self, listener: Callable[[Delta], Iterable[None] | None]) -> object: ...

    async def ensure_internal(self, name: str) -> object: ...

    def log_config(self, topic: str) -> LogConfig: ...


class TopicCoordinator(Generic[MachineT]):
    def __init__(
        self,
        *,
        topic: str,
        partitions_at_first: int,
        node_id: int,
        state_config: StateConfig,
        memory: MemoryAccount,
        world: World,
        cluster: ClusterView,
        replicas: LeadershipSource,
        turns: Turns,
    ) -> None:
        """The topic will have `partitions_at_first` when it is made."""
        self.topic = topic
        self.memory = memory
        self._partitions_at_first = partitions_at_first
        self._node_id = node_id
        self._state_config = state_config
        self._world = world
        self._cluster = cluster
        self._replicas = replicas
        self._turns = turns
        self._shares: dict[int, MemoryShare] = {}
        self._states: dict[int, ReplicatedState[MachineT]] = {}
        self._leader_epochs: dict[int, int] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._creation: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        """Set when a machine begins to load; cleared by those who wait for one."""
        replicas.on_leadership.append(self._leadership_changed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._states)} partitions>"

    def make_machine(self, index: int, share: MemoryShare) -> MachineT:
        """Make the machine of a partition that this broker leads; what it holds is counted in `share`."""
        raise NotImplementedError

    def batch_bound_changed(self, bytes_max: int) -> None:
        """Take note of the largest batch that the topic allows; `self._states` have it already."""

    async def start(self, task_group: asyncio.TaskGroup) -> None:
        """Coordinate the partitions that this broker leads already, and those it will lead."""
        self._tasks = task_group
        self.adopt_batch_bound()
        for index, leader_epoch in self._leader_epochs.items():
            self._open(index, leader_epoch)

    async def stop(self) -> None:
        self._tasks = None
        if self._creation is not None:
            self._creation.cancel()
        for state in self._states.values():
            state.close()
        self._states.clear()
        for index in list(self._shares):
            self._release(index)

    # --- counting ---

    @property
    def led(self) -> int:
        return len(self._states)

    @property
    def loading(self) -> int:
        return sum(state.status is Status.LOADING for state in self._states.values())

    @property
    def waiting(self) -> int:
        return sum(state.waiting for state in self._states.values())

    def active_machines(self) -> Iterator[MachineT]:
        """Yield those that can be read now."""
        for state in self._states.values():
            if state.status is Status.ACTIVE:
                yield state.machine

    # --- asking ---

    def machines(self) -> list[MachineT]:
        """Return the machine of every partition this broker coordinates; raise while one of them loads."""
        return [self._states[index].machine for index in sorted(self._states)]

    def partition_for(self, key: str) -> int:
        topic = self._cluster.image.topics.get(self.topic)
        count = self._partitions_at_first if topic is None else len(topic.partitions)
        return partition_of(key, count)

    def _state(self, key: str) -> ReplicatedState[MachineT]:
        state = self._states.get(self.partition_for(key))
        if state is None:
            raise KafkaError(ErrorCode.not_coordinator)
        return state

    # --- finding ---

    async def find(self, key: str, listener: str) -> tuple[int, Endpoint]:
        """Return the broker that coordinates the id and its endpoint of that listener. The first call creates
        the topic.
        """
        await self.ensure_topic()
        index = self.partition_for(key)
        image = self._cluster.image
        partition = image.partition(self.topic, index)
        broker = image.brokers.get(partition.leader) if partition is not None else None
        endpoint = broker.endpoint(listener) if broker is not None and not broker.fenced else None
        if broker is None or endpoint is None:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if broker.id == self._node_id:
            await self._wait_loaded(index)
        return broker.id, endpoint

    async def ensure_topic(self) -> None:
        """Return once the image has the topic, and so how many partitions there are. Wait until it exists,
        which saves every new client a round of retries; all callers share one attempt.
        """
        if self.topic in self._cluster.image.topics:
            return
        if self._tasks is None:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if self._creation is None or self._creation.done():
            self._creation = self._tasks.create_task(self._ensure_topic(), name=f"create {self.topic}")
        done, _ = await asyncio.wait({self._creation}, timeout=CREATION_WAIT_S)
        if not done or self.topic not in self._cluster.image.topics:
            raise KafkaError(ErrorCode.coordinator_not_available)

    async def _ensure_topic(self) -> None:
        try:
            await self._cluster.ensure_internal(self.topic)
        except KafkaError as error:
            logger.warning("cannot create %s yet: %s", self.topic, error)

    async def _wait_loaded(self, index: int) -> None:
        """Hold the client briefly while its coordinator opens and loads, instead of making it back off."""
        try:
            async with asyncio.timeout(LOADING_WAIT_S):
                while (state := self._states.get(index)) is None:
                    self._opened.clear()
                    await self._opened.wait()
                await state.wait_settled()
        except TimeoutError:
            return

    # --- following ---

    def _leadership_changed(self, topic: str, index: int, leader_epoch: int | None) -> None:
        if topic != self.topic:
            return
        state = self._states.pop(index, None)
        if state is not None:
            state.close()
            self._release(index)
        if leader_epoch is None:
            self._leader_epochs.pop(index, None)
            return
        self._leader_epochs[index] = leader_epoch
        if self._tasks is not None:
            self._open(index, leader_epoch)

    def _open(self, index: int, leader_epoch: int) -> None:
        state: ReplicatedState[MachineT] = ReplicatedState(
            topic=self.topic,
            index=index,
            leader_epoch=leader_epoch,
            make_machine=lambda: self._make_machine(index),
            partitions=self._replicas,
            now_ms=self._world.now_ms,
            spawn=self._spawn,
            turns=self._turns,
            config=self._state_config,
        )
        self._states[index] = state
        self._opened.set()
        state.start()

    def _make_machine(self, index: int) -> MachineT:
        """Make a machine in place of an earlier one, of which nothing counts any more."""
        self._release(index)
        share = self._shares[index] = self.memory.share()
        return self.make_machine(index, share)

    def _release(self, index: int) -> None:
        share = self._shares.pop(index, None)
        if share is not None:
            share.release()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
        else:
            self._tasks.create_task(work)

    def adopt_batch_bound(self) -> None:
        """Adopt the largest batch that the topic allows now; its settings may change at any time."""
        bytes_max = self._cluster.log_config(self.topic).max_message_bytes
        if bytes_max == self._state_config.batch_bytes_max:
            return
        self._state_config = replace(self._state_config, batch_bytes_max=bytes_max)
        for state in self._states.values():
            state.config = self._state_config
        self.batch_bound_changed(bytes_max)

    async def _ask_one(self, state: ReplicatedState[MachineT], command: Any) -> None:
        """Ask for what nobody waits for; a failure is logged."""
        try:
            await state.ask(command)
        except KafkaError as error:
            name = type(command).__name__
            logger.warning("%s-%d: %s failed: %s", self.topic, state.index, name, error)


def portions(keys: Iterable[str]) -> Iterator[tuple[str, ...]]:
    left = tuple(keys)
    for at in range(0, len(left), IDS_AT_ONCE):
        yield left[at : at + IDS_AT_ONCE]


def partition_of(key: str, count: int) -> int:
    """Return the partition by Java's hash of the id, which Kafka's tools rely on. A client asks about the
    same few ids again and again, and a character costs 0.04 µs."""
    value = java_hash_kept(key) if len(key) <= _REMEMBERED_LENGTH_MAX else java_hash(key)
    if value >= 0x80000000:
        value = 0x100000000 - value
    return 0 if value == 0x80000000 else value % count


_REMEMBERED_LENGTH_MAX: Final = 100
