"""What every log does, whatever holds its bytes: appends, reads, cuts, its start, epochs and producers, as
seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import end_txn_marker, iter_batches, parse_header, stamp
from storage.log import AbstractLog, LogOffline, ReadCursor, TieredOffset
from storage.policy import LogConfig
from storage.producers import UNASKED, CorruptSnapshot, ProducerTable, decode_producers
from storage.segment import Segment
from tests.storage.support import NOW, TOPIC_ID, batch_of, kill, manager_on

MakeLog = Callable[..., AbstractLog]
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)


@pytest.fixture(params=["unified"])
def make_log(tmp_path: Path) -> Iterator[MakeLog]:
    managers = []

    def make(config: LogConfig = SMALL) -> AbstractLog:
        manager = manager_on(tmp_path / str(len(managers)), config=config)
        managers.append(manager)
        return manager.create("topic", TOPIC_ID, 0, config)

    yield make
    for manager in managers:
        kill(manager)


@pytest.fixture
def log(make_log: MakeLog) -> AbstractLog:
    return make_log()


def put(
    log: AbstractLog,
    count: int = 1,
    *,
    epoch: int = 0,
    sequence: int | None = None,
    timestamp: int = NOW,
    **options: object,
) -> tuple[int, int]:
    """Append a batch, all of it committed; its first and last offset."""
    producer = None if sequence is None else (7, 0, sequence)
    batch = batch_of(count, producer=producer, timestamp=timestamp, **options)
    appended = log.append_records(batch, leader_epoch=epoch, now_ms=NOW, verified=UNASKED)
    log.set_high_watermark(log.log_end_offset)
    return appended.first_offset, appended.last_offset


def offsets(log: AbstractLog, start: int | None = None) -> list[tuple[int, int]]:
    """(first, last) of every batch that a reader gets from `start` on."""
    at = log.log_start_offset if start is None else start
    found = []
    while (part := log.read(at, 150, bound=log.log_end_offset, min_one=True)) is not None:
        found += [(header.base_offset, header.last_offset) for _, header in iter_batches(part.read())]
        at = part.next_offset
    return found


def ended(log: AbstractLog, *, commit: bool) -> None:
    marker = end_txn_marker(
        commit=commit, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=NOW
    )
    log.append_records(marker, leader_epoch=0, now_ms=NOW, origin="coordinator")
    log.set_high_watermark(log.log_end_offset)


# --- appending and reading ---


def read_on(log: AbstractLog, at: int, cursor: ReadCursor | None) -> tuple[int, ReadCursor | None]:
    """Read on to the log's end, and compare with what a look-up finds. Return where the next read begins."""
    while True:
        expected = log.read(at, 150, bound=log.log_end_offset, min_one=True)
        found, cursor = log.read_on(at, 150, bound=log.log_end_offset, cursor=cursor)
        assert (found is None) is (expected is None)
        if found is None or expected is None:
            assert at == log.log_end_offset
            return at, cursor
        assert (found.read(), found.next_offset) == (expected.read(), expected.next_offset)
        at = found.next_offset


def test_who_reads_on_gets_what_a_look_up_finds_whatever_happened_to_the_log(log: AbstractLog) -> None:
    at, cursor = 0, None
    for count in (1, 3, 2):
        put(log, count)
        at, cursor = read_on(log, at, cursor)
    for _ in range(20):  # over the ends of segments
        put(log, 2)
        if log.log_end_offset % 3:
            at, cursor = read_on(log, at, cursor)
    log.advance_log_start(30)
    put(log, 1)
    read_on(log, at, cursor)
    read_on(log, 30, cursor)


def test_who_reads_on_in_a_log_that_was_cut_and_grew_again_looks_anew(make_log: MakeLog) -> None:
    log = make_log(LogConfig())
    for _ in range(4):
        put(log, 1)
    at, cursor = read_on(log, 0, None)
    log.truncate_to(2)
    put(log, 2, epoch=1)  # to where it ended before, in fewer bytes
    put(log, 3, epoch=1)
    assert read_on(log, at, cursor)[0] == 7


