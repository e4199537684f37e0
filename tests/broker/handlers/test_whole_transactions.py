"""Transactions on a running broker, from the producer id to what a consumer reads, as clients of both
transaction versions ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches, iter_records
from tests.broker.raw_client import RawClient, batch_of, create_topic

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

ID, GROUP = "tx", "g"


@dataclass
class TransactionalProducer:
    """A client of one connection. With `tv2` nothing is added before it is written to, and each transaction
    has an epoch of its own."""

    client: RawClient
    tv2: bool
    producer_id: int = -1
    epoch: int = -1
    added: bool = False

    async def init(self) -> None:
        await self.client.call(Api.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=[ID])
        reply = await self.client.call(
            Api.INIT_PRODUCER_ID,
            5,
            transactional_id=ID,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert reply.error_code is ErrorCode.none
        self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
        self.sequence = 0

    async def send(self, value: bytes) -> Any:
        if not self.tv2 and not self.added:
            reply = await self.client.call(
                Api.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            )
            assert reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code is (
                ErrorCode.none
            )
            self.added = True
        batch = batch_of(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        version = 12 if self.tv2 else 11
        answer = await self.client.produce("t", batch, transactional_id=ID, version=version, acks=-1)
        if answer.error_code is ErrorCode.none:
            self.sequence += 1
        return answer

    async def commit_offset(self, offset: int) -> ErrorCode:
        names = {"transactional_id": ID, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        if not self.tv2:
            reply = await self.client.call(Api.ADD_OFFSETS_TO_TXN, 3, group_id=GROUP, **names)
            if reply.error_code is not ErrorCode.none:
                code: ErrorCode = reply.error_code
                return code
        row = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        response = await self.client.call(
            Api.TXN_OFFSET_COMMIT,
            5 if self.tv2 else 3,
            group_id=GROUP,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "t", "partitions": [row]}],
            **names,
        )
        code = response.topics[0].partitions[0].error_code
        assert isinstance(code, ErrorCode)
        return code

    async def end(self, *, committed: bool) -> None:
        reply = await self.client.call(
            Api.END_TXN,
            5 if self.tv2 else 3,
            transactional_id=ID,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        assert reply.error_code is ErrorCode.none
        self.added = False
        if self.tv2:
            assert reply.producer_epoch == self.epoch + 1
            self.producer_id, self.epoch, self.sequence = reply.producer_id, reply.producer_epoch, 0


async def read_committed(client: RawClient) -> list[bytes]:
    """Every value up to the last stable offset, as a consumer does it."""
    values: list[bytes] = []
    gone: set[int] = set()
    offset, end = 0, 1
    while offset < end:
        found = await client.fetch("t", offset, isolation_level=1)
        end = found.last_stable_offset
        aborted = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions)
        data = bytes(found.records)
        for at, header in iter_batches(data):
            while aborted and aborted[0][0] <= header.base_offset:
                gone.add(aborted.pop(0)[1])
            if header.is_control:
                gone.discard(header.producer_id)
            elif header.producer_id not in gone:
                values += [bytes(record.value or b"") for record in iter_records(data, at, header)]
            offset = header.next_offset
    return values


async def committed_offset(client: RawClient) -> int:
    group = {"group_id": GROUP, "topics": [{"name": "t", "partition_indexes": [0]}]}
    response = await client.call(Api.OFFSET_FETCH, 8, groups=[group], require_stable=True)
    row = response.groups[0].topics[0].partitions[0]
    return -2 if row.error_code is ErrorCode.unstable_offset_commit else int(row.committed_offset)


async def settled(client: RawClient) -> None:
    """Wait until no transaction holds readers back: the markers follow the answer."""
    while True:
        found = await client.fetch("t", 0, isolation_level=1)
        if found.last_stable_offset == found.high_watermark and await committed_offset(client) != -2:
            return


@pytest.mark.parametrize("tv2", [False, True])
async def test_what_is_read_is_what_was_committed(broker: Broker, tv2: bool) -> None:
    await create_topic(broker, "t")
    await broker.components.groups.find(GROUP, "PLAINTEXT")
    expected: list[bytes] = []
    offset = -1
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as reader:
        producer = TransactionalProducer(client, tv2)
        await producer.init()
        for number in range(12):
            committed = number % 3 != 1
            values = [b"%d-%d" % (number, at) for at in range(3)]
            for value in values:
                assert (await producer.send(value)).error_code is ErrorCode.none
            assert await producer.commit_offset(number) is ErrorCode.none
            await producer.end(committed=committed)
            if committed:
                expected += values
                offset = number
            if number % 4 == 3:
                await settled(reader)
                assert await read_committed(reader) == expected
                assert await committed_offset(reader) == offset


@pytest.mark.parametrize("tv2", [False, True])
async def test_a_new_producer_ends_what_the_old_one_left_open(broker: Broker, tv2: bool) -> None:
    await create_topic(broker, "t")
    await broker.components.groups.find(GROUP, "PLAINTEXT")
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        old, new = TransactionalProducer(client, tv2), TransactionalProducer(other, tv2)
        await old.init()
        assert (await old.send(b"lost")).error_code is ErrorCode.none
        assert await old.commit_offset(5) is ErrorCode.none
        while new.producer_id < 0:
            reply = await other.call(
                Api.INIT_PRODUCER_ID,
                5,
                transactional_id=ID,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            if reply.error_code is ErrorCode.none:
                new.producer_id, new.epoch, new.sequence = reply.producer_id, reply.producer_epoch, 0
            else:
                assert reply.error_code is ErrorCode.concurrent_transactions
        assert (await old.send(b"zombie")).error_code is ErrorCode.invalid_producer_epoch
        assert await old.commit_offset(6) in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
        assert (await new.send(b"kept")).error_code is ErrorCode.none
        await new.end(committed=True)
        await settled(other)
        assert await read_committed(other) == [b"kept"]
        assert await committed_offset(other) == -1


async def test_after_a_crash_of_the_broker_the_producer_goes_on(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    await broker.components.groups.find(GROUP, "PLAINTEXT")
    async with await RawClient.open(broker) as client:
        producer = TransactionalProducer(client, tv2=True)
        await producer.init()
        for value in (b"a", b"b"):
            assert (await producer.send(value)).error_code is ErrorCode.none
    await broker.stop()
    broker = await make_broker()
    async with await RawClient.open(broker) as client:
        producer.client = client
        while (answer := await producer.send(b"c")).error_code is not ErrorCode.none:
            assert answer.error_code is ErrorCode.not_enough_replicas
        await producer.end(committed=True)
        await settled(client)
        assert await read_committed(client) == [b"a", b"b", b"c"]
