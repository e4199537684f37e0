"""One file format, two brokers: what either writes, the other's tools and the other broker read.

Each broker writes the same things and is stopped cleanly. Then its files are read by Apache Kafka's
DumpLogSegments and by `tidewal dump-log`. Last, Apache Kafka takes over files that Tidewal wrote and serves
the same bytes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.blocking import BlockingClient
from tests.compat.peers import ApacheKafka, Java, until
from tests.compat.samples import CODECS
from tests.processes import ROOT, BrokerProcess

pytestmark = pytest.mark.kafka

DUMP = "org.apache.kafka.tools.DumpLogSegments"
MANY, COMPACTED, GROUP = "many-segments", "compacted", "interchange-group"
SEGMENT_BYTES = 1 << 20
OFFSETS = "__consumer_offsets"
CLEANING = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
TOPICS = {
    MANY: {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"},
    COMPACTED: {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    data: Path
    many: int
    many_bytes: bytes
    committed: int

    def folder(self, name: str) -> Path:
        (found,) = (path for path in self.data.rglob(name) if path.is_dir())
        return found

    def files(self, name: str, *suffixes: str) -> list[Path]:
        return sorted(path for path in self.folder(name).iterdir() if path.suffix in suffixes)

    def offsets_logs(self) -> list[Path]:
        return sorted(path for path in self.data.rglob(f"{OFFSETS}-*/*.log") if path.stat().st_size)


def write_everything(bootstrap: str, data: Path, stop: Callable[[], Any]) -> Written:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, 1, config=config) for name, config in TOPICS.items()])
    for future in made.values():
        future.result(timeout=20)
    many = _write_many(bootstrap)
    _write_compacted(bootstrap)
    committed = _commit(bootstrap)
    with BlockingClient(bootstrap) as raw:
        many_bytes = raw.read_bytes(MANY, 0)
    stop()
    return Written(data=data, many=many, many_bytes=many_bytes, committed=committed)


def _write_many(bootstrap: str) -> int:
    """Every codec, with and without idempotence, over several segments."""
    count = 0
    for codec in CODECS:
        for idempotent in (False, True):
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": idempotent,
                    "linger.ms": 20,
                    "batch.size": 60_000,
                }
            )
            for n in range(1500):
                # Digits of a growing product: they compress, but not to nothing.
                producer.produce(
                    MANY, key=b"%d" % n, value=b"%x" % (n + 7) ** 500, headers=[("n", b"%d" % n)]
                )
                count += 1
            assert producer.flush(30) == 0
    return count


def _write_compacted(bootstrap: str) -> None:
    """Writes until compaction has taken records away: fewer are read than were written."""
    written = 0

    def compacted() -> bool:
        nonlocal written
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 5})
        for n in range(100):
            producer.produce(COMPACTED, key=b"k%d" % (n % 10), value=None if n % 10 == 9 else b"%d" % n)
        assert producer.flush(30) == 0
        written += 100
        with BlockingClient(bootstrap) as raw:
            stored = raw.read_bytes(COMPACTED, 0)
        return _record_count(stored) < written - 50

    until(compacted, "a compaction", timeout_s=60, pause_s=0.2)


def _record_count(batches: bytes) -> int:
    total, at = 0, 0
    while at < len(batches):
        total += int.from_bytes(batches[at + 57 : at + 61], "big")
        at += 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
    return total


def _commit(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    try:
        consumer.subscribe([MANY])
        until(lambda: consumer.poll(0.05) or consumer.assignment(), "an assignment", pause_s=0.0)
        consumer.commit(offsets=[TopicPartition(MANY, 0, 1234, metadata="noted")], asynchronous=False)
    finally:
        consumer.close()
    return 1234


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("ours")
    with BrokerProcess(folder, settings=CLEANING) as broker:
        return write_everything(broker.bootstrap, folder, broker.terminate)


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Tidewal's files after kill -9, recovery and a clean stop."""
    folder = tmp_path_factory.mktemp("recovered")
    with BrokerProcess(folder, settings=CLEANING) as broker:
        files = write_everything(broker.bootstrap, folder, broker.kill)
    with BrokerProcess(folder) as broker:
        assert broker.terminate() == 0
    return files


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, java: Java) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("theirs"), java, settings=CLEANING) as broker:
        yield broker


@pytest.fixture(scope="module")
def theirs(kafka: ApacheKafka) -> Written:
    kafka.start()
    return write_everything(kafka.bootstrap, kafka.data, kafka.stop)


@pytest.fixture(params=["ours", "recovered", "theirs"])
def written(request: pytest.FixtureRequest) -> Written:
    files: Written = request.getfixturevalue(request.param)
    return files


# --- the tools --------------------------------------------------------------------------------------------


def dump_by_kafka(java: Java, files: list[Path], *options: str) -> str:
    done = java.attempt(DUMP, "--files", ",".join(map(str, files)), *options)
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    for complaint in ("mismatch", "isvalid: false", "exception", "could not", "corrupt", "out of order"):
        assert complaint not in said.lower(), said  # what is wrong with an index is told on stderr
    return done.stdout


