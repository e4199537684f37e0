"""Following: fetch from other brokers what they lead, and append it here.

Owns: one task for each leader and what it asks for, its fetch session, cutting a log where it parts from the
leader's (KIP-101, KIP-595), starting anew where the leader has nothing older, and waiting after an error.
Does not own: connections (channel), the bytes of a Fetch (protocol.fetch), files (log), which broker
leads (the image). Invariants: a partition is fetched from the leader and in the epoch that the image names,
from where its own log ends; an answer counts only if both are still so; every batch's CRC is checked before
it is appended, and the high watermark here is never above what the leader said or the log holds. An error of
one partition makes that one wait and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any, Final, Protocol
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.metadata_records import NO_LEADER
from broker.net.channel import Channel, PeerLost
from broker.replicas.partition import UNKNOWN, Partition
from broker.replicas.restore import OffsetAndEpoch, Restores, may_begin_at_tier
from broker.replicas.throttle import Throttle
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import CorruptBatch, ErrorCode, KafkaError, MalformedRequest, error_code
from protocol.fetch import FetchedPartition, FetchItem, encode_replica_fetch, parse_replica_fetch
from protocol.records import parse_header
from storage.log import AbstractLog, NoDescriptor

logger = logging.getLogger(__name__)

PURPOSE: Final = "fetch"
LOOK_AT_ALL_S: Final = 5.0
ADOPT_WAIT_S: Final = 0.05
"""How long a request waits for log starts on their way to the disk, where nothing else is fetched."""
RESTORE_PURPOSE: Final = "restore"
"""Questions about what is in the tier have a connection of their own: an answer to a Fetch may take long."""
LIST_OFFSETS_VERSION: Final = 11
EPOCH_VERSION: Final = 4
_LATEST, _EARLIEST = -1, -2
_CORRELATION_MASK: Final = 0x7FFFFFFF
_SESSION_EPOCH_MAX: Final = 2**31 - 1
_SLICE_BYTES: Final = 1 << 20
"""How much is appended before the loop gets another turn."""
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)

Key = tuple[UUID, int]


class PeerChannels(Protocol):
    """Channels, as far as fetching needs them."""

    def to(self, node_id: int, purpose: str) -> Channel: ...


class ReplicaView(Protocol):
    """The replica manager, as far as fetching needs it."""

    @property
    def node_id(self) -> int: ...
    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def on_role(self) -> list[Callable[[Partition], None]]: ...
    def wake_committed(self, partition: Partition) -> None: ...
    def partition_failed(self, partition: Partition, error: KafkaError) -> None: ...


class ReplicaFetchers:
    """All partitions this broker follows, by leader."""

    def __init__(
        self,
        *,
        replicas: ReplicaView,
        channels: PeerChannels,
        broker_epoch: Callable[[], int],
        config: Callable[[], BrokerConfig],
        throttle: Throttle,
    ) -> None:
        self.replicas = replicas
        self.channels = channels
        self.broker_epoch = broker_epoch
        self.config = config
        self.throttle = throttle
        self.restores: Restores | None = None
        """None where nothing is tiered."""
        self._fetchers: dict[int, Fetcher] = {}
        self._positions: dict[Partition, _Position] = {}
        self._tasks: asyncio.TaskGroup | None = None
        replicas.on_role.append(self.follow)

    def __repr__(self) -> str:
        return f"<ReplicaFetchers {list(self._fetchers.values())}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        """Start a task for each leader that is followed now or later."""
        self._tasks = task_group
        for fetcher in self._fetchers.values():
            fetcher.start(task_group)

    def stop(self) -> None:
        """Cancel every task: nothing is appended from here on."""
        self._tasks = None
        for fetcher in self._fetchers.values():
            fetcher.stop()
        for position in self._positions.values():
            if position.restore is not None:
                position.restore.cancel()
        self._fetchers.clear()
        self._positions.clear()

    def follow(self, partition: Partition) -> None:
        """Take over a partition as it is now: led here, led elsewhere, without a leader, offline or gone."""
        known = self._positions.get(partition)
        leads = partition.is_leader or partition.offline
        leader_id = NO_LEADER if leads else partition.leader_id
        if known is not None and (known.leader_id, known.leader_epoch) == (leader_id, partition.leader_epoch):
            return
        if known is not None:
            del self._positions[partition]
            self._forget(known)
        if leader_id in (NO_LEADER, self.replicas.node_id):
            return
        try:
            position = _Position(partition)
        except KafkaError as error:
            self.replicas.partition_failed(partition, error)
            return
        self._positions[partition] = position
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = Fetcher(self, leader_id)
            if self._tasks is not None:
                fetcher.start(self._tasks)
        fetcher.add(position)

    def restore(self, position: _Position) -> None:
        """Begin to bring a log up from the tier; it is fetched again once that is done."""
        if self.restores is None or self._tasks is None or position.restore is not None:
            return
        name = f"restore {position.partition.topic}-{position.partition.index}"
        position.restore = self._tasks.create_task(self._restore(self.restores, position), name=name)

    async def _restore(self, restores: Restores, position: _Position) -> None:
        leader = _AskedLeader(self, position)
        try:
            await restores.follow(
                position.partition, leader, lambda: self._positions.get(position.partition) is position
            )
        except KafkaError as error:
            if self._positions.get(position.partition) is position:
                self._not_restored(position, error)
            return
        finally:
            position.restore = None
        position.needs_reset = False
        position.is_verified = True
        fetcher = self._fetchers.get(position.leader_id)
        if fetcher is not None:
            fetcher.look_again(position)

    def _not_restored(self, position: _Position, error: KafkaError) -> None:
        if error.code is ErrorCode.fenced_leader_epoch:
            position.is_stuck = True
        else:
            self._fetchers[position.leader_id].remove(position)
            self.replicas.partition_failed(position.partition, error)

    def _forget(self, position: _Position) -> None:
        fetcher = self._fetchers[position.leader_id]
        fetcher.remove(position)
        if position.restore is not None:
            position.restore.cancel()
        if not fetcher.positions:
            fetcher.stop()
            del self._fetchers[position.leader_id]


class _Position:
    """One partition as it is fetched in one leader epoch."""

    __slots__ = (
        "adopting",
        "is_stuck",
        "is_verified",
        "key",
        "lag",
        "leader_epoch",
        "leader_id",
        "needs_reset",
        "partition",
        "restore",
        "wait_until",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: Key = (partition.topic_id, partition.index)
        self.leader_id = partition.leader_id
        self.leader_epoch = partition.leader_epoch
        self.wait_until = 0.0
        self.is_stuck = False
        """Set when only a change of the image can help."""
        self.adopting = UNKNOWN
        """The log start that is on its way to the disk."""
        self.is_verified = False
        """The leader has answered without seeing a divergence, or this log was begun anew for it."""
        self.needs_reset = False
        """Set when this log ends outside the leader's, whose start and end are to be asked."""
        self.restore: asyncio.Task[None] | None = None
        """Brings the log up from the tier; nothing is fetched meanwhile."""
        self.lag: int | None = None
        held = partition.log
        if held.epochs.latest < 0:
            # without epochs to compare, nothing past the high watermark can be trusted
            held.truncate_to(held.high_watermark)

    def __repr__(self) -> str:
        return f"<{self.partition!r} from {self.leader_id} epoch {self.leader_epoch}>"

    def __str__(self) -> str:
        followed = f"broker {self.leader_id} in epoch {self.leader_epoch}"
        return f"{self.partition.topic}-{self.partition.index}, following {followed}"

    def is_ready(self, now: float) -> bool:
        return not self.is_stuck and self.restore is None and now >= self.wait_until

    def item(self, max_bytes: int) -> FetchItem:
        held = self.partition.log
        return FetchItem(
            self.partition.topic_id,
            self.partition.index,
            self.leader_epoch,
            held.log_end_offset,
            held.epochs.latest,
            max_bytes,
            held.log_start_offset,
        )


