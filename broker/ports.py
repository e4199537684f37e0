"""The world a broker lives in: files, network, object store, clock, randomness and other threads, as
parameters.

Owns the interfaces only; `broker.server` builds the real ones and a simulation builds its own.
Invariant: nothing else in the broker reads the outside world, so one seed decides a whole simulated run.
"""

from __future__ import annotations

import os
import random
from asyncio import BaseProtocol, Transport
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from remote.cold.sizes import TierSizes
from remote.store.metered import StoreStats
from remote.store.object_store import ObjectStore
from remote.store.tempo import Tempo
from storage.files import Files

T = TypeVar("T")


class Offload(Protocol):
    """Runs a blocking call away from the loop; the only door to another thread."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class Listening(Protocol):
    """One bound listener; `port` is the real one when 0 was asked for."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None:
        """Accept nothing more. Connections that are open stay open."""


class Network(Protocol):
    async def listen(
        self, host: str, port: int, factory: Callable[[], BaseProtocol], *, backlog: int
    ) -> Listening: ...

    async def connect(
        self, host: str, port: int, factory: Callable[[], BaseProtocol]
    ) -> tuple[Transport, BaseProtocol]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    files: Files
    network: Network
    store: ObjectStore
    now_ms: Callable[[], int]
    random: random.Random
    offload: Offload
    absolute_path: Callable[[str], str] = os.path.abspath
    """A log directory as an answer names it."""
    host_name: str = "localhost"
    """What a wildcard listener advertises."""
    rival_store: ObjectStore | None = None
    """A second connection to the same store, opened on need: whether conditions hold takes two to tell."""
    wal_store: ObjectStore | None = None
    """The same store by a lane of its own for the WAL tier: other connections, short attempts. None: `store`.
    """
    store_stats: StoreStats = field(default_factory=StoreStats)
    """What `store` counts, if it does."""
    wal_store_stats: StoreStats = field(default_factory=StoreStats)
    """What `wal_store` counts."""
    cpu_s: Callable[[], float] = lambda: 0.0
    """The processor time that the loop's thread has taken; it stands still where nothing depends on it."""
    elapsed_s: Callable[[], float] = lambda: 0.0
    """What goes on within one turn of the loop, unlike the loop's own time; it stands still likewise."""
    turn_steps: Callable[[], int] = lambda: 1024
    """How often work in turns goes on in one slice, at most."""
    watch: Callable[[float, Callable[[], None]], Callable[[], None]] | None = None
    """Calls a function every so many seconds in a thread of its own, until what it returns is called; None
    where there is no other thread."""
    large_request_bytes: int = 4096
    """A request with a body of so many bytes is worked on in turns."""
    tier_sizes: TierSizes = field(default_factory=TierSizes)
    tempo: Tempo = field(default_factory=Tempo)
    """What the uploads of `store` keep to."""
