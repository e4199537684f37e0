"""What happens to tiered topics when a log directory runs short of room, because the tier does not take what
should long be there.

Owns: looking at the room that is left, and `remote.log.pressure.policy`: `keep` changes nothing, `refuse`
takes no more from producers, `drop` gives up the oldest records. Does not own: deletions of segments (the
log), why the tier is behind (copier). Invariant: no record that is not in the tier goes before all that is
there has gone from the disk, and what goes is what the missing bytes ask for, oldest first over all
partitions of the directory; the log start is durable before anything goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from typing import Final, NamedTuple, Protocol

from broker.ports import Offload
from broker.replicas.partition import Partition, few_of
from protocol.errors import KafkaError
from remote.cold.tenure import start_log_at
from storage.files import Files
from storage.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
RETURNED_AFTER_S: Final = 10.0
"""Files of deleted segments are removed within this time after `file.delete.delay.ms`."""


class Replicas(Protocol):
    def partitions(self) -> Iterator[Partition]: ...
    def wake_everyone(self, partition: Partition) -> None: ...


class Logs(Protocol):
    @property
    def dirs(self) -> list[str]: ...
    @property
    def offline_dirs(self) -> Mapping[str, str]: ...
    @property
    def logs(self) -> Mapping[tuple[str, int], UnifiedLog]: ...


class Oldest(NamedTuple):
    """A closed segment that may be given up, in the order in which they are."""

    max_timestamp: int
    partition: int
    """Its place in the list of partitions."""
    end_offset: int
    size: int


class Pressure:
    def __init__(
        self,
        *,
        files: Files,
        offload: Offload,
        replicas: Replicas,
        logs: Logs,
        min_free_bytes: Callable[[], int],
        now_ms: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.missing: dict[str, int] = {}
        """Bytes that each directory lacks, of those that are short of room."""
        self.dropped_bytes = 0
        """Of records that were never copied."""
        self._files = files
        self._offload = offload
        self._replicas = replicas
        self._logs = logs
        self._min_free_bytes = min_free_bytes
        self._now_ms = now_ms
        self._clock = clock
        self._returning: dict[str, list[tuple[float, int]]] = {}
        """When files that were deleted have left each directory, and their bytes."""
        self._is_refusing = False
        """The last look found a directory too full: leaders may have been told to take nothing."""

    def __repr__(self) -> str:
        return f"<Pressure missing {self.missing}, {self.dropped_bytes} bytes dropped>"

    async def watch_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Look at every directory once, and act."""
        wanted = self._min_free_bytes()
        tiered = self._tiered() if wanted else {}
        for path in list(self._logs.dirs):
            partitions = tiered.get(path, [])
            free = await self._free(path) if partitions else None
            missing = 0 if free is None else max(0, wanted - free)
            self._note(path, missing, free, partitions)
            if missing:
                await self._drop(path, missing, partitions)
        if self.missing or self._is_refusing:
            self._refuse()

    def _tiered(self) -> dict[str, list[Partition]]:
        """The tiered partitions in each directory."""
        found: dict[str, list[Partition]] = {}
        for partition in self._replicas.partitions():
            held = self._logs.logs.get((partition.topic, partition.index))
            if held is partition.log and held is not None and held.is_tiered and not partition.offline:
                found.setdefault(held.log_dir, []).append(partition)
        return found

    async def _free(self, path: str) -> int | None:
        if path in self._logs.offline_dirs:
            return None
        try:
            return (await self._offload(lambda: self._files.free_bytes(path)))[1]
        except OSError as error:
            logger.warning("cannot tell how much room log directory %s has: %s", path, error)
            return None

    def _note(self, path: str, missing: int, free: int | None, partitions: list[Partition]) -> None:
        if missing and path not in self.missing:
            topics = sorted({f"{each.topic} ({_policy(each)})" for each in partitions})
            logger.error(
                "log directory %s has %d free bytes, %d less than log.dir.min.free.bytes. Tiered topics "
                "there and their remote.log.pressure.policy: %s. See whether the object store takes uploads, "
                "or make room",
                path,
                free,
                missing,
                few_of(topics),
            )
        elif not missing and path in self.missing:
            logger.warning("log directory %s has room again", path)
        if missing:
            self.missing[path] = missing
        else:
            self.missing.pop(path, None)

    # --- refuse ---

    def _refuse(self) -> None:
        """Let the leaders of topics that refuse take nothing, or take again."""
        self._is_refusing = bool(self.missing)
        for partition in self._replicas.partitions():
            held = self._logs.logs.get((partition.topic, partition.index))
            is_full = held is not None and held.log_dir in self.missing and held.is_tiered
            has_room = not (is_full and _policy(partition) == "refuse")
            if partition.has_room is not has_room:
                partition.has_room = has_room
                partition.refresh()

    # --- drop ---

    async def _drop(self, path: str, missing: int, partitions: Iterable[Partition]) -> None:
        dropping = [partition for partition in partitions if _policy(partition) == "drop"]
        missing -= self._soon_free(path)
        for partition in dropping:
            if missing <= 0:
                return
            missing -= self._free_tiered(path, partition)
        led = [partition for partition in dropping if partition.is_leader and _is_all_untiered(partition)]
        starts = plan_drop(missing, [_oldest(at, partition) for at, partition in enumerate(led)])
        for at, (start, size) in starts.items():
            await self._give_up(path, led[at], start, size)

    def _free_tiered(self, path: str, partition: Partition) -> int:
        """Delete what is in the tier as well; the bytes."""
        total = 0
        try:
            while freed := partition.log.free_tiered(self._now_ms()):
                total += freed
        except KafkaError as error:
            logger.warning("%s-%d frees no room: %s", partition.topic, partition.index, error)
        self._returns(path, partition, total)
        return total

    async def _give_up(self, path: str, partition: Partition, start: int, size: int) -> None:
        name = f"{partition.topic}-{partition.index}"
        logger.error(
            "%s starts at %d now: %d bytes that were never copied to the tier are given up "
            "(remote.log.pressure.policy=drop)",
            name,
            start,
            size,
        )
        try:
            await start_log_at(partition.log, start)
            for _ in iter(lambda: partition.log.expire(self._now_ms()), 0):
                await asyncio.sleep(0)
        except (KafkaError, TimeoutError) as error:
            logger.warning("%s gives up nothing yet: %s", name, error)
            return
        self.dropped_bytes += size
        self._returns(path, partition, size)
        partition.log_start_moved()
        self._replicas.wake_everyone(partition)

    def _returns(self, path: str, partition: Partition, size: int) -> None:
        delay_s = partition.log.config.file_delete_delay_ms / 1000 + RETURNED_AFTER_S
        if size:
            self._returning.setdefault(path, []).append((self._clock() + delay_s, size))

    def _soon_free(self, path: str) -> int:
        """Bytes of files that are deleted and not removed yet."""
        now = self._clock()
        waiting = [(until, size) for until, size in self._returning.pop(path, []) if until > now]
        if waiting:
            self._returning[path] = waiting
        return sum(size for _, size in waiting)


