"""Whole histories of one log against a list of batches."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.errors import ErrorCode, KafkaError
from protocol.records import iter_batches, stamp
from storage.log_manager import LogManager
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.storage.support import NOW, TOPIC_ID, append, batch_of, drain, kill, manager_on, read_all

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1, file_delete_delay_ms=0)
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Thousands of syncs vouch for nothing here: no power is cut."""


@dataclass
class Stored:
    first: int
    end: int
    data: bytes
    timestamp: int
    epoch: int
    producer: int
    sequence: int
    """Its producer's next one."""


class LogHistory(RuleBasedStateMachine):
    config = CONFIG

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(dir=IN_MEMORY)
        self.now = NOW
        self.batches: list[Stored] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.manager: LogManager
        self.log: UnifiedLog

    @initialize()
    def begin(self) -> None:
        self.manager = manager_on(self.root, config=self.config, clock=lambda: self.now)
        self.log = self.manager.create("topic", TOPIC_ID, 0, self.config)

    def teardown(self) -> None:
        kill(self.manager)
        shutil.rmtree(self.root)

    # --- what happens to a log ---

    @rule(count=st.integers(1, 4), size=st.integers(0, 150), producer=st.integers(-1, 2))
    def append(self, count: int, size: int, producer: int) -> None:
        self.now += 10
        sequence = self.sequences.get(producer, 0)
        batch = batch_of(
            count,
            value_bytes=size,
            timestamp=self.now,
            producer=(producer, 0, sequence) if producer >= 0 else None,
        )
        appended = append(self.log, batch, epoch=self.epoch, now_ms=self.now)
        assert (appended.first_offset, appended.last_offset) == (self.end, self.end + count - 1)
        expected = bytearray(batch)
        stamp(expected, 0, self.end, self.epoch)
        self.batches.append(
            Stored(
                self.end, self.end + count, bytes(expected), self.now, self.epoch, producer, sequence + count
            )
        )
        self.end += count
        if producer >= 0:
            self.sequences[producer] = sequence + count

    @rule(producer=st.integers(0, 2), back=st.integers(1, 9))
    def repeat(self, producer: int, back: int) -> None:
        """A sequence that was used before is a known duplicate or out of order, never appended."""
        sequence = self.sequences.get(producer, 0) - back
        if sequence < 0:
            return
        try:
            appended = append(self.log, batch_of(1, producer=(producer, 0, sequence)), epoch=self.epoch)
        except KafkaError as error:
            assert error.code is ErrorCode.out_of_order_sequence_number
        else:
            assert appended.duplicate
            assert appended.first_offset < self.end

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1
        self.log.epoch_start(self.epoch)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.end, self.now)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        cut = max(batch.first, self.start)
        if cut != batch.first:
            return
        self.log.truncate_to(cut)
        self.batches = [kept for kept in self.batches if kept.end <= cut]
        self.end = cut
        self.forget_producers()
        self.epoch += 1

    @rule(gap=st.integers(0, 5))
    def truncate_fully(self, gap: int) -> None:
        self.log.truncate_fully(self.end + gap)
        self.batches = []
        self.start = self.end = self.end + gap
        self.sequences.clear()
        self.epoch += 1

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.log.advance_log_start(self.start)

    @rule()
    def retention(self) -> None:
        self.log.expire(self.now)
        for path in self.log.take_due_files(self.now):
            self.log.files.unlink(path)

    @rule()
    def maintain(self) -> None:
        self.now += 60_000
        drain(self.manager.maintain(self.now))

    @rule()
    def fsync(self) -> None:
        self.log.fsync()
        assert self.log.recovery_point == self.end

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.manager.close(clean=clean)
        self.manager = manager_on(self.root, config=self.config, clock=lambda: self.now)
        self.log = self.manager.logs["topic", 0]
        self.log.set_high_watermark(self.end)
        if not clean:
            self.forget_producers()

    def forget_producers(self) -> None:
        """What recovery cannot know any more: producers whose every batch was deleted."""
        known = {producer.producer_id: producer.last_sequence + 1 for producer in self.log.producers()}
        for producer in list(self.sequences):
            self.sequences[producer] = known.get(producer, 0)
        self.sequences = {
            producer: sequence for producer, sequence in self.sequences.items() if producer in known
        }

    @property
    def readable_from(self) -> int:
        """Where what can be read from the log itself begins."""
        return self.start

    # --- what must hold ---

    @invariant()
    def bounds_hold(self) -> None:
        log = self.log
        assert log.log_start_offset == self.start
        assert log.log_end_offset == self.end
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
        assert log.size == sum(segment.size for segment in log.segments)

    @invariant()
    def reads_give_back_what_was_appended(self) -> None:
        visible = [batch for batch in self.batches if batch.end > self.readable_from]
        assert read_all(self.log, self.readable_from) == b"".join(batch.data for batch in visible)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), max_bytes=st.integers(1, 2000), min_one=st.booleans())
    def read_a_piece(self, data: st.DataObject, max_bytes: int, min_one: bool) -> None:
        visible = [batch for batch in self.batches if batch.end > self.readable_from]
        if not visible:
            return
        offset = data.draw(st.integers(self.readable_from, self.end - 1))
        bound = data.draw(st.sampled_from([batch.end for batch in visible]))
        found = self.log.read(offset, max_bytes, bound=bound, min_one=min_one)
        wanted = [batch for batch in visible if batch.end > offset and batch.end <= bound]
        if found is None:
            assert not wanted or (not min_one and len(wanted[0].data) > max_bytes)
            return
        got = found.read()
        count = len(list(iter_batches(got)))
        assert got == b"".join(batch.data for batch in wanted[:count])
        assert len(got) <= max_bytes or (min_one and count == 1)
        assert found.first_offset == wanted[0].first
        assert found.next_offset == wanted[count - 1].end

    @rule(ahead=st.integers(-2000, 2000))
    def find_by_time(self, ahead: int) -> None:
        timestamp = self.now - ahead
        visible = [batch for batch in self.batches if batch.end > self.readable_from]
        at = next((batch for batch in visible if batch.timestamp >= timestamp), None)
        expected = (at.timestamp, max(at.first, self.readable_from), at.epoch) if at else None
        assert self.log.offset_for_timestamp(timestamp, self.end) == expected

    @rule()
    def epochs_match_the_batches(self) -> None:
        for batch in self.batches:
            if batch.first >= self.start:
                assert self.log.epoch_for_offset(batch.first) == batch.epoch


LogHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLogHistory = LogHistory.TestCase
