"""The keys of every object of ours in the store, there and back.

Owns: what a key looks like and what it names. Does not own: the objects' bytes (protocol.stored.slots,
remote.cold.index_object, remote.wal.combined_object), what writes them and when. Invariant: a key reads back
as what it was made of, and nothing that is not such a key is taken for one; numbers have leading zeros, so
keys sort as what they name.
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


# --- the WAL tier ---

WAL: Final = "wal/"
_WAL_KEY: Final = re.compile(
    r"wal/(?P<node>0|[1-9][0-9]{0,9})/(?P<epoch>[0-9]{20})-(?P<generation>[0-9]{10})"
    r"/(?P<part>|index/|boundary/)(?P<seq>[0-9]{20})",
    re.ASCII,
)
_FLOORS_KEY: Final = re.compile(r"wal/(?P<node>0|[1-9][0-9]{0,9})/floors", re.ASCII)


class WalPart(StrEnum):
    """The kinds of object in one stream of the WAL tier."""

    OBJECT = ""
    INDEX = "index/"
    BOUNDARY = "boundary/"


class Stream(NamedTuple):
    """What one incarnation of one broker writes to the WAL tier in one go. After a seal it opens the next
    generation."""

    node_id: int
    broker_epoch: int
    generation: int


class WalKey(NamedTuple):
    stream: Stream
    part: WalPart
    seq: int


def node_prefix(node_id: int) -> str:
    """Return what the keys of all streams of a broker begin with."""
    return f"{WAL}{node_id}/"


def stream_prefix(stream: Stream) -> str:
    return f"{node_prefix(stream.node_id)}{stream.broker_epoch:020d}-{stream.generation:010d}/"


def wal_key(stream: Stream, seq: int, part: WalPart = WalPart.OBJECT) -> str:
    return f"{stream_prefix(stream)}{part}{seq:020d}"


def parse_wal_key(key: str) -> WalKey | None:
    """Return what the key names, None if it is no key of a stream."""
    found = _WAL_KEY.fullmatch(key)
    if found is None:
        return None
    stream = Stream(int(found["node"]), int(found["epoch"]), int(found["generation"]))
    return WalKey(stream, WalPart(found["part"]), int(found["seq"]))


def floors_key(node_id: int) -> str:
    return f"{node_prefix(node_id)}floors"


def parse_floors_key(key: str) -> int | None:
    """Return the broker whose floors the key names, None for another key."""
    found = _FLOORS_KEY.fullmatch(key)
    return None if found is None else int(found["node"])
