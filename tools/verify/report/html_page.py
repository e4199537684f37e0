"""The report as one page that needs nothing else: no script, no file beside it, nothing from a network.

Owns the page and its strips, one for each partition. Does not own what is shown of the findings (summary).
Invariant: text of others is only ever text, and the page's size is bounded: what is left off is counted.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tools.verify.core.outcome import Coverage, Outcome
from tools.verify.report.markdown import checked_text, effort_text, verdict_text
from tools.verify.report.summary import (
    TIERS,
    CodeRows,
    Summary,
    offsets_text,
    partition_text,
    place_text,
    plain,
    size_text,
    summarize,
)

ROWS_MAX: Final = 200
STRIPS_MAX: Final = 500
WIDTH: Final = 1000
"""Of a strip; what is closer than one part of it is drawn as one."""
LANE: Final = 14
COLOURS: Final = {"local": "#3b7ddd", "wal": "#f0a030", "cold": "#5aa77b", "damaged": "#d02040"}
_BODY: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>tidewal verify</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .6em 0; width: 100% }
th, td { border-bottom: 1px solid #ddd; padding: .2em .6em .2em 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere }
.number { text-align: right; white-space: nowrap }
.first { border-left: 4px solid #f0a030; padding-left: .8em; margin: 1em 0 }
.error { color: #d02040 } .warning { color: #b06a00 } .clean { color: #2c7a4b }
svg { width: 100%; height: auto; display: block }
details { margin: .3em 0 } summary { cursor: pointer }
code { font-size: 13px }
</style>
</head>
<body>
"""


def render(outcome: Outcome, *, is_strict: bool) -> str:
    summary = summarize(outcome, is_strict=is_strict, rows_max=ROWS_MAX)
    return _BODY + "\n".join(_parts(outcome, summary)) + "\n</body>\n</html>\n"


def _parts(outcome: Outcome, summary: Summary) -> Iterator[str]:
    state = ("clean", "error", "warning")[summary.exit_code]
    yield f'<h1>tidewal verify: <span class="{state}">{_text(verdict_text(summary))}</span></h1>'
    yield from _not_checked(outcome, summary)
    for code in summary.codes:
        yield from _code(summary, code)
    yield "<h2>What is where</h2>"
    yield from _tiers(outcome, summary)
    yield from _strips(outcome)
    if summary.counted:
        yield "<h2>Legal, and counted</h2>"
        yield from _table(
            ("what", "ranges", "amount"),
            [(each.what, f"{each.ranges:,}", f"{each.amount:,}") for each in summary.counted],
            numbers=(1, 2),
        )
    cluster = f"Cluster {outcome.cluster_id}. " if outcome.cluster_id else ""
    told = f"{cluster}Checked: {checked_text(outcome)}. Took {effort_text(outcome)}."
    yield f"<p>{_text(told)}</p>"


def _not_checked(outcome: Outcome, summary: Summary) -> Iterator[str]:
    if not summary.unread and not summary.unchecked:
        return
    yield '<div class="first"><h2>Not checked</h2>'
    if summary.unread:
        yield f"<p>Could not be read, so this is no verdict: {len(outcome.unread):,}</p>"
        yield from _table(("place", "why"), [(each.place, each.why) for each in summary.unread])
        yield from _left_off(summary.unread_left_off)
    if summary.unchecked:
        yield from _table(("what", "why"), [(each.what, each.why) for each in summary.unchecked])
    yield "</div>"


def _code(summary: Summary, code: CodeRows) -> Iterator[str]:
    yield f'<h2 class="{code.severity.value}">{_text(code.code)}: {code.findings:,}</h2>'
    yield f"<p>{_text(code.meaning)} {_text(code.hint)}</p>"
    rows = [
        (
            partition_text(summary, row.finding),
            offsets_text(row.finding.first, row.finding.end),
            place_text(row.finding),
            row.finding.expected,
            row.finding.actual,
            f"{row.times:,}",
        )
        for row in code.rows
    ]
    yield from _table(("partition", "offsets", "place", "expected", "found", "times"), rows, numbers=(5,))
    yield from _left_off(code.left_off)


