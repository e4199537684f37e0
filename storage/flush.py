"""What of a log must still reach the disk, and the syncs that take it there.

Owns: which small files and names changed since the last sync, how often the log was cut, running a sync. Does
not own: which bytes are in which segment, or the recovery point (UnifiedLog). Invariant: a sync settles only
what had changed when it began. Syncs may overlap and end in any order, so each one syncs all that no finished
one has: what it vouches for must not hang on another that is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage.files import File, Files


class SegmentFlush:
    """Files to sync, detached from the log so that it may run in a thread."""

    __slots__ = (
        "_directory",
        "_files",
        "_open",
        "_parent",
        "_paths",
        "changes",
        "cuts",
        "ends_inside",
        "upto",
    )

    def __init__(
        self,
        files: Files,
        *,
        upto: int,
        ends_inside: bool,
        cuts: int,
        changes: int,
        open_files: Sequence[File],
        paths: Sequence[str],
        directory: str | None,
        parent: str | None,
    ) -> None:
        self.upto = upto
        self.ends_inside = ends_inside
        """Whether the segment that holds the end was open, so that its indexes were not among the files."""
        self.cuts = cuts
        """How often the log had been cut when it began: it vouches for nothing appended after one more."""
        self.changes = changes
        """How often small files and names had changed when it began: it vouches for none that did since."""
        self._files = files
        self._open = open_files
        self._paths = paths
        self._directory = directory
        self._parent = parent

    def run(self) -> None:
        for file in self._open:
            file.fsync()
        for path in self._paths:
            try:
                file = self._files.open(path)
            except FileNotFoundError:
                continue  # deleted or replaced since: its successor is on a later list
            file.fsync()
            file.close()
        if self._directory is not None:
            self._files.fsync_dir(self._directory)
        if self._parent is not None:
            self._files.fsync_dir(self._parent)


class Unsynced:
    """Small files and names that no finished sync has taken to the disk."""

    __slots__ = ("changes", "cuts", "has_names", "is_anchored", "paths")

    def __init__(self, rewritten: Sequence[str]) -> None:
        self.paths = dict.fromkeys(rewritten, 0)
        """When each was written, counted in changes."""
        self.has_names = bool(rewritten)
        """Whether names in the log's directory changed."""
        self.changes = 0
        self.cuts = 0
        self.is_anchored = False
        """Whether the name of the log's directory itself is safe from a power cut."""

    def __bool__(self) -> bool:
        return bool(self.paths) or self.has_names

    def add(self, paths: Iterable[str] = ()) -> None:
        """Note files that were written, or names alone."""
        self.changes += 1
        self.paths.update(dict.fromkeys(paths, self.changes))
        self.has_names = True

    def settle(self, job: SegmentFlush) -> bool:
        """Forget what a finished sync took. False when the log was cut since it began: it then vouches for
        nothing."""
        self.is_anchored = True
        if job.cuts < self.cuts:
            return False
        if job.changes == self.changes:
            self.has_names = False
        self.paths = {path: at for path, at in self.paths.items() if at > job.changes}
        return True