class _Session:
    """What the leader knows of our partitions, so that only what changed is said again (KIP-227)."""

    __slots__ = ("epoch", "id", "told")

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.told: dict[Key, FetchItem] = {}

    def tell(self, looked_at: dict[Key, FetchItem | None]) -> tuple[list[FetchItem], list[Key]]:
        """Return (what is new, what is to be forgotten) of these; None marks a partition not to be fetched
        now."""
        told = self.told
        news: list[FetchItem] = []
        gone: list[Key] = []
        for key, item in looked_at.items():
            if item is None:
                if told.pop(key, None) is not None:
                    gone.append(key)
            elif told.get(key) != item:
                told[key] = item
                news.append(item)
        return news, gone

    def answered(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = self.epoch + 1 if self.epoch < _SESSION_EPOCH_MAX else 1


class Fetcher:
    """Everything fetched from one leader."""

    def __init__(self, owner: ReplicaFetchers, leader_id: int) -> None:
        self.leader_id = leader_id
        self.positions: dict[Key, _Position] = {}
        self._owner = owner
        self._replicas = owner.replicas
        self._session = _Session()
        self._stale: dict[Key, None] = {}
        """Partitions to re-check before the next request; the rest keep their position."""
        self._looked_at_all_at = -inf
        self._has_news = asyncio.Event()
        self._adopting: dict[_Position, None] = {}
        """Positions with a log start on its way to the disk."""
        self._has_adopted = asyncio.Event()
        self._is_adoption_new = False
        """Some of them were not waited for yet."""
        self._task: asyncio.Task[None] | None = None
        self._correlation_id = 0
        self._client_id = f"broker-{owner.replicas.node_id}-fetcher"
        self._trouble = ""
        """Why the last fetch failed: logged when that begins and when it changes."""

    def __repr__(self) -> str:
        return f"<Fetcher from {self.leader_id}, {len(self.positions)} partitions>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._task = task_group.create_task(self._run(), name=f"fetch from {self.leader_id}")

    def stop(self) -> None:
        self.positions.clear()
        if self._task is not None:
            self._task.cancel()

    def add(self, position: _Position) -> None:
        self.positions[position.key] = position
        self._stale[position.key] = None
        self._has_news.set()

    def look_again(self, position: _Position) -> None:
        """Fetch a partition from where its log ends now."""
        if self.positions.get(position.key) is position:
            self._stale[position.key] = None
            self._has_news.set()

    def remove(self, position: _Position) -> None:
        if self.positions.get(position.key) is position:
            del self.positions[position.key]
            self._stale[position.key] = None
            self._adopting.pop(position, None)

    async def _run(self) -> None:
        while True:
            self._has_news.clear()
            try:
                if not await self._reset_offsets():
                    await self._fetch()
            except (PeerLost, MalformedRequest) as error:
                self._log_trouble(str(error))
                self._start_over()
                await asyncio.sleep(self._backoff_s())
            else:
                self._trouble = ""

    def _log_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.info("cannot fetch from broker %d: %s", self.leader_id, trouble)

    def _start_over(self) -> None:
        """Discard the fetch session; the next request names every partition again."""
        self._session = _Session()
        self._stale = dict.fromkeys(self.positions)

    def _backoff_s(self) -> float:
        return self._owner.config().replica_fetch_backoff_ms / 1000

    # --- one fetch ---

    async def _fetch(self) -> None:
        """Send one request and take its answers; without a partition to fetch, wait for one."""
        config, session = self._owner.config(), self._session
        items, forgotten = session.tell(self._look())
        if not session.told and not forgotten:
            await self._wait_for_news()
            return
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        frame = encode_replica_fetch(
            self._correlation_id,
            self._client_id,
            replica_id=self._replicas.node_id,
            replica_epoch=self._owner.broker_epoch(),
            max_wait_ms=config.replica_fetch_wait_max_ms if session.told else 0,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            items=items,
            forgotten=forgotten,
        )
        timeout_s = config.replica_socket_timeout_ms / 1000
        channel = self._owner.channels.to(self.leader_id, PURPOSE)
        response = parse_replica_fetch(await channel.ask_frame(frame, timeout_s=timeout_s))
        if response.error:
            self._start_over()
            if error_code(response.error) not in _SESSION_LOST or not session.id:
                raise PeerLost(f"Fetch is answered with {response.error}")
            return
        await self._take_all(session.told, response.partitions)
        if response.session_id:
            session.answered(response.session_id)
            return
        # without room for a session a leader answers at once, and has to be told everything each time
        self._start_over()
        if session.told and not any(len(fetched.records) for fetched in response.partitions):
            await asyncio.sleep(self._backoff_s())

    async def _take_all(self, asked: dict[Key, FetchItem], answers: list[FetchedPartition]) -> None:
        appended = 0
        is_quiet = True
        for fetched in answers:
            key = (fetched.topic_id, fetched.partition)
            position, item = self.positions.get(key), asked.get(key)
            if position is None or item is None:
                continue
            self._stale[key] = None
            self._take(position, item, fetched)
            appended += len(fetched.records)
            is_quiet = is_quiet and not len(fetched.records)
            if appended >= _SLICE_BYTES:
                appended = 0
                await asyncio.sleep(0)
        if self._adopting and self._is_adoption_new and is_quiet:
            await self._wait_adopted()

    async def _wait_adopted(self) -> None:
        """Hold the next request until it can report the new log starts: where nothing else is fetched it may
        be held by the leader for long, and DeleteRecords with it. Once for each: a producer that sends now
        and then waits for this request as well, and a disk may be busy for seconds."""
        self._is_adoption_new = False
        self._has_adopted.clear()
        try:
            async with asyncio.timeout(ADOPT_WAIT_S):
                await self._has_adopted.wait()
        except TimeoutError:
            return

    def _look(self) -> dict[Key, FetchItem | None]:
        """Return the next fetch position of each partition that changed. One that cannot be fetched yet is
        checked again next time. Every few seconds all are: retention moves log starts unannounced."""
        now, max_bytes = self._replicas.now(), self._owner.config().replica_fetch_max_bytes
        if now - self._looked_at_all_at > LOOK_AT_ALL_S:
            self._looked_at_all_at = now
            self._stale.update(dict.fromkeys(self.positions))
        stale, self._stale = self._stale, {}
        looked_at: dict[Key, FetchItem | None] = {}
        for key in stale:
            position = self.positions.get(key)
            if position is None:
                looked_at[key] = None
            elif position.is_ready(now) and not self._is_throttled(position):
                looked_at[key] = position.item(max_bytes)
            else:
                looked_at[key] = None
                self._stale[key] = None
        return looked_at

    def _is_throttled(self, position: _Position) -> bool:
        """Whether to hold a partition back. Only one that is out of sync anyway: a throttle must not push a
        replica out."""
        if position.lag is not None and position.lag <= 0:
            return False
        partition = position.partition
        listed = partition.log.config.follower_replication_throttled_replicas
        return self._owner.throttle.holds_back(listed, partition.index, partition.node_id)

    async def _wait_for_news(self) -> None:
        """Wait until there is something to fetch, or it is time to look again."""
        try:
            async with asyncio.timeout(self._backoff_s()):
                await self._has_news.wait()
        except TimeoutError:
            return

    # --- one answer ---

    def _take(self, position: _Position, asked: FetchItem, fetched: FetchedPartition) -> None:
        """Take the answer for one partition, unless its leader or its log has changed since the request."""
        held = position.partition.log
        if (position.leader_epoch, held.log_end_offset) != (asked.leader_epoch, asked.offset):
            return
        try:
            if fetched.error:
                self._refused(position, error_code(fetched.error))
            elif fetched.diverging is not None:
                self._truncate(position, *fetched.diverging)
            else:
                self._append(position, fetched)
        except CorruptBatch as error:
            logger.error("%s: a damaged batch from the leader is not appended: %s", position, error)
            self._delay(position)
        except NoDescriptor as error:
            self._put_off(position, error)
        except KafkaError as error:
            self._fail(position, error)

    def _append(self, position: _Position, fetched: FetchedPartition) -> None:
        partition = position.partition
        held = partition.log
        if not position.is_verified:
            self._verify(position, fetched.log_start)
        size = len(fetched.records)
        if size:
            append_fetched(held, fetched.records)
            partition.stats.replication_bytes_in += size
            listed = held.config.follower_replication_throttled_replicas
            self._owner.throttle.sent(listed, partition.index, partition.node_id, size)
        position.lag = max(fetched.high_watermark - held.log_end_offset, 0)
        high_watermark = min(fetched.high_watermark, held.log_end_offset)
        if high_watermark > held.high_watermark:
            held.set_high_watermark(high_watermark)
            self._replicas.wake_committed(partition)
        if fetched.log_start > held.log_start_offset:
            self._adopt(position, min(fetched.log_start, held.high_watermark))

    def _adopt(self, position: _Position, log_start: int) -> None:
        """Take over the leader's log start. It counts, and is reported, once it is durable."""
        if log_start > position.adopting:
            position.adopting = log_start
            self._adopting[position] = None
            self._is_adoption_new = True
            position.partition.log.advance_log_start(log_start, partial(self._adopted, position, log_start))

    def _adopted(self, position: _Position, log_start: int, _: KafkaError | None) -> None:
        if log_start < position.adopting:
            return
        position.adopting = UNKNOWN
        if self.positions.get(position.key) is position:
            self._stale[position.key] = None
        self._adopting.pop(position, None)
        if not self._adopting:
            self._has_adopted.set()

    def _verify(self, position: _Position, leader_start: int) -> None:
        """Drop a log that lies wholly below the leader's: nothing the leader still has tells whether these
        batches are its own, or were never committed. What was compared once stays equal in this epoch."""
        held = position.partition.log
        if held.log_start_offset < held.log_end_offset <= leader_start:
            logger.warning("%s: starts over at %d: all its records were deleted", position, leader_start)
            held.truncate_fully(leader_start)
        position.is_verified = True

    def _truncate(self, position: _Position, leader_epoch: int, leader_end: int) -> None:
        """Cut this log: the leader knows no newer epoch of ours than `leader_epoch`, which ends there at
        `leader_end`."""
        held = position.partition.log
        offset = plan_truncation(held, leader_epoch, leader_end)
        if self._parts_in_tier(position, offset):
            return
        if offset < held.high_watermark:
            logger.warning("%s: truncated to %d, below its high watermark", position, offset)
        elif offset < held.log_end_offset:
            logger.info("%s: truncated to %d, where its epochs diverge from the leader's", position, offset)
        position.is_verified = False
        held.truncate_to(offset)

    def _parts_in_tier(self, position: _Position, offset: int) -> bool:
        """Whether this log parts from the leader's below its own local records: then it is brought up from
        the tier, because nothing here tells which producers there were."""
        held = position.partition.log
        is_local = not held.is_tiered or offset >= held.local_log_start_offset
        if is_local or self._owner.restores is None:
            return False
        logger.warning("%s: parts from the leader at %d, below its local records", position, offset)
        self._owner.restore(position)
        return True

    def _refused(self, position: _Position, code: ErrorCode) -> None:
        if code is ErrorCode.offset_out_of_range:
            position.needs_reset = True
            return
        if code is ErrorCode.offset_moved_to_tiered_storage and self._owner.restores is not None:
            self._owner.restore(position)
            return
        if code is ErrorCode.fenced_leader_epoch:
            # the leader is ahead of our image, which will name the next epoch
            position.is_stuck = True
            logger.info("%s: the leader has a newer epoch; waiting for the image", position)
            return
        logger.debug("%s: the leader answered %s", position, code.name)
        self._delay(position)

    def _delay(self, position: _Position) -> None:
        position.wait_until = self._replicas.now() + self._backoff_s()

    def _put_off(self, position: _Position, error: NoDescriptor) -> None:
        logger.warning("%s: %s", position, error.message)
        self._delay(position)

    def _fail(self, position: _Position, error: KafkaError) -> None:
        self.remove(position)
        self._replicas.partition_failed(position.partition, error)

    # --- out of its range ---

    async def _reset_offsets(self) -> bool:
        """Ask for the start and end of each leader's log outside which ours ends. Return whether there was
        any."""
        now = self._replicas.now()
        lost = [each for each in self.positions.values() if each.needs_reset and each.is_ready(now)]
        if not lost:
            return False
        ends = await self._list_offsets(lost, _LATEST)
        starts = await self._list_offsets(lost, _EARLIEST)
        for position in lost:
            if self.positions.get(position.key) is not position:
                continue
            end, start = ends.get(position.key), starts.get(position.key)
            if isinstance(end, int) and isinstance(start, int):
                try:
                    self._start_within(position, start, end)
                    position.needs_reset = False
                except NoDescriptor as error:
                    self._put_off(position, error)
                except KafkaError as error:
                    self._fail(position, error)
            elif ErrorCode.fenced_leader_epoch in (end, start):
                position.is_stuck = True
            else:
                self._delay(position)
        return True

    def _start_within(self, position: _Position, leader_start: int, leader_end: int) -> None:
        held = position.partition.log
        owner = self._owner
        if owner.restores is not None and may_begin_at_tier(held, owner.config(), leader_end=leader_end):
            owner.restore(position)
            return
        position.is_verified = False
        if self._parts_in_tier(position, min(leader_end, held.log_end_offset)):
            return
        if leader_end < held.log_end_offset:
            logger.warning("%s: truncated to %d, where the leader's log ends", position, leader_end)
            held.truncate_to(leader_end)
        elif leader_start > held.log_end_offset:
            logger.warning("%s: starts over at %d, where the leader's log begins", position, leader_start)
            held.truncate_fully(leader_start)
        else:
            # the leader's log has moved since, or will: the same question again is for later
            self._delay(position)

    async def _list_offsets(self, lost: Iterable[_Position], timestamp: int) -> dict[Key, int | ErrorCode]:
        topics: dict[str, list[Fields]] = {}
        names: dict[tuple[str, int], Key] = {}
        for position in lost:
            partition = position.partition
            names[partition.topic, partition.index] = position.key
            topics.setdefault(partition.topic, []).append(
                {
                    "partition_index": partition.index,
                    "current_leader_epoch": position.leader_epoch,
                    "timestamp": timestamp,
                }
            )
        fields: Fields = {
            "replica_id": self._replicas.node_id,
            "isolation_level": 0,
            "timeout": 0,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }
        channel = self._owner.channels.to(self.leader_id, PURPOSE)
        timeout_s = self._owner.config().replica_socket_timeout_ms / 1000
        response: Any = await channel.ask(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, fields, timeout_s=timeout_s)
        found: dict[Key, int | ErrorCode] = {}
        for topic in response.topics:
            for each in topic.partitions:
                key = names.get((topic.name, each.partition_index))
                if key is not None:
                    found[key] = each.error_code or each.offset
        return found


class _AskedLeader:
    """The leader of one position, asked about its log."""

    def __init__(self, owner: ReplicaFetchers, position: _Position) -> None:
        self._owner = owner
        self._position = position

    async def offset(self, timestamp: int) -> OffsetAndEpoch:
        row = {"timestamp": timestamp, "partition_index": self._position.partition.index}
        fields = {"isolation_level": 0, "timeout": 0}
        found = await self._ask(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, "name", row, fields)
        return OffsetAndEpoch(found.offset, found.leader_epoch)

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        row = {"leader_epoch": epoch, "partition": self._position.partition.index}
        found = await self._ask(Api.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, "topic", row, {})
        return found.leader_epoch, found.end_offset

    async def _ask(self, api: Api, version: int, topic_key: str, row: Fields, fields: Fields) -> Any:
        """Ask about the one partition; KafkaError with the leader's code."""
        owner, position = self._owner, self._position
        row = {**row, "current_leader_epoch": position.leader_epoch}
        topics = [{topic_key: position.partition.topic, "partitions": [row]}]
        channel = owner.channels.to(position.leader_id, RESTORE_PURPOSE)
        timeout_s = owner.config().replica_socket_timeout_ms / 1000
        answer = await channel.ask(
            api,
            version,
            {**fields, "replica_id": owner.replicas.node_id, "topics": topics},
            timeout_s=timeout_s,
        )
        found = next((each for topic in answer.topics for each in topic.partitions), None)
        if found is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "the leader left the partition out")
        if found.error_code:
            raise KafkaError(error_code(found.error_code), f"the leader answered {found.error_code}")
        return found


def append_fetched(held: AbstractLog, records: memoryview) -> None:
    """Append what the leader sent. Its first batch may begin before our log ends if that is empty: then ours
    has to begin with the whole batch. After NoDescriptor some of it is to be fetched again."""
    first = parse_header(records)
    end = held.log_end_offset
    if end == held.log_start_offset and first.base_offset < end <= first.last_offset:
        held.truncate_fully(first.base_offset)
        held.append_as_follower(records)
        held.set_high_watermark(end)
        held.advance_log_start(end)
        return
    try:
        held.append_as_follower(records)
    except NoDescriptor:
        held.flush_staged()  # the next fetch tells the leader that all up to the end is here
        raise


def plan_truncation(held: AbstractLog, leader_epoch: int, leader_end: int) -> int:
    """Return where to cut this log, given the leader's newest epoch that may be ours and where that one ends
    (KIP-101, KIP-279). An epoch between two of ours takes another request."""
    epoch, end = held.end_offset_for_epoch(leader_epoch)
    if epoch < 0 or end < 0:
        return min(leader_end, held.log_end_offset)
    if epoch != leader_epoch:
        return min(end, held.log_end_offset)
    return min(end, leader_end, held.log_end_offset)
