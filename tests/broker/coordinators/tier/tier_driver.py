"""Events about one tiered topic, and a cluster that leads its metadata, for the tests of this room."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from broker.coordinators.tier.metadata import TierMetadata
from remote.cold.segments import (
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
)
from tests.broker.replication_driver import Replicas

TOPIC = "__remote_log_metadata"
USER = TieredPartition(Replicas.id_of("t"), 0)
"""The first partition of the topic that the driver makes."""


def segment(
    number: int = 1, *, base: int = 0, end: int = 10, partition: TieredPartition = USER, **changes: Any
) -> RemoteSegment:
    values: dict[str, Any] = {
        "partition": partition,
        "topic": "t",
        "id": UUID(int=number),
        "base_offset": base,
        "end_offset": end,
        "broker_id": 1,
        "max_timestamp_ms": 5,
        "event_timestamp_ms": 6,
        "size_bytes": 100,
        "epochs": ((0, base),),
        "has_aborted": False,
        **changes,
    }
    return RemoteSegment(**values)


def started(number: int = 1, **changes: Any) -> SegmentStarted:
    return SegmentStarted(segment=segment(number, **changes))


def update(
    state: SegmentState,
    number: int = 1,
    *,
    custom: bytes | None = None,
    partition: TieredPartition = USER,
) -> SegmentUpdated:
    return SegmentUpdated(
        partition=partition,
        topic="t",
        id=UUID(int=number),
        state=state,
        broker_id=1,
        event_timestamp_ms=7,
        custom=custom,
    )


def finished(number: int = 1, **changes: Any) -> SegmentUpdated:
    return update(SegmentState.COPY_FINISHED, number, **changes)


def deletion(state: PartitionState, partition: TieredPartition = USER) -> PartitionDeletion:
    return PartitionDeletion(partition=partition, topic="t", state=state, broker_id=1, event_timestamp_ms=8)


def metadata_of(world: Replicas, node_id: int) -> TierMetadata:
    found = world.nodes[node_id].components.tier_metadata
    assert isinstance(found, TierMetadata)
    return found


def states(world: Replicas, node_id: int, partition: TieredPartition = USER) -> dict[int, SegmentState]:
    """What a broker knows of the copies of a partition."""
    fold = metadata_of(world, node_id).fold(partition)
    if fold is None:
        return {}
    known = [*fold.finished(), *fold.unfinished(), *fold.deleting()]
    return {each.id.int: each.state for each in known}
