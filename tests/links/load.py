"""Stock clients at work while links fail: idempotent producers of two kinds, and a reader of all partitions.

Owns when each partition was last acknowledged and served, and that the reader sees every offset once and in
order. Does not own the proof of what is in the log: the producers' manifests go to `tidewal verify`.
Invariant: a value is given to a producer once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError as AioError
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.e2e.stock_load import FLUSH_S, IMPATIENT, Worker
from tools.verify.manifest import aiokafka_producer, confluent_producer
from tools.versus import failover

Partition = tuple[str, int]
"""A topic, and a partition of it."""
PAUSE_S = 0.04
IN_FLIGHT_MAX = 50
"""Of one partition: one that stands still must not stop the others."""
PADDING = b"." * 300
AIO_PAUSE_S = 0.2
AIO_REQUEST_MS = 20_000
"""It gives a record up after that, too."""


class Times:
    """When something good happened to each partition."""

    def __init__(self) -> None:
        self._at_s: dict[Partition, list[float]] = defaultdict(list)

    def note(self, partition: Partition) -> None:
        self._at_s[partition].append(time.monotonic())

    def count(self, partition: Partition) -> int:
        return len(self._at_s[partition])

    def total(self) -> int:
        return sum(len(each) for each in list(self._at_s.values()))

    def silence_s(self, partition: Partition, since_s: float) -> float:
        """The longest time without, from then to the last."""
        return failover.silence_s(self._at_s[partition], since_s)


class StockProducer(Worker):
    """librdkafka, about twenty-five records a second for each partition.

    Answers on one connection come in the order of the requests: what waits for a replica that is gone holds
    up what was sent to the same leader after it. Only partitions that may do so belong to one producer.
    """

    def __init__(
        self, bootstrap: str, partitions: Sequence[Partition], sent: Path, acknowledged: Times
    ) -> None:
        super().__init__("librdkafka")
        self._acknowledged = acknowledged
        self._partitions = partitions
        self._waiting: Counter[Partition] = Counter()
        self._refused: list[str] = []
        self._producer = confluent_producer.ManifestProducer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "client.id": "librdkafka",
                "enable.idempotence": True,
                "linger.ms": 1,
                "request.timeout.ms": 3000,
                "delivery.timeout.ms": int(FLUSH_S * 1000),
            },
            sent,
            is_unique=True,
        )

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                break
            due_s = time.monotonic() + PAUSE_S
            for partition in self._partitions:
                if self._waiting[partition] < IN_FLIGHT_MAX:
                    self._waiting[partition] += 1
                    topic, index = partition
                    value = b"rd %s %d %d " % (topic.encode(), index, number) + PADDING
                    self._producer.produce(topic, value, partition=index, on_delivery=self._delivered)
            while (left_s := due_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
        self._producer.close(FLUSH_S)
        assert not self._refused, self._refused[:3]

    def _delivered(self, error: Any, message: Any) -> None:
        partition = message.topic(), message.partition()
        self._waiting[partition] -= 1
        if error is None:
            self._acknowledged.note(partition)
        else:
            self._refused.append(f"{partition}: {error}")


class AioProducer(Worker):
    """aiokafka, a few records a second for each partition. Of one that it gives up nobody knows."""

    def __init__(self, bootstrap: str, partitions: Sequence[Partition], sent: Path) -> None:
        super().__init__("aiokafka")
        self.acknowledged = Times()
        self.lives = 0
        """A producer whose numbering broke is followed by a new one."""
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._sent = sent
        self._numbers = itertools.count()

    def _run(self) -> None:
        asyncio.run(self._live_again_and_again())

    async def _live_again_and_again(self) -> None:
        while not self._stop.is_set():
            self.lives += 1
            with contextlib.suppress(AioError):
                await self._live()

    async def _live(self) -> None:
        producer = aiokafka_producer.ManifestProducer(
            self._sent,
            is_unique=True,
            client_id=f"aiokafka-{self.lives}",
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            request_timeout_ms=AIO_REQUEST_MS,
            metadata_max_age_ms=2000,
            retry_backoff_ms=50,
        )
        await producer.start()
        try:
            while not self._stop.is_set():
                for topic, index in self._partitions:
                    value = b"aio %s %d %d " % (topic.encode(), index, next(self._numbers)) + PADDING
                    future = await producer.send(topic, value, partition=index)
                    future.add_done_callback(self._done((topic, index)))
                await asyncio.sleep(AIO_PAUSE_S)
        finally:
            await producer.stop()

    def _done(self, partition: Partition) -> Any:
        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.acknowledged.note(partition)

        return done


class Reader(Worker):
    """librdkafka, of all partitions from their start; every offset comes once, in order."""

    def __init__(self, bootstrap: str, partitions: Iterable[Partition]) -> None:
        super().__init__("reader")
        self.served = Times()
        self.positions: dict[Partition, int] = dict.fromkeys(partitions, 0)
        self._consumer = Consumer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": "reader of all",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
            }
        )

    def _run(self) -> None:
        reader = self._consumer
        try:
            reader.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in self.positions])
            while not self._stop.is_set():
                for message in reader.consume(500, timeout=0.05):
                    if message.error() is None:
                        self._take((message.topic(), message.partition()), message.offset())
        finally:
            reader.close()

    def _take(self, partition: Partition, offset: int) -> None:
        expected = self.positions[partition]
        assert offset == expected, f"{offset} of {partition} follows {expected - 1}"
        self.positions[partition] = offset + 1
        self.served.note(partition)

    def has_read(self, ends: Mapping[Partition, int]) -> bool:
        self.check_alive()
        return all(self.positions[partition] == end for partition, end in ends.items())


def ends_of(bootstrap: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The high watermark of each; the load must have ended."""
    asking = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return {
            each: asking.get_watermark_offsets(TopicPartition(*each), timeout=FLUSH_S)[1]
            for each in partitions
        }
    finally:
        asking.close()
