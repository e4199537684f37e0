"""Reading slices of combined objects for a follower: how much at once, for how long, and when not to try.

Owns: the memory that all slices of one broker take between their pointer and their append, how many reads are
under way, the deadline of one, and the judgement that the store does not answer. Does not own: which slices
are wanted and in which order they are appended (slice_queue, broker.replicas.wal.hydrating), the objects.

Invariants. Memory is reserved before a read begins, at most `bytes_max` in all. A read ends within
2 * ATTEMPT_S and a pause once it has its turn. While the store does not answer nothing is asked of it but one
read after each pause, and pauses grow up to AWAY_MAX_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.store.object_store import NoSuchObject, StoreError
from remote.wal.combined_object import Place
from remote.wal.stats import WalStats
from remote.wal.storage_manager import WalStorageManager

logger = logging.getLogger(__name__)

BYTES_MAX: Final = 32 << 20
READ_OVERHEAD_BYTES: Final = 1 << 10
"""What a slice takes beside its bytes: it bounds how many small ones may wait."""
ATTEMPT_S: Final = 1.0
ATTEMPTS: Final = 2
RETRY_PAUSE_S: Final = 0.02
AWAY_S: Final = 0.5
AWAY_MAX_S: Final = 5.0


class NotRead(Exception):
    """The bytes could not be read: the leader is to be asked for the records."""


class Hydrator:
    def __init__(
        self,
        storage: WalStorageManager,
        *,
        at_once: int,
        stats: WalStats,
        clock: Callable[[], float],
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.stats = stats
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.on_away: list[Callable[[], None]] = []
        """Called when the store is taken to be away."""
        self.on_room: list[Callable[[], None]] = []
        """Called when half of the memory has become free."""
        self._storage = storage
        self._slots = asyncio.Semaphore(at_once)
        self._clock = clock
        self._under_way = 0
        self._answered_at = -inf
        self._away_until = -inf
        self._pause_s = 0.0
        """How long it was left alone after it was last found away; 0 once it has answered."""

    def __repr__(self) -> str:
        away = f", left alone for {self._pause_s} s" if self._pause_s else ""
        return f"<Hydrator {self._under_way} reads, {self.bytes_held} bytes held{away}>"

    # --- memory ---

    def reserve(self, size: int) -> bool:
        """Reserve memory for one slice. Return whether there was any."""
        size += READ_OVERHEAD_BYTES
        if self.bytes_held + size > self.bytes_max:
            return False
        self.bytes_held += size
        return True

    def release(self, size: int) -> None:
        before = self.bytes_held
        self.bytes_held -= size + READ_OVERHEAD_BYTES
        assert self.bytes_held >= 0, self
        if before > self.bytes_max // 2 >= self.bytes_held:
            for listener in self.on_room:
                listener()

    @property
    def has_room(self) -> bool:
        """Whether half of the memory is free: what does not fit now is never waited for."""
        return self.bytes_held <= self.bytes_max // 2

    # --- the store ---

    def objects_allowed(self) -> float:
        """Return how many objects may be read from now: after a failure one, to see whether the store is
        back."""
        if not self._pause_s:
            return inf
        return 0 if self._under_way or self._clock() < self._away_until else 1

    async def read(self, place: Place, start: int, end: int) -> Buffer:
        """Return the bytes [start, end) of an object; NotRead when the leader has to be asked instead."""
        asked_at = self._clock()
        self._under_way += 1
        try:
            async with self._slots:
                data = await self._read(place, start, end)
        finally:
            self._under_way -= 1
        self.stats.get_s.note(self._clock() - asked_at)
        return data

    async def _read(self, place: Place, start: int, end: int) -> Buffer:
        begun_at = self._clock()
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE_S)
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    data = await self._storage.fetch(place, start, end)
            except TimeoutError:
                reason = f"no answer in {ATTEMPT_S} s"
            except StoreError as error:
                reason = str(error)
                if error.permanent:
                    break
            except (NoSuchObject, BadObject) as error:
                self._answered()
                raise NotRead(f"{place} is not there: {error}") from error
            else:
                self._answered()
                if len(data) != end - start:
                    raise NotRead(f"{place} ends at {start + len(data)}, before {end}")
                return data
        self._failed(begun_at, reason)
        raise NotRead(f"{place}: {reason}")

    def _answered(self) -> None:
        self._answered_at = self._clock()
        if self._pause_s:
            logger.info("the store of the WAL tier answers again")
            self._pause_s = 0.0

    def _failed(self, begun_at: float, reason: str) -> None:
        """Leave the store alone for a while, unless it has answered others since this read began, or was
        found away since."""
        if self._answered_at >= begun_at or self._away_until > begun_at:
            return
        if not self._pause_s:
            logger.warning("the store of the WAL tier does not answer, leaders are asked instead: %s", reason)
        self._pause_s = min(self._pause_s * 2, AWAY_MAX_S) if self._pause_s else AWAY_S
        self._away_until = self._clock() + self._pause_s
        for listener in self.on_away:
            listener()
