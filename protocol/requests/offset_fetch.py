"""OffsetFetch requests, versions 1 to 10.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class OffsetFetchRequestTopics(RequestStruct):
    __slots__ = ("name", "partition_indexes", "topic_id")

    def __init__(
        self,
        *,
        name: str = "",  # up to version 9
        partition_indexes: tuple[int, ...] = (),
        topic_id: UUID | None = None,  # version 10
    ) -> None:
        self.name: Final = name
        self.partition_indexes: Final = partition_indexes
        self.topic_id: Final = topic_id


class OffsetFetchRequestGroup(RequestStruct):
    __slots__ = ("group_id", "member_epoch", "member_id", "topics")

    def __init__(
        self,
        *,
        group_id: str,
        topics: tuple[OffsetFetchRequestTopics, ...] | None,
        member_id: str | None = None,  # from version 9
        member_epoch: int = -1,  # from version 9
    ) -> None:
        self.group_id: Final = group_id
        self.topics: Final = topics
        self.member_id: Final = member_id
        self.member_epoch: Final = member_epoch


class OffsetFetchRequestTopic(RequestStruct):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str,
        partition_indexes: tuple[int, ...] = (),
    ) -> None:
        self.name: Final = name
        self.partition_indexes: Final = partition_indexes


class OffsetFetchRequest(RequestStruct):
    __slots__ = ("group_id", "groups", "require_stable", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",  # up to version 7
        topics: tuple[OffsetFetchRequestTopic, ...] | None = (),  # up to version 7
        require_stable: bool = False,  # from version 7
        groups: tuple[OffsetFetchRequestGroup, ...] = (),  # from version 8
    ) -> None:
        self.group_id: Final = group_id
        self.topics: Final = topics
        self.require_stable: Final = require_stable
        self.groups: Final = groups
