"""Whole histories of a log whose closed segments are copied, against the batches and the copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from protocol.errors import ErrorCode
from storage.epochs import EpochCache
from storage.loader import EPOCHS
from storage.log import TieredOffset
from storage.producers import decode_producers
from tests.storage.support import drain, manager_on
from tests.storage.test_log_model import CONFIG, LogHistory


@dataclass
class Copy:
    base: int
    end: int
    data: bytes
    epochs: list[tuple[int, int]]
    producers: bytes
    is_whole: bool = True
    """Otherwise a part of one that was cut."""


class TieredHistory(LogHistory):
    """A log, and the copies of its lineage."""

    config = replace(
        CONFIG, remote_storage_enable=True, local_retention_ms=50, local_retention_bytes=2500, retention_ms=-1
    )

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.knows_producers = True
        self.is_file_lost = False

    @initialize()
    def begin(self) -> None:
        super().begin()

    @property
    def tiered_end(self) -> int:
        return self.copies[-1].end if self.copies else 0

    @property
    def readable_from(self) -> int:
        return self.log.local_log_start_offset

    def was_cut(self) -> None:
        """The tier looks again at what it has of this log; the log never thinks that it is more."""
        self.copies = [copy for copy in self.copies if copy.base < self.end and copy.end > self.start]
        if self.copies and self.copies[-1].end > self.end:
            self.copies[-1] = replace(self.copies[-1], end=self.end, is_whole=False)
        assert self.log.tiered_end <= max(self.end, self.tiered_end)
        self.log.tiered_end = self.tiered_end

    # --- what the tier does ---

    @rule(most=st.integers(1, 3))
    def copy(self, most: int) -> None:
        start = max(self.tiered_end, self.start)
        found = self.log.closed_segments(start, self.log.last_stable_offset)
        assert all(left.end_offset == right.base_offset for left, right in pairwise(found))
        assert not found or found[0].base_offset <= start < found[0].end_offset
        for closed in found[:most]:
            batches = [b for b in self.batches if closed.base_offset <= b.first < closed.end_offset]
            with self.log.open_segment(closed.base_offset) as held:
                data = held.file.pread(held.size, 0)
            assert held.segment == closed
            stored = b"".join(batch.data for batch in batches)
            assert data == stored or (closed.base_offset < self.start and data.endswith(stored))
            assert closed.max_timestamp >= max((batch.timestamp for batch in batches), default=-1)
            until = EpochCache(held.epochs_until_end)
            for batch in batches:
                if batch.first >= self.start:
                    assert until.epoch_for(batch.first) == batch.epoch
                    assert EpochCache(held.epochs).epoch_for(batch.first) == batch.epoch
            self.copies.append(
                Copy(
                    closed.base_offset,
                    closed.end_offset,
                    data,
                    held.epochs_until_end,
                    self.snapshot_at(closed.end_offset),
                )
            )
        self.log.tiered_end = self.tiered_end

    @rule(batches=st.integers(1, 6), producer=st.integers(-1, 2), is_freed=st.booleans())
    def fill_and_copy(self, batches: int, producer: int, is_freed: bool) -> None:
        """What a busy log goes through, so that most histories have something in the tier alone."""
        for _ in range(batches):
            self.append(2, 100, producer)
        self.roll()
        self.copy(most=100)
        if is_freed:
            self.free()

    def snapshot_at(self, end: int) -> bytes:
        steps = self.log.producers_until(end)
        while True:
            try:
                next(steps)
            except StopIteration as found:
                data: bytes = found.value
                break
        table, note = decode_producers(data)
        assert note == b""
        if self.knows_producers:
            for producer, sequence in self.sequences_until(end).items():
                assert table.entries[producer].next_sequence == sequence
        return data

    def sequences_until(self, end: int) -> dict[int, int]:
        """Where the producers were of which a batch is still in the log, or in the tier."""
        found = {}
        for batch in self.batches:
            if self.start <= batch.first and batch.end <= end and batch.producer >= 0:
                found[batch.producer] = batch.sequence
        return found

    @rule()
    def free(self) -> None:
        before = self.log.size
        freed = self.log.free_tiered(self.now)
        assert self.log.size == before - freed
        assert not self.log.closed_segments(self.start, self.tiered_end) or freed

    @precondition(lambda self: any(copy.is_whole for copy in self.copies))
    @rule(data=st.data())
    def bootstrap(self, data: st.DataObject) -> None:
        copy = data.draw(st.sampled_from([copy for copy in self.copies if copy.is_whole]))
        done: list[object] = []
        self.log.begin_at(
            copy.end, log_start=self.start, epochs=copy.epochs, producers=copy.producers, done=done.append
        )
        assert done == [None]
        self.batches = [batch for batch in self.batches if batch.end <= copy.end]
        self.end = copy.end
        assert self.log.local_log_start_offset == self.end
        told = decode_producers(copy.producers)[0].entries
        self.sequences = {each.producer_id: each.last_sequence + 1 for each in self.log.producers()}
        assert self.sequences == {producer: entry.next_sequence for producer, entry in told.items()}
        self.epoch += 1
        self.was_cut()

    @rule(clean=st.booleans())
    def lose_epochs(self, clean: bool) -> None:
        self.manager.close(clean=clean)
        self.log.files.unlink(f"{self.log.directory}/{EPOCHS}")
        self.is_file_lost = True
        self.open_again(clean=clean)
        self.is_file_lost = clean  # what a clean stop noted serves as well, until something is to be written

    # --- what happens to any log, and what it does to the copies ---

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        local = self.log.local_log_start_offset
        super().truncate(data)
        if self.end < local:
            self.knows_producers = False
        self.was_cut()

    @rule(gap=st.integers(0, 5))
    def truncate_fully(self, gap: int) -> None:
        super().truncate_fully(gap)
        self.copies = []
        self.knows_producers = True
        self.was_cut()

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        super().delete_records(data)
        self.was_cut()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.manager.close(clean=clean)
        self.open_again(clean=clean)

    def open_again(self, *, clean: bool) -> None:
        local, is_noted = self.log.local_log_start_offset, clean and not self.log.may_lack_end
        self.manager = manager_on(self.root, config=self.config, clock=lambda: self.now)
        self.log = self.manager.logs["topic", 0]
        assert self.log.local_log_start_offset <= max(local, self.start)
        self.log.set_high_watermark(self.end)
        self.log.tiered_end = self.tiered_end
        if self.log.epochs_incomplete:
            assert self.is_file_lost and not is_noted
            below = [copy for copy in self.copies if copy.end >= self.log.local_log_start_offset]
            self.log.restore_epochs(below[0].epochs)
        assert not self.log.epochs_incomplete
        if not clean:
            self.forget_producers()

    @rule()
    def maintain(self) -> None:
        self.now += 60_000
        drain(self.manager.maintain(self.now))

    # --- what must hold ---

    @invariant()
    def nothing_goes_that_is_not_in_the_tier(self) -> None:
        local = self.log.local_log_start_offset
        assert self.start <= local <= max(self.tiered_end, self.start)
        assert self.log.high_watermark >= local
        for batch in self.batches:
            if self.start <= batch.first < local:
                assert any(
                    copy.base <= batch.first < copy.end and batch.data in copy.data for copy in self.copies
                )

    @invariant()
    def what_is_in_the_tier_alone_is_told(self) -> None:
        for offset in {self.start, self.log.local_log_start_offset - 1}:
            if self.start <= offset < self.log.local_log_start_offset:
                with pytest.raises(TieredOffset) as found:
                    self.log.read(offset, 100, bound=self.end, min_one=True)
                assert found.value.code is ErrorCode.offset_moved_to_tiered_storage

    @invariant()
    def sizes_add_up(self) -> None:
        assert self.log.size_from(0) == self.log.size
        assert self.log.size_from(self.end) == 0
        local = [batch for batch in self.batches if batch.first >= self.log.segments[-1].base_offset]
        if local:
            assert self.log.size_from(self.end - 1) == sum(len(batch.data) for batch in local)

    @invariant()
    def producers_are_known(self) -> None:
        if self.knows_producers:
            known = {each.producer_id: each.last_sequence + 1 for each in self.log.producers()}
            for producer, sequence in self.sequences_until(self.end).items():
                assert known[producer] == sequence

    @rule()
    def epochs_match_the_batches(self) -> None:
        super().epochs_match_the_batches()
        assert not self.log.epochs_incomplete


TieredHistory.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink one takes minutes
)
TestTieredHistory = TieredHistory.TestCase
