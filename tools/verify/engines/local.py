"""The engine of one machine: plain processes.

Owns the pool of workers, and the facts they bring. Does not own scans or judges (core). Invariant: as many
loads of tasks are under way as there are workers and as many again; a worker that dies costs its tasks
another try, and a task that kills three workers is told as not read.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any, Final, TypeVar

from tidewal import FOLDER
from tools.verify.core import crc
from tools.verify.core.facts import BatchRow, Fact, NotRead, Row
from tools.verify.core.judge import Verdict
from tools.verify.core.plan import Task, weight_of
from tools.verify.core.scan import LookTask, ScannedUnit, look, scan, unread
from tools.verify.core.stores import allow_maps
from tools.verify.engines.engine import DoneListener, Judging, Keeper

I = TypeVar("I", Task, LookTask)  # noqa: E741
O = TypeVar("O")  # noqa: E741

TRIES_MAX: Final = 3
PR_SET_PDEATHSIG: Final = 1
INLINE_BYTES: Final = 32 << 20
"""Less than this is read by the process itself: it is done before a worker has started."""
LOAD_BYTES: Final = 4 << 20
LOAD_TASKS: Final = 64


class LocalEngine:
    def __init__(self, workers: int = 0, inline_bytes: int = INLINE_BYTES) -> None:
        self._workers = workers or len(os.sched_getaffinity(0))
        self._inline_bytes = inline_bytes
        self._pool: ProcessPoolExecutor | None = None
        self._facts: dict[tuple[str, int], list[Fact]] = defaultdict(list)
        self.cpu_seconds = 0.0

    def scan(
        self,
        tasks: Sequence[Task],
        known: Iterable[Row],
        on_done: DoneListener,
        keep: Keeper | None,
    ) -> list[Fact]:
        for row in known:
            self._facts[row[:2]].append(row[2])

        def done(task: Task, units: list[ScannedUnit]) -> None:
            for unit in units:
                for topic_id, partition, fact in unit.rows:
                    self._facts[topic_id, partition].append(fact)
            if keep is not None:
                keep(units)
            on_done(task)

        is_small = sum(map(weight_of, tasks)) <= self._inline_bytes
        self._map(run_task, [[task] for task in tasks], done, _not_read, is_small)
        return self._facts.pop(("", -1), [])

    def judge(self, judging: Judging) -> list[Verdict]:
        return judging.judge_all(self._facts)

    def look(self, tasks: Sequence[LookTask]) -> list[list[BatchRow | Fact]]:
        found: dict[int, list[BatchRow | Fact]] = {}

        def done(task: LookTask, rows: list[BatchRow | Fact]) -> None:
            found[task.number] = rows

        is_small = sum(task.size for task in tasks) <= self._inline_bytes
        self._map(look, _loads(tasks), done, _not_looked, is_small)
        return [found[task.number] for task in tasks]

    def _map(
        self,
        call: Callable[[I], O],
        loads: Sequence[Sequence[I]],
        done: Callable[[I, O], None],
        failed: Callable[[I], O],
        is_inline: bool,
    ) -> None:
        if is_inline or (self._workers == 1 and len(loads) == 1):
            for load in loads:
                for task in load:
                    done(task, call(task))
            return
        left = list(reversed(loads))
        suspected: list[I] = []
        """Under way at a death. Each runs alone, so that the next death names the guilty one."""
        deaths: Counter[int] = Counter()
        running: dict[Future[tuple[list[O], float]], Sequence[I]] = {}
        while left or suspected or running:
            width = 1 if suspected else 2 * self._workers
            while (left or suspected) and len(running) < width:
                load = [suspected.pop()] if suspected else left.pop()
                running[self._workers_pool().submit(_timed, call, load)] = load
            ready, _ = wait(running, return_when=FIRST_COMPLETED)
            dead: list[I] = []
            for each in ready:
                load = running.pop(each)
                try:
                    results, seconds = each.result()
                except BrokenProcessPool:
                    dead += load
                else:
                    self.cpu_seconds += seconds
                    for task, result in zip(load, results, strict=True):
                        done(task, result)
            if dead:
                dead += (task for load in running.values() for task in load)
                running.clear()
                self.close()
            for task in dead:
                deaths[id(task)] += 1
                if deaths[id(task)] < TRIES_MAX:
                    suspected.append(task)
                else:
                    done(task, failed(task))

    def _workers_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = pool = ProcessPoolExecutor(self._workers, _context(), initializer=_begin_worker)
            # A worker that was started just as another died was waited for without end by Python 3.11.
            pool._safe_to_dynamically_spawn_children = False  # type: ignore[attr-defined]
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


DIED: Final = "the process that read it was killed, three times"


def run_task(task: Task) -> list[ScannedUnit]:
    return list(scan(task))


def _loads(tasks: Iterable[LookTask]) -> list[list[LookTask]]:
    """Return the tasks in rows that cross to a worker in one go: the way there costs more than most do."""
    loads: list[list[LookTask]] = []
    size = LOAD_BYTES
    for task in tasks:
        if size + task.size > LOAD_BYTES or len(loads[-1]) == LOAD_TASKS:
            loads.append([])
            size = 0
        loads[-1].append(task)
        size += task.size
    return loads


def _timed(call: Callable[[I], O], load: Sequence[I]) -> tuple[list[O], float]:
    began = time.process_time()
    return [call(task) for task in load], time.process_time() - began


def _begin_worker() -> None:
    gc.freeze()
    allow_maps()
    _end_with_parent()


def _end_with_parent() -> None:
    """End this process with the one whose work it does: when that is killed, nobody tells it that there is no
    more. The kernel does it for one that was forked from that; a server lives as long as its workers do."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "linux" or os.getppid() != parent.pid:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _context() -> Any:
    """How workers start: as forks of this process, which has loaded all they need, unless another thread of
    it may hold a lock just now. Then from a server, which costs as much as this process took to start."""
    if threading.active_count() == 1:
        crc.prepare()
        return multiprocessing.get_context("fork")
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([scan.__module__])
    _begin_server()
    return context


def _begin_server() -> None:
    """Start the process that workers are forked from. It loads modules before it is told this one's path, and
    so by the path of a Python that has just started: without the current folder, which may be anybody's."""
    path = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH")]))
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=path, PYTHONSAFEPATH="1")
    try:
        forkserver.ensure_running()
    finally:
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def _not_looked(task: LookTask) -> list[BatchRow | Fact]:
    return [NotRead(task.place, DIED)]


def _not_read(task: Task) -> list[ScannedUnit]:
    return [ScannedUnit("", unread(unit, DIED)) for unit in task.units]
