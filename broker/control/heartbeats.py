"""The controller's side of heartbeats: which brokers are there, which hear of a slot, which are to be fenced.

Owns: sessions, the heartbeats held for the next slot, what they say of each broker's progress, taking in a
broker that registers, fencing those that are silent. Does not own: being the controller (member.py), the log,
what a fence does (image.py).

Invariants: a heartbeat is answered within a second or so, whatever happens. No broker is fenced because this
process or its store stood still. Every broker that is silent sees the log grow, unless all of them are:
then this controller may be the one that is cut off, and waits for one of them to take its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.control.brokers import (
    SECURITY_PROTOCOLS,
    ControlledShutdown,
    FenceBrokers,
    RegisterBroker,
    UnfenceBroker,
)
from broker.control.command_queue import CommandQueue, EmptySlot
from broker.control.commands import ControllerCommand
from broker.control.image import BrokerImage
from broker.control.member import Member
from broker.control.sessions import Sessions
from broker.endpoint import Endpoint
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.net.connection import Connection
    from protocol.requests.broker_heartbeat import BrokerHeartbeatRequest
    from protocol.requests.broker_registration import BrokerRegistrationRequest, Listener

EMPTY_SLOT_EVERY_S = 2.0
"""How often a silent live broker is shown that the controller lives; a fenced one more rarely."""
EMPTY_SLOT_FOR_FENCED_S = 8.0
STUCK_AFTER_S = 3.0
ANSWER_WITHIN_MS = 2_000
PROBES = 5
PROBE_EVERY_S = 0.1
PUSH_MAX_BYTES = 1 << 20
REGISTER_WITHIN_MS = 3_000
NO_INCARNATION = UUID(int=0)

logger = logging.getLogger(__name__)


class Progress:
    """How far a broker has followed the log, by its last heartbeat."""

    __slots__ = ("_end", "caught_up_s", "heard_s", "seq")

    def __init__(self) -> None:
        self.seq = -1
        self.heard_s: float | None = None
        self.caught_up_s: float | None = None
        self._end = -1
        """Where the log ended at that heartbeat."""

    def __repr__(self) -> str:
        return f"Progress({self.seq} of {self._end})"

    def note(self, seq: int, *, end: int, now_s: float) -> None:
        """Note its position: caught up now, or at its last heartbeat if it has all there was then."""
        if seq >= end:
            self.caught_up_s = now_s
        elif self.heard_s is not None and seq >= self._end:
            self.caught_up_s = self.heard_s
        self.seq, self.heard_s, self._end = seq, now_s, end


class Heartbeats:
    def __init__(self, member: Member, queue: CommandQueue, *, session_s: float, hold_s: float) -> None:
        self._member = member
        self._queue = queue
        self._sessions = Sessions(session_s)
        self._hold_s = hold_s
        self._shown_s = 0.0
        self._attached: dict[int, Connection] = {}
        """The connection of each broker's newest heartbeat."""
        self._progress: dict[int, Progress] = {}
        """The brokers heard since this node is the controller."""
        self._deciding: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Heartbeats({self._sessions!r}, attached {sorted(self._attached)})"

    def begin(self) -> None:
        """Give every broker its whole time, but for those whose port is closed: this node is the controller
        now."""
        others = self._member.others()
        self._attached.clear()
        self._progress.clear()
        self._sessions.begin((broker.id for broker in others), self._member.now_s())
        for broker in others:
            self._member.spawn(self._fence_if_gone(broker.id, broker.epoch))

    def progress_of(self, broker_id: int) -> Progress:
        """Return how far a broker is, on the controller, which has everything itself."""
        if broker_id != self._member.node_id:
            return self._progress.get(broker_id) or Progress()
        own, seq = Progress(), self._member.image.seq
        own.note(seq, end=seq, now_s=self._member.now_s())
        return own

    # --- heartbeats ---

    async def heartbeat(self, request: BrokerHeartbeatRequest, connection: Connection) -> Fields:
        """Answer at once with slots the broker lacks, or with what is wrong; else hold it for a second."""
        member, broker_id, epoch = self._member, request.broker_id, request.broker_epoch
        error = self._error(request)
        if error in (ErrorCode.none, ErrorCode.request_timed_out):
            now_s, seq = member.now_s(), request.current_metadata_offset
            self._sessions.heard(broker_id, now_s)
            self._progress.setdefault(broker_id, Progress()).note(seq, end=member.image.seq, now_s=now_s)
        if error is not ErrorCode.none:
            return self._answer(request, error)
        self._attached[broker_id] = connection
        connection.on_lost = partial(self._detached, broker_id, epoch, connection)
        try:
            if request.want_shut_down:
                stop = ControlledShutdown(broker_id=broker_id, broker_epoch=epoch)
                may_go = await self._queue.submit(stop, timeout_ms=ANSWER_WITHIN_MS)
                if may_go:
                    # Its next life may come at once.
                    self._attached.pop(broker_id, None)
                    # As in Kafka: from its last answer on it is not there, and no client is sent to it.
                    # Should this not be committed, the end of its session fences it.
                    gone = FenceBrokers(brokers=((broker_id, epoch),))
                    await self._queue.submit(gone, timeout_ms=ANSWER_WITHIN_MS)
                return self._answer(request, ErrorCode.none, should_shut_down=may_go)
            if member.image.brokers[broker_id].fenced and not request.want_fence:
                back = UnfenceBroker(broker_id=broker_id, broker_epoch=epoch)
                await self._queue.submit(back, timeout_ms=ANSWER_WITHIN_MS)
            elif member.image.seq <= request.current_metadata_offset:
                await asyncio.wait({member.next_change()}, timeout=self._hold_s)
        except KafkaError as refused:
            return self._answer(request, refused.code)
        return self._answer(request, self._error(request))

    def _error(self, request: BrokerHeartbeatRequest) -> ErrorCode:
        if not self._member.is_controller:
            return ErrorCode.not_controller
        broker = self._member.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return ErrorCode.stale_broker_epoch
        if self._member.ledger.unresolved_s >= STUCK_AFTER_S:
            return ErrorCode.request_timed_out
        return ErrorCode.none

    def _answer(
        self, request: BrokerHeartbeatRequest, error: ErrorCode, *, should_shut_down: bool = False
    ) -> Fields:
        image, seq = self._member.image, request.current_metadata_offset
        slots = self._member.ledger.since(seq, max_bytes=PUSH_MAX_BYTES)
        broker = image.brokers.get(request.broker_id)
        return {
            "throttle_time": 0,
            "error_code": error,
            "is_caught_up": bool(slots) or seq >= image.seq,
            "is_fenced": broker is None or broker.fenced,
            "should_shut_down": should_shut_down,
            "slots": slots,
        }

    def _detached(self, broker_id: int, epoch: int, connection: Connection) -> None:
        """Note that the connection of its heartbeats went away, and perhaps the process with it."""
        if self._attached.get(broker_id) is connection:
            del self._attached[broker_id]
            if self._member.is_controller:
                self._member.spawn(self._fence_if_gone(broker_id, epoch))

    async def _fence_if_gone(self, broker_id: int, epoch: int) -> None:
        """Fence a broker whose port refuses, without waiting for its session to end. The port of a process
        that is killed may close a moment after its connections."""
        for _ in range(PROBES):
            if await self._member.is_listening(broker_id) is False:
                break
            await asyncio.sleep(PROBE_EVERY_S)
            if broker_id in self._attached:
                return
        else:
            return
        if not self._member.is_controller or broker_id in self._attached:
            return
        broker = self._member.image.brokers.get(broker_id)
        if broker is not None and broker.epoch == epoch and not broker.fenced:
            await self._fence([broker], why="its port refuses connections")

    # --- registration ---

    async def register(self, request: BrokerRegistrationRequest) -> Fields:
        """Take in a broker that asks to be registered."""
        member = self._member
        if member.ledger.unresolved_s >= STUCK_AFTER_S:
            raise KafkaError(ErrorCode.request_timed_out)
        endpoints = tuple(map(_endpoint, request.listeners))
        is_elsewhere = await self._is_elsewhere(request.broker_id, endpoints)
        alive = self._alive()  # those heard meanwhile too
        if is_elsewhere:
            alive.add(request.broker_id)
        registration = RegisterBroker(
            cluster_id=request.cluster_id,
            broker_id=request.broker_id,
            incarnation=request.incarnation_id or NO_INCARNATION,
            directories=tuple(request.log_dirs),
            endpoints=endpoints,
            rack=request.rack,
            clean_epoch=request.previous_broker_epoch,
            others_alive=frozenset({*alive, member.node_id}),
        )
        await self._queue.submit(registration, timeout_ms=REGISTER_WITHIN_MS)
        self._progress.pop(request.broker_id, None)
        self._sessions.heard(request.broker_id, member.now_s())
        epoch = member.image.brokers[request.broker_id].epoch
        return {"throttle_time": 0, "error_code": ErrorCode.none, "broker_epoch": epoch}

    def _alive(self) -> set[int]:
        now_s = self._member.now_s()
        return {id_ for id_ in self._attached if self._sessions.is_current(id_, now_s)}

    async def _is_elsewhere(self, broker_id: int, endpoints: tuple[Endpoint, ...]) -> bool:
        """Whether one that may have talked to the controller before this one answers where this broker
        listened before: not on an address of the new one, nor on what another broker has by now."""
        member = self._member
        if broker_id in self._attached or not self._sessions.is_current(broker_id, member.now_s()):
            return False
        before = member.endpoint_of(broker_id)
        taken = {member.endpoint_of(other) for other in member.image.brokers if other != broker_id}
        if before is None or before in endpoints or before in taken:
            return False
        return await member.is_listening(broker_id) is True

    # --- silence ---

    def tick(self, now_s: float, *, wants_to_stay: bool) -> None:
        """Decide which sessions are over; called every fraction of a second by the controller.

        What it decides is committed beside it: a slow store must not look like a stall of this process.
        """
        member, sessions = self._member, self._sessions
        others = member.others()
        live = [broker.id for broker in others]
        sessions.expect(live, now_s)
        if sessions.tick(now_s) or member.ledger.unresolved_s or self._is_deciding():
            return
        me = member.image.brokers[member.node_id]
        if me.fenced and wants_to_stay:
            self._decide(self._try(UnfenceBroker(broker_id=me.id, broker_epoch=me.epoch)))
            return
        if sessions.are_all_silent(live, now_s):
            return
        expired = sessions.expired(now_s)
        gone = [broker for broker in others if broker.id in expired]
        if gone:
            self._decide(self._fence(gone, why="no heartbeat in time"))
            return
        fenced = [broker.id for broker in member.image.brokers.values() if broker.fenced]
        if sessions.is_anyone_silent(live, now_s):
            every_s = EMPTY_SLOT_EVERY_S
        elif sessions.is_anyone_silent(fenced, now_s):
            every_s = EMPTY_SLOT_FOR_FENCED_S
        else:
            return
        if now_s - self._shown_s >= every_s:
            self._shown_s = now_s
            self._decide(self._try(EmptySlot()))

    def hears_nobody(self, now_s: float) -> bool:
        """Whether all others are silent: this controller is cut off, or they follow another."""
        return self._sessions.are_all_silent([broker.id for broker in self._member.others()], now_s)

    def _is_deciding(self) -> bool:
        return self._deciding is not None and not self._deciding.done()

    def _decide(self, work: Coroutine[Any, Any, None]) -> None:
        self._deciding = self._member.spawn(work)

    async def _fence(self, brokers: Iterable[BrokerImage], *, why: str) -> None:
        gone = list(brokers)
        logger.warning("fencing brokers %s: %s", ", ".join(str(broker.id) for broker in gone), why)
        await self._try(FenceBrokers(brokers=tuple((broker.id, broker.epoch) for broker in gone)))
        for broker in gone:
            now = self._member.image.brokers.get(broker.id)
            if now is None or (now.fenced and now.epoch == broker.epoch):
                self._forget(broker.id)

    def _forget(self, broker_id: int) -> None:
        self._sessions.end(broker_id)
        self._attached.pop(broker_id, None)
        self._progress.pop(broker_id, None)

    async def _try(self, command: ControllerCommand[Any]) -> None:
        """Submit what the controller decides by itself; if that fails, the next look asks for it again."""
        try:
            await self._queue.submit(command)
        except KafkaError as error:
            logger.info("%s: %s", type(command).__name__, error)


def _endpoint(row: Listener) -> Endpoint:
    protocol = SECURITY_PROTOCOLS[row.security_protocol]
    return Endpoint(listener=row.name, host=row.host, port=row.port, protocol=protocol)
