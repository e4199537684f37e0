"""aiokafka: produce, fetch, group and admin, as its users do them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, OffsetAndMetadata, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from tests.compat.conftest import MakeTopic
from tests.compat.peers import unique
from tests.compat.samples import CODECS, FIRST_MS, Sample, samples

TIMEOUT_S = 20.0


async def eventually(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not (value := await condition()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return value
    except TimeoutError:
        raise AssertionError(f"waited {TIMEOUT_S} s for {what}") from None


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    writer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **config)
    await writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


@asynccontextmanager
async def consumer(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    reader = AIOKafkaConsumer(
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
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


@asynccontextmanager
async def administrator(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def produce(
    bootstrap: str, topic: str, sent: Iterable[Sample], *, partition: int = 0, **config: Any
) -> list[int]:
    """The offset each record was acknowledged at, in the order sent."""
    async with producer(bootstrap, **config) as writer:
        acks = [
            await writer.send(
                topic,
                key=sample.key,
                value=sample.value,
                headers=list(sample.headers),
                timestamp_ms=sample.timestamp_ms,
                partition=partition,
            )
            for sample in sent
        ]
        return [(await ack).offset for ack in acks]


async def take(reader: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    taken: list[ConsumerRecord] = []

    async def enough() -> bool:
        batches = await reader.getmany(timeout_ms=200, max_records=count - len(taken))
        for batch in batches.values():
            taken.extend(batch)
        return len(taken) >= count

    await eventually(enough, f"{count} records")
    return taken


async def read_all(bootstrap: str, topic: str, count: int, **config: Any) -> list[ConsumerRecord]:
    async with consumer(bootstrap, group_id=None, **config) as reader:
        reader.assign([TopicPartition(topic, 0)])
        await reader.seek_to_beginning()
        return await take(reader, count)


def as_sample(record: ConsumerRecord) -> Sample:
    return Sample(
        key=record.key, value=record.value, headers=tuple(record.headers), timestamp_ms=record.timestamp
    )


# --- produce and fetch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
async def test_every_record_comes_back_as_it_was_sent(
    bootstrap: str, topic: str, codec: str, idempotent: bool
) -> None:
    sent = samples()
    offsets = await produce(
        bootstrap,
        topic,
        sent,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        acks="all",
    )
    assert offsets == list(range(len(sent)))
    got = await read_all(bootstrap, topic, len(sent))
    assert [as_sample(record) for record in got] == sent
    assert [record.offset for record in got] == offsets


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acks(bootstrap: str, topic: str, acks: int | str) -> None:
    sent = samples(20)
    async with producer(bootstrap, acks=acks) as writer:
        for sample in sent:
            await writer.send(
                topic,
                key=sample.key,
                value=sample.value,
                headers=list(sample.headers),
                timestamp_ms=sample.timestamp_ms,
            )
        await writer.flush()
    assert [as_sample(record) for record in await read_all(bootstrap, topic, len(sent))] == sent


async def test_a_record_larger_than_the_limit_is_refused_and_one_below_a_raised_limit_is_taken(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    large = Sample(key=b"large", value=b"x" * 3_000_000, timestamp_ms=FIRST_MS)
    with pytest.raises(MessageSizeTooLargeError):
        await produce(bootstrap, make_topic(), [large], max_request_size=10_000_000)
    roomy = make_topic(config={"max.message.bytes": "8000000"})
    await produce(bootstrap, roomy, [large], max_request_size=10_000_000)
    (got,) = await read_all(bootstrap, roomy, 1, max_partition_fetch_bytes=1000)
    assert as_sample(got) == large


async def test_an_empty_partition_polls_empty_and_a_waiting_consumer_gets_what_comes(
    bootstrap: str, topic: str
) -> None:
    async with consumer(bootstrap, topic) as reader:
        assert await reader.getmany(timeout_ms=200) == {}
        sent = samples(10)
        await produce(bootstrap, topic, sent)
        assert [as_sample(record) for record in await take(reader, 10)] == sent


async def test_an_offset_out_of_range_is_reported_or_reset(bootstrap: str, topic: str) -> None:
    await produce(bootstrap, topic, samples(10))
    partition = TopicPartition(topic, 0)
    async with consumer(bootstrap, group_id=None, auto_offset_reset="none") as reader:
        reader.assign([partition])
        reader.seek(partition, 1000)
        with pytest.raises(OffsetOutOfRangeError):
            await take(reader, 1)
    async with consumer(bootstrap, group_id=None) as reader:
        reader.assign([partition])
        reader.seek(partition, 1000)
        assert (await take(reader, 1))[0].offset == 0


# --- offsets ----------------------------------------------------------------------------------------------


async def test_offsets_by_time_and_the_ends(bootstrap: str, topic: str) -> None:
    sent = [Sample(key=None, value=b"%d" % n, timestamp_ms=FIRST_MS + 10 * n) for n in range(50)]
    for at in range(0, 50, 10):
        await produce(bootstrap, topic, sent[at : at + 10])
    partition = TopicPartition(topic, 0)
    async with consumer(bootstrap, group_id=None) as reader:
        reader.assign([partition])
        assert await reader.beginning_offsets([partition]) == {partition: 0}
        assert await reader.end_offsets([partition]) == {partition: 50}
        for timestamp_ms, expected in {
            FIRST_MS - 1: (0, FIRST_MS),
            FIRST_MS + 101: (11, FIRST_MS + 110),
            FIRST_MS + 490: (49, FIRST_MS + 490),
        }.items():
            found = (await reader.offsets_for_times({partition: timestamp_ms}))[partition]
            assert (found.offset, found.timestamp) == expected
        assert (await reader.offsets_for_times({partition: FIRST_MS + 491}))[partition] is None


async def test_seek_and_pause(bootstrap: str, topic: str) -> None:
    await produce(bootstrap, topic, samples(40))
    partition = TopicPartition(topic, 0)
    async with consumer(bootstrap, group_id=None) as reader:
        reader.assign([partition])
        for target in (30, 2, 39):
            reader.seek(partition, target)
            assert (await reader.getone()).offset == target
        reader.pause(partition)
        reader.seek(partition, 0)
        assert await reader.getmany(timeout_ms=200) == {}
        reader.resume(partition)
        assert (await reader.getone()).offset == 0


async def test_a_committed_offset_with_metadata_is_where_the_group_resumes(
    bootstrap: str, topic: str
) -> None:
    await produce(bootstrap, topic, samples(40))
    group, partition = unique("group"), TopicPartition(topic, 0)
    async with consumer(bootstrap, topic, group_id=group) as reader:
        assert await reader.committed(partition) is None
        assert (await take(reader, 10))[-1].offset == 9
        await reader.commit()
        assert await reader.committed(partition) == 10
        await reader.commit({partition: OffsetAndMetadata(15, "fifteen")})
    async with administrator(bootstrap) as admin:
        stored = await admin.list_consumer_group_offsets(group)
        assert stored == {partition: OffsetAndMetadata(15, "fifteen")}
    async with consumer(bootstrap, topic, group_id=group) as reader:
        assert (await reader.getone()).offset == 15


async def test_auto_commit_is_kept_for_the_next_member(bootstrap: str, topic: str) -> None:
    await produce(bootstrap, topic, samples(20))
    group = unique("group")
    async with consumer(bootstrap, topic, group_id=group, enable_auto_commit=True) as reader:
        assert len(await take(reader, 20)) == 20
    await produce(bootstrap, topic, samples(5))
    async with consumer(bootstrap, topic, group_id=group) as reader:
        assert (await reader.getone()).offset == 20


# --- groups -----------------------------------------------------------------------------------------------


async def settled(members: list[AIOKafkaConsumer], partitions: int) -> bool:
    owned = [sorted(partition.partition for partition in member.assignment()) for member in members]
    return all(owned) and sorted(p for own in owned for p in own) == list(range(partitions))


@pytest.mark.parametrize(
    "assignor",
    [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor],
    ids=["range", "roundrobin", "sticky"],
)
async def test_members_share_the_partitions_as_they_come_and_go(
    bootstrap: str, make_topic: MakeTopic, assignor: Any
) -> None:
    topic, group = make_topic(partitions=6), unique("group")
    config = {"group_id": group, "partition_assignment_strategy": (assignor,)}
    async with AsyncExitStack() as stack:
        members: list[AIOKafkaConsumer] = []
        for count in (1, 2, 3):
            members.append(await stack.enter_async_context(consumer(bootstrap, topic, **config)))
            await eventually(lambda: settled(members, 6), f"{count} members to share")
        assert all(len(member.assignment()) == 2 for member in members)
        await members.pop(0).stop()
        await eventually(lambda: settled(members, 6), "the rest to take over")
        for partition in range(6):
            await produce(bootstrap, topic, samples(10), partition=partition)
        seen: list[tuple[int, int]] = []

        async def all_seen() -> bool:
            for member in members:
                for batch in (await member.getmany(timeout_ms=100)).values():
                    seen.extend((record.partition, record.offset) for record in batch)
            return len(seen) >= 60

        await eventually(all_seen, "60 records")
        assert sorted(seen) == [(partition, offset) for partition in range(6) for offset in range(10)]


async def test_static_members_keep_their_partitions_over_a_restart(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(partitions=4), unique("group")
    config = {"group_id": group, "session_timeout_ms": 30_000}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            consumer(bootstrap, topic, group_instance_id="first", **config)
        )
        async with consumer(bootstrap, topic, group_instance_id="second", **config) as second:
            await eventually(lambda: settled([first, second], 4), "both static members to share")
            kept, owned = first.assignment(), second.assignment()
        again = await stack.enter_async_context(
            consumer(bootstrap, topic, group_instance_id="second", **config)
        )
        await eventually(lambda: settled([first, again], 4), "the static member to return")
        assert (first.assignment(), again.assignment()) == (kept, owned)


# --- admin ------------------------------------------------------------------------------------------------


async def test_topics_are_created_grown_described_and_deleted(bootstrap: str) -> None:
    name = unique("topic")
    async with administrator(bootstrap) as admin:
        new = NewTopic(name, 2, 1, topic_configs={"retention.ms": "3600000"})
        assert [error for _, error, _ in (await admin.create_topics([new])).topic_errors] == [0]
        assert [error for _, error, _ in (await admin.create_topics([new])).topic_errors] == [36]

        async def described(partitions: int) -> bool:
            topics = await admin.describe_topics([name])
            return [topic["error_code"] for topic in topics] == [0] and (
                len(topics[0]["partitions"]) == partitions
            )

        await eventually(lambda: described(2), "two partitions")
        await admin.create_partitions({name: NewPartitions(5)})
        await eventually(lambda: described(5), "five partitions")
        assert name in await admin.list_topics()
        assert [error for _, error in (await admin.delete_topics([name])).topic_error_codes] == [0]

        async def gone() -> bool:
            return name not in await admin.list_topics()

        await eventually(gone, "the topic to go")
        cluster = await admin.describe_cluster()
        assert len(cluster["brokers"]) == 1
        assert cluster["controller_id"] == cluster["brokers"][0]["node_id"]


async def test_configs_are_described_and_altered(bootstrap: str, topic: str) -> None:
    async with administrator(bootstrap) as admin:

        async def value(name: str) -> str:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: None})
            (answer,) = await admin.describe_configs([resource])
            ((error, _, _, _, entries),) = answer.resources
            assert error == 0
            (entry,) = entries
            assert entry[0] == name
            return str(entry[1])

        assert await value("retention.ms") == "604800000"
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "60000"})
        await admin.alter_configs([resource])

        async def altered() -> bool:
            return await value("retention.ms") == "60000"

        await eventually(altered, "the new value")


async def test_deleted_records_are_gone_and_the_rest_stays(bootstrap: str, topic: str) -> None:
    await produce(bootstrap, topic, samples(30))
    partition = TopicPartition(topic, 0)
    async with administrator(bootstrap) as admin:
        assert await admin.delete_records({partition: RecordsToDelete(12)}) == {partition: 12}
        with pytest.raises(OffsetOutOfRangeError):
            await admin.delete_records({partition: RecordsToDelete(31)})
    got = await read_all(bootstrap, topic, 18)
    assert [record.offset for record in got] == list(range(12, 30))


async def test_groups_are_listed_and_described(bootstrap: str, topic: str) -> None:
    group = unique("group")
    async with administrator(bootstrap) as admin, consumer(bootstrap, topic, group_id=group) as member:
        await eventually(lambda: settled([member], 1), "the member to join")
        assert (group, "consumer") in [entry[:2] for entry in await admin.list_consumer_groups()]
        (answer,) = await admin.describe_consumer_groups([group])
        (described,) = answer.groups
        error, name, state, protocol_type, _, members = described[:6]
        assert (error, name, state, protocol_type) == (0, group, "Stable", "consumer")
        assert len(members) == 1
