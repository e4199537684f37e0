"""Owns virtual time: an asyncio loop that never waits, reads no clock and touches no descriptor.

When nothing is ready the loop jumps to the next timer, so hours pass in milliseconds and one seed gives one
run. Work belongs to a `Process` (one life of a node or client) through a context variable that every task,
timer and callback inherits; a dead process is never run again, not even its `finally` blocks, which is what
SIGKILL means, and a paused one runs nothing until it is resumed. Does not own the network, the disk or the
store.

Invariant: the order of everything that runs is a function of the seed alone. Tasks and futures hash by
serial number, because asyncio keeps them in sets; nothing in the trace comes from `hash()`, `id()` or the
real clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import math
import warnings
from asyncio import base_events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STEP_SECONDS = 1e-6  # so that code which works "for a millisecond" makes progress
CLOCK_READ_SECONDS = 1e-7  # so that a loop around time() inside one step ends
HASHED_AT_ONCE = 256  # lines of the trace
SLACK_FROM_S = 0.05  # what waits less long, as all that lines and stores deliver, is not made later


class Killed(BaseException):
    """The process this code belongs to is dead; not an Exception, so that no handler mistakes it for a
    failure."""


class SimFailure(Exception):
    """The run itself went wrong: an escaped exception, a deadlock or a livelock."""


class Process:
    """One life of a node or client: everything that a kill ends at once."""

    def __init__(self, loop: SimLoop, name: str, life: int = 0) -> None:
        self.loop = loop
        self.name = name
        self.life = life
        self.alive = True
        self.power_lost = False
        self.steps = 0
        self.die_at_step: int | None = None
        self.power_at_step = False
        self.paused = False
        self.parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_death: list[Callable[[bool], None]] = []
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def spawn(self, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        return self.loop.create_task(coro, name=name, context=self.context.copy())

    def die_in_steps(self, steps: int, *, power: bool) -> None:
        self.die_at_step = self.steps + max(1, steps)
        self.power_at_step = power

    def die(self, *, power: bool = False) -> None:
        if not self.alive:
            return
        self.alive = False
        self.power_lost = power
        self.parked.clear()
        self.loop.trace("die", self.name, power)
        for hook in self.on_death:
            hook(power)

    def pause(self) -> None:
        """As by SIGSTOP: nothing of it runs, its timers fire late, its sockets stay open and fill."""
        if self.alive and not self.paused:
            self.paused = True
            self.loop.trace("pause", self.name)

    def resume(self) -> None:
        """Everything that became due meanwhile is due now, in the order in which it became so."""
        if self.paused:
            self.paused = False
            self.loop.trace("resume", self.name)
            parked, self.parked = self.parked, []
            self.loop.ready_again(parked)

    def check_alive(self) -> None:
        if not self.alive:
            raise Killed(self.name)

    def __repr__(self) -> str:
        return f"<Process {self.name} {'alive' if self.alive else 'dead'} steps={self.steps}>"


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class SimFuture(asyncio.Future[Any]):
    serial = 0
    """Given by the loop, which makes it."""

    def __hash__(self) -> int:
        return self.serial


class SimTask(asyncio.Task[Any]):
    serial = 0

    def __hash__(self) -> int:
        return self.serial


class SimHandle(asyncio.Handle):
    """As asyncio makes them, without its debug mode; the loop fills them in itself, for a run makes tens of
    thousands."""

    __slots__ = ()
    _loop = _repr = _source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class SimTimer(asyncio.TimerHandle):
    """The same with a time; the loop finds out by itself that one was cancelled."""

    __slots__ = ()
    _loop = _repr = _source_traceback = None
    _scheduled = True
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __lt__(self, other: object) -> bool:
        """Of two that are due at the same time neither comes first; the heap asks."""
        return False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


_new_handle, _new_timer = SimHandle.__new__, SimTimer.__new__
_new_task, _begin_task = SimTask.__new__, asyncio.Task.__init__
_copy_context, _push = contextvars.copy_context, heapq.heappush


class SimLoop(base_events.BaseEventLoop):
    def __init__(self, *, max_steps: int = 400_000, keep_trace: bool = False) -> None:
        super().__init__()
        self.set_debug(False)
        self._clock_resolution = 1e-9
        self._virtual_now = 1_000.0
        self.serial = 0
        """Of the newest task or future."""
        self.steps = 0
        self.max_steps = max_steps
        self.slack_s = 0.0
        """Timers of processes fire up to so much late, several in one moment, as on machines at rest."""
        self.failures: list[str] = []
        self.first_error: BaseException | None = None
        self.trace_lines: list[str] | None = [] if keep_trace else None
        self._trace_hash = hashlib.blake2b(digest_size=8)
        self._unhashed: list[str] = []
        self._timers: list[tuple[float, SimTimer]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._on_error)

    # time ---------------------------------------------------------------------------------------------------

    def time(self) -> float:
        self._virtual_now += CLOCK_READ_SECONDS
        return self._virtual_now

    @property
    def now(self) -> float:
        """Virtual time without moving it, for observers."""
        return self._virtual_now

    def stall(self, seconds: float) -> None:
        """Time passes and nothing runs: a collector pause, a suspended machine, a blocking call."""
        self._virtual_now += seconds

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _new_handle(SimHandle)
        handle._context = _copy_context() if context is None else context
        handle._callback = callback
        handle._args = args
        handle._cancelled = False
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        slack_s = self.slack_s
        if slack_s and when - self._virtual_now >= SLACK_FROM_S:
            process = PROCESS.get() if context is None else context.get(PROCESS)
            if process is not None:
                when = math.ceil(when / slack_s) * slack_s
        return self.push_timer(when, callback, args, _copy_context() if context is None else context)

    def push_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> SimTimer:
        """One that is due at this time exactly."""
        timer = _new_timer(SimTimer)
        timer._when = when
        timer._context = context
        timer._callback = callback
        timer._args = args
        timer._cancelled = False
        _push(self._timers, (when, timer))
        return timer

    # trace --------------------------------------------------------------------------------------------------

    def trace(self, kind: str, *fields: object) -> None:
        line = f"{self._virtual_now:.6f} {self.steps} {kind} {' '.join(map(str, fields))}"
        unhashed = self._unhashed
        unhashed.append(line)
        if len(unhashed) >= HASHED_AT_ONCE:
            self._hash_lines()
        if self.trace_lines is not None:
            self.trace_lines.append(line)

    def _hash_lines(self) -> None:
        self._trace_hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    def trace_digest(self) -> str:
        self._hash_lines()
        return self._trace_hash.hexdigest()

    # running ------------------------------------------------------------------------------------------------

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run to the end; any exception that escaped a task or callback of a living process fails the run."""
        main = self.create_task(coro, name="main", context=contextvars.Context())
        main.add_done_callback(lambda _: self.stop())
        try:
            self.run_forever()
            if not main.done() or not main.cancelled():
                self._collect_unretrieved(main)
            if self.failures:
                raise SimFailure("; ".join(self.failures)) from self.first_error
            return main.result()
        finally:
            self._close_leftovers()
            self.close()

    def _run_once(self) -> None:
        """Everything, round after round, until somebody stops the loop; asyncio would call for each round."""
        ready, timers, pop = self._ready, self._timers, heapq.heappop
        while True:
            while timers and timers[0][1]._cancelled:
                pop(timers)
            if not ready and not self._stopping:
                if not timers:
                    self.fail("deadlock: nothing is ready and no timer is set", None)
                    return
                self._virtual_now = max(self._virtual_now, timers[0][0])
            now = self._virtual_now
            while timers and timers[0][0] <= now:
                ready.append(pop(timers)[1])
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                context = handle._context
                process = context.get(PROCESS)
                if process is not None:
                    if not process.alive:
                        continue
                    if process.paused:
                        process.parked.append(handle)
                        continue
                    process.steps += 1
                    if process.steps == process.die_at_step:
                        process.die(power=process.power_at_step)
                        continue
                self.steps += 1
                self._virtual_now += STEP_SECONDS
                if self.steps > self.max_steps:
                    self.fail(f"livelock: more than {self.max_steps} steps", None)
                    continue
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._on_error(self, {"message": f"Exception in {handle!r}", "exception": error})
            if self._stopping:
                return

    def ready_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    # failures -----------------------------------------------------------------------------------------------

    def _on_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed):
            return
        process = PROCESS.get()
        where = process.name if process is not None else "-"
        self.fail(f"[{where}] {context.get('message')}: {error!r}", error)

    def fail(self, message: str, error: BaseException | None) -> None:
        self.failures.append(message)
        if self.first_error is None:
            self.first_error = error
        self.stop()

    def _collect_unretrieved(self, main: asyncio.Task[Any]) -> None:
        """A task that died unseen has lost an error; asyncio would only log it, and only when it is
        collected."""
        for task in self._tasks:
            if task is main or not task.done() or task.cancelled() or not task._log_traceback:
                continue
            error = task.exception()
            if error is not None and not isinstance(error, Killed):
                self.fail(f"task {task.get_name()} died unseen: {error!r}", error)

    def _close_leftovers(self) -> None:
        """End the frames of the dead and the unfinished here, in order, not at the collector's whim."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a coroutine that a kill kept from being awaited is no mistake
            for task in self._tasks:
                if task.done():
                    task._log_traceback = False
                    continue
                task._log_destroy_pending = False
                try:
                    task.get_coro().close()
                except BaseException:  # whatever a dead process does in its finally blocks is void
                    continue
            self._tasks.clear()

    # asyncio's own hooks ------------------------------------------------------------------------------------

    def create_future(self) -> SimFuture:
        future = SimFuture(loop=self)
        self.serial = future.serial = self.serial + 1
        return future

    def forget_finished(self) -> None:
        """Let go of the tasks that ended well, or whose error somebody took, and of what the errors hold."""
        self._tasks = [task for task in self._tasks if not task.done() or task._log_traceback]

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> SimTask:
        task = _new_task(SimTask)
        # before asyncio has it: it keeps tasks in a set
        self.serial = task.serial = self.serial + 1
        _begin_task(task, coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        self._tasks.append(task)
        if process is not None:
            process.tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there is no real I/O in a simulation")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise AssertionError("no thread in a simulation: use World.offload")

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("no resolver in a simulation: use World.network")

    def __del__(self, _warn: object = None) -> None:
        """Nothing to release: there is no descriptor, so an unused loop is no leak."""

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        raise AssertionError("no signals in a simulation")
