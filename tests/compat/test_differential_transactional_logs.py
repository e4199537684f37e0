"""What a transactional producer writes, to Tidewal and to Apache Kafka: batches, offsets of groups, markers,
in sequences of good and bad requests.

After each step the two have answered the same, and both logs, their readers and their groups see the same.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from broker.process import wall_clock_ms
from protocol.apis import Api
from protocol.records import build_batch
from tests.compat.differential import Side, Twins, fetch_fields, list_offsets_fields
from tests.compat.peers import unique, until
from tests.compat.test_transaction_sequences import PASSING, Producer

pytestmark = pytest.mark.kafka

STEPS = 16
SEQUENCES = 30
PARTITIONS = 2
VERIFYING = ("Unable to verify", "Partition was not added")
AGAIN = (19, 51)
"""Not enough replicas, concurrent transactions: of a coordinator that is not done yet."""


class Writer(Producer):
    """A producer that also writes, to a topic of its own and for a group of its own."""

    def __init__(self, twins: Twins) -> None:
        self.group = unique("group")
        super().__init__(twins, twins.topic(partitions=PARTITIONS))
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)
        for side in twins.sides:
            until(lambda side=side: self._has_group(side), "the group's coordinator")  # type: ignore[misc]
            until(lambda side=side: self._is_led(side), "the partitions' leader")  # type: ignore[misc]

    def _is_led(self, side: Side) -> bool:
        rows = [
            {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
            for index in range(PARTITIONS)
        ]
        topics = [{"name": self.topic, "partitions": rows}]
        answer = side.client.call(Api.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics)
        return all(row.error_code == 0 for row in answer.topics[0].partitions)

    def _has_group(self, side: Side) -> bool:
        found = side.client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group])
        if found.coordinators[0].error_code in PASSING:
            return False
        return side.client.call(Api.OFFSET_FETCH, 8, **self._all_offsets()).groups[0].error_code == 0

    def _all_offsets(self) -> dict[str, Any]:
        indexes = list(range(PARTITIONS))
        group = {
            "group_id": self.group,
            "member_id": None,
            "member_epoch": -1,
            "topics": [{"name": self.topic, "partition_indexes": indexes}],
        }
        return {"groups": [group], "require_stable": True}

    def fresh(self) -> None:
        """After an epoch that is new, sequences begin again."""
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)

    def send(
        self,
        version: int,
        index: int,
        *,
        later: int = 0,
        off: int = 0,
        known: bool = True,
        transactional: bool = True,
        names_id: bool = True,
        count: int = 1,
    ) -> None:
        sequence = max(self.sequences[index] + off, 0)
        now_ms = wall_clock_ms()
        producer_id, epoch = self.id_of(known=known), self.epoch_of(later)

        def batch(side: Side) -> bytes:
            return bytes(
                build_batch(
                    [(b"k", b"v%d" % sequence, (), now_ms)] * count,
                    producer_id=producer_id(side),
                    producer_epoch=max(epoch(side), 0),
                    base_sequence=sequence,
                    transactional=transactional,
                )
            )

        fields = {
            "transactional_id": self.transactional_id if names_id else None,
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [
                {
                    "name": self.topic,
                    "topic_id": None,
                    "partition_data": [{"index": index, "records": batch}],
                }
            ],
        }
        answers = [self._produced(side, version, fields) for side in self.twins.sides]
        assert answers[0] == answers[1], (version, fields, sequence)
        if answers[0][0] == 0 and off == 0 and known:
            self.sequences[index] = sequence + count

    def _produced(self, side: Side, version: int, fields: dict[str, Any]) -> tuple[int, int, Any]:
        row: Any = None

        def is_answered() -> bool:
            nonlocal row
            response = side.client.call(Api.PRODUCE, version, **side.resolve(fields))
            (row,) = response.responses[0].partition_responses
            return row.error_code not in AGAIN

        until(is_answered, "an answer to Produce")
        message = row.error_message or ""  # of others Kafka says nothing
        return int(row.error_code), row.base_offset, message if message.startswith(VERIFYING) else ""

    def commit(self, version: int, index: int, *, later: int = 0, offset: int = 1, **changes: Any) -> None:
        row = {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        fields = {
            "transactional_id": self.transactional_id,
            "group_id": self.group,
            "producer_id": self.id_of(),
            "producer_epoch": self.epoch_of(later),
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self.topic, "partitions": [row]}],
            **changes,
        }
        answers = []
        for side in self.twins.sides:
            code = 0

            def is_answered(side: Side = side) -> bool:
                nonlocal code
                response = side.client.call(Api.TXN_OFFSET_COMMIT, version, **side.resolve(fields))
                code = int(response.topics[0].partitions[0].error_code)
                return code not in (*AGAIN, *PASSING)

            until(is_answered, "an answer to TxnOffsetCommit")
            answers.append(code)
        assert answers[0] == answers[1], (version, changes, later)

    def mark(
        self, version: int, index: int, *, committed: bool, later: int = 0, coordinator: int = 0
    ) -> None:
        """As an operator's tool does it, or a coordinator that is late."""
        marker = {
            "producer_id": self.id_of(),
            "producer_epoch": self.epoch_of(later),
            "transaction_result": committed,
            "topics": [{"name": self.topic, "partition_indexes": [index]}],
            "coordinator_epoch": coordinator,
            "transaction_version": 2 if version == 2 else 0,
        }
        answers = []
        for side in self.twins.sides:
            response = side.client.call(Api.WRITE_TXN_MARKERS, version, markers=[side.resolve(marker)])
            rows = response.markers[0].topics[0].partitions
            answers.append([(row.partition_index, int(row.error_code)) for row in rows])
        assert answers[0] == answers[1], (version, marker)

    def look(self) -> None:
        """Compare what readers, groups and operators see."""
        for index in range(PARTITIONS):
            for isolation in (0, 1):
                seen = [self._read(side, index, isolation) for side in self.twins.sides]
                assert seen[0] == seen[1], (index, isolation)
                ends = []
                for side in self.twins.sides:
                    fields = list_offsets_fields(self.topic, -1, partition_index=index)
                    answer = side.client.call(
                        Api.LIST_OFFSETS, 5, **{**side.resolve(fields), "isolation_level": isolation}
                    )
                    ends.append(answer.topics[0].partitions[0].offset)
                assert ends[0] == ends[1], (index, isolation)
        described = []
        for side in self.twins.sides:
            indexes = list(range(PARTITIONS))
            topics = [{"name": self.topic, "partition_indexes": indexes}]
            answer = side.client.call(Api.DESCRIBE_PRODUCERS, 0, topics=topics)
            described.append(
                [
                    (
                        row.partition_index,
                        sorted(
                            (
                                side.labels.get(each.producer_id, "another"),
                                each.producer_epoch,
                                each.last_sequence,
                                each.coordinator_epoch >= 0,
                                each.current_txn_start_offset,
                            )
                            for each in row.active_producers
                        ),
                    )
                    for row in answer.topics[0].partitions
                ]
            )
        assert described[0] == described[1]
        offsets = []
        for side in self.twins.sides:
            answer = side.client.call(Api.OFFSET_FETCH, 8, **self._all_offsets())
            rows = answer.groups[0].topics[0].partitions
            offsets.append([(row.partition_index, row.committed_offset, int(row.error_code)) for row in rows])
        assert offsets[0] == offsets[1]

    def _read(self, side: Side, index: int, isolation: int) -> Any:
        answer = side.client.call(
            Api.FETCH,
            11,
            **side.resolve(fetch_fields(self.topic, 0, partition=index, isolation_level=isolation)),
        )
        row = answer.responses[0].partitions[0]
        aborted = sorted(each.first_offset for each in row.aborted_transactions or ())
        data = bytes(row.records or b"")
        batches = []
        at = 0
        while at + 61 <= len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if at + size > len(data):
                break
            offset = int.from_bytes(data[at : at + 8], "big")
            attributes = int.from_bytes(data[at + 21 : at + 23], "big")
            epoch = int.from_bytes(data[at + 51 : at + 53], "big")
            batches.append((offset, attributes, epoch))
            at += size
        return row.error_code, row.high_watermark, row.last_stable_offset, aborted, batches


