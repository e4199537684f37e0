"""What reading a store costs, at list price.

Owns the one price table and its date. Does not own how much is read (plan).
Invariant: an estimate that says of which day its prices are.
"""

from __future__ import annotations

from typing import Final

PRICE_DATE: Final = "2026-11-23"
"""S3 Standard, us-east-1, list price without discounts, as others quote it on that day: Amazon's own page
shows its figures to browsers alone. Reading from within the region is free."""
DOLLARS_PER_1000_GETS: Final = 0.0004
DOLLARS_PER_1000_LISTS: Final = 0.005
DOLLARS_PER_GB_OUT: Final = 0.09
"""To the internet; nothing to machines of the same region."""
LISTED_PER_REQUEST: Final = 1000


def list_requests(objects: int) -> int:
    return max(1, -(-objects // LISTED_PER_REQUEST))


def dollars(gets: int, lists: int, bytes_out: int = 0) -> float:
    """Return the price of so many requests, and of bytes that leave the region."""
    requests = gets / 1000 * DOLLARS_PER_1000_GETS + lists / 1000 * DOLLARS_PER_1000_LISTS
    return requests + bytes_out / 1e9 * DOLLARS_PER_GB_OUT
