"""What an engine is: it spreads scans over processes and brings facts to judges.

Owns the seam between a verification and the processes that it runs in. Does not own any of them (local,
spark) or what is scanned and judged (core). Invariant: engines differ in where and when things run, never in
what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tools.verify.core.facts import BatchRow, Fact, Row
from tools.verify.core.judge import Extent, PartitionContext, Stream, Verdict, judge
from tools.verify.core.plan import Task
from tools.verify.core.scan import LookTask, ScannedUnit


class Judging(NamedTuple):
    """What judges know beside the facts of their partition."""

    contexts: Mapping[tuple[str, int], PartitionContext]
    extents: Mapping[Stream, Extent]
    other: PartitionContext = PartitionContext(is_known=False)
    """Of partitions that are in no context."""

    def judge(self, partition: tuple[str, int], facts: Iterable[Fact]) -> Verdict:
        context = self.contexts.get(partition, self.other)
        return judge(*partition, context, self.extents, facts)  # type: ignore[arg-type]

    def judge_all(self, facts: dict[tuple[str, int], list[Fact]]) -> list[Verdict]:
        """Return the verdict of each partition that there is, in their order. Empties `facts` on its way."""
        partitions = sorted({*facts, *self.contexts})
        return [self.judge(partition, facts.pop(partition, ())) for partition in partitions]


class EngineFailed(Exception):
    """The engine could not run what it was given. One line says why."""


DoneListener = Callable[[Task], None]
Keeper = Callable[[Sequence[ScannedUnit]], None]


class Engine(Protocol):
    cpu_seconds: float
    """Of processes that are not this one's children, as far as it is known."""

    def scan(
        self,
        tasks: Sequence[Task],
        known: Iterable[Row],
        on_done: DoneListener,
        keep: Keeper | None,
    ) -> list[Fact]:
        """Run the tasks and hold their rows, and those that are known, for `judge`. Return the facts that are
        not about one partition. Each task's units go to `keep` once."""
        ...

    def judge(self, judging: Judging) -> list[Verdict]:
        """Return a verdict for each partition of which there are facts, and each that has a context, in
        their order."""
        ...

    def look(self, tasks: Sequence[LookTask]) -> list[list[BatchRow | Fact]]:
        """Return what each look found, in the order of the tasks."""
        ...

    def close(self) -> None: ...
