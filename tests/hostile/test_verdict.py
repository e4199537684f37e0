"""What is over a limit is named, and an interrupted sweep goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from protocol.apis import SERVED
from tests.hostile.attacks import ATTACKS, WRONG
from tests.hostile.cluster import Clients, Proof
from tests.hostile.ground import Measured
from tests.hostile.probe import Seen
from tests.hostile.sweep import Left, Sent, Sweep, chosen, worst
from tests.hostile.table import markdown, row_of

QUIET = Measured(wait_ms=5, raw_wait_ms=9, peak_mb=100, left_mb=1, answers=1000, lost=0)
SENT = Sent(
    api="Metadata", shape="Metadata v12 topics", rows=9, mb=1, wait_ms=9, peak_mb=9, outcome="answered"
)
REST = Clients(librdkafka=Seen(answers=9, waits_ms=[2.0] * 100), java_p99_ms=4, java_asked=9, java_sent=9)
PROOF = Proof(
    seconds=300,
    rest=REST,
    attacked=replace(REST, librdkafka=Seen(answers=9, waits_ms=[9.0] * 100), java_p99_ms=20),
    changes={"fencings": 0, "ISR changes": 0},
    controllers=(1, 1),
    peak_mb=10,
    outcomes={"Metadata: answered": 7},
)


def test_the_median_wait_counts_and_the_worst_memory() -> None:
    runs = [QUIET, replace(QUIET, wait_ms=500), replace(QUIET, wait_ms=7, peak_mb=200)]
    row = row_of(ATTACKS[0], runs)
    assert (row.wait_ms, row.peak_mb) == (7, 200)
    assert row.is_within
    assert "**" not in markdown([row])


@pytest.mark.parametrize(
    "cost",
    [{"wait_ms": 51}, {"peak_mb": 257}, {"left_mb": 33}, {"lost": 1}, {"note": f"{WRONG}errors [0]"}],
    ids=str,
)
def test_what_is_over_a_limit_is_named(cost: dict[str, object]) -> None:
    row = row_of(ATTACKS[0], [replace(QUIET, **cost)] * 3)  # type: ignore[arg-type]
    assert not row.is_within
    assert f"**{row.name}**" in markdown([row])


@pytest.mark.parametrize(
    "cost",
    [{"wait_ms": 51}, {"peak_mb": 257}, {"lost": 1}, {"outcome": "silent"}, {"outcome": "dead"}],
    ids=str,
)
def test_one_request_over_a_limit_is_the_worst_of_its_api(cost: dict[str, object]) -> None:
    bad = replace(SENT, **cost)  # type: ignore[arg-type]
    assert not bad.is_within
    assert [row.is_within for row in worst([SENT, bad, SENT], [])] == [False]
    assert [row.is_within for row in worst([SENT, SENT], [Left(api="Metadata", left_mb=2)])] == [True]
    assert [row.is_within for row in worst([SENT], [Left(api="Metadata", left_mb=33)])] == [False]


def test_a_sweep_goes_on_where_its_journal_ends(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    rows = [asdict(SENT), asdict(Left(api="Metadata", left_mb=1.0))]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sweep = Sweep(journal, only=["Metadata"])
    assert (sweep.sent, sweep.left) == ([SENT], [Left(api="Metadata", left_mb=1.0)])
    assert not list(sweep.run()), "an API whose memory was looked at is done"


@pytest.mark.parametrize(
    "change",
    [
        {"changes": {"fencings": 1, "ISR changes": 0}},
        {"controllers": (1, 2)},
        {"attacked": replace(PROOF.attacked, java_p99_ms=21)},
        {"attacked": replace(PROOF.attacked, java_sent=8)},
        {"attacked": replace(PROOF.attacked, librdkafka=Seen(waits_ms=[11.0] * 100))},
        {"attacked": replace(PROOF.attacked, librdkafka=Seen(refused=1, waits_ms=[2.0]))},
    ],
    ids=str,
)
def test_a_cluster_that_changes_or_keeps_its_clients_waiting_has_not_held(change: dict[str, object]) -> None:
    assert PROOF.is_within
    assert not replace(PROOF, **change).is_within  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_small_form_has_each_api_once(seed: int) -> None:
    assert [shape.api for shape in chosen(seed)] == list(SERVED)
