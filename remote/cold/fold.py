"""What all events of the cold tier mean together: which copies there are, and which of them a log may use.

Owns: the state of every copy that the partitions of one metadata partition have, which transitions are legal,
and lineage: a copy counts for a log at those offsets for which both name the same leader epoch. Does not own:
the records (events), when a fold is far enough to be acted on, what is done about a copy.
Invariants: the fold is a function of the set of events since the last tombstones, whatever their order and
however often each came: the highest state of a copy wins. No answer of lineage contains an offset at which
the log has another epoch than the copy: what a leader said that lost an unclean election is never read.

Copies are packed, as there may be 100,000, and become `RemoteSegment`s when they are asked for. Each leader
epoch has an index of its own: an answer of lineage asks the log for the epoch, then the epoch for the copy.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import NamedTuple
from uuid import UUID

from remote.cold.events import NO_COPY, Tombstone
from remote.cold.packed import (
    base_of,
    custom_of,
    end_of,
    epochs_of,
    has_aborted,
    pack_copy,
    progress_of,
    size_of,
    state_of,
    unpack_copy,
    with_state,
)
from remote.cold.pieces import EpochIndex, Piece
from remote.cold.segments import (
    NEXT_PARTITION_STATES,
    NEXT_STATES,
    LogStartMoved,
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
    TierEvent,
    partition_of,
)
from storage.epochs import EpochCache


class TierFold:
    """All partitions that one metadata partition speaks of."""

    def __init__(self) -> None:
        self._partitions: dict[TieredPartition, PartitionFold] = {}

    def __repr__(self) -> str:
        return f"TierFold({len(self._partitions)} partitions)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TierFold) and self._partitions == other._partitions

    __hash__ = None  # type: ignore[assignment]

    def get(self, partition: TieredPartition) -> PartitionFold | None:
        return self._partitions.get(partition)

    def partitions(self) -> list[TieredPartition]:
        return list(self._partitions)

    def apply(self, said: TierEvent | Tombstone) -> bool:
        """Whether it changed anything. What came before, or is late, changes nothing."""
        partition = said.partition if isinstance(said, Tombstone) else partition_of(said)
        fold = self._partitions.get(partition)
        if isinstance(said, Tombstone):
            if fold is None or not fold.end(said):
                return False
            if fold.is_empty:
                del self._partitions[partition]
            return True
        if fold is None:
            fold = self._partitions[partition] = PartitionFold(partition)
        return fold.apply(said)

    def refusal(self, event: TierEvent) -> str | None:
        """Why it may not be said now; None when it may."""
        fold = self._partitions.get(partition_of(event))
        return (fold or PartitionFold(partition_of(event))).refusal(event)


class PartitionFold:
    """The copies of one partition."""

    __slots__ = (
        "_aborting",
        "_copies",
        "_early",
        "_finished",
        "_indexes",
        "_unsettled",
        "deletion",
        "finished_bytes",
        "log_start",
        "partition",
        "topic",
    )

    def __init__(self, partition: TieredPartition) -> None:
        self.partition = partition
        self.topic = ""
        """The name that was last said; nothing goes by it."""
        self.deletion: PartitionState | None = None
        self.log_start = 0
        """The highest that was told; copies may say more."""
        self.finished_bytes = 0
        """Of all finished copies, those that lineage no longer wants included."""
        self._copies: dict[int, bytes] = {}
        """All whose start is known, by their id's number."""
        self._unsettled: dict[SegmentState, dict[int, int]] = {}
        """Those that are not finished copies, by their state, and the objects that are their keys in
        `_copies`: an id is in memory once."""
        self._early: dict[int, _Update] = {}
        """Updates of copies whose start is not known: not yet, or no longer."""
        self._finished = _ByBase()
        self._aborting = _ByBase()
        self._indexes: dict[int, EpochIndex] = {}

    def __repr__(self) -> str:
        return f"PartitionFold({self.topic}-{self.partition.number}, {self.finished_count} finished copies)"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PartitionFold)
            and self.partition == other.partition
            and self.deletion == other.deletion
            and self.log_start == other.log_start
            and self._copies == other._copies
            and self._early == other._early
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_empty(self) -> bool:
        return not self._copies and not self._early and self.deletion is None and self.log_start == 0

    @property
    def finished_count(self) -> int:
        return len(self._finished.ids)

    @property
    def implied_start(self) -> int:
        """Where, by what is known here, a log starts that has lost its disk; not further on than that."""
        lowest = self._finished.bases[0] if self._finished.bases else 0
        return max(self.log_start, lowest)

    # --- what there is ---

    def segment(self, segment_id: UUID) -> RemoteSegment | None:
        """The copy, unless its deletion is finished."""
        packed = self._copies.get(segment_id.int)
        if packed is None or state_of(packed) is SegmentState.DELETE_FINISHED:
            return None
        return self._whole(segment_id.int)

    def copies(self) -> Iterator[RemoteSegment]:
        """All copies there are now and are not gone when their turn comes, each as it is then. It may be read
        on after changes."""
        for number in list(self._copies):
            packed = self._copies.get(number)
            if packed is not None and state_of(packed) is not SegmentState.DELETE_FINISHED:
                yield self._whole(number)

    def finished(self) -> Iterator[RemoteSegment]:
        """All finished copies by base offset. It may be read on after changes."""
        return self._above(self._finished, -1)

    def aborting(self, start: int) -> Iterator[RemoteSegment]:
        """The finished copies that end above `start` and in which transactions were aborted, by base offset.
        It may be read on after changes."""
        return self._above(self._aborting, start)

    def unfinished(self) -> Iterator[RemoteSegment]:
        """Copies that were begun and neither finished nor given up. Ask anew after a change."""
        return map(self._whole, self._in_state(SegmentState.COPY_STARTED))

    def deleting(self) -> Iterator[RemoteSegment]:
        """Copies that nobody may read any more and whose objects may still be there. Ask anew after a
        change."""
        return map(self._whole, self._in_state(SegmentState.DELETE_STARTED))

    @property
    def unfinished_count(self) -> int:
        return len(self._in_state(SegmentState.COPY_STARTED))

    @property
    def deleting_count(self) -> int:
        return len(self._in_state(SegmentState.DELETE_STARTED))

    def deleted(self) -> list[UUID]:
        """Copies that are gone, and whose records wait for their tombstones."""
        gone = set(self._in_state(SegmentState.DELETE_FINISHED))
        gone |= {n for n, early in self._early.items() if early.state is SegmentState.DELETE_FINISHED}
        return [UUID(int=number) for number in sorted(gone)]

    def below(self, log_start: int) -> Iterator[RemoteSegment]:
        """Finished copies that end at or below it, of any lineage. Ask anew after a change."""
        return map(self._whole, self._below(log_start))

    def _below(self, log_start: int) -> Iterator[int]:
        ids = islice(self._finished.ids, bisect_left(self._finished.bases, log_start))
        return (number for number in ids if end_of(self._copies[number]) <= log_start)

    # --- lineage ---

    def find(self, offset: int, epochs: EpochCache) -> RemoteSegment | None:
        """The finished copy that has `offset` of this lineage. Its `end_offset` is where the lineage parts
        from the copy, if it does: the object may hold more, which nobody may read."""
        found = self._at(offset, epochs)
        return None if found is None else self._clipped(found, epochs)

    def after(self, segment: RemoteSegment, epochs: EpochCache) -> RemoteSegment | None:
        """The copy that goes on where `segment` ends."""
        return self.find(segment.end_offset, epochs)

    def first_readable(self, epochs: EpochCache, start: int) -> int | None:
        """The lowest offset at or above `start` that a copy has."""
        for epoch, low, high in epochs.spans(start):
            index = self._indexes.get(epoch)
            offset = None if index is None else index.first_from(max(low, start))
            if offset is not None and offset < high:
                return offset
        return None

    def holders(self, offset: int) -> list[RemoteSegment]:
        """Finished copies that have `offset`, of any lineage: one for each epoch that it has somewhere."""
        found = ((index, index.find(offset)) for index in self._indexes.values())
        return self._sorted(index.ids[at] for index, at in found if at >= 0)

    def newest(self) -> RemoteSegment | None:
        """The finished copy that goes on furthest in the newest epoch that any copy has."""
        if not self._indexes:
            return None
        return self._whole(self._indexes[max(self._indexes)].ids[-1])

    def chain_start(self, epochs: EpochCache, end: int) -> int:
        """Where what copies have of this lineage without a gap up to `end` begins; `end` when they have
        nothing."""
        at = end
        while (span := epochs.span(at - 1)) is not None:
            epoch, epoch_start, _ = span
            index = self._indexes.get(epoch)
            if index is None or index.find(at - 1) < 0:
                break
            at = max(index.run_start(at - 1), epoch_start)
            if at > epoch_start:
                break
        return at

    def chain(self, epochs: EpochCache, log_start: int) -> Iterator[RemoteSegment]:
        """What a reader of this lineage reads from `log_start` on, copy after copy; one that begins above
        the end of the one before shows a gap. Ask anew after a change."""
        offset = self.first_readable(epochs, log_start)
        while offset is not None:
            segment = self.find(offset, epochs)
            assert segment is not None, (offset, epochs)
            yield segment
            offset = self.first_readable(epochs, segment.end_offset)

    def chain_end(self, epochs: EpochCache, *, log_start: int, local_start: int) -> int:
        """The end of what is in the tier without a gap, from the log's start or from any offset up to
        `local_start`; 0 when nothing is. It may be past the end of a log that is behind: take the lesser."""
        assert log_start <= local_start, (log_start, local_start)
        end = self._run_end(local_start, epochs)
        if end is not None:
            return end
        below = self._last_readable_below(local_start, log_start, epochs)
        return 0 if below is None else below

    def superseded(self, epochs: EpochCache, log_start: int) -> list[RemoteSegment]:
        """Finished copies that this lineage has no use for above `log_start`: it never had those records, or
        other finished copies have them too. All of them may go at once. What a later leader copied is left
        alone, and so is everything while the epochs do not reach back to the log's start."""
        if epochs.known_from is None or epochs.known_from > log_start:
            return []
        useful = {epoch: (max(low, log_start), high) for epoch, low, high in epochs.spans(log_start)}
        doubtful: set[int] = set()
        for epoch, index in self._indexes.items():
            if epoch <= epochs.latest:
                doubtful.update(index.doubtful(*useful.get(epoch, (0, 0))))
        gone: set[int] = set()
        for number in sorted(doubtful, key=self._rank):
            packed = self._copies[number]
            if end_of(packed) > log_start and self._is_superseded(number, packed, epochs, useful, gone):
                gone.add(number)
        return self._sorted(gone)

    def size_bytes(self, epochs: EpochCache, log_start: int) -> int:
        """Bytes of the finished copies that count for the size of the log."""
        useless = sum(segment.size_bytes for segment in self.superseded(epochs, log_start))
        below = sum(size_of(self._copies[number]) for number in self._below(log_start))
        return self.finished_bytes - useless - below

    # --- changes ---

    def refusal(self, event: TierEvent) -> str | None:
        """Why it may not be said now; None when it may."""
        match event:
            case PartitionDeletion():
                if event.state not in NEXT_PARTITION_STATES[self.deletion]:
                    return f"a deletion cannot go from {_name(self.deletion)} to {event.state.name}"
                return None
            case LogStartMoved():
                return None if self.deletion is None else "the partition is being deleted"
            case SegmentStarted(segment=segment):
                return self._refusal_to_start(segment)
            case SegmentUpdated():
                return self._refusal_to_update(event)

    def apply(self, event: TierEvent) -> bool:
        self.topic = event.segment.topic if isinstance(event, SegmentStarted) else event.topic
        match event:
            case SegmentStarted(segment=segment):
                return self._start(segment)
            case SegmentUpdated():
                update = _Update(event.state, event.event_timestamp_ms, event.custom)
                return self._update(event.id.int, update)
            case PartitionDeletion():
                return self._delete(event.state)
            case LogStartMoved():
                is_new = event.log_start > self.log_start
                self.log_start = max(self.log_start, event.log_start)
                return is_new

    def end(self, tombstone: Tombstone) -> bool:
        """Take back what the records under this key said."""
        if tombstone.segment_id is None:
            changed = self.deletion is not None
            self.deletion = None
            return changed
        if tombstone.segment_id == NO_COPY:
            changed = self.log_start > 0
            self.log_start = 0
            return changed
        number = tombstone.segment_id.int
        if tombstone.is_update:
            if self._early.pop(number, None) is not None:
                return True
            packed = self._copies.get(number)
            if packed is None or state_of(packed) is SegmentState.COPY_STARTED:
                return False
            self._put(number, with_state(packed, SegmentState.COPY_STARTED, 0, None))
            return True
        packed = self._copies.get(number)
        if packed is None:
            return False
        self._drop(number)
        if state_of(packed) is not SegmentState.COPY_STARTED:
            self._early[number] = _Update(*progress_of(packed), custom_of(packed))
        return True

    def _start(self, segment: RemoteSegment) -> bool:
        number = segment.id.int
        if number in self._copies:
            return False
        self._put(number, pack_copy(segment))
        early = self._early.pop(number, None)
        if self.deletion is PartitionState.DELETE_FINISHED:
            early = _GONE
        if early is not None:
            self._update(number, early)
        return True

    def _update(self, number: int, update: _Update) -> bool:
        if update.state is SegmentState.DELETE_FINISHED:
            update = _GONE
        packed = self._copies.get(number)
        if packed is None:
            known = self._early.get(number)
            if known is not None and known[:2] >= update[:2]:
                return False
            self._early[number] = update
            return True
        if progress_of(packed) >= update[:2]:
            return False
        self._put(number, with_state(packed, *update))
        return True

    def _delete(self, state: PartitionState) -> bool:
        if self.deletion is not None and self.deletion >= state:
            return False
        self.deletion = state
        if state is PartitionState.DELETE_FINISHED:
            for number in list(self._copies):
                self._update(number, _GONE)
        return True

    def _put(self, number: int, packed: bytes) -> None:
        old = self._copies.get(number)
        if old is not None:
            self._unindex(number, old)
            number = self._unsettle(number, old)
        self._copies[number] = packed
        state = state_of(packed)
        if state is not SegmentState.COPY_FINISHED:
            self._unsettled.setdefault(state, {})[number] = number
            return
        self.finished_bytes += size_of(packed)
        self._finished.add(base_of(packed), end_of(packed), number)
        if has_aborted(packed):
            self._aborting.add(base_of(packed), end_of(packed), number)
        for epoch, piece in _pieces(packed, number):
            self._indexes.setdefault(epoch, EpochIndex()).add(piece)

    def _drop(self, number: int) -> None:
        packed = self._copies.pop(number)
        self._unindex(number, packed)
        self._unsettle(number, packed)

    def _unsettle(self, number: int, packed: bytes) -> int:
        """Take it out of those of its state; return the object that is its key."""
        state = state_of(packed)
        there = self._unsettled.get(state, {})
        known = there.pop(number, number)
        if not there:
            self._unsettled.pop(state, None)
        return known

    def _unindex(self, number: int, packed: bytes) -> None:
        if state_of(packed) is not SegmentState.COPY_FINISHED:
            return
        self.finished_bytes -= size_of(packed)
        self._finished.remove(base_of(packed), number)
        if has_aborted(packed):
            self._aborting.remove(base_of(packed), number)
        for epoch, piece in _pieces(packed, number):
            index = self._indexes[epoch]
            index.remove(piece)
            if not index.starts:
                del self._indexes[epoch]

    # --- how it is decided ---

    def _refusal_to_start(self, segment: RemoteSegment) -> str | None:
        known = self._copies.get(segment.id.int)
        if segment.state is not SegmentState.COPY_STARTED:
            return f"a copy starts as {SegmentState.COPY_STARTED.name}, not as {segment.state.name}"
        if known is None:
            if segment.id.int in self._early:
                return "the copy has ended"
            if self.deletion is not None:
                return "the partition is being deleted"
            return _unsound(segment)
        if state_of(known) is not SegmentState.COPY_STARTED:
            return f"the copy is {state_of(known).name} already"
        return None if known == pack_copy(segment) else "another copy was started under this id"

    def _refusal_to_update(self, event: SegmentUpdated) -> str | None:
        packed = self._copies.get(event.id.int)
        if packed is None:
            return "no such copy was started"
        state = state_of(packed)
        if event.state is SegmentState.COPY_STARTED or event.state not in NEXT_STATES[state]:
            return f"a copy cannot go from {state.name} to {event.state.name}"
        may_bring_custom = state is SegmentState.COPY_STARTED and event.state is SegmentState.COPY_FINISHED
        if not may_bring_custom and event.custom != custom_of(packed):
            return "an update carries on the custom metadata of its copy"
        return None

    def _in_state(self, state: SegmentState) -> Collection[int]:
        return self._unsettled.get(state, ())

    def _sorted(self, numbers: Iterable[int]) -> list[RemoteSegment]:
        return sorted(map(self._whole, numbers), key=lambda segment: (segment.base_offset, segment.id))

    def _at(self, offset: int, epochs: EpochCache) -> _Found | None:
        span = epochs.span(offset)
        if span is None:
            return None
        epoch, _, epoch_end = span
        index = self._indexes.get(epoch)
        at = -1 if index is None else index.find(offset)
        if index is None or at < 0:
            return None
        return _Found(index.ids[at], epoch, epoch_end)

    def _clipped(self, found: _Found, epochs: EpochCache) -> RemoteSegment:
        segment = self._whole(found.number)
        epoch_end = found.epoch_end
        following = iter(segment.epochs)
        for epoch, _ in following:
            if epoch == found.epoch:
                break
        for epoch, start in following:
            span = epochs.span(start)
            if epoch_end != start or span is None or span[0] != epoch:
                end = min(start, epoch_end)
                break
            epoch_end = span[2]
        else:
            end = min(segment.end_offset, epoch_end)
        if end == segment.end_offset:
            return segment
        kept = tuple((epoch, start) for epoch, start in segment.epochs if start < end)
        return replace(segment, end_offset=end, epochs=kept)

    def _run_end(self, offset: int, epochs: EpochCache) -> int | None:
        """Where what copies have of this lineage from `offset` on first breaks off; None without one."""
        end = None
        at = offset
        while (span := epochs.span(at)) is not None:
            epoch, _, epoch_end = span
            index = self._indexes.get(epoch)
            if index is None or index.find(at) < 0:
                break
            at = end = min(index.run_end(at), epoch_end)
            if end < epoch_end:
                break
        return end

    def _last_readable_below(self, offset: int, log_start: int, epochs: EpochCache) -> int | None:
        """The end of what copies have below `offset` and above the log's start."""
        at = offset - 1
        while at >= log_start and (span := epochs.span(at)) is not None:
            epoch, start, _ = span
            index = self._indexes.get(epoch)
            end = None if index is None else index.last_end(at)
            if end is not None and end > max(start, log_start):
                return min(end, at + 1)
            at = start - 1
        return None

    def _rank(self, number: int) -> tuple[int, int]:
        """Shorter copies go first; the id decides between equals, the same on every broker."""
        packed = self._copies[number]
        return end_of(packed) - base_of(packed), -number

    def _is_superseded(
        self,
        number: int,
        packed: bytes,
        epochs: EpochCache,
        useful: dict[int, tuple[int, int]],
        gone: set[int],
    ) -> bool:
        for epoch, piece in _pieces(packed, number):
            if epoch > epochs.latest:
                return False
            low, high = useful.get(epoch, (0, 0))
            start, end = max(piece.start, low), min(piece.end, high)
            if start < end and not self._indexes[epoch].covers(start, end, without=gone | {number}):
                return False
        return True

    def _above(self, copies: _ByBase, start: int) -> Iterator[RemoteSegment]:
        for number in copies.ending_above(start):
            if end_of(self._copies[number]) > start:
                yield self._whole(number)

    def _whole(self, number: int) -> RemoteSegment:
        return unpack_copy(
            self._copies[number], partition=self.partition, topic=self.topic, segment_id=UUID(int=number)
        )


