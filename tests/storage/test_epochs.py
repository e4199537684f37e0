"""Leader epochs against a list of where each began."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.epochs import OPEN_END, UNDEFINED, EpochCache, decode_epochs

HISTORY = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12).map(
    lambda steps: [
        (sum(epoch for epoch, _ in steps[: at + 1]), sum(size for _, size in steps[: at + 1]))
        for at in range(len(steps))
    ]
)


def cache_of(history: list[tuple[int, int]]) -> EpochCache:
    cache = EpochCache()
    for epoch, start in history:
        cache.assign(epoch, start_offset=start)
    return cache


@given(HISTORY, st.integers(0, 60))
def test_each_offset_belongs_to_the_last_epoch_that_started_at_or_before_it(
    history: list[tuple[int, int]], offset: int
) -> None:
    started = [(start, epoch) for epoch, start in history if start <= offset]
    assert cache_of(history).epoch_for(offset) == (max(started)[1] if started else None)


@given(HISTORY, st.integers(-1, 40))
def test_an_epoch_ends_where_the_next_one_starts(history: list[tuple[int, int]], asked: int) -> None:
    cache = cache_of(history)
    entries = cache.entries()
    epoch, end = cache.end_offset_for(asked, log_end_offset=1000)
    if asked < 0 or not entries or asked > entries[-1][0]:
        assert (epoch, end) == UNDEFINED
    elif asked == entries[-1][0]:
        assert (epoch, end) == (asked, 1000)
    else:
        assert end == min(start for other, start in entries if other > asked)
        assert epoch == max((other for other, _ in entries if other <= asked), default=asked)


@given(HISTORY, st.integers(0, 50))
def test_truncation_forgets_only_what_is_gone(history: list[tuple[int, int]], cut: int) -> None:
    whole = cache_of(history)
    head, tail = cache_of(history), cache_of(history)
    head.truncate_from_end(cut)
    tail.truncate_from_start(cut)
    for offset in range(60):
        if offset < cut:
            assert head.epoch_for(offset) == whole.epoch_for(offset)
        else:
            assert tail.epoch_for(offset) == whole.epoch_for(offset)
    assert all(start < cut for _, start in head.entries())
    assert sum(start < cut for _, start in tail.entries()) == 0


@given(HISTORY)
def test_the_epoch_checkpoint_round_trips(history: list[tuple[int, int]]) -> None:
    cache = cache_of(history)
    assert EpochCache(decode_epochs(cache.encode())) == cache
    epochs, starts = zip(*cache.entries(), strict=True) if cache.entries() else ((), ())
    assert list(epochs) == sorted(set(epochs)) and list(starts) == sorted(set(starts))


@pytest.mark.parametrize("bad", [b"", b"1\n0\n", b"0\n2\n1 1\n", b"0\n1\nx 1\n", b"0\n1\n1\n", b"\xff\xfe"])
def test_a_bad_epoch_checkpoint_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        decode_epochs(bad)


@given(HISTORY)
def test_a_torn_epoch_checkpoint_is_refused_wherever_it_ends(history: list[tuple[int, int]]) -> None:
    data = cache_of(history).encode()
    for size in range(len(data)):
        with pytest.raises(ValueError):
            decode_epochs(data[:size])


@given(HISTORY, st.integers(0, 60))
def test_spans_are_where_each_epoch_begins_and_ends(history: list[tuple[int, int]], offset: int) -> None:
    cache = cache_of(history)
    spans = list(cache.spans(offset))
    assert spans == [span for span in cache.spans() if span[2] > offset]
    assert [(epoch, start) for epoch, start, _ in cache.spans()] == cache.entries()
    assert [end for _, _, end in cache.spans()] == [start for _, start in cache.entries()[1:]] + (
        [OPEN_END] if cache.entries() else []
    )
    here = [span for span in cache.spans() if span[1] <= offset < span[2]]
    assert cache.span(offset) == (here[0] if here else None)
    assert cache.epoch_for(offset) == (here[0][0] if here else None)


@given(HISTORY, st.integers(0, 60))
def test_the_start_of_an_epoch_is_that_of_its_entry(history: list[tuple[int, int]], epoch: int) -> None:
    cache = cache_of(history)
    assert cache.start_of(epoch) == dict(cache.entries()).get(epoch)
