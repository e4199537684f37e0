"""What groups have committed, and whether the logs reach so far.

Owns the fold of records of `__consumer_offsets`, as far as they are committed offsets, and their comparison
with logs. Does not own where the records come from (told_records) or what a log is (log_reading).
Invariant: any bytes are folded or counted as refused; a commit is held only against a log with the topic's
name, and with its id where the commit has one.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from tools.verify.core.findings import Counted, Finding, Severity, declare

GROUP_OFFSET_OUTSIDE = declare(
    "group-offset-outside-log",
    Severity.WARNING,
    "A group has committed an offset that its partition does not reach.",
    "The log lost its end, or the topic was made anew: the group reads from where its reset policy says.",
)
OFFSETS_TOPIC: Final = "__consumer_offsets"
COMMITS_MAX: Final = 1_000_000
FINDINGS_MAX: Final = 1_000
_KEY_VERSIONS: Final = (0, 1)
_FLEXIBLE: Final = 4
_NEWEST: Final = 4


class Bounds(NamedTuple):
    """Of one partition of a topic."""

    topic_id: str
    log_start: int
    end: int
    """The largest of its replicas and copies."""


class _Commit(NamedTuple):
    offset: int
    topic_id: str
    """Empty: the commit does not say."""


class BadCommit(Exception):
    """A record that is none of Kafka's."""


class GroupOffsets:
    """Takes the records of each partition of the topic in the order of their offsets."""

    def __init__(self) -> None:
        self.refused = 0
        """Records that could not be read."""
        self.dropped = 0
        """Commits beyond the limit: they are not checked."""
        self._commits: dict[tuple[str, str, int], _Commit] = {}
        """The last one by group, topic and partition."""

    def add(self, key: bytes | None, value: bytes | None) -> None:
        try:
            about = _read_key(key or b"")
            if about is None:
                return
            if value is None:
                self._commits.pop(about, None)
            elif about in self._commits or len(self._commits) < COMMITS_MAX:
                self._commits[about] = _read_value(value)
            else:
                self.dropped += 1
        except BadCommit:
            self.refused += 1

    def judge(self, logs: Mapping[tuple[str, int], Bounds]) -> tuple[list[Finding], list[Counted]]:
        """Compare with the logs, which were listed after the records were read, by topic and partition."""
        findings: list[Finding] = []
        counted: list[Counted] = []
        for (group, topic, partition), commit in sorted(self._commits.items()):
            log = logs.get((topic, partition))
            if log is None or (commit.topic_id and commit.topic_id != log.topic_id):
                counted.append(Counted("commit-of-no-log"))
            elif commit.offset > log.end:
                expected, actual = f"at most {log.end}", f"{commit.offset} of group {group!r}"
                about = log.topic_id, partition, log.end, commit.offset
                if len(findings) < FINDINGS_MAX:
                    findings.append(Finding(GROUP_OFFSET_OUTSIDE, *about, expected=expected, actual=actual))
            elif commit.offset < log.log_start:
                counted.append(Counted("commit-below-log-start", log.topic_id, partition))
        return findings, counted


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._at)
        except struct.error:
            raise BadCommit from None
        self._at += struct.calcsize(form)
        return int(value)

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise BadCommit
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        try:
            return self.take(self.number(">h")).decode()
        except UnicodeDecodeError:
            raise BadCommit from None

    def uvarint(self) -> int:
        value = 0
        for moved in range(0, 35, 7):
            byte = self.number(">B")
            value |= (byte & 127) << moved
            if byte < 128:
                return value
        raise BadCommit

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


def _read_key(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition; None of a record that is no commit."""
    reader = _Reader(key)
    if reader.number(">h") not in _KEY_VERSIONS:
        return None
    return reader.text(), reader.text(), reader.number(">i")


def _read_value(value: bytes) -> _Commit:
    reader = _Reader(value)
    version = reader.number(">h")
    if not 0 <= version <= _NEWEST:
        raise BadCommit
    offset = reader.number(">q")
    if version < _FLEXIBLE:
        return _Commit(offset, "")
    reader.number(">i")  # leader epoch
    reader.take(reader.uvarint() - 1)  # metadata
    reader.number(">q")  # time
    topic_id = reader.tags().get(0, b"")
    is_known = len(topic_id) == 16 and any(topic_id)
    return _Commit(offset, base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if is_known else "")
