"""A word count of Kafka Streams with exactly_once_v2 that is killed and started again, its broker too.

Owns one broker that can be killed, the application's process and what it must have counted. Does not own the
application (tests/peers/java/WordCount.java).
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.jvm import Program
from tests.compat.peers import ApacheKafka, Java, has_leaders, stable_port, unique, until
from tests.processes import BrokerProcess

pytestmark = pytest.mark.kafka

WORDS = tuple(f"word{number}" for number in range(25))
LINE_WORDS = 4
PARTITIONS = 2
ROUND_LINES = 400
APPLICATION_SETTINGS = (
    *("commit.interval.ms=50", "session.timeout.ms=6000", "heartbeat.interval.ms=500"),
    *("producer.delivery.timeout.ms=60000", "producer.transaction.timeout.ms=10000", "num.stream.threads=2"),
)
DONE_S = 60.0


class Ours:
    """A broker on a port of its own that is killed and follows itself on the same data."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.bootstrap = f"127.0.0.1:{stable_port()}"
        self.process = self._start()

    def restart(self) -> None:
        self.process.kill()
        self.process.close()
        self.process = self._start()

    def close(self) -> None:
        said = self.process.stderr
        self.process.close()
        assert "Traceback" not in said, said[-5000:]

    def _start(self) -> BrokerProcess:
        return BrokerProcess(self.data, listen=self.bootstrap)


class Theirs:
    def __init__(self, folder: Path, java: Java) -> None:
        self.kafka = ApacheKafka(folder, java).start()
        self.bootstrap = self.kafka.bootstrap

    def restart(self) -> None:
        assert self.kafka.child is not None
        self.kafka.child.kill()
        self.kafka.child.wait(timeout=10)
        self.kafka.start()

    def close(self) -> None:
        self.kafka.__exit__()


@pytest.fixture
def broker(tmp_path: Path, java: Java) -> Iterator[Ours | Theirs]:
    kafka = os.environ.get("TIDEWAL_TEST_BOOTSTRAP") == "kafka"
    running = Theirs(tmp_path / "broker", java) if kafka else Ours(tmp_path / "broker")
    try:
        yield running
    finally:
        running.close()


class Lines:
    """Random lines, and how often each word is in all that were sent."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self.topic = topic
        self.rng = random.Random(seed)
        self.counted: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for _ in range(count):
            words = self.rng.choices(WORDS, k=LINE_WORDS)
            self.counted.update(words)
            self.producer.produce(self.topic, " ".join(words), partition=self.rng.randrange(PARTITIONS))
        assert self.producer.flush(30) == 0


class Counts:
    """What the output says to a reader of committed records: each word's counts, in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        self.ended: set[int] = set()
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": unique("reader"),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        self.consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def take(self) -> int:
        """Reads on; the sum of the latest counts."""
        for message in self.consumer.consume(500, timeout=0.2):
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                assert key is not None and value is not None
                self.found[str(key, "utf-8")].append(int(value))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended.add(message.partition())
        return sum(max(counts) for counts in self.found.values())

    def is_at_the_end(self) -> bool:
        self.take()
        return len(self.ended) == PARTITIONS


def start(java: Java, folder: Path, bootstrap: str, *names: Any) -> Program:
    return Program(
        java,
        folder / "streams.txt",
        "WordCount",
        bootstrap,
        names[0],
        str(folder / "state"),
        *names[1:],
        *APPLICATION_SETTINGS,
    )


def test_words_are_counted_exactly_once_whoever_is_killed(
    our_java: Java, broker: Ours | Theirs, tmp_path: Path
) -> None:
    if not any(Path(our_java.class_path.partition("*")[0]).glob("kafka-streams-*.jar")):
        pytest.skip("Kafka Streams is not here: make kafka")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    input_topic, output_topic, application = unique("lines"), unique("counts"), unique("count")
    made = admin.create_topics(
        [NewTopic(name, num_partitions=PARTITIONS) for name in (input_topic, output_topic)]
    )
    for name, future in made.items():
        future.result(timeout=20)
        until(lambda name=name: has_leaders(admin, name, PARTITIONS), "the new topic's leaders")  # type: ignore[misc]
    lines = Lines(broker.bootstrap, input_topic, seed=7)
    names = (application, input_topic, output_topic)
    with Counts(broker.bootstrap, output_topic) as seen:

        def counted(words: int, what: str) -> None:
            until(lambda: seen.take() >= words, what, timeout_s=DONE_S)

        with start(our_java, tmp_path, broker.bootstrap, *names) as first:
            lines.send(ROUND_LINES)
            counted(1, "the first count")
            lines.send(ROUND_LINES)
            first.kill()
        lines.send(ROUND_LINES)
        with start(our_java, tmp_path, broker.bootstrap, *names) as second:
            counted(seen.take() + 1, "the second to go on")
            lines.send(ROUND_LINES)
            broker.restart()
            lines.send(ROUND_LINES)
            counted(lines.counted.total(), "all words to be counted")
            second.kill()
    with Counts(broker.bootstrap, output_topic) as whole:
        until(whole.is_at_the_end, "the end of the output", timeout_s=DONE_S)
    assert {word: counts[-1] for word, counts in whole.found.items()} == dict(lines.counted)
    for word, counts in whole.found.items():
        assert counts == list(range(1, len(counts) + 1)), word
