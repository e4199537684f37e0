"""The memory that the machines of one coordinator take, and who may have how much of it.

Owns the bounds, over all machines of a broker and for each client host, and what is counted against them.
Does not own what a member of a group takes (`broker.coordinators.groups.membership`) or a transactional id
(`broker.coordinators.transactions.machine`), nor what is answered to whom it is refused.
Invariant: what a shard has counted goes when the shard goes. What the log names is counted without being
asked for, so that the bounds hold for what clients bring.

The last quarter is for hosts that hold little: however many hold all that one may, whoever comes finds room
for some groups. A host is what can call its addresses its own: all of an IPv6 network of 64 bits.
"""

from __future__ import annotations

from typing import Final

from broker.net.frames import address_of

BYTES_MAX: Final = 128 << 20
HOST_BYTES_MAX: Final = 16 << 20
"""Of the clients of one host: the others always find room beside it."""
LITTLE_BYTES: Final = 1 << 20
"""What a host may hold in all that gets something of the last quarter."""


class MemoryAccount:
    """What all machines of one coordinator hold, by the host that brought it."""

    def __init__(
        self,
        *,
        bytes_max: int = BYTES_MAX,
        host_bytes_max: int = HOST_BYTES_MAX,
        little_bytes: int = LITTLE_BYTES,
    ) -> None:
        self._bytes_max = bytes_max
        self._host_bytes_max = host_bytes_max
        self._little_bytes = little_bytes
        self._hosts: dict[str, int] = {}
        self.held_bytes = 0
        self.refused = 0

    def __repr__(self) -> str:
        return f"<MemoryAccount {self.held_bytes} bytes of {len(self._hosts)} hosts>"

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def may_take(self, host: str | None, size: int) -> bool:
        """Whether so much more fits; if not, that is counted as refused. `host` is None where nobody knows
        who brought what grows, because the log named it: those have no bound in common but that of all."""
        in_all = self.held_bytes + size
        fits = in_all <= self._bytes_max - self._bytes_max // 4
        if host is not None:
            would_hold = self._hosts.get(address_of(host.removeprefix("/")), 0) + size
            has_little = in_all <= self._bytes_max and would_hold <= self._little_bytes
            fits = would_hold <= self._host_bytes_max and (fits or has_little)
        self.refused += not fits
        return fits

    def take(self, host: str, size: int) -> None:
        """Count so many more bytes; fewer, if `size` is negative."""
        host = address_of(host.removeprefix("/"))
        held = self._hosts.get(host, 0) + size
        assert held >= 0, f"{host} gives back more than it took"
        if held:
            self._hosts[host] = held
        else:
            self._hosts.pop(host, None)
        self.held_bytes += size


class MemoryShare:
    """What one machine holds of the account."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._hosts: dict[str, int] = {}
        self._is_released = False

    def may_take(self, host: str | None, size: int) -> bool:
        return self._account.may_take(host, size)

    def take(self, host: str, size: int) -> None:
        if self._is_released:
            return
        held = self._hosts.get(host, 0) + size
        if held:
            self._hosts[host] = held
        else:
            self._hosts.pop(host, None)
        self._account.take(host, size)

    def release(self) -> None:
        """Give all of it back, because the shard is no longer used."""
        self._is_released = True
        for host, held in self._hosts.items():
            self._account.take(host, -held)
        self._hosts.clear()
