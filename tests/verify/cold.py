"""Tiered segments: their objects, and what the brokers say about them.

Owns: copies in every state of their life, index objects, the records of `__remote_log_metadata`. Does not own
batches (histories). Invariant: every offset below the local start is in a copy that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from uuid import UUID

from crc32c import crc32c

from tests.verify import kafka_bytes as kafka
from tests.verify.cluster import random_uuid
from tests.verify.histories import History
from tests.verify.kafka_bytes import short_id
from tests.verify.page import encode
from tests.verify.world import Segment, World

COPY_STARTED, COPY_FINISHED, DELETE_STARTED, DELETE_FINISHED = range(4)
DELETE_MARKED = 0
OFFSETS, TIMES, PRODUCERS, TRANSACTIONS, EPOCHS = range(5)

Told = tuple[History | None, bytes, bytes | None]
"""A record of the topic: whom it is about, key and value."""


@dataclass
class Copy:
    history: History
    id: UUID
    segment: Segment
    state: int
    broker: int
    leader_epoch: int
    started_ms: int
    custom: bytes | None = None
    interval: int = 1000
    told: dict[str, Any] = field(default_factory=dict)
    """What the records say otherwise than the objects: for faults."""
    head: dict[str, Any] = field(default_factory=dict)
    """What the index object says otherwise: for faults."""
    sections: dict[int, bytes] = field(default_factory=dict)
    """What a section holds instead: for faults."""
    is_untold: bool = False
    """Nothing is told of it: for faults."""

    @property
    def key(self) -> str:
        history, segment = self.history, self.segment
        return f"tier/{history.topic.short_id}/{history.number}/{segment.base:020d}-{short_id(self.id)}"

    @property
    def epochs(self) -> list[tuple[int, int]]:
        return self.history.epochs_of(self.segment.base, self.segment.end)

    @property
    def max_time(self) -> int:
        return max(batch.max_time for batch in self.segment.batches)

    def section(self, kind: int) -> bytes:
        history, segment = self.history, self.segment
        if kind in self.sections:
            return self.sections[kind]
        match kind:
            case 0:
                return kafka.offset_index(segment.indexes(self.interval)[0])
            case 1:
                return kafka.time_index(segment.indexes(self.interval)[1])
            case 2:
                return history.state_at(segment.end).snapshot(has_older=segment.base % 2 == 0)
            case 3:
                return kafka.transaction_index(history.aborted_in(segment.base, segment.end))
        return kafka.epochs_file([each for each in history.epochs if each[1] < segment.end])

    def index_object(self, world: World) -> bytes:
        data = self.segment.data
        block = 1 << world.rng.choice([9, 12, 20])
        values: dict[str, Any] = {
            "head_size": 0,
            "cluster_id": world.cluster.id,
            "topic": self.history.topic.name,
            "topic_id": self.history.topic.id,
            "partition": self.history.number,
            "segment_id": self.id,
            "base_offset": self.segment.base,
            "end_offset": self.segment.end,
            "broker_id": self.broker,
            "leader_epoch": self.leader_epoch,
            "started_ms": self.started_ms,
            "max_timestamp_ms": self.max_time,
            "size": len(data),
            "batch_count": len(self.segment.batches),
            "data_crc": crc32c(data),
            "block_size": block,
            "block_crcs": [crc32c(data[at : at + block]) for at in range(0, len(data), block)],
            "epochs": [{"epoch": epoch, "start_offset": start} for epoch, start in self.epochs],
            **self.head,
        }
        kinds = list(range(5))
        world.rng.shuffle(kinds)
        contents = {kind: self.section(kind) for kind in kinds}
        values["indexes"] = [{"kind": kind, "start": 0, "size": 0, "section_crc": 0} for kind in kinds]
        at = values["head_size"] = len(encode("index object", values))
        for row in values["indexes"]:
            content = contents[row["kind"]]
            row |= {"start": at, "size": len(content), "section_crc": crc32c(content)}
            at += len(content)
        return encode("index object", values) + b"".join(contents[kind] for kind in kinds)


@dataclass
class ColdTier:
    world: World
    copies: list[Copy] = field(default_factory=list)
    moved: dict[tuple[str, int], tuple[History, int]] = field(default_factory=dict)
    """Where logs start by `log start moved`."""

    # --- what is copied ---

    def copy_history(self, history: History, bases: list[int]) -> None:
        """Copy closed segments, and let some of the oldest go: from the disk, and from the tier."""
        rng, world = self.world.rng, self.world
        bound = history.stable(history.high)
        edges = [*bases, history.end]
        closed = [(base, end) for base, end in pairwise(edges[:-1]) if end <= bound]
        closed = [pair for pair in closed if history.between(*pair)]
        closed = closed[: rng.choice([len(closed), len(closed), rng.randint(0, len(closed))])]
        for base, end in closed:
            self.copies.append(self._copy(history, base, end, COPY_FINISHED))
        own = list(self.copies[len(self.copies) - len(closed) :]) if closed else []
        expired = own[: rng.choice([0, 0, 1, len(own) // 2])]
        if len(expired) < len(own):
            history.log_start = own[len(expired)].segment.base
        else:
            expired = []
        for copy in expired:
            copy.state = rng.choice([DELETE_STARTED, DELETE_FINISHED])
        kept = own[len(expired) :]
        if kept:
            history.local_start = rng.choice([history.log_start, *(copy.segment.end for copy in kept)])
            if rng.random() < 0.3:
                inside = [
                    batch.base
                    for copy in kept[:1]
                    for batch in copy.segment.batches
                    if batch.base > history.log_start
                ]
                if inside:
                    history.log_start = rng.choice(inside) + rng.randrange(2)
                    history.log_start = min(history.log_start, kept[0].segment.end - 1)
            if history.log_start > kept[0].segment.base or rng.random() < 0.1:
                self.moved[history.id] = history, history.log_start
            if rng.random() < 0.2:
                self._copy_again(history, kept)
        active = history.edges()
        if rng.random() < 0.2 and len(active) > 3:
            base = max([history.local_start, *(copy.segment.end for copy in kept)])
            ends = [each for each in [*active, history.end] if base < each <= bound]
            if ends and base in active:
                copy = self._copy(history, base, ends[-1], COPY_STARTED)
                copy.started_ms = world.now_ms - 20_000
                self.copies.append(copy)

    def _copy(self, history: History, base: int, end: int, state: int) -> Copy:
        rng = self.world.rng
        led = history.topic.elections[history.number]
        last = history.between(base, end)[-1].epoch
        election = rng.choice([each for each in led if each.leader_epoch >= last] or led[-1:])
        return Copy(
            history,
            random_uuid(rng),
            Segment(base, end, history.between(base, end)),
            state,
            election.leader,
            election.leader_epoch,
            self.world.now_ms - rng.randint(3_600_000, 7_200_000),
            custom=rng.choice([None, None, b"", b"custom"]),
            interval=rng.choice([0, 300, 4096]),
        )

    def _copy_again(self, history: History, kept: list[Copy]) -> None:
        """Another leader has copied some of the same offsets, with other ends."""
        rng = self.world.rng
        edges = [each for each in history.edges() if kept[0].segment.base <= each <= kept[-1].segment.end]
        edges = sorted({*edges, kept[-1].segment.end})
        if len(edges) > 2:
            base, end = sorted(rng.sample(edges, 2))
            self.copies.append(self._copy(history, base, end, rng.choice([COPY_FINISHED, DELETE_STARTED])))

    # --- objects ---

    def write(self) -> None:
        rng, world = self.world.rng, self.world
        for copy in self.copies:
            data, index = copy.segment.data, copy.index_object(world)
            match copy.state:
                case 1:
                    world.put(copy.key + ".log", data)
                    world.put(copy.key + ".idx", index)
                case 0:
                    if rng.random() < 0.8:
                        world.put(copy.key + ".idx", index, is_young=True)
                        if rng.random() < 0.6:
                            size = rng.choice([len(data), rng.randrange(len(data))])
                            world.put(copy.key + ".log", data[:size], is_young=True)
                case 2:
                    if rng.random() < 0.6:
                        world.put(copy.key + ".idx", index)
                        if rng.random() < 0.5:
                            world.put(copy.key + ".log", data)
        if self.world.histories and rng.random() < 0.2:
            history = rng.choice(self.world.histories)
            key = f"tier/{history.topic.short_id}/{history.number}/{0:020d}-{short_id(random_uuid(rng))}"
            world.put(key + rng.choice([".log", ".idx"]), rng.randbytes(40), is_young=True)

    # --- what is told ---

    def told(self) -> list[Told]:
        """The records, oldest first; of a key that was told twice the older may be compacted away."""
        rng, found = self.world.rng, []
        for copy in self.copies:
            if not copy.is_untold:
                found += list(self._life(copy))
        for history, start in self.moved.values():
            for at in [history.log_start // 2, start] if rng.random() < 0.3 else [start]:
                found.append((history, *self._moved(history, at)))
        for topic in self.world.cluster.gone:
            if rng.random() < 0.5:
                found += [(None, *each) for each in self._deleted(topic.name, topic.id)]
        newest = {key: at for at, (_, key, _) in enumerate(found)}
        return [each for at, each in enumerate(found) if newest[each[1]] == at or rng.random() < 0.7]

    def _ids(self, copy: Copy) -> dict[str, Any]:
        return {
            "topic": copy.history.topic.name,
            "topic_id": copy.history.topic.id,
            "partition": copy.history.number,
            "segment_id": copy.id,
        }

    def _key(self, copy: Copy, kind: int) -> bytes:
        ids = self._ids(copy)
        return encode("copy key", {"version": 0, "kind": kind, **ids})

    def _life(self, copy: Copy) -> Iterator[Told]:
        started, updated = self._key(copy, 0), self._key(copy, 1)
        yield copy.history, started, self._started(copy)
        if copy.state == COPY_STARTED:
            return
        yield copy.history, updated, self._updated(copy, COPY_FINISHED)
        if copy.state in (DELETE_STARTED, DELETE_FINISHED):
            yield copy.history, updated, self._updated(copy, DELETE_STARTED)
        if copy.state == DELETE_FINISHED:
            yield copy.history, updated, self._updated(copy, DELETE_FINISHED)
            yield copy.history, started, None
            yield copy.history, updated, None

    def _started(self, copy: Copy) -> bytes:
        values = {
            **self._ids(copy),
            "base_offset": copy.segment.base,
            "last_offset": copy.segment.end - 1,
            "broker_id": copy.broker,
            "max_timestamp_ms": copy.max_time,
            "event_timestamp_ms": copy.started_ms,
            "epochs": [{"epoch": epoch, "start_offset": start} for epoch, start in copy.epochs],
            "size": len(copy.segment.data),
            "custom": None,
            "state": COPY_STARTED,
            "tags": {} if copy.section(TRANSACTIONS) else {0: b"\1"},
            **copy.told,
        }
        return encode("copy started", values)

    def _updated(self, copy: Copy, state: int) -> bytes:
        values = {
            **self._ids(copy),
            "broker_id": copy.broker,
            "event_timestamp_ms": copy.started_ms + 500 * state,
            "custom": copy.custom,
            "state": state,
        }
        return encode("copy updated", values)

    def _moved(self, history: History, at: int) -> tuple[bytes, bytes]:
        ids = {
            "topic": history.topic.name,
            "topic_id": history.topic.id,
            "partition": history.number,
            "segment_id": bytes(16),
        }
        value = encode(
            "log start moved",
            {
                **ids,
                "broker_id": 1,
                "event_timestamp_ms": self.world.now_ms - 1_000_000,
                "custom": None,
                "state": 1,
                "tags": {1000: at.to_bytes(8, "big")},
            },
        )
        return encode("copy key", {"version": 0, "kind": 1, **ids}), value

    def _deleted(self, name: str, topic_id: UUID) -> Iterator[tuple[bytes, bytes | None]]:
        ids = {"topic": name, "topic_id": topic_id, "partition": 0}
        key = encode("partition key", {"version": 0, "kind": 2, **ids})
        for state in range(DELETE_MARKED, self.world.rng.randint(1, 3)):
            yield (
                key,
                encode(
                    "partition deleted",
                    {
                        **ids,
                        "broker_id": -1,
                        "event_timestamp_ms": self.world.now_ms - 900_000,
                        "state": state,
                    },
                ),
            )