def test_who_reads_on_does_not_look_for_where_it_stands(
    make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(LogConfig())
    put(log, 2)
    _, cursor = log.read_on(0, 1000, bound=2, cursor=None)
    put(log, 2)
    monkeypatch.setattr(Segment, "locate", lambda *_: pytest.fail("it looked"))
    found, _ = log.read_on(2, 1000, bound=4, cursor=cursor)
    assert found is not None and (found.first_offset, found.next_offset) == (2, 4)


def test_a_new_log_is_empty(log: AbstractLog) -> None:
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.size) == (0, 0, 0, 0)
    assert log.read(0, 100, bound=0, min_one=True) is None
    assert log.end_offset_for_epoch(0) == (-1, -1)
    assert log.offset_of_max_timestamp() is None


def test_batches_get_the_next_offsets_and_are_read_in_order(log: AbstractLog) -> None:
    assert [put(log, count) for count in (1, 3, 2)] == [(0, 0), (1, 3), (4, 5)]
    for _ in range(20):
        put(log, 2)
    assert offsets(log)[:4] == [(0, 0), (1, 3), (4, 5), (6, 7)]
    assert offsets(log)[-1][1] == log.log_end_offset - 1
    assert all(
        before[1] + 1 == after[0] for before, after in zip(offsets(log), offsets(log)[1:], strict=False)
    )


def test_the_short_way_appends_the_same_or_leaves_it_to_the_long_one(make_log: MakeLog) -> None:
    short, long = make_log(), make_log()
    for index in range(12):
        batch = batch_of(2, producer=(7, 0, 2 * index))
        put(long, 2, sequence=2 * index)
        header = parse_header(batch)
        first = short.append_plain(
            memoryview(batch),
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            0,
            NOW,
        )
        if first < 0:
            first = short.append(batch, header, 0, leader_epoch=0, now_ms=NOW).first_offset
        assert first == 2 * index
        short.flush_staged()
    short.set_high_watermark(short.log_end_offset)
    assert offsets(short) == offsets(long)
    assert short.producers() == long.producers()


def test_a_read_begins_with_the_batch_that_holds_the_offset(log: AbstractLog) -> None:
    for _ in range(3):
        put(log, 4)
    found = log.read(6, 1, bound=12, min_one=True)
    assert found is not None and (found.first_offset, found.next_offset) == (4, 8)
    assert log.read(6, 1, bound=12, min_one=False) is None or found.size <= 1
    assert log.read(12, 100, bound=12, min_one=True) is None
    assert log.read(4, 1000, bound=4, min_one=True) is None


@pytest.mark.parametrize("offset", [-1, 11])
def test_a_read_outside_the_log_is_out_of_range(log: AbstractLog, offset: int) -> None:
    put(log, 10)
    with pytest.raises(KafkaError) as refused:
        log.read(offset, 100, bound=10, min_one=True)
    assert refused.value.code is ErrorCode.offset_out_of_range


def test_what_was_read_stays_readable_after_the_log_moved_on(log: AbstractLog) -> None:
    put(log, 2)
    found = log.read(0, 1000, bound=2, min_one=True)
    assert found is not None
    data = found.read()
    log.truncate_fully(50)
    assert len(data) == found.size == len(found.read())


