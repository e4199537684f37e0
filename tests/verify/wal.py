"""The WAL tier: streams of combined objects, their seals, boundaries, index objects and floors.

Owns: which slice lies in which object of which stream, and what the brokers say about it in
`__remote_wal_log_metadata`. Does not own batches (histories). Invariant: what counts has the bytes of the
history, and everything else is there for a reason that FORMAT.md names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from crc32c import crc32c

from tests.verify.cluster import Election
from tests.verify.histories import History
from tests.verify.kafka_bytes import Batch
from tests.verify.page import encode
from tests.verify.world import YOUNG_S, World

SLICES, SEAL, INDEX = range(3)
COPY_STARTED, COPY_FINISHED, DELETE_STARTED = range(3)
Told = tuple[int, bytes, bytes | None]
"""A record of the topic: the node it is about, key and value."""


class Stream(NamedTuple):
    node: int
    broker_epoch: int
    generation: int

    @property
    def prefix(self) -> str:
        return f"wal/{self.node}/{self.broker_epoch:020d}-{self.generation:010d}/"


@dataclass
class Slice:
    history: History
    leader_epoch: int
    epoch_start: int
    start: int
    end: int
    batches: list[Batch]
    previous: tuple[Stream, int] | None = None
    told: dict[str, Any] = field(default_factory=dict)
    """What the table says otherwise: for faults."""

    @property
    def data(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)

    @property
    def is_void(self) -> bool:
        """A later epoch began below, so the log has other batches there, or none."""
        return not any(batch is self.batches[-1] for batch in self.history.batches)


@dataclass
class WalObject:
    stream: Stream
    seq: int
    kind: int
    slices: list[Slice]
    put_id: bytes
    metadata_seq: int
    written_ms: int
    writer: tuple[int, int]
    head: dict[str, Any] = field(default_factory=dict)
    is_young: bool = False

    @property
    def key(self) -> str:
        return f"{self.stream.prefix}{self.seq:020d}"

    def data(self, cluster_id: str) -> bytes:
        return self.table(cluster_id) + b"".join(each.data for each in self.slices)

    def table(self, cluster_id: str) -> bytes:
        rows = [self._row(each) for each in self.slices]
        values = {"head": self.head_values(cluster_id, self.kind), "slices": rows, "data": b""}
        values["head"]["head_size"] = head = len(encode("wal head", values["head"]))
        size = len(encode("wal object", values))
        values["head"]["table_size"] = size - head
        for row, each in zip(rows, self.slices, strict=True):
            row["position"] = size
            size += len(each.data)
            row |= each.told
        return encode("wal object", values)

    def positions(self, cluster_id: str) -> list[int]:
        """Where each slice begins in the object."""
        at, found = len(self.table(cluster_id)), []
        for each in self.slices:
            found.append(at)
            at += len(each.data)
        return found

    def head_values(self, cluster_id: str, kind: int) -> dict[str, Any]:
        return {
            "kind": kind,
            "head_size": 0,
            "table_size": 0,
            "node": self.stream.node,
            "broker_epoch": self.stream.broker_epoch,
            "generation": self.stream.generation,
            "seq": self.seq,
            "put_id": self.put_id,
            "metadata_seq": self.metadata_seq,
            "writer_node": self.writer[0],
            "writer_epoch": self.writer[1],
            "written_ms": self.written_ms,
            "cluster_id": cluster_id,
            **self.head,
        }

    def _row(self, each: Slice) -> dict[str, Any]:
        previous = []
        if each.previous is not None:
            stream, seq = each.previous
            previous = [{**stream._asdict(), "seq": seq}]
        return {
            "topic_id": each.history.topic.id,
            "partition": each.history.number,
            "leader_epoch": each.leader_epoch,
            "epoch_start": each.epoch_start,
            "batch_epoch": each.batches[0].epoch,
            "start": each.start,
            "end": each.end,
            "log_start": each.history.log_start if each.history.log_start <= each.start else 0,
            "position": 0,
            "size": len(each.data),
            "data_crc": crc32c(each.data),
            "previous": previous,
        }


@dataclass
class StreamLife:
    stream: Stream
    objects: list[WalObject] = field(default_factory=list)
    seal: WalObject | None = None
    late: list[WalObject] = field(default_factory=list)
    """Above the seal, or over a missing number: void."""
    boundary: int = -1
    kept_below: set[int] = field(default_factory=set)
    """Objects at or below the boundary that are not gone yet."""
    indexes: list[tuple[int, int]] = field(default_factory=list)
    """First and last number of the objects that an index object repeats."""

    @property
    def counting(self) -> list[WalObject]:
        return [each for each in self.objects if each.seq > self.boundary]

    def index_key(self, first: int) -> str:
        return f"{self.stream.prefix}index/{first:020d}"


class WalTier:
    def __init__(self, world: World) -> None:
        self.world = world
        self.streams: list[StreamLife] = []
        self.floors: dict[int, list[dict[str, Any]]] = {}
        self.stored: dict[tuple[str, int], tuple[Stream, int]] = {}
        self.moved: dict[tuple[str, int], tuple[Stream, int, int]] = {}
        """Where what is needed of a partition is stored once more: stream, object, and in which epoch."""
        self.untold: set[tuple[Stream, int]] = set()
        self.entry_faults: dict[tuple[Stream, int], dict[str, Any]] = {}

    # --- streams ---

    def store(self, histories: list[History], floors: dict[tuple[str, int], int]) -> None:
        """Write what leaders stored of these, era by era, and let go what is below the floors."""
        eras = sorted(
            (
                (election, history, start, end)
                for history in histories
                for election, start, end in self._led(history)
            ),
            key=lambda era: era[0].seq,
        )
        rng = self.world.rng
        for election, history, start, end in eras:
            life = self._stream_of(election)
            for piece in self._slices(history, election, start, end):
                self._place(life, piece, election)
            if end < history.end and not history.is_compacted and rng.random() < 0.15:
                lost = self.world.lost(election.leader_epoch, end)  # void: the next epoch began there
                self._place(
                    life, Slice(history, election.leader_epoch, start, end, lost[-1].end, lost), election
                )
            if rng.random() < 0.25:
                self._end(life, election)
        for history in histories:
            if rng.random() < 0.2:
                self._move(history, floors[history.id])
        for life in self.streams:
            self._collect(life, floors)
            self._index(life)
        self._say_floors(histories, floors)

    def _move(self, history: History, floor: int) -> None:
        """Store once more all from the floor to the end of the log, so that its older slices are dead."""
        election = history.topic.elections[history.number][-1]
        broker = self.world.cluster.brokers[election.leader]
        partition = history.topic.partitions[history.number]
        began = dict(history.starts).get(election.leader_epoch)
        batches = history.between(floor, history.end)
        is_current = (broker.epoch, partition.leader_epoch) == (election.broker_epoch, election.leader_epoch)
        if not is_current or began is None or not batches:
            return
        life = self._stream_of(election)
        for at, part in enumerate(self._runs(batches)):
            piece = Slice(history, election.leader_epoch, began, part[0].base, part[-1].end, part)
            self._place(life, piece, election, is_apart=not at)
            if not at:
                self.moved[history.id] = life.stream, life.objects[-1].seq, election.leader_epoch

    def _runs(self, batches: list[Batch]) -> Iterator[list[Batch]]:
        """Some batches at a time, of one epoch."""
        at = 0
        while at < len(batches):
            count = self.world.rng.randint(1, 4)
            part = [batch for batch in batches[at : at + count] if batch.epoch == batches[at].epoch]
            at += len(part)
            yield part

    def _led(self, history: History) -> Iterator[tuple[Election, int, int]]:
        """Who led while which offsets were written."""
        ends = [start for _, start in history.starts[1:]] + [history.end]
        by_epoch = {each.leader_epoch: each for each in history.topic.elections[history.number]}
        for (leader_epoch, start), end in zip(history.starts, ends, strict=True):
            if leader_epoch in by_epoch and start < end:
                yield by_epoch[leader_epoch], start, end

    def _slices(self, history: History, election: Election, start: int, end: int) -> Iterator[Slice]:
        rng = self.world.rng
        began = start
        stop = min(end, history.high) if end == history.end and rng.random() < 0.5 else end
        if rng.random() < 0.2:  # stores once more what the leader before may have stored
            older = [batch.base for batch in history.between(history.log_start, start)]
            start = rng.choice(older[-4:] or [start])
        batches = [batch for batch in history.between(start, stop) if batch.end <= stop]
        for part in self._runs(batches):
            first = part[0].base
            if history.is_compacted:
                before = [batch.end for batch in history.batches if batch.base < part[0].base]
                first = max([start, *before]) if rng.random() < 0.3 else first
            yield Slice(history, election.leader_epoch, began, first, part[-1].end, part)

    def _stream_of(self, election: Election) -> StreamLife:
        for life in reversed(self.streams):
            if life.stream[:2] == (election.leader, election.broker_epoch):
                if life.seal is None:
                    return life
                return self._open(life.stream._replace(generation=life.stream.generation + 1))
        return self._open(Stream(election.leader, election.broker_epoch, 0))

    def _open(self, stream: Stream) -> StreamLife:
        self.streams.append(StreamLife(stream))
        return self.streams[-1]

    def _place(self, life: StreamLife, piece: Slice, election: Election, *, is_apart: bool = False) -> None:
        rng = self.world.rng
        seen = any(each.history is piece.history for held in life.objects for each in held.slices)
        if not seen and (before := self.stored.get(piece.history.id)) is not None:
            piece.previous = before
        newest = life.objects[-1] if life.objects else None
        if newest is None or is_apart or len(newest.slices) > 3 or rng.random() < 0.5:
            newest = self._object(life, len(life.objects), SLICES)
            life.objects.append(newest)
        newest.metadata_seq = max(newest.metadata_seq, election.seq)
        newest.slices.append(piece)
        self.stored[piece.history.id] = life.stream, newest.seq

    def _object(self, life: StreamLife, seq: int, kind: int) -> WalObject:
        world = self.world
        stream = life.stream
        before = life.objects[-1].metadata_seq if life.objects else stream.broker_epoch
        return WalObject(
            stream,
            seq,
            kind,
            [],
            world.rng.randbytes(16),
            before,
            world.now_ms - 3_000_000,
            (stream.node, stream.broker_epoch),
        )

    def _end(self, life: StreamLife, election: Election) -> None:
        """Another broker seals the stream, for the sake of a newer slot; what comes late is void."""
        rng, world = self.world.rng, self.world
        seal = self._object(life, len(life.objects), SEAL)
        others = [each for each in world.cluster.brokers.values() if each.node != life.stream.node]
        if others:
            other = rng.choice(others)
            seal.writer = other.node, other.epoch
        newest = max(each.metadata_seq for each in life.objects) if life.objects else election.seq
        seal.metadata_seq = rng.randint(newest, len(world.cluster.slots))
        life.seal = seal
        if life.objects and rng.random() < 0.4:
            late = self._object(life, seal.seq + rng.randint(1, 3), SLICES)
            late.slices = list(life.objects[-1].slices)
            late.is_young = True
            life.late.append(late)

    # --- what goes ---

    def _collect(self, life: StreamLife, floors: dict[tuple[str, int], int]) -> None:
        rng = self.world.rng
        dead = -1
        for each in life.objects:
            if not all(self._is_dead(life, each.seq, piece, floors) for piece in each.slices):
                break
            dead = each.seq
        if dead < 0 or rng.random() < 0.3:
            return
        life.boundary = rng.randint(0, dead)
        gone = rng.randint(0, life.boundary + 1) if rng.random() < 0.3 else life.boundary + 1
        life.kept_below = set(range(gone, life.boundary + 1))
        for seq in life.kept_below:
            life.objects[seq].is_young = True

    def _is_dead(self, life: StreamLife, seq: int, piece: Slice, floors: dict[tuple[str, int], int]) -> bool:
        if piece.end <= floors[piece.history.id]:
            return True
        if (moved := self.moved.get(piece.history.id)) is None:
            return False
        stream, first, leader_epoch = moved
        is_before = life.stream[:2] == stream[:2] and (life.stream[2], seq) < (stream[2], first)
        return is_before or piece.leader_epoch < leader_epoch

    def _index(self, life: StreamLife) -> None:
        rng = self.world.rng
        first = 0
        while len(life.objects) - first >= 2 and rng.random() < 0.6:
            count = rng.randint(2, 4)
            last = min(first + count, len(life.objects)) - 1
            if last > life.boundary:
                life.indexes.append((first, last))
            first = last + 1

    def _say_floors(self, histories: list[History], floors: dict[tuple[str, int], int]) -> None:
        for history in histories:
            partition = history.topic.partitions[history.number]
            start = next((at for epoch, at in history.starts if epoch == partition.leader_epoch), history.end)
            stored = max((each.end for each in self.counted_of(history) if not each.is_void), default=-1)
            moved = self.moved.get(history.id)
            self.floors.setdefault(partition.leader, []).append(
                {
                    "topic_id": history.topic.id,
                    "partition": history.number,
                    "leader_epoch": partition.leader_epoch,
                    "epoch_start": start,
                    "floor": floors[history.id],
                    "stored_to": self.world.rng.choice([stored, -1]),
                    "moved": [{**moved[0]._asdict(), "seq": moved[1]}] if moved is not None else [],
                }
            )

    def counted_of(self, history: History) -> list[Slice]:
        return [
            piece
            for life in self.streams
            for each in life.counting
            for piece in each.slices
            if piece.history is history
        ]

    # --- objects ---

    def write(self) -> None:
        world, cluster_id = self.world, self.world.cluster.id
        for life in self.streams:
            for each in [*life.objects, *([life.seal] if life.seal else []), *life.late]:
                if each.seq > life.boundary or each.seq in life.kept_below:
                    world.put(each.key, each.data(cluster_id), is_young=each.is_young)
            if life.boundary >= 0:
                world.put(f"{life.stream.prefix}boundary/{life.boundary:020d}", b"")
                if life.boundary and world.rng.random() < 0.3:
                    world.put(f"{life.stream.prefix}boundary/{world.rng.randrange(life.boundary):020d}", b"")
            for first, last in life.indexes:
                world.put(life.index_key(first), self.index_object(life, first, last))
        for node, rows in self.floors.items():
            world.put(f"wal/{node}/floors", self.floors_object(node, rows))

    def index_object(self, life: StreamLife, first: int, last: int) -> bytes:
        cluster_id = self.world.cluster.id
        tables = [each.table(cluster_id) for each in life.objects[first : last + 1]]
        head = life.objects[first].head_values(cluster_id, INDEX)
        head["put_id"] = bytes(16)
        head["head_size"] = len(encode("wal head", head))
        size = len(encode("wal index", {"head": head, "tables": tables}))
        head["table_size"] = size - head["head_size"]
        return encode("wal index", {"head": head, "tables": tables})

    def floors_object(self, node: int, rows: list[dict[str, Any]]) -> bytes:
        world = self.world
        has_moved = any(row["moved"] for row in rows)
        return encode(
            "wal floors 2" if has_moved else "wal floors",
            {
                "node": node,
                "broker_epoch": world.cluster.brokers[node].epoch,
                "metadata_seq": len(world.cluster.slots),
                "written_ms": world.now_ms - YOUNG_S * 1000,
                "cluster_id": world.cluster.id,
                "floors": rows,
            },
        )

    # --- what is told ---

    def told(self) -> list[Told]:
        rng, found = self.world.rng, []
        for life in self.streams:
            node = life.stream.node
            found.append((node, self._key(life.stream, -1, 0), self._value(life.stream, -1, 0, COPY_STARTED)))
            telling = len(life.objects)
            if life.seal is None and rng.random() < 0.3:
                telling -= 1
                if life.objects and life.objects[-1].seq > life.boundary:
                    life.objects[-1].is_young = True
            for each in life.objects[:telling]:
                found += [(node, *row) for row in self._object_told(life, each)]
            if life.seal is not None:
                found.append(
                    (node, self._key(life.stream, -1, 1), self._value(life.stream, -1, 1, COPY_FINISHED))
                )
        newest = {key: at for at, (_, key, _) in enumerate(found)}
        return [each for at, each in enumerate(found) if newest[each[1]] == at or rng.random() < 0.7]

    def _object_told(self, life: StreamLife, each: WalObject) -> Iterator[tuple[bytes, bytes | None]]:
        key, update = self._key(life.stream, each.seq, 0), self._key(life.stream, each.seq, 1)
        yield key, self._value(life.stream, each.seq, 0, COPY_FINISHED, each)
        if each.seq > life.boundary:
            return
        yield update, self._value(life.stream, each.seq, 1, DELETE_STARTED)
        if each.seq not in life.kept_below:
            yield key, None
            yield update, None

    def _key(self, stream: Stream, seq: int, kind: int) -> bytes:
        return encode("wal record key", {"version": 0, "kind": kind, **stream._asdict(), "seq": seq})

    def _value(self, stream: Stream, seq: int, kind: int, state: int, told: WalObject | None = None) -> bytes:
        values = {
            "kind": kind,
            "object_id": told.put_id if told is not None else bytes(16),
            **stream._asdict(),
            "seq": seq,
            "entries": [] if told is None else list(self._entries(told)),
            "broker_id": stream.node,
            "event_timestamp_ms": self.world.now_ms - 2_000_000,
            "state": state,
            "custom": None,
        }
        return encode("wal object told", values)

    def _entries(self, told: WalObject) -> Iterator[dict[str, Any]]:
        positions = told.positions(self.world.cluster.id)
        changed = self.entry_faults.get((told.stream, told.seq), {})
        first = int.from_bytes(told.put_id, "big")
        for at, (position, each) in enumerate(zip(positions, told.slices, strict=True)):
            yield {
                "topic_id": each.history.topic.id,
                "partition": each.history.number,
                "slice_id": UUID(int=(first + at + 1) % (1 << 128)),
                "start_position": position,
                "end_position": position + len(each.data) - 1,
                "leader_epoch": each.leader_epoch,
                "start_offset": each.start,
                "end_offset": each.end,
                **(changed if at == 0 else {}),
            }
