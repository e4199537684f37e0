"""A group that the broker assigns, whose broker is killed and comes back: nobody loses what it had."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)

from tests.compat.peers import unique, until
from tests.processes import BrokerProcess

PARTITIONS = 6
TIMEOUT_S = 60.0


class Reader:
    """A consumer that commits what it has read before it gives a partition up."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str],
        stack: ExitStack,
        *,
        protocol: str = "consumer",
        **config: Any,
    ) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.lost = 0
        classic = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1_000,
                **(classic if protocol == "classic" else {}),
                **config,
            }
        )
        self.consumer.subscribe(topics, on_revoke=self._revoked, on_lost=self._lost)
        stack.callback(self.close)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += 1

    def _commit(self) -> None:
        ends: dict[tuple[str, int], int] = {}
        for topic, partition, offset in self.seen:
            ends[topic, partition] = offset + 1
        owned = {(one.topic, one.partition) for one in self.consumer.assignment()}
        offsets = [TopicPartition(*which, end) for which, end in ends.items() if which in owned]
        if offsets:
            self.consumer.commit(offsets=offsets, asynchronous=False)

    def poll(self) -> None:
        for message in self.consumer.consume(200, timeout=0.05):
            if message.error() is not None:
                raise KafkaException(message.error())
            self.seen.append((message.topic(), message.partition(), message.offset()))

    def owned(self) -> set[int]:
        self.poll()
        return {one.partition for one in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def settled(readers: list[Reader], partitions: int = PARTITIONS) -> bool:
    owned = [reader.owned() for reader in readers]
    return all(owned) and sorted(one for own in owned for one in own) == list(range(partitions))


def wait_settled(readers: list[Reader], what: str) -> None:
    until(lambda: settled(readers), what, timeout_s=TIMEOUT_S)


def produced(bootstrap: str, topic: str, count: int) -> None:
    """Write so many records to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(PARTITIONS):
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(30) == 0


def test_a_group_survives_its_coordinator(tmp_path: Path) -> None:
    with ExitStack() as stack:
        settings = {"group.consumer.min.heartbeat.interval.ms": "500"}
        settings |= {"group.consumer.heartbeat.interval.ms": "500"}
        with BrokerProcess(tmp_path, settings=settings) as broker:
            bootstrap = broker.bootstrap
            admin = AdminClient({"bootstrap.servers": bootstrap})
            topic, group = unique("topic"), unique("group")
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
            readers = [Reader(bootstrap, group, [topic], stack) for _ in range(2)]
            produced(bootstrap, topic, 20)
            wait_settled(readers, "two members to share")
            before = [reader.owned() for reader in readers]
            broker.kill()
        again = stack.enter_context(BrokerProcess(tmp_path, listen=bootstrap, settings=settings))
        produced(again.bootstrap, topic, 20)
        everything = {(topic, partition, offset) for partition in range(6) for offset in range(40)}

        def seen() -> set[tuple[str, int, int]]:
            for reader in readers:
                reader.poll()
            return {one for reader in readers for one in reader.seen}

        until(lambda: seen() == everything, "every record", timeout_s=TIMEOUT_S)
        assert [reader.owned() for reader in readers] == before
        assert not any(reader.lost for reader in readers)
        for reader in readers:
            reader.close()
