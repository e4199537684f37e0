"""Runs a pure state machine over one internal partition: decide, append, apply, answer.

Owns the life of a coordinator: whether it loads, is active or closed, asking it, its time, and reading its
log anew when that and the machine may have parted. Does not own what is decided (`machine`), nor the log.
Its parts, in `broker.coordinators.shell`: what is decided when (`deciding`), which decisions share an append
(`rounds`), their way into the log (`flushing`, `log`) and into the machine (`applying`), and who waits for
which reply (`waiting`).
Invariant: a command is decided on a state in which all it depends on is applied, and which the next leader
would read too; a reply leaves only after the records of its decision are durable and applied; after an append
of unknown outcome the machine is rebuilt from the log, and after an error that nobody foresaw, unless that
concerns one command alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar, overload

from broker.coordinators.machine import Machine, in_steps
from broker.coordinators.pace import Pace
from broker.coordinators.shell.alarm import Alarm
from broker.coordinators.shell.applying import replay
from broker.coordinators.shell.deciding import Deciding
from broker.coordinators.shell.flushing import Flushing
from broker.coordinators.shell.log import CoordinatorLog, ShellLog, StateConfig
from broker.coordinators.shell.rounds import Asked
from broker.coordinators.shell.waiting import Reply, Waiting
from broker.turns import Turns
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.work import Work
from storage.log import NewMarker

logger = logging.getLogger(__name__)

R = TypeVar("R")
MachineT = TypeVar("MachineT", bound="Machine[Any, Any]")

LOAD_RETRY_S: Final = 1.0
UNFORESEEN_RETRY_MAX_S: Final = 60.0
"""Before a log is read again that led to an error which nobody foresaw: it will again, until it changes."""
REPLICATION_POLL_S: Final = 0.01
REPLICATION_POLL_MAX_S: Final = 0.2
STALL_MS: Final = 1_000
"""A timer this late shows that the whole process stood still, not that the clients are silent."""


class Status(Enum):
    LOADING = auto()
    ACTIVE = auto()
    CLOSED = auto()


class ReplicatedState(Generic[MachineT]):
    def __init__(
        self,
        *,
        topic: str,
        index: int,
        leader_epoch: int,
        make_machine: Callable[[], MachineT],
        partitions: CoordinatorLog,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        config: StateConfig,
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.status = Status.LOADING
        self._make_machine = make_machine
        self._spawn = spawn
        self._turns = turns
        self._loop = loop = asyncio.get_running_loop()
        self._active = asyncio.Event()
        self._log = log = ShellLog(
            topic=topic,
            index=index,
            leader_epoch=leader_epoch,
            partitions=partitions,
            now_ms=now_ms,
            config=config,
        )
        self._waiting = waiting = Waiting()
        self._alarm = alarm = Alarm(loop, self._deadline_passed)
        self._deciding: Deciding[MachineT] = Deciding(
            log=log,
            waiting=waiting,
            alarm=alarm,
            loop=loop,
            now_ms=now_ms,
            tell_unforeseen=self._tell_unforeseen,
            start_again=self._start_again,
        )
        self._flushing: Flushing[MachineT] = Flushing(
            log=log,
            deciding=self._deciding,
            waiting=waiting,
            alarm=alarm,
            loop=loop,
            spawn=spawn,
            turns=turns,
            reload=self._reload,
            start_again=self._start_again,
        )

    def __repr__(self) -> str:
        return (
            f"<ReplicatedState {self._log} epoch={self.leader_epoch} "
            f"{self.status.name.lower()} {len(self._deciding)} queued, {len(self._waiting)} waiting>"
        )

    @property
    def config(self) -> StateConfig:
        """May be replaced at any time; the next append uses it."""
        return self._log.config

    @config.setter
    def config(self, config: StateConfig) -> None:
        self._log.config = config

    @property
    def machine(self) -> MachineT:
        """Return the machine, for reading what is applied; raise KafkaError unless it is active."""
        machine = self._deciding.machine
        if machine is None:
            raise KafkaError(self._why_not())
        return machine

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._spawn(self._load())

    def close(self, code: ErrorCode = ErrorCode.not_coordinator) -> None:
        """Stop coordinating, because another broker or none does now; fail every client that waits."""
        if self.status is Status.CLOSED:
            return
        self._set_status(Status.CLOSED)
        self._fail_all(code)

    async def wait_settled(self) -> None:
        """Return when it is loaded or closed."""
        await self._active.wait()

    # --- asking ---

    @overload
    async def ask(self, command: NewMarker) -> None: ...
    @overload
    async def ask(self, command: Asked[R]) -> R: ...
    async def ask(self, command: Asked[R] | NewMarker) -> R | None:
        """Return the response, once it is durable. Cancelling drops the response; the command stands."""
        if self.status is not Status.ACTIVE:
            raise KafkaError(self._why_not())
        future: asyncio.Future[Any] = self._loop.create_future()
        token = self._waiting.expect(future)
        try:
            self._deciding.give(command, token)
            response: R | None = await future
            return response
        finally:
            self._waiting.give_up(token)
            del future  # which an error, by its traceback, would keep alive together with itself

    def tell(self, command: Asked[R], reply: Reply[R]) -> None:
        """`ask` for one that is no task: the reply is given the response, or the error, at once or once it is
        durable. Raise KafkaError where it is not asked at all."""
        if self.status is not Status.ACTIVE:
            raise KafkaError(self._why_not())
        token = self._waiting.expect(reply)
        try:
            self._deciding.give(command, token)
        except BaseException:
            self._waiting.give_up(token)
            raise

    async def write_marker(self, marker: NewMarker) -> None:
        """End a transaction: return once its marker is durable and applied."""
        await self.ask(marker)

    def _why_not(self) -> ErrorCode:
        """Return why it is not asked."""
        is_loading = self.status is Status.LOADING
        return ErrorCode.coordinator_load_in_progress if is_loading else ErrorCode.not_coordinator

    def _fail_all(self, code: ErrorCode) -> None:
        """Drop everything that was decided or asked; fail every client that waits with this code."""
        self._alarm.stop()
        self._deciding.clear()
        self._waiting.fail_all(code)

    def _tell_unforeseen(self, what: str, error: Exception) -> None:
        logger.error("%s: %s", self._log, what, exc_info=error)

    # --- time ---

    def _deadline_passed(self, planned_ms: int) -> None:
        was_paused = self._deciding.now().mono_ms - planned_ms > STALL_MS
        if was_paused and self.status is Status.ACTIVE:
            logger.warning(
                "%s: the broker was paused; every member gets its full session timeout again", self._log
            )
        self._deciding.tick(was_paused=was_paused)

    # --- loading ---

    def _start_again(self, what: str, error: Exception) -> None:
        """Go by what the log says after an error that nobody foresaw."""
        self._tell_unforeseen(what, error)
        if self.status is Status.ACTIVE:
            self._reload(ErrorCode.unknown_server_error, pause_s=LOAD_RETRY_S)

    def _reload(self, code: ErrorCode, *, pause_s: float = 0.0) -> None:
        self._set_status(Status.LOADING)
        self._fail_all(code)
        self._spawn(self._load(pause_s))

    def _set_status(self, status: Status) -> None:
        self.status = status
        if status is Status.LOADING:
            self._active.clear()
        else:
            self._active.set()

    async def _load(self, pause_s: float = 0.0) -> None:
        if pause_s:
            await self._pause(pause_s)
        while self.status is Status.LOADING:
            try:
                machine = self._make_machine()
                await replay(machine, self._log, self._turns, Pace(self._loop))
                await self._wait_replicated()
                await self._turns.run(self._activate(machine))
            except (KafkaError, OSError, CorruptBatch) as error:
                await self._load_failed(error)
            except Exception as error:
                self._tell_unforeseen("cannot be loaded, will try again", error)
                pause_s = min(max(2 * pause_s, LOAD_RETRY_S), UNFORESEEN_RETRY_MAX_S)
                await self._pause(pause_s)

    def _activate(self, machine: MachineT) -> Work[None]:
        """Have it build its soft state, and go by it. Nothing comes between: who hears from a machine that it
        is loaded finds it active, and one that is closed before says nothing."""
        if self.status is not Status.LOADING:
            return
        yield from in_steps(machine.loaded(self._deciding.now()))
        if self.status is Status.LOADING:
            self._deciding.machine = machine
            self._set_status(Status.ACTIVE)
            self._alarm.set(machine)

    async def _wait_replicated(self) -> None:
        """Wait until no election can lose what was read back, which may be uncommitted. A follower that does
        not fetch it leaves the ISR, which ends the wait.
        """
        pause_s = REPLICATION_POLL_S
        while self.status is Status.LOADING and not self._log.is_replicated():
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, REPLICATION_POLL_MAX_S)

    async def _load_failed(self, error: Exception) -> None:
        """Log the error and pause, unless the log only went with the leadership."""
        if self.status is Status.LOADING:
            logger.error("%s cannot be loaded, will try again: %s", self._log, error)
            await self._pause(LOAD_RETRY_S)

    async def _pause(self, most_s: float) -> None:
        """Wait before the next attempt, unless it is closed meanwhile."""
        try:
            async with asyncio.timeout(most_s):
                await self._active.wait()
        except TimeoutError:
            return