def _tiers(outcome: Outcome, summary: Summary) -> Iterator[str]:
    """Yield the bytes per tier, of each topic and of all."""
    names: dict[str, str] = {}
    sizes: dict[str, dict[str, int]] = {}
    for each in outcome.coverage:
        names[each.topic_id] = each.topic or each.topic_id
        mine = sizes.setdefault(each.topic_id, dict.fromkeys(TIERS, 0))
        for span in each.spans:
            mine[span.tier] = mine.get(span.tier, 0) + span.size
    if not sizes:
        yield "<p>No partition.</p>"
        return
    ranked = sorted(sizes, key=lambda topic: (-sum(sizes[topic].values()), topic))
    rows = [
        (names[topic], topic, *(size_text(sizes[topic][tier]) for tier in TIERS))
        for topic in ranked[:STRIPS_MAX]
    ]
    rows.append(("all", "", *(size_text(summary.tier_bytes[tier]) for tier in TIERS)))
    yield from _table(("topic", "id", *TIERS), rows, numbers=(2, 3, 4))
    yield from _left_off(len(ranked) - STRIPS_MAX)


def _strips(outcome: Outcome) -> Iterator[str]:
    """Yield a strip for each partition, the damaged ones first and open."""
    ranked = sorted(outcome.coverage, key=lambda each: (not each.damaged, each.topic, each.topic_id))
    for each in ranked[:STRIPS_MAX]:
        name = f"{each.topic or each.topic_id}-{each.partition}"
        copies = min((span.copies for span in each.spans if span.tier == "local"), default=0)
        told = [f"{_number(each.log_start)} to {_number(each.log_end)}", f"{copies} local copies at least"]
        if each.damaged:
            told.append(f"damaged: {', '.join(offsets_text(*part) for part in each.damaged[:10])}")
        is_open = " open" if each.damaged else ""
        yield f"<details{is_open}><summary>{_text(name)}: {_text('; '.join(told))}</summary>"
        yield strip(each)
        yield "</details>"
    yield from _left_off(len(ranked) - STRIPS_MAX)


def strip(coverage: Coverage) -> str:
    """Draw one partition: a lane for each tier, and what is damaged over all of them."""
    ends = [span.end for span in coverage.spans] + [end for _, end in coverage.damaged]
    firsts = [span.first for span in coverage.spans] + [first for first, _ in coverage.damaged]
    start = min([*firsts, coverage.log_start] if coverage.log_start >= 0 else firsts, default=0)
    end = max([*ends, coverage.log_end, start + 1])
    left, height = 60, LANE * len(TIERS) + 4
    shapes = []
    for lane, tier in enumerate(TIERS):
        y = lane * LANE + 2
        shapes.append(f'<text x="0" y="{y + 10}" font-size="11" fill="#555">{tier}</text>')
        shapes.append(f'<rect x="{left}" y="{y}" width="{WIDTH}" height="{LANE - 3}" fill="#f0f0f0"/>')
        mine = [(span.first, span.end) for span in coverage.spans if span.tier == tier]
        for x, width in boxes(mine, start, end):
            shapes.append(
                f'<rect x="{left + x}" y="{y}" width="{width}" height="{LANE - 3}" fill="{COLOURS[tier]}"/>'
            )
    for x, width in boxes(coverage.damaged, start, end):
        shapes.append(
            f'<rect x="{left + x}" y="0" width="{width}" height="{height}" fill="{COLOURS["damaged"]}" '
            'fill-opacity="0.55"/>'
        )
    for bound in (coverage.log_start, coverage.log_end):
        if bound >= 0:
            x = left + _at(bound, start, end)
            shapes.append(
                f'<line x1="{x}" x2="{x}" y1="0" y2="{height}" stroke="#222" stroke-dasharray="3"/>'
            )
    return (
        f'<svg viewBox="0 0 {WIDTH + left + 2} {height}" role="img" '
        f'aria-label="coverage of partition {coverage.partition}">{"".join(shapes)}</svg>'
    )


def boxes(ranges: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return x and width of ranges of offsets, at least one wide, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        x = min(_at(first, start, end), WIDTH - 1)
        right = max(_at(last, start, end), x + 1)
        if found and x <= sum(found[-1]):
            found[-1] = found[-1][0], max(right, sum(found[-1])) - found[-1][0]
        else:
            found.append((x, right - x))
    return found


def _at(offset: int, start: int, end: int) -> int:
    return min(WIDTH, max(0, (offset - start) * WIDTH // (end - start)))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{_text(head)}</th>" for head in heads) + "</tr>"
    for row in rows:
        cells = (
            f'<td class="number">{_text(cell)}</td>' if at in numbers else f"<td>{_text(cell)}</td>"
            for at, cell in enumerate(row)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"


def _left_off(number: int) -> Iterator[str]:
    if number > 0:
        yield f"<p>… and {number:,} more.</p>"


def _number(offset: int) -> str:
    return str(offset) if offset >= 0 else "?"


def _text(text: str) -> str:
    return html.escape(plain(text), quote=True)
