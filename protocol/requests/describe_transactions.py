"""DescribeTransactions requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DescribeTransactionsRequest(RequestStruct):
    __slots__ = ("transactional_ids",)

    def __init__(
        self,
        *,
        transactional_ids: tuple[str, ...] = (),
    ) -> None:
        self.transactional_ids: Final = transactional_ids
