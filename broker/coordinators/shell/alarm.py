"""The one timer of a coordinator: when its machine is to tick next.

Owns the handle and what it is set to. Does not own deadlines, which are the machine's (`machine.Timers`), nor
what a tick does (`deciding`).
Invariant: while there is a machine that has a deadline, the alarm rings by then, maybe before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.coordinators.machine import Machine


class Alarm:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[int], None]) -> None:
        """`ring` hears for when it was set."""
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, machine: Machine[Any, Any]) -> None:
        """Have it ring at the machine's next deadline, or earlier."""
        at_ms = machine.next_deadline_ms()
        if self._timer is not None:
            if at_ms is not None and self._at_ms <= at_ms:
                return
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            # Kept here, because uvloop returns a handle without a time for one that is past.
            self._at_ms = at_ms
            self._timer = self._loop.call_at(at_ms / 1000, self._passed, at_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _passed(self, at_ms: int) -> None:
        self._timer = None
        self._ring(at_ms)
