"""Managers of others, for the objects of the tier and for what is known of them, found by their import path.

Owns: finding the class, making it with its settings, and what is wrong with a name that cannot be used. Does
not own: the settings (broker.config), what a manager does. Invariant: whatever the module of a plugin does
when it is imported or made, the answer is a manager or one line that names the setting.

A manager is a class that takes one mapping, the settings behind its prefix (`rsm.config.`, `rlmm.config.`)
without that, and has the methods of `StorageManager` or `MetadataManager`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from typing import Any, Final, cast

from remote.cold.metadata_manager import MetadataManager
from remote.cold.storage_manager import StorageManager

STORAGE: Final = "remote.log.storage.manager.class.name"
METADATA: Final = "remote.log.metadata.manager.class.name"
_PATH = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)[.:](?P<name>[^\W\d]\w*)")
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


class BadPlugin(ValueError):
    """No manager has this name. The message is one line: the setting, and what to give instead."""


def load_manager(name: str, config: Mapping[str, str], *, class_path: str | None = None) -> StorageManager:
    """Return the storage manager `package.module:Class`, made with `config`; BadPlugin if that cannot be.

    `class_path` names folders to look in for what is not installed, separated as on PATH.
    """
    return cast(StorageManager, _load(STORAGE, _STORAGE_METHODS, name, config, class_path))


def load_metadata_manager(
    name: str, config: Mapping[str, str], *, class_path: str | None = None
) -> MetadataManager:
    """Return the metadata manager of this name, as `load_manager` does."""
    return cast(MetadataManager, _load(METADATA, _METADATA_METHODS, name, config, class_path))


def _load(
    setting: str, methods: tuple[str, ...], name: str, config: Mapping[str, str], class_path: str | None
) -> Any:
    found = _PATH.fullmatch(name)
    if found is None:
        raise _bad(setting, name, "give a Python class as package.module:Class")
    for folder in (class_path or "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
            invalidate_caches()
    try:
        made = getattr(import_module(found["module"]), found["name"])(config)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if found["module"] == missing or found["module"].startswith(f"{missing}."):
            why = f"there is no Python module {missing}; a class for Java cannot be used"
            raise _bad(setting, name, why) from None
        raise _bad(setting, name, _said_by(error)) from error
    except Exception as error:
        raise _bad(setting, name, _said_by(error)) from error
    lacking = [method for method in methods if not callable(getattr(made, method, None))]
    if lacking:
        raise _bad(setting, name, f"it is no such manager: it lacks {', '.join(lacking)}")
    return made


def _bad(setting: str, name: str, why: str) -> BadPlugin:
    return BadPlugin(f"{setting}={name}: {why}")


def _said_by(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
