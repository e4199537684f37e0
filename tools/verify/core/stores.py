"""Where bytes are read from: a store on a file system or in S3, or the data directory of a broker.

Owns the grammar of their URLs, listings and ranged reads, and how often and how much was read. Does not own
what lies there (keys, layouts, directory).
Invariant: nothing here can write. What the place did not say is `SourceFailed`, and never passes for an
object that is not there.

A source may be pickled: it takes its place with it, but neither connections nor credentials, which each
process finds in its own environment.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

T = TypeVar("T")

FORMS: Final = "file:///DIR or s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=NAME"
ATTEMPTS_MAX: Final = 5
CONNECT_S_MAX: Final = 5.0
READ_S_MAX: Final = 30.0
"""Without a byte from the store."""
PAGE_KEYS: Final = 1000
"""Of a listing in S3, which gives no more."""
MAP_BYTES: Final = 1 << 20
"""Less is copied for what a map costs."""
DEPTH_MAX: Final = 32
"""Of folders: a link that leads back ends there."""
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_=\-][A-Za-z0-9._=\-]*(?:/[A-Za-z0-9_=\-][A-Za-z0-9._=\-]*)*")
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


class BadSourceUrl(ValueError):
    """A URL that names no place. The message is one line, without secrets."""


class SourceFailed(Exception):
    """The place could not be asked or did not answer: nothing is known of the bytes. One line says why."""


class Gone(Exception):
    """The place answered that there is nothing under this name."""


class TooLarge(Exception):
    """What lies there is larger than anything that is to lie there."""


class Listed(NamedTuple):
    key: str
    size: int
    modified_ms: int
    """When it was put, by the clock of the place."""


@dataclass(slots=True)
class Counts:
    """What was asked of a source in this process."""

    requests: int = 0
    received: int = 0
    """Bytes of objects."""


class Source(Protocol):
    @property
    def counts(self) -> Counts: ...

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Yield what lies below the prefix, in the order of the keys' UTF-8 bytes."""
        ...

    def read(self, key: str, start: int, size: int) -> bytes:
        """Return the bytes from `start` on, fewer than `size` only at the end. Raise Gone."""
        ...

    def read_piece(self, key: str, start: int, size: int) -> memoryview:
        """Return what `read` does, in memory that this thread's next call may write again."""
        ...

    def read_all(self, key: str, limit: int) -> bytes:
        """Return all of it, as it was at one moment. Raise Gone, and TooLarge above `limit` bytes."""
        ...


def open_source(url: str, environ: Mapping[str, str] | None = None) -> Source:
    """Return the source: a store by its URL, or a data directory by its path. What the URL leaves open comes
    from the usual AWS_* variables. Nothing is asked of it yet."""
    known = os.environ if environ is None else environ
    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            if not parts.path or parts.netloc:
                raise BadSourceUrl(f"{url}: give a directory as file:///DIR")
            return FileSource(parts.path)
        if parts.scheme == "s3":
            return _s3_source(url, known)
    except BadSourceUrl:
        raise
    except ValueError as error:
        raise BadSourceUrl(f"{url}: {error}: give {FORMS}") from None
    if url and "://" not in url and "\0" not in url:
        return FileSource(url, is_store=False)
    raise BadSourceUrl(f"{url}: give {FORMS}")


# --- files ---


