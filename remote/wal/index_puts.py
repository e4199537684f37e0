"""Index objects: the tables of each 256 objects of a stream once more, in one.

Owns: gathering the tables of a stream, and bringing an index object to the store. Does not own: the objects
themselves (stream_writer), the layout (combined_object). Invariants: nothing waits for an index object, and
one that is missing costs its readers time only; at most two are under way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from remote.keys import WalPart, wal_key
from remote.store.object_store import ObjectStore, PutResult, StoreError
from remote.wal.combined_object import INDEXED_OBJECTS, ObjectKind, Place, encode_index
from remote.wal.counted import Counted
from remote.wal.sources import Offload, Writer, head_by

INDEX_ATTEMPTS: Final = 5
INDEXES_AT_ONCE: Final = 2
"""Under way. What comes on top is left out: readers then read the tables one by one."""

logger = logging.getLogger(__name__)


class IndexPuts:
    def __init__(
        self,
        *,
        store: ObjectStore,
        writer: Writer,
        offload: Offload,
        now_ms: Callable[[], int],
        random: random.Random,
    ) -> None:
        self._store = store
        self._writer = writer
        self._offload = offload
        self._now_ms = now_ms
        self._random = random
        self._tables: list[bytes] = []
        """Of objects that no index object repeats yet."""
        self._tasks: asyncio.TaskGroup | None = None
        self._puts: set[asyncio.Task[None]] = set()

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._tasks = task_group

    def give_up(self) -> list[asyncio.Task[None]]:
        """Begin nothing more; return what ends now."""
        self._tasks = None
        rest = [*self._puts]
        for task in rest:
            task.cancel()
        return rest

    def stream_ended(self) -> None:
        self._tables.clear()

    def counted(self, counted: Counted) -> None:
        """Take note of the stream's next object that counts."""
        stream, seq = counted.place
        self._tables.append(counted.table)
        if (seq + 1) % INDEXED_OBJECTS:
            return
        tables, self._tables = self._tables, []
        if len(self._puts) < INDEXES_AT_ONCE and len(tables) == INDEXED_OBJECTS and self._tasks is not None:
            place = Place(stream, seq + 1 - INDEXED_OBJECTS)
            task = self._tasks.create_task(self._put(place, tables))
            self._puts.add(task)
            task.add_done_callback(self._puts.discard)

    async def _put(self, place: Place, tables: list[bytes]) -> None:
        writer = self._writer
        head = head_by(
            writer,
            ObjectKind.INDEX,
            place,
            put_id=self._random.randbytes(16),
            written_ms=self._now_ms(),
        )
        data = await self._offload(partial(encode_index, head, tables))
        for attempt in range(INDEX_ATTEMPTS):
            try:
                key = wal_key(place.stream, place.seq, WalPart.INDEX)
                if await self._store.put_if_absent(key, data) is not PutResult.UNKNOWN:
                    return
            except StoreError as error:
                logger.debug("an index object is not stored: %s", error)
            await asyncio.sleep(2.0**attempt)
