"""ConsumerGroupDescribe requests, versions 0 to 1.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class ConsumerGroupDescribeRequest(RequestStruct):
    __slots__ = ("group_ids", "include_authorized_operations")

    def __init__(
        self,
        *,
        group_ids: tuple[str, ...] = (),
        include_authorized_operations: bool,
    ) -> None:
        self.group_ids: Final = group_ids
        self.include_authorized_operations: Final = include_authorized_operations
