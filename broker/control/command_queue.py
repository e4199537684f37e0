"""Commands that wait for a slot of the metadata log, worked off by the node that is the controller.

Owns: the bounded queue, deciding several commands for one slot, answering each once its slot is won. Does not
own: the rules of a command (commands.py), winning a slot (ledger.py), which node is the controller
(cluster.py).

Invariants: nothing is answered before its slot is won. Commands of one slot are decided in order, each seeing
what those before it will do. They are decided in turns, upon a copy of the image; if another slot came in the
meantime, theirs is lost. A node that loses a slot writes no more in that controller epoch, and answers
nothing it did not commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from broker.control.commands import RECORDS_MAX_PER_COMMAND, ControllerCommand, Rules, deciding
from broker.control.image import Delta, Image
from broker.control.ledger import Ledger
from broker.control.metadata_log import BrokenLog
from broker.control.metadata_records import Record, encoding_records
from broker.decisions import Decision
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work
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


@dataclass(slots=True)
class _Asked:
    """A command on its way into a slot."""

    future: asyncio.Future[Any]
    decided: Decision[Record, Any] | Exception | None = None

    def answer(self) -> None:
        """Give what was decided, or that it will not be committed, to the one that waits for it."""
        decided, self.decided = self.decided, None
        if self.future.done():
            return
        if isinstance(decided, Decision):
            self.future.set_result(decided.response)
        else:
            self.future.set_exception(not_controller() if decided is None else decided)


@dataclass(slots=True)
class _Slot:
    """What is to be the next slot."""

    after: int = -1
    records: list[Record] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    asked: list[_Asked] = field(default_factory=list)
    size: int = 0
    is_wanted: bool = False

    def has_room(self) -> bool:
        return (
            len(self.asked) < SLOT_MAX_COMMANDS
            and len(self.records) < RECORDS_MAX_PER_COMMAND
            and self.size < SLOT_MAX_BYTES
        )

    def refuse(self) -> None:
        """Tell all that wait for it that it will not be committed; what is answered stays answered."""
        for each in self.asked:
            each.decided = None
            each.answer()


class CommandQueue:
    def __init__(self, ledger: Ledger, writer: SlotWriter, turns: Turns) -> None:
        self.controller_epoch: int | None = None
        """The epoch this node writes in; None while it is not the controller."""
        self._ledger = ledger
        self._member = writer
        self._turns = turns
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
        waiting = [_Asked(future) for _, future in self._queue]
        self._queue.clear()
        for each in waiting:
            each.answer()

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
        slot = _Slot()
        try:
            while self._queue and self.controller_epoch is not None:
                slot, epoch = _Slot(), self.controller_epoch
                await self._turns.run(self._decide(slot))
                if self.controller_epoch != epoch:
                    slot.refuse()
                    continue
                if slot.is_wanted:
                    delta = await self._ledger.commit(
                        slot.records, slot.encoded, after=slot.after, controller_epoch=epoch
                    )
                    if delta is None:
                        if self.controller_epoch == epoch:
                            self.close()
                        await self._member.slot_lost(epoch)
                        slot.refuse()
                        continue
                    await self._member.publish(delta)
                for each in slot.asked:
                    each.answer()
        except (BrokenLog, StoreError) as error:
            self._member.end_membership(f"the metadata log cannot be written: {error}")
        finally:
            # However this ended, nothing is left waiting: what is answered already stays answered.
            slot.refuse()
            if not self.is_open:
                self.close()

    def _decide(self, slot: _Slot) -> Work[None]:
        """Take commands off the queue for as long as the slot has room."""
        ahead = self._ledger.image.copy()
        slot.after = ahead.seq
        rules = self._member.rules()
        while self._queue and slot.has_room():
            command, future = self._queue.popleft()
            if future.done():
                continue
            asked = _Asked(future)
            slot.asked.append(asked)
            try:
                asked.decided = decided = yield from deciding(command, ahead, rules)
            except KafkaError as error:
                asked.decided = error.with_traceback(None)  # whose frames hold all that it was decided upon
                continue
            except Exception as error:  # an unexpected one too goes to the one that asked
                asked.decided = error
                continue
            slot.is_wanted = slot.is_wanted or bool(decided.records) or isinstance(command, EmptySlot)
            yield from ahead.folding(slot.after + 1, decided.records)
            encoded = yield from encoding_records(decided.records)
            slot.records += decided.records
            slot.encoded += encoded
            slot.size += sum(map(len, encoded))


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.not_controller, "This broker is not the controller.")
