"""Commands that wait for a slot of the metadata log, worked off by the node that is the controller.

Owns: the bounded queue, deciding several commands for one slot, answering each once its slot is won. Does not
own: the rules of a command (commands.py), winning a slot (ledger.py), which node is the controller
(cluster.py).

Invariants: nothing is answered before its slot is won. Commands of one slot are decided in order, each seeing
what those before it will do. A node that loses a slot writes no more in that controller epoch, and answers
nothing it did not commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from broker.control.commands import ControllerCommand, Rules
from broker.control.image import Delta, Image
from broker.control.ledger import Ledger
from broker.control.metadata_log import BrokenLog
from broker.control.metadata_records import Record, encode_record
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from remote.store.object_store import StoreError

R = TypeVar("R")

QUEUE_MAX_COMMANDS = 1_000
SLOT_MAX_COMMANDS = 500
SLOT_MAX_BYTES = 4 * 1024 * 1024


class SlotWriter(Protocol):
    """The member that a queue belongs to."""

    def rules(self) -> Rules: ...

    async def publish(self, *deltas: Delta) -> None:
        """Tell the rest of the broker what was committed. Returns when everything heard of it."""

    async def slot_lost(self, controller_epoch: int) -> None:
        """Another node won the slot: follow it."""

    def end_membership(self, reason: str) -> None:
        """Stop for good: the log cannot be written."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class EmptySlot:
    """Commits a slot even if nothing else wants one: a node that reads the log sees that its writer lives."""

    def decide(self, image: Image, rules: Rules) -> Decision[Record, None]:
        return Decision()


class CommandQueue:
    def __init__(
        self,
        ledger: Ledger,
        writer: SlotWriter,
    ) -> None:
        self.controller_epoch: int | None = None
        """The epoch this node writes in; None while it is not the controller."""
        self._ledger = ledger
        self._member = writer
        self._queue: deque[tuple[ControllerCommand[Any], asyncio.Future[Any]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_open(self) -> bool:
        return self.controller_epoch is not None

    def open(self, controller_epoch: int) -> None:
        self.controller_epoch = controller_epoch

    def close(self) -> None:
        """Refuse what is waiting: this node will not commit it."""
        self.controller_epoch = None
        waiting = [future for _, future in self._queue]
        self._queue.clear()
        _fail(waiting)

    async def submit(self, command: ControllerCommand[R], *, timeout_ms: int | None = None) -> R:
        """Decide a command, commit its records, and return its response; raise KafkaError if that fails."""
        if not self.is_open:
            raise not_controller()
        if len(self._queue) >= QUEUE_MAX_COMMANDS:
            raise KafkaError(ErrorCode.request_timed_out, "Too many metadata changes are waiting.")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append((command, future))
        if self._writer is None or self._writer.done():
            self._writer = self._member.spawn(self._write())
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise KafkaError(ErrorCode.request_timed_out) from None
        finally:
            del future  # which an error, by its traceback, would keep alive together with itself

    async def _write(self) -> None:
        """Commands that wait while a slot is being won share the next one."""
        answers: list[tuple[asyncio.Future[Any], _Decided]] = []
        try:
            while self._queue and self.controller_epoch is not None:
                records, answers, is_wanted = self._decide_slot()
                if is_wanted:
                    epoch = self.controller_epoch
                    delta = await self._ledger.commit(records, controller_epoch=epoch)
                    if delta is None:
                        if self.controller_epoch == epoch:
                            self.close()
                        await self._member.slot_lost(epoch)
                        _fail(future for future, _ in answers)
                        continue
                    await self._member.publish(delta)
                for future, decided in answers:
                    _answer(future, decided)
        except (BrokenLog, StoreError) as error:
            self._member.end_membership(f"the metadata log cannot be written: {error}")
        finally:
            # However this ended, nothing is left waiting: what is answered already stays answered.
            _fail(future for future, _ in answers)
            if not self.is_open:
                self.close()

    def _decide_slot(self) -> tuple[list[Record], list[tuple[asyncio.Future[Any], _Decided]], bool]:
        ahead = self._ledger.image.copy()
        rules = self._member.rules()
        records: list[Record] = []
        answers: list[tuple[asyncio.Future[Any], _Decided]] = []
        size, is_wanted = 0, False
        while self._queue and len(answers) < SLOT_MAX_COMMANDS and size < SLOT_MAX_BYTES:
            command, future = self._queue.popleft()
            if future.done():
                continue
            decided = _decide(command, ahead, rules)
            answers.append((future, decided))
            is_wanted = is_wanted or isinstance(command, EmptySlot)
            if isinstance(decided, Decision):
                ahead.apply_slot(self._ledger.image.seq + 1, decided.records)
                size += sum(len(encode_record(record)) for record in decided.records)
                records += decided.records
        return records, answers, bool(records) or is_wanted


_Decided = Decision[Record, Any] | Exception


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.not_controller, "This broker is not the controller.")


def _decide(command: ControllerCommand[Any], image: Image, rules: Rules) -> _Decided:
    try:
        return command.decide(image, rules)
    except Exception as error:  # an unexpected one too goes to the one that asked
        return error


def _answer(future: asyncio.Future[Any], decided: _Decided) -> None:
    if future.done():
        return
    if isinstance(decided, Decision):
        future.set_result(decided.response)
    else:
        future.set_exception(decided)


def _fail(waiting: Iterable[asyncio.Future[Any]]) -> None:
    for future in waiting:
        _answer(future, not_controller())
