"""Kafka's offset checkpoints of one log directory: what was written, and what is on its way.

Owns: the format of these files, writing one at a time in the background, taking back one that is on its way.
Does not own: what they say (the logs, asked anew for each write), when one is due (maintenance). Invariant:
`points` is what is on the disk once nothing is on its way; what is revoked never gets there later.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Mapping
from os.path import dirname, join
from threading import Lock

from storage.files import Files, is_scarcity

logger = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_POINTS = "cleaner-offset-checkpoint"
CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_POINTS)

TopicPartition = tuple[str, int]
Points = dict[TopicPartition, int]
Done = Callable[[OSError | None], None]
Background = Callable[[Callable[[], None], Done], None]


def run_inline(job: Callable[[], None], done: Done) -> None:
    """The default `background`: blocks the caller for as long as the disk takes."""
    try:
        job()
    except OSError as error:
        done(error)
    else:
        done(None)


class CheckpointWrite:
    """A checkpoint on its way to the disk, in whatever thread. Once revoked it no longer takes effect, at the
    latest when the next one has its turn."""

    __slots__ = ("_data", "_files", "_path", "_turn", "before", "is_revoked")

    def __init__(
        self, files: Files, path: str, data: bytes, *, before: dict[TopicPartition, int], turn: Lock
    ) -> None:
        self._files = files
        self._path = path
        self._data = data
        self._turn = turn
        """For names: all writes of one checkpoint have the same, and none syncs holding it."""
        self.before = before
        """What is on the disk until this is done."""
        self.is_revoked = False

    def run(self) -> None:
        aside = self._path + ".next"
        with self._turn:
            if self.is_revoked:
                return
            self._files.unlink(aside)  # what a revoked one may still be writing loses its name
            file = self._files.open(aside, create=True)
        file.writev([self._data])
        file.fsync()
        file.close()
        with self._turn:
            if not self.is_revoked:
                self._files.rename(aside, self._path)
        self._files.fsync_dir(dirname(self._path))


class Checkpoints:
    """The four checkpoints of one directory; `collect` gives what each is to say now."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        collect: Mapping[str, Callable[[], Points]],
        background: Background,
        on_failure: Callable[[OSError], None],
        on_written: Callable[[str], None],
    ) -> None:
        self._files = files
        self._path = path
        self._collect = collect
        self._background = background
        self._on_failure = on_failure
        self._on_written = on_written
        self._writing: dict[str, CheckpointWrite] = {}
        self._write_again: set[str] = set()
        self._turns = {name: Lock() for name in CHECKPOINTS}
        self._failure: str | None = None
        self._points = {name: self._read(name) for name in CHECKPOINTS}

    def __repr__(self) -> str:
        return f"Checkpoints({self._path}, writing {sorted(self._writing)})"

    def _read(self, name: str) -> Points:
        """Return what a checkpoint says. A damaged one counts as missing: recovery then starts earlier."""
        try:
            return decode_points(self._files.read(join(self._path, name)))
        except (FileNotFoundError, ValueError):
            return {}

    def points(self, name: str) -> Points:
        """What the disk says, or will once the write on its way is done."""
        return self._points[name]

    def on_disk(self, name: str) -> Points | None:
        """What the disk says; None while that is not known, because a write is on its way or did not end."""
        if name in self._writing or name in self._write_again:
            return None
        return self._points[name]

    def may_name(self, name: str, key: TopicPartition) -> bool:
        """Whether the disk may say something of this partition, now or after the write on its way."""
        writing = self._writing.get(name)
        is_unknown = writing is None and name in self._write_again
        return is_unknown or key in self._points[name] or (writing is not None and key in writing.before)

    def is_unwritten(self, name: str) -> bool:
        """Whether the last write did not get through."""
        return name in self._write_again

    def give_up(self, why: str) -> None:
        """Write nothing any more: the directory failed."""
        self._failure = why

    def write(self, name: str, background: Background | None = None) -> None:
        """Write a checkpoint if it changed. While one is on its way a newer one waits for it."""
        if self._failure is not None:
            return
        if name in self._writing:
            self._write_again.add(name)
            return
        points = self._collect[name]()
        if points == self._points[name] and name not in self._write_again:
            return
        self._write_again.discard(name)
        encode = encode_recovery_points if name == RECOVERY_POINTS else encode_points
        job = CheckpointWrite(
            self._files,
            join(self._path, name),
            encode(points),
            before=self._points[name],
            turn=self._turns[name],
        )
        self._writing[name] = job
        self._points[name] = points
        (background or self._background)(job.run, lambda error: self._written(name, job, error))

    def write_now(self, name: str) -> None:
        """Write here and now, whatever is on its way: once this returns, no other is written any more."""
        overtaken = self._writing.pop(name, None)
        if overtaken is not None:
            overtaken.is_revoked = True
            self._write_again.add(name)
        self.write(name, run_inline)

    def must_write(self, name: str) -> None:
        """Write as `write_now`. OSError when the disk still has what was there before."""
        self.write_now(name)
        if self._failure is not None:
            raise OSError(errno.EIO, self._failure, join(self._path, name))
        if name in self._write_again:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), join(self._path, name))

    def _written(self, name: str, job: CheckpointWrite, error: OSError | None) -> None:
        if self._writing.get(name) is not job:
            return
        del self._writing[name]
        if error is not None and is_scarcity(error):
            logger.warning("%s is not written this time: %s", join(self._path, name), error)
            self._points[name] = job.before
            self._write_again.add(name)
        elif error is not None:
            self._on_failure(error)
        else:
            self._on_written(name)
            if name in self._write_again:
                self._write_again.discard(name)  # what is on the disk is known
                self.write(name)


def encode_points(points: Mapping[TopicPartition, int]) -> bytes:
    lines = ["0", str(len(points))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in points.items()]
    return ("\n".join(lines) + "\n").encode()


def encode_recovery_points(points: Mapping[TopicPartition, int]) -> bytes:
    """Encode as Kafka does, but for a leading zero of the count: Kafka reads the same number, and we know
    our own file from one Kafka wrote since."""
    version, count, rest = encode_points(points).split(b"\n", 2)
    return b"%b\n0%b\n%b" % (version, count, rest)


def decode_points(data: bytes) -> dict[TopicPartition, int]:
    """The content of one of Kafka's offset checkpoint files; ValueError when it is not one."""
    lines = data.decode("ascii").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise ValueError("unknown version of an offset checkpoint")
    points = {}
    for line in lines[2:]:
        if line.strip():
            topic, partition, offset = line.split()
            points[sys.intern(topic), int(partition)] = int(offset)
    if len(points) != int(lines[1]):
        raise ValueError("an offset checkpoint of the wrong length")
    return points
