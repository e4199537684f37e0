"""kill -9 of a real broker under load: what it acknowledged is there afterwards, once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from protocol.apis import Api
from protocol.records import build_batch
from tests.clients.blocking import BlockingClient
from tests.compat.peers import unique, until
from tests.compat.samples import FIRST_MS
from tests.e2e.conftest import Phoenix
from tests.e2e.load import RawLoad, check, values_at

ROUNDS = 4
RECOVERY_S = 60.0


def make_topic(bootstrap: str, partitions: int, config: dict[str, str] | None = None) -> str:
    name = unique("topic")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, config=config or {})])[name].result(timeout=20)
    return name


def read_partition(bootstrap: str, topic: str, partition: int) -> dict[int, bytes]:
    with BlockingClient(bootstrap) as client:
        return values_at(client.read_bytes(topic, partition))


def kill_again_and_again(phoenix: Phoenix, progress: Callable[[], int], step: int) -> None:
    """Each round waits for new acknowledgements, so every kill falls into the middle of the load."""
    for _ in range(ROUNDS):
        goal = progress() + step
        until(lambda goal=goal: progress() >= goal, "progress after the restart", timeout_s=RECOVERY_S)  # type: ignore[misc]
        phoenix.kill_and_rise()
    goal = progress() + step
    until(lambda: progress() >= goal, "progress after the last restart", timeout_s=RECOVERY_S)


@pytest.mark.parametrize("padding", [b"", b"x" * 20_000], ids=["small", "rolling"])
def test_what_a_raw_client_was_acknowledged_is_there_once_and_in_order(
    phoenix: Phoenix, padding: bytes
) -> None:
    topic = make_topic(phoenix.bootstrap, 3, {"segment.bytes": str(1 << 20)})
    loads = [RawLoad(f"raw-{n}", phoenix.bootstrap, topic, 3, padding) for n in range(4)]
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        kill_again_and_again(phoenix, lambda: min(load.acknowledged() for load in loads), 100)
    logs = {partition: read_partition(phoenix.bootstrap, topic, partition) for partition in range(3)}
    verdict = check(loads, logs)
    assert verdict["acknowledged"] >= 4 * 100 * ROUNDS
    files = log_files(phoenix.data, topic)
    assert len(files) > 3 or not padding
    phoenix.kill_and_rise()
    again = {partition: read_partition(phoenix.bootstrap, topic, partition) for partition in range(3)}
    assert again == logs
    assert log_files(phoenix.data, topic) == files


def log_files(data: Path, topic: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(data.glob(f"{topic}-*/*.log"))}


def test_a_batch_sent_again_after_the_kill_keeps_its_offset(phoenix: Phoenix) -> None:
    """What an idempotent producer does when the answer to its last batches was lost with the broker."""
    topic = make_topic(phoenix.bootstrap, 1)

    def send(producer_id: int, sequence: int) -> Any:
        batch = build_batch(
            [(None, b"%d" % sequence, (), FIRST_MS)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        with BlockingClient(phoenix.bootstrap) as client:
            return client.produce(topic, 0, bytes(batch))

    def new_producer_id() -> int:
        with BlockingClient(phoenix.bootstrap) as client:
            answer = client.call(Api.INIT_PRODUCER_ID, 2, transactional_id=None, transaction_timeout=60_000)
        assert answer.error_code == 0
        return int(answer.producer_id)

    producer_ids = [new_producer_id()]
    sequence = 0
    for _ in range(ROUNDS):
        for _ in range(7):
            assert send(producer_ids[0], sequence).base_offset == sequence
            sequence += 1
        phoenix.kill_and_rise()
        for again in range(sequence - 5, sequence):
            answer = send(producer_ids[0], again)
            assert (answer.error_code, answer.base_offset) == (0, again)
        assert send(producer_ids[0], sequence - 6).error_code == 45
        assert send(producer_ids[0], sequence + 1).error_code == 45
        producer_ids.append(new_producer_id())
    assert len(set(producer_ids)) == len(producer_ids)
    assert read_partition(phoenix.bootstrap, topic, 0) == {n: b"%d" % n for n in range(sequence)}


def test_what_an_admin_was_told_is_done_survives_a_kill(phoenix: Phoenix) -> None:
    admin = AdminClient({"bootstrap.servers": phoenix.bootstrap, "reconnect.backoff.max.ms": 100})
    kept: dict[str, int] = {}
    for round_ in range(ROUNDS):
        doomed = make_topic(phoenix.bootstrap, 1)
        kept[make_topic(phoenix.bootstrap, 2)] = 2
        grown = make_topic(phoenix.bootstrap, 1)
        admin.create_partitions([NewPartitions(grown, 3)])[grown].result(timeout=20)
        kept[grown] = 3
        resource = ConfigResource(ResourceType.TOPIC, grown, incremental_configs=[retention(round_)])
        admin.incremental_alter_configs([resource])[resource].result(timeout=20)
        admin.delete_topics([doomed])[doomed].result(timeout=20)
        phoenix.kill_and_rise()
        topics = until(lambda: listed(admin), "metadata after the restart")
        assert {name: count for name, count in topics.items() if not name.startswith("__")} == kept
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, grown)]).values()
        assert described.result(timeout=20)["retention.ms"].value == str(100_000 + round_)


def retention(round_: int) -> ConfigEntry:
    return ConfigEntry("retention.ms", str(100_000 + round_), incremental_operation=AlterConfigOpType.SET)


def listed(admin: AdminClient) -> dict[str, int]:
    try:
        topics = admin.list_topics(timeout=5).topics
    except KafkaException:
        return {}
    return {name: len(topic.partitions) for name, topic in topics.items()}


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
    except KafkaException:
        return False
    return True
