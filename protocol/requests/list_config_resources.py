"""ListConfigResources requests, versions 0 to 1.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class ListConfigResourcesRequest(RequestStruct):
    __slots__ = ("resource_types",)

    def __init__(
        self,
        *,
        resource_types: tuple[int, ...] = (),  # version 1
    ) -> None:
        self.resource_types: Final = resource_types
