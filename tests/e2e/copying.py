"""Copiers at work while they and the brokers are killed, and a reader beside them that judges every record.

Owns the lives of the copiers, the input, the reader and the verdict: what is committed in the target is what
is committed in the source, once and in the order of each partition, at the end and at every moment before.
Does not own the brokers. Invariant: everything that is drawn is drawn from the seed, which is printed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import IO, Any, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.clusters import SETTLE_S
from tests.compat.peers import ApacheKafka, unique, until
from tests.compat.transactional import COMMITTED, LATER, read_to_end
from tests.e2e.copier import FATAL, HANGS, PATIENCE_S
from tests.e2e.stock_load import IMPATIENT, Worker
from tests.processes import ROOT

with warnings.catch_warnings():
    # kafka-python reads its schemas through an importlib function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PARTITIONS = 3
FILL = 250
"""Records of a transaction of the input."""
PAUSE_S = 5.0
"""Longer than a copier's session."""
PADDING = b" " + b"x" * 90


class Site(Protocol):
    """Brokers that can be killed and come back as they were."""

    bootstrap: str
    node_ids: tuple[int, ...]

    def kill(self, *node_ids: int) -> None: ...
    def rise(self, *node_ids: int) -> None: ...


class KafkaSite:
    """One node of Apache Kafka."""

    node_ids = (1,)

    def __init__(self, kafka: ApacheKafka) -> None:
        self._kafka = kafka
        self.bootstrap = kafka.bootstrap

    def kill(self, *node_ids: int) -> None:
        assert self._kafka.child is not None
        self._kafka.child.kill()
        self._kafka.child.wait(timeout=SETTLE_S)

    def rise(self, *node_ids: int) -> None:
        self._kafka.start()


def settings_for(brokers: int) -> dict[str, str]:
    """What spares a test its time, and copies of the brokers' own topics on each of them."""
    return {
        "offsets.topic.replication.factor": str(min(brokers, 3)),
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": str(min(brokers, 3)),
        "transaction.state.log.min.isr": str(min(brokers, 2)),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "3000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.initial.rebalance.delay.ms": "0",
    }


def make_topic(site: Site, config: Mapping[str, str] | None = None) -> str:
    name, copies = unique("copied"), len(site.node_ids)
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    new = NewTopic(
        name,
        PARTITIONS,
        min(copies, 3),
        config={"min.insync.replicas": str(min(copies, 2)), **(config or {})},
    )
    admin.create_topics([new])[name].result(timeout=SETTLE_S)
    return name


def value(number: int) -> bytes:
    return b"%d" % number + PADDING


def fill(site: Site, topic: str, counts: Mapping[int, int]) -> None:
    """Write values 0, 1, 2, … to each partition in transactions; between them are such as are aborted."""
    producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": unique("input")})
    producer.init_transactions(PATIENCE_S)
    for first in range(0, max(counts.values()), FILL):
        for is_kept in (False, True) if first // FILL % 4 == 1 else (True,):
            producer.begin_transaction()
            for partition, count in counts.items():
                for number in range(first, min(first + FILL, count)):
                    sent = value(number) if is_kept else b"aborted"
                    producer.produce(topic, sent, partition=partition)
                    producer.poll(0)
            if is_kept:
                producer.commit_transaction(PATIENCE_S)
            else:
                # librdkafka fails for good where it aborts before its partitions are part of it
                assert producer.flush(PATIENCE_S) == 0
                producer.abort_transaction(PATIENCE_S)


class CopierProcess:
    """One copier after another with one transactional id."""

    def __init__(self, arguments: list[str], random: Random) -> None:
        self._arguments, self._random = arguments, random
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self.lives = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.lives += 1
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.e2e.copier",
                *self._arguments,
                str(self._random.randrange(1 << 30)),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env={**os.environ},
        )

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def say_where_it_is(self) -> str:
        with contextlib.suppress(AssertionError):
            before = len(self.said)
            self._process.send_signal(signal.SIGUSR1)
            until(lambda: len(self.said) > before, "its stack", timeout_s=2)
        return self.said[-3000:]

    def keep_alive(self) -> None:
        """Start it anew if it gave up; anything else that ended it is a failure."""
        code = self._process.poll()
        if code is not None:
            assert code in (FATAL, HANGS), (code, self.said[-3000:])
            self._process = self._start()

    def kill_and_rise(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)
        self._process = self._start()

    def stand_still(self, for_s: float, meanwhile: Callable[[], object]) -> None:
        self._process.send_signal(signal.SIGSTOP)
        try:
            until_over(for_s, meanwhile)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)
        self._said.close()


