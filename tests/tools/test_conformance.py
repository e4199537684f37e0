"""The conformance page: what it says of covered, uncovered and narrative entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import conformance

TABLE = "# head\nX-1\tdemand\tA | B\tours\t\nX-2\tdemand\tC\t\tkafkas\nX-3\tnarrative\tD\t\t\n"


def demands(folder: Path, table: str = TABLE) -> list[conformance.Demand]:
    path = folder / "requirements.tsv"
    path.write_text(table)
    return conformance.read_demands(path)


def test_page(tmp_path: Path) -> None:
    page = conformance.render(demands(tmp_path), {"X-1": ["tests/broker/test_a.py::test_b"]})
    assert "\n1 of 2 demands are covered by a test." in page
    assert "| Where the KIPs meet | begun: 1 of 2 demands are covered by a test |" in page
    assert "| X-1 | A \\| B | ours |  | `broker/test_a.py::test_b` |" in page
    assert "| X-2 | C |  | kafkas | not yet |" in page
    assert "| X-3 | D |  |  | narrative |" in page
    assert "| 18 | ApiVersions | 0 to 4 |" in page


@pytest.mark.parametrize(
    ("covered", "state"), [(0, "not begun (3 demands)"), (1, "begun: 1 of 3"), (3, "done: each of 3")]
)
def test_a_part_is_not_begun_begun_or_done(covered: int, state: str) -> None:
    assert conformance._state(covered, 3).startswith(state)


def test_what_is_served_comes_first(tmp_path: Path) -> None:
    page = conformance.render(demands(tmp_path), {})
    assert page.index("| served: ") < page.index("| not begun ") < page.index("## APIs served")
    assert "| Security | not begun |" in page


def test_marks_without_a_demand_are_found(tmp_path: Path) -> None:
    assert conformance.unknown_marks(demands(tmp_path), {"X-1": [], "X-9": []}) == ["X-9"]


@pytest.mark.parametrize("line", ["X-1\tdemand\tasks", "X-1\twish\tasks\t\t"])
def test_a_line_that_is_not_a_demand(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="not id"):
        demands(tmp_path, line + "\n")


def test_the_list_has_every_family_and_no_id_twice() -> None:
    found = conformance.read_demands()
    assert {demand.family for demand in found} == set(conformance.TITLES)
    assert len({demand.id for demand in found}) == len(found)
