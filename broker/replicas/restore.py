"""Bringing a replica up from the tier: a follower to where the tier ends (KIP-1023) instead of copying all of
it from its leader, a replica that has to lead and has nothing, and a log that has lost its epochs.

Owns: when a follower may begin at the tiered end, what is asked of its leader, trying again with a pause that
grows, and how many are under way at once. Does not own: which copy and what it tells (remote/cold/bootstrap),
the fold of the tier's metadata, the log's files (storage), tasks and positions of followers (fetcher), roles
(replica manager).

Invariants. A log is touched only once everything that is to be put into it was read and checked, and only
while its partition is still what it was when that began. What failed is tried again: nothing here ends a
broker, and one partition that waits for the tier's metadata holds up no other. A replica whose log is empty,
or may have lost its end with the power, leads a tiered partition only after the tier's own metadata said that
there is no more of it, or what there is was taken over: a new epoch that begins earlier would make all of it
unreadable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

from broker.config.broker import BrokerConfig
from broker.control.metadata_records import PartitionImage
from broker.net.channel import PeerLost
from broker.replicas.partition import Partition
from protocol.errors import ErrorCode, KafkaError
from remote.bad_object import BadObject
from remote.cold.bootstrap import (
    RestorePoint,
    copies_ahead,
    copy_before,
    copy_below_local,
    fetch_epochs,
    fetch_restore_point,
    is_continued,
)
from remote.cold.fold import PartitionFold
from remote.cold.segments import RemoteSegment, TieredPartition
from remote.cold.storage_manager import (
    StorageManager,
)
from remote.store.object_store import NoSuchObject, StoreError
from storage.epochs import EpochCache
from storage.log import AbstractLog, NoDescriptor

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
"""Each holds two small objects at most; what bounds them is the load on the store and on the leaders."""
ATTEMPT_S: Final = 60.0
PAUSE_MAX_S: Final = 10.0

_LATEST, _EARLIEST = -1, -2
_EARLIEST_LOCAL, _EARLIEST_PENDING_UPLOAD = -4, -6


class OffsetAndEpoch(NamedTuple):
    """Each is -1 when it is not known."""

    offset: int
    epoch: int


class LeaderLog(Protocol):
    """What a follower may ask its leader about one log. PeerLost, or KafkaError with the leader's code."""

    async def offset(self, timestamp: int) -> OffsetAndEpoch:
        """Ask ListOffsets for what a special timestamp stands for."""

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Ask OffsetForLeaderEpoch: the largest epoch not above `epoch`, and where it ends; -1 for none."""


class TierView(Protocol):
    """The tier's metadata, as far as a restore needs it."""

    def fold(self, partition: TieredPartition) -> PartitionFold | None: ...
    def renew(self, partition: TieredPartition) -> None: ...
    async def wait_caught_up(self, partition: TieredPartition) -> None: ...


class NotYet(Exception):
    """What would be needed is not known or not there now; it may be later."""


