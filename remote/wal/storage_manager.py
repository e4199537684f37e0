"""What keeps combined objects: KIP-1176's RemoteWalStorageManager, as an interface with coroutines.

Owns: the `WalStorageManager` interface, the description of an object that is copied, what it may raise. Does
not own: any implementation (object_wal is built in, plugins loads others), which slices go into an object
(combiner), when one counts (window).

Invariant: of all that is ever copied to one place at most one wins, whatever was sent twice or answered late;
what was copied is fetched byte for byte or an error is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.checksum import Buffer
from remote.store.object_store import ObjectStore
from remote.wal.combined_object import Head, Place, Row


class SlotTaken(Exception):
    """Another object lies at this place: a seal, or what another process wrote that takes itself for this
    one; or something that cannot be read, whosever it was. It will never be ours."""

    def __init__(self, head: Head | None) -> None:
        """`head` is None where it cannot be read."""
        super().__init__(
            "what lies at the place cannot be read"
            if head is None
            else f"{head.kind.name} of broker {head.writer[0]} lies at {head.place}"
        )
        self.head = head


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedMetadata:
    """An object before it is copied (RemoteWalCombinedLogSegmentMetadata)."""

    head: Head
    rows: tuple[Row, ...]
    """With the positions that the slices get."""

    @property
    def place(self) -> Place:
        return self.head.place


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedObject:
    """What the manager says of an object that it has copied (…MetadataUpdate)."""

    place: Place
    size: int
    custom: bytes | None = None
    """Metadata of the manager's own, a bucket's name for example."""


class WalStorageManager(Protocol):
    @property
    def store(self) -> ObjectStore:
        """Where the objects lie under their keys, and with them seals, boundaries and floors."""
        ...

    async def copy(self, metadata: CombinedMetadata, data: bytes) -> CopiedObject:
        """Copy one object, `data` being all of its bytes. Return once it is there, whoever's attempt it was
        of those with this put-id: to do it again is no error. Raise SlotTaken when something else is there,
        or what cannot be read although it was asked for again; StoreError when nobody knows, which may be
        asked again with the same bytes. Gives up after a bounded time."""
        ...

    async def fetch(self, place: Place, start: int, end: int) -> Buffer:
        """Return the bytes [start, end) of an object, cut at its end; raise NoSuchObject or StoreError."""
        ...

    async def close(self) -> None: ...
