"""Classes of others, found by their import path.

Owns: finding the class, making it with its settings, and what is wrong with a name that cannot be used. Does
not own: the settings (broker.config), which classes there may be and what they need (remote.cold.plugins,
remote.wal.plugins). Invariant: whatever the module of a plugin does when it is imported or made, the answer
is an object with the methods that were asked for, or one line that names the setting.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from typing import Any

_PATH = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)[.:](?P<name>[^\W\d]\w*)")


class BadPlugin(ValueError):
    """No manager has this name. The message is one line: the setting, and what to give instead."""


def load(
    setting: str, methods: tuple[str, ...], name: str, config: Mapping[str, str], class_path: str | None
) -> Any:
    """Return what the class `package.module:Class` makes of `config`; BadPlugin if that cannot be, or lacks
    one of the methods. `class_path` names folders to look in for what is not installed, separated as on PATH.
    """
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
