"""Reading what an object of the WAL tier says about itself, out of the bucket.

Owns: how much of an object is read for that. Does not own: which objects count, the layout (combined_object).
Invariant: what is returned is the whole head and table of the object at that place.
"""

from __future__ import annotations

from remote.bad_object import BadObject
from remote.keys import Stream, WalPart, parse_wal_key, stream_prefix, wal_key
from remote.store.object_store import ObjectStore
from remote.wal.combined_object import HEAD_READ_BYTES, Place, Table, decode_table, table_end


async def read_table(store: ObjectStore, place: Place) -> Table:
    """Raise NoSuchObject, StoreError, or BadObject."""
    key = wal_key(place.stream, place.seq)
    data = await store.get_range(key, 0, HEAD_READ_BYTES)
    end = table_end(data)
    if end > len(data):
        data = await store.get_range(key, 0, end)
    table = decode_table(data)
    if table.head.place != place:
        raise BadObject(f"the object at {place} says that it lies at {table.head.place}")
    return table


async def read_boundary(store: ObjectStore, stream: Stream) -> int:
    """Return the highest number that a boundary of the stream takes, -1 without any."""
    prefix = f"{stream_prefix(stream)}{WalPart.BOUNDARY}"
    found = [parse_wal_key(info.key) for info in await store.list(prefix)]
    return max((key.seq for key in found if key is not None), default=-1)
