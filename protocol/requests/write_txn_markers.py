"""WriteTxnMarkers requests, versions 1 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class WritableTxnMarkerTopic(RequestStruct):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str,
        partition_indexes: tuple[int, ...] = (),
    ) -> None:
        self.name: Final = name
        self.partition_indexes: Final = partition_indexes


class WritableTxnMarker(RequestStruct):
    __slots__ = (
        "coordinator_epoch",
        "producer_epoch",
        "producer_id",
        "topics",
        "transaction_result",
        "transaction_version",
    )

    def __init__(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_result: bool,
        topics: tuple[WritableTxnMarkerTopic, ...],
        coordinator_epoch: int,
        transaction_version: int = 0,  # version 2
    ) -> None:
        self.producer_id: Final = producer_id
        self.producer_epoch: Final = producer_epoch
        self.transaction_result: Final = transaction_result
        self.topics: Final = topics
        self.coordinator_epoch: Final = coordinator_epoch
        self.transaction_version: Final = transaction_version


class WriteTxnMarkersRequest(RequestStruct):
    __slots__ = ("markers",)

    def __init__(
        self,
        *,
        markers: tuple[WritableTxnMarker, ...],
    ) -> None:
        self.markers: Final = markers
