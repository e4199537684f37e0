"""The metadata log in the object store: numbered slots, each won by one conditional put.

Owns: committing a slot through lost replies, reading slots back, snapshots, the boundary and trimming. Does
not own: the keys (remote.keys), what the records mean, when a node may write (cluster.py), how objects are
kept.

Invariants: a slot is written at most once and by at most one winner; its hash chain is unbroken; nothing is
deleted before a boundary object says so, so a writer that slept through a deletion finds out before any node
hears of its slot.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from broker.control.image import Image
from broker.control.metadata_records import (
    Record,
    SnapshotTaken,
    decode_record,
    encode_record,
    encoding_records,
)
from broker.turns import Turns
from protocol.stored.schema import BadRecord
from protocol.stored.slots import Slot, decoding_slot, encoding_slot, hashing_slot
from protocol.work import Work, finish
from remote.keys import BOUNDARIES, META, SNAPSHOTS, boundary_key, parse_number, slot_key, snapshot_key
from remote.store.object_store import NoSuchObject, ObjectStore, PutResult, StoreError

T = TypeVar("T")

SNAPSHOT_EVERY_SLOTS = 1_000
SLOTS_KEPT_MS = 24 * 3_600_000
READ_AHEAD_SLOTS = 32
RETRY_FIRST_MS = 50
RETRY_MAX_MS = 2_000
GENESIS_HASH = bytes(32)

logger = logging.getLogger(__name__)


class BrokenLog(Exception):
    """The log contradicts itself, or speaks of things this release does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What one LIST of the log shows."""

    slots: tuple[int, ...]
    snapshots: tuple[int, ...]
    boundary: int

    @property
    def is_empty(self) -> bool:
        return not self.slots and not self.snapshots and not self.boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlot:
    """`data` is the object, as it goes to peers; empty for a snapshot."""

    seq: int
    controller_epoch: int
    records: tuple[Record, ...]
    previous_hash: bytes
    hash: bytes
    data: bytes = b""


class MetadataLog:
    def __init__(self, store: ObjectStore, rng: random.Random, turns: Turns) -> None:
        self._store = store
        self._random = rng
        self._turns = turns
        self._boundary = 0
        self._unanswered = 0

    async def survey(self) -> Survey:
        keys = [found.key for found in await self.patiently(lambda: self._store.list(META))]
        snapshots = _numbers(keys, SNAPSHOTS)
        boundaries = _numbers(keys, BOUNDARIES)
        slots = _numbers(keys, META)
        self._boundary = max(self._boundary, *boundaries, 0)
        return Survey(slots=slots, snapshots=snapshots, boundary=self._boundary)

    async def read(self, seq: int) -> ReadSlot | None:
        """The slot, or None while no node has won it."""
        return await self._read(slot_key(seq), seq)

    async def read_on(self, after: int) -> list[ReadSlot]:
        """Every slot that follows `after`, up to the tail."""
        found: list[ReadSlot] = []
        while True:
            first = after + len(found) + 1
            ahead = min(max(len(found), 1), READ_AHEAD_SLOTS)
            batch = await asyncio.gather(*(self.read(seq) for seq in range(first, first + ahead)))
            for slot in batch:
                if slot is None:
                    return found
                found.append(slot)

    async def snapshot(self, seq: int) -> ReadSlot | None:
        """The fold up to and including slot `seq`; its hash is that of the slot."""
        parsed = await self._read(snapshot_key(seq), seq)
        return None if parsed is None else replace(parsed, hash=parsed.previous_hash, data=b"")

    async def boundary(self) -> int:
        """The highest slot that may have been deleted."""
        newer = await self.patiently(lambda: self._store.list(BOUNDARIES, after=boundary_key(self._boundary)))
        self._boundary = max((self._boundary, *_numbers((found.key for found in newer), BOUNDARIES)))
        return self._boundary

    async def win(
        self, seq: int, *, controller_epoch: int, previous_hash: bytes, records: Iterable[bytes]
    ) -> bytes | None:
        """Commit slot `seq`; return its bytes if it is ours, None if another has it or it was collected.

        A lost reply is the normal case. The same bytes go to the same slot until the store says which writer
        has it: the put-id in them tells our own earlier attempt from a rival.
        """
        slot = Slot(
            seq=seq,
            controller_epoch=controller_epoch,
            put_id=self._random.randbytes(16),
            previous_hash=previous_hash,
            records=tuple(records),
        )
        data = await self._turns.run(encoding_slot(slot))
        if not await self._put(slot_key(seq), data):
            return None
        # A slot that was trimmed while this put was under way has no name any more, so the put could succeed.
        if await self.boundary() >= seq:
            return None
        return data

    async def _put(self, key: str, data: bytes) -> bool:
        delay_ms = RETRY_FIRST_MS
        is_told = False
        while True:
            result = await self._try(key, data)
            if result is PutResult.WON:
                return True
            found = await self._get(key)
            if found is not None:
                return found == data
            if result is PutResult.LOST:
                # Taken a moment ago and gone now: collected, and nothing written there can count.
                return False
            if not is_told:
                is_told = True
                logger.warning("the object store does not take %s, trying until it does", key)
            delay_ms = await self._pause(delay_ms)

    async def _try(self, key: str, data: bytes) -> PutResult:
        try:
            return await self._store.put_if_absent(key, data)
        except StoreError as error:
            if error.permanent:
                raise
            return PutResult.UNKNOWN

    async def write_snapshot(self, image: Image, *, last_hash: bytes, at_ms: int) -> None:
        """Write down an image that stays as it is."""
        head = encode_record(SnapshotTaken(at_ms=at_ms))
        records = await self._turns.run(encoding_records(image.snapshot_records()))
        slot = Slot(
            seq=image.seq,
            controller_epoch=image.controller_epoch,
            put_id=self._random.randbytes(16),
            previous_hash=last_hash,
            records=(head, *records),
        )
        await self._put(snapshot_key(slot.seq), await self._turns.run(encoding_slot(slot)))

    async def trim(self, now_ms: int) -> int:
        """Delete what lies below a snapshot older than the time slots are kept; the number of objects
        deleted.
        """
        survey = await self.survey()
        through = 0
        for seq in survey.snapshots:
            taken_ms = await self._taken_ms(seq)
            if taken_ms is None or taken_ms > now_ms:
                continue  # by a clock that was ahead: as old as those around it
            if taken_ms > now_ms - SLOTS_KEPT_MS:
                break
            through = seq
        if not through:
            return 0
        await self._put(boundary_key(through), b"")
        self._boundary = max(self._boundary, through)
        doomed = [slot_key(seq) for seq in survey.slots if seq <= through]
        doomed += [snapshot_key(seq) for seq in survey.snapshots if seq < through]
        for key in doomed:
            await self.patiently(lambda key=key: self._store.delete(key))  # type: ignore[misc]
        return len(doomed)

    async def _taken_ms(self, seq: int) -> int | None:
        snapshot = await self.snapshot(seq)
        if snapshot is None:
            return None
        return next((r.at_ms for r in snapshot.records if isinstance(r, SnapshotTaken)), None)

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the store answers. What will not get better by asking again is raised."""
        delay_ms = RETRY_FIRST_MS
        while True:
            try:
                answer = await ask()
            except StoreError as error:
                if error.permanent:
                    raise
                self._note_outage(error)
                delay_ms = await self._pause(delay_ms)
            else:
                self._note_answer()
                return answer

    def _note_outage(self, error: StoreError) -> None:
        """One line when it begins and one when it ends, however often it is asked in between."""
        if not self._unanswered:
            logger.warning("the object store does not answer, trying until it does: %s", error)
        self._unanswered += 1

    def _note_answer(self) -> None:
        if self._unanswered:
            logger.warning("the object store answers again, after %d tries", self._unanswered)
            self._unanswered = 0

    async def _get(self, key: str) -> bytes | None:
        try:
            return await self.patiently(lambda: self._store.get(key))
        except NoSuchObject:
            return None

    async def _read(self, key: str, seq: int) -> ReadSlot | None:
        """Bytes that cannot be read are asked for once more: they may have been damaged on their way."""
        data = await self._get(key)
        if data is None:
            return None
        try:
            return await self._turns.run(parsing_slot(data, seq))
        except BrokenLog as error:
            again = await self._get(key)
            if again is None or again == data:
                raise
            logger.warning("%s was read again: %s", key, error)
            return await self._turns.run(parsing_slot(again, seq))

    async def _pause(self, delay_ms: int) -> int:
        await asyncio.sleep(delay_ms * self._random.uniform(0.5, 1.0) / 1000)
        return min(delay_ms * 2, RETRY_MAX_MS)


def _numbers(keys: Iterable[str], prefix: str) -> tuple[int, ...]:
    numbers = (parse_number(key, prefix) for key in keys)
    return tuple(sorted(number for number in numbers if number is not None))


def parse_slot(data: bytes, seq: int | None = None) -> ReadSlot:
    """What an object of the log says; BrokenLog when it is none, or not that of slot `seq`."""
    return finish(parsing_slot(data, seq))


def parsing_slot(data: bytes, seq: int | None = None) -> Work[ReadSlot]:
    """Read it in turns, as `parse_slot` does at once."""
    records: list[Record] = []
    try:
        slot = yield from decoding_slot(data)
        for record in slot.records:
            records.append(decode_record(record))
            yield
    except (BadRecord, ValueError, TypeError, KeyError) as error:
        raise BrokenLog(f"metadata slot {'' if seq is None else seq} cannot be read: {error}") from error
    if seq is not None and slot.seq != seq:
        raise BrokenLog(f"metadata slot {seq} says it is slot {slot.seq}")
    return ReadSlot(
        seq=slot.seq,
        controller_epoch=slot.controller_epoch,
        records=tuple(records),
        previous_hash=slot.previous_hash,
        hash=(yield from hashing_slot(data)),
        data=data,
    )
