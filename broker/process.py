"""A process that is one broker: the real world, the signals, the garbage collector.

Owns: the five seams as the operating system has them, and the life of the process around that of the broker.
Does not own: the broker (server). Invariant: a signal ends in a clean stop with exit code 0; what keeps the
broker from starting is one line.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from broker.config.broker import BrokerConfig
from broker.config.values import ConfigError
from broker.control.directories import StartupError
from broker.coordinators.java_hash import java_hash_kept
from broker.freed_memory import FreedMemory, c_heap, watch_freed_memory
from broker.net.descriptors import raise_descriptor_limit
from broker.net.tcp import TcpNetwork
from broker.ports import World
from broker.server import SYNCS_AT_ONCE, Broker
from protocol.primitives import uuid_of
from protocol.records import lone_record_size
from remote.store.lane_threads import LaneThreads
from remote.store.location import BadStoreUrl, FileLocation, StoreLocation, parse_store_url
from remote.store.metered import StoreStats
from remote.store.object_store import ObjectStore
from remote.store.stores import open_lane, open_store
from remote.store.tempo import Tempo
from storage.files import DiskFiles
from storage.log_manager import LogDirError

logger = logging.getLogger(__name__)

T = TypeVar("T")

GC_THRESHOLDS: Final = (4_000, 8, 3_000)
"""A middle collection looks through 40,000 objects, a little more than the first two numbers' product, which
takes 10 ms while rows of a large request are made; with 10,000 and 10 it took up to 40 ms. A full one takes
200 ms with two million objects; it is as rare as with (50,000, 20, 100), and what was there at the start is
frozen."""

REMEMBERED: Final = (uuid_of, lone_record_size, java_hash_kept)
"""What is remembered of thousands of values that clients name: to find it again costs a microsecond, and what
was remembered in a large request lies between the rows of that."""


def run(
    config: BrokerConfig,
    store_url: str | None,
    admin: str | None,
    print_ready: Callable[[str], None],
    ignored: Sequence[str] = (),
    end: int | None = None,
) -> None:
    """Run one broker on the real world until a signal, or until there is no more to read from the descriptor
    `end`; then a clean stop ends the process. StartupError says in one line what prevented the start.
    `ignored` was given besides the settings and means nothing."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    gc.set_threshold(*GC_THRESHOLDS)
    if config.ignored or ignored:
        logger.info("accepted without effect: %s", ", ".join((*sorted(config.ignored), *sorted(ignored))))
    for warning in config.warnings:
        logger.warning("%s", warning)
    raise_descriptor_limit()
    admin_address = _address(admin) if admin is not None else None
    store = _store_name(config, store_url)
    try:
        world = real_world(config, store_url)
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from error
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_serve(config, world, admin_address, store, print_ready, end))
        except LogDirError as error:
            raise StartupError(str(error)) from error


async def _serve(
    config: BrokerConfig,
    world: World,
    admin: tuple[str, int] | None,
    store: str,
    print_ready: Callable[[str], None],
    end: int | None,
) -> None:
    broker = Broker(config, world, admin=admin)
    broker.warms_codecs = True
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # signal.signal would raise inside a transport's callback, where uvloop swallows it
        loop.add_signal_handler(number, broker.request_stop)
    if end is not None:
        loop.add_reader(end, _stop_at, end, broker.request_stop)
    loop.set_default_executor(ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="disk"))
    try:
        if await broker.start():
            gc.freeze()
            if (heap := c_heap([cache.cache_clear for cache in REMEMBERED])) is not None:
                watch_freed_memory(loop, FreedMemory(heap))
            first = next(iter(broker.listeners.values()))
            host = f"[{first.host}]" if ":" in first.host else first.host or world.host_name
            print_ready(f"ready node={config.node_id} listen={host}:{first.port} store={store}")
            await broker.run_until_stopped()
            logger.info("node %d stopped", config.node_id)
        else:
            logger.info("node %d stopped before it was ready", config.node_id)
        sys.stdout.flush()
        # Everything is closed. Python would wait for a thread that a silent store may hold, and without the
        # loop's handlers one more signal would end a clean stop with another exit code.
        os._exit(0)
    finally:
        if world.wal_store is not None:
            await world.wal_store.close()
        await world.store.close()


def _stop_at(end: int, request_stop: Callable[[], None]) -> None:
    """Discard what came from `end`, and stop once nothing can come any more."""
    try:
        is_open = bool(os.read(end, 4096))
    except OSError:
        is_open = False
    if not is_open:
        asyncio.get_running_loop().remove_reader(end)
        logger.info("standard input has ended, so the broker stops")
        request_stop()


def real_world(config: BrokerConfig, store_url: str | None) -> World:
    files, stats, lane_stats, tempo = DiskFiles(), StoreStats(), StoreStats(), Tempo()
    location = _store_location(config, store_url)
    return World(
        files=files,
        network=TcpNetwork(
            send_buffer_bytes=config.socket_send_buffer_bytes,
            receive_buffer_bytes=config.socket_receive_buffer_bytes,
        ),
        store=store_at(location, stats, tempo),
        rival_store=store_at(location, StoreStats()),
        wal_store=_lane(config, location, lane_stats),
        now_ms=wall_clock_ms,
        cpu_s=time.thread_time,
        elapsed_s=time.perf_counter,
        watch=watch,
        random=random.Random(),
        offload=offload,
        host_name=socket.gethostname(),
        store_stats=stats,
        wal_store_stats=lane_stats,
        tempo=tempo,
    )


def watch(every_s: float, look: Callable[[], None]) -> Callable[[], None]:
    """Call `look` in a thread of its own until what is returned is called."""
    is_over = threading.Event()

    def look_on() -> None:
        while not is_over.wait(every_s):
            look()

    threading.Thread(target=look_on, name="loop watch", daemon=True).start()
    return is_over.set


def store_at(location: StoreLocation, stats: StoreStats, tempo: Tempo | None = None) -> ObjectStore:
    return open_store(
        location,
        files=DiskFiles(),
        offload=offload,
        now_ms=wall_clock_ms,
        rng=random.Random(),
        environ=os.environ,
        stats=stats,
        tempo=tempo,
    )


def _lane(config: BrokerConfig, location: StoreLocation, stats: StoreStats) -> ObjectStore | None:
    if not config.remote_log_wal_storage_system_enable:
        return None
    return open_lane(
        location,
        files=DiskFiles(),
        # threads of its own: a store that hangs must not hold up the syncs of the logs
        offload=LaneThreads(),
        now_ms=wall_clock_ms,
        rng=random.Random(),
        environ=os.environ,
        stats=stats,
        syncs=config.remote_wal_local_sync,
    )


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251


async def offload(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


def _store_location(config: BrokerConfig, store_url: str | None) -> StoreLocation:
    if store_url is None:
        return FileLocation(os.path.join(config.log_dirs[0], "store"))
    try:
        return parse_store_url(store_url, os.environ)
    except BadStoreUrl as error:
        raise ConfigError(f"--store {error}") from None


def _store_name(config: BrokerConfig, store_url: str | None) -> str:
    return store_url or f"file://{os.path.abspath(config.log_dirs[0])}/store"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--admin {text}: give HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
