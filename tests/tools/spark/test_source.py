"""`format("tidewal")` gives the rows of `format("kafka")`, while no broker runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.compat.samples import FIRST_MS
from tests.tools.verify.left_behind import KINDS, STEP_MS, LeftBehind, leave

pytestmark = pytest.mark.spark

COMMITTED = {"kafka.isolation.level": "read_committed"}
HEADERS = {"includeHeaders": "true"}


def at(name: str, offset: int) -> str:
    return json.dumps({name: {"0": offset}})


READS: Mapping[str, Mapping[str, Any]] = {
    "all there is": {"subscribe": ",".join(KINDS), **HEADERS},
    "what is committed": {"subscribe": "tiers,open", **HEADERS, **COMMITTED},
    "by offset": {
        "assign": '{"tiers": [0]}',
        "startingOffsets": at("tiers", 33),
        "endingOffsets": at("tiers", 401),
        **COMMITTED,
    },
    "by time": {
        "subscribe": "tiers",
        "startingTimestamp": FIRST_MS + 20 * STEP_MS,
        "endingTimestamp": FIRST_MS + 90 * STEP_MS,
    },
    "by time and partition": {
        "subscribe": "open",
        "startingOffsetsByTimestamp": at("open", FIRST_MS + 50 * STEP_MS),
        "endingOffsets": at("open", -1),
    },
    "above the start that is left": {
        "subscribe": "cut",
        "startingOffsets": at("cut", 0),
        "failOnDataLoss": "false",
    },
}


@dataclass(frozen=True, slots=True)
class World:
    left: LeftBehind
    rows: Mapping[str, tuple[Any, list[Any]]]
    """By read: schema and rows of format("kafka")."""


@pytest.fixture(scope="module")
def world(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    left, broker = leave(tmp_path_factory.mktemp("left"), keep_running=True)
    try:
        rows = {}
        for about, options in READS.items():
            reader = spark_session.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
            found = with_options(reader, {"kafka.fetch.max.wait.ms": 10, **options}).load()
            rows[about] = found.schema, in_order(found)
        assert broker.process.terminate() == 0
    finally:
        broker.close()
    yield World(left, rows)


def with_options(reader: Any, options: Mapping[str, Any]) -> Any:
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def in_order(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def both(left: LeftBehind) -> dict[str, str]:
    return {"store": left.url, "data": str(left.data)}


@pytest.mark.parametrize("about", READS)
def test_the_rows_are_those_of_kafka(spark: Any, world: World, about: str) -> None:
    schema, wanted = world.rows[about]
    found = with_options(spark.read.format("tidewal"), {**both(world.left), **READS[about]}).load()
    assert found.schema == schema
    assert in_order(found) == wanted
    assert len(wanted) > 20


def test_from_the_store_alone_by_pattern_in_many_tasks(spark: Any, world: World) -> None:
    reader = spark.read.format("tidewal").option("store", world.left.url).option("minPartitions", 12)
    frame = with_options(reader, {"subscribePattern": "ti.*|cu.", **HEADERS}).load()
    assert frame.rdd.getNumPartitions() > 6
    wanted = [row for row in world.rows["all there is"][1] if row.topic in ("tiers", "cut")]
    assert in_order(frame) == wanted


def test_in_sql(spark: Any, world: World) -> None:
    spark.sql(
        f"create or replace temporary view plain using tidewal "
        f"options (store '{world.left.url}', data '{world.left.data}', subscribe 'plain')"
    )
    (row,) = spark.sql("select count(*) as n, max(offset) as last from plain where key is not null").collect()
    rows = [each for each in world.rows["all there is"][1] if each.topic == "plain"]
    assert (row.n, row.last) == (sum(each.key is not None for each in rows), rows[-1].offset)


def test_views_of_batches_and_runs(spark: Any, world: World) -> None:
    reader = with_options(spark.read.format("tidewal"), {**both(world.left), "assign": '{"tiers": [0]}'})
    batches = sorted(reader.option("view", "batches").load().collect(), key=lambda row: row.base_offset)
    raw = world.left.answers["tiers"].raw
    assert sum(row.size for row in batches) == len(raw)
    assert {row.codec for row in batches} == set(range(5))
    assert any(row.is_control for row in batches) and any(row.is_transactional for row in batches)
    at_byte = 0
    for row in batches:
        assert (row.base_offset, row.crc) == (
            int.from_bytes(raw[at_byte : at_byte + 8], "big"),
            int.from_bytes(raw[at_byte + 17 : at_byte + 21], "big"),
        )
        at_byte += row.size
    runs = sorted(reader.option("view", "runs").load().collect(), key=lambda row: row.first_offset)
    assert sum(row.batches for row in runs) == len(batches)
    assert [row.first_offset for row in runs[1:]] == [row.end_offset for row in runs[:-1]]
    assert {row.leader_epoch for row in runs} == {row.leader_epoch for row in batches}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"subscribe": "plain", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "cut", "startingOffsets": at("cut", 0)}, "data was lost: cut-0 has offsets 9 to"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(
    spark: Any, world: World, options: dict[str, str], wanted: str
) -> None:
    with pytest.raises(Exception, match=re.escape(wanted)) as raised:
        with_options(spark.read.format("tidewal"), {**both(world.left), **options}).load().count()
    assert "Traceback" not in str(raised.value)


def test_what_is_damaged_is_told(spark: Any, world: World, tmp_path: Path) -> None:
    shutil.copytree(world.left.data, tmp_path / "data")
    log = sorted((tmp_path / "data" / "plain-0").glob("*.log"))[-1]
    whole = bytearray(log.read_bytes())
    first_size = 12 + int.from_bytes(whole[8:12], "big")
    whole[first_size + 300] ^= 1
    log.write_bytes(whole)
    reader = with_options(spark.read.format("tidewal"), {"data": f"{tmp_path}/data", "subscribe": "plain"})
    with pytest.raises(Exception, match=r"data was lost: plain-0: offsets \d+ to \d+ are in no place"):
        reader.load().count()
    found = reader.option("failOnDataLoss", "false").load().count()
    assert 0 < found < sum(row.topic == "plain" for row in world.rows["all there is"][1])