class Restores:
    """All restores of one broker."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: TierView,
        storage: StorageManager,
        config: Callable[[], BrokerConfig],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        is_tier_there: Callable[[], bool],
    ) -> None:
        """`is_tier_there` tells whether anything was ever tiered in this cluster."""
        self._node_id = node_id
        self._metadata = metadata
        self._storage = storage
        self._config = config
        self._spawn = spawn
        self._is_tier_there = is_tier_there
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)
        self._is_started = asyncio.Event()
        self._before_leading: dict[Partition, int] = {}
        """Partitions to be led after their restore, and the leader epoch they wait in."""
        self._at_work: set[Partition] = set()
        """Partitions with a task that restores them before they are led."""
        self._settled: dict[Partition, int] = {}
        """Those that may be led now, until they are."""
        self._completing: set[Partition] = set()
        """Partitions whose epochs are being put back."""
        self.on_epochs: list[Callable[[Partition], None]] = []
        """Called when the epochs of a log are whole again."""

    def __repr__(self) -> str:
        waiting, completing = len(self._before_leading), len(self._completing)
        return f"<Restores {waiting} before leading, {completing} completing epochs>"

    def start(self) -> None:
        """Begin with what was asked for until now: the tier's metadata is followed from here on."""
        self._is_started.set()

    # --- a follower ---

    async def follow(self, partition: Partition, leader: LeaderLog, is_current: Callable[[], bool]) -> None:
        """Begin the log of a follower anew where the tier ends, or where the leader's local log begins.
        Return when that is done or no longer wanted; KafkaError when the leader is of another epoch
        (FENCED_LEADER_EPOCH), or the log cannot be written."""
        attempts = self._attempts(f"{partition.topic}-{partition.index}")
        await self._is_started.wait()
        while is_current():
            partition.stats.aux_state_builds += 1
            try:
                begin = await self._plan(partition, leader)
            except KafkaError as error:
                if error.code is ErrorCode.fenced_leader_epoch:
                    raise
                await attempts.failed(partition, error)
                continue
            except _TRANSIENT as error:
                await attempts.failed(partition, error)
                continue
            if not is_current():
                return
            try:
                begin(partition.log)
            except NoDescriptor as error:
                await attempts.failed(partition, error)
                continue
            return

    async def _plan(self, partition: Partition, leader: LeaderLog) -> Callable[[AbstractLog], None]:
        """Return what is to be done to the log. Where the leader's log begins and ends is asked first: what
        it has in the tier only grows meanwhile."""
        held = partition.log
        async with self._slot():
            end = await leader.offset(_LATEST)
            start = await leader.offset(_EARLIEST)
            if may_begin_at_tier(held, self._config(), leader_end=end.offset):
                target = await _pending_upload(leader, start)
            else:
                target = await leader.offset(_EARLIEST_LOCAL)
            if target.offset <= start.offset:
                return lambda log: _begin_empty(log, start.offset)
            if not held.is_tiered:
                raise NotYet("this broker does not know yet that the topic is tiered")
            epoch = await _epoch_before(leader, target)
        fold, copy = await self._copy_before(partition, target.offset, epoch)
        async with self._slot():
            begins_at = await _common_end(leader, copy, target.offset)
            point = await fetch_restore_point(self._storage, fold, copy, begins_at)
        return lambda log: _begin_at(log, point, start.offset)

    async def _copy_before(
        self, partition: Partition, offset: int, epoch: int
    ) -> tuple[PartitionFold, RemoteSegment]:
        """Find the copy that the leader means."""
        fold = self._metadata.fold(tiered_partition(partition))
        copy = None if fold is None else copy_before(fold, offset, epoch=epoch)
        if copy is None:
            fold = await self._caught_up(partition)
            copy = None if fold is None else copy_before(fold, offset, epoch=epoch)
        if fold is None or copy is None:
            raise NotYet(f"no copy before offset {offset} of epoch {epoch} is known here")
        return fold, copy

    # --- a replica that has to lead ---

    def is_needed(self, partition: Partition, view: PartitionImage) -> bool:
        """Whether this replica must not lead as `view` says before the tier was asked: others have led
        before, or this broker in an earlier life, and it has nothing, or may have lost the end of what it
        had. Who was elected from several in sync has what they have; and a sole replica that a clean stop
        left empty had nothing."""
        held = partition.log
        is_empty = held.log_start_offset == held.log_end_offset
        return (
            held.is_tiered
            and (held.may_lack_end or (is_empty and len(view.replicas) > 1))
            and len(view.isr) <= 1
            and view.leader_epoch > 0
            and not partition.is_leader
            and self._settled.get(partition) != view.leader_epoch
            and self._is_tier_there()
        )

    def begin(self, partition: Partition, done: Callable[[Partition, KafkaError | None], None]) -> None:
        """Restore before leading; `done` is called once it may lead, or with the reason why it never will."""
        self._before_leading[partition] = partition.leader_epoch
        if not self._at_work:
            logger.info(
                "%s-%d, and maybe others, may have lost records with an unclean stop or a disk: "
                "not led before it is known what of them is in the tier",
                partition.topic,
                partition.index,
            )
        if partition not in self._at_work:
            self._at_work.add(partition)
            self._spawn(self._restore_to_lead(partition, done))

    def role_changed(self, partition: Partition) -> None:
        """Give up what a partition no longer waits for; look after one that has lost its epochs."""
        self._settled.pop(partition, None)
        if partition.offline or partition.is_leader or partition.leader_id != self._node_id:
            self._before_leading.pop(partition, None)
        if partition.offline or partition in self._completing:
            return
        if partition.log.is_tiered and partition.log.epochs_incomplete:
            self._completing.add(partition)
            self._spawn(self._complete_epochs(partition))

    async def _restore_to_lead(
        self, partition: Partition, done: Callable[[Partition, KafkaError | None], None]
    ) -> None:
        name = f"{partition.topic}-{partition.index}"
        attempts = self._attempts(name)
        try:
            await self._is_started.wait()
            logger.debug("%s: is not led before it is known what of it is in the tier", name)
            while (epoch := self._before_leading.get(partition)) is not None:
                try:
                    found = await self._ahead(partition)
                    if self._before_leading.get(partition) != epoch:
                        continue  # it may have followed another leader meanwhile
                    if found is not None:
                        _take_over(partition.log, *found)
                except (*_TRANSIENT, NoDescriptor) as error:
                    await attempts.failed(partition, error)
                    continue
                except KafkaError as error:
                    if partition.log.offline is None:
                        await attempts.failed(partition, error)
                    elif self._before_leading.pop(partition, None) is not None:
                        done(partition, error)
                    continue
                self._settled[partition] = self._before_leading.pop(partition)
                done(partition, None)
        finally:
            self._at_work.discard(partition)

    async def _ahead(self, partition: Partition) -> tuple[RestorePoint | None, int] | None:
        """Return the point of the tier from which the log is to go on, and where it is to start; None when
        the tier has no more than the log. Without a point it goes on where it starts."""
        held = partition.log
        fold = await self._caught_up(partition)
        if fold is None:
            return None
        if held.log_start_offset == held.log_end_offset:
            return await self._newest(held, fold)
        copies = copies_ahead(
            fold,
            held.epochs,
            log_start=held.log_start_offset,
            local_start=held.local_log_start_offset,
            log_end=held.log_end_offset,
        )
        for copy, end in copies:
            async with self._slot():
                point = await fetch_restore_point(self._storage, fold, copy, end)
            chain_start = fold.chain_start(EpochCache(point.epochs), end)
            is_agreed = is_continued(held.epochs, held.log_end_offset, point)
            if is_agreed and chain_start <= held.local_log_start_offset:
                return point, max(held.log_start_offset, min(fold.log_start, end))
            why = "the tier lacks some that it has" if is_agreed else "they are of another history"
            logger.warning("%s: ends before the copies up to %d, but %s", held, end, why)
        return None

    async def _newest(self, held: AbstractLog, fold: PartitionFold) -> tuple[RestorePoint | None, int] | None:
        """Return the newest point for a log that has nothing."""
        newest = fold.newest()
        end = held.log_end_offset if newest is None else max(newest.end_offset, held.log_end_offset)
        if fold.log_start > end:
            return None, fold.log_start
        if newest is None or newest.end_offset <= held.log_end_offset:
            return None
        async with self._slot():
            point = await fetch_restore_point(self._storage, fold, newest, newest.end_offset)
        chain_start = fold.chain_start(EpochCache(point.epochs), point.start)
        return point, max(chain_start, held.log_start_offset, fold.log_start)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Ask leaders or the store, while few others do. The tier's metadata is waited for without one."""
        async with self._slots, asyncio.timeout(ATTEMPT_S):
            yield

    async def _caught_up(self, partition: Partition) -> PartitionFold | None:
        tiered = tiered_partition(partition)
        self._metadata.renew(tiered)
        async with asyncio.timeout(ATTEMPT_S):
            await self._metadata.wait_caught_up(tiered)
        return self._metadata.fold(tiered)

    # --- a log without its epochs ---

    async def _complete_epochs(self, partition: Partition) -> None:
        attempts = self._attempts(f"{partition.topic}-{partition.index}")
        held = partition.log
        await self._is_started.wait()
        try:
            while held.offline is None and held.is_tiered and held.epochs_incomplete:
                local_start = held.local_log_start_offset
                try:
                    epochs = await self._epochs_below(partition, local_start)
                except (*_TRANSIENT, KafkaError) as error:
                    await attempts.failed(partition, error)
                    continue
                if held.offline is not None or held.local_log_start_offset != local_start:
                    continue
                if epochs is not None:
                    held.restore_epochs(epochs)
                    logger.info("%s: its epochs were restored from the tier", _name_of(held))
                elif partition.is_leader:
                    logger.error(
                        "%s: starts at %d now: no copy of what was before is known",
                        _name_of(held),
                        local_start,
                    )
                    held.advance_log_start(local_start)
                    await asyncio.sleep(ATTEMPT_S)
                else:
                    await asyncio.sleep(PAUSE_MAX_S)  # the leader's log start comes with what it sends
        except KafkaError as error:
            logger.error(
                "%s-%d: its epochs cannot be restored: %s", partition.topic, partition.index, error.message
            )
        finally:
            self._completing.discard(partition)
        for listener in self.on_epochs:
            listener(partition)

    async def _epochs_below(
        self, partition: Partition, local_start: int
    ) -> tuple[tuple[int, int], ...] | None:
        """Return the epochs below the local start, None when no copy has what is before it."""
        fold = await self._caught_up(partition)
        copy = None if fold is None else copy_below_local(fold, partition.log.epochs, local_start)
        if copy is None:
            return None
        async with self._slot():
            epochs = await fetch_epochs(self._storage, copy)
        return tuple(entry for entry in epochs if entry[1] < local_start)

    def _attempts(self, name: str) -> _Attempts:
        return _Attempts(name, first_pause_s=self._config().replica_fetch_backoff_ms / 1000)


