"""Owns what is told of a seed that ran, and the journal of those that passed, by which a run goes on where it
was cut off.

A journal is of the sources that a run executes and lies under `build/`: what passed before a change is run
again after it, and after a change of a page it is not. Does not own which seeds run (run.py).

Invariant: a seed is in the journal once it has passed, with the brokers that it ran with; a line that was not
written to its end counts for nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXECUTED = ("broker", "protocol", "remote", "storage", "tests/sim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is told of a seed, small enough to be sent from process to process."""

    seed: int
    brokers: int
    line: str
    passed: bool
    operations: int = 0
    lost_by_all: int = 0
    lost_by_last: int = 0
    lost_with_leader: int = 0
    cpu_s: float = 0.0


class Journal:
    """Rows that passed, in a file that is made with the first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> Iterator[Row]:
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("}\n"):
                    yield Row(**json.loads(line))

    def noting(self, rows: Generator[Row, None, None]) -> Generator[Row, None, None]:
        """Pass rows on, each one that passed once it is noted; who closes this closes those."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with closing(rows), self.path.open("a", encoding="utf-8") as notes:
            if is_torn:
                notes.write("\n")
            for row in rows:
                if row.passed:
                    notes.write(json.dumps(asdict(row)) + "\n")
                    notes.flush()
                yield row


def journal_of(root: Path = ROOT) -> Journal:
    """The journal of what the sources are now."""
    return Journal(root / "build" / f"sim-{digest_of_sources(root)}.txt")


def digest_of_sources(root: Path) -> str:
    """One name for all sources that a run executes, tests left out."""
    found = hashlib.sha256()
    for path in sorted(path for folder in EXECUTED for path in (root / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("test_"):
            data = path.read_bytes()
            found.update(f"{path.relative_to(root)} {len(data)}\n".encode() + data)
    return found.hexdigest()[:12]
