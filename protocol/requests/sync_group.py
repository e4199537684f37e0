"""SyncGroup requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class SyncGroupRequestAssignment(RequestStruct):
    __slots__ = ("assignment", "member_id")

    def __init__(
        self,
        *,
        member_id: str,
        assignment: bytes,
    ) -> None:
        self.member_id: Final = member_id
        self.assignment: Final = assignment


class SyncGroupRequest(RequestStruct):
    __slots__ = (
        "assignments",
        "generation_id",
        "group_id",
        "group_instance_id",
        "member_id",
        "protocol_name",
        "protocol_type",
    )

    def __init__(
        self,
        *,
        group_id: str,
        generation_id: int,
        member_id: str,
        assignments: tuple[SyncGroupRequestAssignment, ...],
        group_instance_id: str | None = None,  # from version 3
        protocol_type: str | None = None,  # version 5
        protocol_name: str | None = None,  # version 5
    ) -> None:
        self.group_id: Final = group_id
        self.generation_id: Final = generation_id
        self.member_id: Final = member_id
        self.assignments: Final = assignments
        self.group_instance_id: Final = group_instance_id
        self.protocol_type: Final = protocol_type
        self.protocol_name: Final = protocol_name
