"""`python -m tests.sim.run`: many seeds, one line each; or one seed, told in full.

Owns: which process runs which seed, in order, and what is told of it. Exits 1 when a seed fails, with the
command that replays it, and 130 when it is interrupted. The last line says up to which seed everything is
done; with --resume a run that was cut off goes on where it stopped, as the journal tells (journal.py).
Invariant: what a seed does depends on nothing but the seed, so neither do the processes.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Container, Generator, Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from time import monotonic, process_time
from typing import NoReturn

from tests.sim.journal import Row, journal_of
from tests.sim.plan import Plan, brokers_of, plan_of
from tests.sim.scenario import Outcome, simulate

SEEDS_A_CHILD = 40
"""Each leaves about 5 MB behind."""
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print everything that happened")
    parser.add_argument("--brokers", type=int, default=0, help="brokers of each run; 0: as the seed says")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes run seeds")
    parser.add_argument("--keep-going", action="store_true", help="run the remaining seeds after a failure")
    parser.add_argument(
        "--resume", action="store_true", help="pass over seeds that passed before, with these sources"
    )
    parser.add_argument(
        "--again", dest="resume", action="store_false", help="run those too: takes --resume back"
    )
    parser.add_argument("--tiered", action="store_true", help="pass over seeds without a tiered topic")
    parser.add_argument("--wal", action="store_true", help="pass over seeds without a topic in the WAL tier")
    parser.add_argument("--transactions", action="store_true", help="pass over seeds without transactions")
    parser.add_argument(
        "--assigned", action="store_true", help="pass over seeds whose server assigns no group"
    )
    parser.add_argument("--fault", default="", help="pass over seeds whose plan has no fault of this kind")
    given = parser.parse_args(arguments)
    brokers = given.brokers or None
    if given.seed is not None:
        logging.disable(logging.CRITICAL)
        return replay(given.seed, brokers)
    seeds = range(given.first, given.first + given.seeds)
    passed_over: AbstractSet[int] = frozenset()
    wanted = Wanted(
        is_tiered=given.tiered,
        is_in_wal=given.wal,
        has_transactions=given.transactions,
        is_assigned=given.assigned,
        fault=given.fault,
    )
    if wanted != Wanted():  # a plan costs, and a million seeds have a million
        passed_over = {seed for seed in seeds if not wanted.fits(plan_for(seed, brokers))}
    before: dict[int, Row] = {}
    journal = journal_of() if given.resume else None
    if journal is not None:
        before = passed_before(journal.rows(), seeds, brokers, passed_over)
        say(f"{len(before)} of {len(seeds)} seeds have passed before: {journal.path}")
    left = (seed for seed in seeds if seed not in passed_over and seed not in before)
    rows = run_in_processes(left, brokers, given.jobs)
    return report(
        rows if journal is None else journal.noting(rows),
        given.first,
        before=before.values(),
        passed_over=passed_over,
        keep_going=given.keep_going,
    )


def passed_before(
    rows: Iterable[Row], seeds: Container[int], brokers: int | None, passed_over: AbstractSet[int]
) -> dict[int, Row]:
    """The rows of these seeds that ran with as many brokers as they would now."""
    return {
        row.seed: row
        for row in rows
        if row.seed in seeds
        and row.seed not in passed_over
        and row.brokers == (brokers_of(row.seed) if brokers is None else brokers)
    }


def plan_for(seed: int, brokers: int | None) -> Plan:
    return plan_of(seed, brokers=brokers_of(seed) if brokers is None else brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a plan must have; by itself nothing."""

    is_tiered: bool = False
    is_in_wal: bool = False
    has_transactions: bool = False
    is_assigned: bool = False
    fault: str = ""

    def fits(self, plan: Plan) -> bool:
        has_assigned = bool(plan.subscribers) or any(each.is_subscriber for each in plan.copiers)
        return (
            (plan.is_tiered or not self.is_tiered)
            and (plan.is_in_wal or not self.is_in_wal)
            and (bool(plan.transactors) or not self.has_transactions)
            and (has_assigned or not self.is_assigned)
            and (not self.fault or any(each.kind == self.fault for each in plan.faults))
        )


# --- running -----------------------------------------------------------------------------------------------


