"""The file seam: everything the log layer asks of a disk, and the real disk.

Owns: opening, appending, reading, renaming, locking, syncing. Does not own: what the bytes mean, or when
to sync. Invariant: a `File` stays readable until its last reference goes, even after its path was renamed
or removed, so a reader in flight never sees a closed or recycled descriptor. `writev` either appends every
byte or raises.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Buffer = bytes | bytearray | memoryview

IOV_MAX = 1000
"""Linux refuses more than 1024 pieces in one call."""


T = TypeVar("T")


def is_scarcity(error: OSError) -> bool:
    """No descriptor was left for a file: nothing happened to any disk, and later there may be one again."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class File(Protocol):
    """One open file."""

    path: str

    def fileno(self) -> int:
        """The descriptor, or -1 where there is none (simulation): then nothing may use sendfile."""

    def writev(self, buffers: Sequence[Buffer]) -> int:
        """Append all buffers at the end; loops over short writes; the number of bytes written."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def preadv(self, buffer: memoryview, offset: int) -> int: ...

    def pwrite(self, data: Buffer, offset: int) -> int: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def fsync(self) -> None:
        """Make the content durable. After an OSError the content's fate is unknown: never trust a later
        call."""

    def close(self) -> None:
        """Idempotent."""


class Files(Protocol):
    """A file system. Every method raises OSError as `os` does."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless `create`."""

    def read(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted."""

    def makedirs(self, path: str) -> None: ...

    def rename(self, src: str, dst: str) -> None:
        """Atomic, replaces a file; also moves directories."""

    def unlink(self, path: str) -> None:
        """A missing file is fine."""

    def rmtree(self, path: str) -> None:
        """A missing directory is fine."""

    def fsync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable)."""

    def mtime_ms(self, path: str) -> int: ...

    def lock(self, path: str) -> File:
        """Exclusive until closed; BlockingIOError when another process holds it."""


def write_whole(files: Files, path: str, data: bytes) -> None:
    """The file appears whole and durable, or not at all."""
    file = _write_aside(files, path, data)
    file.fsync()
    file.close()
    files.rename(path + ".tmp", path)
    files.fsync_dir(os.path.dirname(path))


def make_directory(files: Files, path: str) -> None:
    """`path` and what is missing above it, with names that survive a power cut."""
    missing = []
    above = path
    while above and not files.exists(above):
        missing.append(above)
        above = os.path.dirname(above)
    files.makedirs(path)
    for made in reversed(missing):
        files.fsync_dir(os.path.dirname(made) or ".")


def write_replacing(files: Files, path: str, data: bytes) -> None:
    """The file appears whole to every process, but a power cut may forget it: for what recovery can
    rebuild."""
    _write_aside(files, path, data).close()
    files.rename(path + ".tmp", path)


def _write_aside(files: Files, path: str, data: bytes) -> File:
    aside = path + ".tmp"
    files.unlink(aside)
    file = files.open(aside, create=True)
    file.writev([data])
    return file


class DiskFile:
    """A file of this machine. Appends go through the descriptor's own position, kept at the end of the
    file."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        os.lseek(fd, 0, os.SEEK_END)

    def __repr__(self) -> str:
        return f"DiskFile({self.path!r}, fd={self._fd})"

    def fileno(self) -> int:
        return self._fd

    def writev(self, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        if len(buffers) > IOV_MAX:
            for at in range(0, len(buffers), IOV_MAX):
                self.writev(buffers[at : at + IOV_MAX])
            return total
        written = os.writev(self._fd, buffers)
        if written < total:
            self._write_rest(buffers, written)
        return total

    def _write_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        """Write what a short write left, piece by piece."""
        for buffer in buffers:
            if written >= len(buffer):
                written -= len(buffer)
                continue
            view = memoryview(buffer)[written:]
            written = 0
            while view:
                view = view[os.write(self._fd, view) :]

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        done = len(data)
        while done < size and (more := os.pread(self._fd, size - done, offset + done)):
            pieces.append(more)
            done += len(more)
        return b"".join(pieces)

    def preadv(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._fd, [buffer], offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], offset + done)
        os.lseek(self._fd, 0, os.SEEK_END)
        return done

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.lseek(self._fd, 0, os.SEEK_END)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fsync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _nothing() -> None:
    pass


class DiskFiles:
    """The disk of this machine: straight calls to `os`."""

    make_room: Callable[[], None] = staticmethod(_nothing)
    """Called, in whatever thread, when no descriptor is left: closes files that are open for later use only.
    """

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(path, self._with_room(lambda: os.open(path, flags, 0o644)))

    def _with_room(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            if not is_scarcity(error):
                raise
        self.make_room()
        return call()

    def read(self, path: str) -> bytes:
        with self._with_room(lambda: open(path, "rb", buffering=0)) as file:
            return file.readall()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def listdir(self, path: str) -> list[str]:
        with self._with_room(lambda: os.scandir(path)) as entries:
            return sorted(entry.name for entry in entries)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def rmtree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass

    def fsync_dir(self, path: str) -> None:
        fd = self._with_room(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> tuple[int, int]:
        disk = os.statvfs(path)
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> DiskFile:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file
