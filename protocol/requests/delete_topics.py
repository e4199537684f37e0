"""DeleteTopics requests, versions 1 to 6.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class DeleteTopicState(RequestStruct):
    __slots__ = ("name", "topic_id")

    def __init__(
        self,
        *,
        name: str | None = None,
        topic_id: UUID | None,
    ) -> None:
        self.name: Final = name
        self.topic_id: Final = topic_id


class DeleteTopicsRequest(RequestStruct):
    __slots__ = ("timeout", "topic_names", "topics")

    def __init__(
        self,
        *,
        topic_names: tuple[str, ...] = (),  # up to version 5
        timeout: timedelta,
        topics: tuple[DeleteTopicState, ...] = (),  # version 6
    ) -> None:
        self.topic_names: Final = topic_names
        self.timeout: Final = timeout
        self.topics: Final = topics
