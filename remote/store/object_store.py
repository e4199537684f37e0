"""Object storage: whole, named, immutable byte strings, and the one conditional put everything is built on.

Owns: the `ObjectStore` interface, what a key may look like, the local directory and the in-memory store.
Does not own: what the objects mean, retries, deadlines; the S3 store lives beside it.

Invariant: of any number of `put_if_absent` calls for one key, in any processes, at most one ever returns WON,
and an object is either absent or whole. UNKNOWN promises nothing: the caller reads the key to learn who won.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum, StrEnum
from typing import Protocol, TypeVar

from storage.files import Files

T = TypeVar("T")

KEY_MAX_CHARS = 512
_SEGMENT = r"[A-Za-z0-9_=\-][A-Za-z0-9._=\-]*"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


logger = logging.getLogger(__name__)

# What an operator must mend before asking again can help.
_HOPELESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP})


class PutResult(Enum):
    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


class Operation(StrEnum):
    GET = "get"
    GET_RANGE = "get_range"
    PUT = "put"
    PUT_IF_ABSENT = "put_if_absent"
    LIST = "list"
    DELETE = "delete"


class Fault(StrEnum):
    """Why a store did not do what it was asked."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    THROTTLED = "throttled"
    SERVER = "server"
    CONFLICT = "conflict"
    DENIED = "denied"
    REFUSED = "refused"
    CORRUPT = "corrupt"
    DISK = "disk"


class StoreError(Exception):
    """The store could not be asked, or did not answer. Trying again may help, unless it is `permanent`."""

    def __init__(self, message: str, *, permanent: bool = False, fault: Fault = Fault.SERVER) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.fault = fault


class NoSuchObject(Exception):
    """The store answered: there is no object of this name."""


