"""Spark's own Kafka connector: batches and streams, in and out, and topics that lose records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.conftest import MakeTopic
from tests.compat.peers import has_leaders, until
from tests.compat.samples import CODECS, FIRST_MS, Sample, samples
from tests.compat.test_confluent import produce, read_all

pytestmark = pytest.mark.spark

SETTLE_S = 60
LOST = r"(?i)data.*lost"

Read = Callable[..., Any]


@pytest.fixture
def read(spark: Any, bootstrap: str) -> Read:
    """A batch read; `_` in an option's name stands for `.`."""

    def read(**options: object) -> Any:
        return configured(spark.read, bootstrap, options).load()

    return read


def configured(reader: Any, bootstrap: str, options: dict[str, object]) -> Any:
    # The connector asks for offsets behind the Fetch that waits for more, as it does with Apache Kafka.
    reader = reader.format("kafka").option("kafka.fetch.max.wait.ms", 10)
    reader = reader.option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader


def rows_of(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def as_sample(row: Any) -> Sample:
    return Sample(
        key=None if row.key is None else bytes(row.key),
        value=None if row.value is None else bytes(row.value),
        headers=tuple(
            (each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ()
        ),
        timestamp_ms=round(row.timestamp.timestamp() * 1000),
    )


def numbered(count: int, first: int = 0) -> list[Sample]:
    return [
        Sample(key=b"%d" % n, value=b"v%d" % n, timestamp_ms=FIRST_MS + n)
        for n in range(first, first + count)
    ]


def values_of(frame: Any) -> list[str]:
    return sorted((bytes(row.value).decode() for row in frame.select("value").collect()), key=natural)


def natural(text: str) -> int:
    return int(re.sub(r"\D", "", text))


# --- batches -----------------------------------------------------------------------------------------------


def test_reads_what_was_sent_with_every_codec(read: Read, bootstrap: str, topic: str) -> None:
    sent: list[Sample] = []
    for codec in CODECS:
        produce(bootstrap, topic, samples(), **{"compression.type": codec})
        sent += samples()
    rows = rows_of(read(subscribe=topic, includeHeaders="true"))
    assert [as_sample(row) for row in rows] == sent
    assert [(row.topic, row.partition, row.offset, row.timestampType) for row in rows] == [
        (topic, 0, offset, 0) for offset in range(len(sent))
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_writes_with_every_codec(spark: Any, bootstrap: str, make_topic: MakeTopic, codec: str) -> None:
    topic = make_topic(3)
    frame = spark.range(60).selectExpr(
        "cast(id as string) as key",
        "case when id % 7 = 0 then null else repeat(cast(id as string), 50) end as value",
        "cast(id % 3 as int) as partition",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) as headers",
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer.option("includeHeaders", "true").option("kafka.compression.type", codec).save()
    for partition in range(3):
        found = {}
        for message in read_all(bootstrap, topic, 20, partition):
            number = int(message.key())
            found[number] = message.value()
            assert message.headers() == [("h", b"%d" % number)]
        assert found == {
            number: None if number % 7 == 0 else b"%d" % number * 50 for number in range(partition, 60, 3)
        }


def test_fifty_partitions(read: Read, spark: Any, bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(50)
    frame = spark.range(5000).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    rows = rows_of(read(subscribePattern=f"{topic[:-1]}.", minPartitions="60"))
    assert {row.partition for row in rows} == set(range(50))
    assert sorted(int(row.value) for row in rows) == list(range(5000))
    chosen = rows_of(read(assign=json.dumps({topic: [3, 49]})))
    assert chosen == [row for row in rows if row.partition in (3, 49)]


def test_ranges_of_offsets_and_times(read: Read, bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, numbered(100))
    by_offset = read(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 10}}),
        endingOffsets=json.dumps({topic: {"0": 20}}),
    )
    assert [row.offset for row in rows_of(by_offset)] == list(range(10, 20))
    by_time = read(subscribe=topic, startingTimestamp=FIRST_MS + 30, endingTimestamp=FIRST_MS + 35)
    assert [row.offset for row in rows_of(by_time)] == list(range(30, 35))


# --- streams -----------------------------------------------------------------------------------------------


@pytest.fixture
def run_stream(spark: Any, bootstrap: str, tmp_path: Path) -> Callable[..., None]:
    """Read all that there is of a topic into another one, from where the run before it ended."""

    def run(source: str, target: str, **options: object) -> None:
        frame = configured(spark.readStream, bootstrap, {"startingOffsets": "earliest", **options})
        frame = frame.option("subscribe", source).load()
        writer = frame.select("key", "value").writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(SETTLE_S)

    return run


def test_a_stream_goes_on_where_it_ended(
    run_stream: Callable[..., None], read: Read, bootstrap: str, make_topic: MakeTopic
) -> None:
    source, target = make_topic(), make_topic()
    for number in range(3):
        produce(bootstrap, source, numbered(500, 500 * number), **{"compression.type": CODECS[number]})
        run_stream(source, target, maxOffsetsPerTrigger=300)
    assert values_of(read(subscribe=target)) == [f"v{n}" for n in range(1500)]


def test_deleted_records(
    run_stream: Callable[..., None], read: Read, bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    source, target = make_topic(), make_topic()
    produce(bootstrap, source, numbered(100))
    run_stream(source, target)
    produce(bootstrap, source, numbered(100, 100))
    for result in admin.delete_records([TopicPartition(source, 0, 150)]).values():
        result.result(timeout=SETTLE_S)
    assert values_of(read(subscribe=source)) == [f"v{n}" for n in range(150, 200)]
    with pytest.raises(Exception, match=LOST):
        run_stream(source, target)
    run_stream(source, target, failOnDataLoss="false")
    assert values_of(read(subscribe=target)) == [f"v{n}" for n in (*range(100), *range(150, 200))]


def test_a_topic_that_was_made_anew(
    run_stream: Callable[..., None], read: Read, bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    source, target = make_topic(), make_topic()
    produce(bootstrap, source, numbered(100))
    run_stream(source, target)
    admin.delete_topics([source])[source].result(timeout=SETTLE_S)
    until(lambda: source not in admin.list_topics(timeout=10).topics, "the topic to be gone")
    admin.create_topics([NewTopic(source, num_partitions=1)])[source].result(timeout=SETTLE_S)
    until(lambda: has_leaders(admin, source, 1), "the new topic's leader")
    produce(bootstrap, source, numbered(50, 1000))
    with pytest.raises(Exception, match=LOST):
        run_stream(source, target)
    assert values_of(read(subscribe=source)) == [f"v{n}" for n in range(1000, 1050)]
