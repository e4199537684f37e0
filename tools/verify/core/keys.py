"""The keys of a store: what each one names, by section 2 of FORMAT.md.

Owns the grammar of keys, for reading. Does not own what lies under a key (layouts).
Invariant: every text is read as one kind of key or as none; no text raises.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

META: Final = "meta/"
TIER: Final = "tier/"
WAL: Final = "wal/"
SLOT_PREFIX: Final = "meta/"
SNAPSHOT_PREFIX: Final = "meta/snapshot/"


class MetaSlot(NamedTuple):
    seq: int


class MetaSnapshot(NamedTuple):
    seq: int


class MetaBoundary(NamedTuple):
    seq: int


class TierData(NamedTuple):
    """The batches of a copied segment."""

    topic_id: str
    """As Kafka shows it, 22 characters."""
    partition: int
    base_offset: int
    segment_id: str
    """Of the copy, 22 characters."""


class TierIndex(NamedTuple):
    """The index object of a copied segment."""

    topic_id: str
    partition: int
    base_offset: int
    segment_id: str


class StreamKey(NamedTuple):
    """What one incarnation of one broker writes to the WAL tier in one go."""

    node: int
    broker_epoch: int
    generation: int


class WalObject(NamedTuple):
    """An object of the WAL tier or a seal: its head tells which."""

    stream: StreamKey
    seq: int


class WalIndex(NamedTuple):
    stream: StreamKey
    seq: int
    """Of the first object that it repeats."""


class WalBoundary(NamedTuple):
    stream: StreamKey
    seq: int
    """The objects up to it, itself included, may be gone."""


class WalFloors(NamedTuple):
    node: int


Key = (
    MetaSlot
    | MetaSnapshot
    | MetaBoundary
    | TierData
    | TierIndex
    | WalObject
    | WalIndex
    | WalBoundary
    | WalFloors
)

_ID: Final = r"[A-Za-z0-9_-]{21}[AQgw]"
_NUMBER: Final = r"0|[1-9][0-9]{0,9}"
_META: Final = re.compile(r"meta/(snapshot/|boundary/)?([0-9]{20})", re.ASCII)
_TIER: Final = re.compile(rf"tier/({_ID})/({_NUMBER})/([0-9]{{20}})-({_ID})\.(log|idx)", re.ASCII)
_WAL: Final = re.compile(
    rf"wal/({_NUMBER})/([0-9]{{20}})-([0-9]{{10}})/(index/|boundary/)?([0-9]{{20}})", re.ASCII
)
_FLOORS: Final = re.compile(rf"wal/({_NUMBER})/floors", re.ASCII)
_META_KINDS: Final[dict[str | None, type[MetaSlot | MetaSnapshot | MetaBoundary]]] = {
    None: MetaSlot,
    "snapshot/": MetaSnapshot,
    "boundary/": MetaBoundary,
}
_WAL_KINDS: Final[dict[str | None, type[WalObject | WalIndex | WalBoundary]]] = {
    None: WalObject,
    "index/": WalIndex,
    "boundary/": WalBoundary,
}


def parse_key(key: str) -> Key | None:
    """Return what the key names, None if it is no key of ours."""
    if found := _TIER.fullmatch(key):
        parts = found[1], int(found[2]), int(found[3]), found[4]
        return TierData(*parts) if found[5] == "log" else TierIndex(*parts)
    if found := _WAL.fullmatch(key):
        stream = StreamKey(int(found[1]), int(found[2]), int(found[3]))
        return _WAL_KINDS[found[4]](stream, int(found[5]))
    if found := _META.fullmatch(key):
        return _META_KINDS[found[1]](int(found[2]))
    if found := _FLOORS.fullmatch(key):
        return WalFloors(int(found[1]))
    return None


# --- the keys themselves, for whoever looks for one ---


def slot_key(seq: int) -> str:
    return f"{SLOT_PREFIX}{seq:020d}"


def snapshot_key(seq: int) -> str:
    return f"{SNAPSHOT_PREFIX}{seq:020d}"


def tier_key(topic_id: str, partition: int, base_offset: int, segment_id: str, end: str) -> str:
    """Return the key of a copy's object; `end` is log or idx."""
    return f"{TIER}{topic_id}/{partition}/{base_offset:020d}-{segment_id}.{end}"


def stream_prefix(stream: StreamKey) -> str:
    return f"{WAL}{stream.node}/{stream.broker_epoch:020d}-{stream.generation:010d}/"


def wal_key(stream: StreamKey, seq: int) -> str:
    return f"{stream_prefix(stream)}{seq:020d}"


# --- ids ---


def topic_text(raw: bytes) -> str:
    """Return an id of 16 bytes as keys and Kafka's tools show it: 22 characters."""
    return urlsafe_b64encode(raw)[:22].decode()


def topic_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id that `parse_key` or `topic_text` gave."""
    return urlsafe_b64decode(f"{text}==")
