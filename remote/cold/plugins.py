"""Storage managers of others, found by their import path.

Owns: finding the class, making it with its settings, and what is wrong with a name that cannot be used. Does
not own: the settings (broker.config), what a manager does. Invariant: whatever the module of a plugin does
when it is imported or made, the answer is a manager or one line that names the setting.

A manager is a class that takes one mapping, the `rsm.config.` settings without their prefix, and has the
methods of `StorageManager`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from typing import Final, cast

from remote.cold.storage_manager import StorageManager

CLASS_NAME: Final = "remote.log.storage.manager.class.name"
_PATH = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)[.:](?P<name>[^\W\d]\w*)")
_METHODS: Final = (
    "copy_segment",
    "fetch_segment",
    "fetch_index",
    "fetch_header",
    "delete_segment",
    "local_path",
    "close",
)


class BadPlugin(ValueError):
    """No storage manager has this name. The message is one line: the setting, and what to give instead."""


def load_manager(name: str, config: Mapping[str, str], *, class_path: str | None = None) -> StorageManager:
    """Return the manager `package.module:Class`, made with `config`; BadPlugin if that cannot be.

    `class_path` names folders to look in for what is not installed, separated as on PATH.
    """
    found = _PATH.fullmatch(name)
    if found is None:
        raise _bad(name, "give a Python class as package.module:Class")
    for folder in (class_path or "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
            invalidate_caches()
    try:
        made = getattr(import_module(found["module"]), found["name"])(config)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if found["module"] == missing or found["module"].startswith(f"{missing}."):
            raise _bad(
                name, f"there is no Python module {missing}; a class for Java cannot be used"
            ) from None
        raise _bad(name, _said_by(error)) from error
    except Exception as error:
        raise _bad(name, _said_by(error)) from error
    lacking = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise _bad(name, f"it is no storage manager: it lacks {', '.join(lacking)}")
    return cast(StorageManager, made)


def _bad(name: str, why: str) -> BadPlugin:
    return BadPlugin(f"{CLASS_NAME}={name}: {why}")


def _said_by(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
