"""The bench of a cluster at rest: what is made of what was read, its rows, and one short look at our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.scrape import Scrape
from tools.versus import brokers, idle
from tools.versus.idle import Moment, costs, operations, work


def test_requests_are_told_by_the_hour_and_priced_by_the_month() -> None:
    found = costs({"get": 100, "get_range": 20, "put": 30, "list": 10, "delete": 1000}, seconds=360)
    assert found["read_per_hour"] == pytest.approx(1200)
    assert found["written_per_hour"] == pytest.approx(400)
    assert found["dollars"] == pytest.approx(730 * (1.2 * 0.0004 + 0.4 * 0.005))


def test_work_is_told_for_each_broker() -> None:
    before = Moment(at_s=10.0, cpu_s=[1.0, 2.0], switches=[100, 100])
    after = Moment(at_s=20.0, cpu_s=[1.1, 2.3], switches=[150, 250])
    found = work(before, after)
    assert found["cpu_percent"] == pytest.approx(2.0)
    assert found["busiest_percent"] == pytest.approx(3.0)
    assert found["switches_per_s"] == pytest.approx(10.0)


def test_operations_are_read_off_the_metrics() -> None:
    main, lane = idle.REQUESTS
    lines = [
        f'{name}{{operation="{operation}"}} {many}'
        for name, operation, many in ((main, "get", 2.0), (lane, "get", 1.0), (lane, "put", 1.0))
    ]
    text = "\n".join([*lines, "other_total 9.0"])
    assert operations(Scrape.parse(text)) == {"get": 3.0, "put": 1.0}


def test_a_cluster_of_ours_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "SETTLE_S", 0.0)
    [ours] = idle.systems(with_kafka=False)
    idle.measure([ours], [idle.WAL], partitions=3, seconds=1.0, folder=tmp_path)
    [found] = ours.rounds[idle.WAL]
    shown = {row.name: row for row in idle.ROWS}[idle.WAL]
    assert {measure.name for measure in shown.measures} == found.keys()
    assert 0 < found["cpu_percent"] <= found["busiest_percent"]
    assert not list(tmp_path.glob("*/[0-9]"))


def test_without_kafka_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(brokers.Kafka, "is_there", lambda: False)
    assert idle.main([]) == 1
    assert capsys.readouterr().err == (
        "bench-idle: Apache Kafka is not here (make kafka); --own measures this broker alone\n"
    )
