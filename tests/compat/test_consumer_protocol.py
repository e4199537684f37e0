"""confluent-kafka with `group.protocol=consumer` (KIP-848): members that the server assigns, as their users
run them, and groups that change from the classic protocol to this one and back while they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.compat.conftest import MakeTopic
from tests.compat.peers import unique, until
from tests.processes import BrokerProcess

PARTITIONS = 6
HEARTBEAT_MS = 500
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose members need not wait five seconds for what is new."""
    settings = {
        "group.consumer.min.heartbeat.interval.ms": f"{HEARTBEAT_MS}",
        "group.consumer.heartbeat.interval.ms": f"{HEARTBEAT_MS}",
        "group.consumer.min.session.timeout.ms": "3000",
        "group.consumer.session.timeout.ms": "6000",
        "group.initial.rebalance.delay.ms": "0",
    }
    with BrokerProcess(tmp_path_factory.mktemp("tidewal"), settings=settings) as broker:
        yield broker.bootstrap
        assert "Traceback" not in broker.stderr, broker.stderr[-5000:]


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


def kind(admin: AdminClient, group: str) -> str:
    listed = admin.list_consumer_groups().result().valid
    found = next((one.type for one in listed if one.group_id == group), ConsumerGroupType.UNKNOWN)
    return str(found.name)


def test_members_share_the_partitions_as_they_come_and_go(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    produced(bootstrap, topic, 50)
    with ExitStack() as stack:
        readers = [Reader(bootstrap, group, [topic], stack)]
        wait_settled(readers, "one member to own all")
        readers.append(Reader(bootstrap, group, [topic], stack))
        wait_settled(readers, "two members to share")
        readers.append(Reader(bootstrap, group, [topic], stack))
        wait_settled(readers, "three members to share")
        assert all(len(reader.owned()) == 2 for reader in readers)
        assert kind(admin, group) == "CONSUMER"
        described = admin.describe_consumer_groups([group])[group].result()
        assert len(described.members) == 3
        first = readers.pop(0)
        first.close()
        wait_settled(readers, "the others to take over")
        produced(bootstrap, topic, 50)
        everything = {(topic, partition, offset) for partition in range(6) for offset in range(100)}

        def seen() -> set[tuple[str, int, int]]:
            for reader in readers:
                reader.poll()
            return {one for reader in (first, *readers) for one in reader.seen}

        until(lambda: seen() == everything, "every record", timeout_s=TIMEOUT_S)
        total = sum(len(reader.seen) for reader in (first, *readers))
        assert total == len(everything), "no record is read twice when all give up with a commit"


def test_a_static_member_comes_back_to_what_it_had(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    with ExitStack() as stack:
        first = Reader(bootstrap, group, [topic], stack, **{"group.instance.id": "first"})
        with ExitStack() as shorter:
            second = Reader(bootstrap, group, [topic], shorter, **{"group.instance.id": "second"})
            wait_settled([first, second], "both static members to share")
            owned, kept = second.owned(), first.owned()
        again = Reader(bootstrap, group, [topic], stack, **{"group.instance.id": "second"})
        wait_settled([first, again], "the static member to return")
        assert (again.owned(), first.owned()) == (owned, kept)


def test_a_subscription_by_expression_finds_topics_that_come_later(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    prefix, group = unique("prefix"), unique("group")
    make_topic(partitions=1, prefix=f"{prefix}-a")
    with ExitStack() as stack:
        reader = Reader(bootstrap, group, [f"^{prefix}-.*"], stack)
        until(lambda: len(reader.owned()) == 1, "the topic that is there", timeout_s=TIMEOUT_S)
        make_topic(partitions=1, prefix=f"{prefix}-b")
        until(
            lambda: reader.poll() or len(reader.consumer.assignment()) == 2,
            "the topic that came later",
            timeout_s=TIMEOUT_S,
        )


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


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_moves_to_the_consumer_protocol_and_back_while_it_reads(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, strategy: str
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    classic = {"protocol": "classic", "partition.assignment.strategy": strategy}
    written = 0
    gone: list[Reader] = []

    def more() -> None:
        nonlocal written
        produced(bootstrap, topic, 20)
        written += 20

    def all_read(readers: list[Reader]) -> bool:
        for reader in readers:
            reader.poll()
        seen = {one for reader in (*gone, *readers) for one in reader.seen}
        return seen == {(topic, partition, offset) for partition in range(6) for offset in range(written)}

    def step(readers: list[Reader], what: str, expected: str) -> None:
        wait_settled(readers, what)
        assert kind(admin, group) == expected
        more()
        until(lambda: all_read(readers), f"every record, {what}", timeout_s=TIMEOUT_S)

    with ExitStack() as stack:
        readers = [Reader(bootstrap, group, [topic], stack, **classic) for _ in range(2)]
        step(readers, "two classic members", "CLASSIC")
        # one by one to the new protocol
        for number in range(2):
            readers.append(Reader(bootstrap, group, [topic], stack))
            step(readers, f"with {number + 1} new members", "CONSUMER")
            gone.append(readers.pop(0))
            gone[-1].close()
            step(readers, f"without {number + 1} of the old", "CONSUMER")
        # and back
        for number in range(2):
            readers.append(Reader(bootstrap, group, [topic], stack, **classic))
            step(readers, f"with {number + 1} classic ones again", "CONSUMER")
            gone.append(readers.pop(0))
            gone[-1].close()
            step(readers, f"{number} of the new ones left", "CONSUMER" if number == 0 else "CLASSIC")


def test_a_group_has_its_own_heartbeat_interval(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    entry = ConfigEntry("consumer.heartbeat.interval.ms", "600", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    with ExitStack() as stack:
        wait_settled([Reader(bootstrap, group, [topic], stack)], "one member to own all")
