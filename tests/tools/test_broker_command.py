"""`tidewal broker` read without typer: it never reads a command line differently from typer."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools import cli, commands
from tools.broker_command import (
    EXIT_WITH_STDIN,
    FILE_BYTES_MAX,
    BrokerOptions,
    _apply,
    _fill,
    read_config,
    read_plainly,
)
from tools.console import Failure

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


# --- a file that is not what it should be ---


def refusal(file: Path, **options: object) -> str:
    with pytest.raises(Failure) as refused:
        read_config(BrokerOptions(config=file, **options))  # type: ignore[arg-type]
    assert refused.value.exit_code != 0
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xfen\x00o\x00d\x00e\x00", "not a text in UTF-8, as its byte 0 tells"),
        (b"# caf\xe9\nnode.id=1\n", "as its byte 5 tells: save it as UTF-8"),
        (b"node.id=1\n\0\0", "not a text file: it has NUL bytes"),
        (b"#" * (FILE_BYTES_MAX + 1), f"larger than {FILE_BYTES_MAX} bytes"),
        (b"# " + "\u20ac".encode() * FILE_BYTES_MAX, f"larger than {FILE_BYTES_MAX} bytes"),
        (b"log.dirs=a\\u0000b", "Configuration log.dirs has a character that no text has"),
        (b"log.dirs=a\\ud800b", "Configuration log.dirs has a character that no text has"),
        (b"num.partitions=1\\n2", "Invalid value 1\\n2 for configuration num.partitions"),
        (b"num\\npartitions=1", "Unknown configuration num\\npartitions"),
        (b"num.partitions=" + b"1" * 5_000, "\u2026 (5000 characters)"),
        (b"log.dirs=\n", "'log.dirs' must not be empty"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_short_line(tmp_path: Path, data: bytes, why: str) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(data)
    line = refusal(file)
    assert why in line
    assert len(line) < 1500


def test_what_is_no_file_is_one_line_with_its_name(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"--config {tmp_path}: Is a directory"
    assert refusal(tmp_path / "none") == f"--config {tmp_path / 'none'}: No such file or directory"
    assert refusal(Path("/dev/zero")).startswith("--config /dev/zero: larger than ")
    assert refusal(Path("a" * 300)).endswith(": File name too long")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"\xef\xbb\xbfnum.partitions=7\r\n")
    assert read_config(BrokerOptions(config=file)).num_partitions == 7


def test_a_name_that_a_file_sets_twice_is_told_and_the_last_counts(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=7\nlog.dirs=/a\nnum.partitions : 8\nlog.dirs=/a\n")
    told: list[str] = []
    assert read_config(BrokerOptions(config=file), tell=told.append).num_partitions == 8
    (line,) = told
    assert line.startswith(f"--config {file}: sets num.partitions more than once, and the last value counts")
