"""The engine of a Spark cluster: the same scans on executors, the same judges after one small shuffle.

Owns the jobs, and what of their results goes where. Does not own the session (spark_session), scans or judges
(core). Invariant: what moves between processes is facts, never bytes of logs; the driver holds verdicts, what
is not about one partition, and so many facts of partitions as are few; an executor that dies costs its tasks
another try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, TypeVar

from tools.spark_session import QUICK_JVM, NoSpark, is_running, open_context
from tools.spark_workers import settle
from tools.verify.core.facts import GENERAL, BatchRow, Fact, Row
from tools.verify.core.judge import Verdict
from tools.verify.core.plan import Task
from tools.verify.core.scan import LookTask, ScannedUnit, look, scan
from tools.verify.engines.engine import DoneListener, EngineFailed, Judging, Keeper

T = TypeVar("T")

FEW_ROWS: Final = 50_000
"""Up to so many facts of partitions are judged by the driver, without a job and a shuffle for them."""
KNOWN_ROWS: Final = 10_000
"""Of one partition of what the ledger has."""
SETTINGS: Final = {"spark.driver.memory": "1g", "spark.task.maxFailures": "4"}
LOCAL_SETTINGS: Final = {
    "spark.python.daemon.module": "tools.verify.engines.spark_daemon",
    "spark.executor.extraJavaOptions": QUICK_JVM,
}
JOB_GROUP: Final = "tidewal-verify-scan"
POLL_S: Final = 0.5
WIDTH: Final = 4
"""Groups of partitions for each core, at most, when they are judged."""


class SparkEngine:
    def __init__(self, master: str = "local[*]") -> None:
        """Use the context that this process has, which stays, or one of its own."""
        self.cpu_seconds = 0.0
        self._is_mine = not is_running()
        try:
            # the JVM only hands on what Python made: code of it that is compiled further never pays here
            is_local = master.startswith("local")
            settings = {**SETTINGS, **(LOCAL_SETTINGS if is_local else {})}
            self._context = open_context(master, name="tidewal verify", settings=settings, is_quick=is_local)
        except NoSpark as error:
            raise EngineFailed(f"{error}, or give --engine local") from None
        self._scanned: Any = None
        self._rows: Any = None
        self._facts: dict[tuple[str, int], list[Fact]] | None = None
        """Of all partitions, where they were few."""
        self._wide = 1

    def scan(
        self,
        tasks: Sequence[Task],
        known: Iterable[Row],
        on_done: DoneListener,
        keep: Keeper | None,
    ) -> list[Fact]:
        from pyspark import StorageLevel

        rows_max = FEW_ROWS // max(1, len(tasks)) if keep is None else 0
        scanned = self._spread(tasks).mapPartitions(_scan_all).persist(StorageLevel.MEMORY_AND_DISK)
        self._scanned = scanned
        firsts = scanned.map(lambda brought: _first_facts(brought, rows_max))
        found = self._do(lambda: self._told(firsts.collect, tasks, on_done))
        general = [fact for facts, _ in found for fact in facts]
        few = [rows for _, rows in found if rows is not None]
        if keep is None and len(few) == len(found):
            self._facts = defaultdict(list)
            for place, fact in chain.from_iterable(few):
                self._facts[place].append(fact)
            return general
        if keep is not None:
            for _, units, _ in scanned.toLocalIterator(prefetchPartitions=True):
                keep(units)
        rows = scanned.flatMap(_partition_rows)
        for part in _pieces(known, KNOWN_ROWS):
            general.extend(row[2] for row in part if row[:2] == GENERAL)
            about = [(row[:2], row[2]) for row in part if row[:2] != GENERAL]
            if about:
                rows = rows.union(self._context.parallelize(about, 1))
        self._rows = rows
        return general

    def _told(self, scan: Callable[[], T], tasks: Sequence[Task], on_done: DoneListener) -> T:
        """Run the scans, and tell of their progress meanwhile."""
        from pyspark import InheritableThread

        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self._context.setJobGroup(JOB_GROUP, "scanning")
                found.append(scan())
            except Exception as error:
                failed.append(error)

        worker = InheritableThread(target=run, daemon=True)
        worker.start()
        tracker = self._context.statusTracker()
        told = 0
        while worker.is_alive():
            worker.join(POLL_S)
            done = 0
            for job in tracker.getJobIdsForGroup(JOB_GROUP):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(each) for each in info.stageIds] if info else []
                done = max([done, *(stage.numCompletedTasks for stage in stages if stage)])
            while told < min(done, len(tasks)):
                on_done(tasks[told])
                told += 1
        if failed:
            raise failed[0]
        for task in tasks[told:]:
            on_done(task)
        return found[0]

    def judge(self, judging: Judging) -> list[Verdict]:
        if self._facts is not None:
            return judging.judge_all(self._facts)
        shared = self._context.broadcast(judging)
        parts = max(1, min(self._wide, WIDTH * self._context.defaultParallelism))
        grouped = self._rows.groupByKey(parts)
        found: list[Verdict] = self._do(
            grouped.map(lambda pair: shared.value.judge(pair[0], pair[1])).collect
        )
        there = {(each.topic_id, each.partition) for each in found}
        found += [judging.judge(each, ()) for each in judging.contexts if each not in there]
        return sorted(found, key=lambda verdict: (verdict.topic_id, verdict.partition))

    def look(self, tasks: Sequence[LookTask]) -> list[list[BatchRow | Fact]]:
        if not tasks:
            return []
        found = dict(self._do(self._spread(tasks).map(lambda task: (task.number, look(task))).collect))
        return [found[task.number] for task in tasks]

    def close(self) -> None:
        if self._is_mine:
            self._context.stop()
        elif self._scanned is not None:
            self._scanned.unpersist()

    def _spread(self, tasks: Sequence[Any]) -> Any:
        """Return the tasks, one in each partition, in the order in which they are to begin."""
        self._wide = max(1, len(tasks))
        return self._context.parallelize(tasks, self._wide)

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise EngineFailed(f"Spark gave up: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """Return what says most of Spark's many lines."""
    lines = [line.strip() for line in f"{error}".splitlines() if line.strip()]
    told = [line for line in lines if "Job aborted" in line or "Lost task" in line]
    return (told or lines or [type(error).__name__])[0][:500]


PartitionRow = tuple[tuple[str, int], Fact]
Brought = tuple[int, list[ScannedUnit], list[Fact]]
"""The number of a task, its units, and the facts among them that are not about one partition."""


def _scan_all(tasks: Iterable[Task]) -> Iterator[Brought]:
    for task in tasks:
        units = list(scan(task))
        yield task.number, units, [row[2] for unit in units for row in unit.rows if row[:2] == GENERAL]
        settle()


def _first_facts(brought: Brought, rows_max: int) -> tuple[list[Fact], list[PartitionRow] | None]:
    """Return what the driver needs, and the other facts too if they are at most so many."""
    rows = list(islice(_partition_rows(brought), rows_max + 1))
    return brought[2], rows if len(rows) <= rows_max else None


def _partition_rows(brought: Brought) -> Iterator[PartitionRow]:
    for unit in brought[1]:
        for topic_id, partition, fact in unit.rows:
            if (topic_id, partition) != GENERAL:
                yield (topic_id, partition), fact


def _pieces(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    left = iter(rows)
    while part := list(islice(left, size)):
        yield part
