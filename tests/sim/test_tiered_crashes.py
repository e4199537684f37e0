"""One tiered log without a broker: its segments are copied and go, and it comes to an end at any write, by
kill or by power cut. What the log starts with then is held against what was ever appended, told, and copied.

The tier of these logs is a list that nothing can damage: the copies of the log's lineage, as the tier's fold
would tell them. `test_crashes` looks at a log that is not tiered, `tests/storage/test_tiered_model.py` at
whole histories without power cuts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from protocol import records
from storage.checkpoints import Done
from storage.log_manager import LogManager
from storage.maintenance import Intervals
from storage.policy import LogConfig
from storage.producers import decode_producers
from storage.unified_log import UnifiedLog
from tests.sim.disk import Disk
from tests.sim.history import payload
from tests.sim.loop import Killed, Process, SimLoop

TP = ("t", 0)
LIVES = 6
SEEDS_PER_TEST = 25
PRODUCERS = 3
INTERVALS = Intervals(
    retention_ms=2_000,
    recovery_points_ms=3_000,
    log_starts_ms=5_000,
    high_watermarks_ms=2_000,
    initial_delay_ms=1_000,
    idle_ms=4_000,
)


@dataclass(frozen=True)
class Row:
    """A batch as it was appended."""

    first: int
    end: int
    epoch: int
    producer: int
    next_sequence: int
    data: bytes


@dataclass(frozen=True)
class Copy:
    base: int
    end: int
    epochs: tuple[tuple[int, int], ...]
    producers: bytes
    knows_producers: bool
    is_whole: bool = True


class Shelf:
    """One disk with one log, many lives."""

    def __init__(self, seed: int, *, power: bool) -> None:
        self.rng = random.Random(seed)
        self.clock_ms = 1_700_000_000_000
        self.power = power
        self.disk = Disk(random.Random(f"{seed}/disk"), lambda: self.clock_ms)
        founder = self.disk.mount()
        founder.makedirs("/data")
        founder.fsync_dir("/")
        self.config = LogConfig(
            segment_bytes=self.rng.choice((300, 1000)),
            index_interval_bytes=self.rng.choice((0, 150)),
            remote_storage_enable=True,
            local_retention_ms=self.rng.choice((0, 3_000)),
            retention_ms=-1,
            file_delete_delay_ms=self.rng.choice((0, 3_000)),
        )
        self.rows: dict[int, Row] = {}
        """By first offset: the log's lineage."""
        self.ever: dict[int, set[Row]] = {}
        self.copies: list[Copy] = []
        self.told_start = 0
        """The highest log start that was durable by word."""
        self.asked_start = 0
        self.synced = 0
        self.copied_end = 0
        """How far copies reached before the last life ended."""
        self.epoch = 0
        self.next_value = 1
        self.is_beginning = False
        self.is_mixed = False
        self.knows_producers = True
        self.jobs: list[tuple[Callable[[], None], Done]] = []

    # ---- one life --------------------------------------------------------------------------------------

    def live(self) -> None:
        process = Process(SimLoop(), "p")
        files = self.disk.mount(process)
        files.die_in_changes(self.rng.randrange(1, 250), power=self.power)
        self.jobs.clear()
        try:
            logs = self._opened(files)
            log = logs.create("t", UUID(int=7), 0, self.config)
            log.set_high_watermark(log.log_end_offset)
            log.tiered_end = min(self.tiered_end, log.log_end_offset)
            self._restore_epochs(log)
            for _ in range(self.rng.randrange(10, 80)):
                self._act(log, logs)
            if self.rng.random() < 0.3:
                self._work()
                logs.close()
                self.synced = log.log_end_offset
        except Killed:
            pass
        process.die(power=self.power)
        if self.power:
            self.disk.power_cut()

    def _opened(self, files: object) -> LogManager:
        logs = LogManager(
            files=files,  # type: ignore[arg-type]
            dirs=["/data"],
            now_ms=lambda: self.clock_ms,
            random=random.Random(1),
            defaults=LogConfig(),
            on_dir_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
            background=lambda job, done: self.jobs.append((job, done)),
            intervals=INTERVALS,
        )
        logs.lock_and_open()
        logs.load(lambda _: self.config)
        self._work()
        return logs

    def _work(self, most: int = 1000) -> None:
        """Let background jobs end, in any order."""
        while self.jobs and most:
            job, done = self.jobs.pop(self.rng.randrange(len(self.jobs)))
            job()
            done(None)
            most -= 1

    # ---- acts ------------------------------------------------------------------------------------------

    @property
    def tiered_end(self) -> int:
        return self.copies[-1].end if self.copies else 0

    def _act(self, log: UnifiedLog, logs: LogManager) -> None:
        self.clock_ms += self.rng.choice((0, 1, 50, 700, 3_000))
        match self.rng.choice(
            ("append",) * 12
            + ("roll", "copy", "copy", "expire", "free", "fsync", "maintain", "maintain", "work", "work")
            + ("delete records", "truncate", "begin", "lead")
        ):
            case "append":
                self._append(log)
            case "roll":
                log.roll(log.log_end_offset, self.clock_ms)
            case "copy":
                self._copy(log)
            case "expire":
                while log.expire(self.clock_ms):
                    pass
            case "free":
                log.free_tiered(self.clock_ms)
            case "fsync":
                log.fsync()
                self.synced = log.log_end_offset
            case "maintain":
                for _ in logs.maintain(self.clock_ms):
                    self._work(self.rng.randrange(2))
            case "work":
                self._work(self.rng.randrange(1, 5))
            case "delete records":
                start = self.rng.randrange(log.log_start_offset, log.high_watermark + 1)
                if self.rng.random() < 0.5:
                    start = min(start, log.local_log_start_offset)
                self.asked_start = max(self.asked_start, start)
                log.advance_log_start(start, lambda error, start=start: self._told(error, start))
            case "truncate":
                self._truncate(log)
            case "begin":
                self._begin(log)
            case "lead":
                self.epoch += 1
                log.epoch_start(self.epoch)

    def _told(self, error: Exception | None, start: int) -> None:
        if error is None:
            self.told_start = max(self.told_start, start)

    def _append(self, log: UnifiedLog) -> None:
        producer = self.rng.randrange(PRODUCERS)
        entry = log.producer_table.known(producer)
        sequence = entry.next_sequence if entry is not None else 0
        count = self.rng.choice((1, 1, 3))
        values = range(self.next_value, self.next_value + count)
        self.next_value += count
        batch = records.build_batch(
            [(None, payload(value), (), self.clock_ms) for value in values],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        )
        first = log.log_end_offset
        epoch = max(self.epoch, log.epochs.latest)
        expected = bytearray(batch)
        records.stamp(expected, 0, first, epoch)
        row = Row(first, first + count, epoch, producer, sequence + count, bytes(expected))
        self.ever.setdefault(first, set()).add(row)
        self.rows[first] = row
        log.append_records(batch, leader_epoch=epoch, now_ms=self.clock_ms)
        log.set_high_watermark(log.log_end_offset)

    def _copy(self, log: UnifiedLog) -> None:
        start = max(self.tiered_end, log.log_start_offset)
        for closed in log.closed_segments(start, log.last_stable_offset):
            with log.open_segment(closed.base_offset) as held:
                data = held.file.pread(held.size, 0)
            stored = [self.rows[at].data for at in self._firsts(closed.base_offset, closed.end_offset)]
            assert data.endswith(b"".join(stored))
            self.copies.append(
                Copy(
                    closed.base_offset,
                    closed.end_offset,
                    tuple(held.epochs_until_end),
                    _drained(log.producers_until(closed.end_offset)),
                    self.knows_producers,
                )
            )
        log.tiered_end = self.tiered_end
        self.copied_end = max(self.copied_end, self.tiered_end)

    def _truncate(self, log: UnifiedLog) -> None:
        low = log.log_start_offset if self.rng.random() < 0.3 else log.local_log_start_offset
        firsts = [at for at in self._firsts(low, log.log_end_offset) if at >= low]
        if firsts:
            at = self.rng.choice(firsts)
            self._expect_no_more_than(at)
            if at < log.segments[0].base_offset:
                self.knows_producers = False
                self.is_beginning = True  # it is emptied on its way
            log.truncate_to(at)
            if self.is_beginning:
                log.fsync()  # or a power cut may bring back the old log, which has more in the tier
                self.is_beginning = False
            assert log.tiered_end <= at
            self._lead_anew()
            self._cut_copies(at)

    def _begin(self, log: UnifiedLog) -> None:
        whole = [copy for copy in self.copies if copy.is_whole and copy.end >= log.log_start_offset]
        if not whole or self.rng.random() < 0.5:
            return
        copy = self.rng.choice(whole)
        done: list[object] = []
        self.is_beginning = True
        self._expect_no_more_than(copy.end)
        log.begin_at(
            copy.end,
            log_start=log.log_start_offset,
            epochs=copy.epochs,
            producers=copy.producers,
            done=done.append,
        )
        assert done == [None]
        self.is_beginning = False
        self.synced = copy.end
        self.knows_producers = copy.knows_producers
        self._lead_anew()
        self._cut_copies(copy.end)

    def _lead_anew(self) -> None:
        """What is appended now is of another leader than what went."""
        self.epoch += 1

    def _expect_no_more_than(self, end: int) -> None:
        """What is at and past `end` goes, or is gone: a crash amid may leave it or not."""
        self.synced = min(self.synced, end)

    def _cut_copies(self, end: int) -> None:
        self.copies = [
            copy if copy.end <= end else replace(copy, end=end, is_whole=False)
            for copy in self.copies
            if copy.base < end
        ]
        self.rows = {first: row for first, row in self.rows.items() if row.end <= end}

    def _firsts(self, start: int, end: int) -> list[int]:
        return sorted(first for first, row in self.rows.items() if row.end > start and first < end)

    # ---- what is there ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Open the log as the next start would, and go on with what it holds."""
        disk = self.disk.clone()
        self.jobs.clear()
        logs = self._opened(disk.mount())
        if TP not in logs.logs:
            assert not self.synced, "the log is gone"
            self._forget_all()
            return
        log = logs.logs[TP]
        start, local, end = log.log_start_offset, log.local_log_start_offset, log.log_end_offset
        assert start <= local <= end
        assert self.told_start <= start <= max(self.asked_start, 0), (
            f"log start {start}, told {self.told_start}, asked {self.asked_start}"
        )
        holds_nothing = local == end and log.size == 0
        if self.is_beginning and holds_nothing and local == start:
            self._begin_again(start)
            return
        if self.is_beginning:
            self.synced = min(self.synced, end)  # some of the old log may have gone already
        assert end >= self.synced, f"synced to {self.synced}, ends at {end}"
        assert local <= max(start, self.copied_end), f"[{start}, {local}) is neither here nor copied"
        self._check_bytes(log)
        self._check_epochs(log)
        if self.knows_producers:
            self._check_producers(log)
        before = _state(log)
        logs.close(clean=self.rng.random() < 0.5)
        again = self._opened(disk.mount()).logs[TP]
        assert _state(again) == before, "a second restart changed it"
        if self.is_beginning:  # it was begun, or is as it was
            self.is_beginning = False
        self.told_start = max(self.told_start, start)
        self.asked_start = start
        self.synced = end if not self.power else min(self.synced, end)
        self.copied_end = self.tiered_end
        self.epoch += 1

    def _check_bytes(self, log: UnifiedLog) -> None:
        """A power cut may bring back what was cut off and not synced since: then that is the lineage."""
        found: dict[int, Row] = {}
        at = None
        for segment in log.segments:
            data = segment.file.pread(segment.size, 0)
            for position, header in records.iter_batches(data):
                assert at is None or header.base_offset == at, f"a hole before {header.base_offset}"
                at = header.next_offset
                stored = data[position : position + header.size]
                row = next((row for row in self.ever[header.base_offset] if row.data == stored), None)
                assert row is not None, f"what is at {header.base_offset} was never appended"
                found[row.first] = row
        local = log.local_log_start_offset
        assert not found or (min(found) <= local and at == log.log_end_offset)
        for first in self._firsts(local, self.synced):
            assert found.get(first) == self.rows[first], f"what was synced at {first} is gone"
        parted = [first for first, row in found.items() if self.rows.get(first) != row]
        self._cut_copies(min([*parted, log.log_end_offset]))
        self.rows |= found

    def _check_epochs(self, log: UnifiedLog) -> None:
        self._restore_epochs(log)
        epochs = [row.epoch for _, row in sorted(self.rows.items())]
        # a power cut may bring back a batch behind one of a newer leader: then the epochs are nobody's
        self.is_mixed = self.is_mixed or epochs != sorted(epochs)
        for first in [] if self.is_mixed else self._firsts(log.log_start_offset, log.log_end_offset):
            at = max(first, log.log_start_offset)
            assert log.epoch_for_offset(at) == self.rows[first].epoch, f"{log.epochs} at {at}"

    def _restore_epochs(self, log: UnifiedLog) -> None:
        """As the tier does when the file was torn."""
        if log.epochs_incomplete:
            assert self.power, "a kill takes no file"
            below = [copy for copy in self.copies if copy.end >= log.local_log_start_offset]
            log.restore_epochs(below[0].epochs)
            assert not log.epochs_incomplete

    def _check_producers(self, log: UnifiedLog) -> None:
        for first in self._firsts(log.log_start_offset, log.log_end_offset):
            row = self.rows[first]
            entry = log.producer_table.known(row.producer)
            assert entry is not None, f"producer {row.producer} with a batch at {first} is forgotten"
            assert entry.next_sequence >= row.next_sequence or entry.last_offset > first

    def _begin_again(self, start: int) -> None:
        """A crash in the midst of `begin_at` left nothing: what is in the tier is there to begin with."""
        self.rows = {first: row for first, row in self.rows.items() if row.end <= start}
        self.copies = []
        self.is_beginning = False
        self.told_start = self.asked_start = self.synced = self.copied_end = start
        self.epoch += 1

    def _forget_all(self) -> None:
        """The directory's name was never synced, nor what was in it."""
        self.rows, self.copies = {}, []
        self.told_start = self.copied_end = 0
        self.is_beginning = False
        self.knows_producers = True


def _drained(steps: object) -> bytes:
    while True:
        try:
            next(steps)  # type: ignore[call-overload]
        except StopIteration as end:
            data: bytes = end.value
            assert decode_producers(data)[1] == b""
            return data


def _state(log: UnifiedLog) -> tuple[object, ...]:
    producers = sorted(
        (entry.producer_id, entry.next_sequence) for entry in log.producer_table.entries.values()
    )
    return (
        log.log_start_offset,
        log.local_log_start_offset,
        log.log_end_offset,
        log.epochs.entries(),
        producers,
        [(segment.base_offset, segment.size) for segment in log.segments],
    )


@pytest.mark.parametrize("ends", ["kill", "power"])
@pytest.mark.parametrize("first", range(0, 100, SEEDS_PER_TEST))
def test_a_tiered_log_survives_a_crash_at_any_write(first: int, ends: str) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        shelf = Shelf(seed, power=ends == "power")
        for life in range(LIVES):
            shelf.live()
            try:
                shelf.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, life {life}: {error}") from error
