"""The guard's verdict, without any broker."""

from __future__ import annotations

import pytest

from tools.versus import guard


def costs(changes: dict[str, list[float]]) -> dict[str, list[float]]:
    return {row.name: changes.get(row.name, [10.0, 11.0]) for row in guard.GUARDED}


def test_the_guard_compares_the_least_cost_of_each_row() -> None:
    first = guard.GUARDED[0].name
    found = guard.judge(costs({first: [30.0, 11.5, 20.0]}), costs({}))
    assert [one.name for one in found] == [row.name for row in guard.GUARDED]
    assert found[0].ratio == pytest.approx(1.15)
    assert not found[0].is_worse, "the bound itself is allowed"
    assert guard.judge(costs({first: [11.6]}), costs({}))[0].is_worse


def test_a_row_that_was_not_measured_is_not_judged() -> None:
    first = guard.GUARDED[0].name
    assert first not in [one.name for one in guard.judge(costs({first: []}), costs({}))]


def test_guarded_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in guard.GUARDED}) == len(guard.GUARDED)
