"""Which copy a log begins at, and what is read of it: damage is told, and nothing is taken for granted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from remote.bad_object import BadObject
from remote.cold.bootstrap import (
    RestorePoint,
    copies_ahead,
    copy_before,
    copy_below_local,
    fetch_epochs,
    fetch_restore_point,
    is_continued,
)
from remote.cold.fold import PartitionFold
from remote.cold.segments import RemoteSegment, SegmentStarted, SegmentState
from remote.cold.storage_manager import (
    IndexKind,
    StorageManager,
)
from storage.epochs import EpochCache
from storage.producers import ProducerTable
from tests.broker.raw_client import batch_of
from tests.remote.cold.copies import PARTITION, Lineage, copy_of, update


class Shelf:
    """The indexes and bytes of copies, as a storage manager would give them."""

    def __init__(self) -> None:
        self.indexes: dict[tuple[UUID, IndexKind], bytes] = {}
        self.data: dict[UUID, bytes] = {}
        self.asked: list[tuple[int, IndexKind]] = []

    def put(
        self, copy: RemoteSegment, lineage: Lineage, table: ProducerTable | None = None, data: bytes = b""
    ) -> RemoteSegment:
        checkpoint = EpochCache(entry for entry in lineage if entry[1] < copy.end_offset).encode()
        self.indexes[copy.id, IndexKind.LEADER_EPOCH] = checkpoint
        self.indexes[copy.id, IndexKind.PRODUCER_SNAPSHOT] = (table or ProducerTable()).encode()
        self.data[copy.id] = data
        return replace(copy, size_bytes=len(data))

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        self.asked.append((segment.base_offset, kind))
        return self.indexes[segment.id, kind]

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        return self.data[segment.id][start:end]


def fold_of(*copies: RemoteSegment) -> PartitionFold:
    fold = PartitionFold(PARTITION)
    for copy in copies:
        fold.apply(SegmentStarted(segment=copy))
        fold.apply(update(copy, SegmentState.COPY_FINISHED))
    return fold


def restore_point(shelf: Shelf, fold: PartitionFold, copy: RemoteSegment, end: int) -> RestorePoint:
    storage: StorageManager = shelf  # type: ignore[assignment]
    return asyncio.run(fetch_restore_point(storage, fold, copy, end))


OLD: Lineage = ((0, 0), (1, 10))
NEW: Lineage = ((0, 0), (1, 10), (3, 15))


@pytest.mark.requirement("1023-16")
def test_the_copy_before_an_offset_is_that_of_the_leaders_epoch() -> None:
    old, new = copy_of(OLD, 8, 20, number=1), copy_of(NEW, 8, 20, number=2)
    fold = fold_of(old, new)
    found = {epoch: copy_before(fold, 20, epoch=epoch) for epoch in (0, 1, 2, 3)}
    assert {epoch: copy and copy.id for epoch, copy in found.items()} == {
        0: None,
        1: old.id,
        2: None,
        3: new.id,
    }
    assert copy_before(fold, 21, epoch=3) is None
    assert copy_before(fold, 8, epoch=0) is None


def test_a_log_without_its_epochs_follows_the_copy_that_goes_on_with_its_own() -> None:
    old, new = copy_of(OLD, 8, 30, number=1), copy_of(NEW, 8, 20, number=2)
    fold = fold_of(old, new)
    cases: list[tuple[list[tuple[int, int]], RemoteSegment]] = [
        ([(1, 18)], old),  # it has epoch 1 there itself
        ([(3, 18)], new),
        ([(4, 18)], new),  # the newest that may precede it
        ([], new),
    ]
    for own, expected in cases:
        found = copy_below_local(fold, EpochCache(own), 18)
        assert found is not None
        assert found.id == expected.id, own
    assert copy_below_local(fold, EpochCache([(4, 40)]), 40) is None


def test_a_log_without_its_end_goes_on_with_the_newest_copy_or_one_of_its_own_epochs() -> None:
    old, new = copy_of(OLD, 8, 30, number=1), copy_of(NEW, 8, 20, number=2)
    fold = fold_of(old, new)

    def ahead(lineage: Lineage, log_end: int) -> list[tuple[int, int]]:
        copies = copies_ahead(fold, EpochCache(lineage), log_start=0, local_start=8, log_end=log_end)
        return [(copy.id.int, end) for copy, end in copies]

    assert ahead(OLD, 12) == [(new.id.int, 20), (old.id.int, 30)]
    assert ahead(NEW, 16) == [(new.id.int, 20)]
    assert ahead(((0, 0),), 9) == [(new.id.int, 20), (old.id.int, 10)]
    assert ahead(OLD, 25) == [(old.id.int, 30)]
    assert ahead(OLD, 30) == []
    assert copies_ahead(fold_of(), EpochCache(OLD), log_start=0, local_start=0, log_end=1) == []


@pytest.mark.parametrize(
    ("lineage", "log_end", "expected"),
    [
        (((0, 0),), 5, True),
        (((0, 0),), 10, True),
        (((0, 0),), 11, False),  # its own record of epoch 0 is where the copy has one of epoch 1
        (((0, 0), (1, 10)), 15, True),
        (((0, 0), (1, 10)), 16, False),
        (((0, 0), (1, 9)), 10, False),
        (((0, 0), (1, 10), (2, 12)), 14, False),
        (((0, 0), (3, 12)), 14, False),
        (((0, 2),), 5, True),  # it starts later
        (((0, 2),), 2, False),  # nothing in common
        ((), 5, False),
    ],
)
def test_a_log_is_continued_by_a_copy_that_agrees_in_all_that_both_know(
    lineage: Lineage, log_end: int, *, expected: bool
) -> None:
    point = RestorePoint(start=20, epochs=NEW, producers=b"")
    assert is_continued(EpochCache(lineage), log_end, point) is expected
    later = replace(point, epochs=tuple(EpochCache(NEW).entries_within(4, 20)))
    assert is_continued(EpochCache(lineage), log_end, later) is (expected and log_end > 4)


def test_a_point_tells_the_epochs_and_producers_at_the_end_of_its_copy() -> None:
    shelf, table = Shelf(), ProducerTable()
    copy = shelf.put(copy_of(NEW, 8, 20, number=1), NEW, table)
    point = restore_point(shelf, fold_of(copy), copy, 20)
    assert (point.start, point.epochs, point.producers) == (20, NEW, table.encode())
    assert point.known_from == 0
    assert shelf.asked == [(8, IndexKind.LEADER_EPOCH), (8, IndexKind.PRODUCER_SNAPSHOT)]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (IndexKind.LEADER_EPOCH, b""),
        (IndexKind.LEADER_EPOCH, b"0\n1\n0 0\n"),  # another log's
        (IndexKind.LEADER_EPOCH, EpochCache(OLD).encode()),
        (IndexKind.LEADER_EPOCH, b"0\n3\n0 0\n1 10\n"),
        (IndexKind.PRODUCER_SNAPSHOT, b""),
        (IndexKind.PRODUCER_SNAPSHOT, ProducerTable().encode()[:-1] + b"x"),
    ],
)
def test_what_does_not_belong_to_the_copy_is_refused(kind: IndexKind, data: bytes) -> None:
    shelf = Shelf()
    copy = shelf.put(copy_of(NEW, 8, 20, number=1), NEW)
    shelf.indexes[copy.id, kind] = data
    with pytest.raises(BadObject, match=str(copy.id)):
        restore_point(shelf, fold_of(copy), copy, 20)


def test_epochs_are_read_up_to_the_end_of_the_copy() -> None:
    shelf = Shelf()
    copy = shelf.put(copy_of(NEW, 8, 20, number=1), NEW)
    shelf.indexes[copy.id, IndexKind.LEADER_EPOCH] = EpochCache((*NEW, (5, 20))).encode()
    storage: StorageManager = shelf  # type: ignore[assignment]
    assert asyncio.run(fetch_epochs(storage, copy)) == NEW


# --- inside a copy ---

FLAT: Lineage = ((0, 0),)


def sent(base: int, producer_id: int, *, records: int = 2) -> bytes:
    return bytes(
        batch_of(
            *[b"x"] * records,
            base_offset=base,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
    )


def entries(point: RestorePoint) -> set[int]:
    from storage.producers import decode_producers

    return set(decode_producers(point.producers)[0].entries)


@pytest.mark.parametrize("piece_bytes", [1, 61, 70, 200, 1 << 18])
def test_the_producers_inside_a_copy_are_those_before_it_and_in_it(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.bootstrap.PIECE_BYTES", piece_bytes)
    shelf = Shelf()
    first = shelf.put(copy_of(FLAT, 0, 2, number=1), FLAT, data=sent(0, 5))
    known = restore_point(shelf, fold_of(first), first, 2)
    assert entries(known) == set()  # as its snapshot has it, which is believed
    second = shelf.put(copy_of(FLAT, 2, 8, number=2), FLAT, data=sent(2, 6) + sent(4, 7) + sent(6, 8))
    fold = fold_of(first, second)
    assert entries(restore_point(shelf, fold, second, 6)) == {6, 7}
    assert (2, IndexKind.PRODUCER_SNAPSHOT) not in shelf.asked
    overlapping = shelf.put(copy_of(FLAT, 0, 4, number=3), FLAT, data=sent(0, 5) + sent(2, 6))
    fold = fold_of(overlapping, second)
    assert entries(restore_point(shelf, fold, second, 6)) == {5, 6, 7}


def test_an_object_that_is_too_short_restores_nothing() -> None:
    shelf = Shelf()
    copy = shelf.put(copy_of(FLAT, 0, 4, number=1), FLAT, data=sent(0, 5) + sent(2, 6))
    shelf.data[copy.id] = sent(0, 5)[:-1]
    with pytest.raises(BadObject, match="ends at byte"):
        restore_point(shelf, fold_of(copy), copy, 2 + 1)


def test_a_damaged_batch_restores_nothing() -> None:
    shelf = Shelf()
    data = bytearray(sent(0, 5) + sent(2, 6))
    data[-1] ^= 1
    copy = shelf.put(copy_of(FLAT, 0, 8, number=1), FLAT, data=bytes(data))
    assert entries(restore_point(shelf, fold_of(copy), copy, 2)) == {5}
    with pytest.raises(BadObject, match="is damaged"):
        restore_point(shelf, fold_of(copy), copy, 4)
