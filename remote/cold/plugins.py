"""Managers of others, for the objects of the tier and for what is known of them, found by their import path.

Owns: which settings name them, and which methods they need. Does not own: finding a class (remote.plugin),
the settings behind a prefix (broker.config), what a manager does. Invariant: what is returned has all methods
of its interface.

A manager is a class that takes one mapping, the settings behind its prefix (`rsm.config.`, `rlmm.config.`)
without that, and has the methods of `StorageManager` or `MetadataManager`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from remote.cold.metadata_manager import MetadataManager
from remote.cold.storage_manager import StorageManager
from remote.plugin import load

STORAGE: Final = "remote.log.storage.manager.class.name"
METADATA: Final = "remote.log.metadata.manager.class.name"
_STORAGE_METHODS: Final = (
    "copy_segment",
    "fetch_segment",
    "fetch_index",
    "fetch_header",
    "delete_segment",
    "local_path",
    "close",
)
_METADATA_METHODS: Final = (
    "start",
    "stop",
    "fold",
    "follow",
    "unfollow",
    "renew",
    "is_caught_up",
    "wait_caught_up",
    "submit",
)


def load_manager(name: str, config: Mapping[str, str], *, class_path: str | None = None) -> StorageManager:
    """Return the storage manager `package.module:Class`, made with `config`; BadPlugin if that cannot be.

    `class_path` names folders to look in for what is not installed, separated as on PATH.
    """
    return cast(StorageManager, load(STORAGE, _STORAGE_METHODS, name, config, class_path))


def load_metadata_manager(
    name: str, config: Mapping[str, str], *, class_path: str | None = None
) -> MetadataManager:
    """Return the metadata manager of this name, as `load_manager` does."""
    return cast(MetadataManager, load(METADATA, _METADATA_METHODS, name, config, class_path))
