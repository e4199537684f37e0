"""The report for a pull request or the summary of a CI job, and for a terminal: short, the worst first.

Owns these two forms. Does not own what is shown of the findings (summary).
Invariant: what was not checked stands before everything else; text of others cannot leave its cell or line.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final

from tools.verify.core.outcome import Exit, Outcome
from tools.verify.report.summary import (
    CodeRows,
    Row,
    Summary,
    offsets_text,
    partition_text,
    place_text,
    plain,
    size_text,
    summarize,
)

ROWS_MAX: Final = 20
TERMINAL_ROWS_MAX: Final = 5
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()#+!|~$@:])")
_SIGNS: Final = {Exit.CLEAN: "✅", Exit.FINDINGS: "❌", Exit.UNFINISHED: "⚠️"}


def render(outcome: Outcome, *, is_strict: bool) -> str:
    summary = summarize(outcome, is_strict=is_strict, rows_max=ROWS_MAX)
    return "\n".join(_markdown(outcome, summary)) + "\n"


def terminal_lines(outcome: Outcome, *, is_strict: bool) -> list[str]:
    summary = summarize(outcome, is_strict=is_strict, rows_max=TERMINAL_ROWS_MAX)
    return list(_terminal(outcome, summary))


def verdict_text(summary: Summary) -> str:
    found = f"{_amount(summary.errors, 'error')}, {_amount(summary.warnings, 'warning')}"
    return f"{summary.result}: {found}"


def checked_text(outcome: Outcome) -> str:
    figures = outcome.figures
    proved = f", {size_text(figures.proved_bytes)} proved before" if figures.proved_bytes else ""
    return (
        f"{_amount(figures.partitions, 'partition')} of {_amount(figures.topics, 'topic')}, "
        f"{_amount(figures.objects, 'object')} and {_amount(figures.files, 'file')} with "
        f"{size_text(figures.listed_bytes)}; every byte read of {size_text(figures.scanned_bytes)}"
        f"{proved}: {_amount(figures.batches, 'batch')}, {_amount(figures.records, 'record')}"
    )


def effort_text(outcome: Outcome) -> str:
    effort = outcome.effort
    rate = effort.read_bytes / max(effort.seconds, 1e-9)
    return (
        f"{effort.seconds:.1f} s, {effort.cpu_seconds:.1f} s of CPU, {effort.requests:,} requests, "
        f"{size_text(round(rate))}/s"
    )


def tiers_text(summary: Summary) -> str:
    return ", ".join(f"{tier} {size_text(size)}" for tier, size in summary.tier_bytes.items())


def _markdown(outcome: Outcome, summary: Summary) -> Iterator[str]:
    yield f"## {_SIGNS[summary.exit_code]} tidewal verify: {verdict_text(summary)}"
    yield ""
    if summary.unread:
        yield f"**Could not be read ({len(outcome.unread):,}), so this is no verdict:**"
        yield ""
        yield from _table(
            ("place", "why"), [(_escaped(each.place), _escaped(each.why)) for each in summary.unread]
        )
        if summary.unread_left_off:
            yield f"… and {summary.unread_left_off:,} more."
            yield ""
    if summary.unchecked:
        yield "**Not checked:**"
        yield ""
        for each in summary.unchecked:
            yield f"- {_escaped(each.what)}: {_escaped(each.why)}"
        yield ""
    for code in summary.codes:
        yield from _markdown_code(summary, code)
    if summary.counted:
        yield "**Legal, and counted:** " + ", ".join(
            f"{_escaped(each.what)} {each.amount:,}" for each in summary.counted
        )
        yield ""
    yield f"Checked: {checked_text(outcome)}. In the tiers: {tiers_text(summary)}."
    yield ""
    yield f"Took {effort_text(outcome)}."


def _markdown_code(summary: Summary, code: CodeRows) -> Iterator[str]:
    yield f"### {code.severity.value} {code.code}: {code.findings:,}"
    yield ""
    yield f"{code.meaning} {code.hint}"
    yield ""
    heads = ("partition", "offsets", "place", "expected", "found", "times")
    yield from _table(heads, [_cells(summary, row) for row in code.rows])
    if code.left_off:
        yield f"… and {code.left_off:,} more."
        yield ""


def _cells(summary: Summary, row: Row) -> tuple[str, ...]:
    found = row.finding
    texts = (
        partition_text(summary, found),
        offsets_text(found.first, found.end),
        place_text(found),
        found.expected,
        found.actual,
    )
    return (*map(_escaped, texts), f"{row.times:,}")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _escaped(text: str) -> str:
    """No markup, no HTML, no link, no mention, and no new cell or line."""
    return html.escape(_SPECIAL.sub(r"\\\1", plain(text)), quote=False)


def _terminal(outcome: Outcome, summary: Summary) -> Iterator[str]:
    if summary.unread:
        yield f"could not be read: {len(outcome.unread):,}"
        for unread in summary.unread[:TERMINAL_ROWS_MAX]:
            yield f"  {plain(unread.place or 'all')}: {plain(unread.why)}"
        if len(outcome.unread) > TERMINAL_ROWS_MAX:
            yield f"  … and {len(outcome.unread) - TERMINAL_ROWS_MAX:,} more"
    if summary.unchecked:
        yield "not checked:"
        for unchecked in summary.unchecked:
            yield f"  {plain(unchecked.what)}: {plain(unchecked.why)}"
    for code in summary.codes:
        yield f"{code.severity.value} {code.code}: {code.findings:,}. {code.meaning} {code.hint}"
        for row in code.rows:
            yield f"  {_line(summary, row)}"
        if code.left_off:
            yield f"  … and {code.left_off:,} more"
    if summary.counted:
        yield "legal: " + ", ".join(f"{plain(each.what)} {each.amount:,}" for each in summary.counted)
    yield f"checked: {checked_text(outcome)}"
    yield f"tiers: {tiers_text(summary)}"
    yield f"took: {effort_text(outcome)}"
    yield verdict_text(summary)


def _line(summary: Summary, row: Row) -> str:
    found = row.finding
    offsets = offsets_text(found.first, found.end)
    parts = [
        plain(partition_text(summary, found)),
        f"offsets {offsets}" if offsets else "",
        plain(place_text(found)),
        f"expected {plain(found.expected)}, found {plain(found.actual)}"
        if found.expected or found.actual
        else "",
        f"{row.times:,} times" if row.times > 1 else "",
    ]
    return ", ".join(part for part in parts if part)


def _amount(number: int, what: str) -> str:
    many = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number:,} {what if number == 1 else many}"
