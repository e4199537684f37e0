"""Owns a disk in memory: the Files seam of one node, through kills, power cuts and errors.

A kill keeps every byte that was written, as the page cache does. A power cut keeps what was synced (file
bytes by fsync, names by fsync_dir) and, of the rest, what the seed says: nothing, everything, a torn prefix,
or any subset. Errors and a full disk are armed from outside and may leave a short write behind. A handle of
a dead process raises Killed at any use.

Invariant: `synced` of an inode and the durable names of a directory are exactly what no power cut may take
away.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.sim.loop import Killed, Process

CHANGES = frozenset(
    {"create", "write", "truncate", "fsync", "rename", "unlink", "rmtree", "fsync_dir", "makedirs"}
)


@dataclass(slots=True)
class Inode:
    """One file's bytes: as the process sees them, as the platters hold them, and the writes in between."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(
        default_factory=list
    )  # (offset, bytes) or (size, None) for truncate
    mtime_ms: int = 0
    locked_by: Process | None = None
    doubtful: bool = False  # an fsync failed: the kernel dropped the pages and says so only once

    def write(self, data: bytes, offset: int) -> None:
        _apply(self.data, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _apply(self.data, size, None)
        self.pending.append((size, None))

    def sync(self) -> None:
        for offset, data in self.pending:
            _apply(self.synced, offset, data)
        self.pending.clear()

    def forget_unsynced(self, rng: random.Random, mode: str) -> None:
        survivors = list(self.pending)
        if mode == "nothing":
            survivors = []
        elif mode == "prefix" and survivors:
            survivors = survivors[: rng.randrange(len(survivors) + 1)]
            if survivors and survivors[-1][1]:
                offset, data = survivors[-1]
                assert data is not None
                survivors[-1] = (offset, data[: rng.randrange(len(data) + 1)])
        elif mode == "subset":
            survivors = [change for change in survivors if rng.random() < 0.5]
        for offset, data in survivors:
            _apply(self.synced, offset, data)
        self.pending.clear()
        self.data = bytearray(self.synced)


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        if offset < len(target):
            del target[offset:]
        elif offset > len(target):
            target.extend(bytes(offset - len(target)))
        return
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    if offset == len(target):
        target += data
    else:
        target[offset : offset + len(data)] = data


class Directory:
    __slots__ = ("durable", "entries", "volume")

    def __init__(self, volume: str = "") -> None:
        self.volume = volume  # each has a journal of its own
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


@dataclass(slots=True)
class NameChange:
    """One not yet synced change of names; a rename across directories is two halves with one fate."""

    sets: list[tuple[Directory, str, Inode | Directory | None]]

    def touches(self, directory: Directory) -> bool:
        sets = self.sets
        return sets[0][0] is directory or (len(sets) > 1 and any(each[0] is directory for each in sets))

    def apply(self) -> None:
        for directory, name, node in self.sets:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


@dataclass(slots=True)
class Armed:
    """An error that waits for its call."""

    operation: str
    error: int
    skip: int
    times: int
    path_part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCut:
    """What a power cut left: for every log file, how many bytes were beyond its reach."""

    mode: str
    synced_bytes: dict[str, int]


class Disk:
    """The medium. It outlives processes; `mount` gives one process its view."""

    def __init__(
        self, rng: random.Random, now_ms: Callable[[], int], trace: Callable[..., None] | None = None
    ) -> None:
        self.rng = rng
        self.now_ms = now_ms
        self.root = Directory()
        self.name_changes: list[NameChange] = []
        self.capacity = 1 << 40
        self.used = 0
        self.operations = 0
        self.armed: list[Armed] = []
        self.errors = 0
        self._trace = trace

    def make_volume(self, path: str) -> None:
        """A file system of its own, mounted at a name of the root directory."""
        volume = Directory(path)
        (name,) = _parts(path)
        self.root.entries[name] = self.root.durable[name] = volume

    def mount(self, process: Process | None = None) -> SimFiles:
        return SimFiles(self, process)

    # faults -------------------------------------------------------------------------------------------------

    def fail(self, operation: str, error: int, *, skip: int = 0, times: int = 1, path_part: str = "") -> None:
        self.armed.append(Armed(operation, error, skip, times, path_part))

    def disarm(self) -> None:
        self.armed.clear()
        self.capacity = 1 << 40

    def take_error(self, operation: str, path: str) -> OSError | None:
        for armed in self.armed:
            if armed.operation == operation and armed.path_part in path:
                if armed.skip:
                    armed.skip -= 1
                    continue
                armed.times -= 1
                if armed.times <= 0:
                    self.armed.remove(armed)
                self.errors += 1
                self.trace("disk-error", operation, path, errno.errorcode[armed.error])
                return OSError(armed.error, os.strerror(armed.error), path)
        return None

    def power_cut(self, mode: str | None = None) -> PowerCut:
        """Forget what was not synced: of the writes to a file as the mode says, of the changes of names
        the last ones, because file systems keep those in a journal."""
        mode = mode or self.rng.choice(("nothing", "prefix", "subset", "all"))
        synced = {path: len(data) for path, data in self.durable_snapshot().items()}
        journals: dict[str, list[NameChange]] = {"": []}
        for change in self.name_changes:
            journals.setdefault(change.sets[0][0].volume, []).append(change)
        for changes in journals.values():
            keep = len(changes)
            if mode == "nothing":
                keep = 0
            elif mode != "all":
                keep = self.rng.randrange(keep + 1)
            for change in changes[:keep]:
                change.apply()
        self.name_changes.clear()
        for directory, inode in list(self._walk_durable()):
            if inode is None:
                directory.entries = dict(directory.durable)
            else:
                inode.forget_unsynced(self.rng, mode)
                inode.locked_by = None
                inode.doubtful = False
        self.used = sum(len(inode.data) for _, inode in self._walk_durable() if inode is not None)
        self.armed.clear()
        self.trace("power-cut", mode)
        return PowerCut(mode=mode, synced_bytes=synced)

    def _walk_durable(self) -> Iterable[tuple[Directory, Inode | None]]:
        """Every durable directory (with None), then the files in it."""
        stack, seen = [self.root], {id(self.root)}
        while stack:
            directory = stack.pop()
            yield directory, None
            for _, node in sorted(directory.durable.items()):
                if isinstance(node, Inode):
                    yield directory, node
                elif id(node) not in seen:
                    seen.add(id(node))
                    stack.append(node)

    # observers ----------------------------------------------------------------------------------------------

    def snapshot(self, under: str = "/") -> dict[str, bytes]:
        """Every file's bytes as a process would see them."""
        found: dict[str, bytes] = {}
        node = self.lookup(under)
        stack = [(posixpath.normpath(under).rstrip("/"), node)] if isinstance(node, Directory) else []
        while stack:
            path, directory = stack.pop()
            for name, child in sorted(directory.entries.items()):
                if isinstance(child, Directory):
                    stack.append((f"{path}/{name}", child))
                else:
                    found[f"{path}/{name}"] = bytes(child.data)
        return found

    def durable_snapshot(self) -> dict[str, bytes]:
        """Every file's bytes that no power cut can take: not those that a cut, an unlink or a rename under
        way may take with it."""
        found: dict[str, bytes] = {}
        going = {
            (id(directory), name)
            for change in self.name_changes
            for directory, name, node in change.sets
            if node is None
        }
        stack = [("", self.root)]
        while stack:
            path, directory = stack.pop()
            for name, node in sorted(directory.durable.items()):
                if isinstance(node, Directory):
                    stack.append((f"{path}/{name}", node))
                elif (id(directory), name) not in going:
                    cuts = [size for size, data in node.pending if data is None]
                    found[f"{path}/{name}"] = bytes(node.synced[: min(cuts, default=None)])
        return found

    def clone(self) -> Disk:
        """The same files on another medium, all of them synced: for looking without touching."""
        copy = Disk(random.Random(0), self.now_ms)
        for path, data in self.snapshot().items():
            directory = copy.root
            *parents, name = path.strip("/").split("/")
            for parent in parents:
                child = directory.entries.get(parent)
                if not isinstance(child, Directory):
                    child = Directory()
                    directory.entries[parent] = directory.durable[parent] = child
                directory = child
            original = self.lookup(path)
            assert isinstance(original, Inode)
            inode = Inode(bytearray(data), bytearray(data), mtime_ms=original.mtime_ms)
            directory.entries[name] = directory.durable[name] = inode
        return copy

    def trace(self, kind: str, *fields: object) -> None:
        if self._trace is not None:
            self._trace(kind, *fields)

    # names --------------------------------------------------------------------------------------------------

    def lookup(self, path: str) -> Inode | Directory | None:
        node: Inode | Directory | None = self.root
        for part in _parts(path):
            if node.__class__ is not Directory:
                return None
            node = node.entries.get(part)
        return node

    def named(self) -> set[int]:
        """The identities of all files that have a name."""
        found: set[int] = set()
        rest: list[Inode | Directory] = [self.root]
        while rest:
            node = rest.pop()
            if isinstance(node, Directory):
                rest += node.entries.values()
            else:
                found.add(id(node))
        return found

    def parent(self, path: str) -> tuple[Directory, str]:
        parts = _parts(path)
        node: Inode | Directory | None = self.root
        for part in parts[:-1]:
            node = node.entries.get(part) if isinstance(node, Directory) else None
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node, parts[-1]

    def change_names(self, *sets: tuple[Directory, str, Inode | Directory | None]) -> None:
        for directory, name, node in sets:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self.name_changes.append(NameChange(list(sets)))

    def sync_names(self, directory: Directory) -> None:
        waiting = []
        for change in self.name_changes:
            if change.touches(directory):
                change.apply()
            else:
                waiting.append(change)
        self.name_changes = waiting


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in posixpath.normpath(path).split("/") if part and part != ".")