def plan_drop(missing: int, candidates: Iterable[list[Oldest]]) -> dict[int, tuple[int, int]]:
    """Which partitions give up how much: by their place, the new log start and the bytes before it. Each list
    is one partition's, in the order of its offsets; whole segments go, oldest record first."""
    starts: dict[int, tuple[int, int]] = {}
    ordered = merge(*(_as_they_may_go(segments) for segments in candidates))
    for segment in ordered:
        if missing <= 0:
            break
        missing -= segment.size
        before = starts.get(segment.partition, (0, 0))[1]
        starts[segment.partition] = (segment.end_offset, before + segment.size)
    return starts


def _as_they_may_go(segments: list[Oldest]) -> Iterator[Oldest]:
    """A segment can only go after those before it, so it counts as no older than they are."""
    newest = -1
    for segment in segments:
        newest = max(newest, segment.max_timestamp)
        yield segment._replace(max_timestamp=newest)


def _policy(partition: Partition) -> str:
    return partition.log.config.remote_log_pressure_policy


def _is_all_untiered(partition: Partition) -> bool:
    """Whether nothing that is here is in the tier as well."""
    return partition.log.tiered_end <= partition.log.local_log_start_offset


def _oldest(at: int, partition: Partition) -> list[Oldest]:
    log = partition.log
    return [
        Oldest(segment.max_timestamp, at, segment.end_offset, segment.size)
        for segment in log.closed_segments(log.log_start_offset, log.high_watermark)
        if segment.end_offset > log.log_start_offset
    ]
