"""What tests of the network share: the connections of a running broker, and waiting for what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.net.connection import Connection

if TYPE_CHECKING:
    from broker.server import Broker


def connections(broker: Broker) -> list[Connection]:
    return list(broker.components.network._connections)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is the broker's own state
            await asyncio.sleep(0.001)
