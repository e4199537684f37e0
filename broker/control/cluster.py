"""This node's membership in its cluster: it joins, follows the metadata log, and writes it while it is the
controller.

Owns: the roles of member and controller and the moves between them, its heartbeats as a member, publishing
what was committed to the rest of the broker. Does not own: identity and waiting (member.py), how a node comes
in (joining.py), the rules of a command (commands.py), the fold (image.py), the slots (ledger.py), which
broker is fenced when (sessions.py, heartbeats.py), what is asked of the controller (requests.py,
forwarding.py).

Invariants: nothing is published before its slot is won. No clock decides what is true: timers only start
elections, and an election is won by a slot. A node that finds itself replaced says nothing more.

A member always has one heartbeat with the controller, which holds it until there is a slot to send or a
second has passed; a member that finds no controller asks other members, so that one which cannot reach the
store still learns. The same code runs a cluster of one.
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
from broker.control.brokers import ControlledShutdown, FenceBrokers, election
from broker.control.command_queue import CommandQueue
from broker.control.commands import ControllerCommand, deciding
from broker.control.forwarding import Forwarding
from broker.control.heartbeats import STUCK_AFTER_S, Heartbeats
from broker.control.image import Delta, Image, TopicImage
from broker.control.joining import HasLog, Joining
from broker.control.leaders import ElectUncleanLeaders, RebalanceLeaders
from broker.control.member import Member
from broker.control.metadata_log import SNAPSHOT_EVERY_SLOTS, BrokenLog, ReadSlot, parsing_slot
from broker.control.metadata_records import ControllerElected, Record, encoding_records
from broker.control.producer_ids import ProducerIds
from broker.control.requests import ANSWER_S, ControllerClient
from broker.control.sessions import SILENT_AFTER_S, ElectionTimer
from broker.control.settings import Settings
from broker.control.topics import NewTopic, TopicResult
from broker.net.channel import PeerLost
from broker.ports import World
from broker.turns import Turns
from protocol.apis import PeerApi
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from remote.store.object_store import StoreError
from storage.policy import LogConfig

R = TypeVar("R")
DeltaListener = Callable[[Delta], Iterable[None] | None]

FOLLOW_INTERVAL_S = 1.0
FOLLOW_BOUNDARY_EVERY = 60
"""A follower whose next slot was collected finds nothing there: once a minute it asks how far the log was
trimmed."""
TICK_S = 0.25
HEARTBEAT_ANSWER_S = 3.0
RETRY_S = 0.2
LEAVE_WITHIN_S = 10.0

logger = logging.getLogger(__name__)


class Cluster(Member):
    """`read`, once the log directories are locked; `join`, once logs are recovered and listeners bound;
    `leave` before a clean stop."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        turns: Turns,
        *,
        on_fenced: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config, world, turns)
        self.directory_ids: dict[str, UUID] = {}
        self.settings = Settings(config, self.image, world.random)
        self.rules = self.settings.rules
        self.queue = CommandQueue(self.ledger, self, turns.own)
        self.requests = ControllerClient(self, self.queue, self.settings)
        self.forwarding = Forwarding(self, self.requests, answer_s=ANSWER_S)
        self.heartbeats = Heartbeats(
            self,
            self.queue,
            session_s=config.broker_session_timeout_ms / 1000,
            hold_s=config.broker_heartbeat_interval_ms / 1000,
        )
        self.producer_ids = ProducerIds(
            self.requests.allocate_producer_ids,
            timeout_s=config.request_timeout_ms / 1000,
            spawn=self.spawn,
        )
        self._joining = Joining(self, self.queue, self.requests, self.settings, config, world, lead=self.lead)
        self._world = world
        self._hands_over = config.controlled_shutdown_enable
        self._timer = ElectionTimer(world.random.uniform)
        self._on_fenced = on_fenced
        self._listeners: list[DeltaListener] = []
        self._publishing = asyncio.Lock()
        self._unpublished: deque[Delta] = deque()
        self._snapshot: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answered_s = -SILENT_AFTER_S
        """When the controller last answered, even if only to report that it cannot write."""
        self._answered_epoch = 0
        """The controller epoch of that answer."""
        self._failures = 0
        """How many heartbeats in a row got no answer from the controller."""
        self._is_electing = False
        self._is_leaving = False
        self._waits_for_in_sync = False

    def __repr__(self) -> str:
        role = "controller" if self.is_controller else "member"
        return f"Cluster(node={self.node_id}, {role}, queue={len(self.queue)}, {self.image!r})"

    def subscribe(self, listener: DeltaListener) -> None:
        """Call `listener` after each slot that is applied once join() has returned; it must not fail. One
        that has much to do answers with its slices, and others are served between them."""
        self._listeners.append(listener)

    # --- joining ---

    async def read(self) -> None:
        """Read the log and the directories. To be called before the logs are loaded, which removes the
        marker of a clean stop."""
        self.directory_ids = await self._joining.read()
        self.settings.load()

    async def join(
        self,
        *,
        ports: Mapping[str, int] | None = None,
        task_group: asyncio.TaskGroup | None = None,
        has_log: HasLog | None = None,
    ) -> None:
        """Register, or create the cluster, and be ready to serve.

        `ports` are the real ones of the listeners. `has_log` tells which logs are here; None while a
        directory that cannot be read may have any.
        """
        self._task_group = task_group
        self.broker_epoch = await self._joining.join(ports or {})
        self._answered_epoch = self.image.controller_epoch
        self.settings.load()
        for work in (self._send_heartbeats(), self._follow(), self._watch(), self._rebalance()):
            self.spawn(work)
        if has_log is not None:
            await self._joining.settle(has_log)
        logger.info("node %d joined cluster %s: %r", self.node_id, self.image.cluster_id, self.image)

    # --- roles ---

    def lead(self, bump: ControllerElected) -> bool:
        """Become the controller now that the bump is in the log, unless a newer one is there already."""
        if self.is_stopping or self.image.controller_epoch != bump.controller_epoch:
            return False
        self.is_controller = True
        self.queue.open(bump.controller_epoch)
        self.announce_change()
        self.heartbeats.begin()
        return True

    async def slot_lost(self, controller_epoch: int) -> None:
        """Follow the node that has the slot, and is the controller or was."""
        if controller_epoch == self.image.controller_epoch:
            self._step_down()
        await self._read_on()

    def _step_down(self) -> None:
        self.is_controller = False
        self.queue.close()
        self._timer.restart(self.now_s())
        self.announce_change()

    def end_membership(self, reason: str) -> None:
        """Leave the cluster for good: the owner of this process must stop it."""
        self.is_controller = False
        self.queue.close()
        self.announce_change()
        if self.is_stopping:
            return
        self.is_stopping = True
        logger.error("node %d is out of its cluster: %s", self.node_id, reason)
        if self._on_fenced is not None:
            self._on_fenced(reason)

    def _start_election(self, dead: int, *, refused: bool) -> None:
        """Start an election as a task: without the store it takes as long as the store is away."""
        if not self._is_electing and not self.is_stopping:
            self._is_electing = True
            self.spawn(self._elect(dead, refused=refused))

    async def _elect(self, dead: int, *, refused: bool) -> None:
        """Stand for election, unless the log says that there was one. `refused`: its port is closed."""
        try:
            epoch = self.image.controller_epoch
            await self._read_on()
            if self.is_stopping or self.image.controller_epoch != epoch or self.is_controller:
                return
            if not refused and not self._is_election_due():
                return
            logger.warning("node %d starts an election: no answer from controller %d", self.node_id, dead)
            is_heard = not refused and self.now_s() - self._answered_s < SILENT_AFTER_S
            bump = election(self.image, self.node_id)
            delta = await self._take_over(bump, None if is_heard else dead)
            if delta is None:
                await self._read_on()
            else:
                self.lead(bump)
                await self.publish(delta)
        except (BrokenLog, StoreError) as error:
            self.end_membership(f"the metadata log cannot be written: {error}")
        finally:
            self._is_electing = False
            self._timer.restart(self.now_s())

    async def _take_over(self, bump: ControllerElected, dead: int | None) -> Delta | None:
        """Commit the bump, and in the same slot the fence of a controller that is gone, not merely without a
        store."""
        image = self.image.kept()
        records: list[Record] = [bump]
        gone = image.brokers.get(-1 if dead is None else dead)
        if gone is not None and not gone.fenced and gone.id != self.node_id:
            command = FenceBrokers(brokers=((gone.id, gone.epoch),))
            decided = await self.turns.own.run(deciding(command, image, self.rules()))
            records += decided.records
        encoded = await self.turns.own.run(encoding_records(records))
        return await self.ledger.commit(
            records, encoded, after=image.seq, controller_epoch=bump.controller_epoch
        )

    # --- following ---

    async def _follow(self) -> None:
        """Read the log in the store once a second, in case no peer sends it. A controller that no member
        reaches may have been replaced."""
        looks = 0
        while not self.is_stopping:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            if not self.is_controller or self.heartbeats.hears_nobody(self.now_s()):
                looks += 1
                await self._read_on(is_routine=looks % FOLLOW_BOUNDARY_EVERY != 0)

    async def _read_on(self, *, is_routine: bool = False) -> None:
        try:
            deltas = await self.ledger.catch_up(is_routine=is_routine)
        except (BrokenLog, StoreError) as error:
            self.end_membership(f"the metadata log cannot be read: {error}")
            return
        await self._follow_deltas(deltas)

    async def _follow_deltas(self, deltas: Sequence[Delta]) -> None:
        if deltas:
            self._timer.restart(self.now_s())
        if not self.is_member():
            is_taken = self.node_id in self.image.brokers
            what = "another process runs as node %d" if is_taken else "an operator unregistered node %d"
            self.end_membership(what % self.node_id + " of this cluster")
        elif self.is_controller and self.image.controller_id != self.node_id:
            self._step_down()
        await self.publish(*deltas)

    async def publish(self, *deltas: Delta) -> None:
        """Return when every listener heard of them. To be called before anything else can be applied: the
        order is that of the calls."""
        self._unpublished.extend(deltas)
        self.announce_change()
        async with self._publishing:
            while self._unpublished:
                await self._notify(self._unpublished.popleft())

    async def _notify(self, delta: Delta) -> None:
        self.settings.follow(delta)
        for node_id in delta.brokers_changed - self.image.brokers.keys():
            self.channels.forget(node_id)
        for listener in self._listeners:
            for _ in listener(delta) or ():
                await asyncio.sleep(0)
        if self.is_controller:
            self._snapshot_if_due()
            if delta.configs_changed:
                self.spawn(self._in_rounds(ElectUncleanLeaders()))
            if delta.brokers_changed and not self._waits_for_in_sync:
                self._waits_for_in_sync = True
                self.spawn(self._elect_unclean_later())

    # --- heartbeats, as a member ---

    async def _send_heartbeats(self) -> None:
        while not self.is_stopping:
            if self.is_controller or self._is_leaving:
                await asyncio.sleep(TICK_S)
                if self.is_controller and self.ledger.unresolved_s >= STUCK_AFTER_S:
                    await self._ask_a_peer()
                continue
            controller = self.image.controller_id
            try:
                answer = await self._heartbeat(controller)
            except PeerLost as lost:
                await self._heartbeat_failed(controller, refused=lost.refused)
                continue
            await self._take_heartbeat(controller, answer)

    async def _heartbeat(
        self, node_id: int, *, shut_down: bool = False, timeout_s: float = HEARTBEAT_ANSWER_S
    ) -> Any:
        fields = {
            "broker_id": self.node_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self.image.seq,
            "want_fence": self._is_leaving,
            "want_shut_down": shut_down,
        }
        channel = self.channels.to(node_id, "heartbeat")
        return await channel.ask(PeerApi.BROKER_HEARTBEAT, 1, fields, timeout_s=timeout_s)

    async def _take_heartbeat(self, asked: int, answer: Any) -> None:
        await self._take_slots(answer)
        code = answer.error_code
        if asked == self.image.controller_id:
            self._answered_s, self._answered_epoch = self.now_s(), self.image.controller_epoch
            self._failures = 0
        if code == ErrorCode.none:
            if asked == self.image.controller_id:
                self._timer.restart(self.now_s())
            if not answer.is_caught_up:
                self._read_soon()
                await asyncio.sleep(RETRY_S)
            return
        if code != ErrorCode.not_controller or asked == self.image.controller_id:
            # It hangs at the store, knows another epoch of this node, or has just lost its office.
            self._read_soon()
            await asyncio.sleep(RETRY_S)

    def _read_soon(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = self.spawn(self._read_on())

    async def _take_slots(self, answer: Any) -> None:
        slots: list[ReadSlot] = []
        deltas: list[Delta] = []
        try:
            for data in answer.slots:
                slot = await self.turns.own.run(parsing_slot(bytes(data)))
                slots.append(slot)
        except BrokenLog as error:
            self._distrust(error)
        try:
            deltas = await self.ledger.take(slots)
        except BrokenLog as error:
            self._distrust(error)
        await self._follow_deltas(deltas)

    def _distrust(self, error: BrokenLog) -> None:
        logger.warning("cannot read the metadata slots a peer sent, reading them from the store: %s", error)
        self._read_soon()

    async def _heartbeat_failed(self, controller: int, *, refused: bool) -> None:
        """Handle a heartbeat without an answer: a closed port starts an election, and a peer may know a newer
        controller."""
        self._failures += 1
        if self.is_stopping or self.is_controller or controller != self.image.controller_id:
            return
        if refused and self._has_answered():
            self._start_election(controller, refused=True)
        elif self._failures == 1 and not refused:
            # The port of a process that ended refuses by now.
            return
        await self._ask_a_peer(but=controller)
        await asyncio.sleep(RETRY_S)

    def _has_answered(self) -> bool:
        """Whether this controller was ever there. One that never was may be out of this node's reach alone:
        two nodes that refuse each other would depose each other for ever."""
        return self._answered_epoch == self.image.controller_epoch

    async def _ask_a_peer(self, *, but: int = -1) -> None:
        """Ask another member for slots that neither the store nor the controller sends."""
        peers = [broker.id for broker in self.others() if broker.id != but]
        if not peers:
            return
        peer = peers[self._world.random.randrange(len(peers))]
        with contextlib.suppress(PeerLost):  # the next one asked may be there
            await self._take_slots(await self._heartbeat(peer))

    async def _watch(self) -> None:
        """Look for silence: of the controller as a member, of the members as the controller."""
        while not self.is_stopping:
            await asyncio.sleep(TICK_S)
            now_s = self.now_s()
            if self.is_controller:
                self.heartbeats.tick(now_s, wants_to_stay=not self._is_leaving)
                continue
            self._timer.tick(now_s)
            if self._is_election_due():
                self._start_election(self.image.controller_id, refused=False)

    def _is_election_due(self) -> bool:
        me = self.image.brokers.get(self.node_id)
        return me is not None and self._timer.has_expired(self.now_s(), fenced=me.fenced)

    async def _rebalance(self) -> None:
        while not self.is_stopping:
            await asyncio.sleep(self.broker_config.leader_imbalance_check_interval_seconds)
            await self._in_rounds(RebalanceLeaders())
            await self._in_rounds(ElectUncleanLeaders())

    async def _elect_unclean_later(self) -> None:
        """Elect leaders among brokers that came back out of sync, where that is allowed; replicas in sync
        that start at the same time have until then to come first."""
        try:
            await asyncio.sleep(self.broker_config.broker_session_timeout_ms / 1000)
        finally:
            self._waits_for_in_sync = False
        await self._in_rounds(ElectUncleanLeaders())

    async def _in_rounds(self, command: RebalanceLeaders | ElectUncleanLeaders) -> None:
        """Submit what the controller does by itself until it is done, as one slot should not hold it."""
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
        if not self._hands_over:
            return
        self._is_leaving = True
        give_up_s = self.now_s() + LEAVE_WITHIN_S
        while self.others() and not self.is_stopping and self.is_member():
            left_s = give_up_s - self.now_s()
            if left_s <= 0:
                logger.warning("node %d stops before its partitions were handed over", self.node_id)
                return
            if await self._is_released(within_s=left_s):
                return
            await asyncio.sleep(RETRY_S)

    async def _is_released(self, *, within_s: float) -> bool:
        try:
            if self.is_controller:
                command = ControlledShutdown(broker_id=self.node_id, broker_epoch=self.broker_epoch)
                return await self.queue.submit(
                    command, timeout_ms=math.ceil(min(STUCK_AFTER_S, within_s) * 1000)
                )
            controller = self.image.controller_id
            answer = await self._heartbeat(
                controller, shut_down=True, timeout_s=min(HEARTBEAT_ANSWER_S, within_s)
            )
        except PeerLost as lost:
            if lost.refused and controller == self.image.controller_id and self._has_answered():
                # The controller is gone, and another must take what this node leads.
                self._start_election(controller, refused=True)
            return False
        except KafkaError:
            return False
        await self._take_slots(answer)
        return bool(answer.should_shut_down)

    async def stop(self) -> None:
        """Write nothing more. A slot under way may yet be won; the next start reads it."""
        self.is_stopping = True
        self.is_controller = False
        self.queue.close()
        self.announce_change()
        await self.end_tasks()
        self.channels.close()

    # --- keeping house ---

    def _snapshot_if_due(self) -> None:
        """Write a snapshot every so many slots, then delete what is old enough; one round at a time."""
        if self.image.seq % SNAPSHOT_EVERY_SLOTS or (
            self._snapshot is not None and not self._snapshot.done()
        ):
            return
        self._snapshot = self.spawn(self._snapshot_and_trim(self.image.kept(), self.ledger.last_hash))

    async def _snapshot_and_trim(self, image: Image, last_hash: bytes) -> None:
        now_ms = self._world.now_ms()
        try:
            await self.metadata_log.write_snapshot(image, last_hash=last_hash, at_ms=now_ms)
            removed = await self.metadata_log.trim(now_ms)
        except (BrokenLog, StoreError) as error:
            logger.error("the metadata log could not be trimmed: %s", error)
            return
        logger.info("snapshot of metadata slot %d written, %d old objects deleted", image.seq, removed)

    # --- what the rest of the broker asks for ---

    async def submit(self, command: ControllerCommand[R], *, timeout_ms: int | None = None) -> R:
        """Decide, commit and answer, on the controller alone; raise KafkaError if that fails."""
        return await self.queue.submit(command, timeout_ms=timeout_ms)

    async def create_topics(
        self, topics: Iterable[NewTopic], *, timeout_ms: int | None = None
    ) -> list[TopicResult]:
        return await self.requests.create_topics(topics, timeout_ms=timeout_ms)

    async def ensure_internal(self, name: str, *, timeout_ms: int | None = None) -> TopicImage:
        return await self.requests.ensure_internal(name, timeout_ms=timeout_ms)

    async def alter_partition(self, fields: Fields, *, timeout_s: float) -> Any:
        return await self.requests.alter_partition(fields, timeout_s=timeout_s)

    @property
    def broker_config(self) -> BrokerConfig:
        """The settings of this broker as they are now."""
        return self.settings.broker_config

    @property
    def serves_consumer_groups(self) -> bool:
        return self.settings.serves_consumer_groups

    def log_config(self, topic: str) -> LogConfig:
        return self.settings.log_config(topic)

    def topic_id(self, topic: str) -> UUID | None:
        found = self.image.topics.get(topic)
        return None if found is None else found.id
