"""Objects of the WAL tier in the bucket, told by brokers that lead the topic, for the tests of this room."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from broker.coordinators.wal.leader import TOPIC
from broker.coordinators.wal.telling import WalTelling
from protocol.records import iter_batches, iter_records
from protocol.stored.wal_log import decode_key, decode_row
from remote.keys import Stream, parse_wal_key, wal_key
from remote.store.memory_store import MemoryStore
from remote.wal.combined_object import ObjectKind, Place, Table, decode_table
from remote.wal.counted import Counted
from remote.wal.journal import Journal
from remote.wal.untold import Untold
from tests.broker.replication_driver import Replicas
from tests.remote.wal.wal_samples import some_object


def create(world: Replicas, *replicas: int, partitions: int = 1) -> None:
    replicas = replicas or tuple(world.nodes)
    world.create(
        *replicas,
        topic=TOPIC,
        partitions=partitions,
        cleanup_policy="compact",
        min_insync_replicas=str(min(2, len(replicas))),
    )


def telling_of(world: Replicas, node_id: int) -> WalTelling:
    wal = world.nodes[node_id].components.wal
    assert wal is not None
    return wal.telling


def stream_of(world: Replicas, node_id: int, generation: int = 0) -> Stream:
    """The one that a broker writes in this life."""
    return Stream(node_id, world.nodes[node_id].member.broker_epoch, generation)


def in_bucket(world: Replicas, key: str, data: bytes = b"") -> None:
    at_once(MemoryStore.put(world.store, key, data))


def at_once(work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        work.send(None)


def put(world: Replicas, stream: Stream, seq: int, *, kind: ObjectKind = ObjectKind.SLICES) -> Counted:
    """Have an object in the bucket at once, as nobody's request."""
    metadata, data = some_object(place=Place(stream, seq), put_id=seq.to_bytes(16), kind=kind)
    in_bucket(world, wal_key(stream, seq), data)
    size = len(data) - sum(row.size for row in metadata.rows)
    return Counted(metadata.place, metadata.rows, data[:size], len(data), 0)


def store(world: Replicas, node_id: int, *seqs: int, generation: int = 0) -> list[Place]:
    """What a broker does that has stored objects in its stream."""
    stream = stream_of(world, node_id, generation)
    for seq in seqs:
        world.nodes[node_id].here(telling_of(world, node_id).counted, put(world, stream, seq))
    return [Place(stream, seq) for seq in seqs]


def delete(world: Replicas, node_id: int, places: list[Place]) -> None:
    """What a broker does that collects objects."""
    node, telling = world.nodes[node_id], telling_of(world, node_id)
    node.here(telling.deleted, places, False)
    for place in places:
        at_once(MemoryStore.delete(world.store, wal_key(place.stream, place.seq)))
    node.here(telling.deleted, places, True)


def journal_of(world: Replicas, node_id: int, *, partitions: int = 1) -> Journal:
    """All that the topic says, by the log of one broker, committed or not."""
    journal = Journal()
    for index in range(partitions):
        for chunk in world.nodes[node_id].replicas.read_all(TOPIC, index):
            for at, header in iter_batches(chunk):
                for row in iter_records(chunk, at, header):
                    assert row.key is not None
                    journal.apply(decode_key(row.key), None if row.value is None else decode_row(row.value))
    return journal


def bucket_of(world: Replicas) -> dict[Place, Table]:
    found = {}
    for key, data in world.store.objects.items():
        place = parse_wal_key(key)
        if place is not None and not place.part:
            table = decode_table(data)
            if table.head.kind is ObjectKind.SLICES:
                found[Place(place.stream, place.seq)] = table
    return found


def is_told(world: Replicas, node_id: int, *, partitions: int = 1) -> bool:
    """Whether the topic equals the bucket."""
    told = dict(journal_of(world, node_id, partitions=partitions).finished())
    return told.keys() == bucket_of(world).keys()


def bound(world: Replicas, node_id: int, bytes_max: int) -> Untold:
    """Have a broker keep less of what it has to tell."""
    untold = telling_of(world, node_id)._untold
    untold._bytes_max = bytes_max
    return untold
