"""What `make bench-verify` reads: topics in the cold tier, written once by a broker and kept.

Owns what is in each set, how it comes to lie in a store, and the manifest of its records. Does not own the
broker or what is measured.
Invariant: a set is whole or not there; one that was made to another size is made anew.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from tools import bench
from tools.console import complain
from tools.verify.core.manifest_digests import NULL_HASH, hash_of
from tools.verify.core.manifest_files import BLOCK_HEAD, ROW, SUFFIX, Kind, Outcome
from tools.verify.manifest.files import open_manifest
from tools.verify.manifest.writer import ROWS_PER_BLOCK
from tools.versus import brokers
from tools.versus.caller import EARLIEST_LOCAL, Caller, until
from tools.versus.growth import pieces
from tools.versus.load import Load, run
from tools.versus.minio import EXECUTABLE, MinioServer
from tools.versus.tiered import SETTINGS, TIERED_S_MAX, wait_tiered

BUCKET = "verify"
SEGMENT_BYTES = 64 << 20
PIECE_BYTES = 500_000_000
"""Of one run of the load, which is bounded in time."""
MADE, CROWDED = "made.json", "crowd.txt"
OBJECTS_A_PARTITION = 20_000
OBJECT_BYTES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    name: str
    record_bytes: int
    batch_records: int
    size: int
    """Bytes of records' values."""
    partitions: int = 4
    hot_share: float = 0.0
    """Of the bytes, in partition 0 alone, beside its part of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    name: str
    topics: tuple[Topic, ...]
    segment_bytes: int = SEGMENT_BYTES
    is_minio: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A set that is there: what `--store` and `--data` name."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def objects(self) -> Path:
        """The store of a set that is not in MinIO; else MinIO's own files."""
        return self.folder / "store"

    @property
    def url(self) -> str:
        return f"file://{self.objects}"


def large(size: int, first_size: int) -> DataSet:
    """16 records of 1,000 bytes a batch; of `size` bytes the topic `first` has so many."""
    first = Topic(name="first", record_bytes=1000, batch_records=16, size=first_size)
    return DataSet(
        name="large", topics=(first, dataclasses.replace(first, name="rest", size=size - first_size))
    )


def small(records: int) -> DataSet:
    """10 records of 100 bytes a batch, which then has 1.1 KiB."""
    first = Topic(name="first", record_bytes=100, batch_records=10, size=10 * records)
    return DataSet(name="small", topics=(first, dataclasses.replace(first, name="rest", size=90 * records)))


def alike(size: int, *, is_minio: bool) -> DataSet:
    """Batches of 16 KiB, in MinIO or in files."""
    topic = Topic(name="first", record_bytes=1000, batch_records=16, size=size)
    return DataSet(name="minio" if is_minio else "files", topics=(topic,), is_minio=is_minio)


