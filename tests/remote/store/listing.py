"""The names alone of what a store lists."""

from __future__ import annotations

from remote.store.object_store import ObjectStore


async def listed(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[str]:
    return [found.key for found in await store.list(prefix, after=after)]
