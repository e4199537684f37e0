"""Folding many live segments, in a process of its own: `python -m tools.versus.tier_fold COUNT`, and JSON on
stdout.

Owns the records of one partition with that many copied segments, and what it costs to fold them and to look
one up. Does not own the fold.
Invariant: the records are encoded before anything counts, and are not in memory that counts.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from remote.cold.events import decode_event, encode_event, updated
from remote.cold.fold import TierFold
from remote.cold.segments import RemoteSegment, SegmentStarted, SegmentState, TieredPartition
from storage.epochs import EpochCache
from tools.console import emit_json

RECORDS_A_SEGMENT = 1600
EPOCHS = 20
FINDS = 20_000
AT_ONCE = 1000


def records(
    partition: TieredPartition,
    count: int,
    chosen: random.Random,
    *,
    topic: str = "logs",
    epochs: int = EPOCHS,
) -> Iterator[tuple[bytes, bytes]]:
    """Both records of each copy, in the order in which a leader writes them."""
    for at in range(count):
        base = at * RECORDS_A_SEGMENT
        segment = RemoteSegment(
            partition=partition,
            topic=topic,
            id=UUID(int=chosen.getrandbits(128), version=4),
            base_offset=base,
            end_offset=base + RECORDS_A_SEGMENT,
            broker_id=1,
            max_timestamp_ms=1_700_000_000_000 + at,
            event_timestamp_ms=1_700_000_000_000 + at,
            size_bytes=16_000_000,
            epochs=((at * epochs // count, base),),
            has_aborted=False,
        )
        yield encode_event(SegmentStarted(segment=segment))
        finished = updated(
            segment, SegmentState.COPY_FINISHED, broker_id=1, now_ms=segment.event_timestamp_ms + 1
        )
        yield encode_event(finished)


def measure(count: int) -> dict[str, float]:
    chosen = random.Random(1)
    partition = TieredPartition(UUID(int=chosen.getrandbits(128), version=4), 0)
    fold, cpu_s, read = TierFold(), 0.0, records(partition, count, chosen)
    gc.collect()
    before = _resident_bytes()
    while piece := [pair for _, pair in zip(range(AT_ONCE), read, strict=False)]:
        started_s = time.process_time()
        for key, value in piece:
            fold.apply(decode_event(key, value))
        cpu_s += time.process_time() - started_s
    del piece
    gc.collect()
    held = _resident_bytes() - before
    found = fold.get(partition)
    assert found is not None and found.finished_count == count
    epochs = EpochCache((epoch, -(-epoch * count // EPOCHS) * RECORDS_A_SEGMENT) for epoch in range(EPOCHS))
    offsets = [chosen.randrange(count * RECORDS_A_SEGMENT) for _ in range(FINDS)]
    started_s = time.process_time()
    for offset in offsets:
        if found.find(offset, epochs) is None:
            raise AssertionError(f"no segment holds {offset}")
    finding_s = time.process_time() - started_s
    return {
        "segments": count,
        "cpu_s": cpu_s,
        "bytes": held / count,
        "find_us": finding_s / FINDS * 1e6,
    }


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    emit_json(measure(int(sys.argv[1])))
