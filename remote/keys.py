"""The keys of every object of ours in the store, there and back.

Owns: what a key looks like and what it names. Does not own: the objects' bytes (protocol.stored.slots,
remote.cold.index_object), who writes them and when. Invariant: a key reads back as what it was made of, and
nothing that is not such a key is taken for one; numbers have leading zeros, so keys sort as what they name.
FORMAT.md gives the same keys as regular expressions; a test compares them with these.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from protocol.ids import decode_id, encode_id

# --- the metadata log ---

META: Final = "meta/"
SNAPSHOTS: Final = "meta/snapshot/"
BOUNDARIES: Final = "meta/boundary/"
_NUMBER: Final = re.compile(r"[0-9]{20}", re.ASCII)


def slot_key(seq: int) -> str:
    return f"{META}{seq:020d}"


def snapshot_key(seq: int) -> str:
    return f"{SNAPSHOTS}{seq:020d}"


def boundary_key(seq: int) -> str:
    return f"{BOUNDARIES}{seq:020d}"


def parse_number(key: str, prefix: str) -> int | None:
    """Return the number that a key of `prefix` ends with, None for another key."""
    name = key.removeprefix(prefix)
    return int(name) if key.startswith(prefix) and _NUMBER.fullmatch(name) else None


# --- the cold tier ---

TIER: Final = "tier/"
_TIER_KEY: Final = re.compile(
    r"tier/(?P<topic>[A-Za-z0-9_-]{22})/(?P<partition>0|[1-9][0-9]{0,9})"
    r"/(?P<base>[0-9]{20})-(?P<segment>[A-Za-z0-9_-]{22})(?P<part>\.log|\.idx)",
    re.ASCII,
)


class SegmentPart(StrEnum):
    """The two objects of one copied segment."""

    DATA = ".log"
    INDEX = ".idx"


class TierKey(NamedTuple):
    topic_id: UUID
    partition: int
    base_offset: int
    segment_id: UUID
    part: SegmentPart


def topic_prefix(topic_id: UUID) -> str:
    """Return what the keys of all segments of a topic begin with."""
    return f"{TIER}{encode_id(topic_id)}/"


def partition_prefix(topic_id: UUID, partition: int) -> str:
    return f"{topic_prefix(topic_id)}{partition}/"


def tier_key(topic_id: UUID, partition: int, base_offset: int, segment_id: UUID, part: SegmentPart) -> str:
    return f"{partition_prefix(topic_id, partition)}{base_offset:020d}-{encode_id(segment_id)}{part}"


def parse_tier_key(key: str) -> TierKey | None:
    """Return what the key names, None if it is no key of the tier."""
    found = _TIER_KEY.fullmatch(key)
    if found is None:
        return None
    try:
        topic_id, segment_id = decode_id(found["topic"]), decode_id(found["segment"])
    except ValueError:
        return None
    return TierKey(
        topic_id, int(found["partition"]), int(found["base"]), segment_id, SegmentPart(found["part"])
    )
