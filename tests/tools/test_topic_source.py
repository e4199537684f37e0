"""Pieces of fetched record sets: no hole, no aborted data, nothing that is cut off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.records import Record, build_batch, end_txn_marker
from tools.topic_source import Aborted, Piece, pieces

PRODUCERS = (11, 12, 13)


def data(base: int, producer: int, count: int = 2) -> bytes:
    records = [Record(base + at, 5, None, b"%d" % (base + at)) for at in range(count)]
    is_plain = producer < 0
    return bytes(
        build_batch(
            records,
            base_offset=base,
            producer_id=producer,
            producer_epoch=-1 if is_plain else 0,
            base_sequence=-1 if is_plain else 0,
            transactional=not is_plain,
        )
    )


def row(producer: int, first: int) -> Any:
    return SimpleNamespace(producer_id=producer, first_offset=first)


@given(st.lists(st.tuples(st.sampled_from([-1, *PRODUCERS]), st.sampled_from(["data", "commit", "abort"]))))
def test_what_is_aborted_is_passed_over(steps: list[tuple[int, str]]) -> None:
    log, offset = b"", 0
    open_at: dict[int, int] = {}
    open_batches: dict[int, list[int]] = {}
    aborted, visible = [], []
    for producer, what in steps:
        if what == "data":
            log += data(offset, producer)
            if producer < 0:
                visible.append(offset)
            else:
                open_at.setdefault(producer, offset)
                open_batches.setdefault(producer, []).append(offset)
            offset += 2
        elif producer >= 0:
            log += end_txn_marker(
                commit=what == "commit",
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=5,
                base_offset=offset,
            )
            offset += 1
            if what == "commit":
                visible += open_batches.pop(producer, [])
            elif producer in open_at:
                aborted.append(row(producer, open_at[producer]))
                open_batches.pop(producer, None)
            open_at.pop(producer, None)
    for producer, batches in open_batches.items():  # above what read_committed reads
        del producer
        visible += batches
    found = pieces(log, 0, Aborted(aborted))
    assert sorted(piece.first for piece in found if piece.batch is not None) == sorted(visible)
    assert_no_hole(found, 0, offset)


def assert_no_hole(found: list[Piece], start: int, end: int) -> None:
    at = start
    for piece in found:
        assert piece.first == at
        at = piece.end
    assert at == end


@given(st.integers(0, 400))
def test_what_is_cut_off_is_left_for_the_next_fetch(size: int) -> None:
    log = b"".join(data(offset, -1) for offset in range(0, 8, 2))
    one = len(data(0, -1))
    found = pieces(log[: min(size, len(log))], 0, Aborted(()))
    assert len(found) == min(size, len(log)) // one


def test_a_batch_below_the_offset_is_not_delivered_again() -> None:
    log = data(0, -1, 5) + data(5, -1, 5)
    assert [(piece.first, piece.end) for piece in pieces(log, 5, Aborted(()))] == [(5, 10)]
    assert [(piece.first, piece.end) for piece in pieces(log, 3, Aborted(()))] == [(3, 5), (5, 10)]
