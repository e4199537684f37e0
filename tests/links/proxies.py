"""The faults of links by TCP proxies, of which each broker has one in front of it and one to the store.

Owns: the proxies, in a thread of their own, and what a rule means for a stream. Does not own the processes
behind them. Who connects to a broker is read from the client id of the first request, as brokers name
themselves there. Invariant: of a stream no byte is left out and none overtakes another; a cut holds all back
until it is undone, the end of the stream too, so that a peer that vanished meanwhile is not missed before.

Two things differ from packets: a connection that is made during a cut is accepted at once, and what is lost
comes later, as if it had been sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from tests.clusters import Seat
from tests.compat.peers import stable_port
from tests.links.rules import CLEAR, CLIENTS, STORE, End, Links, Pair, Rule

HOST = "127.0.0.1"
PIECE_BYTES = 16_384
PIECES_HELD_MAX = 64
SENT_AGAIN_S = 0.2
ENFORCED_S_MAX = 20.0
CLIENT_ID_AT = 12
"""In the first request, after its size: the length of the client id."""
BROKER = re.compile(rb"broker-(\d+)-")


class Proxies(Links):
    kind = "TCP proxies"

    def __init__(self, ends: Sequence[End], *, seed: int = 0) -> None:
        super().__init__(ends)
        brokers = [end for end in self.ends if end not in (STORE, CLIENTS)]
        self._dice = random.Random(seed)
        self._behind = {end: stable_port() for end in self.ends if end != CLIENTS}
        self._fronts: dict[tuple[End | None, End], int] = {
            **{(None, broker): stable_port() for broker in brokers},
            **{(broker, STORE): stable_port() for broker in brokers if STORE in self.ends},
        }
        self._enforced: dict[Pair, Rule] = {}
        self._news = asyncio.Event()
        self._end = asyncio.Event()
        self._serving: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="proxies of links")

    def __enter__(self) -> Self:
        self._thread.start()
        self._serving.result(ENFORCED_S_MAX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.result().call_soon_threadsafe(self._end.set)
        self._thread.join(ENFORCED_S_MAX)
        assert not self._thread.is_alive(), "the proxies hang"

    # --- where each end is ---

    def seat(self, end: End) -> Seat:
        behind = f"{HOST}:{self._behind[end]}"
        return Seat(behind, behind if end == STORE else f"{HOST}:{self._fronts[None, end]}")

    def store_port(self, broker: End) -> int:
        """Where that broker reaches the store."""
        return self._fronts[broker, STORE]

    # --- rules ---

    def _enforce(self, rules: Mapping[Pair, Rule]) -> None:
        done: Future[None] = Future()

        def enforce() -> None:
            self._enforced = dict(rules)
            self._news.set()
            self._news = asyncio.Event()
            done.set_result(None)

        self._serving.result().call_soon_threadsafe(enforce)
        done.result(ENFORCED_S_MAX)

    def _rule(self, pair: Pair) -> Rule:
        return self._enforced.get(pair, CLEAR)

    async def _wait_uncut(self, *pairs: Pair) -> None:
        while any(self._rule(pair).is_cut for pair in pairs):
            await self._news.wait()

    async def _hold(self, pair: Pair, size: int, came_s: float) -> None:
        """As long as the rules of that link have it."""
        now_s = asyncio.get_running_loop().time
        rule = self._rule(pair)
        if self._dice.random() < rule.loss:
            await asyncio.sleep(SENT_AGAIN_S)
        if rule.bytes_per_s is not None:
            await asyncio.sleep(size / rule.bytes_per_s)
        await asyncio.sleep(max(0.0, came_s + rule.delay_s - now_s()))
        await self._wait_uncut(pair)

    # --- streams ---

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._serving.done():
                self._serving.set_exception(error)
            raise

    async def _serve(self) -> None:
        streams: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:

            def accepting(by: End | None, to: End) -> Accept:
                def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    task = group.create_task(self._stream(by, to, reader, writer))
                    streams.add(task)
                    task.add_done_callback(streams.discard)

                return accept

            servers = [
                await asyncio.start_server(accepting(by, to), HOST, port)
                for (by, to), port in self._fronts.items()
            ]
            self._serving.set_result(asyncio.get_running_loop())
            await self._end.wait()
            for server in servers:
                server.close()
            for task in streams:
                task.cancel()

    async def _stream(
        self, by: End | None, to: End, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, from its first byte to its end."""
        with closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            first = b""
            if by is None:
                first = await reader.readexactly(CLIENT_ID_AT + 2)
                first += await reader.readexactly(int.from_bytes(first[CLIENT_ID_AT:], "big", signed=True))
                named = BROKER.match(first, CLIENT_ID_AT + 2)
                by = int(named[1]) if named else CLIENTS
            await self._wait_uncut((by, to), (to, by))
            there, back = await asyncio.open_connection(HOST, self._behind[to])
            with closing(back):
                async with asyncio.TaskGroup() as group:
                    there_done = group.create_task(self._pump((by, to), first, reader, back))
                    back_done = group.create_task(self._pump((to, by), b"", there, writer))
                    await asyncio.wait((there_done, back_done), return_when=asyncio.FIRST_COMPLETED)
                    there_done.cancel()
                    back_done.cancel()

    async def _pump(
        self, pair: Pair, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """All of one direction; it ends when that has ended and is through, or the other end is gone."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_HELD_MAX)
        now_s = asyncio.get_running_loop().time

        async def read() -> None:
            piece = first
            with contextlib.suppress(ConnectionError):
                piece = piece or await reader.read(PIECE_BYTES)
                while piece:
                    await pieces.put((now_s(), piece))
                    piece = await reader.read(PIECE_BYTES)
            await pieces.put((now_s(), b""))

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            with contextlib.suppress(ConnectionError):
                while True:
                    came_s, piece = await pieces.get()
                    await self._hold(pair, len(piece), came_s)
                    if not piece:
                        break
                    writer.write(piece)
                    await writer.drain()
            reading.cancel()


Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


@contextlib.contextmanager
def closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()
