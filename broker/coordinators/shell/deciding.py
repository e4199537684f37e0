"""Commands in, rounds out: what is decided when, and what becomes of the decision.

Owns the queue of commands, the decision that takes longer, the open round, and the machine while it counts.
Does not own who waits (`waiting`), which commands a round still takes (`rounds`), the way of a round into the
log (`flushing`), nor when a machine is built anew (`broker.coordinators.replicated_state`).
Invariant: a command is decided on a state in which all it depends on is applied, in the order of arrival
where one depends on another, and by one machine from its first step to its last.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final, Generic, TypeVar

from broker.coordinators.machine import DecisionDraft, Encoded, Instant, Machine, in_steps
from broker.coordinators.shell.alarm import Alarm
from broker.coordinators.shell.log import ShellLog, coordinator_error
from broker.coordinators.shell.rounds import (
    ALL,
    RECORD_OVERHEAD_BYTES,
    RECORDS_PER_STEP,
    TICK,
    Entry,
    Round,
    Tick,
    Touched,
)
from broker.coordinators.shell.waiting import Waiting
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work
from storage.log import NewMarker

logger = logging.getLogger(__name__)

MachineT = TypeVar("MachineT", bound="Machine[Any, Any]")

QUEUED_COMMANDS_MAX: Final = 10_000
STEPS_AT_ONCE: Final = 4
"""Of a command, on its arrival; most need none."""
_NO_TOKEN: Final = -1
_new_tuple = tuple.__new__


class Deciding(Generic[MachineT]):
    def __init__(
        self,
        *,
        log: ShellLog,
        waiting: Waiting,
        alarm: Alarm,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        tell_unforeseen: Callable[[str, Exception], None],
        start_again: Callable[[str, Exception], None],
    ) -> None:
        """`tell_unforeseen` hears what has failed, and why; after `start_again` with the same, the machine
        counts no more, and one that is built from the log takes its place."""
        self.machine: MachineT | None = None
        """The machine, while it counts: nothing is asked of this without one."""
        self.round: Round[Any] = Round()
        self.begun: Work[None] | None = None
        """A decision that takes longer than a command may at once; nothing else is decided before its end."""
        self.is_held = False
        """Whether a flush is under way: what comes meanwhile waits in the queue."""
        self._queue: deque[tuple[Entry, int]] = deque()
        self.on_more: Callable[[], None] = lambda: None
        """Called when there is something to flush, or to decide once the round is flushed."""
        self._was_paused = False
        """Whether the peers are still to be given their full time again."""
        self._log = log
        self._waiting = waiting
        self._alarm = alarm
        self._loop = loop
        self._now_ms = now_ms
        self._tell_unforeseen = tell_unforeseen
        self._start_again = start_again

    def __len__(self) -> int:
        return len(self._queue)

    def is_run_by(self, machine: Machine[Any, Any]) -> bool:
        """Whether what was decided, or read, with this machine counts still."""
        return self.machine is machine

    def has_more(self) -> bool:
        """Whether there is something to decide or to flush."""
        return self.machine is not None and bool(self.begun or self.round.parts or self._queue)

    def clear(self) -> None:
        """Drop the machine and everything that was decided or asked."""
        self.machine = None
        self._queue.clear()
        self.begun = None
        self.round = Round()

    def now(self) -> Instant:
        return _new_tuple(Instant, (int(self._loop.time() * 1000), self._now_ms()))

    # --- taking commands ---

    def give(self, command: Entry, token: int) -> None:
        """Have a command decided, at once where nothing is in its way."""
        machine = self.machine
        assert machine is not None
        if self.is_held or self.begun is not None or self._queue or not self.round.may_join(machine, command):
            if len(self._queue) >= QUEUED_COMMANDS_MAX:
                raise KafkaError(
                    ErrorCode.coordinator_not_available, "too many requests are queued for this coordinator"
                )
            self._enqueue(command, token)
        else:
            self._decide(machine, command, token)

    def tick(self, *, was_paused: bool) -> None:
        """Have the machine meet its deadlines; `was_paused` is whether the whole process stood still."""
        machine = self.machine
        if machine is None:
            return
        self._was_paused = self._was_paused or was_paused
        is_busy = self.is_held or self.begun is not None or self._queue
        if is_busy or not self.round.may_join(machine, TICK):
            self._enqueue(TICK, _NO_TOKEN)
        else:
            self._decide(machine, TICK, _NO_TOKEN)

    def _enqueue(self, command: Entry, token: int) -> None:
        self._queue.append((command, token))
        self.on_more()

    def drain(self) -> Work[None]:
        """Decide what waits in the queue, as far as the round takes it."""
        while (
            self._queue
            and (machine := self.machine) is not None
            and self.round.may_join(machine, self._queue[0][0])
        ):
            work = self._begin(machine, *self._queue.popleft())
            if work is not None:
                yield from work
            yield

    # --- deciding ---

    def _decide(self, machine: MachineT, command: Entry, token: int) -> None:
        """Decide it at once; where that takes longer, the flush goes on with it."""
        try:
            work = self._begin(machine, command, token)
            if work is None:
                return
            for _ in range(STEPS_AT_ONCE):
                next(work)
        except StopIteration:
            return
        except Exception as error:
            self._start_again(HALF_TAKEN, error)
            return
        self.begun = work
        self.on_more()

    def _begin(self, machine: MachineT, command: Entry, token: int) -> Work[None] | None:
        """Decide it as far as that needs no steps; return what is left."""
        if isinstance(command, NewMarker):
            self.round.add_marker(command, token)
            self.on_more()
            return None
        if isinstance(command, Tick):
            return self._ticking(machine)
        touched = machine.scope(command), machine.share(command), getattr(command, "producer", None)
        draft: DecisionDraft[Any] = DecisionDraft(self.now(), token)
        made: Any  # a cast is a call
        try:
            made = machine.decide(command, draft)
        except KafkaError as error:
            self._waiting.fail(token, error)
            return None
        except Exception as error:
            self._command_failed(machine, command, draft, error)
            return None
        if isinstance(made, GeneratorType):
            return self._deciding(machine, command, touched, draft, made)
        return self._decided(machine, touched, token, made)

    def _deciding(
        self,
        machine: MachineT,
        command: Entry,
        touched: Touched,
        draft: DecisionDraft[Any],
        work: Work[Decision[Any, Any]],
    ) -> Work[None]:
        try:
            decision = yield from work
        except KafkaError as error:
            self._waiting.fail(draft.token, error)
            return
        except Exception as error:
            self._command_failed(machine, command, draft, error)
            return
        yield from self._go_on(machine, touched, draft.token, decision)

    def _ticking(self, machine: MachineT) -> Work[None]:
        """Meet the deadlines. One that breaks has taken some that would not come again."""
        now = self.now()
        try:
            if self._was_paused:
                self._was_paused = False
                yield from in_steps(machine.resume(now))
            decision: Decision[Any, Any] = yield from in_steps(machine.tick(now))
        except Exception as error:
            if self.machine is machine:
                self._start_again("Tick failed", error)
            else:
                self._tell_unforeseen("Tick failed", error)
            return
        yield from self._go_on(machine, ALL, _NO_TOKEN, decision)

    def _command_failed(
        self, machine: MachineT, command: Entry, draft: DecisionDraft[Any], error: Exception
    ) -> None:
        """Fail the command that could not be decided, and those that it was about to answer: it changed
        nothing durable, and nobody answers these any more."""
        self._tell_unforeseen(f"{type(command).__name__} failed", error)
        if self.machine is machine:
            self._waiting.fail_each((*draft.replies, (draft.token, None)), ErrorCode.unknown_server_error)

    def _go_on(
        self, machine: MachineT, touched: Touched, token: int, decision: Decision[Any, Any]
    ) -> Work[None]:
        if self.machine is machine:
            rest = self._decided(machine, touched, token, decision)
            if rest is not None:
                yield from rest

    # --- what was decided ---

    def _decided(
        self, machine: MachineT, touched: Touched, token: int, decision: Decision[Any, Any]
    ) -> Work[None] | None:
        """Take what was decided into the round; return what is left of that."""
        replies = decision.replies
        if decision.response is not None:
            replies += ((token, decision.response),)
        if not decision.records:
            return self._answering(machine, replies)
        encoded: list[Encoded] = []
        if len(decision.records) <= RECORDS_PER_STEP:
            made: Any
            for record in decision.records:
                made = machine.encode(record)
                if made.__class__ is not tuple:
                    break
                encoded.append(made)
            else:
                self._take(machine, touched, decision, encoded, replies)
                return None
        return self._taking(machine, touched, decision, encoded, replies)

    def _answering(self, machine: MachineT, replies: tuple[tuple[int, Any], ...]) -> Work[None]:
        yield from self._waiting.answer(replies)
        if self.machine is machine:
            self._alarm.set(machine)

    def _taking(
        self,
        machine: MachineT,
        touched: Touched,
        decision: Decision[Any, Any],
        encoded: list[Encoded],
        replies: tuple[tuple[int, Any], ...],
    ) -> Work[None]:
        """`_take` once the other records are encoded too."""
        for at, record in enumerate(decision.records[len(encoded) :], 1):
            encoded.append((yield from in_steps(machine.encode(record))))
            if at % RECORDS_PER_STEP == 0:
                yield
        if self.machine is machine:
            self._take(machine, touched, decision, encoded, replies)

    def _take(
        self,
        machine: MachineT,
        touched: Touched,
        decision: Decision[Any, Any],
        encoded: list[Encoded],
        replies: tuple[tuple[int, Any], ...],
    ) -> None:
        size = largest = 0
        for key, value in encoded:
            record_size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            size += record_size
            if record_size > largest:
                largest = record_size
        if self._log.is_surely_refused(largest) and not decision.soft:
            # Alone: in a batch it would fail what was decided together with it.
            logger.info("%s: a record of %d bytes is refused", self._log, largest)
            self._waiting.fail_each(replies, coordinator_error(ErrorCode.message_too_large))
            return
        self.round.add(touched, decision, encoded, replies, size)
        self.on_more()
        self._alarm.set(machine)


HALF_TAKEN: Final = "what was decided is lost, or comes from the log"
"""A decision may be half taken, or its records durable and half applied."""
