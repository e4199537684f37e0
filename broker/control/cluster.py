"""This node's membership in its cluster: it joins, follows the metadata log, and writes it while it is the
controller.

Owns: the roles of member and controller and the moves between them, publishing what was committed to the
rest of the broker, the current view of configurations, what this broker itself asks of the controller. Does
not own: how a node comes in (joining.py), the rules of a command (controller.py), the fold (image.py), the
slots (ledger.py), who may be written off when (sessions.py, roll_call.py), clients' requests (forwarding.py).

Invariants: nothing is told to anyone before its slot is won. No clock decides what is true: timers only
start elections, and an election is won by a slot. A node that finds itself replaced says nothing more.

A member always has one heartbeat with the controller, who holds it until there is a slot to tell or a second
has passed; a member that finds no controller asks other members, so one who cannot reach the store still
learns. The same code runs a cluster of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.topics import log_config
from broker.config.values import ConfigError, ResourceType
from broker.control.brokers import AllocateProducerIds, ControlledShutdown, FenceBrokers, election
from broker.control.command_queue import CommandQueue, not_controller
from broker.control.commands import ControllerCommand, Rules
from broker.control.directories import new_id
from broker.control.forwarding import Forwarding
from broker.control.heartbeats import STUCK_AFTER_S, RollCall
from broker.control.image import BrokerImage, Delta, Image, TopicImage
from broker.control.joining import Holds, Joining
from broker.control.leaders import ElectUncleanLeaders, RebalanceLeaders
from broker.control.ledger import Ledger
from broker.control.metadata_log import SNAPSHOT_EVERY_SLOTS, BrokenLog, MetadataLog, parse_slot
from broker.control.metadata_records import ControllerElected, Record
from broker.control.producer_ids import ProducerIds
from broker.control.sessions import SILENT_AFTER_S, Patience
from broker.control.topics import CreateTopics, NewTopic, TopicResult, internal_topic
from broker.endpoint import Endpoint
from broker.net.channel import Channels, PeerLost
from broker.ports import World
from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode, KafkaError, error_code
from protocol.messages import Fields
from remote.store.object_store import StoreError
from storage.policy import LogConfig

R = TypeVar("R")
DeltaListener = Callable[[Delta], Iterable[None] | None]

FOLLOW_INTERVAL_S = 1.0
# A follower whose next slot was collected finds nothing there: once a minute it asks how far the log was
# trimmed.
FOLLOW_BOUNDARY_EVERY = 60
TICK_S = 0.25
HEARTBEAT_ANSWER_S = 3.0
ASK_S = 5.0
"""How long a question to the controller may take, elections included."""
RETRY_S = 0.2
LEAVE_WITHIN_S = 10.0
DOUBT_S = 0.3
"""How long a broker whose connection just closed may be gone without the log saying so."""

logger = logging.getLogger(__name__)


class Cluster:
    """`read`, once the log directories are locked; `join`, once logs are recovered and listeners bound;
    `leave` before a clean stop."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        *,
        on_fenced: Callable[[str], None] | None = None,
    ) -> None:
        self.broker_config = config
        self.broker_epoch = -1
        self.incarnation = new_id(world.random)
        self.directory_ids: dict[str, UUID] = {}
        self.is_controller = False
        self._config = config
        self._world = world
        self._log = MetadataLog(world.store, world.random)
        self.ledger = Ledger(self._log, self.now_s)
        self.channels = Channels(world.network, config.node_id, self.endpoint_of)
        self._queue = CommandQueue(
            self.ledger,
            rules=self.rules,
            publish=self._publish,
            on_lost=self._lost_slot,
            on_broken=self._be_fenced,
            spawn=self.spawn,
        )
        self.roll_call = RollCall(
            self,
            session_s=config.broker_session_timeout_ms / 1000,
            hold_s=config.broker_heartbeat_interval_ms / 1000,
        )
        self.forwarding = Forwarding(self, answer_s=ASK_S)
        self.producer_ids = ProducerIds(
            self._next_block, timeout_s=config.request_timeout_ms / 1000, spawn=self.spawn
        )
        self._patience = Patience(world.random.uniform)
        self._on_fenced = on_fenced
        self._joining = Joining(self, config, world)
        self._listeners: list[DeltaListener] = []
        self._publishing = asyncio.Lock()
        self._unpublished: deque[Delta] = deque()
        self._news: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_group: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._answered_s = -SILENT_AFTER_S
        """When the controller last said anything, be it that it cannot write."""
        self._answered_epoch = 0
        """The controller epoch in which it said so."""
        self._misses = 0
        """How often in a row the controller gave no answer."""
        self._electing = False
        self._leaving = False
        self._stopping = False
        self._log_configs: dict[str, LogConfig] = {}

    def __repr__(self) -> str:
        role = "controller" if self.is_controller else "member"
        return f"Cluster(node={self._config.node_id}, {role}, queue={len(self._queue)}, {self.image!r})"

    @property
    def image(self) -> Image:
        return self.ledger.image

    @property
    def node_id(self) -> int:
        return self._config.node_id

    def subscribe(self, listener: DeltaListener) -> None:
        """Call `listener` after each slot that is applied once join() has returned; it must not fail. One
        that has much to do answers with its slices, and others are served between them."""
        self._listeners.append(listener)

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """Where brokers reach this one; a fenced one too."""
        broker = self.image.brokers.get(node_id)
        return None if broker is None else broker.endpoint(self._config.inter_broker_listener)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # --- joining ---

    async def read(self) -> None:
        """Learn what the log says, and the directories: before the logs are loaded, which takes the word of a
        clean stop away."""
        self.directory_ids = await self._joining.read()
        self._take_configs()

    async def join(
        self,
        *,
        ports: Mapping[str, int] | None = None,
        task_group: asyncio.TaskGroup | None = None,
        holds: Holds | None = None,
    ) -> None:
        """Register, or give birth to the cluster, and be ready to serve.

        `ports` are the real ones of the listeners. `holds` tells which logs are here; None while a directory
        that cannot be read may have any.
        """
        self._task_group = task_group
        self.broker_epoch = await self._joining.join(ports or {})
        self._answered_epoch = self.image.controller_epoch
        self._take_configs()
        for work in (self._attend(), self._follow(), self._watch(), self._rebalance()):
            self.spawn(work)
        if holds is not None:
            await self._joining.settle(holds)
        logger.info("node %d joined cluster %s: %r", self.node_id, self.image.cluster_id, self.image)

    # --- roles ---

    def lead(self, bump: ControllerElected) -> bool:
        """Its bump is in the log: from here on this node decides, unless a newer one is there already."""
        if self._stopping or self.image.controller_epoch != bump.controller_epoch:
            return False
        self.is_controller = True
        self._queue.open(bump.controller_epoch)
        self._tell_news()
        self.roll_call.begin()
        return True

    async def _lost_slot(self, controller_epoch: int) -> None:
        """Someone else has it, and is the controller, or was. Follow."""
        if controller_epoch == self.image.controller_epoch:
            self._step_down()
        await self._read_on()

    def _step_down(self) -> None:
        self.is_controller = False
        self._queue.close()
        self._patience.sign(self.now_s())
        self._tell_news()

    def others(self) -> list[BrokerImage]:
        return [broker for broker in self.image.live_brokers() if broker.id != self.node_id]

    def is_member(self) -> bool:
        me = self.image.brokers.get(self.node_id)
        return me is not None and me.incarnation == self.incarnation

    def _be_fenced(self, reason: str) -> None:
        """Final for this process: whoever owns it must stop it."""
        self.is_controller = False
        self._queue.close()
        self._tell_news()
        if self._stopping:
            return
        self._stopping = True
        logger.error("node %d is out of its cluster: %s", self.node_id, reason)
        if self._on_fenced is not None:
            self._on_fenced(reason)

    def _stand_soon(self, dead: int, *, refused: bool) -> None:
        """Beside everything else: without the store it takes as long as the store is away."""
        if not self._electing and not self._stopping:
            self._electing = True
            self.spawn(self._elect(dead, refused=refused))

    async def _elect(self, dead: int, *, refused: bool) -> None:
        """Stand for election, unless the log says that there was one. `refused`: nobody listens there."""
        try:
            epoch = self.image.controller_epoch
            await self._read_on()
            if self._stopping or self.image.controller_epoch != epoch or self.is_controller:
                return
            if not refused and not self._is_patience_over():
                return
            logger.warning("node %d stands for election: controller %d is silent", self.node_id, dead)
            is_heard = not refused and self.now_s() - self._answered_s < SILENT_AFTER_S
            bump = election(self.image, self.node_id)
            records = self._takeover(bump, None if is_heard else dead)
            delta = await self.ledger.commit(records, controller_epoch=bump.controller_epoch)
            if delta is None:
                await self._read_on()
            else:
                self.lead(bump)
                await self._publish(delta)
        except (BrokenLog, StoreError) as error:
            self._be_fenced(f"the metadata log cannot be written: {error}")
        finally:
            self._electing = False
            self._patience.sign(self.now_s())

    def _takeover(self, bump: ControllerElected, dead: int | None) -> list[Record]:
        """The bump, and in the same slot the end of a controller that is gone, not merely without a store."""
        records: list[Record] = [bump]
        gone = self.image.brokers.get(-1 if dead is None else dead)
        if gone is not None and not gone.fenced and gone.id != self.node_id:
            command = FenceBrokers(brokers=((gone.id, gone.epoch),))
            records += command.decide(self.image, self.rules()).records
        return records

    # --- following ---

    async def _follow(self) -> None:
        """The log itself, once a second: what no peer tells, the store does. A controller that hears nobody
        may be one no more."""
        looks = 0
        while not self._stopping:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            if not self.is_controller or self.roll_call.hears_nobody(self.now_s()):
                looks += 1
                await self._read_on(is_routine=looks % FOLLOW_BOUNDARY_EVERY != 0)

    async def _read_on(self, *, is_routine: bool = False) -> None:
        try:
            deltas = await self.ledger.catch_up(is_routine=is_routine)
        except (BrokenLog, StoreError) as error:
            self._be_fenced(f"the metadata log cannot be read: {error}")
            return
        await self._taken(deltas)

    async def _taken(self, deltas: Sequence[Delta]) -> None:
        if deltas:
            self._patience.sign(self.now_s())
        if not self.is_member():
            is_taken = self.node_id in self.image.brokers
            what = "another process runs as node %d" if is_taken else "somebody unregistered node %d"
            self._be_fenced(what % self.node_id + " of this cluster")
        elif self.is_controller and self.image.controller_id != self.node_id:
            self._step_down()
        await self._publish(*deltas)

    async def _publish(self, *deltas: Delta) -> None:
        """Returns when everybody heard of them. To be called before anything else can be applied: the order
        is that of the calls."""
        self._unpublished.extend(deltas)
        self._tell_news()
        async with self._publishing:
            while self._unpublished:
                await self._tell(self._unpublished.popleft())

    async def _tell(self, delta: Delta) -> None:
        self._take_configs(delta)
        for node_id in delta.brokers_changed - self.image.brokers.keys():
            self.channels.forget(node_id)
        for listener in self._listeners:
            for _ in listener(delta) or ():
                await asyncio.sleep(0)
        if self.is_controller:
            self._keep_house()
            if delta.configs_changed:
                self.spawn(self._in_rounds(ElectUncleanLeaders()))

    def next_news(self) -> asyncio.Future[None]:
        """Done at the next slot, or when this node's role changes."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    def _tell_news(self) -> None:
        """Wake the heartbeats that are held for the next slot."""
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    # --- heartbeats, as a member ---

    async def _attend(self) -> None:
        while not self._stopping:
            if self.is_controller or self._leaving:
                await asyncio.sleep(TICK_S)
                if self.is_controller and self.ledger.unresolved_s >= STUCK_AFTER_S:
                    await self._ask_a_peer()
                continue
            controller = self.image.controller_id
            try:
                answer = await self._beat(controller)
            except PeerLost as lost:
                await self._missed(controller, refused=lost.refused)
                continue
            await self._take_beat(controller, answer)

    async def _beat(
        self, node_id: int, *, shut_down: bool = False, timeout_s: float = HEARTBEAT_ANSWER_S
    ) -> Any:
        fields = {
            "broker_id": self.node_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self.image.seq,
            "want_fence": self._leaving,
            "want_shut_down": shut_down,
        }
        channel = self.channels.to(node_id, "heartbeat")
        return await channel.ask(PeerApi.BROKER_HEARTBEAT, 1, fields, timeout_s=timeout_s)

    async def _take_beat(self, asked: int, answer: Any) -> None:
        await self._take_slots(answer)
        code = answer.error_code
        if asked == self.image.controller_id:
            self._answered_s, self._answered_epoch = self.now_s(), self.image.controller_epoch
            self._misses = 0
        if code == ErrorCode.none:
            if asked == self.image.controller_id:
                self._patience.sign(self.now_s())
            if not answer.is_caught_up:
                self._look_soon()
                await asyncio.sleep(RETRY_S)
            return
        if code != ErrorCode.not_controller or asked == self.image.controller_id:
            # It hangs at the store, knows another epoch of this node, or has just lost its office.
            self._look_soon()
            await asyncio.sleep(RETRY_S)

    def _look_soon(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self.spawn(self._read_on())

    async def _take_slots(self, answer: Any) -> None:
        deltas = []
        for data in answer.slots:
            try:
                deltas += self.ledger.take([parse_slot(bytes(data))])
            except BrokenLog as error:
                logger.warning("slots that a peer sent are left to the store: %s", error)
                self._look_soon()
                break
        await self._taken(deltas)

    async def _missed(self, controller: int, *, refused: bool) -> None:
        """No answer: a closed port ends the waiting, and a peer may know a newer controller."""
        self._misses += 1
        if self._stopping or self.is_controller or controller != self.image.controller_id:
            return
        if refused and self._has_answered():
            self._stand_soon(controller, refused=True)
        elif self._misses == 1 and not refused:
            # The port of a process that ended refuses by now.
            return
        await self._ask_a_peer(but=controller)
        await asyncio.sleep(RETRY_S)

    def _has_answered(self) -> bool:
        """Whether this controller was ever there. One that never was may be out of this node's reach alone:
        two nodes that refuse each other would depose each other for ever."""
        return self._answered_epoch == self.image.controller_epoch

    async def _ask_a_peer(self, *, but: int = -1) -> None:
        """Somebody else may know of slots that neither the store nor the controller tells."""
        peers = [broker.id for broker in self.others() if broker.id != but]
        if not peers:
            return
        peer = peers[self._world.random.randrange(len(peers))]
        with contextlib.suppress(PeerLost):  # whoever is asked next may be there
            await self._take_slots(await self._beat(peer))

    async def _watch(self) -> None:
        """Who was silent too long: the controller, to a member; a member, to the controller."""
        while not self._stopping:
            await asyncio.sleep(TICK_S)
            now_s = self.now_s()
            if self.is_controller:
                self.roll_call.tick(now_s, wants_to_stay=not self._leaving)
                continue
            self._patience.tick(now_s)
            if self._is_patience_over():
                self._stand_soon(self.image.controller_id, refused=False)

    def _is_patience_over(self) -> bool:
        me = self.image.brokers.get(self.node_id)
        return me is not None and self._patience.is_over(self.now_s(), fenced=me.fenced)

    async def _rebalance(self) -> None:
        while not self._stopping:
            await asyncio.sleep(self.broker_config.leader_imbalance_check_interval_seconds)
            await self._in_rounds(RebalanceLeaders())

    async def _in_rounds(self, command: RebalanceLeaders | ElectUncleanLeaders) -> None:
        """What the controller does by itself and one slot should not hold."""
        try:
            is_more = self.is_controller
            while is_more:
                is_more = await self.submit(command)
                await asyncio.sleep(RETRY_S)
        except KafkaError as error:
            logger.info("%s: %s", type(command).__name__, error)

    # --- leaving ---

    async def leave(self) -> None:
        """Hand leadership over before a clean stop, unless `controlled.shutdown.enable` is false; with no
        other broker to take it there is nothing to hand over."""
        if not self._config.controlled_shutdown_enable:
            return
        self._leaving = True
        give_up_s = self.now_s() + LEAVE_WITHIN_S
        while self.others() and not self._stopping and self.is_member():
            left_s = give_up_s - self.now_s()
            if left_s <= 0:
                logger.warning("node %d stops without having handed over its partitions", self.node_id)
                return
            if await self._may_go(within_s=left_s):
                return
            await asyncio.sleep(RETRY_S)

    async def _may_go(self, *, within_s: float) -> bool:
        try:
            if self.is_controller:
                command = ControlledShutdown(broker_id=self.node_id, broker_epoch=self.broker_epoch)
                return await self._queue.submit(
                    command, timeout_ms=math.ceil(min(STUCK_AFTER_S, within_s) * 1000)
                )
            controller = self.image.controller_id
            answer = await self._beat(controller, shut_down=True, timeout_s=min(HEARTBEAT_ANSWER_S, within_s))
        except PeerLost as lost:
            if lost.refused and controller == self.image.controller_id and self._has_answered():
                # The controller is gone, and somebody must take what this node leads.
                self._stand_soon(controller, refused=True)
            return False
        except KafkaError:
            return False
        await self._take_slots(answer)
        return bool(answer.should_shut_down)

    async def stop(self) -> None:
        """Write nothing more. A slot under way may yet be won; the next start reads it."""
        self._stopping = True
        self.is_controller = False
        self._queue.close()
        self._tell_news()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.channels.close()

    # --- keeping house ---

    def _keep_house(self) -> None:
        """Every so many slots a snapshot, then what is old enough goes; one round at a time."""
        if self.image.seq % SNAPSHOT_EVERY_SLOTS or (self._keeper is not None and not self._keeper.done()):
            return
        self._keeper = self.spawn(self._snapshot_and_trim(self.image.copy(), self.ledger.last_hash))

    async def _snapshot_and_trim(self, image: Image, last_hash: bytes) -> None:
        now_ms = self._world.now_ms()
        try:
            await self._log.write_snapshot(image, last_hash=last_hash, at_ms=now_ms)
            removed = await self._log.trim(now_ms)
        except (BrokenLog, StoreError) as error:
            logger.error("the metadata log could not be trimmed: %s", error)
            return
        logger.info("snapshot of metadata slot %d written, %d old objects deleted", image.seq, removed)

    # --- what the rest of the broker asks for ---

    async def submit(self, command: ControllerCommand[R], *, timeout_ms: int | None = None) -> R:
        """On the controller alone: decide, commit, answer; KafkaError if that cannot be."""
        return await self._queue.submit(command, timeout_ms=timeout_ms)

    def new_id(self) -> UUID:
        return new_id(self._world.random)

    def rules(self) -> Rules:
        return Rules(config=self.broker_config, new_id=self.new_id, pick=self._world.random.randrange)

    async def alter_partition(self, fields: Fields, *, timeout_s: float) -> Any:
        """The controller's answer to changes of in-sync replicas, this node being the controller or not."""
        channel = self.channels.to(self.controller_to_ask(), "isr")
        return await channel.ask(PeerApi.ALTER_PARTITION, 3, fields, timeout_s=timeout_s)

    def controller_to_ask(self) -> int:
        if self._stopping or self.image.controller_id < 0:
            raise not_controller()
        return self.image.controller_id

    def topic_id(self, topic: str) -> UUID | None:
        found = self.image.topics.get(topic)
        return None if found is None else found.id

    def log_config(self, topic: str) -> LogConfig:
        """The settings a topic's logs go by now."""
        found = self._log_configs.get(topic)
        if found is None:
            overrides = self.image.config(ResourceType.TOPIC, topic)
            found = self._log_configs[topic] = log_config(self.broker_config, overrides)
        return found

    async def create_topics(
        self, topics: Iterable[NewTopic], *, timeout_ms: int | None = None
    ) -> list[TopicResult]:
        command = CreateTopics(topics=tuple(topics))
        if self.is_controller:
            return await self.submit(command, timeout_ms=timeout_ms)
        return await self._create_elsewhere(command, ASK_S if timeout_ms is None else timeout_ms / 1000)

    async def _create_elsewhere(self, command: CreateTopics, timeout_s: float) -> list[TopicResult]:
        """By the controller; what it made is there when this returns, or the time is over."""
        channel = self.channels.to(self.controller_to_ask(), "control")
        fields = _creation_fields(command, int(timeout_s * 1000))
        try:
            answer = await channel.ask(Api.CREATE_TOPICS, 7, fields, timeout_s=timeout_s)
        except PeerLost as lost:
            raise KafkaError(ErrorCode.request_timed_out, str(lost)) from lost
        results = []
        for row in answer.topics:
            code = error_code(int(row.error_code))
            failed = None if code is ErrorCode.none else KafkaError(code, row.error_message)
            results.append(TopicResult(name=row.name, error=failed))
        made = {result.name for result in results if result.error is None}
        await self.news_until(lambda: made <= self.image.topics.keys(), timeout_s)
        return results

    async def news_until(self, is_known: Callable[[], bool], timeout_s: float) -> None:
        """Wait until this broker was told so, or the time is over."""
        give_up_s = self.now_s() + timeout_s
        while not is_known() and self.now_s() < give_up_s:
            await asyncio.wait({self.next_news()}, timeout=give_up_s - self.now_s())

    def is_in_doubt(self) -> bool:
        """Whether somebody whom the image calls alive seems to have ended this very moment."""
        closed = self.channels.closed_since(self.now_s() - DOUBT_S)
        return any(
            (broker := self.image.brokers.get(node_id)) is not None and not broker.fenced
            for node_id in closed
        )

    async def doubt_over(self) -> None:
        """A client that lost its leader asks at once for the next one. A moment later there is one to name;
        named the old one, some clients ask again after seconds only."""
        await self.news_until(lambda: not self.is_in_doubt(), DOUBT_S)

    async def ensure_internal(self, name: str, *, timeout_ms: int | None = None) -> TopicImage:
        """The internal topic, made if it is not there; COORDINATOR_NOT_AVAILABLE while it cannot be."""
        found = self.image.topics.get(name)
        if found is not None:
            return found
        wanted = internal_topic(self.broker_config, name)
        if wanted is None:
            raise ValueError(f"not a topic of the broker's own: {name}")
        try:
            (result,) = await self.create_topics([wanted], timeout_ms=timeout_ms)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, error.message) from error
        found = self.image.topics.get(name)
        if found is None:
            reason = None if result.error is None else result.error.message
            raise KafkaError(ErrorCode.coordinator_not_available, reason)
        return found

    async def _next_block(self) -> range:
        if self.is_controller:
            command = AllocateProducerIds(broker_id=self.node_id, broker_epoch=self.broker_epoch)
            return await self.submit(command)
        channel = self.channels.to(self.controller_to_ask(), "control")
        fields = {"broker_id": self.node_id, "broker_epoch": self.broker_epoch}
        answer = await channel.ask(PeerApi.ALLOCATE_PRODUCER_IDS, 0, fields, timeout_s=ASK_S)
        if answer.error_code != ErrorCode.none:
            raise KafkaError(error_code(int(answer.error_code)))
        first = int(answer.producer_id_start)
        return range(first, first + answer.producer_id_len)

    def _take_configs(self, delta: Delta | None = None) -> None:
        """Bring the typed views up to date with the image."""
        if delta is not None:
            for topic in (*delta.topics_deleted, *delta.topics_created.values()):
                self._log_configs.pop(topic.name, None)
            for resource, name in delta.configs_changed:
                if resource is ResourceType.TOPIC:
                    self._log_configs.pop(name, None)
            if not any(resource is ResourceType.BROKER for resource, _ in delta.configs_changed):
                return
        try:
            self.broker_config = self._config.with_dynamic(
                default=self.image.config(ResourceType.BROKER, ""),
                broker=self.image.config(ResourceType.BROKER, str(self.node_id)),
            )
        except ConfigError as error:
            # Committed by a release that allowed it: the last good view stays in force.
            logger.error("dynamic broker configuration is not taken: %s", error)
            return
        self._log_configs.clear()

    def spawn(self, work: Any) -> asyncio.Task[None]:
        owner = self._task_group or asyncio.get_running_loop()
        task: asyncio.Task[None] = owner.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _creation_fields(command: CreateTopics, timeout_ms: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "assignments": [
                    {"partition_index": index, "broker_ids": list(replicas)}
                    for index, replicas in topic.assignments
                ],
                "configs": [{"name": name, "value": value} for name, value in topic.configs],
            }
            for topic in command.topics
        ],
        "timeout": timeout_ms,
        "validate_only": False,
    }
