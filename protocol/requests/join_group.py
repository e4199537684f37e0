"""JoinGroup requests, versions 0 to 9.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class JoinGroupRequestProtocol(RequestStruct):
    __slots__ = ("metadata", "name")

    def __init__(
        self,
        *,
        name: str,
        metadata: bytes,
    ) -> None:
        self.name: Final = name
        self.metadata: Final = metadata


class JoinGroupRequest(RequestStruct):
    __slots__ = (
        "group_id",
        "group_instance_id",
        "member_id",
        "protocol_type",
        "protocols",
        "reason",
        "rebalance_timeout",
        "session_timeout",
    )

    def __init__(
        self,
        *,
        group_id: str,
        session_timeout: timedelta,
        member_id: str,
        protocol_type: str,
        protocols: tuple[JoinGroupRequestProtocol, ...],
        rebalance_timeout: timedelta = timedelta(milliseconds=-1),  # from version 1
        group_instance_id: str | None = None,  # from version 5
        reason: str | None = None,  # from version 8
    ) -> None:
        self.group_id: Final = group_id
        self.session_timeout: Final = session_timeout
        self.member_id: Final = member_id
        self.protocol_type: Final = protocol_type
        self.protocols: Final = protocols
        self.rebalance_timeout: Final = rebalance_timeout
        self.group_instance_id: Final = group_instance_id
        self.reason: Final = reason