@pytest.mark.parametrize("version", [9, 11, 12])
@pytest.mark.parametrize("committed", [True, False])
def test_one_transaction_in_every_way(twins: Twins, version: int, committed: bool) -> None:
    writer = Writer(twins)
    writer.init()
    is_old = version < 12
    for _ in range(3):
        if is_old:
            writer.add(3, index=0)
            writer.add_offsets(3)
        for _ in range(3):
            writer.send(version, 0)
        writer.commit(3 if is_old else 5, 0, offset=7)
        writer.look()
        writer.end(3 if is_old else 5, committed=committed)
        if not is_old:
            writer.fresh()
        writer.look()


@pytest.mark.parametrize("version", range(6))
def test_commits_without_a_transaction(twins: Twins, version: int) -> None:
    writer = Writer(twins)
    writer.init()
    writer.commit(version, 0)
    writer.commit(version, 0, later=-1)
    writer.commit(version, 0, group_id="")
    writer.commit(version, 0, generation_id=3, member_id="nobody")
    writer.commit(version, 0, producer_id=987_654)
    writer.look()
    writer.end(5, committed=True)
    writer.look()


@pytest.mark.parametrize("version", [9, 11, 12])
def test_batches_that_are_not_taken(twins: Twins, version: int) -> None:
    writer = Writer(twins)
    writer.init()
    writer.send(version, 0, names_id=False)
    writer.send(version, 0, transactional=False)
    writer.send(version, 0, known=False)
    writer.send(version, 0)
    writer.send(version, 1, off=3)
    writer.add(3, index=0)
    writer.send(version, 0)
    writer.send(version, 0, off=-1)
    writer.send(version, 0, off=5)
    writer.send(version, 0, transactional=False)
    writer.look()
    writer.end(5, committed=False)
    writer.look()


