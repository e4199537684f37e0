"""What the demo holds against what: records that were acknowledged, and what is found of them.

Owns the value of a record, the sums over records in the order of their offsets, the silence of a producer,
and what counts as wrong. Does not own who writes or reads (load, steps). Pure.
Invariant: a record that is lost, doubled, altered or out of order changes the sum, and the first place where
it shows is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from protocol.checksum import crc32c

_HEAD: Final = Struct(">HQ")
"""A number that each partition of the demo has to itself, and the number of the record in it."""
RECORD_BYTES: Final = 1000
_FILLER: Final = bytes(range(32, 127)) * (RECORD_BYTES // 95 + 1)


def value_of(series: int, number: int) -> bytes:
    """Return a value that no other record has; its text differs from record to record too."""
    head = _HEAD.pack(series, number)
    start = number % 95
    return head + _FILLER[start : start + RECORD_BYTES - len(head)]


@dataclass(slots=True)
class Sums:
    """So many records, and a checksum over their values one after the other."""

    name: str
    """Of the partition."""
    series: int
    records: int = 0
    checksum: int = 0
    wrong: str = ""
    """What is wrong with the first one that is not what was to follow."""

    def add(self, value: bytes | memoryview | None) -> None:
        """Take the next record in the order of offsets."""
        if value is None:
            value = b""
        if not self.wrong and value != value_of(self.series, self.records):
            self.wrong = self._describe(bytes(value))
        self.checksum = crc32c(value, self.checksum)
        self.records += 1

    def _describe(self, value: bytes) -> str:
        if len(value) < _HEAD.size:
            return f"in place of record {self.records} there is a value of {len(value)} bytes"
        series, number = _HEAD.unpack_from(value)
        if (series, number) == (self.series, self.records):
            return f"record {number} is altered"
        other = "" if series == self.series else " of another partition"
        return f"in place of record {self.records} there is record {number}{other}"


def differences(acknowledged: Iterable[Sums], found: Iterable[Sums]) -> list[str]:
    """Say for each partition in what it differs from what was acknowledged."""
    told = []
    for sent, read in zip(acknowledged, found, strict=True):
        if read.wrong:
            told.append(f"{sent.name}: {read.wrong}")
        elif read.records != sent.records:
            told.append(
                f"{sent.name}: {sent.records:,} records were acknowledged, {read.records:,} are there"
            )
        elif read.checksum != sent.checksum:
            told.append(f"{sent.name}: {sent.records:,} records are there, with another checksum")
    return told


def silence_s(acknowledged_s: Sequence[float], since_s: float) -> float:
    """Return the longest time without an acknowledgement, from the last one before `since_s` on."""
    before = max((at_s for at_s in acknowledged_s if at_s < since_s), default=since_s)
    seen = [before, *sorted(at_s for at_s in acknowledged_s if at_s >= since_s)]
    return max((later - at_s for at_s, later in itertools.pairwise(seen)), default=0.0)
