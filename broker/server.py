"""A broker, built once and in plain code, and its life from start to clean stop.

Owns: constructing every component, the root TaskGroup and all background work, the order of start and stop,
and for a process of its own: the real world, the signals, the garbage collector. Does not own: any behaviour
of a component. Invariant: nobody is answered before the cluster was joined and every log is open; a stop that
returns left the clean-shutdown marker; a background task that dies takes the broker down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.admin.metrics import Metrics
from broker.config.broker import BrokerConfig
from broker.config.topics import log_config
from broker.config.values import ConfigError, ResourceType
from broker.control.cluster import Cluster
from broker.control.directories import StartupError
from broker.control.image import Delta
from broker.coordinators.groups.coordinator import GroupCoordinator
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.configs import ConfigHandlers
from broker.handlers.dispatch import Dispatcher
from broker.handlers.fetch import Fetch
from broker.handlers.follower_fetch import ReplicaFetch
from broker.handlers.groups import GroupHandlers
from broker.handlers.log_dirs import LogDirHandlers
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.peers import PeerHandlers
from broker.handlers.produce import Produce
from broker.handlers.producers import ProducerHandlers
from broker.handlers.replicas import ReplicaHandlers
from broker.handlers.topics import TopicHandlers
from broker.net.server import Limits, NetworkServer
from broker.net.tcp import TcpNetwork
from broker.ports import Listening, World
from broker.replicas.fetch_sessions import FetchSessions
from broker.replicas.fetcher import ReplicaFetchers
from broker.replicas.isr import IsrManager
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.purgatory import Purgatory
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.throttle import Throttle
from protocol.apis import SERVED
from protocol.messages import load
from remote.store.location import BadStoreUrl, FileLocation, StoreLocation, parse_store_url
from remote.store.metered import StoreStats
from remote.store.object_store import ObjectStore
from remote.store.stores import open_store
from storage.files import DiskFiles
from storage.log_manager import CleanerSettings, Intervals, LogDirError, LogManager

if TYPE_CHECKING:
    from broker.admin.http import AdminHttp

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAINTAIN_EVERY_S: Final = 1.0
SYNCS_AT_ONCE: Final = 32
FILE_DESCRIPTORS: Final = 256
"""That many connections never get, or a quarter where fewer than 1,024 may be open."""
WARM_PAUSE_S: Final = 0.02
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""A full collection takes 200 ms with two million objects; frozen and rarely run it costs under 2 %."""


@dataclass(slots=True, kw_only=True)
class Components:
    """Everything a handler may reach."""

    config: BrokerConfig
    world: World
    logs: LogManager
    cluster: Cluster
    purgatory: Purgatory
    replicas: ReplicaManager
    isr: IsrManager
    groups: GroupCoordinator
    fetch_sessions: FetchSessions
    metrics: Metrics
    network: NetworkServer = field(init=False)
    absolute_path: Callable[[str], str] = os.path.abspath


