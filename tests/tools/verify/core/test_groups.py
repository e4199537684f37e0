"""Committed offsets against the logs."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verify import kafka_bytes
from tools.verify.core import groups
from tools.verify.core.directory import list_directory
from tools.verify.core.findings import Finding, Severity
from tools.verify.core.group_check import Committed, judge_commits
from tools.verify.core.groups import GROUP_OFFSET_OUTSIDE, Bounds, GroupOffsets
from tools.verify.core.log_reading import check_log
from tools.verify.core.outcome import Coverage
from tools.verify.core.stores import open_source
from tools.verify.core.told_records import ToldRecords

ID, OTHER = bytes(range(16)), bytes(range(1, 17))
TEXT = base64.urlsafe_b64encode(ID).decode().rstrip("=")
LOGS = {("t", 0): Bounds(TEXT, 10, 20)}


def commit(offset: int, group: str = "g", topic: str = "t") -> tuple[bytes, bytes]:
    return kafka_bytes.group_offset(group, topic, 0, offset, time=5)


def with_id(offset: int, topic_id: bytes) -> bytes:
    return struct.pack(">hqiB", 4, offset, -1, 1) + struct.pack(">qBBB", 5, 1, 0, 16) + topic_id


def test_a_commit_past_the_end_is_told_once() -> None:
    folded = GroupOffsets()
    folded.add(*commit(99))
    folded.add(*commit(21))
    folded.add(*commit(20, "at the end"))
    folded.add(*commit(9, "behind"))
    folded.add(*commit(5, topic="gone"))
    findings, counted = folded.judge(LOGS)
    (found,) = findings
    assert (found.code, found.topic_id, found.partition) == (GROUP_OFFSET_OUTSIDE, TEXT, 0)
    assert (found.first, found.end, found.expected) == (20, 21, "at most 20")
    assert found.severity is Severity.WARNING
    assert sorted(each.what for each in counted) == ["commit-below-log-start", "commit-of-no-log"]


def test_a_commit_that_was_taken_back_counts_no_more() -> None:
    folded = GroupOffsets()
    key, value = commit(99)
    folded.add(key, value)
    folded.add(key, None)
    folded.add(struct.pack(">h", 2) + b"\0\1g", b"metadata of a group")
    folded.add(key, None)
    assert folded.judge(LOGS) == ([], [])
    assert folded.refused == 0


def test_a_commit_of_another_topic_with_the_name_is_not_held_against_it() -> None:
    key, _ = commit(99)
    for topic_id, told in ((ID, 1), (OTHER, 0), (bytes(16), 1)):
        folded = GroupOffsets()
        folded.add(key, with_id(99, topic_id))
        findings, _ = folded.judge(LOGS)
        assert len(findings) == told
        assert folded.refused == 0


def test_more_commits_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "COMMITS_MAX", 2)
    folded = GroupOffsets()
    for at in range(5):
        folded.add(*commit(99, f"g{at}"))
    folded.add(*commit(98, "g1"))
    assert folded.dropped == 3
    findings, _ = folded.judge(LOGS)
    assert [each.end for each in findings] == [99, 98]


def test_a_commit_is_not_held_against_an_end_that_is_damaged() -> None:
    folded = GroupOffsets()
    folded.add(*commit(99))
    log = Coverage(TEXT, "t", 0, 10, 20, damaged=((20, 60),))
    whole, committed = {(TEXT, 0)}, Committed(folded, [], [])
    tail = Finding("unclean-tail", TEXT, 0, 20, -1)
    for found, told in (([tail], []), ([tail._replace(first=12)], [(60, 99)]), ([], [(60, 99)])):
        findings, _, _ = judge_commits(committed, [log], whole, {(TEXT, 0): found})
        assert [(each.first, each.end) for each in findings] == told


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_whatever_the_bytes_are_they_are_folded_or_refused(key: bytes | None, value: bytes | None) -> None:
    folded = GroupOffsets()
    right, _ = commit(5)
    for one in (key, b"\0\1" + (key or b""), right):
        for other in (value, b"\0\3" + (value or b""), b"\0\4" + (value or b"")):
            folded.add(one, other)
    folded.judge(LOGS)
    folded.add(b"\0\1", b"")
    assert folded.refused >= 1


@pytest.mark.requirement("1176-16")
def test_what_a_real_group_committed_is_within_the_logs(made: Path) -> None:
    source = open_source(str(made))
    logs = list_directory(source, 0).logs
    folded = GroupOffsets()
    for log in logs:
        if log.topic == groups.OFFSETS_TOPIC:
            for record in ToldRecords([(source, log)]).records():
                folded.add(record.key, record.value)
    bounds = {}
    for log in logs:
        end = check_log(source, 0, log).log
        assert end is not None
        bounds[log.topic, log.partition] = Bounds(log.topic_id, max(log.log_start, 0), end.end)
    assert folded.refused == 0
    assert folded.judge(bounds) == ([], [])
    short = {**bounds, ("plain", 0): bounds["plain", 0]._replace(end=6)}
    findings, _ = folded.judge(short)
    assert [(each.topic_id, each.end, each.actual) for each in findings] == [
        (bounds["plain", 0].topic_id, 7, "7 of group 'readers'")
    ]
