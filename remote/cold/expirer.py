"""What leaves the tier, and the log start that goes before it.

Owns: the order in which retention, lineage, a lost copy and a topic that is no longer tiered take copies out
of the tier. Does not own: what retention says (policy), which copies are of this log's lineage (fold), the
steps of a deletion (removal). Invariants: the log start has passed a copy, and is durable, before the copy's
deletion begins, unless the copy is nobody's: unfinished, of another lineage, or covered by a longer one; the
metadata has accepted from this leader where the log starts before retention moves it there, so that one that
was deposed hides nothing from its own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from remote.cold.copier import Copier
from remote.cold.fold import PartitionFold
from remote.cold.metadata_manager import Metadata
from remote.cold.policy import plan_expiry
from remote.cold.removal import Removal
from remote.cold.segments import LogStartMoved, RemoteSegment
from remote.cold.tenure import Tenure
from storage.log import AbstractLog

logger = logging.getLogger(__name__)

REMOVED_AT_ONCE: Final = 16
"""Then other partitions have their turn."""


class Expirer:
    def __init__(
        self,
        *,
        broker_id: int,
        metadata: Metadata,
        copier: Copier,
        removal: Removal,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._copier = copier
        self._removal = removal
        self._now_ms = now_ms

    async def expire(self, tenure: Tenure) -> float | None:
        """Do what is due. Return in how many seconds to come again, None for not before something changes."""
        tenure.check()
        if may_expire(tenure.log):
            await self._move_log_start(tenure)
            tenure.check()
        due: list[RemoteSegment] = []
        waits_s: list[float] = []
        for segment in self.useless(tenure):
            left_s = self._removal.wait_s(segment.id)
            if left_s > 0:
                waits_s.append(left_s)
            elif len(due) < REMOVED_AT_ONCE:
                due.append(segment)
            else:
                waits_s.append(0.0)
                break
        for segment in due:
            left_s = await self._removal.remove(tenure, segment)
            if left_s > 0:
                waits_s.append(left_s)
        return min(waits_s, default=None)

    async def _move_log_start(self, tenure: Tenure) -> None:
        """Have the log start where retention wants it, once the metadata tells that."""
        log, fold = tenure.log, self._metadata.fold(tenure.partition)
        start = log.log_start_offset if fold is None else self._log_start(log, fold)
        if log.is_tiered and start > (0 if fold is None else fold.implied_start):
            await self._tell_log_start(tenure, start)
            tenure.check()
        if start > log.log_start_offset:
            logger.info("%s starts at %d now: what was before it has expired", tenure.name, start)
            await tenure.start_log_at(start)

    async def _tell_log_start(self, tenure: Tenure, start: int) -> None:
        """Have it in the metadata where no copy tells it: a disk that is lost takes it along."""
        moved = LogStartMoved(
            partition=tenure.partition,
            topic=tenure.topic,
            log_start=start,
            broker_id=self._broker_id,
            event_timestamp_ms=self._now_ms(),
        )
        await self._metadata.submit(moved, leader_epoch=tenure.leader_epoch)

    def _log_start(self, log: AbstractLog, fold: PartitionFold) -> int:
        """Return where the log is to start before any copy goes, at least where it does."""
        if not log.is_tiered:
            return log.local_log_start_offset
        plan = plan_expiry(
            log.config,
            fold.chain(log.epochs, log.log_start_offset),
            now_ms=self._now_ms(),
            log_start=log.log_start_offset,
            local_start=log.local_log_start_offset,
            tier_bytes=fold.size_bytes(log.epochs, log.log_start_offset),
            local_only_bytes=log.size_from(log.tiered_end),
        )
        return plan.log_start

    def useless(self, tenure: Tenure) -> Iterator[RemoteSegment]:
        """Copies that no reader is served from: below the log's start, of another lineage, covered by others,
        never finished, or with a deletion that somebody began. The last two are known without the log: after
        an unclean election it may be empty, and nobody may ever write to it. Ask anew after a change."""
        log, fold = tenure.log, self._metadata.fold(tenure.partition)
        if fold is None:
            return
        yield from fold.deleting()
        yield from (each for each in fold.unfinished() if each.id not in self._copier.under_way)
        if not may_expire(log):
            return
        if log.is_tiered:
            yield from fold.below(log.log_start_offset)
            yield from fold.superseded(log.epochs, log.log_start_offset)
        else:
            yield from fold.finished()


def may_expire(log: AbstractLog) -> bool:
    """Whether this log can tell which finished copies are its own: its epochs reach back to its start, and it
    is not one that has yet to be filled from the tier."""
    if not log.is_tiered:
        return log.config.remote_log_delete_on_disable
    return log.log_end_offset > 0 and not log.epochs_incomplete
