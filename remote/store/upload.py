"""Putting an object of any size that is read piece by piece: whole if it is small, in parts if it is not.

Owns: where an object is cut, how many parts are under way and in memory, for how long a part is tried, what
becomes of an upload that fails. Does not own: deadlines and quick retries of single requests (resilient), how
fast bytes may go (the caller's `pace`), whose turn it is (tempo), what they mean.

Invariant: the object appears whole or not at all, and of an upload that fails nothing stays, unless the store
does not answer; what stays then is listed under the key of the object.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

from protocol.checksum import Buffer
from remote.store.object_store import NoSuchUpload, ObjectStore, StoreError
from remote.store.tempo import Tempo
from storage.log import FileBytes

T = TypeVar("T")

Read: TypeAlias = Callable[[int, int], Awaitable[Buffer]]
"""Returns the bytes [start, end) of what becomes the object, in memory of their own if they are many
(`read_apart`); asked again when a part has to be sent again."""
Pace: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until so many bytes may be sent. Between parts, because a server closes a request that stalls."""

PART_BYTES: Final = 8 << 20
PARTS_MAX: Final = 9_000
"""S3 allows 10,000."""
PARTS_AT_ONCE: Final = 2
BUDGET_BYTES: Final = 64 << 20
"""The parts in memory of all uploads of a process."""
PATIENCE_S: Final = 120.0
"""A part that fails is tried for so long: an outage of a minute costs no gigabyte that was nearly there."""
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 5.0
ABORT_S: Final = 2.0
"""Nobody waits longer for what is only tidied up."""

logger = logging.getLogger(__name__)


class SourceChanged(Exception):
    """What was to be put has other bytes than it had, or fewer: it was truncated meanwhile."""


class ByteBudget:
    """Bytes of memory that many share; they are given in the order in which they are asked for."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.free_bytes = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"ByteBudget({self.free_bytes} of {self.limit_bytes} free, {len(self._waiting)} waiting)"

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes; one that wants more than there are gets all of them."""
        size = min(size, self.limit_bytes)
        await self._take(size)
        try:
            yield
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and size <= self.free_bytes:
            self.free_bytes -= size
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self._give(0 if turn.cancelled() else size)
            raise

    def _give(self, size: int) -> None:
        self.free_bytes += size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.cancelled():
                if wanted > self.free_bytes:
                    return
                self.free_bytes -= wanted
                turn.set_result(None)
            self._waiting.popleft()


