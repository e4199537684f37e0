"""Owns one broker's machine: its disk, its clock, its place in the network, its line to the store, and the
lives of the broker on it.

A life begins with `start` and ends by a clean stop, a kill or a power cut; between lives the disk may be
replaced by an empty one. What the disk kept of each log is worked out here from the bytes alone, without the
broker's own recovery, so that the verdict does not depend on the code it judges; what that recovery makes of
it is noted beside it. Does not own the faults.

Invariant: at most one life is alive, and a life that ended otherwise than by a clean stop left exactly one
Crash in the history; so did every disk that was replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from broker.config import broker as broker_config
from broker.control.image import Image
from broker.coordinators.replicated_state import ReplicatedState
from broker.ports import World
from broker.server import Broker
from remote.cold.sizes import TierSizes
from remote.store.metered import StoreStats
from remote.store.stores import limit_attempts
from storage.unified_log import UnifiedLog
from tests.sim.background import Background, Hold
from tests.sim.disk import Disk, SimFiles
from tests.sim.history import Crash, History, TopicPartition
from tests.sim.loop import Killed, Process, SimFailure, SimLoop
from tests.sim.net import Fabric
from tests.sim.restart import TopicConfigs, recovered_ends, told_nothing
from tests.sim.salvage import TornFiles, kept_ends, readable_ends
from tests.sim.store import Bucket, SimStore, StoreProfile

T = TypeVar("T")

NAME = "broker-"
WALL_CLOCK_AT_ZERO_MS = 1_700_000_000_000
SMALL = TierSizes(part_bytes=250, block_bytes=64, chunk_bytes=128)
"""So that most objects of the tier have several parts."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


_tell_unforeseen = ReplicatedState._tell_unforeseen


def _end_the_run(state: ReplicatedState[Any], what: str, error: Exception) -> None:
    """A broker goes on after an error that nobody foresaw in a coordinator; a run does not. Errors of disks
    are armed by the run."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop) and not isinstance(error, OSError):
        loop.fail(f"{state.topic}-{state.index}: {what}: {error!r}", error)
    else:
        _tell_unforeseen(state, what, error)


ReplicatedState._tell_unforeseen = _end_the_run  # type: ignore[method-assign]


def host_of(node_id: int) -> str:
    return f"{NAME}{node_id}"


def node_of(host: str) -> int:
    """The broker on this host; -1 when it is not a broker's."""
    return int(host.removeprefix(NAME)) if host.startswith(NAME) else -1


TURN_STEPS = (1, 2, 3, 10, 1000)
"""How much of the work in turns is done in one turn of the loop."""
LARGE_REQUEST_BYTES = (0, 40, 4096)
"""From which size on the requests of a life are worked on in turns; nearly all are smaller than what is large
elsewhere."""


