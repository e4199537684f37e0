"""Kafka's files beside the segments of a log, and those of a data directory.

Owns their formats, as readers of bytes. Does not own which files there are (directory) or whether they agree
with a log (log_checks). Invariant: whatever the bytes are, a reader returns what they say or raises BadFile
with the byte from which on they say nothing; no number in them decides how much memory is taken.
"""

from __future__ import annotations

import base64
import re
import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

Column = npt.NDArray[Any]

_OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED: Final = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_PRODUCER: Final = struct.Struct(">qhiqiqiq")
_OLDER_HEAD: Final = struct.Struct(">qB")
_OLDER: Final = struct.Struct(">iqiq")
_LINE: Final = re.compile(r"(.+) (\d{1,10}) (-?\d{1,19})")
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
LINES_MAX: Final = 1_000_000


class BadFile(Exception):
    """The bytes are not a file of their kind."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position
        self.why = why


class Entries(NamedTuple):
    """An index: what stands in each entry, without the zeros that were allocated behind the last."""

    first: Column
    """Relative offset, or timestamp."""
    second: Column
    """Position, or relative offset."""
    rest: int
    """Bytes behind the last whole entry."""


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Sent(NamedTuple):
    """One of the last batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class Producer(NamedTuple):
    producer_id: int
    epoch: int
    last: Sent
    """Its timestamp is that of the last batch or marker; the offset is -1 if no batch is known."""
    coordinator_epoch: int
    transaction_start: int
    older: tuple[Sent, ...] = ()
    """Before the last, oldest first."""


def offset_entries(data: bytes) -> Entries:
    return _entries(data, _OFFSET_ENTRY, "offset", "position")


def time_entries(data: bytes) -> Entries:
    return _entries(data, _TIME_ENTRY, "timestamp", "offset")


def _entries(data: bytes, layout: np.dtype[Any], first: str, second: str) -> Entries:
    rows = np.frombuffer(data, layout, len(data) // layout.itemsize)
    one, two = rows[first].astype(np.int64), rows[second].astype(np.int64)
    used = np.flatnonzero((one != 0) | (two != 0))
    count = int(used[-1]) + 1 if len(used) else 0
    return Entries(one[:count], two[:count], len(data) % layout.itemsize)


def aborted_transactions(data: bytes) -> list[Aborted]:
    found: list[Aborted] = []
    for at in range(0, len(data) - _ABORTED.size + 1, _ABORTED.size):
        version, *fields = _ABORTED.unpack_from(data, at)
        if version != 0:
            raise BadFile(at, f"version {version}")
        found.append(Aborted(*fields))
    if len(data) % _ABORTED.size:
        raise BadFile(len(found) * _ABORTED.size, "the last entry is not whole")
    return found


def producer_snapshot(data: bytes) -> dict[int, Producer]:
    """By producer id. Of what stands behind Kafka's entries, the older batches of FORMAT.md are read."""
    if len(data) < _SNAPSHOT_HEAD.size + 4:
        raise BadFile(0, f"{len(data)} bytes")
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        raise BadFile(0, f"version {version}")
    if crc != crc32c(data[_SNAPSHOT_HEAD.size :]):
        raise BadFile(2, "its checksum does not fit")
    at = _SNAPSHOT_HEAD.size
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    if count < 0 or at + count * _PRODUCER.size > len(data):
        raise BadFile(at - 4, f"{count} producers")
    producers: dict[int, Producer] = {}
    for _ in range(count):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = _PRODUCER.unpack_from(
            data, at
        )
        if producer_id in producers:
            raise BadFile(at, f"producer {producer_id} twice")
        last = Sent(sequence, offset, delta, timestamp)
        producers[producer_id] = Producer(producer_id, epoch, last, coordinator, start)
        at += _PRODUCER.size
    try:
        _read_older(data, at, producers)
    except (struct.error, IndexError):
        raise BadFile(at, "older batches that are not whole") from None
    return producers


def _read_older(data: bytes, at: int, producers: dict[int, Producer]) -> None:
    if data[at : at + 4] == b"NOTE":
        (size,) = struct.unpack_from(">H", data, at + 4)
        at += 6 + size
        if at > len(data):
            raise IndexError
    if data[at : at + 4] != b"OLD1":
        return
    at += 4
    while at < len(data):
        producer_id, count = _OLDER_HEAD.unpack_from(data, at)
        known = producers.get(producer_id)
        if known is None or known.older or not 1 <= count <= 4:
            raise BadFile(at, f"{count} older batches of producer {producer_id}")
        at += _OLDER_HEAD.size
        older = tuple(Sent(*_OLDER.unpack_from(data, at + n * _OLDER.size)) for n in range(count))
        producers[producer_id] = known._replace(older=older)
        at += count * _OLDER.size


def leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """Epoch and first offset, ascending in both."""
    entries: list[tuple[int, int]] = []
    for at, line in _lines(data):
        fields = line.split(" ")
        if len(fields) != 2:
            raise BadFile(at, f"not two numbers: {line[:60]!r}")
        entry = _number(fields[0], at), _number(fields[1], at)
        if min(entry) < 0 or (entries and (entry[0] <= entries[-1][0] or entry[1] < entries[-1][1])):
            raise BadFile(at, f"out of order: {line[:60]!r}")
        entries.append(entry)
    return entries


def offset_points(data: bytes) -> dict[tuple[str, int], int]:
    """Offset by topic and partition, of any of the four checkpoints."""
    points: dict[tuple[str, int], int] = {}
    for at, line in _lines(data):
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadFile(at, f"not a topic, a partition and an offset: {line[:60]!r}")
        key = match[1], _number(match[2], at)
        if key in points:
            raise BadFile(at, f"twice: {line[:60]!r}")
        points[key] = _number(match[3], at)
    return points


def _lines(data: bytes) -> list[tuple[int, str]]:
    """The lines behind version and count, each with its position."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(error.start, "not text") from None
    lines = text.split("\n")
    if lines[0] != "0":
        raise BadFile(0, f"version {lines[0][:20]!r}")
    if lines[-1] != "" or len(lines) < 3:
        raise BadFile(len(data), "its last line has no end")
    count = _number(lines[1], 2)
    rest = lines[2:-1]
    if count != len(rest):
        raise BadFile(2, f"{count} lines are told, {len(rest)} are there")
    if count > LINES_MAX:
        raise BadFile(2, f"{count} lines")
    found: list[tuple[int, str]] = []
    at = len(lines[0]) + len(lines[1]) + 2
    for line in rest:
        found.append((at, line))
        at += len(line.encode()) + 1
    return found


def _number(text: str, at: int) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise BadFile(at, f"not a number: {text[:30]!r}")
    if not -(1 << 63) <= (number := int(text)) < 1 << 63:
        raise BadFile(at, f"not a number of 64 bits: {text}")
    return number


def partition_topic_id(data: bytes) -> str:
    """The id in a `partition.metadata`, as Kafka shows it."""
    fields = dict(_colons(data))
    topic_id = fields.get("topic_id", "")
    if fields.get("version") != "0" or not _TOPIC_ID.fullmatch(topic_id):
        raise BadFile(0, "no version 0 with the id of a topic")
    base64.urlsafe_b64decode(topic_id + "==")
    return topic_id


def _colons(data: bytes) -> list[tuple[str, str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines[:100])]


def directory_properties(data: bytes) -> dict[str, str]:
    """What `meta.properties` says: Java's format, as far as Kafka writes it."""
    found: dict[str, str] = {}
    for line in data.decode("latin-1").splitlines()[:1000]:
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return found