async def put_from(
    store: ObjectStore,
    key: str,
    size: int,
    read: Read,
    *,
    pace: Pace | None = None,
    budget: ByteBudget | None = None,
    tempo: Tempo | None = None,
    part_bytes: int = PART_BYTES,
) -> None:
    """Create the object of `size` bytes that `read` gives; durable when this returns. Raise StoreError after
    the store did not do it for a while, SourceChanged, or what `read` and `pace` raise. Whether the object is
    there after an error is unknown, so its key is never used for anything else; `remove` takes back both.
    """
    job = _Job(store, key, read, pace, budget or ByteBudget(), tempo or Tempo())
    if size <= part_bytes:
        await job.put(size)
        return
    part_bytes = max(part_bytes, -(-size // PARTS_MAX))
    try:
        upload = await job.begin()
        tags = await job.put_parts(upload, size, part_bytes)
        await job.complete(upload, tags, size)
    except GeneratorExit:
        raise  # its loop is gone: nobody would ever run what tidies up
    except BaseException as error:
        await _to_its_end(job.tidy())
        if isinstance(error, NoSuchUpload):
            raise StoreError(f"{key}: its upload was ended from elsewhere") from None
        raise
    if job.may_have_left_more:
        await job.tidy()


def read_apart(file: FileBytes, start: int, end: int) -> memoryview:
    """Return the bytes [start, end) of a file, fewer if it ends before, in memory of their own."""
    return read_into(apart(max(0, end - start)), file, start)


def apart(size: int) -> memoryview:
    """Return memory that goes back to the system with the last reference to it. What malloc gives to threads
    stays theirs when it is freed: ten uploads at once would keep 60 MB more than they use.
    """
    if not size:
        return memoryview(b"")
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def read_into(buffer: memoryview, file: FileBytes, start: int) -> memoryview:
    """Fill the buffer from a place in a file on; return what there was."""
    done = 0
    while done < len(buffer) and (more := file.preadv(buffer[done:], start + done)):
        done += more
    return buffer[:done]


async def remove(store: ObjectStore, key: str) -> None:
    """Delete the object, and abort every upload that would still become it."""
    for begun in await store.list_uploads(key):
        if begun.key == key:
            await store.abort_upload(key, begun.upload)
    await store.delete(key)


class _Job:
    def __init__(
        self,
        store: ObjectStore,
        key: str,
        read: Read,
        pace: Pace | None,
        budget: ByteBudget,
        tempo: Tempo,
    ) -> None:
        self.may_have_left_more = False
        """An upload may have been begun whose id is not known."""
        self._store = store
        self._key = key
        self._read = read
        self._pace = pace
        self._budget = budget
        self._tempo = tempo
        self._upload: str | None = None
        self._has_waited = False

    async def put(self, size: int) -> None:
        await self._send(0, size, lambda data: self._store.put(self._key, data))

    async def begin(self) -> str:
        async def begin() -> str:
            try:
                return await self._store.begin_upload(self._key)
            except BaseException:
                self.may_have_left_more = True
                raise

        self._upload = await self._patiently(begin)
        return self._upload

    async def put_parts(self, upload: str, size: int, part_bytes: int) -> list[tuple[int, str]]:
        tags: dict[int, str] = {}
        starts = iter(enumerate(range(0, size, part_bytes), start=1))

        async def put_part(number: int, start: int) -> str:
            def send(data: Buffer) -> Awaitable[str]:
                return self._store.put_part(self._key, upload, number, data, start=start)

            return await self._send(start, min(start + part_bytes, size), send)

        async def work() -> None:
            for number, start in starts:
                tags[number] = await put_part(number, start)

        first: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(PARTS_AT_ONCE):
                    group.create_task(work())
        except BaseExceptionGroup as failed:
            first, failed.__traceback__ = failed.exceptions[0], None
        except asyncio.CancelledError as cancelled:
            cancelled.__traceback__ = None  # the group's frame, which holds the error
            raise
        if first is None:
            return sorted(tags.items())
        try:
            raise first  # alone, in no circle: what is read from must not wait for the garbage collector
        finally:
            del first

    async def complete(self, upload: str, tags: list[tuple[int, str]], size: int) -> None:
        await self._patiently(lambda: self._store.complete_upload(self._key, upload, tags, size))
        self._upload = None

    async def tidy(self) -> None:
        """Abort the upload if it is not complete, and any other of this key if there may be one."""
        try:
            async with asyncio.timeout(ABORT_S):
                if self._upload is not None:
                    await self._store.abort_upload(self._key, self._upload)
                if self.may_have_left_more:
                    for begun in await self._store.list_uploads(self._key):
                        if begun.key == self._key:
                            await self._store.abort_upload(self._key, begun.upload)
        except (StoreError, TimeoutError) as error:
            why = str(error) or f"no answer within {ABORT_S:.0f} s"
            logger.info("an upload of %s is left in the store, it goes with the object: %s", self._key, why)

    async def _send(self, start: int, end: int, send: Callable[[Buffer], Awaitable[T]]) -> T:
        async def read_and_send() -> T:
            if self._pace is not None:
                await self._pace(end - start)
            async with self._tempo.turn(end - start), self._budget.hold(end - start):
                data = await self._read(start, end) if end > start else b""
                if len(data) != end - start:
                    raise SourceChanged(f"{self._key}: bytes {start} to {end} are {len(data)} bytes")
                return await send(data)

        return await self._patiently(read_and_send)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the store does it, or has not done it for PATIENCE_S."""
        time = asyncio.get_running_loop().time
        ends_s: float | None = None
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return await ask()
            except StoreError as error:
                ends_s = ends_s or time() + PATIENCE_S
                if error.permanent or time() + pause_s > ends_s:
                    raise
                self._log_wait(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _log_wait(self, error: StoreError) -> None:
        if not self._has_waited:
            self._has_waited = True
            logger.warning("upload of %s waits up to %.0f s for the store: %s", self._key, PATIENCE_S, error)


async def _to_its_end(work: Awaitable[None]) -> None:
    """Wait for work that ends soon by itself, also when cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return
    try:
        raise cancelled
    finally:
        del cancelled  # in no circle with this frame: what is read from must not wait for a collection
