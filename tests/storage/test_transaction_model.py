"""Whole histories of transactions in one log: what it knows of them equals what its batches say."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.errors import ErrorCode, KafkaError
from protocol.records import BatchHeader, iter_batches, iter_records, parse_control, parse_header
from storage.loader import replay_producer
from storage.log import NewMarker
from storage.log_manager import LogManager
from storage.policy import LogConfig
from storage.producers import ProducerTable, Verification
from storage.unified_log import UnifiedLog
from tests.storage.support import NOW, TOPIC_ID, batch_of, kill, manager_on, read_all
from tests.storage.test_log_model import IN_MEMORY

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, retention_ms=-1, file_delete_delay_ms=0)
PRODUCERS = st.integers(1, 3)
COORDINATOR_EPOCH = 2


class TransactionHistory(RuleBasedStateMachine):
    """Producer 3 has an epoch for every transaction; the others keep theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(dir=IN_MEMORY)
        self.manager: LogManager
        self.log: UnifiedLog
        self.asked: dict[int, Verification] = {}
        """The questions of each producer, and what its next batch brings with it."""
        self.valid: set[int] = set()
        """Whose question nothing has ended yet."""

    @initialize()
    def begin(self) -> None:
        self.manager = manager_on(self.root, config=CONFIG)
        self.log = self.manager.create("topic", TOPIC_ID, 0, CONFIG)

    def teardown(self) -> None:
        kill(self.manager)
        shutil.rmtree(self.root)

    def next_of(self, producer: int) -> tuple[int, int]:
        """The epoch and sequence with which a producer goes on."""
        entry = self.log.producer_table.known(producer)
        return (0, 0) if entry is None else (entry.epoch, entry.next_sequence)

    @rule(producer=PRODUCERS)
    def ask(self, producer: int) -> None:
        epoch, sequence = self.next_of(producer)
        table = self.log.producer_table
        asked = table.begin_verification(producer, epoch, sequence, adds=producer == 3, now_ms=NOW)
        is_open = table.has_open_transaction(producer, epoch)
        assert (asked is None) == is_open
        if asked is not None:
            self.asked[producer] = asked
            self.valid.add(producer)

    @rule(producer=PRODUCERS, count=st.integers(1, 3), size=st.integers(0, 100))
    def append(self, producer: int, count: int, size: int) -> None:
        epoch, sequence = self.next_of(producer)
        table = self.log.producer_table
        is_open = table.has_open_transaction(producer, epoch)
        asked = self.asked.pop(producer, None)
        may_append = is_open or (asked is not None and producer in self.valid)
        batch = batch_of(count, producer=(producer, epoch, sequence), transactional=True, value_bytes=size)
        try:
            self.log.append(batch, parse_header(batch), 0, leader_epoch=0, now_ms=NOW, verified=asked)
        except KafkaError as error:
            assert not may_append
            assert error.code is ErrorCode.invalid_txn_state
        else:
            assert may_append
            self.valid.discard(producer)
            self.log.flush_staged()

    @rule(producer=PRODUCERS, size=st.integers(0, 100))
    def append_short(self, producer: int, size: int) -> None:
        """By the short way, which goes on with an open transaction alone."""
        epoch, sequence = self.next_of(producer)
        is_open = self.log.producer_table.has_open_transaction(producer, epoch)
        batch = batch_of(1, producer=(producer, epoch, sequence), transactional=True, value_bytes=size)
        header = parse_header(batch)
        at = self.log.append_plain(
            memoryview(batch),
            0,
            header.base_timestamp,
            header.max_timestamp,
            producer,
            epoch,
            sequence,
            0,
            NOW,
            True,
        )
        assert at < 0 or is_open
        self.log.flush_staged()

    @rule(producer=PRODUCERS, committed=st.booleans(), again=st.booleans())
    def end(self, producer: int, committed: bool, again: bool) -> None:
        entry = self.log.producer_table.known(producer)
        version = 2 if producer == 3 else 0
        epoch = (0 if entry is None else entry.epoch) + (producer == 3)
        marker = NewMarker(producer, epoch, COORDINATOR_EPOCH, committed, version)
        if version and entry is not None and entry.txn_first_offset >= 0:
            # that of the transaction before is late
            before = self.refusal(marker._replace(producer_epoch=epoch - 1))
            assert before is ErrorCode.invalid_producer_epoch
        self.log.append_marker(marker, leader_epoch=0, now_ms=NOW)
        self.valid.discard(producer)
        self.log.flush_staged()
        if again:
            self.log.append_marker(marker, leader_epoch=0, now_ms=NOW)
            self.log.flush_staged()
        stale = marker._replace(producer_epoch=epoch + 1, coordinator_epoch=COORDINATOR_EPOCH - 1)
        assert self.refusal(stale) is ErrorCode.transaction_coordinator_fenced

    def refusal(self, marker: NewMarker) -> ErrorCode | None:
        try:
            self.log.append_marker(marker, leader_epoch=0, now_ms=NOW)
        except KafkaError as error:
            return error.code
        return None

    @rule(count=st.integers(1, 2))
    def append_plain(self, count: int) -> None:
        batch = batch_of(count)
        self.log.append(batch, parse_header(batch), 0, leader_epoch=0, now_ms=NOW)
        self.log.flush_staged()

    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        log = self.log
        log.set_high_watermark(data.draw(st.integers(log.high_watermark, log.log_end_offset)))

    @rule()
    def roll(self) -> None:
        self.log.roll(self.log.log_end_offset, NOW)

    @rule()
    def fsync(self) -> None:
        self.log.fsync()

    @precondition(lambda self: self.headers())
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self.headers())).base_offset
        if at < self.log.high_watermark:
            return  # what is committed is never cut
        self.log.truncate_to(at)
        self.asked.clear()
        self.valid.clear()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        high_watermark = self.log.high_watermark
        self.manager.close(clean=clean)
        self.manager = manager_on(self.root, config=CONFIG)
        self.log = self.manager.logs["topic", 0]
        self.log.set_high_watermark(high_watermark)
        if clean:
            # a snapshot does not say which markers are replicated
            self.log.set_high_watermark(self.log.log_end_offset)
        self.asked.clear()
        self.valid.clear()

    # --- what always holds ---

    def headers(self) -> list[BatchHeader]:
        return [header for _, header in iter_batches(read_all(self.log))]

    @invariant()
    def the_table_equals_a_replay(self) -> None:
        table = ProducerTable()
        data = read_all(self.log)
        for at, header in iter_batches(data):
            replay_producer(table, data[at : at + header.size], header)
        mine = self.log.producer_table
        assert sorted(table.active(), key=lambda each: each.producer_id) == sorted(
            mine.active(), key=lambda each: each.producer_id
        )
        assert list(table.ongoing.items()) == list(mine.ongoing.items())

    @invariant()
    def readers_see_what_is_decided_and_replicated(self) -> None:
        log = self.log
        data = read_all(log)
        first: dict[int, int] = {}
        ended: list[tuple[int, int, int, bool]] = []
        for at, header in iter_batches(data):
            if header.is_control:
                (record,) = iter_records(data, at, header)
                begun = first.pop(header.producer_id, None)
                if begun is not None:
                    is_aborted = parse_control(record)[0] == 0
                    ended.append((header.producer_id, begun, header.base_offset, is_aborted))
            elif header.is_transactional:
                first.setdefault(header.producer_id, header.base_offset)
        held = [*first.values(), *(begun for _, begun, at, _ in ended if at >= log.high_watermark)]
        assert log.last_stable_offset == min([log.high_watermark, *held])
        for start in range(0, log.log_end_offset, 3):
            end = min(start + 5, log.log_end_offset)
            expected = {
                (producer, begun)
                for producer, begun, at, is_aborted in ended
                if is_aborted and at >= start and begun < end
            }
            found = set(log.aborted_in(start, end))
            # an index may tell of more, that begin behind what was read
            assert expected <= found
            assert found <= {(producer, begun) for producer, begun, _, is_aborted in ended if is_aborted}


TransactionHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_histories = TransactionHistory.TestCase
