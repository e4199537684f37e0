"""Spark with one, two and four executors over 10 GB of a million listed objects, and with one killed.

Owns these runs, and what of them Spark's own log of events and the kernel say. Does not own the data
(verify_data) or the verification.
Invariant: every run reads the same bytes, and its report is byte for byte that of the engine of processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.console import Failure, complain
from tools.versus import verify_data, verify_runs, whole_cpu
from tools.versus.verify_data import Made
from tools.versus.verify_runs import LOCAL, SPARK, Verified

SIZE = 10_000_000_000
OBJECTS = 1_000_000
EXECUTORS = (1, 2, 4)
KILLED = 2
EXECUTOR_MB = 1024
LITTLE, SKEWED = "little", "skewed"
LOOK_S = 0.1
EXECUTOR, DRIVER = "CoarseGrainedExecutorBackend", "SparkSubmit"
HALF: Final = 0.5
CPU_SPREAD, LONGEST, SHUFFLE_MB_PER_GB, DRIVER_MB = 1.1, 1.5, 1.0, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`most`: what, how much of it, and how much there may be."""

    row: str
    told: str
    most: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Of one run, by Spark's own log."""

    tasks_s: Mapping[int, float]
    """Of the scan, by the number of the task, but for the first of each executor, which starts Python."""
    firsts_s: Sequence[float]
    shuffled: int
    lost: int
    """Executors that went before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    executors: int
    verified: Verified
    events: Events
    driver_mb: float
    """Python's and the JVM's, each at its peak."""


@dataclass(slots=True)
class Process:
    pid: int
    parent: int
    words: str
    children: list[Process] = field(default_factory=list)

    def all(self) -> Iterator[Process]:
        yield self
        for each in self.children:
            yield from each.all()


def measure(folder: Path, scale: float, rounds: int) -> list[Row]:
    made = verify_data.make(verify_data.skewed(int(SIZE * scale)), folder)
    verify_data.crowd(made, int(OBJECTS * scale))
    reports = {topic: (folder / f"{topic}.json").resolve() for topic in (LITTLE, SKEWED)}
    wanted = {
        topic: verify_runs.verify(LOCAL, made.url, made.data, report, topics=[topic])
        for topic, report in reports.items()
    }
    for topic, found in wanted.items():
        ran = found.ran
        complain(f"local, {topic}: {ran.cpu_s:.1f} s CPU, {ran.wall_s:.1f} s, {ran.peak_mb:.0f} MB")
    rows, costs = [], {}
    for executors in EXECUTORS:
        littles, wholes = (
            [run(made, topic, executors, folder, reports[topic]) for _ in range(rounds)]
            for topic in (LITTLE, SKEWED)
        )
        little, whole = _cheapest(littles), _cheapest(wholes)
        costs[executors] = cost = _marginal(little.verified, whole.verified)
        rows.append(_row(little, whole, least_s([each.events for each in wholes]), cost))
    spread = max(costs.values()) / min(costs.values())
    told = ", ".join(f"{cost:.2f}" for cost in costs.values())
    most = (("dearest of cheapest", spread, CPU_SPREAD),)
    rows.append(Row(row="CPU s a GB with 1, 2 and 4 executors, without their start", told=told, most=most))
    killed = run(made, SKEWED, KILLED, folder, reports[SKEWED], kills=True)
    ran = killed.verified.ran
    told = f"the report is that of processes; {ran.cpu_s:.1f} s CPU, {ran.wall_s:.1f} s"
    rows.append(Row(row=f"one of {KILLED} executors killed by SIGKILL half way", told=told))
    return rows


def _cheapest(rounds: Sequence[Scaled]) -> Scaled:
    return min(rounds, key=lambda each: each.verified.ran.cpu_s)


def _marginal(little: Verified, whole: Verified) -> float:
    return (whole.ran.cpu_s - little.ran.cpu_s) / (whole.size - little.size) * 1e9


def least_s(rounds: Sequence[Events]) -> list[float]:
    """Return how long each task took where it took least: it reads the same in every round, and what else the
    machine did meanwhile is no part of it."""
    numbers = {number for each in rounds for number in each.tasks_s}
    return [min(each.tasks_s[one] for each in rounds if one in each.tasks_s) for one in sorted(numbers)]


def _row(little: Scaled, whole: Scaled, tasks_s: Sequence[float], cost: float) -> Row:
    verified, events = whole.verified, whole.events
    figures, size = verified.document["figures"], verified.size / 1e9
    median = statistics.median(tasks_s)
    longest, first = max(tasks_s), max(events.firsts_s)
    shuffled = events.shuffled / 1e6 / size
    return Row(
        row=f"{size:.1f} GB of {figures['objects']:,} objects, executors: {whole.executors}",
        told=(
            f"{verified.ran.cpu_s / size:.2f} s CPU a GB, {cost:.2f} without the start "
            f"({little.verified.ran.cpu_s:.0f} s); {verified.ran.wall_s:.0f} s; tasks {median:.2f} s median, "
            f"{longest:.2f} longest, {first:.2f} where Python starts; {shuffled:.3f} MB shuffled a GB; "
            f"driver {whole.driver_mb:.0f} MB"
        ),
        most=(
            ("longest of median", longest / median, LONGEST),
            ("MB shuffled a GB", shuffled, SHUFFLE_MB_PER_GB),
            ("driver, MB", whole.driver_mb, DRIVER_MB),
        ),
    )


def run(made: Made, topic: str, executors: int, folder: Path, wanted: Path, *, kills: bool = False) -> Scaled:
    """Verify a topic with so many executors of one core. With `kills` one of them goes half way."""
    report, log = (folder / name for name in ("scaled.json", "events"))
    report.unlink(missing_ok=True)
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    options = [
        *("--engine", SPARK, "--store", made.url, "--data", f"{made.data}", "--topic", topic),
        *("--json", f"{report.resolve()}", "--master", f"local-cluster[{executors},1,{EXECUTOR_MB}]"),
    ]
    child = whole_cpu.start(verify_runs.command(options), {"PYSPARK_SUBMIT_ARGS": _submitted(log)})
    peaks = _watch(child, log if kills else None)
    told, _ = child.communicate(timeout=whole_cpu.LEFT_S_MAX)
    verified = verify_runs.judged(whole_cpu.finished(child.returncode, told), report)
    if report.read_bytes() != wanted.read_bytes():
        raise Failure(f"{report} is not {wanted}: the engines differ")
    found = Scaled(
        executors=executors, verified=verified, events=read_events(log), driver_mb=sum(peaks.values())
    )
    if kills and not found.events.lost:
        raise Failure("no executor was lost: the run was over before one could be killed")
    complain(
        f"{executors} executors, {topic}: {verified.ran.cpu_s:.1f} s CPU, {verified.ran.wall_s:.1f} s, "
        + ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items())
    )
    return found


def _submitted(log: Path) -> str:
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{log.resolve()}",
        "spark.eventLog.compress": "false",
        # so that it says soon how many tasks have ended
        "spark.eventLog.buffer.kb": "1k",
        # the scan waits for all executors, so that the start of each is in every run
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    return " ".join(f"--conf {name}={value}" for name, value in settings.items()) + " pyspark-shell"


# --- processes ---


def _watch(child: subprocess.Popen[str], log: Path | None) -> Mapping[str, float]:
    """Wait for the end of it. Return the peaks of the driver's two processes in MB; kill an executor once the
    log of events, if it is given, says that half of the tasks have ended."""
    peaks: dict[str, float] = defaultdict(float)
    while child.poll() is None:
        threading.Event().wait(LOOK_S)
        for process in tree(child.pid):
            if DRIVER in process.words:
                peaks["JVM"] = max(peaks["JVM"], _peak_mb(process.pid))
            elif "tools.cli" in process.words and "whole_cpu" not in process.words:
                peaks["Python"] = max(peaks["Python"], _peak_mb(process.pid))
        if log is not None and done_share(_lines(log)) >= HALF:
            _kill_one(child.pid)
            log = None
    return peaks


def _kill_one(above: int) -> None:
    executors = [each for each in tree(above) if EXECUTOR in each.words]
    if executors:
        os.kill(executors[-1].pid, signal.SIGKILL)
        complain(f"killed executor {executors[-1].pid}")


def tree(above: int) -> list[Process]:
    """Return all processes below one, as they are now."""
    known: dict[int, Process] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text()
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended
            pid, parent = int(path.name), int(stat.rpartition(")")[2].split()[1])
            known[pid] = Process(pid, parent, words)
    for process in known.values():
        if process.parent in known:
            known[process.parent].children.append(process)
    return [each for each in known[above].all() if each.pid != above] if above in known else []


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return max((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), default=0.0)


# --- Spark's events ---


def read_events(log: Path) -> Events:
    return events_of(_lines(log))


def _lines(log: Path) -> list[str]:
    """Return what Spark has written so far, but for a line that is not whole yet."""
    return [
        line
        for path in sorted(log.rglob("*"))
        if path.is_file() and not path.name.startswith((".", "appstatus"))
        for line in path.read_text().rpartition("\n")[0].splitlines()
    ]


def done_share(lines: Sequence[str]) -> float:
    """Return which share of its tasks the largest stage has done, 0 before it has begun."""
    sizes: dict[int, int] = {}
    done: dict[int, int] = defaultdict(int)
    for event in map(json.loads, lines):
        if event["Event"] == "SparkListenerStageSubmitted":
            sizes[event["Stage Info"]["Stage ID"]] = event["Stage Info"]["Number of Tasks"]
        elif _is_done(event):
            done[event["Stage ID"]] += 1
    largest = max(sizes, key=lambda stage: sizes[stage], default=-1)
    return done[largest] / sizes[largest] if sizes else 0.0


def _is_done(event: Mapping[str, Any]) -> bool:
    return event["Event"] == "SparkListenerTaskEnd" and not event["Task Info"]["Failed"]


def events_of(lines: Sequence[str]) -> Events:
    """Read the events of one application: those of the stage with most tasks are the scan's."""
    stages: dict[int, list[tuple[str, int, float]]] = defaultdict(list)
    shuffled = lost = 0
    for line in lines:
        event = json.loads(line)
        if _is_done(event):
            about = event["Task Info"]
            took_s = (about["Finish Time"] - about["Launch Time"]) / 1000
            stages[event["Stage ID"]].append((about["Executor ID"], about["Index"], took_s))
            shuffled += event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
        lost += event["Event"] == "SparkListenerExecutorRemoved"
    if not stages:
        raise Failure("Spark's log of events has no tasks")
    scan = max(stages.values(), key=len)
    seen: set[str] = set()
    firsts: dict[int, float] = {}
    others: dict[int, float] = {}
    for executor, number, took_s in scan:
        (others if executor in seen else firsts)[number] = took_s
        seen.add(executor)
    return Events(tasks_s=others or firsts, firsts_s=list(firsts.values()), shuffled=shuffled, lost=lost)
