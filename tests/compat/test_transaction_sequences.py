"""Sequences of a transactional producer's requests to Tidewal and to Apache Kafka, good and bad ones mixed.

After each step the two have answered the same, and describe the transactional id alike. What a step leaves
unfinished (markers) is waited for on both sides first: how long it takes is not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.compat.differential import Side, Twins, differences
from tests.compat.peers import unique, until

pytestmark = pytest.mark.kafka

PASSING = (14, 15, 16)
"""Coordinator load in progress, not available, not coordinator: of a topic that is just made."""
STEPS = 12
SEQUENCES = 40


class Producer:
    """A transactional id on both sides, with what each side's producer believes to be its id and epoch."""

    def __init__(self, twins: Twins, topic: str) -> None:
        self.twins = twins
        self.topic = topic
        self.transactional_id = unique("transactional")
        for side in twins.sides:
            side.remembered[self.transactional_id] = (-1, -1)
            until(lambda side=side: self._is_ready(side), "the coordinator")  # type: ignore[misc]

    def _is_ready(self, side: Side) -> bool:
        found = side.client.call(
            Api.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[self.transactional_id]
        )
        if found.coordinators[0].error_code in PASSING:
            return False
        described = side.client.call(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.transactional_id])
        return described.transaction_states[0].error_code not in PASSING

    def id_of(self, *, known: bool = True) -> Callable[[Side], int]:
        return lambda side: side.remembered[self.transactional_id][0] if known else 987_654

    def epoch_of(self, later: int = 0) -> Callable[[Side], int]:
        return lambda side: max(-1, side.remembered[self.transactional_id][1] + later)

    def _take(self, api: Api, version: int, fields: dict[str, Any], *, keeps: bool) -> Any:
        """Ask both, compare, and keep the id and epoch that each is answered."""
        answers = []
        for side in self.twins.sides:
            response = side.client.call(api, version, **side.resolve(fields))
            if keeps and response.error_code == 0 and response.producer_id >= 0:
                side.remembered[self.transactional_id] = (response.producer_id, response.producer_epoch)
                side.labels[response.producer_id] = "the producer's"
            plain = side.plain(response)
            plain.pop("producer_id", None)  # 0 is an id like any other
            answers.append(plain)
        found = list(differences(answers[0], answers[1]))
        assert not found, "\n".join([f"{api.name} v{version}", *map(str, found), str(fields)])
        return answers[0]

    def init(self, version: int = 5, *, expected: str = "none", **changes: Any) -> Any:
        ids: dict[str, tuple[Any, Any]] = {
            "none": (-1, -1),
            "known": (self.id_of(), self.epoch_of()),
            "last": (self.id_of(), self.epoch_of(-1)),
            "next": (self.id_of(), self.epoch_of(1)),
            "other": (self.id_of(known=False), 3),
            "half": (self.id_of(), -1),
        }
        fields = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": 60_000,
            "producer_id": ids[expected][0],
            "producer_epoch": ids[expected][1],
        }
        return self._take(Api.INIT_PRODUCER_ID, version, fields | changes, keeps=True)

    def add(self, version: int, *, later: int = 0, known: bool = True, index: int = 0, **rest: Any) -> Any:
        topics = [{"name": self.topic, "partitions": [index]}]
        mine = {"producer_id": self.id_of(known=known), "producer_epoch": self.epoch_of(later)}
        one = {"transactional_id": self.transactional_id, **mine, "verify_only": False, "topics": topics}
        fields = {
            "transactions": [one | rest],
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_topics": topics,
            **{f"v3_and_below_{name}": value for name, value in mine.items()},
        }
        return self._take(Api.ADD_PARTITIONS_TO_TXN, version, fields, keeps=False)

    def add_offsets(self, version: int, *, later: int = 0) -> Any:
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self.id_of(),
            "producer_epoch": self.epoch_of(later),
            "group_id": "g",
        }
        return self._take(Api.ADD_OFFSETS_TO_TXN, version, fields, keeps=False)

    def end(self, version: int, *, committed: bool, later: int = 0, known: bool = True) -> Any:
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self.id_of(known=known),
            "producer_epoch": self.epoch_of(later),
            "committed": committed,
        }
        answer = self._take(Api.END_TXN, version, fields, keeps=version >= 5 and known and later == 0)
        self.settle()
        return answer

    def settle(self) -> None:
        """Wait until nothing is unfinished, then compare what is described."""
        described = []
        for side in self.twins.sides:
            row: Any = None

            def is_settled(side: Side = side) -> bool:
                nonlocal row
                answer = side.client.call(
                    Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.transactional_id]
                )
                (row,) = answer.transaction_states
                return not row.transaction_state.startswith("Prepare")

            until(is_settled, "the end of the transaction")
            plain = {
                "error_code": row.error_code,
                "state": row.transaction_state,
                "timeout": row.transaction_timeout,
                "has_started": row.transaction_start_time.year > 1970,
                "producer_epoch": row.producer_epoch,
                "topics": sorted((topic.topic, sorted(topic.partitions)) for topic in row.topics),
            }
            described.append(plain)
        found = list(differences(described[0], described[1]))
        assert not found, "\n".join(map(str, found))


@pytest.fixture(scope="module")
def topic(twins: Twins) -> str:
    return twins.topic(partitions=3)


