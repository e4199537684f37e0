"""CreatePartitions requests, versions 0 to 3.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class CreatePartitionsAssignment(RequestStruct):
    __slots__ = ("broker_ids",)

    def __init__(
        self,
        *,
        broker_ids: tuple[int, ...] = (),
    ) -> None:
        self.broker_ids: Final = broker_ids


class CreatePartitionsTopic(RequestStruct):
    __slots__ = ("assignments", "count", "name")

    def __init__(
        self,
        *,
        name: str,
        count: int,
        assignments: tuple[CreatePartitionsAssignment, ...] | None,
    ) -> None:
        self.name: Final = name
        self.count: Final = count
        self.assignments: Final = assignments


class CreatePartitionsRequest(RequestStruct):
    __slots__ = ("timeout", "topics", "validate_only")

    def __init__(
        self,
        *,
        topics: tuple[CreatePartitionsTopic, ...],
        timeout: timedelta,
        validate_only: bool,
    ) -> None:
        self.topics: Final = topics
        self.timeout: Final = timeout
        self.validate_only: Final = validate_only
