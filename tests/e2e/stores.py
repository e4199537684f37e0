"""The stores that a cluster of processes may share, and how each of them goes away and comes back.

Owns what an outage is: of a directory, that it is not there; of MinIO, that the process stands still,
so that requests hang. Does not own who uses the store. Invariant: nothing is lost in an outage.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tools.versus.minio import MinioServer


class SharedStore(Protocol):
    url: str
    env: Mapping[str, str]

    def outage(self) -> contextlib.AbstractContextManager[None]: ...


class DirectoryStore:
    """A directory that is moved away, as one that is unmounted or deleted is gone."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store"
        self._path.mkdir(parents=True, exist_ok=True)
        self.url = f"file://{self._path}"
        self.env: Mapping[str, str] = {}

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        away = self._path.rename(self._path.with_name("away"))
        try:
            yield
        finally:
            away.rename(self._path)


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
