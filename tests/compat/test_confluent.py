"""confluent-kafka (librdkafka): produce, fetch, group and admin, as its users do them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.conftest import MakeTopic
from tests.compat.peers import unique, until
from tests.compat.samples import CODECS, FIRST_MS, NOTHING, Sample, samples


def produce(
    bootstrap: str, topic: str, sent: Iterable[Sample], *, partition: int = 0, **config: Any
) -> list[int]:
    """The offset each record was acknowledged at, in the order sent."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "delivery.timeout.ms": 30_000, **config}
    )
    offsets: list[int] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            offsets.append(message.offset())

    for sample in sent:
        producer.produce(
            topic,
            key=sample.key,
            value=sample.value,
            headers=list(sample.headers),
            timestamp=sample.timestamp_ms,
            partition=partition,
            on_delivery=delivered,
        )
    assert producer.flush(30) == 0
    if failed:
        raise KafkaException(failed[0])
    return offsets


@contextmanager
def consumer(bootstrap: str, **config: Any) -> Iterator[Consumer]:
    """One that is closed at the end; a setting that is None is left out."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": config.pop("group", None) or unique("group"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
        "fetch.wait.max.ms": 100,
        **config,
    }
    reader = Consumer({name: value for name, value in settings.items() if value is not None})
    try:
        yield reader
    finally:
        reader.close()


def take(reader: Consumer, count: int, timeout_s: float = 20.0) -> list[Message]:
    taken: list[Message] = []

    def enough() -> bool:
        for message in reader.consume(count - len(taken), timeout=0.2):
            if message.error() is None:
                taken.append(message)
            elif message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
        return len(taken) >= count

    until(enough, f"{count} records", timeout_s=timeout_s, pause_s=0.0)
    return taken


def read_all(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Message]:
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        return take(reader, count)


def as_sample(message: Message) -> Sample:
    return Sample(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
    )


# --- produce and fetch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_record_comes_back_as_it_was_sent(
    bootstrap: str, topic: str, codec: str, idempotent: bool
) -> None:
    sent = [NOTHING, *samples()]
    offsets = produce(
        bootstrap, topic, sent, **{"compression.type": codec, "enable.idempotence": idempotent, "acks": "all"}
    )
    assert offsets == list(range(len(sent)))
    got = read_all(bootstrap, topic, len(sent))
    assert [as_sample(message) for message in got] == sent
    assert [message.offset() for message in got] == offsets


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, topic: str, acks: str) -> None:
    sent = samples(20)
    produce(bootstrap, topic, sent, acks=acks)
    assert [as_sample(message) for message in read_all(bootstrap, topic, len(sent))] == sent


def test_several_idempotent_producers_at_once_keep_their_own_order(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producers = [Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}) for _ in range(3)]
    for n in range(200):
        for who, producer in enumerate(producers):
            producer.produce(topic, key=b"%d" % who, value=b"%d" % n)
    for producer in producers:
        assert producer.flush(30) == 0
    got = read_all(bootstrap, topic, 600)
    for who in range(len(producers)):
        assert [int(message.value()) for message in got if message.key() == b"%d" % who] == list(range(200))


def test_a_record_larger_than_the_limit_is_refused_and_one_below_a_raised_limit_is_taken(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    large = Sample(key=b"large", value=b"x" * 3_000_000, timestamp_ms=FIRST_MS)
    with pytest.raises(KafkaException) as refused:
        produce(bootstrap, make_topic(), [large], **{"message.max.bytes": 10_000_000})
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    roomy = make_topic(config={"max.message.bytes": "8000000"})
    produce(bootstrap, roomy, [large], **{"message.max.bytes": 10_000_000})
    with consumer(bootstrap, **{"max.partition.fetch.bytes": 1000}) as reader:
        reader.assign([TopicPartition(roomy, 0, OFFSET_BEGINNING)])
        assert as_sample(take(reader, 1)[0]) == large


def test_log_append_time_overrides_the_clients_timestamp(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(bootstrap, topic, samples(10), **{"compression.type": "lz4"})
    for message in read_all(bootstrap, topic, 10):
        kind, timestamp_ms = message.timestamp()
        assert kind == 2
        assert timestamp_ms > FIRST_MS + 1_000_000


def test_an_empty_partition_polls_empty_and_reports_its_end(bootstrap: str, topic: str) -> None:
    with consumer(bootstrap, **{"enable.partition.eof": True}) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        message = until(lambda: reader.poll(0.5), "the end of the partition")
        assert message.error().code() == KafkaError._PARTITION_EOF
        assert message.offset() == 0
        assert reader.poll(0.2) is None


def test_a_consumer_that_waits_at_the_end_gets_what_comes_next(bootstrap: str, topic: str) -> None:
    with consumer(bootstrap, **{"enable.partition.eof": True}) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        until(lambda: reader.poll(0.5), "the end of the partition")
        sent = samples(10)
        produce(bootstrap, topic, sent)
        assert [as_sample(message) for message in take(reader, 10)] == sent


def test_an_offset_out_of_range_is_reset_or_reported(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(10))
    with consumer(bootstrap, **{"auto.offset.reset": "error"}) as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        message = until(lambda: reader.poll(0.5), "an error")
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        assert take(reader, 1)[0].offset() == 0


def test_a_topic_is_made_by_the_first_record_for_it(bootstrap: str) -> None:
    topic = unique("made-by-use")
    sent = samples(5)
    produce(bootstrap, topic, sent)
    assert [as_sample(message) for message in read_all(bootstrap, topic, 5)] == sent


# --- offsets -----------------------------------------------------------------------------------------------


def test_offsets_by_time_and_the_ends(bootstrap: str, topic: str, admin: AdminClient) -> None:
    sent = [Sample(key=None, value=b"%d" % n, timestamp_ms=FIRST_MS + 10 * n) for n in range(50)]
    for at in range(0, 50, 10):
        produce(bootstrap, topic, sent[at : at + 10])
    with consumer(bootstrap) as reader:
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 50)
        asked = {
            FIRST_MS - 1: 0,
            FIRST_MS: 0,
            FIRST_MS + 101: 11,
            FIRST_MS + 490: 49,
            FIRST_MS + 491: OFFSET_END,
        }
        for timestamp_ms, offset in asked.items():
            (found,) = reader.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], timeout=10)
            assert found.offset == offset, f"for {timestamp_ms - FIRST_MS} ms after the first"

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        partition = TopicPartition(topic, 0)
        future = admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)[
            partition
        ]
        result = future.result(timeout=10)
        return result.offset, result.timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.latest())[0] == 50
    assert listed(OffsetSpec.max_timestamp()) == (49, FIRST_MS + 490)
    assert listed(OffsetSpec.for_timestamp(FIRST_MS + 255)) == (26, FIRST_MS + 260)


def test_seek_goes_back_and_forth(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(40))
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert take(reader, 5)[-1].offset() == 4
        for target in (30, 2, 39):
            reader.seek(TopicPartition(topic, 0, target))
            assert take(reader, 1)[0].offset() == target


def test_a_committed_offset_with_metadata_is_where_the_group_resumes(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(40))
    group = unique("group")
    with consumer(bootstrap, group=group) as reader:
        reader.subscribe([topic])
        taken = take(reader, 10)
        reader.commit(message=taken[6], asynchronous=False)
        (position,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert position.offset == 7
        with_metadata = TopicPartition(topic, 0, 15, metadata="fifteen")
        reader.commit(offsets=[with_metadata], asynchronous=False)
    with consumer(bootstrap, group=group) as reader:
        (position,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert (position.offset, position.metadata) == (15, "fifteen")
        reader.subscribe([topic])
        assert take(reader, 1)[0].offset() == 15
    with consumer(bootstrap) as stranger:
        (position,) = stranger.committed([TopicPartition(topic, 0)], timeout=10)
        assert position.offset < 0


# --- groups ------------------------------------------------------------------------------------------------


class Member:
    """A subscribed consumer that counts how often its assignment changed."""

    def __init__(self, bootstrap: str, topic: str, group: str, stack: ExitStack, **config: Any) -> None:
        self.reader = stack.enter_context(consumer(bootstrap, group=group, **config))
        self.changes = 0
        self.reader.subscribe([topic], on_assign=self._changed, on_revoke=self._changed)

    def _changed(self, _reader: Consumer, _partitions: list[TopicPartition]) -> None:
        self.changes += 1

    def owned(self) -> set[int]:
        message = self.reader.poll(0.02)
        if message is not None and message.error() is not None:
            raise KafkaException(message.error())
        return {partition.partition for partition in self.reader.assignment()}


def settled(members: list[Member], partitions: int) -> bool:
    owned = [member.owned() for member in members]
    return all(owned) and sorted(p for own in owned for p in own) == list(range(partitions))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_as_they_come_and_go(
    bootstrap: str, make_topic: MakeTopic, strategy: str
) -> None:
    topic, group = make_topic(partitions=6), unique("group")
    config = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200}
    with ExitStack() as stack:
        members = [Member(bootstrap, topic, group, stack, **config)]
        until(lambda: settled(members, 6), "one member to own all")
        members.append(Member(bootstrap, topic, group, stack, **config))
        until(lambda: settled(members, 6), "two members to share")
        members.append(Member(bootstrap, topic, group, stack, **config))
        until(lambda: settled(members, 6), "three members to share")
        assert all(len(member.owned()) == 2 for member in members)
        members.pop(0).reader.close()
        until(lambda: settled(members, 6), "the rest to take over")
        for partition in range(6):
            produce(bootstrap, topic, samples(10), partition=partition)
        seen: list[tuple[int, int]] = []

        def all_seen() -> bool:
            for member in members:
                for message in member.reader.consume(60, timeout=0.1):
                    assert message.error() is None
                    seen.append((message.partition(), message.offset()))
            return len(seen) >= 60

        until(all_seen, "60 records", pause_s=0.0)
        assert sorted(seen) == [(partition, offset) for partition in range(6) for offset in range(10)]


def test_a_static_member_comes_back_without_a_rebalance(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=4), unique("group")
    config = {"heartbeat.interval.ms": 200, "session.timeout.ms": 30_000}
    with ExitStack() as stack:
        first = Member(bootstrap, topic, group, stack, **config, **{"group.instance.id": "first"})
        with ExitStack() as shorter:
            second = Member(bootstrap, topic, group, shorter, **config, **{"group.instance.id": "second"})
            until(lambda: settled([first, second], 4), "both static members to share")
            before, owned, kept = first.changes, second.owned(), first.owned()
        again = Member(bootstrap, topic, group, stack, **config, **{"group.instance.id": "second"})
        until(lambda: (first.owned(), again.owned())[1], "the static member to return")
        assert (again.owned(), first.owned(), first.changes) == (owned, kept, before)


def test_a_second_user_of_an_instance_id_fences_the_first(bootstrap: str, topic: str) -> None:
    group = unique("group")
    config = {"heartbeat.interval.ms": 200, "group.instance.id": "only-one"}
    with ExitStack() as stack:
        older = Member(bootstrap, topic, group, stack, **config)
        until(older.owned, "the first to join")
        newer = Member(bootstrap, topic, group, stack, **config)
        until(newer.owned, "the second to join")

        def fenced() -> bool:
            try:
                older.owned()
            except KafkaException as error:
                return error.args[0].code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)
            return False

        until(fenced, "the first to be fenced")


# --- admin -------------------------------------------------------------------------------------------------


def done(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(timeout=20)


def refused_with(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as refused:
        done(futures)
    return refused.value.args[0].code()


def test_topics_are_created_grown_described_and_deleted(admin: AdminClient, bootstrap: str) -> None:
    name = unique("topic")
    assert done(admin.create_topics([NewTopic(name, 2)], validate_only=True)) is None
    assert name not in admin.list_topics(timeout=10).topics
    done(admin.create_topics([NewTopic(name, 2, config={"retention.ms": "3600000"})]))
    assert refused_with(admin.create_topics([NewTopic(name, 2)])) == KafkaError.TOPIC_ALREADY_EXISTS
    done(admin.create_partitions([NewPartitions(name, 5)]))
    described = until(
        lambda: (d := done(admin.describe_topics(TopicCollection([name])))) and len(d.partitions) == 5 and d,
        "5 partitions",
    )
    assert [partition.id for partition in described.partitions] == list(range(5))
    assert all(partition.leader is not None and len(partition.isr) == 1 for partition in described.partitions)
    assert str(described.topic_id)
    assert refused_with(admin.create_partitions([NewPartitions(name, 5)])) == KafkaError.INVALID_PARTITIONS
    produce(bootstrap, name, samples(5), partition=4)
    done(admin.delete_topics([name]))
    until(lambda: name not in admin.list_topics(timeout=10).topics, "the topic to go")
    assert refused_with(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    done(admin.create_topics([NewTopic(name, 1)]))
    assert produce(bootstrap, name, samples(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("not/a/name", 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("too-many-replicas", 1, replication_factor=3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("no-such-config", 1, config={"no.such.config": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("bad-config", 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ],
    ids=["name", "replicas", "unknown-config", "bad-config"],
)
def test_a_topic_that_cannot_be_is_refused_for_its_reason(
    admin: AdminClient, new: NewTopic, code: int
) -> None:
    assert refused_with(admin.create_topics([new])) == code


def test_topic_configs_are_altered_described_and_reset(admin: AdminClient, topic: str) -> None:
    def described() -> dict[str, ConfigEntry]:
        return done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        done(
            admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
            )
        )

    before = described()
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].is_default
    assert before["cleanup.policy"].value == "delete"
    alter("retention.ms", "60000", AlterConfigOpType.SET)
    until(lambda: described()["retention.ms"].value == "60000", "the new value")
    assert not described()["retention.ms"].is_default
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    until(
        lambda: set(described()["cleanup.policy"].value.split(",")) == {"delete", "compact"}, "both policies"
    )
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    until(lambda: described()["cleanup.policy"].value == "compact", "one policy")
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    until(lambda: described()["retention.ms"].value == "604800000", "the default again")
    wrong = ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[wrong])
    assert refused_with(admin.incremental_alter_configs([resource])) == KafkaError.INVALID_CONFIG


def test_broker_configs_are_described_and_altered(admin: AdminClient) -> None:
    broker_id = str(next(iter(admin.list_topics(timeout=10).brokers)))

    def described() -> dict[str, ConfigEntry]:
        return done(admin.describe_configs([ConfigResource(ResourceType.BROKER, broker_id)]))

    entries = described()
    assert entries["log.retention.hours"].value == "168"
    assert entries["log.dirs"].is_read_only
    assert entries["message.max.bytes"].value == "1048588"
    entry = ConfigEntry("log.cleaner.backoff.ms", "14000", incremental_operation=AlterConfigOpType.SET)
    done(
        admin.incremental_alter_configs(
            [ConfigResource(ResourceType.BROKER, broker_id, incremental_configs=[entry])]
        )
    )
    until(lambda: described()["log.cleaner.backoff.ms"].value == "14000", "the new value")
    entry = ConfigEntry("log.cleaner.backoff.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    done(
        admin.incremental_alter_configs(
            [ConfigResource(ResourceType.BROKER, broker_id, incremental_configs=[entry])]
        )
    )
    until(lambda: described()["log.cleaner.backoff.ms"].value == "15000", "the default again")


def test_deleted_records_are_gone_and_the_rest_stays(admin: AdminClient, bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(30))
    assert done(admin.delete_records([TopicPartition(topic, 0, 12)])).low_watermark == 12
    with consumer(bootstrap) as reader:
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (12, 30)
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert [message.offset() for message in take(reader, 18)] == list(range(12, 30))
    assert (
        refused_with(admin.delete_records([TopicPartition(topic, 0, 31)])) == KafkaError.OFFSET_OUT_OF_RANGE
    )
    assert done(admin.delete_records([TopicPartition(topic, 0, OFFSET_END)])).low_watermark == 30


def test_groups_are_listed_described_moved_and_deleted(
    admin: AdminClient, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, samples(30))
    group = unique("group")
    with ExitStack() as stack:
        member = Member(bootstrap, topic, group, stack, **{"client.id": "someone"})
        until(member.owned, "the member to join")
        member.reader.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        listed = admin.list_consumer_groups().result(timeout=10)
        assert group in [entry.group_id for entry in listed.valid]
        described = done(admin.describe_consumer_groups([group]))
        assert described.state.name == "STABLE"
        (who,) = described.members
        assert who.client_id == "someone"
        assert [tp.topic for tp in who.assignment.topic_partitions] == [topic]
        assert refused_with(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 20)])
    done(admin.alter_consumer_group_offsets([moved]))
    offsets = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert [(tp.topic, tp.partition, tp.offset) for tp in offsets.topic_partitions] == [(topic, 0, 20)]
    assert done(admin.describe_consumer_groups([group])).state.name == "EMPTY"
    done(admin.delete_consumer_groups([group]))
    assert refused_with(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_the_cluster_describes_itself(admin: AdminClient) -> None:
    described = admin.describe_cluster().result(timeout=10)
    assert described.cluster_id
    assert described.controller is not None
    assert [node.id for node in described.nodes] == [described.controller.id]
