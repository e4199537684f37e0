"""Which transactions of a partition were aborted, and which are open at its end.

Owns the fold over places: by the indexes of closed segments, and by the batches where there are none. Does
not own which places there are (topic). Invariant: what a marker ends began at or after where it is said to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tools.verify.core.heads import HEAD_SIZE, read_marker
from tools.verify.core.kafka_files import BadFile, aborted_transactions, producer_snapshot
from tools.verify.core.layouts import PRODUCERS, TRANSACTIONS
from tools.verify.core.stores import Gone
from tools.verify.core.tables import ABORT
from tools.verify.core.topic_places import Damaged, Place, section, walk


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""


class Transactions(NamedTuple):
    aborted: list[Aborted]
    """In the order of their markers."""
    open: dict[int, int]
    """First offsets by producer."""


def fold_transactions(links: Iterable[tuple[Place, int, int]], start: int) -> Transactions:
    """Fold the places of a partition, each with the offsets that are read there, in their order.

    `start`: where the log starts. What began below it is taken to begin there.
    """
    found = Transactions([], {})
    for place, first, end in links:
        if not _by_index(found, place, first, end):
            _by_batches(found, place, first, end, start)
    return found


def _by_index(found: Transactions, place: Place, first: int, end: int) -> bool:
    """Fold a closed segment by its indexes; return whether it has them and all of it is read to its end."""
    if place.segment is None or end < place.end or not place.segment.is_closed:
        return False
    snapshot = section(place, PRODUCERS)
    try:
        producers = producer_snapshot(snapshot)
        aborted = aborted_transactions(section(place, TRANSACTIONS))
    except BadFile:
        return False
    for each in aborted:
        if first <= each.last_offset < end:
            found.aborted.append(Aborted(each.producer_id, each.first_offset, each.last_offset))
    found.open.clear()
    found.open.update(
        {
            each.producer_id: each.transaction_start
            for each in producers.values()
            if each.transaction_start >= 0
        }
    )
    return True


def _by_batches(found: Transactions, place: Place, first: int, end: int, start: int) -> None:
    try:
        for data, head in walk(place.source, place.key, place.position, place.size):
            if head.base_offset >= end:
                return
            if head.last_offset < first or not head.is_transactional:
                continue
            if not head.is_control:
                found.open.setdefault(head.producer_id, head.base_offset)
                continue
            marker = read_marker(bytes(data[HEAD_SIZE:]), head)
            began = found.open.pop(head.producer_id, None)
            if marker is not None and marker[0] == ABORT:
                at = start if began is None else began
                found.aborted.append(Aborted(head.producer_id, at, head.last_offset))
    except (Damaged, Gone):
        return  # whoever reads the records there is told
