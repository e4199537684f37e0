"""Big answers: whole and in order, by sendfile or in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.net.sending import BulkSender
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
)

if TYPE_CHECKING:
    from broker.server import Broker


@pytest.mark.parametrize("size", [70_000, 300_000, 3_000_000, 20_000_000])
async def test_big_fetches_arrive_whole_and_in_order(broker: Broker, size: int) -> None:
    """Joined, and from the file; with small answers before and behind in the same send."""
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        batches = [batch_of(bytes([at]) * 500_000) for at in range(min(size // 500_000, 45) or 1)]
        if size < 500_000:
            batches = [batch_of(b"x" * size)]
        for batch in batches:
            assert (await client.produce("t", batch)).error_code is ErrorCode.none
        limits = {"max_bytes": size + 100_000, "partition_max_bytes": size + 100_000}
        data = client.encode(Api.API_VERSIONS, 0, {})
        for _ in range(3):
            data += client.encode(Api.FETCH, 12, fetch_fields("t", 0, **limits))
            data += client.encode(Api.API_VERSIONS, 0, {})
        await client.send(data)
        await client.receive_as(Api.API_VERSIONS, 0)
        for _ in range(3):
            response = await client.receive_as(Api.FETCH, 12)
            records = response.responses[0].partitions[0].records
            assert sum(header.count for _, header in iter_batches(records)) == len(batches)
            await client.receive_as(Api.API_VERSIONS, 0)


@pytest.mark.parametrize("is_real", [True, False])
async def test_many_big_fetches_that_were_held_keep_their_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_real: bool
) -> None:
    """A response the socket takes at once ends its own stall in the middle of a round of held requests."""
    if not is_real:
        monkeypatch.setattr(BulkSender, "_open_socket", lambda self: False)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 700_000))
        first, count = client.correlation_id + 1, 300
        client.writer.write(
            b"".join(client.encode(Api.FETCH, 12, fetch_fields("t", 0)) for _ in range(count))
        )
        for correlation_id in range(first, first + count):
            await client.receive_as(Api.FETCH, 12)
            assert client.answered == correlation_id


async def test_big_fetches_without_a_real_socket_go_in_chunks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkSender, "_open_socket", lambda self: False)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for at in range(8):
            await client.produce("t", batch_of(bytes([at]) * 900_000))
        limits = {"max_bytes": 1 << 24, "partition_max_bytes": 1 << 24}
        for _ in range(2):
            fetched = await client.fetch("t", 0, **limits)
            assert [header.base_offset for _, header in iter_batches(fetched.records)] == list(range(8))
