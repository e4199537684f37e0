"""The engine of processes: what it brings is what one process brings, and a worker that dies is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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


def test_processes_bring_what_one_brings(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path / "made", 29)
    assert len(tasks) > 5
    facts, verdicts, kept = scanned(LocalEngine(1), tasks)
    engine = LocalEngine(2, inline_bytes=0)
    more_facts, more_verdicts, more_kept = scanned(engine, tasks)
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
