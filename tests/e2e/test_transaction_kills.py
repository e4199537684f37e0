"""kill -9 of the broker that coordinates a transaction, at every step between its decision and its end.

What was committed is there whole or not at all, no transaction stays open longer than its timeout, whether
its producer is still there or not, and the last stable offset comes back to the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.compat.peers import unique, until
from tests.compat.test_confluent import consumer
from tests.compat.transactional import (
    COMMITTED,
    Librdkafka,
    committed,
    ends,
    left_open,
    uncommitted,
)
from tests.e2e.mortal import Step
from tests.e2e.stock_load import Worker
from tests.e2e.tiered import ALONE, SETTLE_S, TieredBroker

ASK = "broker.coordinators.transactions.coordinator:TransactionCoordinator.ask"
STATE_ASK = "broker.coordinators.replicated_state:ReplicatedState.ask"
TELL = "broker.coordinators.transactions.marker_sender:MarkerSender.tell"
WRITE = "broker.coordinators.transactions.marker_writer:MarkerWriter.write"
TO_GROUP = "broker.coordinators.groups.coordinator:GroupCoordinator.write_marker"

SETTLE_MS = int(SETTLE_S * 1000)
TIMEOUT_MS = 4000
LOOKED_FOR_MS = 200
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(LOOKED_FOR_MS),
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
COPIES = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "broker.session.timeout.ms": "3000",
    "min.insync.replicas": "2",
}
SINGLE = {
    **ALONE,
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
}
PARTITIONS = 3


def at(when: str, target: str, match: str = "") -> Step:
    return Step(target=target, when=when, match=match)


UNDECIDED = [at("before", ASK, "EndTransaction")]
DECIDED = [
    at("after", ASK, "EndTransaction"),
    at("before", TELL),
    at("before", WRITE),
    at("before", TO_GROUP),
    at("after", TO_GROUP),
    at("after", WRITE),
    at("after", TELL),
    at("before", STATE_ASK, r"Complete\("),
    at("after", STATE_ASK, r"Complete\("),
]
STEPS = [*UNDECIDED, *DECIDED]
FEW = [at("before", TELL), at("after", TO_GROUP), at("after", TELL)]
EACH = pytest.mark.parametrize(
    ("is_committed", "steps"),
    [
        pytest.param(True, FEW, id="commit"),
        pytest.param(True, STEPS, id="commit, every step", marks=pytest.mark.chaos),
        pytest.param(False, STEPS, id="abort, every step", marks=pytest.mark.chaos),
    ],
)


@dataclass(slots=True)
class Site:
    """One broker, or three that share a store."""

    brokers: dict[int, TieredBroker]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 100})

    def make_topic(self) -> str:
        name, copies = unique("topic"), len(self.brokers)
        admin = self.admin
        admin.create_topics([NewTopic(name, PARTITIONS, copies)])[name].result(timeout=SETTLE_S)
        return name

    def coordinator(self, transactional_id: str) -> TieredBroker:
        def found() -> list[TieredBroker]:
            with BlockingClient(next(iter(self.brokers.values())).bootstrap) as client:
                answer = client.call(
                    Api.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[transactional_id]
                ).coordinators[0]
                return [self.brokers[answer.node_id]] if answer.error_code == 0 else []

        return until(found, "the coordinator", timeout_s=SETTLE_S)[0]

    def wait_nothing_open(self, topic: str) -> None:
        """The last stable offset is the end again, within the transaction's timeout."""
        admin = self.admin

        def is_closed() -> bool:
            return all(len(set(ends(admin, topic, partition))) == 1 for partition in range(PARTITIONS))

        until(is_closed, "no open transaction", timeout_s=(TIMEOUT_MS + LOOKED_FOR_MS) / 1000 + 5)


@contextmanager
def site_of(folder: Path, brokers: int) -> Iterator[Site]:
    settings = {**SETTINGS, **(COPIES if brokers > 1 else SINGLE)}
    with ExitStack() as stack:
        made = {}
        for node_id in range(1, brokers + 1):
            made[node_id] = TieredBroker(folder, node_id=node_id, settings=settings)
            stack.callback(made[node_id].close)
        yield Site(made)


class Ending(Worker):
    """The end of a transaction, as its producer asks for it and waits for it."""

    def __init__(self, producer: Librdkafka, *, is_committed: bool) -> None:
        super().__init__("end of a transaction")
        self._producer, self._is_committed = producer, is_committed

    def _run(self) -> None:
        if self._is_committed:
            self._producer.commit()
        else:
            self._producer.abort()


def committed_offset(site: Site, group: str, topic: str) -> int:
    with consumer(site.bootstrap, group=group, **{"isolation.level": COMMITTED}) as reader:
        (found,) = reader.committed([TopicPartition(topic, 0)], timeout=SETTLE_S)
        assert found.error is None
        return int(found.offset)


