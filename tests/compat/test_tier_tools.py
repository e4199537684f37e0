"""Apache Kafka's own tools on what our cold tier writes: its formatter on `__remote_log_metadata`, and
DumpLogSegments on segments and indexes as they lie in the store.

Owns one broker whose topics were really copied, expired and deleted, and the files that the objects of its
store become. Does not own the layout of the objects (FORMAT.md) nor the records (protocol.stored.remote_log).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from uuid import UUID

import pytest

from broker.process import offload, wall_clock_ms
from protocol.compression import Codec
from protocol.ids import encode_id
from protocol.records import build_batch, end_txn_marker, iter_batches, iter_records
from protocol.stored.remote_log import (
    CopyFields,
    DeletionRow,
    Row,
    SegmentRow,
    SnapshotRow,
    UpdateRow,
    decode_row,
    encode_row,
)
from remote.cold.index_object import decode_index_object
from remote.cold.segments import PartitionState, SegmentState
from remote.cold.storage_manager import IndexKind, SegmentHeader
from remote.keys import TIER, SegmentPart, parse_tier_key
from remote.store.location import parse_store_url
from remote.store.metered import StoreStats
from remote.store.stores import open_store
from storage.files import DiskFiles
from tests.clients.blocking import BlockingClient
from tests.compat.peers import Java, until
from tests.compat.samples import FIRST_MS
from tests.compat.test_interchange import (
    batches_by_kafka,
    batches_by_us,
    dump_by_kafka,
    dump_by_us,
    put_in_place,
)
from tests.compat.test_java import CONSOLE_CONSUMER
from tests.e2e.tiered import (
    ALONE,
    EARLIEST,
    TIERED,
    TieredBroker,
    TieredTopic,
    alter,
    is_forgotten,
    metadata_ends,
    read_from,
)

pytestmark = pytest.mark.kafka

METADATA_TOPIC = "__remote_log_metadata"
FORMATTER = (
    "org.apache.kafka.server.log.remote.metadata.storage.serialization."
    "RemoteLogMetadataSerde$RemoteLogMetadataFormatter"
)
SETTINGS = {**ALONE, "offsets.topic.replication.factor": "1"}
IDEMPOTENT, COMMITTED, ABORTED = 7, 8, 9
"""Ids of producers."""
KEPT_BYTES = 25_000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    broker: TieredBroker
    kept: TieredTopic


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A topic whose segments are in the tier, one that expired in part, and one that was deleted."""
    folder = tmp_path_factory.mktemp("tier-tools")
    broker = TieredBroker(folder, settings=SETTINGS, env={})
    try:
        kept, short, gone = (
            broker.make_topic(config={**TIERED, "index.interval.bytes": "1000"}) for _ in range(3)
        )
        broker.kill()
        (folder / "written").mkdir()
        (folder / "written" / f"{0:020d}.log").write_bytes(log_of_all_kinds())
        put_in_place(folder / "written", broker.data / f"{kept.name}-0")
        broker.rise()
        for topic, batches in ((kept, 12), (short, 12), (gone, 4)):
            topic.append(batches)
        partition = gone.partition()
        for topic in (kept, short, gone):
            topic.wait_tiered()
        alter(broker.bootstrap, short.name, {"retention.bytes": str(KEPT_BYTES)})
        until(lambda: short.known_offset(EARLIEST) > 0, "segments to expire")
        broker.delete_topic(gone)
        until(lambda: is_forgotten(broker.bootstrap, partition), "the end of a deleted topic")
        for topic in (kept, short):
            topic.wait_no_loose_ends()
        yield World(broker=broker, kept=kept)
    finally:
        broker.close()


