"""What this broker tells in the metadata topic of the WAL tier: its objects, its streams, what it deletes.

Owns: when events are sent, to whom, and that they are sent until they are taken; making the topic when it is
needed first. Does not own: which events are still to be told (remote.wal.untold), who may tell them (leader),
what they say (remote.wal.journal). Invariants: nobody waits for it, and what happened is noted at once, in
bounded memory; one batch is under way at a time, so nothing overtakes; whatever fails is told again, as the
bucket alone is the truth.

All that is told of the streams of one broker lies in one partition of the topic, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from broker.config.broker import BrokerConfig
from broker.control.image import Image
from broker.control.metadata_records import NO_LEADER
from broker.coordinators.pace import Pace
from broker.coordinators.wal.leader import TOPIC, LedLog, WalTopicLeader
from broker.coordinators.wal.told import BATCH_OVERHEAD_BYTES, RECORDS_MAX, Sender, make_told, object_rows
from broker.net.channel import Channel, PeerLost
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, error_code
from remote.bad_object import BadObject
from remote.keys import Stream
from remote.store.object_store import NoSuchObject, ObjectStore, StoreError
from remote.wal.combined_object import ObjectKind, Place, decode_head
from remote.wal.counted import Counted
from remote.wal.journal import LogRow, ObjectState, Teller, deletion_rows, stream_rows
from remote.wal.stats import WalStats
from remote.wal.tables import read_table
from remote.wal.untold import BYTES_MAX, Batch, Event, EventKind, ReadBack, Stored, Untold
from storage.policy import LogConfig

logger = logging.getLogger(__name__)

PURPOSE: Final = "wal-metadata"
PRODUCE_VERSION: Final = 9
TELL_EVERY_S: Final = 0.1
ATTEMPT_S: Final = 10.0
RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
EVENTS_AT_ONCE: Final = 500
"""Of each at most three records."""
READ_BACK_BYTES: Final = 1 << 20
"""Of objects that were forgotten, in one go."""
_RECORD_BYTES: Final = 64


class PeerChannels(Protocol):
    def to(self, node_id: int, purpose: str) -> Channel: ...


class ClusterView(Protocol):
    @property
    def image(self) -> Image: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def channels(self) -> PeerChannels: ...

    async def ensure_internal(self, name: str) -> object: ...

    def log_config(self, topic: str) -> LogConfig: ...


class WalTelling:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        cluster: ClusterView,
        replicas: LedLog,
        store: ObjectStore,
        stats: WalStats,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._node_id = config.node_id
        self._now_ms = now_ms
        self._cluster = cluster
        self._store = store
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._untold = Untold(bytes_max=bytes_max)
        self._is_due = asyncio.Event()
        self._number = 0
        self._complaint: str | None = None
        self._task: asyncio.Task[None] | None = None
        self.leader = WalTopicLeader(
            node_id=config.node_id,
            inter_broker_listener=config.inter_broker_listener,
            replicas=replicas,
            image=lambda: cluster.image,
            store=store,
            now_ms=now_ms,
            log_config=cluster.log_config,
        )

    def __repr__(self) -> str:
        return f"<WalTelling {self._untold!r}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self.leader.start(task_group)
        self._task = task_group.create_task(self._run(), name="wal metadata")

    def stop(self) -> None:
        """End at once: what is not told yet the leader of the topic tells, once the stream is sealed."""
        self.leader.stop()
        if self._task is not None:
            self._task.cancel()

    @property
    def held_bytes(self) -> int:
        """What is kept of objects until they are told."""
        return self._untold.bytes

    def accept(
        self, listener: str, topic: str, index: int, records: Any, *, version: int
    ) -> Callable[[], Coroutine[Any, Any, int]] | None:
        """Read what another broker tells: see `WalTopicLeader.accept`."""
        return self.leader.accept(listener, topic, index, records, version=version)

    # --- what happens ---

    def counted(self, stored: Counted) -> None:
        place = stored.place
        put_id = decode_head(stored.table).put_id
        self._untold.counted(place.stream, Stored(place.seq, put_id, tuple(stored.rows)))
        self._due()

    def stream_changed(self, stream: Stream, is_open: bool) -> None:
        """Take note that this broker's stream was opened, or that no object of it will count any more; or
        that there is a stream whose writer is gone."""
        if is_open or not self._is_own(stream):
            self._untold.opened(stream)
        else:
            self._untold.ended(stream)
        self._due()

    def deleted(self, places: Iterable[Place], finished: bool) -> None:
        """Take note that objects are about to be deleted, or are."""
        self._untold.deleted(places, finished=finished)
        self._due()

    def _due(self) -> None:
        self._stats.events_waiting = self._untold.count
        if self._untold:
            self._is_due.set()

    def _is_own(self, stream: Stream) -> bool:
        return (stream.node_id, stream.broker_epoch) == (self._node_id, self._cluster.broker_epoch)

    # --- telling ---

    async def _run(self) -> None:
        pause_s = RETRY_S
        is_behind = False
        while True:
            await self._is_due.wait()
            if not is_behind:
                await asyncio.sleep(TELL_EVERY_S)
            due = self._untold.next(count_max=EVENTS_AT_ONCE)
            is_behind = isinstance(due, ReadBack) or (due is not None and len(due.events) == EVENTS_AT_ONCE)
            if due is None:
                self._is_due.clear()
            elif not self._is_own(due.stream) and self._has_objects(due):
                self._untold.forget_objects(due.stream)
            else:
                try:
                    await self._do(due)
                except (KafkaError, PeerLost, StoreError, BadObject) as error:
                    self._complain(due.stream, str(error))
                    self._untold.refused(due.stream)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
                else:
                    self._complaint = None
                    pause_s = RETRY_S
            self._stats.events_waiting = self._untold.count

    @staticmethod
    def _has_objects(due: Batch | ReadBack) -> bool:
        """Whether there is something that only the stream's writer may tell."""
        if isinstance(due, ReadBack):
            return True
        return any(event.kind in (EventKind.OBJECT, EventKind.ENDED) for event in due.events)

    async def _do(self, due: Batch | ReadBack) -> None:
        if isinstance(due, ReadBack):
            await self._read_back(due)
            return
        index = await self._index_of(due.stream)
        told = 0
        while told < len(due.events):
            events, rows = await self._rows(due.stream, due.events[told:])
            await self._tell(index, rows)
            self._untold.told(Batch(due.stream, events))
            self._stats.events += len(rows)
            told += len(events)

    async def _rows(
        self, stream: Stream, events: tuple[Event, ...]
    ) -> tuple[tuple[Event, ...], list[LogRow]]:
        """Return the records of the first events that fit one batch, one event's at least."""
        bytes_max = self._cluster.log_config(TOPIC).max_message_bytes
        teller = Teller(self._node_id, self._now_ms())
        pace = Pace(self._loop)
        rows: list[LogRow] = []
        size = 0
        for number, event in enumerate(events):
            place = Place(stream, event.seq)
            match event.kind:
                case EventKind.OPENED:
                    new = stream_rows(stream, ObjectState.COPY_STARTED, teller)
                case EventKind.ENDED:
                    new = stream_rows(stream, ObjectState.COPY_FINISHED, teller)
                case EventKind.OBJECT:
                    assert event.stored is not None
                    new = await object_rows(place, event.stored, teller, bytes_max=bytes_max, pace=pace)
                case EventKind.DELETE_STARTED:
                    new = deletion_rows(place, ObjectState.DELETE_STARTED, teller)
                case EventKind.DELETE_FINISHED:
                    new = deletion_rows(place, ObjectState.DELETE_FINISHED, teller)
            size += sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in new)
            if rows and (size > bytes_max - BATCH_OVERHEAD_BYTES or len(rows) + len(new) > RECORDS_MAX):
                return events[:number], rows
            rows += new
            await pace.yield_if_due()
        return events, rows

    async def _tell(self, index: int, rows: list[LogRow]) -> None:
        """Return once the leader has taken a batch; raise what stands against it now."""
        self._number += 1
        image = self._cluster.image
        sender = Sender(self._node_id, self._cluster.broker_epoch, image.seq, self._number)
        told = make_told(rows, sender, now_ms=self._now_ms())
        part = image.partition(TOPIC, index)
        if part is None or part.leader == NO_LEADER:
            raise KafkaError(ErrorCode.leader_not_available, f"nobody leads {TOPIC}-{index}")
        if part.leader == self._node_id:
            await self.leader.append(index, told)
            return
        partition = {"index": index, "records": told.batch}
        fields: Fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": int(ATTEMPT_S * 1000),
            "topic_data": [{"name": TOPIC, "partition_data": [partition]}],
        }
        channel = self._cluster.channels.to(part.leader, PURPOSE)
        response: Any = await channel.ask(Api.PRODUCE, PRODUCE_VERSION, fields, timeout_s=ATTEMPT_S)
        answer = response.responses[0].partition_responses[0]
        code = error_code(int(answer.error_code))
        if code is not ErrorCode.none:
            raise KafkaError(code, answer.error_message)

    async def _read_back(self, due: ReadBack) -> None:
        """Read from the bucket what was forgotten, as much as may be held at once."""
        found: list[Stored] = []
        reached, size = due.seqs.start, 0
        size_max = min(READ_BACK_BYTES, self._untold.room)
        while reached < due.seqs.stop and size <= size_max:
            try:
                table = await read_table(self._store, Place(due.stream, reached))
            except NoSuchObject:
                table = None  # deleted meanwhile
            if table is not None and table.head.kind is ObjectKind.SLICES:
                found.append(Stored(reached, table.head.put_id, table.rows))
                size += found[-1].size_bytes
            reached += 1
        self._untold.read_back(due.stream, range(due.seqs.start, reached), found)

    async def _index_of(self, stream: Stream) -> int:
        """Return which part of the topic speaks of a stream; make the topic if it is not there."""
        if TOPIC not in self._cluster.image.topics:
            await self._cluster.ensure_internal(TOPIC)
        topic = self._cluster.image.topics.get(TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{TOPIC} is not there yet")
        return stream.node_id % len(topic.partitions)

    def _complain(self, stream: Stream, why: str) -> None:
        if self._complaint != why:
            logger.warning("what happens in %s cannot be told in %s yet: %s", stream, TOPIC, why)
        self._complaint = why
