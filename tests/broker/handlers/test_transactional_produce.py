"""Produce in transactions: when the coordinator is asked, what its answers lead to, and in which order."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.handlers import produce_transactions
from protocol.apis import Api
from protocol.compression import Codec
from protocol.errors import ErrorCode
from protocol.primitives import ROWS_AT_ONCE
from storage.unified_log import UnifiedLog
from tests.broker.handlers.transactions import AnsweringCoordinator, coordinated, txn_batch, write_markers
from tests.broker.raw_client import RawClient, batch_of, create_topic, produce_fields

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

TV1, TV2 = 11, 12
NOW_MS = 1_700_000_000_000


async def produce(client: RawClient, batch: bytes, version: int = TV2, **changes: Any) -> Any:
    return await client.produce("t", batch, version=version, transactional_id="tx", **changes)


@pytest.mark.parametrize("version", [9, TV1, TV2])
async def test_the_coordinator_is_asked_once_for_each_transaction_and_partition(
    broker: Broker, version: int
) -> None:
    coordinator = await coordinated(broker)
    await create_topic(broker, "t", 2)
    async with await RawClient.open(broker) as client:
        for sequence in range(3):
            answer = await produce(client, txn_batch(sequence), version)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, sequence)
        assert (await produce(client, txn_batch(0), version, index=1)).error_code is ErrorCode.none
        assert [each.partitions for each in coordinator.asked] == [[("t", 0)], [("t", 1)]]
        assert {each.verify_only for each in coordinator.asked} == {version < TV2}
        assert coordinator.asked[0].producer == (7, 0)
        assert (await client.fetch("t", 0, isolation_level=1)).last_stable_offset == 0
        assert await write_markers(client, ("t", 0), ("t", 1)) == {
            ("t", 0): ErrorCode.none,
            ("t", 1): ErrorCode.none,
        }
        assert (await client.fetch("t", 0, isolation_level=1)).last_stable_offset == 4
        assert (await produce(client, txn_batch(3), version)).base_offset == 4
        assert len(coordinator.asked) == 3


@pytest.mark.parametrize(
    ("version", "code", "expected"),
    [
        (9, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (TV1, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (TV2, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (TV1, ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
        (TV1, ErrorCode.not_coordinator, ErrorCode.not_enough_replicas),
        (TV2, ErrorCode.coordinator_load_in_progress, ErrorCode.not_enough_replicas),
        (TV2, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
        (TV2, ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions),
    ],
)
async def test_a_producer_is_told_what_it_can_handle(
    broker: Broker, version: int, code: ErrorCode, expected: ErrorCode
) -> None:
    coordinator = await coordinated(broker)
    coordinator.errors["t", 0] = code
    await create_topic(broker, "t", 2)
    async with await RawClient.open(broker) as client:
        assert (await produce(client, txn_batch(0), version)).error_code is expected
        assert (await client.fetch("t", 0)).high_watermark == 0
        coordinator.errors.clear()
        assert (await produce(client, txn_batch(0), version)).error_code is ErrorCode.none


async def test_the_end_of_the_transaction_before_is_waited_for(broker: Broker) -> None:
    coordinator = await coordinated(broker)
    coordinator.failures = [ErrorCode.concurrent_transactions] * 3
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        assert (await produce(client, txn_batch(0))).error_code is ErrorCode.none
    assert len(coordinator.asked) == 4


@pytest.mark.parametrize(("most_ms", "times"), [("0", 1), ("60000", 9)])
async def test_how_long_the_end_of_the_transaction_before_is_waited_for_can_be_set(
    make_broker: MakeBroker, most_ms: str, times: int
) -> None:
    broker = await make_broker(
        add_partitions_to_txn_retry_backoff_max_ms=most_ms, add_partitions_to_txn_retry_backoff_ms="1"
    )
    coordinator = await coordinated(broker)
    coordinator.failures = [ErrorCode.concurrent_transactions] * 8
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        answer = await produce(client, txn_batch(0))
        expected = ErrorCode.none if times == 9 else ErrorCode.concurrent_transactions
        assert answer.error_code is expected
    assert len(coordinator.asked) == times


async def test_the_pause_before_a_coordinator_is_asked_again_is_bounded(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_ms: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses_ms.append(round(pause_s * 1000, 3))

    named = SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop)
    monkeypatch.setattr(produce_transactions, "asyncio", named)
    broker = await make_broker(
        add_partitions_to_txn_retry_backoff_max_ms="60000", add_partitions_to_txn_retry_backoff_ms="4"
    )
    coordinator = await coordinated(broker)
    coordinator.failures = [ErrorCode.concurrent_transactions] * 5
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        assert (await produce(client, txn_batch(0))).error_code is ErrorCode.none
    assert pauses_ms == [1, 2, 4, 4, 4]


async def test_the_other_partitions_of_a_request_go_on(broker: Broker) -> None:
    coordinator = await coordinated(broker)
    coordinator.errors["t", 1] = ErrorCode.invalid_txn_state
    await create_topic(broker, "t", 4)
    fields = produce_fields("t", b"", transactional_id="tx")
    fields["topic_data"] = [
        {
            "name": "t",
            "partition_data": [
                {"index": 0, "records": txn_batch(0)},
                {"index": 1, "records": txn_batch(0)},
                {"index": 2, "records": batch_of(b"plain")},
                {"index": 3, "records": txn_batch(0)[:-1] + b"x"},
                {"index": 9, "records": txn_batch(0)},
            ],
        }
    ]
    async with await RawClient.open(broker) as client:
        response = await client.call(Api.PRODUCE, TV2, **fields)
        rows = response.responses[0].partition_responses
        assert [(row.index, row.error_code) for row in rows] == [
            (0, ErrorCode.none),
            (1, ErrorCode.invalid_txn_state),
            (2, ErrorCode.none),
            (3, ErrorCode.corrupt_message),
            (9, ErrorCode.unknown_topic_or_partition),
        ]
        assert rows[1].error_message == "Partition was not added to the transaction"
        assert coordinator.asked[0].partitions == [("t", 0), ("t", 1), ("t", 3)]


async def test_a_request_is_of_one_producer(broker: Broker) -> None:
    coordinator = await coordinated(broker)
    await create_topic(broker, "t", 2)
    fields = produce_fields("t", b"", transactional_id="tx")
    fields["topic_data"] = [
        {
            "name": "t",
            "partition_data": [
                {"index": 0, "records": txn_batch(0)},
                {"index": 1, "records": txn_batch(0, producer_id=8)},
            ],
        }
    ]
    async with await RawClient.open(broker) as client:
        response = await client.call(Api.PRODUCE, TV2, **fields)
        codes = {row.error_code for row in response.responses[0].partition_responses}
        assert codes == {ErrorCode.invalid_producer_id_mapping}
        assert not coordinator.asked


async def waiting(client: RawClient, coordinator: AnsweringCoordinator, batch: bytes, version: int) -> None:
    """Send a batch; return once the coordinator is asked about it."""
    coordinator.gate.clear()
    coordinator.asking.clear()
    await client.send(client.encode(Api.PRODUCE, version, produce_fields("t", batch, transactional_id="tx")))
    async with asyncio.timeout(10):
        await coordinator.asking.wait()


async def test_what_a_connection_sends_meanwhile_stays_behind(broker: Broker) -> None:
    coordinator = await coordinated(broker)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await waiting(client, coordinator, txn_batch(0), TV2)
        for sequence in (1, 2):
            fields = produce_fields("t", txn_batch(sequence), transactional_id="tx")
            await client.send(client.encode(Api.PRODUCE, TV2, fields))
        assert (await other.produce("t", batch_of(b"plain"))).base_offset == 0
        coordinator.gate.set()
        for offset in (1, 2, 3):
            answer = (await client.receive_as(Api.PRODUCE, TV2)).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, offset)
        assert len(coordinator.asked) == 1


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_that_ended_meanwhile_takes_no_more(broker: Broker, committed: bool) -> None:
    """The coordinator agreed, but its marker was faster than its answer."""
    coordinator = await coordinated(broker)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await waiting(client, coordinator, txn_batch(0), TV1)
        await write_markers(other, ("t", 0), committed=committed)
        coordinator.gate.set()
        answer = (await client.receive_as(Api.PRODUCE, TV1)).responses[0].partition_responses[0]
        assert answer.error_code is ErrorCode.invalid_txn_state
        assert (await other.fetch("t", 0, isolation_level=1)).last_stable_offset == 1


async def test_with_an_epoch_for_every_transaction_the_marker_of_the_last_ends_no_question(
    broker: Broker,
) -> None:
    coordinator = await coordinated(broker)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await produce(client, txn_batch(0))
        await waiting(client, coordinator, txn_batch(0, epoch=1), TV2)
        errors = await write_markers(other, ("t", 0), epoch=1, transaction_version=2)
        assert errors["t", 0] is ErrorCode.none
        coordinator.gate.set()
        answer = (await client.receive_as(Api.PRODUCE, TV2)).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2)
        # and data of the transaction before comes too late
        late = await produce(client, txn_batch(1))
        assert late.error_code is ErrorCode.invalid_producer_epoch
        errors = await write_markers(other, ("t", 0), epoch=1, transaction_version=2)
        assert errors["t", 0] is ErrorCode.invalid_producer_epoch
        # but once nothing is open, a marker may come twice
        for _ in range(2):
            errors = await write_markers(other, ("t", 0), epoch=2, transaction_version=2)
            assert errors["t", 0] is ErrorCode.none


async def test_a_later_sequence_does_not_overtake_one_that_was_not_verified(broker: Broker) -> None:
    coordinator = await coordinated(broker)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        coordinator.failures = [ErrorCode.coordinator_load_in_progress]
        assert (await produce(client, txn_batch(0), TV1)).error_code is ErrorCode.not_enough_replicas
        answer = await produce(client, txn_batch(1), TV1)
        assert answer.error_code is ErrorCode.out_of_order_sequence_number
        assert (await produce(client, txn_batch(0), TV1)).error_code is ErrorCode.none
        assert (await produce(client, txn_batch(1), TV1)).error_code is ErrorCode.none


async def test_with_an_epoch_for_every_transaction_an_unknown_producer_starts_at_zero(
    broker: Broker,
) -> None:
    await coordinated(broker)
    await create_topic(broker, "t", 2)
    async with await RawClient.open(broker) as client:
        answer = await produce(client, txn_batch(5))
        assert answer.error_code is ErrorCode.out_of_order_sequence_number
        assert (await produce(client, txn_batch(5), TV1, index=1)).error_code is ErrorCode.none


async def test_verification_can_be_switched_off_for_those_who_add_partitions_themselves(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker(transaction_partition_verification_enable="false")
    coordinator = await coordinated(broker)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        assert (await produce(client, txn_batch(0), TV1)).error_code is ErrorCode.none
        assert not coordinator.asked
        await write_markers(client, ("t", 0))
        assert (await produce(client, txn_batch(0, epoch=1))).error_code is ErrorCode.none
        assert len(coordinator.asked) == 1


@pytest.mark.parametrize("configs", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}])
async def test_batches_that_the_log_looks_into(broker: Broker, configs: dict[str, str]) -> None:
    await coordinated(broker)
    await create_topic(broker, "t", 1, **configs)
    async with await RawClient.open(broker) as client:
        for sequence in range(2):
            assert (await produce(client, txn_batch(sequence))).base_offset == sequence
        await write_markers(client, ("t", 0), committed=False)
        found = await client.fetch("t", 0, isolation_level=1)
        assert found.last_stable_offset == 3
        assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == [(7, 0)]


async def test_without_a_coordinator_the_producer_tries_again(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        answer = await produce(client, txn_batch(0))
        assert answer.error_code is ErrorCode.not_enough_replicas
        assert answer.error_message.endswith("COORDINATOR_NOT_AVAILABLE")


@pytest.mark.parametrize("seed", range(6))
async def test_the_short_way_takes_transactions_as_the_long_way_does(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One topic is written to by one connection, which goes the short way where it can; the other by a new
    connection for each request, none of which has a request to go by."""
    await coordinated(broker)
    for topic in ("short", "long"):
        await create_topic(broker, topic)
    taken: list[int] = []
    append_plain = UnifiedLog.append_plain

    def counted(log: UnifiedLog, *arguments: Any) -> int:
        offset = append_plain(log, *arguments)
        if log.topic == "short" and offset >= 0:
            taken.append(offset)
        return offset

    monkeypatch.setattr(UnifiedLog, "append_plain", counted)
    chance = random.Random(seed)
    epoch, sequence = 0, 0
    async with await RawClient.open(broker) as kept:
        for _ in range(60):
            if chance.random() < 0.1:
                committed, epoch, sequence = chance.random() < 0.5, epoch + 1, 0
                errors = [
                    await write_markers(
                        kept, (topic, 0), epoch=epoch, committed=committed, transaction_version=2
                    )
                    for topic in ("short", "long")
                ]
                assert [list(each.values()) for each in errors] == [[ErrorCode.none]] * 2
                continue
            values = [b"v" * 40] * chance.choice([1, 1, 3])
            sent = sequence + chance.choice([0, 0, 0, 0, 0, 1, -1])
            fields: dict[str, Any] = {
                "producer_id": chance.choice([7] * 8 + [8]),
                "producer_epoch": max(epoch + chance.choice([0] * 8 + [1, -1]), 0),
                "base_sequence": max(sent, 0),
                "transactional": chance.random() < 0.9,
                "codec": chance.choice(list(Codec)),
                "timestamp": NOW_MS,
            }
            batch = batch_of(*values, **fields)
            named = {"transactional_id": "tx", "version": TV2}
            short = await kept.produce("short", batch, **named)
            async with await RawClient.open(broker) as new:
                long = await new.produce("long", batch, **named)
            assert (short.error_code, short.base_offset, short.error_message) == (
                long.error_code,
                long.base_offset,
                long.error_message,
            )
            if short.error_code is ErrorCode.none and fields["producer_id"] == 7:
                epoch = fields["producer_epoch"]
                sequence = fields["base_sequence"] + len(values)
    assert len(taken) > 5
    logs = [broker.components.replicas.partition(topic, 0).log for topic in ("short", "long")]
    tables = [log.producer_table for log in logs]
    assert [replace(each, last_timestamp=0) for each in tables[0].active()] == [
        replace(each, last_timestamp=0) for each in tables[1].active()
    ]
    assert tables[0].ongoing == tables[1].ongoing
    assert logs[0].last_stable_offset == logs[1].last_stable_offset


