"""A store in memory whose requests take time, and whose puts may be answered by nothing and arrive late."""

from __future__ import annotations

import asyncio
import random

from remote.keys import Stream, wal_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import ObjectInfo, PutResult, StoreError
from remote.wal.combined_object import Head, ObjectKind, Place, Row, encode_table, place_slices

CLUSTER = "J8aAPcfLQt2bqs1JT_rMgQ"


class SlowStore(MemoryStore):
    def __init__(self, rng: random.Random, *, unknown: float = 0.0, fails: float = 0.0) -> None:
        super().__init__()
        self.rng = rng
        self.unknown = unknown
        """How likely the answer to a put is lost."""
        self.fails = fails
        """How likely anything else is refused."""
        self.late: list[asyncio.Task[PutResult]] = []
        self.requests: list[str] = []

    async def _travel(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.001, 0.02))

    async def _ask(self, what: str, key: str) -> None:
        self.requests.append(f"{what} {key}")
        await self._travel()
        if self.rng.random() < self.fails:
            raise StoreError("busy")

    async def get(self, key: str) -> bytes:
        await self._ask("get", key)
        found = await super().get(key)
        await self._travel()
        return found

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        await self._ask("list", prefix)
        found = await super().list(prefix, after=after, at_most=at_most)
        await self._travel()
        return found

    async def put(self, key: str, data: bytes) -> None:  # type: ignore[override]
        await self._ask("put", key)
        await super().put(key, data)

    async def delete(self, key: str) -> None:
        await self._ask("delete", key)
        await super().delete(key)

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        self.requests.append(f"put_if_absent {key}")
        await self._travel()
        if self.rng.random() < self.unknown:
            if self.rng.random() < 0.5:
                self.late.append(asyncio.create_task(self._put_late(key, data)))
            return PutResult.UNKNOWN
        result = await super().put_if_absent(key, data)
        await self._travel()
        return result

    async def _put_late(self, key: str, data: bytes) -> PutResult:
        await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.1, 60.0)))
        return await super().put_if_absent(key, data)


def object_at(place: Place, rows: list[Row], *, metadata_seq: int = 10) -> bytes:
    """Return an object with these slices, of zeros."""
    head = Head(
        kind=ObjectKind.SLICES,
        cluster_id=CLUSTER,
        place=place,
        put_id=bytes(16),
        metadata_seq=metadata_seq,
        writer=place.stream[:2],
        written_ms=0,
    )
    return encode_table(head, place_slices(CLUSTER, rows)) + bytes(sum(row.size for row in rows))


def seal_at(place: Place, *, asked_by: int = 20) -> bytes:
    head = Head(
        kind=ObjectKind.SEAL,
        cluster_id=CLUSTER,
        place=place,
        put_id=bytes(16),
        metadata_seq=asked_by,
        writer=(9, 9),
        written_ms=0,
    )
    return encode_table(head, ())


def boundary_keys(store: MemoryStore, stream: Stream) -> list[int]:
    prefix = wal_key(stream, 0)[:-20] + "boundary/"
    return [int(key[-20:]) for key in store.objects if key.startswith(prefix)]
