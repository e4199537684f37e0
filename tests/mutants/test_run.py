"""The run over the known bugs tells those that are caught from those that are not, in trees of one file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants import run

SOURCE = "def smaller(a, b):\n    return a < b\n\n\ndef larger(a, b):\n    return b < a\n"
TESTS = """
from source import larger, smaller

def test_smaller():
    assert smaller(1, 2)
    assert not smaller(1, 1)

def test_larger():
    assert larger(2, 1)
"""


def add_mutant(tree: Path, name: str, old: str, new: str) -> None:
    (tree / f"tests/mutants/{name}.toml").write_text(
        f'title = "It is {name}."\nfile = "source.py"\nold = "{old}"\nnew = "{new}"\n'
        'tests = ["tests/test_source.py"]\n'
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(("git", "init", "-q", str(tmp_path)), check=True)
    (tmp_path / "tests/mutants").mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("build/\n__pycache__/\n")
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "tests/test_source.py").write_text(TESTS)
    return tmp_path


def test_a_bug_is_caught_by_the_test_that_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_mutant(tree, "early", "a < b", "a <= b")
    assert run.main([], tree=tree) == 0
    said = capsys.readouterr().out
    assert "early: It is early." in said
    assert "tests/test_source.py::test_smaller" in said
    assert (tree / "source.py").read_text() == SOURCE
    assert run.main([], tree=tree) == 0
    assert "1 were caught in this tree before" in capsys.readouterr().out


def test_a_bug_that_no_test_notices_and_one_without_its_place_are_told(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_mutant(tree, "unnoticed", "b < a", "b <= a")
    add_mutant(tree, "stale", "b < c", "b <= c")
    assert run.main([], tree=tree) == 1
    said = capsys.readouterr().out
    assert "SURVIVED" in said
    assert "stale: `old` is found 0 times in source.py" in said
    assert "2 bugs planted, 0 caught" in said


def test_tests_that_fail_anyway_catch_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_mutant(tree, "early", "a < b", "a <= b")
    (tree / "tests/test_source.py").write_text("def test_it():\n    assert False\n")
    assert run.main(["--only", "early"], tree=tree) == 1
    assert "without any bug this fails already" in capsys.readouterr().out
