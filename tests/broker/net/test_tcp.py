"""Real sockets are as the settings say."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from protocol.apis import Api
from tests.broker.net.live import connections
from tests.broker.raw_client import (
    RawClient,
)

if TYPE_CHECKING:
    from tests.conftest import MakeBroker


async def test_buffers_of_accepted_connections_are_as_set_or_the_kernels(make_broker: MakeBroker) -> None:
    async def buffers(**settings: str) -> tuple[int, int]:
        broker = await make_broker(**settings)
        async with await RawClient.open(broker) as client:
            await client.call(Api.API_VERSIONS, 0)
            (connection,) = connections(broker)
            accepted = connection._transport.get_extra_info("socket")
            found = tuple(accepted.getsockopt(socket.SOL_SOCKET, option) for option in options)
        await broker.stop()
        return found[0], found[1]

    options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        plain, _ = server.accept()
        with plain:
            left_alone = plain.getsockopt(socket.SOL_SOCKET, options[0])
            received = plain.getsockopt(socket.SOL_SOCKET, options[1])
    assert await buffers() == (left_alone, received)
    asked = await buffers(socket_send_buffer_bytes="20000", socket_receive_buffer_bytes="30000")
    doubled = (40_000, 60_000)  # by Linux, for what it keeps beside the bytes
    assert asked in (doubled, (20_000, 30_000))
