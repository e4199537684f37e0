"""Three brokers whose topics use the WAL tier or do not, and one window of time in which they are watched.

Owns the settings of both kinds, the stores, a topic whose partitions are all led by one broker, a store that
refuses the tier's objects, and what is read at both ends of a window. Does not own the processes (brokers,
nodes, minio), the clients, nor what a figure must reach.
Invariant: the same brokers, with the tier or without it; what is started or written is gone when its block
ends; CPU is that of the brokers alone, without the reading of their metrics.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.console import Failure
from tools.ports import free_port
from tools.scrape import Scrape, look
from tools.versus import brokers
from tools.versus.caller import Caller
from tools.versus.minio import EXECUTABLE, MinioServer
from tools.versus.nodes import Cluster
from tools.versus.rows import Figures
from tools.versus.sockets import BetweenBrokers
from tools.versus.wal_rows import FILE, ON

NODES, LEADER, FOLLOWER = 3, 1, 2
BUCKET = "wal"
SYSTEM = "remote.log.wal.storage.system.enable"
OF_TOPIC = "remote.wal.storage.enable"
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
METADATA_ALONE = {
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
}
STAGES = ("wait", "copy", "told", "report", "get", "append")
SLOW_TURN_S = 0.005


def rack(node_id: int) -> str:
    return f"rack-{node_id}"


@dataclass(slots=True, kw_only=True)
class System:
    """A cluster that runs."""

    cluster: Cluster
    admin_ports: Sequence[int]
    is_on: bool
    store_pid: int | None = None
    """Of a store that is a process of its own."""

    @property
    def leader(self) -> brokers.Broker:
        return self.cluster.nodes[LEADER]

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.cluster.nodes.values()]

    def cpu_s(self) -> float:
        return sum(map(brokers.cpu_s, self.pids))

    def store_cpu_s(self) -> float:
        return 0.0 if self.store_pid is None else brokers.cpu_s(self.store_pid)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic that uses the tier where it is on; every partition is led by the same broker."""
        others = [node_id for node_id in self.cluster.nodes if node_id != LEADER]
        configs = {"min.insync.replicas": str(min(2, len(self.cluster.nodes)))}
        if self.is_on:
            configs[OF_TOPIC] = "true"
        with Caller(self.leader.port) as caller:
            caller.create(topic, configs=configs, replicas=[[LEADER, *others]] * partitions)
        self.cluster.wait_whole()


def settings_of(which: str) -> dict[str, str]:
    return {SYSTEM: str(which == ON).lower()}


