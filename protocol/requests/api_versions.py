"""ApiVersions requests, versions 0 to 4.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class ApiVersionsRequest(RequestStruct):
    __slots__ = ("client_software_name", "client_software_version")

    def __init__(
        self,
        *,
        client_software_name: str = "",  # from version 3
        client_software_version: str = "",  # from version 3
    ) -> None:
        self.client_software_name: Final = client_software_name
        self.client_software_version: Final = client_software_version
