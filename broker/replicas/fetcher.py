"""Following: fetch from one broker what it leads, and append it here.

Owns: the task for one leader and what it asks for, its fetch session, cutting a log where it parts from the
leader's (KIP-101, KIP-595), starting anew where the leader has nothing older, and waiting after an error.
Does not own: connections (channel), the bytes of a Fetch (protocol.fetch), files (log), which partitions are
fetched from whom (replica_fetchers), reading what an answer points to in the store (wal.hydrating).
Invariants: a partition is fetched from the leader and in the epoch that the image names, from where its own
log ends; an answer counts only if both are still so; every batch's CRC is checked before it is appended, and
the high watermark here is never above what the leader said or the log holds. An error of one partition makes
that one wait and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final, Protocol

from broker.config.broker import BrokerConfig
from broker.net.channel import PeerLost
from broker.replicas.fetch_position import Key, OwnSession, Position
from broker.replicas.follower_log import append_fetched, plan_truncation
from broker.replicas.leader_questions import EARLIEST, LATEST, LeaderQuestions, PeerChannels
from broker.replicas.partition import UNKNOWN, Partition
from broker.replicas.restore import Restores, may_begin_at_tier
from broker.replicas.throttle import Throttle
from broker.replicas.wal.hydrating import Hydrating
from protocol.errors import CorruptBatch, ErrorCode, KafkaError, MalformedRequest, error_code
from protocol.fetch import FetchedPartition, FetchItem, encode_replica_fetch, parse_replica_fetch
from protocol.pointers import FROM_OFFSET, ObjectPlace
from remote.bad_object import BadObject
from remote.wal.hydrator import Hydrator
from remote.wal.slice_queue import Slice
from storage.log import NoDescriptor

logger = logging.getLogger(__name__)

PURPOSE: Final = "fetch"
POINTED_PURPOSE: Final = "fetch-wal"
"""Partitions that are read from the store have a connection of their own."""
LOOK_AT_ALL_S: Final = 5.0
ADOPT_WAIT_S: Final = 0.05
"""How long a request waits for log starts on their way to the disk, where nothing else is fetched."""
_CORRELATION_MASK: Final = 0x7FFFFFFF
_SLICE_BYTES: Final = 1 << 20
"""How much is appended before the loop gets another turn."""
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)


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


class FetchOwner(Protocol):
    """What all fetchers of one broker share."""

    @property
    def replicas(self) -> ReplicaView: ...
    @property
    def channels(self) -> PeerChannels: ...
    @property
    def broker_epoch(self) -> Callable[[], int]: ...
    @property
    def config(self) -> Callable[[], BrokerConfig]: ...
    @property
    def throttle(self) -> Throttle: ...
    @property
    def restores(self) -> Restores | None: ...
    @property
    def questions(self) -> LeaderQuestions: ...
    def restore(self, position: Position) -> None:
        """Begin to bring a log up from the tier; it is fetched again once that is done."""


class Fetcher:
    """Everything fetched from one leader over one connection."""

    def __init__(self, owner: FetchOwner, leader_id: int, hydrator: Hydrator | None = None) -> None:
        self.leader_id = leader_id
        self.hydrating = None if hydrator is None else Hydrating(hydrator, self)
        """None where the leader sends all records itself."""
        self.positions: dict[Key, Position] = {}
        self._owner = owner
        self._replicas = owner.replicas
        self._session = OwnSession()
        self._stale: dict[Key, None] = {}
        """Partitions to re-check before the next request; the rest keep their position."""
        self._looked_at_all_at = -inf
        self._has_news = asyncio.Event()
        self._adopting: dict[Position, None] = {}
        """Positions with a log start on its way to the disk."""
        self._has_adopted = asyncio.Event()
        self._takes_pointers = False
        """Whether pointers were asked for at the last look."""
        self._purpose = PURPOSE if hydrator is None else POINTED_PURPOSE
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
        self._task = task_group.create_task(self._run(), name=f"{self._purpose} from {self.leader_id}")
        if self.hydrating is not None:
            self.hydrating.start(task_group)

    def stop(self) -> None:
        self.positions.clear()
        if self.hydrating is not None:
            self.hydrating.stop()
        if self._task is not None:
            self._task.cancel()

    def add(self, position: Position) -> None:
        self.positions[position.key] = position
        self._stale[position.key] = None
        self._has_news.set()

    def look_again(self, position: Position) -> None:
        """Fetch a partition from where its log ends now."""
        if self.positions.get(position.key) is position:
            self._stale[position.key] = None
            self._has_news.set()

    def look_at_all(self) -> None:
        self._stale.update(dict.fromkeys(self.positions))
        self._has_news.set()

    def now(self) -> float:
        return self._replicas.now()

    def is_followed(self, position: Position) -> bool:
        """Whether what was asked for a position still counts: it is followed as it was then."""
        partition = position.partition
        return self.positions.get(position.key) is position and not (
            partition.is_leader or partition.offline or partition.leader_epoch != position.leader_epoch
        )

    def remove(self, position: Position) -> None:
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
        self._session = OwnSession()
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
        hydrating = self.hydrating
        wait_s = config.replica_fetch_wait_max_ms / 1000 if session.told else 0.0
        if hydrating is not None:
            wait_s = hydrating.stay_s(wait_s)
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        frame = encode_replica_fetch(
            self._correlation_id,
            self._client_id,
            replica_id=self._replicas.node_id,
            replica_epoch=self._owner.broker_epoch(),
            max_wait_ms=round(wait_s * 1000),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            items=items,
            forgotten=forgotten,
            takes_pointers=hydrating is not None,
        )
        timeout_s = config.replica_socket_timeout_ms / 1000
        channel = self._owner.channels.to(self.leader_id, self._purpose)
        response = parse_replica_fetch(await channel.ask_frame(frame, timeout_s=timeout_s))
        if response.error:
            self._start_over()
            if error_code(response.error) not in _SESSION_LOST or not session.id:
                raise PeerLost(f"Fetch is answered with {response.error}")
            return
        await self._take_all(session.told, response.partitions, response.objects)
        if response.session_id:
            session.answered(response.session_id)
        if hydrating is not None:
            await hydrating.wait_reads()
        if response.session_id:
            return
        # without room for a session a leader answers at once, and has to be told everything each time
        self._start_over()
        if session.told and not any(_brings_records(fetched) for fetched in response.partitions):
            await asyncio.sleep(self._backoff_s())

    async def _take_all(
        self,
        asked: dict[Key, FetchItem],
        answers: list[FetchedPartition],
        objects: Sequence[ObjectPlace] = (),
    ) -> None:
        appended = 0
        is_quiet = True
        for fetched in answers:
            key = (fetched.topic_id, fetched.partition)
            position, item = self.positions.get(key), asked.get(key)
            if position is None or item is None:
                continue
            self._stale[key] = None
            self._take(position, item, fetched, objects)
            appended += len(fetched.records)
            is_quiet = is_quiet and not _brings_records(fetched)
            if appended >= _SLICE_BYTES:
                appended = 0
                await asyncio.sleep(0)
        if self.hydrating is not None:
            self.hydrating.begin()
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
        hydrating = self.hydrating
        if hydrating is not None and hydrating.takes_pointers is not self._takes_pointers:
            self._takes_pointers = hydrating.takes_pointers
            self._stale.update(dict.fromkeys(self.positions))
        stale, self._stale = self._stale, {}
        looked_at: dict[Key, FetchItem | None] = {}
        for key in stale:
            position = self.positions.get(key)
            if position is None:
                looked_at[key] = None
            elif position.is_ready(now) and not self._is_throttled(position):
                pointed = FROM_OFFSET if hydrating is None else hydrating.pointed(position)
                looked_at[key] = position.item(max_bytes, pointed)
            else:
                looked_at[key] = None
                self._stale[key] = None
        return looked_at

    def _is_throttled(self, position: Position) -> bool:
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

    def _take(
        self,
        position: Position,
        asked: FetchItem,
        fetched: FetchedPartition,
        objects: Sequence[ObjectPlace] = (),
    ) -> None:
        """Take the answer for one partition, unless its leader or its log has changed since the request."""
        says_offsets_alone = not (fetched.error or fetched.diverging or fetched.records)
        if not position.counts(asked, says_offsets_alone=says_offsets_alone):
            return
        try:
            if fetched.error:
                self._refused(position, error_code(fetched.error))
            elif fetched.diverging is not None:
                self._truncate(position, *fetched.diverging)
            else:
                self._append(position, fetched, objects)
        except CorruptBatch as error:
            logger.error("%s: a damaged batch from the leader is not appended: %s", position, error)
            self._delay(position)
        except NoDescriptor as error:
            self._put_off(position, error)
        except KafkaError as error:
            self._fail(position, error)

    def _append(self, position: Position, fetched: FetchedPartition, objects: Sequence[ObjectPlace]) -> None:
        partition = position.partition
        held = partition.log
        if not position.is_verified:
            self._verify(position, fetched.log_start)
        size = len(fetched.records)
        if size:
            append_fetched(held, fetched.records)
            partition.stats.replication_bytes_in += size
            self._received(position, size)
            if self.hydrating is not None and position.slices is not None:
                self.hydrating.took_bytes(position, size)
        position.told_high_watermark = fetched.high_watermark
        position.told_log_start = fetched.log_start
        self._take_told(position)
        if self.hydrating is not None and fetched.pointers:
            self.hydrating.add(position, fetched.pointers, objects)

    def _received(self, position: Position, size: int) -> None:
        partition = position.partition
        listed = partition.log.config.follower_replication_throttled_replicas
        self._owner.throttle.sent(listed, partition.index, partition.node_id, size)

    def _take_told(self, position: Position) -> None:
        """Take over what the leader said of its offsets, as far as this log goes."""
        held = position.partition.log
        told = position.told_high_watermark
        position.lag = max(told - held.log_end_offset, 0)
        high_watermark = min(told, held.log_end_offset)
        if high_watermark > held.high_watermark:
            held.set_high_watermark(high_watermark)
            self._replicas.wake_committed(position.partition)
        if position.told_log_start > held.log_start_offset:
            self._adopt(position, min(position.told_log_start, held.high_watermark))

    def append_slice(self, position: Position, slice_: Slice) -> bool:
        """Append what a slice from the store brings; BadObject when it does not fit. The caller has asked
        whether the position is still followed. Return whether the log took it."""
        queue, held = position.slices, position.partition.log
        assert queue is not None, position
        records = queue.records(slice_, held.log_end_offset)
        try:
            if len(records):
                append_fetched(held, records)
                self._received(position, len(records))
            queue.appended(slice_, self.now())
            position.stored(slice_.pointer.start, slice_.pointer.end)
            self._take_told(position)
            return True
        except CorruptBatch as error:
            raise BadObject(str(error)) from None
        except NoDescriptor as error:
            queue.drop()
            self._put_off(position, error)
        except KafkaError as error:
            queue.drop()
            self._fail(position, error)
        return False

    def _adopt(self, position: Position, log_start: int) -> None:
        """Take over the leader's log start. It counts, and is reported, once it is durable."""
        if log_start > position.adopting:
            position.adopting = log_start
            self._adopting[position] = None
            self._is_adoption_new = True
            position.partition.log.advance_log_start(log_start, partial(self._adopted, position, log_start))

    def _adopted(self, position: Position, log_start: int, _: KafkaError | None) -> None:
        if log_start < position.adopting:
            return
        position.adopting = UNKNOWN
        if self.positions.get(position.key) is position:
            self._stale[position.key] = None
        self._adopting.pop(position, None)
        if not self._adopting:
            self._has_adopted.set()

    def _verify(self, position: Position, leader_start: int) -> None:
        """Drop a log that lies wholly below the leader's: nothing the leader still has tells whether these
        batches are its own, or were never committed. What was compared once stays equal in this epoch."""
        held = position.partition.log
        if held.log_start_offset < held.log_end_offset <= leader_start:
            logger.warning("%s: starts over at %d: all its records were deleted", position, leader_start)
            position.cuts(UNKNOWN)
            held.truncate_fully(leader_start)
        position.is_verified = True

    def _truncate(self, position: Position, leader_epoch: int, leader_end: int) -> None:
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
        position.cuts(offset)
        held.truncate_to(offset)

    def _parts_in_tier(self, position: Position, offset: int) -> bool:
        """Whether this log parts from the leader's below its own local records: then it is brought up from
        the tier, because nothing here tells which producers there were."""
        held = position.partition.log
        is_local = not held.is_tiered or offset >= held.local_log_start_offset
        if is_local or self._owner.restores is None:
            return False
        logger.warning("%s: parts from the leader at %d, below its local records", position, offset)
        self._owner.restore(position)
        return True

    def _refused(self, position: Position, code: ErrorCode) -> None:
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

    def _delay(self, position: Position) -> None:
        position.wait_until = self._replicas.now() + self._backoff_s()

    def _put_off(self, position: Position, error: NoDescriptor) -> None:
        logger.warning("%s: %s", position, error.message)
        self._delay(position)

    def _fail(self, position: Position, error: KafkaError) -> None:
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
        ends = await self._list_offsets(lost, LATEST)
        starts = await self._list_offsets(lost, EARLIEST)
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

    def _start_within(self, position: Position, leader_start: int, leader_end: int) -> None:
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
            position.cuts(leader_end)
            held.truncate_to(leader_end)
        elif leader_start > held.log_end_offset:
            logger.warning("%s: starts over at %d, where the leader's log begins", position, leader_start)
            position.cuts(UNKNOWN)
            held.truncate_fully(leader_start)
        else:
            # the leader's log has moved since, or will: the same question again is for later
            self._delay(position)

    async def _list_offsets(self, lost: Sequence[Position], timestamp: int) -> dict[Key, int | ErrorCode]:
        return await self._owner.questions.offsets(self.leader_id, lost, timestamp, purpose=self._purpose)


def _brings_records(fetched: FetchedPartition) -> bool:
    return len(fetched.records) > 0 or bool(fetched.pointers)
