"""Owns the second opinion on the cold tier: which copies there are, and what a log may read of them, worked
out from the records on a disk and the objects in the bucket alone.

Shares nothing with the brokers' own fold and reader but the formats. Does not own the rules.
Invariant: an offset is taken from a copy only where the copy's batch is of the epoch that the log has there.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from protocol import records
from protocol.errors import CorruptBatch
from remote.cold.events import Tombstone, decode_event
from remote.cold.segments import (
    LogStartMoved,
    PartitionDeletion,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
)
from remote.keys import TIER, SegmentPart, tier_key
from tests.sim.client import read_batch
from tests.sim.disk import Directory, Disk, Inode
from tests.sim.history import Batch, FoldSeen, TierCopy
from tests.sim.node import Node

METADATA_TOPIC = "__remote_log_metadata"
GONE = "gone"
"""The state of a copy whose records have ended."""
Decode = Callable[[Any, Any], object]
"""Of a record's key and value."""
ORDER = (*(state.name for state in SegmentState), GONE)


@dataclass(frozen=True, slots=True)
class Copy:
    topic_id: UUID
    index: int
    id: UUID
    base: int
    end: int
    size: int
    state: str

    @property
    def keys(self) -> tuple[str, ...]:
        """Of its data, then of its index."""
        return _keys_of(self.topic_id, self.index, self.base, self.id)


@lru_cache(maxsize=4096)
def _keys_of(topic_id: UUID, index: int, base: int, copy_id: UUID) -> tuple[str, ...]:
    return tuple(tier_key(topic_id, index, base, copy_id, part) for part in SegmentPart)


@dataclass(slots=True)
class _File:
    """A segment of the metadata log as far as it was read: every batch's place, head and what it says."""

    inode: Inode
    decode: Decode
    end: int = 0
    batches: list[tuple[int, bytes, list[object]]] = field(default_factory=list)
    changes: int = 0

    def read(self) -> None:
        data = self.inode.data
        while self.batches and not data.startswith(self.batches[-1][1], self.batches[-1][0]):
            self.end = self.batches.pop()[0]
            self.changes += 1
        if self.end == len(data):
            return
        rest = bytes(memoryview(data)[self.end :])
        for at, header in _whole_batches(rest):
            said = [self.decode(row.key, row.value) for row in records.iter_records(rest, at, header)]
            head = rest[at : at + records.HEADER_SIZE]
            self.batches.append((self.end + at, head, said))
            self.changes += 1
        if self.batches:
            at, head, _ = self.batches[-1]
            self.end = at + records.parse_header(head, 0).size


class MetadataLog:
    """One partition of a metadata topic on one disk, read on wherever it went on since the last look."""

    def __init__(self, topic: str = METADATA_TOPIC, decode: Decode = decode_event) -> None:
        self._topic = topic
        self._decode = decode
        self._files: dict[int, _File] = {}
        self._said: dict[int, tuple[list[tuple[int, int]], list[object]]] = {}

    def said(self, disk: Disk, log_dirs: Sequence[str], index: int) -> list[object]:
        """Return everything it says, in order: the same list until it says something else."""
        files = list(self._read(disk, log_dirs, index))
        state = [(id(file.inode), file.changes) for file in files]
        known = self._said.get(index)
        if known is None or known[0] != state:
            said = [one for file in files for _, _, rows in file.batches for one in rows]
            known = self._said[index] = state, said
        return known[1]

    def _read(self, disk: Disk, log_dirs: Sequence[str], index: int) -> Iterator[_File]:
        for log_dir in log_dirs:
            path = posixpath.join(log_dir, f"{self._topic}-{index}")
            directory = disk.lookup(path)
            if not isinstance(directory, Directory):
                continue
            for name, inode in sorted(directory.entries.items()):
                if not name.endswith(".log") or isinstance(inode, Directory):
                    continue
                read = self._files.setdefault(id(inode), _File(inode, self._decode))
                read.read()
                yield read


