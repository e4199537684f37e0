"""ListTransactions requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class ListTransactionsRequest(RequestStruct):
    __slots__ = (
        "duration_filter",
        "producer_id_filters",
        "state_filters",
        "transactional_id_pattern",
    )

    def __init__(
        self,
        *,
        state_filters: tuple[str, ...] = (),
        producer_id_filters: tuple[int, ...] = (),
        duration_filter: int = -1,  # from version 1
        transactional_id_pattern: str | None = None,  # version 2
    ) -> None:
        self.state_filters: Final = state_filters
        self.producer_id_filters: Final = producer_id_filters
        self.duration_filter: Final = duration_filter
        self.transactional_id_pattern: Final = transactional_id_pattern
