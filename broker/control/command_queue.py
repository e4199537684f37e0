"""Commands that wait for a slot of the metadata log, worked off by the node that is the controller.

Owns: the bounded queue, deciding several commands for one slot, answering each once its slot is won. Does not
own: the rules of a command (controller.py), winning a slot (ledger.py), who is the controller (cluster.py).

Invariants: nothing is answered before its slot is won. Commands of one slot are decided in order, each seeing
what those before it will do. Whoever loses a slot writes no more in that controller epoch, and answers
nothing it did not commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

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


class Beat:
    """Commits a slot even if nothing else wants one: whoever reads the log sees that its writer lives."""

    def decide(self, image: Image, rules: Rules) -> Decision[Record, None]:
        return Decision()


class CommandQueue:
    def __init__(
        self,
        ledger: Ledger,
        *,
        rules: Callable[[], Rules],
        publish: Callable[[Delta], Awaitable[None]],
        on_lost: Callable[[int], Awaitable[None]],
        on_broken: Callable[[str], None],
        spawn: Callable[[Any], asyncio.Task[None]],
    ) -> None:
        self.controller_epoch: int | None = None
        """In which this node writes; none while it is not the controller."""
        self._ledger = ledger
        self._rules = rules
        self._publish = publish
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._spawn = spawn
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
        """Nobody waits any more for what this node will not commit."""
        self.controller_epoch = None
        waiting = [future for _, future in self._queue]
        self._queue.clear()
        _fail(waiting)

    async def submit(self, command: ControllerCommand[R], *, timeout_ms: int | None = None) -> R:
        """Decide a command, commit its records, and return its response; KafkaError if that cannot be."""
        if not self.is_open:
            raise not_controller()
        if len(self._queue) >= QUEUE_MAX_COMMANDS:
            raise KafkaError(ErrorCode.request_timed_out, "Too many metadata changes are waiting.")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append((command, future))
        if self._writer is None or self._writer.done():
            self._writer = self._spawn(self._write())
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
                        await self._on_lost(epoch)
                        _fail(future for future, _ in answers)
                        continue
                    await self._publish(delta)
                for future, decided in answers:
                    _answer(future, decided)
        except (BrokenLog, StoreError) as error:
            self._on_broken(f"the metadata log cannot be written: {error}")
        finally:
            # Whatever ended this, nobody is left waiting: what is answered already stays answered.
            _fail(future for future, _ in answers)
            if not self.is_open:
                self.close()

    def _decide_slot(self) -> tuple[list[Record], list[tuple[asyncio.Future[Any], _Decided]], bool]:
        ahead = self._ledger.image.copy()
        rules = self._rules()
        records: list[Record] = []
        answers: list[tuple[asyncio.Future[Any], _Decided]] = []
        size, is_beat = 0, False
        while self._queue and len(answers) < SLOT_MAX_COMMANDS and size < SLOT_MAX_BYTES:
            command, future = self._queue.popleft()
            if future.done():
                continue
            decided = _decide(command, ahead, rules)
            answers.append((future, decided))
            is_beat = is_beat or isinstance(command, Beat)
            if isinstance(decided, Decision):
                ahead.apply_slot(self._ledger.image.seq + 1, decided.records)
                size += sum(len(encode_record(record)) for record in decided.records)
                records += decided.records
        return records, answers, bool(records) or is_beat


_Decided = Decision[Record, Any] | Exception


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.not_controller, "This broker is not the controller.")


def _decide(command: ControllerCommand[Any], image: Image, rules: Rules) -> _Decided:
    try:
        return command.decide(image, rules)
    except Exception as error:  # an unexpected one belongs to whoever asked, like an expected one
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