def _whole_batches(data: bytes) -> Iterator[tuple[int, records.BatchHeader]]:
    """Up to the first that a crash tore."""
    try:
        yield from records.iter_batches(data)
    except CorruptBatch:
        return


def copies(said: Iterable[object]) -> list[Copy]:
    """Every copy that was spoken of, in the furthest state, whatever the order. One whose records have ended
    is GONE as long as any is left to tell of it."""
    started: dict[UUID, SegmentStarted] = {}
    states: dict[UUID, str] = {}
    for one in said:
        match one:
            case Tombstone(segment_id=UUID() as segment_id):
                states[segment_id] = GONE
            case SegmentStarted(segment=segment):
                started[segment.id] = one
                states.setdefault(segment.id, segment.state.name)
            case SegmentUpdated(id=segment_id, state=state):
                states[segment_id] = max(state.name, states.get(segment_id, state.name), key=ORDER.index)
            case _:
                assert isinstance(one, Tombstone | PartitionDeletion | LogStartMoved)
    return [
        Copy(
            one.segment.partition.topic_id,
            one.segment.partition.number,
            one.segment.id,
            one.segment.base_offset,
            one.segment.end_offset,
            one.segment.size_bytes,
            states[one.segment.id],
        )
        for one in started.values()
    ]


def backward(said: Iterable[object]) -> Iterator[str]:
    """Every record that says of a copy what nobody may say after what was said before it. Compaction takes
    what is no longer needed from between, so states may be left out."""
    states: dict[UUID, str] = {}
    for one in said:
        match one:
            case Tombstone(segment_id=UUID() as segment_id):
                state = GONE
            case SegmentStarted(segment=segment):
                segment_id, state = segment.id, segment.state.name
            case SegmentUpdated(id=UUID() as segment_id, state=SegmentState() as reached):
                state = reached.name
            case _:
                continue
        before = states.setdefault(segment_id, state)
        if ORDER.index(state) < ORDER.index(before):
            yield f"copy {segment_id} goes from {before} to {state}"
        states[segment_id] = state


def was_finished(copy: Copy, said: Iterable[object]) -> bool:
    """Whether the records still tell of a time when it was whole: compaction takes that from them."""
    return any(
        isinstance(one, SegmentUpdated) and one.id == copy.id and one.state is SegmentState.COPY_FINISHED
        for one in said
    )


def is_live(copy: Copy) -> bool:
    return copy.state not in (GONE, SegmentState.DELETE_FINISHED.name)


def told(found: Sequence[Copy], objects: Mapping[str, bytes]) -> tuple[TierCopy, ...]:
    """Each copy with the sizes of its two objects, None for one that is not there."""
    return tuple(
        TierCopy(
            partition=(str(copy.topic_id), copy.index),
            id=str(copy.id),
            base=copy.base,
            end=copy.end,
            size=copy.size,
            state=copy.state,
            objects=tuple(len(objects[key]) if key in objects else None for key in copy.keys),
        )
        for copy in found
        if is_live(copy)
    )


def fold_seen(node: int, index: int, found: Iterable[Copy]) -> FoldSeen:
    seen = ((str(copy.topic_id), copy.index, str(copy.id), copy.state) for copy in found if is_live(copy))
    return FoldSeen(
        node=node,
        index=index,
        copies=tuple(((topic_id, number), id_, state) for topic_id, number, id_, state in sorted(seen)),
    )


def fold_of(node: Node, index: int) -> FoldSeen | None:
    """What this broker knows of the copies that a partition of the metadata tells of; None where it follows
    none of them."""
    assert node.broker is not None
    metadata = node.broker.components.tier_metadata
    view = None if metadata is None else metadata._views.get(index)
    if view is None or not view.is_needed:
        return None
    copies = (
        Copy(
            each.topic_id,
            each.number,
            one.id,
            one.base_offset,
            one.end_offset,
            one.size_bytes,
            one.state.name,
        )
        for each in view.fold.partitions()
        if (fold := view.fold.get(each)) is not None
        for one in (*fold.finished(), *fold.unfinished(), *fold.deleting())
    )
    return fold_seen(node.id, index, copies)


