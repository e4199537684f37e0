"""`tidewal topics`, `tidewal offsets` and `tidewal bench` against a real broker process, through the real
sockets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import BrokerProcess
from tools import bench, cli


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for this file; each test has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


class Command:
    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self.capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What the command printed: its answer, or its complaint when `code` is not 0."""
        found = cli.run([*arguments, "--bootstrap", self.bootstrap])
        captured = self.capsys.readouterr()
        assert found == code, captured.err
        return captured.err if code else captured.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def tidewal(process: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(process.bootstrap, capsys)


def test_a_topic_from_create_to_delete(tidewal: Command) -> None:
    assert tidewal("topics", "create", "life", "-p", "3", "-c", "retention.ms=1000") == (
        "created topic life with 3 partitions\n"
    )
    assert "life" in tidewal("topics", "list").split()
    (described,) = tidewal.json("topics", "describe", "life")
    assert described["configs"] == {"retention.ms": "1000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert {row["leader"] for row in described["partitions"]} == {1}
    tidewal("topics", "alter", "life", "-p", "5", "-c", "segment.bytes=2000000", "--remove", "retention.ms")
    (described,) = tidewal.json("topics", "describe", "life")
    assert described["configs"] == {"segment.bytes": "2000000"}
    assert len(described["partitions"]) == 5
    assert "segment.bytes=2000000" in tidewal("topics", "describe", "life")
    assert tidewal("topics", "delete", "life") == "deleted topic life\n"
    assert "life" not in tidewal("topics", "list").split()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topics", "create", "mine"), "TOPIC_ALREADY_EXISTS"),
        (("topics", "create", "a/b"), "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "new", "-c", "no.such.config=1"), "INVALID_CONFIG"),
        (("topics", "alter", "mine", "-p", "1"), "INVALID_PARTITIONS"),
        (("topics", "alter", "mine"), "nothing to alter"),
        (("topics", "delete", "absent"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topics", "describe", "absent"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("offsets", "absent"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_refusal_is_one_line_with_kafkas_name(
    tidewal: Command, arguments: tuple[str, ...], says: str
) -> None:
    tidewal("topics", "create", "mine", "-p", "2", "--if-absent")
    code = 2 if says == "nothing to alter" else 1
    complaint = tidewal(*arguments, code=code)
    assert says in complaint
    assert len(complaint.splitlines()) == 1


def test_offsets_after_a_bench(tidewal: Command, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    small = ("--topic", "measured", "--quiet")
    tidewal(
        *("bench", "produce", *small, "--records", "500", "--record-size", "100", "--partitions", "2"),
        *("--acks", "all", "--compression", "zstd", "--in-flight", "2", "--json", str(result)),
    )
    written = json.loads(result.read_text())
    assert (written["records"], written["bytes"]) == (500, 50_000)
    assert written["latency_ms"]["p50"] <= written["latency_ms"]["p99"] <= written["latency_ms"]["max"]
    rows = tidewal.json("offsets", "measured")
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["log_end"] for row in rows) == 500
    for row in rows:
        assert row["high_watermark"] == row["last_stable"] == row["log_end"]
        assert (row["log_start"], row["local_start"]) == (0, 0)
        assert (row["last_tiered"], row["pending_upload"]) == (None, None)
        assert (row["stored"], row["followers"]) == (None, None)
    assert tidewal("offsets", "measured").split()[:4] == ["PARTITION", "LOG", "START", "LOCAL"]
    read = json.loads(tidewal("bench", "consume", *small, "--json", "-"))
    assert (read["records"], read["bytes"]) == (500, 50_000)


def test_bench_latency(tidewal: Command) -> None:
    result = json.loads(
        tidewal("bench", "latency", "--topic", "single", "--records", "20", "--quiet", "--json", "-")
    )
    assert result["records"] == 20
    assert result["acknowledged_ms"]["p50"] > 0
    assert result["received_ms"]["p50"] > 0


def test_a_record_larger_than_the_queue_is_the_brokers_to_refuse(tidewal: Command) -> None:
    size = str((bench.QUEUE_KB_MAX << 10) + 1)
    said = tidewal("bench", "produce", "--record-size", size, "--records", "1", "--quiet", code=1)
    assert "Message size too large" in said


def test_consume_says_what_is_missing(tidewal: Command) -> None:
    assert "topic absent" in tidewal("bench", "consume", "--topic", "absent", "--quiet", code=1)
    tidewal("topics", "create", "empty")
    assert "holds 0 records" in tidewal("bench", "consume", "--topic", "empty", "--quiet", code=1)
