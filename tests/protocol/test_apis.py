"""The API table against Kafka's answer and kio's schemas."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import protocol
from protocol.apis import SERVED, Api, is_supported, request_header_version, response_header_version
from protocol.messages import codec
from protocol.peers import EXTENDED
from tests.protocol.generate import KINDS

RANGES = Path(protocol.__file__).parent / "data" / "kafka-4.3.1-api-versions.txt"


def test_ranges_are_those_of_kafka() -> None:
    text = RANGES.read_text()
    for row in SERVED.values():
        line = re.search(rf"^{row.name}\({int(row.api)}\): (\d+)(?: to (\d+))?$", text, re.MULTILINE)
        assert line is not None, row
        assert (row.min_version, row.max_version) == (int(line[1]), int(line[2] or line[1]))


def test_every_api_has_a_row() -> None:
    assert set(SERVED) == set(Api)


def test_produce_before_3_is_listed_and_not_served() -> None:
    assert SERVED[Api.PRODUCE].min_version == 0
    assert [version for version in range(15) if is_supported(Api.PRODUCE, version)] == list(range(3, 14))


@pytest.mark.parametrize(
    ("key", "version"), [(99, 0), (Api.FETCH, 3), (Api.FETCH, 19), (-1, 0), (Api.METADATA, -1)]
)
def test_what_is_not_served(key: int, version: int) -> None:
    assert not is_supported(key, version)


@pytest.mark.parametrize("key", SERVED)
def test_flexible_versions_and_headers_are_those_of_the_schemas(key: int) -> None:
    row = SERVED[key]
    for version in range(row.served_from, row.max_version + 1):
        for kind in KINDS:
            cls = codec(key, version, kind).schema.cls
            assert cls.__flexible__ == (version >= row.flexible_from)
            assert (cls.__api_key__, cls.__version__) == (key, version)
            if (key, version, kind) in EXTENDED:
                continue  # without the header, which costs an import at each start
            header_version = request_header_version if kind == "request" else response_header_version
            assert cls.__header_schema__.__version__ == header_version(key, version)


def test_kio_knows_every_name() -> None:
    for row in SERVED.values():
        import_module(f"kio.schema.{row.kio_name}")
