"""LeaveGroup requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class MemberIdentity(RequestStruct):
    __slots__ = ("group_instance_id", "member_id", "reason")

    def __init__(
        self,
        *,
        member_id: str,
        group_instance_id: str | None = None,
        reason: str | None = None,  # version 5
    ) -> None:
        self.member_id: Final = member_id
        self.group_instance_id: Final = group_instance_id
        self.reason: Final = reason


class LeaveGroupRequest(RequestStruct):
    __slots__ = ("group_id", "member_id", "members")

    def __init__(
        self,
        *,
        group_id: str,
        member_id: str = "",  # up to version 2
        members: tuple[MemberIdentity, ...] = (),  # from version 3
    ) -> None:
        self.group_id: Final = group_id
        self.member_id: Final = member_id
        self.members: Final = members
