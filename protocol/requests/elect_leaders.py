"""ElectLeaders requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class TopicPartitions(RequestStruct):
    __slots__ = ("partitions", "topic")

    def __init__(
        self,
        *,
        topic: str,
        partitions: tuple[int, ...] = (),
    ) -> None:
        self.topic: Final = topic
        self.partitions: Final = partitions


class ElectLeadersRequest(RequestStruct):
    __slots__ = ("election_type", "timeout", "topic_partitions")

    def __init__(
        self,
        *,
        topic_partitions: tuple[TopicPartitions, ...] | None,
        timeout: timedelta = timedelta(milliseconds=60000),
        election_type: int = 0,  # from version 1
    ) -> None:
        self.topic_partitions: Final = topic_partitions
        self.timeout: Final = timeout
        self.election_type: Final = election_type
