"""What an object is cut from: the partitions that this broker leads, and one slice of each.

Owns: what the uploader needs of a partition and of the broker it writes for, what it is told to keep to, the
row of a slice. Does not own: which partitions there are (broker.replicas.wal.leading), reading them (cutter).
Pure. Invariant: a slice is named after the leader epoch of its tail and the epoch of its own batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocol.checksum import crc32c
from protocol.errors import KafkaError
from remote.wal.combined_object import Head, ObjectKind, Place, Row
from remote.wal.tail import Tail
from storage.log import AbstractLog, LogSlice


class Source(Protocol):
    """One partition that this broker leads, in one leader epoch."""

    def __hash__(self) -> int: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def log(self) -> AbstractLog: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def is_awaited(self) -> bool:
        """Whether a producer waits until its followers have what was appended."""

    def was_cut(self, *, has_more: bool) -> None:
        """Take note that what there was is in an object; unless there is more, the next append is to be
        marked."""

    def stored(self) -> None:
        """Take note that more of the tail counts."""

    def unreadable(self, error: KafkaError) -> None:
        """Take note that the log could not be read; it is tried again in a while."""


class Writer(Protocol):
    """The broker that writes, as its cluster knows it."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def metadata_seq(self) -> int:
        """The newest slot that it has applied."""

    def may_reopen(self, slot: int) -> bool:
        """Whether it has applied `slot` and is live by what it has applied."""
        ...


def head_by(writer: Writer, kind: ObjectKind, place: Place, *, put_id: bytes, written_ms: int) -> Head:
    """Return the head of an object that this broker writes."""
    return Head(
        kind=kind,
        cluster_id=writer.cluster_id,
        place=place,
        put_id=put_id,
        metadata_seq=writer.metadata_seq,
        writer=(writer.node_id, writer.broker_epoch),
        written_ms=written_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    interval_s: float
    object_bytes: int
    in_flight: int
    """Objects under way."""
    slices: int
    """Slices that are cut and not yet stored."""
    custom_bytes: int
    """What a manager may say of an object."""


class Offload(Protocol):
    def __call__(self, call: Callable[[], bytes], /) -> Awaitable[bytes]: ...


class Piece(NamedTuple):
    """One slice that was read for the object that is being cut."""

    source: Source
    tail: Tail
    row: Row
    data: bytes


def piece_of(source: Source, found: LogSlice, data: bytes) -> Piece:
    """Return the slice with its row, whose place in an object is still open."""
    tail, log = source.tail, source.log
    row = Row(
        topic_id=tail.key.topic_id,
        partition=tail.key.partition,
        leader_epoch=tail.leader_epoch,
        epoch_start=tail.epoch_start,
        # as it is stamped on the first batch: the others are of the same one
        batch_epoch=int.from_bytes(data[12:16], "big", signed=True),
        start=min(tail.cut_to, found.first_offset),
        end=found.next_offset,
        log_start=log.log_start_offset,
        position=0,
        size=len(data),
        crc32c=crc32c(data),
        previous=None,
    )
    return Piece(source, tail, row, data)
