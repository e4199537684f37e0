"""Rounds of faults on the links of three real brokers under load, with the figures and the proof of each.

Nothing acknowledged is lost, nothing is twice, and everything is in order, as `tidewal verify` finds from the
bytes; how long which partitions stood still is held against limits in the long rounds alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.proof import check_nothing_is_found
from tests.links.faults import plan
from tests.links.proxies import Proxies
from tests.links.report import FILE, Round, gather, show
from tests.links.stage import Stage, links, play, work
from tests.processes import ROOT

FAILED_MAX = 300
"""Of what is told in the report; pytest tells all."""
SHORT_SESSION = {"broker.session.timeout.ms": "2000"}


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@pytest.mark.chaos
@pytest.mark.minio
def test_a_round_of_faults_on_links(chaos_seed: int, minio: Path, tmp_path: Path) -> None:
    """The tiers are on in every other round."""
    strikes, tiers = plan(chaos_seed, has_store=True), chaos_seed % 2 == 1
    with links(has_store=True, seed=chaos_seed) as made:
        done = Round(seed=chaos_seed, links=made.kind, store="MinIO", tiers=tiers)
        try:
            with Stage(tmp_path, made, minio=minio, tiers=tiers) as stage:
                document = play(done, strikes, stage)
        except BaseException as error:
            done.failed = f"{type(error).__name__}: {error}"[:FAILED_MAX]
            raise
        finally:
            done.load = round(os.getloadavg()[1], 1)
            print()  # noqa: T201
            show(gather(ROOT / FILE, commit(), done))
    check_nothing_is_found(document, [each.told() for each in done.outcomes], is_live=False)
    assert not done.wrong()


@pytest.mark.parametrize("kind", ["", pytest.param(Proxies.kind, marks=pytest.mark.chaos)])
def test_a_leader_that_is_not_heard_is_replaced_and_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    """In namespaces, or through proxies where there are none."""
    with links(has_store=False, kind=kind) as made, Stage(tmp_path, made, settings=SHORT_SESSION) as stage:
        with work(stage) as clients:
            victim = stage.victim("leader", 1)
            led = [partition for partition, leader in stage.leaders().items() if leader == victim]
            with made.cut_one_way(victim):
                for topic, at in led:
                    stage.cluster.leader(topic, at, other_than=[victim])
                clients.go_on()
        document = stage.proof()
    assert led
    check_nothing_is_found(document, [f"broker {victim} is not heard"], is_live=False)
