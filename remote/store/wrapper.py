"""What all wrappers of a store have in common: one method through which every call goes.

Owns: passing the operations on, and the rule for a conditional put that failed on its way. Does not own
any policy: retries, deadlines, hedging, counting and faults are the wrappers that override `_ask`.

Invariant: a wrapper is an ObjectStore like the one inside it; whatever happens around a conditional put, its
caller gets UNKNOWN rather than a guess.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from protocol.checksum import Buffer
from remote.store.object_store import ObjectInfo, ObjectStore, Operation, PutResult, StoreError, Upload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    operation: Operation
    key: str
    size_bytes: int = 0
    """The bytes sent or asked for, where that is known beforehand."""

    @property
    def is_read(self) -> bool:
        return self.operation is Operation.GET or self.operation is Operation.GET_RANGE


class StoreWrapper:
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    async def get(self, key: str) -> bytes:
        return await self._ask(Call(Operation.GET, key), lambda: self.inner.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        call = Call(Operation.GET_RANGE, key, end - start)
        return await self._ask(call, lambda: self.inner.get_range(key, start, end))

    async def get_pieces(self, key: str, start: int, end: int, *, piece_bytes: int) -> Sequence[Buffer]:
        call = Call(Operation.GET_RANGE, key, end - start)
        return await self._ask(call, lambda: self.inner.get_pieces(key, start, end, piece_bytes=piece_bytes))

    async def put(self, key: str, data: Buffer) -> None:
        await self._ask(Call(Operation.PUT, key, len(data)), lambda: self.inner.put(key, data))

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        call = Call(Operation.PUT_IF_ABSENT, key, len(data))
        try:
            return await self._ask(call, lambda: self.inner.put_if_absent(key, data))
        except StoreError as error:
            if error.permanent:
                raise
            return PutResult.UNKNOWN

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        return await self._ask(
            Call(Operation.LIST, prefix), lambda: self.inner.list(prefix, after=after, at_most=at_most)
        )

    async def delete(self, key: str) -> None:
        await self._ask(Call(Operation.DELETE, key), lambda: self.inner.delete(key))

    async def begin_upload(self, key: str) -> str:
        return await self._ask(Call(Operation.BEGIN_UPLOAD, key), lambda: self.inner.begin_upload(key))

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        call = Call(Operation.PUT_PART, key, len(data))
        return await self._ask(call, lambda: self.inner.put_part(key, upload, number, data, start=start))

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        call = Call(Operation.COMPLETE_UPLOAD, key)
        await self._ask(call, lambda: self.inner.complete_upload(key, upload, parts, size))

    async def abort_upload(self, key: str, upload: str) -> None:
        call = Call(Operation.ABORT_UPLOAD, key)
        await self._ask(call, lambda: self.inner.abort_upload(key, upload))

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        return await self._ask(Call(Operation.LIST_UPLOADS, prefix), lambda: self.inner.list_uploads(prefix))

    def local_path(self, key: str) -> str | None:
        return self.inner.local_path(key)

    async def close(self) -> None:
        await self.inner.close()

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store inside, `ask()`, as often and in the way this wrapper sees fit."""
        return await ask()
