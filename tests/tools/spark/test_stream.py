"""A stream over objects and brokers: stopped at any moment, it goes on from its checkpoint, row by row."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tiered import LATEST, SETTLE_S, TIERED, TieredBroker, TieredTopic
from tests.tools.verify.left_behind import SETTINGS
from tools.spark.options import read_options
from tools.spark.reading import Task, Topics, with_brokers

pytestmark = pytest.mark.spark


class Producing:
    """Appends until it is told to stop."""

    def __init__(self, topic: TieredTopic) -> None:
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            self._topic.append(2, size=500)


def run_with_restarts(spark: Any, folder: Path, restarts: int, seed: int) -> None:
    rng = random.Random(seed)
    broker = TieredBroker(folder, settings=SETTINGS, env={})
    try:
        topic = broker.make_topic(config=TIERED)
        topic.append(40, size=2000)
        topic.wait_tiered()
        topic.append(4)
        options = {
            "store": broker.url,
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
        }
        check_both_are_read(options, topic)
        start = starter(spark, folder, options)
        with Producing(topic):
            for _ in range(restarts):
                query = start()
                query.awaitTermination(rng.uniform(0.2, 3.0))
                assert query.exception() is None
                query.stop()
        # Not by availableNow: of a source in Python that is one batch, and the first is the one under way.
        query = start()
        query.processAllAvailable()
        query.stop()
        end = topic.known_offset(LATEST)
        rows = spark.read.parquet(f"{folder}/out").collect()
        counted = Counter(row.offset for row in rows)
        assert set(counted) == set(range(end))
        assert set(counted.values()) == {1}
        assert {row.offset: bytes(row.value) for row in rows} == topic.acknowledged
    finally:
        broker.close()


def starter(spark: Any, folder: Path, options: dict[str, str]) -> Callable[[], Any]:
    def start() -> Any:
        reader = spark.readStream.format("tidewal")
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().select("offset", "value").writeStream.format("parquet")
        writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/checkpoint")
        return writer.start()

    return start


def check_both_are_read(options: dict[str, str], topic: TieredTopic) -> None:
    """Old offsets come from objects, and what is in none from the broker."""

    def plan(topics: Topics) -> list[Task]:
        return topics.plan({(topic.name, 0): (0, topics.bounds(topic.name, 0)[1])})

    tasks = sorted(with_brokers(read_options(options, is_stream=True), plan), key=lambda task: task.first)
    assert [task.first for task in tasks[1:]] == [task.end for task in tasks[:-1]]
    assert [bool(task.parts) for task in tasks] == [True, False]


def test_a_stream_goes_on_where_it_was_stopped(spark: Any, tmp_path: Path) -> None:
    run_with_restarts(spark, tmp_path, 3, 1)


@pytest.mark.chaos
def test_twenty_restarts(spark: Any, tmp_path: Path) -> None:
    run_with_restarts(spark, tmp_path, 20, 2)
