"""Stock clients (librdkafka) at work while brokers come and go: idempotent producers and a consumer group.

Owns what each was told and when, and the verdict: nothing lost, nothing twice, everything in order, no group
that goes back behind what it committed. Does not own the faults.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event, Thread
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.e2e.load import values_at

IN_FLIGHT_MAX = 50
"""Per partition: one that has no leader must not stop the others."""
FLUSH_S = 90.0
IMPATIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 50,
    "socket.connection.setup.timeout.ms": 1000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.timeout.ms": 3000,
    "log_level": 0,
}


class Worker:
    """Something that goes on in a thread of its own until the block ends; what it raised fails the test."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop = Event()
        self._errors: list[BaseException] = []
        self._thread = Thread(target=self._guarded, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=FLUSH_S + 30)
        assert not self._thread.is_alive(), f"{self._name} hangs"
        assert not self._errors, self._errors

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._errors.append(error)

    def check_alive(self) -> None:
        assert not self._errors, self._errors

    def _run(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Silence:
    partition: int
    began_s: float
    length_s: float


def longest_silence(partition: int, acked_s: Sequence[float], since_s: float) -> Silence:
    seen = [since_s, *(at_s for at_s in acked_s if at_s >= since_s)]
    length_s, began_s = max(((later - at_s, at_s) for at_s, later in pairwise(seen)), default=(0.0, since_s))
    return Silence(partition, began_s, length_s)


class IdempotentLoad(Worker):
    """One producer that numbers what it sends to each partition. With acks=all it is idempotent."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, acks: str = "all") -> None:
        super().__init__(f"load of {topic}")
        self.topic = topic
        self.sent = [0] * partitions
        self.acked = [0] * partitions
        self.failed: list[KafkaError] = []
        self._acked_s: list[list[float]] = [[] for _ in self.sent]
        self._producer = Producer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "enable.idempotence": acks == "all",
                "linger.ms": 1,
                "request.timeout.ms": 3000,
                "delivery.timeout.ms": int(FLUSH_S * 1000),
            }
        )

    def _run(self) -> None:
        producer, sent = self._producer, self.sent
        while not self._stop.is_set():
            for partition, acked in enumerate(self.acked):
                for _ in range(IN_FLIGHT_MAX - (sent[partition] - acked - len(self.failed))):
                    value = b"%d" % sent[partition]
                    producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
                    sent[partition] += 1
            producer.poll(0.005)
        assert producer.flush(FLUSH_S) == 0, "not delivered in time"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        self.acked[message.partition()] += 1
        self._acked_s[message.partition()].append(time.monotonic())

    def progress(self) -> int:
        """Acknowledged by the partition that is furthest behind."""
        self.check_alive()
        return min(self.acked)

    def silences(self, since_s: float) -> list[Silence]:
        """The longest time that the acknowledgements of each partition stood still, from then on."""
        return [
            longest_silence(partition, acked_s, since_s) for partition, acked_s in enumerate(self._acked_s)
        ]

    def silence_s(self, since_s: float) -> float:
        """How long the acknowledgements of any one partition stood still, at most, from then on."""
        return max(silence.length_s for silence in self.silences(since_s))

    def check(self, partition: int, batches: bytes) -> None:
        """After the load: everything that was sent is in the partition, once and in order."""
        assert not self.failed, self.failed[:3]
        assert self.acked == self.sent
        log = values_at(batches)
        found = [int(value) for _, value in sorted(log.items())]
        assert found == list(range(self.sent[partition])), f"{self.topic}-{partition}"
        assert sorted(log) == list(range(len(log)))


@dataclass(slots=True)
class Commits:
    """Of one partition: what was certainly committed, and what may have been."""

    certain: int = 0
    possible: int = 0


@dataclass(slots=True)
class Reading:
    positions: dict[int, int] = field(default_factory=dict)
    """Per partition of this assignment: the offset that comes next."""


class GroupLoad(Worker):
    """One member of a group that commits what it has read, batch by batch. It must start again, whenever it
    is assigned partitions, where it (or an earlier life of it) committed, and read every record."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__(f"member of {group}")
        self.topic = topic
        self.group = group
        self.read: dict[int, set[int]] = {}
        self.commits = 0
        self._of: dict[int, Commits] = {}
        self._reading = Reading()
        self._consumer = Consumer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
            }
        )

    def _run(self) -> None:
        reader = self._consumer
        try:
            reader.subscribe([self.topic], on_assign=self._assigned)
            while not self._stop.is_set():
                messages = [one for one in reader.consume(500, timeout=0.1) if one.error() is None]
                for message in messages:
                    self._take(message)
                if messages:
                    self._commit()
        finally:
            reader.close()

    def _assigned(self, reader: Consumer, partitions: list[TopicPartition]) -> None:
        self._reading = Reading()

    def _take(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        expected = self._reading.positions.get(partition)
        if expected is None:
            of = self._of.setdefault(partition, Commits())
            assert of.certain <= offset <= of.possible, f"goes on at {offset}, {of} (partition {partition})"
        else:
            assert offset == expected, f"{offset} follows {expected - 1} (partition {partition})"
        self._reading.positions[partition] = offset + 1
        self.read.setdefault(partition, set()).add(offset)

    def _commit(self) -> None:
        positions = dict(self._reading.positions)
        for partition, position in positions.items():
            of = self._of[partition]
            of.possible = max(of.possible, position)
        wanted = [TopicPartition(self.topic, *each) for each in positions.items()]
        try:
            done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return
        for each in done or ():
            if each.error is None:
                self._of[each.partition].certain = max(self._of[each.partition].certain, each.offset)
                self.commits += 1

    def lag(self, load: IdempotentLoad) -> int:
        """Records not yet read; only for a load that has ended."""
        self.check_alive()
        return sum(sent - len(self.read.get(partition, ())) for partition, sent in enumerate(load.sent))


def produce(bootstrap: str, topic: str, values: range) -> None:
    """All of it acknowledged when this returns."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    refused: list[object] = []
    for value in values:
        producer.produce(
            topic, b"%d" % value, partition=0, on_delivery=lambda error, _: error and refused.append(error)
        )
    assert producer.flush(30) == 0
    assert refused == []