_TRANSIENT = (PeerLost, StoreError, NoSuchObject, BadObject, NotYet, TimeoutError)


class _Attempts:
    """The pauses between attempts for one partition, and what is told of them."""

    def __init__(self, name: str, *, first_pause_s: float) -> None:
        self._name = name
        self._pause_s = first_pause_s
        self._told = ""

    async def failed(self, partition: Partition, error: Exception) -> None:
        partition.stats.failed_aux_state_builds += 1
        why = str(error) or f"no answer in {ATTEMPT_S:.0f} s"
        if why != self._told:
            self._told = why
            logger.warning("%s: not restored from the tier yet, trying on: %s", self._name, why)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)


def tiered_partition(partition: Partition) -> TieredPartition:
    return TieredPartition(partition.topic_id, partition.index)


# --- a follower's decisions ---


def may_begin_at_tier(held: AbstractLog, config: BrokerConfig, *, leader_end: int) -> bool:
    """Whether a follower begins where the tier ends: only one that has no record, or a whole log would be
    fetched again."""
    is_empty = held.log_end_offset == held.local_log_start_offset
    return (
        config.follower_fetch_last_tiered_offset_enable
        and held.is_tiered
        and not held.config.is_compacted
        and is_empty
        and leader_end != 0
    )


async def _pending_upload(leader: LeaderLog, start: OffsetAndEpoch) -> OffsetAndEpoch:
    """Ask for the first offset that is not in the tier. A leader that does not know it has nothing there, or
    has not heard yet what it has."""
    pending = await leader.offset(_EARLIEST_PENDING_UPLOAD)
    if pending.offset >= 0:
        return pending
    local = await leader.offset(_EARLIEST_LOCAL)
    if local.offset == start.offset:
        return local
    raise NotYet("the leader does not know yet what of its log is in the tier")


