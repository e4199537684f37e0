"""The storage manager over our object store: two objects for each segment.

Owns: which object holds what, the order in which they are written and deleted, checking of what is read
back. Does not own: their keys (remote.keys), the layout of the index object (index_object), how a large
object gets into the store (upload), retries and deadlines (the store's wrappers), checking of the segment's
bytes (whoever serves them has the header's sums).

Invariant: the index object is written before the first byte of the data and deleted after its last, so
whatever lies in the bucket says what it is. A head that fails a check is asked for once more, because
it may have been damaged on its way; then it is BadObject.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.cold.index_object import (
    HEAD_READ_BYTES,
    Head,
    check_header,
    decode_head,
    decode_index_object,
    encode_index_object,
    head_size,
    section_of,
)
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import (
    IndexKind,
    Pace,
    Read,
    SegmentData,
    SegmentHeader,
    header_of,
)
from remote.keys import SegmentPart, tier_key
from remote.store.object_store import ObjectStore
from remote.store.tempo import Tempo
from remote.store.upload import PART_BYTES, ByteBudget, put_from, remove
from storage.epochs import EpochCache

T = TypeVar("T")

HEADS_KEPT_MAX: Final = 32
"""Each with the first bytes of its object: 2 MiB in all."""

logger = logging.getLogger(__name__)


class _Known(NamedTuple):
    head: Head
    data: bytes
    """The object from its beginning to the end of the head or further."""


class ObjectTier:
    """`budget` and `tempo` are what all uploads of a process share."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        budget: ByteBudget | None = None,
        tempo: Tempo | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._store = store
        self._budget = budget or ByteBudget()
        self._tempo = tempo or Tempo()
        self._part_bytes = part_bytes
        self._heads: OrderedDict[UUID, _Known] = OrderedDict()

    def __repr__(self) -> str:
        return f"ObjectTier({self._store!r})"

    async def copy_segment(
        self, segment: RemoteSegment, data: SegmentData, *, cluster_id: str, leader_epoch: int, pace: Pace
    ) -> bytes | None:
        assert data.size == segment.size_bytes, (data.size, segment)
        header = header_of(segment, data, cluster_id=cluster_id, leader_epoch=leader_epoch)
        about = encode_index_object(
            header,
            {
                IndexKind.OFFSET: data.offset_index,
                IndexKind.TIMESTAMP: data.time_index,
                IndexKind.TRANSACTION: data.txn_index,
                IndexKind.PRODUCER_SNAPSHOT: data.producers,
                IndexKind.LEADER_EPOCH: EpochCache(data.epochs_until_end).encode(),
            },
        )

        async def read_about(start: int, end: int) -> bytes:
            return about[start:end]

        await self._put(segment, SegmentPart.INDEX, len(about), read_about, pace)
        await self._put(segment, SegmentPart.DATA, data.size, data.read, pace)
        return None

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        end = min(end, segment.size_bytes)
        if start >= end:
            return b""
        key = key_of(segment, SegmentPart.DATA)
        data = await self._store.get_range(key, start, end)
        if len(data) != end - start:
            raise BadObject(f"{key} ends at {start + len(data)}, it should have {segment.size_bytes} bytes")
        return data

    async def fetch_pieces(
        self, segment: RemoteSegment, start: int, end: int, *, piece_bytes: int
    ) -> Sequence[Buffer]:
        key = key_of(segment, SegmentPart.DATA)
        pieces = await self._store.get_pieces(key, start, end, piece_bytes=piece_bytes)
        size = sum(map(len, pieces))
        if size != end - start:
            raise BadObject(f"{key} ends at {start + size}, it should have {segment.size_bytes} bytes")
        return pieces

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        return await _twice(lambda: self._read_index(segment, kind))

    async def fetch_header(self, segment: RemoteSegment) -> SegmentHeader:
        return (await _twice(lambda: self._read_head(segment))).head.header

    async def check_index(self, segment: RemoteSegment) -> None:
        """Read the whole index object; NoSuchObject or BadObject when it is lost."""
        key = key_of(segment, SegmentPart.INDEX)

        async def read() -> None:
            head, _ = decode_index_object(await self._store.get(key))
            check_header(head.header, segment)

        await _twice(read)

    async def put_index(
        self, segment: RemoteSegment, header: SegmentHeader, indexes: Mapping[IndexKind, bytes]
    ) -> None:
        """Put an index object that was lost anew. It is there when this returns."""
        self._heads.pop(segment.id, None)
        await self._store.put(key_of(segment, SegmentPart.INDEX), encode_index_object(header, indexes))

    async def delete_segment(self, segment: RemoteSegment) -> None:
        self._heads.pop(segment.id, None)
        await remove(self._store, key_of(segment, SegmentPart.DATA))
        await remove(self._store, key_of(segment, SegmentPart.INDEX))

    def local_path(self, segment: RemoteSegment) -> str | None:
        return self._store.local_path(key_of(segment, SegmentPart.DATA))

    async def close(self) -> None:
        """The store is whose opened it."""

    async def _put(
        self, segment: RemoteSegment, part: SegmentPart, size: int, read: Read, pace: Pace
    ) -> None:
        key = key_of(segment, part)
        # what is in memory anyhow waits for no room and no turn: `pace` said a moment ago that it may be put
        is_data = part is SegmentPart.DATA
        await put_from(
            self._store,
            key,
            size,
            read,
            pace=pace,
            budget=self._budget if is_data else None,
            tempo=self._tempo if is_data else None,
            part_bytes=self._part_bytes,
        )

    async def _read_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        known = await self._read_head(segment)
        section = known.head.sections[kind]
        if section.end <= len(known.data):
            return section_of(known.data, known.head, kind)
        key = key_of(segment, SegmentPart.INDEX)
        data = await self._store.get_range(key, section.start, section.end)
        return section_of(data, known.head, kind, at=section.start)

    async def _read_head(self, segment: RemoteSegment) -> _Known:
        known = self._heads.get(segment.id)
        if known is None:
            key = key_of(segment, SegmentPart.INDEX)
            data = await self._store.get_range(key, 0, HEAD_READ_BYTES)
            size = head_size(data)
            if size > len(data) == HEAD_READ_BYTES:
                data += await self._store.get_range(key, len(data), size)
            known = _Known(decode_head(data), data)
        check_header(known.head.header, segment)
        self._heads[segment.id] = known
        self._heads.move_to_end(segment.id)
        if len(self._heads) > HEADS_KEPT_MAX:
            self._heads.popitem(last=False)
        return known


def key_of(segment: RemoteSegment, part: SegmentPart) -> str:
    return tier_key(
        segment.partition.topic_id, segment.partition.number, segment.base_offset, segment.id, part
    )


async def _twice(read: Callable[[], Awaitable[T]]) -> T:
    try:
        return await read()
    except BadObject as error:
        logger.warning("a tiered segment is read again: %s", error)
        return await read()
