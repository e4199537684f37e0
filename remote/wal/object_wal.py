"""Combined objects in an object store, each under the key of its place.

Owns: how one object gets to its place although a reply is lost, slow or a twin's, and how long that is tried.
Does not own: the deadline of one attempt and its count (remote.store.stores.open_lane), the object's bytes
(combined_object), which one comes next (window).

A put that takes longer than most is sent a second time; whichever is answered first counts and the other one
is given up. LOST proves nothing, because the winner may be a twin of ours or an attempt that was given up:
the head that lies at the place tells, by its put-id. UNKNOWN proves nothing either, and is asked of the place
in the same way; where nothing lies the same bytes are sent again. A head that cannot be read is asked for
again, a few times: then something torn lies there.

Invariants. An object is said to be stored only after the store answered WON, or its head was read back. At
most two puts of one object are waited for, and none is sent after `copy` has ended, however it ended.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.keys import wal_key
from remote.store.metered import StoreStats
from remote.store.object_store import Fault, NoSuchObject, ObjectStore, Operation, PutResult, StoreError
from remote.store.resilient import HedgePolicy
from remote.wal.combined_object import Place, decode_head
from remote.wal.storage_manager import CombinedMetadata, CopiedObject, SlotTaken

GIVE_UP_S: Final = 10.0
SECOND_PUT_MIN_S: Final = 0.015
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
UNREADABLE_MAX: Final = 5
"""Answers, after which what lies at a place is taken for torn, not for badly received."""
HEAD_BYTES: Final = 4096
"""Far more than any head has."""


class ObjectWal:
    """`store` belongs to who opened it. `stats` counts second puts and further attempts."""

    def __init__(self, store: ObjectStore, *, rng: random.Random, stats: StoreStats | None = None) -> None:
        self._store = store
        self._random = rng
        self._stats = stats or StoreStats()
        self._policy = HedgePolicy(least_s=SECOND_PUT_MIN_S)

    def __repr__(self) -> str:
        return f"ObjectWal({self._store!r})"

    @property
    def store(self) -> ObjectStore:
        return self._store

    async def copy(self, metadata: CombinedMetadata, data: bytes) -> CopiedObject:
        key = wal_key(*metadata.place)
        try:
            async with asyncio.timeout(GIVE_UP_S) as limit:
                await self._copy(key, metadata.head.put_id, data)
        except TimeoutError:
            if not limit.expired():
                raise
            why = f"{key}: nobody said within {GIVE_UP_S:g} s that it is stored"
            raise StoreError(why, fault=Fault.TIMEOUT) from None
        return CopiedObject(place=metadata.place, size=len(data))

    async def fetch(self, place: Place, start: int, end: int) -> Buffer:
        pieces = await self._store.get_pieces(wal_key(*place), start, end, piece_bytes=max(end - start, 1))
        return pieces[0] if pieces else b""

    async def close(self) -> None:
        pass

    async def _copy(self, key: str, put_id: bytes, data: bytes) -> None:
        """Return once the object is stored; SlotTaken if another one is, or none that can be read."""
        pause_max_s = PAUSE_FIRST_S
        unreadable = 0
        while await self._put(key, data) is not PutResult.WON:
            while True:
                try:
                    if await self._is_there(key, put_id):
                        return
                    break
                except StoreError as error:
                    if error.permanent:
                        raise
                except BadObject:
                    unreadable += 1
                    if unreadable == UNREADABLE_MAX:
                        raise SlotTaken(None) from None
                pause_max_s = await self._pause(pause_max_s)
            pause_max_s = await self._pause(pause_max_s)

    async def _is_there(self, key: str, put_id: bytes) -> bool:
        """Whether the object lies at its place, as opposed to nothing; SlotTaken if another one does."""
        try:
            head = decode_head(await self._store.get_range(key, 0, HEAD_BYTES))
        except NoSuchObject:
            return False
        if head.put_id != put_id:
            raise SlotTaken(head)
        return True

    async def _pause(self, most_s: float) -> float:
        """Wait before the store is asked again; return the longest pause that may follow."""
        self._stats.retries += 1
        await asyncio.sleep(self._random.uniform(0, most_s))
        return min(2 * most_s, PAUSE_MAX_S)

    async def _put(self, key: str, data: bytes) -> PutResult:
        """Put the object, a second time if the first takes long. WON or LOST is what either was answered."""
        policy, operation = self._policy, Operation.PUT_IF_ABSENT
        policy.note_asked()
        answer: PutResult | StoreError = PutResult.UNKNOWN
        async with asyncio.TaskGroup() as group:
            first = group.create_task(self._attempt(key, data))
            done, pending = await asyncio.wait((first,), timeout=policy.delay_s(operation))
            if pending and policy.may_hedge():
                self._stats.hedges += 1
                pending.add(group.create_task(self._attempt(key, data)))
            while True:
                for attempt in done:
                    if answer is not PutResult.WON:
                        answer = attempt.result()
                        self._stats.hedges_won += answer is PutResult.WON and attempt is not first
                if not pending or answer is not PutResult.UNKNOWN:
                    break
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for late in pending:
                late.cancel()
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def _attempt(self, key: str, data: bytes) -> PutResult | StoreError:
        """Put once; return what the store answered, or why it never will."""
        time = asyncio.get_running_loop().time
        begun_s = time()
        try:
            answer = await self._store.put_if_absent(key, data)
        except StoreError as error:
            return error
        if answer is PutResult.WON:
            self._policy.note_answer(Operation.PUT_IF_ABSENT, time() - begun_s)
        return answer