def log_of_all_kinds() -> bytes:
    """Every codec, an idempotent producer, a transaction that was committed and one that was aborted."""
    log, offset = bytearray(), 0

    def add(batch: bytearray, count: int) -> None:
        nonlocal offset
        log.extend(batch)
        offset += count

    def write(count: int, codec: Codec, producer_id: int = -1, sequence: int = -1) -> None:
        rows = [(b"%d" % n, b"%x" % (n + 7) ** 300, (), FIRST_MS + n) for n in range(offset, offset + count)]
        batch = build_batch(
            rows,
            base_offset=offset,
            leader_epoch=0,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
            transactional=producer_id in (COMMITTED, ABORTED),
        )
        add(batch, count)

    for number, codec in enumerate(Codec):
        write(20, codec)
        write(10, codec, IDEMPOTENT, number * 10)
    for producer_id in (COMMITTED, ABORTED):
        write(10, Codec.NONE, producer_id, 0)
        marker = end_txn_marker(
            commit=producer_id == COMMITTED,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=FIRST_MS,
            base_offset=offset,
            leader_epoch=0,
        )
        add(marker, 1)
    return bytes(log)


# --- the records of __remote_log_metadata -----------------------------------------------------------------


def text_of(row: Row) -> str:
    """What Kafka's classes say of themselves."""

    def partition(of: SegmentRow | UpdateRow | DeletionRow) -> str:
        return f"{encode_id(of.topic_id)}:{of.topic}-{of.partition}"

    def segment(of: SegmentRow | UpdateRow) -> str:
        named = f"RemoteLogSegmentId{{topicIdPartition={partition(of)}, id={encode_id(of.segment_id)}}}"
        return f"remoteLogSegmentId={named}"

    def custom(data: bytes | None) -> str:
        told = "Optional.empty" if data is None else f"Optional[CustomMetadata{{{len(data)} bytes}}]"
        return f"customMetadata={told}"

    def copy(row: SegmentRow | SnapshotRow) -> str:
        of = row.copy
        epochs = ", ".join(f"{epoch}={start}" for epoch, start in of.epochs)
        broker, at = f"brokerId={of.broker_id}, ", f"eventTimestampMs={of.event_timestamp_ms}, "
        if isinstance(row, SnapshotRow):  # these say nothing of who came to it and when
            broker = at = ""
        return (
            f"startOffset={of.base_offset}, endOffset={of.last_offset}, {broker}"
            f"maxTimestampMs={of.max_timestamp_ms}, {at}segmentLeaderEpochs={{{epochs}}}, "
            f"segmentSizeInBytes={of.size_bytes}, {custom(of.custom)}, state={state(of.state)}, "
            f"txnIdxEmpty={str(of.is_txn_index_empty).lower()}"
        )

    def state(number: int) -> str:
        verb, _, step = SegmentState(number).name.partition("_")
        return f"{verb}_SEGMENT_{step}"

    match row:
        case SegmentRow():
            return f"RemoteLogSegmentMetadata{{{segment(row)}, {copy(row)}}}"
        case UpdateRow():
            return (
                f"RemoteLogSegmentMetadataUpdate{{{segment(row)}, {custom(row.custom)}, "
                f"state={state(row.state)}, eventTimestampMs={row.event_timestamp_ms}, "
                f"brokerId={row.broker_id}}}"
            )
        case DeletionRow():
            _, _, step = PartitionState(row.state).name.partition("_")
            return (
                f"RemotePartitionDeleteMetadata{{topicPartition={partition(row)}, "
                f"state=DELETE_PARTITION_{step}, eventTimestampMs={row.event_timestamp_ms}, "
                f"brokerId={row.broker_id}}}"
            )
        case SnapshotRow():
            return f"RemoteLogSegmentMetadataSnapshot{{segmentId={encode_id(row.segment_id)}, {copy(row)}}}"


def state_of(row: Row) -> int:
    return row.copy.state if isinstance(row, SegmentRow | SnapshotRow) else row.state


def stored_values(bootstrap: str, topic: str, partition: int) -> dict[int, bytes | None]:
    with BlockingClient(bootstrap) as client:
        data = client.read_bytes(topic, partition)
    return {
        record.offset: record.value
        for at, header in iter_batches(data)
        for record in iter_records(data, at, header)
    }


