"""The bench of proofs: its sums, what it reads of Spark's events, whose CPU counts, and a small run of it."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.console import Failure
from tools.versus import verify, verify_data, verify_runs, verify_scale, whole_cpu
from tools.versus.verify_runs import LOCAL, Verified
from tools.versus.whole_cpu import Ran


def verified(size: int, cpu_s: float) -> Verified:
    ran = Ran(exit_code=0, wall_s=1.0, cpu_s=cpu_s, peak_mb=1.0)
    return Verified(ran=ran, document={"figures": {"scanned_bytes": size}})


def test_what_a_start_costs_is_not_in_the_marginal_rate() -> None:
    pair = verify.Pair(first=verified(100, 10.0 + 1), whole=verified(400, 10.0 + 4))
    assert pair.marginal_rate == pytest.approx(100)
    assert pair.start_s == pytest.approx(10)
    assert pair.rate == pytest.approx(400 / 14)
    assert math.isnan(verify.Pair(first=verified(1, 2.0), whole=verified(2, 2.0)).marginal_rate)


def test_a_goal_that_is_missed_is_told() -> None:
    goals = (
        verify.Goal(what="ratio", value=0.4, limit=0.65),
        verify.Goal(what="s", value=1.4, limit=1.5, is_least=False),
    )
    assert "ratio ≥ 0.65 **missed**; s ≤ 1.5 met" in verify.Line(row="x", goals=goals).markdown()


# --- Spark's events ---


def task(
    stage: int, executor: str, took_ms: int, shuffled: int = 0, *, number: int = 0, failed: bool = False
) -> str:
    return json.dumps(
        {
            "Event": "SparkListenerTaskEnd",
            "Stage ID": stage,
            "Task Info": {
                "Executor ID": executor,
                "Index": number,
                "Launch Time": 1000,
                "Finish Time": 1000 + took_ms,
                "Failed": failed,
            },
            "Task Metrics": {"Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled}},
        }
    )


def test_the_scan_is_the_stage_of_most_tasks_and_first_tasks_start_python() -> None:
    lines = [
        json.dumps({"Event": "SparkListenerApplicationStart"}),
        *(
            task(0, executor, took_ms, number=number)
            for number, (executor, took_ms) in enumerate([("1", 900), ("2", 800), ("1", 100), ("2", 120)])
        ),
        task(0, "1", 5000, failed=True),
        task(1, "1", 70, 300),
        task(1, "2", 70, 200),
        json.dumps({"Event": "SparkListenerExecutorRemoved"}),
    ]
    found = verify_scale.events_of(lines)
    assert found == verify_scale.Events(tasks_s={2: 0.1, 3: 0.12}, firsts_s=[0.9, 0.8], shuffled=500, lost=1)
    with pytest.raises(Failure, match="no tasks"):
        verify_scale.events_of(lines[:1])


def test_a_task_took_what_it_took_in_its_best_round() -> None:
    rounds = [
        verify_scale.Events(tasks_s=tasks_s, firsts_s=[9.0], shuffled=0, lost=0)
        for tasks_s in ({1: 0.4, 2: 0.9}, {0: 0.5, 2: 0.3})
    ]
    assert verify_scale.least_s(rounds) == [0.5, 0.4, 0.3]


def submitted(stage: int, tasks: int) -> str:
    return json.dumps(
        {
            "Event": "SparkListenerStageSubmitted",
            "Stage Info": {"Stage ID": stage, "Number of Tasks": tasks},
        }
    )


def test_half_way_is_where_half_of_the_largest_stage_has_ended() -> None:
    lines = [json.dumps({"Event": "SparkListenerApplicationStart"}), submitted(0, 1), task(0, "1", 10)]
    assert verify_scale.done_share(lines[:1]) == 0
    assert verify_scale.done_share(lines) == 1
    lines += [submitted(1, 4), task(1, "1", 10), task(1, "2", 10, failed=True)]
    assert verify_scale.done_share(lines) == 0.25
    assert verify_scale.done_share([*lines, task(1, "2", 10)]) == 0.5


# --- processes ---

SPEND = "import time\nwhile time.process_time() < 0.2: pass\n"
ORPHANS = f"""
import os, sys
if os.fork():
    sys.exit(3)
if os.fork():
    sys.exit()
{SPEND}
"""


def test_cpu_counts_of_what_outlives_its_parent() -> None:
    found = whole_cpu.run([sys.executable, "-c", ORPHANS])
    assert found.exit_code == 3
    assert found.cpu_s > 0.2


FORGOTTEN = f"""
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    try:
        os.wait()
    except ChildProcessError:
        os._exit(0)
{SPEND}
"""


def test_cpu_counts_of_what_nobody_waits_for() -> None:
    assert whole_cpu.run([sys.executable, "-c", FORGOTTEN]).cpu_s > 0.15


def test_a_process_is_below_those_who_started_it() -> None:
    child = whole_cpu.start([sys.executable, "-c", "import signal; signal.pause()", "a-word-of-its-own"])
    try:
        while not (found := [each for each in verify_scale.tree(child.pid) if "a-word" in each.words]):
            assert child.poll() is None
        assert [each.parent for each in found] == [child.pid]
        os.kill(found[0].pid, signal.SIGTERM)
        assert json.loads(child.communicate(timeout=60)[0])["exit_code"] == -signal.SIGTERM
    finally:
        child.kill()


# --- a small run ---


def test_processes_prove_what_a_broker_wrote(tmp_path: Path) -> None:
    bench = verify.Bench(folder=tmp_path, scale=0.001, rounds=1, engines=(LOCAL,))
    assert [line.local == "-" for line in [*bench.small(), *bench.manifest()]] == [False, False]
    made = verify_data.make(verify_data.small(20_000), tmp_path)
    document: dict[str, Any] = json.loads(bench.report.read_text())
    assert document["figures"]["records"] == pytest.approx(20_000, rel=0.05)
    assert not [each for each in document["unchecked"] if each["about"] == "manifest"], "rows were compared"
    log = next(made.data.glob("rest-0/*.log"))
    damaged = bytearray(log.read_bytes())
    damaged[500] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(Failure, match="exit code 1"):
        verify_runs.verify(LOCAL, made.url, made.data, bench.report)
