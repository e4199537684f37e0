"""What went over the TCP connections between the brokers of one machine, as the kernel counted it.

Owns the question to the kernel (sock_diag, which `ss -tin` asks too), which connections are between brokers,
and their sums. Does not own the brokers.
Invariant: a connection is counted once, at the end of the broker that opened it; bytes are those of the
stream, in both directions, without the kernel's headers; what a connection had before the count began is not
in it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.console import Failure

EVERY_S = 0.5
"""A connection that is closed sooner after its last bytes is counted without them."""
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP, ESTABLISHED = 0x301, 1 << 1
DONE, ERROR = 3, 2
INFO = 2
HEADER = struct.Struct("=IHHII")
ASK = struct.Struct("=BBBxI48x")
DESTINATION_PORT = struct.Struct(">6xH")
INODE, MESSAGE_BYTES = struct.Struct("=68xI"), 72
ATTRIBUTE = struct.Struct("=HH")
MOVED = struct.Struct("=120xQQ")
"""tcpi_bytes_acked and tcpi_bytes_received in the kernel's tcp_info."""
RECEIVE_BYTES = 1 << 18
ANSWER_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of an open connection: the file it is, where it goes, and what it has moved."""

    inode: int
    to_port: int
    moved_bytes: int


def connections() -> list[Connection]:
    """Ask for all open TCP connections over IPv4."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_S_MAX)
        body = ASK.pack(socket.AF_INET, socket.IPPROTO_TCP, 1 << (INFO - 1), ESTABLISHED)
        kernel.sendall(HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
        found: list[Connection] = []
        while True:
            rows, is_last = parse(kernel.recv(RECEIVE_BYTES))
            found += rows
            if is_last:
                return found


def parse(answer: bytes) -> tuple[list[Connection], bool]:
    """Return the connections in one part of the answer, and whether it was the last part."""
    found: list[Connection] = []
    at = 0
    while at + HEADER.size <= len(answer):
        size, kind, *_ = HEADER.unpack_from(answer, at)
        if kind == DONE:
            return found, True
        if kind == ERROR or size < HEADER.size:
            raise Failure("the kernel does not tell of its connections")
        found.append(_connection(memoryview(answer)[at + HEADER.size : at + size]))
        at += _aligned(size)
    return found, False


def _connection(message: memoryview) -> Connection:
    (port,), (inode,) = DESTINATION_PORT.unpack_from(message), INODE.unpack_from(message)
    moved, at = 0, MESSAGE_BYTES
    while at + ATTRIBUTE.size <= len(message):
        size, kind = ATTRIBUTE.unpack_from(message, at)
        if kind == INFO:
            moved = sum(MOVED.unpack_from(message, at + ATTRIBUTE.size))
        at += max(_aligned(size), ATTRIBUTE.size)
    return Connection(inode, port, moved)


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def files_of(pid: int) -> Iterator[int]:
    """Each socket that a process has open."""
    with contextlib.suppress(FileNotFoundError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                name = os.readlink(path)
                if name.startswith("socket:["):
                    yield int(name[8:-1])


class Sum:
    """What connections have moved since the first look at any of them; those that are gone stay in it."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._latest: dict[int, int] = {}

    def see(self, moved: Mapping[int, int]) -> None:
        """Take note of what each connection has moved so far. At the first look all that came before is not
        counted."""
        if not self._latest:
            self._before = dict(moved)
        self._latest.update(moved)

    @property
    def moved_bytes(self) -> int:
        return sum(moved - self._before.get(each, 0) for each, moved in self._latest.items())


class BetweenBrokers:
    """Counts as long as the block lasts."""

    def __init__(self, pids: Sequence[int], ports: Sequence[int]) -> None:
        self._pids = pids
        self._ports = frozenset(ports)
        self._sum = Sum()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def so_far(self) -> int:
        """Look, and return what all of them have moved since the block began."""
        self._look()
        return self._sum.moved_bytes

    def _look(self) -> None:
        ours = {inode for pid in self._pids for inode in files_of(pid)}
        moved = {
            each.inode: each.moved_bytes
            for each in connections()
            if each.to_port in self._ports and each.inode in ours
        }
        with self._lock:
            self._sum.see(moved)

    def _go_on(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._look()