@dataclass(frozen=True, slots=True)
class FileSource:
    root: str
    is_store: bool = True
    """In a store, names that begin with a dot are no objects, and a root without anything is not a store."""
    counts: Counts = field(default_factory=Counts, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSource, (self.root, self.is_store)

    def list(self, prefix: str = "") -> Iterator[Listed]:
        folder = prefix.rpartition("/")[0]
        if folder and not _is_inside(folder):
            return
        try:
            with os.scandir(self.root) as entries:
                if self.is_store and next(entries, None) is None:
                    raise SourceFailed(f"{self.root}: the directory is empty, and no store: is it mounted?")
            yield from self._walk(f"{folder}/" if folder else "", prefix, 0)
        except OSError as error:
            raise SourceFailed(_told(error, self.root)) from None

    def _walk(self, above: str, prefix: str, depth: int) -> Iterator[Listed]:
        self.counts.requests += 1
        if depth > DEPTH_MAX:
            raise SourceFailed(f"{self.root}/{above}: folders in folders, more than {DEPTH_MAX}")
        try:
            with os.scandir(f"{self.root}/{above}") as entries:
                found = [
                    (f"{entry.name}/" if entry.is_dir() else entry.name, entry)
                    for entry in entries
                    if not (self.is_store and entry.name.startswith("."))
                ]
        except (FileNotFoundError, NotADirectoryError):
            if not above:
                raise
            return  # it went meanwhile
        for name, entry in sorted(found, key=lambda one: os.fsencode(one[0])):
            key = f"{above}{name}"
            if not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(key, prefix, depth + 1)
            elif key.startswith(prefix) and (listed := _listed_file(key, entry)) is not None:
                yield listed

    def read(self, key: str, start: int, size: int) -> bytes:
        data = self.opened(key, lambda file: _pread(file, start, size))
        self.counts.received += len(data)
        return data

    def read_piece(self, key: str, start: int, size: int) -> memoryview:
        if _may_map and self.is_store and size >= MAP_BYTES:
            mapped = self.opened(key, lambda file: _mapped(file, start, size))
            self.counts.received += len(mapped)
            return mapped
        room = _room(size)
        many = self.opened(key, lambda file: _pread_into(file, start, room))
        self.counts.received += many
        return room[:many]

    def read_all(self, key: str, limit: int) -> bytes:
        def read(file: int) -> bytes:
            found = os.fstat(file)
            if stat.S_ISDIR(found.st_mode):
                raise Gone(key)
            if found.st_size > limit:
                raise TooLarge(f"{key}: {found.st_size} bytes, more than {limit}")
            return _pread(file, 0, found.st_size)

        data = self.opened(key, read)
        self.counts.received += len(data)
        return data

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        """Return what `read` makes of the open file: one request, whatever it does."""
        self.counts.requests += 1
        if not _is_inside(key):
            raise Gone(key)
        try:
            file = os.open(f"{self.root}/{key}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(self.root):
                raise SourceFailed(f"{self.root}: no such directory") from None
            raise Gone(key) from None
        except OSError as error:
            raise SourceFailed(_told(error, key)) from None
        try:
            return read(file)
        except IsADirectoryError:
            raise Gone(key) from None
        except OSError as error:
            raise SourceFailed(_told(error, key)) from None
        finally:
            os.close(file)


def _listed_file(key: str, entry: os.DirEntry[str]) -> Listed | None:
    try:
        if not entry.is_file():
            return None
        found = entry.stat()
    except FileNotFoundError:
        return None  # it went meanwhile
    shown = key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return Listed(shown, found.st_size, found.st_mtime_ns // 1_000_000)


def _is_inside(key: str) -> bool:
    return "\0" not in key and not {"", ".", ".."} & set(key.split("/"))


def _pread(file: int, start: int, size: int) -> bytes:
    data = os.pread(file, size, start)
    if not data or len(data) == size:
        return data
    pieces = [data]
    at = len(data)
    while at < size and (more := os.pread(file, size - at, start + at)):
        pieces.append(more)
        at += len(more)
    return b"".join(pieces)


def _pread_into(file: int, start: int, room: memoryview) -> int:
    """Fill the room from `start` on, as far as there is something, and return how far."""
    at = 0
    while at < len(room) and (many := os.preadv(file, [room[at:]], start + at)):
        at += many
    return at


_may_map = False


def allow_maps() -> None:
    """Let this process map the objects of a store where that is cheaper than copying them. A disk that fails
    then ends the process, not a call: it must be one whose end is told as not read."""
    global _may_map
    _may_map = True


def _mapped(file: int, start: int, size: int) -> memoryview:
    size = min(size, os.fstat(file).st_size - start)
    if size <= 0:
        return memoryview(b"")
    before = start % mmap.ALLOCATIONGRANULARITY
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    place = mmap.mmap(file, before + size, flags, mmap.PROT_READ, offset=start - before)
    return memoryview(place)[before:]


_rooms = threading.local()


def _room(size: int) -> memoryview:
    """So many bytes of memory that this thread keeps: fresh memory costs half as much as reading into it."""
    room: bytearray = getattr(_rooms, "room", bytearray())
    if len(room) < size:
        room = _rooms.room = bytearray(max(size, 2 * len(room)))
    return memoryview(room)[:size]


def _told(error: OSError, place: str) -> str:
    return f"{error.filename or place}: {error.strerror or error}"


# --- S3 ---


@dataclass(frozen=True, slots=True)
class S3Source:
    bucket: str
    prefix: str
    """Empty, or ends with a slash."""
    endpoint: str | None
    """None: that of Amazon in the region."""
    region: str
    counts: Counts = field(default_factory=Counts, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return S3Source, (self.bucket, self.prefix, self.endpoint, self.region)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def list(self, prefix: str = "") -> Iterator[Listed]:
        more: dict[str, str] = {}
        while True:
            page = self._ask(prefix, self._list_page, prefix, more)
            for row in page.get("Contents", ()):
                yield Listed(
                    row["Key"].removeprefix(self.prefix),
                    row["Size"],
                    round(row["LastModified"].timestamp() * 1000),
                )
            if not page.get("IsTruncated"):
                return
            if "NextContinuationToken" not in page:
                raise SourceFailed(f"{self}{prefix}: the listing breaks off")
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _list_page(self, prefix: str, more: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = self._client().list_objects_v2(
            Bucket=self.bucket, Prefix=f"{self.prefix}{prefix}", MaxKeys=PAGE_KEYS, **more
        )
        return found

    def read(self, key: str, start: int, size: int) -> bytes:
        if size <= 0:
            return b""

        def get() -> bytes:
            told = self._client().get_object(
                Bucket=self.bucket, Key=f"{self.prefix}{key}", Range=f"bytes={start}-{start + size - 1}"
            )
            return _body(told, size, f"{self}{key}")

        try:
            return self._received(self._ask(key, get))
        except _PastEnd:
            return b""

    def read_piece(self, key: str, start: int, size: int) -> memoryview:
        return memoryview(self.read(key, start, size))

    def read_all(self, key: str, limit: int) -> bytes:
        def get() -> bytes:
            told = self._client().get_object(Bucket=self.bucket, Key=f"{self.prefix}{key}")
            if (size := told["ContentLength"]) > limit:
                told["Body"].close()
                raise TooLarge(f"{key}: {size} bytes, more than {limit}")
            return _body(told, limit, f"{self}{key}")

        return self._received(self._ask(key, get))

    def _received(self, data: bytes) -> bytes:
        self.counts.received += len(data)
        return data

    def _client(self) -> Any:
        return _s3_client(self.endpoint, self.region, is_in_host="." not in self.bucket)

    def _ask(self, key: str, call: Callable[..., T], *args: Any) -> T:
        """Botocore tries a call again, but not the body that breaks off: that is done here."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            IncompleteReadError,
            ResponseStreamingError,
        )

        for attempt in range(1, ATTEMPTS_MAX + 1):
            self.counts.requests += 1
            try:
                return call(*args)
            except ClientError as error:
                code = error.response["Error"].get("Code", "")
                if code in ("NoSuchKey", "404"):
                    raise Gone(key) from None
                if code in ("InvalidRange", "416"):
                    raise _PastEnd from None
                why = f"{code} {error.response['Error'].get('Message', '')}".strip()
                raise SourceFailed(f"{self}{key}: {why}") from None
            except (ResponseStreamingError, IncompleteReadError) as error:
                if attempt == ATTEMPTS_MAX:
                    raise SourceFailed(f"{self}{key}: {_one_line(error)}") from None
            except (BotoCoreError, OSError, ValueError) as error:
                raise SourceFailed(f"{self}{key}: {_one_line(error)}") from None
        raise AssertionError


class _PastEnd(Exception):
    """Nothing of the object lies at or behind that byte."""


def _body(told: Any, limit: int, place: str) -> bytes:
    with closing(told["Body"]) as body:
        if told["ContentLength"] > limit:
            raise SourceFailed(f"{place}: {told['ContentLength']} bytes instead of {limit}: no ranges there?")
        data: bytes = body.read()
        return data


def _one_line(error: Exception) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


_clients: Final[dict[tuple[int, str | None, str, bool], Any]] = {}
"""One for each process: connections do not survive a fork."""


def _s3_client(endpoint: str | None, region: str, *, is_in_host: bool) -> Any:
    key = (os.getpid(), endpoint, region, is_in_host)
    if key not in _clients:
        from botocore.config import Config
        from botocore.session import get_session

        # The place was settled where the URL was read: only credentials come from this process.
        _clients[key] = get_session().create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint or f"https://s3.{region}.amazonaws.com",
            config=Config(
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
                connect_timeout=CONNECT_S_MAX,
                read_timeout=READ_S_MAX,
                tcp_keepalive=True,
                response_checksum_validation="when_required",
                s3={"addressing_style": "virtual" if endpoint is None and is_in_host else "path"},
            ),
        )
    return _clients[key]


def _s3_source(url: str, environ: Mapping[str, str]) -> S3Source:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise BadSourceUrl(
            "s3://…@…: credentials do not belong in the URL: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or configure a profile"
        )
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise BadSourceUrl(f"{url}: {parts.netloc!r} is not a bucket name: give {FORMS}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    unknown = options.keys() - {"endpoint", "region"}
    if unknown or parts.fragment:
        raise BadSourceUrl(f"{url}: unknown option {min(unknown, default='#')}: give {FORMS}")
    prefix = unquote(parts.path).strip("/")
    if prefix and _PREFIX.fullmatch(prefix) is None:
        raise BadSourceUrl(f"{url}: {prefix!r} is not a prefix of keys: give {FORMS}")
    region = options.get("region") or _first(environ, _REGION_VARIABLES) or "us-east-1"
    if _REGION.fullmatch(region) is None:
        raise BadSourceUrl(f"{url}: {region!r} is not a region: give one like eu-central-1")
    endpoint = options.get("endpoint") or _first(environ, _ENDPOINT_VARIABLES)
    return S3Source(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=None if endpoint is None else _endpoint(url, endpoint),
        region=region,
    )


def _endpoint(url: str, endpoint: str) -> str:
    parts = urlsplit(endpoint)
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise BadSourceUrl(f"{url}: {endpoint!r} is not an endpoint: give http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}"


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
