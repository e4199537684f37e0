"""What this broker knows of one partition of the metadata topic, and whether that is enough to act on.

Owns: the fold and up to where it is read, the barrier, and who waits for either. Does not own: where the rows
come from (readers, or the machine where this broker leads the partition), which partitions a broker needs.

Invariants: what is caught up was read at least up to the end that the leader named after it was asked for,
and the leader has shown since that what was read is what it has; a fold that is read anew takes the place of
the old one only once it is caught up itself.

The barrier counts questions. Whoever needs it anew (`renew`) is answered by the next question that is put,
never by one that is under way: its answer may be older than the need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.coordinators.tier.machine import TierMachine
from remote.cold.events import Tombstone
from remote.cold.fold import TierFold
from remote.cold.segments import TieredPartition, TierEvent

UNKNOWN_EPOCH: Final = -1


class View:
    def __init__(self, index: int, tell: Callable[[TieredPartition], None]) -> None:
        """`tell` is called for a followed partition whose fold has changed, or that is caught up now."""
        self.index = index
        self.fold = TierFold()
        """What is known so far."""
        self.position = 0
        """Past the last row that was read."""
        self.last_epoch = UNKNOWN_EPOCH
        """The leader epoch of that row in the metadata topic."""
        self.generation = 0
        """Goes up when rows asked for before must not be taken any more."""
        self.at_end_s = 0.0
        """When it was last read up to where the leader let it, or begun."""
        self.needs_start = False
        """Whether to read anew, from wherever the log begins."""
        self._tell = tell
        self._is_led = False
        """Whether what is known comes from a machine of this broker."""
        self._anew: TierFold | None = None
        self._needs: dict[TieredPartition, int] = {}
        """The question each followed partition needs answered."""
        self._waiting: dict[TieredPartition, None] = {}
        """Those whose question is not answered: there may be thousands more, and each has its role change."""
        self._need_most = 0
        self._borrowers = 0
        self._asked = 0
        self._passed = 0
        self._named_end: int | None = None
        self._moved = asyncio.Event()

    def __repr__(self) -> str:
        return f"<View {self.index} at {self.position}, {len(self._needs)} followed>"

    # --- who needs it ---

    @property
    def is_needed(self) -> bool:
        return bool(self._needs) or self._borrowers > 0

    @property
    def followed(self) -> int:
        return len(self._needs)

    def renew(self, partition: TieredPartition) -> None:
        """Follow a partition, caught up only after a question that is still to be put."""
        self._needs[partition] = self._need_most = self._asked + 1
        self._waiting[partition] = None

    def unfollow(self, partition: TieredPartition) -> None:
        self._needs.pop(partition, None)
        self._waiting.pop(partition, None)

    def borrow(self) -> None:
        """Have it read for a while, though nothing may be followed."""
        self._borrowers += 1

    def give_back(self) -> None:
        self._borrowers -= 1

    # --- the barrier ---

    @property
    def wants_end(self) -> bool:
        """Whether the leader must be asked where its log ends."""
        return self._named_end is None and (self._passed < self._need_most or self._anew is not None)

    @property
    def is_unproven(self) -> bool:
        """Whether all up to the end that was named is here, if it is what the leader has."""
        return self._named_end is not None and self.position >= self._named_end

    def is_caught_up(self, partition: TieredPartition) -> bool:
        need = self._needs.get(partition)
        return need is not None and need <= self._passed

    def ask(self) -> None:
        """Note that the question goes out now."""
        self._asked += 1

    def named(self, end: int) -> None:
        """Take the answer to the last question."""
        self._named_end = end

    def agreed(self) -> None:
        """Note that the leader goes on from what was read. An unclean one may have lost some of that, so
        that its end alone proves nothing."""
        if self.is_unproven:
            self._pass()

    def confirm(self, partition: TieredPartition) -> None:
        """Let one partition pass the barrier: this broker is the one to be asked."""
        self._needs[partition] = self._passed
        self._waiting.pop(partition, None)
        self._move()
        self._tell(partition)

    def _pass(self) -> None:
        self._passed = self._asked
        self._named_end = None
        anew, self._anew = self._anew, None
        passed = [each for each in self._waiting if self._needs[each] <= self._passed]
        for partition in passed:
            del self._waiting[partition]
        if anew is not None:
            self.fold, passed = anew, list(self._needs)
        self._move()
        for partition in passed:
            self._tell(partition)

    async def wait_caught_up(self, partition: TieredPartition) -> None:
        while not self.is_caught_up(partition):
            await self._moved.wait()

    async def wait_read(self, end: int) -> None:
        """Return when all below `end` is in the fold."""
        while self._anew is not None or self.position < end:
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    # --- rows from the leader ---

    def take(self, change: TierEvent | Tombstone, partition: TieredPartition) -> None:
        if self._anew is not None:
            self._anew.apply(change)
            return
        self.fold.apply(change)
        if partition in self._needs:
            self._tell(partition)

    def read_to(self, position: int, leader_epoch: int) -> None:
        self.position, self.last_epoch = position, leader_epoch
        self._move()

    def start_over(self, position: int) -> None:
        """Read anew from there; what is known so far counts on until that is caught up."""
        self.generation += 1
        self._named_end = None
        self._anew = TierFold()
        self._passed = 0
        self.position, self.last_epoch = position, UNKNOWN_EPOCH
        self.needs_start = False

    def begin_reading(self, epoch_here: int | None) -> None:
        """Go on with another leader, or another epoch of it, and let go of what the last one was asked.

        `epoch_here` is what the log of this broker says of the last row, None if it has none: what was led
        here goes on only with a row that the new leader can be shown."""
        self.generation += 1
        self._named_end = None
        if self._is_led:
            self._is_led = False
            self.needs_start = epoch_here is None and self.position > 0
            self.last_epoch = UNKNOWN_EPOCH if epoch_here is None else epoch_here
            self.at_end_s = asyncio.get_running_loop().time()
        if self.position == 0:
            self.at_end_s = asyncio.get_running_loop().time()

    # --- rows of this broker's own machine ---

    def lead(self, machine: TierMachine) -> None:
        """Go by what a machine has loaded, which is all there is."""
        self.generation += 1
        self._is_led = True
        self.fold, self._anew = machine.fold, None
        self.position, self.last_epoch = machine.end, UNKNOWN_EPOCH
        self.needs_start = False
        self._named_end = None
        self._asked += 1
        self._passed = self._asked
        self._waiting.clear()
        self._move()
        for partition in list(self._needs):
            self._tell(partition)

    def applied(self, machine: TierMachine, partition: TieredPartition) -> None:
        if machine.fold is not self.fold:
            return
        self.position = machine.end
        self._move()
        if partition in self._needs:
            self._tell(partition)
