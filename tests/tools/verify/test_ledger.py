"""The ledger: what it has is not read again, and nothing that happens to it changes a verdict."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.verify import deck
from tests.verify.faults import plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import World
from tools.verify.core.outcome import Figures, Options, Outcome
from tools.verify.ledger import Ledger, row_of
from tools.verify.verification import plan, verify

ROOT = Path(__file__).resolve().parents[3]


def options(world: World, root: Path, **more: object) -> Options:
    data = tuple(f"{root}/made/d{number}" for number in range(len(world.directories)))
    given = {"store": f"file://{root}/made/store", "data": data, "workers": 1}
    return Options(**{**given, **more})  # type: ignore[arg-type]


def with_ledger(world: World, root: Path, **more: object) -> Outcome:
    return verify(options(world, root, ledger=f"{root}/ledger", **more))


def verdict(outcome: Outcome) -> Outcome:
    """All of it but how much was read."""
    return replace(outcome, figures=Figures())


@pytest.mark.parametrize("seed", [4, 29, 31])
def test_a_second_run_reads_nothing_again_and_says_the_same(seed: int, tmp_path: Path) -> None:
    world = build(seed, NOW_MS)
    world.write_to(tmp_path / "made")
    alone = verify(options(world, tmp_path))
    planned = plan(options(world, tmp_path, ledger=f"{tmp_path}/ledger"))
    assert not (tmp_path / "ledger").exists()
    first, second = with_ledger(world, tmp_path), with_ledger(world, tmp_path)
    assert verdict(first) == verdict(second) == verdict(alone)
    assert first.figures.proved_bytes == planned.proved_bytes == 0
    assert second.figures.proved_bytes > 0.8 * first.figures.scanned_bytes
    total = second.figures.proved_bytes + second.figures.scanned_bytes
    assert total == first.figures.scanned_bytes
    assert second.figures.batches == first.figures.batches
    assert plan(options(world, tmp_path, ledger=f"{tmp_path}/ledger")).proved_bytes > 0


def test_what_was_damaged_is_found_every_night(tmp_path: Path) -> None:
    assert deck.NAMES
    for seed in range(6):
        each = plant(seed, NOW_MS, count=6)
        root = tmp_path / str(seed)
        each.world.write_to(root / "made")
        alone = verify(options(each.world, root))
        assert alone.findings
        for _ in range(3):
            assert verdict(with_ledger(each.world, root)) == verdict(alone)


def test_what_is_new_or_changed_is_read(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    world.write_to(tmp_path / "made")
    with_ledger(world, tmp_path)
    path = max((tmp_path / "made").glob("store/tier/*/*/*.log"), key=lambda one: one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    later = with_ledger(world, tmp_path)
    assert {each.code for each in later.findings} == {"bad-crc"}
    assert later.figures.scanned_bytes < later.figures.proved_bytes


KILLED = """
import os, signal, sys
from tools.verify.core.outcome import Options
from tools.verify.verification import verify
root, data, after = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
def listener(progress):
    if progress.phase == "scanning" and progress.done_tasks > after:
        os.kill(os.getpid(), signal.SIGKILL)
verify(Options(store=f"file://{root}/made/store", data=tuple(data), workers=1, task_bytes=1,
               ledger=f"{root}/ledger"), listener)
"""


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    world = build(29, NOW_MS)
    world.write_to(tmp_path / "made")
    alone = verify(options(world, tmp_path))
    data = options(world, tmp_path).data
    proved = 0
    for after in (2, 5, 9):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), ",".join(data), str(after)],
            cwd=ROOT, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        now = plan(options(world, tmp_path, ledger=f"{tmp_path}/ledger")).proved_bytes
        assert now > proved
        proved = now
    outcome = with_ledger(world, tmp_path)
    assert verdict(outcome) == verdict(alone)
    assert 0 < outcome.figures.proved_bytes < alone.figures.scanned_bytes


def test_a_ledger_that_is_damaged_costs_a_reading(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    world.write_to(tmp_path / "made")
    alone = verify(options(world, tmp_path))
    rng = random.Random(7)
    for _ in range(12):
        with_ledger(world, tmp_path)
        for path in (tmp_path / "ledger").glob("piece-*"):
            content = bytearray(path.read_bytes())
            match rng.randrange(4):
                case 0:
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                case 1:
                    del content[rng.randrange(len(content)) :]
                case 2:
                    content += b"[1]\n"
                case 3:
                    content = bytearray(rng.randbytes(50))
            path.write_bytes(bytes(content))
        (tmp_path / "ledger" / "piece-99.tmp").write_bytes(b"what a killed run left")
        outcome = with_ledger(world, tmp_path)
        notes = [each for each in outcome.unchecked if each.what == "ledger"]
        assert notes
        assert verdict(replace(outcome, unchecked=alone.unchecked)) == verdict(alone)
        for path in (tmp_path / "ledger").glob("piece-*"):
            path.unlink()


def test_many_pieces_become_few_and_what_is_gone_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.verify.ledger.PIECES_MAX", 3)
    world = build(29, NOW_MS)
    world.write_to(tmp_path / "made")
    first = with_ledger(world, tmp_path, task_bytes=1)
    assert len(list((tmp_path / "ledger").glob("piece-*.jsonl"))) == 1
    second = with_ledger(world, tmp_path, task_bytes=1)
    assert verdict(first) == verdict(second)
    assert second.figures.proved_bytes > 0
    assert not list((tmp_path / "ledger").glob("*.tmp"))


def test_a_run_over_chosen_topics_proves_no_slices_of_others(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    each = plant(4, NOW_MS, only={"wal_table_lies"}, count=2)
    assert each.planted
    each.world.write_to(tmp_path / "made")
    other = next(one for one in verify(options(world, tmp_path)).coverage if one.topic.startswith("__"))
    with_ledger(each.world, tmp_path, topics=(other.topic,))
    assert "wal-slice-crc" in {one.code for one in with_ledger(each.world, tmp_path).findings}


@pytest.mark.parametrize(
    "row",
    [
        [],
        ["", 0, 0],
        ["", 0, 0, [], 1],
        [1, 0, 0, []],
        ["", True, 0, []],
        ["", 0, 99, []],
        ["", 0, -1, []],
        ["", 0, 0, ["place", 0]],
        ["", 0, 0, ["place", 0, "1", 0, 0, 0, 0, 0, 0, 0, False]],
        ["", 0, 0, ["place", 1 << 70, 1, 0, 0, 0, 0, 0, 0, 0, False]],
        ["", 0, 6, ["place", 0, 0, 0, 0, 0, [[1]]]],
    ],
)
def test_a_row_that_is_none_is_refused(row: list[object]) -> None:
    with pytest.raises(ValueError):
        row_of(row)


def test_a_ledger_that_cannot_be_written_leaves_the_run_unfinished(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    world.write_to(tmp_path / "made")
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "piece-00000000.tmp").mkdir()
    outcome = with_ledger(world, tmp_path)
    assert outcome.exit_code() == 2
    assert outcome.findings == ()
    assert [each.name for each in (tmp_path / "ledger").iterdir()] == ["piece-00000000.tmp"]
    assert Ledger(f"{tmp_path}/ledger").notes == []
