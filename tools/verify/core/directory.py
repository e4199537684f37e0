"""The data directory of a broker: which logs it has, and what its checkpoints say of them.

Owns the names of files and folders. Does not own formats (kafka_files) or what lies in a log (log_reading).
Invariant: the checkpoints are read before the listing, so what they say must be there; files that come or
grow later are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tools.verify.core.facts import Fault
from tools.verify.core.findings import Severity, declare
from tools.verify.core.kafka_files import BadFile, directory_properties, offset_points, partition_topic_id
from tools.verify.core.stores import Gone, Listed, Source, TooLarge

CHECKPOINT_OUTSIDE = declare(
    "checkpoint-outside-log",
    Severity.ERROR,
    "A checkpoint names an offset that its log does not have, or cannot be read.",
    "The log lost its end, or the file is not its own; compare with a replica before the broker starts.",
)
DIRECTORY_UNKNOWN = declare(
    "directory-unknown",
    Severity.WARNING,
    "A log belongs to no topic that the cluster has, or does not say to which.",
    "Look whether it was deleted while its broker was away; a broker sets it aside as stray.",
)

CLEAN_STOP: Final = ".kafka_cleanshutdown"
RECOVERY: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER: Final = "cleaner-offset-checkpoint"
CHECKPOINTS: Final = (RECOVERY, LOG_STARTS, WATERMARKS, CLEANER)
PROPERTIES: Final = "meta.properties"
METADATA: Final = "partition.metadata"
EPOCHS: Final = "leader-epoch-checkpoint"
SMALL_FILE: Final = 64 << 20
"""No file but a .log may be larger."""

_LOG_NAME: Final = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})")
_ASIDE: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|stray|future)|.+-(delete|stray|future)")
_SEGMENT_FILE: Final = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)(\.swap)?")


class Log(NamedTuple):
    """One log of a data directory, with the files as the listing saw them."""

    name: str
    topic: str
    partition: int
    topic_id: str
    """As Kafka shows it, empty: it does not say."""
    files: tuple[Listed, ...]
    """Their keys begin with the name of the log."""
    recovery_point: int
    """By the checkpoint, like the two below; -1 without one."""
    high_watermark: int
    log_start: int
    is_live: bool
    """Its broker did not stop cleanly, or runs."""

    @property
    def bases(self) -> list[int]:
        return sorted({base for base, kind in segments(self.files) if kind == "log"})

    def parts(self, bytes_max: int) -> list[tuple[int, int]]:
        """Ranges of base offsets, each of whole segments of about so many bytes together."""
        sizes: dict[int, int] = {}
        for (base, kind), listed in segments(self.files).items():
            if kind == "log":
                sizes[base] = sizes.get(base, 0) + listed.size
        starts: list[int] = []
        left = 0
        for base in sorted(sizes):
            if not starts or sizes[base] > left:
                starts.append(base)
                left = bytes_max
            left -= sizes[base]
        return list(zip(starts, [*starts[1:], 1 << 62], strict=True)) if starts else [(0, 1 << 62)]


class Directory(NamedTuple):
    """A data directory."""

    number: int
    properties: dict[str, str]
    """Of meta.properties, among them cluster.id, node.id and directory.id."""
    is_clean: bool
    logs: list[Log]
    aside: list[str]
    """Folders that are being deleted, moved or were found to be nobody's."""
    faults: list[tuple[str, Fault]]
    """With the name of the log they are about, or an empty one."""


def list_directory(source: Source, number: int) -> Directory:
    """List a data directory. SourceFailed when it does not answer."""
    faults: list[tuple[str, Fault]] = []
    points: dict[str, dict[tuple[str, int], int]] = {}
    for name in CHECKPOINTS:
        points[name] = {}
        try:
            points[name] = offset_points(source.read_all(name, SMALL_FILE))
        except Gone:
            pass
        except (BadFile, TooLarge) as error:
            at = error.position if isinstance(error, BadFile) else 0
            place = f"{number}:{name}"
            faults.append(
                ("", Fault(CHECKPOINT_OUTSIDE, place, at, expected="a checkpoint", actual=str(error)))
            )
    properties: dict[str, str] = {}
    try:
        properties = directory_properties(source.read_all(PROPERTIES, 1 << 20))
    except (Gone, TooLarge):
        pass
    is_clean = False
    folders: dict[str, list[Listed]] = {}
    for listed in source.list():
        folder, slash, _ = listed.key.partition("/")
        if slash:
            folders.setdefault(folder, []).append(listed)
        elif listed.key == CLEAN_STOP:
            is_clean = True
    logs: list[Log] = []
    aside: list[str] = []
    for name, files in sorted(folders.items()):
        if _ASIDE.fullmatch(name):
            aside.append(name)
        elif (match := _LOG_NAME.fullmatch(name)) and _is_log(name, files):
            topic_id, fault = _topic_id(source, number, name)
            if fault is not None:
                faults.append((name, fault))
            key = match[1], int(match[2])
            recovery, watermark, start = (
                points[kind].get(key, -1) for kind in (RECOVERY, WATERMARKS, LOG_STARTS)
            )
            logs.append(
                Log(name, *key, topic_id, tuple(files), recovery, watermark, start, is_live=not is_clean)
            )
    return Directory(number, properties, is_clean, logs, aside, faults)


def _is_log(name: str, files: Sequence[Listed]) -> bool:
    own = {METADATA, EPOCHS}
    return any(
        (rest := each.key[len(name) + 1 :]) in own or _SEGMENT_FILE.fullmatch(rest) is not None
        for each in files
    )


def _topic_id(source: Source, number: int, name: str) -> tuple[str, Fault | None]:
    key = f"{name}/{METADATA}"
    try:
        return partition_topic_id(source.read_all(key, 1 << 20)), None
    except Gone:
        return "", None
    except (BadFile, TooLarge) as error:
        return "", Fault(DIRECTORY_UNKNOWN, f"{number}:{key}", 0, actual=str(error))


def segments(files: Sequence[Listed]) -> dict[tuple[int, str], Listed]:
    """The files of segments by base offset and kind; one that is about to take another's place has it."""
    found: dict[tuple[int, str], Listed] = {}
    for listed in sorted(files, key=lambda each: each.key.endswith(".swap")):
        match = _SEGMENT_FILE.fullmatch(listed.key.rpartition("/")[2])
        if match is not None and listed.key.count("/") == 1:
            found[int(match[1]), match[2]] = listed
    return found