async def test_a_request_of_many_partitions_is_asked_about_as_a_whole(broker: Broker) -> None:
    count = ROWS_AT_ONCE + 1
    coordinator = await coordinated(broker)
    await create_topic(broker, "t", count)
    coordinator.errors["t", 5] = ErrorCode.invalid_txn_state
    async with await RawClient.open(broker) as client:
        for sequence in range(2):
            fields = produce_fields("t", b"", transactional_id="tx", acks=-1)
            fields["topic_data"][0]["partition_data"] = [
                {"index": index, "records": txn_batch(sequence)} for index in range(count)
            ]
            response = await client.call(Api.PRODUCE, TV2, **fields)
            codes = [row.error_code for row in response.responses[0].partition_responses]
            assert codes.pop(5) is not ErrorCode.none
            assert set(codes) == {ErrorCode.none}
        assert [len(each.partitions) for each in coordinator.asked] == [count, 1]
        errors = await write_markers(client, *(("t", index) for index in range(count)), committed=False)
        assert set(errors.values()) == {ErrorCode.none}
        assert (await client.fetch("t", 9, isolation_level=1, index=9)).error_code is not ErrorCode.none
        found = await client.fetch("t", 0, isolation_level=1, index=9)
        assert (found.last_stable_offset, len(found.aborted_transactions)) == (3, 1)


async def test_many_markers_of_nothing_hold_nobody(broker: Broker) -> None:
    """Partitions of the offsets topic that are not here, and markers without partitions."""
    async with await RawClient.open(broker) as client:
        errors = await write_markers(client, *(("__consumer_offsets", index) for index in range(2_000)))
        assert set(errors.values()) == {ErrorCode.unknown_topic_or_partition}
        marker = {
            "producer_id": 7,
            "producer_epoch": 0,
            "transaction_result": True,
            "topics": [],
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        response = await client.call(Api.WRITE_TXN_MARKERS, 2, markers=[marker] * 2_000)
        assert [row.producer_id for row in response.markers] == [7]
