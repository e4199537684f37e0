"""What a verification is asked, and what it answers.

Owns options, progress and the outcome with its coverage. Does not own how it comes about (verification) or
how it is shown (report). Invariant: all of an outcome but its effort is the same for the same bytes, whatever
engine ran, in whatever order; what could not be read or was not checked is told beside the findings, never as
one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from tools.verify.core.findings import Counted, Finding, Severity

ORPHAN_GRACE_MS: Final = 15 * 60 * 1000
"""What nothing refers to is an orphan only when the store has an object that is so much newer: else it may be
on its way, or brokers were stopped before they could delete it."""


class Exit(IntEnum):
    CLEAN = 0
    FINDINGS = 1
    UNFINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    store: str = ""
    """The URL of a store, empty: none."""
    data: tuple[str, ...] = ()
    """Data directories; their place in this row is their number in findings."""
    bootstrap: str = ""
    """A broker to read the topics about the tiers from, host:port."""
    manifests: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    """Names or ids; empty: all."""
    engine: str = "local"
    """`local` or `spark`."""
    master: str = "local[*]"
    """Of Spark."""
    workers: int = 0
    """Processes of the local engine, 0: one for each core."""
    ledger: str = ""
    """A directory for what was proved, so that it is not read again."""
    sample: float = 1.0
    """The share of the data that is read; names, sizes, tables and metadata are always checked whole."""
    sample_seed: int = 0
    grace_ms: int = ORPHAN_GRACE_MS
    task_bytes: int = 256 << 20


class Progress(NamedTuple):
    phase: str
    """`listing`, `scanning`, `judging` or `refining`."""
    done_bytes: int = 0
    all_bytes: int = 0
    done_tasks: int = 0
    all_tasks: int = 0
    findings: int = 0
    """So far: faults of single places; what copies say together is known at the end."""


ProgressListener = Callable[[Progress], None]
"""Is told of progress, from the process that asked, at most a few times a second."""


class Unread(NamedTuple):
    """What the store or the disk did not give: makes the verification unfinished, and is no finding."""

    place: str
    why: str


class Unchecked(NamedTuple):
    """What was not looked at although it is there, or could not be compared for want of its other side."""

    what: str
    """A word to search for: `tier-topics`, `data-directories`, `store`, `manifest`, `sampled`, `topics`, …"""
    why: str
    """In one sentence, what was not checked and what option would."""


class Span(NamedTuple):
    """Offsets that one tier holds without a gap."""

    tier: str
    """`local`, `wal` or `cold`."""
    first: int
    end: int
    size: int
    """Bytes, of all copies in this tier."""
    copies: int = 1
    """The fewest places in which one of these offsets is."""


class Holder(NamedTuple):
    """One place that has offsets of a damaged range, itself damaged there or not."""

    tier: str
    place: str
    position: int
    """Of the first of their batches in it."""
    first: int
    end: int


class Coverage(NamedTuple):
    """What is where of one partition, ascending within each tier."""

    topic_id: str
    topic: str
    """Its name, empty where nothing says it."""
    partition: int
    log_start: int
    log_end: int
    """Exclusive. -1: nothing says where."""
    spans: tuple[Span, ...] = ()
    damaged: tuple[tuple[int, int], ...] = ()
    """Ranges that findings name, ascending, end exclusive."""
    holders: tuple[Holder, ...] = ()
    """Of the damaged ranges, all that count: the good copies are among them. Sorted."""


class Figures(NamedTuple):
    """What was checked, the same for every engine."""

    objects: int = 0
    """In the store, of any kind."""
    files: int = 0
    """In the data directories."""
    listed_bytes: int = 0
    scanned_bytes: int = 0
    """Whose every byte was read in this run; what the ledger had proved is not among them."""
    proved_bytes: int = 0
    """What the ledger had proved."""
    batches: int = 0
    records: int = 0
    partitions: int = 0
    topics: int = 0


class Effort(NamedTuple):
    """What it took: the only part of an outcome that differs from run to run."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    requests: int = 0
    read_bytes: int = 0
    tasks: int = 0


class PlannedPart(NamedTuple):
    kind: str
    """`cold`, `wal`, `meta` or `data`."""
    objects: int
    size: int
    requests: int


class Planned(NamedTuple):
    """What a verification would read, and what that costs at list price."""

    parts: tuple[PlannedPart, ...]
    tasks: int
    objects: int
    size: int
    requests: int
    dollars: float
    price_date: str
    """Of the price list."""
    proved_bytes: int = 0
    """Skipped: the ledger has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    findings: tuple[Finding, ...]
    """Sorted."""
    counted: tuple[Counted, ...]
    """Sorted, one for each range."""
    coverage: tuple[Coverage, ...]
    """Sorted by topic id and partition."""
    unread: tuple[Unread, ...]
    """Sorted; not empty means that the verification could not finish."""
    unchecked: tuple[Unchecked, ...]
    """Sorted."""
    figures: Figures
    cluster_id: str = ""
    effort: Effort = field(default=Effort(), compare=False)

    def exit_code(self, is_strict: bool = False) -> Exit:
        if self.unread:
            return Exit.UNFINISHED
        counts = {Severity.ERROR, Severity.WARNING} if is_strict else {Severity.ERROR}
        return Exit.FINDINGS if any(each.severity in counts for each in self.findings) else Exit.CLEAN


def damaged_ranges(findings: Sequence[Finding]) -> tuple[tuple[int, int], ...]:
    """The offsets that findings about one partition name, united and ascending."""
    united: list[tuple[int, int]] = []
    for first, end in sorted((each.first, each.end) for each in findings if 0 <= each.first < each.end):
        if united and first <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((first, end))
    return tuple(united)
