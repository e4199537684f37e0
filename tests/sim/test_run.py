"""`python -m tests.sim.run`: what is told of many seeds, in whatever order and however they end,
and how a run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.sim import run
from tests.sim.journal import EXECUTED, Journal, Row, digest_of_sources, journal_of
from tests.sim.run import INTERRUPTED, main, report, run_in_processes
from tests.sim.scenario import simulate


def row(seed: int, *, passed: bool = True) -> Row:
    return Row(seed=seed, brokers=3, line=f"seed={seed}", passed=passed, operations=10, cpu_s=1.5)


def rows_of(rows: Iterable[Row], then: BaseException | None = None) -> Generator[Row, None, None]:
    yield from rows
    if then is not None:
        raise then


def test_a_seed_does_the_same_in_any_process() -> None:
    rows = sorted(run_in_processes(range(4, 7), 1, jobs=2), key=lambda row: row.seed)
    assert [row.line for row in rows] == [simulate(seed, brokers=1).line() for seed in range(4, 7)]
    assert all(row.cpu_s > 0 and row.operations > 0 for row in rows)


def test_seeds_go_to_another_child_after_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SEEDS_A_CHILD", 2)
    children, lines = [], []
    for seed in (500011, 500011, 500014, 500014):
        lines.append(run.run_seed(seed, 1).line)
        assert run._child is not None
        children.append(run._child._pid)
    assert children[0] == children[1] != children[2] == children[3]
    assert lines[0] == lines[1] != lines[2] == lines[3]


def test_what_is_done_is_told_up_to_the_first_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(rows_of(map(row, (5, 7, 6, 9))), 5, keep_going=False) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["seed=5", "seed=7", "seed=6", "seed=9"]
    assert last.startswith("4 seeds, 0 failed, 40 operations,")
    assert "1.500 CPU seconds a seed" in last
    assert last.endswith("everything below is done: --from 8")


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_failure_is_told_with_its_replay_at_once(
    capsys: pytest.CaptureFixture[str], keep_going: bool
) -> None:
    given = [row(1), row(0, passed=False), row(2)]
    assert report(rows_of(given), 0, keep_going=keep_going) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["seed=0", "replay: python -m tests.sim.run --seed 0 --brokers 3"]
    assert lines[-2] == "failed: 0"
    assert ("seed=2" in lines) is keep_going
    assert lines[-1].endswith(f"--from {3 if keep_going else 2}")


@pytest.mark.parametrize(
    ("end", "code"), [(KeyboardInterrupt(), INTERRUPTED), (BrokenProcessPool("killed"), 1)]
)
def test_what_was_done_before_an_end_is_summed_up(
    capsys: pytest.CaptureFixture[str], end: BaseException, code: int
) -> None:
    assert report(rows_of([row(0)], end), 0, keep_going=False) == code
    assert capsys.readouterr().out.splitlines()[-1].endswith("--from 1")


@pytest.mark.usefixtures("heard_signals")
def test_an_interrupt_from_the_terminal_ends_it_with_its_sum() -> None:
    command = [sys.executable, "-m", "tests.sim.run", "--seeds", "1000000", "--brokers", "1", "--jobs", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("seed=")
            os.killpg(process.pid, signal.SIGINT)
            said, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == INTERRUPTED
    assert "everything below is done: --from " in said.splitlines()[-1]
    assert complaints == ""


# --- going on where it stopped ---


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were run, each with three brokers; seed 4 fails, and the journal is a new one."""
    ran: list[int] = []

    def run_them(seeds: Iterable[int], brokers: int | None, jobs: int) -> Generator[Row, None, None]:
        for seed in seeds:
            ran.append(seed)
            yield row(seed, passed=seed != 4)

    monkeypatch.setattr(run, "run_in_processes", run_them)
    monkeypatch.setattr(run, "journal_of", lambda: Journal(tmp_path / "build" / "sim.txt"))
    return ran


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(
    runs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seeds", "2", "--brokers", "3", "--resume"]) == 0
    capsys.readouterr()
    assert main(["--seeds", "4", "--brokers", "3", "--resume"]) == 0
    assert runs == [0, 1, 2, 3]
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first.startswith("2 of 4 seeds have passed before: ")
    assert lines == ["seed=2", "seed=3"]
    assert last.startswith("4 seeds, 0 failed, 40 operations,")
    assert "1.500 CPU seconds a seed" in last
    assert last.endswith("--from 4")


def test_what_failed_runs_again_and_so_does_what_ran_with_other_brokers(runs: list[int]) -> None:
    for brokers in ("3", "3", "2"):
        assert main(["--seeds", "2", "--from", "3", "--brokers", brokers, "--resume"]) == 1
    assert runs == [3, 4, 4, 3, 4]


def test_without_being_asked_to_go_on_every_seed_runs(runs: list[int]) -> None:
    for arguments in ([], ["--resume"], [], ["--resume", "--again"], ["--resume"]):
        assert main(["--seeds", "2", "--brokers", "3", *arguments]) == 0
    assert runs == [0, 1] * 4


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "build" / "sim.txt")
    assert list(journal.rows()) == []
    assert list(journal.noting(rows_of(map(row, (1, 2))))) == [row(1), row(2)]
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-3])
    assert list(journal.rows()) == [row(1)]
    assert list(journal.noting(rows_of([row(3)]))) == [row(3)]
    assert list(journal.rows()) == [row(1), row(3)]


def test_each_state_of_the_sources_has_its_journal(tmp_path: Path) -> None:
    for folder in EXECUTED:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text("1")
    names = [journal_of(tmp_path).path]
    for folder in EXECUTED:
        (tmp_path / folder / "one.py").write_text("2")
        names.append(journal_of(tmp_path).path)
    assert len(set(names)) == len(names)
    (tmp_path / "README.md").write_text("a page")
    (tmp_path / "tests/sim/test_one.py").write_text("a test")
    assert journal_of(tmp_path).path == names[-1]
    assert digest_of_sources(tmp_path) in names[-1].name
