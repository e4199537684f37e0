"""Transactions as stock clients use them: confluent-kafka, aiokafka and kafka-python, each as the producer
and as the reader.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import aiokafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.conftest import MakeTopic
from tests.compat.peers import unique, until
from tests.compat.samples import CODECS, FIRST_MS, Sample
from tests.compat.test_confluent import Member, produce
from tests.compat.test_confluent import consumer as confluent_consumer
from tests.compat.transactional import (
    ANSWER_S,
    COMMITTED,
    LIBRARIES,
    UNCOMMITTED,
    Transactional,
    committed,
    ends,
    left_open,
    names_of,
    read_to_end,
    uncommitted,
)

pytestmark = [
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

with warnings.catch_warnings():
    # kafka-python reads its schemas through an importlib function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors
    from kafka.admin import AbortTransactionSpec

BROKER_SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.num.partitions": "5",
}
"""What only spares a test its time."""
SHORT_MS = 1500

MakeProducer = Callable[..., Transactional]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_producer(bootstrap: str, library: str) -> Iterator[MakeProducer]:
    with ExitStack() as stack:

        def make(transactional_id: str | None = None, **options: Any) -> Transactional:
            made = LIBRARIES[library](bootstrap, transactional_id or unique("producer"), **options)
            stack.callback(closed, made)
            return made

        yield make


def closed(producer: Transactional) -> None:
    with suppress(Exception):  # one that was fenced says so once more
        producer.close()


def wait_for_ends(admin: AdminClient, topic: str, committed_end: int, end: int, partition: int = 0) -> None:
    """The answer to an EndTxn comes before its markers."""
    until(
        lambda: ends(admin, topic, partition) == (committed_end, end),
        f"readers of committed records to get to {committed_end} of {end}",
    )


def wait_committed(bootstrap: str, topic: str, expected: list[bytes], partition: int = 0) -> None:
    """Until a reader of committed records finds just that, and no other before."""

    def is_found() -> bool:
        found = committed(bootstrap, topic, partition)
        assert found == expected[: len(found)]
        return found == expected

    until(is_found, f"{expected[-3:]} to be seen")


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# --- commit and abort --------------------------------------------------------------------------------------


def test_what_is_committed_is_seen_at_once_and_not_before(
    bootstrap: str, topic: str, admin: AdminClient, make_producer: MakeProducer
) -> None:
    producer = make_producer()
    producer.begin()
    assert producer.send(topic, *numbers(0, 10)) == list(range(10))
    assert committed(bootstrap, topic) == []
    assert uncommitted(bootstrap, topic) == numbers(0, 10)
    assert ends(admin, topic) == (0, 10)
    producer.commit()
    wait_for_ends(admin, topic, 11, 11)
    assert committed(bootstrap, topic) == uncommitted(bootstrap, topic) == numbers(0, 10)
    producer.begin()
    assert producer.send(topic, *numbers(10, 20)) == list(range(11, 21))
    producer.commit()
    wait_committed(bootstrap, topic, numbers(0, 20))


def test_what_is_aborted_is_never_seen(
    bootstrap: str, topic: str, admin: AdminClient, make_producer: MakeProducer
) -> None:
    producer = make_producer()
    for first in (0, 10, 20):
        producer.begin()
        producer.send(topic, *numbers(first, first + 10))
        if first == 10:
            producer.commit()
        else:
            producer.abort()
    wait_for_ends(admin, topic, 33, 33)
    assert committed(bootstrap, topic) == numbers(10, 20)
    assert uncommitted(bootstrap, topic) == numbers(0, 30)


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_a_transaction_spans_topics_and_partitions(
    bootstrap: str,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_producer: MakeProducer,
    is_committed: bool,
) -> None:
    topics, producer = [make_topic(partitions=3) for _ in range(2)], make_producer()
    places = [(topic, partition) for topic in topics for partition in range(3)]
    producer.begin()
    for at, (topic, partition) in enumerate(places):
        producer.send(topic, *numbers(at, at + 5), partition=partition)
    assert {ends(admin, topic, partition) for topic, partition in places} == {(0, 5)}
    if is_committed:
        producer.commit()
    else:
        producer.abort()
    for topic, partition in places:
        wait_for_ends(admin, topic, 6, 6, partition)
    for first, topic in zip((0, 3), topics, strict=True):
        sent = {partition: numbers(first + partition, first + partition + 5) for partition in range(3)}
        expected = sent if is_committed else {partition: [] for partition in sent}
        assert read_to_end(bootstrap, topic, COMMITTED, *sent) == expected
        assert read_to_end(bootstrap, topic, UNCOMMITTED, *sent) == sent


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_a_transaction_with_nothing_in_it(
    bootstrap: str, topic: str, make_producer: MakeProducer, is_committed: bool
) -> None:
    producer = make_producer()
    for _ in range(3):
        producer.begin()
        if is_committed:
            producer.commit()
        else:
            producer.abort()
    producer.begin()
    assert producer.send(topic, b"something") == [0]
    producer.commit()
    wait_committed(bootstrap, topic, [b"something"])


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(bootstrap: str, topic: str, make_producer: MakeProducer, codec: str) -> None:
    producer = make_producer(codec=codec)
    values = [b"%d " % number * 200 for number in range(60)]
    for first in (0, 20, 40):
        producer.begin()
        producer.send(topic, *values[first : first + 20])
        if first == 20:
            producer.abort()
        else:
            producer.commit()
    wait_committed(bootstrap, topic, values[:20] + values[40:])
    assert uncommitted(bootstrap, topic) == values


def test_the_oldest_open_transaction_holds_readers_back(
    bootstrap: str, topic: str, admin: AdminClient, make_producer: MakeProducer
) -> None:
    first, second, third = make_producer(), make_producer(), make_producer()
    for producer in (first, second, third):
        producer.begin()
    assert first.send(topic, b"a1") == [0]
    assert second.send(topic, b"b1") == [1]
    assert first.send(topic, b"a2") == [2]
    assert third.send(topic, b"c1") == [3]
    produce(bootstrap, topic, [Sample(key=None, value=b"plain", timestamp_ms=FIRST_MS)])
    second.commit()
    wait_for_ends(admin, topic, 0, 6)
    assert committed(bootstrap, topic) == []
    first.abort()
    wait_for_ends(admin, topic, 3, 7)
    assert committed(bootstrap, topic) == [b"b1"]
    third.commit()
    wait_for_ends(admin, topic, 8, 8)
    assert committed(bootstrap, topic) == [b"b1", b"c1", b"plain"]
    assert uncommitted(bootstrap, topic) == [b"a1", b"b1", b"a2", b"c1", b"plain"]


# --- readers -----------------------------------------------------------------------------------------------


def read_by_confluent(bootstrap: str, topic: str, isolation: str, count: int) -> list[bytes]:
    found = read_to_end(bootstrap, topic, isolation)[0]
    assert len(found) == count
    return found


def read_by_kafka_python(bootstrap: str, topic: str, isolation: str, count: int) -> list[bytes]:
    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    found: list[bytes] = []

    def enough() -> bool:
        for batch in reader.poll(timeout_ms=200).values():
            found.extend(record.value for record in batch)
        return len(found) >= count

    with closing(reader):
        reader.assign([kafka.TopicPartition(topic, 0)])
        reader.seek_to_beginning()
        until(enough, f"{count} records", pause_s=0.0)
        reader.poll(timeout_ms=200)
    return found


def read_by_aiokafka(bootstrap: str, topic: str, isolation: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        reader = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
        await reader.start()
        try:
            reader.assign([aiokafka.TopicPartition(topic, 0)])
            await reader.seek_to_beginning()
            async with asyncio.timeout(ANSWER_S):
                return [(await reader.getone()).value for _ in range(count)]
        finally:
            await reader.stop()

    return asyncio.run(read())


@pytest.mark.parametrize("read", [read_by_confluent, read_by_aiokafka, read_by_kafka_python])
def test_every_reader_leaves_out_what_was_aborted(
    bootstrap: str,
    topic: str,
    admin: AdminClient,
    make_producer: MakeProducer,
    read: Callable[..., list[bytes]],
) -> None:
    producers = [make_producer() for _ in range(3)]
    expected: list[bytes] = []
    for turn in range(6):
        for producer in producers:
            producer.begin()
        for at, producer in enumerate(producers):
            values = [b"%d of %d in turn %d" % (number, at, turn) for number in range(5)]
            producer.send(topic, *values)
            if (turn + at) % 3:
                expected += values
        for at, producer in enumerate(producers):
            if (turn + at) % 3:
                producer.commit()
            else:
                producer.abort()
    assert len(expected) == 60
    wait_for_ends(admin, topic, 108, 108)
    assert read(bootstrap, topic, COMMITTED, 60) == expected
    assert len(read(bootstrap, topic, UNCOMMITTED, 90)) == 90


def test_a_reader_that_waits_is_woken_by_the_commit(
    bootstrap: str, topic: str, make_producer: MakeProducer
) -> None:
    producer = make_producer()
    with confluent_consumer(bootstrap, **{"isolation.level": COMMITTED, "fetch.wait.max.ms": 5000}) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        producer.begin()
        producer.send(topic, b"first")
        assert reader.poll(0.5) is None
        producer.commit()
        began_s = time.monotonic()
        message = until(lambda: reader.poll(0.1), "the committed record")
        assert message.value() == b"first"
        assert time.monotonic() - began_s < 3


# --- who has the id ----------------------------------------------------------------------------------------


def test_a_zombie_is_fenced_and_what_it_left_open_is_aborted(
    bootstrap: str, topic: str, make_producer: MakeProducer
) -> None:
    transactional_id = unique("same")
    zombie = make_producer(transactional_id)
    zombie.begin()
    zombie.send(topic, b"from the zombie")
    successor = make_producer(transactional_id)
    assert committed(bootstrap, topic) == []
    with pytest.raises(Exception) as refused:
        zombie.send(topic, b"too late")
        zombie.commit()
    assert names_of(refused.value) & zombie.fenced, names_of(refused.value)
    for value in (b"from its successor", b"goes on"):
        successor.begin()
        successor.send(topic, value)
        successor.commit()
    wait_committed(bootstrap, topic, [b"from its successor", b"goes on"])
    assert uncommitted(bootstrap, topic) == [b"from the zombie", b"from its successor", b"goes on"]


def test_a_zombie_cannot_commit_what_its_successor_has_begun(
    bootstrap: str, topic: str, make_producer: MakeProducer
) -> None:
    transactional_id = unique("same")
    zombie = make_producer(transactional_id)
    zombie.begin()
    zombie.send(topic, b"from the zombie")
    successor = make_producer(transactional_id)
    successor.begin()
    successor.send(topic, b"from its successor")
    with pytest.raises(Exception) as refused:
        zombie.commit()
    assert names_of(refused.value) & zombie.fenced, names_of(refused.value)
    assert committed(bootstrap, topic) == []
    successor.commit()
    wait_committed(bootstrap, topic, [b"from its successor"])


def test_a_process_that_was_killed_is_replaced_by_one_with_its_id(
    bootstrap: str, topic: str, library: str, make_producer: MakeProducer
) -> None:
    transactional_id = unique("same")
    with left_open(library, bootstrap, transactional_id, topic, "a", "b"):
        assert uncommitted(bootstrap, topic) == [b"a", b"b"]
    successor = make_producer(transactional_id)
    successor.begin()
    successor.send(topic, b"c")
    successor.commit()
    wait_committed(bootstrap, topic, [b"c"])
    assert uncommitted(bootstrap, topic) == [b"a", b"b", b"c"]


def test_what_a_killed_process_left_open_is_aborted_in_time(
    bootstrap: str, topic: str, admin: AdminClient, library: str
) -> None:
    with left_open(library, bootstrap, unique("alone"), topic, "a", "b", timeout_ms=SHORT_MS):
        assert ends(admin, topic) == (0, 2)
    produce(bootstrap, topic, [Sample(key=None, value=b"plain", timestamp_ms=FIRST_MS)])
    until(lambda: ends(admin, topic) == (4, 4), "the transaction to time out", timeout_s=SHORT_MS / 1000 + 5)
    assert committed(bootstrap, topic) == [b"plain"]


def test_a_producer_that_was_too_slow_cannot_commit(
    bootstrap: str, topic: str, admin: AdminClient, library: str, make_producer: MakeProducer
) -> None:
    transactional_id = unique("slow")
    producer = make_producer(transactional_id, timeout_ms=SHORT_MS)
    producer.begin()
    producer.send(topic, b"slow")
    until(lambda: ends(admin, topic) == (2, 2), "the transaction to time out", timeout_s=SHORT_MS / 1000 + 5)
    with pytest.raises(Exception) as refused:
        producer.commit()
    assert names_of(refused.value) & producer.fenced, names_of(refused.value)
    assert committed(bootstrap, topic) == []
    successor = make_producer(transactional_id)
    successor.begin()
    successor.send(topic, b"quick")
    successor.commit()
    wait_committed(bootstrap, topic, [b"quick"])


def test_librdkafka_goes_on_after_a_transaction_that_timed_out(
    bootstrap: str, topic: str, admin: AdminClient
) -> None:
    producer = LIBRARIES["confluent"](bootstrap, unique("slow"), timeout_ms=SHORT_MS)
    producer.begin()
    producer.send(topic, b"slow")
    until(lambda: ends(admin, topic) == (2, 2), "the transaction to time out", timeout_s=SHORT_MS / 1000 + 5)
    with pytest.raises(KafkaException) as refused:
        producer.commit()
    error = refused.value.args[0]
    assert error.txn_requires_abort() or error.fatal()
    if error.txn_requires_abort():
        producer.abort()
        producer.begin()
        producer.send(topic, b"quick")
        producer.commit()
        wait_committed(bootstrap, topic, [b"quick"])


def test_a_record_that_is_refused_costs_its_transaction_alone(
    bootstrap: str, make_topic: MakeTopic, make_producer: MakeProducer
) -> None:
    topic, narrow = make_topic(), make_topic(config={"max.message.bytes": "2000"})
    producer = make_producer()
    producer.begin()
    producer.send(topic, b"before")
    with pytest.raises(Exception) as refused:
        producer.send(narrow, b"x" * 5000)
    assert names_of(refused.value) & {"MSG_SIZE_TOO_LARGE", "MessageSizeTooLargeError"}
    producer.abort()
    producer.begin()
    producer.send(topic, b"after")
    producer.commit()
    wait_committed(bootstrap, topic, [b"after"])
    assert uncommitted(bootstrap, topic) == [b"before", b"after"]
    assert uncommitted(bootstrap, narrow) == []


def test_a_timeout_beyond_what_the_broker_allows_is_refused(make_producer: MakeProducer) -> None:
    with pytest.raises(Exception, match=r"INVALID_TRANSACTION_TIMEOUT|InvalidTransactionTimeout"):
        make_producer(timeout_ms=2_000_000_000)


# --- offsets of a group ------------------------------------------------------------------------------------


def committed_offset(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """What no transaction may still change."""
    with confluent_consumer(bootstrap, group=group, **{"isolation.level": COMMITTED}) as reader:
        (found,) = reader.committed([TopicPartition(topic, partition)], timeout=ANSWER_S)
        assert found.error is None
        return int(found.offset)


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    bootstrap: str, topic: str, make_topic: MakeTopic, make_producer: MakeProducer
) -> None:
    group, source, producer = unique("group"), make_topic(), make_producer()
    produce(bootstrap, source, [Sample(key=None, value=v, timestamp_ms=FIRST_MS) for v in numbers(0, 9)])
    producer.begin()
    producer.send(topic, b"aborted")
    producer.send_offsets(group, {(source, 0): 3})
    producer.abort()
    assert committed_offset(bootstrap, group, source) < 0
    producer.begin()
    producer.send(topic, b"committed")
    producer.send_offsets(group, {(source, 0): 5})
    producer.commit()
    assert committed_offset(bootstrap, group, source) == 5
    producer.begin()
    producer.send_offsets(group, {(source, 0): 7})
    producer.abort()
    assert committed_offset(bootstrap, group, source) == 5
    producer.begin()
    producer.send_offsets(group, {(source, 0): 6})
    producer.send_offsets(group, {(source, 0): 9})
    producer.commit()
    assert committed_offset(bootstrap, group, source) == 9
    wait_committed(bootstrap, topic, [b"committed"])


def test_offsets_that_are_pending_are_waited_for(
    bootstrap: str, make_topic: MakeTopic, make_producer: MakeProducer
) -> None:
    group, source, producer = unique("group"), make_topic(), make_producer()
    produce(bootstrap, source, [Sample(key=None, value=v, timestamp_ms=FIRST_MS) for v in numbers(0, 9)])
    producer.begin()
    producer.send_offsets(group, {(source, 0): 4})
    with confluent_consumer(bootstrap, group=group, **{"isolation.level": COMMITTED}) as reader:
        with pytest.raises(KafkaException) as refused:
            reader.committed([TopicPartition(source, 0)], timeout=1)
        assert refused.value.args[0].code() in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT)
        producer.commit()
        (found,) = reader.committed([TopicPartition(source, 0)], timeout=ANSWER_S)
        assert found.offset == 4


def copying(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(ANSWER_S)
    return producer


def test_what_is_consumed_transformed_and_produced_is_there_once(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    source, target, group = make_topic(partitions=3), make_topic(partitions=3), unique("group")
    for partition in range(3):
        sent = [Sample(key=None, value=value, timestamp_ms=FIRST_MS) for value in numbers(0, 50)]
        produce(bootstrap, source, sent, partition=partition)
    producer, turn = copying(bootstrap, unique("copier")), 0
    with confluent_consumer(bootstrap, group=group, **{"isolation.level": COMMITTED}) as reader:
        reader.subscribe([source])
        done = 0
        while done < 150:
            batch = [one for one in reader.consume(20, timeout=0.2) if one.error() is None]
            if not batch:
                continue
            producer.begin_transaction()
            for message in batch:
                producer.produce(target, b"copy of " + message.value(), partition=message.partition())
            positions = reader.position(reader.assignment())
            known = [each for each in positions if each.offset >= 0]
            producer.send_offsets_to_transaction(known, reader.consumer_group_metadata(), ANSWER_S)
            turn += 1
            if turn % 3 == 0:
                producer.abort_transaction(ANSWER_S)
                for where in reader.committed(reader.assignment(), timeout=ANSWER_S):
                    reader.seek(TopicPartition(where.topic, where.partition, max(where.offset, 0)))
            else:
                producer.commit_transaction(ANSWER_S)
                done += len(batch)
    for partition in range(3):
        wait_committed(bootstrap, target, [b"copy of " + value for value in numbers(0, 50)], partition)


OF_PROTOCOL: dict[str, dict[str, Any]] = {
    "classic": {"heartbeat.interval.ms": 200},
    "consumer": {"group.protocol": "consumer", "session.timeout.ms": None},
}


@pytest.mark.parametrize("protocol", OF_PROTOCOL)
def test_a_member_that_was_replaced_cannot_commit_offsets(
    bootstrap: str, make_topic: MakeTopic, protocol: str
) -> None:
    """Its transactional id is its own, so the group is what must fence it. What it kept when the broker
    assigned anew it may commit with the epoch it had."""
    source, target, group = make_topic(partitions=2), make_topic(), unique("group")
    for partition in range(2):
        produce(bootstrap, source, [Sample(key=None, value=b"v", timestamp_ms=FIRST_MS)], partition=partition)
    producer = copying(bootstrap, unique("member"))
    with ExitStack() as stack:
        old = Member(bootstrap, source, group, stack, **OF_PROTOCOL[protocol])
        until(lambda: old.owned() == {0, 1}, "the first member to own all")
        stale = old.reader.consumer_group_metadata()
        new = Member(bootstrap, source, group, stack, **OF_PROTOCOL[protocol])
        until(lambda: sorted([*old.owned(), *new.owned()]) == [0, 1] and new.owned(), "both to share")
        (lost,), (kept,) = new.owned(), old.owned()
        producer.begin_transaction()
        producer.produce(target, b"stale", partition=0)
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction([TopicPartition(source, lost, 1)], stale, ANSWER_S)
        error = refused.value.args[0]
        assert error.code() == KafkaError.ILLEGAL_GENERATION
        assert error.txn_requires_abort()
        producer.abort_transaction(ANSWER_S)
        producer.begin_transaction()
        producer.produce(target, b"fresh", partition=0)
        fresh = stale if protocol == "consumer" else old.reader.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(source, kept, 1)], fresh, ANSWER_S)
        producer.commit_transaction(ANSWER_S)
    wait_committed(bootstrap, target, [b"fresh"])
    assert committed_offset(bootstrap, group, source, kept) == 1


# --- what an administrator sees ----------------------------------------------------------------------------


def test_transactions_are_listed_and_described(
    bootstrap: str, topic: str, make_topic: MakeTopic, make_producer: MakeProducer
) -> None:
    transactional_id, other = unique("told"), make_topic(partitions=3)
    with closing(kafka.KafkaAdminClient(bootstrap_servers=bootstrap)) as manager:

        def described() -> Any:
            return manager.describe_transactions([transactional_id])[transactional_id]

        def is_in(*states: str) -> bool:
            listed = [one for of in manager.list_transactions().values() for one in of]
            (found,) = [one for one in listed if one.transactional_id == transactional_id]
            assert found.producer_id == described().producer_id
            return found.state.value in states and described().state.value in states

        with pytest.raises(kafka.errors.TransactionalIdNotFoundError):
            described()
        producer = make_producer(transactional_id, timeout_ms=54_321)
        assert is_in("Empty")
        producer.begin()
        producer.send(topic, b"one")
        producer.send(other, b"two", partition=2)
        assert is_in("Ongoing")
        assert described().topic_partitions == {
            kafka.TopicPartition(topic, 0),
            kafka.TopicPartition(other, 2),
        }
        assert described().transaction_timeout_ms == 54_321
        (active,) = manager.describe_producers([kafka.TopicPartition(other, 2)]).popitem()[1].active_producers
        assert active.producer_id == described().producer_id
        assert active.current_transaction_start_offset == 0
        producer.commit()
        until(lambda: is_in("CompleteCommit"), "the transaction to be complete")
        assert described().topic_partitions == set()
        producer.begin()
        producer.send(topic, b"three")
        producer.abort()
        until(lambda: is_in("CompleteAbort"), "the transaction to be complete")
        (active,) = manager.describe_producers([kafka.TopicPartition(topic, 0)]).popitem()[1].active_producers
        assert active.current_transaction_start_offset == -1


def test_a_hanging_transaction_can_be_ended_by_hand(bootstrap: str, topic: str, library: str) -> None:
    """Kafka's tool writes the marker itself, with the producer's epoch."""
    with left_open(library, bootstrap, unique("hangs"), topic, "a", "b"):
        with closing(kafka.KafkaAdminClient(bootstrap_servers=bootstrap)) as manager:
            where = kafka.TopicPartition(topic, 0)
            (active,) = manager.describe_producers([where])[where].active_producers
            manager.abort_transaction(
                AbortTransactionSpec(
                    topic_partition=where,
                    producer_id=active.producer_id,
                    producer_epoch=active.producer_epoch,
                    coordinator_epoch=active.coordinator_epoch,
                )
            )
        produce(bootstrap, topic, [Sample(key=None, value=b"plain", timestamp_ms=FIRST_MS)])
        wait_committed(bootstrap, topic, [b"plain"])
