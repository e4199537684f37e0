"""What a wrong command line, or a topic that cannot be, ends with: one line, and a code that is not 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import BrokerProcess
from tools.cli import run

WRONG = [
    ("export t --to nonsense", "nonsense: give file:///DIR"),
    ("export t --to file:///tmp --compression brotli", "--compression brotli"),
    ("export t --to file:///tmp -b nowhere", "--bootstrap: 'nowhere' is not HOST:PORT"),
    ("replay t --to nowhere", "--to: 'nowhere' is not HOST:PORT"),
    ("replay t --to a:1 --since x", "--since x: not a time"),
    ("replay t --to a:1 --since 2026-05-02 --until 2026-05-01", "--since is not before --until"),
]


@pytest.mark.parametrize(("line", "wanted"), WRONG)
def test_a_wrong_command_line(line: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    assert wanted in capsys.readouterr().err


def test_a_topic_that_cannot_be(
    broker_process: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = broker_process.bootstrap
    unknown = "topic nope: UNKNOWN_TOPIC_OR_PARTITION"
    assert run(["export", "nope", "--to", f"file://{tmp_path}/out", "-b", at]) == 1
    assert unknown in capsys.readouterr().err
    copy = ["replay", "-b", at, "--to", at, "--state", f"{tmp_path}/state"]
    assert run([*copy, "nope"]) == 1
    assert unknown in capsys.readouterr().err
    assert run(["topics", "create", "t", "-b", at]) == 0
    assert run([*copy, "t"]) == 2
    assert "a topic is not replayed to itself" in capsys.readouterr().err
    assert run([*copy, "t", "--to-topic", "a b"]) == 1
    assert "INVALID_TOPIC_EXCEPTION" in capsys.readouterr().err
