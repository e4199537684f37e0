"""Managers of combined objects that can be named by their import paths, each with a store of its own.

Owns: `RemoteWalStorageManager`, for any store that a URL names, and `LocalWalStorageManager`, for a directory
that the brokers share; their settings. Does not own: how objects get to their places (object_wal), the lane
that the broker uses where no manager is named. Invariant: a manager closes the store that it opened.

They are made by name, with settings alone; so clock, threads and environment are the process's own.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping

from remote.store.lane_threads import LaneThreads
from remote.store.location import FileLocation, StoreLocation, parse_store_url
from remote.store.metered import StoreStats
from remote.store.stores import open_lane
from remote.wal.object_wal import ObjectWal
from storage.files import DiskFiles


class _WalManager(ObjectWal):
    """Opens its own lane, and closes it."""

    def __init__(self, location: StoreLocation, *, syncs: bool) -> None:
        self.stats = StoreStats()
        self._threads = LaneThreads()
        rng = random.Random()
        store = open_lane(
            location,
            files=DiskFiles(),
            offload=self._threads,
            now_ms=_now_ms,
            rng=rng,
            environ=os.environ,
            stats=self.stats,
            syncs=syncs,
        )
        super().__init__(store, rng=rng, stats=self.stats)

    async def close(self) -> None:
        await self.store.close()
        self._threads.close()


class RemoteWalStorageManager(_WalManager):
    """Keeps objects in the store that the setting `url` names, as `--store` does."""

    def __init__(self, config: Mapping[str, str]) -> None:
        settings = _settings(config, needed="url")
        super().__init__(parse_store_url(settings["url"], os.environ), syncs=_truth("sync", settings["sync"]))


class LocalWalStorageManager(_WalManager):
    """Keeps objects as files below the setting `dir`, which is on one machine or on a volume that the brokers
    share. With `sync=true` an object is synced before it counts."""

    def __init__(self, config: Mapping[str, str]) -> None:
        settings = _settings(config, needed="dir")
        if not os.path.isabs(settings["dir"]):
            raise ValueError(f"dir={settings['dir']}: give an absolute path")
        super().__init__(FileLocation(settings["dir"]), syncs=_truth("sync", settings["sync"]))


def _settings(config: Mapping[str, str], *, needed: str) -> dict[str, str]:
    settings = {"sync": "false", **config}
    if unknown := settings.keys() - {needed, "sync"}:
        raise ValueError(f"no such setting: {', '.join(sorted(unknown))}")
    if needed not in settings:
        raise ValueError(f"the setting {needed} is missing")
    return settings


def _truth(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{name}={text}: give true or false")
    return text == "true"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251
