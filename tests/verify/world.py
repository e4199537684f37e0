"""A cluster's whole remains: object store and data directories, as a dict of files.

Owns: which replica holds what, the files of logs and of data directories, their ages, and where each batch
lies. Does not own what the tiers hold (cold, wal) or what is damaged (faults). Invariant: nothing is wrong
until a fault is planted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.verify import kafka_bytes as kafka
from tests.verify.cluster import Cluster, Topic, random_uuid
from tests.verify.histories import History
from tests.verify.kafka_bytes import Aborted, Batch, short_id

STORE, MANIFEST = "store/", "manifest/"
OLD_S, YOUNG_S = 7200, 30
KIB = 1024


@dataclass
class Segment:
    """One `.log` file, or a run of batches that another tier holds."""

    base: int
    end: int
    """The base of the next one, or the end of the log."""
    batches: list[Batch]

    @property
    def data(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)

    @property
    def positions(self) -> list[int]:
        found, at = [], 0
        for batch in self.batches:
            found.append(at)
            at += len(batch.data)
        return found

    def indexes(self, interval: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Offset and time index, as appending batch by batch fills them."""
        offsets: list[tuple[int, int]] = []
        times: list[tuple[int, int]] = []
        since, largest, where = 0, -1, 0
        for batch, position in zip(self.batches, self.positions, strict=True):
            if batch.max_time > largest:
                largest, where = batch.max_time, batch.last - self.base
            if since > interval:
                offsets.append((batch.last - self.base, position))
                if not times or largest > times[-1][0]:
                    times.append((largest, where))
                since = 0
            since += len(batch.data)
        if largest >= 0 and (not times or largest > times[-1][0]):
            times.append((largest, where))
        return offsets, times


def cut(batches: Sequence[Batch], bases: Sequence[int], end: int) -> list[Segment]:
    found = []
    for base, until in zip(bases, [*bases[1:], end], strict=True):
        found.append(Segment(base, until, [batch for batch in batches if base <= batch.base < until]))
    return found


@dataclass
class Replica:
    history: History
    node: int
    directory: int
    """The number of its data directory."""
    segments: list[Segment]
    epochs: list[tuple[int, int]]
    high: int
    recovery: int
    is_in_sync: bool
    is_leader: bool
    is_diverged: bool = False

    @property
    def start(self) -> int:
        return self.segments[0].base

    @property
    def end(self) -> int:
        return self.segments[-1].end

    @property
    def folder(self) -> str:
        return f"d{self.directory}/{self.history.topic.name}-{self.history.number}"

    def path(self, segment: Segment, suffix: str = ".log") -> str:
        return f"{self.folder}/{segment.base:020d}{suffix}"


@dataclass
class DataDirectory:
    node: int
    id: str
    is_clean: bool
    """Its broker has stopped cleanly."""


