"""Transactions asked of Tidewal and of Apache Kafka whose transaction.version is 0 or 1: what clients are
answered, which epochs they get, and the records of `__transaction_state`.

Owns which requests are sent. Does not own how answers are compared (differential), nor a producer's ids and
the wait for a transaction's end (twin_producers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol import records as batches
from protocol.apis import Api
from protocol.stored.transactions import decode_transaction_record
from tests.compat.differential import Side, Twins, fetch_fields, produce_fields, started_twins
from tests.compat.peers import Java, unique
from tests.compat.twin_producers import (
    Producer,
    add_fields,
    begun,
    end_fields,
    ended,
    same,
    settled,
    state,
)

pytestmark = pytest.mark.kafka
UNSAFE_DOWNGRADE = 3


@pytest.fixture(scope="module", params=[1, 0])
def twins_of_level(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java: Java
) -> Iterator[tuple[Twins, int]]:
    with started_twins(tmp_path_factory.mktemp("twins"), java) as pair:
        update = {
            "feature": "transaction.version",
            "max_version_level": request.param,
            "upgrade_type": UNSAFE_DOWNGRADE,
        }
        pair.same(Api.UPDATE_FEATURES, 1, timeout=10_000, feature_updates=[update], validate_only=False)
        yield pair, request.param


def produce(producer: Producer, name: str, sequence: int = 0) -> Any:
    fields = produce_fields(name, None)
    fields["topic_data"][0]["partition_data"][0]["records"] = producer.batch(sequence)
    return {**fields, "transactional_id": producer.name}


def stored(side: Side, producer: Producer) -> list[Any]:
    """What is written of the id: version, state, epoch less the producer's own, and the client's version."""
    rows: list[Any] = []
    for partition in range(5):
        fields = fetch_fields("__transaction_state", 0, partition=partition)
        raw = side.client.call(Api.FETCH, 12, **side.resolve(fields))
        data = bytes(raw.responses[0].partitions[0].records or b"")
        for at, header in batches.iter_batches(data):
            for row in batches.iter_records(data, at, header):
                found = decode_transaction_record(row.key, row.value)
                if found is None or found.transactional_id != producer.name or found.transaction is None:
                    continue
                made = found.transaction
                rows.append(
                    (int.from_bytes(row.value[:2]), made.state.name, made.producer_epoch, made.client_version)
                )
    return rows


def same_records(twins: Twins, producer: Producer) -> list[Any]:
    ours, theirs = (stored(side, producer) for side in twins.sides)
    assert ours == theirs
    return ours


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
def test_a_client_of_version_1(twins_of_level: tuple[Twins, int], committed: bool) -> None:
    twins, level = twins_of_level
    name, producer = twins.topic(), Producer(unique("txn"))
    begun(twins, producer)
    for sequence in range(2):
        same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(producer, (name, (0,))))
        same(twins, Api.PRODUCE, 11, **produce(producer, name, sequence))
        ended(twins, producer, 4, committed=committed)
        assert state(twins, producer) == ("CompleteCommit" if committed else "CompleteAbort")
    written = same_records(twins, producer)
    assert {row[0] for row in written} == {min(level, 1)}
    assert {row[2] for row in written} == {0}


def test_a_producer_that_is_fenced(twins_of_level: tuple[Twins, int]) -> None:
    twins, _ = twins_of_level
    name, producer = twins.topic(), Producer(unique("txn"))
    begun(twins, producer)
    same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(producer, (name, (0,))))
    same(twins, Api.PRODUCE, 11, **produce(producer, name))
    begun(twins, producer)
    settled(twins, producer)
    assert ("PREPARE_ABORT", 1, 0) in [row[1:] for row in same_records(twins, producer)]


def test_a_client_of_version_2(twins_of_level: tuple[Twins, int]) -> None:
    """One that does not look at the level."""
    twins, level = twins_of_level
    name, producer = twins.topic(), Producer(unique("txn"))
    begun(twins, producer)
    if level == 0:
        same(twins, Api.PRODUCE, 12, **produce(producer, name))
        # After a refusal Kafka has the id wait for ever.
        other = Producer(unique("txn"))
        begun(twins, other)
        same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(other, (name, (0,))))
        same(twins, Api.END_TXN, 5, **end_fields(other))
        assert state(twins, other) == "Ongoing"
        return
    for _ in range(2):
        same(twins, Api.PRODUCE, 12, **produce(producer, name))
        ended(twins, producer, 5)
    same_records(twins, producer)
