"""Turns for tests of what is small: work ends where it begins."""

from __future__ import annotations

from typing import TypeVar

from broker.at_work import AtWork
from broker.turns import Turns
from protocol.work import Work, finish

T = TypeVar("T")


class AtOnce(Turns):
    def __init__(self) -> None:
        """Needs no loop."""
        self.own = self
        self.at_work = AtWork(None)

    async def run(self, work: Work[T]) -> T:
        return finish(work)

    def begin(self, work: Work[T]) -> tuple[T]:
        return (finish(work),)
