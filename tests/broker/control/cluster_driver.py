"""Members of a cluster on a simulated disk, loop and bucket: what cluster tests drive.

They reach each other by calls through the real encoding and the real handlers, over wires that can be cut; a
whole broker on a network is the simulation's (tests/sim).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from broker.config.broker import from_properties
from broker.control.cluster import Cluster
from broker.control.image import Delta
from broker.handlers.dispatch import Context
from broker.handlers.peers import PeerHandlers
from broker.handlers.topics import TopicHandlers
from broker.net.channel import PeerLost
from broker.ports import Network, World
from broker.turns import Turns
from protocol.apis import Api
from protocol.codec import Fields
from protocol.messages import entity
from remote.store.object_store import ObjectStore
from tests.sim.disk import Disk, SimFiles
from tests.sim.loop import Process, SimLoop
from tests.sim.store import Bucket, SimStore, StoreProfile

T = TypeVar("T")


class Site:
    """One disk and one bucket under one virtual clock."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop()
        self.bucket = Bucket()
        self.profile = StoreProfile()
        self.disk = Disk(random.Random(seed), self.now_ms)
        self.seed = seed
        self.members: list[Cluster] = []
        self.fenced: list[str] = []
        self.alive: dict[int, Cluster] = {}
        """By node id: who listens."""
        self.cut: set[tuple[int, int]] = set()
        """From whom, to whom nothing passes."""
        self.refusing: set[tuple[int, int]] = set()
        """From whom, to whom every connection is refused, as by a firewall."""
        self.calls: dict[Call, None] = {}
        self.no_store: set[int] = set()
        """Nodes whose way to the bucket is cut."""
        self.resets: dict[int, int] = {}
        """Of a dead node: how many more questions are reset before its port refuses."""
        self.clock_ms = 0
        self.turn_steps = 1024
        """Of work in turns, in each turn of the loop."""

    def now_ms(self) -> int:
        return self.clock_ms + int(self.loop.now * 1000)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        async def whole() -> T:
            try:
                return await story
            finally:
                for member in self.members:
                    await member.stop()

        return self.loop.run(whole())

    def files(self) -> SimFiles:
        return SimFiles(self.disk, None)

    def member(
        self,
        *,
        life: int | None = None,
        store: ObjectStore | None = None,
        dirs: str = "/data/1",
        **properties: str,
    ) -> Cluster:
        """A member that has not started; each one draws its own randomness."""
        life = len(self.members) if life is None else life
        properties.setdefault("node_id", "1")
        props = {name.replace("_", "."): value for name, value in properties.items()}
        config = from_properties({"log.dirs": dirs, **props}, standalone=True)
        turns = Turns(loop=self.loop, elapsed_s=lambda: 0.0, steps=lambda: self.turn_steps)
        world = self.world(life, store, config.node_id)
        member = Cluster(config, world, turns, on_fenced=self.fenced.append)
        member.channels = cast(Any, Wires(self, member))
        self.members.append(member)
        return member

    def world(self, life: int, store: ObjectStore | None = None, node_id: int = 1) -> World:
        async def offload(call: Callable[[], T]) -> T:
            await asyncio.sleep(0)
            return call()

        def start(call: Callable[[], T], /) -> Awaitable[T]:
            return offload(call)

        process = Process(self.loop, f"member-{life}", life)
        rng = random.Random(f"{self.seed}/{life}/store")
        return World(
            files=self.files(),
            network=cast(Network, None),
            store=store or self._line(node_id, rng, process),
            rival_store=self._line(node_id, random.Random(f"{self.seed}/{life}/rival"), process),
            now_ms=self.now_ms,
            random=random.Random(f"{self.seed}/{life}"),
            offload=start,
            host_name="this-host",
        )

    def _line(self, node_id: int, rng: random.Random, process: Process) -> SimStore:
        return SimStore(self.loop, self.bucket, _Line(self, node_id), rng, process)

    async def started(self, **kwargs: Any) -> Cluster:
        start = {name: kwargs.pop(name) for name in ("ports", "has_log") if name in kwargs}
        member = self.member(**kwargs)
        await member.read()
        await member.join(**start)
        self.alive[member.node_id] = member
        return member

    async def trio(self, **kwargs: Any) -> list[Cluster]:
        """Three nodes, the first of them the controller."""
        return [await self.started(node_id=str(id_), dirs=f"/data/{id_}", **kwargs) for id_ in (1, 2, 3)]

    async def kill(self, member: Cluster) -> None:
        """Its process is gone: its port refuses, and whoever was connected learns of it."""
        self.alive.pop(member.node_id, None)
        for call in list(self.calls):
            if member.node_id in (call.source, call.target):
                call.lose()
        await member.stop()

    def isolate(self, node_id: int) -> None:
        """Cut from every peer, both ways, in silence."""
        for other in range(1, 10):
            self.cut |= {(node_id, other), (other, node_id)}

    def refuse(self, one: int, other: int) -> None:
        """These two are refused by each other, and their connections are gone."""
        self.refusing |= {(one, other), (other, one)}
        for call in list(self.calls):
            if (call.source, call.target) in self.refusing:
                call.lose()

    def slots(self) -> list[int]:
        names = [key.removeprefix("meta/") for key in self.bucket.objects]
        return sorted(int(name) for name in names if name.isdigit())


