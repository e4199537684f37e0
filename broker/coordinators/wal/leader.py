"""The metadata topic of the WAL tier where this broker leads it.

Owns: which events are taken from whom, appending them, and telling for writers that are gone what they had
stored and not told. Does not own: what events say (remote.wal.journal), the log, a broker's own events
(telling). Invariants: that an object counts is told by its writer while that is in the image, and by the
leader of the topic after that, never by both; of one sender nothing is appended after something later. What
was appended and got no answer is told again, which is harmless: records are facts, and the same ones.

An older image would let a dead broker speak: so a batch waits for the image its sender had. After that
the sender is who the image says it is, or it is deposed (77).

A stream whose writer is gone gets its end by a seal. Then the leader reads from the bucket what lies above
the last object that was told, tells it, and tells that this was all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from broker.control.image import Image
from broker.control.internal_topics import REMOTE_WAL_LOG_METADATA
from broker.coordinators.pace import Pace
from broker.coordinators.shell.log import CoordinatorLog
from broker.coordinators.wal.told import Sender, Told, make_told, object_rows, parse_told
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import Buffer, iter_batches, iter_records
from protocol.stored.schema import BadRecord
from protocol.stored.wal_log import STREAM_SEQ, RowKey, decode_key
from remote.bad_object import BadObject
from remote.keys import Stream
from remote.store.object_store import NoSuchObject, ObjectStore, StoreError
from remote.wal.combined_object import ObjectKind, Place
from remote.wal.journal import LogRow, ObjectState, Teller, place_of, stream_rows
from remote.wal.tables import read_boundary, read_table
from remote.wal.untold import Spans, Stored
from storage.policy import LogConfig

logger = logging.getLogger(__name__)

TOPIC: Final = REMOTE_WAL_LOG_METADATA
APPEND_TIMEOUT_MS: Final = 10_000
REPAIR_EVERY_S: Final = 30.0
BY_THE_LEADER: Final = -1
"""The broker epoch that its own records name as their sender's."""
LOAD_RETRY_S: Final = 1.0


class LedLog(CoordinatorLog, Protocol):
    """The replica manager, as far as it concerns this coordinator."""

    @property
    def on_leadership(self) -> list[Callable[[str, int, int | None], None]]: ...


@dataclass(slots=True)
class _Known:
    """What the topic says of one stream."""

    next_seq: int = 0
    """Past the highest object that was told to count."""
    is_ended: bool = False


@dataclass(slots=True)
class _Led:
    """One partition of the topic, in one leader epoch."""

    leader_epoch: int
    is_loaded: bool = False
    streams: dict[Stream, _Known] = field(default_factory=dict)

    def note(self, key: RowKey, has_value: bool) -> None:
        """Take note of a record, from the log or on its way there."""
        if key.slice is not None:
            return
        place = place_of(key.place)
        if place.seq == STREAM_SEQ:
            known = self.streams.setdefault(place.stream, _Known())
            known.is_ended = known.is_ended or (key.is_update and has_value)
        elif not key.is_update and has_value:
            known = self.streams.setdefault(place.stream, _Known())
            known.next_seq = max(known.next_seq, place.seq + 1)


