"""The life of a broker, from start to clean stop.

Owns: the root TaskGroup, the order in which the parts start and stop, and the work that is done
every so often. Does not own: the parts (build), the process around it (process). Invariant: no client
is answered before the cluster was joined and every log is open; a stop that returns left the
clean-shutdown marker; a background task that fails ends the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.background import run_offloaded
from broker.build import build, take_configs
from broker.components import Components
from broker.config.broker import BrokerConfig
from broker.control.cluster import Cluster
from broker.control.directories import StartupError
from broker.ports import Listening, World
from broker.turns import Turns
from protocol.apis import SERVED
from protocol.messages import load

if TYPE_CHECKING:
    from broker.admin.http import AdminHttp

logger = logging.getLogger(__name__)

MAINTAIN_EVERY_S: Final = 1.0
SYNCS_AT_ONCE: Final = 32
WARM_PAUSE_S: Final = 0.02


class Broker:
    """After `await start()` clients may connect to `listeners`; `await stop()` leaves everything clean."""

    def __init__(self, config: BrokerConfig, world: World, *, admin: tuple[str, int] | None = None) -> None:
        self.config = config
        self.world = world
        self.listeners: dict[str, Listening] = {}
        self.admin: AdminHttp | None = None
        self.is_ready = False
        self.warms_codecs = False
        """Load every codec in idle moments after ready; for a process that stays."""
        self.components: Components
        self._admin_address = admin
        self._root: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup
        self._stopping = asyncio.Event()
        self._failure: str | None = None

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "not ready"
        ports = ", ".join(f"{name}={each.host}:{each.port}" for name, each in self.listeners.items())
        return f"<Broker {self.config.node_id} {state} {ports}>"

    # --- life ---

    async def start(self) -> bool:
        """Return True once clients may connect, False if a stop was requested before and is complete. Raise
        what prevented the start."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._root = asyncio.get_running_loop().create_task(self._run(ready), name="broker")
        await asyncio.wait((ready, self._root), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return True
        await self.run_until_stopped()
        return False

    async def run_until_stopped(self) -> None:
        """Return after a clean stop; raise what ended the broker otherwise."""
        assert self._root is not None, "start() comes first"
        await asyncio.shield(self._root)
        if self._failure is not None:
            raise StartupError(self._failure)

    def request_stop(self) -> None:
        self._stopping.set()

    async def stop(self) -> None:
        """Answer pending requests, close every log and leave the clean-shutdown marker."""
        self.request_stop()
        if self._root is not None:
            await self._root

    def fail(self, reason: str) -> None:
        """Stop, and report why this broker may not go on (another process has its node id, say)."""
        self._failure = reason
        self.request_stop()

    async def _run(self, ready: asyncio.Future[None]) -> None:
        loop, world = asyncio.get_running_loop(), self.world
        turns = Turns(loop=loop, elapsed_s=world.elapsed_s, steps=world.turn_steps)
        cluster = Cluster(self.config, world, turns, on_fenced=self.fail)
        self.components = components = build(self.config, self.world, cluster, fail=self.fail)
        logs = components.logs
        logs.lock_and_open()
        is_clean = False
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                components.background.begin(tasks)
                if await self._is_opened():
                    self.is_ready = True
                    ready.set_result(None)
                    self._after_ready()
                    await self._stopping.wait()
                    self.is_ready = False
                await self._close()
            is_clean = True
        except BaseExceptionGroup as failures:
            raise _first_cause(failures) from failures
        finally:
            self.is_ready = False
            components.network.stop_listening()
            if self.admin is not None:
                await self.admin.stop()
            logs.close(clean=is_clean, broker_epoch=cluster.broker_epoch)

    async def _is_opened(self) -> bool:
        """Return True after the start, False if a stop requested meanwhile has cancelled it."""
        opening = self._tasks.create_task(self._open())
        stopping = self._tasks.create_task(self._stopping.wait())
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if opening.done():
            opening.result()
            return True
        opening.cancel()
        await asyncio.wait((opening,))
        return False

    async def _open(self) -> None:
        """Open the ports, then the logs, then join. Ports come first because the registration names them:
        clients that connect early wait unread, and the admin pages report a start in progress."""
        components = self.components
        for listener in self.config.listeners:
            with _named(listener.host, listener.port):
                self.listeners[listener.name] = await components.network.listen(
                    listener.name, listener.host, listener.port
                )
        if self._admin_address is not None:
            from broker.admin.http import AdminHttp

            self.admin = AdminHttp(components.metrics, is_ready=lambda: self.is_ready)
            with _named(*self._admin_address):
                await self.admin.start(*self._admin_address)
        ports = {name: listening.port for name, listening in self.listeners.items()}
        await components.cluster.read()
        take_configs(components)
        await _in_slices(components.logs.loading(components.cluster.log_config, components.cluster.topic_id))
        has_log = None if components.logs.offline_dirs else components.replicas.holds
        await components.cluster.join(ports=ports, task_group=self._tasks, has_log=has_log)
        take_configs(components)
        await _in_slices(components.replicas.load(components.cluster.image))
        if components.wal is not None:
            await components.wal.start(self._tasks, components.background)
        components.background.adopt(components.isr.start(self._tasks))
        components.fetchers.start(self._tasks)
        await components.groups.start(self._tasks)
        await components.transactions.start(self._tasks)
        if components.tier_metadata is not None:
            components.tier_metadata.start(self._tasks)
        if components.tier_reads is not None:
            components.background.spawn(components.tier_reads.start())
        if components.tiering is not None:
            components.tiering.start(self._tasks)
        if components.restores is not None:
            components.restores.start()
        components.network.open()

    def _after_ready(self) -> None:
        spawn = self.components.background.spawn
        spawn(self._maintain())
        spawn(self._clean())
        if self.warms_codecs:
            spawn(self._warm())
        self.components.loop_monitor.start()

    async def _close(self) -> None:
        components = self.components
        components.loop_monitor.stop()
        await components.cluster.leave()
        if components.wal is not None:
            await components.wal.stop()
        if components.tiering is not None:
            await components.tiering.stop()
        if components.tier_metadata is not None:
            await components.tier_metadata.stop()
        components.fetchers.stop()
        components.network.stop_listening()
        await components.transactions.stop()
        await components.groups.stop()
        await components.background.cancel()
        await components.network.close()
        await components.cluster.stop()
        if components.wal is not None:
            await components.wal.close()
        await self._sync_logs()

    async def _sync_logs(self) -> None:
        """Sync several logs at a time, since a disk serves many syncs with one commit."""
        jobs = self.components.logs.closing()

        async def work() -> None:
            for job, done in jobs:
                await run_offloaded(self.world, job, done)

        await asyncio.gather(*(work() for _ in range(SYNCS_AT_ONCE)))

    # --- background ---

    async def _maintain(self) -> None:
        """Run retention, delayed deletes, flushes by time and checkpoints; retry logs that failed to open."""
        while True:
            await asyncio.sleep(MAINTAIN_EVERY_S)
            for _ in self.components.logs.maintain(self.world.now_ms()):
                await asyncio.sleep(0)
            for _ in self.components.replicas.reopen():
                await asyncio.sleep(0)

    async def _clean(self) -> None:
        """Compact, at the pace that the slices ask for."""
        cluster = self.components.cluster
        while self.config.log_cleaner_enable:
            backoff_s = cluster.broker_config.log_cleaner_backoff_ms / 1000
            await asyncio.sleep(max(backoff_s, MAINTAIN_EVERY_S))
            for wait_ms in self.components.logs.clean(self.world.now_ms()):
                await asyncio.sleep(wait_ms / 1000)

    async def _warm(self) -> None:
        """Load the codecs one by one while no request comes: all at once would take 0.7 s."""
        requests = self.components.counters.requests
        for key, row in SERVED.items():
            for version in range(row.max_version, row.served_from - 1, -1):
                handled = -1
                while handled != sum(requests):
                    handled = sum(requests)
                    await asyncio.sleep(WARM_PAUSE_S)
                load(key, version)
        gc.freeze()


@contextlib.contextmanager
def _named(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # asyncio repeats the address, and a name that does not resolve has an error number of its own
        number = error.errno or 0
        why = os.strerror(number) if number in errno.errorcode else error.strerror or error
        raise StartupError(f"cannot listen on {host}:{port}: {why}") from error


async def _in_slices(steps: Iterable[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


def _first_cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