class _Update(NamedTuple):
    """What an update says; of two the one with the higher state counts, then the later."""

    state: SegmentState
    event_timestamp_ms: int
    custom: bytes | None


_GONE = _Update(SegmentState.DELETE_FINISHED, 0, None)
"""Nobody asks when, or for its metadata."""


class _Found(NamedTuple):
    number: int
    epoch: int
    epoch_end: int
    """Where the log's epoch ends, not the copy's."""


class _ByBase:
    """Ids of copies by base offset."""

    __slots__ = ("bases", "ids", "length_max")

    def __init__(self) -> None:
        self.bases = array("q")
        self.ids: list[int] = []
        self.length_max = 0

    def add(self, base: int, end: int, number: int) -> None:
        at = self._place(base, number)
        self.bases.insert(at, base)
        self.ids.insert(at, number)
        self.length_max = max(self.length_max, end - base)

    def remove(self, base: int, number: int) -> None:
        at = self._place(base, number)
        assert self.ids[at] == number, (base, number)
        del self.bases[at], self.ids[at]

    def ending_above(self, offset: int) -> Iterator[int]:
        """Those that may end above it. It may be read on after changes."""
        at = bisect_left(self.bases, offset - self.length_max)
        while at < len(self.ids):
            base, number = self.bases[at], self.ids[at]
            yield number
            at = self._place(base, number)
            at += at < len(self.ids) and self.ids[at] == number

    def _place(self, base: int, number: int) -> int:
        at = bisect_left(self.bases, base)
        while at < len(self.bases) and self.bases[at] == base and self.ids[at] < number:
            at += 1
        return at


