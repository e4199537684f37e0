"""This node in its cluster: its identity, its role, what it knows, and waiting until it knows more.

Owns: the node's identity in this life, its role, its tasks, the way to other nodes, waking those that wait
for the image to change. Does not own: the moves between roles (cluster.py), the slots (ledger.py), what is
asked of other nodes.

Invariants: whatever waits for a change is woken by the next slot or the next change of role, whichever comes
first. Every task that is started here ends with the member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.command_queue import not_controller
from broker.control.directories import new_id
from broker.control.image import BrokerImage, Image
from broker.control.ledger import Ledger
from broker.control.metadata_log import MetadataLog
from broker.endpoint import Endpoint
from broker.net.channel import Channels, PeerLost
from broker.ports import World
from broker.turns import Turns
from protocol.apis import Api

PROBE_S = 1.0
LOST_PEER_S = 0.3
"""How long a broker whose connection just closed may be gone without the log saying so."""


class Member:
    """This node in its cluster, as those parts see it that make it one."""

    def __init__(self, config: BrokerConfig, world: World, turns: Turns) -> None:
        self.node_id = config.node_id
        self.turns = turns
        """Of the whole broker."""
        self.broker_epoch = -1
        self.incarnation = new_id(world.random)
        self.is_controller = False
        self.is_stopping = False
        """Final: nothing more is written or asked for."""
        self.metadata_log = MetadataLog(world.store, world.random, turns.own)
        self.ledger = Ledger(self.metadata_log, self.now_s, turns.own)
        self.channels = Channels(world.network, config.node_id, self.endpoint_of)
        self._listener = config.inter_broker_listener
        self._random = world.random
        self._change: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_group: asyncio.TaskGroup | None = None

    @property
    def image(self) -> Image:
        return self.ledger.image

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def new_id(self) -> UUID:
        return new_id(self._random)

    # --- other members ---

    def is_member(self) -> bool:
        me = self.image.brokers.get(self.node_id)
        return me is not None and me.incarnation == self.incarnation

    def others(self) -> list[BrokerImage]:
        return [broker for broker in self.image.live_brokers() if broker.id != self.node_id]

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """Return where other brokers reach this node, even a fenced one; None if it is not registered."""
        broker = self.image.brokers.get(node_id)
        return None if broker is None else broker.endpoint(self._listener)

    def controller_to_ask(self) -> int:
        if self.is_stopping or self.image.controller_id < 0:
            raise not_controller()
        return self.image.controller_id

    async def is_listening(self, node_id: int) -> bool | None:
        """Whether a process listens there. None: no answer in time proves nothing."""
        try:
            channel = self.channels.to(node_id, "look")
            await channel.ask(Api.API_VERSIONS, 0, {}, timeout_s=PROBE_S)
        except PeerLost as lost:
            return False if lost.refused else None
        return True

    def has_lost_peer(self) -> bool:
        """Whether a broker the image lists as live has just closed its connection."""
        closed = self.channels.closed_since(self.now_s() - LOST_PEER_S)
        return any(
            (broker := self.image.brokers.get(node_id)) is not None and not broker.fenced
            for node_id in closed
        )

    async def wait_doubt_over(self) -> None:
        """Wait until the image says what became of a lost peer, or it has been in doubt for long enough.

        A client that lost its leader asks at once for the next one. A moment later there is one to name;
        named the old one, some clients ask again after seconds only.
        """
        await self.wait_until(lambda: not self.has_lost_peer(), LOST_PEER_S)

    # --- waiting ---

    def next_change(self) -> asyncio.Future[None]:
        """Done at the next slot, or when this node's role changes."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def announce_change(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    async def wait_until(self, is_known: Callable[[], bool], timeout_s: float) -> None:
        """Wait until this broker's image or role says so, or the time is over."""
        give_up_s = self.now_s() + timeout_s
        while not is_known() and self.now_s() < give_up_s:
            await asyncio.wait({self.next_change()}, timeout=give_up_s - self.now_s())

    # --- tasks ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        owner = self._task_group or asyncio.get_running_loop()
        task: asyncio.Task[None] = owner.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end_tasks(self) -> None:
        """Cancel all that was spawned, and return when it has ended."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
