"""`tidewal tier list`: every copy that may have objects, and how far the copying is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.ids import encode_id
from remote.cold.segments import SegmentState
from tests.tools.tier.tiered_topic import Tier
from tools import cli

HEADS = ["PARTITION", "BASE", "END", "BYTES", "STATE", "EPOCHS", "BROKER", "NEWEST", "ID"]


def listed(tier: Tier, *arguments: str) -> str:
    assert cli.run(["tier", "list", tier.topic, *arguments, "-b", tier.bootstrap]) == 0
    return tier.capsys.readouterr().out


def test_copies_are_listed_by_their_offsets_until_they_are_gone(tier: Tier) -> None:
    states = list(SegmentState)
    copies = [tier.copy(seed, base=1000 - 100 * seed).segment for seed in range(len(states))]
    for copy, state in zip(copies, states, strict=True):
        tier.say(copy, state)
    rows: list[dict[str, Any]] = json.loads(listed(tier, "--json"))
    assert [row["state"] for row in rows] == ["DELETE_STARTED", "COPY_FINISHED", "COPY_STARTED"]
    assert rows[1] == {
        "partition": 0,
        "base": 900,
        "end": 950,
        "bytes": 3000,
        "state": "COPY_FINISHED",
        "epochs": [0, 3],
        "broker": 1,
        "newest": "2023-11-14T22:13:20+00:00",
        "id": encode_id(copies[1].id),
    }
    printed = listed(tier).splitlines()
    assert printed[0].split() == HEADS
    assert printed[-1] == (
        f"{tier.topic}: 1 segments with 3.0 kB in the tier, 1 with 3.0 kB being copied, 1 being deleted"
    )


@pytest.mark.parametrize("options", [(), ("--json",), ("--watch", "--times", "1")])
def test_a_topic_that_is_not_tiered_is_refused_in_one_line(tier: Tier, options: tuple[str, ...]) -> None:
    assert cli.run(["tier", "list", tier.topic, *options, "-b", tier.bootstrap]) == 1
    told = tier.capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert f"topic {tier.topic} is not tiered" in line


def test_nothing_in_the_tier_is_an_empty_list(tier: Tier) -> None:
    enable = ("--config", "remote.storage.enable=true")
    assert cli.run(["topics", "alter", tier.topic, *enable, "-b", tier.bootstrap]) == 0
    tier.capsys.readouterr()
    assert json.loads(listed(tier, "--json")) == []


def test_watching_tells_line_by_line(tier: Tier) -> None:
    tier.say(tier.copy().segment, SegmentState.COPY_FINISHED)
    lines = listed(tier, "--watch", "--times", "2", "--every", "0.1").splitlines()
    assert (
        lines
        == [
            f"{tier.topic}: 1 segments with 3.0 kB in the tier, 0 with 0 B being copied, 0 being deleted, "
            "0 B/s copied, 0 offsets not there yet"
        ]
        * 2
    )
    printed = listed(tier, "-w", "--times", "2", "--every", "0.1", "--json")
    first, second = map(json.loads, printed.splitlines())
    assert first == second
    assert (first["segments"], first["bytes"], first["waiting_offsets"]) == (1, 3000, 0)


def test_what_compaction_leaves_is_read_to_its_end(tier: Tier) -> None:
    """Both keys of a copy, and nothing of one that is forgotten."""
    kept, gone = (tier.copy(seed) for seed in (1, 2))
    for what in (kept, gone):
        tier.say(what.segment, SegmentState.DELETE_STARTED)
    tier.forget(gone.segment)
    assert [row["id"] for row in json.loads(listed(tier, "--json"))] == [encode_id(kept.segment.id)]


@pytest.mark.parametrize(("command", "code"), [("list", 1), ("check", 2)])
def test_a_record_that_cannot_be_read_is_told_in_one_line(tier: Tier, command: str, code: int) -> None:
    tier.produce(tier.copy().segment.partition, [(b"key", b"\x01\x09\x00")])
    store = ["--store", tier.url] if command == "check" else []
    assert cli.run(["tier", command, tier.topic, *store, "-b", tier.bootstrap]) == code
    (line,) = tier.capsys.readouterr().err.splitlines()
    assert "a record of the cold tier of type 9" in line


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("absent",), "UNKNOWN_TOPIC_OR_PARTITION", 1),
        (("TOPIC", "--times", "0"), "greater than or equal to 1", 2),
        (("TOPIC", "-b", "nowhere"), "is not HOST:PORT", 2),
    ],
)
def test_bad_input_is_told_in_one_line(tier: Tier, arguments: tuple[str, ...], says: str, code: int) -> None:
    named = [tier.topic if word == "TOPIC" else word for word in arguments]
    assert cli.run(["tier", "list", "-b", tier.bootstrap, *named]) == code
    (line,) = tier.capsys.readouterr().err.splitlines()
    assert says in line
