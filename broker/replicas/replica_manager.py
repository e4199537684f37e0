"""The partitions of this broker: which there are, which broker leads each, and the one place where staged
bytes become durable.

Owns: Partition objects, their following of the cluster image, the write step that ends a round of appends,
the group-committed fsync of single replicas, and telling listeners of a change of role. Does not own: files
(log manager), rules (partition), requests (handlers), fetching from leaders (fetcher). Invariant: between an
append and its `flush` nothing of it is answered or read, and no role changes; after `flush` every appended
batch is either written or its partition is offline.

Theory of operation. The image names each partition's replicas, leader and epochs; `apply` turns a change of
it into `Partition.lead` or `follow`, and tells `on_role` (fetchers start and stop) and `on_leadership`
(coordinators load and unload). What the leader decides goes the other way round: a follower's Fetch or its
silence makes the Partition propose an ISR (`Partition.proposal`, `Peers.proposed`), which arrives here, goes
to `on_proposal` and so to IsrChanges, which asks the controller. Its answer comes back twice: to
`Partition.committed` at once, and as the next image, which wins unless it is the older of the two. Until then
the partition counts the members of both sets, so that no answer, lost or late, makes an offset committed that
is not on every replica that may be elected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from broker.control.image import Delta, Image, TopicImage
from broker.control.internal_topics import is_of_the_tiers, may_client_write
from broker.control.metadata_records import NO_LEADER, PartitionImage
from broker.ports import World
from broker.replicas.partition import UNKNOWN, Partition, TopicStats, few_of
from broker.replicas.purgatory import Purgatory, Waiter
from protocol.errors import ErrorCode, KafkaError
from storage.log import AbstractLog, Appended, CoordinatorBatch, NewMarker, NoDescriptor
from storage.policy import LogConfig
from storage.prepare import Origin
from storage.producers import NO_SEQUENCE, Verification

logger = logging.getLogger(__name__)

SYNC_AGAIN_S: Final = 1.0
"""The pause before a sync that found no descriptor is tried again."""
_READ_ALL_BYTES: Final = 1 << 20
_PARTITIONS_PER_SLICE: Final = 2
"""To open the log of a new one takes 0.3 ms."""

_REFRESHED_PER_SLICE: Final = 256

LeadershipListener = Callable[[str, int, "int | None"], None]
"""(topic, partition, leader epoch), or None for the epoch when this broker no longer leads it."""

FollowListener = Callable[[Partition], None]
"""Called after each change of a partition's role or leader, and when it is dropped or offline."""

ProposalListener = Callable[[Partition], None]
"""Called with each new `partition.proposal`."""


class Logs(Protocol):
    """The logs of this broker's replicas, whatever makes and keeps them."""

    @property
    def logs(self) -> Mapping[tuple[str, int], AbstractLog]: ...
    @property
    def offline_dirs(self) -> Mapping[str, str]:
        """Lost log directories, with the reason."""

    def create(self, topic: str, topic_id: UUID, partition: int, config: LogConfig) -> AbstractLog:
        """Return the log of a partition, made if it is not there."""

    def delete(self, topic: str, partition: int) -> None: ...
    def stray(self, topic: str, partition: int) -> None:
        """Set aside a log that this broker should not have."""


class Restorer(Protocol):
    """What brings up a replica from the tier that is to lead and has nothing."""

    def is_needed(self, partition: Partition, view: PartitionImage) -> bool: ...
    def begin(self, partition: Partition, done: Callable[[Partition, KafkaError | None], None]) -> None: ...


class CommitFuture(Waiter):
    """The wait of a coroutine for a commit."""

    __slots__ = ("future", "needed", "partition")

    def __init__(self, partition: Partition, needed: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.needed = needed
        self.future: asyncio.Future[None] = loop.create_future()
        self.partition = partition

    def reached(self) -> None:
        self.finish()
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, code: ErrorCode) -> None:
        self.finish()
        if not self.future.done():
            self.future.set_exception(KafkaError(code))

    def expired(self) -> None:
        self.partition.wait_no_more(self)
        self.failed(ErrorCode.request_timed_out)


