"""File descriptors: as many as the system gives, some of which connections never get.

Owns: the limit of the process and the reserve for files. Does not own: closing files (storage) or refusing
connections (net.server). Invariant: a new connection leaves files `FILE_DESCRIPTORS`, or a quarter of all.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

FILE_DESCRIPTORS: Final = 256
"""Kept for files; a quarter of all where fewer than 1,024 may be open."""


class DescriptorRoom:
    """Tells whether a new connection leaves enough descriptors for files."""

    def __init__(self, release_files: Callable[[], object]) -> None:
        self._release_files = release_files

    def __call__(self, descriptor: int) -> bool:
        """The kernel gives out the lowest free number, so a low one says that many are free."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        bound = limit - min(FILE_DESCRIPTORS, limit // 4)
        if limit < 0 or descriptor < bound:
            return True
        self._release_files()
        try:
            lowest = os.dup(descriptor)
        except OSError:
            return False
        os.close(lowest)
        return lowest < bound


def raise_descriptor_limit() -> None:
    """Take the hard limit: each connection and open segment needs one, the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS names an infinite limit and refuses it
            logger.warning("the limit of open files stays at %d: %s", soft, error)
