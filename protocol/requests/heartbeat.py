"""Heartbeat requests, versions 0 to 4.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class HeartbeatRequest(RequestStruct):
    __slots__ = ("generation_id", "group_id", "group_instance_id", "member_id")

    def __init__(
        self,
        *,
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None = None,  # from version 3
    ) -> None:
        self.group_id: Final = group_id
        self.generation_id: Final = generation_id
        self.member_id: Final = member_id
        self.group_instance_id: Final = group_instance_id
