"""Record batches as columns of Arrow, named and typed as Spark's Kafka source has them.

Owns the schema and the way from batches to it. Does not own which batches (source) or where the table goes.
Invariant: one row for each record of the batches within the offsets that were asked for, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.records import BatchHeader, iter_records, parse_header
from tools.verify.core.record_table import (
    GROUP_BYTES,
    GROUP_RECORDS,
    WIDTH_MIN,
    RecordTable,
    read_stretch,
    read_table,
)
from tools.verify.core.stretches import Numbers, Stretch

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
_Wanted = tuple[memoryview, BatchHeader, int, int]
"""A batch, and which offsets of it."""


class Columns:
    """Rows of one partition that are not a table yet."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._group: list[_Wanted] = []
        self._group_records = self._group_bytes = 0
        self._tables: list[pa.Table] = []
        self._rows = 0

    def __len__(self) -> int:
        """Return how many rows there are, at most."""
        return self._rows + self._group_records

    def add(self, batch: memoryview, header: BatchHeader, first: int, end: int) -> None:
        """Add the batch's records with offsets of [first, end)."""
        self._group.append((batch, header, first, end))
        self._group_records += max(header.count, 0)
        self._group_bytes += len(batch)
        if self._group_records >= GROUP_RECORDS or self._group_bytes >= GROUP_BYTES:
            self._close_group()

    def add_stretch(self, stretch: Stretch, first: int, end: int) -> None:
        """Add the records of batches of data with offsets of [first, end)."""
        self._close_group()
        found = read_stretch(stretch)
        if found is None:
            for batch in stretch.batches():
                self.add(batch.data, parse_header(batch.data, 0), first, end)
            return
        self._keep(self._at_once(found, (found.offsets >= first) & (found.offsets < end)))

    def table(self) -> pa.Table:
        self._close_group()
        return pa.concat_tables(self._tables) if self._tables else SCHEMA.empty_table()

    def _close_group(self) -> None:
        group, self._group = self._group, []
        self._group_records = self._group_bytes = 0
        if group:
            found = read_table([each[0] for each in group]) if len(group) >= WIDTH_MIN else None
            if found is None:
                self._keep(self._one_by_one(group))
                return
            counts = [header.count for _, header, _, _ in group]
            firsts, ends = (np.repeat([each[place] for each in group], counts) for place in (2, 3))
            self._keep(self._at_once(found, (found.offsets >= firsts) & (found.offsets < ends)))

    def _keep(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows

    def _at_once(self, found: RecordTable, is_wanted: npt.NDArray[np.bool_]) -> pa.Table:
        keys, values = (
            _pieces(found.plain, starts, ends)
            for starts, ends in (
                (found.key_starts, found.key_ends),
                (found.value_starts, found.value_ends),
            )
        )
        rows = len(found.offsets)
        table = self._named(
            rows,
            keys,
            values,
            pa.array(found.offsets),
            pa.array(found.timestamps),
            pa.array(found.is_appended.astype(np.int32)),
            pa.nulls(rows, HEADERS),
        )
        return table if is_wanted.all() else table.filter(pa.array(is_wanted))

    def _one_by_one(self, group: Sequence[_Wanted]) -> pa.Table:
        columns: tuple[list[Any], ...] = ([], [], [], [], [])
        types: list[int] = []
        for batch, header, first, end in group:
            rows = [*iter_records(batch, 0, header)]
            if header.base_offset < first or header.next_offset > end:
                rows = [row for row in rows if first <= row.offset < end]
            for column, more in zip(columns, zip(*rows, strict=True), strict=False):
                column += more
            types += [LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME] * len(rows)
        offsets, timestamps, keys, values, headers = columns
        return self._named(
            len(types),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.int64()),
            pa.array(types, pa.int32()),
            pa.array(
                [[{"key": name, "value": data} for name, data in each] if each else None for each in headers],
                HEADERS,
            ),
        )

    def _named(
        self, rows: int, keys: Any, values: Any, offsets: Any, timestamps: Any, types: Any, headers: Any
    ) -> pa.Table:
        zeros = pa.array(np.zeros(rows, np.int32))
        columns = [
            keys,
            values,
            pa.array([self._topic], pa.string()).take(zeros),
            pa.array(np.full(rows, self._partition, np.int32)),
            offsets,
            timestamps.cast(SCHEMA.field("timestamp").type),
            types,
            headers,
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _pieces(plain: memoryview, starts: Numbers, ends: Numbers) -> Any:
    """Return these bytes of `plain` as a column: of what lies between its bounds, every second piece."""
    is_null = starts < 0
    if is_null.all():
        return pa.nulls(len(starts), pa.binary())
    bounds = np.empty(2 * len(starts) + 1, np.int32)
    bounds[:-1:2] = np.where(is_null, ends, starts)
    bounds[1::2] = ends
    bounds[-1] = ends[-1]
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(starts), [None, pa.py_buffer(bounds), pa.py_buffer(plain)]
    )
    every_second = np.arange(0, 2 * len(starts), 2, dtype=np.int32)
    return whole.take(pa.array(every_second, mask=is_null))