@contextlib.contextmanager
def running(
    store: str, which: str, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[System]:
    """Start three brokers on an empty store."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_emptied(folder))
        url, environ, store_pid = stack.enter_context(_store(store, folder / "store"))
        admin_ports = [free_port() for _ in range(NODES)]
        cores = os.sched_getaffinity(0)
        nodes = [
            brokers.Tidewal(
                folder / str(node_id),
                cores,
                name=f"Tidewal {node_id}",
                node_id=node_id,
                store=url,
                settings={
                    **settings_of(which),
                    "replica.selector.class": RACK_AWARE,
                    "broker.rack": rack(node_id),
                    **(settings or {}),
                },
                environ=environ,
                arguments=("--admin", f"127.0.0.1:{port}"),
            )
            for node_id, port in enumerate(admin_ports, LEADER)
        ]
        cluster = stack.enter_context(Cluster("Tidewal", nodes))
        cluster.rise()
        cluster.wait_member_of_all()
        yield System(cluster=cluster, admin_ports=admin_ports, is_on=which == ON, store_pid=store_pid)


@contextlib.contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _store(store: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str], int | None]]:
    folder.mkdir(parents=True)
    if store == FILE:
        yield f"file://{folder}", {}, None
        return
    with contextlib.closing(MinioServer(EXECUTABLE, folder)) as minio:
        minio.make_bucket(BUCKET)
        yield minio.url(BUCKET), minio.environ, minio.process.pid


@contextlib.contextmanager
def refused(which: str, folder: Path) -> Iterator[brokers.Broker]:
    """Start one broker on a core of its own, with a local store that refuses every object of the tier: where
    their folder should be there is a file."""
    store, settings = folder / "store", {**settings_of(which), **METADATA_ALONE}
    core, _ = brokers.two_cores()
    broker = brokers.Tidewal(folder / "broker", {core}, store=f"file://{store}", settings=settings)
    with _emptied(folder), broker:
        store.mkdir()
        (store / "wal").write_bytes(b"")
        yield broker.start()


# --- a window ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What happened between two moments. `told` is what the brokers counted meanwhile, in `told_s`, a little
    longer: it takes time to ask them."""

    start_s: float
    end_s: float
    cpu_s: float
    store_cpu_s: float
    moved_bytes: int
    told: Scrape
    told_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def per_s(self, name: str, **labels: str) -> float:
        return self.told.value(name, **labels) / self.told_s


def watch(system: System, seconds: float) -> Seen:
    with BetweenBrokers(system.pids, [node.port for node in system.cluster.nodes.values()]) as between:
        before_s, before = _look(system)
        moved_bytes, cpu_s, start_s = between.so_far(), system.cpu_s(), time.perf_counter()
        store_cpu_s = system.store_cpu_s()
        threading.Event().wait(seconds)
        moved_bytes, cpu_s = between.so_far() - moved_bytes, system.cpu_s() - cpu_s
        store_cpu_s = system.store_cpu_s() - store_cpu_s
        end_s = time.perf_counter()
        after_s, after = _look(system)
    for node in system.cluster.up:
        node.check_running()
    return Seen(
        start_s=start_s,
        end_s=end_s,
        cpu_s=cpu_s,
        store_cpu_s=store_cpu_s,
        moved_bytes=moved_bytes,
        told=after - before,
        told_s=after_s - before_s,
    )


def _look(system: System) -> tuple[float, Scrape]:
    """Return what they say, the leader first, and when it did."""
    began_s = time.perf_counter()
    first = look(system.admin_ports[:1])
    at_s = (began_s + time.perf_counter()) / 2
    return at_s, first + look(system.admin_ports[1:])


TOPIC_METRICS = "kafka_server_brokertopicmetrics"
WAL = "tidewal_wal"


def figures(seen: Seen, topic: str, *, is_on: bool) -> dict[str, float]:
    """Return what every row shows. With the tier on, a window in which nothing was stored is a Failure."""
    produced = seen.per_s(f"{TOPIC_METRICS}_bytesin_total", topic=topic)
    if not produced:
        raise Failure("nothing was produced while it counted")
    copied = seen.per_s(f"{TOPIC_METRICS}_replicationbytesin_total", topic=topic)
    found = {
        "mb_per_s": produced / 1e6,
        "gb": produced * seen.seconds / 1e9,
        "cpu_cores": seen.cpu_s / seen.seconds,
        "cpu_s_per_gb": seen.cpu_s / (produced * seen.seconds) * 1e9,
        "store_s_per_gb": seen.store_cpu_s / (produced * seen.seconds) * 1e9,
        "record_share": copied / produced,
        "socket_share": seen.moved_bytes / seen.seconds / produced,
    }
    if not is_on:
        return found
    objects, stored = seen.per_s(f"{WAL}_objects_total"), seen.per_s(f"{WAL}_stored_bytes_total")
    if not objects:
        raise Failure("the tier is on, and no object was stored while it counted")
    turns = seen.told.histogram(f"{WAL}_cut_loop_seconds")
    found |= {
        "object_kb": stored / objects / 1e3,
        "interval_ms": 1e3 / objects,
        "direct_share": seen.per_s(f"{WAL}_direct_bytes_out_total") / produced,
        "cut_over_5ms": turns.above(SLOW_TURN_S),
        "cut_ms": 1e3 * turns.quantile(1.0),
    }
    for stage in STAGES:
        found[f"{stage}_p99_ms"] = 1e3 * seen.told.histogram(f"{WAL}_{stage}_seconds").quantile(0.99)
    return found


def means_s(seen: Seen) -> Figures:
    return {stage: seen.told.histogram(f"{WAL}_{stage}_seconds").mean for stage in STAGES}
