"""UnregisterBroker requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class UnregisterBrokerRequest(RequestStruct):
    __slots__ = ("broker_id",)

    def __init__(
        self,
        *,
        broker_id: int,
    ) -> None:
        self.broker_id: Final = broker_id
