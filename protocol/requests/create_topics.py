"""CreateTopics requests, versions 2 to 7.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class CreatableTopicConfig(RequestStruct):
    __slots__ = ("name", "value")

    def __init__(
        self,
        *,
        name: str,
        value: str | None,
    ) -> None:
        self.name: Final = name
        self.value: Final = value


class CreatableReplicaAssignment(RequestStruct):
    __slots__ = ("broker_ids", "partition_index")

    def __init__(
        self,
        *,
        partition_index: int,
        broker_ids: tuple[int, ...] = (),
    ) -> None:
        self.partition_index: Final = partition_index
        self.broker_ids: Final = broker_ids


class CreatableTopic(RequestStruct):
    __slots__ = ("assignments", "configs", "name", "num_partitions", "replication_factor")

    def __init__(
        self,
        *,
        name: str,
        num_partitions: int,
        replication_factor: int,
        assignments: tuple[CreatableReplicaAssignment, ...],
        configs: tuple[CreatableTopicConfig, ...],
    ) -> None:
        self.name: Final = name
        self.num_partitions: Final = num_partitions
        self.replication_factor: Final = replication_factor
        self.assignments: Final = assignments
        self.configs: Final = configs


class CreateTopicsRequest(RequestStruct):
    __slots__ = ("timeout", "topics", "validate_only")

    def __init__(
        self,
        *,
        topics: tuple[CreatableTopic, ...],
        timeout: timedelta = timedelta(milliseconds=60000),
        validate_only: bool = False,
    ) -> None:
        self.topics: Final = topics
        self.timeout: Final = timeout
        self.validate_only: Final = validate_only
