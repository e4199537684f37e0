"""The options of the stand-ins for Kafka's scripts; tests/e2e/test_kafka_scripts.py asks a real broker."""

from __future__ import annotations

import pytest

from tools import cli
from tools.console import Failure
from tools.kafka_scripts.options import parse


def test_values_follow_an_equals_sign_or_are_the_next_word() -> None:
    given = parse(
        "s",
        ["--config", "a=1", "-config=b=2", "-list", "3"],
        flags=["--list"],
        valued=["--config"],
        words=1,
    )
    assert given.pairs("--config") == {"a": "1", "b": "2"}
    assert (given.flags, given.words, given.one("--config")) == ({"--list"}, ["3"], "b=2")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--nope"], "s: --nope is not taken by this stand-in for Kafka's script, but --list, --partitions"),
        (["word"], "s: word is not taken by this stand-in for Kafka's script, but --list, --partitions"),
        (["--partitions"], "s: --partitions has no value"),
    ],
)
def test_what_is_not_taken_is_named(arguments: list[str], line: str) -> None:
    with pytest.raises(Failure) as caught:
        parse("s", arguments, flags=["--list"], valued=["--partitions"])
    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["", "-", "x", "0", "-1", "٣", "9" * 19])
def test_a_number_is_one(text: str) -> None:
    given = parse("s", ["--partitions", text], valued=["--partitions"])
    with pytest.raises(Failure):
        given.number("--partitions", 1, least=1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["kafka-acls.sh", "--list"], "kafka-acls has no stand-in here ("),
        (["/opt/kafka/bin/kafka-topics.sh", "--list"], "kafka-topics: --bootstrap-server is missing"),
        (["kafka-topics", "--list", "--create"], "kafka-topics: give one of --list, --describe, --create"),
        (
            ["kafka-topics", "--bootstrap-server", "9092", "--list"],
            "--bootstrap-server: '9092' is not HOST:PORT",
        ),
        (
            ["kafka-storage", "format", "--add-scram", "x"],
            "kafka-storage: --add-scram: this release serves no SASL",
        ),
        (["cub", "zk-ready", "zk:2181", "1"], "cub: 1 is not taken by this stand-in"),
        (["cub", "kafka-ready", "1"], "cub: kafka-ready needs -b HOST:PORT, a number of brokers and"),
        (
            ["kafka-console-consumer", "--topic", "t", "--group", "g"],
            "kafka-console-consumer: --group is not",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    assert cli.run(["kafka-script", *arguments]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"tidewal: {line}")
    assert captured.err.count("\n") == 1
