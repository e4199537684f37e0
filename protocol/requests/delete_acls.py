"""DeleteAcls requests, versions 1 to 3.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DeleteAclsFilter(RequestStruct):
    __slots__ = (
        "host_filter",
        "operation",
        "pattern_type_filter",
        "permission_type",
        "principal_filter",
        "resource_name_filter",
        "resource_type_filter",
    )

    def __init__(
        self,
        *,
        resource_type_filter: int,
        resource_name_filter: str | None,
        pattern_type_filter: int = 3,
        principal_filter: str | None,
        host_filter: str | None,
        operation: int,
        permission_type: int,
    ) -> None:
        self.resource_type_filter: Final = resource_type_filter
        self.resource_name_filter: Final = resource_name_filter
        self.pattern_type_filter: Final = pattern_type_filter
        self.principal_filter: Final = principal_filter
        self.host_filter: Final = host_filter
        self.operation: Final = operation
        self.permission_type: Final = permission_type


class DeleteAclsRequest(RequestStruct):
    __slots__ = ("filters",)

    def __init__(
        self,
        *,
        filters: tuple[DeleteAclsFilter, ...],
    ) -> None:
        self.filters: Final = filters
