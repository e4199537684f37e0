"""`make compose-test`: the compose file from a fresh clone, with clients outside and inside, under faults.

Owns the order of what is done, and what it prints. Does not own the engine, the project or the judgement
(engine, project, ledger).
Invariant: it ends with 0 only if every acknowledged record was read back, once and in order, after the faults
and after everything was down and up again; what it started is gone at its end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from confluent_kafka import Producer

from tests.compose.engine import ROOT, NoEngine, find_engine
from tests.compose.ledger import Ledger, hold_against, read_all
from tests.compose.project import INSIDE, Project
from tools.console import Failure, complain, emit
from tools.versus.caller import until
from tools.versus.minio import EXECUTABLE

PARTITIONS = 3
PLAIN, WAL, COLD = "plain", "wal", "cold"
WRITTEN = [PLAIN, WAL]
OUTAGE_S = 60.0
DASHBOARD = Path("tools/images/dashboard.json")
METRIC = re.compile(r"\b(?:kafka|tidewal|process)_\w+")
COLD_VALUE_BYTES = 10_000
COLD_RECORDS = 1_500
COLD_S_MAX = 150.0
INSIDE_RECORDS = 2_000

WRITES_INSIDE = """
import sys
from confluent_kafka import Producer
brokers, topic, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
failed = []
producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "acks": "all"})
for number in range(records):
    producer.produce(topic, str(number).encode(), partition=0,
                     on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.poll(0)
left = producer.flush(60)
sys.exit(f"{left} without an answer, failed: {failed[:1]}" if left or failed else 0)
"""
SCRAPES = """
import re, sys, urllib.request
for target in re.findall(r"[\\w-]+:\\d+", sys.argv[1]):
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        sys.stdout.write(answer.read().decode())
"""
READS_INSIDE = """
import hashlib, sys, time
from confluent_kafka import Consumer, TopicPartition
brokers, topic, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = Consumer({"bootstrap.servers": brokers, "group.id": "inside", "auto.offset.reset": "error"})
consumer.assign([TopicPartition(topic, 0, 0)])
digest, count, deadline = hashlib.sha256(), 0, time.monotonic() + 60
while count < records:
    message = consumer.poll(1)
    if time.monotonic() > deadline:
        sys.exit(f"only {count} records within a minute")
    if message is None:
        continue
    if message.error():
        sys.exit(str(message.error()))
    digest.update(message.value())
    count += 1
consumer.close()
print(count, digest.hexdigest())
"""


@contextmanager
def step(what: str) -> Iterator[None]:
    begun_s, ending = time.perf_counter(), ": FAILED"
    try:
        yield
        ending = ""
    finally:
        emit(f"{time.perf_counter() - begun_s:6.1f} s  {what}{ending}")
        sys.stdout.flush()


class Trial:
    def __init__(self, project: Project) -> None:
        self._project = project
        self._cold: list[bytes] = []

    def run(self, *, outage_s: float) -> None:
        project = self._project
        with step("built, up and healthy: three brokers, MinIO and its bucket"):
            project.up()
        with step(f"topics made within a container: {PLAIN}, {WAL} (WAL tier), {COLD} (cold tier), inside"):
            self._make_topics()
        with step(f"{INSIDE_RECORDS} records written and read back within the network"):
            self._check_inside()
        with step("what the dashboard shows is served where Prometheus asks"):
            self._check_metrics()
        with step(f"{COLD_RECORDS * COLD_VALUE_BYTES // 1_000_000} MB written to {COLD} from outside"):
            self._fill_cold()
        ledger = Ledger(project.outside, WRITTEN, PARTITIONS)
        try:
            ledger.wait_progress(50)
            self._faults(ledger, outage_s)
            ledger.close()
        finally:
            ledger.stop()
        with step(f"{ledger.acked_count} acknowledged records read back from outside, once and in order"):
            self._read_back(ledger)
        with step(
            f"what {COLD} has on no disk any more read back, from outside and inside, each byte as sent"
        ):
            self._read_cold()
        with step("down and up again with the same volumes"):
            project.compose("down", "--timeout", "30")
            project.up()
            project.wait_in_sync(PLAIN, WAL, COLD)
        with step(f"{ledger.acked_count} acknowledged records and {COLD} read back again"):
            self._read_back(ledger)
            self._read_cold()
            self._check_inside_read()

    # --- what is there before the faults ---

    def _make_topics(self) -> None:
        tiered = ["remote.storage.enable=true", "segment.bytes=1048576", "local.retention.bytes=1048576"]
        for topic, partitions, configs in (
            (PLAIN, PARTITIONS, []),
            (WAL, PARTITIONS, ["remote.wal.storage.enable=true"]),
            (COLD, 1, tiered),
            ("inside", 1, []),
        ):
            options = [each for config in configs for each in ("--config", config)]
            replicated = ["--partitions", str(partitions), "--replication", "3", *options]
            self._project.tidewal("topics", "create", topic, "-b", INSIDE, *replicated)
        self._project.wait_in_sync(PLAIN, WAL, COLD, "inside")

    def _check_inside(self) -> None:
        self._project.python(WRITES_INSIDE, INSIDE, "inside", str(INSIDE_RECORDS))
        self._check_inside_read()

    def _check_inside_read(self) -> None:
        sent = [str(number).encode() for number in range(INSIDE_RECORDS)]
        self._read_inside("inside", sent)

    def _read_inside(self, topic: str, sent: list[bytes]) -> None:
        told = self._project.python(READS_INSIDE, INSIDE, topic, str(len(sent))).split()
        if told != [str(len(sent)), digest(sent)]:
            raise Failure(f"{topic}, read inside, is not what was sent: {' '.join(told)}")

    def _check_metrics(self) -> None:
        prometheus = (ROOT / DASHBOARD.parent / "prometheus.yml").read_text()
        served = self._project.python(SCRAPES, prometheus)
        absent = sorted(set(METRIC.findall((ROOT / DASHBOARD).read_text())) - set(METRIC.findall(served)))
        if absent:
            raise Failure(f"the dashboard asks for what no broker serves: {', '.join(absent)}")

    def _fill_cold(self) -> None:
        """Write what no codec makes smaller, so that it fills segments."""
        self._cold = [os.urandom(COLD_VALUE_BYTES) for _ in range(COLD_RECORDS)]
        failed: list[str] = []
        producer = Producer(
            {"bootstrap.servers": self._project.outside, "enable.idempotence": True, "acks": "all"}
        )
        for value in self._cold:
            producer.produce(
                COLD,
                value,
                partition=0,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
            producer.poll(0)
        left = producer.flush(60)
        if left or failed:
            raise Failure(f"{COLD}: {left} records without an answer, failed: {failed[:1]}")

    # --- faults, each while records are written ---

    def _faults(self, ledger: Ledger, outage_s: float) -> None:
        project = self._project
        killed, paused = project.container("broker-1"), project.container("broker-2")
        with step("broker-1 killed; writing went on without it"):
            project.docker("kill", killed)
            ledger.wait_progress(100)
        with step("broker-1 started again, and all replicas in sync"):
            project.docker("start", killed)
            self._recovered("broker-1")
        with step("broker-2 paused; writing went on without it"):
            project.docker("pause", paused)
            ledger.wait_progress(100)
        with step("broker-2 goes on, and all replicas in sync"):
            project.docker("unpause", paused)
            self._recovered("broker-2")
        with step(f"the bytes of {COLD} were copied and have left the disks"):
            until(self._is_tiered, f"local start of {COLD} above 0", COLD_S_MAX)
        minio = project.container("minio")
        with step(f"MinIO away for {outage_s:.0f} s; writing went on all the time"):
            begun_s = time.perf_counter()
            project.docker("stop", minio)
            while (left_s := begun_s + outage_s - time.perf_counter()) > 0:
                ledger.wait_progress(50)
                threading.Event().wait(min(1.0, max(0.0, left_s)))
            project.docker("start", minio)
            project.wait_healthy("minio")
        with step("a topic made, as MinIO is back"):
            project.tidewal("topics", "create", "afterwards", "-b", INSIDE, "--replication", "3")
        with step("broker-3 with an empty volume in place of its own, and all replicas in sync"):
            project.compose("rm", "--stop", "--force", "broker-3")
            project.docker("volume", "rm", f"{project.name}_broker-3")
            project.compose("up", "--detach", "broker-3")
            self._recovered("broker-3")
        with step("broker-2 taken away and brought back with its volume, and all replicas in sync"):
            project.compose("rm", "--stop", "--force", "broker-2")
            ledger.wait_progress(100)
            project.compose("up", "--detach", "broker-2")
            self._recovered("broker-2")
        ledger.wait_progress(50)

    def _recovered(self, broker: str) -> None:
        self._project.wait_healthy(broker)
        self._project.wait_in_sync(PLAIN, WAL, COLD)

    def _is_tiered(self) -> bool:
        (row,) = self._project.offsets(COLD)
        return int(row["local_start"]) > 0

    # --- what is there after them ---

    def _read_back(self, ledger: Ledger) -> None:
        for topic in WRITTEN:
            hold_against(ledger, topic, read_all(self._project.outside, topic, PARTITIONS))

    def _read_cold(self) -> None:
        if not self._is_tiered():
            raise Failure(f"{COLD} begins on the disks again")
        (values,) = read_all(self._project.outside, COLD, 1)
        if values != self._cold:
            raise Failure(f"{COLD}, read outside, is not what was sent: {len(values)} records")
        self._read_inside(COLD, self._cold)


def digest(values: list[bytes]) -> str:
    return sha256(b"".join(values)).hexdigest()


def minio_image() -> str:
    """Return the image that the compose file names."""
    named = re.search(r"\$\{MINIO_IMAGE:-([^}]+)\}", (ROOT / "docker-compose.yml").read_text())
    assert named is not None
    return named[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compose-test", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--outage", type=float, default=OUTAGE_S, metavar="SECONDS", help="MinIO is away so long"
    )
    parser.add_argument("--or-skip", action="store_true", help="exit code 0 where there is no engine")
    options = parser.parse_args()
    begun_s = time.perf_counter()
    try:
        engine = find_engine(minio_image(), EXECUTABLE)
        with tempfile.TemporaryDirectory(prefix="tidewal-compose-") as scratch:
            with step("a fresh clone"):
                clone = Path(scratch) / "tidewal"
                subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            project = Project(engine, clone, f"tidewal-test-{os.getpid()}")
            try:
                Trial(project).run(outage_s=options.outage)
            except BaseException:
                complain(project.logs())
                raise
            finally:
                with step("down, volumes too"):
                    project.close()
    except NoEngine as error:
        complain(f"compose-test skipped: {error}")
        return 0 if options.or_skip else 1
    except Failure as error:
        complain(f"compose-test failed: {error}")
        return 1
    emit(f"{time.perf_counter() - begun_s:6.1f} s  in all: nothing acknowledged was lost or doubled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
