"""Managers of combined objects that somebody else wrote, found by their import path.

Owns: the setting that names one, what it needs, turning its errors into those that callers know. Does not
own: finding a class (remote.plugin), the settings behind the prefix (broker.config), what a manager does.
Invariant: copying and fetching through it raises SlotTaken, NoSuchObject or StoreError, and a plugin that
fails costs the request and nothing else.

A manager is a class that takes one mapping, the settings behind its prefix (`rwsm.config.`) without that,
and has what `WalStorageManager` has. Its `store` may be any ObjectStore in which its objects lie under their
keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar, cast

from protocol.checksum import Buffer
from remote.plugin import BadPlugin, load
from remote.store.object_store import NoSuchObject, ObjectStore, StoreError
from remote.wal.combined_object import Place
from remote.wal.storage_manager import CombinedMetadata, CopiedObject, SlotTaken, WalStorageManager

T = TypeVar("T")

SETTING: Final = "remote.log.wal.storage.manager.class.name"
_METHODS: Final = ("copy", "fetch", "close")
_STORE_METHODS: Final = ("get_range", "get_pieces", "put", "put_if_absent", "list", "delete")


def load_wal_manager(
    name: str, config: Mapping[str, str], *, class_path: str | None = None
) -> WalStorageManager:
    """Return the manager `package.module:Class`, made with `config`; BadPlugin if that cannot be."""
    made = load(SETTING, _METHODS, name, config, class_path)
    store = getattr(made, "store", None)
    lacking = [method for method in _STORE_METHODS if not callable(getattr(store, method, None))]
    if lacking:
        raise BadPlugin(f"{SETTING}={name}: its store is none: it lacks {', '.join(lacking)}")
    return GuardedWal(cast(WalStorageManager, made))


class GuardedWal:
    def __init__(self, inner: WalStorageManager) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<GuardedWal {self._inner!r}>"

    @property
    def store(self) -> ObjectStore:
        return self._inner.store

    async def copy(self, metadata: CombinedMetadata, data: bytes) -> CopiedObject:
        return await _guarded(self._inner.copy(metadata, data))

    async def fetch(self, place: Place, start: int, end: int) -> Buffer:
        return await _guarded(self._inner.fetch(place, start, end))

    async def close(self) -> None:
        await _guarded(self._inner.close())


async def _guarded(work: Awaitable[T]) -> T:
    try:
        return await work
    except (SlotTaken, NoSuchObject, StoreError):
        raise
    except Exception as error:
        raise StoreError(f"the manager of combined objects failed: {error!r}") from error
