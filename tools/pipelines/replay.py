"""`tidewal replay`: a topic, or a time of it, copied to another topic or cluster, record by record once.

Owns: sending in order under one producer, finding out after any failure or kill how far the other side is,
pace. Does not own: reading (source), what the bytes become (outgoing), what is resumed from (replay_journal).
Invariant: a batch of the source is one batch of the copy, under a sequence that was noted before it was sent.
How far the other side is, only its own answer about this producer says; what it may have got twice has the
same sequences, and counts once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.process import wall_clock_ms
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from tools import topics
from tools.client import Address, Client, RequestFailed
from tools.console import Failure, emit, write_json
from tools.patience import PASSING, PAUSE_S
from tools.pipelines.object_source import ObjectSource
from tools.pipelines.outgoing import TIME_MAX, TIME_MIN, Times, outgoing, signed
from tools.pipelines.replay_journal import Journal, Sent
from tools.topic_source import (
    PATIENCE_S,
    BatchSource,
    Bounds,
    BrokerSource,
    OffsetsGone,
    answered,
)

IN_FLIGHT_MAX: Final = 5
"""A broker remembers so many batches of a producer, and takes one of them for the one it has."""
PARTITIONS_AT_ONCE: Final = 16
SEQUENCES: Final = 1 << 31
PASSING_FOR_PRODUCERS: Final = PASSING | {
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.out_of_order_sequence_number,
}
FORGOTTEN_MS: Final = 3_600_000
"""A producer may be forgotten after so long: that it is not known says nothing any more."""
CONFIGS_LEFT_OUT: Final = ("message.timestamp.", "remote.")
"""Timestamps stay what they are, and where the copy keeps its segments is its own affair."""
JOB_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    topic: str
    bootstrap: str
    places: tuple[str, ...] = ()
    """The URL of a store and data directories to read in place of brokers."""
    to: str
    to_topic: str
    since_ms: int | None = None
    until_ms: int | None = None
    bytes_per_s: float | None = None
    state: Path
    read_committed: bool = True
    json_file: str | None = None

    @property
    def times(self) -> Times:
        return Times(
            TIME_MIN if self.since_ms is None else self.since_ms,
            TIME_MAX if self.until_ms is None else self.until_ms,
        )


@dataclass(slots=True)
class Replayed:
    records: int = 0
    batches: int = 0
    bytes: int = 0
    resumed: bool = False


class Pace:
    """So many bytes a second over all partitions, on average since the last pause."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    async def wait(self, size: int) -> None:
        if self._bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._free_s)
        self._free_s = begin_s + size / self._bytes_per_s
        if begin_s > now_s:
            await asyncio.sleep(begin_s - now_s)


def run(options: ReplayOptions) -> None:
    """Copy to the end of the topic as it was when the replay began."""
    try:
        asyncio.run(_run(options))
    except RequestFailed as error:
        raise Failure(f"{error}; run the same command again to go on") from None
    except KafkaError as error:
        raise Failure(f"{error.code.name.upper()}: {error}") from None


async def _run(options: ReplayOptions) -> None:
    async with contextlib.AsyncExitStack() as stack:
        source: BatchSource
        if options.places:
            source = await ObjectSource.open(
                options.places, options.topic, read_committed=options.read_committed
            )
        else:
            reader = Client(_addresses(options.bootstrap), client_id="tidewal-replay")
            await stack.enter_async_context(reader)
            source = await BrokerSource(reader, options.topic, read_committed=options.read_committed).open()
        writer = Client(_addresses(options.to), client_id="tidewal-replay")
        await stack.enter_async_context(writer)
        replay = Replay(source, writer, options)
        journal = await replay.open_journal()
        try:
            await replay.copy(journal)
        finally:
            journal.close()
    done = replay.done
    emit(
        f"{options.topic} to {options.to_topic}: {done.records:,} records in {done.batches:,} batches"
        + (", resumed" if done.resumed else "")
    )
    if options.json_file is not None:
        counts = {"records": done.records, "batches": done.batches, "bytes": done.bytes}
        write_json(counts | {"resumed": done.resumed, "state": str(options.state)}, options.json_file)


def _addresses(text: str) -> list[Address]:
    return [Address.parse(each) for each in text.split(",")]