def skewed(size: int) -> DataSet:
    """One partition of five has 80 % of the bytes; beside it a topic of an eighth, which of 10 GB also has a
    task for each of four executors."""
    topic = Topic(name="skewed", record_bytes=1000, batch_records=16, size=size, partitions=5, hot_share=0.75)
    little = Topic(name="little", record_bytes=1000, batch_records=16, size=size // 8)
    return DataSet(name="skewed", topics=(topic, little))


def make(wanted: DataSet, folder: Path) -> Made:
    """Return the set below the folder, made now unless it is there."""
    made = Made(folder=(folder / wanted.name).resolve())
    text = json.dumps(dataclasses.asdict(wanted))
    with contextlib.suppress(FileNotFoundError):
        if (made.folder / MADE).read_text() == text:
            return made
    complain(f"making {wanted.name}: {sum(topic.size for topic in wanted.topics) / 1e9:.2f} GB")
    shutil.rmtree(made.folder, ignore_errors=True)
    made.objects.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        url, environ = made.url, dict[str, str]()
        if wanted.is_minio:
            minio = stack.enter_context(serving(made))
            minio.make_bucket(BUCKET)
            url, environ = minio.url(BUCKET), minio.environ
        _produce(wanted, made, url, environ)
    (made.folder / MADE).write_text(text)
    return made


def crowd(made: Made, count: int) -> None:
    """Put so many objects of one other topic into the store: names of a few files, which nobody reads."""
    there = made.folder / CROWDED
    with contextlib.suppress(FileNotFoundError):
        if there.read_text() == f"{count}":
            return
    complain(f"making {count:,} objects")
    partitions = made.objects / "tier" / ("A" * 21 + "Q")
    shutil.rmtree(partitions, ignore_errors=True)
    source = Path()
    for number in range(count):
        partition, base = divmod(number, OBJECTS_A_PARTITION)
        path = partitions / f"{partition}" / f"{base:020d}-{_segment_id(number)}.log"
        if not base:
            path.parent.mkdir(parents=True)
            path.write_bytes(bytes(OBJECT_BYTES))
            source = path
        else:
            os.link(source, path)
    there.write_text(f"{count}")


def _segment_id(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")


@contextlib.contextmanager
def serving(made: Made) -> Iterator[MinioServer]:
    """Run the MinIO that has the set."""
    with contextlib.closing(MinioServer(EXECUTABLE, made.objects)) as minio:
        yield minio


def _produce(wanted: DataSet, made: Made, url: str, environ: Mapping[str, str]) -> None:
    cores = os.sched_getaffinity(0)
    broker = brokers.Tidewal(made.folder / "broker", cores, store=url, settings=SETTINGS, environ=environ)
    with broker:
        broker.start()
        for topic in wanted.topics:
            _fill(broker, topic, wanted.segment_bytes)
        for topic in wanted.topics:
            _wait_tiered(broker, topic)
        broker.stop()
        for left in broker.data.rglob("*.deleted"):
            left.unlink()
        broker.data.rename(made.data)


def _fill(broker: brokers.Broker, topic: Topic, segment_bytes: int) -> None:
    configs = {
        "segment.bytes": f"{segment_bytes}",
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
    }
    with Caller(broker.port) as caller:
        caller.create(topic.name, topic.partitions, configs)
    hot = int(topic.size * topic.hot_share)
    for partitions, size in ((1, hot), (topic.partitions, topic.size - hot)):
        for piece in pieces(size, PIECE_BYTES):
            load = Load(
                kind="produce",
                record_bytes=topic.record_bytes,
                batch_records=topic.batch_records,
                in_flight=200,
                seconds=50,
                bytes_max=piece,
                partitions=partitions,
            )
            run(load, broker, topic.name, None)


def _wait_tiered(broker: brokers.Broker, topic: Topic) -> None:
    """Wait until all closed segments are in the tier alone."""
    folders = [broker.data / f"{topic.name}-{each}" for each in range(topic.partitions)]
    ends = [max(int(path.stem) for path in folder.glob("*.log")) for folder in folders]
    wait_tiered(broker.port, topic.name, ends)
    with Caller(broker.port) as caller:

        def is_gone() -> bool:
            return all(
                caller.offset(topic.name, each, EARLIEST_LOCAL) >= end for each, end in enumerate(ends)
            )

        until(is_gone, f"{topic.name} in the tier alone", TIERED_S_MAX)


# --- manifests ---


def write_manifest(made: Made, wanted: DataSet, ends: Mapping[tuple[str, int], int]) -> Path:
    """Note all records below these ends as sent and acknowledged, partition by partition, and return the
    manifest. What one producer would write, made column by column: one by one would take minutes."""
    folder = made.folder / "sent"
    shutil.rmtree(folder, ignore_errors=True)
    writer = open_manifest(
        folder, writer="bench", is_idempotent=True, is_ordered=True, is_unique=False, keeps_rows=True
    )
    numbers = {topic.name: writer.topic(topic.name) for topic in wanted.topics}
    writer.close()
    (path,) = folder.glob(f"*{SUFFIX}")
    whole = path.read_bytes()
    blocks = whole[: -(BLOCK_HEAD.size + 32)]  # without its end
    number = len(numbers)
    sent = 0
    with path.open("wb") as file:
        file.write(blocks)
        for topic in wanted.topics:
            values = _value_hashes(topic)
            for partition in range(topic.partitions):
                end = ends[topic.name, partition]
                for first in range(0, end, ROWS_PER_BLOCK):
                    offsets = np.arange(first, min(first + ROWS_PER_BLOCK, end))
                    rows = np.zeros(len(offsets), ROW)
                    rows["offset"] = offsets
                    rows["key_hash"] = NULL_HASH
                    rows["value_hash"] = values[offsets % topic.batch_records]
                    rows["order"] = np.arange(sent + 1, sent + 1 + len(offsets))
                    rows["partition"] = partition
                    rows["topic"] = numbers[topic.name]
                    rows["acks"] = -1
                    rows["outcome"] = Outcome.OK
                    sent += len(offsets)
                    file.write(_block(number, Kind.ROWS, len(rows), rows.tobytes()))
                    number += 1
        totals = b"".join(each.to_bytes(8, "big") for each in (sent, sent, 0, 0))
        file.write(_block(number, Kind.END, 0, totals))
    return folder


def _value_hashes(topic: Topic) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    payloads = itertools.cycle(bench.payloads_of(topic.record_bytes))
    return np.array([hash_of(next(payloads)) for _ in range(topic.batch_records)], np.uint64)


def _block(number: int, kind: Kind, rows: int, content: bytes) -> bytes:
    head = BLOCK_HEAD.pack(b"TWMB", number, kind, rows, len(content), crc32c(content), 0)[:-4]
    return head + crc32c(head).to_bytes(4, "big") + content
