"""Transactions on a broker as it really is: bytes on a socket, segments on a disk, a restart in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import RawClient, batch_of, create_topic

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

NONE = ErrorCode.none
ID = "x"
READ_COMMITTED = 1


class Producer:
    """One transactional producer of topic `t`, over the wire, by either version of transactions."""

    def __init__(self, client: RawClient, *, version: int) -> None:
        self.client = client
        self.version = version
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequence = 0

    async def begin(self, timeout_ms: int = 60_000) -> None:
        """Begin, as often as the transaction of another is open still."""
        async with asyncio.timeout(20):
            while True:
                found = await self.client.call(Api.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=[ID])
                assert found.coordinators[0].error_code is NONE
                reply = await self.client.call(
                    Api.INIT_PRODUCER_ID,
                    5,
                    transactional_id=ID,
                    transaction_timeout=timeout_ms,
                    producer_id=-1,
                    producer_epoch=-1,
                )
                if reply.error_code is NONE:
                    break
                assert reply.error_code in (
                    ErrorCode.concurrent_transactions,
                    ErrorCode.coordinator_load_in_progress,
                )
                await asyncio.sleep(0.01)
        self.producer_id, self.producer_epoch, self.sequence = reply.producer_id, reply.producer_epoch, 0

    async def produce(self, value: bytes) -> ErrorCode:
        if self.version < 2:
            added = await self.client.call(
                Api.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            )
            code: ErrorCode = (
                added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            )
            if code is not NONE:
                return code
        batch = batch_of(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        answer = await self.client.produce(
            "t", batch, transactional_id=ID, acks=-1, version=12 if self.version >= 2 else 11
        )
        self.sequence += answer.error_code is NONE
        written: ErrorCode = answer.error_code
        return written

    async def end(self, *, commits: bool) -> ErrorCode:
        reply = await self.client.call(
            Api.END_TXN,
            5 if self.version >= 2 else 4,
            transactional_id=ID,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commits,
        )
        code: ErrorCode = reply.error_code
        if code is NONE and self.version >= 2:
            if (self.producer_id, self.producer_epoch) != (reply.producer_id, reply.producer_epoch):
                self.sequence = 0
            self.producer_id, self.producer_epoch = reply.producer_id, reply.producer_epoch
        return code


async def end_offset(client: RawClient, *, committed: bool) -> int:
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    reply = await client.call(
        Api.LIST_OFFSETS,
        8,
        replica_id=-1,
        isolation_level=READ_COMMITTED if committed else 0,
        topics=[{"name": "t", "partitions": [partition]}],
        timeout=1_000,
    )
    offset: int = reply.topics[0].partitions[0].offset
    return offset


async def state(client: RawClient) -> str:
    reply = await client.call(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[ID])
    found: str = reply.transaction_states[0].transaction_state
    return found


async def until(seen: Callable[[], Any], expected: Any) -> None:
    async with asyncio.timeout(20):
        while (found := await seen()) != expected:  # noqa: ASYNC110 - it happens in the broker
            await asyncio.sleep(0.01)
    assert found == expected


@pytest.mark.parametrize("version", [1, 2])
async def test_what_is_committed_and_what_is_not(make_broker: MakeBroker, version: int) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        producer = Producer(client, version=version)
        await producer.begin()
        for commits in (True, False, True):
            assert await producer.produce(b"first") is NONE
            assert await producer.produce(b"second") is NONE
            open_from = await end_offset(client, committed=True)
            assert await end_offset(client, committed=False) == open_from + 2
            assert await producer.end(commits=commits) is NONE
            await until(lambda: end_offset(client, committed=True), open_from + 3)
        answer = await client.fetch("t", 3, isolation_level=READ_COMMITTED)
        aborted = answer.aborted_transactions
        assert [(each.producer_id, each.first_offset) for each in aborted] == [(producer.producer_id, 3)]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_restart_in_the_middle_of_a_transaction(make_broker: MakeBroker, version: int) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        producer = Producer(client, version=version)
        await producer.begin()
        assert await producer.produce(b"before") is NONE
    await broker.stop()
    broker = await make_broker()
    async with await RawClient.open(broker) as client:
        await until(lambda: state(client), "Ongoing")
        producer.client = client
        assert await producer.produce(b"after") is NONE
        assert await producer.end(commits=True) is NONE
        await until(lambda: end_offset(client, committed=True), 3)
        assert not (await client.fetch("t", 0, isolation_level=READ_COMMITTED)).aborted_transactions


async def test_a_transaction_that_nobody_ends(make_broker: MakeBroker) -> None:
    """Whoever reads what is committed goes on when the producer's time is over."""
    broker = await make_broker()
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        producer = Producer(client, version=2)
        await producer.begin(timeout_ms=300)
        assert await producer.produce(b"left") is NONE
        assert await end_offset(client, committed=True) == 0
        await until(lambda: end_offset(client, committed=True), 2)
        await until(lambda: state(client), "CompleteAbort")
        assert await producer.produce(b"late") is ErrorCode.invalid_producer_epoch
        assert await producer.end(commits=True) is ErrorCode.invalid_txn_state
        assert await producer.end(commits=False) is NONE


async def test_a_zombie(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        zombie, producer = Producer(client, version=1), Producer(client, version=2)
        await zombie.begin()
        assert await zombie.produce(b"a") is NONE
        await producer.begin()
        assert await zombie.end(commits=True) is ErrorCode.producer_fenced
        assert await zombie.produce(b"b") is ErrorCode.producer_fenced
        assert await producer.produce(b"c") is NONE
        assert await producer.end(commits=True) is NONE
        await until(lambda: end_offset(client, committed=True), 4)


async def test_ids_expire_and_the_longest_timeout_is_the_brokers(make_broker: MakeBroker) -> None:
    broker = await make_broker(
        transaction_max_timeout_ms="1000",
        transactional_id_expiration_ms="100",
        transaction_remove_expired_transaction_cleanup_interval_ms="50",
    )
    async with await RawClient.open(broker) as client:
        producer = Producer(client, version=2)
        await producer.begin(timeout_ms=1_000)
        await until(lambda: state(client), "")
        fields = {"transactional_id": ID, "producer_id": -1, "producer_epoch": -1}
        reply = await client.call(Api.INIT_PRODUCER_ID, 5, transaction_timeout=1_001, **fields)
        assert reply.error_code is ErrorCode.invalid_transaction_timeout


def counted(broker: Broker) -> tuple[int, int]:
    statistics = broker.components.transactions.statistics()
    return (
        sum(machine.committed for machine in statistics.machines),
        sum(machine.aborted for machine in statistics.machines),
    )


async def test_ends_are_counted(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        producer = Producer(client, version=2)
        await producer.begin()
        assert await producer.produce(b"a") is NONE
        assert await producer.end(commits=True) is NONE
        await until(lambda: state(client), "CompleteCommit")
        assert counted(broker) == (1, 0)
        assert broker.components.transactions.statistics().partitions == 50