class Replay:
    """One run of a replay."""

    def __init__(self, source: BatchSource, writer: Client, options: ReplayOptions) -> None:
        self.done = Replayed()
        self.source = source
        self.writer = writer
        self.options = options
        self.pace = Pace(options.bytes_per_s)
        self.producer_id = -1
        self.producer_epoch = -1

    async def open_journal(self) -> Journal:
        """Go on with the replay that the state is of, or begin one; Failure if it is of another."""
        wanted = await self._wanted()
        journal = Journal.resume(self.options.state, now_ms=wall_clock_ms())
        if journal is None:
            return await self._begin(wanted)
        for name, value in wanted.items():
            if journal.job.get(name) != value:
                raise Failure(
                    f"--state {self.options.state} is of another replay, with {name} {journal.job.get(name)} "
                    f"and not {value}: name another file to begin this one"
                )
        self.producer_id, self.producer_epoch = journal.job["producer"]
        self.done.resumed = True
        return journal

    async def copy(self, journal: Journal) -> None:
        """Copy all partitions, up to their ends when the replay began."""
        room = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def one(partition: int, bounds: Bounds) -> None:
            async with room:
                await _Partition(self, journal, partition, bounds).copy()

        bounds: Mapping[str, list[int]] = journal.job["bounds"]
        try:
            async with asyncio.TaskGroup() as group:
                for partition, (start, end) in bounds.items():
                    group.create_task(one(int(partition), Bounds(start, end)))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _wanted(self) -> dict[str, Any]:
        """What must be the same in every run of one replay."""
        options = self.options
        return {
            "version": JOB_VERSION,
            "from": [self.source.cluster_id, options.topic, self.source.topic_id],
            "to": await self._topic_of_copy(),
            "since_ms": options.since_ms,
            "until_ms": options.until_ms,
            "read_committed": options.read_committed,
        }

    async def _topic_of_copy(self) -> list[str]:
        """Create the copy's topic unless it is there; return which it is."""
        name, count = self.options.to_topic, len(self.source.partitions)
        answer = await self.writer.refresh([name])
        if answer.topics[0].error_code == ErrorCode.unknown_topic_or_partition:
            configs = {
                name: value
                for name, value in (await self.source.configs()).items()
                if not name.startswith(CONFIGS_LEFT_OUT) and not name.endswith(".replicas")
            }
            await topics.create(
                self.writer, name, partitions=count, replication=-1, configs=configs, if_absent=True
            )

            async def look() -> None:
                row = (await self.writer.refresh([name])).topics[0]
                if row.error_code != ErrorCode.none or any(each.leader_id < 0 for each in row.partitions):
                    raise KafkaError(ErrorCode.leader_not_available, name)

            await answered(self.writer, name, look)
        elif answer.topics[0].error_code != ErrorCode.none:
            raise Failure(f"topic {name}: {answer.topics[0].error_code.name.upper()}")
        known = self.writer.known
        if len(known.partitions[name]) < count:
            raise Failure(
                f"{name} has {len(known.partitions[name])} partitions, {self.options.topic} has {count}: "
                f"tidewal topics alter {name} --partitions {count}",
                exit_code=2,
            )
        topic_id = known.topic_ids.get(name)
        to = [known.cluster_id or "", name, topic_id.hex if topic_id is not None else ""]
        if to == [self.source.cluster_id, self.options.topic, self.source.topic_id]:
            raise Failure("a topic is not replayed to itself: name another with --to-topic", exit_code=2)
        return to

    async def _begin(self, wanted: Mapping[str, Any]) -> Journal:
        bounds: dict[str, list[int]] = {}
        for partition in self.source.partitions:
            start, end = await self.source.bounds(partition)
            if self.options.since_ms is not None:
                found = await self.source.offset_at(partition, self.options.since_ms)
                start = end if found is None else max(start, found)
            bounds[str(partition)] = [start, end]

        async def ask() -> tuple[int, int]:
            answer = await self.writer.request(
                Api.INIT_PRODUCER_ID,
                {"transactional_id": None, "transaction_timeout": 60_000}
                | {"producer_id": -1, "producer_epoch": -1},
            )
            if answer.error_code != ErrorCode.none:
                raise KafkaError(answer.error_code, "a producer id")
            return answer.producer_id, answer.producer_epoch

        self.producer_id, self.producer_epoch = await answered(self.writer, self.options.to_topic, ask)
        producer = [self.producer_id, self.producer_epoch]
        return Journal.begin(self.options.state, {**wanted, "producer": producer, "bounds": bounds})


class _SendAgain(Exception):
    """What is under way has to be asked for before more is sent."""


