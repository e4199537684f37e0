"""The names of an export's objects, and which of them count.

Owns keys, what a claim says, and which files are to be merged or emptied. Does not own reading, writing or
asking the store (export). Pure. Invariant: of two files one lies within the other or they have no offset in
common; the larger one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

LEVELS: Final = 3
"""Files are merged so many times at most."""
FILES_MERGED: Final = 32
"""So many files become one, whatever their size."""
ABOUT: Final = "_export"
"""The object that says what is exported here: names with an underscore are no data to readers of Parquet."""

_FILE = re.compile(r"(0|[1-9][0-9]{0,9})-([0-9]{20})-([0-9]{20})\.parquet")
_CLAIM = re.compile(r"_claims/([0-9])/(0|[1-9][0-9]{0,9})-([0-9]{20})")


class ParquetFile(NamedTuple):
    """The offsets [first, end) of a partition, in one object."""

    partition: int
    first: int
    end: int
    size: int = 0
    modified_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.partition}-{self.first:020d}-{self.end:020d}.parquet"

    def holds(self, other: ParquetFile) -> bool:
        """Whether the other one is superseded by this one."""
        return (
            self.partition == other.partition
            and self.first <= other.first
            and other.end <= self.end
            and (self.first, self.end) != (other.first, other.end)
        )


class Claim(NamedTuple):
    """Who makes the file of a level that begins at an offset, makes it up to the end that the claim says."""

    level: int
    partition: int
    first: int

    @property
    def key(self) -> str:
        return f"_claims/{self.level}/{self.partition}-{self.first:020d}"


def parse_file(key: str, size: int = 0, modified_ms: int = 0) -> ParquetFile | None:
    match = _FILE.fullmatch(key)
    if match is None:
        return None
    found = ParquetFile(int(match[1]), int(match[2]), int(match[3]), size, modified_ms)
    return found if found.first < found.end else None


def parse_claim(key: str) -> Claim | None:
    match = _CLAIM.fullmatch(key)
    return None if match is None else Claim(int(match[1]), int(match[2]), int(match[3]))


def claim_bytes(end: int) -> bytes:
    return json.dumps({"end": end}).encode()


def read_claim(data: bytes, claim: Claim) -> int:
    """Return the end that was claimed; ValueError for what says none."""
    said = json.loads(data)
    end = said.get("end") if isinstance(said, dict) else None
    if not isinstance(end, int) or end <= claim.first:
        raise ValueError(f"{claim.key} says no end")
    return end


def counting(files: Iterable[ParquetFile]) -> tuple[list[ParquetFile], list[ParquetFile]]:
    """Return the files of one partition that count, in order, and those that are superseded."""
    kept: list[ParquetFile] = []
    superseded: list[ParquetFile] = []
    for each in sorted(files, key=lambda file: (file.first, -file.end)):
        if kept and kept[-1].holds(each):
            superseded.append(each)
        else:
            kept.append(each)
    return kept, superseded


def to_merge(files: Sequence[ParquetFile], first: int, end: int, target_bytes: int) -> list[ParquetFile]:
    """Return which files from `first` on become one, of those below `end`; none if it is too early for that.
    A file that is large enough by itself stays alone.
    """
    group: list[ParquetFile] = []
    size, at = 0, first
    for each in files:
        if each.first < at:
            continue
        if each.first != at or each.end > end:
            break
        group.append(each)
        size += each.size
        at = each.end
        if size >= target_bytes or len(group) == FILES_MERGED:
            return group
    return []