class SimFiles:
    """The Files seam of one process."""

    def __init__(self, disk: Disk, process: Process | None) -> None:
        self._disk = disk
        self._process = process
        self.die_at_change: int | None = None
        self.power_at_change = False
        self.changes = 0
        self._handles: weakref.WeakSet[SimFile] = weakref.WeakSet()  # whoever is let go of closes by itself

    def open_handles(self) -> list[SimFile]:
        return sorted((file for file in self._handles if not file.is_closed), key=lambda file: file.path)

    def die_in_changes(self, changes: int, *, power: bool) -> None:
        self.die_at_change = self.changes + max(1, changes)
        self.power_at_change = power

    # Files --------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._before("open", path)
        node = self._disk.lookup(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            directory, name = self._disk.parent(path)
            self._before("create", path)
            node = Inode(mtime_ms=self._disk.now_ms())
            self._disk.change_names((directory, name, node))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return SimFile(self, node, path)

    def read(self, path: str) -> bytes:
        self._before("read", path)
        return bytes(self._file(path).data)

    def exists(self, path: str) -> bool:
        self._before("stat", path)
        return self._disk.lookup(path) is not None

    def size(self, path: str) -> int:
        self._before("stat", path)
        return len(self._file(path).data)

    def listdir(self, path: str) -> list[str]:
        self._before("stat", path)
        return sorted(self._directory(path).entries)

    def makedirs(self, path: str) -> None:
        if isinstance(self._disk.lookup(path), Directory):
            self._before("stat", path)
            return
        self._before("makedirs", path)
        directory = self._disk.root
        for part in _parts(path):
            child = directory.entries.get(part)
            if child is None:
                child = Directory(directory.volume)
                self._disk.change_names((directory, part, child))
            if isinstance(child, Inode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            directory = child

    def rename(self, src: str, dst: str) -> None:
        src_dir, src_name = self._disk.parent(src)
        dst_dir, dst_name = self._disk.parent(dst)
        node = src_dir.entries.get(src_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src)
        replaced = dst_dir.entries.get(dst_name)
        if isinstance(replaced, Directory) and replaced.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), dst)
        self._before("rename", dst)
        self._disk.change_names((src_dir, src_name, None), (dst_dir, dst_name, node))

    def unlink(self, path: str) -> None:
        node = self._disk.lookup(path)
        self._before("unlink", path)
        if node is None:
            return
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        directory, name = self._disk.parent(path)
        self._disk.change_names((directory, name, None))

    def rmtree(self, path: str) -> None:
        node = self._disk.lookup(path)
        self._before("rmtree", path)
        if isinstance(node, Directory):
            for name in sorted(node.entries):
                child = f"{path}/{name}"
                if isinstance(node.entries[name], Directory):
                    self.rmtree(child)
                else:
                    self.unlink(child)
        if node is not None:
            directory, name = self._disk.parent(path)
            self._disk.change_names((directory, name, None))

    def fsync_dir(self, path: str) -> None:
        self._before("fsync_dir", path)
        self._disk.sync_names(self._directory(path))

    def free_bytes(self, path: str) -> tuple[int, int]:
        self._before("stat", path)
        return self._disk.capacity, max(0, self._disk.capacity - self._disk.used)

    def mtime_ms(self, path: str) -> int:
        self._before("stat", path)
        return self._file(path).mtime_ms

    def lock(self, path: str) -> SimFile:
        handle = self.open(path, create=True)
        holder = handle.inode.locked_by
        if holder is not None and holder.alive:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        handle.inode.locked_by = self._process
        handle.holds_lock = True
        return handle

    # below the calls ----------------------------------------------------------------------------------------

    def _before(self, operation: str, path: str) -> None:
        """The moment in which a call may find its process dead, kill it, or fail."""
        if self._process is None:
            return
        if not self._process.alive:
            raise Killed(self._process.name)
        if operation in CHANGES:
            self.changes += 1
            self._disk.operations += 1
            self._disk.trace("disk", f"{self._process.name} {operation} {path}")
            if self.changes == self.die_at_change:
                self._process.die(power=self.power_at_change)
                raise Killed(self._process.name)
        if self._disk.armed:
            error = self._disk.take_error(operation, path)
            if error is not None:
                raise error

    def _write(self, inode: Inode, path: str, data: bytes, offset: int) -> None:
        """A write that is cut short by a kill, an error or a full disk leaves a prefix behind."""
        inode.mtime_ms = self._disk.now_ms()
        try:
            if self._disk.used + len(data) > self._disk.capacity:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if self._process is not None and not self._process.alive:
                raise Killed(self._process.name)
            if self._process is not None and self.changes + 1 == self.die_at_change:
                # The bytes reach the page cache before the process learns that it is dead.
                self._put(inode, data[: self._disk.rng.randrange(len(data) + 1)], offset)
            self._before("write", path)
        except OSError:
            self._put(inode, data[: self._disk.rng.randrange(len(data) + 1)], offset)
            raise
        self._put(inode, data, offset)

    def _put(self, inode: Inode, data: bytes, offset: int) -> None:
        if data:
            self._disk.used += max(0, offset + len(data) - len(inode.data))
            inode.write(data, offset)

    def _truncate(self, inode: Inode, path: str, size: int) -> None:
        self._before("truncate", path)
        self._disk.used += size - len(inode.data)
        inode.mtime_ms = self._disk.now_ms()
        inode.truncate(size)

    def _fsync(self, inode: Inode, path: str) -> None:
        try:
            self._before("fsync", path)
        except OSError:
            inode.pending.clear()  # the pages are clean now, and not on the platters
            inode.doubtful = True
            raise
        inode.sync()

    def _file(self, path: str) -> Inode:
        node = self._disk.lookup(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._disk.lookup(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node


class SimFile:
    """One open file. It keeps its bytes alive after an unlink, as a descriptor does."""

    def __init__(self, files: SimFiles, inode: Inode, path: str) -> None:
        self.path = path
        self.inode = inode
        self.holds_lock = False
        self._files = files
        self.is_closed = False
        files._handles.add(self)

    def fileno(self) -> int:
        return -1

    def writev(self, buffers: Sequence[Any]) -> int:
        self._check_open()
        data = b"".join(buffers)
        self._files._write(self.inode, self.path, data, len(self.inode.data))
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        self._check_open()
        self._files._before("read", self.path)
        return bytes(self.inode.data[offset : offset + size])

    def preadv(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: Any, offset: int) -> int:
        self._check_open()
        self._files._write(self.inode, self.path, bytes(data), offset)
        return len(data)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._files._truncate(self.inode, self.path, size)

    def size(self) -> int:
        self._check_open()
        self._files._before("stat", self.path)
        return len(self.inode.data)

    def fsync(self) -> None:
        self._check_open()
        self._files._fsync(self.inode, self.path)

    def close(self) -> None:
        self.is_closed = True
        if self.holds_lock:
            self.inode.locked_by = None
            self.holds_lock = False

    def _check_open(self) -> None:
        if self.is_closed:
            raise ValueError(f"I/O operation on closed file {self.path}")

    def __repr__(self) -> str:
        return f"<SimFile {self.path} {len(self.inode.data)} bytes>"
