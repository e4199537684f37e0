"""`make bench-tier`: what the cold tier costs and gives, on a local store, on MinIO and beside Apache Kafka.

Owns the order of the measurement, its sizes, and what is done in each row. Does not own the brokers and their
tiers (tiered, nodes), the clients (load, tier_clients), the rows and goals (tier_rows).
Invariant: all systems do a row in turn before its next round, with the same clients on all cores of the
machine; what a row compares was measured in the same round; what was started or written is gone at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, nodes, rows, tier_ready, tier_rows, tiered
from tools.versus.caller import LATEST_TIERED, POLL_S, Caller, answers, until
from tools.versus.load import Load, run
from tools.versus.minio import EXECUTABLE
from tools.versus.nodes import SETTLE_S, Cluster
from tools.versus.table import add_report_options
from tools.versus.tier_clients import Client, Samples, Spec
from tools.versus.tier_rows import KAFKA, LOCAL, MINIO, OURS, Row, percentile, within
from tools.versus.tiered import UNPACED, Tiered, Watch

LIVE, COLD, WARM = "live", "cold", "warm"
PARTITIONS = 5
LARGE = 10
RECORD_BYTES = 2000
PRODUCER_MB_PER_S = 10
TAIL_MB_PER_S = 1
CONSUMERS = 100
CONSUMERS_MB_PER_S = 50
SETTLE_CLIENT_S = 2.0
MEMORY_EVERY_S = 0.02
FLAG = "follower.fetch.last.tiered.offset.enable"
NODES, STAYER, JOINER = 3, 1, 2
CHILD_S_MAX = 120.0

Found = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    rounds: int = 3
    segment_bytes: int = 16_000_000
    segments: int = 50
    idle_s: float = 5.0
    quota_bytes_per_s: int = 20_000_000
    large_bytes: int = 1_000_000_000
    cold_bytes: int = 1_000_000_000
    many_s: float = 10.0
    joined_bytes: int = 2_000_000_000
    joined_local_bytes: int = 1_000_000_000
    live_segments: int = 100_000

    def scaled(self, share: float) -> Sizes:
        """Return less of everything, but not so little that a row means nothing."""
        if share >= 1:
            return self
        return dataclasses.replace(
            self,
            segments=max(3 * PARTITIONS, int(self.segments * share)),
            idle_s=max(3.0, self.idle_s * share),
            large_bytes=max(self.segment_bytes, int(self.large_bytes * share)),
            cold_bytes=max(6 * self.segment_bytes, int(self.cold_bytes * share)),
            many_s=max(3.0, self.many_s * share),
            joined_bytes=max(8 * self.segment_bytes, int(self.joined_bytes * share)),
            joined_local_bytes=max(4 * self.segment_bytes, int(self.joined_local_bytes * share)),
        )

    @property
    def segment(self) -> dict[str, str]:
        return {"segment.bytes": str(self.segment_bytes)}


# --- uploads ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A topic with closed segments that are not tiered yet: where they end, and their bytes."""

    system: Tiered
    topic: str
    ends: list[int]
    size: int

    def upload(self) -> None:
        tiered.enable(self.system, self.topic)
        tiered.wait_tiered(self.system.port, self.topic, self.ends)


@contextlib.contextmanager
def _closed_segments(
    system: Tiered, topic: str, partitions: int, *, segment_bytes: int, total_bytes: int
) -> Iterator[Closed]:
    """Make such a topic, and delete it at the end."""
    with Caller(system.port) as caller:
        caller.create(topic, partitions, {"segment.bytes": str(segment_bytes)})
    tiered.fill(system, topic, total_bytes, partitions=partitions)
    ends = tiered.closed_ends(system, topic, partitions)
    if not all(ends):
        raise Failure(f"a partition of {topic} has no closed segment")
    yield Closed(system=system, topic=topic, ends=ends, size=tiered.closed_bytes(system, topic))
    tiered.delete(system, topic)


