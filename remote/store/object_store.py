"""Object storage: whole, named, immutable byte strings, and the one conditional put everything is built on.

Owns: the `ObjectStore` interface, its errors, what a key may look like. Does not own: any store
(memory_store, local_store, s3_store), retries and deadlines (resilient), how a large object is cut into parts
(upload), what the objects mean.

Invariant: of any number of `put_if_absent` calls for one key, in any processes, at most one ever returns WON,
and an object is either absent or whole. UNKNOWN promises nothing: reading the key tells which put won.
Nothing that is uploaded in parts is an object before the upload is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final, NamedTuple, Protocol

from protocol.checksum import Buffer

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
    BEGIN_UPLOAD = "begin_upload"
    PUT_PART = "put_part"
    COMPLETE_UPLOAD = "complete_upload"
    ABORT_UPLOAD = "abort_upload"
    LIST_UPLOADS = "list_uploads"


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


class NoSuchUpload(Exception):
    """The store answered that this upload was never begun, or was completed or aborted."""


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_ms: int
    """When it was put, by the store's clock."""


class Upload(NamedTuple):
    """An upload in parts that was begun and neither completed nor aborted."""

    key: str
    upload: str
    """Its id, which only its own store understands."""
    begun_ms: int
    """When it was begun, by the store's clock."""


class ObjectStore(Protocol):
    async def get(self, key: str) -> bytes:
        """Return the whole object; raise NoSuchObject, or StoreError when the store did not say."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end), cut at the end of the object."""
        ...

    async def get_pieces(self, key: str, start: int, end: int, *, piece_bytes: int) -> Sequence[Buffer]:
        """Return the same bytes in pieces of `piece_bytes`, the last one perhaps shorter; each is memory of
        its own, which goes when nobody holds it."""
        ...

    async def put(self, key: str, data: Buffer) -> None:
        """Create or replace the object; durable when this returns."""
        ...

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """Create the object if none has this key; durable when this returns WON. Raise StoreError for a
        permanent refusal alone.
        """
        ...

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        """Return the objects whose keys start with `prefix` and sort after `after`, in that order;
        the first `at_most` of them."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the object if there is one; it is gone when this returns."""
        ...

    async def begin_upload(self, key: str) -> str:
        """Begin to upload an object in parts; return the upload's id. After a StoreError there may be an
        upload whose id nobody knows: `list_uploads` tells.
        """
        ...

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        """Put the bytes that lie at `start` of the object, as part `number` (from 1); return the tag that
        `complete_upload` wants; durable when this returns. Parts go in any order, several at once, and again.
        Each but the last has at least 5 MiB, or S3 refuses the object. Raise NoSuchUpload.
        """
        ...

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        """Create or replace the object with the parts, given as (number, tag) in order; durable when this
        returns. Asked again because the reply was lost, it finds the upload gone and an object of this
        `size`, and takes that for its own; so the key has to be one that is used once. Raise NoSuchUpload
        when there is neither.
        """
        ...

    async def abort_upload(self, key: str, upload: str) -> None:
        """Drop the upload and its parts, if there is one."""
        ...

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        """Return the uploads under way or left over whose keys start with `prefix`, in order of their keys.
        A store may know those of exactly one key alone (MinIO), so who looks for leftovers asks by key.
        """
        ...

    def local_path(self, key: str) -> str | None:
        """Return the path of the file that the object is, if it is one on this machine, else None; whether
        there is such an object is not looked at.
        """
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


def check_part(number: int, start: int) -> None:
    if number < 1 or start < 0:
        raise ValueError(f"not a part: number {number} at byte {start}")


def check_range(start: int, end: int) -> None:
    if not 0 <= start <= end:
        raise ValueError(f"not a byte range: [{start}, {end})")


def cut(data: bytes, piece_bytes: int) -> Sequence[bytes]:
    """Return bytes that were read in one as the pieces that `get_pieces` gives."""
    if len(data) <= piece_bytes:
        return (data,) if data else ()
    return [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
