"""What of a log is copied to the tier now (KIP-405, KIP-1241), and what of the tier goes.

Owns: the decisions. Does not own: which copies count (fold), what of the local part goes (storage.policy),
doing it. Invariant: a decision depends on its arguments alone. Segments are taken from the oldest on, and the
first that stays ends the search, so neither the copies nor what is left of them get a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from remote.cold.segments import RemoteSegment
from storage.log import ClosedSegment
from storage.policy import LogConfig

EXPIRED_AT_ONCE: Final = 1000
"""Copies that one plan expires; the next plan goes on."""


# --- copying ---


def plan_copy(
    config: LogConfig,
    segments: Sequence[ClosedSegment],
    *,
    now_ms: int,
    tiered_end: int,
    last_stable_offset: int,
    log_start: int,
    log_size: int,
) -> list[ClosedSegment]:
    """The segments to copy, oldest first. `segments` are closed ones in order, and `log_size` is the bytes
    from the first of them to the end of the log, the active segment's included."""
    if not config.remote_storage_enable or config.remote_log_copy_disable:
        return []
    lag_ms, lag_bytes = copy_lag(config)
    due = []
    size_after = log_size
    for segment in segments:
        size_after -= segment.size
        if segment.end_offset <= max(tiered_end, log_start):
            continue
        if segment.end_offset > last_stable_offset:
            break
        asks_nothing = lag_ms is None and lag_bytes is None
        is_old = lag_ms is not None and _is_old(segment, now_ms, lag_ms)
        is_far = lag_bytes is not None and size_after >= lag_bytes
        if not (asks_nothing or is_old or is_far):
            break
        due.append(segment)
    return due


def copy_lag(config: LogConfig) -> tuple[int | None, int | None]:
    """(ms, bytes) of which either makes a segment due, None for one that is not asked; of two None all are.

    Kafka's trunk asks for either of them, where KIP-1241 can be read to ask for both. -1 stands for local
    retention; where that has no limit, we do not ask, as the KIP says, while Kafka's trunk then copies
    nothing, ever."""
    retention_ms, retention_bytes = config.effective_local_retention
    return (
        _resolved(config.remote_copy_lag_ms, retention_ms),
        _resolved(config.remote_copy_lag_bytes, retention_bytes),
    )


def _resolved(lag: int, retention: int) -> int | None:
    if lag != -1:
        return lag
    return None if retention == -1 else retention


def _is_old(segment: ClosedSegment, now_ms: int, lag_ms: int) -> bool:
    """A segment whose age cannot be told, as no record has a time or one has a future one, does not wait."""
    return not 0 <= segment.max_timestamp <= now_ms or now_ms - segment.max_timestamp >= lag_ms


# --- expiry ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    log_start: int
    """Where the log begins from now on; to be durable before anything is deleted."""
    delete: tuple[RemoteSegment, ...]
    """The copies that end there or below."""


def plan_expiry(
    config: LogConfig,
    segments: Iterable[RemoteSegment],
    *,
    now_ms: int,
    log_start: int,
    local_start: int,
    tier_bytes: int,
    local_only_bytes: int,
) -> ExpiryPlan:
    """Decide where the log begins by its retention. `segments` is its chain in the tier, and is not read
    further than needed; `tier_bytes` what the tier has of the log, `local_only_bytes` what it has not. The
    start follows to what can be read next when the tier has lost what comes first: ask only with a fold that
    is caught up."""
    retention_ms = config.retention_ms if config.is_deleted else -1
    excess = tier_bytes + local_only_bytes - config.retention_bytes
    if not config.is_deleted or config.retention_bytes < 0:
        excess = 0
    gone: list[RemoteSegment] = []
    next_readable = local_start
    for segment in segments:
        is_below = segment.end_offset <= log_start
        is_old = retention_ms >= 0 and _timestamp(segment) <= now_ms - retention_ms
        is_surplus = 0 < excess >= segment.size_bytes
        if len(gone) == EXPIRED_AT_ONCE or not (is_below or is_old or is_surplus):
            next_readable = min(segment.base_offset, local_start)
            break
        excess = max(excess - segment.size_bytes, 0)
        log_start = max(log_start, segment.end_offset)
        gone.append(segment)
    return ExpiryPlan(log_start=max(log_start, next_readable), delete=tuple(gone))


def _timestamp(segment: RemoteSegment) -> int:
    """The newest record's time; when it was copied, if no record has one."""
    return segment.event_timestamp_ms if segment.max_timestamp_ms < 0 else segment.max_timestamp_ms
