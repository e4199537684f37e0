"""The generated requests are what they say, and none is forgotten."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import SERVED, Api
from protocol.coding.schema import Schema, struct_schema
from protocol.messages import codec, decode_request
from protocol.wire import parse_head
from tests.hostile.shapes import Kind, Known, Shape, column, request, shapes_of, versions

SHAPES = [shape for api, version in versions() for shape in shapes_of(api, version)]
ROWS = 40


def array_paths(schema: Schema, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for each in (*schema.fields, *schema.tagged):
        path = (*above, each.name)
        if each.is_array:
            yield path
        if each.struct is not None:
            yield from array_paths(struct_schema(each.struct), path)


def test_every_array_of_every_version_that_is_served_has_a_shape() -> None:
    wanted = {
        (Api(key), version, path)
        for key, row in SERVED.items()
        for version in range(row.served_from, row.max_version + 1)
        for path in array_paths(codec(key, version, "request").schema)
    }
    assert wanted == {(s.api, s.version, s.path) for s in SHAPES if s.kind is Kind.REPEATED}


def long_part(message: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        message = getattr(message[0] if isinstance(message, tuple) else message, name)
    return message


@pytest.mark.parametrize("api", list(SERVED), ids=lambda api: Api(api).name)
def test_a_shape_is_a_sound_request_that_is_long_where_it_says(api: Api) -> None:
    for shape in SHAPES:
        if shape.api != api:
            continue
        frame, rows = request(shape, Known(batch=b"batch"), rows_max=ROWS, bytes_max=1 << 24)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        head = parse_head(memoryview(frame)[4:])
        assert (head.api_key, head.api_version) == (shape.api, shape.version)
        message = decode_request(api, shape.version, memoryview(frame)[4 + head.body_at :])
        check(shape, long_part(message, shape.path), rows)


def said(row: Any) -> str:
    return re.sub(r"<memory at \w+>", "records", repr(row))


def check(shape: Shape, part: Any, rows: int) -> None:
    match shape.kind:
        case Kind.BLOB:
            assert len(part) > 30_000, shape
        case Kind.TAGS:
            assert rows == ROWS
        case Kind.REPEATED:
            assert len(set(map(said, part))) == 1, shape
            assert ROWS / 4 <= len(part) <= rows <= ROWS, shape
        case Kind.DISTINCT | Kind.LONGEST:
            assert set(Counter(map(said, part)).values()) == {1}, shape
            assert ROWS / 4 <= len(part) <= rows <= ROWS, shape


def test_the_frame_limit_bounds_what_the_rows_do_not() -> None:
    (shape,) = (s for s in SHAPES if str(s) == "DescribeGroups v5 groups distinct")
    frame, rows = request(shape, rows_max=1 << 40, bytes_max=1 << 20)
    assert 0.8 < len(frame) / (1 << 20) <= 1
    assert rows > 80_000


@given(st.integers(2, 16), st.integers(0, 4), st.integers(1, 3000))
def test_columns_count(base: int, power: int, count: int) -> None:
    digits = bytes(range(base))
    assert list(column(digits, power, count)) == [number // base**power % base for number in range(count)]