class Node:
    def __init__(
        self,
        *,
        loop: SimLoop,
        fabric: Fabric,
        history: History,
        bucket: Bucket,
        common: StoreProfile,
        node_id: int,
        seed: str,
        properties: Mapping[str, str],
        topic_configs: TopicConfigs = told_nothing,
    ) -> None:
        self.loop = loop
        self.id = node_id
        self.name = host_of(node_id)
        self.life = 0
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.files: SimFiles | None = None
        self.may_break = False  # a disk error was armed: the broker may give up by itself
        self._clock_ahead_ms = 0
        self._clock_was_ahead_ms = 0  # at most
        self.line = StoreProfile()
        self.wal_line = StoreProfile()
        """Its lane for the WAL tier, on that line."""
        self.hold = Hold(loop, self.name, random.Random(f"{seed}/{self.name}/hold"))
        self.disks = 0
        self.disk = self._new_disk(loop, seed)
        self._fabric = fabric
        self._history = history
        self._bucket = bucket
        self._common = common
        self._seed = seed
        self._topic_configs = topic_configs
        self._left: dict[TopicPartition, int] = {}  # where logs ended when the last life did
        self._torn = TornFiles()
        self._stopped = False
        self.is_stopping = False
        given = {"node.id": str(node_id), "listeners": "PLAINTEXT://0.0.0.0:9092", **properties}
        self.config = broker_config.from_properties(given)
        self.log_dirs = [directory.strip() for directory in given["log.dirs"].split(",")]

    def __repr__(self) -> str:
        return f"<Node {self.name} life {self.life} {'alive' if self.is_alive else 'down'}>"

    def _new_disk(self, loop: SimLoop, seed: str) -> Disk:
        self.disks += 1
        return Disk(random.Random(f"{seed}/{self.name}/disk-{self.disks}"), self.now_ms, loop.trace)

    def now_ms(self) -> int:
        return WALL_CLOCK_AT_ZERO_MS + int(self.loop.now * 1000) + self._clock_ahead_ms

    def latest_ms(self) -> int:
        """Its clock, had it never been set back: it never showed a later time."""
        return self.now_ms() - self._clock_ahead_ms + self._clock_was_ahead_ms

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def is_ready(self) -> bool:
        return self.is_alive and self.broker is not None and self.broker.is_ready

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.paused

    # what may be looked at ----------------------------------------------------------------------------------

    def log(self, tp: TopicPartition) -> UnifiedLog | None:
        """This node's log of a partition; None when it has none, or has not opened it yet."""
        components = getattr(self.broker, "components", None) if self.is_alive else None
        found: UnifiedLog | None = None if components is None else components.logs.logs.get(tp)
        return found

    def log_end(self, tp: TopicPartition) -> int | None:
        """Where the log ends, or ended when the last life did; None when it has none."""
        log = self.log(tp)
        return self._left.get(tp) if log is None else log.log_end_offset

    def image(self) -> Image | None:
        return self.broker.components.cluster.image if self.is_ready and self.broker is not None else None

    def forget_finished(self) -> None:
        """See SimLoop.forget_finished."""
        if self.process is not None:
            self.process.tasks[:] = [task for task in self.process.tasks if not task.done()]

    # lives --------------------------------------------------------------------------------------------------

    def begin(self) -> asyncio.Future[bool]:
        """Switch the machine on; the future says whether this life got ready, or ended before."""
        assert not self.is_alive
        self.life += 1
        self._stopped = self.is_stopping = False
        process = Process(self.loop, self.name, self.life)
        self.process = process
        self.broker = None
        self.files = self.disk.mount(process)
        self.loop.trace("begin", self.name, self.life)
        ready: asyncio.Future[bool] = self.loop.create_future()
        process.on_death.append(lambda power: self._died(process, ready, power=power))
        process.spawn(
            self._live(process, self._world(process, self.files), ready), name=f"{self.name}#{self.life}"
        )
        return ready

    def _world(self, process: Process, files: SimFiles) -> World:
        rng = random.Random(f"{self._seed}/{self.name}/{self.life}")
        slow = random.Random(f"{self._seed}/{self.name}/{self.life}/offload")
        store_rng = random.Random(f"{self._seed}/{self.name}/{self.life}/store")

        wal_rng = random.Random(f"{self._seed}/{self.name}/{self.life}/wal store")

        turns = random.Random(f"{self._seed}/{self.name}/{self.life}/turns")
        stats = StoreStats()
        lane = SimStore(
            self.loop,
            self._bucket,
            self.line,
            wal_rng,
            process,
            common=self._common,
            lane=self.wal_line,
            node=self.id,
        )
        background = Background(self.hold, slow)

        def start_offload(call: Callable[[], T], /) -> Awaitable[T]:
            return background.run(call)

        return World(
            files=files,
            network=self._fabric.endpoint(self.name, process),
            store=SimStore(
                self.loop, self._bucket, self.line, store_rng, process, common=self._common, node=self.id
            ),
            wal_store=limit_attempts(lane, stats),
            wal_store_stats=stats,
            now_ms=self.now_ms,
            random=rng,
            offload=start_offload,
            host_name=self.name,
            turn_steps=lambda: turns.choice(TURN_STEPS),
            large_request_bytes=turns.choice(LARGE_REQUEST_BYTES),
            tier_sizes=SMALL,
        )

    async def _live(self, process: Process, world: World, ready: asyncio.Future[bool]) -> None:
        try:
            broker = Broker(self.config, world)
            self.broker = broker
            if not await broker.start():
                self.loop.trace("stopped early", self.name, self.life)
                return
            self.loop.trace("ready", self.name, self.life)
            if not ready.done():
                ready.set_result(True)
            await broker.run_until_stopped()
        except Exception as error:
            if not self.may_break:
                self.loop.fail(f"{self.name} ended by itself: {error!r}", error)
            self.loop.trace("gave up", self.name, self.life, type(error).__name__)
            process.die()

    async def start(self) -> bool:
        """Begin a life and wait until it is ready or over."""
        ready = self.begin()
        await asyncio.wait([ready], timeout=START_TIMEOUT_S)
        if not ready.done():
            raise SimFailure(f"{self.name} was not ready within {START_TIMEOUT_S} s")
        return ready.result()

    async def stop(self) -> None:
        """A clean stop, as by SIGTERM."""
        process, broker = self.process, self.broker
        assert process is not None and broker is not None
        self.loop.trace("stop", self.name)
        self.is_stopping = True
        stopping = process.spawn(broker.stop())
        over: asyncio.Future[None] = self.loop.create_future()
        process.on_death.append(lambda _: over.done() or over.set_result(None))
        await asyncio.wait([stopping, over], timeout=STOP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            return
        if not stopping.done():
            raise SimFailure(f"{self.name} did not stop within {STOP_TIMEOUT_S} s")
        error = stopping.exception()
        if error is not None and not (self.may_break or isinstance(error, Killed)):
            raise error
        self._stopped = error is None
        process.die()

    def kill(self, *, power: bool = False) -> None:
        if self.process is not None:
            self.process.die(power=power)

    def pause(self) -> None:
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()

    def step_clock(self, milliseconds: int) -> None:
        self._history.clocks_differ = True
        self._clock_ahead_ms += milliseconds
        self._clock_was_ahead_ms = max(self._clock_was_ahead_ms, self._clock_ahead_ms)
        self.loop.trace("clock", self.name, milliseconds)

    def replace_disk(self) -> None:
        """The machine goes down and its next life begins on an empty disk."""
        self.kill(power=True)
        self.disk = self._new_disk(self.loop, self._seed)
        self._left, self._torn = {}, TornFiles()
        self.loop.trace("new-disk", self.name)
        self._history.crashes.append(
            Crash(node=self.id, life=self.life, at=self.loop.now, power=True, replaced=True)
        )

    def _died(self, process: Process, ready: asyncio.Future[bool], *, power: bool) -> None:
        was_ready = ready.done()
        if not was_ready:
            ready.set_result(False)
        synced = {}
        before = self.disk.snapshot()
        whole = self._torn.whole(before)
        if power:
            self._fabric.power_off(self.name)
            synced = readable_ends(self.disk.durable_snapshot(), self.log_dirs, whole)
            self.disk.power_cut()
        left = self.disk.snapshot()
        self._torn.note(whole, left)
        self._left = readable_ends(left, self.log_dirs, whole)
        kept = kept_ends(before, left, self.log_dirs, whole) if power else self._left
        if self._stopped:
            return
        self.loop.trace("crash", self.name, process.life, power, sorted(kept.items()))
        self._history.crashes.append(
            Crash(
                node=self.id,
                life=process.life,
                at=self.loop.now,
                power=power,
                synced_end=synced,
                kept_end=kept,
                recovered_end=recovered_ends(self.disk, self.config, self._topic_configs) if power else kept,
                was_ready=was_ready,
            )
        )
