"""An uploader over real logs and a store that misbehaves, without brokers, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from protocol.errors import KafkaError
from remote.keys import Stream, parse_wal_key, wal_key
from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.stores import limit_attempts
from remote.wal.combined_object import Head, ObjectKind, Place, Row, check_slice, decode_table, encode_table
from remote.wal.counted import Counted
from remote.wal.object_wal import ObjectWal
from remote.wal.sources import UploadSettings
from remote.wal.stats import WalStats
from remote.wal.storage_manager import CombinedMetadata, CopiedObject
from remote.wal.tail import EndTimes, Tail, TailKey
from remote.wal.uploader import Uploader
from storage.files import Files
from storage.log import AbstractLog
from storage.log_manager import LogManager
from storage.policy import LogConfig
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.sim.disk import Disk
from tests.sim.loop import SimLoop
from tests.storage.support import NOW, batch_of

T = TypeVar("T")

NODE, EPOCH = 3, 17
OBJECT_BYTES = 2000
IN_FLIGHT = 3
BATCH_MAX = 1200


@dataclass(eq=False)
class Led:
    """One partition in one leader epoch."""

    tail: Tail
    log: AbstractLog
    rig: Rig
    replicas: tuple[int, ...] = (NODE, 1)
    is_awaited: bool = False
    is_left: bool = False
    stored_to: list[int] = field(default_factory=list)
    errors: list[KafkaError] = field(default_factory=list)

    def was_cut(self, *, has_more: bool) -> None:
        self.is_left = has_more

    def stored(self) -> None:
        self.stored_to.append(self.tail.stored_to)

    def unreadable(self, error: KafkaError) -> None:
        self.errors.append(error)


TORN = b"TWW"


class Watched(ObjectWal):
    """Counts the bytes that are under way."""

    under_way = 0
    bytes_under_way = 0
    most = 0
    most_bytes = 0
    custom: bytes | None = None
    """What it says of each object."""

    async def copy(self, metadata: CombinedMetadata, data: bytes) -> CopiedObject:
        self.under_way += 1
        self.bytes_under_way += len(data)
        self.most = max(self.most, self.under_way)
        self.most_bytes = max(self.most_bytes, self.bytes_under_way)
        try:
            return replace(await super().copy(metadata, data), custom=self.custom)
        finally:
            self.under_way -= 1
            self.bytes_under_way -= len(data)


class Rig:
    cluster_id = "a cluster"
    node_id = NODE
    broker_epoch = EPOCH

    def __init__(self, *, interval_s: float = 0.02, object_bytes: int = OBJECT_BYTES) -> None:
        self.loop = SimLoop()
        self.bucket = MemoryStore()
        self.profile = FaultProfile(latency_min_s=0.001, latency_max_s=0.01)
        self.metadata_seq = 100
        self.is_live = True
        self.counted: list[Counted] = []
        self.streams: list[tuple[Stream, bool]] = []
        self.failures: list[str] = []
        self.led: dict[int, Led] = {}
        self.stats = WalStats()
        self.settings = UploadSettings(
            interval_s=interval_s,
            object_bytes=object_bytes,
            in_flight=IN_FLIGHT,
            slices=1000,
            custom_bytes=128,
        )
        self.offloaded = 0
        self.manager: Watched
        self.uploader: Uploader
        self._logs: LogManager
        self._sealed_for = 0

    def may_reopen(self, slot: int) -> bool:
        return self.metadata_seq >= slot and self.is_live

    def run(self, main: Callable[[Rig], Awaitable[T]]) -> T:
        async def whole() -> T:
            files: Files = Disk(random.Random(1), lambda: NOW).mount()
            self._logs = LogManager(
                files=files,
                dirs=["/data"],
                now_ms=lambda: NOW,
                random=random.Random(7),
                defaults=LogConfig(),
                on_dir_failure=lambda path, error: None,
            )
            self._logs.lock_and_open()
            self._logs.load()
            faulty = FaultyStore(self.bucket, self.profile, random.Random(2))
            self.manager = Watched(limit_attempts(faulty, StoreStats()), rng=random.Random(3))
            self.uploader = Uploader(
                manager=self.manager,
                writer=self,
                settings=lambda: self.settings,
                stats=self.stats,
                offload=self._offload,
                now_ms=lambda: NOW,
                cpu_s=lambda: 0.0,
                random=random.Random(4),
                fail=self.failures.append,
            )
            self.uploader.on_counted.append(self._count)
            self.uploader.on_stream.append(self._streamed)
            async with asyncio.TaskGroup() as tasks:
                self.uploader.start(tasks)
                try:
                    return await main(self)
                finally:
                    await self.uploader.stop()

        return self.loop.run(whole())

    async def _offload(self, call: Callable[[], bytes]) -> bytes:
        self.offloaded += 1
        await asyncio.sleep(0.001)
        return call()

    def _count(self, counted: Counted) -> None:
        """Everything up to this object is in the store, and nothing of it was sealed."""
        stream, seq = counted.place
        for below in range(seq + 1):
            data = self.bucket.objects[wal_key(stream, below)]
            assert data != TORN, "nobody can read it"
            head = decode_table(data).head
            assert head.kind is ObjectKind.SLICES, head
        if self.counted and self.counted[-1].place.stream == stream:
            assert seq == self.counted[-1].place.seq + 1
        else:
            assert seq == 0
        self.counted.append(counted)

    def _streamed(self, stream: Stream, began: bool) -> None:
        if began and stream.generation:
            assert self.may_reopen(self._sealed_for), "another may lead what is stored here"
            before = stream._replace(generation=stream.generation - 1)
            assert self._is_sealed(before), "what is late would count there"
        self.streams.append((stream, began))

    # --- what happens ---

    def lead(self, index: int, *, segment_bytes: int = 4000, stored_to: int = 0, epoch: int = 0) -> Led:
        config = LogConfig(segment_bytes=segment_bytes)
        log = self._logs.create("t", UUID(int=9), index, config)
        log.epoch_start(epoch)
        tail = Tail(
            TailKey(UUID(int=9), index),
            leader_epoch=epoch,
            epoch_start=log.log_end_offset,
            stored_to=stored_to,
            end_times=EndTimes(log.log_end_offset, spacing_s=0.1),
        )
        led = self.led[index] = Led(tail, log, self)
        self.uploader.add(led)
        return led

    def lead_again(self, index: int) -> Led:
        """A new epoch of the same leader."""
        before = self.led[index]
        self.uploader.forget(before)
        epoch = before.tail.leader_epoch + 1
        return self.lead(index, stored_to=before.tail.stored_to, epoch=epoch)

    def append(self, index: int, size: int = 100) -> None:
        led = self.led[index]
        batch = batch_of([(None, bytes([index]) * size)])
        led.log.append_records(batch, leader_epoch=led.tail.leader_epoch, now_ms=NOW)
        led.tail.end_times.note(led.log.log_end_offset, self.loop.now)
        self.uploader.mark(led)

    def move(self, index: int, start: int) -> None:
        """Store once more what lies from `start` on."""
        led = self.led[index]
        if led.tail.moving is None and start < led.tail.stored_to:
            led.tail.move(start, led.log.log_end_offset)
            self.uploader.mark(led)

    def seal(self, slots_up: int, *, asked_by: int) -> None:
        """Have another broker put a seal at the first free slot of the stream that is written, or further
        up; not where there is one: who asks for more than that seal does goes on to the next stream."""
        stream = self.uploader.stream
        if stream is None or self._is_sealed(stream):
            return
        seq = 0
        while wal_key(stream, seq) in self.bucket.objects:
            seq += 1
        place = Place(stream, seq + slots_up)
        key = wal_key(*place)
        if key in self.bucket.objects:
            return
        head = Head(
            kind=ObjectKind.SEAL,
            cluster_id=self.cluster_id,
            place=place,
            put_id=bytes(16),
            metadata_seq=asked_by,
            writer=(1, 1),
            written_ms=0,
        )
        self._sealed_for = max(self._sealed_for, asked_by)
        self.is_live = True
        self.bucket.objects[key] = encode_table(head, ())

    def _is_sealed(self, stream: Stream) -> bool:
        return any(
            name.stream == stream and data != TORN and decode_table(data).head.kind is ObjectKind.SEAL
            for key, data in self.bucket.objects.items()
            if (name := parse_wal_key(key)) is not None
        )

    async def tear(self, slots_up: int) -> None:
        """Have what nobody can read lie at the first free slot of the stream that is written, or further
        up."""
        stream = self.uploader.stream
        if stream is None or self._is_sealed(stream):
            return
        seq = 0
        while wal_key(stream, seq) in self.bucket.objects:
            seq += 1
        await self.bucket.put_if_absent(wal_key(stream, seq + slots_up), TORN)

    def image_comes(self) -> None:
        self.metadata_seq = max(self.metadata_seq, self._sealed_for)
        self.is_live = True
        self.uploader.look_again()

    async def all_stored(self, timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while any(led.tail.stored_to < led.log.log_end_offset for led in self.led.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    # --- what is in the store ---

    def valid_objects(self) -> Iterator[tuple[Place, tuple[Row, ...], bytes]]:
        """The objects of every stream up to its end, in order."""
        streams = sorted({name.stream for key in self.bucket.objects if (name := parse_wal_key(key))})
        for stream in streams:
            seq = 0
            while (data := self.bucket.objects.get(wal_key(stream, seq))) is not None:
                if data == TORN:
                    break
                table = decode_table(data)
                if table.head.kind is not ObjectKind.SLICES:
                    break
                assert table.head.place == (stream, seq)
                yield table.head.place, table.rows, data
                seq += 1

    def stored_bytes(self, index: int) -> tuple[bytes, int]:
        """Everything that the store has of one partition, each byte once; and where it ends."""
        found, end, place_before, streams = bytearray(), -1, None, set()
        for place, rows, data in self.valid_objects():
            for row in rows:
                if row.partition == index:
                    body = data[row.position : row.position + row.size]
                    check_slice(row, body)
                    assert end in (-1, row.start), (end, row)
                    if place.stream in streams:
                        assert row.previous is None, row
                    else:
                        assert row.previous == place_before, (row, place_before)
                    streams.add(place.stream)
                    place_before = place
                    end = row.end
                    found += body
        return bytes(found), end

    def moved_bytes(self, index: int) -> tuple[int, bytes]:
        """What the store has of one partition from the place on to which it moved, and where that begins."""
        found, first, end = bytearray(), -1, -1
        for place, rows, data in self.valid_objects():
            for row in rows:
                if row.partition == index and place >= self.led[index].tail.moved:
                    if row.start < end:
                        found, first = bytearray(), -1  # it moves once more
                    assert first < 0 or row.start == end, (row, end)
                    first = row.start if first < 0 else first
                    end = row.end
                    found += data[row.position : row.position + row.size]
        return first, bytes(found)

    def log_bytes(self, index: int, start: int = 0) -> bytes:
        log = self.led[index].log
        found, at = bytearray(), max(start, log.log_start_offset)
        while (part := log.read(at, 1 << 20, bound=log.log_end_offset, min_one=True)) is not None:
            found += part.read()
            at = part.next_offset
        return bytes(found)
