"""What a follower does to its log by what its leader says.

Owns: appending what was fetched, and where to cut a log that parts from the leader's (KIP-101, KIP-279). Does
not own: whether what the leader said still counts (fetcher), the log's files. Invariant: nothing but whole
batches that were checked is appended, and only where the log ends.
"""

from __future__ import annotations

from protocol.records import parse_header
from storage.log import AbstractLog, NoDescriptor


def append_fetched(held: AbstractLog, records: memoryview) -> None:
    """Append what the leader sent. Its first batch may begin before our log ends if that is empty: then ours
    has to begin with the whole batch. After NoDescriptor some of it is to be fetched again."""
    first = parse_header(records)
    end = held.log_end_offset
    if end == held.log_start_offset and first.base_offset < end <= first.last_offset:
        held.truncate_fully(first.base_offset)
        held.append_as_follower(records)
        held.set_high_watermark(end)
        held.advance_log_start(end)
        return
    try:
        held.append_as_follower(records)
    except NoDescriptor:
        held.flush_staged()  # the next fetch tells the leader that all up to the end is here
        raise


def plan_truncation(held: AbstractLog, leader_epoch: int, leader_end: int) -> int:
    """Return where to cut this log, given the leader's newest epoch that may be ours and where that one ends
    (KIP-101, KIP-279). An epoch between two of ours takes another request."""
    epoch, end = held.end_offset_for_epoch(leader_epoch)
    if epoch < 0 or end < 0:
        return min(leader_end, held.log_end_offset)
    if epoch != leader_epoch:
        return min(end, held.log_end_offset)
    return min(end, leader_end, held.log_end_offset)
