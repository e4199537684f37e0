"""TxnOffsetCommit and WriteTxnMarkers on a running broker: offsets that count when their transaction ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.handlers.test_consumer_feature import Member, until
from tests.broker.handlers.transactions import coordinated, txn_batch, write_markers
from tests.broker.raw_client import RawClient, create_topic, with_replicas

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

GROUP = "g"
EVERY = range(6)


async def ready(broker: Broker) -> int:
    """Create what is needed; return the partition of the group."""
    await create_topic(broker, "t", 3)
    groups = broker.components.groups
    await groups.find(GROUP, "PLAINTEXT")
    return groups.partition_for(GROUP)


async def commit(
    client: RawClient, offset: int, version: int = 5, index: int = 0, **changes: Any
) -> ErrorCode:
    partition = {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": 3,
        "committed_metadata": "m",
    }
    fields = {
        "transactional_id": "tx",
        "group_id": GROUP,
        "producer_id": 7,
        "producer_epoch": 0,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [partition]}],
        **changes,
    }
    response = await client.call(Api.TXN_OFFSET_COMMIT, version, **fields)
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


async def committed(client: RawClient, *, stable: bool = False, index: int = 0) -> tuple[int, ErrorCode]:
    group = {"group_id": GROUP, "topics": [{"name": "t", "partition_indexes": [index]}]}
    response = await client.call(Api.OFFSET_FETCH, 8, groups=[group], require_stable=stable)
    (row,) = response.groups[0].topics[0].partitions
    return row.committed_offset, row.error_code


@pytest.mark.parametrize("version", EVERY)
async def test_offsets_count_once_the_transaction_is_committed(broker: Broker, version: int) -> None:
    at = await ready(broker)
    coordinator = await coordinated(broker)
    async with await RawClient.open(broker) as client:
        assert await commit(client, 5, version) is ErrorCode.none
        assert await commit(client, 6, version, index=1) is ErrorCode.none
        assert [each.partitions for each in coordinator.asked] == [[("__consumer_offsets", at)]]
        assert coordinator.asked[0].verify_only == (version < 5)
        assert await committed(client) == (-1, ErrorCode.none)
        assert await committed(client, stable=True) == (-1, ErrorCode.unstable_offset_commit)
        assert await write_markers(client, ("__consumer_offsets", at)) == {
            ("__consumer_offsets", at): ErrorCode.none
        }
        assert await committed(client, stable=True) == (5, ErrorCode.none)
        assert await committed(client, index=1) == (6, ErrorCode.none)


async def test_offsets_of_an_aborted_transaction_never_count(broker: Broker) -> None:
    at = await ready(broker)
    await coordinated(broker)
    async with await RawClient.open(broker) as client:
        await commit(client, 5)
        await write_markers(client, ("__consumer_offsets", at))
        assert await commit(client, 9, producer_epoch=1) is ErrorCode.none
        assert await committed(client, stable=True) == (-1, ErrorCode.unstable_offset_commit)
        assert await committed(client) == (5, ErrorCode.none)
        await write_markers(client, ("__consumer_offsets", at), committed=False, epoch=1)
        assert await committed(client, stable=True) == (5, ErrorCode.none)


async def test_a_restart_finds_pending_offsets_and_ends_them(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    at = await ready(broker)
    await coordinated(broker)
    async with await RawClient.open(broker) as client:
        for offset in range(5):
            assert await commit(client, offset) is ErrorCode.none
    await broker.stop()
    broker = await make_broker()
    coordinator = await coordinated(broker)
    await broker.components.groups.find(GROUP, "PLAINTEXT")
    async with await RawClient.open(broker) as client:
        assert await committed(client, stable=True) == (-1, ErrorCode.unstable_offset_commit)
        assert await commit(client, 8) is ErrorCode.none
        assert not coordinator.asked  # the transaction is open in the log
        await write_markers(client, ("__consumer_offsets", at))
        assert await committed(client, stable=True) == (8, ErrorCode.none)


@pytest.mark.parametrize(
    ("version", "code", "expected"),
    [
        (3, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (4, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (5, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (5, ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions),
        (5, ErrorCode.network_exception, ErrorCode.coordinator_load_in_progress),
        (1, ErrorCode.network_exception, ErrorCode.coordinator_not_available),
    ],
)
async def test_what_the_coordinator_does_not_agree_to(
    broker: Broker, version: int, code: ErrorCode, expected: ErrorCode
) -> None:
    at = await ready(broker)
    coordinator = await coordinated(broker)
    coordinator.errors["__consumer_offsets", at] = code
    async with await RawClient.open(broker) as client:
        assert await commit(client, 5, version) is expected
        coordinator.errors.clear()
        assert await commit(client, 5, version) is ErrorCode.none


async def test_a_member_commits_with_an_earlier_epoch_what_it_has_had_since(broker: Broker) -> None:
    await ready(broker)
    await coordinated(broker)
    async with await RawClient.open(broker) as one, await RawClient.open(broker) as other:
        first, second = Member(one, "first"), Member(other, "second")
        await first.join()
        earlier = first.epoch
        await second.join()

        async def owned_by_second() -> list[int]:
            for member in (first, second):
                await member.beat()
            return [index for held in second.owned.values() for index in held]

        (lost, *_) = await until(owned_by_second, bool)
        ((kept, *_),) = first.owned.values()
        assert earlier < first.epoch
        for index, epoch, code in (
            (kept, earlier, ErrorCode.none),
            (lost, earlier, ErrorCode.illegal_generation),
            (kept, first.epoch, ErrorCode.none),
            (kept, first.epoch + 1, ErrorCode.illegal_generation),
        ):
            found = await commit(one, 1, index=index, member_id="first", generation_id=epoch)
            assert found is code, (index, epoch)


async def test_bad_commits(broker: Broker) -> None:
    at = await ready(broker)
    await coordinated(broker)
    async with await RawClient.open(broker) as client:
        assert await commit(client, 1, group_id="") is ErrorCode.invalid_group_id
        assert await commit(client, 1, generation_id=3, member_id="m") is ErrorCode.illegal_generation
        nowhere = [{"name": "nope", "partitions": [_partition(0)]}]
        assert await commit(client, 1, topics=nowhere) is ErrorCode.unknown_topic_or_partition
        beyond = [{"name": "t", "partitions": [_partition(7)]}]
        assert await commit(client, 1, topics=beyond) is ErrorCode.unknown_topic_or_partition
        long = [{"name": "t", "partitions": [_partition(0) | {"committed_metadata": "x" * 5000}]}]
        assert await commit(client, 1, topics=long) is ErrorCode.offset_metadata_too_large
        assert await commit(client, 1) is ErrorCode.none
        assert await commit(client, 1, producer_epoch=2) is ErrorCode.none
        assert await commit(client, 1, producer_epoch=1) is ErrorCode.invalid_producer_epoch
        await write_markers(client, ("__consumer_offsets", at), epoch=2)
        assert await committed(client, stable=True) == (1, ErrorCode.none)


def _partition(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }


async def test_a_deleted_offset_does_not_come_back_with_the_transaction(broker: Broker) -> None:
    at = await ready(broker)
    await coordinated(broker)
    async with await RawClient.open(broker) as client:
        await commit(client, 5)
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        response = await client.call(Api.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
        assert response.error_code is ErrorCode.none
        await write_markers(client, ("__consumer_offsets", at))
        assert await committed(client, stable=True) == (-1, ErrorCode.none)


@pytest.mark.parametrize("version", [1, 2])
async def test_markers_are_answered_for_each_partition(broker: Broker, version: int) -> None:
    await coordinated(broker)
    await create_topic(broker, "t", 2)
    async with await RawClient.open(broker) as client:
        batch = txn_batch(0)
        assert (await client.produce("t", batch, transactional_id="tx", version=12)).base_offset == 0
        errors = await write_markers(
            client, ("t", 0), ("t", 1), ("t", 5), ("nope", 0), coordinator_epoch=4, version=version
        )
        assert errors == {
            ("t", 0): ErrorCode.none,
            ("t", 1): ErrorCode.none,
            ("t", 5): ErrorCode.unknown_topic_or_partition,
            ("nope", 0): ErrorCode.unknown_topic_or_partition,
        }
        errors = await write_markers(client, ("t", 0), coordinator_epoch=3, version=version)
        assert errors["t", 0] is ErrorCode.transaction_coordinator_fenced
        response = await client.call(
            Api.DESCRIBE_PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}]
        )
        (producer,) = response.topics[0].partitions[0].active_producers
        assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (4, -1)


async def test_an_open_transaction_is_described(broker: Broker) -> None:
    await coordinated(broker)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", txn_batch(0), transactional_id="tx", version=12)
        response = await client.call(
            Api.DESCRIBE_PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}]
        )
        (producer,) = response.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch) == (7, 0)
        assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, 0)


async def test_a_marker_is_answered_once_all_in_sync_have_it(broker: Broker) -> None:
    await coordinated(broker)
    await create_topic(broker, "t", 2)
    partition = broker.components.replicas.partition("t", 0)
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.produce("t", txn_batch(0), transactional_id="tx", version=12)
        with_replicas(partition, 1, 2)
        partition.follower_at(2, 1)
        awaited = asyncio.Event()
        partition.when_awaited = awaited.set
        waiting = asyncio.create_task(write_markers(client, ("t", 0), ("t", 1)))
        async with asyncio.timeout(10):
            await awaited.wait()
        assert not waiting.done()
        # decided, but not for everybody to see
        assert (await other.fetch("t", 0, isolation_level=1)).last_stable_offset == 0
        partition.follower_at(2, 2)
        assert set((await waiting).values()) == {ErrorCode.none}
        assert (await other.fetch("t", 0, isolation_level=1)).last_stable_offset == 2


async def test_markers_without_enough_replicas_are_tried_again_later(broker: Broker) -> None:
    await create_topic(broker, "t", min_insync_replicas="2")
    partition = broker.components.replicas.partition("t", 0)
    with_replicas(partition, 1, 2, isr=(1,))
    async with await RawClient.open(broker) as client:
        errors = await write_markers(client, ("t", 0))
        assert errors["t", 0] is ErrorCode.not_enough_replicas
        assert partition.log.log_end_offset == 0


async def test_a_marker_whose_replicas_stay_away_is_answered_by_its_time(make_broker: MakeBroker) -> None:
    broker = await make_broker(request_timeout_ms="50")
    await create_topic(broker, "t", 2)
    partition = broker.components.replicas.partition("t", 0)
    with_replicas(partition, 1, 2)
    async with await RawClient.open(broker) as client:
        errors = await write_markers(client, ("t", 0), ("t", 1))
        assert errors == {("t", 0): ErrorCode.request_timed_out, ("t", 1): ErrorCode.none}
        assert not partition.commit_waits


async def test_several_markers_of_one_request(broker: Broker) -> None:
    """Those of one producer are answered together, as Kafka does; each is in the log."""
    await create_topic(broker, "t", 2)
    markers = [
        {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": True,
            "topics": [{"name": "t", "partition_indexes": indexes}],
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        for producer_id, epoch, indexes in ((7, 0, [0, 1]), (8, 0, [0]), (7, 1, [1, 5]))
    ]
    async with await RawClient.open(broker) as client:
        response = await client.call(Api.WRITE_TXN_MARKERS, 2, markers=markers)
        answered = {
            row.producer_id: [
                (each.partition_index, each.error_code) for topic in row.topics for each in topic.partitions
            ]
            for row in response.markers
        }
        assert answered == {
            7: [(0, ErrorCode.none), (1, ErrorCode.none), (5, ErrorCode.unknown_topic_or_partition)],
            8: [(0, ErrorCode.none)],
        }
        ends = [broker.components.replicas.partition("t", n).log.log_end_offset for n in range(2)]
        assert ends == [2, 2]
        assert not (await client.call(Api.WRITE_TXN_MARKERS, 2, markers=[])).markers


async def test_that_a_marker_is_late_is_told_once_what_came_before_can_be_lost_no_more(
    broker: Broker,
) -> None:
    """To be told that it is late is as good as an answer for who asks."""
    await coordinated(broker)
    await create_topic(broker, "t")
    partition = broker.components.replicas.partition("t", 0)
    async with await RawClient.open(broker) as client:
        answer = await client.produce("t", txn_batch(0, epoch=1), transactional_id="tx", version=12)
        assert answer.error_code is ErrorCode.none
        partition.log.set_high_watermark(0)
        with_replicas(partition, 1, 2)
        awaited = asyncio.Event()
        partition.when_awaited = awaited.set
        late = asyncio.create_task(write_markers(client, ("t", 0), epoch=1, transaction_version=2))
        async with asyncio.timeout(10):
            await awaited.wait()
        assert not late.done()
        partition.follower_at(2, 1)
        assert (await late)["t", 0] is ErrorCode.invalid_producer_epoch
        assert partition.log.log_end_offset == 1
