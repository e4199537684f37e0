"""AlterPartition requests, version 3.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class BrokerState(RequestStruct):
    __slots__ = ("broker_epoch", "broker_id")

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: int = -1,
    ) -> None:
        self.broker_id: Final = broker_id
        self.broker_epoch: Final = broker_epoch


class PartitionData(RequestStruct):
    __slots__ = (
        "leader_epoch",
        "leader_recovery_state",
        "new_isr_with_epochs",
        "partition_epoch",
        "partition_index",
    )

    def __init__(
        self,
        *,
        partition_index: int,
        leader_epoch: int,
        new_isr_with_epochs: tuple[BrokerState, ...],
        leader_recovery_state: int = 0,
        partition_epoch: int,
    ) -> None:
        self.partition_index: Final = partition_index
        self.leader_epoch: Final = leader_epoch
        self.new_isr_with_epochs: Final = new_isr_with_epochs
        self.leader_recovery_state: Final = leader_recovery_state
        self.partition_epoch: Final = partition_epoch


class TopicData(RequestStruct):
    __slots__ = ("partitions", "topic_id")

    def __init__(
        self,
        *,
        topic_id: UUID | None,
        partitions: tuple[PartitionData, ...],
    ) -> None:
        self.topic_id: Final = topic_id
        self.partitions: Final = partitions


class AlterPartitionRequest(RequestStruct):
    __slots__ = ("broker_epoch", "broker_id", "topics")

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: int = -1,
        topics: tuple[TopicData, ...],
    ) -> None:
        self.broker_id: Final = broker_id
        self.broker_epoch: Final = broker_epoch
        self.topics: Final = topics