def _some_segments(system: Tiered, sizes: Sizes, topic: str) -> contextlib.AbstractContextManager[Closed]:
    total_bytes = (sizes.segments + PARTITIONS // 2) * sizes.segment_bytes
    return _closed_segments(
        system, topic, PARTITIONS, segment_bytes=sizes.segment_bytes, total_bytes=total_bytes
    )


def upload(system: Tiered, sizes: Sizes, number: int) -> Found:
    with _some_segments(system, sizes, f"upload-{number}") as closed:
        cpu_s, started_s = brokers.cpu_s(system.broker.pid), time.perf_counter()
        closed.upload()
        elapsed_s = time.perf_counter() - started_s
        cpu_s = brokers.cpu_s(system.broker.pid) - cpu_s
    return {"mb_per_s": closed.size / elapsed_s / 1e6, "cpu_s_per_gb": cpu_s / closed.size * 1e9}


def paced(system: Tiered, sizes: Sizes, number: int) -> Found:
    system.set_quota(sizes.quota_bytes_per_s)
    try:
        return _beside_upload(system, sizes, f"paced-{number}", sizes.quota_bytes_per_s)
    finally:
        system.set_quota(UNPACED)


def unpaced(system: Tiered, sizes: Sizes, number: int) -> Found:
    return _beside_upload(system, sizes, f"unpaced-{number}", None)


def _beside_upload(system: Tiered, sizes: Sizes, topic: str, quota: int | None) -> Found:
    """Produce for a while with nothing beside it, then while segments are uploaded."""
    producer = Spec(
        kind="producer",
        port=system.port,
        pid=system.broker.pid,
        topic=LIVE,
        mb_per_s=PRODUCER_MB_PER_S,
    )
    pings = Spec(kind="pings", port=system.port, pid=system.broker.pid)
    with (
        _some_segments(system, sizes, topic) as closed,
        Client(producer) as sender,
        Client(pings) as asker,
        Watch(system.arrived_bytes) as arrived,
    ):
        _rest(SETTLE_CLIENT_S)
        begun_s = time.perf_counter()
        _rest(sizes.idle_s)
        started_s = time.perf_counter()
        closed.upload()
        ended_s = time.perf_counter()
        sent, asked = sender.stop(), asker.stop()
    found = {
        **_times(sent, begun_s, started_s, ended_s),
        "idle_stall_ms": _longest(asked.at_s, asked.stood_ms, begun_s, started_s),
        "stall_ms": _longest(asked.at_s, asked.stood_ms, started_s, ended_s),
        "idle_trip_ms": _longest(asked.at_s, asked.took_ms, begun_s, started_s),
        "trip_ms": _longest(asked.at_s, asked.took_ms, started_s, ended_s),
        "mb_per_s": closed.size / (ended_s - started_s) / 1e6,
    }
    during = [at for at, when in enumerate(arrived.at_s) if started_s <= when <= ended_s]
    if quota is not None and during:
        span = slice(during[0], during[-1] + 1)
        by_window = tier_rows.rates(arrived.at_s[span], arrived.values[span])
        if by_window:
            found["slowest"], found["fastest"] = min(by_window) / quota, max(by_window) / quota
    return found


def _longest(at_s: Sequence[float], took_ms: Sequence[float], start_s: float, end_s: float) -> float:
    return max(within(at_s, took_ms, start_s, end_s), default=0.0)


def _times(samples: Samples, begun_s: float, started_s: float, ended_s: float) -> Found:
    """Return the 99th percentile before and meanwhile."""
    before = percentile(within(samples.at_s, samples.took_ms, begun_s, started_s), 0.99)
    meanwhile = percentile(within(samples.at_s, samples.took_ms, started_s, ended_s), 0.99)
    return {"idle_p99_ms": before, "p99_ms": meanwhile, "p99_times": meanwhile / before}


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def memory(system: Tiered, sizes: Sizes, number: int) -> Found:
    total_bytes = LARGE * (sizes.large_bytes + sizes.segment_bytes)
    with _closed_segments(
        system, f"large-{number}", LARGE, segment_bytes=sizes.large_bytes, total_bytes=total_bytes
    ) as closed:
        before_mb, started_s = brokers.resident_mb(system.broker.pid), time.perf_counter()
        with Watch(lambda: brokers.resident_mb(system.broker.pid), MEMORY_EVERY_S) as resident:
            closed.upload()
        elapsed_s = time.perf_counter() - started_s
    return {
        "segment_mb": closed.size / LARGE / 1e6,
        "before_mb": before_mb,
        "extra_mb": max(resident.values) - before_mb,
        "mb_per_s": closed.size / elapsed_s / 1e6,
    }


# --- reads ---


def fill_cold(system: Tiered, sizes: Sizes) -> None:
    """Write the same records to a topic that lets go of all that is tiered, and to one that is not tiered."""
    lets_go = {**sizes.segment, "remote.storage.enable": "true", "local.retention.bytes": "1"}
    load = Load(kind="client-produce", record_bytes=RECORD_BYTES, records=sizes.cold_bytes // RECORD_BYTES)
    for topic, configs in ((COLD, lets_go), (WARM, sizes.segment)):
        with Caller(system.port) as caller:
            caller.create(topic, 1, configs)
        run(load, system.broker, topic, None)
    end = tiered.closed_ends(system, COLD, 1)
    tiered.wait_tiered(system.port, COLD, end)
    tiered.wait_let_go(system.port, COLD, end[0])


def cold(system: Tiered, sizes: Sizes, number: int) -> Found:
    load = Load(kind="client-consume", record_bytes=RECORD_BYTES)
    local = rows.figures(run(load, system.broker, WARM, None))
    remote = rows.figures(run(load, system.broker, COLD, None))
    return {
        "mb_per_s": remote["mb_per_s"],
        "local_mb_per_s": local["mb_per_s"],
        "of_local": remote["mb_per_s"] / local["mb_per_s"],
        "cpu_s_per_gb": remote["cpu_s_per_gb"],
        "local_cpu_s_per_gb": local["cpu_s_per_gb"],
    }


def many(system: Tiered, sizes: Sizes, number: int) -> Found:
    return _beside_consumers(system, sizes, 0)


def many_paced(system: Tiered, sizes: Sizes, number: int) -> Found:
    return _beside_consumers(system, sizes, CONSUMERS_MB_PER_S)


def _beside_consumers(system: Tiered, sizes: Sizes, mb_per_s: float) -> Found:
    """Read at a log's end for a while with nothing beside it, then while many read what is cold."""
    with Caller(system.port) as caller:
        end = caller.offset(COLD, 0, LATEST_TIERED) + 1
    tail = Spec(kind="tail", port=system.port, pid=system.broker.pid, topic=LIVE, mb_per_s=TAIL_MB_PER_S)
    readers = Spec(
        kind="readers",
        port=system.port,
        pid=system.broker.pid,
        topic=COLD,
        many=CONSUMERS,
        end=end,
        mb_per_s=mb_per_s,
    )
    with Client(tail) as tailing:
        _rest(SETTLE_CLIENT_S)
        begun_s = time.perf_counter()
        _rest(sizes.idle_s)
        before_mb, started_s = brokers.resident_mb(system.broker.pid), time.perf_counter()
        with (
            Watch(lambda: brokers.resident_mb(system.broker.pid), MEMORY_EVERY_S) as resident,
            Client(readers) as reading,
        ):
            _rest(sizes.many_s)
            ended_s = time.perf_counter()
            read = reading.stop()
        tailed = tailing.stop()
    if not read.bytes:
        raise Failure(f"{system.name}: {CONSUMERS} consumers got nothing in {sizes.many_s:.0f} s")
    first_s = read.at_s[0]
    return {
        **_times(tailed, begun_s, max(started_s, first_s), ended_s),
        "mb_per_s": sum(within(read.at_s, read.bytes, started_s, ended_s)) / (ended_s - first_s) / 1e6,
        "extra_mb": max(resident.values) - before_mb,
    }


# --- an empty disk ---


def join(name: str, sizes: Sizes, folder: Path) -> dict[str, Found]:
    """Let a follower begin anew on an empty disk, without the flag and with it. Both rows' figures."""
    with _cluster(name, folder) as cluster:
        cluster.rise()
        cluster.wait_member_of_all()
        node = cluster.nodes[STAYER]
        configs = {
            **sizes.segment,
            "remote.storage.enable": "true",
            "local.retention.bytes": str(sizes.joined_local_bytes),
        }
        with Caller(node.port) as caller:
            caller.create(COLD, configs=configs, replicas=[[STAYER, JOINER]])
        leader = Tiered(name=name, broker=node, objects=folder)
        tiered.fill(leader, COLD, sizes.joined_bytes)
        end = tiered.closed_ends(leader, COLD, 1)
        tiered.wait_tiered(node.port, COLD, end)
        floor = end[0] * (sizes.joined_bytes - sizes.joined_local_bytes - 2 * sizes.segment_bytes)
        tiered.wait_let_go(node.port, COLD, floor // sizes.joined_bytes)
        cluster.wait_whole()
        copy = _join(cluster, is_flagged=False)
        flagged = _join(cluster, is_flagged=True)
    flagged["of_copy"] = flagged["seconds"] / copy["seconds"]
    flagged["of_copy_once_ready"] = _once_ready_s(flagged) / _once_ready_s(copy)
    flagged["over_mb"] = flagged["copied_mb"] - 2 * sizes.segment_bytes / 1e6
    return {"join-copy": copy, "join": flagged}


def _join(cluster: Cluster, *, is_flagged: bool) -> Found:
    """Kill the follower, wait until it is out of the ISR, and start it on an empty disk."""
    node = cluster.nodes[JOINER]
    node.settings[FLAG] = str(is_flagged).lower()
    old = node.renew()
    cluster.kill(JOINER)
    shutil.rmtree(old)
    until(lambda: _in_sync(cluster) == {STAYER}, "ISR without the one that was killed", SETTLE_S)
    started_s = time.perf_counter()
    cluster.bring_back(JOINER)
    until(lambda: answers_now(node.port), f"{node.name} that is ready", SETTLE_S)
    ready_s = time.perf_counter() - started_s
    until(lambda: _in_sync(cluster) == {STAYER, JOINER}, f"{node.name} in the ISR", SETTLE_S)
    seconds = time.perf_counter() - started_s
    copied_mb = cluster.stored_bytes(JOINER, COLD) / 1e6
    cluster.wait_whole()
    return {"copied_mb": copied_mb, "seconds": seconds, "ready_s": ready_s}


def _once_ready_s(found: Found) -> float:
    return max(found["seconds"] - found["ready_s"], POLL_S)


def answers_now(port: int) -> bool:
    with contextlib.suppress(OSError):
        return answers(port)
    return False


def _in_sync(cluster: Cluster) -> set[int]:
    with Caller(cluster.nodes[STAYER].port) as caller:
        return set(caller.metadata(COLD).topics[0].partitions[0].isr_nodes)


def _cluster(name: str, folder: Path) -> Cluster:
    """Three nodes, so that the controllers have a majority without one."""
    tier = folder / "tier"
    tier.mkdir()
    if name == KAFKA:
        settings = {**tiered.kafka_settings(tier), **tiered.CLUSTER_SETTINGS}
        return nodes.of_kafka(folder, NODES, name=name, settings=settings)
    settings = {**tiered.SETTINGS, **tiered.CLUSTER_SETTINGS}
    return nodes.of_tidewal(folder, NODES, name=name, store=f"file://{tier}", settings=settings)


# --- the fold ---


def fold(sizes: Sizes) -> Found:
    command = [sys.executable, "-m", "tools.versus.tier_fold", str(sizes.live_segments)]
    environment = {**os.environ, "PYTHONPATH": str(brokers.ROOT)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=CHILD_S_MAX,
        cwd=brokers.ROOT,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise Failure(f"the fold: {done.stderr.strip().rpartition(chr(10))[2]}")
    found: Found = json.loads(done.stdout)
    return found


# --- all of it ---

IN_ROUNDS: dict[str, Callable[[Tiered, Sizes, int], Found]] = {
    "upload": upload,
    "unpaced": unpaced,
    "paced": paced,
    "cold": cold,
    "many": many,
    "many-paced": many_paced,
}
OF_COLD = ("cold", "many", "many-paced")


class Rounds:
    """What was found, by system and row."""

    def __init__(self, names: Sequence[str]) -> None:
        self.found: dict[str, dict[str, list[Found]]] = {name: {} for name in names}

    def add(self, name: str, row: str, figures: Found) -> None:
        self.found[name].setdefault(row, []).append(figures)
        told = ", ".join(f"{each} {rows.number(value)}" for each, value in figures.items())
        complain(f"{name}: {row}: {told} (load {os.getloadavg()[0]:.1f})")

    def medians(self) -> dict[str, dict[str, Found]]:
        return {
            name: {row: rows.median(each) for row, each in by_row.items()}
            for name, by_row in self.found.items()
        }


def measure(names: Sequence[str], chosen: Sequence[Row], sizes: Sizes, folder: Path, rounds: Rounds) -> None:
    wanted = [row.name for row in chosen]
    if "fold" in wanted:
        for _ in range(sizes.rounds):
            rounds.add(LOCAL, "fold", fold(sizes))
    if "ready" in wanted:
        with tempfile.TemporaryDirectory(prefix="ready-", dir=folder) as place:
            found_each = tier_ready.measure(
                sizes.live_segments, sizes.rounds, sizes.segment_bytes, Path(place)
            )
        for found in found_each:
            rounds.add(LOCAL, "ready", found)
    in_rounds = [row for row in chosen if row.name in IN_ROUNDS]
    if in_rounds or "memory" in wanted:
        with contextlib.ExitStack() as stack:
            systems = [
                stack.enter_context(tiered.running(name, folder / f"system-{at}"))
                for at, name in enumerate(names)
            ]
            _measure_systems(systems, in_rounds, sizes, rounds, with_memory="memory" in wanted)
    if {"join", "join-copy"} & set(wanted):
        for _ in range(sizes.rounds):
            for name in names:
                if name == MINIO:
                    continue
                with tempfile.TemporaryDirectory(prefix="join-", dir=folder) as place:
                    for row, found in join(name, sizes, Path(place)).items():
                        rounds.add(name, row, found)


def _measure_systems(
    systems: Sequence[Tiered], in_rounds: Sequence[Row], sizes: Sizes, rounds: Rounds, *, with_memory: bool
) -> None:
    for system in systems:
        with Caller(system.port) as caller:
            caller.create(LIVE)
    if with_memory:  # first, while the brokers are fresh
        for system in systems:
            if system.name in OURS:
                rounds.add(system.name, "memory", memory(system, sizes, 0))
    if any(row.name in OF_COLD for row in in_rounds):
        for system in systems:
            fill_cold(system, sizes)
    for row in in_rounds:
        for number in range(sizes.rounds):
            for system in systems:
                if system.name in row.systems:
                    rounds.add(system.name, row.name, IN_ROUNDS[row.name](system, sizes, number))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    started_s = time.perf_counter()
    try:
        chosen = tier_rows.select(name for names in options.rows for name in names.split(","))
    except ValueError as failure:
        complain(f"bench-tier: {failure}")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sizes = dataclasses.replace(Sizes(), rounds=options.rounds).scaled(options.scale)
    names = _systems(with_kafka=not options.own)
    rounds, exit_code = Rounds(names), 0
    try:
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tidewal-tier-", dir=options.folder) as folder:
            measure(names, chosen, sizes, Path(folder), rounds)
    except (Failure, OSError) as failure:  # what was measured before is shown all the same
        complain(f"bench-tier: {failure}")
        exit_code = 1
    except KeyboardInterrupt:
        complain("bench-tier: stopped")
        exit_code = 130
    medians = rounds.medians()
    table = tier_rows.markdown(chosen, names, medians)
    emit(table)
    if options.markdown is not None:
        options.markdown.write_text(table)
    if options.json is not None:
        options.json.write_text(json.dumps({"medians": medians, "rounds": rounds.found}, indent=2) + "\n")
    emit(f"{time.perf_counter() - started_s:.0f} s; {sizes}; each figure is the median of its rounds")
    return exit_code


def _systems(*, with_kafka: bool) -> list[str]:
    found = [LOCAL]
    if EXECUTABLE.is_file():
        found.append(MINIO)
    else:
        complain("MinIO is not here (make minio): no column for it")
    if with_kafka and brokers.Kafka.is_there():
        found.append(KAFKA)
    elif with_kafka:
        complain("Apache Kafka is not here (make kafka): this broker alone")
    return found


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-tier", description="The cold tier: uploads, cold reads, empty disks, the fold."
    )
    parser.add_argument("--rows", action="append", default=[], metavar="NAME[,…]", help="only these rows")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each row (default: 3)")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="of the sizes; 0.1 for a quick look (default: 1)",
    )
    parser.add_argument("--folder", type=Path, help="where the data goes; the system's temporary folder")
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
