"""The group coordinator of this broker: one replicated machine for each partition of `__consumer_offsets` it
leads.

Owns: the memory of groups, the rounds of offset expiry, and telling groups of new topics. Does not own: where
a group is and the life of its machine (`broker.coordinators.topic_coordinator`), what groups decide
(`broker.coordinators.groups.machine`), telling them of deleted topics (`forgetting`), nor requests and
responses (`broker.handlers.groups`).
Invariant: whatever changes groups besides their members asks their machines, a portion of them at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.groups import group_values
from broker.config.values import ResourceType
from broker.control.image import Delta
from broker.coordinators.account import MemoryAccount, MemoryShare
from broker.coordinators.groups.forgetting import Forgetting
from broker.coordinators.groups.machine import GroupMachine, GroupStatistics
from broker.coordinators.groups.modern.heartbeat import ResolveRegexes
from broker.coordinators.groups.modern.regexes import by_size, matched, matching
from broker.coordinators.groups.offsets import ExpireOffsets
from broker.coordinators.groups.shard import ConsumerSettings, GroupCommand, GroupConfig
from broker.coordinators.groups.topics import Topics
from broker.coordinators.replicated_state import ReplicatedState, Status
from broker.coordinators.shell.log import BATCH_OVERHEAD_BYTES, StateConfig
from broker.coordinators.shell.waiting import Reply
from broker.coordinators.topic_coordinator import (
    IDS_AT_ONCE,
    ClusterView,
    LeadershipSource,
    TopicCoordinator,
    portions,
)
from broker.ports import World
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import ResolvedRegex
from protocol.work import Work, in_order
from storage.log import NewMarker

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
_NAMES_IN_THREAD: Final = 64

R = TypeVar("R")

GroupState: TypeAlias = ReplicatedState[GroupMachine]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    partitions: int
    loading: int
    waiting: int
    machines: tuple[GroupStatistics, ...]


class GroupCoordinator(TopicCoordinator[GroupMachine]):
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
        self._group_config = group_config(config)
        self._topics = Topics(lambda: cluster.image)
        self._usual_settings = consumer_settings(config, {})
        self._expiry: asyncio.Task[None] | None = None
        self._forgetting = Forgetting()
        self._thread = asyncio.Lock()
        """Held by the expression that is matched in a thread."""
        super().__init__(
            topic=OFFSETS_TOPIC,
            partitions_at_first=config.offsets_topic_num_partitions,
            node_id=config.node_id,
            state_config=StateConfig(
                append_timeout_ms=config.offsets_commit_timeout_ms,
                codec=config.offsets_topic_compression_codec,
                batch_bytes_max=config.message_max_bytes,
            ),
            memory=MemoryAccount(),
            world=world,
            cluster=cluster,
            replicas=replicas,
            turns=turns,
        )
        cluster.subscribe(self._cluster_changed)

    async def start(self, task_group: asyncio.TaskGroup) -> None:
        # What was created while this broker was away counts as new.
        self._topics.created_in = self._topics.version
        await super().start(task_group)
        self._expiry = task_group.create_task(self._expire_for_ever(), name="offset expiry")

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._forgetting.stop()
        await super().stop()

    def make_machine(self, index: int, share: MemoryShare) -> GroupMachine:
        return GroupMachine(
            self._group_config, share, topics=self._topics, settings_of=self.consumer_settings
        )

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        """Return what is set for a group, if the server assigns it."""
        own = self._cluster.image.configs.get((ResourceType.GROUP, group_id))
        return consumer_settings(self._cluster.broker_config, own) if own else self._usual_settings

    def batch_bound_changed(self, bytes_max: int) -> None:
        self._group_config = replace(self._group_config, record_max_bytes=bytes_max - BATCH_OVERHEAD_BYTES)
        for machine in self.active_machines():
            machine.config = self._group_config

    def statistics(self) -> CoordinatorStatistics:
        return CoordinatorStatistics(
            partitions=self.led,
            loading=self.loading,
            waiting=self.waiting,
            machines=tuple(machine.statistics() for machine in self.active_machines()),
        )

    # --- asking ---

    async def ask(self, group_id: str, command: GroupCommand[R]) -> R:
        response = await self._state(group_id).ask(command)
        self.look_up_regexes(group_id)
        return response

    def tell(self, group_id: str, command: GroupCommand[R], reply: Reply[R]) -> None:
        """`ask` for one that is no task: the reply is given what comes of it. After a heartbeat, it has
        regular expressions looked up."""
        self._state(group_id).tell(command, reply)

    def look_up_regexes(self, group_id: str) -> None:
        """Find the topics of regular expressions, where groups beside this one want it."""
        state = self._states.get(self.partition_for(group_id))
        if state is not None and state.status is Status.ACTIVE and state.machine.to_resolve:
            self._look_up_regexes(state)

    async def write_marker(self, index: int, marker: NewMarker) -> None:
        """End a transaction on one partition of the offsets topic: return once the marker is committed and
        the offsets of the transaction count, or are gone."""
        state = self._states.get(index)
        if state is None:
            raise KafkaError(ErrorCode.not_coordinator)
        await state.write_marker(marker)

    def machine(self, group_id: str) -> GroupMachine:
        """Return the group's machine, for reading; raise as `ask` does when it cannot be asked."""
        return self._state(group_id).machine

    def check_session_timeout(self, session_timeout_ms: int) -> None:
        config = self._group_config
        if not config.min_session_timeout_ms <= session_timeout_ms <= config.max_session_timeout_ms:
            raise KafkaError(ErrorCode.invalid_session_timeout)

    def new_uuid(self) -> UUID:
        return UUID(int=self._world.random.getrandbits(128), version=4)

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{self.new_uuid()}"

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """Return which assignors of the server members may ask for, the usual one first."""
        return self._group_config.consumer_assignors

    # --- regular expressions ---

    def _look_up_regexes(self, state: GroupState) -> None:
        machine = state.machine
        for group_id in machine.to_resolve:
            group = machine.consumers.get(group_id)
            if group is None or self._tasks is None:
                machine.resolving.discard(group_id)
            else:
                self._tasks.create_task(
                    self._resolve(state, machine, group_id, group.member_regexes()), name="topics of regexes"
                )
        machine.to_resolve.clear()

    async def _resolve(
        self, state: GroupState, machine: GroupMachine, group_id: str, regexes: list[str]
    ) -> None:
        """Find the topics that a group is subscribed to by its regular expressions, and tell it."""
        version = self._topics.version
        try:
            names = await self._turns.run(in_order(list(self._topics.names())))
            small, large = await self._turns.run(by_size(regexes))
            found = await self._turns.run(matching(small, names))
            for each in large:
                found[each] = await self._match_in_thread(each, names)
            now_ms = self._world.now_ms()
            resolved = {
                regex: ResolvedRegex(topics=topics, version=version, timestamp_ms=now_ms)
                for regex, topics in found.items()
            }
            await state.ask(ResolveRegexes(group_id=group_id, resolved=resolved))
        except KafkaError as error:
            # The next heartbeat of the group finds that it is still to be done.
            logger.warning("group %r: its regular expressions are not looked up: %s", group_id, error)
        finally:
            machine.resolving.discard(group_id)

    async def _match_in_thread(self, regex: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names that it matches; some of them at a time, and in one thread of all, for others
        need these too and none of them can be stopped."""
        found: list[str] = []
        for at in range(0, len(names), _NAMES_IN_THREAD):
            some = names[at : at + _NAMES_IN_THREAD]
            async with self._thread:
                found += await self._world.offload(partial(matched, regex, some))
        return tuple(found)

    # --- following ---

    def _cluster_changed(self, delta: Delta) -> None:
        if delta.configs_changed:
            self.adopt_batch_bound()
            self._usual_settings = consumer_settings(self._cluster.broker_config, {})
        if delta.topics_created:
            self._topics.created_in = delta.seq
        self._topics.forget(topic.name for topic in delta.topics_deleted)
        changed = {*delta.topics_created, *delta.topics_changed, *(one.name for one in delta.topics_deleted)}
        if changed and self._tasks is not None and any(one.consumers for one in self.active_machines()):
            self._tasks.create_task(self._turns.run(self._topics_changed(changed)), name="topics of groups")
        if delta.topics_deleted and self._tasks is not None:
            topics = {topic.id: topic.name for topic in delta.topics_deleted}
            self._forgetting.begin(topics, self._states.values(), self._tasks.create_task)

    def _topics_changed(self, changed: set[str]) -> Work[None]:
        """Have each group that is subscribed to one of these topics look at them with its next heartbeat."""
        for state in list(self._states.values()):
            if state.status is not Status.ACTIVE:
                continue  # what is loaded looks anyway
            machine = state.machine
            for at, group in enumerate(list(machine.consumers.values()), 1):
                if any(map(group.is_subscribed_to, changed)):
                    group.checked_in_epoch = None
                if at % IDS_AT_ONCE == 0:
                    yield
            yield

    async def _expire_for_ever(self) -> None:
        """Expire offsets, one partition after the other, some groups at a time."""
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for state in list(self._states.values()):
                if state.status is not Status.ACTIVE:
                    continue
                machine = state.machine
                for group_ids in portions((*machine.groups, *machine.consumers)):
                    await self._ask_one(state, ExpireOffsets(group_ids=group_ids))
                    await asyncio.sleep(0)


def group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignors=config.group_consumer_assignors,
        migration_policy=config.group_consumer_migration_policy.lower(),
        record_max_bytes=config.message_max_bytes - BATCH_OVERHEAD_BYTES,
    )


def consumer_settings(config: BrokerConfig, own: Mapping[str, str]) -> ConsumerSettings:
    """Return what is set for a group by its own values above the broker's."""
    if not own:
        return ConsumerSettings(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        )
    values = group_values(config, own)
    return ConsumerSettings(
        session_timeout_ms=values["consumer.session.timeout.ms"],
        heartbeat_interval_ms=values["consumer.heartbeat.interval.ms"],
        assignment_interval_ms=values["consumer.assignment.interval.ms"],
    )
