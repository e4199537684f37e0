"""A real broker that may have few files open: connections are turned away before any log goes without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.compat.peers import unique, until
from tests.e2e.load import batch_of, values_at
from tests.processes import BrokerProcess

DESCRIPTORS = 100
PARTITIONS = 150
CONNECTIONS = 150
LARGE = b"x" * 400_000


def log_directories(client: BlockingClient) -> list[int]:
    described: Any = client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
    return [entry.error_code for entry in described.results]


def test_no_log_goes_offline_when_descriptors_run_out(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker(
        descriptors=DESCRIPTORS, settings={"log.flush.offset.checkpoint.interval.ms": "1000"}
    )
    topic = unique("topic")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created = admin.create_topics([NewTopic(topic, PARTITIONS, config={"segment.bytes": str(1 << 20)})])
    created[topic].result(timeout=20)

    with BlockingClient(broker.bootstrap) as client, ExitStack() as opened:
        turned_away = 0
        for _ in range(CONNECTIONS):
            other = opened.enter_context(BlockingClient(broker.bootstrap))
            try:
                other.call(Api.API_VERSIONS, 0)
            except ConnectionError:
                turned_away += 1
        assert CONNECTIONS - DESCRIPTORS < turned_away < CONNECTIONS
        for partition in range(PARTITIONS):
            assert client.produce(topic, partition, bytes(batch_of(b"first"))).error_code == 0
        for partition in range(0, PARTITIONS, 10):
            for _ in range(4):
                assert client.produce(topic, partition, bytes(batch_of(LARGE))).error_code == 0
            assert len(list((tmp_path / "data" / f"{topic}-{partition}").glob("*.log"))) > 1
        for partition in range(PARTITIONS):
            assert values_at(client.read_bytes(topic, partition))[0] == b"first"
        checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
        until(lambda: f"{topic} 0 " in checkpoint.read_text(), "the checkpoint")
        assert log_directories(client) == [0]
    assert broker.terminate() == 0
    assert "Traceback" not in broker.stderr
    again = start_broker(descriptors=DESCRIPTORS)
    with BlockingClient(again.bootstrap) as client:
        assert client.produce(topic, 0, bytes(batch_of(b"last"))).base_offset == 5
