"""AddOffsetsToTxn requests, versions 0 to 4.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class AddOffsetsToTxnRequest(RequestStruct):
    __slots__ = ("group_id", "producer_epoch", "producer_id", "transactional_id")

    def __init__(
        self,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
    ) -> None:
        self.transactional_id: Final = transactional_id
        self.producer_id: Final = producer_id
        self.producer_epoch: Final = producer_epoch
        self.group_id: Final = group_id
