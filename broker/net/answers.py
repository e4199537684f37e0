"""Memory for answers that clients have not taken, and which client loses when it is too much.

Owns: how many bytes of answers each connection has in memory, and the choice of those that go. Does not own:
measuring (connection) and closing (server). Invariant: what is counted is the sum over the connections, and
nothing once all are gone.

Counted is what a connection has from `COUNTED_BYTES` on: fewer lie in the transport of any connection that
reads slowly. What leaves straight from a file is not in memory.

The rule. A connection with unsent answers handles no more requests (connection), so each has about one answer
that nobody takes; this bounds all of them together. Over `BOUND_BYTES` in all, or `SHARE_BYTES` of one
address, connections go at once until it is less, of the address in question or of the one that has most:
first those that took nothing in the last second, and of these the one that has most. From half of either on,
a client has `QUIET_S` seconds to take `PROGRESS_BYTES`; those go which have a large answer, and not those
with little, such as a consumer whose application is busy. A connection that is being closed has that time
too, whatever the others hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Generic

from broker.net.frames import ClientT

BOUND_BYTES: Final = 256 << 20
SHARE_BYTES: Final = 128 << 20
COUNTED_BYTES: Final = 64 << 10
LARGE_BYTES: Final = 1 << 20
PROGRESS_BYTES: Final = 64 << 10
QUIET_S: Final = 5


class Unread:
    """What one connection has not taken."""

    __slots__ = ("address", "quiet_s", "size", "taken")

    def __init__(self, address: str) -> None:
        self.address = address
        self.size = 0
        self.taken = 0
        """Bytes since it was last seen to make progress."""
        self.quiet_s = 0


class AnswerAccount(Generic[ClientT]):
    """The answers of all connections that are not taken."""

    def __init__(self, bound: int = BOUND_BYTES, share: int = SHARE_BYTES) -> None:
        self.bytes = 0
        self.closed = 0
        """Connections that lost."""
        self._bound = bound
        self._share = share
        self._unread: dict[ClientT, Unread] = {}
        self._by_address: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<AnswerAccount {self.bytes} bytes of {len(self._unread)} connections>"

    @property
    def is_idle(self) -> bool:
        return not self._unread

    @property
    def is_full(self) -> bool:
        """Whether somebody must go at once."""
        return self.bytes > self._bound or (
            self.bytes > self._share and max(self._by_address.values()) > self._share
        )

    def holders(self) -> Iterable[ClientT]:
        return self._unread

    def note(self, client: ClientT, size: int) -> None:
        """Say that so many bytes of answers are not taken by now."""
        if size < COUNTED_BYTES:
            self.forget(client)
            return
        unread = self._unread.get(client)
        if unread is None:
            unread = self._unread[client] = Unread(client.address)
        change = size - unread.size
        unread.size = size
        self.bytes += change
        self._by_address[unread.address] += change
        if change < 0:
            unread.taken -= change
            if unread.taken >= PROGRESS_BYTES:
                unread.taken = unread.quiet_s = 0

    def forget(self, client: ClientT) -> None:
        unread = self._unread.pop(client, None)
        if unread is None:
            return
        self.bytes -= unread.size
        self._by_address[unread.address] -= unread.size
        if not self._by_address[unread.address]:
            del self._by_address[unread.address]

    def tick(self) -> None:
        """Count a second."""
        for unread in self._unread.values():
            unread.quiet_s += 1

    def losers(self) -> list[ClientT]:
        """Return those that must go at once. Whoever is the only one of its address may exceed its share."""
        found: dict[ClientT, int] = {}
        for address, held in self._by_address.items():
            if held > self._share:
                rows = [row for row in self._unread.items() if row[1].address == address]
                if len(rows) > 1:
                    self._choose(found, rows, held - self._share)
        over = self.bytes - sum(found.values()) - self._bound
        most = self._by_address.most_common()
        while over > 0 and most:
            address, _ = most.pop(0)
            rows = [row for row in self._unread.items() if row[1].address == address and row[0] not in found]
            over -= self._choose(found, rows, over)
        self.closed += len(found)
        return list(found)

    def quiet(self) -> list[ClientT]:
        """Return those with a large answer whose time to take some of it is over."""
        is_high = self.bytes > self._bound // 2
        found = [
            client
            for client, each in self._unread.items()
            if each.quiet_s > QUIET_S
            and each.size >= LARGE_BYTES
            and (is_high or self._by_address[each.address] > self._share // 2)
        ]
        self.closed += len(found)
        return found

    def is_quiet(self, client: ClientT) -> bool:
        """Return whether it has taken next to nothing for so long."""
        unread = self._unread.get(client)
        return unread is not None and unread.quiet_s > QUIET_S

    def _choose(self, found: dict[ClientT, int], rows: list[tuple[ClientT, Unread]], over: int) -> int:
        """Add those that free so many bytes to `found`; return how many they free."""
        freed = 0
        for client, each in sorted(rows, key=lambda row: (row[1].quiet_s > 0, row[1].size), reverse=True):
            if freed >= over:
                break
            found[client] = each.size
            freed += each.size
        return freed
