"""AllocateProducerIds requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class AllocateProducerIdsRequest(RequestStruct):
    __slots__ = ("broker_epoch", "broker_id")

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: int = -1,
    ) -> None:
        self.broker_id: Final = broker_id
        self.broker_epoch: Final = broker_epoch
