"""Producers that note what was acknowledged, and the reading back that holds a log against it.

Owns the records and the judgement. Does not own the brokers nor what is done to them.
Invariant: every record has a number of its own in its partition; an acknowledged one must be there once and
in its order, one without an answer at most once.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tools.console import Failure
from tools.versus.caller import until

PAUSE_S = 0.01
"""Between two records of one partition: a hundred a second each."""
DELIVERY_MS_MAX = 120_000
REQUEST_MS_MAX = 10_000
"""A broker that hangs keeps its connections; this client asks another one only when a request has timed out,
which takes a minute unless it is told otherwise."""
READ_S_MAX = 60.0


class Ledger:
    """An idempotent producer with acks=all that writes until it is closed."""

    def __init__(self, bootstrap: str, topics: list[str], partitions: int) -> None:
        self.acked: dict[tuple[str, int], list[int]] = {}
        self.sent: Counter[tuple[str, int]] = Counter()
        self.refused: list[str] = []
        self._places = [(topic, partition) for topic in topics for partition in range(partitions)]
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "delivery.timeout.ms": DELIVERY_MS_MAX,
                "request.timeout.ms": REQUEST_MS_MAX,
                "socket.timeout.ms": REQUEST_MS_MAX,
                "log_level": 0,  # brokers that are away are what is tried here
            }
        )
        self._thread = threading.Thread(target=self._write, name="ledger")
        self._thread.start()

    @property
    def acked_count(self) -> int:
        return sum(map(len, list(self.acked.values())))

    def wait_progress(self, records: int, timeout_s: float = 60.0) -> None:
        """Wait until so many more records were acknowledged in every partition."""
        wanted = {place: len(self.acked.get(place, ())) + records for place in self._places}

        def is_reached() -> bool:
            if self.refused:
                raise Failure(f"a record was refused: {self.refused[0]}")
            return all(len(self.acked.get(place, ())) >= count for place, count in wanted.items())

        until(is_reached, f"{records} more acknowledged records in every partition", timeout_s)

    def stop(self) -> None:
        """Write no more, and do not wait for answers."""
        self._ends.set()
        self._thread.join()

    def close(self) -> None:
        """Write no more; Failure if an answer stays away or is a refusal."""
        self.stop()
        left = self._producer.flush(DELIVERY_MS_MAX / 1000)
        if left or self.refused:
            raise Failure(
                f"{left} records without an answer, {len(self.refused)} refused: {self.refused[:1]}"
            )

    def _write(self) -> None:
        while not self._ends.wait(PAUSE_S):
            for topic, partition in self._places:
                number = self.sent[topic, partition]
                self.sent[topic, partition] += 1
                while True:
                    try:
                        self._producer.produce(
                            topic, str(number).encode(), partition=partition, on_delivery=self._delivered
                        )
                        break
                    except BufferError:
                        self._producer.poll(PAUSE_S)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        place = (message.topic() or "", message.partition() or 0)
        self.acked.setdefault(place, []).append(int(message.value() or b""))


def read_all(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """Return the values of each partition from its start to its end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "read-back", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        ends = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_S_MAX)[1]
            for partition in range(partitions)
        }
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        found: list[list[bytes]] = [[] for _ in range(partitions)]
        left = {partition for partition, end in ends.items() if end > 0}

        def read() -> bool:
            message: Any
            for message in consumer.consume(10_000, timeout=0.5):
                if message.error() is not None:
                    raise Failure(f"{topic}: {message.error()}")
                found[message.partition()].append(message.value())
                if message.offset() + 1 >= ends[message.partition()]:
                    left.discard(message.partition())
            return not left

        until(read, f"end of {topic}", READ_S_MAX)
        return found
    finally:
        consumer.close()


def hold_against(ledger: Ledger, topic: str, found: list[list[bytes]]) -> int:
    """Return how many acknowledged records are there, once and in order; Failure for any that is not."""
    count = 0
    for partition, values in enumerate(found):
        numbers = [int(value) for value in values]
        acked = ledger.acked.get((topic, partition), [])
        lost = set(acked) - set(numbers)
        if lost:
            raise Failure(
                f"{topic}-{partition}: {len(lost)} acknowledged records are lost, first {min(lost)}"
            )
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise Failure(f"{topic}-{partition}: a record is there twice or out of order")
        count += len(acked)
    return count
