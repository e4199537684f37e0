"""Owns the sum of all rules: a history goes in, a verdict comes out.

Counts what was lost and may be. Does not own the rules.
Invariant: a broken promise is reported once for each place, under the rule that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.sim import checks, replica_checks
from tests.sim.checks import Case
from tests.sim.history import History

RULES: dict[str, Callable[[Case], Iterable[str]]] = {**checks.RULES, **replica_checks.RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    violations: tuple[Violation, ...] = ()
    lost_by_all: int = 0  # acks=all: values that everybody bound to keep them lost to power cuts or new disks
    lost_with_leader: int = 0  # acks=1, acks=0 is never acknowledged

    @property
    def clean(self) -> bool:
        return not self.violations

    def rules(self) -> set[str]:
        return {violation.rule for violation in self.violations}


def judge(history: History) -> Verdict:
    case = Case(history)
    lost = [send.acks == checks.ALL for send in checks.taken_back(case)]
    violations = [Violation(rule=name, what=what) for name, rule in RULES.items() for what in rule(case)]
    return Verdict(
        violations=tuple(violations),
        lost_by_all=lost.count(True),
        lost_with_leader=lost.count(False),
    )