def dump_by_us(files: list[Path], *options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", "dump-log", "--json", *options, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


BATCH_LINE = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) .*?producerId: (-?\d+) "
    r".*?partitionLeaderEpoch: (\d+) .*? position: (\d+) .*? size: (\d+) magic: 2 "
    r"compresscodec: (\w+) crc: (\d+)",
    re.MULTILINE,
)


def batches_by_kafka(said: str) -> list[tuple[Any, ...]]:
    return [
        (*(int(number) for number in match.groups()[:8]), match[9], int(match[10]))
        for match in BATCH_LINE.finditer(said)
    ]


def batches_by_us(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = (
        *("base_offset", "last_offset", "count", "base_sequence", "producer_id"),
        *("leader_epoch", "position", "size", "codec", "crc"),
    )
    return [tuple(row[name] for name in names) for row in rows if row["kind"] == "batch"]


def test_both_tools_read_the_same_batches_from_every_segment(java: Java, written: Written) -> None:
    logs = written.files(f"{MANY}-0", ".log")
    assert len(logs) > 2
    by_kafka = batches_by_kafka(dump_by_kafka(java, logs, "--deep-iteration"))
    assert by_kafka == batches_by_us(dump_by_us(logs))
    assert sum(batch[2] for batch in by_kafka) == written.many
    assert {batch[8] for batch in by_kafka} == set(CODECS)
    assert b"".join(log.read_bytes() for log in logs) == written.many_bytes


def test_kafkas_tool_finds_every_index_and_snapshot_sound(java: Java, written: Written) -> None:
    # An index is checked against the log beside it; records are counted in the logs only.
    aside = written.files(f"{MANY}-0", ".index", ".timeindex", ".snapshot")
    assert {path.suffix for path in aside} == {".index", ".timeindex", ".snapshot"}
    assert any(path.stat().st_size for path in aside if path.suffix == ".index")
    said = dump_by_kafka(java, aside)
    assert len(re.findall(r"^producerId: \d+ producerEpoch: 0 .*lastSequence: \d+", said, re.MULTILINE)) >= 5
    dump_by_us(aside)


def test_a_compacted_log_is_sound_to_both(java: Java, written: Written) -> None:
    logs = written.files(f"{COMPACTED}-0", ".log")
    said = java.run(DUMP, "--deep-iteration", "--files", ",".join(map(str, logs)))
    assert "isvalid: false" not in said
    assert batches_by_kafka(said) == batches_by_us(dump_by_us(logs))
    dump_by_kafka(java, written.files(f"{COMPACTED}-0", ".index", ".timeindex"))


def test_both_tools_decode_what_a_group_committed(java: Java, written: Written) -> None:
    logs = written.offsets_logs()
    said = dump_by_kafka(java, logs, "--offsets-decoder")
    commits = re.findall(
        rf'key: {{"type":"1","data":{{"group":"{GROUP}","topic":"{MANY}","partition":0}}}} payload: (.*)$',
        said,
        re.MULTILINE,
    )
    (commit,) = [json.loads(payload)["data"] for payload in commits]
    # librdkafka sends the C string with the zero that ends it.
    assert (commit["offset"], commit["metadata"].rstrip("\0")) == (written.committed, "noted")
    assert re.search(rf'key: {{"type":"2","data":{{"group":"{GROUP}"}}}} payload: {{"version":"\d+"', said)
    decoded = [row for row in dump_by_us(logs, "--decode", "offsets") if row["kind"] == "decoded"]
    (ours,) = [row for row in decoded if row["group"] == GROUP and row.get("topic") == MANY]
    assert written.committed in ours.values()


# --- the broker -------------------------------------------------------------------------------------------


def test_apache_kafka_recovers_our_files_and_serves_the_same_bytes(
    java: Java, ours: Written, tmp_path: Path
) -> None:
    names = [MANY, COMPACTED]
    with ApacheKafka(tmp_path / "kafka", java) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.start().bootstrap})
        made = admin.create_topics([NewTopic(name, 1, config={"retention.ms": "-1"}) for name in names])
        for future in made.values():
            future.result(timeout=20)
        until(
            lambda: all((kafka.data / f"{name}-0" / "partition.metadata").exists() for name in names),
            "the partitions' folders",
        )
        kafka.stop()
        for name in names:
            put_in_place(ours.folder(f"{name}-0"), kafka.data / f"{name}-0")
        (kafka.data / ".kafka_cleanshutdown").unlink()
        kafka.start()
        with BlockingClient(kafka.bootstrap) as raw:
            for name in names:
                expected = b"".join(log.read_bytes() for log in ours.files(f"{name}-0", ".log"))
                until(lambda name=name: raw.fetch(name, 0, 0).error_code == 0, "Kafka to lead")  # type: ignore[misc]
                assert raw.read_bytes(name, 0) == expected


def put_in_place(source: Path, target: Path) -> None:
    """Our partition in place of Kafka's, but for its topic id and its leader epoch."""
    for path in target.iterdir():
        if path.name not in ("partition.metadata", "leader-epoch-checkpoint"):
            path.unlink()
    for path in source.iterdir():
        if path.name not in ("partition.metadata", "leader-epoch-checkpoint"):
            shutil.copy(path, target / path.name)
    start = min(int(path.stem) for path in target.glob("*.log"))
    (target / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {start}\n")
