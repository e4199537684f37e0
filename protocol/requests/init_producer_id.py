"""InitProducerId requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class InitProducerIdRequest(RequestStruct):
    __slots__ = ("producer_epoch", "producer_id", "transaction_timeout", "transactional_id")

    def __init__(
        self,
        *,
        transactional_id: str | None,
        transaction_timeout: timedelta,
        producer_id: int = -1,  # from version 3
        producer_epoch: int = -1,  # from version 3
    ) -> None:
        self.transactional_id: Final = transactional_id
        self.transaction_timeout: Final = transaction_timeout
        self.producer_id: Final = producer_id
        self.producer_epoch: Final = producer_epoch
