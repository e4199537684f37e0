"""Leaders of `Replicas` that store what they lead in the WAL tier, when the tests say so.

Owns: what an uploader would do: objects with the slices that are not stored yet, and telling the leaders'
partitions of them. Does not own when that happens, the leaders' answers and the followers: those are the
brokers' own. Invariant: a slice is pointed to once its object is in the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.replicas.partition import Partition
from protocol.checksum import crc32c
from protocol.records import iter_batches
from remote.keys import Stream, wal_key
from remote.wal.combined_object import Head, ObjectKind, Place, Row, encode_table, place_slices
from remote.wal.extents import Extent
from remote.wal.stats import WalStats
from remote.wal.tail import EndTimes, Tail, TailKey
from tests.broker.replication_driver import Node, Replicas

ENABLED = {"remote_wal_storage_enable": "true"}
TOPIC = "t"


class Wal:
    """The uploads of one broker."""

    def __init__(self, world: Replicas, node_id: int = 1) -> None:
        self.world = world
        self.node_id = node_id
        self.objects = 0

    def place(self, seq: int) -> Place:
        return Place(Stream(self.node_id, 7, 0), seq)

    def key(self, seq: int) -> str:
        return wal_key(*self.place(seq))

    def begin(self, topic: str = TOPIC) -> Tail:
        """Have what is led use the tier from its log's end on."""
        partition = self.world.nodes[self.node_id].partition(topic=topic)
        end = partition.log.log_end_offset
        partition.tail = Tail(
            TailKey(partition.topic_id, partition.index),
            leader_epoch=partition.leader_epoch,
            epoch_start=partition.epoch_start,
            stored_to=end,
            end_times=EndTimes(end, spacing_s=0.1),
        )
        return partition.tail

    async def append(self, *values: bytes, topic: str = TOPIC) -> None:
        await self.world.append(self.node_id, *values, acks=1, topic=topic)
        partition = self.world.nodes[self.node_id].partition(topic=topic)
        assert partition.tail is not None
        partition.tail.end_times.note(partition.log.log_end_offset, self.world.loop.now)

    async def copy(
        self, *topics: str, padding: bytes = b"", slices: int = 1, tells: bool = True
    ) -> list[Extent]:
        """Store all that is not stored yet, as one object in which `padding` lies before each slice; each
        topic's batches are cut into so many slices. Without `tells` the leaders do not count it yet."""
        seq, self.objects = self.objects, self.objects + 1
        node = self.world.nodes[self.node_id]
        rows: list[Row] = []
        data: list[bytes] = []
        owners: list[Partition | None] = []
        for topic in topics or (TOPIC,):
            partition = node.partition(topic=topic)
            for piece in self._unstored(partition, slices):
                if padding:
                    rows.append(_row(partition, padding, 0, 1))
                    data.append(padding)
                    owners.append(None)
                first, last = (header for _, header in (piece[0], piece[-1]))
                body = b"".join(batch for batch, _ in piece)
                rows.append(_row(partition, body, first.base_offset, last.next_offset, first.leader_epoch))
                data.append(body)
                owners.append(partition)
        placed = place_slices("c", rows)
        place = self.place(seq)
        head = Head(
            kind=ObjectKind.SLICES,
            cluster_id="c",
            place=place,
            put_id=bytes(16),
            metadata_seq=0,
            writer=(self.node_id, 7),
            written_ms=0,
        )
        whole = encode_table(head, placed) + b"".join(data)
        await self.world.store.put_if_absent(wal_key(*place), whole)
        told = []
        for row, owner in zip(placed, owners, strict=True):
            if owner is not None:
                extent = Extent(
                    row.start, row.end, row.batch_epoch, place, row.position, row.size, row.crc32c
                )
                told.append((owner, extent))
        if tells:
            self.tell(told)
        return [extent for _, extent in told]

    def tell(self, extents: Sequence[tuple[Partition, Extent]]) -> None:
        node = self.world.nodes[self.node_id]
        for partition, extent in extents:
            assert partition.tail is not None
            partition.tail.stored(extent, self.world.loop.now)
            partition.tail.cut_to = extent.end
        for partition in dict.fromkeys(partition for partition, _ in extents):
            node.here(node.replicas.purgatory.wake_followers, partition)

    def _unstored(self, partition: Partition, slices: int) -> list[list[tuple[bytes, object]]]:
        tail, held = partition.tail, partition.log
        assert tail is not None
        batches: list[tuple[bytes, object]] = []
        offset = tail.stored_to
        while offset < held.log_end_offset:
            part = held.read(offset, 1 << 20, bound=held.log_end_offset, min_one=True)
            assert part is not None
            whole = part.read()
            batches += [(whole[at : at + header.size], header) for at, header in iter_batches(whole)]
            offset = part.next_offset
        size = -(-len(batches) // slices)
        return [batches[at : at + size] for at in range(0, len(batches), size)]


def _row(partition: Partition, data: bytes, start: int, end: int, batch_epoch: int = 0) -> Row:
    return Row(
        topic_id=partition.topic_id,
        partition=partition.index,
        leader_epoch=partition.leader_epoch,
        epoch_start=partition.epoch_start,
        batch_epoch=batch_epoch,
        start=start,
        end=end,
        log_start=partition.log.log_start_offset,
        position=0,
        size=len(data),
        crc32c=crc32c(data),
        previous=None,
    )


def stats_of(node: Node) -> WalStats:
    return node.components.wal_stats


async def followed(world: Replicas, *topics: str, leader: int = 1, follower: int = 2) -> Wal:
    """Return the uploads of a leader whose topics use the tier, and are followed on the lane of pointers."""
    wal = Wal(world, leader)
    wal_tier = world.nodes[leader].components.wal
    assert wal_tier is not None
    leading = wal_tier.leading
    leading.stop()  # what is stored, and when, is for the test to say
    for topic in topics or (TOPIC,):
        world.create(leader, follower, topic=topic, **ENABLED)
        wal.begin(topic)
    lanes = world.nodes[follower].fetchers._fetchers
    fetcher = lanes[leader, True]
    await world.until(lambda: len(fetcher._session.told) == len(topics or (TOPIC,)) and fetcher._session.id)
    return wal
