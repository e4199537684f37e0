"""OffsetCommit requests, versions 2 to 10.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class OffsetCommitRequestPartition(RequestStruct):
    __slots__ = (
        "committed_leader_epoch",
        "committed_metadata",
        "committed_offset",
        "partition_index",
    )

    def __init__(
        self,
        *,
        partition_index: int,
        committed_offset: int,
        committed_metadata: str | None,
        committed_leader_epoch: int = -1,  # from version 6
    ) -> None:
        self.partition_index: Final = partition_index
        self.committed_offset: Final = committed_offset
        self.committed_metadata: Final = committed_metadata
        self.committed_leader_epoch: Final = committed_leader_epoch


class OffsetCommitRequestTopic(RequestStruct):
    __slots__ = ("name", "partitions", "topic_id")

    def __init__(
        self,
        *,
        name: str = "",  # up to version 9
        partitions: tuple[OffsetCommitRequestPartition, ...],
        topic_id: UUID | None = None,  # version 10
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions
        self.topic_id: Final = topic_id


class OffsetCommitRequest(RequestStruct):
    __slots__ = (
        "generation_id_or_member_epoch",
        "group_id",
        "group_instance_id",
        "member_id",
        "retention_time",
        "topics",
    )

    def __init__(
        self,
        *,
        group_id: str,
        generation_id_or_member_epoch: int = -1,
        member_id: str,
        retention_time: timedelta = timedelta(milliseconds=-1),  # up to version 4
        topics: tuple[OffsetCommitRequestTopic, ...],
        group_instance_id: str | None = None,  # from version 7
    ) -> None:
        self.group_id: Final = group_id
        self.generation_id_or_member_epoch: Final = generation_id_or_member_epoch
        self.member_id: Final = member_id
        self.retention_time: Final = retention_time
        self.topics: Final = topics
        self.group_instance_id: Final = group_instance_id
