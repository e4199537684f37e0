"""DescribeConfigs requests, versions 1 to 4.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DescribeConfigsResource(RequestStruct):
    __slots__ = ("configuration_keys", "resource_name", "resource_type")

    def __init__(
        self,
        *,
        resource_type: int,
        resource_name: str,
        configuration_keys: tuple[str, ...] | None = (),
    ) -> None:
        self.resource_type: Final = resource_type
        self.resource_name: Final = resource_name
        self.configuration_keys: Final = configuration_keys


class DescribeConfigsRequest(RequestStruct):
    __slots__ = ("include_documentation", "include_synonyms", "resources")

    def __init__(
        self,
        *,
        resources: tuple[DescribeConfigsResource, ...],
        include_synonyms: bool = False,
        include_documentation: bool = False,  # from version 3
    ) -> None:
        self.resources: Final = resources
        self.include_synonyms: Final = include_synonyms
        self.include_documentation: Final = include_documentation
