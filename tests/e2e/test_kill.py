"""kill -9 of a real broker under load: what it acknowledged is there afterwards, once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.peers import unique, until
from tests.compat.raw import RawClient
from tests.e2e.conftest import Phoenix
from tests.e2e.load import RawLoad, check, values_at

ROUNDS = 4
RECOVERY_S = 60.0


def make_topic(bootstrap: str, partitions: int) -> str:
    name = unique("topic")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions)])[name].result(timeout=20)
    return name


def read_partition(bootstrap: str, topic: str, partition: int) -> dict[int, bytes]:
    with RawClient(bootstrap) as client:
        return values_at(client.read_bytes(topic, partition))


def kill_again_and_again(phoenix: Phoenix, progress: Callable[[], int], step: int) -> None:
    """Each round waits for new acknowledgements, so every kill falls into the middle of the load."""
    for _ in range(ROUNDS):
        goal = progress() + step
        until(lambda goal=goal: progress() >= goal, "progress after the restart", timeout_s=RECOVERY_S)  # type: ignore[misc]
        phoenix.kill_and_rise()
    goal = progress() + step
    until(lambda: progress() >= goal, "progress after the last restart", timeout_s=RECOVERY_S)


def test_what_a_raw_client_was_acknowledged_is_there_once_and_in_order(phoenix: Phoenix) -> None:
    topic = make_topic(phoenix.bootstrap, 3)
    loads = [RawLoad(f"raw-{n}", phoenix.bootstrap, topic, 3) for n in range(4)]
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        kill_again_and_again(phoenix, lambda: min(load.acknowledged() for load in loads), 100)
    logs = {partition: read_partition(phoenix.bootstrap, topic, partition) for partition in range(3)}
    verdict = check(loads, logs)
    assert verdict["acknowledged"] >= 4 * 100 * ROUNDS
    phoenix.kill_and_rise()
    again = {partition: read_partition(phoenix.bootstrap, topic, partition) for partition in range(3)}
    assert again == logs


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_librdkafka_with_idempotence_loses_doubles_and_swaps_nothing(phoenix: Phoenix, codec: str) -> None:
    topic = make_topic(phoenix.bootstrap, 1)
    acknowledged: list[int] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append(int(message.value()))
        else:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": phoenix.bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 2,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "delivery.timeout.ms": 120_000,
        }
    )
    produced = 0

    def progress() -> int:
        nonlocal produced
        while len(producer) < 500:
            producer.produce(topic, value=b"%d" % produced, partition=0, on_delivery=delivered)
            produced += 1
        producer.poll(0)
        return len(acknowledged)

    kill_again_and_again(phoenix, progress, 2000)
    assert producer.flush(RECOVERY_S) == 0
    assert failed == []
    assert acknowledged == list(range(produced))
    log = read_partition(phoenix.bootstrap, topic, 0)
    assert [int(value) for _, value in sorted(log.items())] == list(range(produced))


async def test_aiokafka_with_idempotence_loses_doubles_and_swaps_nothing(phoenix: Phoenix) -> None:
    topic = make_topic(phoenix.bootstrap, 1)
    producer = AIOKafkaProducer(
        bootstrap_servers=phoenix.bootstrap,
        enable_idempotence=True,
        compression_type="gzip",
        linger_ms=2,
        retry_backoff_ms=20,
        request_timeout_ms=60_000,
    )

    async def send(number: int) -> asyncio.Future[object]:
        return await producer.send(topic, b"%d" % number, partition=0)

    await producer.start()
    acks: list[asyncio.Future[object]] = []
    try:
        for _ in range(ROUNDS):
            first = len(acks)
            acks += [await send(number) for number in range(first, first + 1000)]
            await acks[first + 300]
            phoenix.process.kill()
            acks += [await send(number) for number in range(first + 1000, first + 1200)]
            await asyncio.to_thread(phoenix.rise)  # noqa: TID251
        await asyncio.wait_for(producer.flush(), RECOVERY_S)
        await asyncio.gather(*acks)
    finally:
        await producer.stop()
    log = read_partition(phoenix.bootstrap, topic, 0)
    assert [int(value) for _, value in sorted(log.items())] == list(range(len(acks)))


def test_committed_offsets_and_the_group_survive_a_kill(phoenix: Phoenix) -> None:
    topic, group = make_topic(phoenix.bootstrap, 2), unique("group")
    producer = Producer({"bootstrap.servers": phoenix.bootstrap})
    for n in range(100):
        producer.produce(topic, value=b"%d" % n, partition=n % 2)
    assert producer.flush(30) == 0
    config = {
        "bootstrap.servers": phoenix.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 100,
        "heartbeat.interval.ms": 200,
        "session.timeout.ms": 10_000,
    }
    member = Consumer(config)
    try:
        member.subscribe([topic])
        until(lambda: member.poll(0.1) and len(member.assignment()) == 2, "the member to join", pause_s=0.0)
        for round_ in range(1, ROUNDS):
            wanted = [TopicPartition(topic, partition, 10 * round_ + partition) for partition in range(2)]
            until(lambda wanted=wanted: committed(member, wanted), "a commit", timeout_s=RECOVERY_S)  # type: ignore[misc]
            phoenix.kill_and_rise()
            found = member.committed([TopicPartition(topic, p) for p in range(2)], timeout=RECOVERY_S)
            assert [partition.offset for partition in found] == [partition.offset for partition in wanted]
    finally:
        member.close()
    successor = Consumer(config)
    try:
        successor.subscribe([topic])
        message = until(lambda: successor.poll(0.2), "a record", timeout_s=RECOVERY_S, pause_s=0.0)
        assert message.error() is None
        assert message.offset() == 10 * (ROUNDS - 1) + message.partition()
    finally:
        successor.close()


def committed(member: Consumer, wanted: list[TopicPartition]) -> bool:
    """A commit fails while the member has to join again; polling is what makes it join."""
    member.poll(0.1)
    try:
        member.commit(offsets=wanted, asynchronous=False)
    except Exception as refused:
        assert "KafkaError" in repr(refused), refused
        return False
    return True
