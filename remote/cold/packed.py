"""A copy in some 90 bytes.

Owns: how a `RemoteSegment` is packed, in memory only: 100,000 of them are as many strings, which the garbage
collector does not walk. Does not own: its id, its partition and its topic, which the fold has once for all.
Invariant: unpacked, it is what was packed.
"""

from __future__ import annotations

from struct import Struct
from typing import cast
from uuid import UUID

from remote.cold.segments import RemoteSegment, SegmentState, TieredPartition

_HEAD = Struct("<qqqqiiBBI")
"""Base offset, end offset, newest timestamp, time of the event, broker, size, state, flags, count of epochs;
then the epochs, then custom metadata."""
_EPOCH = Struct("<iq")
_HAS_ABORTED, _HAS_CUSTOM = 1, 2
_STATES = tuple(SegmentState)
_LONG = Struct("<q")
_INT = Struct("<i")
_END_AT, _EVENT_TIMESTAMP_AT, _SIZE_AT, _STATE_AT, _FLAGS_AT = 8, 24, 36, 40, 41


def pack_copy(segment: RemoteSegment) -> bytes:
    flags = segment.has_aborted * _HAS_ABORTED | (segment.custom is not None) * _HAS_CUSTOM
    head = _HEAD.pack(
        segment.base_offset,
        segment.end_offset,
        segment.max_timestamp_ms,
        segment.event_timestamp_ms,
        segment.broker_id,
        segment.size_bytes,
        segment.state,
        flags,
        len(segment.epochs),
    )
    epochs = b"".join([_EPOCH.pack(epoch, start) for epoch, start in segment.epochs])
    return head + epochs + (segment.custom or b"")


def unpack_copy(packed: bytes, *, partition: TieredPartition, topic: str, segment_id: UUID) -> RemoteSegment:
    head = _HEAD.unpack_from(packed)
    base, end, max_timestamp_ms, event_timestamp_ms, broker_id, size, state, flags, count = head
    return RemoteSegment(
        partition=partition,
        topic=topic,
        id=segment_id,
        base_offset=base,
        end_offset=end,
        broker_id=broker_id,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=event_timestamp_ms,
        size_bytes=size,
        epochs=_epochs(packed, count),
        has_aborted=bool(flags & _HAS_ABORTED),
        state=_STATES[state],
        custom=_custom(packed, flags, count),
    )


def with_state(packed: bytes, state: SegmentState, event_timestamp_ms: int, custom: bytes | None) -> bytes:
    base, end, max_timestamp_ms, _, broker_id, size, _, flags, count = _HEAD.unpack_from(packed)
    flags = flags & _HAS_ABORTED | (custom is not None) * _HAS_CUSTOM
    head = _HEAD.pack(base, end, max_timestamp_ms, event_timestamp_ms, broker_id, size, state, flags, count)
    return head + packed[_HEAD.size : _HEAD.size + count * _EPOCH.size] + (custom or b"")


def progress_of(packed: bytes) -> tuple[SegmentState, int]:
    """(state, when it came to it): the greater is the later."""
    return state_of(packed), cast(int, _LONG.unpack_from(packed, _EVENT_TIMESTAMP_AT)[0])


def state_of(packed: bytes) -> SegmentState:
    return _STATES[packed[_STATE_AT]]


def base_of(packed: bytes) -> int:
    return cast(int, _LONG.unpack_from(packed)[0])


def end_of(packed: bytes) -> int:
    return cast(int, _LONG.unpack_from(packed, _END_AT)[0])


def size_of(packed: bytes) -> int:
    return cast(int, _INT.unpack_from(packed, _SIZE_AT)[0])


def has_aborted(packed: bytes) -> bool:
    return bool(packed[_FLAGS_AT] & _HAS_ABORTED)


def epochs_of(packed: bytes) -> tuple[tuple[int, int], ...]:
    return _epochs(packed, _HEAD.unpack_from(packed)[-1])


def custom_of(packed: bytes) -> bytes | None:
    *_, flags, count = _HEAD.unpack_from(packed)
    return _custom(packed, flags, count)


def _epochs(packed: bytes, count: int) -> tuple[tuple[int, int], ...]:
    return tuple(_EPOCH.iter_unpack(packed[_HEAD.size : _HEAD.size + count * _EPOCH.size]))


def _custom(packed: bytes, flags: int, count: int) -> bytes | None:
    return packed[_HEAD.size + count * _EPOCH.size :] if flags & _HAS_CUSTOM else None
