"""Sending answers that are too big to be joined or copied at once: in chunks, or straight from the file.

Owns: how the pieces of one big answer leave, and the second descriptor of the socket that sendfile needs.
Does not own: the order of answers, or what ends a connection (connection). Invariant: of what an answer has
in files at most `CHUNK` bytes are in memory besides what the transport holds; one connection sends `PUMP_MAX`
bytes from files at most, or `WRITTEN_MAX` in chunks, before the loop gets another turn, of one answer or of
many that follow each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from remote.cold.chunks import PinnedChunks
from storage.log import LogSlice

SENDFILE_MIN: Final = 256 * 1024
"""Below this a response is read and joined; one syscall is cheaper than three."""
SLICE_SENDFILE_MIN: Final = 64 * 1024
CHUNK: Final = 256 * 1024
PUMP_MAX: Final = 2 << 20
"""Bytes one connection may send from files before the loop gets another turn."""
WRITTEN_MAX: Final = 1 << 20
"""The same for chunks: each is joined and copied to the socket, and a client that reads as fast as this
writes would have all of an answer in one turn."""

Piece: TypeAlias = "bytes | memoryview | LogSlice"


class Bulk:
    """A response too big to be joined: bytes and log slices in order."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[bytes | LogSlice], size: int) -> None:
        self.pieces = pieces
        self.size = size

    @property
    def memory(self) -> int:
        """Bytes of it that are in memory."""
        return _memory(self.pieces)


def answer_of(pieces: list[bytes]) -> bytes | Bulk:
    """Return the answer that these are together, in one where it is small."""
    size = sum(map(len, pieces))
    return b"".join(pieces) if size <= CHUNK else Bulk([*pieces], size)


class BulkOwner(Protocol):
    """The connection that a big answer leaves by."""

    @property
    def is_writable(self) -> bool:
        """Whether it is open and its transport takes more."""

    def bulk_progressed(self) -> None: ...
    def bulk_ended(self) -> None: ...
    def bulk_failed(self, error: OSError) -> None: ...


class BulkSender:
    """Sends the big answers of one connection, one after the other."""

    __slots__ = (
        "_can_sendfile",
        "_is_pumping",
        "_loop",
        "_next",
        "_owner",
        "_pieces",
        "_sent",
        "_socket",
        "_transport",
    )

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, owner: BulkOwner
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._owner = owner
        self._pieces: deque[Piece] = deque()
        self._socket: socket.socket | None = None
        self._can_sendfile = True
        self._is_pumping = False
        self._sent = 0
        """Bytes in this turn of the loop, of all answers."""
        self._next: asyncio.Handle | None = None
        """Begins the next turn, if anything was sent in this one."""

    def __repr__(self) -> str:
        way = "chunks" if self._socket is None else "sendfile"
        return f"<BulkSender {len(self._pieces)} pieces left by {way}>"

    @property
    def memory(self) -> int:
        """Bytes in memory of what is left to send."""
        return _memory(self._pieces)

    def send(self, pieces: Iterable[Piece]) -> None:
        """Send from the file when the socket is real and nothing is queued before the answer."""
        self._pieces = deque(pieces)
        if (
            self._can_sendfile
            and self._transport.get_write_buffer_size() == 0
            and any(map(_is_for_sendfile, self._pieces))
            and self._open_socket()
        ):
            self._pump_file()
        else:
            self._close_socket()
            self._pump_chunks()

    def resume(self) -> None:
        """Go on because the transport takes more; what leaves by sendfile waits for the socket instead."""
        if self._socket is None:
            self._pump_chunks()

    def close(self) -> None:
        """Give up the descriptor of its own, and do nothing in later turns."""
        following, self._next = self._next, None
        if following is not None:
            following.cancel()
        self._close_socket()

    def _close_socket(self) -> None:
        out, self._socket = self._socket, None
        if out is not None:
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_writer(out.fileno())
            out.close()

    def _pump_chunks(self) -> None:
        """Write a chunk at a time, as fast as the transport takes them, and go on in the next turn of the
        loop when it takes all of them."""
        pieces, owner = self._pieces, self._owner
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while pieces and self._sent < WRITTEN_MAX and owner.is_writable:
                chunk = _next_chunk(pieces)
                self._count(len(chunk))
                self._transport.write(chunk)
        except OSError as error:
            owner.bulk_failed(error)
            return
        finally:
            self._is_pumping = False
        if not pieces:
            owner.bulk_ended()

    def _count(self, size: int) -> None:
        self._sent += size
        if self._next is None:
            self._next = self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next = None
        self._sent = 0
        if self._pieces and self._socket is None:
            self._owner.bulk_progressed()
            self._pump_chunks()

    def _pump_file(self) -> None:
        pieces, out = self._pieces, self._socket
        if out is None:
            return
        before = self._sent
        try:
            while pieces and self._sent < PUMP_MAX:
                self._count(_send_piece(out, pieces))
        except BlockingIOError:
            pass
        except OSError as error:
            self._owner.bulk_failed(error)
            return
        if self._sent > before:
            self._owner.bulk_progressed()
        if pieces:
            self._loop.add_writer(out.fileno(), self._pump_file)
            return
        self._loop.remove_writer(out.fileno())
        self._owner.bulk_ended()

    def _open_socket(self) -> bool:
        """Open our own descriptor of the transport's socket: the loop refuses writers on one it has a
        transport for.
        """
        if self._socket is not None:
            return True
        real = self._transport.get_extra_info("socket")
        encrypted = self._transport.get_extra_info("sslcontext") is not None
        if real is None or encrypted:
            self._can_sendfile = False
            return False
        self._socket = socket.socket(fileno=os.dup(real.fileno()))
        self._socket.setblocking(False)
        return True