# --- pieces and refusals ---


def _pieces(packed: bytes, number: int) -> Iterator[tuple[int, Piece]]:
    epochs = epochs_of(packed)
    ends = [start for _, start in epochs[1:]]
    for (epoch, start), end in zip(epochs, [*ends, end_of(packed)], strict=True):
        if start < end:
            yield epoch, Piece(start, end, number)


def _unsound(segment: RemoteSegment) -> str | None:
    """Why a copy cannot be what it says."""
    if not 0 <= segment.base_offset < segment.end_offset:
        return f"a copy of offsets {segment.base_offset} up to {segment.end_offset}"
    if not segment.epochs or segment.epochs[0][1] != segment.base_offset:
        return "the leader epochs of a copy begin where it begins"
    for (epoch, start), (next_epoch, next_start) in pairwise(segment.epochs):
        if not (epoch < next_epoch and start < next_start):
            return "the leader epochs of a copy do not rise"
    if segment.epochs[0][0] < 0 or segment.epochs[-1][1] >= segment.end_offset:
        return "the leader epochs of a copy are not its own"
    if segment.size_bytes < 0:
        return f"a copy of {segment.size_bytes} bytes"
    if segment.custom is not None:
        return "a copy has custom metadata once it is finished"
    return None


def _name(state: PartitionState | None) -> str:
    return "nothing" if state is None else state.name
