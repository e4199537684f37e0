"""`tidewal tier list`: a topic's segments in the cold tier, or how far the copying is.

Owns: the rows, the line that is shown again and again. Does not own: what is known of the segments (reader),
options (tools.commands). Invariant: off a terminal each line is printed once and at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from protocol.errors import ErrorCode
from protocol.ids import encode_id
from remote.cold.fold import PartitionFold
from remote.cold.segments import RemoteSegment
from tools.client import Client
from tools.console import Failure, emit, emit_json, emit_table
from tools.tier.reader import (
    HIGH_WATERMARK,
    PENDING_UPLOAD,
    TierReader,
    copies_of,
    offset_of,
    partitions_of,
    size_text,
    time_text,
)
from tools.topics import config_of

RATE_SAMPLES: Final = 11
"""A segment counts when it is finished: the rate is that of the last ten intervals."""


async def list_copies(client: Client, topic: str, *, as_json: bool) -> None:
    partitions = await partitions_of(client, topic)
    reader = TierReader(client)
    await reader.open()
    await reader.read(partitions)
    await _check_tiered(client, topic, map(reader.get, partitions))
    rows = [_row(copy) for partition in partitions for copy in copies_of(reader.get(partition))]
    if as_json:
        emit_json(rows)
        return
    emit_table(("partition", "base", "end", "bytes", "state", "epochs", "broker", "newest", "id"), rows)
    emit("")
    emit(f"{topic}: {_Progress.of(map(reader.get, partitions))}")


async def _check_tiered(client: Client, topic: str, folds: Iterable[PartitionFold | None]) -> None:
    """Refuse a topic that has nothing to show and never will. What was tiered may have copies that go."""
    if any(copies_of(fold) for fold in folds):
        return
    if await config_of(client, topic, "remote.storage.enable") != "true":
        raise Failure(
            f"topic {topic} is not tiered: remote.storage.enable is not true, and no copies are left"
        )


def _row(copy: RemoteSegment) -> dict[str, Any]:
    return {
        "partition": copy.partition.number,
        "base": copy.base_offset,
        "end": copy.end_offset,
        "bytes": copy.size_bytes,
        "state": copy.state.name,
        "epochs": [epoch for epoch, _ in copy.epochs],
        "broker": copy.broker_id,
        "newest": time_text(copy.max_timestamp_ms),
        "id": encode_id(copy.id),
    }


@dataclass(slots=True, kw_only=True)
class _Progress:
    segments: int = 0
    bytes: int = 0
    copying: int = 0
    copying_bytes: int = 0
    deleting: int = 0

    @classmethod
    def of(cls, folds: Iterable[PartitionFold | None]) -> _Progress:
        now = cls()
        for fold in folds:
            if fold is None:
                continue
            now.segments += fold.finished_count
            now.bytes += fold.finished_bytes
            now.copying += fold.unfinished_count
            now.copying_bytes += sum(copy.size_bytes for copy in fold.unfinished())
            now.deleting += fold.deleting_count
        return now

    def __str__(self) -> str:
        return (
            f"{self.segments:,} segments with {size_text(self.bytes)} in the tier, "
            f"{self.copying:,} with {size_text(self.copying_bytes)} being copied, "
            f"{self.deleting:,} being deleted"
        )


async def watch(client: Client, topic: str, *, every_s: float, times: int | None, as_json: bool) -> None:
    """Tell again and again how far the copying is; until it is interrupted, without `times`."""
    partitions = await partitions_of(client, topic)
    reader = TierReader(client)
    await reader.open()
    await reader.read(partitions)
    await _check_tiered(client, topic, map(reader.get, partitions))
    time = asyncio.get_running_loop().time
    samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES)
    with _one_line() as show:
        while times is None or times > 0:
            await reader.read(partitions)
            now = _Progress.of(map(reader.get, partitions))
            samples.append((time(), now.bytes))
            rate = _rate(*samples[0], *samples[-1])
            waiting = [await _waiting_offsets(client, topic, partition.number) for partition in partitions]
            if as_json:
                row = {**asdict(now), "bytes_per_s": round(rate), "waiting_offsets": sum(waiting)}
                emit_json({"topic": topic, **row})
                sys.stdout.flush()
            else:
                show(f"{topic}: {now}, {size_text(rate)}/s copied, {sum(waiting):,} offsets not there yet")
            if times is not None:
                times -= 1
            if times != 0:
                await asyncio.sleep(every_s)
                await reader.open()


def _rate(first_s: float, first_bytes: int, last_s: float, last_bytes: int) -> float:
    """Bytes a second; what was deleted meanwhile hides as much of what was copied."""
    return max(0, last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0


async def _waiting_offsets(client: Client, topic: str, partition: int) -> int:
    """How many offsets that may be read are not in the tier yet, those of the open segment included."""
    end = await offset_of(client, topic, partition, HIGH_WATERMARK)
    code, pending, _ = await client.list_offset(topic, partition, PENDING_UPLOAD)
    return max(0, end - pending) if code == ErrorCode.none and pending >= 0 else 0


@contextmanager
def _one_line() -> Iterator[Callable[[str], None]]:
    """Give what shows a line: on a terminal in the place of the one before."""
    if not sys.stdout.isatty():

        def show(line: str) -> None:
            emit(line)
            sys.stdout.flush()

        yield show
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        yield lambda line: live.update(Text(line), refresh=True)