class ReplicaManager:
    def __init__(
        self,
        *,
        node_id: int,
        world: World,
        logs: Logs,
        purgatory: Purgatory,
        log_config: Callable[[str], LogConfig],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock: Callable[[], float],
        lag_ms: int,
        flush_single: bool = False,
    ) -> None:
        self.node_id = node_id
        self.lag_s = lag_ms / 1000
        self.now = clock
        self.logs = logs
        self.purgatory = purgatory
        self.generation = 0
        """Goes up whenever a look-up may give another answer than before."""
        self.touched: list[Partition] = []
        """Partitions with staged bytes, each once: an append adds it, `flush` empties the list."""
        self.on_leadership: list[LeadershipListener] = []
        self.on_role: list[FollowListener] = []
        self.on_proposal: list[ProposalListener] = []
        self.topic_stats: dict[str, TopicStats] = {}
        self.restorer: Restorer | None = None
        self._world = world
        self._log_config = log_config
        self._spawn = spawn
        self._flush_single = flush_single
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._unopened: dict[tuple[str, int], bool] = {}
        """Replicas without a log, and whether to try again: not while a lost directory may hold it."""
        self._image: Image | None = None
        self._missed: deque[Delta] | None = None
        """Changes to follow once the image is loaded."""

    def __repr__(self) -> str:
        leaders = sum(partition.is_leader for partition in self._partitions.values())
        total = len(self._partitions)
        return f"<ReplicaManager {total} partitions, {leaders} led, {self.offline_count} offline>"

    @property
    def offline_count(self) -> int:
        return len(self._unopened) + sum(partition.offline for partition in self._partitions.values())

    def partitions(self) -> Iterator[Partition]:
        yield from self._partitions.values()

    # --- look-up ---

    def find(self, topic: str, index: int, leader_epoch: int = UNKNOWN) -> Partition | ErrorCode:
        """Return the partition if this broker leads it, else the error explaining why not."""
        found = self.replica(topic, index, leader_epoch)
        if isinstance(found, ErrorCode) or found.is_leader:
            return found
        return ErrorCode.not_leader_or_follower

    def replica(self, topic: str, index: int, leader_epoch: int = UNKNOWN) -> Partition | ErrorCode:
        """Return the partition, led here or not, or the error explaining why it cannot be read. An epoch
        mismatch is reported before a wrong leader."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            if (topic, index) in self._unopened:
                return ErrorCode.kafka_storage_error
            image = self._image
            if image is None or image.partition(topic, index) is None:
                return ErrorCode.unknown_topic_or_partition
            return ErrorCode.not_leader_or_follower
        if partition.offline:
            return ErrorCode.kafka_storage_error
        error = partition.epoch_error(leader_epoch)
        return partition if error is ErrorCode.none else error

    def holds(self, topic: TopicImage, index: int) -> bool:
        """Whether the log is here, led by this broker or not."""
        held = self.logs.logs.get((topic.name, index))
        return held is not None and held.known_topic_id in (None, topic.id)

    def partition(self, topic: str, index: int) -> Partition:
        found = self.find(topic, index)
        if isinstance(found, ErrorCode):
            raise KafkaError(found)
        return found

    # --- append ---

    def touch(self, partition: Partition) -> None:
        if not partition.dirty:
            partition.dirty = True
            self.touched.append(partition)

    def flush(self) -> list[Partition]:
        """Write each touched partition once, then move their frontiers. Return them, for `wake` after the
        answers."""
        touched = self.touched
        failed: list[tuple[Partition, KafkaError]] = []
        try:
            # A failing write answers waiters, whose connections may append here again, or flush: that flush
            # writes all of these as well.
            for partition in touched:
                partition.dirty = False
                try:
                    partition.log.flush_staged()
                except KafkaError as error:
                    failed.append((partition, error))
        finally:
            if self.touched is touched:
                self.touched = []
        for partition, why in failed:
            self.partition_failed(partition, why)
        for partition in touched:
            if partition.offline:
                continue
            if partition.syncs:
                self._sync_soon(partition)
            else:
                partition.advance()
        return touched

    def wake(self, touched: Iterable[Partition]) -> None:
        """Wake followers after an append, and consumers if more is committed."""
        for partition in touched:
            if partition.replica_waiters:
                self.purgatory.wake_followers(partition)
            if partition.data_waiters and partition.told_high_watermark != partition.log.high_watermark:
                partition.told_high_watermark = partition.log.high_watermark
                self.purgatory.wake(partition)

    def wake_committed(self, partition: Partition) -> None:
        """Wake consumers and followers after the high watermark moved without an append."""
        self.wake([partition])

    def wake_everyone(self, partition: Partition) -> None:
        """Wake all that wait, after a change of role."""
        self.purgatory.wake(partition)
        self.purgatory.wake_followers(partition)

    async def append(
        self,
        topic: str,
        index: int,
        batch: bytearray,
        *,
        timeout_ms: int,
        required_acks: int = -1,
        origin: Origin = "coordinator",
        expected_leader_epoch: int | None = None,
        is_own: bool = False,
    ) -> Appended:
        """Append a coordinator's batch; return when it is as safe as acks=all makes it. Nothing needs to be
        checked again of one that `is_own`: it was built here just now."""
        partition = self._to_append(topic, index, expected_leader_epoch, required_acks)
        leader_epoch, now_ms = partition.leader_epoch, self._world.now_ms()
        if is_own:
            appended = partition.log.append_own(batch, leader_epoch=leader_epoch, now_ms=now_ms)
        else:
            appended = partition.log.append_records(
                batch, leader_epoch=leader_epoch, now_ms=now_ms, origin=origin
            )
        self._written(partition)
        if required_acks == -1 and partition.log.high_watermark <= appended.last_offset:
            await self._wait_committed(partition, appended.last_offset + 1, timeout_ms)
        return appended

    def stands_alone(self, topic: str, index: int) -> bool:
        """Whether a partition is led here and has no other replica, so that `append_alone` may be asked."""
        partition = self._partitions.get((topic, index))
        return partition is not None and partition.stands_alone and not partition.offline

    def append_alone(
        self, topic: str, index: int, batch: bytearray, *, expected_leader_epoch: int
    ) -> Appended:
        """`append` on a partition that stands alone, which waits for nobody."""
        partition = self._to_append(topic, index, expected_leader_epoch)
        log = partition.log
        appended = log.append_own(batch, leader_epoch=partition.leader_epoch, now_ms=self._world.now_ms())
        self._written(partition)
        if log.high_watermark <= appended.last_offset:
            raise KafkaError(ErrorCode.not_enough_replicas_after_append)
        return appended

    def _to_append(
        self, topic: str, index: int, expected_leader_epoch: int | None, required_acks: int = -1
    ) -> Partition:
        """Return the partition that a coordinator appends to; raise KafkaError where it may not now."""
        partition = self.partition(topic, index)
        if expected_leader_epoch is not None and partition.leader_epoch != expected_leader_epoch:
            raise KafkaError(ErrorCode.not_leader_or_follower, "the leader epoch changed")
        if required_acks == -1:
            partition.check_acks_all()
        return partition

    def _written(self, partition: Partition) -> None:
        """Move the frontier after an append that has written what it appended, and wake who waits for it."""
        if partition.dirty or partition.syncs:
            # others have appended, and are answered with what this has written; or more is to be done
            self.touch(partition)
            self.wake(self.flush())
        else:
            partition.advance()
            self.wake((partition,))
        if partition.offline:
            raise KafkaError(ErrorCode.kafka_storage_error)

    async def append_all(
        self,
        topic: str,
        index: int,
        batches: Sequence[CoordinatorBatch | NewMarker],
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
    ) -> list[Appended | KafkaError]:
        """Append a coordinator's batches and markers in order; return when what was appended is as safe as
        acks=all makes it. A marker or a batch of a transaction that the log refuses stops no other; after a
        plain batch that it refuses nothing is appended. Raise KafkaError where nothing was appended, or what
        was may be lost."""
        partition = self._to_append(topic, index, expected_leader_epoch)
        outcomes: list[Appended | KafkaError] = []
        refused: KafkaError | None = None
        end = 0
        for batch in batches:
            try:
                if refused is not None:
                    raise refused
                appended = self._append_for_coordinator(partition, batch)
            except KafkaError as error:
                if partition.log.offline is not None:
                    raise
                outcomes.append(error.with_traceback(None))
                if isinstance(batch, CoordinatorBatch) and not batch.is_transactional:
                    refused = error
            else:
                outcomes.append(appended)
                end = appended.last_offset + 1
        if end:
            self.touch(partition)
            self.wake(self.flush())
            if partition.offline:
                raise KafkaError(ErrorCode.kafka_storage_error)
            if partition.log.high_watermark < end:
                await self._wait_committed(partition, end, timeout_ms)
        return outcomes

    def _append_for_coordinator(self, partition: Partition, batch: CoordinatorBatch | NewMarker) -> Appended:
        leader_epoch, now_ms = partition.leader_epoch, self._world.now_ms()
        if isinstance(batch, NewMarker):
            return partition.log.append_marker(batch, leader_epoch=leader_epoch, now_ms=now_ms)
        return partition.log.append_records(
            batch.data,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            origin="coordinator",
            verified=batch.verified,
        )

    def begin_verification(
        self, topic: str, index: int, producer_id: int, producer_epoch: int, *, adds: bool
    ) -> Verification | None:
        """Return what records of a coordinator need to begin a transaction here, once the transaction
        coordinator has agreed; None where it is open already."""
        return self.partition(topic, index).log.producer_table.begin_verification(
            producer_id, producer_epoch, NO_SEQUENCE, adds=adds, now_ms=self._world.now_ms()
        )

    async def _wait_committed(self, partition: Partition, needed: int, timeout_ms: int) -> None:
        waiter = CommitFuture(partition, needed, asyncio.get_running_loop())
        partition.wait_committed(waiter)
        self.purgatory.watch(waiter, timeout_ms / 1000)
        try:
            await waiter.future
        finally:
            del waiter  # which an error, by its traceback, would keep alive together with itself

    def read_all(self, topic: str, index: int) -> Iterator[bytes]:
        """Yield every batch from the log's start to its end, in chunks of whole batches."""
        source = self.partition(topic, index).log
        offset, end = source.log_start_offset, source.log_end_offset
        while offset < end:
            part = source.read(offset, _READ_ALL_BYTES, bound=end, min_one=True)
            if part is None or part.size == 0:
                return
            try:
                chunk = part.read()
            except OSError as error:
                source.flush_failed(error)
                raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
            yield chunk
            offset = part.next_offset

    def is_replicated(self, topic: str, index: int) -> bool:
        """Whether every replica that may be elected has all of the log, enough to commit it or not."""
        partition = self.partition(topic, index)
        end = partition.log.log_end_offset
        return partition.log.high_watermark >= end or partition.frontier() >= end

    # --- peers ---

    def is_eligible(self, node_id: int, broker_epoch: int) -> bool:
        """Whether it may join an ISR, and is worth waiting for until it does. A broker that is stopping is
        not: it still fetches, and would hold back the high watermark of the next leader."""
        image = self._image
        if image is None or not image.is_active(node_id):
            return False
        return broker_epoch in (-1, image.brokers[node_id].epoch)

    def is_live(self, node_id: int) -> bool:
        return self._image is not None and self._image.is_live(node_id)

    def proposed(self, partition: Partition) -> None:
        for listener in self.on_proposal:
            listener(partition)

    def check_broker_epoch(self, node_id: int, broker_epoch: int) -> None:
        """Raise KafkaError for the Fetch of an earlier incarnation of a follower: it says nothing about the
        present one."""
        broker = None if self._image is None else self._image.brokers.get(node_id)
        if broker is not None and -1 < broker_epoch < broker.epoch:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"node {node_id} asks with broker epoch {broker_epoch}, it has {broker.epoch} now",
            )

    # --- fsync ---

    def _sync_soon(self, partition: Partition) -> None:
        """Start an fsync unless one is under way; appends that come meanwhile share the next one."""
        if not partition.syncing and partition.synced < partition.log.log_end_offset:
            partition.syncing = True
            self._spawn(self._sync(partition))

    async def _sync(self, partition: Partition) -> None:
        is_told = False
        try:
            while not partition.offline and partition.synced < partition.log.log_end_offset:
                try:
                    upto = await self._sync_once(partition.log)
                except NoDescriptor as error:
                    if not is_told:
                        logger.warning("%s-%d is synced later: %s", partition.topic, partition.index, error)
                    is_told = True
                    await asyncio.sleep(SYNC_AGAIN_S)
                    continue
                partition.synced_to(upto)
                self.wake_committed(partition)
        except KafkaError as error:
            if self._partitions.get((partition.topic, partition.index)) is partition:
                self.partition_failed(partition, error)
        finally:
            partition.syncing = False

    async def _sync_once(self, source: AbstractLog) -> int:
        """Sync and return the offset up to which it did. KafkaError when the disk fails, or the log was
        deleted meanwhile."""
        job = source.fsync_target()
        if job is None:
            return source.log_end_offset
        try:
            await self._world.offload(job.run)
        except OSError as error:
            raise source.flush_failed(error) from error
        source.mark_flushed(job)
        return source.recovery_point

    # --- the image ---

    def load(self, image: Image) -> Iterator[None]:
        """Take over the whole image, in slices: open or create the log of every partition this broker is a
        replica of. What changes meanwhile is followed afterwards: this goes by the image as it was."""
        self._image = image
        self._missed = deque()
        for topic in list(image.topics.values()):
            yield from self._follow_topic(topic, held_before=range(len(topic.partitions)))
        self._tell_of_nobody_in_sync(image)
        strays = sorted(self.logs.logs.keys() - self._partitions.keys())
        if strays:
            names = few_of([f"{topic_name}-{index}" for topic_name, index in strays])
            logger.warning("set aside logs of partitions no longer assigned here: %s", names)
        for topic_name, index in strays:
            self.logs.stray(topic_name, index)
        while self._missed:
            yield from self._follow_delta(self._missed.popleft(), image)
        self._missed = None
        self.generation += 1

    def _tell_of_nobody_in_sync(self, image: Image) -> None:
        """Tell which partitions only a person can bring back: the one replica in sync has lost its disk."""
        names = [
            f"{topic.name}-{wanted.index}"
            for topic in image.topics.values()
            for wanted in topic.partitions
            if not wanted.isr and wanted.leader == NO_LEADER and self.node_id in wanted.replicas
        ]
        if names:
            logger.error(
                "nobody leads %s: the only replica in sync has lost its log directory; elect any with "
                "kafka-leader-election.sh --election-type unclean: where it has nothing, a tiered partition "
                "goes on from its copies; what it lacks otherwise is lost",
                few_of(names),
            )

    def apply(self, delta: Delta) -> Iterator[None]:
        """Follow one change of the image that `load` was given, in slices, and all of it before the next
        change. Until its turn comes a new partition has no leader here, which clients ask again for."""
        image = self._image
        if image is None:
            return
        self.generation += 1
        if self._missed is not None:
            self._missed.append(delta)
            return
        self._write_first()
        for _ in self._follow_delta(delta, image):
            self.generation += 1
            yield
            self.generation += 1  # a waiter woken by what comes now must look its partitions up again
            self._write_first()
        self.generation += 1

    def _write_first(self) -> None:
        """Write staged bytes before a role changes: they belong to the role they were appended in."""
        if self.touched:
            self.wake(self.flush())

    def _follow_delta(self, delta: Delta, image: Image) -> Iterator[None]:
        for gone in delta.topics_deleted:
            yield from self._drop_topic(gone)
        for name in (*delta.topics_created, *delta.topics_changed):
            topic = image.topics.get(name)
            if topic is not None:
                before = delta.topics_changed.get(name)
                mine = () if before is None else before.partitions
                held = {each.index for each in mine if self.node_id in each.replicas}
                yield from self._follow_topic(topic, held_before=held, followed=mine)
        if delta.configs_changed:
            yield from self._reconfigure()
        if delta.brokers_changed:
            yield from self._peers_changed()

    def _peers_changed(self) -> Iterator[None]:
        """Let every leader look again: a replica it waits for may be gone, its partition unchanged."""
        for at, partition in enumerate(list(self._partitions.values()), 1):
            if partition.is_leader and partition.peers_changed():
                self.wake_committed(partition)
            if at % _REFRESHED_PER_SLICE == 0:
                yield

    def _reconfigure(self) -> Iterator[None]:
        """Give every log its configuration again: a changed default may reach any of them."""
        configs: dict[str, LogConfig] = {}
        for at, partition in enumerate(list(self._partitions.values()), 1):
            config = configs.get(partition.topic)
            if config is None:
                config = configs[partition.topic] = self._log_config(partition.topic)
            if partition.log.config != config:
                partition.log.set_config(config)
            partition.refresh()
            if partition.advance():
                self.wake_committed(partition)
            if at % _REFRESHED_PER_SLICE == 0:
                yield

    def _follow_topic(
        self,
        topic: TopicImage,
        *,
        held_before: Container[int],
        followed: Sequence[PartitionImage] = (),
    ) -> Iterator[None]:
        """Take over a topic's partitions, except those that are unchanged since `followed`. Of those in
        `held_before` this broker was a replica, so it may have a log it cannot see."""
        config: LogConfig | None = None
        changes = 0
        for wanted in topic.partitions:
            key = (topic.name, wanted.index)
            known = self._partitions.get(key)
            if (
                known is not None
                and not known.offline
                and wanted.index < len(followed)
                and followed[wanted.index] is wanted
            ):
                continue
            if changes and changes % _PARTITIONS_PER_SLICE == 0:
                yield
            changes += 1
            if self.node_id not in wanted.replicas:
                self._unopened.pop(key, None)
                if known is not None:
                    self._drop(known)
                continue
            if known is not None and known.topic_id != topic.id:
                self._drop(known)
                known = None
            if known is None:
                config = config or self._log_config(topic.name)
                known = self._open(topic, wanted, config, is_new=wanted.index not in held_before)
                if known is None:
                    continue
            self._follow(known, wanted)

    def _open(
        self, topic: TopicImage, wanted: PartitionImage, config: LogConfig, *, is_new: bool
    ) -> Partition | None:
        held = self.logs.logs.get((topic.name, wanted.index))
        if held is None and not is_new and self.logs.offline_dirs:
            # Its log may be on the disk that failed: a second, empty one would hide it.
            logger.error(
                "%s-%d stays offline: its log may be in the log directory that failed",
                topic.name,
                wanted.index,
            )
            self._unopened[topic.name, wanted.index] = False
            return None
        if held is not None and held.known_topic_id not in (None, topic.id):
            # left over from an earlier topic of this name
            self.logs.stray(topic.name, wanted.index)
        try:
            opened = self.logs.create(topic.name, topic.id, wanted.index, config)
        except (KafkaError, OSError) as error:
            logger.error("cannot open the log of %s-%d: %s", topic.name, wanted.index, error)
            self._unopened[topic.name, wanted.index] = True
            return None
        self._unopened.pop((topic.name, wanted.index), None)
        stats = self.topic_stats.setdefault(topic.name, TopicStats())
        partition = Partition(
            topic=topic.name,
            index=wanted.index,
            topic_id=topic.id,
            log=opened,
            node_id=self.node_id,
            stats=stats,
            peers=self,
        )
        self._partitions[topic.name, wanted.index] = partition
        return partition

    def reopen(self) -> Iterator[None]:
        """Try again, in slices, to open the logs that could not be: descriptors come free, and where a
        directory has failed, there are others. One that fails again ends the round."""
        for key in [key for key, may_work in self._unopened.items() if may_work]:
            image = self._image
            wanted = None if image is None else image.partition(*key)
            if image is None or wanted is None or key not in self._unopened:
                continue
            topic = image.topics[key[0]]
            opened = self._open(topic, wanted, self._log_config(topic.name), is_new=True)
            if opened is None:
                return
            self.generation += 1
            self._follow(opened, wanted)
            yield

    def _follow(self, partition: Partition, wanted: PartitionImage) -> None:
        if partition.offline:
            partition.stay_offline(wanted)
            return
        if wanted.leader == self.node_id:
            restorer = self.restorer
            if restorer is not None and restorer.is_needed(partition, wanted):
                # clients and followers are told that nobody leads here, and ask again
                if partition.follow(wanted):
                    self.wake_everyone(partition)
                restorer.begin(partition, self._restored)
                self._role_changed(partition)
                return
            before = partition.log.high_watermark
            newer = partition.lead(
                wanted,
                syncs=self._flush_single or is_of_the_tiers(partition.topic),
                internal=not may_client_write(partition.topic),
            )
            if partition.syncs:
                self._sync_soon(partition)
            if newer:
                self.wake_everyone(partition)
                self._announce(partition, partition.leader_epoch)
            elif partition.log.high_watermark > before:
                self.wake_committed(partition)
        else:
            led = partition.is_leader
            if partition.follow(wanted):
                self.wake_everyone(partition)
            if led:
                self._announce(partition, None)
        self._role_changed(partition)

    def _restored(self, partition: Partition, error: KafkaError | None) -> None:
        """Lead what was restored, if this broker is still to lead it."""
        view = None if self._image is None else self._image.partition(partition.topic, partition.index)
        if view is None or self._partitions.get((partition.topic, partition.index)) is not partition:
            return
        if error is not None:
            self.partition_failed(partition, error)
            return
        self._write_first()
        self.generation += 1  # a waiter woken by what comes now must look its partitions up again
        self._follow(partition, view)

    def _role_changed(self, partition: Partition) -> None:
        for listener in self.on_role:
            listener(partition)

    def _drop_topic(self, topic: TopicImage) -> Iterator[None]:
        for at, wanted in enumerate(topic.partitions):
            if at and at % _PARTITIONS_PER_SLICE == 0:
                yield
            self._unopened.pop((topic.name, wanted.index), None)
            partition = self._partitions.get((topic.name, wanted.index))
            if partition is not None and partition.topic_id == topic.id:
                self._drop(partition)
        self.topic_stats.pop(topic.name, None)

    def _drop(self, partition: Partition) -> None:
        led = partition.is_leader
        self._partitions.pop((partition.topic, partition.index), None)
        partition.leave()
        if led:
            self._announce(partition, None)
        self._role_changed(partition)
        self.wake_everyone(partition)
        if not partition.offline:
            self.logs.delete(partition.topic, partition.index)

    def _announce(self, partition: Partition, leader_epoch: int | None) -> None:
        for listener in self.on_leadership:
            listener(partition.topic, partition.index, leader_epoch)

    # --- failure ---

    def partition_failed(self, partition: Partition, error: KafkaError) -> None:
        """Take a partition offline whose error the log manager did not see as a failed disk."""
        logger.error("%s-%d is offline: %s", partition.topic, partition.index, error.message or error)
        self._take_offline(partition)

    def directory_failed(self, path: str, error: OSError) -> None:
        """Take the partitions of a lost log directory offline: they answer KAFKA_STORAGE_ERROR, the others go
        on."""
        logger.error("log directory %s failed: %s", path, error)
        lost = [p for p in self._partitions.values() if p.log.offline is not None and not p.offline]
        for partition in lost:
            # all of them before the first waiter is answered, because its connection goes on
            partition.offline = True
        for partition in lost:
            self._went_offline(partition)

    def _take_offline(self, partition: Partition) -> None:
        if not partition.offline:
            self._went_offline(partition)

    def _went_offline(self, partition: Partition) -> None:
        led = partition.is_leader
        partition.go_offline()
        view = None if self._image is None else self._image.partition(partition.topic, partition.index)
        if view is not None:
            partition.stay_offline(view)
        self.generation += 1
        if led:
            self._announce(partition, None)
        self._role_changed(partition)
        self.wake_everyone(partition)
