"""One example of every layout of FORMAT.md, as the broker's own code writes it.

`python -m tests.golden.samples` writes the files of those that have none yet. Existing ones are never
written again: a layout that changes is a new version with new files beside the old.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import UUID

from broker.control.metadata_records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerStopping,
    BrokerUnregistered,
    ClusterBorn,
    ConfigChanged,
    ControllerElected,
    FeatureChanged,
    PartitionChanged,
    PartitionImage,
    PartitionsAdded,
    ProducerIdsAllocated,
    Record,
    SnapshotTaken,
    TopicCreated,
    TopicDeleted,
    encode_record,
    new_partition,
)
from broker.endpoint import Endpoint
from protocol.checksum import crc32c
from protocol.pointers import ObjectPlace
from protocol.records import build_batch
from protocol.stored.slots import Slot, encode_slot, slot_hash
from protocol.stored.wal_log import ObjectRow, SliceEntry, SliceRow, encode_key, encode_row, key_of
from remote.cold.copies import BlockSums
from remote.cold.events import encode_event, tombstones
from remote.cold.index_cache import encode_file
from remote.cold.index_object import encode_index_object
from remote.cold.segments import (
    LogStartMoved,
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
)
from remote.cold.storage_manager import IndexKind, SegmentHeader
from remote.keys import (
    SegmentPart,
    Stream,
    WalPart,
    boundary_key,
    floors_key,
    slot_key,
    snapshot_key,
    tier_key,
    wal_key,
)
from remote.wal.combined_object import Head as WalHead
from remote.wal.combined_object import ObjectKind, Place, encode_index, encode_table, place_slices
from remote.wal.combined_object import Row as WalRow
from remote.wal.floors import Floor, Floors, encode_floors
from storage.epochs import EpochCache
from storage.index import AbortedTxn, OffsetIndex, TimeIndex
from storage.producers import ProducerTable
from tests.format_page import PAGE, FormatPage
from tools.verify.core.manifest_digests import hash_of
from tools.verify.manifest.outcomes import Outcome as SendOutcome
from tools.verify.manifest.writer import ManifestWriter

FOLDER = Path(__file__).parent
NOW_MS = 1_700_000_000_000
CLUSTER = "J8aAPcfLQt2bqs1JT_rMgQ"
TOPIC_ID = UUID("f18ca836-cad6-49d3-9e1f-81fc75fc22aa")
PARTITION = TieredPartition(TOPIC_ID, 7)
SEGMENT_ID = UUID("03a5ea5a-f5c6-46ca-a91f-d3ad3bb3a9c9")


class Sample(NamedTuple):
    name: str
    layout: str
    data: bytes
    key: str | None = None
    """For an object of the store."""


def samples() -> list[Sample]:
    return [*metadata_log(), *segment(), *records(), *wal(), *wal_told(), *manifests()]


# --- the metadata log ---


def metadata_log() -> list[Sample]:
    birth: list[Record] = [
        ClusterBorn(cluster_id=CLUSTER),
        ControllerElected(controller_id=1, controller_epoch=1),
        BrokerRegistered(
            broker_id=1,
            incarnation=UUID(int=11),
            directories=(UUID(int=12), UUID(int=13)),
            endpoints=(Endpoint(listener="PLAINTEXT", host="b1.example", port=9092),),
            rack="east",
        ),
    ]
    moved = PartitionImage(
        index=1,
        leader=2,
        leader_epoch=3,
        partition_epoch=9,
        replicas=(1, 2, 3),
        isr=(1, 2),
        adding=(3,),
        removing=(1,),
    )
    changes: list[Record] = [
        BrokerFenced(broker_id=1, broker_epoch=1, fenced=False),
        BrokerStopping(broker_id=1, broker_epoch=1),
        BrokerUnregistered(broker_id=2, broker_epoch=1),
        TopicCreated(
            name="päyments", topic_id=TOPIC_ID, partitions=(new_partition(0, (1, 2), (1, 2)), moved)
        ),
        PartitionsAdded(topic_id=TOPIC_ID, first=2, partitions=(new_partition(2, (1,), ()),)),
        PartitionChanged(topic_id=TOPIC_ID, partition=0, leader=-1, isr=(1,), unclean=True),
        PartitionChanged(topic_id=TOPIC_ID, partition=1, replicas=(2, 3), adding=(), removing=()),
        ConfigChanged(resource_type=2, resource_name="päyments", name="retention.ms", value="1000"),
        ConfigChanged(resource_type=4, resource_name="1", name="remote.log.manager.thread.pool.size"),
        ProducerIdsAllocated(broker_id=1, broker_epoch=1, next_producer_id=1000),
        TopicDeleted(topic_id=TOPIC_ID),
    ]
    first = slot(1, bytes(32), birth)
    second = slot(2, slot_hash(first), changes)
    features = slot(
        3,
        slot_hash(second),
        [FeatureChanged(name="transaction.version", level=1), FeatureChanged(name="group.version", level=0)],
    )
    snapshot = slot(2, slot_hash(second), [SnapshotTaken(at_ms=NOW_MS), *birth[:2]])
    return [
        Sample("slot-birth", "slot", first, slot_key(1)),
        Sample("slot", "slot", second, slot_key(2)),
        Sample("slot-features", "slot", features, slot_key(3)),
        Sample("snapshot", "slot", snapshot, snapshot_key(2)),
        Sample("boundary", "nothing", b"", boundary_key(2)),
    ]


def slot(seq: int, previous_hash: bytes, contents: list[Record]) -> bytes:
    return encode_slot(
        Slot(
            seq=seq,
            controller_epoch=1,
            put_id=bytes(range(seq, seq + 16)),
            previous_hash=previous_hash,
            records=tuple(map(encode_record, contents)),
        )
    )


# --- a tiered segment ---


def segment() -> list[Sample]:
    rows = [(b"key", b"value", (), NOW_MS), (None, b"other", (), NOW_MS + 5)]
    first = build_batch(
        rows, base_offset=100, leader_epoch=2, producer_id=5, producer_epoch=0, base_sequence=0
    )
    second = build_batch(
        rows, base_offset=102, leader_epoch=3, producer_id=5, producer_epoch=0, base_sequence=2
    )
    data = bytes(first + second)
    offsets, times = OffsetIndex(), TimeIndex()
    offsets.append(3, len(first))
    times.maybe_append(NOW_MS + 5, 1)
    aborted = AbortedTxn(producer_id=6, first_offset=90, last_offset=103, last_stable_offset=104)
    sections = {
        IndexKind.OFFSET: offsets.encode(),
        IndexKind.TIMESTAMP: times.encode(),
        IndexKind.PRODUCER_SNAPSHOT: producers().encode(),
        IndexKind.TRANSACTION: aborted.encode(),
        IndexKind.LEADER_EPOCH: EpochCache([(0, 0), (2, 60), (3, 102)]).encode(),
    }
    block_bytes = 100
    header = SegmentHeader(
        cluster_id=CLUSTER,
        partition=PARTITION,
        topic="päyments",
        segment_id=SEGMENT_ID,
        base_offset=100,
        end_offset=104,
        broker_id=1,
        leader_epoch=4,
        started_ms=NOW_MS + 60_000,
        max_timestamp_ms=NOW_MS + 5,
        epochs=((2, 100), (3, 102)),
        size_bytes=len(data),
        batch_count=2,
        crc32c=crc32c(data),
        block_bytes=block_bytes,
        block_crcs=tuple(crc32c(data[at : at + block_bytes]) for at in range(0, len(data), block_bytes)),
    )
    return [
        Sample("segment-data", "batches", data, key(SegmentPart.DATA)),
        Sample(
            "segment-index", "index object", encode_index_object(header, sections), key(SegmentPart.INDEX)
        ),
        Sample("offset-index", "offset index", sections[IndexKind.OFFSET]),
        Sample("time-index", "time index", sections[IndexKind.TIMESTAMP]),
        Sample("producer-snapshot", "producer snapshot", sections[IndexKind.PRODUCER_SNAPSHOT]),
        Sample("transaction-index", "transaction index", sections[IndexKind.TRANSACTION]),
        *cached(header),
    ]


def cached(header: SegmentHeader) -> list[Sample]:
    sums = BlockSums(
        size_bytes=header.size_bytes, block_bytes=header.block_bytes, crcs=header.block_crcs
    ).encode()
    tail = encode_file(f"{header.segment_id}.sums", sums).removeprefix(sums)
    return [Sample("block-sums", "block sums", sums), Sample("cache-tail", "cache tail", tail)]


def key(part: SegmentPart) -> str:
    return tier_key(*PARTITION, 100, SEGMENT_ID, part)


def producers() -> ProducerTable:
    table = ProducerTable()
    several = table.to_change(5, 0)
    several.sent(0, 100, 101, NOW_MS + 5)
    several.sent(2, 102, 103, NOW_MS + 5)
    in_transaction = table.to_change(6, 1)
    in_transaction.coordinator_epoch = 2
    in_transaction.txn_first_offset = 101
    return table


# --- what the brokers say ---


def records() -> list[Sample]:
    copy = RemoteSegment(
        partition=PARTITION,
        topic="päyments",
        id=SEGMENT_ID,
        base_offset=100,
        end_offset=104,
        broker_id=1,
        max_timestamp_ms=NOW_MS + 5,
        event_timestamp_ms=NOW_MS + 60_000,
        size_bytes=176,
        epochs=((2, 100), (3, 102)),
        has_aborted=False,
    )
    finished = SegmentUpdated(
        partition=PARTITION,
        topic="päyments",
        id=SEGMENT_ID,
        state=SegmentState.COPY_FINISHED,
        broker_id=1,
        event_timestamp_ms=NOW_MS + 61_000,
        custom=b"mine",
    )
    deleted = PartitionDeletion(
        partition=PARTITION,
        topic="päyments",
        state=PartitionState.DELETE_MARKED,
        broker_id=-1,
        event_timestamp_ms=NOW_MS + 62_000,
    )
    moved = LogStartMoved(
        partition=PARTITION,
        topic="päyments",
        log_start=102,
        broker_id=1,
        event_timestamp_ms=NOW_MS + 61_500,
    )
    found = []
    for name, key_layout, layout, event in (
        ("copy-started", "copy key", "copy started", SegmentStarted(segment=copy)),
        ("copy-updated", "copy key", "copy updated", finished),
        ("partition-deleted", "partition key", "partition deleted", deleted),
    ):
        told = encode_event(event)
        found += [Sample(f"{name}-key", key_layout, told[0]), Sample(name, layout, told[1])]
    assert [sample.data for sample in found if sample.layout == "copy key"] == tombstones(
        PARTITION, SEGMENT_ID
    )
    told = encode_event(moved)
    return [
        *found,
        Sample("log-start-moved-key", "copy key", told[0]),
        Sample("log-start-moved", "log start moved", told[1]),
    ]


# --- the WAL tier ---


def wal() -> list[Sample]:
    stream = Stream(1, 40, 2)
    slices = [_slice(100, 2), _slice(300, 2), _slice(5, 3)]
    rows = [
        _row(slices[0], 0, 100, previous=Place(Stream(1, 40, 1), 17)),
        _row(slices[1], 1, 300, leader_epoch=4, epoch_start=300),
        _row(slices[2], 7, 5, batch_epoch=3),
    ]
    table = encode_table(_wal_head(stream, 3), place_slices(CLUSTER, rows))
    first = encode_table(_wal_head(stream, 2), place_slices(CLUSTER, rows[1:2]))
    seal = encode_table(_wal_head(stream, 4, ObjectKind.SEAL, writer=(3, 52), metadata_seq=61), ())
    index = encode_index(_wal_head(stream, 2, ObjectKind.INDEX), [first, table])
    floors = Floors(
        cluster_id=CLUSTER,
        writer=(1, 40),
        metadata_seq=57,
        written_ms=NOW_MS,
        rows=(Floor(TOPIC_ID, 0, 3, 90, 100, 102), Floor(TOPIC_ID, 7, 3, 5, 7, -1)),
    )
    moved = Floor(TOPIC_ID, 7, 3, 5, 7, 9, Place(Stream(1, 40, 2), 3))
    floors_2 = replace(floors, rows=(floors.rows[0], moved))
    return [
        Sample("wal-object", "wal object", table + b"".join(slices), wal_key(stream, 3)),
        Sample("wal-seal", "wal object", seal, wal_key(stream, 4)),
        Sample("wal-index", "wal index", index, wal_key(stream, 2, WalPart.INDEX)),
        Sample("wal-floors", "wal floors", encode_floors(floors), floors_key(1)),
        Sample("wal-floors-2", "wal floors 2", encode_floors(floors_2), floors_key(1)),
        Sample("wal-boundary", "nothing", b"", wal_key(stream, 1, WalPart.BOUNDARY)),
    ]


def wal_told() -> list[Sample]:
    place = ObjectPlace(1, 40, 2, 3)
    object_id, slice_id = UUID(bytes=bytes(range(16))), UUID(int=UUID(bytes=bytes(range(16))).int + 1)
    entry = SliceEntry(TOPIC_ID, 7, slice_id, 300, 399, 3, 5, 7)
    found = []
    for name, key_layout, layout, row in (
        (
            "wal-object-told",
            "wal record key",
            "wal object told",
            ObjectRow(False, object_id, place, (entry, entry._replace(partition=8)), 1, NOW_MS, b"bucket", 1),
        ),
        (
            "wal-object-deleted",
            "wal record key",
            "wal object told",
            ObjectRow(True, object_id, place, (), 1, NOW_MS, None, 2),
        ),
        (
            "wal-slice-told",
            "wal slice key",
            "wal slice told",
            SliceRow(False, "orders", entry, object_id, 1, place, 1, NOW_MS, None, 1),
        ),
    ):
        found += [
            Sample(f"{name}-key", key_layout, encode_key(key_of(row))),
            Sample(name, layout, encode_row(row)),
        ]
    return found


def _slice(base_offset: int, leader_epoch: int) -> bytes:
    rows = [(b"key", b"value", (), NOW_MS), (None, b"other", (), NOW_MS + 5)]
    return bytes(build_batch(rows, base_offset=base_offset, leader_epoch=leader_epoch))


def _row(
    data: bytes,
    partition: int,
    start: int,
    *,
    leader_epoch: int = 3,
    epoch_start: int = 90,
    batch_epoch: int = 2,
    previous: Place | None = None,
) -> WalRow:
    return WalRow(
        topic_id=TOPIC_ID,
        partition=partition,
        leader_epoch=leader_epoch,
        epoch_start=epoch_start,
        batch_epoch=batch_epoch,
        start=start,
        end=start + 2,
        log_start=4,
        position=0,
        size=len(data),
        crc32c=crc32c(data),
        previous=previous,
    )


def _wal_head(
    stream: Stream,
    seq: int,
    kind: ObjectKind = ObjectKind.SLICES,
    *,
    writer: tuple[int, int] = (1, 40),
    metadata_seq: int = 57,
) -> WalHead:
    return WalHead(
        kind=kind,
        cluster_id=CLUSTER,
        place=Place(stream, seq),
        put_id=bytes(range(seq, seq + 16)),
        metadata_seq=metadata_seq,
        writer=writer,
        written_ms=NOW_MS,
    )


# --- manifests ---


def manifests() -> list[Sample]:
    """One file with rows and one with digests, cut into what FORMAT.md calls layouts."""
    found = []
    parts = (True, {1: "topics", 2: "rows", 4: "end"}), (False, {3: "digests"})
    for keeps_rows, names in parts:
        data = manifest(keeps_rows=keeps_rows)
        at = int.from_bytes(data[6:10], "big")
        if keeps_rows:
            found.append(Sample("manifest-head", "manifest head", data[:at]))
        while at < len(data):
            kind, size = (int.from_bytes(data[at + each : at + each + 4], "big") for each in (8, 16))
            if name := names.pop(kind, None):
                content = data[at + 28 : at + 28 + size]
                found.append(Sample(f"manifest-{name}-head", "manifest block head", data[at : at + 28]))
                found.append(Sample(f"manifest-{name}", f"manifest {name}", content))
            at += 28 + size
    return found


def manifest(*, keeps_rows: bool) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sample.manifest"
        with ManifestWriter(
            path,
            started_ms=NOW_MS,
            clock=lambda: 0.0,
            writer="sample",
            cluster_id=CLUSTER,
            is_idempotent=True,
            is_ordered=True,
            keeps_rows=keeps_rows,
        ) as writer:
            known = writer.topic("orders", TOPIC_ID.bytes)
            unknown = writer.topic("späne")
            for order, topic, partition, offset, outcome, batch in (
                (1, known, 7, 16_383, SendOutcome.OK, 0),
                (2, known, 7, 16_384, SendOutcome.OK, 5),
                (3, unknown, 0, 9, SendOutcome.OK, 0),
                (5, known, 7, -1, SendOutcome.UNKNOWN, 6),
                (4, known, -1, -1, SendOutcome.FAIL, 0),
            ):
                writer.note(
                    topic,
                    partition,
                    order=order,
                    key_hash=hash_of(None if order == 1 else b"key"),
                    value_hash=hash_of(b"" if order == 2 else b"value %d" % order),
                    outcome=outcome,
                    offset=offset,
                    acks=1 if topic == unknown else -1,
                    batch=batch,
                )
        return path.read_bytes()


def main() -> None:
    page = FormatPage(PAGE.read_text())
    for sample in samples():
        file = FOLDER / f"{sample.name}.bin"
        if not file.exists():
            file.write_bytes(sample.data)
            reading = {"key": sample.key, "layout": sample.layout, **page.read(sample.layout, sample.data)}
            text = json.dumps(reading, indent=2, ensure_ascii=False)
            file.with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
