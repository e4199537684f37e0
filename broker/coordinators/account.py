"""The memory that the machines of one coordinator take, and who may have how much of it.

Owns the bounds, over all machines of a broker and for each client host, and what is counted against them.
Does not own what a member of a group takes (`broker.coordinators.groups.membership`) or a transactional id
(`broker.coordinators.transactions.machine`), nor what is answered to whom it is refused.
Invariant: what a shard has counted goes when the shard goes. What the log names is counted without being
asked for, so that the bounds hold for what clients bring.
"""

from __future__ import annotations

from typing import Final

BYTES_MAX: Final = 128 << 20
HOST_BYTES_MAX: Final = 16 << 20
"""Of the clients of one host: the others always find room beside it."""


class MemoryAccount:
    """What all machines of one coordinator hold, by the host that brought it."""

    def __init__(self, *, bytes_max: int = BYTES_MAX, host_bytes_max: int = HOST_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._host_bytes_max = host_bytes_max
        self._hosts: dict[str, int] = {}
        self.held_bytes = 0
        self.refused = 0

    def __repr__(self) -> str:
        return f"<MemoryAccount {self.held_bytes} bytes of {len(self._hosts)} hosts>"

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def may_take(self, host: str, size: int) -> bool:
        """Whether so much more fits; if not, that is counted as refused."""
        held = self._hosts.get(host, 0)
        fits = self.held_bytes + size <= self._bytes_max and held + size <= self._host_bytes_max
        self.refused += not fits
        return fits

    def take(self, host: str, size: int) -> None:
        """Count so many more bytes; fewer, if `size` is negative."""
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

    def may_take(self, host: str, size: int) -> bool:
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
