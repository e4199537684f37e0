"""Looking for a record by its time, in one batch.

Owns: which record of a batch answers for a time, unpacking the batch for that within bounds. Does not own:
which batch it is (segment), running the steps and tasks (who asks). Invariant: no step takes long, and no
batch takes more memory than `UNPACKED_BYTES_MAX`.

A producer's header is not compared with its records on the way in. Where they do not hold what it promises,
cannot be read, or become more than may be unpacked, it is taken at its word: to look on would read the whole
segment.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from protocol.compression import DecompressedTooLarge, decompress_apart
from protocol.errors import CorruptBatch
from protocol.records import HEADER_SIZE, BatchHeader, Buffer, iter_times, parse_header, records_data
from storage.prepare import INLINE_BYTES, Task

T = TypeVar("T")

Found: TypeAlias = tuple[int, int, int]
"""Timestamp, offset, leader epoch."""
Steps: TypeAlias = Generator[Task | None, None, T]
"""A yielded task is to be run, in a thread if that is at hand, before the next step."""
Finding: TypeAlias = Steps[Found | None]

UNPACKED_INLINE_BYTES: Final = 64 << 10
"""What a batch may become where it is looked through; a larger one is unpacked by a task."""
UNPACKED_BYTES_MAX: Final = 64 << 20
RECORDS_PER_STEP: Final = 256


def run_here(finding: Finding) -> Found | None:
    """Run all steps and tasks at once."""
    while True:
        try:
            task = next(finding)
        except StopIteration as end:
            found: Found | None = end.value
            return found
        if task is not None:
            task.run()


def record_at_time(batch: bytes, timestamp: int, start_offset: int) -> Finding:
    """Find the first record from `start_offset` on at or after `timestamp`, in a batch that says it has
    one."""
    header = parse_header(batch)
    keeps_its_word = False
    try:
        times = iter_times((yield from _unpacked(batch, header)), header)
        while part := list(islice(times, RECORDS_PER_STEP)):
            for offset, record_timestamp in part:
                if record_timestamp >= timestamp:
                    if offset >= start_offset:
                        return record_timestamp, offset, header.leader_epoch
                    keeps_its_word = True
            yield None
    except CorruptBatch:
        keeps_its_word = False
    if keeps_its_word:
        return None
    return header.max_timestamp, max(header.base_offset, start_offset), header.leader_epoch


def _unpacked(batch: bytes, header: BatchHeader) -> Generator[Task | None, None, Buffer]:
    section = memoryview(batch)[HEADER_SIZE : header.size]
    if not header.codec:
        return section
    if header.size <= INLINE_BYTES:
        # How much a few bytes become shows only when they are unpacked.
        try:
            return records_data(batch, 0, header, limit=UNPACKED_INLINE_BYTES)
        except DecompressedTooLarge:
            pass
    task = Task(lambda: decompress_apart(header.codec, section, UNPACKED_BYTES_MAX))
    yield task
    unpacked: Buffer = task.result()
    return unpacked
