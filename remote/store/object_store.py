"""Object storage: whole, named, immutable byte strings, and the one conditional put everything is built on.

Owns: the `ObjectStore` interface, its errors, what a key may look like. Does not own: any store
(memory_store, local_store, s3_store), retries and deadlines (resilient), what the objects mean.

Invariant: of any number of `put_if_absent` calls for one key, in any processes, at most one ever returns WON,
and an object is either absent or whole. UNKNOWN promises nothing: reading the key tells which put won.
"""

from __future__ import annotations

import re
from enum import Enum, StrEnum
from typing import Final, Protocol

KEY_MAX_CHARS: Final = 512
_SEGMENT = r"[A-Za-z0-9_=\-][A-Za-z0-9._=\-]*"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


class PutResult(Enum):
    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


class Operation(StrEnum):
    GET = "get"
    GET_RANGE = "get_range"
    PUT = "put"
    PUT_IF_ABSENT = "put_if_absent"
    LIST = "list"
    DELETE = "delete"


class Fault(StrEnum):
    """The reason why a store did not do what it was asked."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    THROTTLED = "throttled"
    SERVER = "server"
    CONFLICT = "conflict"
    DENIED = "denied"
    REFUSED = "refused"
    CORRUPT = "corrupt"
    DISK = "disk"


class StoreError(Exception):
    """The store could not be asked, or did not answer. A retry may help, unless it is `permanent`."""

    def __init__(self, message: str, *, permanent: bool = False, fault: Fault = Fault.SERVER) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.fault = fault


class NoSuchObject(Exception):
    """The store answered that there is no object of this name."""


class ObjectStore(Protocol):
    async def get(self, key: str) -> bytes:
        """Return the whole object; raise NoSuchObject, or StoreError when the store did not say."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end), cut at the end of the object."""
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Create or replace the object; durable when this returns."""
        ...

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """Create the object if none has this key; durable when this returns WON. Raise StoreError for a
        permanent refusal alone.
        """
        ...

    async def list(self, prefix: str, *, after: str = "") -> list[str]:
        """Return the keys that start with `prefix` and sort after `after`, in order."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the object if there is one; it is gone when this returns."""
        ...

    async def close(self) -> None:
        """Close its connections; nothing may be asked afterwards."""
        ...


def is_key(text: str) -> bool:
    """Whether the text is a path of plain names, none of which starts with a dot."""
    return len(text) <= KEY_MAX_CHARS and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Return the key; ValueError if it is none."""
    if not is_key(key):
        raise ValueError(f"not an object key: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    if len(prefix) > KEY_MAX_CHARS or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"not a key prefix: {prefix!r}")
    return prefix


def check_range(start: int, end: int) -> None:
    if not 0 <= start <= end:
        raise ValueError(f"not a byte range: [{start}, {end})")
