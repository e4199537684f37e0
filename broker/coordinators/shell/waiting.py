"""Who waits for which reply of a coordinator.

Owns the tokens by which decisions answer commands, and where each reply is put. Does not own what is answered
or when (`deciding`, `flushing`).
Invariant: every reply that is expected is given once, a result or an error, unless who waited gave up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from broker.coordinators.shell.rounds import REPLIES_PER_STEP
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

R_contra = TypeVar("R_contra", contravariant=True)


class Reply(Protocol[R_contra]):
    """Where the outcome of a command is put: a future, or what does without one. It must not raise."""

    def done(self) -> bool: ...

    def set_result(self, result: R_contra, /) -> None: ...

    def set_exception(self, exception: KafkaError, /) -> None: ...


class Waiting:
    def __init__(self) -> None:
        self._replies: dict[int, Reply[Any]] = {}
        self._next_token = 0

    def __len__(self) -> int:
        return len(self._replies)

    def expect(self, reply: Reply[Any]) -> int:
        """Return the token that answers it."""
        token = self._next_token
        self._next_token = token + 1
        self._replies[token] = reply
        return token

    def give_up(self, token: int) -> None:
        self._replies.pop(token, None)

    def answer(self, replies: Sequence[tuple[int, Any]]) -> Work[None]:
        waiting = self._replies
        for at, (token, answer) in enumerate(replies, 1):
            reply = waiting.pop(token, None)
            if reply is not None and not reply.done():
                reply.set_result(answer)
            if at % REPLIES_PER_STEP == 0:
                yield

    def fail(self, token: int, error: KafkaError) -> None:
        reply = self._replies.pop(token, None)
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def fail_each(
        self, replies: Sequence[tuple[int, Any]], code: ErrorCode, message: str | None = None
    ) -> None:
        """Fail those that would have been given these replies."""
        for token, _ in replies:
            self.fail(token, KafkaError(code, message))

    def fail_all(self, code: ErrorCode) -> None:
        for token in list(self._replies):
            self.fail(token, KafkaError(code))