def test_late_markers_and_fenced_coordinators(twins: Twins) -> None:
    writer = Writer(twins)
    writer.init()
    writer.send(12, 0)
    for coordinator, later in ((4, 0), (3, 0), (4, -1), (5, 1), (4, 2)):
        for version in (1, 2):
            writer.mark(version, 0, committed=False, later=later, coordinator=coordinator)
            writer.look()
    writer.mark(1, 1, committed=True)
    writer.look()


def random_step(writer: Writer, random: Random) -> None:
    kinds = ["send", "commit", "add", "end", "init", "mark"]
    kind = random.choices(kinds, [10, 3, 3, 5, 1, 2])[0]
    index = random.randrange(PARTITIONS)
    if kind == "send":
        writer.send(
            random.choice([9, 11, 12, 12, 12]),
            index,
            later=random.choices([0, -1, 1], [10, 1, 1])[0],
            off=random.choices([0, -1, 1], [10, 1, 1])[0],
            transactional=random.random() < 0.95,
            count=random.choice([1, 1, 3]),
        )
    elif kind == "commit":
        writer.commit(random.choice([3, 4, 5, 5]), index, later=random.choices([0, -1], [6, 1])[0])
    elif kind == "add":
        writer.add(3, index=index)
    elif kind == "end":
        version = random.choice([4, 5, 5])
        writer.end(version, committed=random.random() < 0.6)
        if version == 5:
            writer.fresh()
    elif kind == "init":
        writer.init()
        writer.settle()
        writer.fresh()
    else:
        writer.mark(
            random.choice([1, 2]),
            index,
            committed=random.random() < 0.3,
            later=random.choice([0, 0, -1]),
        )


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_any_sequence_leaves_the_same(twins: Twins, seed: int) -> None:
    random = Random(seed)
    writer = Writer(twins)
    writer.init()
    for _ in range(STEPS):
        random_step(writer, random)
        writer.look()
