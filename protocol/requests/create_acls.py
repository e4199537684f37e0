"""CreateAcls requests, versions 1 to 3.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class AclCreation(RequestStruct):
    __slots__ = (
        "host",
        "operation",
        "permission_type",
        "principal",
        "resource_name",
        "resource_pattern_type",
        "resource_type",
    )

    def __init__(
        self,
        *,
        resource_type: int,
        resource_name: str,
        resource_pattern_type: int = 3,
        principal: str,
        host: str,
        operation: int,
        permission_type: int,
    ) -> None:
        self.resource_type: Final = resource_type
        self.resource_name: Final = resource_name
        self.resource_pattern_type: Final = resource_pattern_type
        self.principal: Final = principal
        self.host: Final = host
        self.operation: Final = operation
        self.permission_type: Final = permission_type


class CreateAclsRequest(RequestStruct):
    __slots__ = ("creations",)

    def __init__(
        self,
        *,
        creations: tuple[AclCreation, ...],
    ) -> None:
        self.creations: Final = creations
