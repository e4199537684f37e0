"""What a topic's settings say about its log: when to roll, what to delete, what to compact.

Owns: `LogConfig` (one frozen value per log, Kafka's names with underscores) and the pure decisions made
from it. Does not own: parsing, defaults of the broker level, or carrying a decision out. Invariant: a
decision depends on its arguments alone; the active segment is never deleted by retention of time while it
is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

INT32_MAX = 0x7FFFFFFF
LONG_MAX = 0x7FFFFFFFFFFFFFFF
TIMESTAMP_AFTER_MAX_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic configurations of Kafka 4.3 that mean something here, with their defaults, those of
    KIP-1241 and KIP-1176, `record.validation` and `remote.log.pressure.policy`."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = TIMESTAMP_AFTER_MAX_MS
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    remote_copy_lag_bytes: int = -1
    remote_copy_lag_ms: int = 0
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_log_pressure_policy: str = "keep"
    remote_storage_enable: bool = False
    remote_wal_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False
    record_validation: str = "header"

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def timestamp_after_max_ms(self) -> int:
        """How far ahead of the clock a producer's timestamp may be; it counts for nothing under
        LogAppendTime."""
        return LONG_MAX if self.is_log_append_time else self.message_timestamp_after_max_ms

    @property
    def timestamp_before_max_ms(self) -> int:
        """How far behind the clock a producer's timestamp may be; likewise."""
        return LONG_MAX if self.is_log_append_time else self.message_timestamp_before_max_ms

    @property
    def limits_timestamps(self) -> bool:
        """Whether somebody chose how far the timestamps of records may lie from the clock: then they hold for
        every record. Kafka's own hour ahead is held against the batch header alone."""
        return not self.is_log_append_time and (
            self.message_timestamp_before_max_ms != LONG_MAX
            or self.message_timestamp_after_max_ms != TIMESTAMP_AFTER_MAX_MS
        )

    @property
    def reads_records(self) -> bool:
        """Whether something must be known of every record that a client sends."""
        return self.is_compacted or self.limits_timestamps or self.record_validation == "full"

    @property
    def needs_walk(self) -> bool:
        """Whether an append must look at the records, not only at the batch header."""
        return self.is_log_append_time or self.compression_type != "producer" or self.reads_records

    @property
    def roll_after_ms(self) -> int:
        """`segment.ms`, shortened by `max.compaction.lag.ms`: a record is compacted only once its segment
        closed."""
        if self.is_compacted:
            return min(self.segment_ms, max(self.max_compaction_lag_ms, 1))
        return self.segment_ms

    @property
    def effective_local_retention(self) -> tuple[int, int]:
        """(ms, bytes) that a tiered log keeps on the disk, -1 without a limit; -2 stands for the whole
        log's."""
        ms, size = self.local_retention_ms, self.local_retention_bytes
        return self.retention_ms if ms == -2 else ms, self.retention_bytes if size == -2 else size

    def compression_level(self, codec: str) -> int | None:
        match codec:
            case "gzip":
                return self.compression_gzip_level
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What retention needs to know of a segment."""

    size: int
    end_offset: int
    timestamp: int
    """Its newest record's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    count: int
    """How many of the oldest segments go."""
    is_local: bool
    """Whether that moves the local start alone: what goes is in the tier, or below the log start."""
    roll_active: bool
    """Whether the active segment is to be closed, so that it can be copied: local retention waits for it."""


def plan_deletion(
    config: LogConfig,
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
    tiered_end: int = 0,
) -> DeletionPlan:
    """Decide what of a log goes. What is below its start always does. Retention of the whole log counts for
    one that is not tiered, or not copied any more (`remote.log.copy.disable`); local retention for one that
    is, and takes nothing that is not in the tier."""
    is_local = config.remote_storage_enable and not config.remote_log_copy_disable
    retention_ms, retention_bytes = config.retention_ms, config.retention_bytes
    if is_local:
        retention_ms, retention_bytes = config.effective_local_retention
    candidates = _deletable(segments, high_watermark)
    count = _leading(candidates, lambda facts: facts.end_offset <= log_start_offset)
    if count == len(segments):
        count -= 1  # only records deleted by request: the active segment stays
    below_start = count
    if config.is_deleted and retention_bytes >= 0:
        count += _beyond(candidates[count:], sum(facts.size for facts in segments[count:]) - retention_bytes)
    if config.is_deleted and retention_ms >= 0:
        count += _leading(candidates[count:], lambda facts: now_ms - facts.timestamp > retention_ms)
    if not is_local:
        return DeletionPlan(count=count, is_local=False, roll_active=False)
    wanted, closed = count, len(segments) - 1
    tiered = _leading(segments[below_start:closed], lambda facts: facts.end_offset <= tiered_end)
    count = min(wanted, below_start + tiered)
    return DeletionPlan(count=count, is_local=True, roll_active=wanted > closed == count)


def _deletable(segments: Sequence[SegmentFacts], limit: int) -> Sequence[SegmentFacts]:
    """Whole segments below `limit`; never an empty active one."""
    count = _leading(segments, lambda facts: facts.end_offset <= limit)
    if count == len(segments) and segments and segments[-1].size == 0:
        count -= 1
    return segments[:count]


def _leading(segments: Sequence[SegmentFacts], is_due: Callable[[SegmentFacts], bool]) -> int:
    for count, facts in enumerate(segments):
        if not is_due(facts):
            return count
    return len(segments)


def _beyond(segments: Sequence[SegmentFacts], excess: int) -> int:
    for count, facts in enumerate(segments):
        if excess < facts.size:
            return count
        excess -= facts.size
    return len(segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentExtent:
    """What merging neighbouring segments depends on."""

    base_offset: int
    end_offset: int
    size: int
    index_bytes: int


def plan_groups(
    segments: Sequence[SegmentExtent], *, segment_bytes: int, index_bytes: int
) -> list[tuple[int, int]]:
    """Runs [start, end) of neighbouring segments that compaction may merge into one: together they fit one
    segment's size, index and relative offsets."""
    groups = []
    start = total = total_index = 0
    for at, extent in enumerate(segments):
        too_big = total + extent.size > segment_bytes or total_index + extent.index_bytes > index_bytes
        too_wide = extent.end_offset - 1 - segments[start].base_offset > INT32_MAX
        if at > start and (too_big or too_wide):
            groups.append((start, at))
            start, total, total_index = at, 0, 0
        total += extent.size
        total_index += extent.index_bytes
    if start < len(segments):
        groups.append((start, len(segments)))
    return groups
