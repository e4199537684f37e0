"""Topics as a source of Spark: `format("tidewal")`, rows as `format("kafka")` has them.

Owns what Spark calls: schemas, readers for batches and streams, the way from record batches to its columns.
Does not own options (options) or what is read where (reading). Invariant: a reader holds nothing but options,
so it may be sent anywhere; what a stream has read is in its offsets alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tools.console import Failure
from tools.pipelines.columns import Columns
from tools.spark.options import BATCHES, RUNS, BadOption, ReadOptions, read_options
from tools.spark.reading import (
    DataLost,
    Ranges,
    Rows,
    Task,
    TopicPartition,
    Topics,
    read_task,
    with_brokers,
)
from tools.spark_workers import settle
from tools.verify.core.batches import RunScanner
from tools.verify.core.heads import LOG_APPEND_TIME
from tools.verify.core.stores import SourceFailed
from tools.verify.core.topic import read_part

ROWS_MAX: Final = 50_000
BYTES_MAX: Final = 8 << 20
"""Of one table that is handed to Spark, about."""
HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"

RECORD_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS_COLUMN: Final = "headers array<struct<key: string, value: binary>>"
BATCH_COLUMNS: Final = (
    "topic string, partition int, base_offset bigint, last_offset bigint, leader_epoch int, records int, "
    "size int, codec int, timestampType int, max_timestamp timestamp, producer_id bigint, "
    "producer_epoch int, base_sequence int, is_transactional boolean, is_control boolean, crc bigint, "
    "place string, position bigint"
)
RUN_COLUMNS: Final = (
    "topic string, partition int, first_offset bigint, end_offset bigint, leader_epoch int, batches bigint, "
    "records bigint, control_batches bigint, size bigint, max_timestamp timestamp, place string, "
    "position bigint"
)
_STAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _STAMP),
        ("timestampType", pa.int32()),
        ("headers", _HEADERS),
    ]
)


def schema_of(options: ReadOptions) -> str:
    if options.view == BATCHES:
        return BATCH_COLUMNS
    if options.view == RUNS:
        return RUN_COLUMNS
    return f"{RECORD_COLUMNS}, {HEADERS_COLUMN}" if options.headers else RECORD_COLUMNS


def checked(given: Mapping[str, str], *, is_stream: bool | None) -> ReadOptions:
    """Check options, for a stream or a batch; None: which of them is not known."""
    try:
        return read_options(given, is_stream=is_stream)
    except BadOption:
        _speak_plainly()
        raise


def _speak_plainly() -> None:
    """Keep the stack out of what this process, which only plans, tells the user."""
    os.environ[HIDE_TRACEBACK] = "true"


class TaskPartition(InputPartition):  # type: ignore[misc]
    def __init__(self, task: Task) -> None:
        super().__init__(task)


def _planned(options: ReadOptions, work: Any) -> Any:
    try:
        return with_brokers(options, work)
    except (BadOption, DataLost, SourceFailed, Failure):
        _speak_plainly()
        raise


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """One read of what there is between two offsets of each partition."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        def plan(topics: Topics) -> list[Task]:
            first = topics.resolve(self._options.starting, "startingOffsets")
            end = topics.resolve(self._options.ending, "endingOffsets")
            ranges: dict[TopicPartition, tuple[int, int]] = {}
            for where in first:
                ranges[where] = first[where], end[where]
            return topics.plan(ranges)

        return [TaskPartition(task) for task in _planned(self._options, plan)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class TopicStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """A stream: what objects hold is read there, and the tail from brokers, under the same offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, dict[str, int]]:
        def resolve(topics: Topics) -> dict[TopicPartition, int]:
            return topics.resolve(self._options.starting, "startingOffsets")

        return _told(_planned(self._options, resolve))

    def latestOffset(self) -> dict[str, dict[str, int]]:
        def look(topics: Topics) -> dict[TopicPartition, int]:
            return {where: topics.bounds(*where)[1] for where in topics.partitions()}

        return _told(_planned(self._options, look))

    def partitions(
        self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
    ) -> list[InputPartition]:
        first, last = _untold(start), _untold(end)

        def plan(topics: Topics) -> list[Task]:
            ranges: dict[TopicPartition, tuple[int, int]] = {}
            for where, stop in last.items():
                # A partition that is new since then is read from its begin.
                begin = first[where] if where in first else topics.bounds(*where)[0]
                if stop < begin:
                    topics.lost(f"{where[0]}-{where[1]} ends at {stop}, and was read up to {begin}")
                ranges[where] = begin, stop
            return topics.plan(ranges)

        return [TaskPartition(task) for task in _planned(self._options, plan)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        """Nothing is kept but in Spark's checkpoint."""


def _told(offsets: Ranges | Mapping[TopicPartition, int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _untold(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {(topic, int(number)): at for topic, each in offsets.items() for number, at in each.items()}


# --- rows ---


def _read(options: ReadOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    settle()
    if partition is None:  # Spark's way to say that there are none
        return iter(())
    task: Task = partition.value
    if options.view == BATCHES:
        return _batches(task)
    if options.view == RUNS:
        return _runs(task)
    return _records(options, task)


def _records(options: ReadOptions, task: Task) -> Iterator[pa.RecordBatch]:
    columns = Columns(task.topic, task.partition)
    size = 0
    for row in read_task(options, task):
        if isinstance(row, Rows):
            columns.add_stretch(row.stretch, row.first, row.end)
            size += row.stretch.size
        else:
            columns.add(row.batch, row.header, row.first, row.end)
            size += len(row.batch)
        if size >= BYTES_MAX or len(columns) >= ROWS_MAX:
            yield from _arrow(columns, options)
            columns, size = Columns(task.topic, task.partition), 0
    yield from _arrow(columns, options)


def _arrow(columns: Columns, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    if len(columns):
        table = columns.table()
        if not options.headers:
            table = table.drop_columns(["headers"])
        names = table.schema.names
        yield from table.cast(pa.schema([RECORD_SCHEMA.field(name) for name in names])).to_batches()


def _batches(task: Task) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    for part in task.parts:
        for _, head in (batch for stretch in read_part(part) for batch in stretch.batches()):
            is_appended = bool(head.attributes & LOG_APPEND_TIME)
            rows.append(
                (
                    task.topic, task.partition, head.base_offset, head.last_offset, head.leader_epoch,
                    head.record_count, head.size, head.codec, int(is_appended), head.max_timestamp * 1000,
                    head.producer_id, head.producer_epoch, head.base_sequence, head.is_transactional,
                    head.is_control, head.crc & 0xFFFFFFFF, part.key, head.position,
                )
            )  # fmt: skip
            if len(rows) == ROWS_MAX:
                yield _table(rows, BATCH_COLUMNS)
                rows = []
    if rows:
        yield _table(rows, BATCH_COLUMNS)


def _runs(task: Task) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    for part in task.parts:
        scanner = RunScanner(part.key, position=part.position)
        for stretch in read_part(part):
            for batch, _ in stretch.batches():
                scanner.feed(batch)
        rows += [
            (
                task.topic, task.partition, run.first, run.end, run.leader_epoch, run.batches, run.records,
                run.control, run.size, run.max_timestamp * 1000, part.key, run.position,
            )
            for run in scanner.finish().runs
        ]  # fmt: skip
    if rows:
        yield _table(rows, RUN_COLUMNS)


_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": _STAMP,
}


def _table(rows: list[tuple[Any, ...]], columns: str) -> pa.RecordBatch:
    fields = [tuple(each.split()) for each in columns.split(", ")]
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in fields])
    arrays = [pa.array(each, field.type) for each, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
