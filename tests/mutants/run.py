"""Owns the proof that known bugs are caught: plants each in a copy of the tree and runs what must fail then.

    python -m tests.mutants.run                     every bug, two at a time
    python -m tests.mutants.run --only NAME         these: the names of their files

First all their tests run once in a copy without a bug, for a test that fails anyway catches nothing; a seed
that caught one does so afterwards. A bug that names seeds is caught when one of its tests fails and one of
its seeds. A bug that was caught in this very tree before is not tried again; --anew tries all. Does not own
the bugs (*.toml).

Invariant: the tree itself is only read; the exit code is 0 only when every chosen bug was caught.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal

from tests.mutants.mutant import ROOT, Mutant, Stale, read_all

SIDE_BY_SIDE = 2
LIMIT_S = 600.0
SEEDS_LIMIT_S = 3600.0
MANY = 8
"""More files than this are worth the start of workers."""
TESTS_FAILED = 1
"""Pytest's exit code: it ran the tests and some failed. Any other but 0 means that it could not."""
FAILED_LINE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
SEED_LINE = re.compile(r"^replay: .*--seed (\d+) --brokers (\d+)", re.MULTILINE)
VERDICT_LINE = re.compile(r"^seed=.* FAIL (.{1,100})", re.MULTILINE)
LAST_LINES = 15

