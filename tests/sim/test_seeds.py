"""Whole runs: seeds of one broker, and of clusters of one to five, each the same wherever it runs. That a
planted bug does not get through is shown in test_sim.py, and for clusters by the named scenarios. Many more
seeds are `make sim`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.scenario import simulate

ONE, AS_THE_SEED_SAYS = 1, None
SEEDS = {ONE: (40, 20), AS_THE_SEED_SAYS: (24, 6)}  # how many, and how many of them are one test
CHUNKS = [
    pytest.param(brokers, range(first, first + at_once), id=f"{brokers or 'any'}-{first}")
    for brokers, (count, at_once) in SEEDS.items()
    for first in range(0, count, at_once)
]

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(("brokers", "seeds"), CHUNKS)
def test_seeds(brokers: int | None, seeds: range) -> None:
    for seed in seeds:
        outcome = simulate(seed, brokers=brokers)
        replay = f"python -m tests.sim.run --seed {seed} --brokers {brokers or 0}"
        assert outcome.passed, f"{outcome.line()}\nreplay: {replay}"


# Of these 271 has transactions, copiers, and members that the server assigns.
@pytest.mark.parametrize(("brokers", "seed"), [(1, 18), (1, 157), (1, 271), (3, 13)])
def test_the_same_seed_gives_the_same_trace(brokers: int, seed: int) -> None:
    first, second = simulate(seed, brokers=brokers), simulate(seed, brokers=brokers)
    assert first.trace == second.trace
    assert first.history == second.history


@pytest.mark.parametrize(("brokers", "seeds"), [(1, (*range(4), 271)), (3, (9,))])
def test_the_trace_does_not_depend_on_the_hash_seed(brokers: int, seeds: tuple[int, ...]) -> None:
    """Two processes: this one's hashes are random, unless it was told otherwise."""
    program = (
        "from tests.sim.scenario import simulate\n"
        f"for seed in {seeds}: print(simulate(seed, brokers={brokers}).trace)"
    )
    told = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": told, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    here = [str(simulate(seed, brokers=brokers).trace) for seed in seeds]
    assert there == here
    assert len(set(here)) == len(seeds), "another seed is another run"
