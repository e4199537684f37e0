"""kafka-python: produce, fetch, group and admin, as its users do them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Event, Thread
from typing import Any
from uuid import UUID

import pytest
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
)
from kafka.admin import ConfigResource
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import (
    InvalidTopicError,
    MessageSizeTooLargeError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.compat.conftest import MakeTopic
from tests.compat.peers import unique, until
from tests.compat.samples import CODECS, FIRST_MS, Sample, samples

PRESENT = {"none": True, "gzip": True, "snappy": has_snappy(), "lz4": has_lz4(), "zstd": has_zstd()}
ANSWER_S = 20.0


def codec_present(codec: str) -> str:
    if not PRESENT[codec]:
        pytest.skip(f"kafka-python has no {codec} library here")
    return codec


def produce(
    bootstrap: str, topic: str, sent: Iterable[Sample], *, partition: int = 0, **config: Any
) -> list[int]:
    """The offset each record was acknowledged at, in the order sent."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **config)) as writer:
        acks = [
            writer.send(
                topic,
                key=sample.key,
                value=sample.value,
                headers=list(sample.headers),
                timestamp_ms=sample.timestamp_ms,
                partition=partition,
            )
            for sample in sent
        ]
        writer.flush(timeout=ANSWER_S)
        return [ack.get(timeout=ANSWER_S).offset for ack in acks]


@contextmanager
def consumer(bootstrap: str, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    reader = KafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        **{
            "group_id": unique("group"),
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
            "heartbeat_interval_ms": 200,
            **config,
        },
    )
    with closing(reader):
        for topic in topics:
            # who joins before it knows the topic assigns nothing, and does not join again for minutes
            reader.partitions_for_topic(topic)
        yield reader


@pytest.fixture(scope="module")
def manager(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def take(reader: KafkaConsumer, count: int) -> list[Any]:
    taken: list[Any] = []

    def enough() -> bool:
        for batch in reader.poll(timeout_ms=200, max_records=count - len(taken)).values():
            taken.extend(batch)
        return len(taken) >= count

    until(enough, f"{count} records", pause_s=0.0)
    return taken


def read_all(bootstrap: str, topic: str, count: int, **config: Any) -> list[Any]:
    with consumer(bootstrap, group_id=None, **config) as reader:
        reader.assign([TopicPartition(topic, 0)])
        reader.seek_to_beginning()
        return take(reader, count)


def as_sample(record: Any) -> Sample:
    return Sample(
        key=record.key, value=record.value, headers=tuple(record.headers), timestamp_ms=record.timestamp
    )


# --- produce and fetch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_record_comes_back_as_it_was_sent(
    bootstrap: str, topic: str, codec: str, idempotent: bool
) -> None:
    sent = samples()
    offsets = produce(
        bootstrap,
        topic,
        sent,
        compression_type=None if codec_present(codec) == "none" else codec,
        enable_idempotence=idempotent,
        acks="all",
    )
    assert offsets == list(range(len(sent)))
    got = read_all(bootstrap, topic, len(sent))
    assert [as_sample(record) for record in got] == sent
    assert [record.offset for record in got] == offsets


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, topic: str, acks: int | str) -> None:
    sent = samples(20)
    produce(bootstrap, topic, sent, acks=acks, enable_idempotence=False)
    assert [as_sample(record) for record in read_all(bootstrap, topic, len(sent))] == sent