class _Line(StoreProfile):
    """One node's way to the bucket: as good as the site's, unless it is cut."""

    def __init__(self, site: Site, node_id: int) -> None:
        self._site = site
        self._node_id = node_id

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        if name == "down" and self._node_id in self._site.no_store:
            return True
        return getattr(self._site.profile, name)


class Wires:
    """In place of a member's channels."""

    def __init__(self, site: Site, member: Cluster) -> None:
        self._site = site
        self._member = member
        self._connections: dict[tuple[int, str], Any] = {}
        self.closed_s: dict[int, float] = {}

    def to(self, node_id: int, purpose: str) -> Call:
        if self._member.endpoint_of(node_id) is None:
            raise PeerLost(f"no broker {node_id} is registered")
        fresh = SimpleNamespace(on_lost=None, listener="PLAINTEXT")
        connection = self._connections.setdefault((node_id, purpose), fresh)
        return Call(self, self._site, self._member.node_id, node_id, connection)

    def closed_since(self, since_s: float) -> list[int]:
        return [node_id for node_id, at_s in self.closed_s.items() if at_s >= since_s]

    def forget(self, node_id: int) -> None:
        pass

    def close(self) -> None:
        for call in list(self._site.calls):
            if call.source == self._member.node_id:
                call.lose()
        for connection in self._connections.values():
            lose(connection)


def lose(connection: Any) -> None:
    """Its server hears of it once."""
    on_lost, connection.on_lost = connection.on_lost, None
    if on_lost is not None:
        on_lost()


class Call:
    """One question on a connection."""

    def __init__(self, wires: Wires, site: Site, source: int, target: int, connection: Any) -> None:
        self._wires = wires
        self.source = source
        self.target = target
        self._site = site
        self._connection = connection
        self._lost: asyncio.Future[None] | None = None

    def lose(self) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def ask(self, api: int, version: int, fields: Fields, *, timeout_s: float) -> Any:
        request = entity(api, version, fields)
        asked = self._lost = self._site.loop.create_future()
        self._site.calls[self] = None
        answer: asyncio.Task[Any] | None = None
        try:
            if (self.source, self.target) in self._site.refusing:
                await asyncio.sleep(0.001)
                raise PeerLost("refused", refused=True)
            if self.target not in self._site.alive:
                if self._site.resets.get(self.target, 0):
                    self._site.resets[self.target] -= 1
                    raise PeerLost("reset")
                raise PeerLost("refused", refused=True)
            if (self.source, self.target) not in self._site.cut:
                answer = asyncio.ensure_future(self._answer(api, version, request))
            waiting: list[asyncio.Future[Any]] = [asked] if answer is None else [asked, answer]
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if asked.done() or answer is None or not answer.done() or self._is_cut_back():
                raise PeerLost("no answer")
            return entity(api, version, answer.result(), "response")
        finally:
            del self._site.calls[self]
            if answer is not None and not answer.cancel() and not answer.cancelled():
                answer.exception()  # is nobody's concern any more
            if asked.done():
                lose(self._connection)
                self._wires.closed_s[self.target] = self._site.loop.time()

    def _is_cut_back(self) -> bool:
        return (self.target, self.source) in self._site.cut

    async def _answer(self, api: int, version: int, request: Any) -> Fields:
        await asyncio.sleep(0.001)
        member = self._site.alive[self.target]
        if api == Api.API_VERSIONS:
            return {"error_code": 0, "api_keys": []}
        handlers = {**TopicHandlers(cluster=member).routes(), **PeerHandlers(cluster=member).routes()}
        context = Context(
            api_key=api,
            api_version=version,
            correlation_id=0,
            client_id=None,
            connection=cast(Any, self._connection),
        )
        found = handlers[api](context, request)
        if isinstance(found, Generator):
            return await member.turns.run(found)
        return await found if asyncio.iscoroutine(found) else cast(Fields, found)


def recorded(member: Cluster) -> list[Delta]:
    seen: list[Delta] = []
    member.subscribe(seen.append)
    return seen
