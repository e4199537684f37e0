"""Metadata requests, versions 0 to 13.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class MetadataRequestTopic(RequestStruct):
    __slots__ = ("name", "topic_id")

    def __init__(
        self,
        *,
        name: str | None,
        topic_id: UUID | None = None,  # from version 10
    ) -> None:
        self.name: Final = name
        self.topic_id: Final = topic_id


class MetadataRequest(RequestStruct):
    __slots__ = (
        "allow_auto_topic_creation",
        "include_cluster_authorized_operations",
        "include_topic_authorized_operations",
        "topics",
    )

    def __init__(
        self,
        *,
        topics: tuple[MetadataRequestTopic, ...] | None,
        allow_auto_topic_creation: bool = True,  # from version 4
        include_cluster_authorized_operations: bool = False,  # versions 8 to 10
        include_topic_authorized_operations: bool = False,  # from version 8
    ) -> None:
        self.topics: Final = topics
        self.allow_auto_topic_creation: Final = allow_auto_topic_creation
        self.include_cluster_authorized_operations: Final = include_cluster_authorized_operations
        self.include_topic_authorized_operations: Final = include_topic_authorized_operations
