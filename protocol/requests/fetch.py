"""Fetch requests, versions 4 to 18.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class ReplicaState(RequestStruct):
    __slots__ = ("replica_epoch", "replica_id")

    def __init__(
        self,
        *,
        replica_id: int = -1,
        replica_epoch: int = -1,
    ) -> None:
        self.replica_id: Final = replica_id
        self.replica_epoch: Final = replica_epoch


DEFAULT_REPLICA_STATE: Final = ReplicaState(replica_id=-1, replica_epoch=-1)


class ForgottenTopic(RequestStruct):
    __slots__ = ("partitions", "topic", "topic_id")

    def __init__(
        self,
        *,
        topic: str = "",  # up to version 12
        partitions: tuple[int, ...] = (),
        topic_id: UUID | None = None,  # from version 13
    ) -> None:
        self.topic: Final = topic
        self.partitions: Final = partitions
        self.topic_id: Final = topic_id


class FetchPartition(RequestStruct):
    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "partition_max_bytes",
        "replica_directory_id",
    )

    def __init__(
        self,
        *,
        partition: int,
        fetch_offset: int,
        partition_max_bytes: int,
        log_start_offset: int = -1,  # from version 5
        current_leader_epoch: int = -1,  # from version 9
        last_fetched_epoch: int = -1,  # from version 12
        replica_directory_id: UUID | None = None,  # from version 17
        high_watermark: int = 9223372036854775807,  # version 18
    ) -> None:
        self.partition: Final = partition
        self.fetch_offset: Final = fetch_offset
        self.partition_max_bytes: Final = partition_max_bytes
        self.log_start_offset: Final = log_start_offset
        self.current_leader_epoch: Final = current_leader_epoch
        self.last_fetched_epoch: Final = last_fetched_epoch
        self.replica_directory_id: Final = replica_directory_id
        self.high_watermark: Final = high_watermark


class FetchTopic(RequestStruct):
    __slots__ = ("partitions", "topic", "topic_id")

    def __init__(
        self,
        *,
        topic: str = "",  # up to version 12
        partitions: tuple[FetchPartition, ...],
        topic_id: UUID | None = None,  # from version 13
    ) -> None:
        self.topic: Final = topic
        self.partitions: Final = partitions
        self.topic_id: Final = topic_id


class FetchRequest(RequestStruct):
    __slots__ = (
        "cluster_id",
        "forgotten_topics_data",
        "isolation_level",
        "max_bytes",
        "max_wait",
        "min_bytes",
        "rack_id",
        "replica_id",
        "replica_state",
        "session_epoch",
        "session_id",
        "topics",
    )

    def __init__(
        self,
        *,
        replica_id: int = -1,  # up to version 14
        max_wait: timedelta,
        min_bytes: int,
        max_bytes: int = 2147483647,
        isolation_level: int = 0,
        topics: tuple[FetchTopic, ...],
        session_id: int = 0,  # from version 7
        session_epoch: int = -1,  # from version 7
        forgotten_topics_data: tuple[ForgottenTopic, ...] = (),  # from version 7
        rack_id: str = "",  # from version 11
        cluster_id: str | None = None,  # from version 12
        replica_state: ReplicaState = DEFAULT_REPLICA_STATE,  # from version 15
    ) -> None:
        self.replica_id: Final = replica_id
        self.max_wait: Final = max_wait
        self.min_bytes: Final = min_bytes
        self.max_bytes: Final = max_bytes
        self.isolation_level: Final = isolation_level
        self.topics: Final = topics
        self.session_id: Final = session_id
        self.session_epoch: Final = session_epoch
        self.forgotten_topics_data: Final = forgotten_topics_data
        self.rack_id: Final = rack_id
        self.cluster_id: Final = cluster_id
        self.replica_state: Final = replica_state
