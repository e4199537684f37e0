"""The demo's three brokers: started, killed, deprived of a disk, stopped, while the demo goes on.

Owns the folder they live in and a thread for their supervisor, which is the one of `tidewal cluster`. Does
not own processes (tools.supervisor) nor what a kill does to clients (steps).
Invariant: when the block is left no process runs; a broker that ends without being asked to fails the demo
with its last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tools.client import Address
from tools.cluster_command import ClusterOptions, broker_options
from tools.console import Failure
from tools.ports import free_port
from tools.scrape import Scrape, look
from tools.supervisor import Supervisor

NODES: Final = 3
LOOK_EVERY_S: Final = 0.05
SETTINGS: Final = (
    # Kafka looks every 5 minutes whether a local copy may go, first after 30 s, and every 30 s what to copy
    "log.initial.task.delay.ms=500",
    "log.retention.check.interval.ms=500",
    "remote.log.manager.task.interval.ms=500",
    # 50 by default, each with a log on every broker: more than six partitions need
    "rlmm.config.remote.log.metadata.topic.num.partitions=3",
)


class Brokers:
    """Three brokers in `folder`, laid out as `tidewal cluster --data` has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self._said = folder / "said"
        self._said.mkdir()
        options = ClusterOptions(brokers=NODES, listen="127.0.0.1:0", data=folder, settings=list(SETTINGS))
        brokers = [broker_options(options, number) for number in range(NODES)]
        self._admin_ports: dict[int, int] = {}
        for broker in brokers:
            assert broker.node_id is not None
            self._admin_ports[broker.node_id] = port = free_port()
            broker.admin = f"127.0.0.1:{port}"
        self.node_ids: Sequence[int] = tuple(self._admin_ports)
        self._supervisor = Supervisor(brokers, print_line=_drop, said_to=self._said)
        self._thread = threading.Thread(target=self._supervise, name="supervisor")
        self._failure: BaseException | None = None
        self._is_stopped_on_purpose = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.request_stop()
        self._thread.join()

    def _supervise(self) -> None:
        try:
            with self._supervisor as supervisor:
                if supervisor.wait_ready():
                    supervisor.watch()
        except BaseException as failure:
            self._failure = failure

    # --- their lives ---

    def request_stop(self) -> None:
        """Stop all of them; safe in a signal handler."""
        self._is_stopped_on_purpose = True
        self._supervisor.request_stop()

    async def wait_ready(self, node_ids: Sequence[int], within_s: float) -> None:
        await self.wait_until(
            lambda: all(self._supervisor.broker(node_id).is_ready for node_id in node_ids),
            "not every broker was ready",
            within_s,
        )

    async def kill(self, node_id: int) -> float:
        """Kill a broker with -9; return when, once its process is gone."""
        broker = self._supervisor.broker(node_id)
        killed_s = time.perf_counter()
        self._supervisor.kill(node_id)
        await self.wait_until(lambda: broker.process is None, f"broker {node_id} did not go", 10.0)
        return killed_s

    def empty_disk(self, node_id: int) -> None:
        """Delete all that a broker which does not run has on its disk."""
        shutil.rmtree(self.data(node_id))

    async def start_again(self, node_id: int, within_s: float) -> None:
        self._supervisor.broker(node_id).is_ready = False
        self._supervisor.start_again(node_id)
        await self.wait_ready([node_id], within_s)

    async def stop(self) -> None:
        """Stop all of them by SIGTERM; Failure when one did not end cleanly."""
        self.request_stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        if self._supervisor.unclean:
            raise Failure(f"not every broker ended cleanly: {', '.join(self._supervisor.unclean)}")

    def wait_ended(self) -> None:
        """Return when a stop was requested; Failure when a broker ended without it, or not cleanly."""
        while self._thread.is_alive() and not self._is_stopped_on_purpose:
            self._thread.join(LOOK_EVERY_S)
            self.check()
        self._thread.join()
        self.check()

    async def wait_until(self, condition: Callable[[], bool], what_else: str, within_s: float) -> None:
        """Return when the condition holds; Failure, with what is said for it, when it does not in time."""
        ends_s = time.perf_counter() + within_s
        while not condition():
            self.check()
            if time.perf_counter() > ends_s:
                raise Failure(f"{what_else} within {within_s:.0f} s")
            await asyncio.sleep(LOOK_EVERY_S)

    def check(self) -> None:
        """Failure when one has ended that was not to end."""
        if self._failure is not None:
            raise Failure(f"{self._failure}{self._last_words()}")
        if self._supervisor.unclean or not (self._thread.is_alive() or self._is_stopped_on_purpose):
            raise Failure(f"{', '.join(self._supervisor.unclean) or 'all'} ended{self._last_words()}")

    def _last_words(self) -> str:
        """Return the last line that each of them wrote to stderr."""
        lines = {
            path.stem: path.read_text(errors="replace").strip().rpartition("\n")[2]
            for path in sorted(self._said.glob("*.txt"))
        }
        return "".join(f"; broker {name} said last: {line}" for name, line in lines.items() if line)

    # --- where they are ---

    def data(self, node_id: int) -> Path:
        return self.folder / str(node_id)

    @property
    def addresses(self) -> list[Address]:
        return [Address.parse(str(broker.options.listen)) for broker in self._supervisor.brokers]

    def metrics(self, node_id: int) -> Scrape:
        """Return what a broker says of itself, counted since its process began."""
        return look([self._admin_ports[node_id]])


def size_of(folder: Path, pattern: str) -> int:
    """Return the bytes of the files below a folder; what goes away meanwhile counts as nothing."""
    size = 0
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                size += path.stat().st_size
    return size


def _drop(line: str) -> None:
    """Ready lines have no place in the picture."""
