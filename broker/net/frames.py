"""Memory for requests that are not whole yet, or wait: who may go on reading, and who loses.

Owns: the bytes that each connection has of such requests, reservations for them, and the choice of the one
that goes. Does not own: reading, closing, or time (server), which asks and tells once a second. Invariant:
what is counted is the sum over the connections, and nothing once all are gone; a request that has its
reservation can be read to its end, so that no two wait for each other.

The rule. Each connection has a buffer of 16 KiB anyway, and a request that fits there is always read: small
requests of everybody go on, whatever others do. A larger one reserves its whole size once 16 KiB of it have
come, in one of three pools: requests of up to about 1 MiB, which is what stock clients send at most, larger
ones, and those of brokers, which clients never have to make room for. Where the reservation does not fit,
the connection is not read until it does. One address (the first 64 bits of an IPv6 one, for a host has all
that follow) has half of a pool at most; the addresses that wait have their turns one after the other, and
so have the connections of each. Many honest clients behind one address therefore share its half, and wait
for each other as long as it takes to read a request.

A request that waits never loses its connection, nor does a slow one as long as nobody waits. Once somebody
does, the one in the way loses which has made no progress for `QUIET_S` seconds: that is, fewer bytes of its
request came in that time than it takes to be whole within `WHOLE_S` seconds, or than `PROGRESS_BYTES` where
that is more; a byte now and then is none. Of several the one goes first which holds most, of the address
that holds most. A sender on a slow link, 100 MB at 2 MB/s, keeps its place in any case; one that is slower
keeps it unless others wait. Requests which are whole and wait behind an unanswered one count in the same way;
those that the broker works on count too, and their time does not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv6Address
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

QUIET_S: Final = 5
WHOLE_S: Final = 60
PROGRESS_BYTES: Final = 64 << 10
FREE_BYTES: Final = 16 << 10
"""What a connection may hold without a reservation: the buffer of an idle one."""
_SMALL_BYTES: Final = (1 << 20) + (64 << 10)
"""A Java producer sends 1 MiB at most (max.request.size), librdkafka 1 MB and its header."""


class Client(Protocol):
    """Whose bytes are counted."""

    @property
    def address(self) -> str: ...
    @property
    def is_peer(self) -> bool: ...
    @property
    def is_at_work(self) -> bool:
        """Whether the broker works on its request: then it is not the client that makes no progress."""


ClientT = TypeVar("ClientT", bound=Client)


def address_of(host: str) -> str:
    """Return what counts as one address: all that one host may call its own."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else f"{address.packed[:8].hex()}/64"


