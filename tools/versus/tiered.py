"""Brokers with a cold tier, of ours on a local store and on MinIO, and of Apache Kafka: their topics and
their tier as seen from outside.

Owns the settings under which each tiers at once, topics filled alike, waiting until the tier has what is due,
and how many bytes have arrived there. Does not own the processes (brokers, minio) or what is measured.
Invariant: Kafka tiers to a directory by the one storage manager it is delivered with, which is made for
tests; every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.console import Failure
from tools.versus import brokers
from tools.versus.caller import BROKER, EARLIEST_LOCAL, LATEST_TIERED, TOPIC, Caller, until
from tools.versus.load import Load, run
from tools.versus.minio import EXECUTABLE, MinioServer
from tools.versus.tier_rows import KAFKA, LOCAL

BUCKET = "tier"
TIERED_S_MAX = 600.0
SAMPLE_S = 0.1
BLOCK_BYTES = 512
FILL_RECORD_BYTES, FILL_BATCH_RECORDS = 10_000, 25
"""250 KB a batch: segments of any size measured here are cut within two percent of it."""
UNPACED = 1 << 62
QUOTA = "remote.log.manager.copy.max.bytes.per.second"

SETTINGS = {
    "log.retention.check.interval.ms": "500",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
}
KAFKA_SETTINGS = {
    **SETTINGS,
    "log.initial.task.delay.ms": "500",
    "remote.log.storage.manager.class.name": (
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "300",
}


CLUSTER_SETTINGS = {
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.min.isr": "2",
}
"""What knows of the tier must outlive the disk of a node."""


def kafka_settings(tier: Path) -> dict[str, str]:
    return {**KAFKA_SETTINGS, "rsm.config.dir": str(tier)}


@dataclass(slots=True, kw_only=True)
class Tiered:
    """A broker that runs, and where its tier's objects are on this machine's disk."""

    name: str
    broker: brokers.Broker
    objects: Path
    minio_pid: int | None = None

    @property
    def port(self) -> int:
        return self.broker.port

    def arrived_bytes(self) -> int:
        """Return what the tier has so far, parts of uploads counted; only differences mean anything."""
        if self.minio_pid is None:
            return allocated_bytes(self.objects)
        return written_bytes(self.minio_pid)

    def set_quota(self, bytes_per_s: int) -> None:
        with Caller(self.port) as caller:
            caller.configure(BROKER, str(self.broker.node_id), {QUOTA: str(bytes_per_s)})


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Tiered]:
    """Start the system of that name, with an empty tier; everything is gone afterwards."""
    folder.mkdir(parents=True)
    cores, tier = os.sched_getaffinity(0), folder / "tier"
    tier.mkdir()
    try:
        with contextlib.ExitStack() as stack:
            minio_pid: int | None = None
            broker: brokers.Broker
            if name == KAFKA:
                broker = brokers.Kafka(folder / "broker", cores, settings=kafka_settings(tier))
            elif name == LOCAL:
                broker = brokers.Tidewal(folder / "broker", cores, store=f"file://{tier}", settings=SETTINGS)
            else:
                minio = stack.enter_context(contextlib.closing(MinioServer(EXECUTABLE, tier)))
                minio.make_bucket(BUCKET)
                minio_pid = minio.process.pid
                broker = brokers.Tidewal(
                    folder / "broker",
                    cores,
                    store=minio.url(BUCKET),
                    settings=SETTINGS,
                    environ=minio.environ,
                )
            stack.enter_context(broker).start()
            yield Tiered(name=name, broker=broker, objects=tier, minio_pid=minio_pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- topics ---


def fill(tiered: Tiered, topic: str, size_bytes: int, *, partitions: int = 1) -> None:
    """Produce records of 10,000 bytes, to the partitions in turn."""
    load = Load(
        kind="produce",
        record_bytes=FILL_RECORD_BYTES,
        batch_records=FILL_BATCH_RECORDS,
        in_flight=5,
        seconds=TIERED_S_MAX,
        bytes_max=size_bytes,
        partitions=partitions,
    )
    run(load, tiered.broker, topic, None)


def enable(tiered: Tiered, topic: str) -> None:
    with Caller(tiered.port) as caller:
        caller.configure(TOPIC, topic, {"remote.storage.enable": "true"})


def delete(tiered: Tiered, topic: str) -> None:
    """Delete a topic, and wait until its objects are gone too: nothing of it goes on beside the next row."""
    with Caller(tiered.port) as caller:
        caller.delete(topic)
    until(lambda: _is_gone(tiered, topic), f"end of topic {topic}", TIERED_S_MAX)


def _is_gone(tiered: Tiered, topic: str) -> bool:
    with contextlib.suppress(FileNotFoundError):  # a folder that went while it was looked into
        return not list(_segment_files(tiered, topic))
    return False


def _segment_files(tiered: Tiered, topic: str) -> Iterator[Path]:
    return tiered.broker.data.glob(f"{topic}-*/*.log")


def closed_bytes(tiered: Tiered, topic: str) -> int:
    """Return the bytes of its closed segments on the broker's disk."""
    files: dict[Path, list[Path]] = {}
    for path in _segment_files(tiered, topic):
        files.setdefault(path.parent, []).append(path)
    return sum(path.stat().st_size for paths in files.values() for path in sorted(paths)[:-1])


def closed_ends(tiered: Tiered, topic: str, partitions: int) -> list[int]:
    """Return for each partition the end of its closed segments: where its active one begins."""
    return [_active_base(tiered.broker, topic, each) for each in range(partitions)]


def _active_base(broker: brokers.Broker, topic: str, partition: int) -> int:
    names = [path.stem for path in broker.data.glob(f"{topic}-{partition}/*.log")]
    if not names:
        raise Failure(f"no log of {topic}-{partition} below {broker.data}")
    return int(max(names))


def wait_tiered(port: int, topic: str, ends: Sequence[int]) -> None:
    """Wait until the tier has each partition up to its end."""
    with Caller(port) as caller:

        def is_tiered() -> bool:
            return all(caller.offset(topic, each, LATEST_TIERED) >= end - 1 for each, end in enumerate(ends))

        until(is_tiered, f"copy of {topic} in the tier", TIERED_S_MAX)


def wait_let_go(port: int, topic: str, end: int) -> None:
    """Wait until what lies before an offset is in the tier alone."""
    with Caller(port) as caller:
        until(lambda: caller.offset(topic, 0, EARLIEST_LOCAL) >= end, f"{topic} gone locally", TIERED_S_MAX)


# --- what is seen from outside ---


def allocated_bytes(folder: Path) -> int:
    """Return what the files below a folder take. A file written from its end on has its length at once."""
    total, pending = 0, [str(folder)]
    while pending:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    return total


def written_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise Failure(f"process {pid} says nothing of what it wrote")


class Watch:
    """Samples of a figure every so often, as long as the block lasts."""

    def __init__(self, look: Callable[[], float], every_s: float = SAMPLE_S) -> None:
        self.at_s: list[float] = []
        self.values: list[float] = []
        self._look = look
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _go_on(self) -> None:
        while True:
            self.values.append(self._look())
            self.at_s.append(time.perf_counter())
            if self._stop.wait(self._every_s):
                return
