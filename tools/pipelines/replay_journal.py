"""What a replay has begun to send: enough to go on after a kill without sending anything twice.

Owns the file and what it says. Does not own what the other broker has of it (replay asks).
Invariant: a line is written before its batch is sent, so what arrived is in the file; a last line that is cut
off was never followed by its batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tools.console import Failure


class Sent(NamedTuple):
    """A batch that was given to the other broker, or was about to be."""

    partition: int
    sequence: int
    """Of its first record, counted from 0 without a bound."""
    records: int
    first: int
    end: int
    """Of the source, exclusive."""

    @property
    def last_sequence(self) -> int:
        return self.sequence + self.records - 1


class Journal:
    """The file of one replay; lines are added, never changed."""

    def __init__(
        self,
        path: Path,
        job: Mapping[str, Any],
        sent: Mapping[int, list[Sent]],
        file: TextIO,
        *,
        age_ms: int = 0,
    ) -> None:
        self.age_ms = age_ms
        """How long ago the run before this one wrote its last line."""
        self.job = job
        self.sent = sent
        """What a run before this one sent, by partition, in order."""
        self._path = path
        self._file = file

    @classmethod
    def begin(cls, path: Path, job: Mapping[str, Any]) -> Journal:
        """Start a new file with what the replay is about."""
        try:
            file = path.open("x", encoding="utf-8")
        except OSError as error:
            raise Failure(f"--state {path}: {error.strerror}") from None
        journal = cls(path, job, {}, file)
        journal._write(job)
        return journal

    @classmethod
    def resume(cls, path: Path, *, now_ms: int) -> Journal | None:
        """Open the file of an earlier run; None where none began."""
        try:
            data = path.read_bytes()
            age_ms = now_ms - int(path.stat().st_mtime * 1000)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Failure(f"--state {path}: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            path.unlink()
            return None
        try:
            job, *rows = map(json.loads, whole.splitlines())
            sent: dict[int, dict[int, Sent]] = {}
            for row in rows:
                entry = Sent(*row)
                sent.setdefault(entry.partition, {})[entry.sequence] = entry
            if not isinstance(job, dict):
                raise TypeError
        except (ValueError, TypeError):
            raise Failure(f"--state {path}: this is not the state of a replay") from None
        file = path.open("r+", encoding="utf-8")
        file.truncate(len(whole))
        file.seek(len(whole))
        ordered = {partition: [rows[at] for at in sorted(rows)] for partition, rows in sent.items()}
        return cls(path, job, ordered, file, age_ms=age_ms)

    def add(self, entry: Sent) -> None:
        self._write(entry)

    def close(self) -> None:
        self._file.close()

    def _write(self, row: Any) -> None:
        try:
            self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            raise Failure(f"--state {self._path}: {error.strerror}") from None
