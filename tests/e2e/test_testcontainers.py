"""`testcontainers_tidewal` with a real engine: addresses that clients are told, starts, failures, kills."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import ROOT

docker = pytest.importorskip("docker", reason="testcontainers is not installed: make setup")
testcontainers_tidewal = pytest.importorskip("testcontainers_tidewal")

SETTLE_S = 60
BUILD_S_MAX = 900
pytestmark = [
    pytest.mark.containers,
    # docker-py leaves the connections of a closed client to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Leave none of these connections to the collector while a test of others runs, which would fail."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def image() -> str:
    """The image of this checkout, made anew; skips where no engine answers."""
    try:
        # docker-py would leave the socket of a connection that failed to the collector
        subprocess.run(["docker", "version"], capture_output=True, timeout=SETTLE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no Docker engine answers")
    name = "tidewal-testcontainers"
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", name, "."], cwd=ROOT, timeout=BUILD_S_MAX, check=True
    )
    return name


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SETTLE_S) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, timeout=SETTLE_S)]
    finally:
        consumer.close()


def test_a_container_serves_clients_outside_and_inside(image: str) -> None:
    container = testcontainers_tidewal.TidewalContainer(image).with_property("num.partitions", "2")
    container.with_env("KAFKA_LOG_RETENTION_HOURS", "7")
    with container as kafka:
        produce(kafka.get_bootstrap_server(), "orders", [b"one"])
        assert consume(kafka.get_bootstrap_server(), "orders", 1) == [b"one"]
        inside = kafka.get_inside_bootstrap_server()
        code, told = kafka.exec(["tidewal", "offsets", "orders", "-b", inside])
        assert code == 0, told
        assert len(told.splitlines()) == 3, "a head and two partitions"
        admin = AdminClient({"bootstrap.servers": kafka.get_bootstrap_server()})
        topics = admin.list_topics(timeout=SETTLE_S).brokers
        assert [f"{broker.host}:{broker.port}" for broker in topics.values()] == [
            kafka.get_bootstrap_server()
        ]


def test_one_that_does_not_start_says_why_and_is_gone(image: str) -> None:
    container = testcontainers_tidewal.TidewalContainer(image).with_property("num.io.threads", "many")
    with (
        pytest.raises(
            Exception, match=r"(?s)ended before it was ready.*Invalid value many for.*num.io.threads"
        ),
        container,
    ):
        pass
    with pytest.raises(docker.errors.NotFound):
        container.get_wrapped_container().reload()


def test_a_cluster_lives_on_without_one_of_its_containers(image: str) -> None:
    with testcontainers_tidewal.TidewalCluster(image) as cluster:
        bootstrap = cluster.get_bootstrap_server()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic("orders", 3, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([new])["orders"].result(timeout=SETTLE_S)
        produce(bootstrap, "orders", [b"%d" % number for number in range(30)])
        cluster.brokers[2].get_wrapped_container().kill()
        produce(bootstrap, "orders", [b"%d" % number for number in range(30, 60)])
        found = consume(bootstrap, "orders", 60)
        assert sorted(int(value or b"-1") for value in found) == list(range(60))
        code, told = cluster.minio.exec(["ls", "/data/tidewal"])
        assert code == 0
        assert b"meta" in told, "the objects are in the bucket"
