"""An object store on one local file system: an object is a file below one directory.

Owns: how an object and its name become durable, when the store counts as gone, which refusals are permanent.
Does not own: other file systems (link(2) over NFS is not to be trusted), deadlines, retries.

Invariant: a key has one winner among threads and processes, and a crash at any point leaves no half object.
An object is written under a temporary name, synced, then given its name by link(2), which fails when the name
is taken. The temporary name is unlinked before it is opened, because after a crash between link and unlink it
is still the same file as the object.

An upload is one file among the temporary ones, into which each part is written at its place and synced alone
(one sync of a gigabyte holds up every other file for seconds), and a file beside it that holds its key. The
latter is made first and goes last, so that whatever takes space after a crash is listed.

The directory of temporary names tells a store from the place where one was: once it was seen, nothing counts
as absent, and nothing is created, while it is missing. Under a file system that was unmounted there is an
empty directory, which would pass for an empty store.

A refusal is permanent only for an operation that has never been allowed: what worked may work again once a
file system is writable again, and a caller that waits for that must not end over it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from protocol.checksum import Buffer
from remote.store.object_store import (
    Fault,
    NoSuchObject,
    NoSuchUpload,
    ObjectInfo,
    Operation,
    PutResult,
    StoreError,
    Upload,
    check_key,
    check_part,
    check_prefix,
    check_range,
    cut,
    is_key,
)
from remote.store.tempo import SLICE_BYTES, Tempo
from storage.files import Files

T = TypeVar("T")

logger = logging.getLogger(__name__)

_NEEDS_OPERATOR: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP})
"""Errors an operator has to fix; retrying cannot help."""
_SLICE_BYTES: Final = 4 * SLICE_BYTES
"""A thread for less would cost more than the write."""
_PARTS: Final = ".parts"
_KEY: Final = ".key"
_UPLOAD: Final = re.compile(r"[A-Za-z0-9]+-[0-9]+")
_TAG: Final = re.compile(r"([0-9]+)-([0-9]+)")


class LocalStore:
    def __init__(
        self,
        root: str,
        *,
        files: Files,
        offload: Callable[[Callable[[], T]], Awaitable[T]],
        link: Callable[[str, str], None] = os.link,
        instance: str = "",
        tempo: Tempo | None = None,
        syncs: bool = True,
    ) -> None:
        """Without `syncs` what `put_if_absent` created survives the process, but not the machine."""
        self.root = root.rstrip("/") or "/"
        self._files = files
        self._offload: Callable[[Callable[[], object]], Awaitable[object]] = offload  # type: ignore[assignment]
        self._link = link
        self._tempo = tempo or Tempo()
        self._syncs = syncs
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

    async def get_pieces(self, key: str, start: int, end: int, *, piece_bytes: int) -> Sequence[Buffer]:
        return cut(await self.get_range(key, start, end), piece_bytes)

    async def put(self, key: str, data: Buffer) -> None:
        path, temporary = self._path(key), self._next_temporary()

        def write() -> None:
            self._check_present()
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
                self._check_present()
                self._write_temporary(temporary, path, data, syncs=self._syncs)
                self._link(temporary, path)
                if self._syncs:
                    self._files.fsync_dir(_parent(path))
            except FileExistsError:
                return PutResult.LOST
            except OSError as error:
                if error.errno in _NEEDS_OPERATOR and Operation.PUT_IF_ABSENT not in self._allowed:
                    raise
                self._directories.clear()
                self._unsynced.add(_parent(path))
                self._log_unknown(error)
                return PutResult.UNKNOWN
            finally:
                self._drop(temporary)
            self._why_unknown = None
            return PutResult.WON

        return await self._ask(Operation.PUT_IF_ABSENT, key, write)

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        directory, _, start = check_prefix(prefix).rpartition("/")

        def walk() -> list[ObjectInfo]:
            keys = sorted(key for key in self._keys_below(directory, start) if key > after)
            infos = (info for info in map(self._info, keys) if info is not None)
            found = list(infos) if at_most is None else list(islice(infos, at_most))
            self._check_present()
            return found

        return await self._ask(Operation.LIST, prefix, walk)

    async def delete(self, key: str) -> None:
        path = self._path(key)

        def remove() -> None:
            if self._files.exists(path):
                self._files.unlink(path)
                self._files.fsync_dir(_parent(path))
            else:
                self._check_present()

        await self._ask(Operation.DELETE, key, remove)

    async def begin_upload(self, key: str) -> str:
        check_key(key)
        temporary = self._next_temporary()

        def begin() -> None:
            self._check_present()
            self._make_directory(self._temporary)
            self._was_seen = True
            self._write_synced(temporary + _KEY, key.encode())
            self._write_synced(temporary + _PARTS, b"")
            self._files.fsync_dir(self._temporary)

        await self._ask(Operation.BEGIN_UPLOAD, key, begin)
        return temporary.removeprefix(f"{self._temporary}/")

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        check_part(number, start)
        check_key(key)
        parts = self._upload(upload) + _PARTS

        def write(piece: Buffer, position: int, *, is_last: bool) -> None:
            try:
                file = self._files.open(parts)
            except FileNotFoundError:
                self._check_present()
                raise NoSuchUpload(key) from None
            try:
                file.pwrite(piece, position)
                if is_last:
                    file.fsync()
            finally:
                file.close()

        view, at = memoryview(data), 0
        while True:
            end = min(at + _SLICE_BYTES, len(view)) if self._tempo.is_busy() else len(view)
            work = partial(write, view[at:end], start + at, is_last=end == len(view))
            begun_s = asyncio.get_running_loop().time()
            await self._ask(Operation.PUT_PART, key, work)
            if end == len(view):
                return f"{start}-{start + end}"
            await self._tempo.rest(end - at, asyncio.get_running_loop().time() - begun_s)
            at = end

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        path, temporary = self._path(key), self._upload(upload)
        if _end_of(parts) != size:
            raise self._damaged(key, f"the parts do not make {size} bytes")

        def complete() -> None:
            if self._size(temporary + _PARTS) is None:
                self._check_present()
                if self._size(path) != size:
                    raise NoSuchUpload(key)
            elif self._size(temporary + _PARTS) != size:
                raise self._damaged(key, f"what was uploaded is not {size} bytes long")
            else:
                self._make_directory(_parent(path))
                self._files.rename(temporary + _PARTS, path)
            self._files.fsync_dir(_parent(path))
            self._files.unlink(temporary + _KEY)

        await self._ask(Operation.COMPLETE_UPLOAD, key, complete)

    async def abort_upload(self, key: str, upload: str) -> None:
        check_key(key)
        temporary = self._upload(upload)

        def abort() -> None:
            self._check_present()
            self._files.unlink(temporary + _PARTS)
            self._files.unlink(temporary + _KEY)

        await self._ask(Operation.ABORT_UPLOAD, key, abort)

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        check_prefix(prefix)

        def find() -> Sequence[Upload]:
            names = self._names(".tmp") or ()
            self._check_present()
            begun = (self._begun(name.removesuffix(_KEY)) for name in names if name.endswith(_KEY))
            return sorted(upload for upload in begun if upload and upload.key.startswith(prefix))

        return await self._ask(Operation.LIST_UPLOADS, prefix, find)

    def local_path(self, key: str) -> str | None:
        return self._path(key)

    async def close(self) -> None:
        pass

    async def _read(self, operation: Operation, path: str, key: str, work: Callable[[], bytes]) -> bytes:
        """Read an object and make its name durable: a put of unknown outcome is judged by this read."""

        def read() -> bytes:
            try:
                data = work()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self._check_present()
                raise NoSuchObject(key) from None
            if not self._was_seen:
                self._check_present()
            self._sync_names(_parent(path))
            return data

        return await self._ask(operation, key, read)

    def _check_present(self) -> None:
        """Raise OSError if the store is gone; call it before creating anything, and when nothing is found."""
        was_seen = self._was_seen  # read first: another thread may create the store right after the check
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

    def _log_unknown(self, error: OSError) -> None:
        """Log why a put is UNKNOWN, which carries no reason: when that begins and when the reason changes."""
        if self._why_unknown != error.errno:
            self._why_unknown = error.errno
            why = error.strerror or error
            logger.warning("outcome of a conditional put below %s is unknown: %s", self.root, why)

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
                permanent=error.errno in _NEEDS_OPERATOR and operation not in self._allowed,
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

    def _write_temporary(self, temporary: str, path: str, data: Buffer, *, syncs: bool = True) -> None:
        self._make_directory(self._temporary)
        self._was_seen = True
        self._make_directory(_parent(path))
        self._write(temporary, data, syncs=syncs)

    def _write_synced(self, temporary: str, data: Buffer) -> None:
        self._write(temporary, data, syncs=True)

    def _write(self, temporary: str, data: Buffer, *, syncs: bool) -> None:
        self._files.unlink(temporary)
        file = self._files.open(temporary, create=True)
        try:
            file.writev([data])
            if syncs:
                file.fsync()
        finally:
            file.close()

    def _make_directory(self, path: str) -> None:
        """Create a directory, and sync its name and those above it that were missing."""
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
            # A temporary file that stays only takes space; the answer about the object is what counts.
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

    def _info(self, key: str) -> ObjectInfo | None:
        """Return what a list says of an object; None if it was deleted meanwhile."""
        path = f"{self.root}/{key}"
        try:
            return ObjectInfo(key, self._files.size(path), self._files.mtime_ms(path))
        except FileNotFoundError:
            return None

    def _upload(self, upload: str) -> str:
        """Return what the names of the files of an upload begin with."""
        if _UPLOAD.fullmatch(upload) is None:
            raise ValueError(f"not an upload of this store: {upload!r}")
        return f"{self._temporary}/{upload}"

    def _begun(self, upload: str) -> Upload | None:
        """Return an upload that was begun; None if it ended meanwhile, or its beginning was cut short."""
        path = f"{self._temporary}/{upload}{_KEY}"
        try:
            key, begun_ms = self._files.read(path).decode(errors="replace"), self._files.mtime_ms(path)
        except FileNotFoundError:
            return None
        return Upload(key, upload, begun_ms) if is_key(key) and _UPLOAD.fullmatch(upload) else None

    def _size(self, path: str) -> int | None:
        try:
            return self._files.size(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _damaged(self, key: str, why: str) -> StoreError:
        return StoreError(f"{self.root}/{key}: {why}", permanent=True, fault=Fault.CORRUPT)

    def _names(self, directory: str) -> Sequence[str] | None:
        """Return the names in a directory; None if it is no directory, or is gone."""
        try:
            return self._files.listdir(f"{self.root}/{directory}" if directory else self.root)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _end_of(parts: Sequence[tuple[int, str]]) -> int | None:
    """Return where the last part ends, if they lie one behind the other from the beginning."""
    end = 0
    for _, tag in parts:
        found = _TAG.fullmatch(tag)
        if found is None or int(found[1]) != end:
            return None
        end = int(found[2])
    return end


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