class Reservation:
    """What one connection has of a pool."""

    __slots__ = ("address", "gained", "quiet_s", "size")

    def __init__(self, address: str, size: int) -> None:
        self.address = address
        self.size = size
        self.gained = 0
        """Bytes that came since it was last seen to make progress."""
        self.quiet_s = 0

    def gain(self, count: int) -> None:
        self.gained += count
        if self.gained >= max(self.size * QUIET_S // WHOLE_S, min(PROGRESS_BYTES, self.size)):
            self.gained = self.quiet_s = 0


class Pool(Generic[ClientT]):
    """Reservations up to a bound, and those that wait for one.

    One reservation may exceed the bound, and the share of its address, if it is the only one.
    """

    def __init__(self, bound: int, share: int) -> None:
        self.bound = bound
        self.share = share
        self.used = 0
        self.reserved: dict[ClientT, Reservation] = {}
        self.waiting: dict[str, dict[ClientT, int]] = {}
        """Sizes by address, in the order in which they are served."""
        self._by_address: Counter[str] = Counter()

    def __repr__(self) -> str:
        waiting = sum(map(len, self.waiting.values()))
        return f"<Pool {self.used} of {self.bound} bytes, {len(self.reserved)} hold, {waiting} wait>"

    def take(self, client: ClientT, address: str, size: int) -> None:
        """Reserve what is in memory already, whether or not it fits."""
        self.reserved[client] = Reservation(address, size)
        self.used += size
        self._by_address[address] += size

    def ask(self, client: ClientT, address: str, size: int) -> bool:
        """Reserve if it fits and nobody has to go first; wait otherwise."""
        if not self.waiting and self._fits(address, size):
            self.take(client, address, size)
            return True
        self.waiting.setdefault(address, {})[client] = size
        return False

    def shrink(self, client: ClientT, size: int) -> None:
        """Keep less of what is reserved: what it had more is done with, which is progress."""
        reservation = self.reserved[client]
        freed = reservation.size - size
        self.used -= freed
        self._by_address[reservation.address] -= freed
        reservation.size = size
        reservation.gained = reservation.quiet_s = 0

    def give_back(self, client: ClientT) -> None:
        reservation = self.reserved.pop(client, None)
        if reservation is None:
            return
        self.used -= reservation.size
        self._by_address[reservation.address] -= reservation.size
        if not self._by_address[reservation.address]:
            del self._by_address[reservation.address]

    def stop_waiting(self, client: ClientT, address: str) -> None:
        asked = self.waiting.get(address)
        if asked is not None and asked.pop(client, None) is not None and not asked:
            del self.waiting[address]

    def admit(self) -> list[ClientT]:
        """Reserve for those that wait as far as it fits; return them."""
        admitted: list[ClientT] = []
        is_full = False
        while self.waiting and not is_full:
            before = len(admitted)
            for address, asked in list(self.waiting.items()):
                client, size = next(iter(asked.items()))
                if not self._is_within_share(address, size):
                    continue
                if not self._fits(address, size):
                    # who came first is not passed by those that ask for less
                    is_full = True
                    break
                self.stop_waiting(client, address)
                if address in self.waiting:
                    # the others of that address come after all other addresses
                    self.waiting[address] = self.waiting.pop(address)
                self.take(client, address, size)
                admitted.append(client)
            if len(admitted) == before:
                break
        return admitted

    def losers(self) -> list[ClientT]:
        """Return those in the way of others which made no progress, as many as those who wait need room."""
        quiet: dict[str, list[tuple[int, ClientT]]] = {}
        for client, each in self.reserved.items():
            if each.quiet_s > QUIET_S:
                quiet.setdefault(each.address, []).append((each.size, client))
        losers: dict[ClientT, None] = {}
        wanted = 0
        for address, asked in self.waiting.items():
            size = sum(asked.values())
            if self._is_within_share(address, next(iter(asked.values()))):
                wanted += size
            else:
                over = self._by_address[address] + size - self.share
                losers.update(_first(_descending(quiet.get(address, ())), over))
        if wanted:
            most = sorted(quiet, key=self._by_address.__getitem__, reverse=True)
            rows = [row for address in most for row in _descending(quiet[address])]
            losers.update(_first(rows, self.used + wanted - self.bound))
        return list(losers)

    def tick(self) -> None:
        """Count a second."""
        for client, reservation in self.reserved.items():
            reservation.quiet_s = 0 if client.is_at_work else reservation.quiet_s + 1

    def _is_within_share(self, address: str, size: int) -> bool:
        held = self._by_address.get(address, 0)
        return not held or held + size <= self.share

    def _fits(self, address: str, size: int) -> bool:
        return not self.used or (self.used + size <= self.bound and self._is_within_share(address, size))


def _descending(rows: Iterable[tuple[int, ClientT]]) -> list[tuple[int, ClientT]]:
    return sorted(rows, key=itemgetter(0), reverse=True)


def _first(rows: Iterable[tuple[int, ClientT]], wanted: int) -> dict[ClientT, None]:
    """Return the first that free so many bytes together."""
    taken: dict[ClientT, None] = {}
    for size, client in rows:
        if wanted <= 0:
            break
        taken[client] = None
        wanted -= size
    return taken


class FrameAccount(Generic[ClientT]):
    """All connections' requests that are not whole or wait."""

    def __init__(self, bound: int) -> None:
        self.bytes = 0
        """Bytes that are in memory."""
        self.closed = 0
        """Connections that lost."""
        self.has_changed = False
        """Whether somebody who waits may have its turn now: `admit` tells."""
        self.small_max = max(FREE_BYTES, min(_SMALL_BYTES, bound // 64))
        small = bound * 3 // 8
        large = bound // 2
        peers = bound - small - large
        self._small: Pool[ClientT] = Pool(small, small // 2)
        self._large: Pool[ClientT] = Pool(large, large // 2)
        self._peers: Pool[ClientT] = Pool(peers, peers // 2)
        self._pools = (self._small, self._large, self._peers)
        self._bytes_of: dict[ClientT, int] = {}
        self._pool_of: dict[ClientT, Pool[ClientT]] = {}

    def __repr__(self) -> str:
        return f"<FrameAccount {self.bytes} bytes, {self._pools}>"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is reserved or waited for."""
        return not self._pool_of

    @property
    def waiting(self) -> int:
        """Connections that are not read until there is room."""
        return sum(len(asked) for pool in self._pools for asked in pool.waiting.values())

    def holders(self) -> Iterable[ClientT]:
        """Those which hold a reservation or wait for one."""
        return self._pool_of

    def hold(self, client: ClientT, size: int, *, open_frame: int) -> bool:
        """Say that a connection holds `size` bytes, and `open_frame` once the frame is whole that is read on,
        or 0 if none is. Return whether it may read on."""
        before = self._bytes_of.get(client, 0)
        self.bytes += size - before
        if size:
            self._bytes_of[client] = size
        elif before:
            del self._bytes_of[client]
        pool = self._pool_of.get(client)
        if size < FREE_BYTES:
            if pool is not None:
                self._release(client, pool)
            return True
        need = max(size, open_frame)
        if pool is not None:
            reservation = pool.reserved.get(client)
            if reservation is not None and need <= reservation.size:
                if need < reservation.size:
                    # a request before it is done with: nobody else has a claim to the rest
                    pool.shrink(client, need)
                    self.has_changed = self.has_changed or bool(pool.waiting)
                elif size > before:
                    reservation.gain(size - before)
                return True
            self._release(client, pool)
        pool = self._pool_for(client, need)
        self._pool_of[client] = pool
        if not open_frame:
            pool.take(client, client.address, need)
            return True
        if pool.ask(client, client.address, need):
            return True
        self.has_changed = True
        return False

    def forget(self, client: ClientT) -> None:
        """The connection is gone."""
        self.bytes -= self._bytes_of.pop(client, 0)
        pool = self._pool_of.get(client)
        if pool is not None:
            self._release(client, pool)

    def admit(self) -> list[ClientT]:
        """Return those which waited and may read on now."""
        self.has_changed = False
        return [client for pool in self._pools if pool.waiting for client in pool.admit()]

    def losers(self) -> list[ClientT]:
        """Return those which lose, with what they hold, because others wait."""
        found = [client for pool in self._pools if pool.waiting for client in pool.losers()]
        self.closed += len(found)
        return found

    def tick(self) -> None:
        for pool in self._pools:
            pool.tick()

    def _pool_for(self, client: ClientT, need: int) -> Pool[ClientT]:
        if client.is_peer:
            return self._peers
        return self._small if need <= self.small_max else self._large

    def _release(self, client: ClientT, pool: Pool[ClientT]) -> None:
        del self._pool_of[client]
        pool.give_back(client)
        pool.stop_waiting(client, client.address)
        if pool.waiting:
            self.has_changed = True
