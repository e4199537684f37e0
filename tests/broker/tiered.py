"""Partitions whose closed segments are in the tier alone, for tests of what reads them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remote.cold.segments import RemoteSegment, TieredPartition
from storage.unified_log import UnifiedLog

if TYPE_CHECKING:
    from broker.server import Broker

DEADLINE_S = 10.0
TIERED = {"remote_storage_enable": "true", "retention_ms": "-1"}
"""The records of tests are years old."""


def log_of(broker: Broker, topic: str, index: int = 0) -> UnifiedLog:
    log = broker.components.replicas.partition(topic, index).log
    assert isinstance(log, UnifiedLog)
    return log


def roll(broker: Broker, topic: str, index: int = 0) -> None:
    """Close the active segment."""
    log = log_of(broker, topic, index)
    log.roll(log.log_end_offset, broker.components.world.now_ms())


async def tier(broker: Broker, topic: str, index: int = 0) -> list[RemoteSegment]:
    """Wait until everything closed is copied, and leave it to the tier alone. Return the copies."""
    components = broker.components
    metadata = components.tier_metadata
    assert metadata is not None
    log = log_of(broker, topic, index)
    end = log.closed_segments(log.local_log_start_offset, log.log_end_offset)[-1].end_offset
    async with asyncio.timeout(DEADLINE_S):
        while log.tiered_end < end or log.local_log_start_offset < end:
            log.free_tiered(components.world.now_ms())
            await asyncio.sleep(0.001)
    assert log.log_start_offset < end, log
    fold = metadata.fold(TieredPartition(log.topic_id, index))
    assert fold is not None
    return list(fold.finished())
