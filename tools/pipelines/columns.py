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
        rows = [*iter_records(batch, 0, header)]
        if header.base_offset < first or header.next_offset > end:
            rows = [row for row in rows if first <= row.offset < end]
        if not rows:
            return
        offsets, timestamps, keys, values, headers = zip(*rows, strict=True)
        self._offsets += offsets
        self._timestamps += timestamps
        self._keys += keys
        self._values += values
        kind = LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME
        self._types += [kind] * len(rows)
        self._headers += [
            [{"key": name, "value": data} for name, data in each] if each else None for each in headers
        ]

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
