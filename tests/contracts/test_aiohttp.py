"""What the S3 store counts on aiohttp for, on plain sockets, so that an update cannot break it silently."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from remote.store.location import S3Location, parse_store_url
from remote.store.object_store import PutResult, StoreError
from remote.store.s3_store import S3Store

ENVIRON = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class BreakingServer:
    """Answers the first request of each connection, and closes on every later one once it has read it."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[str] = []
        self.unanswered: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError):
            await self._read(reader)
            writer.write(GOOD)
            await writer.drain()
            self.unanswered.append(await self._read(reader))
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> str:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next((line for line in head if line.startswith("content-length:")), "content-length: 0")
        await reader.readexactly(int(length.partition(":")[2]))
        method = head[0].split(" ")[0]
        self.requests.append(method)
        return method


@pytest.fixture
async def server() -> AsyncIterator[BreakingServer]:
    breaking = BreakingServer()
    listening = await asyncio.start_server(breaking.serve, "127.0.0.1", 0)
    breaking.port = listening.sockets[0].getsockname()[1]
    yield breaking
    listening.close()
    await listening.wait_closed()


@pytest.fixture
async def store(request: pytest.FixtureRequest, server: BreakingServer) -> AsyncIterator[S3Store]:
    location = parse_store_url(f"s3://bucket/prefix?endpoint=http://127.0.0.1:{server.port}", ENVIRON)
    assert isinstance(location, S3Location)
    opened = S3Store(
        location,
        environ=ENVIRON,
        now_ms=lambda: 1_700_000_000_000,
        rng=random.Random(1),
        is_lane=getattr(request, "param", False),
    )
    yield opened
    await opened.close()


@pytest.mark.parametrize("store", [False, True], indirect=True, ids=["usual", "lane"])
async def test_a_conditional_put_on_a_connection_that_breaks_is_sent_once(
    server: BreakingServer, store: S3Store
) -> None:
    """Sent again it would find its own object, and a win would be reported as a loss."""
    await store.put("warm", b"the connection is kept")
    assert await store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
    assert server.requests == ["put", "put"]
    assert (server.connections, server.unanswered) == (1, ["put"]), "the second used the kept connection"


async def test_no_other_request_is_sent_again_either(server: BreakingServer, store: S3Store) -> None:
    """Retries and their pauses are for the wrappers to decide, which count and log them."""
    for number, ask in enumerate((lambda: store.put("k", b"x"), lambda: store.delete("k")), 1):
        await store.put("warm", b"the connection is kept")
        with pytest.raises(StoreError):
            await ask()
        assert (len(server.requests), server.connections) == (2 * number, number)