async def _epoch_before(leader: LeaderLog, target: OffsetAndEpoch) -> int:
    """Ask for the epoch of the record before `target`."""
    if target.epoch <= 0:
        return target.epoch
    epoch, end = await leader.epoch_end(target.epoch - 1)
    return epoch if end >= target.offset else target.epoch


async def _common_end(leader: LeaderLog, copy: RemoteSegment, offset: int) -> int:
    """Ask where to begin: at the end of the copy if all of it is the leader's, else at `offset` inside it."""
    if copy.end_offset > offset:
        last_epoch = copy.epochs[-1][0]
        known_epoch, known_end = await leader.epoch_end(last_epoch)
        if known_epoch != last_epoch or known_end < copy.end_offset:
            return offset
    return copy.end_offset


def _take_over(held: AbstractLog, point: RestorePoint | None, log_start: int) -> None:
    if point is None:
        logger.warning(
            "%s: is empty and begins at %d, where it started; what had not been copied is lost",
            _name_of(held),
            log_start,
        )
        held.truncate_fully(log_start)
        return
    if held.log_start_offset == held.log_end_offset:
        logger.warning(
            "%s: is empty and taken over from the tier up to %d; what had not been copied is lost",
            _name_of(held),
            point.start,
        )
    else:
        logger.warning("%s: had lost its end; it goes on from the tier, at %d", _name_of(held), point.start)
    _begin_at(held, point, log_start)


def _name_of(held: AbstractLog) -> str:
    return f"{held.topic}-{held.partition}"


def _begin_empty(held: AbstractLog, start: int) -> None:
    logger.info("%s: begins at %d: nothing of the leader's log is in the tier alone", _name_of(held), start)
    held.truncate_fully(start)


def _begin_at(held: AbstractLog, point: RestorePoint, log_start: int) -> None:
    log_start = max(log_start, point.known_from)
    logger.info(
        "%s: copies what comes after %d from its leader; what is before, from %d on, is in the tier",
        _name_of(held),
        point.start - 1,
        log_start,
    )
    held.begin_at(point.start, log_start=log_start, epochs=point.epochs, producers=point.producers)