def values_of(site: Site, topic: str) -> list[list[bytes]]:
    return [committed(site.bootstrap, topic, partition) for partition in range(PARTITIONS)]


def begin(site: Site, producer: Librdkafka, topic: str, group: str, turn: int) -> list[bytes]:
    values = [b"turn %d value %d" % (turn, number) for number in range(3)]
    producer.begin()
    for partition in range(PARTITIONS):
        producer.send(topic, *values, partition=partition)
    producer.send_offsets(group, {(topic, 0): turn + 1})
    return values


@EACH
def test_the_lone_broker_dies_and_the_producer_waits(
    tmp_path: Path, is_committed: bool, steps: list[Step]
) -> None:
    with site_of(tmp_path, 1) as site:
        broker, topic, group = site.brokers[1], site.make_topic(), unique("group")
        expected: list[bytes] = []
        offset = -1001
        for turn, step in enumerate(steps):
            # one for each: librdkafka waits for ever for a group's coordinator that has come back
            producer = Librdkafka(site.bootstrap, "producer", timeout_ms=SETTLE_MS)
            values = begin(site, producer, topic, group, turn)
            broker.arm(step)
            with Ending(producer, is_committed=is_committed):
                broker.wait_dead(step)
                broker.rise()
            if is_committed:
                expected += values
                offset = turn + 1
            site.wait_nothing_open(topic)
            assert values_of(site, topic) == [expected] * PARTITIONS, step
            assert committed_offset(site, group, topic) == offset, step
        assert len(uncommitted(site.bootstrap, topic)) == 3 * len(steps)


@EACH
def test_the_lone_broker_dies_and_the_producer_with_it(
    tmp_path: Path, is_committed: bool, steps: list[Step]
) -> None:
    with site_of(tmp_path, 1) as site:
        broker, topic = site.brokers[1], site.make_topic()
        expected: list[bytes] = []
        of_data = [step for step in steps if step.target != TO_GROUP]
        for turn, step in enumerate(of_data):
            end_with_its_producer(site, broker, topic, turn, step, is_committed=is_committed)
            broker.rise()
            site.wait_nothing_open(topic)
            if is_committed and step not in UNDECIDED:
                expected.append(b"%d" % turn)
            assert committed(site.bootstrap, topic) == expected, step
        broker.kill()
        broker.rise()
        assert committed(site.bootstrap, topic) == expected
        assert len(uncommitted(site.bootstrap, topic)) == len(of_data)


def end_with_its_producer(
    site: Site, broker: TieredBroker, topic: str, turn: int, step: Step, *, is_committed: bool
) -> None:
    """The broker dies at that step, and the producer that asked for the end before it knows of it."""
    transactional_id = f"producer-{turn}"
    with left_open(
        "confluent", site.bootstrap, transactional_id, topic, f"{turn}", timeout_ms=TIMEOUT_MS
    ) as process:
        broker.arm(step)
        assert process.stdin is not None
        process.stdin.write("commit\n" if is_committed else "abort\n")
        process.stdin.flush()
        broker.wait_dead(step)


@pytest.mark.parametrize(
    ("step", "client"),
    [
        pytest.param(step, client, id=f"{step}, the producer {client}", marks=marks)
        for step, client, marks in (
            (at("before", TELL), "stays", ()),
            (at("after", TELL), "goes", ()),
            (at("after", TELL), "stays", pytest.mark.chaos),
            (at("before", TELL), "goes", pytest.mark.chaos),
            (*UNDECIDED, "stays", pytest.mark.chaos),
            (*UNDECIDED, "goes", pytest.mark.chaos),
        )
    ],
)
def test_another_broker_ends_what_a_dead_one_had_begun_to_end(
    tmp_path: Path, step: Step, client: str
) -> None:
    with site_of(tmp_path, 3) as site:
        topic, group, transactional_id = site.make_topic(), unique("group"), unique("producer")
        if client == "stays":
            producer = Librdkafka(site.bootstrap, transactional_id, timeout_ms=SETTLE_MS)
            values = begin(site, producer, topic, group, 0)
            victim = site.coordinator(transactional_id)
            victim.arm(step)
            with Ending(producer, is_committed=True):
                victim.wait_dead(step)
            site.brokers.pop(victim.node_id)
            site.wait_nothing_open(topic)
            assert values_of(site, topic) == [values] * PARTITIONS
            assert committed_offset(site, group, topic) == 1
        else:
            Librdkafka(site.bootstrap, "producer-0", timeout_ms=SETTLE_MS)
            victim = site.coordinator("producer-0")
            end_with_its_producer(site, victim, topic, 0, step, is_committed=True)
            site.brokers.pop(victim.node_id)
            site.wait_nothing_open(topic)
            assert committed(site.bootstrap, topic) == ([] if step in UNDECIDED else [b"0"])
            assert uncommitted(site.bootstrap, topic) == [b"0"]
        victim.rise()
        site.brokers[victim.node_id] = victim
        site.wait_nothing_open(topic)