def run_in_processes(seeds: Iterable[int], brokers: int | None, jobs: int) -> Generator[Row, None, None]:
    """Handed out in order, one seed at a time to each process, so that a failure is told when it happens."""
    left = iter(seeds)
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(brokers,)
    )
    try:
        running: set[Future[Row]] = {_submit(pool, seed, brokers) for seed in islice(left, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {_submit(pool, seed, brokers) for seed in islice(left, len(done))}
            for future in done:
                yield future.result()
    finally:
        # waited for: the interpreter would end while a thread of the pool closes what it wakes it by
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, seed: int, brokers: int | None) -> Future[Row]:
    """A process that this starts is deaf to an interrupt until it can end by it without a word."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(run_seed, seed, brokers)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(brokers: int | None) -> None:
    """In each process of the pool. Codecs are warmed, so that the time per seed is that of seeds."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    logging.disable(logging.CRITICAL)
    simulate(0, brokers=brokers)
    gc.collect()
    gc.freeze()
    gc.disable()


def run_seed(seed: int, brokers: int | None) -> Row:
    """In a process of the pool: have its child run it, or a new one."""
    global _child
    if _child is None or _child.is_spent:
        _child = _Child()
    return _child.run(seed, brokers)


class _Child:
    """A fork of a process of the pool, with all that is warm in it. It runs some seeds and ends: what a run
    leaves is full of cycles, and to collect them takes longer than to begin with another child."""

    def __init__(self) -> None:
        self._line, there = multiprocessing.Pipe()
        self._left = SEEDS_A_CHILD
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _serve(there)
        there.close()

    @property
    def is_spent(self) -> bool:
        return self._left == 0

    def run(self, seed: int, brokers: int | None) -> Row:
        self._left -= 1
        try:
            self._line.send((seed, brokers))
            row: Row = self._line.recv()
        except (EOFError, OSError):
            os._exit(1)  # as the child did: the pool tells of it
        if self.is_spent:
            self._line.close()
            os.waitpid(self._pid, 0)
        return row


_child: _Child | None = None


def _serve(line: Connection) -> NoReturn:
    """Run what is asked for, until nobody is there to ask."""
    code = 1
    try:
        while True:
            seed, brokers = line.recv()
            begun = process_time()
            outcome = simulate(seed, brokers=brokers)
            line.send(row_of(outcome, cpu_s=process_time() - begun))
    except (EOFError, BrokenPipeError):
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def row_of(outcome: Outcome, *, cpu_s: float) -> Row:
    verdict = outcome.verdict
    return Row(
        seed=outcome.seed,
        brokers=outcome.plan.brokers,
        line=outcome.line(),
        passed=outcome.passed,
        operations=outcome.history.operations(),
        lost_by_all=verdict.lost_by_all,
        lost_by_last=verdict.lost_by_last,
        lost_with_leader=verdict.lost_with_leader,
        cpu_s=cpu_s,
    )


# --- telling -----------------------------------------------------------------------------------------------


def report(
    rows: Generator[Row, None, None],
    first: int,
    *,
    keep_going: bool,
    before: Iterable[Row] = (),
    passed_over: AbstractSet[int] = frozenset(),
) -> int:
    """A line for each seed as it ends, then the sum, in which those `before` count; the exit code."""
    told = list(before)
    earlier = len(told)
    code, begun_s = 0, monotonic()
    try:
        with closing(rows):
            for row in rows:
                told.append(row)
                say(row.line)
                if not row.passed:
                    code = 1
                    say(f"replay: python -m tests.sim.run --seed {row.seed} --brokers {row.brokers}")
                    if not keep_going:
                        break
    except KeyboardInterrupt:
        code = code or INTERRUPTED
    except BrokenProcessPool as error:
        code = 1
        say(f"a process that ran seeds has died: {error}")
    wall_s = monotonic() - begun_s
    for line in summary(told, first, wall_s=wall_s, earlier=earlier, passed_over=passed_over):
        say(line)
    return code


def summary(
    told: list[Row],
    first: int,
    *,
    wall_s: float,
    earlier: int = 0,
    passed_over: AbstractSet[int] = frozenset(),
) -> Iterator[str]:
    failed = sorted(row.seed for row in told if not row.passed)
    if failed:
        yield "failed: " + " ".join(map(str, failed))
    seeds = {row.seed for row in told}
    below = first
    while below in seeds or below in passed_over:
        below += 1
    wall_each_s = wall_s / max(len(told) - earlier, 1)
    cpu_each_s = sum(row.cpu_s for row in told) / max(len(told), 1)
    yield (
        f"{len(told)} seeds, {len(failed)} failed, {sum(row.operations for row in told)} operations,"
        f" {sum(row.lost_by_all for row in told)} acked values lost by all who had them,"
        f" {sum(row.lost_by_last for row in told)} by the last in an ISR,"
        f" {sum(row.lost_with_leader for row in told)} of acks=1 with their leader,"
        f" {wall_each_s:.3f} wall and {cpu_each_s:.3f} CPU seconds a seed;"
        f" everything below is done: --from {below}"
    )


def replay(seed: int, brokers: int | None) -> int:
    outcome = simulate(seed, brokers=brokers, keep_trace=True)
    say(f"plan: {outcome.plan}")
    for line in outcome.trace_lines:
        say(line)
    say(outcome.line())
    for violation in outcome.verdict.violations:
        say(f"  {violation}")
    return 0 if outcome.passed else 1


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
