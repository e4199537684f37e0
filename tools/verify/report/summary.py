"""What of an outcome is shown: findings by code, as few rows as say it, and no more than a report can bear.

Owns how findings are collapsed and capped, and how text of others is made fit to be printed. Does not own a
form (json_report, markdown, html_page). Invariant: whatever is left off is counted where it is left off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tools.verify.core.findings import CODES, Counted, Finding, Severity
from tools.verify.core.outcome import Exit, Outcome, Unchecked, Unread

TEXT_MAX: Final = 300
UNREAD_MAX: Final = 100
TIERS: Final = ("local", "wal", "cold")
RESULTS: Final = {
    Exit.CLEAN: "clean",
    Exit.FINDINGS: "findings",
    Exit.UNFINISHED: "could not finish",
}
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


class Row(NamedTuple):
    """Findings that follow each other, told as one."""

    finding: Finding
    """The first of them, with the end of the last."""
    times: int


class CodeRows(NamedTuple):
    code: str
    severity: Severity
    meaning: str
    hint: str
    findings: int
    """All of this code."""
    rows: tuple[Row, ...]
    left_off: int
    """Findings that no row tells of."""


class CountedSum(NamedTuple):
    what: str
    ranges: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    exit_code: Exit
    errors: int
    warnings: int
    unread: tuple[Unread, ...]
    unread_left_off: int
    unchecked: tuple[Unchecked, ...]
    codes: tuple[CodeRows, ...]
    """Of which there are findings; errors first."""
    counted: tuple[CountedSum, ...]
    topics: Mapping[str, str]
    """Names by id."""
    tier_bytes: Mapping[str, int]

    @property
    def result(self) -> str:
        return RESULTS[self.exit_code]

    def name_of(self, topic_id: str) -> str:
        return self.topics.get(topic_id) or topic_id


def summarize(outcome: Outcome, *, is_strict: bool, rows_max: int) -> Summary:
    severities = Counter(each.severity for each in outcome.findings)
    tier_bytes = dict.fromkeys(TIERS, 0)
    for each in outcome.coverage:
        for span in each.spans:
            tier_bytes[span.tier] = tier_bytes.get(span.tier, 0) + span.size
    return Summary(
        exit_code=outcome.exit_code(is_strict),
        errors=severities[Severity.ERROR],
        warnings=severities[Severity.WARNING],
        unread=outcome.unread[:UNREAD_MAX],
        unread_left_off=max(0, len(outcome.unread) - UNREAD_MAX),
        unchecked=outcome.unchecked,
        codes=tuple(by_code(outcome.findings, rows_max)),
        counted=tuple(summed(outcome.counted)),
        topics={each.topic_id: each.topic for each in outcome.coverage if each.topic},
        tier_bytes=tier_bytes,
    )


def by_code(findings: Iterable[Finding], rows_max: int) -> Iterable[CodeRows]:
    mine: dict[str, list[Finding]] = defaultdict(list)
    for each in findings:
        mine[each.code].append(each)
    for code in sorted(mine, key=lambda code: (CODES[code].severity is Severity.WARNING, code)):
        rows = collapsed(mine[code])
        shown = tuple(rows[:rows_max])
        left_off = len(mine[code]) - sum(row.times for row in shown)
        yield CodeRows(code, *CODES[code], len(mine[code]), shown, left_off)


def collapsed(findings: Iterable[Finding]) -> list[Row]:
    """Unite findings of one code, partition and place whose offsets follow each other without a gap."""
    rows: list[Row] = []
    last: dict[tuple[str, str, int, str], int] = {}
    for each in sorted(findings):
        key = each.code, each.topic_id, each.partition, each.place
        at = last.get(key, -1)
        if at >= 0 and 0 <= each.first <= rows[at].finding.end and each.end >= 0:
            first, times = rows[at]
            rows[at] = Row(first._replace(end=max(first.end, each.end)), times + 1)
        else:
            last[key] = len(rows)
            rows.append(Row(each, 1))
    return rows


def summed(counted: Iterable[Counted]) -> list[CountedSum]:
    ranges: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    for each in counted:
        ranges[each.what] += 1
        amounts[each.what] += each.amount
    return [CountedSum(what, ranges[what], amounts[what]) for what in sorted(ranges)]


def plain(text: str, limit: int = TEXT_MAX) -> str:
    """Show text of others in one line: what does not print is spelt out, what is too long is cut."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def size_text(size: int) -> str:
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if not unit:
        return f"{size} bytes" if size != 1 else "1 byte"
    return f"{value:.{max(0, 2 - len(str(int(value))))}f} {_UNITS[unit]}"


def offsets_text(first: int, end: int) -> str:
    if first < 0:
        return ""
    if end < 0:
        return f"{first}–"
    return str(first) if end <= first + 1 else f"{first}–{end - 1}"


def place_text(finding: Finding) -> str:
    if not finding.place:
        return ""
    at = f" @{finding.position}" if finding.position >= 0 else ""
    return f"{finding.place}{at}"


def partition_text(summary: Summary, finding: Finding) -> str:
    if not finding.topic_id:
        return ""
    name = summary.name_of(finding.topic_id)
    return f"{name}-{finding.partition}" if finding.partition >= 0 else name
