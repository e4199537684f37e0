"""Data directories that a real broker made: what the readers of the verification are held against.

Owns topics of every kind with batches of every kind of producer, and how the broker ended. Does not own what
is read in them. Invariant: every kind of file that a broker puts into a data directory is there.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.peers import ApacheKafka, until
from tests.processes import BrokerProcess

SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
}
SMALL = {"internal.segment.bytes": "6000", "index.interval.bytes": "400"}
TOPICS = {
    "plain": SMALL,
    "mixed": SMALL,
    "sums": SMALL,
    "compact": {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "trimmed": {**SMALL, "retention.ms": "-1"},
    "quiet": {},
}
KAFKAS = {**SETTINGS, "log.initial.task.delay.ms": "50"}
WAIT_S = 30.0


class Made(NamedTuple):
    """The data directory of one broker at two times."""

    stopped: Path
    killed: Path


def producer(bootstrap: str, **more: str | int | bool) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **more})


def send(to: Producer, topic: str, rng: random.Random, count: int) -> None:
    for at in range(count):
        key = None if topic == "plain" and at % 3 == 0 else b"key %d" % rng.randrange(20)
        value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(120))
        to.produce(topic, value, key, partition=0, headers=[("h", b"x")] if at % 5 == 0 else None)
        if at % 6 == 0:
            assert to.flush(WAIT_S) == 0
    assert to.flush(WAIT_S) == 0


def transactions(bootstrap: str, name: str, rng: random.Random, *, is_left_open: bool) -> None:
    """Two producers at once, so that a transaction begins in the middle of another."""
    both = [producer(bootstrap, **{"transactional.id": f"{name} {at}"}) for at in range(2)]
    for each in both:
        each.init_transactions(WAIT_S)
    for turn in range(8):
        for each in both:
            each.begin_transaction()
        for each in both:
            for topic in ("mixed", "compact"):
                send(each, topic, rng, rng.randrange(1, 9))
        for at, each in enumerate(both):
            if (turn + at) % 3 == 0:
                each.abort_transaction(WAIT_S)
            else:
                each.commit_transaction(WAIT_S)
        if rng.random() < 0.5:
            send(producer(bootstrap), "mixed", rng, 10)
    if is_left_open:
        both[0].begin_transaction()
        send(both[0], "mixed", rng, 5)


def fill(bootstrap: str, name: str, rng: random.Random, *, has_transactions: bool, is_last: bool) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        send(producer(bootstrap, **{"compression.type": codec}), "sums", rng, 40)
    sure = producer(bootstrap, **{"enable.idempotence": True})
    for topic in ("plain", "mixed", "compact", "trimmed"):
        send(sure, topic, rng, 150)
    if has_transactions:
        transactions(bootstrap, name, rng, is_left_open=is_last)
    send(sure, "plain", rng, 50)


def create_topics(bootstrap: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, 1, config=config) for name, config in TOPICS.items()])
    for each in made.values():
        each.result(timeout=WAIT_S)
    return admin


def live_once(bootstrap: str, rng: random.Random, *, has_transactions: bool) -> None:
    """What happens before the restart."""
    admin = create_topics(bootstrap)
    fill(bootstrap, "first", rng, has_transactions=has_transactions, is_last=False)
    for deleted in admin.delete_records([TopicPartition("trimmed", 0, 100)]).values():
        deleted.result(timeout=WAIT_S)
    commit(bootstrap)


def live_again(bootstrap: str, data: Path, rng: random.Random, *, has_transactions: bool) -> None:
    """What happens after it, up to compaction and a little more."""
    fill(bootstrap, "second", rng, has_transactions=has_transactions, is_last=True)
    until(lambda: is_compacted(data), "compaction", timeout_s=WAIT_S)
    send(producer(bootstrap), "plain", rng, 30)


def commit(bootstrap: str) -> None:
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    group.commit(offsets=[TopicPartition("plain", 0, 7), TopicPartition("mixed", 0, 3)], asynchronous=False)
    group.close()


def make_ours(folder: Path) -> Made:
    """A broker of ours: stopped, killed, and stopped again once it had recovered."""
    rng, made = random.Random(1), Made(folder / "stopped", folder / "killed")
    with BrokerProcess(made.stopped, settings=SETTINGS) as broker:
        live_once(broker.bootstrap, rng, has_transactions=False)
        assert broker.terminate() == 0
    with BrokerProcess(made.stopped, settings=SETTINGS) as broker:
        live_again(broker.bootstrap, made.stopped, rng, has_transactions=False)
        broker.kill()
    shutil.copytree(made.stopped, made.killed, copy_function=shutil.copy2)
    with BrokerProcess(made.stopped, settings=SETTINGS) as broker:
        assert broker.terminate() == 0
    return made


def make_kafkas(kafka: ApacheKafka) -> Made:
    """The same of Apache Kafka, which has transactions as well."""
    rng, made = random.Random(1), Made(kafka.data, kafka.folder / "killed")
    with kafka.start():
        live_once(kafka.bootstrap, rng, has_transactions=True)
        kafka.stop()
    with kafka.start():
        live_again(kafka.bootstrap, kafka.data, rng, has_transactions=True)
        until(lambda: min(bases(kafka.data, "trimmed"), default=0) > 0, "retention", timeout_s=WAIT_S)
    shutil.copytree(made.stopped, made.killed, copy_function=shutil.copy2)
    with kafka.start():
        # It listens before its logs are loaded, and what stops it then leaves no mark of a clean end.
        AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=WAIT_S)
        kafka.stop()
    return made


def bases(data: Path, topic: str) -> list[int]:
    return [int(path.stem) for path in data.glob(f"{topic}-0/*.log")]


def is_compacted(data: Path) -> bool:
    path = data / "cleaner-offset-checkpoint"
    return path.exists() and "compact 0 " in path.read_text()
