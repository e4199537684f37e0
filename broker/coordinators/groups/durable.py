"""What the log of one coordinator partition says: metadata of groups, committed offsets, open transactions.

Owns the fold of the records into memory, look-ups in it, and the records that change an offset. Does not own
living members (`broker.coordinators.groups.membership`), nor what is decided.
Invariant: `apply` and `apply_marker` alone change it, so it equals a replay of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from broker.coordinators.groups.consumer_group import ConsumerGroup
from protocol.stored.offsets import (
    CommittedOffset,
    CoordinatorRecord,
    GroupMetadata,
    GroupRecord,
    OffsetRecord,
)
from protocol.work import Work

Offsets: TypeAlias = dict[str, dict[str, dict[int, CommittedOffset]]]
"""Group id → topic → partition → offset."""
_KEYS_PER_STEP: Final = 256


@dataclass(slots=True)
class Durable:
    """The log, and nothing else. Two of them are equal when the same records were applied."""

    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    """Those of the classic protocol."""
    consumers: dict[str, ConsumerGroup] = field(default_factory=dict)
    """Those that the server assigns."""
    offsets: Offsets = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = field(default_factory=dict)
    """Offsets of transactions that are still open, by producer id."""
    open: dict[str, dict[tuple[str, int], set[int]]] = field(default_factory=dict)
    """The producers of `pending`, by group id and partition."""

    # --- applying ---

    def apply(self, record: CoordinatorRecord, *, offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self.apply_offset(record, offset, producer_id)
        elif isinstance(record, GroupRecord):
            if record.metadata is None:
                self.groups.pop(record.group_id, None)
            else:
                self.groups[record.group_id] = record.metadata
        else:
            group = self.consumers.get(record.group_id)
            if group is None:
                if record.value is None:
                    return
                group = self.consumers[record.group_id] = ConsumerGroup(record.group_id)
            group.apply(record)
            if group.is_gone:
                del self.consumers[record.group_id]

    def apply_offset(self, record: OffsetRecord, offset: int, producer_id: int) -> None:
        group_id, topic, partition, committed = record
        if committed is None:
            self._remove(group_id, topic, partition)
        elif producer_id < 0:
            self._put(group_id, topic, partition, committed.at(offset))
        else:
            key = (group_id, topic, partition)
            self.pending.setdefault(producer_id, {})[key] = committed.at(offset)
            open_ones = self.open.setdefault(group_id, {})
            open_ones.setdefault((topic, partition), set()).add(producer_id)

    def apply_marker(self, *, producer_id: int, committed: bool) -> Work[list[tuple[str, CommittedOffset]]]:
        """End a transaction. Returns the offsets that count from now on, each with its group."""
        taken = []
        pending = self.pending.get(producer_id, {})
        while pending:
            (group_id, topic, partition), offset = pending.popitem()
            current = self.get(group_id, topic, partition)
            # A plain commit after the transactional one is the newer of the two, whenever that one ends.
            if committed and (current is None or offset.record_offset > current.record_offset):
                self._put(group_id, topic, partition, offset)
                taken.append((group_id, offset))
            self._close(producer_id, group_id, topic, partition)
            if not len(pending) % _KEYS_PER_STEP:
                yield
        self.pending.pop(producer_id, None)
        return taken

    def _close(self, producer_id: int, group_id: str, topic: str, partition: int) -> None:
        partitions = self.open[group_id]
        producers = partitions[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[topic, partition]
            if not partitions:
                del self.open[group_id]

    def _put(self, group_id: str, topic: str, partition: int, offset: CommittedOffset) -> None:
        self.offsets.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        for producer_id in list(self.open.get(group_id, {}).get((topic, partition), ())):
            del self.pending[producer_id][group_id, topic, partition]
            self._close(producer_id, group_id, topic, partition)
        topics = self.offsets.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
        if not topics:
            del self.offsets[group_id]

    # --- reading ---

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.offsets.get(group_id, {}).get(topic, {}).get(partition)

    def known(self, group_id: str, topic: str, partition: int) -> Iterator[CommittedOffset]:
        """Yield the offset that counts and those of open transactions."""
        committed = self.get(group_id, topic, partition)
        if committed is not None:
            yield committed
        for producer_id in self.open.get(group_id, {}).get((topic, partition), ()):
            yield self.pending[producer_id][group_id, topic, partition]

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self.open.get(group_id, ())

    def has_open_transaction(self, group_id: str) -> bool:
        return group_id in self.open

    def pending_groups(self) -> Iterator[str]:
        """The groups that have offsets in open transactions."""
        return iter(self.open)

    def partitions(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self.offsets.get(group_id, {}).items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def keys(self, group_id: str) -> Work[dict[tuple[str, int], None]]:
        """Every partition a tombstone would change something for."""
        found: dict[tuple[str, int], None] = {}
        for topic, partition, _ in self.partitions(group_id):
            found[topic, partition] = None
            if len(found) % _KEYS_PER_STEP == 0:
                yield
        found |= dict.fromkeys(self.open.get(group_id, ()))
        return found

    def is_named(self, group_id: str) -> bool:
        """Whether a record tells of the group."""
        is_stored = group_id in self.groups or group_id in self.consumers or group_id in self.offsets
        return is_stored or self.has_open_transaction(group_id)


def offset_tombstone(group_id: str, topic: str, partition: int) -> OffsetRecord:
    return OffsetRecord(group_id=group_id, topic=topic, partition=partition, committed=None)