class ObjectStore(Protocol):
    async def get(self, key: str) -> bytes:
        """The whole object; NoSuchObject, or StoreError when it cannot be said."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end), cut at the end of the object."""
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Create or replace; durable when it returns."""
        ...

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """Create, if no object has this key; durable when it returns WON. Never raises for what the store
        does.
        """
        ...

    async def list(self, prefix: str, *, after: str = "") -> list[str]:
        """The keys that start with `prefix` and sort after `after`, in order."""
        ...

    async def delete(self, key: str) -> None:
        """Gone when it returns; a missing object is fine."""
        ...

    async def close(self) -> None:
        """Lets go of its connections; nothing may be asked afterwards."""
        ...


def is_key(text: str) -> bool:
    """A key is a path of plain names, and no name starts with a dot."""
    return len(text) <= KEY_MAX_CHARS and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """The key, or ValueError."""
    if not is_key(key):
        raise ValueError(f"not an object key: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    if len(prefix) > KEY_MAX_CHARS or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"not a key prefix: {prefix!r}")
    return prefix


def check_range(start: int, end: int) -> None:
    if not 0 <= start <= end:
        raise ValueError(f"not a byte range: [{start}, {end})")


class MemoryStore:
    """The reference: what every other store must be seen to do, and the store of tests and simulations."""

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


class LocalStore:
    """Objects as files below one directory of one local file system (link(2) over NFS is not to be trusted).

    An object is written under a temporary name, synced, then given its name by link(2), which fails when the
    name is taken: that makes one winner among threads and processes, and a crash at any point leaves no half
    object. The temporary name is unlinked before it is opened, because after a crash between link and unlink
    it is still the same file as the object.

    The directory of temporary names tells a store from the place where one was: once it was seen, nothing is
    absent, and nothing is made, while it is missing. Under a file system that was unmounted there is an empty
    directory, which would pass for an empty store.

    A refusal is permanent only for an operation that has never been allowed: what worked may work again once
    a file system is writable again, and who waits for that must not end over it.
    """

    def __init__(
        self,
        root: str,
        *,
        files: Files,
        offload: Callable[[Callable[[], T]], Awaitable[T]],
        link: Callable[[str, str], None] = os.link,
        instance: str = "",
    ) -> None:
        self.root = root.rstrip("/") or "/"
        self._files = files
        self._offload: Callable[[Callable[[], object]], Awaitable[object]] = offload  # type: ignore[assignment]
        self._link = link
        self._temporary = f"{self.root}/.tmp"
        self._instance = instance or os.urandom(8).hex()
        self._writes = 0
        self._was_seen = False
        self._allowed: set[Operation] = set()
        self._why_unknown: int | None = None
        self._directories: set[str] = set()
        self._unsynced: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    async def get(self, key: str) -> bytes:
        path = self._path(key)
        return await self._read(Operation.GET, path, key, lambda: self._files.read(path))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_range(start, end)
        path = self._path(key)

        def read() -> bytes:
            file = self._files.open(path)
            try:
                return file.pread(end - start, start)
            finally:
                file.close()

        return await self._read(Operation.GET_RANGE, path, key, read)

    async def put(self, key: str, data: bytes) -> None:
        path, temporary = self._path(key), self._next_temporary()

        def write() -> None:
            self._look()
            self._write_temporary(temporary, path, data)
            self._files.rename(temporary, path)
            self._files.fsync_dir(_parent(path))

        await self._ask(Operation.PUT, key, write)

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        path, temporary = self._path(key), self._next_temporary()

        def write() -> PutResult:
            if self._files.exists(path):
                return PutResult.LOST
            try:
                self._look()
                self._write_temporary(temporary, path, data)
                self._link(temporary, path)
                self._files.fsync_dir(_parent(path))
            except FileExistsError:
                return PutResult.LOST
            except OSError as error:
                if error.errno in _HOPELESS and Operation.PUT_IF_ABSENT not in self._allowed:
                    raise
                self._directories.clear()
                self._unsynced.add(_parent(path))
                self._tell_unknown(error)
                return PutResult.UNKNOWN
            finally:
                self._drop(temporary)
            self._why_unknown = None
            return PutResult.WON

        return await self._ask(Operation.PUT_IF_ABSENT, key, write)

    async def list(self, prefix: str, *, after: str = "") -> list[str]:
        directory, _, start = check_prefix(prefix).rpartition("/")

        def walk() -> list[str]:
            found = sorted(key for key in self._keys_below(directory, start) if key > after)
            self._look()
            return found

        return await self._ask(Operation.LIST, prefix, walk)

    async def delete(self, key: str) -> None:
        path = self._path(key)

        def remove() -> None:
            if self._files.exists(path):
                self._files.unlink(path)
                self._files.fsync_dir(_parent(path))
            else:
                self._look()

        await self._ask(Operation.DELETE, key, remove)

    async def close(self) -> None:
        pass

    async def _read(self, operation: Operation, path: str, key: str, work: Callable[[], bytes]) -> bytes:
        """An object that is read is there for good: a put whose outcome was unknown is judged by it."""

        def read() -> bytes:
            try:
                data = work()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self._look()
                raise NoSuchObject(key) from None
            if not self._was_seen:
                self._look()
            self._sync_names(_parent(path))
            return data

        return await self._ask(operation, key, read)

    def _look(self) -> None:
        """To be called before anything is made, and after something was not found."""
        was_seen = self._was_seen  # before the look: another thread may make the store right after it
        if self._files.exists(self._temporary):
            self._was_seen = True
        elif was_seen:
            raise OSError(errno.ENOENT, f"the store is gone, {self._temporary} is missing")

    def _sync_names(self, directory: str) -> None:
        if directory not in self._unsynced:
            return
        # First, so that what is linked while this sync runs is not taken for synced.
        self._unsynced.discard(directory)
        try:
            self._files.fsync_dir(directory)
        except OSError:
            self._unsynced.add(directory)
            raise

    def _tell_unknown(self, error: OSError) -> None:
        """UNKNOWN carries no reason, so it is logged: when it begins and when it changes."""
        if self._why_unknown != error.errno:
            self._why_unknown = error.errno
            why = error.strerror or error
            logger.warning("a conditional put below %s, whose outcome is unknown: %s", self.root, why)

    async def _ask(self, operation: Operation, key: str, work: Callable[[], T]) -> T:
        try:
            answer = await self._offload(work)
        except NoSuchObject:
            self._allowed.add(operation)
            raise
        except OSError as error:
            self._directories.clear()
            raise StoreError(
                f"{self.root}/{key}: {error.strerror or error}",
                permanent=error.errno in _HOPELESS and operation not in self._allowed,
                fault=Fault.DISK,
            ) from error
        if answer not in (PutResult.LOST, PutResult.UNKNOWN):
            self._allowed.add(operation)
        return answer  # type: ignore[return-value]

    def _path(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    def _next_temporary(self) -> str:
        self._writes += 1
        return f"{self._temporary}/{self._instance}-{self._writes}"

    def _write_temporary(self, temporary: str, path: str, data: bytes) -> None:
        self._make_directory(self._temporary)
        self._was_seen = True
        self._make_directory(_parent(path))
        self._files.unlink(temporary)
        file = self._files.open(temporary, create=True)
        try:
            file.writev([data])
            file.fsync()
        finally:
            file.close()

    def _make_directory(self, path: str) -> None:
        """A new directory is worth nothing before its own name is synced, up to the first that was there."""
        if path in self._directories:
            return
        missing = []
        above = path
        while above and not self._files.exists(above):
            missing.append(above)
            above = _parent(above)
        self._files.makedirs(path)
        for made in reversed(missing):
            self._files.fsync_dir(_parent(made))
        self._directories.add(path)

    def _drop(self, temporary: str) -> None:
        try:
            self._files.unlink(temporary)
        except OSError:
            # A leftover temporary is only space; the answer about the object is what counts.
            return

    def _keys_below(self, directory: str, start: str = "") -> Iterator[str]:
        for name in self._names(directory) or ():
            if name.startswith(".") or not name.startswith(start):
                continue
            key = f"{directory}/{name}" if directory else name
            if self._names(key) is None:
                yield key
            else:
                yield from self._keys_below(key)

    def _names(self, directory: str) -> Sequence[str] | None:
        """What is in a directory; None for what is none, or is gone."""
        try:
            return self._files.listdir(f"{self.root}/{directory}" if directory else self.root)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
