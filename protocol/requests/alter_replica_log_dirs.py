"""AlterReplicaLogDirs requests, versions 1 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class AlterReplicaLogDirTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[int, ...] = (),
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class AlterReplicaLogDir(RequestStruct):
    __slots__ = ("path", "topics")

    def __init__(
        self,
        *,
        path: str,
        topics: tuple[AlterReplicaLogDirTopic, ...],
    ) -> None:
        self.path: Final = path
        self.topics: Final = topics


class AlterReplicaLogDirsRequest(RequestStruct):
    __slots__ = ("dirs",)

    def __init__(
        self,
        *,
        dirs: tuple[AlterReplicaLogDir, ...],
    ) -> None:
        self.dirs: Final = dirs