class Broker:
    """`await start()`, and clients may connect to `listeners`; `await stop()` leaves everything clean."""

    def __init__(self, config: BrokerConfig, world: World, *, admin: tuple[str, int] | None = None) -> None:
        self.config = config
        self.world = world
        self.listeners: dict[str, Listening] = {}
        self.admin: AdminHttp | None = None
        self.is_ready = False
        self.warms_codecs = False
        """Loads every codec in idle moments after ready; for a process that stays."""
        self.components: Components
        self._admin_address = admin
        self._root: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup
        self._background: set[asyncio.Task[None]] = set()
        self._fetchers: ReplicaFetchers
        self._stopping = asyncio.Event()
        self._failure: str | None = None

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "not ready"
        ports = ", ".join(f"{name}={each.host}:{each.port}" for name, each in self.listeners.items())
        return f"<Broker {self.config.node_id} {state} {ports}>"

    # ------------------------------------------------------------------------------------------------- life

    async def start(self) -> bool:
        """Returns when clients may connect; raises what kept the broker from it. False: it was asked to stop
        before, and has."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._root = asyncio.get_running_loop().create_task(self._run(ready), name="broker")
        await asyncio.wait((ready, self._root), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return True
        await self.run_until_stopped()
        return False

    async def run_until_stopped(self) -> None:
        """Returns after a clean stop; raises what ended the broker otherwise."""
        assert self._root is not None, "start() comes first"
        await asyncio.shield(self._root)
        if self._failure is not None:
            raise StartupError(self._failure)

    def request_stop(self) -> None:
        self._stopping.set()

    async def stop(self) -> None:
        """Answers what was asked, closes every log and leaves the clean-shutdown marker."""
        self.request_stop()
        if self._root is not None:
            await self._root

    def fail(self, reason: str) -> None:
        """This broker may not go on (its node id is taken over): stop, and say why."""
        self._failure = reason
        self.request_stop()

    def _directory_failed(self, path: str, error: OSError) -> None:
        self.components.replicas.directory_failed(path, error)
        logs = self.components.logs
        if len(logs.offline_dirs) == len(logs.dirs):
            # as Kafka: nothing is left to serve, and whoever runs this process should know
            self.fail(f"every log directory has failed: {', '.join(logs.dirs)}")

    async def _run(self, ready: asyncio.Future[None]) -> None:
        self._build()
        logs = self.components.logs
        logs.lock_and_open()
        is_clean = False
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
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
            self.components.network.stop_listening()
            if self.admin is not None:
                await self.admin.stop()
            logs.close(clean=is_clean, broker_epoch=self.components.cluster.broker_epoch)

    def _build(self) -> None:
        """Every component, once."""
        config, world = self.config, self.world
        loop = asyncio.get_running_loop()
        purgatory = Purgatory(loop)
        logs = LogManager(
            files=world.files,
            dirs=config.log_dirs,
            now_ms=world.now_ms,
            random=world.random,
            defaults=log_config(config, {}),
            on_dir_failure=lambda path, error: self._directory_failed(path, error),
            background=lambda job, done: self.spawn(_offloaded(world, job, done)),
            intervals=_intervals(config),
            cleaner=_cleaner(config),
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        cluster = Cluster(config, world, on_fenced=self.fail)
        replicas = ReplicaManager(
            node_id=config.node_id,
            world=world,
            logs=logs,
            purgatory=purgatory,
            log_config=cluster.log_config,
            spawn=self.spawn,
            clock=loop.time,
            lag_ms=config.replica_lag_time_max_ms,
            flush_single=config.log_flush_single_replica,
        )
        cluster.subscribe(replicas.apply)
        cluster.subscribe(self._follow_configs)
        sessions = FetchSessions(
            max_sessions=config.max_incremental_fetch_session_cache_slots, randrange=world.random.randrange
        )
        self.components = components = Components(
            config=config,
            world=world,
            logs=logs,
            cluster=cluster,
            purgatory=purgatory,
            replicas=replicas,
            isr=IsrManager(replicas=replicas, controller=cluster),
            groups=GroupCoordinator(config=config, world=world, cluster=cluster, replicas=replicas),
            fetch_sessions=sessions,
            metrics=Metrics(),
        )
        cluster.subscribe(components.metrics.follow)
        self._fetchers = ReplicaFetchers(
            replicas=replicas,
            channels=cluster.channels,
            broker_epoch=lambda: cluster.broker_epoch,
            config=lambda: cluster.broker_config,
            throttle=self._throttle(lambda: cluster.broker_config.follower_replication_throttled_rate),
        )
        followers = ReplicaFetch(
            node_id=config.node_id,
            throttle=self._throttle(lambda: cluster.broker_config.leader_replication_throttled_rate),
            replicas=replicas,
            cluster=cluster,
            sessions=sessions,
            purgatory=purgatory,
            now_ms=world.now_ms,
            max_bytes=config.fetch_max_bytes,
        )
        dispatcher = Dispatcher(
            broker=components,
            cluster=cluster,
            replicas=replicas,
            inter_broker_listener=config.inter_broker_listener,
            requests=components.metrics.requests,
            errors=components.metrics.errors,
            handlers={
                **OffsetHandlers(replicas=replicas, purgatory=purgatory).routes(),
                **ProducerHandlers(replicas=replicas, cluster=cluster).routes(),
                **LogDirHandlers(
                    logs=logs,
                    files=world.files,
                    log_dirs=config.log_dirs,
                    absolute_path=components.absolute_path,
                ).routes(),
                **GroupHandlers(groups=components.groups, cluster=cluster).routes(),
                **ApiVersionsHandler(cluster=cluster).routes(),
                **MetadataHandlers(cluster=cluster).routes(),
                **TopicHandlers(cluster=cluster).routes(),
                **ConfigHandlers(cluster=cluster).routes(),
                **ReplicaHandlers(
                    cluster=cluster,
                    logs=logs,
                    now_ms=world.now_ms,
                    absolute_path=components.absolute_path,
                ).routes(),
                **PeerHandlers(cluster=cluster).routes(),
            },
            produce=Produce(
                replicas=replicas,
                cluster=cluster,
                purgatory=purgatory,
                now_ms=world.now_ms,
                offload=world.offload,
                spawn=self.spawn,
            ),
            fetch=Fetch(
                followers=followers,
                near=ReplicaSelector(lambda: cluster.image) if config.is_rack_aware else None,
                replicas=replicas,
                cluster=cluster,
                sessions=sessions,
                purgatory=purgatory,
                now_ms=world.now_ms,
                max_bytes=config.fetch_max_bytes,
            ),
            spawn=self.spawn,
        )
        components.network = NetworkServer(
            loop=loop,
            network=world.network,
            service=dispatcher,
            limits=_limits(config),
            has_room=self._has_room,
        )
        if isinstance(world.files, DiskFiles):
            world.files.make_room = logs.release_files

    def _has_room(self, descriptor: int) -> bool:
        """Whether a new connection leaves files what they need. The kernel gives out the lowest free number,
        so a low one says that many are free."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        bound = limit - min(FILE_DESCRIPTORS, limit // 4)
        if limit < 0 or descriptor < bound:
            return True
        self.components.logs.release_files()
        try:
            lowest = os.dup(descriptor)
        except OSError:
            return False
        os.close(lowest)
        return lowest < bound

    def _throttle(self, rate: Callable[[], int]) -> Throttle:
        return Throttle(
            rate=rate,
            clock=asyncio.get_running_loop().time,
            samples=self.config.replication_quota_window_num,
            sample_s=self.config.replication_quota_window_size_seconds,
        )

    def _follow_configs(self, delta: Delta) -> None:
        if any(resource is ResourceType.BROKER for resource, _name in delta.configs_changed):
            self._take_configs()

    def _take_configs(self) -> None:
        """What of the broker's own dynamic configuration reaches others than the logs of its topics."""
        config, logs = self.components.cluster.broker_config, self.components.logs
        self.components.network.limits = _limits(config)
        logs.cleaner = _cleaner(config)
        if logs.producer_expiration_ms != config.producer_id_expiration_ms:
            logs.producer_expiration_ms = config.producer_id_expiration_ms
            for held in logs.logs.values():
                held.producer_expiration_ms = config.producer_id_expiration_ms

    async def _is_opened(self) -> bool:
        """False when it was asked to stop before: whatever the start waits for then, it waits no longer."""
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
        """Ports first, because the registration names them. Clients who connect early wait unread; the admin
        pages tell from now on that this start takes its time."""
        components = self.components
        for listener in self.config.listeners:
            with _named(listener.host, listener.port):
                self.listeners[listener.name] = await components.network.listen(
                    listener.name, listener.host, listener.port
                )
        if self._admin_address is not None:
            from broker.admin.http import AdminHttp

            self.admin = AdminHttp(components, is_ready=lambda: self.is_ready)
            with _named(*self._admin_address):
                await self.admin.start(*self._admin_address)
        ports = {name: listening.port for name, listening in self.listeners.items()}
        await components.cluster.read()
        self._take_configs()
        await _in_slices(components.logs.loading(components.cluster.log_config, components.cluster.topic_id))
        holds = None if components.logs.offline_dirs else components.replicas.holds
        await components.cluster.join(ports=ports, task_group=self._tasks, holds=holds)
        self._take_configs()
        await _in_slices(components.replicas.load(components.cluster.image))
        self._background.update(components.isr.start(self._tasks))
        self._fetchers.start(self._tasks)
        await components.groups.start(self._tasks)
        components.network.open()

    def _after_ready(self) -> None:
        self.spawn(self._maintain())
        self.spawn(self._clean())
        if self.warms_codecs:
            self.spawn(self._warm())

    async def _close(self) -> None:
        components = self.components
        await components.cluster.leave()
        self._fetchers.stop()
        components.network.stop_listening()
        await components.groups.stop()
        for task in list(self._background):
            # not before its first step: what it was given to await would never be
            asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.gather(*self._background, return_exceptions=True)
        await components.network.close()
        await components.cluster.stop()
        await self._sync_logs()

    async def _sync_logs(self) -> None:
        """Several logs at a time: a disk serves many syncs with one commit."""
        jobs = self.components.logs.closing()

        async def work() -> None:
            for job, done in jobs:
                await _offloaded(self.world, job, done)

        await asyncio.gather(*(work() for _ in range(SYNCS_AT_ONCE)))

    # ------------------------------------------------------------------------------------------- background

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs in the root TaskGroup, until it ends or the broker stops."""
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _maintain(self) -> None:
        """Retention, delayed deletes, flushes by time, checkpoints; logs that could not be opened."""
        while True:
            await asyncio.sleep(MAINTAIN_EVERY_S)
            for _ in self.components.logs.maintain(self.world.now_ms()):
                await asyncio.sleep(0)
            for _ in self.components.replicas.reopen():
                await asyncio.sleep(0)

    async def _clean(self) -> None:
        """Compaction, at the pace its slices ask for."""
        cluster = self.components.cluster
        while self.config.log_cleaner_enable:
            backoff_s = cluster.broker_config.log_cleaner_backoff_ms / 1000
            await asyncio.sleep(max(backoff_s, MAINTAIN_EVERY_S))
            for wait_ms in self.components.logs.clean(self.world.now_ms()):
                await asyncio.sleep(wait_ms / 1000)

    async def _warm(self) -> None:
        """Codecs load on first use; all of them take 0.7 s, so they come one by one while nobody asks."""
        requests = self.components.metrics.requests
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
        # asyncio tells the address once more, and a name that is not found has a number of its own
        number = error.errno or 0
        why = os.strerror(number) if number in errno.errorcode else error.strerror or error
        raise StartupError(f"cannot listen on {host}:{port}: {why}") from error


async def _in_slices(steps: Iterable[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


async def _offloaded(world: World, job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
    try:
        await world.offload(job)
    except OSError as error:
        done(error)
    else:
        done(None)


def _cleaner(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enabled=config.log_cleaner_enable,
        dedupe_bytes=config.log_cleaner_dedupe_buffer_size,
        io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )


def _intervals(config: BrokerConfig) -> Intervals:
    return Intervals(
        retention_ms=config.log_retention_check_interval_ms,
        recovery_points_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_starts_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        high_watermarks_ms=config.replica_high_watermark_checkpoint_interval_ms,
    )


def _first_cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _limits(config: BrokerConfig) -> Limits:
    return Limits(
        request_bytes=config.socket_request_max_bytes,
        connections=config.max_connections,
        connections_per_ip=config.max_connections_per_ip,
        connections_per_ip_overrides=config.max_connections_per_ip_overrides,
        creation_rate=config.max_connection_creation_rate,
        idle_ms=config.connections_max_idle_ms,
        queued_bytes=config.queued_max_request_bytes,
        backlog=config.socket_listen_backlog_size,
    )


# --------------------------------------------------------------------------------------- a process of its own


def run(
    config: BrokerConfig,
    store_url: str | None,
    admin: str | None,
    print_ready: Callable[[str], None],
) -> None:
    """Runs one broker on the real world until a signal, whose clean stop ends the process; StartupError says
    in one line what prevented that."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    gc.set_threshold(*GC_THRESHOLDS)
    if config.ignored:
        logger.info("accepted without effect: %s", ", ".join(sorted(config.ignored)))
    raise_descriptor_limit()
    admin_address = _address(admin) if admin is not None else None
    store = _store_name(config, store_url)
    try:
        world = real_world(config, store_url)
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from error
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_serve(config, world, admin_address, store, print_ready))
        except LogDirError as error:
            raise StartupError(str(error)) from error


