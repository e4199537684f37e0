"""A whole store and its brokers' directories from a seed.

Owns: which topics there are, of which kind, and the order in which their parts are made. Does not own the
parts. Invariant: the same seed and time give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tests.verify import kafka_bytes as kafka
from tests.verify.cluster import Cluster, Topic
from tests.verify.cold import COPY_FINISHED, ColdTier
from tests.verify.histories import Author, History, compact
from tests.verify.kafka_bytes import Rec
from tests.verify.manifests import Manifest
from tests.verify.wal import WalTier
from tests.verify.world import World

GROUPS, COLD_TOLD, WAL_TOLD = "__consumer_offsets", "__remote_log_metadata", "__remote_wal_log_metadata"
NOW_MS = 1_795_000_000_000
"""When the newest object of every store was put: ages count from it."""
KINDS = ("plain", "plain", "compact", "tiered", "tiered", "wal", "both", "both")
CONFIGS = {
    "plain": {},
    "compact": {"cleanup.policy": "compact"},
    "tiered": {"remote.storage.enable": "true"},
    "wal": {"remote.wal.storage.enable": "true"},
    "both": {"remote.storage.enable": "true", "remote.wal.storage.enable": "true"},
}


@dataclass
class Made:
    """All that a seed gives, before it is written as files."""

    world: World
    cold: ColdTier
    wal: WalTier
    manifest: Manifest
    more_told: list[tuple[str, int, bytes, bytes | None]] = field(default_factory=list)
    """Topic, partition, key and value of records that brokers do not write: for faults."""


def make(seed: int, now_ms: int) -> Made:
    """The model of a store: nothing is written yet, so what it says may still be changed."""
    rng = Random(seed)
    cluster = Cluster(rng, now_ms)
    cluster.be_born(rng.choice([1, 2, 3, 3]))
    kinds = rng.sample(KINDS, rng.randint(2, 3))
    for at, kind in enumerate(kinds):
        configs = dict(CONFIGS[kind])
        if kind == "wal" and rng.random() < 0.4:
            configs["cleanup.policy"] = "compact"
        name = rng.choice(["t", "orders.v1", "a_b", "-x-"]) + str(at)
        cluster.create(name, rng.choice([1, 1, 2]), rng.randint(1, 3), **configs)
    for name in (GROUPS, COLD_TOLD, WAL_TOLD):
        cluster.create(name, rng.choice([1, 2]), 3, **{"cleanup.policy": "compact"})
    cluster.happen(rng.randint(2, 9))
    cluster.be_quiet(rng.randint(4, 7))
    world = World(seed, rng, now_ms, cluster)
    world.make_directories()
    made = Made(world, ColdTier(world), WalTier(world), Manifest(world, Random(seed * 11 + 3)))
    bases: dict[tuple[str, int], list[int]] = {}
    for topic in world.topics():
        if topic.name.startswith("__"):
            continue
        for number in range(len(topic.partitions)):
            history = _user_history(made, topic, number)
            world.histories.append(history)
            bases[history.id] = _trim(made, history)
    _store_wal(made)
    for history in world.histories:
        world.place_history(history, bases[history.id])
    if made.manifest.rng.random() < 0.6:
        made.manifest.note_all(world.histories)
    return made


def write(made: Made) -> World:
    """The files of it all. The topics of the brokers come last: they tell of the rest."""
    world = made.world
    for key, data in world.cluster.objects().items():
        world.put(key, data)
    made.cold.write()
    told = made.wal.told()
    made.wal.write()
    count = len(world.cluster.topics[COLD_TOLD].partitions)
    cold_rows: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for history, key, value in made.cold.told():
        about = (UUID(bytes=key[2:18]), 0) if history is None else (history.topic.id, history.number)
        number = kafka.tier_partition(*about, count)
        cold_rows.setdefault(number, []).append((key, value))
    wal_rows: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for node, key, value in told:
        wal_rows.setdefault(node % len(world.cluster.topics[WAL_TOLD].partitions), []).append((key, value))
    group_rows: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for at, row in enumerate(group_offsets(world)):
        group_rows.setdefault(at % len(world.cluster.topics[GROUPS].partitions), []).append(row)
    for name, rows in ((COLD_TOLD, cold_rows), (WAL_TOLD, wal_rows), (GROUPS, group_rows)):
        topic = world.cluster.topics[name]
        for about, number, key, value in made.more_told:
            if about == name:
                rows.setdefault(number, []).append((key, value))
        for number in range(len(topic.partitions)):
            history = told_history(world, topic, number, rows.get(number, []))
            world.histories.append(history)
            world.place_history(history, _bases(world.rng, history))
    world.write_replicas()
    made.manifest.write()
    return world


def build(seed: int, now_ms: int) -> World:
    return write(make(seed, now_ms))


# --- partitions of users ---


def _user_history(made: Made, topic: Topic, number: int) -> History:
    world, rng = made.world, made.world.rng
    history = History(topic, number, is_compacted=topic.has("cleanup.policy", "compact"))
    author = Author(rng, history, batches=rng.randint(6, 34), now_ms=world.now_ms)
    author.write([each.leader_epoch for each in topic.elections[number]])
    edges = [*history.edges(), history.end]
    history.high = rng.choice([history.end, history.end, rng.choice(edges[-4:])])
    return history


def _bases(rng: Random, history: History) -> list[int]:
    edges = history.edges()
    if not edges:
        return [0]
    return sorted({edges[0], *rng.sample(edges, min(len(edges), rng.choice([0, 1, 3, 5])))})


def _trim(made: Made, history: History) -> list[int]:
    """The bases of the leader's segments, once compaction and retention have been there."""
    rng = made.world.rng
    bases = _bases(rng, history)
    if history.is_compacted:
        clean_to = min(bases[-1], history.stable(history.high))
        compact(rng, history, clean_to, made.world.now_ms)
    elif history.topic.has("remote.storage.enable"):
        made.cold.copy_history(history, bases)
    elif len(bases) > 1 and rng.random() < 0.4:
        history.local_start = rng.choice([base for base in bases if base <= history.high])
        history.log_start = history.local_start
        if rng.random() < 0.4:
            history.log_start = rng.randint(history.local_start, history.high)
    elif rng.random() < 0.2:
        history.log_start = rng.randint(0, history.high)
    return bases