State = Literal["caught", "SURVIVED", "BROKEN"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`by` is what caught it, or why it could not be tried."""

    mutant: Mutant
    state: State
    by: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        by = f"\n    {self.by}" if self.by else ""
        return f"{self.state:<8} {self.seconds:6.1f} s  {self.mutant.name}: {self.mutant.title}{by}"


def main(arguments: Sequence[str] | None = None, *, tree: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these bugs, by name")
    parser.add_argument("--jobs", type=int, default=SIDE_BY_SIDE, help="so many at a time")
    parser.add_argument("--anew", action="store_true", help="those too that were caught in this tree before")
    given = parser.parse_args(arguments)
    mutants = read_all(tree)
    unknown = set(given.only) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))} in tests/mutants")
    journal = Journal(tree)
    chosen = [mutant for mutant in mutants if not given.only or mutant.name in given.only]
    todo = [mutant for mutant in chosen if given.anew or mutant.name not in journal.caught]
    if len(todo) < len(chosen):
        say(f"{len(chosen) - len(todo)} were caught in this tree before (--anew tries them again)")
    if not todo:
        return 0
    unsound = fails_without_a_bug(tree, todo)
    if unsound:
        say(f"without any bug this fails already:\n{unsound}")
        return 1
    missed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for future in as_completed([pool.submit(try_one, tree, mutant) for mutant in todo]):
            finding = future.result()
            say(str(finding))
            if finding.state == "caught":
                journal.add(finding.mutant)
            else:
                missed += 1
    say(f"{len(todo)} bugs planted, {len(todo) - missed} caught")
    return 1 if missed else 0


# --- one bug ---


def try_one(tree: Path, mutant: Mutant) -> Finding:
    begun_s = monotonic()
    with copy_of(tree) as copy:
        try:
            mutant.plant(copy)
            by = caught_by(copy, mutant)
            if by and mutant.seeds:
                seed = failing_seed(copy, mutant.seeds.split(), sound=tree)
                if not seed:
                    missed = f"{by} fails, but no seed of: {mutant.seeds}"
                    took_s = monotonic() - begun_s
                    return Finding(mutant=mutant, state="SURVIVED", by=missed, seconds=took_s)
                by = f"{by}\n    {seed}"
        except (Stale, Failure) as error:
            return Finding(mutant=mutant, state="BROKEN", by=str(error), seconds=monotonic() - begun_s)
    return Finding(mutant=mutant, state="caught" if by else "SURVIVED", by=by, seconds=monotonic() - begun_s)


class Failure(Exception):
    """What must catch the bug could not be run."""


def caught_by(copy: Path, mutant: Mutant) -> str:
    """The first test or seed that fails; empty when none does."""
    if mutant.nodes and (by := failing_test(copy, mutant.nodes)):
        return by
    for simulation in mutant.simulations:
        if by := failing_seed(copy, simulation):
            return by
    return ""


def failing_test(copy: Path, nodes: Sequence[str]) -> str:
    command = ("pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *nodes)
    code, output = run(copy, command)
    if code == 0:
        return ""
    if code is None:
        return f"the tests did not end within {LIMIT_S:g} s"
    failed = FAILED_LINE.search(output)
    if code != TESTS_FAILED or failed is None:
        raise Failure(f"pytest ended with {code}:\n{last_lines(output)}")
    return failed[1]


def failing_seed(copy: Path, arguments: Sequence[str], *, sound: Path | None = None) -> str:
    """The first seed that fails, at which place it came and what it says; it must not fail in `sound`."""
    code, output = run(copy, ("tests.sim.run", *arguments), limit_s=SEEDS_LIMIT_S)
    if code == 0:
        return ""
    seed = SEED_LINE.search(output)
    if seed is None:
        raise Failure(f"the simulation ended with {code}:\n{last_lines(output)}")
    if sound is not None and fails(sound, int(seed[1]), int(seed[2])):
        raise Failure(f"seed {seed[1]} of {seed[2]} brokers fails without the bug too")
    verdict = VERDICT_LINE.search(output)
    place = len(re.findall(r"^seed=", output, re.MULTILINE))
    said = "" if verdict is None else f": {verdict[1]}"
    return f"sim: --seed {seed[1]} --brokers {seed[2]}, seed {place} of those that ran{said}"


def fails(tree: Path, seed: int, brokers: int) -> bool:
    with copy_of(tree) as copy:
        arguments = ("--seeds", "1", "--jobs", "1", "--from", str(seed), "--brokers", str(brokers))
        code, _ = run(copy, ("tests.sim.run", *arguments))
    return code != 0


def fails_without_a_bug(tree: Path, mutants: Sequence[Mutant]) -> str:
    """What of all their tests fails in a sound tree; empty when nothing does."""
    nodes = sorted({node for mutant in mutants for node in mutant.nodes})
    simulations = sorted({each for mutant in mutants for each in mutant.simulations})
    workers = ("-n", str(SIDE_BY_SIDE)) if len(nodes) > MANY else ()
    with copy_of(tree) as copy:
        if nodes:
            code, output = run(copy, ("pytest", "-q", *workers, *nodes))
            if code != 0:
                return last_lines(output)
        for simulation in simulations:
            code, output = run(copy, ("tests.sim.run", *simulation))
            if code != 0:
                return last_lines(output)
    return ""


def last_lines(output: str) -> str:
    return "\n".join(output.splitlines()[-LAST_LINES:])


# --- copies ---


@contextmanager
def copy_of(tree: Path) -> Iterator[Path]:
    """The tree as it is now, with what is not committed, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="tidewal-mutant-") as folder:
        copy = Path(folder) / "tree"
        for name in files_of(tree):
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target)
        yield copy


def files_of(tree: Path) -> list[str]:
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return sorted(name for name in done.stdout.split("\0") if name and (tree / name).is_file())


def run(copy: Path, module: Sequence[str], *, limit_s: float = LIMIT_S) -> tuple[int | None, str]:
    """The exit code (None when it took too long) and all it said; it imports the copy's packages."""
    try:
        done = subprocess.run(
            (sys.executable, "-m", *module),
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return None, str(late.stdout or "")
    return done.returncode, done.stdout


class Journal:
    """Which bugs were caught in this very tree: a run that was interrupted goes on where it was."""

    def __init__(self, tree: Path) -> None:
        content = hashlib.sha256()
        for name in files_of(tree):
            content.update(f"{name}\0".encode())
            content.update((tree / name).read_bytes())
        self._path = tree / "build" / f"mutants-{content.hexdigest()[:12]}.txt"
        self.caught = set(self._path.read_text().split()) if self._path.exists() else set()

    def add(self, mutant: Mutant) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a") as file:
            file.write(f"{mutant.name}\n")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
