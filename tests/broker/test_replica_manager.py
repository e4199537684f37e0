"""What happens to a partition while its disk is at work: nothing of it may take the broker down."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from storage.log import LogSlice
from storage.unified_log import UnifiedLog
from tests.broker.raw_client import RawClient, batch_of, create_topic

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

IO_ERROR = OSError(errno.EIO, "input/output error")


def hold_syncs(broker: "Broker") -> asyncio.Event:
    """Every sync of a partition waits until the event is set."""
    replicas = broker.components.replicas
    go_on = asyncio.Event()

    async def offload(job: Callable[[], Any]) -> Any:
        await go_on.wait()
        return job()

    replicas._world = replace(replicas._world, offload=offload)
    return go_on


async def test_a_topic_may_go_while_it_syncs(make_broker: "MakeBroker") -> None:
    broker = await make_broker(log_flush_single_replica="true")
    await create_topic(broker, "t")
    await create_topic(broker, "u")
    async with await RawClient.open(broker) as client:
        for _ in range(3):
            answer = await client.produce("t", batch_of(b"x"), acks=-1)
            assert answer.error_code is ErrorCode.none
        go_on = hold_syncs(broker)
        for _ in range(3):
            answer = await client.produce("t", batch_of(b"x"), acks=1)
            assert answer.error_code is ErrorCode.none
        response = await client.call(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=5000)
        assert response.responses[0].error_code is ErrorCode.none
        go_on.set()
        answer = await client.produce("u", batch_of(b"x"), acks=-1)
        assert answer.error_code is ErrorCode.none
    assert broker.is_ready


async def test_a_disk_that_fails_before_the_sync_costs_its_partitions_only(
    make_broker: "MakeBroker", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = f"{tmp_path}/one,{tmp_path}/two"
    broker = await make_broker(log_flush_single_replica="true", log_dirs=both)
    await create_topic(broker, "t")

    def full(log: UnifiedLog, *, force: bool = False) -> None:
        raise IO_ERROR

    async with await RawClient.open(broker) as client:
        assert (await client.produce("t", batch_of(b"x"), acks=-1)).error_code is ErrorCode.none
        monkeypatch.setattr(UnifiedLog, "_write_epochs", full)
        answer = await client.produce("t", batch_of(b"x"), acks=-1)
        assert answer.error_code is ErrorCode.kafka_storage_error
        answer = await client.produce("t", batch_of(b"x"), acks=1)
        assert answer.error_code is ErrorCode.kafka_storage_error
    assert broker.is_ready


async def test_a_coordinator_that_cannot_read_its_log_hears_a_storage_error(
    broker: "Broker", monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        assert (await client.produce("t", batch_of(b"x"))).error_code is ErrorCode.none

    def unreadable(part: LogSlice) -> bytes:
        raise IO_ERROR

    monkeypatch.setattr(LogSlice, "read", unreadable)
    replicas = broker.components.replicas
    with pytest.raises(KafkaError) as refused:
        list(replicas.read_all("t", 0))
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert replicas.find("t", 0) is ErrorCode.kafka_storage_error
