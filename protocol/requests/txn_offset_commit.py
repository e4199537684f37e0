"""TxnOffsetCommit requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class TxnOffsetCommitRequestPartition(RequestStruct):
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
        committed_leader_epoch: int = -1,  # from version 2
    ) -> None:
        self.partition_index: Final = partition_index
        self.committed_offset: Final = committed_offset
        self.committed_metadata: Final = committed_metadata
        self.committed_leader_epoch: Final = committed_leader_epoch


class TxnOffsetCommitRequestTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[TxnOffsetCommitRequestPartition, ...],
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class TxnOffsetCommitRequest(RequestStruct):
    __slots__ = (
        "generation_id",
        "group_id",
        "group_instance_id",
        "member_id",
        "producer_epoch",
        "producer_id",
        "topics",
        "transactional_id",
    )

    def __init__(
        self,
        *,
        transactional_id: str,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        topics: tuple[TxnOffsetCommitRequestTopic, ...],
        generation_id: int = -1,  # from version 3
        member_id: str = "",  # from version 3
        group_instance_id: str | None = None,  # from version 3
    ) -> None:
        self.transactional_id: Final = transactional_id
        self.group_id: Final = group_id
        self.producer_id: Final = producer_id
        self.producer_epoch: Final = producer_epoch
        self.topics: Final = topics
        self.generation_id: Final = generation_id
        self.member_id: Final = member_id
        self.group_instance_id: Final = group_instance_id
