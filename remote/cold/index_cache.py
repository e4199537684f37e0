"""Index files of copied segments on this broker's disk, so that they are fetched once.

Owns: the directory `remote-log-index-cache` (Kafka's name), which files are in it, their sum, which go first.
Does not own: what an index says (storage.index), when a segment is gone (reader), fetching (the callable that
is passed in). Invariant: a file is used only while its CRC holds and it says for what it is, so damage costs
a fetch and nothing else; the files are no more than `bytes_max`; nothing here is synced or needed, a disk
that fails costs the cache alone; no file is touched on the loop.

A file is the index as it was fetched, then 16 bytes: magic, version, CRC-32C of its name and all before.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from os.path import join
from struct import Struct
from typing import Final, Protocol, TypeVar
from uuid import UUID

from protocol.checksum import crc32c
from remote.cold.flights import Flights, Spawn
from storage.files import Files, write_replacing

logger = logging.getLogger(__name__)

DIRECTORY: Final = "remote-log-index-cache"
FETCH_DEADLINE_S: Final = 60.0
_TAIL: Final = Struct(">4sII4x")
_MAGIC: Final = b"TWIX"
_VERSION: Final = 1
_PARTIAL: Final = ".tmp"

T = TypeVar("T")


class Offload(Protocol):
    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class IndexCache:
    def __init__(
        self,
        *,
        files: Files,
        directory: str,
        bytes_max: Callable[[], int],
        offload: Offload,
        spawn: Spawn,
        deadline_s: float = FETCH_DEADLINE_S,
    ) -> None:
        self._files = files
        self._directory = directory
        self._bytes_max = bytes_max
        self._offload = offload
        self._spawn = spawn
        self._flights: Flights[str, bytes] = Flights(spawn, deadline_s=deadline_s)
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """The files there are, least recently used first."""
        self._kinds: set[str] = set()
        """What the files are of, of all segments."""
        self._writes: dict[str, bool] = {}
        """Files that are being written, and whether they are still wanted."""
        self._is_open = False
        self._has_failed = False
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.damaged = 0
        self.evictions = 0

    def __repr__(self) -> str:
        return f"<IndexCache {len(self._sizes)} files, {self.size_bytes} bytes, {self.damaged} were damaged>"

    def __len__(self) -> int:
        return len(self._sizes)

    async def open(self) -> None:
        """Take over what an earlier run left. Before that, and if it fails, indexes are fetched."""
        try:
            found = await self._offload(self._list)
        except OSError as error:
            self._failed("cannot list", error)
            return
        known = self._sizes
        self._sizes = OrderedDict(found)
        for name, size in known.items():
            self._sizes[name] = size
        self._kinds.update(name.partition(".")[2] for name in self._sizes)
        self.size_bytes = sum(self._sizes.values())
        self._is_open = True
        await self._remove(self._surplus())

    async def get(self, segment_id: UUID, kind: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the index, from the disk or else by `fetch`, which raises what it likes."""
        name = f"{segment_id}.{kind}"
        self._kinds.add(kind)
        return await self._flights.join(name, lambda: self._find(name, fetch))

    def put(self, segment_id: UUID, kind: str, data: bytes) -> None:
        """Keep an index that was made here, soon."""
        self._kinds.add(kind)
        self._keep(f"{segment_id}.{kind}", data)

    async def forget(self, segment_id: UUID) -> None:
        """Remove the files of a segment that is gone, or whose files do not lead to batches."""
        names = [f"{segment_id}.{kind}" for kind in self._kinds]
        for name in names:
            if name in self._writes:
                self._writes[name] = False
        await self._remove([name for name in names if name in self._sizes])

    # --- one file ---

    async def _find(self, name: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        if name in self._sizes:
            data = await self._read(name)
            if data is not None:
                self.hits += 1
                return data
        self.misses += 1
        data = await fetch()
        self._keep(name, data)
        return data

    def _keep(self, name: str, data: bytes) -> None:
        if self._is_open and name not in self._writes and len(data) + _TAIL.size <= self._bytes_max():
            self._writes[name] = True
            self._spawn(self._write(name, data))

    async def _read(self, name: str) -> bytes | None:
        path = join(self._directory, name)
        try:
            data = _checked(name, await self._offload(lambda: self._files.read(path)))
        except FileNotFoundError:
            data = None
        except OSError as error:
            self._failed("cannot read", error)
            data = None
        if data is None:
            self.damaged += 1
            logger.warning("%s is missing or damaged, it is fetched again", path)
            await self._remove([name])
        elif name in self._sizes:
            self._sizes.move_to_end(name)
        return data

    async def _write(self, name: str, data: bytes) -> None:
        path = join(self._directory, name)
        whole = encode_file(name, data)
        try:
            await self._offload(lambda: self._store(path, whole))
        except OSError as error:
            self._writes.pop(name)
            self._failed("cannot write", error)
            return
        self._forget_size(name)
        self._sizes[name] = len(whole)
        self.size_bytes += len(whole)
        if self._writes.pop(name):
            await self._remove(self._surplus())
        else:
            await self._remove([name])

    def _store(self, path: str, data: bytes) -> None:
        self._files.makedirs(self._directory)
        write_replacing(self._files, path, data)

    # --- all of them ---

    def _list(self) -> list[tuple[str, int]]:
        """(name, size) of what is there, oldest first; what is no file of ours goes."""
        found: list[tuple[int, str, int]] = []
        if not self._files.exists(self._directory):
            return []
        for name in self._files.listdir(self._directory):
            path = join(self._directory, name)
            if _is_name(name):
                found.append((self._files.mtime_ms(path), name, self._files.size(path)))
            else:
                self._files.unlink(path)
        return [(name, size) for _, name, size in sorted(found)]

    def _surplus(self) -> list[str]:
        """The files to remove so that the rest is within the limit."""
        too_much = self.size_bytes - self._bytes_max()
        names = []
        for name, size in self._sizes.items():
            if too_much <= 0:
                break
            names.append(name)
            too_much -= size
        self.evictions += len(names)
        return names

    async def _remove(self, names: list[str]) -> None:
        for name in names:
            self._forget_size(name)

        def unlink() -> None:
            for name in names:
                self._files.unlink(join(self._directory, name))

        if names:
            try:
                await self._offload(unlink)
            except OSError as error:
                self._failed("cannot remove files of", error)

    def _forget_size(self, name: str) -> None:
        self.size_bytes -= self._sizes.pop(name, 0)

    def _failed(self, what: str, error: OSError) -> None:
        """Say so once: each read would repeat it."""
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "%s %s: %s; indexes of tiered segments are fetched whenever they are needed until the next "
                "start",
                what,
                self._directory,
                error,
            )


def encode_file(name: str, data: bytes) -> bytes:
    """An index as it lies on the disk under this name."""
    return data + _tail(name, data)


def _tail(name: str, data: bytes) -> bytes:
    return _TAIL.pack(_MAGIC, _VERSION, crc32c(data, crc32c(name.encode())))


def _checked(name: str, whole: bytes) -> bytes | None:
    """The index of a file; None if it is not what was written under this name."""
    data = whole[: -_TAIL.size]
    return data if whole[len(data) :] == _tail(name, data) else None


def _is_name(name: str) -> bool:
    segment_id, _, kind = name.partition(".")
    try:
        return str(UUID(segment_id)) == segment_id and kind.isalpha()
    except ValueError:
        return False