class JudgingReader(Worker):
    """A reader of what is committed, from start to end: every record must be the next of its partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(f"reader of {topic}")
        self.topic = topic
        self.counts = dict.fromkeys(range(PARTITIONS), 0)
        self._offsets = dict.fromkeys(range(PARTITIONS), -1)
        self._consumer = Consumer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": unique("judge"),
                "isolation.level": COMMITTED,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )

    @property
    def total(self) -> int:
        self.check_alive()
        return sum(self.counts.values())

    def _run(self) -> None:
        reader = self._consumer
        reader.assign([TopicPartition(self.topic, each, OFFSET_BEGINNING) for each in self.counts])
        try:
            while not self._stop.is_set():
                for message in reader.consume(500, timeout=0.05):
                    error = message.error()
                    if error is None:
                        self._judge(message.partition(), message.offset(), message.value())
                    elif not error.retriable():
                        raise KafkaException(error)
        finally:
            reader.close()

    def _judge(self, partition: int, offset: int, found: bytes) -> None:
        expected, last = self.counts[partition], self._offsets[partition]
        assert offset > last, f"offset {offset} of partition {partition} after {last}"
        assert found == value(expected), (
            f"{found[:20]!r} at {offset} of partition {partition}, expected {expected}, which follows {last}"
        )
        self.counts[partition] += 1
        self._offsets[partition] = offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    records: int
    copiers: int
    batch: int
    faults: tuple[str, ...]
    """In turn, each at a moment drawn from its share of what is left."""
    protocol: str = "classic"
    config: Mapping[str, str] | None = None
    """Of the target."""
    transaction_ms: int = 10_000
    """After which the brokers abort what a copier has left open."""


class Copying:
    def __init__(self, site: Site, plan: Plan, seed: int) -> None:
        self.site, self.plan, self.random = site, plan, Random(seed)
        self.told: list[str] = []
        self.copiers: list[CopierProcess] = []
        self.group = unique("copiers")
        share, rest = divmod(plan.records, PARTITIONS)
        self.expected = {each: share + (each < rest) for each in range(PARTITIONS)}

    def run(self) -> None:
        site, plan, random = self.site, self.plan, self.random
        source, target, group = make_topic(site), make_topic(site, plan.config), self.group
        fill(site, source, self.expected)
        with ExitStack() as stack:
            reader = stack.enter_context(JudgingReader(site.bootstrap, target))
            for number in range(plan.copiers):
                names = [source, target, group, plan.protocol, f"{group}-{number}"]
                line = [site.bootstrap, *names, str(plan.batch), str(plan.transaction_ms)]
                copier = CopierProcess(line, Random(random.randrange(1 << 30)))
                stack.callback(copier.close)
                self.copiers.append(copier)
            for number, fault in enumerate(plan.faults):
                room = (plan.records - reader.total) // (len(plan.faults) - number)
                self._wait_for(reader, reader.total + random.randrange(room + 1))
                self._fault(fault, reader.total)
            self._wait_for(reader, plan.records)
            self._check_nothing_is_open(target)
            found = read_to_end(site.bootstrap, target, COMMITTED, *self.expected)
            assert found == {
                each: [value(number) for number in range(count)] for each, count in self.expected.items()
            }
            self._check_offsets(source, group)
            assert reader.counts == self.expected

    def _wait_for(self, reader: JudgingReader, goal: int) -> None:
        def has_come() -> bool:
            for copier in self.copiers:
                copier.keep_alive()
            return reader.total >= goal

        try:
            until(has_come, f"{goal} records", timeout_s=2 * SETTLE_S + self.plan.records / 500)
        except AssertionError as error:
            said = [copier.say_where_it_is() for copier in self.copiers]
            seen = self._what_the_brokers_say()
            raise AssertionError(f"{error} {reader.counts} after {self.told} {seen} {said}") from error

    def _what_the_brokers_say(self) -> str:
        manager = kafka.KafkaAdminClient(bootstrap_servers=self.site.bootstrap)
        try:
            members = manager.describe_groups([self.group])
            offsets = manager.list_group_offsets({self.group: None})
            transactions = manager.list_transactions()
            ids = [f"{self.group}-{number}" for number in range(self.plan.copiers)]
            return f"{members} {offsets} {transactions} {manager.describe_transactions(ids)}"
        except Exception as error:
            return repr(error)
        finally:
            manager.close()

    def _fault(self, kind: str, at: int) -> None:
        random, site = self.random, self.site
        victim, copier = random.choice(site.node_ids), random.choice(self.copiers)
        self.told.append(f"{at}: {kind}" + (f" {victim}" if kind == "broker" else ""))
        match kind:
            case "broker":
                site.kill(victim)
                until_over(random.uniform(0, 1), lambda: None)
                site.rise(victim)
            case "brokers":
                site.kill(*site.node_ids)
                site.rise(*site.node_ids)
            case "copier":
                copier.kill_and_rise()
            case "zombie":
                others = [each for each in self.copiers if each is not copier]
                copier.stand_still(PAUSE_S, lambda: [each.keep_alive() for each in others])
            case _:
                raise AssertionError(kind)

    def _ends(
        self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[int, int]:
        """The end of each partition, once its leader can tell: one that was just elected cannot."""
        admin = AdminClient({"bootstrap.servers": self.site.bootstrap})
        asked = {TopicPartition(topic, each): OffsetSpec.latest() for each in self.expected}

        def told() -> dict[int, int] | None:
            found = admin.list_offsets(asked, isolation_level=isolation)
            try:
                return {
                    where.partition: future.result(timeout=SETTLE_S).offset for where, future in found.items()
                }
            except KafkaException as error:
                if error.args[0].code() not in LATER:
                    raise
                return None

        ends = until(told, f"the ends of {topic}", timeout_s=SETTLE_S)
        assert ends is not None
        return ends

    def _check_nothing_is_open(self, topic: str) -> None:
        until(
            lambda: self._ends(topic, IsolationLevel.READ_COMMITTED) == self._ends(topic),
            "no transaction to be open",
            timeout_s=SETTLE_S,
        )

    def _check_offsets(self, source: str, group: str) -> None:
        """The group has committed up to the last record of the input."""
        admin, ends = AdminClient({"bootstrap.servers": self.site.bootstrap}), self._ends(source)

        def lags() -> set[int]:
            (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
            rows = future.result(timeout=SETTLE_S).topic_partitions
            return {ends[row.partition] - row.offset for row in rows}

        # the last transaction's marker comes after the last record
        assert lags() == {1}


def until_over(seconds: float, meanwhile: Callable[[], Any]) -> None:
    """A moment that is drawn is a length of time."""
    ends_s, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < ends_s:
        meanwhile()
        pause.wait(min(0.1, seconds))
