"""OffsetForLeaderEpoch requests, versions 2 to 4.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class OffsetForLeaderPartition(RequestStruct):
    __slots__ = ("current_leader_epoch", "leader_epoch", "partition")

    def __init__(
        self,
        *,
        partition: int,
        current_leader_epoch: int = -1,
        leader_epoch: int,
    ) -> None:
        self.partition: Final = partition
        self.current_leader_epoch: Final = current_leader_epoch
        self.leader_epoch: Final = leader_epoch


class OffsetForLeaderTopic(RequestStruct):
    __slots__ = ("partitions", "topic")

    def __init__(
        self,
        *,
        topic: str,
        partitions: tuple[OffsetForLeaderPartition, ...],
    ) -> None:
        self.topic: Final = topic
        self.partitions: Final = partitions


class OffsetForLeaderEpochRequest(RequestStruct):
    __slots__ = ("replica_id", "topics")

    def __init__(
        self,
        *,
        topics: tuple[OffsetForLeaderTopic, ...],
        replica_id: int = -2,  # from version 3
    ) -> None:
        self.topics: Final = topics
        self.replica_id: Final = replica_id
