"""The demo's picture: it fits, what a colour says a character says too, its bars tell where bytes are."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from tools.demo.picture import (
    ASCII,
    COLD,
    COLD_AND_DISK,
    DISK,
    NOTHING,
    UNICODE,
    WAL_AND_DISK,
    Glyphs,
    bar,
    glyphs_for,
    picture,
    size_text,
    step_line,
)
from tools.demo.state import BrokerState, Condition, DemoState, Outcome, PartitionState, Step, StoreState

WIDTH, HEIGHT = 80, 24


def partition(**changes: object) -> PartitionState:
    facts: dict[str, object] = {
        "topic": "logs",
        "number": 0,
        "leader": 2,
        "in_sync": (1, 2, 3),
        "log_start": 0,
        "local_start": 0,
        "log_end": 100,
    }
    return PartitionState(**(facts | changes))  # type: ignore[arg-type]


def state(records: int = 1_000_000) -> DemoState:
    partitions = [
        partition(number=number, topic=topic, log_end=records, **tier)
        for topic, tier in (
            ("logs", {"cold_end": records - 9, "local_start": records // 2, "cold_bytes": 10**10}),
            ("tails", {"wal_end": 5}),
        )
        for number in range(3)
    ]
    return DemoState(
        steps=[Step(name="start", outcome=Outcome.HELD), Step(name="empty disk", outcome=Outcome.UNDER_WAY)],
        brokers=[BrokerState(node_id=1), BrokerState(node_id=2), BrokerState(node_id=3)],
        partitions=partitions,
        store=StoreState(wal_bytes=10**10, cold_bytes=10**11),
        records_per_s=123_456.7,
        bytes_per_s=123_456_700.0,
        elapsed_s=9999.9,
    )


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [20, WIDTH, 300])
def test_it_fits_a_terminal(width: int, glyphs: Glyphs) -> None:
    lines = picture(state(), width, glyphs).plain.split("\n")
    assert len(lines) < HEIGHT
    assert max(map(cell_len, lines)) <= max(60, min(width, 120))


def test_it_says_who_leads_and_what_a_broker_went_through() -> None:
    seen = state()
    seen.broker(2).condition = Condition.RUNS
    seen.broker(3).condition = Condition.EMPTIED
    text = picture(seen, WIDTH, ASCII).plain
    assert "step 2 of 2: empty disk" in text
    assert "broker 2  runs         leads 6" in text
    assert "broker 3  disk emptied " in text
    assert "tails-2  leader 2  in sync 1,2,3" in text
    assert "cold tier" in text.splitlines()[-1]


def test_nobody_leads() -> None:
    seen = state()
    seen.partitions = [partition(leader=None, in_sync=())]
    assert "logs-0   leader -" in picture(seen, WIDTH, ASCII).plain


@pytest.mark.parametrize(
    ("facts", "cells"),
    [
        ({"log_end": 0}, [NOTHING] * 4),
        ({}, [DISK] * 4),
        ({"cold_end": 50}, [COLD_AND_DISK, COLD_AND_DISK, DISK, DISK]),
        ({"cold_end": 75, "local_start": 25}, [COLD, COLD_AND_DISK, COLD_AND_DISK, DISK]),
        ({"wal_end": 75}, [WAL_AND_DISK, WAL_AND_DISK, WAL_AND_DISK, DISK]),
        ({"local_start": 50}, [NOTHING, NOTHING, DISK, DISK]),
        ({"log_start": 50, "local_start": 50, "cold_end": 10}, [DISK] * 4),
    ],
)
def test_a_bar_tells_where_the_offsets_are(facts: dict[str, object], cells: list[int]) -> None:
    assert bar(partition(**facts), 4) == cells


def test_without_colours_nothing_is_lost() -> None:
    """What is written to a terminal that shows none is the same text, and nothing else."""
    out = io.StringIO()
    drawn = picture(state(), WIDTH, UNICODE)
    Console(file=out, force_terminal=True, no_color=True, width=WIDTH, highlight=False).print(drawn)
    bare = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    bare.print(drawn)
    assert "\x1b[3" not in out.getvalue()  # bold stays, which is no colour
    assert isinstance(bare.file, io.StringIO)
    assert bare.file.getvalue().rstrip("\n").split("\n") == drawn.plain.split("\n")


@pytest.mark.parametrize(
    ("encoding", "glyphs"), [("utf-8", UNICODE), ("UTF8", UNICODE), ("ascii", ASCII), (None, ASCII)]
)
def test_a_terminal_gets_the_characters_that_it_has(encoding: str | None, glyphs: Glyphs) -> None:
    assert glyphs_for(encoding) is glyphs
    assert len(set(glyphs.places)) == 5


def test_a_step_is_one_line() -> None:
    step = Step(name="kill -9", outcome=Outcome.HELD, seconds=1.234, told="broker 2")
    assert step_line(step) == "+   1.23 s  kill -9        broker 2"
    assert step_line(Step(name="stop", outcome=Outcome.LEFT_OUT)) == "-           stop"


@pytest.mark.parametrize(("size", "text"), [(0, "0.0 kB"), (99_949, "99.9 kB"), (99_950, "0.1 MB")])
def test_sizes_are_short(size: int, text: str) -> None:
    assert size_text(size) == text
