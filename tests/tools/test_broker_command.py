"""`tidewal broker` read without typer: it never reads a command line differently from typer."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools import cli, commands
from tools.broker_command import EXIT_WITH_STDIN, BrokerOptions, _apply, _fill, read_config, read_plainly

VALUES = ("1", "x", "127.0.0.1:0", "key=value", "", "-1", "--data", "-", "٣", "a b")
NAMES = ("--config", "--node-id", "--listen", "--data", "--store", "--admin", "--set")
OTHERS = ("--from-env", "--exit-with-stdin", "--help", "-h", "--", "--lis", "--unknown", "word", "-x")
arguments = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)),
        st.builds(lambda name, value: (f"{name}={value}",), st.sampled_from(NAMES), st.sampled_from(VALUES)),
        st.tuples(st.sampled_from(NAMES + OTHERS)),
    ),
    max_size=5,
).map(lambda parts: [word for part in parts for word in part])


def test_every_option_of_the_help_is_read() -> None:
    command = typer.main.get_command(commands.app).commands["broker"]  # type: ignore[attr-defined]
    named = {name for option in command.params for name in option.opts} - {"--help", "-h"}
    assert named == {*NAMES, "--from-env", EXIT_WITH_STDIN}
    assert read_plainly(["--from-env"]) == BrokerOptions(from_env=True)
    assert read_plainly([EXIT_WITH_STDIN]) == BrokerOptions(exit_with_stdin=True)
    for name in NAMES:
        assert read_plainly([name, "1"]) is not None
        assert read_plainly([f"{name}=1"]) is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=arguments)
def test_agrees_with_typer(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    plainly = read_plainly(words)
    if plainly is None:
        return
    found: list[BrokerOptions] = []
    monkeypatch.setattr(commands, "run_broker", found.append)
    assert cli._run_any(["broker", *words]) == 0
    assert found == [plainly]


@pytest.mark.requirement("1176-09")
@pytest.mark.parametrize(
    ("store", "interval_ms"),
    [
        (None, 20),
        ("file:///store", 20),
        ("s3://bucket/prefix?region=eu-west-1", 100),
        ("s3://bucket?endpoint=http://127.0.0.1:9000", 20),
        ("s3://BAD", 20),
    ],
)
def test_the_wal_tiers_interval_follows_the_store(
    monkeypatch: pytest.MonkeyPatch, store: str | None, interval_ms: int
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    config = read_config(BrokerOptions(store=store))
    assert config.remote_wal_log_manager_combiner_task_interval_ms == interval_ms


def test_options_win_over_the_file() -> None:
    properties = {
        "broker.id": "3",
        "listeners": "PLAINTEXT://:9092",
        "advertised.listeners": "PLAINTEXT://elsewhere:9092",
        "log.dir": "/file",
    }
    _apply(BrokerOptions(node_id=7, listen="127.0.0.1:0", data=Path("/option")), properties)
    assert properties == {"node.id": "7", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/option"}


def test_the_file_wins_over_defaults() -> None:
    properties = {"broker.id": "3", "listeners": "PLAINTEXT://:1", "log.dir": "/file"}
    before = dict(properties)
    _apply(BrokerOptions(), properties)
    _fill(properties)
    assert properties == before


def test_defaults() -> None:
    properties: dict[str, str] = {}
    _fill(properties)
    assert properties == {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": ".tidewal"}
