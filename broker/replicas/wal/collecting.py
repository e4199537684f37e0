"""What this broker does so that objects of the WAL tier go again: it says what it needs, and takes its turns.

Owns: the floors of the partitions led here, put every half a minute; those of others, as they were read last;
the turns of this broker's own streams, and, as the controller, of streams whose writers are gone. Does not
own: what a slice's death follows from (remote.wal.floors), ending a stream (seal), deleting (collector).

Theory of operation. A broker collects what it wrote in this life, up to what counts. The controller looks
through the bucket from time to time for streams of broker epochs that its image has no more, ends them, and
collects them. Both judge by the same floors: those of who leads a partition now, in the epoch in which he
leads. Two brokers that take themselves for the controller do the same work twice, and no harm.

Invariant: nobody waits for any of this. A store that is away costs turns, and what a turn has read is thrown
away with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from broker.control.image import Delta, Image
from broker.control.internal_topics import is_of_the_brokers
from broker.replicas.partition import UNKNOWN, Partition
from broker.replicas.trouble import Trouble
from broker.replicas.wal.parts import ALSO_STORED, WalParts
from remote.bad_object import BadObject
from remote.keys import WAL, Stream, floors_key
from remote.store.object_store import NoSuchObject, ObjectStore, StoreError
from remote.wal.collector import Collector, MissingObject, OnDeleted
from remote.wal.counted import Counted, OnStream
from remote.wal.floors import Floor, Floors, decode_floors, encode_floors, stored_before
from remote.wal.seal import End, Sealer
from remote.wal.stats import WalStats
from storage.epochs import EpochCache

FIRST_S: Final = 2.0
ROUND_S: Final = 30.0
STOP_S: Final = 1.0
"""A stop waits so long for the floors to be put."""
LOOK_EVERY_ROUNDS: Final = 10
HEARD_FROM_S: Final = 600.0
"""A replica that was silent for longer is sent records directly when it comes back."""
STREAMS_A_ROUND: Final = 32
PAGES_A_ROUND: Final = 8
"""Of a look at all streams: each that ever was leaves something behind."""
LEARN_S: Final = 2.0
"""A start waits so long for what others and an earlier life said."""
LEARN_PAUSE_S: Final = 0.1
LOOKED_AT_ONCE: Final = 256

logger = logging.getLogger(__name__)


class Control(Protocol):
    """The cluster, as far as this needs it."""

    @property
    def image(self) -> Image: ...
    @property
    def broker_epoch(self) -> int: ...


class Replicas(Protocol):
    def partitions(self) -> Iterator[Partition]: ...


class Said(NamedTuple):
    """What one broker said."""

    metadata_seq: int
    rows: dict[tuple[UUID, int], Floor]


class CurrentFloors:
    """What the current leaders said, by the newest image (remote.wal.floors.View)."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self.said: dict[int, Said] = {}
        """By broker: what it said last."""
        self._image = image

    def __repr__(self) -> str:
        return f"<CurrentFloors of {len(self.said)} brokers>"

    @property
    def metadata_seq(self) -> int:
        return self._image().seq

    def has_topic(self, topic_id: UUID) -> bool:
        return topic_id in self._image().topic_names

    def floor(self, topic_id: UUID, partition: int, metadata_seq: int = -1) -> Floor | None:
        topic = self._image().topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return None
        leads = topic.partitions[partition]
        all_said = self.said.get(leads.leader)
        if all_said is None or all_said.metadata_seq < metadata_seq:
            return None
        said = all_said.rows.get((topic_id, partition))
        return said if said is not None and said.leader_epoch == leads.leader_epoch else None


@dataclass(slots=True)
class _Gone:
    """A stream whose writer is gone."""

    end: End | None = None
    is_done: bool = False


