"""The real network: the running loop's sockets.

Owns: binding a port and connecting to one. Does not own: what runs over them (server, channel). Invariant: a
listener on any port listens at one address only, so that it has one port.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import BaseProtocol
from collections.abc import Callable


class TcpNetwork:
    """The running loop's sockets. A buffer of -1 bytes is left to the kernel."""

    def __init__(self, *, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> None:
        asked = {socket.SO_SNDBUF: send_buffer_bytes, socket.SO_RCVBUF: receive_buffer_bytes}
        self._buffers = {option: count for option, count in asked.items() if count != -1}

    async def listen(
        self, host: str, port: int, factory: Callable[[], BaseProtocol], *, backlog: int
    ) -> TcpListening:
        loop = asyncio.get_running_loop()
        address: str | None = host or None
        if port == 0:
            # each address would get a port of its own
            found = await loop.getaddrinfo(host or "0.0.0.0", 0, type=socket.SOCK_STREAM)
            chosen = next((info for info in found if info[0] == socket.AF_INET), found[0])
            address = str(chosen[4][0])
        server = await loop.create_server(factory, address, port, backlog=backlog, start_serving=False)
        for listener in server.sockets:
            for option, count in self._buffers.items():
                # an accepted socket inherits both, and the size of its window must be known before it opens
                listener.setsockopt(socket.SOL_SOCKET, option, count)
        await server.start_serving()
        return TcpListening(server, host)

    async def connect(
        self, host: str, port: int, factory: Callable[[], BaseProtocol]
    ) -> tuple[asyncio.Transport, BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(factory, host, port)


class TcpListening:
    def __init__(self, server: asyncio.Server, host: str) -> None:
        self.host = host
        self.port: int = server.sockets[0].getsockname()[1]
        self._server = server

    def close(self) -> None:
        self._server.close()
