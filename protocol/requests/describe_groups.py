"""DescribeGroups requests, versions 0 to 6.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DescribeGroupsRequest(RequestStruct):
    __slots__ = ("groups", "include_authorized_operations")

    def __init__(
        self,
        *,
        groups: tuple[str, ...] = (),
        include_authorized_operations: bool = False,  # from version 3
    ) -> None:
        self.groups: Final = groups
        self.include_authorized_operations: Final = include_authorized_operations
