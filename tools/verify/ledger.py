"""What was proved in earlier runs, so that a nightly run reads only what is new and a killed one goes on.

Owns the files of a ledger. Does not own what makes a unit the same as before (plan) or what its facts mean
(judge). Invariant: a file appears whole or not at all, and counts only if its checksum does; whatever else
lies there is left alone and ignored with a word, so the worst that a ledger can cost is a reading.

Only units without any fault are kept. That bytes are the same as when they were proved is believed of objects
and files with the same name, size and time: a ledger does not find what changed without touching these.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from crc32c import crc32c

from tools.verify.core.facts import (
    Digest,
    Fact,
    LocalLog,
    Mark,
    Piece,
    ProducerRun,
    RecordDigest,
    Row,
    Run,
    StreamObject,
    Tally,
)
from tools.verify.core.scan import ScannedUnit

MAGIC: Final = "tidewal-ledger"
VERSION: Final = 1
KINDS: Final[tuple[type, ...]] = (
    Run,
    ProducerRun,
    Mark,
    Digest,
    RecordDigest,
    Piece,
    LocalLog,
    StreamObject,
    Tally,
)
"""What a sound unit gives. A new kind goes to the end, or the version is a new one."""
PIECE_NAME: Final = re.compile(r"piece-([0-9]{8})\.jsonl")
PIECE_BYTES: Final = 64 << 20
"""Entries that are written together go to one piece up to this, and are read at once."""
PIECE_BYTES_MAX: Final = 512 << 20
PIECES_MAX: Final = 64
"""More are made one at the end of a run, without what is not listed any more."""
_INT64: Final = 1 << 63

Reader = Callable[[Any], bool]


class Kept(NamedTuple):
    """Where a unit lies in the ledger."""

    path: Path
    position: int
    size: int


class Ledger:
    """The ledger in a directory, which is made when something is to be kept there. Raises OSError."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._kept: dict[str, Kept] = {}
        self._used: set[str] = set()
        self.notes: list[str] = []
        """What was ignored, and why."""
        self._next = 0
        self._pieces: list[Path] = []
        for path in sorted(self._directory.iterdir()) if self._directory.exists() else ():
            if (found := PIECE_NAME.fullmatch(path.name)) is None:
                continue
            self._next = max(self._next, int(found[1]) + 1)
            try:
                self._kept |= _index(path)
                self._pieces.append(path)
            except (OSError, ValueError) as error:
                self.notes.append(f"{path.name} of the ledger is ignored: {error}")

    def __contains__(self, identity: str) -> bool:
        return identity in self._kept

    def find(self, identity: str) -> list[Row] | None:
        """Return the rows that a unit of this identity gave, None if they must be found anew."""
        kept = self._kept.get(identity)
        if kept is None or not identity:
            return None
        try:
            with kept.path.open("rb") as file:
                file.seek(kept.position)
                line = json.loads(file.read(kept.size))
            rows = [row_of(each) for each in line[1]]
        except (OSError, ValueError, TypeError, IndexError, RecursionError) as error:
            self.notes.append(f"an entry of {kept.path.name} is ignored: {error}")
            return None
        self._used.add(identity)
        return rows

    def keep(self, units: Iterable[ScannedUnit]) -> None:
        """Write what a task proved."""
        fresh = {unit.identity: unit for unit in units if unit.identity and unit.identity not in self._used}
        self._used |= fresh.keys()
        self._write(_line(unit.identity, unit.rows) for unit in fresh.values())

    def close(self) -> None:
        """Make few pieces of many, without what is not listed any more."""
        if len(self._pieces) <= PIECES_MAX:
            return
        old, self._pieces = self._pieces, []
        used = sorted(self._used & self._kept.keys())
        rows = ((identity, self.find(identity)) for identity in used)
        self._write(_line(identity, found) for identity, found in rows if found is not None)
        for path in old:
            path.unlink(missing_ok=True)

    def _write(self, lines: Iterable[str]) -> None:
        batch: list[str] = []
        size = 0
        for line in lines:
            if batch and size + len(line) > PIECE_BYTES:
                self._write_piece(batch)
                batch, size = [], 0
            if len(line) < PIECE_BYTES_MAX // 2:
                batch.append(line)
                size += len(line)
        if batch:
            self._write_piece(batch)

    def _write_piece(self, lines: Sequence[str]) -> None:
        body = "".join(f"{line}\n" for line in lines).encode()
        head = json.dumps([MAGIC, VERSION, len(body), crc32c(body)]).encode() + b"\n"
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"piece-{self._next:08d}.jsonl"
        self._next += 1
        draft = path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.write(head + body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._kept |= _index(path)
        self._pieces.append(path)


def _line(identity: str, rows: Iterable[Row]) -> str:
    return json.dumps([identity, [json_of(row) for row in rows]], separators=(",", ":"))


def _index(path: Path) -> dict[str, Kept]:
    """Return where each unit of a piece lies. Raise ValueError if it is not whole."""
    if path.stat().st_size > PIECE_BYTES_MAX:
        raise ValueError("larger than any that is written")
    data = path.read_bytes()
    end = data.find(b"\n")
    head = json.loads(data[: max(end, 0)] or b"0")
    if not isinstance(head, list) or head[:2] != [MAGIC, VERSION] or len(head) != 4:
        raise ValueError("not a ledger of this version")
    body = memoryview(data)[end + 1 :]
    if [len(body), crc32c(body)] != head[2:]:
        raise ValueError("its checksum does not agree")
    found: dict[str, Kept] = {}
    at = end + 1
    while at < len(data):
        stop = data.index(b"\n", at)
        identity, after = json.JSONDecoder().raw_decode(data[at + 1 : min(stop, at + (1 << 20))].decode())
        if not isinstance(identity, str) or not after:
            raise ValueError("an entry without a name")
        found[identity] = Kept(path, at, stop - at)
        at = stop + 1
    return found


# --- rows as JSON ---


def json_of(row: Row) -> list[Any]:
    topic_id, partition, fact = row
    return [topic_id, partition, KINDS.index(type(fact)), list(fact)]


def row_of(value: Any) -> Row:
    """Return the row. Raise ValueError for anything else."""
    topic_id, partition, kind, fields = value
    if not isinstance(topic_id, str) or not _is_int(partition) or not _is_int(kind):
        raise ValueError("not a row")
    if not 0 <= kind < len(KINDS) or not isinstance(fields, list):
        raise ValueError("not a fact")
    made = KINDS[kind]
    checks = _CHECKS[made]
    if len(fields) != len(checks) or not all(check(each) for check, each in zip(checks, fields, strict=True)):
        raise ValueError(f"not a {made.__name__}")
    fact: Fact = made(*(_tuples(each) for each in fields))
    return topic_id, partition, fact


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < 2 * _INT64


def _check_of(hint: Any) -> Reader:
    if hint is int:
        return _is_int
    if hint in (str, bool):
        return lambda value: isinstance(value, hint)
    assert get_origin(hint) is tuple, hint
    args = get_args(hint)
    if args[-1] is Ellipsis:
        inner = _check_of(args[0])
        return lambda value: isinstance(value, list) and all(inner(each) for each in value)
    checks = [_check_of(each) for each in args]
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


_CHECKS: Final[Mapping[type, list[Reader]]] = {
    made: [_check_of(hint) for hint in get_type_hints(made).values()] for made in KINDS
}
