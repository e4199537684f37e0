"""IncrementalAlterConfigs requests, versions 0 to 1.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class AlterableConfig(RequestStruct):
    __slots__ = ("config_operation", "name", "value")

    def __init__(
        self,
        *,
        name: str,
        config_operation: int,
        value: str | None,
    ) -> None:
        self.name: Final = name
        self.config_operation: Final = config_operation
        self.value: Final = value


class AlterConfigsResource(RequestStruct):
    __slots__ = ("configs", "resource_name", "resource_type")

    def __init__(
        self,
        *,
        resource_type: int,
        resource_name: str,
        configs: tuple[AlterableConfig, ...],
    ) -> None:
        self.resource_type: Final = resource_type
        self.resource_name: Final = resource_name
        self.configs: Final = configs


class IncrementalAlterConfigsRequest(RequestStruct):
    __slots__ = ("resources", "validate_only")

    def __init__(
        self,
        *,
        resources: tuple[AlterConfigsResource, ...],
        validate_only: bool,
    ) -> None:
        self.resources: Final = resources
        self.validate_only: Final = validate_only