def test_records_are_found_by_their_time(log: AbstractLog) -> None:
    for step in range(20):
        put(log, timestamp=NOW + 10 * step, epoch=step // 10)
    assert log.offset_for_timestamp(NOW + 95, 20) == (NOW + 100, 10, 1)
    assert log.offset_for_timestamp(NOW + 95, 10) is None
    assert log.offset_for_timestamp(NOW + 191, 20) is None
    assert log.offset_of_max_timestamp() == (NOW + 190, 19, 1)


def test_a_batch_that_is_too_large_changes_nothing(make_log: MakeLog) -> None:
    log = make_log(LogConfig(max_message_bytes=100))
    with pytest.raises(KafkaError) as refused:
        put(log, 50)
    assert refused.value.code is ErrorCode.message_too_large
    assert (log.log_end_offset, log.size) == (0, 0)


# --- a follower's batches ---


def fetched(*spans: tuple[int, int, int]) -> bytes:
    """Batches of (first offset, count, leader epoch)."""
    data = bytearray()
    for first, count, epoch in spans:
        batch = batch_of(count)
        stamp(batch, 0, first, epoch)
        data += batch
    return bytes(data)


def test_a_follower_takes_offsets_and_epochs_from_the_leader(log: AbstractLog) -> None:
    log.append_as_follower(fetched((0, 2, 3), (2, 1, 3), (7, 2, 5)))
    assert (log.log_end_offset, log.epochs.entries()) == (9, [(3, 0), (5, 7)])
    assert offsets(log) == [(0, 1), (2, 2), (7, 8)]


@pytest.mark.parametrize("spans", [((1, 1, 4),), ((4, 1, 3),), ((4, 1, 4), (4, 1, 4))], ids=str)
def test_a_follower_takes_nothing_that_does_not_follow(
    log: AbstractLog, spans: tuple[tuple[int, int, int], ...]
) -> None:
    log.append_as_follower(fetched((0, 4, 4)))
    with pytest.raises(CorruptBatch):
        log.append_as_follower(fetched(*spans))
    assert (log.log_end_offset, offsets(log)) == (4, [(0, 3)])


# --- watermarks and transactions ---


def test_the_high_watermark_stays_within_the_log(log: AbstractLog) -> None:
    put(log, 4)
    log.set_high_watermark(9)
    assert log.high_watermark == 4
    log.advance_log_start(2)
    log.set_high_watermark(1)
    assert log.high_watermark == 2


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_holds_the_last_stable_offset(log: AbstractLog, commit: bool) -> None:
    put(log)
    put(log, 2, sequence=0, transactional=True)
    put(log)
    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    ended(log, commit=commit)
    assert log.last_stable_offset == log.high_watermark == 5
    assert log.aborted_in(0, 5) == ([] if commit else [(7, 1)])
    assert log.aborted_in(0, 1) == []


# --- producers ---


def test_a_repeated_batch_is_answered_with_where_it_is(log: AbstractLog) -> None:
    put(log, 2, sequence=0)
    put(log)
    assert put(log, 2, sequence=0) == (0, 1)
    assert log.log_end_offset == 3


def test_a_gap_in_the_sequence_is_refused(log: AbstractLog) -> None:
    put(log, 2, sequence=0)
    with pytest.raises(KafkaError) as refused:
        put(log, 1, sequence=3)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number
    assert log.log_end_offset == 2


# --- epochs ---


def test_epochs_begin_where_their_leaders_did(log: AbstractLog) -> None:
    for epoch in (1, 1, 4, 6, 6):
        log.epoch_start(epoch)
        put(log, 2, epoch=epoch)
    assert log.epochs.entries() == [(1, 0), (4, 4), (6, 6)]
    assert [log.epoch_for_offset(offset) for offset in (0, 3, 4, 9)] == [1, 1, 4, 6]
    assert log.end_offset_for_epoch(1) == (1, 4)
    assert log.end_offset_for_epoch(5) == (4, 6)
    assert log.end_offset_for_epoch(6) == (6, 10)


# --- the log start ---


def test_the_log_start_moves_once_and_forward(log: AbstractLog) -> None:
    for _ in range(10):
        put(log)
    answers: list[KafkaError | None] = []
    for offset in (6, 3, 6):
        log.advance_log_start(offset, answers.append)
    assert answers == [None] * 3
    assert log.log_start_offset == 6
    assert offsets(log) == [(offset, offset) for offset in range(6, 10)]
    with pytest.raises(KafkaError) as refused:
        log.read(5, 100, bound=10, min_one=True)
    assert refused.value.code is ErrorCode.offset_out_of_range


def test_the_log_start_may_be_within_a_batch_and_stays_below_the_high_watermark(log: AbstractLog) -> None:
    put(log, 10)
    log.set_high_watermark(8)
    log.advance_log_start(5)
    assert log.log_start_offset == 5
    answers: list[KafkaError | None] = []
    with pytest.raises(KafkaError) as refused:
        log.advance_log_start(9, answers.append)
    assert refused.value.code is ErrorCode.offset_out_of_range
    assert (log.log_start_offset, answers) == (5, [])


def test_epochs_below_the_log_start_go(log: AbstractLog) -> None:
    for epoch in range(4):
        put(log, 2, epoch=epoch)
    log.advance_log_start(5)
    assert log.epochs.entries() == [(2, 5), (3, 6)]


# --- cutting ---


def test_a_cut_takes_whole_batches_their_epochs_and_their_producers(log: AbstractLog) -> None:
    for index in range(8):
        put(log, 2, epoch=index // 3, sequence=2 * index)
    log.truncate_to(9)
    assert (log.log_end_offset, log.high_watermark) == (8, 8)
    assert log.epochs.entries() == [(0, 0), (1, 6)]
    assert [producer.last_sequence for producer in log.producers()] == [7]
    assert put(log, 2, epoch=3, sequence=8) == (8, 9)
    assert offsets(log)[-2:] == [(6, 7), (8, 9)]


def test_a_cut_at_the_end_takes_only_epochs_without_records(log: AbstractLog) -> None:
    put(log, 2)
    log.epoch_start(5)
    log.truncate_to(2)
    assert (log.log_end_offset, log.epochs.entries()) == (2, [(0, 0)])


@pytest.mark.parametrize("start_at", [3, 12, 500])
def test_a_log_begun_anew_has_nothing_of_before(log: AbstractLog, start_at: int) -> None:
    for index in range(12):
        put(log, sequence=index, epoch=index // 4)
    log.advance_log_start(5)
    log.truncate_fully(start_at)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (start_at,) * 3
    assert (log.size, log.producers(), log.epochs.entries()) == (0, [], [])
    assert put(log, epoch=9) == (start_at, start_at)
    assert log.epochs.entries() == [(9, start_at)]


# --- what is in the tier ---

TIERED = replace(SMALL, remote_storage_enable=True, local_retention_ms=0, file_delete_delay_ms=0)


def drained(steps: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            data: bytes = end.value
            return data


@pytest.fixture
def tiered(make_log: MakeLog) -> AbstractLog:
    """Four epochs of six batches of one producer, and everything closed is copied."""
    log = make_log(TIERED)
    for index in range(24):
        put(log, 2, epoch=index // 6, sequence=2 * index)
    log.tiered_end = log.closed_segments(0, log.last_stable_offset)[-1].end_offset
    return log


def test_closed_segments_follow_each_other_up_to_what_is_open(tiered: AbstractLog) -> None:
    found = tiered.closed_segments(0, tiered.log_end_offset)
    assert found[0].base_offset == 0 and tiered.log_end_offset - 8 < found[-1].end_offset < 48
    assert all(left.end_offset == right.base_offset for left, right in pairwise(found))
    assert tiered.closed_segments(found[1].base_offset + 1, found[2].end_offset) == found[1:3]
    assert tiered.closed_segments(0, found[1].end_offset - 1) == found[:1]
    assert {closed.max_timestamp for closed in found} == {NOW}
    assert not any(closed.has_aborted for closed in found)


def test_a_held_segment_is_whole_whatever_becomes_of_the_log(tiered: AbstractLog) -> None:
    closed = tiered.closed_segments(0, tiered.log_end_offset)[1]
    with tiered.open_segment(closed.base_offset) as held:
        tiered.expire(NOW + 10)
        tiered.truncate_fully(500)
        data = held.file.pread(held.size, 0)
    headers = [header for _, header in iter_batches(data)]
    assert len(data) == closed.size == held.size
    assert (headers[0].base_offset, headers[-1].next_offset) == (closed.base_offset, closed.end_offset)
    assert held.epochs[0][1] == closed.base_offset
    assert held.epochs_until_end[0] == (0, 0)
    with pytest.raises(ValueError, match="let go"):
        held.file.pread(1, 0)
    with pytest.raises(KafkaError), tiered.open_segment(closed.base_offset):
        pass


def test_the_producers_at_the_end_of_a_segment_can_be_had(tiered: AbstractLog) -> None:
    for closed in tiered.closed_segments(0, tiered.log_end_offset):
        table, note = decode_producers(drained(tiered.producers_until(closed.end_offset)))
        assert (table.entries[7].next_sequence, note) == (closed.end_offset, b"")


def test_local_retention_leaves_the_log_start_and_all_epochs(tiered: AbstractLog) -> None:
    generation = tiered.generation
    while tiered.expire(NOW + 10):
        pass
    assert (tiered.log_start_offset, tiered.local_log_start_offset) == (0, tiered.tiered_end)
    assert tiered.epochs.entries() == [(0, 0), (1, 12), (2, 24), (3, 36)]
    assert tiered.generation == generation
    assert tiered.size_from(0) == tiered.size
    for offset in (0, tiered.local_log_start_offset - 1):
        with pytest.raises(TieredOffset):
            tiered.read(offset, 100, bound=48, min_one=True)


def test_the_active_segment_is_closed_when_local_retention_waits_for_it(tiered: AbstractLog) -> None:
    rolls: list[int] = []
    tiered.on_roll = lambda: rolls.append(tiered.log_end_offset)
    while tiered.expire(NOW + 10):
        pass
    assert rolls == [48]
    assert tiered.closed_segments(tiered.tiered_end, 48)[-1].end_offset == 48
    assert tiered.expire(NOW + 10) == 0, "it is not in the tier"


def test_what_is_in_the_tier_can_be_freed_before_its_time(tiered: AbstractLog) -> None:
    before = tiered.size
    assert tiered.free_tiered(NOW) == before - tiered.size > 0
    assert (tiered.local_log_start_offset, tiered.log_end_offset) == (tiered.tiered_end, 48)


@pytest.mark.parametrize("at", [0, 2, 20])
def test_a_tiered_log_that_is_cut_below_its_local_part_keeps_what_is_left(
    tiered: AbstractLog, at: int
) -> None:
    tiered.free_tiered(NOW)
    generation = tiered.generation
    tiered.truncate_to(at)
    assert (tiered.log_start_offset, tiered.local_log_start_offset) == (0, at)
    assert (tiered.log_end_offset, tiered.high_watermark, tiered.size) == (at, at, 0)
    assert tiered.tiered_end <= at
    assert tiered.generation > generation
    assert tiered.epochs.entries() == [entry for entry in [(0, 0), (1, 12)] if entry[1] < at]
    assert put(tiered, epoch=9) == (at, at)


@pytest.mark.requirement("1023-16")
def test_a_replica_begins_behind_the_tier_with_all_that_was_before(make_log: MakeLog) -> None:
    log = make_log(TIERED)
    put(log, 4, sequence=0)
    producers = ProducerTable()
    producers.appended(parse_header(batch_of(2, producer=(7, 0, 4))), 4, 5)
    answers: list[KafkaError | None] = []
    log.begin_at(
        6,
        log_start=0,
        epochs=[(0, 0), (1, 3), (2, 5), (3, 7)],
        producers=producers.encode(b"a note"),
        done=answers.append,
    )
    assert answers == [None]
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 6, 6)
    assert (log.high_watermark, log.tiered_end, log.size) == (6, 6, 0)
    assert log.epochs.entries() == [(0, 0), (1, 3), (2, 5)]
    assert [producer.last_sequence for producer in log.producers()] == [5]
    log.append_as_follower(fetched((6, 1, 2), (7, 1, 3)))
    assert log.epochs.entries() == [(0, 0), (1, 3), (2, 5), (3, 7)]
    assert log.end_offset_for_epoch(1) == (1, 5)


def test_a_damaged_snapshot_leaves_the_log_as_it_was(tiered: AbstractLog) -> None:
    with pytest.raises(CorruptSnapshot):
        tiered.begin_at(40, log_start=0, epochs=[], producers=b"damaged")
    assert offsets(tiered)[-1] == (46, 47)


def test_epochs_that_were_lost_are_put_back_but_never_over_its_own(tiered: AbstractLog) -> None:
    tiered.free_tiered(NOW)
    known = tiered.epochs.entries()
    tiered.epochs.truncate_from_start(tiered.local_log_start_offset)
    assert tiered.epochs_incomplete
    tiered.restore_epochs([(0, 0), (1, 12), (2, 24), (3, 36), (5, 47)])
    assert tiered.epochs.entries() == known
    assert not tiered.epochs_incomplete


# --- the end ---


def test_a_log_that_failed_refuses_everything(log: AbstractLog) -> None:
    put(log, 4)
    log.flush_failed(OSError(5, "input/output error"))
    assert log.statistics().is_offline
    for call in (
        lambda: put(log),
        lambda: log.append_as_follower(fetched((4, 1, 0))),
        lambda: log.read(0, 100, bound=4, min_one=True),
        lambda: log.advance_log_start(1),
        lambda: log.truncate_to(1),
        lambda: log.truncate_fully(1),
        lambda: log.begin_at(1, log_start=0, epochs=[], producers=None),
        lambda: log.restore_epochs([]),
        lambda: log.open_segment(0).__enter__(),
        lambda: next(log.producers_until(0)),
    ):
        with pytest.raises(LogOffline):
            call()
