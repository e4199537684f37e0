"""How far this node knows the metadata log: the image, the hash it ends with, and the slots it heard of last.

Owns: loading the log, taking in slots wherever they come from (read, pushed by a peer, won), winning the next
one. Does not own: which node may write when (cluster.py), the objects (metadata_log.py), what records do
(image.py).

Invariants: slots are applied in order, each once, and none that was collected and written again. Every await
is followed by a look at how far the image has come meanwhile, because slots arrive by three ways at once.
A slot is folded in turns, into a copy: the image goes from one slot to the next in one step, and what is
returned of it belongs to the caller before anyone else can apply the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from broker.control.image import Delta, Image, difference
from broker.control.metadata_log import GENESIS_HASH, BrokenLog, MetadataLog, ReadSlot, Survey
from broker.control.metadata_records import Record
from broker.turns import Turns
from protocol.stored.slots import hashing_slot

RECENT_SLOTS = 256
RECENT_MAX_BYTES = 8 << 20


class Ledger:
    def __init__(self, log: MetadataLog, now_s: Callable[[], float], turns: Turns) -> None:
        self.image = Image()
        self.last_hash = GENESIS_HASH
        self._log = log
        self._now_s = now_s
        self._turns = turns
        self._folding = asyncio.Lock()
        """Held while the image comes from one slot to another."""
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0
        self._put_since_s: float | None = None

    def __repr__(self) -> str:
        return f"Ledger({self.image!r}, {len(self._recent)} recent slots)"

    async def survey(self) -> Survey:
        return await self._log.survey()

    async def load(self, survey: Survey) -> None:
        """Start from the newest snapshot, or from nothing, and read on to the tail."""
        if survey.boundary and not survey.snapshots:
            raise BrokenLog(f"the metadata log was trimmed to slot {survey.boundary} and has no snapshot")
        if survey.snapshots:
            newest = survey.snapshots[-1]
            found = await self._log.snapshot(newest)
            if found is None:
                # This node slept, and there is a newer one.
                now = await self._log.survey()
                if not now.snapshots or now.snapshots[-1] <= newest:
                    raise BrokenLog(f"the snapshot of metadata slot {newest} is gone")
                await self.load(now)
                return
            await self._fold(newest, found.records)
            self.last_hash = found.hash
        await self.catch_up()
        if survey.slots and survey.slots[-1] > self.image.seq:
            await self.catch_up()  # which says so where the log contradicts itself
            raise BrokenLog(f"metadata slot {self.image.seq + 1} is missing")

    async def catch_up(self, *, is_routine: bool = False) -> list[Delta]:
        """Apply what others committed.

        The boundary is read after the slots: below it a slot may be one that a sleeper put where a collected
        one had been, and a node behind it starts again from the snapshot. A routine look that finds
        nothing costs one GET.
        """
        slots = await self._log.read_on(self.image.seq)
        if is_routine and not slots:
            return []
        boundary = await self._log.boundary()
        if boundary > self.image.seq:
            return await self._start_again()
        return await self.take(slot for slot in slots if slot.seq > boundary)

    async def take(self, slots: Iterable[ReadSlot]) -> list[Delta]:
        """Apply those that come next; what is known already, or lies behind a gap, is left out. Raise
        BrokenLog if the first one that comes next does not follow what is known."""
        deltas: list[Delta] = []
        async with self._folding:
            for slot in slots:
                if slot.seq != self.image.seq + 1:
                    continue
                if slot.previous_hash == self.last_hash:
                    deltas.append(await self._apply(slot))
                elif deltas:
                    break  # the caller has something to tell first; whoever takes it next is told
                else:
                    raise BrokenLog(f"metadata slot {slot.seq} does not follow the one before it")
        return deltas

    def since(self, seq: int, *, max_bytes: int) -> list[bytes]:
        """The objects of the slots that follow `seq`; none when they are too long ago to be at hand."""
        if not self._recent or self._recent[0][0] > seq + 1:
            return []
        found: list[bytes] = []
        for number, data in self._recent:
            if number > seq:
                max_bytes -= len(data)
                if found and max_bytes < 0:
                    break
                found.append(data)
        return found

    @property
    def unresolved_s(self) -> float:
        """How long the store has owed an answer to the slot that is being written."""
        return 0.0 if self._put_since_s is None else self._now_s() - self._put_since_s

    async def commit(
        self, records: Sequence[Record], encoded: Sequence[bytes], *, after: int, controller_epoch: int
    ) -> Delta | None:
        """Win the slot that follows `after` for these records and apply them; None when another writer has
        it.

        `controller_epoch` is the writer's own: after a newer bump what it wrote would be void.
        """
        if controller_epoch < self.image.controller_epoch or after != self.image.seq:
            return None
        seq = after + 1
        self._put_since_s = self._now_s()
        try:
            data = await self._log.win(
                seq,
                controller_epoch=controller_epoch,
                previous_hash=self.last_hash,
                records=encoded,
            )
        finally:
            self._put_since_s = None
        if data is None:
            return None
        its_hash = await self._turns.run(hashing_slot(data))
        async with self._folding:
            if self.image.seq >= seq:
                # A peer had read it and sent it back before the store answered us.
                return Delta(seq=seq) if (seq, data) in self._recent else None
            delta = await self._fold(seq, records)
            self._keep(seq, data, its_hash)
            return delta

    async def _apply(self, slot: ReadSlot) -> Delta:
        # Of a controller that was already replaced: the slot is used up and says nothing.
        is_void = slot.controller_epoch < self.image.controller_epoch
        delta = await self._fold(slot.seq, () if is_void else slot.records)
        self._keep(slot.seq, slot.data, slot.hash)
        return delta

    async def _fold(self, seq: int, records: Iterable[Record]) -> Delta:
        ahead = self.image.copy()
        delta = await self._turns.run(ahead.folding(seq, records))
        self.image.become(ahead)
        return delta

    def _keep(self, seq: int, data: bytes, its_hash: bytes) -> None:
        self.last_hash = its_hash
        recent = self._recent
        recent.append((seq, data))
        self._recent_bytes += len(data)
        while len(recent) > RECENT_SLOTS or (self._recent_bytes > RECENT_MAX_BYTES and len(recent) > 1):
            self._recent_bytes -= len(recent.popleft()[1])

    async def _start_again(self) -> list[Delta]:
        """Load anew, as the log was trimmed past this node, which slept; compare to find what it missed."""
        fresh = Ledger(self._log, self._now_s, self._turns)
        await fresh.load(await self._log.survey())
        async with self._folding:
            if fresh.image.seq <= self.image.seq:
                return []
            delta = await self._turns.run(difference(self.image, fresh.image))
            self.image.become(fresh.image)
            self.last_hash = fresh.last_hash
            self._recent, self._recent_bytes = fresh._recent, fresh._recent_bytes
            return [delta]