def test_a_record_larger_than_the_limit_is_refused_and_one_below_a_raised_limit_is_taken(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    large = Sample(key=b"large", value=b"x" * 3_000_000, timestamp_ms=FIRST_MS)
    with pytest.raises(MessageSizeTooLargeError):
        produce(bootstrap, make_topic(), [large], max_request_size=10_000_000)
    roomy = make_topic(config={"max.message.bytes": "8000000"})
    produce(bootstrap, roomy, [large], max_request_size=10_000_000)
    (got,) = read_all(bootstrap, roomy, 1, max_partition_fetch_bytes=1000)
    assert as_sample(got) == large


def test_an_empty_partition_polls_empty_and_a_waiting_consumer_gets_what_comes(
    bootstrap: str, topic: str
) -> None:
    # assigned: a kafka-python member whose poll times out in mid-join never gets its assignment
    with consumer(bootstrap, group_id=None) as reader:
        reader.assign([TopicPartition(topic, 0)])
        assert reader.poll(timeout_ms=200) == {}
        sent = samples(10)
        produce(bootstrap, topic, sent)
        assert [as_sample(record) for record in take(reader, 10)] == sent


def test_an_offset_out_of_range_is_reported_or_reset(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(10))
    partition = TopicPartition(topic, 0)
    with consumer(bootstrap, group_id=None, auto_offset_reset="none") as reader:
        reader.assign([partition])
        reader.seek(partition, 1000)
        with pytest.raises(OffsetOutOfRangeError):
            take(reader, 1)
    with consumer(bootstrap, group_id=None) as reader:
        reader.assign([partition])
        reader.seek(partition, 1000)
        assert take(reader, 1)[0].offset == 0


# --- offsets ----------------------------------------------------------------------------------------------


def test_offsets_by_time_and_the_ends(bootstrap: str, topic: str, manager: KafkaAdminClient) -> None:
    sent = [Sample(key=None, value=b"%d" % n, timestamp_ms=FIRST_MS + 10 * n) for n in range(50)]
    for at in range(0, 50, 10):
        produce(bootstrap, topic, sent[at : at + 10])
    partition = TopicPartition(topic, 0)
    with consumer(bootstrap, group_id=None) as reader:
        reader.assign([partition])
        assert reader.beginning_offsets([partition]) == {partition: 0}
        assert reader.end_offsets([partition]) == {partition: 50}
        for timestamp_ms, expected in {
            FIRST_MS - 1: (0, FIRST_MS),
            FIRST_MS + 101: (11, FIRST_MS + 110),
            FIRST_MS + 490: (49, FIRST_MS + 490),
        }.items():
            found = reader.offsets_for_times({partition: timestamp_ms})[partition]
            assert (found.offset, found.timestamp) == expected
        assert reader.offsets_for_times({partition: FIRST_MS + 491})[partition] is None
    for spec, offset in {
        OffsetSpec.EARLIEST: 0,
        OffsetSpec.LATEST: 50,
        OffsetSpec.MAX_TIMESTAMP: 49,
        OffsetSpec.EARLIEST_LOCAL: 0,
        OffsetSpec.LATEST_TIERED: -1,
    }.items():
        assert manager.list_partition_offsets({partition: spec})[partition].offset == offset, spec


def test_seek_and_pause(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(40))
    partition = TopicPartition(topic, 0)
    with consumer(bootstrap, group_id=None) as reader:
        reader.assign([partition])
        for target in (30, 2, 39):
            reader.seek(partition, target)
            assert take(reader, 1)[0].offset == target
        reader.pause(partition)
        reader.seek(partition, 0)
        assert reader.poll(timeout_ms=200) == {}
        reader.resume(partition)
        assert take(reader, 1)[0].offset == 0


def test_a_committed_offset_with_metadata_is_where_the_group_resumes(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(40))
    group, partition = unique("group"), TopicPartition(topic, 0)
    with consumer(bootstrap, topic, group_id=group) as reader:
        assert reader.committed(partition) is None
        assert take(reader, 10)[-1].offset == 9
        reader.commit()
        assert reader.committed(partition) == 10
        reader.commit({partition: OffsetAndMetadata(15, "fifteen", -1)})
    with consumer(bootstrap, topic, group_id=group) as reader:
        stored = reader.committed(partition, metadata=True)
        assert (stored.offset, stored.metadata) == (15, "fifteen")
        assert take(reader, 1)[0].offset == 15


# --- groups -----------------------------------------------------------------------------------------------


class Member:
    """A subscribed consumer in a thread of its own: a join needs all members to poll at the same time."""

    def __init__(self, bootstrap: str, topic: str, **config: Any) -> None:
        self.seen: list[tuple[int, int]] = []
        self.owned: list[int] = []
        self._leaving = Event()
        self._thread = Thread(target=self._run, args=(bootstrap, topic, config))
        self._thread.start()

    def _run(self, bootstrap: str, topic: str, config: dict[str, Any]) -> None:
        with consumer(bootstrap, topic, **config) as reader:
            while not self._leaving.is_set():
                # A poll that ends amid a join can leave this client waiting for its session to end.
                for batch in reader.poll(timeout_ms=1000).values():
                    self.seen.extend((record.partition, record.offset) for record in batch)
                self.owned = sorted(partition.partition for partition in reader.assignment())

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(timeout=ANSWER_S)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def settled(members: list[Member], partitions: int) -> bool:
    shares = [list(member.owned) for member in members]
    return all(shares) and sorted(p for share in shares for p in share) == list(range(partitions))


@pytest.mark.parametrize(
    "assignor",
    [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor],
    ids=["range", "roundrobin", "cooperative-sticky"],
)
def test_members_share_the_partitions_as_they_come_and_go(
    bootstrap: str, make_topic: MakeTopic, assignor: Any
) -> None:
    topic = make_topic(partitions=6)
    config = {"group_id": unique("group"), "partition_assignment_strategy": (assignor,)}
    with ExitStack() as stack:
        members: list[Member] = []
        for count in (1, 2, 3):
            members.append(stack.enter_context(Member(bootstrap, topic, **config)))
            until(lambda: settled(members, 6), f"{count} members to share")
        assert all(len(member.owned) == 2 for member in members)
        members.pop(0).leave()
        until(lambda: settled(members, 6), "the rest to take over")
        for partition in range(6):
            produce(bootstrap, topic, samples(10), partition=partition)
        until(lambda: sum(len(member.seen) for member in members) >= 60, "60 records")
        assert sorted(at for member in members for at in member.seen) == [
            (partition, offset) for partition in range(6) for offset in range(10)
        ]


def test_static_members_keep_their_partitions_over_a_restart(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=4), unique("group")
    config = {"group_id": group, "session_timeout_ms": 30_000}
    with ExitStack() as stack:
        first = stack.enter_context(Member(bootstrap, topic, group_instance_id="first", **config))
        with Member(bootstrap, topic, group_instance_id="second", **config) as second:
            until(lambda: settled([first, second], 4), "both static members to share")
            kept, share = first.owned, second.owned
        again = stack.enter_context(Member(bootstrap, topic, group_instance_id="second", **config))
        until(lambda: settled([first, again], 4), "the static member to return")
        assert (first.owned, again.owned) == (kept, share)


# --- admin ------------------------------------------------------------------------------------------------


def test_topics_are_created_grown_described_and_deleted(bootstrap: str, manager: KafkaAdminClient) -> None:
    name = unique("topic")
    new = {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}}
    manager.create_topics(new, validate_only=True)
    assert name not in manager.list_topics()
    manager.create_topics(new, wait_for_metadata=True)
    with pytest.raises(TopicAlreadyExistsError):
        manager.create_topics(new)
    with pytest.raises(InvalidTopicError):
        manager.create_topics({"not/a/name": {}})
    manager.create_partitions({name: 5})
    until(lambda: len(manager.describe_topics([name])[0]["partitions"]) == 5, "five partitions")
    paged = manager.describe_topic_partitions([name], response_partition_limit=3)
    assert [entry["partition_index"] for entry in paged["topics"][0]["partitions"]] == [0, 1, 2]
    assert paged["next_cursor"] == {"topic_name": name, "partition_index": 3}
    rest = manager.describe_topic_partitions([name], cursor=paged["next_cursor"])
    assert [entry["partition_index"] for entry in rest["topics"][0]["partitions"]] == [3, 4]
    assert produce(bootstrap, name, samples(5), partition=4) == [0, 1, 2, 3, 4]
    topic_id = UUID(manager.describe_topics([name])[0]["topic_id"])
    assert manager.describe_topics([topic_id])[0]["name"] == name
    manager.delete_topics([name])
    until(lambda: name not in manager.list_topics(), "the topic to go")
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.delete_topics([name])


