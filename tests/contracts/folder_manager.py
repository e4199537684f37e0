"""A storage manager as somebody else might write it: a folder for each segment, no object store."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from protocol.ids import encode_id
from remote.cold.index_object import check_header, decode_head, encode_header
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import IndexKind, Pace, SegmentData, SegmentHeader, header_of
from remote.store.object_store import NoSuchObject
from remote.store.upload import SourceChanged
from storage.epochs import EpochCache

PIECE_BYTES = 1 << 20


class FolderManager:
    """Keeps everything below the setting `dir`."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self.root = Path(config["dir"])

    def _folder(self, segment: RemoteSegment) -> Path:
        topic_id, number = segment.partition
        return self.root / f"{encode_id(topic_id)}-{number}" / encode_id(segment.id)

    async def copy_segment(
        self, segment: RemoteSegment, data: SegmentData, *, cluster_id: str, leader_epoch: int, pace: Pace
    ) -> bytes | None:
        folder = self._folder(segment)
        folder.mkdir(parents=True)
        header = header_of(segment, data, cluster_id=cluster_id, leader_epoch=leader_epoch)
        (folder / "header").write_bytes(encode_header(header))
        indexes = {
            IndexKind.OFFSET: data.offset_index,
            IndexKind.TIMESTAMP: data.time_index,
            IndexKind.TRANSACTION: data.txn_index,
            IndexKind.PRODUCER_SNAPSHOT: data.producers,
            IndexKind.LEADER_EPOCH: EpochCache(data.epochs_until_end).encode(),
        }
        for kind, index in indexes.items():
            (folder / kind.name).write_bytes(index)
        with (folder / "partial").open("wb") as file:
            for start in range(0, data.size, PIECE_BYTES):
                end = min(start + PIECE_BYTES, data.size)
                await pace(end - start)
                if file.write(await data.read(start, end)) != end - start:
                    raise SourceChanged(f"{segment.id} is cut")
        (folder / "partial").rename(folder / "data")
        return b"folder"

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        return self._read(segment, "data")[start:end]

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        return self._read(segment, kind.name)

    async def fetch_header(self, segment: RemoteSegment) -> SegmentHeader:
        header = decode_head(self._read(segment, "header")).header
        check_header(header, segment)
        return header

    async def delete_segment(self, segment: RemoteSegment) -> None:
        shutil.rmtree(self._folder(segment), ignore_errors=True)

    def local_path(self, segment: RemoteSegment) -> str | None:
        return str(self._folder(segment) / "data")

    async def close(self) -> None:
        pass

    def _read(self, segment: RemoteSegment, name: str) -> bytes:
        try:
            return (self._folder(segment) / name).read_bytes()
        except FileNotFoundError:
            raise NoSuchObject(name) from None
