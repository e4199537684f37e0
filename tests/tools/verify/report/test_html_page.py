"""The page stands alone, text of others stays text, and a strip shows where a partition's offsets are."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.tools.verify.report.outcomes import ID, coverage, hostile_outcome, outcome
from tools.verify.core.findings import Finding
from tools.verify.core.outcome import Coverage, Outcome, Span, Unchecked
from tools.verify.report.html_page import STRIPS_MAX, WIDTH, boxes, render, strip

VOID = {"meta", "rect", "line"}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "table", "tr", "th",
    "td", "details", "summary", "svg", "rect", "text", "line",
}  # fmt: skip


class Page(HTMLParser):
    """Reads a page, and fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(told: Outcome) -> Page:
    return Page(render(told, is_strict=False))


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    text = render(hostile_outcome(), is_strict=False)
    read = Page(text)
    assert set(read.tags) <= ALLOWED
    assert not {"src", "href", "onclick", "onload", "style"} & read.attributes
    assert "default-src 'none'" in text and "url(" not in text and "@import" not in text
    text.encode()


def test_hostile_text_is_shown_and_does_nothing() -> None:
    read = page(hostile_outcome())
    assert "script" not in read.tags and "img" not in read.tags
    assert "<script>alert(1)</script>" in read.text
    assert "\x1b" not in read.text and "\u202e" not in read.text


@given(st.text(max_size=50))
def test_any_text_leaves_the_page_whole(text: str) -> None:
    told = outcome(
        Finding("bad-crc", ID, 0, 1, 2, text, 1, text, text),
        coverage=(coverage(topic=text),),
        unchecked=(Unchecked(text, text),),
        cluster_id=text,
    )
    assert set(page(told).tags) <= ALLOWED


def test_what_was_not_checked_comes_first() -> None:
    text = render(hostile_outcome(), is_strict=False)
    at = [text.index(part) for part in ("<h2>Not checked", "bad-crc: 2", "What is where", "<svg")]
    assert at == sorted(at)


def test_bytes_per_tier_and_left_off_strips() -> None:
    many = tuple(
        Coverage(ID, "orders", n, 0, 10, (Span("local", 0, 10, 1000, 2), Span("cold", 0, 5, 500)))
        for n in range(STRIPS_MAX + 3)
    )
    read = page(outcome(coverage=many))
    assert read.tags.count("svg") == STRIPS_MAX
    assert "… and 3 more." in read.text
    assert "503 kB" in read.text and "252 kB" in read.text


def test_damaged_partitions_come_first_and_open() -> None:
    sound, damaged = coverage(topic="a"), coverage(topic="b", partition=1, damaged=((4, 6),))
    text = render(outcome(coverage=(sound, damaged)), is_strict=False)
    assert text.index("b-1: ") < text.index("a-0: ")
    assert text.count("<details open>") == 1 and "damaged: 4–5" in text


def test_a_strip_draws_each_tier_to_scale() -> None:
    drawn = strip(coverage(Span("local", 50, 100, 1), Span("cold", 0, 60, 1), damaged=((99, 100),)))
    assert '<rect x="560" y="2" width="500"' in drawn
    assert '<rect x="60" y="30" width="600"' in drawn
    assert '<rect x="1050" y="0" width="10"' in drawn


def test_what_is_narrower_than_a_pixel_is_drawn() -> None:
    assert boxes([(5, 6), (999_999, 1_000_000)], 0, 1_000_000) == [(0, 1), (WIDTH - 1, 1)]


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 900)).map(lambda at: (at[0], sum(at)))),
    st.integers(1, 10_000),
)
def test_boxes_are_within_the_strip_apart_and_bounded(ranges: list[tuple[int, int]], end: int) -> None:
    found = boxes(ranges, 0, end)
    assert all(x >= 0 and width >= 1 and x + width <= WIDTH for x, width in found)
    assert all(x + width < after for (x, width), (after, _) in pairwise(found))
    assert bool(found) == bool(ranges)
