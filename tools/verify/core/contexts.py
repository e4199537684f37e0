"""What metadata, floors and listings say of each partition, for its judge.

Owns the translation of a cluster's state into contexts. Does not own the state (meta), the listing (listing)
or the judging (judge). Invariant: only what was so both before and after the listing is demanded of a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tools.verify.core.judge import Explained, PartitionContext
from tools.verify.core.layouts import Floors
from tools.verify.core.meta import Meta
from tools.verify.core.meta_fold import State

COMPACTED: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__remote_log_metadata", "__remote_wal_log_metadata"}
)
"""The brokers' own topics are, whatever their configuration says."""

Partition = tuple[str, int]


def make_contexts(
    before: Meta | None,
    after: Meta | None,
    names: Mapping[Partition, str],
    floors: Iterable[Floors],
    explained: Mapping[Partition, list[Explained]],
    moved_starts: Mapping[Partition, int],
    is_told: bool,
) -> dict[Partition, PartitionContext]:
    """Return a context for each partition of the cluster, and for each of which something is told.

    `names`: topics by what data directories say. `is_told`: whether the topic about the cold tier was read.
    """
    stored = _stored(floors)
    found: dict[Partition, PartitionContext] = {}
    known = _partitions(after.state) if after is not None else {}
    earlier = _partitions(before.state) if before is not None else {}
    is_whole = after is not None and after.is_there and after.is_whole
    for partition in sorted({*known, *names, *explained, *moved_starts}):
        topic_id, number = partition
        entry = known.get(partition)
        name = entry[0] if entry else names.get(partition, "")
        context = PartitionContext(
            topic=name,
            is_compacted=name in COMPACTED,
            moved_start=moved_starts.get(partition, -1),
            explained=tuple(explained.get(partition, ())),
            is_known=entry is not None,
            is_dead=entry is None and is_whole,
            is_told=is_told,
        )
        if entry is not None and after is not None:
            config = after.state.topic_config(name)
            state = after.state.topics[topic_id].partitions[number]
            old = earlier.get(partition)
            was_in_sync = set(old[1]) if old else set()
            context = context._replace(
                is_compacted=name in COMPACTED or "compact" in config.get("cleanup.policy", ""),
                leader=state.leader,
                in_sync=tuple(node for node in state.isr if node in was_in_sync),
                acks_by_store=config.get("remote.wal.acks") == "store",
                stored_to=stored.get((*partition, state.leader_epoch), -1),
            )
        found[partition] = context
    return found


def _partitions(state: State) -> dict[Partition, tuple[str, tuple[int, ...]]]:
    return {
        (topic.topic_id, number): (topic.name, partition.isr)
        for topic in state.topics.values()
        for number, partition in enumerate(topic.partitions)
    }


def _stored(floors: Iterable[Floors]) -> dict[tuple[str, int, int], int]:
    """Return how far the store has each partition, by what its leader of an epoch says."""
    return {
        (each.topic_id, each.partition, each.leader_epoch): each.stored_to
        for one in floors
        for each in one.floors
    }
