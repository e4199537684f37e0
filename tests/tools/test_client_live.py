"""The raw client and the in-process broker fixture, together: what is produced is fetched, also after a
restart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from protocol import records
from protocol.errors import ErrorCode
from tools.client import Address, Client

NOW = 1_700_000_000_000


def batch(*values: bytes) -> bytes:
    return bytes(records.build_batch([(b"key", value, (), NOW) for value in values]))


async def test_produce_and_fetch(bootstrap: str) -> None:
    async with Client([Address.parse(bootstrap)]) as client:
        await client.refresh(["t"], create=True)
        answer = await client.produce("t", 0, batch(b"one", b"two"))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        answer = await client.produce("t", 0, batch(b"three"), acks=1)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2)
        fetched = await client.fetch("t", 0, 0)
        assert values_of(fetched) == [b"one", b"two", b"three"]
        assert fetched.high_watermark == 3
        assert await client.list_offset("t", 0, -1) == (ErrorCode.none, 3, -1)
        fetched = await client.fetch("t", 0, 4)
        assert fetched.error_code == ErrorCode.offset_out_of_range


async def test_a_restart_keeps_everything(make_broker: Callable[..., Awaitable[Any]]) -> None:
    first = await make_broker()
    async with Client([address_of(first)]) as client:
        await client.refresh(["t"], create=True)
        await client.produce("t", 0, batch(b"kept"))
        cluster_id = client.known.cluster_id
    await first.stop()
    second = await make_broker()
    async with Client([address_of(second)]) as client:
        await client.refresh(["t"])
        assert client.known.cluster_id == cluster_id
        assert values_of(await client.fetch("t", 0, 0)) == [b"kept"]


def address_of(broker: Any) -> Address:
    listening = next(iter(broker.listeners.values()))
    return Address(listening.host, listening.port)


def values_of(fetched: Any) -> list[bytes | None]:
    data = bytes(fetched.records or b"")
    return [
        record.value
        for at, header in records.iter_batches(data)
        for record in records.iter_records(data, at, header)
    ]
