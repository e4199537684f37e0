"""The cold tier of one broker: which partitions have work there, and when each has its turn.

Owns: following roles, configurations and the fold; a tenure for each tiered partition led here; `tiered_end`
of every tiered log; the three groups of workers and what wakes them. Does not own: the steps of a copy or a
deletion (remote.cold), the metadata (coordinators.tier), reads, the restore of a replica. Invariant: nothing
is copied or deleted, and no `tiered_end` is raised, before the fold has passed what the metadata's leader
named when the role began; a store or a metadata topic that is away costs turns and nothing else.

Theory of operation. A change of role ends the tenure of a partition and may begin another. A turn of the
copiers copies one segment, a turn of the expirers takes the due steps of retention, a turn of the followers
recomputes how far the tier reaches. A segment that is closed and committed, a change of the fold and a change
of role give a turn at once, and `remote.log.manager.task.interval.ms` gives one to everybody: one task for
all of them, and workers only while there is something to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, Protocol

from broker.config.broker import BrokerConfig
from broker.control.image import Delta
from broker.replicas.partition import Partition
from broker.replicas.pressure import Pressure
from broker.replicas.trouble import Trouble
from broker.replicas.worker_groups import WorkerGroup
from protocol.errors import ErrorCode, KafkaError
from remote.bad_object import BadObject
from remote.cold.copier import Copier, CopyFailed
from remote.cold.expirer import Expirer
from remote.cold.index_repair import IndexRepair
from remote.cold.metadata_manager import MetadataManager
from remote.cold.quota import Samples
from remote.cold.removal import Removal
from remote.cold.scan import SegmentChanged, SegmentDamaged
from remote.cold.segments import TieredPartition
from remote.cold.storage_manager import (
    StorageManager,
)
from remote.cold.tenure import Tenure, TenureOver
from remote.store.object_store import NoSuchObject, StoreError

RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
LOOKED_AT_ONCE: Final = 256
CLOSED_SAMPLES, CLOSED_SAMPLE_S = 6, 10.0

logger = logging.getLogger(__name__)

_EXPECTED: Final = (
    KafkaError,
    StoreError,
    NoSuchObject,
    BadObject,
    SegmentChanged,
    CopyFailed,
    TimeoutError,
)


class Replicas(Protocol):
    """The replica manager, as far as the tier needs it."""

    @property
    def on_role(self) -> list[Callable[[Partition], None]]: ...
    def partitions(self) -> Iterator[Partition]: ...
    def replica(self, topic: str, index: int) -> Partition | ErrorCode: ...
    def wake_everyone(self, partition: Partition) -> None: ...


class Held:
    """A tiered partition with a replica here."""

    __slots__ = (
        "copy_failures",
        "expiry_failures",
        "is_waiting",
        "key",
        "partition",
        "rolled_at",
        "tenure",
    )

    def __init__(self, key: TieredPartition, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.tenure: Tenure | None = None
        """Of this broker as the leader."""
        self.is_waiting = False
        """Turns were put off until the fold is far enough."""
        self.rolled_at = -1
        """The end of the last closed segment, while its commit is waited for."""
        self.copy_failures = 0
        self.expiry_failures = 0

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    def __repr__(self) -> str:
        return f"<Held {self.partition!r} {self.tenure!r}>"


class Tiering:
    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        replicas: Replicas,
        metadata: MetadataManager,
        storage: StorageManager,
        copier: Copier,
        expirer: Expirer,
        removal: Removal,
        pressure: Pressure,
    ) -> None:
        self.metadata = metadata
        self.storage = storage
        self.copier = copier
        self.expirer = expirer
        self.removal = removal
        self.pressure = pressure
        self.index_repair: IndexRepair | None = None
        """None with managers of others, which put nothing back."""
        self._config = config
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._held: dict[TieredPartition, Held] = {}
        self._damaged: set[Held] = set()
        """Partitions of which nothing is copied because a local segment is damaged."""
        self.copy_trouble = Trouble("to be copied to the tier", self._loop.time)
        self.expiry_trouble = Trouble("to be cleared in the tier", self._loop.time)
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._nudge = asyncio.Event()
        self._closed = Samples(samples=CLOSED_SAMPLES, sample_s=CLOSED_SAMPLE_S)
        self._wakes_at = 0.0
        self._copying = self._group(
            "copy", lambda: config().remote_log_manager_copier_thread_pool_size, self._copy
        )
        self._expiring = self._group(
            "expiration", lambda: config().remote_log_manager_expiration_thread_pool_size, self._expire
        )
        self._following = self._group(
            "follower", lambda: config().remote_log_manager_follower_thread_pool_size, self._follow
        )
        replicas.on_role.append(self._role_changed)
        metadata.on_change.append(self._fold_changed)

    def __repr__(self) -> str:
        led = sum(held.tenure is not None for held in self._held.values())
        return f"<Tiering {len(self._held)} partitions, {led} led, {self._copying}, {self._expiring}>"

    def led(self) -> list[tuple[Partition, Tenure]]:
        """The tiered partitions that this broker leads."""
        return [(held.partition, held.tenure) for held in self._held.values() if held.tenure is not None]

    def closed_per_s(self) -> float:
        """The bytes a second that were closed for the tier in the last minute."""
        now = self._loop.time()
        return self._closed.statistics(now).total / self._closed.elapsed_s(now)

    def tenure_of(self, key: TieredPartition) -> Tenure | None:
        """Return the tenure if this broker leads the partition, and knows all that was said of its copies."""
        held = self._held.get(key)
        return None if held is None or not self.metadata.is_caught_up(key) else held.tenure

    @property
    def damaged_count(self) -> int:
        """How many partitions led here copy nothing because a local segment is damaged."""
        return len(self._damaged)

    @property
    def groups(self) -> tuple[WorkerGroup[Held], ...]:
        return self._copying, self._expiring, self._following

    def _group(
        self, name: str, size: Callable[[], int], turn: Callable[[Held], Coroutine[Any, Any, None]]
    ) -> WorkerGroup[Held]:
        return WorkerGroup(name, size=size, turn=turn, spawn=self._spawn)

    # --- life ---

    def start(self, task_group: asyncio.TaskGroup) -> None:
        """Begin with the partitions that are here; nothing is waited for."""
        self._tasks = task_group
        for partition in self._replicas.partitions():
            self._role_changed(partition)
        self._spawn(self._tick_for_ever())
        self._spawn(self.pressure.watch_for_ever())

    async def stop(self) -> None:
        """End every copy and deletion; what they leave is settled by the next leader."""
        self._tasks = None
        for held in self._held.values():
            self._end_tenure(held)
        for task in list(self._running):
            # after its first step: a coroutine cancelled before it would never await what it was given
            self._loop.call_soon(task.cancel)
        await asyncio.gather(*self._running, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
            return
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _tick_for_ever(self) -> None:
        round_at = self._loop.time()
        while True:
            interval_s = self._config().remote_log_manager_task_interval_ms / 1000
            if self._loop.time() >= round_at:
                await self._round()
                round_at = self._loop.time() + interval_s
            round_at = min(round_at, self._loop.time() + interval_s)
            due = [group.due(self._loop.time()) for group in (self._copying, self._expiring, self._following)]
            self._wakes_at = min([round_at, *(when for when in due if when is not None)])
            self._nudge.clear()
            try:
                async with asyncio.timeout_at(self._wakes_at):
                    await self._nudge.wait()
            except TimeoutError:
                pass

    async def _round(self) -> None:
        """Give everybody a turn, in slices."""
        for at, held in enumerate(list(self._held.values()), 1):
            if self._held.get(held.key) is held:
                self._give_turns(held)
            if at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _give_turns(self, held: Held) -> None:
        self._following.add(held)
        if held.tenure is not None:
            self._copying.add(held)
            self._expiring.add(held)

    def _later(self, group: WorkerGroup[Held], held: Held, wait_s: float) -> None:
        when = self._loop.time() + wait_s
        group.add_at(held, when)
        if when < self._wakes_at:
            self._nudge.set()

    # --- what changes ---

    def image_changed(self, delta: Delta) -> Iterator[None]:
        """Look again at every partition, in slices, after a change of configurations: a topic may have become
        tiered, or not be any more."""
        if not delta.configs_changed:
            return
        self._nudge.set()
        for at, partition in enumerate(list(self._replicas.partitions()), 1):
            self._role_changed(partition)
            if at % LOOKED_AT_ONCE == 0:
                yield

    def _role_changed(self, partition: Partition) -> None:
        if self._tasks is None:
            return
        key = TieredPartition(partition.topic_id, partition.index)
        held = self._held.get(key)
        is_here = self._replicas.replica(partition.topic, partition.index) is partition
        if not is_here or not has_tier(partition):
            if held is not None and held.partition is partition:
                self._let_go(held)
            return
        if held is None or held.partition is not partition:
            if held is not None:
                self._let_go(held)
            held = self._take(key, partition)
        self._set_tenure(held)
        self._give_turns(held)

    def _take(self, key: TieredPartition, partition: Partition) -> Held:
        held = self._held[key] = Held(key, partition)
        partition.log.on_roll = partial(self._rolled, held)
        self.metadata.follow(key)
        return held

    def _let_go(self, held: Held) -> None:
        self._end_tenure(held)
        del self._held[held.key]
        for group in (self._copying, self._expiring, self._following):
            group.discard(held)
        held.partition.log.on_roll = None
        held.partition.log.tiered_end = 0
        self.removal.forget(held.key)
        self.metadata.unfollow(held.key)

    def _set_tenure(self, held: Held) -> None:
        partition, tenure = held.partition, held.tenure
        if partition.is_leader and tenure is not None and tenure.leader_epoch == partition.leader_epoch:
            return
        self._end_tenure(held)
        if not partition.is_leader:
            return
        held.copy_failures = held.expiry_failures = 0
        held.tenure = Tenure(
            partition=held.key,
            topic=partition.topic,
            log=partition.log,
            leader_epoch=partition.leader_epoch,
            began_at=self._loop.time(),
            counts=partition.stats,
            on_start_moved=lambda: self._start_moved(partition),
        )
        self.removal.forget(held.key)
        self.metadata.renew(held.key)

    def _end_tenure(self, held: Held) -> None:
        if held.tenure is not None:
            held.tenure.end()
            held.tenure = None
        self._damaged.discard(held)
        if self._tasks is not None:
            self.copy_trouble.ended(held)
            self.expiry_trouble.ended(held)

    def _start_moved(self, partition: Partition) -> None:
        partition.log_start_moved()
        self._replicas.wake_everyone(partition)

    def look_again(self, partition: Partition) -> None:
        """Compute anew how far the tier reaches: the log knows its epochs now."""
        self._fold_changed(TieredPartition(partition.topic_id, partition.index))

    def _fold_changed(self, key: TieredPartition) -> None:
        held = self._held.get(key)
        if held is not None:
            self._following.add(held)

    def _rolled(self, held: Held) -> None:
        """A segment was closed, amid an append: it may be copied once all of it is committed."""
        if held.tenure is None:
            return
        is_first, log = held.rolled_at < 0, held.partition.log
        held.rolled_at = log.log_end_offset
        self._closed.add(log.size_from(held.rolled_at - 1), self._loop.time())
        if is_first:
            self._loop.call_soon(self.look_at_committed, held)

    def look_at_committed(self, held: Held) -> None:
        """Have the last closed segment copied, at once or when all of it is committed."""
        if held.tenure is None:
            held.rolled_at = -1
        elif held.rolled_at > held.partition.log.high_watermark:
            held.partition.wait_committed(_Committed(self, held))
        else:
            held.rolled_at = -1
            self._copying.add(held)

    # --- turns ---

    async def _copy(self, held: Held) -> None:
        tenure = held.tenure
        if tenure is None or not held.partition.log.is_tiered or not self._is_ready(held):
            return
        self._settle(held)
        try:
            is_more = await self.copier.copy_next(tenure)
        except TenureOver:
            return
        except _EXPECTED as error:
            tenure.counts.failed_remote_copy += 1
            held.copy_failures += 1
            self.copy_trouble.failed(held, held.name, error)
            self._note_damage(held, error)
            self._put_off(self._copying, held, held.copy_failures)
            return
        held.copy_failures = 0
        self.copy_trouble.ended(held)
        self._damaged.discard(held)
        self._settle(held)
        if is_more:
            self._copying.add(held)

    def _note_damage(self, held: Held, error: Exception) -> None:
        """Tell once that nothing of a partition is copied any more until somebody acts."""
        if not isinstance(error, SegmentDamaged):
            self._damaged.discard(held)
        elif held not in self._damaged:
            self._damaged.add(held)
            logger.error(
                "nothing more of %s is copied to the tier, as a segment on this disk is damaged: %s; "
                "let another replica lead, which has files of its own, and take this one up anew; without "
                "another, DeleteRecords past that segment gives up what is before its end, and the copies "
                "go on behind it",
                held.name,
                error,
            )

    async def _expire(self, held: Held) -> None:
        tenure = held.tenure
        if tenure is None or not self._is_ready(held):
            return
        try:
            wait_s = await self.expirer.expire(tenure)
        except TenureOver:
            return
        except _EXPECTED as error:
            tenure.counts.failed_remote_delete += 1
            held.expiry_failures += 1
            self.expiry_trouble.failed(held, held.name, error)
            self._put_off(self._expiring, held, held.expiry_failures)
            return
        held.expiry_failures = 0
        self.expiry_trouble.ended(held)
        if wait_s is not None:
            self._later(self._expiring, held, wait_s)

    async def _follow(self, held: Held) -> None:
        self._settle(held)
        if held.is_waiting and self.metadata.is_caught_up(held.key):
            held.is_waiting = False
            self._give_turns(held)

    def _is_ready(self, held: Held) -> bool:
        """Whether the fold is far enough; if not, there are turns when it is."""
        if self.metadata.is_caught_up(held.key):
            return True
        held.is_waiting = True
        return False

    def _put_off(self, group: WorkerGroup[Held], held: Held, failures: int) -> None:
        interval_s = self._config().remote_log_manager_task_interval_ms / 1000
        wait_s = min(RETRY_MIN_S * 2 ** min(failures - 1, 10), max(RETRY_MIN_S, min(RETRY_MAX_S, interval_s)))
        self._later(group, held, wait_s)

    def _settle(self, held: Held) -> None:
        """Tell the log how far the tier reaches."""
        log = held.partition.log
        if log.offline is not None or log.epochs_incomplete or not self.metadata.is_caught_up(held.key):
            return
        if not log.is_tiered and log.config.remote_log_delete_on_disable:
            # also where another leads, whose files may begin earlier: what only the tier had is gone
            log.advance_log_start(log.local_log_start_offset)
        fold = self.metadata.fold(held.key)
        end = 0
        if fold is not None and log.is_tiered:
            end = fold.chain_end(
                log.epochs, log_start=log.log_start_offset, local_start=log.local_log_start_offset
            )
        log.tiered_end = min(end, log.log_end_offset)


class _Committed:
    """Waits until everything before the last closed segment's end is committed."""

    __slots__ = ("_held", "_tiering", "needed")

    def __init__(self, tiering: Tiering, held: Held) -> None:
        self.needed = held.rolled_at
        self._held = held
        self._tiering = tiering

    def reached(self) -> None:
        self._tiering.look_at_committed(self._held)

    def failed(self, code: ErrorCode) -> None:
        self._held.rolled_at = -1


def has_tier(partition: Partition) -> bool:
    """Whether the partition has, or may still have, anything in the tier."""
    config = partition.log.config
    return not partition.offline and (config.remote_storage_enable or config.remote_log_delete_on_disable)
