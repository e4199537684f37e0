"""Logs alone, without a broker: append, roll, sync, delete, crash at any write, open again. Fast enough for
many seeds."""

from __future__ import annotations

import errno
import random
from uuid import UUID

import pytest

from broker.config.broker import from_properties
from protocol import records
from storage.log_manager import LogManager
from storage.policy import LogConfig
from storage.times import record_at_time, run_here
from tests.sim.disk import Disk
from tests.sim.history import payload
from tests.sim.inspection import inspect
from tests.sim.loop import Killed, Process, SimLoop
from tests.sim.salvage import readable_ends

TP = ("t", 0)
ROUNDS = 4
SEEDS_PER_TEST = 25
PRODUCER_ID = 5
BATCH_MAX = 3


class DiskFailed(Exception):
    """What a broker does whose only disk failed: it ends."""


class Bench:
    """One disk, many lives; `acked` is what each life was told of its appends, `synced` how far syncs were
    confirmed. A life ends by a kill or by a power cut, or in some before that because a sync fails."""

    def __init__(self, seed: int, *, power: bool, ailing: bool = False) -> None:
        self.rng = random.Random(seed)
        self.clock_ms = 1_700_000_000_000
        self.power = power
        self.ailing = ailing
        self.disk = Disk(random.Random(f"{seed}/disk"), lambda: self.clock_ms)
        founder = self.disk.mount()
        founder.makedirs("/data")
        founder.fsync_dir("/")
        self.values: dict[int, int] = {}  # offset -> value, as acknowledged and not taken back
        self.next_value = 1
        self.synced = 0
        self.was_cut = False  # since the last sync: what was cut off may come back
        self.epoch = 1
        self.config = from_properties({"node.id": "1", "log.dirs": "/data", "listeners": "PLAINTEXT://:9092"})
        self.log_config = LogConfig(
            segment_bytes=self.rng.choice((300, 1000, 100_000)),
            index_interval_bytes=self.rng.choice((0, 150, 4096)),
            flush_messages=self.rng.choice((1, 4, 1 << 62)),
        )
        self.sequence = 0

    def live(self) -> None:
        process = Process(SimLoop(), "p")
        files = self.disk.mount(process)
        fails = self.ailing and self.rng.random() < 0.5
        power = self.power and not fails
        if fails:
            self.disk.fail("fsync", errno.EIO, skip=self.rng.randrange(8), path_part=".log")
        else:
            files.die_in_changes(self.rng.randrange(1, 120), power=power)
        try:
            logs = LogManager(
                files=files,
                dirs=["/data"],
                now_ms=lambda: self.clock_ms,
                random=random.Random(1),
                defaults=self.log_config,
                on_dir_failure=self._end,
            )
            logs.lock_and_open()
            logs.load(lambda _: self.log_config)
            log = logs.create("t", UUID(int=7), 0, self.log_config)
            log.set_high_watermark(log.log_end_offset)
            self._take_up_sequence(logs)
            for _ in range(self.rng.randrange(5, 40)):
                self._act(logs)
            logs.close(clean=self.rng.random() < 0.3)
        except (Killed, DiskFailed):
            pass
        self.disk.disarm()
        process.die(power=power)
        if power:
            durable = readable_ends(self.disk.durable_snapshot(), ["/data"]).get(TP, 0)
            assert durable >= self.synced, f"synced to {self.synced}, the disk holds {durable} for certain"
            self.disk.power_cut()
            kept = readable_ends(self.disk.snapshot(), ["/data"]).get(TP, 0)
            if self.was_cut:
                kept = min(kept, self.synced)
            self._expect_no_more_than(kept)

    def _end(self, path: str, error: OSError) -> None:
        if not self.ailing:
            pytest.fail(f"{path}: {error}")
        raise DiskFailed

    def _take_up_sequence(self, logs: LogManager) -> None:
        entry = logs.logs[TP].producer_table.known(PRODUCER_ID)
        self.sequence = entry.next_sequence if entry is not None else 0

    def _act(self, logs: LogManager) -> None:
        log = logs.logs[TP]
        self.clock_ms += self.rng.choice((0, 1, 50, 5000))
        match self.rng.choice(("append",) * 8 + ("fsync", "maintain", "delete", "truncate")):
            case "append":
                values = list(range(self.next_value, self.next_value + self.rng.choice((1, 1, BATCH_MAX))))
                self.next_value += len(values)
                batch = records.build_batch(
                    [(None, payload(value), (), self.clock_ms) for value in values],
                    producer_id=PRODUCER_ID,
                    producer_epoch=0,
                    base_sequence=self.sequence,
                )
                appended = log.append_records(
                    batch, leader_epoch=self.epoch, now_ms=self.clock_ms, origin="client"
                )
                assert not appended.duplicate
                log.set_high_watermark(log.log_end_offset)
                self.sequence += len(values)
                for offset, value in enumerate(values, appended.first_offset):
                    self.values[offset] = value
            case "fsync":
                end = log.log_end_offset
                log.fsync()
                self.synced = max(self.synced, end)
                self.was_cut = False
            case "maintain":
                for _ in logs.maintain(self.clock_ms):
                    pass
            case "truncate":
                at = self.rng.randrange(log.log_start_offset, log.log_end_offset + 1)
                self._expect_no_more_than(at - BATCH_MAX + 1)  # the batch that holds it goes as a whole
                self._forget_deleted(log.log_start_offset)
                self.was_cut = True
                self.epoch += 1
                log.truncate_to(at)
                self._take_up_sequence(logs)
            case "delete":
                log.advance_log_start(self.rng.randrange(log.log_start_offset, log.high_watermark + 1))
                self._forget_deleted(log.log_start_offset)
                for _ in logs.maintain(self.clock_ms):
                    pass

    def _expect_no_more_than(self, end: int) -> None:
        self.synced = min(self.synced, max(end, 0))
        self.values = {offset: value for offset, value in self.values.items() if offset < end}

    def _forget_deleted(self, log_start: int) -> None:
        if self.synced <= log_start:
            self.synced = 0  # none of it is left to be kept

    def check_indexes(self) -> None:
        """What recovery takes over of the indexes is as if it had read everything."""
        files = self.disk.clone().mount()
        files.unlink("/data/.kafka_cleanshutdown")
        logs = LogManager(
            files=files,
            dirs=["/data"],
            now_ms=lambda: self.clock_ms,
            random=random.Random(1),
            defaults=self.log_config,
            on_dir_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
        )
        logs.lock_and_open()
        logs.load()
        for log in logs.logs.values():
            for segment in log.segments:
                batches = list(segment.scan(0, segment.size))
                times = [found.header.max_timestamp for found in batches]
                assert segment.largest_timestamp == max(times, default=-1), segment
                for found in batches:
                    assert segment.locate(found.header.last_offset)[0] == found.position, segment
                    newest = found.header.max_timestamp
                    batch = segment.batch_at_time(newest, 0)
                    at = None if batch is None else run_here(record_at_time(batch, newest, 0))
                    assert at is not None and at[0] >= newest

    def check(self) -> None:
        found, recovery = inspect(self.disk, self.config, [TP], latest_ms=self.clock_ms)
        assert not recovery.differences, recovery.differences
        if TP not in found:
            assert not self.values
            return
        log = found[TP]
        stored = {offset: value for batch in log.batches for offset, value in batch.pairs()}
        start = min(stored, default=log.log_end_offset)
        for offset, value in self.values.items():
            if offset >= start:
                assert stored.get(offset) == value, (
                    f"{value} acked at {offset}, there is {stored.get(offset)}"
                )
        ends = [batch.next_offset for batch in log.batches[:-1]]
        assert ends == [batch.base_offset for batch in log.batches[1:]], "a hole in the middle"


@pytest.mark.parametrize("ends", ["kill", "power", "ailing"])
@pytest.mark.parametrize("first", range(0, 100, SEEDS_PER_TEST))
def test_a_log_survives_a_crash_at_any_write(first: int, ends: str) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        bench = Bench(seed, power=ends != "kill", ailing=ends == "ailing")
        for life in range(ROUNDS):
            bench.live()
            try:
                bench.check_indexes()
                bench.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, life {life}: {error}") from error
