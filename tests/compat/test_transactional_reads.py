"""What read_committed consumers see of transactions, wherever the records are: in local segments, at a
follower that reads the tail from the store, in the cold tier; and after a broker was killed.

A log has committed and aborted transactions side by side, some over several segments. Each value says what
became of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.compat.peers import until
from tests.compat.samples import FIRST_MS
from tests.compat.test_confluent import consumer
from tests.compat.test_wal_clients import Site, site
from tests.e2e.tiered import ALONE, TIERED, TieredBroker, TieredTopic

__all__ = ["site"]

SETTLE_S = 60.0
VALUE_BYTES = 900
TRANSACTIONS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
SEED = 20


class Writer:
    """Transactional producers to one partition, whose transactions overlap."""

    def __init__(self, bootstrap: str, topic: str, *, producers: int = 3) -> None:
        self.topic = topic
        self.sent: list[bytes] = []
        self._random = random.Random(SEED)
        self._producers = [
            Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "transactional.id": f"{topic}-{number}",
                    "transaction.timeout.ms": 60_000,
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            for number in range(producers)
        ]
        for producer in self._producers:
            producer.init_transactions(SETTLE_S)

    def write(self, rounds: int, *, records: int = 6) -> None:
        """Rounds of transactions that are all open at once; some are aborted. The order of their records is
        that in which they were acknowledged."""
        for number in range(rounds):
            ends = [self._random.random() < 0.5 for _ in self._producers]
            for producer in self._producers:
                producer.begin_transaction()
            for at in range(records):
                for which, producer in enumerate(self._producers):
                    fate = b"committed" if ends[which] else b"aborted"
                    value = b"%s %d %d %d " % (fate, number, which, at) + b"v" * VALUE_BYTES
                    producer.produce(self.topic, value=value, partition=0, timestamp=FIRST_MS)
                    assert producer.flush(SETTLE_S) == 0
                    self.sent.append(value)
            for producer, is_committed in zip(self._producers, ends, strict=True):
                if is_committed:
                    producer.commit_transaction(SETTLE_S)
                else:
                    producer.abort_transaction(SETTLE_S)

    @property
    def committed(self) -> list[bytes]:
        return [value for value in self.sent if value.startswith(b"committed")]

    def close(self) -> None:
        self._producers.clear()


def read(reader: Consumer, count: int) -> list[bytes]:
    """So many values from the start, and what comes within the next answers."""
    found: list[bytes] = []

    def has_come() -> bool:
        for message in reader.consume(500, 0.2):
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        return len(found) >= count

    until(has_come, f"{count} values", timeout_s=SETTLE_S)
    found += [message.value() or b"" for message in reader.consume(10, 1.0)]
    return found


def read_all(bootstrap: str, writer: Writer, isolation: str) -> list[bytes]:
    wanted = writer.committed if isolation == "read_committed" else writer.sent
    settings = {"isolation.level": isolation, "fetch.message.max.bytes": 20_000}
    with consumer(bootstrap, **settings) as reader:
        reader.assign([TopicPartition(writer.topic, 0, OFFSET_BEGINNING)])
        return read(reader, len(wanted))


def check_reads(bootstrap: str, writer: Writer) -> None:
    assert read_all(bootstrap, writer, "read_committed") == writer.committed
    assert read_all(bootstrap, writer, "read_uncommitted") == writer.sent


def stable_end(bootstrap: str, topic: str) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    with BlockingClient(bootstrap) as client:
        ends = []
        for isolation in (1, 0):
            answer = client.call(
                Api.LIST_OFFSETS,
                5,
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    {
                        "name": topic,
                        "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
                    }
                ],
            )
            ends.append(int(answer.topics[0].partitions[0].offset))
        return ends[0], ends[1]


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[TieredBroker]:
    broker = TieredBroker(tmp_path, settings={**ALONE, **TRANSACTIONS}, env={})
    try:
        yield broker
    finally:
        broker.close()


def wait_below(topic: TieredTopic) -> None:
    topic.wait_tiered()
    topic.wait_no_loose_ends()


def test_aborted_data_of_the_cold_tier_stays_unseen(tiered: TieredBroker) -> None:
    topic = tiered.make_topic(config=TIERED)
    writer = Writer(tiered.bootstrap, topic.name)
    writer.write(12)
    wait_below(topic)
    check_reads(tiered.bootstrap, writer)
    # and after a kill, with more behind it that is on the disk
    tiered.kill()
    tiered.rise()
    wait_below(topic)
    check_reads(tiered.bootstrap, writer)
    writer.write(2)
    check_reads(tiered.bootstrap, writer)
    writer.close()


def test_an_open_transaction_holds_readers_and_copies_back(tiered: TieredBroker) -> None:
    """Nothing past the last stable offset is copied; a kill changes nothing of what is open."""
    topic = tiered.make_topic(config=TIERED)
    writer = Writer(tiered.bootstrap, topic.name)
    writer.write(3)
    open_one = Producer(
        {
            "bootstrap.servers": tiered.bootstrap,
            "transactional.id": "open",
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    open_one.init_transactions(SETTLE_S)
    open_one.begin_transaction()
    open_one.produce(topic.name, value=b"aborted open", partition=0, timestamp=FIRST_MS)
    assert open_one.flush(SETTLE_S) == 0
    stable = len(writer.sent) + 9
    assert stable_end(tiered.bootstrap, topic.name) == (stable, stable + 1)
    before = list(writer.committed)
    writer.write(3)
    assert stable_end(tiered.bootstrap, topic.name)[0] == stable
    tiered.kill()
    tiered.rise()
    until(
        lambda: stable_end(tiered.bootstrap, topic.name)[0] == stable,
        "the open transaction to hold readers back again",
        timeout_s=SETTLE_S,
    )
    with consumer(tiered.bootstrap, **{"isolation.level": "read_committed"}) as reader:
        reader.assign([TopicPartition(topic.name, 0, OFFSET_BEGINNING)])
        assert read(reader, len(before)) == before
    open_one.abort_transaction(SETTLE_S)
    wait_below(topic)
    assert read_all(tiered.bootstrap, writer, "read_committed") == writer.committed
    writer.close()


def test_aborted_data_of_a_dead_producer_is_let_go_of_in_its_time(tiered: TieredBroker) -> None:
    topic = tiered.make_topic(config=TIERED)
    writer = Writer(tiered.bootstrap, topic.name)
    dead = Producer(
        {
            "bootstrap.servers": tiered.bootstrap,
            "transactional.id": "dead",
            "transaction.timeout.ms": 3_000,
            "log_level": 0,
        }
    )
    dead.init_transactions(SETTLE_S)
    dead.begin_transaction()
    dead.produce(topic.name, value=b"aborted dead", partition=0, timestamp=FIRST_MS)
    assert dead.flush(SETTLE_S) == 0
    tiered.kill()
    tiered.rise()
    writer.write(1)

    def is_let_go() -> bool:
        stable, end = stable_end(tiered.bootstrap, topic.name)
        return stable == end

    until(is_let_go, "the last stable offset to reach the high watermark", timeout_s=SETTLE_S)
    assert read_all(tiered.bootstrap, writer, "read_committed") == writer.committed
    writer.close()


def test_aborted_data_at_a_follower_that_reads_from_the_store(site: Site) -> None:
    topic = site.make_topic()
    with site.through_the_store(topic):
        writer = Writer(site.cluster.bootstrap, topic)
        writer.write(6)
        with site.at_follower(topic, **{"isolation.level": "read_committed"}) as reader:
            assert read(reader, len(writer.committed)) == writer.committed
    assert read_all(site.cluster.bootstrap, writer, "read_committed") == writer.committed
    site.cluster.check_replicas_are_alike(topic, 1)
    writer.close()
