"""Transactions of stock Python clients over three brokers: partitions that each of them leads, offsets that
one keeps and a coordinator on another, of which any may go away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import unique, until
from tests.compat.test_confluent import consumer
from tests.compat.transactional import (
    COMMITTED,
    LIBRARIES,
    Transactional,
    committed,
    ends,
    left_open,
    names_of,
    uncommitted,
)

pytestmark = [
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SETTINGS = {
    "transaction.state.log.num.partitions": "6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "broker.session.timeout.ms": "3000",
}
PARTITIONS = 3
SHORT_MS = 3000

MakeProducer = Callable[..., Transactional]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as running:
        yield running


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_producer(cluster: ClusterProcesses, library: str) -> Iterator[MakeProducer]:
    made: list[Transactional] = []

    def make(transactional_id: str, **options: Any) -> Transactional:
        addresses = ",".join(cluster.address(node_id) for node_id in cluster.awake)
        made.append(LIBRARIES[library](addresses, transactional_id, **options))
        return made[-1]

    yield make
    for producer in made:
        with suppress(Exception):  # one that was fenced says so once more
            producer.close()


def coordinator(cluster: ClusterProcesses, key: str, key_type: int) -> int:
    """The broker that coordinates a group (0) or a transactional id (1)."""

    def found() -> list[int]:
        with BlockingClient(cluster.address(cluster.awake[0])) as client:
            answer = client.call(
                Api.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[key]
            ).coordinators[0]
            return [answer.node_id] if answer.error_code == 0 else []

    return until(found, f"the coordinator of {key}", timeout_s=SETTLE_S)[0]


def wait_nothing_open(cluster: ClusterProcesses, topic: str, timeout_s: float = SETTLE_S) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for partition in range(PARTITIONS):
        until(
            lambda partition=partition: len(set(ends(admin, topic, partition))) == 1,  # type: ignore[misc]
            "no open transaction",
            timeout_s=timeout_s,
        )


def committed_offset(cluster: ClusterProcesses, group: str, topic: str) -> int:
    with consumer(cluster.bootstrap, group=group, **{"isolation.level": COMMITTED}) as reader:
        (found,) = reader.committed([TopicPartition(topic, 0)], timeout=SETTLE_S)
        assert found.error is None
        return int(found.offset)


def send(producer: Transactional, topic: str, group: str, turn: int) -> bytes:
    """One value to each partition, and an offset of the group."""
    value = b"turn %d" % turn
    for partition in range(PARTITIONS):
        producer.send(topic, value, partition=partition)
    producer.send_offsets(group, {(topic, 0): turn})
    return value


def check(cluster: ClusterProcesses, topic: str, expected: list[bytes]) -> None:
    wait_nothing_open(cluster, topic)
    for partition in range(PARTITIONS):
        assert committed(cluster.bootstrap, topic, partition) == expected


def test_a_transaction_over_partitions_that_each_of_them_leads(
    cluster: ClusterProcesses, make_producer: MakeProducer
) -> None:
    topic, group = cluster.make_topic(PARTITIONS), unique("group")
    assert {row.leader_id for row in cluster.partitions(topic)} == set(cluster.node_ids)
    producer, expected = make_producer(unique("producer")), []
    for turn in range(6):
        producer.begin()
        value = send(producer, topic, group, turn)
        if turn % 3 == 1:
            producer.abort()
        else:
            producer.commit()
            expected.append(value)
    check(cluster, topic, expected)
    assert committed_offset(cluster, group, topic) == 5
    assert len(uncommitted(cluster.bootstrap, topic)) == 6


def test_a_zombie_is_fenced_at_all_of_them(cluster: ClusterProcesses, make_producer: MakeProducer) -> None:
    topic, group, transactional_id = cluster.make_topic(PARTITIONS), unique("group"), unique("same")
    zombie = make_producer(transactional_id)
    zombie.begin()
    send(zombie, topic, group, 1)
    successor = make_producer(transactional_id)
    with pytest.raises(Exception) as refused:
        zombie.commit()
    assert names_of(refused.value) & zombie.fenced, names_of(refused.value)
    check(cluster, topic, [])
    successor.begin()
    value = send(successor, topic, group, 2)
    successor.commit()
    check(cluster, topic, [value])
    assert committed_offset(cluster, group, topic) == 2


@pytest.mark.parametrize("library", ["confluent", "aiokafka"], indirect=True)
@pytest.mark.parametrize("role", ["transaction coordinator", "group coordinator", "leader"])
def test_a_transaction_outlives_a_broker_that_is_stopped(
    cluster: ClusterProcesses, make_producer: MakeProducer, role: str
) -> None:
    """Not with kafka-python, which forgets its request when it cannot connect to its coordinator."""
    topic, group, transactional_id = cluster.make_topic(PARTITIONS), unique("group"), unique("producer")
    expected = []
    for turn in range(2):
        # one for each: librdkafka waits for ever for a group's coordinator that has come back
        producer = make_producer(transactional_id)
        producer.begin()
        value = send(producer, topic, group, 2 * turn)
        match role:
            case "transaction coordinator":
                victim = coordinator(cluster, transactional_id, 1)
            case "group coordinator":
                victim = coordinator(cluster, group, 0)
            case _:
                victim = cluster.leader(topic, 1)
        cluster.stop(victim)
        try:
            producer.commit()
            expected.append(value)
            check(cluster, topic, expected)
            assert committed_offset(cluster, group, topic) == 2 * turn
        finally:
            cluster.rise(victim)
        cluster.wait_whole(topic, "__transaction_state", "__consumer_offsets")


def test_what_a_killed_process_left_open_is_aborted_in_time_though_its_coordinator_died(
    cluster: ClusterProcesses, library: str
) -> None:
    topic, transactional_id = cluster.make_topic(PARTITIONS), unique("alone")
    with left_open(library, cluster.bootstrap, transactional_id, topic, "a", timeout_ms=SHORT_MS):
        victim = coordinator(cluster, transactional_id, 1)
        cluster.kill(victim)
    try:
        wait_nothing_open(cluster, topic, SHORT_MS / 1000 + 10)
        assert committed(cluster.bootstrap, topic) == []
        assert uncommitted(cluster.bootstrap, topic) == [b"a"]
    finally:
        cluster.rise(victim)
    cluster.wait_whole(topic, "__transaction_state", "__consumer_offsets")
