"""Slices of one partition: in order, each once, trimmed, and never past one that is missing."""

from __future__ import annotations

from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import crc32c
from protocol.pointers import BYTES, FROM_OFFSET, NOTHING, SlicePointer
from remote.bad_object import BadObject
from remote.wal.slice_queue import GAP_S, Slice, SliceQueue
from tests.broker.raw_client import batch_of

EPOCH = 3


def batch(offset: int, count: int = 1, epoch: int = EPOCH) -> bytes:
    data = bytearray(batch_of(*[b"v"] * count))
    pack_into(">q", data, 0, offset)
    pack_into(">i", data, 12, epoch)
    return bytes(data)


def pointer(start: int, end: int, data: bytes, *, position: int = 0) -> SlicePointer:
    return SlicePointer(0, position, len(data), crc32c(data), start, end, EPOCH)


def queued(queue: SliceQueue, start: int, end: int, data: bytes, log_end: int) -> Slice:
    told = pointer(start, end, data)
    assert queue.follows(told, log_end)
    each = queue.add(told)
    each.data = memoryview(data)
    return each


def offsets(records: memoryview) -> list[int]:
    size = len(batch(0))
    return [int.from_bytes(records[at : at + 8], "big") for at in range(0, len(records), size)]


Play = tuple[int, list[tuple[int, int]], list[int]]


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """Return where the log ends, the slices that are pointed to, and in which order they are read."""
    ends = sorted(draw(st.sets(st.integers(1, 30), min_size=1, max_size=8)))
    slices = list(zip([0, *ends], ends, strict=False))
    return draw(st.integers(0, ends[-1])), slices, draw(st.permutations(range(len(slices))))


@given(plays())
def test_every_offset_is_appended_once_and_in_order(
    play: tuple[int, list[tuple[int, int]], list[int]],
) -> None:
    end, slices, order = play
    queue, begun = SliceQueue(), end
    held: dict[int, tuple[Slice, bytes]] = {}
    for at, (start, stop) in enumerate(slices):
        data = b"".join(batch(offset) for offset in range(start, stop))
        if queue.follows(told := pointer(start, stop, data), end):
            held[at] = (queue.add(told), data)
    log: list[int] = []
    for at in order:
        if at not in held:
            continue
        held[at][0].data = memoryview(held[at][1])
        while (each := queue.take()) is not None:
            log += offsets(queue.records(each, end))
            end = each.pointer.end
            queue.appended(each, 0.0)
    assert log == list(range(begun, slices[-1][1]))
    assert (len(queue), queue.pointed(end, 0.0)) == (0, FROM_OFFSET)


def test_a_slice_that_begins_above_what_there_is_does_not_follow() -> None:
    queue = SliceQueue()
    assert queue.follows(pointer(5, 7, b"x"), 4) is False
    assert queue.follows(pointer(3, 4, b"x"), 4) is None
    assert queue.follows(pointer(3, 5, b"x"), 4) is True
    assert queue.follows(pointer(3, 5, b""), 4) is False, "it would pass over what it does not bring"


def test_what_follows_a_gap_of_compaction_is_asked_for_from_its_end() -> None:
    queue = SliceQueue()
    each = queued(queue, 0, 9, batch(0) + batch(4), 0)
    assert queue.take() is each
    assert offsets(queue.records(each, 0)) == [0, 4]
    queue.appended(each, 1.0)
    assert queue.pointed(5, 1.0) == 9
    assert queue.follows(pointer(9, 10, b"x"), 5)
    assert queue.pointed(5, 1.1 + GAP_S) == BYTES
    assert queue.pointed(10, 1.0) == FROM_OFFSET
    queue.cut(3)
    assert queue.pointed(3, 1.0) == FROM_OFFSET


def test_a_slice_is_trimmed_by_whole_batches() -> None:
    queue = SliceQueue()
    each = queued(queue, 0, 4, b"".join(map(batch, range(4))), 2)
    assert queue.take() is each
    assert offsets(queue.records(each, 2)) == [2, 3]
    assert offsets(queue.records(each, 4)) == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batch(1), id="another offset"),
        pytest.param(batch(0, epoch=EPOCH - 1), id="another epoch"),
        pytest.param(batch(0)[:-1], id="cut"),
        pytest.param(batch(0) + batch(1), id="more"),
    ],
)
def test_other_bytes_than_were_pointed_to_are_not_appended(data: bytes) -> None:
    """Offset and epoch of a batch are not under its own checksum."""
    queue = SliceQueue()
    each = queue.add(pointer(0, 2, batch(0)))
    each.data = memoryview(data)
    assert queue.take() is each
    with pytest.raises(BadObject, match="CRC"):
        queue.records(each, 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batch(2), id="above its end"),
        pytest.param(batch(0, epoch=EPOCH + 1), id="another epoch"),
        pytest.param(batch(0)[:40], id="no whole header"),
    ],
)
def test_batches_that_the_pointer_does_not_tell_of_are_not_appended(data: bytes) -> None:
    queue = SliceQueue()
    each = queued(queue, 0, 2, data, 0)
    assert queue.take() is each
    with pytest.raises(BadObject):
        queue.records(each, 0)


def test_a_log_that_has_moved_away_gets_nothing() -> None:
    queue = SliceQueue()
    each = queued(queue, 4, 6, batch(4) + batch(5), 4)
    assert queue.take() is each
    for end in (3, 7):
        with pytest.raises(BadObject, match="does not fit"):
            queue.records(each, end)


def test_after_a_failure_the_leader_is_asked_once() -> None:
    queue = SliceQueue()
    done: list[str] = []
    for at in range(2):
        each = queue.add(pointer(at, at + 1, b"x"))
        each.begin(lambda: done.append("done"))
    assert queue.pointed(0, 0.0) == 2
    queue.fail()
    assert (done, queue.pointed(0, 0.0)) == (["done"] * 2, BYTES)
    assert not queue.follows(pointer(0, 1, b"x"), 0)
    queue.got_bytes()
    assert queue.pointed(2, 0.0) == FROM_OFFSET


def test_nothing_is_asked_for_while_there_is_no_room() -> None:
    queue = SliceQueue()
    queue.add(pointer(0, 1, b"x"))
    queue.waits_for_room = True
    assert queue.pointed(0, 0.0) == NOTHING
