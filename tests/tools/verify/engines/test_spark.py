"""The engine of Spark finds what the engine of processes finds, though a worker dies half way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.verify import deck
from tests.verify.faults import plant
from tests.verify.stores import NOW_MS, build
from tools.verify.core.outcome import Effort, Options, Outcome, Progress
from tools.verify.core.snapshot import freeze
from tools.verify.core.stores import FileSource
from tools.verify.engines import spark as engine_of_spark
from tools.verify.engines.engine import Judging
from tools.verify.engines.spark import SparkEngine
from tools.verify.verification import Verification, verify

T = TypeVar("T")

pytestmark = pytest.mark.spark


def options(root: Path, **more: Any) -> Options:
    given = {"store": f"file://{root}/store", "workers": 1, "task_bytes": 1 << 16}
    return Options(**{**given, **more})


def effortless(outcome: Outcome) -> Outcome:
    return replace(outcome, effort=Effort())


@pytest.mark.parametrize("few", [0, engine_of_spark.FEW_ROWS])
@pytest.mark.parametrize("seed", [29, None])
def test_the_outcome_is_that_of_processes(
    spark: Any, seed: int | None, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole store, and of one with a few faults of many kinds; judged by executors or by the driver."""
    monkeypatch.setattr(engine_of_spark, "FEW_ROWS", few)
    if seed is not None:
        build(seed, NOW_MS).write_to(tmp_path)
    else:
        assert deck.NAMES
        planted = plant(3, NOW_MS, count=6)
        planted.world.write_to(tmp_path)
    told: list[Progress] = []
    data = tuple(str(each) for each in sorted(tmp_path.glob("data*")))
    wanted = verify(options(tmp_path, data=data))
    found = verify(options(tmp_path, data=data, engine="spark"), told.append)
    assert effortless(found) == effortless(wanted)
    assert bool(found.findings) == (seed is None)
    scanned = [each for each in told if each.phase == "scanning"]
    assert scanned[-1].done_tasks == scanned[-1].all_tasks > 1


class Mortal(FileSource):
    """Kills, once, whoever reads a certain object, as a lack of memory does."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Mortal, (self.root, self.is_store)

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        mark = Path(self.root).parent / "has-died"
        if key.endswith("00002") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().opened(key, read)


def test_a_worker_that_dies_half_way_costs_nothing(spark: Any, tmp_path: Path) -> None:
    build(29, NOW_MS).write_to(tmp_path / "made")
    run = Verification(options(tmp_path / "made"), lambda _: None)
    tasks = run.prepare(freeze(run.store, run.data, run.reader)).tasks
    verdicts = []
    for source in (FileSource(f"{tmp_path}/made/store"), Mortal(f"{tmp_path}/made/store")):
        engine = SparkEngine()
        engine.scan([task._replace(source=source) for task in tasks], (), lambda _: None, None)
        verdicts.append(engine.judge(Judging({}, {})))
        engine.close()
    assert (tmp_path / "made" / "has-died").exists()
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]
