"""Transactions and groups that the broker assigns, as a scrape tells them while they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.admin.transaction_metrics import LATE_AFTER_MS, transaction_families
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.handlers.test_consumer_feature import LOADING, members_of, until
from tests.broker.handlers.transactions import txn_batch
from tests.broker.raw_client import RawClient, create_topic

if TYPE_CHECKING:
    from prometheus_client import Metric

    from broker.server import Broker

DEADLINE_S = 10.0
LAG = "kafka_cluster_partition_laststableoffsetlag"
LATE = "kafka_server_replicamanager_partitionswithlatetransactionscount"


def told(families: Any, of: str = "t") -> dict[str, float]:
    """The samples, by their name and the one label that tells them apart; of partitions, those of `of`."""
    found: dict[str, float] = {}
    metrics: list[Metric] = list(families)
    for family in metrics:
        for sample in family.samples:
            labels = dict(sample.labels)
            if "topic" in labels and labels.pop("topic") != of:
                continue
            found["/".join([sample.name, *labels.values()])] = sample.value
    return found


async def until_told(broker: Broker, is_it: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    async with asyncio.timeout(DEADLINE_S):
        while not is_it(found := told(broker.components.metrics())):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def begun(client: RawClient, transactional_id: str, *, timeout_ms: int = 60_000) -> tuple[int, int]:
    await client.call(Api.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[transactional_id])

    async def ask() -> Any:
        return await client.call(
            Api.INIT_PRODUCER_ID,
            4,
            transactional_id=transactional_id,
            transaction_timeout=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )

    answer = await until(ask, lambda answer: answer.error_code not in LOADING)
    assert answer.error_code is ErrorCode.none
    return answer.producer_id, answer.producer_epoch


async def open_transaction(client: RawClient, transactional_id: str, **options: Any) -> tuple[int, int]:
    producer_id, epoch = await begun(client, transactional_id, **options)
    answer = await client.produce(
        "t",
        txn_batch(0, producer_id=producer_id, epoch=epoch),
        version=12,
        transactional_id=transactional_id,
    )
    assert answer.error_code is ErrorCode.none
    return producer_id, epoch


async def test_transactions_are_counted_while_they_are_open_and_how_they_end(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await begun(client, "idle")
        producer_id, epoch = await open_transaction(client, "x")
        found = told(broker.components.metrics())
        assert found["tidewal_transactional_ids/Ongoing"] == found["tidewal_transactional_ids/Empty"] == 1
        assert found["tidewal_transaction_partitions/active"] >= 1
        assert found["tidewal_transaction_partitions/loading"] == 0
        assert found[f"{LAG}/0"] == 1
        assert found["tidewal_memory_bytes/transactional_ids"] > 0
        assert found["tidewal_transactions_ended_total/committed"] == 0
        ended = await client.call(
            Api.END_TXN,
            5,
            transactional_id="x",
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=True,
        )
        assert ended.error_code is ErrorCode.none
        found = await until_told(broker, lambda found: found["tidewal_transactional_ids/CompleteCommit"] == 1)
        assert found["tidewal_transactional_ids/Ongoing"] == found[f"{LAG}/0"] == 0
        assert found["tidewal_transactions_ended_total/committed"] == 1
        assert found["tidewal_transactions_ended_total/aborted"] == 0
        assert found["tidewal_transactions_timed_out_total"] == 0
        found = await until_told(broker, lambda found: found["tidewal_transactions_ending"] == 0)
        assert found["tidewal_transaction_markers_queued"] == 0


async def test_a_transaction_whose_time_is_over_is_told_as_such(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await open_transaction(client, "x", timeout_ms=300)
        found = await until_told(broker, lambda found: found["tidewal_transactional_ids/CompleteAbort"] == 1)
        assert found["tidewal_transactions_timed_out_total"] == 1
        assert found["tidewal_transactions_ended_total/aborted"] == 1
        assert found[f"{LAG}/0"] == 0


async def test_a_transaction_that_stays_open_far_too_long_makes_its_partition_late(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await open_transaction(client, "x")
    components = broker.components
    (partition,) = (each for each in components.replicas.partitions() if each.topic == "t")
    written_ms = next(iter(partition.log.producer_table.entries.values())).last_timestamp

    def late(now_ms: int) -> float:
        families = transaction_families(
            components.transactions, components.replicas, now_ms=now_ms, longest_ms=1000
        )
        return told(families)[LATE]

    assert late(written_ms + 1000 + LATE_AFTER_MS) == 0
    assert late(written_ms + 1001 + LATE_AFTER_MS) == 1


async def test_groups_that_the_broker_assigns_are_counted_apart_from_classic_ones(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with members_of(broker, "first") as (member,):
        await member.join()
        name = "kafka_server_group_coordinator_metrics"
        found = await until_told(broker, lambda found: found[f"{name}_consumer_group_count/stable"] == 1)
        assert found[f"{name}_group_count/consumer"] == 1
        assert found[f"{name}_group_count/classic"] == 0
        assert found[f"{name}_consumer_group_rebalance_count_total"] >= 1
        assert found["kafka_coordinator_group_groupmetadatamanager_nummembers"] == 1
        member.epoch = -1
        await member.beat()
        await until_told(broker, lambda found: found[f"{name}_consumer_group_count/empty"] == 1)