def formatted(
    java: Java, bootstrap: str, topic: str, count: int, *options: str
) -> tuple[dict[str, str], str]:
    """What Kafka's console consumer printed of so many records, by partition and offset, and its errors."""
    done = java.attempt(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--formatter", FORMATTER),
        *("--max-messages", str(count), "--timeout-ms", "20000", *options),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Processed a total of {count} messages" in done.stderr, done.stderr[-4000:]
    lines = re.findall(r"^partition: (\d+), offset: (\d+), value: (.*)$", done.stdout, re.MULTILINE)
    assert len(lines) == len(done.stdout.splitlines())
    return {f"{partition}-{offset}": text for partition, offset, text in lines}, done.stderr


def test_kafkas_formatter_prints_every_record_about_copies_and_deletions(java: Java, world: World) -> None:
    """Its formatter has no words for a null value, which ends a key for compaction: it is told to go on."""
    bootstrap = world.broker.bootstrap
    ends = metadata_ends(bootstrap)
    values = {
        f"{partition}-{offset}": value
        for partition in range(len(ends))
        for offset, value in stored_values(bootstrap, METADATA_TOPIC, partition).items()
    }
    rows = {at: decode_row(value) for at, value in values.items() if value is not None}
    assert {(type(row), state_of(row)) for row in rows.values()} == {
        (SegmentRow, SegmentState.COPY_STARTED),
        *((UpdateRow, state) for state in SegmentState if state is not SegmentState.COPY_STARTED),
        *((DeletionRow, state) for state in PartitionState),
    }
    printed, errors = formatted(java, bootstrap, METADATA_TOPIC, sum(ends), "--skip-message-on-error")
    assert printed == {at: text_of(row) for at, row in rows.items()}
    assert all(re.search(r"[:=]tiered-\w+-0[,}]", text) for text in printed.values()), "each names its topic"
    assert errors.count("skipping this message") == len(values) - len(rows) > 0


def test_kafkas_formatter_prints_all_four_types(java: Java, world: World) -> None:
    topic, segment = UUID(int=0x8899AABBCCDDEEFF << 64 | 1), UUID(int=0x7766554433221100 << 64 | 2)
    extent = (2_000, 3_999, 4, 1_700_000_000_000, 1_700_000_000_009)
    started, finished = int(SegmentState.COPY_STARTED), int(SegmentState.COPY_FINISHED)
    copies = [
        CopyFields(*extent, ((5, 2_000),), 1 << 20, None, started, True),
        CopyFields(*extent, ((5, 2_000), (6, 2_500)), (1 << 31) - 1, b"custom", finished, False),
    ]
    rows: list[Row] = []
    for copy in copies:
        rows += [SegmentRow("logs", topic, 3, segment, copy), SnapshotRow(segment, copy)]
    rows += [
        UpdateRow("logs", topic, 3, segment, 4, 17, custom, int(state))
        for state in SegmentState
        for custom in (None, b"", b"custom")
    ]
    rows += [DeletionRow("logs", topic, 3, 4, 17, int(state)) for state in PartitionState]
    rows.append(UpdateRow("logs", topic, 3, UUID(int=0), 4, 17, None, finished, log_start=3_000))
    name = world.broker.make_topic(config={}).name
    with BlockingClient(world.broker.bootstrap) as client:
        batch = build_batch([(b"key %d" % at, encode_row(row), (), FIRST_MS) for at, row in enumerate(rows)])
        assert client.produce(name, 0, bytes(batch)).error_code == 0
    printed, _ = formatted(java, world.broker.bootstrap, name, len(rows))
    assert printed == {f"0-{at}": text_of(row) for at, row in enumerate(rows)}


def test_kafkas_log_tool_decodes_the_topics_own_log(java: Java, world: World) -> None:
    logs = sorted(world.broker.data.glob(f"{METADATA_TOPIC}-*/*.log"))
    said = dump_by_kafka(java, logs, "--remote-log-metadata-decoder", "--deep-iteration")
    by_log = said.split("Dumping ")[1:]
    assert len(by_log) == len(logs) > 1
    for log, part in zip(logs, by_log, strict=True):
        assert part.startswith(str(log))
        printed = dict(re.findall(r"^\| offset: (\d+) .* payload: (Remote.*)$", part, re.MULTILINE))
        partition = int(log.parent.name.rpartition("-")[2])
        values = stored_values(world.broker.bootstrap, METADATA_TOPIC, partition)
        assert printed == {
            str(at): text_of(decode_row(value)) for at, value in values.items() if value is not None
        }


# --- segments and their indexes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """The segments of a topic in the store as Kafka's files in a folder, in the order of their offsets."""

    headers: list[SegmentHeader]
    folder: Path

    def files(self, suffix: str) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.suffix == suffix)


