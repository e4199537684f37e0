"""Asking the transaction coordinator about partitions that are to be written to.

Owns: which broker is asked, several questions to it in one request, deadlines, and the errors that a producer
gets for those of the coordinator. Does not own: what is asked for when (Produce, TxnOffsetCommit), nor what a
transaction includes (the transaction coordinator).
Invariant: every question ends by its deadline; a partition without an error is part of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from protocol.errors import ErrorCode


class Verifier(Protocol):
    """Asks whether partitions are part of a transaction: `TransactionVerifier`, or what stands for it in a
    test."""

    async def check(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
        *,
        adds: bool,
        timeout_ms: int,
        maps_abortable: bool,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """Return an error for each partition that may not be written to in the transaction. `adds` includes
        them in it first, as transaction version 2 does. `maps_abortable`: the client knows
        TRANSACTION_ABORTABLE."""