@pytest.mark.parametrize("version", range(6))
def test_one_transaction_in_every_version(twins: Twins, topic: str, version: int) -> None:
    producer = Producer(twins, topic)
    producer.init(version)
    producer.add(version)
    producer.add_offsets(min(version, 4))
    producer.settle()
    producer.end(version, committed=True)
    producer.add(version, index=2)
    producer.end(version, committed=False)
    producer.init(version)


@pytest.mark.parametrize("version", range(6))
def test_a_fenced_producer_in_every_version(twins: Twins, topic: str, version: int) -> None:
    producer = Producer(twins, topic)
    producer.init()
    producer.add(version)
    producer.init(version)
    producer.settle()
    producer.init(version)
    producer.add(version, later=-1)
    producer.add_offsets(min(version, 4), later=-1)
    producer.end(version, committed=True, later=-2)
    producer.end(version, committed=False, later=-1)


def random_step(producer: Producer, random: Random) -> None:
    kind = random.choices(["init", "add", "offsets", "end", "verify", "partition"], [4, 6, 1, 7, 2, 1])[0]
    later = random.choices([0, -1, 1, -2], [8, 2, 1, 1])[0]
    known = random.random() < 0.95
    if kind == "init":
        kinds = ["none", "known", "last", "next", "other", "half"]
        expected = random.choices(kinds, [4, 4, 2, 1, 1, 1])[0]
        producer.init(random.choice([3, 4, 5]), expected=expected)
        producer.settle()
    elif kind == "add":
        producer.add(random.choice([1, 3, 5]), later=later, known=known, index=random.randrange(3))
    elif kind == "offsets":
        producer.add_offsets(random.choice([1, 4]), later=later)
    elif kind == "end":
        version = random.choice([1, 4, 5, 5])
        producer.end(version, committed=random.random() < 0.6, later=later, known=known)
    elif kind == "verify":
        version = random.choice([4, 5])
        producer.add(version, later=later, known=known, index=random.randrange(3), verify_only=True)
    else:
        producer.add(5, index=random.choice([7, 0]), verify_only=random.random() < 0.5)


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_any_sequence_is_answered_alike(twins: Twins, topic: str, seed: int) -> None:
    random = Random(seed)
    producer = Producer(twins, topic)
    if random.random() < 0.9:
        producer.init()
    for _ in range(STEPS):
        random_step(producer, random)
    producer.settle()


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_000, 900_001, 2**31 - 1])
def test_timeouts(twins: Twins, topic: str, timeout_ms: int) -> None:
    Producer(twins, topic).init(transaction_timeout=timeout_ms)


@pytest.mark.parametrize("transactional_id", ["", "é" * 16_383, "x" * 32_767])
def test_ids(twins: Twins, topic: str, transactional_id: str) -> None:
    producer = Producer(twins, topic)
    until(
        lambda: (
            not any(
                side.client.call(
                    Api.INIT_PRODUCER_ID,
                    5,
                    transactional_id=transactional_id,
                    transaction_timeout=1,
                    producer_id=-1,
                    producer_epoch=-1,
                ).error_code
                in PASSING
                for side in twins.sides
            )
        ),
        "the coordinator of that id",
    )
    producer.init(transactional_id=transactional_id)


def test_several_in_one_request(twins: Twins, topic: str) -> None:
    rows = [
        {
            "transactional_id": unique("nobody"),
            "producer_id": 5,
            "producer_epoch": 0,
            "verify_only": verify_only,
            "topics": [{"name": name, "partitions": [0, 1]}],
        }
        for verify_only in (True, False)
        for name in (topic, "no-such-topic")
    ]
    for version in (4, 5):
        ours, theirs = (
            side.client.call(Api.ADD_PARTITIONS_TO_TXN, version, transactions=rows) for side in twins.sides
        )
        codes = [
            sorted(
                (topic.name, row.partition_index, ErrorCode(row.partition_error_code).name)
                for result in answer.results_by_transaction
                for topic in result.topic_results
                for row in topic.results_by_partition
            )
            for answer in (ours, theirs)
        ]
        assert codes[0] == codes[1]


@pytest.mark.parametrize("version", range(3))
def test_what_is_listed(twins: Twins, topic: str, version: int) -> None:
    producer = Producer(twins, topic)
    producer.init()
    producer.add(5)
    for changes in (
        {"state_filters": ["Ongoing", "NoSuchState", "Dead"]},
        {"state_filters": ["NoSuchState"]},
        {"state_filters": ["ongoing"]},
        {"producer_id_filters": [987_654]},
        {"duration_filter": 10_000_000},
        {"transactional_id_pattern": producer.transactional_id[:-1] + "."},
        {"transactional_id_pattern": producer.transactional_id[:-1]},
        {"transactional_id_pattern": "("},
        {"transactional_id_pattern": "(?=a)"},
    ):
        fields = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        found = []
        for side in twins.sides:
            answer = side.client.call(Api.LIST_TRANSACTIONS, version, **(fields | changes))
            mine = [
                row.transaction_state
                for row in answer.transaction_states
                if row.transactional_id == producer.transactional_id
            ]
            found.append((answer.error_code, sorted(answer.unknown_state_filters), mine))
        assert found[0] == found[1], changes
