"""The metadata of the cold tier on this broker: what is known of copies, and telling what happens to them.

Owns: which part of the metadata topic speaks of which partition, which parts this broker needs, one view of
each, making the topic when it is needed first, and bringing an event to whoever leads its part. Does not own:
deciding (machine, coordinator), reading (readers), what is folded (remote.cold.fold), sweeping (sweep), what
is done about a copy. Invariants: `submit` returns only once the event is committed and in this broker's own
fold; an event whose outcome is unknown is told again until it is known or the time is up, which is harmless
as it changes nothing the second time. Nothing runs and nothing is asked before a partition is followed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from broker.config.broker import BrokerConfig
from broker.control.image import Delta, Image
from broker.control.metadata_records import NO_LEADER
from broker.coordinators.tier.commands import encode_commands
from broker.coordinators.tier.coordinator import LeadershipSource, TierCoordinator
from broker.coordinators.tier.machine import TOPIC, TierCommand, TierMachine
from broker.coordinators.tier.readers import PeerChannels, Readers
from broker.coordinators.tier.sweep import SegmentDeleter, Sweep
from broker.coordinators.tier.view import View
from broker.net.channel import PeerLost
from broker.ports import World
from broker.turns import Turns
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, error_code
from remote.cold.fold import PartitionFold
from remote.cold.partitioner import metadata_partition
from remote.cold.segments import SegmentState, TieredPartition, TierEvent, partition_of
from storage.policy import LogConfig

logger = logging.getLogger(__name__)

PURPOSE: Final = "tier"
PRODUCE_VERSION: Final = 9
ATTEMPT_S: Final = 10.0
"""How long one attempt to tell an event may take."""
RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
SUBMITS_MAX: Final = 1_000
"""Under way at once; more wait their turn, within their time."""
CREATION_RETRY_S: Final = 1.0
CREATION_RETRY_MAX_S: Final = 30.0
_AGAIN: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
    }
)
"""What may be otherwise in a moment: another leader, a newer image there, a quorum."""
_IN_ITS_IMAGE: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


class ClusterView(Protocol):
    @property
    def image(self) -> Image: ...
    @property
    def channels(self) -> PeerChannels: ...

    def subscribe(self, listener: Callable[[Delta], Iterable[None] | None]) -> object: ...

    async def ensure_internal(self, name: str) -> object: ...

    def log_config(self, topic: str) -> LogConfig: ...


class TierMetadata:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        world: World,
        cluster: ClusterView,
        replicas: LeadershipSource,
        turns: Turns,
        storage: SegmentDeleter | None = None,
    ) -> None:
        """`storage` deletes what topics that are gone have left; None leaves it."""
        self.on_change: list[Callable[[TieredPartition], None]] = []
        """Called for a followed partition after its fold has changed, and when it is caught up."""
        self._node_id = config.node_id
        self._wait_s = config.remote_metadata_topic.consume_wait_ms / 1000
        self._world = world
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._views: dict[int, View] = {}
        self._followed: set[TieredPartition] = set()
        self._sources: dict[int, tuple[int, int]] = {}
        """The leader, and its epoch, that each view is read from; -1 where this broker leads it."""
        self._room = asyncio.Semaphore(SUBMITS_MAX)
        self._has_topic = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._creation: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.coordinator = TierCoordinator(
            inter_broker_listener=config.inter_broker_listener,
            replicas=replicas,
            image=lambda: cluster.image,
            log_config=cluster.log_config,
            now_ms=world.now_ms,
            turns=turns,
            listener=self,
        )
        self._readers = Readers(
            channels=cluster.channels,
            image=lambda: cluster.image,
            tombstones_kept_s=lambda: cluster.log_config(TOPIC).delete_retention_ms / 1000,
        )
        self.sweep = Sweep(
            node_id=config.node_id,
            coordinator=self.coordinator,
            image=lambda: cluster.image,
            now_ms=world.now_ms,
        )
        self.sweep.storage = storage
        cluster.subscribe(self._cluster_changed)

    def __repr__(self) -> str:
        return f"<TierMetadata {len(self._followed)} followed in {len(self._views)} views>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        """Serve and follow from now on; waits for nothing."""
        self._tasks = task_group
        self._readers.start(task_group)
        self.coordinator.start(task_group)
        self._place_followed()
        self._sweep_if_led()

    async def stop(self) -> None:
        self._tasks = None
        for task in (self._creation, self._sweeping):
            if task is not None:
                task.cancel()
        self._readers.stop()
        self.coordinator.stop()

    @property
    def is_without_topic(self) -> bool:
        """Whether the metadata topic is needed and cannot be made yet: nothing is copied meanwhile."""
        return bool(self._followed) and TOPIC not in self._cluster.image.topics

    @property
    def waiting(self) -> int:
        """How many followed partitions are not caught up: they copy, delete and bootstrap nothing."""
        return sum(not self.is_caught_up(partition) for partition in self._followed)

    @property
    def reader_lag_s(self) -> float:
        """The longest time since what is read from another broker was read up to its end."""
        read = (self._views[index] for index, (leader, _) in self._sources.items() if leader != NO_LEADER)
        return max((self._loop.time() - view.at_end_s for view in read if view.at_end_s), default=0.0)

    # --- what is known ---

    def fold(self, partition: TieredPartition) -> PartitionFold | None:
        """Return what is known so far; None if that is nothing."""
        view = self._view_of(partition)
        return None if view is None else view.fold.get(partition)

    def follow(self, partition: TieredPartition) -> None:
        """Keep up with a partition until `unfollow`; it is caught up once its barrier is passed."""
        self._followed.add(partition)
        if self._tasks is not None:
            self._place(partition)

    def unfollow(self, partition: TieredPartition) -> None:
        self._followed.discard(partition)
        view = self._view_of(partition)
        if view is not None:
            view.unfollow(partition)
            self._assign_if_changed(view)

    def renew(self, partition: TieredPartition) -> None:
        """Demand the barrier anew, because a role began: what others may have told before it counts."""
        if partition in self._followed and self._tasks is not None:
            self._place(partition)

    def is_caught_up(self, partition: TieredPartition) -> bool:
        view = self._view_of(partition)
        return view is not None and view.is_caught_up(partition)

    async def wait_caught_up(self, partition: TieredPartition) -> None:
        """Return when it is, which may be never: the caller sets the deadline."""
        while (view := self._view_of(partition)) is None:
            await self._has_topic.wait()
            await asyncio.sleep(0)
        await view.wait_caught_up(partition)

    def _index_of(self, partition: TieredPartition) -> int | None:
        topic = self._cluster.image.topics.get(TOPIC)
        return None if topic is None else metadata_partition(partition, len(topic.partitions))

    def _view_of(self, partition: TieredPartition) -> View | None:
        index = self._index_of(partition)
        return None if index is None else self._views.get(index)

    def _view(self, index: int) -> View:
        view = self._views.get(index)
        if view is None:
            view = self._views[index] = View(index, self._changed)
        return view

    def _changed(self, partition: TieredPartition) -> None:
        for listener in self.on_change:
            listener(partition)

    # --- telling ---

    async def submit(
        self, event: TierEvent, *, leader_epoch: int, expects: SegmentState | None = None
    ) -> None:
        """Return once the event is committed and in the fold here; raise KafkaError where it is refused, and
        REQUEST_TIMED_OUT where that is not known in time. Cancelling leaves the outcome open."""
        command = TierCommand(event=event, leader_epoch=leader_epoch, expects=expects)
        why: list[str] = []
        try:
            async with asyncio.timeout(self._wait_s), self._room:
                index = await self._place_of(partition_of(event))
                view = self._view(index)
                view.borrow()
                try:
                    self._assign_if_changed(view)
                    end = await self._tell(index, command, why)
                    await view.wait_read(end)
                finally:
                    view.give_back()
                    self._assign_if_changed(view)
        except TimeoutError:
            code = ErrorCode.request_timed_out
            if TOPIC not in self._cluster.image.topics:
                code = ErrorCode.coordinator_not_available
                why.append(f"{TOPIC} is not there yet")
            raise KafkaError(code, why[-1] if why else "the fold lags behind") from None

    async def _place_of(self, partition: TieredPartition) -> int:
        while (index := self._index_of(partition)) is None:
            self._create_topic()
            await self._has_topic.wait()
            await asyncio.sleep(0)
        return index

    async def _tell(self, index: int, command: TierCommand, why: list[str]) -> int:
        """Tell the leader until it answers; return an end below which the event is."""
        pause_s = RETRY_S
        while True:
            try:
                return await self._tell_once(index, command)
            except PeerLost as lost:
                why.append(str(lost))
            except KafkaError as error:
                why.append(str(error))
                if error.code not in _AGAIN or self._is_final(error, command):
                    raise
            del why[:-1]
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _is_final(self, error: KafkaError, command: TierCommand) -> bool:
        """Whether the image here says the same about the topic."""
        if error.code not in _IN_ITS_IMAGE:
            return False
        partition = partition_of(command.event)
        topic = self._cluster.image.topic_by_id(partition.topic_id)
        return topic is None or partition.number >= len(topic.partitions)

    async def _tell_once(self, index: int, command: TierCommand) -> int:
        part = self._cluster.image.partition(TOPIC, index)
        if part is None or part.leader == NO_LEADER:
            raise KafkaError(ErrorCode.leader_not_available, f"nobody leads {TOPIC}-{index}")
        if part.leader == self._node_id:
            return await self.coordinator.ask(index, command)
        records = encode_commands([command], now_ms=self._world.now_ms())
        fields: Fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": int(ATTEMPT_S * 1000),
            "topic_data": [{"name": TOPIC, "partition_data": [{"index": index, "records": records}]}],
        }
        channel = self._cluster.channels.to(part.leader, PURPOSE)
        response: Any = await channel.ask(Api.PRODUCE, PRODUCE_VERSION, fields, timeout_s=ATTEMPT_S)
        answer = response.responses[0].partition_responses[0]
        code = error_code(int(answer.error_code))
        if code is not ErrorCode.none:
            raise KafkaError(code, answer.error_message)
        end: int = answer.base_offset + 1
        return end

    # --- the topic ---

    def _create_topic(self) -> None:
        if self._tasks is not None and (self._creation is None or self._creation.done()):
            self._creation = self._tasks.create_task(self._ensure_topic(), name=f"create {TOPIC}")

    async def _ensure_topic(self) -> None:
        """Try until it is there: with fewer brokers than replicas it cannot be made yet."""
        pause_s = CREATION_RETRY_S
        told: str | None = None
        while TOPIC not in self._cluster.image.topics:
            try:
                await self._cluster.ensure_internal(TOPIC)
            except KafkaError as error:
                if told != str(error):
                    logger.warning(
                        "%s cannot be created yet, so nothing is copied to the cold tier: %s; it needs "
                        "rlmm.config.remote.log.metadata.topic.replication.factor brokers",
                        TOPIC,
                        error,
                    )
                told = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, CREATION_RETRY_MAX_S)

    # --- following the cluster ---

    def _cluster_changed(self, delta: Delta) -> None:
        if self._tasks is None:
            return
        if delta.configs_changed and self.coordinator.led:
            self.coordinator.adopt_configs()
        if delta.topics_deleted:
            self.sweep.wake()
        if TOPIC in delta.topics_created:
            self._place_followed()
        if TOPIC in delta.topics_created or TOPIC in delta.topics_changed or delta.brokers_changed:
            self._assign()

    def _place_followed(self) -> None:
        if TOPIC in self._cluster.image.topics:
            has_topic, self._has_topic = self._has_topic, asyncio.Event()
            has_topic.set()
        for partition in self._followed:
            self._place(partition)

    def _place(self, partition: TieredPartition) -> None:
        """Begin its barrier in the view that speaks of it."""
        index = self._index_of(partition)
        if index is None:
            self._create_topic()
            return
        view = self._view(index)
        view.renew(partition)
        if self.coordinator.is_loaded(index):
            view.confirm(partition)
        self._assign_if_changed(view)

    def _assign_if_changed(self, view: View) -> None:
        if view.is_needed != (view.index in self._sources):
            self._assign()

    def _assign(self) -> None:
        """Have each view that is needed read from its leader of now, unless that is this broker."""
        wanted: dict[int, tuple[View, int]] = {}
        sources: dict[int, tuple[int, int]] = {}
        for index, view in self._views.items():
            part = self._cluster.image.partition(TOPIC, index)
            if not view.is_needed or part is None:
                continue
            is_led = self.coordinator.leads(index)
            source = sources[index] = (NO_LEADER if is_led else part.leader, part.leader_epoch)
            if source != self._sources.get(index) and not is_led:
                view.begin_reading(self.coordinator.epoch_before(index, view.position))
            if not is_led and part.leader not in (NO_LEADER, self._node_id):
                wanted[index] = view, part.leader
        self._sources = sources
        self._readers.assign(wanted)

    # --- what is led here ---

    def leads(self, index: int) -> None:
        self._assign()
        self._sweep_if_led()

    def loaded(self, index: int, machine: TierMachine) -> None:
        self._view(index).lead(machine)

    def applied(self, index: int, machine: TierMachine, partition: TieredPartition) -> None:
        self._view(index).applied(machine, partition)

    def _sweep_if_led(self) -> None:
        if self._tasks is None or not self.coordinator.led:
            return
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._tasks.create_task(self.sweep.run(), name="tier sweep")
        self.sweep.wake()

    def accept(
        self, listener: str, topic: str, index: int, records: Any, *, version: int
    ) -> Callable[[], Coroutine[Any, Any, int]] | None:
        """Read what another broker produces to the topic: see `TierCoordinator.accept`."""
        return self.coordinator.accept(listener, topic, index, records, version=version)
