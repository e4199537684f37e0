"""The engine of processes: what it brings is what one process brings, and a worker that dies is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.verify.stores import NOW_MS, build
from tools.verify.core.facts import Fact, NotRead
from tools.verify.core.judge import Verdict
from tools.verify.core.outcome import Options
from tools.verify.core.plan import Task
from tools.verify.core.scan import ScannedUnit
from tools.verify.core.snapshot import freeze
from tools.verify.core.stores import FileSource
from tools.verify.engines.engine import Judging
from tools.verify.engines.local import DIED, LocalEngine
from tools.verify.verification import Verification

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[4]


class Deadly(FileSource):
    """Kills whoever reads one of its objects, as a lack of memory does."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Deadly, (self.root, self.is_store)

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        if key.endswith("00002"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().opened(key, read)


def tasks_of(root: Path, seed: int) -> list[Task]:
    """The tasks of a store, one for each object."""
    build(seed, NOW_MS).write_to(root)
    options = Options(store=f"file://{root}/store", task_bytes=1)
    run = Verification(options, lambda _: None)
    return run.prepare(freeze(run.store, run.data)).tasks


def scanned(engine: LocalEngine, tasks: list[Task]) -> tuple[list[Fact], list[Verdict], list[ScannedUnit]]:
    kept: list[ScannedUnit] = []
    try:
        facts = engine.scan(tasks, (), lambda _: None, kept.extend)
        return facts, engine.judge(Judging({}, {})), kept
    finally:
        engine.close()


def effortless(facts: list[Fact]) -> list[str]:
    return sorted(str(fact) for fact in facts if not hasattr(fact, "requests"))


@pytest.mark.parametrize("has_threads", [False, True])
def test_processes_bring_what_one_brings(has_threads: bool, tmp_path: Path) -> None:
    """Forks of this one, or of a server where another thread may hold a lock."""
    tasks = tasks_of(tmp_path / "made", 29)
    assert len(tasks) > 5
    facts, verdicts, kept = scanned(LocalEngine(1), tasks)
    engine = LocalEngine(2, inline_bytes=0)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    if has_threads:
        other.start()
    try:
        more_facts, more_verdicts, more_kept = scanned(engine, tasks)
    finally:
        done.set()
    assert engine.cpu_seconds > 0
    assert verdicts == more_verdicts
    assert verdicts
    assert effortless(facts) == effortless(more_facts)
    assert sorted(map(str, kept)) == sorted(map(str, more_kept))


def test_a_task_that_kills_its_worker_is_not_read_and_costs_no_other(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path / "made", 29)
    deadly = Deadly(f"{tmp_path}/made/store")
    told: list[int] = []
    engine = LocalEngine(2, inline_bytes=0)
    began = time.monotonic()
    try:
        facts = engine.scan(
            [task._replace(source=deadly) for task in tasks],
            (),
            lambda task: told.append(task.number),
            None,
        )
    finally:
        engine.close()
    assert time.monotonic() - began < 60
    dead = {fact.place for fact in facts if isinstance(fact, NotRead)}
    guilty = [task for task in tasks if any(unit.name.endswith("00002") for unit in task.units)]
    assert dead == {unit.name for task in guilty for unit in task.units}
    assert len(guilty) < len(tasks)
    assert dead
    assert {fact.why for fact in facts if isinstance(fact, NotRead)} == {DIED}
    assert sorted(told) == [task.number for task in tasks]


class Endless(FileSource):
    """Writes down who reads one of its objects, and never gives it."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Endless, (self.root, self.is_store)

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        with open(f"{self.root}/../readers", "a") as file:
            file.write(f"{os.getpid()}\n")
        signal.pause()
        raise AssertionError


KILLED = """
import signal, sys, threading
from pathlib import Path
from tests.tools.verify.engines.test_local import Endless, LocalEngine, tasks_of
root = Path(sys.argv[1])
source = Endless(f"{root}/store")
tasks = [task._replace(source=source) for task in tasks_of(root, 29)]
if sys.argv[2:]:
    threading.Thread(target=signal.pause, daemon=True).start()
LocalEngine(2, inline_bytes=0).scan(tasks, (), lambda _: None, None)
"""


@pytest.mark.parametrize("threads", [[], ["threads"]])
def test_workers_end_with_the_process_that_is_killed(threads: list[str], tmp_path: Path) -> None:
    root = tmp_path / "made"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(root), *threads], cwd=ROOT) as process:
        readers: set[int] = set()
        deadline = time.monotonic() + 60
        while len(readers) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            threading.Event().wait(0.02)
            with contextlib.suppress(FileNotFoundError):
                readers = {int(line) for line in (root / "readers").read_text().split()}
        process.kill()
    assert process.pid not in readers
    deadline = time.monotonic() + 30
    while any(is_running(each) for each in readers):
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
