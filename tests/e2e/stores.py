"""The stores that a cluster of processes may share, and how each of them goes away and comes back.

Owns what an outage is: of a directory, that its path leads nowhere; of MinIO, that the process stands still,
so that requests hang. Does not own who uses the store. Invariant: nothing is lost in an outage.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tests.minio import MinioServer


class SharedStore(Protocol):
    url: str
    env: Mapping[str, str]

    def outage(self) -> contextlib.AbstractContextManager[None]: ...


class DirectoryStore:
    """A symbolic link to the directory, turned in one step to a file, which is none."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._objects, self._nothing = folder / "objects", folder / "nothing"
        self._path = folder / "store"
        self._objects.mkdir()
        self._nothing.touch()
        self.url = f"file://{self._path}"
        self.env: Mapping[str, str] = {}
        self._point_to(self._objects)

    def _point_to(self, target: Path) -> None:
        made = self._path.with_suffix(".new")
        made.symlink_to(target)
        os.replace(made, self._path)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self._point_to(self._nothing)
        try:
            yield
        finally:
            self._point_to(self._objects)


class MinioStore:
    def __init__(self, server: MinioServer, bucket: str) -> None:
        self._server = server
        self.url = server.url(bucket, "cluster")
        self.env: Mapping[str, str] = server.environ

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self._server.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.process.send_signal(signal.SIGCONT)