def _memory(pieces: Iterable[Piece]) -> int:
    return sum(len(piece) for piece in pieces if not isinstance(piece, LogSlice))


def _is_for_sendfile(piece: Piece) -> bool:
    """Whether it can leave without a copy: from a file, or from the memory in which it is kept."""
    return (
        isinstance(piece, LogSlice)
        and piece.size >= SLICE_SENDFILE_MIN
        and (isinstance(piece.file, PinnedChunks) or piece.file.fileno() >= 0)
    )


def _next_chunk(pieces: deque[Piece]) -> bytes:
    """Take up to `CHUNK` bytes from the left, joined."""
    out: list[bytes | memoryview] = []
    room = CHUNK
    while pieces and room > 0:
        piece = pieces.popleft()
        if isinstance(piece, LogSlice):
            take = min(piece.size, room)
            data: bytes | memoryview = piece.file.pread(take, piece.position)
            if len(data) != take:
                raise OSError(f"{piece.file.path} ended early")
            if take < piece.size:
                pieces.appendleft(piece._replace(position=piece.position + take, size=piece.size - take))
        else:
            data = piece[:room]
            if len(piece) > room:
                pieces.appendleft(memoryview(piece)[room:])
        room -= len(data)
        out.append(data)
    return bytes(out[0]) if len(out) == 1 else b"".join(out)


def _send_piece(out: socket.socket, pieces: deque[Piece]) -> int:
    """Send as much of the first piece as the socket takes; return how much."""
    piece = pieces[0]
    if isinstance(piece, LogSlice):
        if isinstance(piece.file, PinnedChunks):
            return _send_view(out, pieces, piece, piece.file)
        descriptor = piece.file.fileno()
        if piece.size < SLICE_SENDFILE_MIN or descriptor < 0:
            piece = _read_piece(pieces, piece)
        else:
            sent = os.sendfile(out.fileno(), descriptor, piece.position, piece.size)
            if sent == 0:
                raise OSError(f"{piece.file.path} ended early")
            if sent < piece.size:
                pieces[0] = piece._replace(position=piece.position + sent, size=piece.size - sent)
            else:
                pieces.popleft()
            return sent
    sent = out.send(piece, socket.MSG_MORE if len(pieces) > 1 else 0)
    if sent < len(piece):
        pieces[0] = memoryview(piece)[sent:]
    else:
        pieces.popleft()
    return sent


def _send_view(out: socket.socket, pieces: deque[Piece], piece: LogSlice, chunks: PinnedChunks) -> int:
    """Send from memory; what is not sent yet stays pinned there."""
    view = chunks.view(piece.size, piece.position)
    is_last = len(pieces) == 1 and len(view) == piece.size
    sent = out.send(view, 0 if is_last else socket.MSG_MORE)
    if sent < piece.size:
        pieces[0] = piece._replace(position=piece.position + sent, size=piece.size - sent)
    else:
        pieces.popleft()
    return sent


def _read_piece(pieces: deque[Piece], piece: LogSlice) -> bytes:
    """Put the bytes of the first piece in its place: those of one chunk, if it is of a file in memory."""
    size = min(piece.size, CHUNK)
    data = piece.file.pread(size, piece.position)
    pieces[0] = data
    if size < piece.size:
        pieces.insert(1, piece._replace(position=piece.position + size, size=piece.size - size))
    return data
