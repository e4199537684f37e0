"""`tidewal tier check`: every way in which a store may differ from what the brokers say, and what is no
difference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.object_tier import key_of
from remote.cold.segments import (
    RemoteSegment,
    SegmentState,
)
from remote.keys import SegmentPart
from remote.store.object_store import ObjectInfo
from tests.processes import BrokerProcess
from tests.remote.cold.segment_samples import Copy
from tests.tools.tier.tiered_topic import NOW_MS, Tier, store_of
from tools import cli
from tools.tier.check import Seen, compare, holes


def test_nothing_tiered_is_sound(tier: Tier) -> None:
    assert tier.check(code=0) == []


@pytest.mark.parametrize("state", [SegmentState.COPY_FINISHED, SegmentState.COPY_STARTED])
def test_what_is_named_and_there_is_sound(tier: Tier, state: SegmentState) -> None:
    for seed, base in ((1, 0), (2, 50)):
        what = tier.copy(seed, base=base)
        tier.put(what)
        tier.say(what.segment, state)
    assert tier.check(code=0) == []
    assert tier.check(tier.topic, "--deep", code=0) == []
    assert tier.check("--deep", code=0) == []


@pytest.mark.parametrize("part", SegmentPart)
def test_a_missing_object_is_named(tier: Tier, part: SegmentPart) -> None:
    what = tier.copy()
    tier.put(what)
    tier.say(what.segment, SegmentState.COPY_FINISHED)
    tier.file(what.segment, part).unlink()
    assert tier.check(code=1) == [("missing", key_of(what.segment, part))]
    assert tier.check(tier.topic, "--deep", code=1) == [("missing", key_of(what.segment, part))]


@pytest.mark.parametrize("state", [SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED])
def test_what_comes_or_goes_need_not_be_there(tier: Tier, state: SegmentState) -> None:
    tier.say(tier.copy().segment, state)
    assert tier.check(code=0) == []


@pytest.mark.parametrize("size", [0, 2999, 3001])
def test_a_wrong_size_is_named(tier: Tier, size: int) -> None:
    what = tier.copy()
    tier.put(what)
    tier.say(what.segment, SegmentState.COPY_FINISHED)
    tier.file(what.segment, SegmentPart.DATA).write_bytes(bytes(size))
    assert tier.check(code=1) == [("wrong size", key_of(what.segment, SegmentPart.DATA))]


@pytest.mark.parametrize("state", [None, SegmentState.DELETE_FINISHED])
def test_what_nobody_names_is_unreferenced(tier: Tier, state: SegmentState | None) -> None:
    what = tier.copy()
    tier.put(what)
    if state is not None:
        tier.say(what.segment, state)
    wrong = [("unreferenced", key_of(what.segment, part)) for part in (SegmentPart.INDEX, SegmentPart.DATA)]
    assert tier.check(code=1) == wrong
    tier.forget(what.segment)
    assert tier.check(code=1) == wrong


def test_without_a_topic_what_is_left_of_deleted_ones_is_found(tier: Tier) -> None:
    named, left = tier.copy(1, of=UUID(int=7)), tier.copy(2, of=UUID(int=8))
    for what in (named, left):
        tier.put(what)
    tier.say(named.segment, SegmentState.DELETE_STARTED)
    stray = tier.root / "tier" / "no" / "0" / "key"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    assert tier.check(code=0) == []
    assert tier.check("--timeout", "20", code=1) == [
        *(("unreferenced", key_of(left.segment, part)) for part in (SegmentPart.INDEX, SegmentPart.DATA)),
        ("unreferenced", "tier/no/0/key"),
    ]


@pytest.mark.parametrize("part", SegmentPart)
def test_a_flipped_bit_is_found_when_all_is_read(tier: Tier, part: SegmentPart) -> None:
    what = tier.copy()
    tier.put(what)
    tier.say(what.segment, SegmentState.COPY_FINISHED)
    file = tier.file(what.segment, part)
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert tier.check(code=0) == []
    assert tier.check(tier.topic, "--deep", code=1) == [("damaged", key_of(what.segment, part))]


def test_what_becomes_of_a_lost_object_is_said(tier: Tier) -> None:
    what = tier.copy()
    tier.put(what)
    tier.say(what.segment, SegmentState.COPY_FINISHED)
    tier.file(what.segment, SegmentPart.INDEX).unlink()
    assert cli.run(["tier", "check", tier.topic, "--store", tier.url, "-b", tier.bootstrap]) == 1
    assert "brokers make the index anew from the data" in tier.capsys.readouterr().out


def test_what_is_wrong_is_shown_and_counted_in_one_line(tier: Tier) -> None:
    tier.put(tier.copy())
    assert cli.run(["tier", "check", tier.topic, "--store", tier.url, "-b", tier.bootstrap]) == 1
    captured = tier.capsys.readouterr()
    assert captured.out.split()[:3] == ["PROBLEM", "WHERE", "DETAIL"]
    assert captured.err == "tidewal: 2 unreferenced\n"


def test_what_is_sound_is_said_in_one_line(tier: Tier) -> None:
    assert cli.run(["tier", "check", tier.topic, "--store", tier.url, "-b", tier.bootstrap]) == 0
    assert tier.capsys.readouterr().out == "0 copies with 0 B: all there, and nothing else\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("absent", "--store", "URL"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("TOPIC", "--store", "file:///not/there"), "no such directory"),
        (("TOPIC", "--store", "http://x"), "give file:///DIR or s3://"),
        (("TOPIC", "--store", "EMPTY"), "holds no cluster: give the --store of the brokers"),
        (("TOPIC", "--store", "URL", "-b", "127.0.0.1:1"), "connection refused"),
        (("TOPIC",), "Missing option '--store'"),
    ],
)
def test_what_cannot_be_found_out_ends_with_2(
    tier: Tier, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    words = {"TOPIC": tier.topic, "URL": tier.url, "EMPTY": f"file://{tmp_path}/empty"}
    assert (
        cli.run(["tier", "check", "-b", tier.bootstrap, *(words.get(word, word) for word in arguments)]) == 2
    )
    (line,) = tier.capsys.readouterr().err.splitlines()
    assert says in line
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_store_of_another_cluster_is_refused(tier: Tier, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "other") as other:
        url = store_of(other)
        assert cli.run(["tier", "check", tier.topic, "--store", url, "-b", tier.bootstrap]) == 2
    assert "the brokers are of" in tier.capsys.readouterr().err


# --- the comparison ---


def seen(*, finished: tuple[RemoteSegment, ...] = (), named: tuple[RemoteSegment, ...] = ()) -> Any:
    ids = frozenset(copy.id for copy in (*finished, *named))
    return Seen(finished={copy.id: copy for copy in finished}, named=ids)


def objects_of(segment: RemoteSegment) -> list[ObjectInfo]:
    data = ObjectInfo(key_of(segment, SegmentPart.DATA), segment.size_bytes, NOW_MS)
    return [ObjectInfo(key_of(segment, SegmentPart.INDEX), 400, NOW_MS), data]


COPY = Copy().segment
PART = COPY.partition


@pytest.mark.parametrize(
    ("before", "after", "is_there"),
    [
        (seen(), seen(named=(COPY,)), True),
        (seen(), seen(finished=(COPY,)), True),
        (seen(named=(COPY,)), seen(finished=(COPY,)), False),
        (seen(finished=(COPY,)), seen(named=(COPY,)), False),
        (seen(finished=(COPY,)), seen(), False),
        (seen(named=(COPY,)), seen(), True),
    ],
)
def test_what_changes_meanwhile_is_no_complaint(before: Seen, after: Seen, is_there: bool) -> None:
    objects = objects_of(COPY) if is_there else []
    assert compare({PART: before}, objects, {PART: after}) == []


def test_a_partition_that_comes_meanwhile_is_no_complaint() -> None:
    assert compare({}, objects_of(COPY), {PART: seen(named=(COPY,))}) == []
    assert len(compare({}, objects_of(COPY), {})) == 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10))), st.integers(0, 30), st.integers(0, 30))
def test_holes_are_the_offsets_in_no_copy(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    copies = [replace(COPY, base_offset=base, end_offset=base + size) for base, size in ranges]
    found = holes(copies, start, end)
    wanted = {at for at in range(start, end) if not any(c.base_offset <= at < c.end_offset for c in copies)}
    assert {at for low, high in found for at in range(low, high)} == wanted
    assert all(low < high for low, high in found)
