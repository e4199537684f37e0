"""A topic is copied from what its broker left: batches that were committed, each record once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from protocol.records import Record, iter_records
from tests.processes import BrokerProcess
from tests.tools.verify.left_behind import LeftBehind, leave
from tools.cli import run
from tools.client import Address, Client
from tools.console import Failure
from tools.pipelines.object_source import ObjectSource
from tools.topic_source import BatchSource, BrokerSource, OffsetsGone, Piece


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> LeftBehind:
    return leave(tmp_path_factory.mktemp("left"))[0]


async def delivered(source: BatchSource, start: int, end: int) -> list[Piece]:
    found = [piece async for piece in source.read(0, start, end)]
    assert found[0].first == start
    assert [piece.first for piece in found[1:]] == [piece.end for piece in found[:-1]]
    assert found[-1].end >= end
    return found


@pytest.mark.parametrize("name", ["tiers", "open", "compact"])
async def test_pieces_are_those_of_the_broker(left: LeftBehind, name: str) -> None:
    source = await ObjectSource.open([left.url, str(left.data)], name)
    wanted = left.answers[name]
    start, end = await source.bounds(0)
    assert (start, end) == (wanted.start, wanted.stable_end)
    found = await delivered(source, start, end)
    assert [(each.end, bytes(each.batch)) for each in found if each.batch is not None] == wanted.committed


async def test_what_cannot_be_read(left: LeftBehind, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="topic nope is not one of"):
        await ObjectSource.open([left.url], "nope")
    with pytest.raises(Failure, match="none: No such file"):
        await ObjectSource.open([f"file://{tmp_path}/none"], "cut")
    source = await ObjectSource.open([left.url], "cut")
    with pytest.raises(OffsetsGone):
        await delivered(source, 0, 20)


def records_of(bootstrap: str, topic: str) -> list[Record]:
    async def read() -> list[Record]:
        async with Client([Address.parse(bootstrap)]) as client:
            source = await BrokerSource(client, topic).open()
            start, end = await source.bounds(0)
            return [
                record
                for piece in await delivered(source, start, end)
                if piece.batch is not None
                for record in iter_records(piece.batch)
            ]

    return asyncio.run(read())


@pytest.mark.parametrize("where", ["store", "both"])
def test_replay_without_a_broker(
    left: LeftBehind, where: str, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    to = broker_process.bootstrap
    line = ["replay", "tiers", "--store", left.url, "--to", to, "--to-topic", "copy"]
    line += ["--state", f"{tmp_path}/state"]
    if where == "both":
        line += ["--data", str(left.data)]
    assert run(line) == 0
    wanted = [
        record for _, batch in left.answers["tiers"].committed for record in iter_records(memoryview(batch))
    ]
    found = records_of(to, "copy")
    assert [(each.key, each.value, each.headers, each.timestamp) for each in found] == [
        (each.key, each.value, each.headers, each.timestamp) for each in wanted
    ]
    assert run(line) == 0
    assert len(records_of(to, "copy")) == len(wanted)


def test_a_wrong_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "t", "--to", "a:1", "--store", "somewhere"]) == 2
    assert "--store somewhere: give file:///DIR" in capsys.readouterr().err
