"""Stock clients read a tiered log from its start, after its leader and the store were killed amid copies.

librdkafka and the Java consumer get every value once and in order, by its digest over all of them; what was
aborted in a log that Apache Kafka wrote stays invisible to those who read only what was committed.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clusters import ClusterProcesses
from tests.compat.peers import ApacheKafka, Java, stable_port, unique, until
from tests.compat.test_interchange import put_in_place
from tests.e2e.stock_load import FLUSH_S, IMPATIENT
from tests.e2e.tiered import (
    EARLIEST_LOCAL,
    FACTOR,
    LATEST,
    LATEST_TIERED,
    QUICK,
    SETTLE_S,
    TieredBroker,
    TieredTopic,
    check_tier,
)
from tools.versus.minio import MinioServer

VALUE_BYTES = 10_000
IN_PAIRS = {**QUICK, FACTOR: "2", "rlmm.config.remote.log.metadata.topic.min.isr": "1"}
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def value(number: int) -> bytes:
    return b"%012d " % number + b"v" * (VALUE_BYTES - 13)


def digest_of(count: int) -> str:
    digest = hashlib.sha256()
    for number in range(count):
        digest.update(value(number) + b"\n")
    return digest.hexdigest()


class Writer:
    """An idempotent producer to one partition. How much was acknowledged is known while it is polled."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged = 0
        self.sent = 0
        self._topic = topic
        self._refused: list[object] = []
        self._producer = Producer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.kbytes": 32768,
                "delivery.timeout.ms": int(FLUSH_S * 1000),
            }
        )

    def write_to(self, count: int) -> None:
        """Until so many are acknowledged, in all."""

        def has_come() -> bool:
            while self.sent < count:
                try:
                    self._producer.produce(
                        self._topic, value(self.sent), partition=0, on_delivery=self._delivered
                    )
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(0.05)
            return self.acknowledged >= count

        until(has_come, f"{count} acknowledged", timeout_s=600, pause_s=0)
        assert self._refused == []

    def _delivered(self, error: object, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._refused.append(error)


def read_by_librdkafka(bootstrap: str, topic: str, count: int, *, isolation: str) -> str:
    reader = Consumer(
        {
            **IMPATIENT,
            "bootstrap.servers": bootstrap,
            "group.id": unique("group"),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
        }
    )
    digest, last = hashlib.sha256(), -1
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        while count:
            messages = reader.consume(min(count, 500), timeout=SETTLE_S)
            assert messages, f"nothing after offset {last}, {count} are missing"
            for message in messages:
                assert message.error() is None, message.error()
                assert message.offset() > last
                last = message.offset()
                digest.update((message.value() or b"") + b"\n")
            count -= len(messages)
    finally:
        reader.close()
    return digest.hexdigest()


def read_by_java(java: Java, bootstrap: str, topic: str, count: int, *, isolation: str) -> str:
    process = subprocess.Popen(
        java.command(
            CONSOLE_CONSUMER,
            *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "0"),
            *("--max-messages", str(count), "--timeout-ms", str(int(SETTLE_S * 1000))),
            *("--isolation-level", isolation),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    digest = hashlib.sha256()
    with process:
        assert process.stdout is not None
        while piece := process.stdout.read(1 << 20):
            digest.update(piece)
    assert process.returncode == 0
    return digest.hexdigest()


def go_through_kills(folder: Path, minio: Path, java: Java | None, *, total: int, segment: int) -> None:
    count, port = total // VALUE_BYTES, stable_port()
    server = MinioServer(minio, folder / "minio", port=port)
    try:
        server.make_bucket("tier")
        url = server.url("tier", "cluster")
        with ClusterProcesses(
            folder / "brokers", brokers=2, store=url, env=server.environ, settings=IN_PAIRS
        ) as cluster:
            config = {
                "remote.storage.enable": "true",
                "segment.bytes": str(segment),
                "local.retention.bytes": str(segment),
                "min.insync.replicas": "1",
            }
            name = cluster.make_topic(replicas=2, config=config)
            topic = TieredTopic(lambda: cluster.bootstrap, name)
            writer = Writer(cluster.bootstrap, name)

            def write_until_copying(least: int) -> None:
                writer.write_to(least)
                while "COPY_STARTED" not in topic.states():
                    writer.write_to(min(writer.acknowledged + 20, count))
                    assert writer.acknowledged < count, "no copy was ever under way"

            write_until_copying(count // 4)
            server.close()
            writer.write_to(count // 2)
            server = MinioServer(minio, folder / "minio", port=port)
            write_until_copying(3 * count // 5)
            leader = cluster.leader(name)
            cluster.kill(leader)
            writer.write_to(4 * count // 5)
            cluster.rise(leader)
            writer.write_to(count)
            began_s = time.monotonic()
            until(lambda: is_in_the_tier_but_for(topic, 3 * segment // VALUE_BYTES), "copies", timeout_s=300)
            print(f"all copied {time.monotonic() - began_s:.1f} s after the last record")  # noqa: T201
            wanted = digest_of(count)
            for isolation in ("read_uncommitted", "read_committed"):
                began_s = time.monotonic()
                found = read_by_librdkafka(cluster.bootstrap, name, count, isolation=isolation)
                assert found == wanted
                print(f"librdkafka, {isolation}: {total / 1e6 / (time.monotonic() - began_s):.0f} MB/s")  # noqa: T201
            if java is not None:
                began_s = time.monotonic()
                assert (
                    read_by_java(java, cluster.bootstrap, name, count, isolation="read_committed") == wanted
                )
                print(f"Java: {total / 1e6 / (time.monotonic() - began_s):.0f} MB/s")  # noqa: T201
            assert check_tier(cluster.bootstrap, url, env=server.environ).problems == []
    finally:
        server.close()


def is_in_the_tier_but_for(topic: TieredTopic, records: int) -> bool:
    end, local, tiered = (topic.offset(which) for which in (LATEST, EARLIEST_LOCAL, LATEST_TIERED))
    if end is None or local is None or tiered is None:
        return False
    return local >= end - records and tiered + 1 >= local


@pytest.fixture
def java_if_there(request: pytest.FixtureRequest) -> Java | None:
    try:
        return Java(request.getfixturevalue("kafka_home"))
    except pytest.skip.Exception:
        return None


@pytest.mark.requirement("1241-11", "X-7")
@pytest.mark.minio
def test_leader_and_store_killed_amid_copies_and_every_value_is_read_once(
    tmp_path: Path, minio: Path, java_if_there: Java | None
) -> None:
    go_through_kills(tmp_path, minio, java_if_there, total=100_000_000, segment=1 << 20)


@pytest.mark.requirement("1241-11", "X-7")
@pytest.mark.minio
@pytest.mark.chaos
def test_two_gigabytes_through_the_same(tmp_path: Path, minio: Path, java_if_there: Java | None) -> None:
    go_through_kills(tmp_path, minio, java_if_there, total=2_000_000_000, segment=16 << 20)


# --- transactions -------------------------------------------------------------------------------------------


@pytest.fixture
def kafka(tmp_path: Path, kafka_home: Path) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path / "kafka", Java(kafka_home)) as broker:
        yield broker.start()


@pytest.mark.requirement("X-7")
@pytest.mark.kafka
def test_what_was_aborted_in_a_log_of_kafka_stays_invisible_in_the_tier(
    kafka: ApacheKafka, tmp_path: Path
) -> None:
    name, rounds = unique("transactions"), 12
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    new = NewTopic(name, 1, config={"segment.bytes": str(1 << 20)})
    admin.create_topics([new])[name].result(timeout=20)
    committed = write_transactions(kafka.bootstrap, name, rounds)
    kafka.stop()
    broker = TieredBroker(tmp_path)
    try:
        config = {"remote.storage.enable": "true", "segment.bytes": str(1 << 20), "retention.ms": "-1"}
        topic = broker.make_topic(config={**config, "local.retention.ms": "1"}, name=name)
        broker.kill()
        put_in_place(kafka.data / f"{name}-0", broker.data / f"{name}-0")
        broker.rise()
        topic.wait_tiered()
        assert topic.known_offset(LATEST) > 2 * len(committed)
        digest = hashlib.sha256(b"".join(value(number) + b"\n" for number in committed)).hexdigest()
        found = read_by_librdkafka(broker.bootstrap, name, len(committed), isolation="read_committed")
        assert found == digest
        found = read_by_java(kafka.java, broker.bootstrap, name, len(committed), isolation="read_committed")
        assert found == digest
        topic.wait_no_loose_ends()
        assert check_tier(broker.bootstrap, broker.url).problems == []
    finally:
        broker.close()


def write_transactions(bootstrap: str, topic: str, rounds: int) -> list[int]:
    """Two producers at once, of which one aborts; what was committed, in its order."""
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("id"), "linger.ms": 5})
        for _ in range(2)
    ]
    for each in producers:
        each.init_transactions(30)
    committed: list[int] = []
    number = 0
    for _ in range(rounds):
        for each in producers:
            each.begin_transaction()
        for _ in range(20):
            for which, each in enumerate(producers):
                each.produce(topic, value(number), partition=0)
                if which == 0:
                    committed.append(number)
                number += 1
            for each in producers:
                each.flush(30)
        producers[0].commit_transaction(30)
        producers[1].abort_transaction(30)
    return committed
