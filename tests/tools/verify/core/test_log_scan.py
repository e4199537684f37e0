"""A unit of a log, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.verify.core.logs import batch
from tools.verify.core.directory import Log, list_directory
from tools.verify.core.facts import GENERAL, LocalLog, NotChecked, NotRead, Row, Tally
from tools.verify.core.log_reading import check_log
from tools.verify.core.plan import WHOLE, LogUnit, Task
from tools.verify.core.scan import scan
from tools.verify.core.stores import open_source
from tools.verify.core.tables import FACTS_LIMIT


def unit_of(log: Log, bases: tuple[int, int] = WHOLE, *, topic_id: str | None = None) -> LogUnit:
    about = log.topic_id if topic_id is None else topic_id
    points = log.recovery_point, log.high_watermark, log.log_start
    return LogUnit(3, 7, log.name, log.topic, about, log.partition, log.files, *points, log.is_live, bases)


def rows_of(root: Path, *units: LogUnit) -> list[Row]:
    source = open_source(str(root))
    task = Task(0, "data", source, "", units, sum(unit.size for unit in units))
    return [row for done in scan(task) for row in done.rows]


def logs_in(root: Path) -> Iterator[Log]:
    yield from list_directory(open_source(str(root)), 3).logs


@pytest.mark.requirement("1176-16")
def test_all_that_is_known_of_a_real_log_becomes_rows(made: Path) -> None:
    for log in logs_in(made):
        found = check_log(open_source(str(made)), 3, log)
        rows = rows_of(made, unit_of(log))
        about = log.topic_id, log.partition
        assert found.log is not None
        expected = [found.log._replace(node=7, is_live=log.is_live)]
        facts = [row[2] for row in rows if row[:2] == about]
        assert facts[:1] == expected
        for scanned in found.scans:
            for kind in (scanned.runs, scanned.producers, scanned.marks, scanned.digests):
                assert [fact for fact in facts if fact in kind] == list(kind)
        (tally, effort) = (row[2] for row in rows if row[:2] == GENERAL)
        assert isinstance(tally, Tally)
        assert isinstance(effort, Tally)
        assert tally.place == f"3:{log.name}"
        assert tally.size == found.size <= effort.received
        assert tally.records == sum(run.records for scanned in found.scans for run in scanned.runs)


def test_units_of_a_log_give_together_what_the_whole_gives(made: Path) -> None:
    for log in logs_in(made):
        whole = rows_of(made, unit_of(log))
        parts = [rows_of(made, unit_of(log, part)) for part in log.parts(7_000)]
        told = [[row for row in part if row[:2] != GENERAL] for part in parts]
        assert sorted((row for part in told for row in part), key=str) == sorted(
            (row for row in whole if row[:2] != GENERAL), key=str
        )
        assert [any(isinstance(row[2], LocalLog) for row in part) for part in told].index(True) == len(
            told
        ) - 1


def test_a_log_of_no_topic_gives_only_what_is_wrong_with_it(copied: Path) -> None:
    path = sorted((copied / "plain-0").glob("*.log"))[1]
    path.write_bytes(path.read_bytes() + bytes(20))
    log = next(log for log in logs_in(copied) if log.name == "plain-0")
    rows = rows_of(copied, unit_of(log, topic_id=""))
    assert {row[:2] for row in rows} == {GENERAL}
    assert [type(row[2]).__name__ for row in rows] == ["Fault", "Tally", "Tally"]


def test_facts_that_were_too_many_are_said_to_be_unchecked(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    one = batch(0, [b""], producer=(5, 0, 0))
    data = bytearray(one * (FACTS_LIMIT + 5))
    for at in range(FACTS_LIMIT + 5):
        start = at * len(one)
        data[start : start + 8] = at.to_bytes(8, "big")
        data[start + 12 : start + 16] = at.to_bytes(4, "big")
    (folder / f"{0:020d}.log").write_bytes(data)
    (folder / "partition.metadata").write_bytes(b"version: 0\ntopic_id: 0bWkZ1DLS9mFlNbIkEXpbg\n")
    (log,) = logs_in(tmp_path)
    rows = rows_of(tmp_path, unit_of(log))
    assert [row[2].place for row in rows if isinstance(row[2], NotChecked)] == ["3:t-0"]


def test_a_disk_that_does_not_answer_is_a_row(copied: Path) -> None:
    log = next(log for log in logs_in(copied) if log.name == "plain-0")
    rows = rows_of(copied / "nowhere", unit_of(log))
    assert any(isinstance(row[2], NotRead) for row in rows)
