"""The plan names a good copy for every damaged offset, and none that anything says is bad."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tools.verify.report.outcomes import HOSTILE, ID, coverage, outcome
from tools.verify.core.findings import Finding
from tools.verify.core.outcome import Holder, Outcome
from tools.verify.report.repair import Repair, plan, render

LOCAL = Holder("local", "0:orders-0/1.log", 0, 0, 100)
REPLICA = Holder("local", "1:orders-0/1.log", 0, 0, 100)
COLD = Holder("cold", "tier/x", 0, 0, 100)
WAL = Holder("wal", "wal/x", 0, 50, 100)


def bad(first: int, end: int, place: str = LOCAL.place, code: str = "bad-crc", **other: Any) -> Finding:
    return Finding(code, ID, 0, first, end, place, **other)


def told(*findings: Finding, holders: tuple[Holder, ...] = (), **other: Any) -> Outcome:
    return outcome(*findings, coverage=(coverage(holders=holders, **other),))


def pieces(repairs: list[Repair]) -> list[tuple[int, int, str]]:
    return [(each.first, each.end, "" if each.good is None else each.good.place) for each in repairs]


def test_a_replica_is_named_before_the_tiers() -> None:
    found = plan(told(bad(10, 20), holders=(LOCAL, REPLICA, COLD, WAL)))
    assert pieces(found) == [(10, 20, REPLICA.place)]
    assert found[0].bad == (LOCAL.place,) and found[0].codes == ("bad-crc",)


def test_where_all_local_copies_are_bad_a_tier_is_named() -> None:
    found = plan(told(bad(10, 20), bad(12, 30, REPLICA.place), holders=(LOCAL, REPLICA, COLD)))
    assert pieces(found) == [(10, 30, COLD.place)]


def test_copies_are_put_together_where_none_has_all() -> None:
    first, second = COLD._replace(end=15), COLD._replace(place="tier/y", first=15, end=18)
    found = plan(told(bad(10, 20), holders=(LOCAL, first, second)))
    assert pieces(found) == [(10, 15, "tier/x"), (15, 18, "tier/y"), (18, 20, "")]


def test_a_gap_has_no_good_copy() -> None:
    assert pieces(plan(told(bad(10, 20, "", "gap")))) == [(10, 20, "")]


def test_what_a_producer_denies_is_good_nowhere() -> None:
    found = plan(told(bad(10, 11, "", "manifest-altered"), holders=(LOCAL, COLD)))
    assert pieces(found) == [(10, 11, "")]


def test_a_fault_without_offsets_spoils_its_whole_place() -> None:
    spoilt = Finding("bad-crc", place=COLD.place)
    assert pieces(plan(told(bad(10, 20), spoilt, holders=(LOCAL, COLD)))) == [(10, 20, "")]


def test_a_fault_of_another_partition_in_one_object_spoils_nothing_here() -> None:
    other = bad(60, 70, WAL.place)._replace(partition=1)
    found = plan(told(bad(60, 70), other, holders=(LOCAL, WAL)))
    assert [piece for piece in pieces(found) if piece[2]] == [(60, 70, WAL.place)]


def test_warnings_need_no_repair(monkeypatch: Any) -> None:
    from tools.verify.core.findings import CODES, Code, Severity

    monkeypatch.setitem(CODES, "mild", Code(Severity.WARNING, "", ""))
    assert not plan(told(bad(10, 20, code="mild"), holders=(LOCAL,)))


def test_an_open_end_goes_as_far_as_anything_is_known() -> None:
    found = plan(told(bad(90, -1), holders=(LOCAL, COLD), log_end=100))
    assert pieces(found) == [(90, -1, COLD.place)]


RANGE = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda at: (at[0], sum(at)))


@given(
    st.lists(st.tuples(RANGE, st.sampled_from("abc"))),
    st.lists(st.tuples(RANGE, st.sampled_from("abc"))),
)
def test_every_damaged_offset_is_in_one_piece_and_no_bad_copy_is_called_good(
    findings: list[tuple[tuple[int, int], str]], holders: list[tuple[tuple[int, int], str]]
) -> None:
    held = tuple(sorted(Holder("cold", place, 0, first, end) for (first, end), place in holders))
    repairs = plan(told(*(bad(*part, place) for part, place in findings), holders=held))
    offsets = [offset for each in repairs for offset in range(each.first, each.end)]
    assert sorted(offsets) == sorted({x for (first, end), _ in findings for x in range(first, end)})
    spoilt = {(x, place) for (first, end), place in findings for x in range(first, end)}
    has = {(x, each.place) for each in held for x in range(each.first, each.end)}
    for each in repairs:
        for offset in range(each.first, each.end):
            if each.good is None:
                assert not any((offset, p) in has and (offset, p) not in spoilt for p in "abc")
            else:
                assert (offset, each.good.place) in has and (offset, each.good.place) not in spoilt


def test_the_document() -> None:
    document = json.loads(render(told(bad(10, 20, HOSTILE), Finding("gap"), holders=(COLD,))))
    assert document["version"] == 1
    assert document["repairs"][0]["good"] == {"tier": "cold", "place": "tier/x", "position": 0}
    assert document["repairs"][0]["bad"] == [HOSTILE]
    assert document["hints"].keys() == {"bad-crc"}
    assert [each["code"] for each in document["without_offsets"]] == ["gap"]
