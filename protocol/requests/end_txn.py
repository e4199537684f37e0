"""EndTxn requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class EndTxnRequest(RequestStruct):
    __slots__ = ("committed", "producer_epoch", "producer_id", "transactional_id")

    def __init__(
        self,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
    ) -> None:
        self.transactional_id: Final = transactional_id
        self.producer_id: Final = producer_id
        self.producer_epoch: Final = producer_epoch
        self.committed: Final = committed
