"""The soak's verdict: what grows is named, what only varies is not, and every figure it reads has a name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.soak.figures import HELD, RESIDENT, Figures, read
from tests.soak.run import Sample, left, table, verdict

if TYPE_CHECKING:
    from broker.server import Broker

MINUTES = 30
AT_REST = Figures(dict.fromkeys(HELD, 0), resident_bytes=60_000_000, blocks=300_000, requests=0)


def grown(minute: float, what: str, a_minute: float) -> Figures:
    more = a_minute * minute
    if what == "resident":
        return replace(AT_REST, resident_bytes=AT_REST.resident_bytes + int(more))
    if what == "blocks":
        return replace(AT_REST, blocks=AT_REST.blocks + int(more))
    return replace(AT_REST, held={**AT_REST.held, what: int(more)})


@pytest.mark.parametrize(
    ("what", "a_minute", "named"),
    [
        ("resident", 500_000, "resident memory"),
        ("blocks", 1_000, "heap blocks"),
        ("open files", 1, "open files"),
        ("tasks", 0.5, "tasks"),
    ],
)
def test_what_grows_is_named_and_what_grows_at_the_beginning_alone_is_not(
    what: str, a_minute: float, named: str
) -> None:
    minutes = [at / 5 for at in range(1, 5 * MINUTES + 1)]
    growing = [Sample(minute, grown(minute, what, a_minute)) for minute in minutes]
    (wrong,) = verdict(growing, MINUTES)
    assert wrong.startswith(named)
    settled = [Sample(minute, grown(min(minute, 8), what, a_minute)) for minute in minutes]
    assert verdict(settled, MINUTES) == []


def test_a_wave_is_no_growth() -> None:
    samples = [Sample(at / 5, grown(at % 7, "open files", 5)) for at in range(1, 5 * MINUTES + 1)]
    assert verdict(samples, MINUTES) == []


def test_what_is_left_when_all_have_gone_is_named() -> None:
    assert left(AT_REST) == []
    assert left(grown(1, "connections", 2)) == ["2 connections are left when all clients have gone"]
    assert left(grown(1, "topics counted", 1)) == ["deleted topics are still counted"]
    assert left(grown(1, "fetch sessions", 9)) == []


def test_the_table_has_a_row_for_each_moment_and_for_the_end() -> None:
    samples = [Sample(at / 5, AT_REST) for at in range(1, 5 * MINUTES + 1)]
    rows = table(samples, MINUTES, AT_REST).splitlines()
    assert [row.split("|")[1].strip() for row in rows] == [
        "after",
        "---",
        "5 min",
        "15 min",
        "30 min",
        "all have left",
    ]
    assert len({row.count("|") for row in rows}) == 1


async def test_every_figure_is_one_that_the_broker_tells(broker: Broker) -> None:
    told = {family.name for family in broker.components.metrics()}
    assert {name.removesuffix("_total") for name in (*HELD.values(), RESIDENT)} <= told


def test_samples_of_one_name_are_added_up_but_topics_are_counted() -> None:
    name = HELD["connections"]
    topics = HELD["topics counted"].removesuffix("_total")
    text = (
        f'# TYPE {name} gauge\n{name}{{listener="A"}} 2\n{name}{{listener="B"}} 3\n'
        f'# TYPE {topics} counter\n{topics}_total{{topic="a"}} 50\n{topics}_total{{topic="b"}} 60\n'
        f"{RESIDENT} 1\npython_allocated_blocks 1\nkafka_network_requestmetrics_requests_total 1\n"
    )
    held = read(text).held
    assert held["connections"] == 5
    assert held["topics counted"] == 2
