"""AddPartitionsToTxn requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class AddPartitionsToTxnTransaction(RequestStruct):
    __slots__ = ("producer_epoch", "producer_id", "topics", "transactional_id", "verify_only")

    def __init__(
        self,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        verify_only: bool = False,
        topics: tuple[AddPartitionsToTxnTopic, ...],
    ) -> None:
        self.transactional_id: Final = transactional_id
        self.producer_id: Final = producer_id
        self.producer_epoch: Final = producer_epoch
        self.verify_only: Final = verify_only
        self.topics: Final = topics


class AddPartitionsToTxnTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[int, ...] = (),
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class AddPartitionsToTxnRequest(RequestStruct):
    __slots__ = (
        "transactions",
        "v3_and_below_producer_epoch",
        "v3_and_below_producer_id",
        "v3_and_below_topics",
        "v3_and_below_transactional_id",
    )

    def __init__(
        self,
        *,
        v3_and_below_transactional_id: str = "",  # up to version 3
        v3_and_below_producer_id: int = 0,  # up to version 3
        v3_and_below_producer_epoch: int = 0,  # up to version 3
        v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = (),  # up to version 3
        transactions: tuple[AddPartitionsToTxnTransaction, ...] = (),  # from version 4
    ) -> None:
        self.v3_and_below_transactional_id: Final = v3_and_below_transactional_id
        self.v3_and_below_producer_id: Final = v3_and_below_producer_id
        self.v3_and_below_producer_epoch: Final = v3_and_below_producer_epoch
        self.v3_and_below_topics: Final = v3_and_below_topics
        self.transactions: Final = transactions
