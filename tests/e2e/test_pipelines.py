"""Exports and replays that are killed at random moments, real processes with `kill -9`: every record once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import BrokerProcess

Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]
"""Partition, offset, timestamp, key, value, headers."""

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KILLS = 6
KILLS_LONG = 50


def make_topic(bootstrap: str, name: str) -> None:
    """Records as old as these are kept for good."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"})])
    made[name].result(30)


def produce(bootstrap: str, topic: str, rng: random.Random, records: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": rng.choice(CODECS),
            "linger.ms": 2,
            "batch.size": rng.choice((300, 3000, 100_000)),
        }
    )
    for number in range(records):
        producer.produce(
            topic,
            rng.randbytes(rng.randint(1, 900)) if rng.random() < 0.95 else None,
            key=b"%d" % number if number % 5 else None,
            headers=[("n", b"%d" % number), ("n", b"")] if number % 3 == 0 else [],
            partition=rng.randrange(PARTITIONS),
            timestamp=1_700_000_000_000 + rng.randrange(10**9),
        )
        producer.poll(0)
    assert producer.flush(30) == 0


def rows_of(bootstrap: str, topic: str) -> list[Row]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    rows: list[Row] = []
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        consumer.assign([TopicPartition(topic, partition, low)])
        at = low
        while at < high:
            for message in consumer.consume(5000, timeout=1):
                assert message.error() is None
                at = message.offset() + 1
                headers = tuple((name, value) for name, value in message.headers() or ())
                rows.append(
                    (
                        partition,
                        message.offset(),
                        message.timestamp()[1],
                        message.key(),
                        message.value(),
                        headers,
                    )
                )
    consumer.close()
    return sorted(rows, key=lambda row: row[:2])


def exported(folder: Path) -> list[Row]:
    table = pq.read_table(folder)
    times = table.column("timestamp").cast("int64").to_pylist()
    rows = [
        (
            row["partition"],
            row["offset"],
            time,
            row["key"],
            row["value"],
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
        for row, time in zip(table.drop(["timestamp"]).to_pylist(), times, strict=True)
    ]
    return sorted(rows, key=lambda row: row[:2])


def start(arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.cli", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def kill_at_random(arguments: list[str], folder: Path, rng: random.Random) -> bool:
    """Run a command and kill it somewhere on its way; return whether it was still at work."""
    process = start(arguments, folder)
    try:
        _, errors = process.communicate(timeout=rng.uniform(0.3, 2.5))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    assert process.returncode == 0, errors.decode()
    return False


def finish(arguments: list[str], folder: Path) -> None:
    process = start(arguments, folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def check_export(broker: BrokerProcess, folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    make_topic(broker.bootstrap, "t")
    command = ["export", "t", "--to", f"file://{folder}/out", "-b", broker.bootstrap, "--file-size", "1"]
    killed = 0
    while killed < kills:
        produce(broker.bootstrap, "t", rng, rng.randint(1, 4000))
        killed += kill_at_random(command, folder, rng)
    finish(command, folder)
    assert exported(folder / "out") == rows_of(broker.bootstrap, "t"), f"seed {seed}"


def check_replay(
    broker: BrokerProcess, restart: Callable[[], None], folder: Path, kills: int, seed: int
) -> None:
    rng = random.Random(seed)
    make_topic(broker.bootstrap, "t")
    for _ in range(8):
        produce(broker.bootstrap, "t", rng, 1500)
    command = ["replay", "t", "-b", broker.bootstrap, "--to", broker.bootstrap, "--to-topic", "copy"]
    paced = [*command, "--rate", str(10.0 / kills)]
    killed = 0
    for _ in range(kills):
        killed += kill_at_random(paced, folder, rng)
        if rng.random() < 0.2:
            restart()
    assert killed
    finish(command, folder)
    originals = [(row[0], *row[2:]) for row in rows_of(broker.bootstrap, "t")]
    copies = [(row[0], *row[2:]) for row in rows_of(broker.bootstrap, "copy")]
    assert copies == originals, f"seed {seed}"


def test_an_export_that_is_killed_has_every_record_once(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    check_export(broker_process, tmp_path, KILLS, seed=1)


def test_a_replay_that_is_killed_has_every_record_once(broker_process: BrokerProcess, tmp_path: Path) -> None:
    check_replay(broker_process, lambda: None, tmp_path, KILLS, seed=2)


@pytest.mark.chaos
def test_an_export_that_is_killed_fifty_times(
    broker_process: BrokerProcess, tmp_path: Path, chaos_seed: int
) -> None:
    check_export(broker_process, tmp_path, KILLS_LONG, chaos_seed)


@pytest.mark.chaos
def test_a_replay_that_is_killed_fifty_times(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, chaos_seed: int
) -> None:
    """The broker that takes the copy is killed as well, now and then."""
    brokers = [start_broker()]

    def restart() -> None:
        brokers[-1].kill()
        brokers.append(start_broker(listen=brokers[0].bootstrap))

    check_replay(brokers[0], restart, tmp_path, KILLS_LONG, chaos_seed)
