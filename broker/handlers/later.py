"""An answer that a handler waits for without a task, and requests that are answered without being read.

Owns: what becomes of the outcome of a command that a coordinator was told, and what a handler says of how to
go on when its request comes again. Does not own: the coordinator, nor how requests are told apart and answers
encoded and sent (`broker.handlers.dispatch`).
Invariant: it is settled once; whoever wants to know of that hears of it once, now or then.

It has no deadline of its own, as the coordinator's holds: of commands that no later one answers, which are
the only ones that are told with a `Later`, the queue is bounded, an append takes at most
`offsets.commit.timeout.ms`, and one that fails, an error that nobody foresaw, and the end of the leadership
each settle all that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from protocol.codec import Fields
from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.work import Work

T = TypeVar("T")

REMEMBERED_BYTES_MAX: Final = 1024
"""Of a request that is compared with the next: a client id alone may have 32 KB."""


class Later(Generic[T]):
    """The place of an outcome, and what answer it makes."""

    __slots__ = ("_error", "_is_done", "_make", "_refuse", "_result", "_then")

    def __init__(
        self, make: Callable[[T], Fields | Work[Fields]], refuse: Callable[[KafkaError], Fields]
    ) -> None:
        """`make` turns a response into an answer, `refuse` an error."""
        self._make = make
        self._refuse = refuse
        self._is_done = False
        self._result: T | None = None
        self._error: KafkaError | None = None
        self._then: Callable[[], None] | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: T) -> None:
        self._result = result
        self._settle()

    def set_exception(self, error: KafkaError) -> None:
        self._error = error
        self._settle()

    def _settle(self) -> None:
        self._is_done = True
        then, self._then = self._then, None
        if then is not None:
            then()

    def then(self, go_on: Callable[[], None]) -> None:
        """Have this called, which must not raise, once it is settled."""
        assert self._then is None and not self._is_done
        self._then = go_on

    def answer(self) -> Fields | Work[Fields]:
        """Return the answer, once it is settled."""
        assert self._is_done
        error, self._error = self._error, None
        if error is not None:
            return self._refuse(error)
        return self._make(self._result)  # type: ignore[arg-type]

    async def wait(self) -> Fields | Work[Fields]:
        """Return the answer when it is settled."""
        if not self._is_done:
            settled = asyncio.get_running_loop().create_future()
            self.then(lambda: None if settled.done() else settled.set_result(None))
            await settled
        return self.answer()


class Again(NamedTuple):
    """How a request is handled that is like one before it."""

    places: Callable[[Buffer, int], Sequence[int]]
    """Where in a frame, of which the body begins somewhere, are the 32 bits in which it may differ."""
    handle: Callable[[tuple[int, ...]], Fields | Later[Any] | None]
    """From what is there, what the handler would answer; None for what it is to read itself."""
