"""Envelope requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class EnvelopeRequest(RequestStruct):
    __slots__ = ("client_host_address", "request_data", "request_principal")

    def __init__(
        self,
        *,
        request_data: bytes,
        request_principal: bytes | None,
        client_host_address: bytes,
    ) -> None:
        self.request_data: Final = request_data
        self.request_principal: Final = request_principal
        self.client_host_address: Final = client_host_address
