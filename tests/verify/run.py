"""Many stores, each verified clean and damaged: make verify-stores SEEDS=2000 FROM=0.

Owns the seeds, the processes, and the journal by which an interrupted run goes on. Does not own stores or
faults. Invariant: what a seed gives does not hang on which seeds ran before it; the seed of a failure is
printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from tests.verify import deck
from tests.verify.faults import Plan, compare, plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import World
from tools.verify.core.outcome import Options
from tools.verify.verification import verify

ROOT = Path(__file__).resolve().parent.parent.parent
CLEAN_EVERY = 4


class Checked(NamedTuple):
    seed: int
    wrong: list[str]
    planted: int
    seconds: float


def options(world: World, root: Path, *, has_data: bool = True) -> Options:
    data = tuple(f"{root}/d{number}" for number in range(len(world.directories)))
    return Options(
        store=f"file://{root}/store",
        data=data if has_data else (),
        manifests=(f"{root}/manifest",) if world.has_manifest else (),
        workers=1,
    )


def check_clean(seed: int, root: Path, *, has_data: bool = True) -> list[str]:
    """What is wrong with the answer about a store without a fault."""
    world = build(seed, NOW_MS)
    world.write_to(root)
    outcome = verify(options(world, root, has_data=has_data))
    wrong = [f"not planted: {finding}" for finding in outcome.findings]
    return wrong + [f"unread: {unread}" for unread in outcome.unread]


def check_damaged(
    seed: int,
    root: Path,
    only: AbstractSet[str] = frozenset(),
    *,
    count: int | None = None,
    has_data: bool = True,
) -> tuple[list[str], Plan]:
    plan = plant(seed, NOW_MS, only=only, count=count)
    plan.world.write_to(root)
    outcome = verify(options(plan.world, root, has_data=has_data))
    wrong = compare(plan.planted, list(outcome.findings))
    wrong += [f"unread: {unread}" for unread in outcome.unread]
    return wrong, plan


def check(seed: int, folder: str, only: AbstractSet[str]) -> Checked:
    began = time.perf_counter()
    root = Path(folder) / f"{os.getpid()}"
    planted = 0
    try:
        wrong, plan = check_damaged(seed, root, only)
        planted = len(plan.planted)
        if wrong:
            wrong.append("planted: " + ", ".join(each.name for each in plan.planted))
        if seed % CLEAN_EVERY == 0 and not only:
            wrong += [f"clean: {each}" for each in check_clean(seed, root)]
    except Exception:
        wrong = [traceback.format_exc()]
    return Checked(seed, wrong, planted, time.perf_counter() - began)


def checked(seeds: list[int], folder: str, only: AbstractSet[str], jobs: int) -> Iterator[Checked]:
    if jobs == 1:
        for seed in seeds:
            yield check(seed, folder, only)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting = [pool.apply_async(check, (seed, folder, only)) for seed in seeds]
        for each in waiting:
            yield each.get()


def journal_path() -> Path:
    """One for each commit, so that what passed before a change is run again after it."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return ROOT / "build" / f"verify-stores-{done.stdout.strip() or 'none'}.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--from", dest="start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", choices=deck.NAMES, help="faults of these names alone")
    parser.add_argument("--keep", action="store_true", help="go on after a failure")
    parser.add_argument("--again", action="store_true", help="seeds that passed before too")
    given = parser.parse_args()
    journal = journal_path()
    journal.parent.mkdir(exist_ok=True)
    passed = set(journal.read_text().split()) if journal.exists() and not given.again else set()
    seeds = [
        seed
        for seed in range(given.start, given.start + given.seeds)
        if given.only or str(seed) not in passed
    ]
    began, faults, failed = time.perf_counter(), 0, []
    out = sys.stdout
    with tempfile.TemporaryDirectory() as folder, journal.open("a") as notes:
        for each in checked(seeds, folder, frozenset(given.only or ()), given.jobs):
            faults += each.planted
            if not each.wrong:
                if not given.only:
                    print(each.seed, file=notes, flush=True)
                continue
            failed.append(each.seed)
            lines = "\n  ".join(each.wrong)
            out.write(f"seed {each.seed}:\n  {lines}\n")
            out.flush()
            if not given.keep:
                break
    seconds = time.perf_counter() - began
    out.write(f"{len(seeds)} stores, {faults} faults, {len(failed)} failed, {seconds:.0f} s: {failed[:20]}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