class _Partition:
    """The copy of one partition."""

    def __init__(self, replay: Replay, journal: Journal, partition: int, bounds: Bounds) -> None:
        self._replay = replay
        self._writer = replay.writer
        self._topic = replay.options.to_topic
        self._journal = journal
        self._partition = partition
        self._bounds = bounds
        self._sent = deque(journal.sent.get(partition, ()))
        """What may be on the other side: all of earlier runs, and of this one what is not known to be."""
        self._under_way: deque[tuple[Sent, asyncio.Future[Any]]] = deque()
        self._acked = -1
        """The highest sequence that the other side has said it has."""

    async def copy(self) -> None:
        time = asyncio.get_running_loop().time
        moved_s = time()
        while True:
            at, sequence, acked = *await self._where(), self._acked
            try:
                await self._send_from(at, sequence)
                return
            except (_SendAgain, RequestFailed) as error:
                if self._acked > acked:
                    moved_s = time()
                if time() - moved_s > PATIENCE_S:
                    raise Failure(
                        f"{self._name} takes no batch for {PATIENCE_S:.0f} s: {error}; "
                        "run the same command again to go on"
                    ) from None
            finally:
                for _, future in self._under_way:
                    future.cancel()
                self._under_way.clear()
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(RequestFailed):
                await self._writer.refresh([self._topic])

    @property
    def _name(self) -> str:
        return f"{self._topic}-{self._partition}"

    async def _where(self) -> tuple[int, int]:
        """Return the offset of the source and the sequence to go on with, by what the other side has."""
        last = await self._last_sequence() if self._sent else None
        if last is None:
            if self._acked >= 0 or len(self._sent) > 1 or self._journal.age_ms > FORGOTTEN_MS:
                raise Failure(
                    f"{self._name} does not know the producer of this replay any more (brokers forget one "
                    "that is silent for producer.id.expiration.ms): delete topic and state, and begin anew"
                )
            self._sent.clear()
            return self._bounds.start, 0
        for entry in self._sent:
            if entry.last_sequence % SEQUENCES == last:
                while self._sent[-1] is not entry:
                    self._sent.pop()
                self._acked = max(self._acked, entry.last_sequence)
                return entry.end, entry.last_sequence + 1
        raise Failure(
            f"{self._name} has sequence {last} of this replay's producer, which its state does not know: "
            "the state is not the one of that copy"
        )

    async def _last_sequence(self) -> int | None:
        """Return the last sequence of our producer that the partition holds; None without any."""

        async def ask() -> int | None:
            node = await self._writer.leader(self._topic, self._partition)
            topic = {"name": self._topic, "partition_indexes": [self._partition]}
            answer = await self._writer.request(Api.DESCRIBE_PRODUCERS, {"topics": [topic]}, node=node)
            row = answer.topics[0].partitions[0]
            if row.error_code != ErrorCode.none:
                raise KafkaError(row.error_code, self._name)
            for producer in row.active_producers:
                if producer.producer_id == self._replay.producer_id:
                    return int(producer.last_sequence)
            return None

        return await answered(self._writer, self._topic, ask)

    async def _send_from(self, at: int, sequence: int) -> None:
        source, times, end = self._replay.source, self._replay.options.times, self._bounds.end
        try:
            async with contextlib.aclosing(source.read(self._partition, at, end)) as pieces:
                async for piece in pieces:
                    if piece.batch is None or piece.header is None:
                        continue
                    stop = min(piece.end, end)
                    out = outgoing(piece.batch, piece.header, max(piece.first, at), stop, times)
                    if out is None:
                        continue
                    entry = Sent(self._partition, sequence, out.records, piece.first, stop)
                    await self._replay.pace.wait(len(out.data))
                    await self._send(entry, out.data)
                    sequence += out.records
        except OffsetsGone as gone:
            raise Failure(
                f"{gone} in {self._replay.options.topic}-{self._partition}: retention was faster than this"
            ) from None
        while self._under_way:
            await self._settle_oldest()

    async def _send(self, entry: Sent, data: bytearray) -> None:
        # who knows nothing of a producer takes any sequence from it: the first batch goes alone
        while len(self._under_way) >= (IN_FLIGHT_MAX if self._acked >= 0 else 1):
            await self._settle_oldest()
        replay = self._replay
        signed(data, replay.producer_id, replay.producer_epoch, entry.sequence % SEQUENCES)
        self._journal.add(entry)
        self._sent.append(entry)
        try:
            future = await self._writer.begin_produce(self._topic, self._partition, bytes(data))
        except KafkaError as error:  # there is no leader
            raise _SendAgain(str(error)) from None
        self._under_way.append((entry, future))
        done = replay.done
        done.batches, done.bytes = done.batches + 1, done.bytes + len(data)

    async def _settle_oldest(self) -> None:
        entry, future = self._under_way[0]
        row = (await future).responses[0].partition_responses[0]
        code = row.error_code
        if code in PASSING_FOR_PRODUCERS:
            raise _SendAgain(code.name.upper())
        if code == ErrorCode.message_too_large:
            raise Failure(
                f"{self._name} refuses a batch of offset {entry.first}: raise its max.message.bytes, "
                "then run the same command again"
            )
        if code not in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            raise Failure(f"{self._name} refuses a batch of offset {entry.first}: {code.name.upper()}")
        self._under_way.popleft()
        self._acked = entry.last_sequence
        self._replay.done.records += entry.records
        while self._sent and self._sent[0].last_sequence < entry.last_sequence:
            self._sent.popleft()
