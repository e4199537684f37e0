"""Several log directories, one of which runs full for real: it answers 56, the broker lives on elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import unique, until
from tests.e2e.load import batch_of, values_at
from tests.processes import BrokerProcess

KAFKA_STORAGE_ERROR = 56
SMALL_BYTES = 16 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that can be filled without harm to anyone else."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler:
        for piece in (1 << 20, 4096, 1):
            try:
                while filler.write(bytes(piece)):
                    pass
            except OSError:
                continue


def test_what_a_full_disk_led_other_brokers_lead(small: Path, tmp_path: Path) -> None:
    dirs = f"{small / 'logs'},{tmp_path / 'roomy'}"
    settings = {"replica.lag.time.max.ms": "5000"}
    with ClusterProcesses(tmp_path, settings=settings, settings_of={1: {"log.dirs": dirs}}) as cluster:
        topic = cluster.make_topic(12)
        lost = [
            partition
            for partition in range(12)
            if (small / "logs" / f"{topic}-{partition}").exists() and cluster.leader(topic, partition) == 1
        ]
        kept = [partition for partition in range(12) if cluster.leader(topic, partition) == 1]
        kept = [partition for partition in kept if partition not in lost]
        assert lost
        assert kept
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        outcomes: list[Any] = []
        for value in (b"before", b"x" * 500_000):
            for partition in range(12):
                producer.produce(
                    topic, value, partition=partition, on_delivery=lambda error, _: outcomes.append(error)
                )
            assert producer.flush(SETTLE_S) == 0
            fill(small)
        assert outcomes == [None] * 24
        assert 1 not in {cluster.leader(topic, partition) for partition in lost}
        assert {cluster.leader(topic, partition) for partition in kept} == {1}


def leaders(bootstrap: str) -> dict[str, int]:
    described = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20)
    return {name: topic.partitions[0].leader for name, topic in described.topics.items()}


def test_a_disk_that_was_changed_is_led_by_nobody_and_the_other_one_goes_on(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    changed, kept = tmp_path / "changed", tmp_path / "kept"
    dirs = {"log.dirs": f"{changed},{kept}"}
    store = ("--store", f"file://{tmp_path / 'store'}")
    broker = start_broker(settings=dirs, arguments=store)
    topics = [unique("topic") for _ in range(8)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        future.result(timeout=20)
    lost = {topic for topic in topics if (changed / f"{topic}-0").exists()}
    assert lost
    assert lost < set(topics)
    with BlockingClient(broker.bootstrap) as client:
        for topic in topics:
            assert client.produce(topic, 0, bytes(batch_of(b"before"))).error_code == 0
    assert broker.terminate() == 0
    shutil.rmtree(changed)
    for _ in range(2):
        broker = start_broker(settings=dirs, arguments=store)
        led = leaders(broker.bootstrap)
        assert {topic: led[topic] for topic in topics} == {
            topic: -1 if topic in lost else 1 for topic in topics
        }
        with BlockingClient(broker.bootstrap) as client:
            for topic in set(topics) - lost:
                assert values_at(client.read_bytes(topic, 0)) == {0: b"before"}
        broker.kill()


def test_a_full_disk_takes_its_own_partitions_offline_and_no_others(
    start_broker: Callable[..., BrokerProcess], small: Path, tmp_path: Path
) -> None:
    roomy = tmp_path / "roomy"
    dirs = {small / "logs", roomy}
    broker = start_broker(settings={"log.dirs": ",".join(map(str, sorted(dirs)))})
    topics = [unique("topic") for _ in range(8)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        future.result(timeout=20)
    on_small = [topic for topic in topics if (small / "logs" / f"{topic}-0").exists()]
    on_roomy = [topic for topic in topics if (roomy / f"{topic}-0").exists()]
    assert on_small
    assert on_roomy
    assert sorted(on_small + on_roomy) == sorted(topics)

    with BlockingClient(broker.bootstrap) as client:
        for topic in topics:
            assert client.produce(topic, 0, bytes(batch_of(b"before"))).error_code == 0
        fill(small)
        large = bytes(batch_of(b"x" * 500_000))
        until(
            lambda: client.produce(on_small[0], 0, large).error_code == KAFKA_STORAGE_ERROR, "the full disk"
        )
        for topic in on_small:
            assert client.produce(topic, 0, bytes(batch_of(b"after"))).error_code == KAFKA_STORAGE_ERROR
            assert client.fetch(topic, 0, 0).error_code == KAFKA_STORAGE_ERROR
        for topic in on_roomy:
            assert client.produce(topic, 0, bytes(batch_of(b"after"))).error_code == 0
            assert values_at(client.read_bytes(topic, 0)) == {0: b"before", 1: b"after"}
        described: Any = client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
        errors = {Path(entry.log_dir): entry.error_code for entry in described.results}
        assert errors == {small / "logs": KAFKA_STORAGE_ERROR, roomy: 0}
    assert broker.process.poll() is None
    assert "Traceback" not in broker.stderr