def unreferenced(
    found: Sequence[Copy], objects: Iterable[str], uploads: Iterable[tuple[str, int]]
) -> tuple[str, ...]:
    """Objects of the tier that no copy speaks of which is not yet deleted, and uploads (their keys and how
    many parts they have) that nobody ends. One whose beginning landed after its object was whole, so that it
    has no part, goes with the object."""
    wanted = {key for copy in found if is_live(copy) for key in copy.keys}
    kept = (key for key in objects if key.startswith(TIER) and key not in wanted)
    begun = (
        f"{key} in parts" for key, parts in uploads if key.startswith(TIER) and (parts or key not in wanted)
    )
    return (*sorted(kept), *sorted(begun))


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch in an object, and its head, which tells of its producer."""

    batch: Batch
    header: records.BatchHeader


class Objects:
    """The batches in the tier's objects. Of one key there is ever one object."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, tuple[Stored, ...]]] = {}

    def batches(self, key: str, objects: Mapping[str, bytes]) -> tuple[Stored, ...]:
        data = objects.get(key, b"")
        known = self._read.get(key)
        if known is None or known[0] != data:
            view = memoryview(data)
            found = tuple(Stored(read_batch(view, at, each), each) for at, each in records.iter_batches(data))
            known = self._read[key] = data, found
        return known[1]

    def of_lineage(
        self,
        start: int,
        end: int,
        *,
        partition: tuple[UUID, int],
        epochs: Sequence[tuple[int, int]],
        found: Sequence[Copy],
        objects: Mapping[str, bytes],
    ) -> tuple[Stored, ...]:
        """The batches that a log with these epochs may read from the tier, from the one that holds `start` up
        to `end`, where its own files begin. They end early where no copy goes on."""
        mine: dict[int, list[Stored]] = {}
        for copy in found:
            is_whole = copy.state == SegmentState.COPY_FINISHED.name
            is_near = copy.base < end and start <= copy.end
            if is_whole and is_near and (copy.topic_id, copy.index) == partition:
                for stored in self.batches(copy.keys[0], objects):
                    first, last = max(start, stored.batch.base_offset), min(end, stored.batch.next_offset)
                    for offset in range(first, last):
                        mine.setdefault(offset, []).append(stored)
        chosen: list[Stored] = []
        at = start
        while at < end:
            epoch = epoch_at(epochs, at)
            fitting = (stored for stored in mine.get(at, ()) if stored.batch.leader_epoch == epoch)
            stored = next(fitting, None)
            if stored is None:
                break
            chosen.append(stored)
            at = stored.batch.next_offset
        return tuple(chosen)

    def had_alone(
        self, copy: Copy, data: bytes, start: int, found: Sequence[Copy], objects: Mapping[str, bytes]
    ) -> tuple[tuple[int, int], ...]:
        """(offset, epoch) from `start` on of each batch in `data` that is in no finished copy but this."""
        others = {
            (stored.batch.base_offset, stored.batch.leader_epoch)
            for other in found
            if other.state == SegmentState.COPY_FINISHED.name
            and (other.topic_id, other.index) == (copy.topic_id, copy.index)
            and other.id != copy.id
            and other.base < copy.end
            and copy.base < other.end
            for stored in self.batches(other.keys[0], objects)
        }
        own = ((head.base_offset, head.leader_epoch) for _, head in records.iter_batches(data))
        return tuple(place for place in own if place[0] >= start and place not in others)


def epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    place = bisect_right([start for _, start in epochs], offset)
    return epochs[place - 1][0] if place else -1