def _store_wal(made: Made) -> None:
    histories = [each for each in made.world.histories if each.topic.has("remote.wal.storage.enable")]
    floors = {}
    for history in histories:
        floor = history.log_start
        copies = [
            each for each in made.cold.copies if each.history is history and each.state == COPY_FINISHED
        ]
        for copy in sorted(copies, key=lambda each: each.segment.base):
            if copy.segment.base <= floor:
                floor = max(floor, copy.segment.end)
        floors[history.id] = floor
    made.wal.store(histories, floors)


# --- topics of the brokers ---


def told_history(
    world: World, topic: Topic, number: int, rows: Iterable[tuple[bytes, bytes | None]]
) -> History:
    """A log that tells these rows, some to a batch, over the epochs of its partition."""
    rng = world.rng
    history = History(topic, number, is_compacted=False)
    author = Author(rng, history, batches=0, now_ms=world.now_ms, is_plain=True)
    left = list(rows)
    elections = [each.leader_epoch for each in topic.elections[number]]
    for at, leader_epoch in enumerate(elections):
        history.starts.append((leader_epoch, history.end))
        share = len(left) if at == len(elections) - 1 else rng.randint(0, len(left))
        mine, left = left[:share], left[share:]
        while mine:
            size = rng.randint(1, 5)
            records = tuple(Rec(delta, 0, key, value) for delta, (key, value) in enumerate(mine[:size]))
            mine = mine[size:]
            author.add(
                kafka.Batch(
                    base=history.end,
                    last=history.end + len(records) - 1,
                    epoch=leader_epoch,
                    records=records,
                    base_time=author.time,
                    max_time=author.time,
                    codec=rng.choice(author.codecs),
                )
            )
    history.batches = list(history.written)
    history.high = history.end
    return history


def group_offsets(world: World) -> list[tuple[bytes, bytes | None]]:
    rng, found = world.rng, []
    users = [each for each in world.histories if not each.topic.name.startswith("__")]
    for _ in range(rng.randint(0, 6)):
        history = rng.choice(users)
        for _ in range(rng.randint(1, 2)):
            at = rng.randint(history.log_start, max(history.log_start, history.high))
            found.append(
                kafka.group_offset(
                    rng.choice(["g", "gruppe-ä", ""]),
                    history.topic.name,
                    history.number,
                    at,
                    time=world.now_ms,
                )
            )
        if rng.random() < 0.2:
            found.append((found[-1][0], None))
    return found
