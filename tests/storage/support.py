"""What the tests of the log layer share: batches, logs on a scratch directory, and a disk that fails on
demand."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    crc_of,
    iter_batches,
    iter_records,
    parse_header,
)
from storage.checkpoints import Done, run_inline
from storage.cleaner import CleanerSettings
from storage.files import Buffer, DiskFiles, File
from storage.log import Appended
from storage.log_manager import LogManager
from storage.maintenance import Intervals
from storage.policy import LogConfig
from storage.producers import UNASKED
from storage.unified_log import UnifiedLog

NOW = 1_700_000_000_000
TOPIC_ID = UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
Row = tuple[bytes | None, bytes | None]


class PowerCut(Exception):
    """The process ends here; not an OSError, so nothing handles it."""


@dataclass
class FaultyFiles(DiskFiles):
    """The real disk, with every operation that changes something counted and the n-th one failing."""

    fail_at: int = -1
    error: Exception = field(default_factory=PowerCut)
    operations: int = 0
    only: Callable[[str, str], bool] = lambda operation, path: True

    def step(self, operation: str, path: str) -> None:
        if not self.only(operation, path):
            return
        self.operations += 1
        if self.operations == self.fail_at:
            raise self.error

    def open(self, path: str, *, create: bool = False) -> FaultyFile:  # type: ignore[override]
        if create:
            self.step("create", path)
        return FaultyFile(self, super().open(path, create=create))

    def rename(self, src: str, dst: str) -> None:
        self.step("rename", src)
        super().rename(src, dst)

    def unlink(self, path: str) -> None:
        if self.exists(path):
            self.step("unlink", path)
        super().unlink(path)

    def fsync_dir(self, path: str) -> None:
        self.step("fsync_dir", path)

    def makedirs(self, path: str) -> None:
        self.step("makedirs", path)
        super().makedirs(path)


class FaultyFile:
    def __init__(self, files: FaultyFiles, inner: File) -> None:
        self._files = files
        self._inner = inner
        self.path = inner.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def writev(self, buffers: Sequence[Buffer]) -> int:
        self._files.step("writev", self.path)
        return self._inner.writev(buffers)

    def truncate(self, size: int) -> None:
        self._files.step("truncate", self.path)
        self._inner.truncate(size)

    def fsync(self) -> None:
        self._files.step("fsync", self.path)


class HeldJobs:
    """A background whose jobs wait until they are let go, if they are of those to hold."""

    def __init__(self, holds: Callable[[Callable[[], None]], bool] = lambda job: True) -> None:
        self._holds = holds
        self.jobs: list[tuple[Callable[[], None], Done]] = []

    def __call__(self, job: Callable[[], None], done: Done) -> None:
        if self._holds(job):
            self.jobs.append((job, done))
        else:
            run_inline(job, done)

    def let_all_go(self) -> None:
        """Run and report what waits, and hold nothing any more."""
        self._holds = lambda job: False
        while self.jobs:
            self.let_go()

    def let_go(self) -> None:
        """Run and report the oldest job."""
        run_inline(*self.jobs.pop(0))


def batch_of(
    rows: Sequence[Row] | int = 1,
    *,
    timestamp: int = NOW,
    producer: tuple[int, int, int] | None = None,
    value_bytes: int = 20,
    **options: Any,
) -> bytearray:
    """A batch as a client sends it. `producer` is (id, epoch, first sequence)."""
    if isinstance(rows, int):
        rows = [(b"k%d" % index, b"v" * value_bytes) for index in range(rows)]
    if producer is not None:
        options |= {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": producer[2]}
    return build_batch([(key, value, (), timestamp) for key, value in rows], **options)


def append(
    log: UnifiedLog, batch: bytearray, *, epoch: int = 0, now_ms: int = NOW, replicated: bool = True
) -> Appended:
    """Append a client's batch the fast way, flush, and by default move the high watermark along."""
    header = parse_header(batch)
    appended = log.append(batch, header, 0, leader_epoch=epoch, now_ms=now_ms, verified=UNASKED)
    log.flush_staged()
    if replicated:
        log.set_high_watermark(log.log_end_offset)
    return appended


def append_short(log: UnifiedLog, batch: bytearray, *, epoch: int = 0, now_ms: int = NOW) -> tuple[int, int]:
    """As `append` without the flush, by the short way where the log takes it; its first and last offset."""
    header = parse_header(batch)
    first = log.append_plain(
        memoryview(batch),
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        epoch,
        now_ms,
    )
    if first >= 0:
        return first, first + header.last_offset_delta
    appended = log.append(batch, header, 0, leader_epoch=epoch, now_ms=now_ms, verified=UNASKED)
    return appended.first_offset, appended.last_offset


def read_all(
    log: UnifiedLog, start: int | None = None, *, bound: int | None = None, max_bytes: int = 1 << 20
) -> bytes:
    """Every stored batch from `start` on, through `read`."""
    offset = log.log_start_offset if start is None else start
    bound = log.log_end_offset if bound is None else bound
    pieces = []
    while (found := log.read(offset, max_bytes, bound=bound, min_one=True)) is not None:
        assert found.next_offset > offset
        pieces.append(found.read())
        offset = found.next_offset
    return b"".join(pieces)


def headers_of(log: UnifiedLog) -> list[BatchHeader]:
    return [header for _, header in iter_batches(read_all(log))]


def renew_crc(batch: bytearray) -> None:
    struct.pack_into(">I", batch, 17, crc_of(batch, 0, len(batch)))


def records_of(log: UnifiedLog, start: int | None = None) -> list[Record]:
    data = read_all(log, start)
    return [record for at, header in iter_batches(data) for record in iter_records(data, at, header)]


def manager_on(
    root: Path | str,
    *,
    files: DiskFiles | None = None,
    dirs: Sequence[str] = ("data",),
    config: LogConfig | None = None,
    failures: list[tuple[str, OSError]] | None = None,
    clock: Callable[[], int] = lambda: NOW,
    load: bool = True,
    id_of: Callable[[str], UUID | None] | None = None,
    **options: Any,
) -> LogManager:
    manager = LogManager(
        files=files or DiskFiles(),
        dirs=[f"{root}/{name}" for name in dirs],
        now_ms=clock,
        random=random.Random(7),
        defaults=config or LogConfig(),
        on_dir_failure=lambda path, error: None if failures is None else failures.append((path, error)),
        **options,
    )
    if load:
        manager.lock_and_open()
        manager.load(id_of=id_of)
    return manager


def log_on(
    root: Path | str, *, config: LogConfig | None = None, topic: str = "topic", **options: Any
) -> UnifiedLog:
    """The log topic-0 of a new manager; `kill` it by letting its locks go."""
    manager = manager_on(root, config=config, **options)
    return manager.create(topic, TOPIC_ID, 0, config or LogConfig())


def kill(manager: LogManager) -> None:
    """kill -9: what was written stays, nothing more is."""
    manager.close(clean=False)


def drain(steps: Iterator[object]) -> int:
    """Run a generator of slices to its end; the number of slices."""
    return sum(1 for _ in steps)


def directory_bytes(path: Path | str) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in sorted(Path(path).iterdir()) if entry.is_file()}


__all__ = [
    "NOW",
    "TOPIC_ID",
    "CleanerSettings",
    "FaultyFiles",
    "HeldJobs",
    "Intervals",
    "PowerCut",
    "append",
    "append_short",
    "batch_of",
    "directory_bytes",
    "drain",
    "headers_of",
    "kill",
    "log_on",
    "manager_on",
    "read_all",
    "records_of",
    "renew_crc",
]