@dataclass
class World:
    seed: int
    rng: Random
    now_ms: int
    cluster: Cluster
    histories: list[History] = field(default_factory=list)
    directories: list[DataDirectory] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    """In seconds, of what is not old."""

    # --- places ---

    def place(self, path: str) -> str:
        """As findings call it."""
        if path.startswith(STORE):
            return path.removeprefix(STORE)
        number, _, rest = path.removeprefix("d").partition("/")
        return f"{number}:{rest}"

    def put(self, key: str, data: bytes, *, is_young: bool = False) -> None:
        self.files[STORE + key] = data
        if is_young:
            self.ages[STORE + key] = YOUNG_S

    def of(self, history: History) -> list[Replica]:
        return [replica for replica in self.replicas if replica.history is history]

    def leader(self, history: History) -> Replica:
        return next(replica for replica in self.replicas if replica.history is history and replica.is_leader)

    # --- replicas ---

    def make_directories(self) -> None:
        for broker in self.cluster.brokers.values():
            is_clean = self.rng.random() < 0.5
            self.directories += [
                DataDirectory(broker.node, short_id(each), is_clean) for each in broker.directories
            ]

    def place_history(self, history: History, bases: Sequence[int]) -> None:
        """The replicas of a partition: the leader's segments begin at `bases`, those of others elsewhere."""
        rng = self.rng
        partition = history.topic.partitions[history.number]
        for node in partition.replicas:
            is_leader, in_sync = node == partition.leader, node in partition.isr
            if not is_leader and not in_sync and rng.random() < 0.2:
                continue  # its disk is new
            own = [number for number, each in enumerate(self.directories) if each.node == node]
            self.replicas.append(
                self._replica(
                    history,
                    rng.choice(own),
                    [base for base in bases if base >= history.local_start],
                    is_leader=is_leader,
                    is_in_sync=in_sync,
                )
            )

    def _replica(
        self, history: History, directory: int, bases: list[int], *, is_leader: bool, is_in_sync: bool
    ) -> Replica:
        rng, is_clean = self.rng, self.directories[directory].is_clean
        batches, end, high, is_diverged = history.batches, history.end, history.high, False
        epochs = self._epochs(history, is_leader=is_leader)
        if not is_leader:
            edges = [*history.edges(), history.end]
            if history.is_compacted:
                # a log ends where a batch does
                ends = {batch.end for batch in history.batches}
                edges = [each for each in edges if each in ends or each in (bases[0], history.end)]
            lowest = history.high if is_in_sync else max(bases[0], history.log_start)
            end = rng.choice([each for each in edges if each >= lowest])
            high = rng.choice(
                [each for each in edges if history.log_start <= each <= min(end, history.high)] or [end]
            )
            if rng.random() < 0.5:
                bases = self._own_bases(history, bases[0], end)
            lost = self._lost_tail(history, lowest) if not is_in_sync and rng.random() < 0.4 else None
            if lost is not None:
                start, tail = lost
                end, high, is_diverged = tail[-1].end, min(high, start), True
                batches = [batch for batch in batches if batch.base < start] + tail
            bases = [base for base in bases if base < end] or bases[:1]
            epochs = [each for each in epochs if each[1] < (end if lost is None else lost[0])]
        node = self.directories[directory].node
        segments = cut([batch for batch in batches if batch.base < end], bases, max(end, bases[-1]))
        recovery = segments[-1].end if is_clean else rng.choice([each.base for each in segments])
        return Replica(
            history, node, directory, segments, epochs, high, recovery, is_in_sync, is_leader, is_diverged
        )

    def _epochs(self, history: History, *, is_leader: bool) -> list[tuple[int, int]]:
        rng = self.rng
        epochs = history.epochs
        if history.log_start and rng.random() < 0.6:
            epochs = history.epochs_of(history.log_start, history.end)
        newest = history.topic.partitions[history.number].leader_epoch
        if is_leader and (not epochs or newest > epochs[-1][0]):
            epochs = [*epochs, (newest, history.end)]  # what it leads since, with nothing in it
        return epochs

    def _own_bases(self, history: History, start: int, end: int) -> list[int]:
        edges = [each for each in history.edges() if start < each < end]
        return [start, *sorted(self.rng.sample(edges, min(len(edges), self.rng.randrange(4))))]

    def _lost_tail(self, history: History, start: int) -> tuple[int, list[Batch]] | None:
        """What a replica has that led or followed in an older epoch, and nobody committed."""
        turns = list(zip(history.epochs, history.epochs[1:], strict=False))
        turns = [turn for turn in turns if turn[1][1] > start]
        if not turns or history.is_compacted:
            return None
        (epoch, _), (_, end) = self.rng.choice(turns)
        return end, self.lost(epoch, end)

    def lost(self, epoch: int, start: int) -> list[Batch]:
        """Batches that nobody committed."""
        rec = kafka.Rec(0, 0, None, b"never committed")
        tail = []
        for at in range(start, start + self.rng.randint(1, 3)):
            batch = Batch(at, at, epoch, (rec,), self.now_ms - 50_000, self.now_ms - 50_000)
            tail.append(replace(batch, data=kafka.encode_batch(batch)))
        return tail

    # --- files ---

    def write_replicas(self) -> None:
        for replica in self.replicas:
            self._write_log(replica)
        for number, directory in enumerate(self.directories):
            self._write_directory(number, directory)

    def _write_log(self, replica: Replica) -> None:
        rng, files, history = self.rng, self.files, replica.history
        is_clean = self.directories[replica.directory].is_clean
        files[f"{replica.folder}/partition.metadata"] = (
            f"version: 0\ntopic_id: {history.topic.short_id}".encode()
        )
        files[f"{replica.folder}/leader-epoch-checkpoint"] = kafka.epochs_file(replica.epochs)
        for segment in replica.segments:
            is_active = segment is replica.segments[-1]
            files[replica.path(segment)] = segment.data
            if not is_active or is_clean or rng.random() < 0.4:
                self._write_indexes(replica, segment)
            aborted = self.aborted(replica, segment)
            if aborted or rng.random() < 0.2:
                files[replica.path(segment, ".txnindex")] = kafka.transaction_index(aborted)
            if segment.base > replica.start and rng.random() < 0.9:
                self._write_snapshot(replica, segment.base)
        if is_clean and not replica.is_diverged:
            self._write_snapshot(replica, replica.end)
        if rng.random() < 0.05:
            files[f"{replica.folder}/{replica.start:020d}.log.deleted"] = rng.randbytes(50)

    def _write_indexes(self, replica: Replica, segment: Segment) -> None:
        offsets, times = segment.indexes(self.rng.choice([0, 300, 1000, 4096]))
        self.files[replica.path(segment, ".index")] = kafka.offset_index(offsets)
        self.files[replica.path(segment, ".timeindex")] = kafka.time_index(times)

    def _write_snapshot(self, replica: Replica, at: int) -> None:
        if replica.is_diverged and at > replica.high:
            return
        state = replica.history.state_at(at)
        data = state.snapshot(has_older=self.rng.random() < 0.3)
        self.files[f"{replica.folder}/{at:020d}.snapshot"] = data

    def aborted(self, replica: Replica, segment: Segment) -> list[Aborted]:
        found = replica.history.aborted_in(segment.base, segment.end)
        present = {batch.base for batch in segment.batches if batch.marker is not None}
        return [each for each in found if each.last in present]

    def _write_directory(self, number: int, directory: DataDirectory) -> None:
        rng, top = self.rng, f"d{number}/"
        lines = [
            f"node.id={directory.node}",
            "version=1",
            f"cluster.id={self.cluster.id}",
            f"directory.id={directory.id}",
        ]
        rng.shuffle(lines)
        if rng.random() < 0.3:
            lines = ["#", "#Thu Nov 12 09:00:00 UTC 2026", *lines]
        self.files[top + "meta.properties"] = ("\n".join(lines) + "\n").encode()
        self.write_checkpoints(number)
        own = [each for each in self.replicas if each.directory == number]
        if directory.is_clean:
            self.files[top + ".kafka_cleanshutdown"] = b'{"version":0,"brokerEpoch":1}'
        if rng.random() < 0.3:
            self.files[top + ".lock"] = b""
        if rng.random() < 0.1:
            name = f"{random_uuid(rng)}.index"
            self.files[f"{top}remote-log-index-cache/{name}"] = rng.randbytes(40)
        for topic in self.cluster.gone:
            if rng.random() < 0.2:
                folder = f"{top}{topic.name}-0.{random_uuid(rng).hex}-delete/"
                self.files[folder + f"{0:020d}.log"] = rng.randbytes(70)
        if own and rng.random() < 0.05:
            folder = f"{top}stray-0.{random_uuid(rng).hex}-stray/"
            self.files[folder + f"{0:020d}.log"] = own[0].segments[0].data
            self.files[folder + "partition.metadata"] = (
                f"version: 0\ntopic_id: {short_id(random_uuid(rng))}".encode()
            )

    def write_checkpoints(self, number: int) -> None:
        rng, top = self.rng, f"d{number}/"
        own = [each for each in self.replicas if each.directory == number]

        def points(of: Iterator[tuple[Replica, int]]) -> bytes:
            return kafka.points_file({(each.history.topic.name, each.history.number): at for each, at in of})

        self.files[top + "replication-offset-checkpoint"] = points((each, each.high) for each in own)
        self.files[top + "recovery-point-offset-checkpoint"] = points((each, each.recovery) for each in own)
        self.files[top + "log-start-offset-checkpoint"] = points(
            (each, min(each.history.log_start, each.end))
            for each in own
            if each.history.log_start != each.start or rng.random() < 0.2
        )
        if rng.random() < 0.3:
            self.files[top + "cleaner-offset-checkpoint"] = points(
                (each, each.segments[-1].base) for each in own if each.history.is_compacted
            )

    def write_to(self, root: Path) -> None:
        """Write the files below `root`, as brokers leave them of which one has just put a metadata record."""
        if root.exists():
            shutil.rmtree(root)
        made = set()
        newest = max((path for path in self.files if path.startswith("store/meta/")), default="")
        for path, data in self.files.items():
            target = f"{root}/{path}"
            folder = os.path.dirname(target)
            if folder not in made:
                os.makedirs(folder, exist_ok=True)
                made.add(folder)
            with open(target, "wb") as file:
                file.write(data)
            age_s = 0 if path == newest else self.ages.get(path, OLD_S)
            then = self.now_ms / 1000 - age_s
            os.utime(target, (then, then))

    @property
    def has_manifest(self) -> bool:
        return any(path.startswith(MANIFEST) for path in self.files)

    def size(self) -> int:
        return sum(map(len, self.files.values()))

    def topics(self) -> list[Topic]:
        return list(self.cluster.topics.values())
