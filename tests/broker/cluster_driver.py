"""Members of a cluster on a simulated disk, loop and bucket, without a network: what cluster tests drive."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from broker.cluster import Cluster
from broker.config import from_properties
from broker.image import Delta
from broker.ports import Network, World
from remote.object_store import MemoryStore, ObjectStore
from tests.sim.disk import Disk, SimFiles
from tests.sim.loop import Process, SimLoop
from tests.sim.store import SimStore, StoreProfile

T = TypeVar("T")


class Site:
    """One disk and one bucket under one virtual clock."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop()
        self.bucket = MemoryStore()
        self.profile = StoreProfile()
        self.disk = Disk(random.Random(seed), self.now_ms)
        self.seed = seed
        self.members: list[Cluster] = []
        self.fenced: list[str] = []

    def now_ms(self) -> int:
        return int(self.loop.now * 1000)

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
        props = {name.replace("_", "."): value for name, value in properties.items()}
        config = from_properties({"node.id": "1", "log.dirs": dirs, **props}, standalone=True)
        member = Cluster(config, self.world(life, store), on_fenced=self.fenced.append)
        self.members.append(member)
        return member

    def world(self, life: int, store: ObjectStore | None = None) -> World:
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
            store=store or SimStore(self.loop, self.bucket, self.profile, rng, process),
            now_ms=self.now_ms,
            random=random.Random(f"{self.seed}/{life}"),
            offload=start,
            host_name="this-host",
        )

    async def started(self, **kwargs: Any) -> Cluster:
        start = {name: kwargs.pop(name) for name in ("ports", "clean") if name in kwargs}
        member = self.member(**kwargs)
        await member.start(**start)
        return member

    def slots(self) -> list[int]:
        names = [key.removeprefix("meta/") for key in self.bucket.objects]
        return sorted(int(name) for name in names if name.isdigit())


def recorded(member: Cluster) -> list[Delta]:
    seen: list[Delta] = []
    member.subscribe(seen.append)
    return seen
