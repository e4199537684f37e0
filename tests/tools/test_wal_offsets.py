"""`tidewal offsets` of topics that use the WAL tier, against real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clusters import ClusterProcesses
from tests.compat.peers import until
from tools import cli


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("wal"), brokers=2) as running:
        yield running


class Command:
    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self.capsys = capsys

    def __call__(self, *arguments: str) -> str:
        assert cli.run([*arguments, "--bootstrap", self.bootstrap]) == 0, self.capsys.readouterr().err
        return self.capsys.readouterr().out

    def offsets(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("offsets", topic, "--json"))
        return found


@pytest.fixture
def tidewal(cluster: ClusterProcesses, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(cluster.address(1), capsys)


def made(tidewal: Command, name: str, *, partitions: int) -> None:
    switch = ("--config", "remote.wal.storage.enable=true")
    tidewal("topics", "create", name, "--partitions", str(partitions), "--replication", "2", *switch)
    tidewal("bench", "produce", "--topic", name, "--records", "200", "--quiet")


def when_all(
    tidewal: Command, topic: str, holds: Callable[[dict[str, Any]], bool], what: str
) -> list[dict[str, Any]]:
    """Return the rows once it holds for each of them."""

    def rows() -> list[dict[str, Any]]:
        found = tidewal.offsets(topic)
        return found if all(map(holds, found)) else []

    return until(rows, what, timeout_s=60)


def is_stored(row: dict[str, Any]) -> bool:
    return bool(row["stored"] == row["log_end"])


def modes(row: dict[str, Any]) -> set[str]:
    return set((row["followers"] or {}).values())


@pytest.mark.requirement("1176-01", "1176-35")
def test_stored_ends_and_followers_until_the_topic_is_switched_off(tidewal: Command) -> None:
    made(tidewal, "tails", partitions=2)
    rows = when_all(tidewal, "tails", lambda row: is_stored(row) and bool(modes(row)), "all is stored")
    assert sum(row["stored"] for row in rows) == 200
    assert sorted(node for row in rows for node in row["followers"]) == ["1", "2"], "each leads one"
    assert all(modes(row) == {"pointers"} for row in rows)
    heads, *shown = tidewal("offsets", "tails").splitlines()
    assert heads.split()[-2:] == ["STORED", "FOLLOWERS"]
    assert {line.split()[-1] for line in shown} == {"1:pointers", "2:pointers"}
    tidewal("topics", "alter", "tails", "--config", "remote.wal.storage.enable=false")
    when_all(tidewal, "tails", lambda row: row["stored"] is row["followers"] is None, "it is stored no more")
    tidewal("topics", "alter", "tails", "--config", "remote.wal.storage.enable=true")
    when_all(tidewal, "tails", is_stored, "it is stored again")


@pytest.mark.requirement("1176-42")
def test_followers_are_sent_records_while_the_store_is_away(
    tidewal: Command, cluster: ClusterProcesses
) -> None:
    made(tidewal, "spilled", partitions=1)
    when_all(tidewal, "spilled", is_stored, "all is stored")
    objects = cluster.folder / "store" / "wal"
    objects.rename(away := objects.with_name("away"))
    objects.write_text("no folder: nothing can be put or read here")
    try:
        tidewal("bench", "produce", "--topic", "spilled", "--records", "200", "--quiet")
        rows = when_all(
            tidewal, "spilled", lambda row: modes(row) == {"direct"}, "followers are sent records"
        )
        assert all(row["stored"] < row["log_end"] for row in rows)
        when_all(
            tidewal, "spilled", lambda row: row["high_watermark"] == row["log_end"], "followers have all"
        )
    finally:
        objects.unlink()
        away.rename(objects)
    when_all(
        tidewal, "spilled", lambda row: is_stored(row) and modes(row) == {"pointers"}, "the store is back"
    )