class WalTopicLeader:
    def __init__(
        self,
        *,
        node_id: int,
        inter_broker_listener: str,
        replicas: LedLog,
        image: Callable[[], Image],
        store: ObjectStore,
        now_ms: Callable[[], int],
        log_config: Callable[[str], LogConfig],
    ) -> None:
        self._node_id = node_id
        self._listener = inter_broker_listener
        self._replicas = replicas
        self._image = image
        self._store = store
        self._now_ms = now_ms
        self._log_config = log_config
        self._loop = asyncio.get_running_loop()
        self._led: dict[int, _Led] = {}
        self._newest: dict[tuple[int, int], tuple[int, int]] = {}
        """By partition and sender: its epoch and the number of its last batch. Kept while others lead: a
        batch may be late by that much."""
        self._gone: Spans | None = None
        """Numbers that were told to be deleted while `_repaired` is read."""
        self._repaired: Stream | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()
        replicas.on_leadership.append(self._leadership_changed)

    def __repr__(self) -> str:
        return f"<WalTopicLeader {sorted(self._led)}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._tasks = task_group
        self._repair_if_led()

    def stop(self) -> None:
        self._tasks = None
        if self._repairing is not None:
            self._repairing.cancel()

    # --- taking events ---

    def accept(
        self, listener: str, topic: str, index: int, records: Buffer | None, *, version: int
    ) -> Callable[[], Coroutine[Any, Any, int]] | None:
        """Read the events in what another broker produces; None when a client does. What is returned appends
        them and gives the offset of the last."""
        if topic != TOPIC or listener != self._listener:
            return None
        told = parse_told(records, version=version)
        return None if told is None else partial(self.append, index, told)

    async def append(self, index: int, told: Told) -> int:
        """Return the offset of the last event once they are on every replica in sync; raise KafkaError where
        they are refused or this broker is not the one to be told."""
        led = self._led.get(index)
        if led is None:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"another broker leads {TOPIC}-{index}")
        self._check(index, told)
        self._newest[index, told.sender.node_id] = (told.sender.broker_epoch, told.sender.number)
        self._note_deleted(told)
        return await self._append(index, led, told)

    def _check(self, index: int, told: Told) -> None:
        sender, image = told.sender, self._image()
        if image.seq < sender.metadata_seq:
            raise KafkaError(
                ErrorCode.coordinator_load_in_progress,
                f"broker {sender.node_id} has seen slot {sender.metadata_seq}, this one {image.seq}",
            )
        if not _is_there(image, sender.node_id, sender.broker_epoch):
            raise KafkaError(
                ErrorCode.stale_broker_epoch,
                f"broker {sender.node_id} is not there in epoch {sender.broker_epoch} at slot {image.seq}",
            )
        if (sender.broker_epoch, sender.number) < self._newest.get((index, sender.node_id), (-1, -1)):
            raise KafkaError(ErrorCode.out_of_order_sequence_number, "a later batch was taken before")
        for key, has_value in told.keys:
            place = key.place
            own = (place.node_id, place.broker_epoch) == (sender.node_id, sender.broker_epoch)
            if not own and _is_of_the_writer(key, has_value):
                raise KafkaError(
                    ErrorCode.invalid_request, f"broker {sender.node_id} tells what another wrote: {place}"
                )

    def _note_deleted(self, told: Told) -> None:
        if self._repaired is None or self._gone is None:
            return
        for key, _has_value in told.keys:
            place = place_of(key.place)
            if key.is_update and place.stream == self._repaired and place.seq != STREAM_SEQ:
                self._gone.add(place.seq, place.seq + 1)

    async def _append(self, index: int, led: _Led, told: Told) -> int:
        appended: Any = await self._replicas.append(
            TOPIC,
            index,
            told.batch,
            timeout_ms=APPEND_TIMEOUT_MS,
            expected_leader_epoch=led.leader_epoch,
        )
        for key, has_value in told.keys:
            led.note(key, has_value)
        last: int = appended.first_offset + len(told.keys) - 1
        return last

    # --- leading ---

    def _leadership_changed(self, topic: str, index: int, leader_epoch: int | None) -> None:
        if topic != TOPIC:
            return
        self._led.pop(index, None)
        if leader_epoch is not None:
            self._led[index] = _Led(leader_epoch)
            self._repair_if_led()

    def _repair_if_led(self) -> None:
        if self._tasks is not None and self._led and (self._repairing is None or self._repairing.done()):
            self._repairing = self._tasks.create_task(self._repair(), name="wal metadata repair")
        self._is_due.set()

    async def _repair(self) -> None:
        """Look after what this broker leads, as long as it leads any of the topic."""
        while self._led:
            self._is_due.clear()
            for index, led in list(self._led.items()):
                try:
                    if not led.is_loaded:
                        await self._load(index, led)
                    await self._repair_partition(index, led)
                except (KafkaError, StoreError, CorruptBatch, OSError) as error:
                    logger.debug("%s-%d: what dead brokers have not told waits: %s", TOPIC, index, error)
                except BadObject as error:
                    logger.error("%s-%d: an object that counts cannot be told: %s", TOPIC, index, error)
            is_loaded = all(led.is_loaded for led in self._led.values())
            try:
                async with asyncio.timeout(REPAIR_EVERY_S if is_loaded else LOAD_RETRY_S):
                    await self._is_due.wait()
            except TimeoutError:
                continue

    async def _load(self, index: int, led: _Led) -> None:
        """Read the keys of all that the log has."""
        pace = Pace(self._loop)
        for chunk in self._replicas.read_all(TOPIC, index):
            for at, header in iter_batches(chunk):
                for row in iter_records(chunk, at, header):
                    try:
                        led.note(decode_key(row.key or b""), row.value is not None)
                    except BadRecord as error:
                        logger.error("%s-%d: ignored offset %d: %s", TOPIC, index, row.offset, error)
                    await pace.yield_if_due()
        led.is_loaded = True

    async def _repair_partition(self, index: int, led: _Led) -> None:
        for stream, known in list(led.streams.items()):
            is_gone = not _is_there(self._image(), stream.node_id, stream.broker_epoch)
            if is_gone and not known.is_ended and self._led.get(index) is led:
                self._repaired, self._gone = stream, Spans()
                try:
                    await self._repair_stream(index, led, stream, known)
                finally:
                    self._repaired = self._gone = None

    async def _repair_stream(self, index: int, led: _Led, stream: Stream, known: _Known) -> None:
        """Tell what the stream has above what was told, up to its seal: until that is there, objects may
        still arrive."""
        seq = max(known.next_seq, await read_boundary(self._store, stream) + 1)
        while True:
            try:
                table = await read_table(self._store, Place(stream, seq))
            except NoSuchObject:
                return
            if table.head.kind is ObjectKind.SEAL:
                teller = Teller(self._node_id, self._now_ms())
                await self._tell(index, led, stream_rows(stream, ObjectState.COPY_FINISHED, teller))
                logger.info("told all objects of %s, whose writer is gone", stream)
                return
            rows = await object_rows(
                table.head.place,
                Stored(seq, table.head.put_id, table.rows),
                Teller(self._node_id, self._now_ms()),
                bytes_max=self._log_config(TOPIC).max_message_bytes,
                pace=Pace(self._loop),
            )
            assert self._gone is not None
            if seq not in self._gone:
                await self._tell(index, led, rows)
            seq += 1

    async def _tell(self, index: int, led: _Led, rows: list[LogRow]) -> None:
        now_ms = self._now_ms()
        sender = Sender(self._node_id, BY_THE_LEADER, self._image().seq, 0)
        await self._append(index, led, make_told(rows, sender, now_ms=now_ms))


def _is_there(image: Image, node_id: int, broker_epoch: int) -> bool:
    broker = image.brokers.get(node_id)
    return broker is not None and broker.epoch == broker_epoch


def _is_of_the_writer(key: RowKey, has_value: bool) -> bool:
    """Whether only who writes a stream may tell it: that an object counts, and that all are told. Anybody may
    tell that a stream is there, and that an object goes."""
    if not has_value or key.slice is not None:
        return key.slice is not None
    is_stream = key.place.seq == STREAM_SEQ
    return key.is_update if is_stream else not key.is_update
