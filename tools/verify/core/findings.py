"""What is wrong, each time in the same words.

Owns the finding, its order and its codes. Does not own how one is found (judge, scan) or shown (report).
Invariant: a finding says nothing of clocks, hosts or engines, so two engines over the same bytes agree.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    """Counts only with --strict."""


class Code(NamedTuple):
    severity: Severity
    meaning: str
    hint: str
    """What to do about it, in one sentence."""


CODES: Final[dict[str, Code]] = {}
"""Every code there is. A module that finds adds its own with `declare`; the report lists them all."""


def declare(code: str, severity: Severity, meaning: str, hint: str) -> str:
    """Add a code, once, and return it."""
    assert code not in CODES, code
    CODES[code] = Code(severity, meaning, hint)
    return code


class Finding(NamedTuple):
    code: str
    topic_id: str = ""
    """As Kafka shows it, 22 characters; empty: not about one topic."""
    partition: int = -1
    first: int = -1
    """The first offset it is about, -1: not about offsets."""
    end: int = -1
    """Exclusive."""
    place: str = ""
    """The key of an object, or `<number of the data directory>:<path in it>`."""
    position: int = -1
    """The byte in it."""
    expected: str = ""
    actual: str = ""

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity


class Counted(NamedTuple):
    """What is legal, but explains why something is not there: counted, never a finding."""

    what: str
    """log-start, retention, compaction, aborted, dead, sealed, young-orphan, …"""
    topic_id: str = ""
    partition: int = -1
    first: int = -1
    end: int = -1
    amount: int = 1
