"""`python -m tests.sim.run`: many seeds, one line each; or one seed, told in full.

Exits 1 when a seed fails, with the command that replays it. Resumable: --from continues where an earlier run
stopped.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from time import process_time

from tests.sim.scenario import Outcome, simulate

COLLECT_EVERY = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print everything that happened")
    parser.add_argument("--brokers", type=int, default=0, help="brokers of each run; 0: as the seed says")
    parser.add_argument("--keep-going", action="store_true", help="run the remaining seeds after a failure")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        return replay(given.seed, given.brokers or None)
    return run_many(given.first, given.seeds, given.brokers or None, keep_going=given.keep_going)


def run_many(first: int, count: int, brokers: int | None, *, keep_going: bool) -> int:
    failed: list[Outcome] = []
    operations = lost_by_all = lost_by_last = lost_with_leader = 0
    simulate(first, brokers=brokers)  # warms codecs, so that the time per seed is that of seeds
    gc.collect()
    gc.freeze()
    gc.disable()
    begun = process_time()
    done = 0
    for seed in range(first, first + count):
        outcome = simulate(seed, brokers=brokers)
        done += 1
        operations += outcome.history.operations()
        lost_by_all += outcome.verdict.lost_by_all
        lost_by_last += outcome.verdict.lost_by_last
        lost_with_leader += outcome.verdict.lost_with_leader
        say(outcome.line())
        if not outcome.passed:
            failed.append(outcome)
            say(f"replay: python -m tests.sim.run --seed {seed} --brokers {outcome.plan.brokers}")
            if not keep_going:
                break
        if done % COLLECT_EVERY == 0:
            gc.collect()
    spent = process_time() - begun
    say(
        f"{done} seeds, {len(failed)} failed, {operations} operations,"
        f" {lost_by_all} acked values lost by all who had them, {lost_by_last} by the last in an ISR,"
        f" {lost_with_leader} of acks=1 with their leader, {spent / done:.3f} CPU seconds a seed"
    )
    if failed:
        say("failed: " + " ".join(str(outcome.seed) for outcome in failed))
    else:
        say(f"next: --from {first + count}")
    return 1 if failed else 0


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
