"""Columns of many batches are those of each batch, whichever way they are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.compression import Codec
from protocol.records import build_batch, parse_header
from tools.pipelines.columns import SCHEMA, Columns
from tools.verify.core.heads import Buffer
from tools.verify.core.record_table import GROUP_RECORDS, WIDTH_MIN, RecordTable, read_table

HEADERS = (("h", b"1"), ("i", None))


def batches(headers: tuple[tuple[str, bytes | None], ...] = ()) -> list[memoryview]:
    found, base = [], 100
    for number in range(2 * WIDTH_MIN):
        rows = [
            (None if number % 3 else b"key %d" % number, b"v" * (number % 200), headers, 1_000 + number),
            (b"", None, (), 2_000 - number),
        ]
        codec = list(Codec)[number % len(Codec)] if number % 2 else Codec.NONE
        found.append(memoryview(bytes(build_batch(rows, base_offset=base, codec=codec, leader_epoch=3))))
        base += 2
    return found


def read(data: list[memoryview], first: int, end: int) -> Columns:
    found = Columns("topic", 7)
    for each in data:
        found.add(each, parse_header(each, 0), first, end)
    return found


@pytest.mark.parametrize(("first", "end"), [(0, 1 << 40), (103, 171), (100, 101), (150, 150)])
@pytest.mark.parametrize("group_records", [GROUP_RECORDS, 130])
def test_a_table_of_many_is_that_of_each(
    first: int, end: int, group_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.pipelines.columns.GROUP_RECORDS", group_records)
    seen = []

    def noted(data: Sequence[Buffer]) -> RecordTable | None:
        seen.append(read_table(data))
        return seen[-1]

    monkeypatch.setattr("tools.pipelines.columns.read_table", noted)
    found = read(batches(), first, end).table()
    assert seen and seen[0] is not None
    monkeypatch.setattr("tools.pipelines.columns.read_table", lambda _: None)
    wanted = read(batches(), first, end).table()
    assert found.schema == wanted.schema == SCHEMA
    assert found.to_pylist() == wanted.to_pylist()
    assert found.num_rows == len([n for n in range(100, 100 + 4 * WIDTH_MIN) if first <= n < end])


def test_headers_are_kept() -> None:
    rows = read(batches(HEADERS), 0, 1 << 40).table().to_pylist()
    wanted = [{"key": name, "value": value} for name, value in HEADERS]
    assert [row["headers"] for row in rows] == [wanted, None] * (2 * WIDTH_MIN)


def test_no_batches_are_an_empty_table() -> None:
    found = Columns("topic", 7)
    assert len(found) == 0
    assert found.table().to_pylist() == [] and found.table().schema == SCHEMA
