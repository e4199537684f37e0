"""What a report of rounds calls wrong, and that rounds are gathered by seed in one file for each commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.links.faults import CALM, CALMS_PER_ROUND, FAULTS, FAULTS_PER_ROUND, OF_THE_STORE, ROLES, plan
from tests.links.report import Outcome, Round, gather


def outcome(kind: str, role: str, **acks: float) -> Outcome:
    reads = dict.fromkeys(acks, 0.0)
    return Outcome(kind=kind, role=role, seconds=9.0, acks=acks, reads=reads, whole_s=1.0)


def round_of(*outcomes: Outcome, seed: int = 1) -> Round:
    return Round(seed=seed, links="namespaces", store="MinIO", tiers=False, outcomes=list(outcomes))


@pytest.mark.parametrize(
    ("kind", "role", "acks", "is_wrong"),
    [
        ("kill -9", "leader", {"led": 3.1}, True),
        ("kill -9", "leader", {"led": 2.9, "followed": 9.5}, False),
        ("pause", "leader", {"led": 9.1}, True),
        ("half-open", "leader", {"led": 8.9}, False),
        ("cut off", "controller", {"led": 12.0, "elsewhere": 2.4}, False),
        ("cut off", "controller", {"elsewhere": 2.6}, True),
        ("cut from clients", "leader", {"led": 30.0}, False),
    ],
)
def test_what_stood_still_for_too_long_is_wrong(
    kind: str, role: str, acks: dict[str, float], is_wrong: bool
) -> None:
    calm = outcome(CALM, "", elsewhere=0.5)
    assert bool(round_of(calm, outcome(kind, role, **acks)).wrong()) == is_wrong


def test_what_verify_found_and_what_ended_early_is_wrong() -> None:
    done = round_of()
    assert done.wrong() == []
    done.findings, done.failed = {"manifest-loss": 2}, "AssertionError: no leader"
    assert len(done.wrong()) == 2


def test_rounds_of_a_commit_are_gathered_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "build" / "report.json"
    gather(path, "one", round_of(seed=2))
    gather(path, "one", round_of(outcome("pause", "leader", led=99.0), seed=1))
    again = round_of(outcome("pause", "leader", led=1.0), seed=1)
    assert gather(path, "one", again) == [again, round_of(seed=2)]
    assert json.loads(path.read_text())["wrong"] == []
    assert gather(path, "another", round_of(seed=3)) == [round_of(seed=3)]


def test_a_few_rounds_have_every_fault_on_every_role() -> None:
    rounds = -(-len(FAULTS) * len(ROLES) // FAULTS_PER_ROUND)
    strikes = [each for seed in range(rounds) for each in plan(seed, has_store=True)]
    assert {(each.kind, each.role) for each in strikes if each.kind != CALM} == {
        (kind, role) for kind in FAULTS for role in ROLES
    }
    assert sum(each.kind == CALM for each in strikes) == rounds * CALMS_PER_ROUND
    assert plan(1, has_store=True) == plan(1, has_store=True)
    assert not OF_THE_STORE & {each.kind for seed in range(9) for each in plan(seed, has_store=False)}
