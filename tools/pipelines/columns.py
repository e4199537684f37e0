"""Record batches as columns of Arrow, named and typed as Spark's Kafka source has them.

Owns the schema and the way from batches to it. Does not own which batches (source) or where the table goes.
Invariant: one row for each record of the batches within the offsets that were asked for, in their order.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from protocol.records import BatchHeader, iter_records

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("headers", HEADERS),
    ]
)
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1


class Columns:
    """Rows of one partition that are not a table yet."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._types: list[int] = []
        self._headers: list[list[dict[str, Any]] | None] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: memoryview, header: BatchHeader, first: int, end: int) -> None:
        """Add the batch's records with offsets of [first, end)."""
        kind = LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME
        keys, values, offsets = self._keys.append, self._values.append, self._offsets.append
        timestamps, types, all_headers = self._timestamps.append, self._types.append, self._headers.append
        for offset, timestamp, key, value, headers in iter_records(batch, 0, header):
            if first <= offset < end:
                keys(key)
                values(value)
                offsets(offset)
                timestamps(timestamp)
                types(kind)
                all_headers([{"key": name, "value": data} for name, data in headers] or None)

    def table(self) -> pa.Table:
        rows = len(self)
        return pa.Table.from_arrays(
            [
                pa.array(self._keys, pa.binary()),
                pa.array(self._values, pa.binary()),
                pa.array([self._topic], pa.string()).take(pa.array([0] * rows, pa.int32())),
                pa.array([self._partition] * rows, pa.int32()),
                pa.array(self._offsets, pa.int64()),
                pa.array(self._timestamps, pa.timestamp("ms", tz="UTC")),
                pa.array(self._types, pa.int32()),
                pa.array(self._headers, HEADERS),
            ],
            schema=SCHEMA,
        )
