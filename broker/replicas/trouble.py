"""One kind of work that fails for some partitions, as the log tells of it.

Owns: for which partitions it fails now, and when that is worth a line: when it begins, when it is for another
reason, at times while it lasts, when it is over. Does not own: trying again. Invariant: an outage costs a few
lines in all, not one for each partition and attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from protocol.errors import KafkaError

logger = logging.getLogger(__name__)

TOLD_AGAIN_S: Final = 300.0


class Trouble:
    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        """`what` is what the partitions wait for: "to be copied"."""
        self._what = what
        self._clock = clock
        self._failing: set[Hashable] = set()
        self._kind: object = None
        self._told_at = 0.0

    def __repr__(self) -> str:
        return f"<Trouble: {len(self._failing)} wait {self._what}>"

    def __len__(self) -> int:
        return len(self._failing)

    def failed(self, key: Hashable, name: str, error: BaseException) -> None:
        self._failing.add(key)
        kind = error.code if isinstance(error, KafkaError) else type(error)
        if kind == self._kind and self._clock() - self._told_at < TOLD_AGAIN_S:
            return
        self._kind, self._told_at = kind, self._clock()
        others = len(self._failing) - 1
        more = "" if not others else f", as do {others} others" if others > 1 else ", as does another"
        logger.warning("%s waits %s and is tried again%s: %s", name, self._what, more, said_by(error))

    def ended(self, key: Hashable) -> None:
        """It went well, or need not be done any more."""
        if key not in self._failing:
            return
        self._failing.discard(key)
        if not self._failing:
            self._kind = None
            logger.info("nothing that failed before waits %s any more", self._what)


def said_by(error: BaseException) -> str:
    """An error in one line: KafkaError may have no words of its own."""
    if isinstance(error, KafkaError):
        return f"{error.code.name.upper()} {error.message or ''}".strip()
    return f"{type(error).__name__}: {error}"
