"""librdkafka as an honest client: a steady stream of records with acks=all, and how long each took.

Owns the producer in a process of its own, which is asked like the probe. Does not own what is made of its
figures. Invariant: a record counts from the moment it is handed to the producer until it is acknowledged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Producer

from tests.hostile.probe import Seen, Watcher, answer_with, is_asked

RATE: Final = 200
"""Records a second."""
RECORD_BYTES: Final = 1000
_DELIVERY_MS: Final = 120_000


class StockProducer(Watcher):
    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(__name__, bootstrap, topic)


def run(bootstrap: str, topic: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "delivery.timeout.ms": _DELIVERY_MS,
            "log_level": 0,
        }
    )
    value, seen, due_s = bytes(RECORD_BYTES), Seen(), time.perf_counter()

    def noted(began_s: float) -> Callable[[object, object], None]:
        def note(error: object, _: object) -> None:
            wait_ms = (time.perf_counter() - began_s) * 1000
            seen.answers += error is None
            seen.refused += error is not None
            seen.waits_ms.append(round(wait_ms, 3))
            seen.longest_ms = seen.longest_raw_ms = max(seen.longest_raw_ms, wait_ms)

        return note

    while True:
        now_s = time.perf_counter()
        while due_s <= now_s:
            try:
                producer.produce(topic, value, on_delivery=noted(due_s))
            except BufferError:
                seen.lost += 1
            due_s += 1 / RATE
        producer.poll(0)
        if is_asked(0.002):
            if not sys.stdin.readline():
                return
            answer_with(seen)
            seen = Seen()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