class WalCollecting:
    def __init__(
        self,
        *,
        node_id: int,
        control: Control,
        replicas: Replicas,
        parts: WalParts,
        store: ObjectStore,
        stats: WalStats,
        rng: random.Random,
        now_ms: Callable[[], int],
    ) -> None:
        self.floors = CurrentFloors(lambda: control.image)
        self.on_cold_lost: list[Callable[[Partition], None]] = []
        """Told of each partition led here that left the cold tier: what was collected for its sake is to be
        stored again."""
        self.on_floors: list[Callable[[Iterable[tuple[Partition, Floor]]], None]] = []
        """Told of the floors of what is led here, in each round."""
        self.on_gone: list[OnStream] = []
        """Told of each stream whose writer is gone, once it has ended."""
        self.sealer = Sealer(
            store,
            cluster_id=lambda: control.image.cluster_id,
            writer=lambda: (node_id, control.broker_epoch),
            rng=rng,
            now_ms=now_ms,
        )
        self.collector = Collector(
            store, self.sealer, cluster_id=lambda: control.image.cluster_id, view=self.floors
        )
        self._node_id = node_id
        self._control = control
        self._replicas = replicas
        self._parts = parts
        self._store = store
        self._stats = stats
        self._random = rng
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._counted: dict[Stream, int] = {}
        """Streams of this life: up to where their objects count."""
        self._closed: dict[Stream, End | None] = {}
        """Those to which nothing is added any more, and where they end."""
        self._gone: dict[Stream, _Gone] = {}
        self._ended: dict[tuple[int, int], End] = {}
        """By gone writer: the end of its newest stream, after which it opens none."""
        self._looked_with: dict[int, int] = {}
        """The brokers and their epochs when the bucket was looked through last."""
        self._look_after: str | None = None
        """The key after which a look through the bucket goes on in this round."""
        self._pages_looked = 0
        """By the last look, or the one that is under way."""
        self._rounds = 0
        self._is_bucket_used = False
        self._put: Said | None = None
        self._putting = asyncio.Lock()
        self._is_over = False
        self._has_read_all = False
        self._heard = -1
        """The newest slot of which all parts of this broker have heard."""
        self._trouble = Trouble("to be collected in the WAL tier", self._loop.time)

    def __repr__(self) -> str:
        return f"<WalCollecting {len(self._counted)} own streams, {len(self._gone)} of others>"

    @property
    def on_deleted(self) -> list[OnDeleted]:
        return self.collector.on_deleted

    def counted(self, counted: Counted) -> None:
        """Take note of an object of this broker that counts."""
        self._counted[counted.place.stream] = counted.place.seq + 1

    def stream_changed(self, stream: Stream, is_open: bool) -> None:
        """Take note that a stream of this broker began or ended."""
        if is_open:
            self._counted[stream] = 0
        else:
            self._closed[stream] = None

    def known_stored(self, topic_id: UUID, partition: int, epochs: EpochCache) -> int | None:
        """Return up to where earlier leaders had stored a log with these epochs, as far as they said so."""
        if not self._has_read_all:
            return None
        key = (topic_id, partition)
        floors = [said.rows[key] for said in self.floors.said.values() if key in said.rows]
        return stored_before(floors, topic_id, partition, epochs.entries())

    async def learn(self) -> None:
        """Read for a short time what was stored before this start: what is led here at once would be stored
        once more from its beginning."""
        if not self._parts.is_used:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEARN_S):
                while True:
                    if await self._learned():
                        return
                    await asyncio.sleep(LEARN_PAUSE_S)

    async def _learned(self) -> bool:
        try:
            await self._read_floors()
        except StoreError as error:
            self._trouble.failed("", "the store", error)
            return False
        return True

    def image_changed(self, delta: Delta) -> None:
        """Take note that all others have heard of a change: to be called after them."""
        self._heard = delta.seq

    async def run(self) -> None:
        """Take a round soon, and then every half a minute."""
        await asyncio.sleep(FIRST_S * self._random.random())
        while True:
            await self.take_round()
            await asyncio.sleep(ROUND_S * self._random.uniform(0.9, 1.1))

    async def stop(self) -> None:
        """Take no more rounds, and say at once how far the logs here are stored: the next leader begins
        there. A store that takes long is not waited for."""
        self._is_over = True
        if not self._parts.is_used or not self._has_read_all:
            return
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._put_floors(is_last=True)

    async def take_round(self) -> None:
        if self._is_over:
            return
        looks = self._rounds % LOOK_EVERY_ROUNDS == 0
        self._rounds += 1
        try:
            if self._rounds % LOOK_EVERY_ROUNDS == 0 and not self._parts.is_used:
                # what was stored before the last topic left the tier goes too
                self._is_bucket_used = bool(await self._store.list(WAL, at_most=1))
            if not self._parts.is_used and not self._is_bucket_used:
                return
            await self._read_floors()
            await self._put_floors()
            await self._collect_own()
            await self._collect_gone(looks=looks)
            self._trouble.ended("")
        except StoreError as error:
            self._trouble.failed("", "the store", error)
        finally:
            self._stats.unreferenced_bytes = self.collector.unreferenced_bytes
            self._stats.held_back_objects = self._held_back()

    def _held_back(self) -> int:
        ends = {stream: gone.end.seq for stream, gone in self._gone.items() if gone.end is not None}
        own = {stream: end for stream, end in self._counted.items() if stream not in self._closed}
        return sum(self.collector.held_back(stream, end) for stream, end in (ends | own).items())

    # --- floors ---

    async def _read_floors(self) -> None:
        brokers = self._control.image.brokers
        for node_id in [*self.floors.said]:
            if node_id not in brokers:
                del self.floors.said[node_id]
        is_all = True
        for node_id in list(brokers):
            if node_id == self._node_id and node_id in self.floors.said:
                continue  # what it said in an earlier life is read once
            try:
                floors = decode_floors(await self._store.get(floors_key(node_id)))
            except NoSuchObject:
                continue
            except BadObject as error:
                logger.warning("the floors of broker %d cannot be read: %s", node_id, error)
                is_all = False
                continue
            if floors.cluster_id == self._control.image.cluster_id and floors.writer[0] == node_id:
                self.floors.said[node_id] = _said(floors.metadata_seq, floors.rows)
        self._has_read_all = self._has_read_all or is_all

    async def _put_floors(self, *, is_last: bool = False) -> None:
        """Say what is needed and what is stored of all that is led here; at last also what was said of that
        before others led it."""
        async with self._putting:
            if is_last or not self._is_over:
                await self._put_floors_alone(keeps_former=is_last)

    async def _put_floors_alone(self, *, keeps_former: bool) -> None:
        before = self.floors.said.get(self._node_id)
        seq = self._control.image.seq if self._heard < 0 else self._heard
        rows = []
        floors_here = []
        for at, partition in enumerate(list(self._replicas.partitions())):
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            row = self._floor(partition)
            if row is not None:
                rows.append(row)
                floors_here.append((partition, row))
                if partition.tail is not None:
                    partition.tail.floor = row.floor
                if before is not None and _has_lost_cold(partition, row, before):
                    for listener in self.on_cold_lost:
                        listener(partition)
        if keeps_former and before is not None:
            led = {(row.topic_id, row.partition) for row in rows}
            rows += [row for key, row in before.rows.items() if key not in led]
        said = self.floors.said[self._node_id] = _said(seq, rows)
        for told in self.on_floors:
            told(floors_here)
        if said == self._put:
            return
        floors = Floors(
            cluster_id=self._control.image.cluster_id,
            writer=(self._node_id, self._control.broker_epoch),
            metadata_seq=seq,
            written_ms=self._now_ms(),
            rows=tuple(rows),
        )
        await self._store.put(floors_key(self._node_id), encode_floors(floors))
        self._put = said

    def _floor(self, partition: Partition) -> Floor | None:
        if not partition.is_leader or partition.offline:
            return None
        if is_of_the_brokers(partition.topic) and partition.topic not in ALSO_STORED:
            return None
        log = partition.log
        stored_to = UNKNOWN if partition.tail is None else partition.tail.stored_to
        at = log.log_end_offset
        if self._parts.uploads(partition):
            at = max(log.log_start_offset, min((log.tiered_end, *self._replica_ends(partition))))
        return Floor(
            topic_id=partition.topic_id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            epoch_start=partition.epoch_begin,
            floor=at,
            stored_to=stored_to,
            moved=None if partition.tail is None else partition.tail.moved,
        )

    def _replica_ends(self, partition: Partition) -> Iterator[int]:
        """The ends of the followers that were heard from lately."""
        since_s = self._loop.time() - HEARD_FROM_S
        for follower in partition.followers():
            if follower.heard_at >= since_s:
                yield follower.end_offset

    # --- turns ---

    async def _collect_own(self) -> None:
        for stream in list(self._counted):
            if stream in self._closed:
                end = self._closed[stream]
                if end is None:
                    asked_by = self._control.image.seq
                    end = self._closed[stream] = await self.sealer.end(stream, asked_by=asked_by)
                if await self._collect(stream, end.seq, is_sealed=True):
                    del self._counted[stream], self._closed[stream]
            else:
                await self._collect(stream, self._counted[stream], is_sealed=False)

    async def _collect(self, stream: Stream, end: int, *, is_sealed: bool) -> bool:
        try:
            is_done = await self.collector.collect(stream, end, is_sealed=is_sealed)
        except MissingObject as error:
            # its end may be another one by now; the others have their turns all the same
            if stream in self._closed:
                self._closed[stream] = None
            if stream in self._gone:
                self._gone[stream].end = None
                self._ended.pop(stream[:2], None)
            self._trouble.failed(stream, str(stream), error)
            return False
        self._trouble.ended(stream)
        if is_done:
            self.collector.forget(stream)
        return is_done

    async def _collect_gone(self, *, looks: bool) -> None:
        image = self._control.image
        if image.controller_id != self._node_id:
            for stream in self._gone:
                self.collector.forget(stream)
            self._gone.clear()
            self._ended.clear()
            self._look_after = None
            self._looked_with = {}
            return
        epochs = {broker.id: broker.epoch for broker in image.brokers.values()}
        is_quick = not self._gone and self._pages_looked <= 1
        if self._look_after is None and (looks or is_quick or epochs != self._looked_with):
            self._look_after, self._pages_looked = "", 0
            self._looked_with = epochs
        await self._look_for_gone()
        left = STREAMS_A_ROUND
        for stream, gone in list(self._gone.items()):
            if gone.is_done or left == 0:
                continue
            left -= 1
            # others have their turn before it comes again, also if it fails
            self._gone[stream] = self._gone.pop(stream, gone)
            if gone.end is None:
                gone.end = await self._end_gone(stream)
                for listener in self.on_gone:
                    listener(stream, False)
            gone.is_done = await self._collect(stream, gone.end.seq, is_sealed=True)

    async def _look_for_gone(self) -> None:
        """Look through some pages of the bucket, if a look is under way; a later round goes on from there."""
        for _ in range(PAGES_A_ROUND):
            if self._look_after is None:
                return
            page = await self.sealer.stream_page(WAL, self._look_after)
            self._look_after = page.more_after
            self._pages_looked += 1
            for stream, first in page.streams.items():
                if self._gone_since(stream) is None:
                    continue
                gone = self._gone.setdefault(stream, _Gone())
                if gone.is_done and not all(map(self.sealer.is_seal_size, first)):
                    gone.is_done = False  # something arrived late

    def _gone_since(self, stream: Stream) -> int | None:
        """Return the slot by which the writer of a stream is gone, None while it may be there."""
        image = self._control.image
        if stream.broker_epoch > image.seq:
            return None  # it is newer than what is known here
        broker = image.brokers.get(stream.node_id)
        if broker is None:
            return image.seq
        return broker.epoch if broker.epoch > stream.broker_epoch else None

    async def _end_gone(self, stream: Stream) -> End:
        """End all that this writer writes, and return the end of this stream."""
        since = self._gone_since(stream)
        assert since is not None, stream
        newest = self._ended.get(stream[:2])
        if newest is None or newest.asked_by < since or newest.stream < stream:
            newest = await self.sealer.end_epoch(stream.node_id, stream.broker_epoch, asked_by=since)
            self._ended[stream[:2]] = newest
        if newest.stream == stream:
            return newest
        return await self.sealer.end(stream, asked_by=since)


def _said(metadata_seq: int, rows: Iterable[Floor]) -> Said:
    return Said(metadata_seq, {(row.topic_id, row.partition): row for row in rows})


def _has_lost_cold(partition: Partition, row: Floor, before: Said) -> bool:
    """Whether what lies between two floors went for the sake of a cold tier that this log has left."""
    was = before.rows.get((row.topic_id, row.partition))
    return (
        was is not None
        and was.leader_epoch == row.leader_epoch
        and was.stored_to >= 0 <= row.stored_to
        and row.floor < was.floor
        and not partition.log.is_tiered
    )
