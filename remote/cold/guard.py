"""A storage manager of others, so that whatever it raises is something that its callers know.

Owns: turning the errors of a plugin into StoreError. Does not own: finding the plugin (plugins), its copies'
errors, which the copier tells from its own. Invariant: reading and deleting through it raises StoreError,
NoSuchObject or BadObject, and a plugin that fails costs the request and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import (
    IndexKind,
    Pace,
    SegmentData,
    SegmentHeader,
    StorageManager,
)
from remote.store.object_store import NoSuchObject, StoreError, cut

T = TypeVar("T")

logger = logging.getLogger(__name__)


class GuardedManager:
    def __init__(self, inner: StorageManager) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<GuardedManager {self._inner!r}>"

    async def copy_segment(
        self, segment: RemoteSegment, data: SegmentData, *, cluster_id: str, leader_epoch: int, pace: Pace
    ) -> bytes | None:
        return await self._inner.copy_segment(
            segment, data, cluster_id=cluster_id, leader_epoch=leader_epoch, pace=pace
        )

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        return await _guarded(self._inner.fetch_segment(segment, start, end))

    async def fetch_pieces(
        self, segment: RemoteSegment, start: int, end: int, *, piece_bytes: int
    ) -> Sequence[Buffer]:
        data = await self.fetch_segment(segment, start, end)
        if len(data) != end - start:
            raise BadObject(f"{len(data)} of the bytes {start} to {end}")
        return cut(data, piece_bytes)

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        return await _guarded(self._inner.fetch_index(segment, kind))

    async def fetch_header(self, segment: RemoteSegment) -> SegmentHeader:
        return await _guarded(self._inner.fetch_header(segment))

    async def delete_segment(self, segment: RemoteSegment) -> None:
        await _guarded(self._inner.delete_segment(segment))

    def local_path(self, segment: RemoteSegment) -> str | None:
        try:
            return self._inner.local_path(segment)
        except Exception as error:
            logger.warning("the storage manager failed to name the file of a copy: %r", error)
            return None

    async def close(self) -> None:
        await _guarded(self._inner.close())


async def _guarded(work: Awaitable[T]) -> T:
    try:
        return await work
    except (StoreError, NoSuchObject, BadObject):
        raise
    except Exception as error:
        raise StoreError(f"the storage manager failed: {error!r}") from error
