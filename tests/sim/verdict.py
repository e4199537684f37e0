"""Owns the sum of all rules: a history goes in, a verdict comes out.

Counts what was lost and may be. Does not own the rules.
Invariant: a broken promise is reported once for each place, under the rule that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.sim import (
    admin_checks,
    checks,
    group_checks,
    leak_checks,
    replica_checks,
    tier_checks,
    transaction_checks,
    wal_checks,
)
from tests.sim.checks import Case
from tests.sim.history import History, Send

RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    **checks.RULES,
    **transaction_checks.RULES,
    **group_checks.RULES,
    **replica_checks.RULES,
    **tier_checks.RULES,
    **wal_checks.RULES,
    **admin_checks.RULES,
    **leak_checks.RULES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    violations: tuple[Violation, ...] = ()
    lost_by_all: int = (
        0  # acks=all: everybody bound to keep them lost them to power cuts, new disks, or unclean
    )
    lost_by_last: int = 0  # acks=all: the last in the ISR lost them, while somebody outside it had a copy
    lost_with_leader: int = 0  # acks=1; acks=0 is never acknowledged

    @property
    def clean(self) -> bool:
        return not self.violations

    def rules(self) -> set[str]:
        return {violation.rule for violation in self.violations}


def judge(history: History) -> Verdict:
    case = Case(history)
    violations = [Violation(rule=name, what=what) for name, rule in RULES.items() for what in rule(case)]
    lost = Counter(_how_lost(case, send, offset) for send, offset in checks.taken_back(case))
    return Verdict(violations=tuple(violations), **lost)


def _how_lost(case: Case, send: Send, offset: int) -> str:
    if send.acks != checks.ALL:
        return "lost_with_leader"
    is_unclean = any(moment.is_unclean for moment in case.custody.moments(send.tp))
    if is_unclean or case.custody.each_lost(send.tp, offset, send.since, send.done):
        return "lost_by_all"
    return "lost_by_last"