def test_configs_are_described_altered_and_reset(topic: str, manager: KafkaAdminClient) -> None:
    def described() -> dict[str, dict[str, Any]]:
        resource = ConfigResource("TOPIC", topic)
        answer = manager.describe_configs([resource], include_synonyms=True, config_filter="all")
        return answer["topic"][topic]

    before = described()["retention.ms"]
    assert (before["value"], before["config_source"]) == ("604800000", "DEFAULT_CONFIG")
    assert (before["config_type"], before["read_only"], before["is_sensitive"]) == ("LONG", False, False)
    changed = ConfigResource("TOPIC", topic, {"retention.ms": "60000"})
    assert manager.alter_configs([changed], validate_only=True)["topic"][topic] == "OK"
    assert described()["retention.ms"]["value"] == "604800000"
    assert manager.alter_configs([changed])["topic"][topic] == "OK"
    until(lambda: described()["retention.ms"]["value"] == "60000", "the new value")
    after = described()["retention.ms"]
    assert after["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    assert after["synonyms"][0]["source"] == "DYNAMIC_TOPIC_CONFIG"
    old_way = ConfigResource("TOPIC", topic, {"retention.bytes": "1000000"})
    assert manager.alter_configs([old_way], incremental=False)["topic"][topic] == "OK"
    until(lambda: described()["retention.bytes"]["value"] == "1000000", "the value set the old way")
    assert described()["retention.ms"]["value"] == "60000"
    manager.reset_configs([ConfigResource("TOPIC", topic, ["retention.ms"])])
    until(lambda: described()["retention.ms"]["value"] == "604800000", "the default again")
    refused = ConfigResource("TOPIC", topic, {"retention.ms": "soon"})
    assert manager.alter_configs([refused])["topic"][topic] != "OK"
    assert topic in manager.list_config_resources(["TOPIC"])["topic"]


def test_deleted_records_are_gone_and_the_rest_stays(
    bootstrap: str, topic: str, manager: KafkaAdminClient
) -> None:
    produce(bootstrap, topic, samples(30))
    partition = TopicPartition(topic, 0)
    assert manager.delete_records({partition: 12})[partition]["low_watermark"] == 12
    assert [record.offset for record in read_all(bootstrap, topic, 18)] == list(range(12, 30))
    with pytest.raises(OffsetOutOfRangeError):
        manager.delete_records({partition: 31})


def test_groups_are_listed_described_moved_and_deleted(
    bootstrap: str, topic: str, manager: KafkaAdminClient
) -> None:
    produce(bootstrap, topic, samples(30))
    group, partition = unique("group"), TopicPartition(topic, 0)
    with consumer(bootstrap, topic, group_id=group, client_id="someone") as member:
        until(lambda: member.poll(timeout_ms=100) or member.assignment(), "the member to join")
        member.commit({partition: OffsetAndMetadata(3, "", -1)})
        listed = {entry["group_id"]: entry for entry in manager.list_groups()}
        assert listed[group]["protocol_type"] == "consumer"
        assert group in [entry["group_id"] for entry in manager.list_groups(states_filter=["Stable"])]
        assert group not in [entry["group_id"] for entry in manager.list_groups(states_filter=["Empty"])]
        described = manager.describe_groups([group])[group]
        assert (described["error"], described["group_state"]) == (None, "Stable")
        (who,) = described["members"]
        assert who["client_id"] == "someone"
        assert manager.delete_groups([group])[group] == NonEmptyGroupError.__name__
    manager.reset_group_offsets(group, {partition: OffsetSpec.LATEST})
    assert manager.list_group_offsets(group)[group][partition].offset == 30
    manager.delete_group_offsets(group, [partition])
    assert partition not in manager.list_group_offsets(group)[group]
    assert manager.delete_groups([group])[group] == "OK"
    assert group not in [entry["group_id"] for entry in manager.list_groups()]


def test_producers_log_dirs_and_the_cluster_are_described(
    bootstrap: str, topic: str, manager: KafkaAdminClient
) -> None:
    produce(bootstrap, topic, samples(30), enable_idempotence=True)
    partition = TopicPartition(topic, 0)
    (active,) = manager.describe_producers([partition])[partition].active_producers
    assert active.last_sequence == 29
    (answer,) = manager.describe_log_dirs([topic])
    (log_dir,) = answer["log_dirs"]
    (described,) = [entry for entry in log_dir["topics"] if entry["name"] == topic]
    assert described["partitions"][0]["partition_size"] > 0
    cluster = manager.describe_cluster()
    assert len(cluster["brokers"]) == 1
    assert cluster["controller_id"] == cluster["brokers"][0]["broker_id"]
