"""Owns the list of known bugs: what a mutant is, reading it from its file, planting it in a tree.

Does not own running what must catch it (run.py).
Invariant: a mutant changes one file in one place; a place that is not there, or there twice, is an error.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("tests/mutants")
SIMULATION = "sim:"


class Stale(Exception):
    """The source has changed, and this mutant does not fit it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    """The name of its file, without the suffix."""
    title: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    seeds: str = ""
    """Arguments of a run of the simulation that must catch it too, whatever the tests say."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """What pytest is asked to run."""
        return tuple(test for test in self.tests if not test.startswith(SIMULATION))

    @property
    def simulations(self) -> tuple[tuple[str, ...], ...]:
        """The arguments of each run of the simulation."""
        return tuple(
            tuple(test.removeprefix(SIMULATION).split()) for test in self.tests if test.startswith(SIMULATION)
        )

    def apply(self, source: str) -> str:
        found = source.count(self.old)
        if found != 1:
            raise Stale(f"{self.name}: `old` is found {found} times in {self.file}")
        return source.replace(self.old, self.new)

    def plant(self, tree: Path) -> None:
        path = tree / self.file
        path.write_text(self.apply(path.read_text()))


def read(path: Path) -> Mutant:
    given = tomllib.loads(path.read_text())
    tests = given.pop("tests")
    return Mutant(name=path.stem, tests=tuple(tests), **given)


def read_all(tree: Path = ROOT) -> list[Mutant]:
    return [read(path) for path in sorted((tree / FOLDER).glob("*.toml"))]
