"""The group coordinator of this broker: one replicated machine for each partition of `__consumer_offsets` it
leads.

Owns which partition a group belongs to, the life of its machines (loaded with leadership, closed without),
the topic's creation on first use, and the rounds of offset expiry. Does not own what groups decide
(`broker.coordinators.groups.machine`), how a machine is run (`broker.coordinators.replicated_state`), nor
requests and responses (`broker.handlers.groups`).
Invariant: a machine lives exactly as long as this broker leads its partition in one leader epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.image import Delta, Image
from broker.coordinators.groups.account import MemoryAccount, MemoryShare
from broker.coordinators.groups.machine import GroupMachine, GroupStatistics
from broker.coordinators.groups.offsets import ExpireOffsets, ForgetTopics
from broker.coordinators.groups.shard import GroupCommand, GroupConfig
from broker.coordinators.replicated_state import (
    BATCH_OVERHEAD_BYTES,
    CoordinatorLog,
    ReplicatedState,
    StateConfig,
    Status,
)
from broker.endpoint import Endpoint
from broker.ports import World
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from storage.policy import LogConfig

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
CREATION_WAIT_S: Final = 5.0
LOADING_WAIT_S: Final = 1.0
GROUPS_AT_ONCE: Final = 100
"""In one command about many groups; those of clients wait until it is over."""

R = TypeVar("R")

GroupState: TypeAlias = ReplicatedState[GroupMachine]


class LeadershipSource(CoordinatorLog, Protocol):
    """The replica manager, as far as it concerns a coordinator."""

    @property
    def on_leadership(self) -> list[Callable[[str, int, int | None], None]]: ...


class ClusterView(Protocol):
    @property
    def image(self) -> Image: ...

    def subscribe(self, listener: Callable[[Delta], Iterable[None] | None]) -> object: ...

    async def ensure_internal(self, name: str) -> object: ...

    def log_config(self, topic: str) -> LogConfig: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    partitions: int
    loading: int
    waiting: int
    machines: tuple[GroupStatistics, ...]


class GroupCoordinator:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        world: World,
        cluster: ClusterView,
        replicas: LeadershipSource,
        turns: Turns,
    ) -> None:
        self._config = config
        self._world = world
        self._cluster = cluster
        self._replicas = replicas
        self._turns = turns
        self.memory = MemoryAccount()
        self._shares: dict[int, MemoryShare] = {}
        self._group_config = group_config(config)
        self._state_config = StateConfig(
            append_timeout_ms=config.offsets_commit_timeout_ms,
            codec=config.offsets_topic_compression_codec,
            batch_bytes_max=config.message_max_bytes,
        )
        self._states: dict[int, GroupState] = {}
        self._leader_epochs: dict[int, int] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._creation: asyncio.Task[None] | None = None
        self._expiry: asyncio.Task[None] | None = None
        replicas.on_leadership.append(self._leadership_changed)
        cluster.subscribe(self._cluster_changed)

    def __repr__(self) -> str:
        return f"<GroupCoordinator {len(self._states)} partitions>"

    async def start(self, task_group: asyncio.TaskGroup) -> None:
        """Coordinate the partitions that this broker leads already, and those it will lead."""
        self._tasks = task_group
        self._adopt_batch_bound()
        for index, leader_epoch in self._leader_epochs.items():
            self._open(index, leader_epoch)
        self._expiry = task_group.create_task(self._expire_for_ever(), name="offset expiry")

    async def stop(self) -> None:
        self._tasks = None
        for task in (self._expiry, self._creation):
            if task is not None:
                task.cancel()
        for state in self._states.values():
            state.close()
        self._states.clear()
        for index in list(self._shares):
            self._release(index)

    def statistics(self) -> CoordinatorStatistics:
        states = self._states.values()
        return CoordinatorStatistics(
            partitions=len(states),
            loading=sum(state.status is Status.LOADING for state in states),
            waiting=sum(state.waiting for state in states),
            machines=tuple(state.machine.statistics() for state in states if state.status is Status.ACTIVE),
        )

    # --- asking ---

    async def ask(self, group_id: str, command: GroupCommand[R]) -> R:
        return await self._state(group_id).ask(command)

    def machine(self, group_id: str) -> GroupMachine:
        """Return the group's machine, for reading; raise as `ask` does when it cannot be asked."""
        return self._state(group_id).machine

    def machines(self) -> list[GroupMachine]:
        """Return the machine of every partition this broker coordinates; raise while one of them loads."""
        return [self._states[index].machine for index in sorted(self._states)]

    def check_session_timeout(self, session_timeout_ms: int) -> None:
        config = self._group_config
        if not config.min_session_timeout_ms <= session_timeout_ms <= config.max_session_timeout_ms:
            raise KafkaError(ErrorCode.invalid_session_timeout)

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{UUID(int=self._world.random.getrandbits(128), version=4)}"

    def partition_for(self, group_id: str) -> int:
        topic = self._cluster.image.topics.get(OFFSETS_TOPIC)
        count = self._config.offsets_topic_num_partitions if topic is None else len(topic.partitions)
        return partition_of(group_id, count)

    def _state(self, group_id: str) -> GroupState:
        state = self._states.get(self.partition_for(group_id))
        if state is None:
            raise KafkaError(ErrorCode.not_coordinator)
        return state

    # --- finding ---

    async def find(self, group_id: str, listener: str) -> tuple[int, Endpoint]:
        """Return the broker that coordinates the group and its endpoint of that listener. The first call
        creates the topic.
        """
        if OFFSETS_TOPIC not in self._cluster.image.topics:
            await self._create_topic()
        index = self.partition_for(group_id)
        image = self._cluster.image
        partition = image.partition(OFFSETS_TOPIC, index)
        broker = image.brokers.get(partition.leader) if partition is not None else None
        endpoint = broker.endpoint(listener) if broker is not None and not broker.fenced else None
        if broker is None or endpoint is None:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if broker.id == self._config.node_id:
            await self._wait_loaded(index)
        return broker.id, endpoint

    async def _create_topic(self) -> None:
        """Wait until the topic exists, which saves every new client a round of retries; all callers share one
        attempt.
        """
        if self._tasks is None:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if self._creation is None or self._creation.done():
            self._creation = self._tasks.create_task(self._ensure_topic(), name="offsets topic")
        done, _ = await asyncio.wait({self._creation}, timeout=CREATION_WAIT_S)
        if not done or OFFSETS_TOPIC not in self._cluster.image.topics:
            raise KafkaError(ErrorCode.coordinator_not_available)

    async def _ensure_topic(self) -> None:
        try:
            await self._cluster.ensure_internal(OFFSETS_TOPIC)
        except KafkaError as error:
            logger.warning("cannot create %s yet: %s", OFFSETS_TOPIC, error)

    async def _wait_loaded(self, index: int) -> None:
        """Hold the client briefly while its coordinator loads, instead of sending
        COORDINATOR_LOAD_IN_PROGRESS and making it back off.
        """
        state = self._states.get(index)
        if state is None or state.status is not Status.LOADING:
            return
        try:
            async with asyncio.timeout(LOADING_WAIT_S):
                await state.wait_settled()
        except TimeoutError:
            return

    # --- following ---

    def _leadership_changed(self, topic: str, index: int, leader_epoch: int | None) -> None:
        if topic != OFFSETS_TOPIC:
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
        state: GroupState = ReplicatedState(
            topic=OFFSETS_TOPIC,
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
        state.start()

    def _make_machine(self, index: int) -> GroupMachine:
        """Make a machine in place of an earlier one, of which no member counts any more."""
        self._release(index)
        share = self._shares[index] = self.memory.share()
        return GroupMachine(self._group_config, share)

    def _release(self, index: int) -> None:
        share = self._shares.pop(index, None)
        if share is not None:
            share.release()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
        else:
            self._tasks.create_task(work)

    def _cluster_changed(self, delta: Delta) -> None:
        if delta.configs_changed:
            self._adopt_batch_bound()
        if delta.topics_deleted and self._tasks is not None:
            topics = {topic.name: topic.id for topic in delta.topics_deleted}
            self._tasks.create_task(self._forget_topics(topics), name="forget topics")

    def _adopt_batch_bound(self) -> None:
        """Adopt the largest batch that the offsets topic allows now; its settings may change at any time."""
        bytes_max = self._cluster.log_config(OFFSETS_TOPIC).max_message_bytes
        if bytes_max == self._state_config.batch_bytes_max:
            return
        self._state_config = replace(self._state_config, batch_bytes_max=bytes_max)
        self._group_config = replace(self._group_config, record_max_bytes=bytes_max - BATCH_OVERHEAD_BYTES)
        for state in self._states.values():
            state.config = self._state_config
            if state.status is Status.ACTIVE:
                state.machine.config = self._group_config

    async def _expire_for_ever(self) -> None:
        """Expire offsets, one partition after the other, some groups at a time."""
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for state in list(self._states.values()):
                if state.status is not Status.ACTIVE:
                    continue
                for group_ids in _portions(state.machine.groups):
                    await self._ask_one(state, ExpireOffsets(group_ids=group_ids))
                    await asyncio.sleep(0)

    async def _forget_topics(self, topics: Mapping[str, UUID]) -> None:
        """Forget them on every partition, one that still loads included, since this is said only once."""

        async def forget(state: GroupState) -> None:
            await state.wait_settled()
            if state.status is Status.CLOSED:
                return
            durable = state.machine.durable
            for group_ids in _portions({**durable.offsets, **dict.fromkeys(durable.pending_groups())}):
                await self._ask_one(state, ForgetTopics(topics=topics, group_ids=group_ids))

        await asyncio.gather(*map(forget, list(self._states.values())))

    async def _ask_one(self, state: GroupState, command: GroupCommand[int]) -> None:
        try:
            await state.ask(command)
        except KafkaError as error:
            name = type(command).__name__
            logger.warning("%s-%d: %s failed: %s", OFFSETS_TOPIC, state.index, name, error)


def _portions(group_ids: Iterable[str]) -> Iterator[tuple[str, ...]]:
    left = tuple(group_ids)
    for at in range(0, len(left), GROUPS_AT_ONCE):
        yield left[at : at + GROUPS_AT_ONCE]


def partition_of(group_id: str, count: int) -> int:
    """Return the partition by Java's hash of the id, which Kafka's tools rely on."""
    value = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return (0 if value == 0x80000000 else value) % count


def group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        record_max_bytes=config.message_max_bytes - BATCH_OVERHEAD_BYTES,
    )
