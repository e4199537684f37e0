"""Rounds into the log, then into the machine, then answered.

Owns when a round is flushed, the one append in flight, and what follows from its outcome. Does not own what
is decided meanwhile (`deciding`), the batches (`log`), nor how a machine is built anew
(`broker.coordinators.replicated_state`).
Invariant: a reply leaves only after the records of its decision are durable and applied; after an append of
unknown outcome, or one that is half applied, the machine counts no more.

A short round of a log without other replicas has nobody to wait for: it is appended, applied and answered in
the pass of the loop after the one that decided it, and needs no task. Every other round goes in turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from broker.coordinators.machine import Machine
from broker.coordinators.shell.alarm import Alarm
from broker.coordinators.shell.applying import apply_all, settle
from broker.coordinators.shell.deciding import HALF_TAKEN, Deciding
from broker.coordinators.shell.log import NOT_APPENDED, ShellLog, coordinator_error
from broker.coordinators.shell.rounds import Part, Round
from broker.coordinators.shell.waiting import Waiting
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.work import finish
from storage.log import CoordinatorBatch, NewMarker

logger = logging.getLogger(__name__)

MachineT = TypeVar("MachineT", bound="Machine[Any, Any]")

SHORT_ROUNDS_AT_ONCE: Final = 4
"""In one pass of the loop."""


class Flushing(Generic[MachineT]):
    def __init__(
        self,
        *,
        log: ShellLog,
        deciding: Deciding[MachineT],
        waiting: Waiting,
        alarm: Alarm,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        reload: Callable[[ErrorCode], None],
        start_again: Callable[[str, Exception], None],
    ) -> None:
        """After `reload` or `start_again` the machine counts no more, and one that is built from the log
        takes its place; everybody who waits hears of the code."""
        self._log = log
        self._deciding = deciding
        self._waiting = waiting
        self._alarm = alarm
        self._loop = loop
        self._spawn = spawn
        self._turns = turns
        self._reload = reload
        self._start_again = start_again
        self._is_due = False
        deciding.on_more = self.soon
        self._append_error: ErrorCode | None = None
        """Why the last append failed; logged when that begins and when the reason changes."""

    # --- when ---

    def soon(self) -> None:
        """Flush after this pass of the loop, so that commands that arrived together share one append."""
        if not (self._is_due or self._deciding.is_held):
            self._is_due = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._is_due = False
        deciding = self._deciding
        if deciding.machine is None or deciding.is_held:
            return
        deciding.is_held = True
        try:
            is_short = self._is_short()
            if is_short:
                self._flush_short(deciding.machine, goes_on=False)
        except Exception as error:
            deciding.is_held = False
            self._start_again(HALF_TAKEN, error)
            return
        if not is_short:
            self._spawn(self._flush())
        elif deciding.has_more():
            self.soon()

    async def _flush(self) -> None:
        deciding = self._deciding
        short = 0
        try:
            while deciding.has_more():
                if deciding.begun is not None:
                    work, deciding.begun = deciding.begun, None
                    await self._turns.run(work)
                machine = deciding.machine
                if machine is not None and self._is_short():
                    self._flush_short(machine, goes_on=True)
                    short += 1
                    if short % SHORT_ROUNDS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                elif machine is not None and not await self._flush_long(machine):
                    return
                await self._turns.run(deciding.drain())
        except Exception as error:
            self._start_again(HALF_TAKEN, error)
        finally:
            deciding.is_held = False

    # --- short rounds ---

    def _is_short(self) -> bool:
        """Whether the next round takes no turns and has nobody to wait for."""
        deciding = self._deciding
        pending = deciding.round
        return deciding.begun is None and pending.is_short() and self._log.takes_at_once(pending.size)

    def _flush_short(self, machine: MachineT, *, goes_on: bool) -> None:
        """Append, apply and answer the next round, which `_is_short`; `goes_on` is whether a flush does."""
        deciding, log = self._deciding, self._log
        pending, deciding.round = deciding.round, Round()
        (part,) = pending.parts
        try:
            appended = log.append_alone(finish(log.build(part.encoded)))
        except KafkaError as error:
            deciding.is_held = goes_on
            self._append_failed(machine, pending, error, is_partly_applied=False)
        else:
            self._append_error = None
            finish(apply_all(machine, part.records, appended.first_offset, deciding.is_run_by))
            # who is answered may ask again at once
            deciding.is_held = goes_on
            if deciding.machine is machine:
                finish(self._waiting.answer(part.replies))
        if deciding.machine is machine:
            self._alarm.set(machine)

    # --- rounds in turns ---

    async def _flush_long(self, machine: MachineT) -> bool:
        """Return True when the next round is durable, applied and answered."""
        deciding = self._deciding
        pending, deciding.round = deciding.round, Round()
        if not pending.parts:
            return True
        part = pending.plain
        if part is not None:
            is_done = await self._append(machine, pending, part)
        else:
            is_done = await self._append_parts(machine, pending)
        if is_done and deciding.machine is machine:
            self._alarm.set(machine)
        return is_done

    async def _append(self, machine: MachineT, pending: Round[Any], part: Part[Any]) -> bool:
        """Append a round of one plain part, batch by batch."""
        deciding, log = self._deciding, self._log
        applied = 0
        for size in log.split(part.encoded):
            batch = await self._turns.run(log.build(part.encoded[applied : applied + size]))
            if deciding.machine is not machine:
                return False
            try:
                appended = await log.append(batch)
            except KafkaError as error:
                return self._append_failed(machine, pending, error, is_partly_applied=applied > 0)
            self._append_error = None
            records = part.records[applied : applied + size]
            await self._turns.run(apply_all(machine, records, appended.first_offset, deciding.is_run_by))
            if deciding.machine is not machine:
                return False
            applied += size
        await self._turns.run(self._waiting.answer(part.replies))
        return True

    async def _append_parts(self, machine: MachineT, pending: Round[Any]) -> bool:
        """Append a round with transactions or markers in it, all of it in one go."""
        deciding = self._deciding
        appended: list[CoordinatorBatch | NewMarker] = []
        counts = [await self._build(part, appended) for part in pending.parts]
        if deciding.machine is not machine:
            return False
        try:
            outcomes = iter(await self._log.append_all(appended))
        except KafkaError as error:
            return self._append_failed(machine, pending, error, is_partly_applied=False)
        self._append_error = None
        parted: ErrorCode | None = None
        for part, sizes in zip(pending.parts, counts, strict=True):
            refused = await self._turns.run(settle(machine, part, sizes, outcomes, deciding.is_run_by))
            if deciding.machine is not machine:
                return False
            if refused is None:
                await self._turns.run(self._waiting.answer(part.replies))
                continue
            why, is_partly = refused
            code = coordinator_error(why.code)
            if is_partly or (part.is_plain and (pending.soft or why.code not in NOT_APPENDED)):
                parted = code
                continue
            self._waiting.fail_each(part.replies, code, why.message)
        if deciding.machine is not machine:
            return False  # closed while the last part was answered
        if parted is not None:
            self._reload(parted)
            return False
        return True

    async def _build(self, part: Part[Any], to: list[CoordinatorBatch | NewMarker]) -> list[int]:
        """Add the batches of a part to the others; return the number of records of each."""
        if part.marker is not None:
            to.append(part.marker)
            return [0]
        producer, at = part.producer, 0
        sizes = list(self._log.split(part.encoded))
        for size in sizes:
            data = await self._turns.run(self._log.build(part.encoded[at : at + size], producer))
            at += size
            verified = None if producer is None else producer.verified
            to.append(CoordinatorBatch(data, producer is not None, verified))
        return sizes

    def _append_failed(
        self, machine: MachineT, pending: Round[Any], error: KafkaError, *, is_partly_applied: bool
    ) -> bool:
        """Return True when the machine still equals the log and may go on."""
        if self._deciding.machine is not machine:
            return False
        code = coordinator_error(error.code)
        if self._append_error is not error.code:
            self._append_error = error.code
            logger.warning("%s: append failed, clients get %s: %s", self._log, code.name, error)
        if error.code in NOT_APPENDED and not pending.soft and not is_partly_applied:
            for part in pending.parts:
                self._waiting.fail_each(part.replies, code)
            return True
        self._reload(code)
        return False
