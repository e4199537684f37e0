"""`tidewal tier wal`: what the metadata topic tells of objects against what the store has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol import records
from protocol.errors import ErrorCode
from remote.keys import Stream, WalPart, wal_key
from remote.wal.combined_object import ObjectKind, Place
from remote.wal.journal import (
    LogRow,
    ObjectState,
    Teller,
    deletion_rows,
    encode_slices,
    finished_row,
    stream_rows,
)
from tests.compat.peers import unique
from tests.processes import BrokerProcess
from tests.remote.wal.wal_samples import some_object
from tests.tools.tier.tiered_topic import NOW_MS, Tier
from tools import cli
from tools.client import Client
from tools.tier import wal

STREAM = Stream(1, 7, 0)
TELLER = Teller(1, NOW_MS)


class Objects:
    """Objects in the store of a running broker, and what is told of them in a topic of another name."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def put(self, seq: int, *, kind: ObjectKind = ObjectKind.SLICES, is_told: bool = True) -> Path:
        metadata, data = some_object(place=Place(STREAM, seq), put_id=seq.to_bytes(16), kind=kind)
        path = self.tier.root / wal_key(STREAM, seq)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if is_told:
            entries = b"".join(encode_slices(metadata.head.put_id, metadata.rows))
            self.say([finished_row(metadata.place, metadata.head.put_id, entries, TELLER)])
        return path

    def say(self, rows: list[LogRow]) -> None:
        batch = bytes(records.build_batch([(key, value, (), NOW_MS) for key, value in rows]))

        async def produced(client: Client) -> None:
            answer = await client.produce(wal.METADATA_TOPIC, 0, batch)
            assert answer.error_code == ErrorCode.none

        self.tier._ask(produced)

    def delete(self, seq: int, state: ObjectState) -> None:
        self.say(deletion_rows(Place(STREAM, seq), state, TELLER))

    def listed(self, *, code: int = 0) -> tuple[list[tuple[int, str | None, bool]], list[tuple[str, str]]]:
        command = ["tier", "wal", "--store", self.tier.url, "--json", "-b", self.tier.bootstrap]
        assert cli.run(command) == code
        found = json.loads(self.tier.capsys.readouterr().out)
        assert found["sound"] is (code == 0)
        objects = [(each["seq"], each["told"], each["stored"]) for each in found["objects"]]
        return objects, [(each["problem"], each["where"]) for each in found["problems"]]


@pytest.fixture
def objects(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Objects]:
    tier = Tier(process, unique("wal"), capsys)
    monkeypatch.setattr(wal, "METADATA_TOPIC", tier.metadata)
    yield Objects(tier)
    for path in tier.root.glob("wal/**/*"):
        if path.is_file():
            path.unlink()


@pytest.mark.requirement("1176-22")
def test_what_is_told_and_there_is_listed(objects: Objects) -> None:
    objects.say(stream_rows(STREAM, ObjectState.COPY_STARTED, TELLER))
    for seq in range(3):
        objects.put(seq)
    assert objects.listed() == ([(seq, "COPY_FINISHED", True) for seq in range(3)], [])


def test_nothing_told_and_nothing_stored_is_sound(objects: Objects) -> None:
    assert objects.listed() == ([], [])


@pytest.mark.requirement("1176-22", "1176-27")
def test_one_who_comes_late_meets_objects_that_go_and_none_that_are_gone(objects: Objects) -> None:
    paths = [objects.put(seq) for seq in range(4)]
    for seq in (0, 1):
        objects.delete(seq, ObjectState.DELETE_STARTED)
    paths[0].unlink()
    boundary = objects.tier.root / wal_key(STREAM, 1, WalPart.BOUNDARY)
    boundary.parent.mkdir(parents=True)
    boundary.touch()
    objects.delete(0, ObjectState.DELETE_FINISHED)
    told = [(1, "DELETE_STARTED", False), (2, "COPY_FINISHED", True), (3, "COPY_FINISHED", True)]
    assert objects.listed() == (told, [])


def test_where_they_differ_is_said(objects: Objects) -> None:
    first = objects.put(0)
    lost = objects.put(1)
    objects.put(2)
    lost.unlink()
    assert objects.listed(code=1)[1] == [("missing", "1-7-0/1"), ("missing", "1-7-0/2")]
    objects.put(1, is_told=False)
    objects.put(3, is_told=False)
    assert objects.listed(code=1)[1] == [("untold", "1-7-0/3")]
    metadata, data = some_object(place=Place(STREAM, 0), put_id=b"?" * 16)
    first.write_bytes(data)
    assert objects.listed(code=1)[1] == [("other", "1-7-0/0"), ("untold", "1-7-0/3")]
    assert metadata.place.seq == 0


def test_what_lies_above_a_seal_counts_for_nothing(objects: Objects) -> None:
    objects.put(0)
    objects.put(1, kind=ObjectKind.SEAL, is_told=False)
    objects.put(2, is_told=False)
    assert objects.listed() == ([(0, "COPY_FINISHED", True)], [])


def test_it_is_shown_as_a_table(objects: Objects) -> None:
    objects.put(0)
    objects.put(1, is_told=False)
    assert cli.run(["tier", "wal", "--store", objects.tier.url, "-b", objects.tier.bootstrap]) == 1
    told = objects.tier.capsys.readouterr()
    assert told.out.splitlines()[0].split() == [name.upper() for name in wal._HEADS]
    assert told.err == "tidewal: 1 untold\n"