@pytest.fixture(scope="module")
def downloaded(world: World, tmp_path_factory: pytest.TempPathFactory) -> Downloaded:
    folder = tmp_path_factory.mktemp("downloaded") / f"{world.kept.name}-0"
    folder.mkdir()
    topic_id = world.kept.partition().topic_id
    headers = []
    for key, data in sorted(objects_in(world.broker.url).items()):
        named = parse_tier_key(key)
        assert named is not None, key
        if named.topic_id != topic_id:
            continue
        if named.part is SegmentPart.DATA:
            (folder / f"{named.base_offset:020d}.log").write_bytes(data)
            continue
        head, indexes = decode_index_object(data)
        headers.append(head.header)
        for kind, suffix in (
            (IndexKind.OFFSET, ".index"),
            (IndexKind.TIMESTAMP, ".timeindex"),
            (IndexKind.TRANSACTION, ".txnindex"),
        ):
            (folder / f"{named.base_offset:020d}{suffix}").write_bytes(indexes[kind])
        snapshot = folder / f"{head.header.end_offset:020d}.snapshot"
        snapshot.write_bytes(indexes[IndexKind.PRODUCER_SNAPSHOT])
    return Downloaded(headers=headers, folder=folder)


def objects_in(url: str) -> dict[str, bytes]:
    """Every object of the tier, read through the store's own client."""

    async def work() -> dict[str, bytes]:
        store = open_store(
            parse_store_url(url, {}),
            files=DiskFiles(),
            offload=offload,
            now_ms=wall_clock_ms,
            rng=random.Random(),
            environ={},
            stats=StoreStats(),
        )
        try:
            return {info.key: await store.get(info.key) for info in await store.list(TIER)}
        finally:
            await store.close()

    return asyncio.run(work())


def test_kafkas_log_tool_reads_the_segments_out_of_the_store(
    java: Java, world: World, downloaded: Downloaded
) -> None:
    logs = downloaded.files(".log")
    assert len(logs) == len(downloaded.headers) > 3
    by_kafka = batches_by_kafka(dump_by_kafka(java, logs, "--deep-iteration"))
    assert by_kafka == batches_by_us(dump_by_us(logs))
    assert {batch[8] for batch in by_kafka} == {codec.name.lower() for codec in Codec}
    assert len(by_kafka) == sum(header.batch_count for header in downloaded.headers)
    served = read_from(world.broker.bootstrap, world.kept.name, 0)
    assert b"".join(log.read_bytes() for log in logs) == served


def test_kafkas_log_tool_finds_the_indexes_out_of_the_store_sound(java: Java, downloaded: Downloaded) -> None:
    suffixes = (".index", ".timeindex", ".txnindex", ".snapshot")
    files = [path for suffix in suffixes for path in downloaded.files(suffix)]
    assert len(files) == len(suffixes) * len(downloaded.headers)
    said = dump_by_kafka(java, files)
    entries = re.findall(r"^offset: \d+ position: \d+$", said, re.MULTILINE)
    assert len(entries) >= sum(path.stat().st_size // 8 for path in downloaded.files(".index")) > 5
    assert re.findall(r"^version: 0 producerId: (\d+) .*", said, re.MULTILINE) == [str(ABORTED)]
    producers = re.findall(r"^producerId: (\d+) producerEpoch: 0 ", said, re.MULTILINE)
    wanted = {str(each) for each in (IDEMPOTENT, COMMITTED, ABORTED)}
    assert producers and set(producers) == wanted
    dump_by_us(files)


def test_an_index_that_is_wrong_is_told(java: Java, tmp_path: Path) -> None:
    """What the two before rest on."""
    data = log_of_all_kinds()
    rows = [(header.last_offset, at) for at, header in iter_batches(data)][1:4]
    rows[1] = (rows[1][0] - 1, rows[1][1])
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    index = tmp_path / f"{0:020d}.index"
    index.write_bytes(b"".join(pack(">ii", *row) for row in rows))
    with pytest.raises(AssertionError, match="Mismatches in"):
        dump_by_kafka(java, [index])