def raise_descriptor_limit() -> None:
    """Every connection and every segment in use takes a descriptor; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS names an infinite limit and refuses it
            logger.warning("open files stay limited to %d: %s", soft, error)


async def _serve(
    config: BrokerConfig,
    world: World,
    admin: tuple[str, int] | None,
    store: str,
    print_ready: Callable[[str], None],
) -> None:
    broker = Broker(config, world, admin=admin)
    broker.warms_codecs = True
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # signal.signal would raise inside a transport's callback, where uvloop swallows it
        loop.add_signal_handler(number, broker.request_stop)
    loop.set_default_executor(ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="disk"))
    try:
        if await broker.start():
            gc.freeze()
            first = next(iter(broker.listeners.values()))
            host = f"[{first.host}]" if ":" in first.host else first.host or world.host_name
            print_ready(f"ready node={config.node_id} listen={host}:{first.port} store={store}")
            await broker.run_until_stopped()
            logger.info("node %d stopped", config.node_id)
        else:
            logger.info("node %d stopped before it was ready", config.node_id)
        sys.stdout.flush()
        # All is closed. A store that does not answer may hold a thread, which Python would wait for; and
        # without the loop's handlers one more signal would end a clean stop with another exit code.
        os._exit(0)
    finally:
        await world.store.close()


def real_world(config: BrokerConfig, store_url: str | None) -> World:
    files, stats = DiskFiles(), StoreStats()
    location = _store_location(config, store_url)
    return World(
        files=files,
        network=TcpNetwork(
            send_buffer_bytes=config.socket_send_buffer_bytes,
            receive_buffer_bytes=config.socket_receive_buffer_bytes,
        ),
        store=store_at(location, stats),
        rival_store=store_at(location, StoreStats()),
        now_ms=wall_clock_ms,
        random=random.Random(),
        offload=offload,
        host_name=socket.gethostname(),
        store_stats=stats,
    )


def store_at(location: StoreLocation, stats: StoreStats) -> ObjectStore:
    return open_store(
        location,
        files=DiskFiles(),
        offload=offload,
        now_ms=wall_clock_ms,
        rng=random.Random(),
        environ=os.environ,
        stats=stats,
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
