"""`make bench-guard BASE=<commit>`: what a request and a GB cost this tree's broker, against a commit's.

Owns the worktree of the other commit, the turns, and the verdict. Does not own the load: both brokers get
this tree's, so only the broker differs.
Invariant: exits non-zero if and only if some row's CPU is above RATIO_MAX times the base's; the least CPU of
several rounds decides, because a busy machine can only add to it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows
from tools.versus.caller import Caller
from tools.versus.load import Load, run

RATIO_MAX = 1.15
MINUTES = 4.5
ROUNDS = 14
ROUNDS_A_START = 2
GIT_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRow:
    """One row. `fills` is how many requests are produced first, for a row that fetches."""

    name: str
    figure: str
    load: Load
    fills: Load | None = None


def _raw(name: str, load: Load, figure: str = "cpu_us", *, fills: Load | None = None) -> GuardedRow:
    short = dataclasses.replace(load, seconds=0.4, bytes_max=300_000_000)
    return GuardedRow(name=name, figure=figure, load=short, fills=fills)


ONE = Load(kind="produce", record_bytes=1000)
SMALL = Load(kind="produce", record_bytes=1000, seconds=0.2, in_flight=100)
LARGE = Load(
    kind="produce", record_bytes=10_000, batch_records=100, seconds=0.2, in_flight=2, bytes_max=20_000_000
)
STOCK = Load(kind="client-produce", record_bytes=2000, records=60_000)

GUARDED: tuple[GuardedRow, ...] = (
    _raw("produce 1 KB, 1 × 1", ONE),
    _raw("produce 1 KB, 50 × 1", dataclasses.replace(ONE, connections=50)),
    _raw("produce 1 KB, 1 × 100", dataclasses.replace(ONE, in_flight=100)),
    _raw("produce 0.1 KB, 1 × 500", dataclasses.replace(ONE, record_bytes=100, in_flight=500)),
    _raw(
        "produce 8 × 2,000 B, 1 × 20",
        Load(kind="produce", record_bytes=2000, batch_records=8, in_flight=20),
        "cpu_s_per_gb",
    ),
    _raw(
        "produce 100 × 10,000 B, 1 × 5",
        Load(kind="produce", record_bytes=10_000, batch_records=100, in_flight=5),
        "cpu_s_per_gb",
    ),
    _raw(
        "fetch 1 KB, 1 × 20",
        Load(kind="fetch", record_bytes=1000, fetch_bytes=1100, in_flight=20),
        fills=SMALL,
    ),
    _raw(
        "fetch 1 MB, 1 × 5",
        Load(kind="fetch", record_bytes=10_000, in_flight=5),
        "cpu_s_per_gb",
        fills=LARGE,
    ),
    GuardedRow(name="C client, produce 2,000 B", figure="cpu_s_per_gb", load=STOCK),
    GuardedRow(
        name="C client, consume 2,000 B",
        figure="cpu_s_per_gb",
        load=Load(kind="client-consume", record_bytes=2000),
        fills=STOCK,
    ),
)

Costs = dict[str, list[float]]
"""By row: each round's CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    name: str
    figure: str
    ours: float
    base: float

    @property
    def ratio(self) -> float:
        return self.ours / self.base

    @property
    def is_worse(self) -> bool:
        return self.ratio > RATIO_MAX


def judge(ours: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]]) -> list[Judged]:
    return [
        Judged(name=row.name, figure=row.figure, ours=min(ours[row.name]), base=min(base[row.name]))
        for row in GUARDED
        if ours.get(row.name) and base.get(row.name)
    ]


Pair = tuple[brokers.Broker, brokers.Broker]


def measure(start: Callable[[int], contextlib.AbstractContextManager[Pair]], minutes: float) -> list[Judged]:
    """Measure both in turn, the order reversed from round to round; rows that look worse go on while there is
    time.

    Both start anew every few rounds: where a process happens to lie in memory is worth up to a tenth.
    """
    deadline_s = time.perf_counter() + minutes * 60
    ours: Costs = {}
    base: Costs = {}
    number, wanted = 0, list(GUARDED)
    while wanted and (number < ROUNDS or time.perf_counter() < deadline_s):
        with start(number) as (our_broker, base_broker):
            turns = [(our_broker, ours), (base_broker, base)]
            for _ in range(ROUNDS_A_START):
                _round(turns if number % 2 else turns[::-1], wanted, number, deadline_s)
                number += 1
        if number >= ROUNDS:
            worse = {found.name for found in judge(ours, base) if found.is_worse}
            wanted = [row for row in GUARDED if row.name in worse]
        complain(f"{number} rounds done")
    return judge(ours, base)


def _round(
    turns: Sequence[tuple[brokers.Broker, Costs]],
    wanted: Sequence[GuardedRow],
    number: int,
    deadline_s: float,
) -> None:
    for row in wanted:
        if number and time.perf_counter() > deadline_s:
            return
        for broker, costs in turns:
            costs.setdefault(row.name, []).append(_cost(row, broker, f"round-{number}"))


def _cost(row: GuardedRow, broker: brokers.Broker, topic: str) -> float:
    _, core = brokers.two_cores()
    with Caller(broker.port) as caller:
        caller.create(topic)
        if row.fills is not None:
            run(row.fills, broker, topic, core)
        found = rows.figures(run(row.load, broker, topic, core))
        caller.delete(topic)
    return found[row.figure]


@contextlib.contextmanager
def both(folder: Path, tree: Path, commit: str) -> Iterator[Pair]:
    core, _ = brokers.two_cores()
    with (
        brokers.Tidewal(folder / "ours", {core}, name="this tree") as ours,
        brokers.Tidewal(folder / "theirs", {core}, name=commit, tree=tree) as base,
    ):
        yield ours.start(), base.start()


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """Check out the tree of another commit, and remove it afterwards."""
    tree = folder / "base"
    _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(brokers.ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S_MAX, check=False)
    if done.returncode != 0:
        raise Failure(f"git {arguments[0]}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-guard", description="This tree's broker CPU against a commit's."
    )
    parser.add_argument("--base", required=True, metavar="COMMIT")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="bound of the whole run (default: 4.5)"
    )
    options = parser.parse_args(arguments)
    started_s = time.perf_counter()
    try:
        commit = _git("rev-parse", "--short", "--verify", f"{options.base}^{{commit}}")
        with tempfile.TemporaryDirectory(prefix="tidewal-guard-") as name:
            folder = Path(name)
            with worktree(commit, folder) as tree:
                found = measure(lambda number: both(folder / str(number), tree, commit), options.minutes)
    except Failure as failure:
        complain(f"bench-guard: {failure}")
        return 2
    for one in found:
        unit = "µs a request" if one.figure == "cpu_us" else "s/GB"
        mark = "  WORSE" if one.is_worse else ""
        emit(
            f"{one.name:32} {rows.number(one.ours):>8} against {rows.number(one.base):>8} {unit:12} "
            f"ratio {one.ratio:.2f}{mark}"
        )
    worse = sum(one.is_worse for one in found)
    emit(
        f"this tree against {commit}: {worse} of {len(found)} rows above {RATIO_MAX} "
        f"in {time.perf_counter() - started_s:.0f} s"
    )
    return 1 if worse or len(found) < len(GUARDED) else 0


if __name__ == "__main__":
    sys.exit(main())
