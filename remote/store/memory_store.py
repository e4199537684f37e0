"""An object store in memory: the reference for what every other store must do, used by tests and simulations.

Owns: keys in order and their objects. Does not own: faults and latency, which wrappers add.
Invariant: every operation is done at once and as a whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from remote.store.object_store import NoSuchObject, PutResult, check_key, check_prefix, check_range


class MemoryStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._keys: list[str] = []

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._keys)} objects)"

    async def get(self, key: str) -> bytes:
        try:
            return self.objects[check_key(key)]
        except KeyError:
            raise NoSuchObject(key) from None

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(start, end)
        return (await self.get(key))[start:end]

    async def put(self, key: str, data: bytes) -> None:
        if check_key(key) not in self.objects:
            insort(self._keys, key)
        self.objects[key] = bytes(data)

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if check_key(key) in self.objects:
            return PutResult.LOST
        insort(self._keys, key)
        self.objects[key] = bytes(data)
        return PutResult.WON

    async def list(self, prefix: str, *, after: str = "") -> list[str]:
        start = max(bisect_left(self._keys, check_prefix(prefix)), bisect_right(self._keys, after))
        end = start
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        return self._keys[start:end]

    async def delete(self, key: str) -> None:
        if self.objects.pop(check_key(key), None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    async def close(self) -> None:
        pass
