"""Objects in a bucket of S3, or of anything that speaks its protocol.

Owns: the operations as signed HTTP requests over aiohttp, what each answer means, where keys come from.
Does not own the deadline of a whole call, retries and counting (remote.store.resilient,
remote.store.metered), nor the signature's arithmetic (remote.store.sigv4). Sent by aiobotocore's own client
the same requests cost up to four times the CPU: put 2.0 against 0.5 ms, ranged get 1.4 against 0.4 ms, delete
0.6 against 0.2 ms, a list of 1,000 keys 52 against 10 ms. Parts of 8 MiB, where the kernel does the work,
cost the same (about 1 CPU s a GB, up to 380 MB/s to MinIO on the same two cores); but that client takes bytes
alone, so no memory that goes back to the system, and to load it takes 37 MB and holds the loop for 0.16 s.
Ranges are read over connections of their own (ranges), which costs half of what it costs by aiohttp.

Invariant: WON and LOST are said only when the store answered this very request; what may have been done is
never sent again from here, nor from below. A body is returned only if it is whole and, where the store tells,
its checksum is right. A refusal is permanent only for an operation that has never been allowed: what once
worked, as before a key was rotated, may work again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import aiohttp
from yarl import URL

from protocol.checksum import Buffer, crc32c
from remote.store.location import S3Location
from remote.store.object_store import (
    Fault,
    NoSuchObject,
    NoSuchUpload,
    ObjectInfo,
    Operation,
    PutResult,
    StoreError,
    Upload,
    check_key,
    check_part,
    check_prefix,
    check_range,
    cut,
    is_key,
)
from remote.store.ranges import CannotConnect, EndedEarly, RangeClient, encode_request
from remote.store.sigv4 import Keys, Signer, encode_path, encode_query
from remote.store.tempo import SLICE_BYTES, Tempo

CONNECTIONS_MAX: Final = 64
CONNECT_S: Final = 3.0
SILENCE_S: Final = 10.0
"""A request unanswered for so long is given up."""
COMPLETE_SILENCE_S: Final = 60.0
"""The same while a store puts an object together; it sends white space meanwhile, some only every 10 s."""
IDLE_S: Final = 15.0
"""Servers close idle connections after 20 s or more; a put on one that is just being closed is UNKNOWN."""
READ_BUFFER_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = SLICE_BYTES
"""A larger body goes out in such pieces, as the socket takes them, and the loop does other things in between,
as long as the tempo asks for.
(Given bytes, aiohttp would send them at once; given a BytesIO, it would copy them first.)"""
CONFLICT_TRIES: Final = 4
CONFLICT_PAUSE_S: Final = 0.05
LIST_PAGE_KEYS: Final = 1000
ERROR_CHARS_MAX: Final = 200

_ONCE_IF_ABSENT: Final = {"if-none-match": "*"}
_WITH_CHECKSUM: Final = {"x-amz-checksum-mode": "ENABLED"}
_CHECKSUM: Final = "x-amz-checksum-crc32c"
_CHECKSUM_ALGORITHM: Final = {"x-amz-checksum-algorithm": "CRC32C"}
_IN_REGION: Final = (
    '<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>"
)
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_THROTTLES: Final = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "RequestLimitExceeded"}
)
_BAD_PARTS: Final = frozenset({"InvalidPart", "InvalidPartOrder", "EntityTooSmall", "MalformedXML"})


logger = logging.getLogger(__name__)


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """To be asked for by names in lower case."""
    body: bytes
    pieces: Sequence[Buffer] = ()
    """The body of a range, instead of `body`."""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class _Row(dict[str, str]):
    """One entry of a listing: texts by name."""

    def __missing__(self, name: str) -> str:
        raise ValueError(f"no {name}")


class _Problem(NamedTuple):
    """The error code and message in the body of a refusal."""

    code: str
    message: str


class S3Store:
    """A store that connects on the first call; `close` ends it for good."""

    def __init__(
        self,
        location: S3Location,
        *,
        environ: Mapping[str, str],
        now_ms: Callable[[], int],
        rng: random.Random,
        tempo: Tempo | None = None,
        is_lane: bool = False,
    ) -> None:
        """A lane sends each body in one piece, and leaves what a conflict means to who asked."""
        self.location = location
        self._is_lane = is_lane
        self._conflict_tries = 1 if is_lane else CONFLICT_TRIES
        self._origin = f"{location.scheme}://{location.host}"
        self._bucket_path = "/" if location.in_host else f"/{location.bucket}/"
        self._signer = Signer(location.region)
        self._keys = KeySource(environ)
        self._ca_file = environ.get("AWS_CA_BUNDLE") or None
        self._now_ms = now_ms
        self._clock_skew_ms = 0
        self._random = rng
        self._tempo = tempo or Tempo()
        self._session: aiohttp.ClientSession | None = None
        self._ranges: RangeClient | None = None
        self._is_closed = False
        self._allowed: set[Operation] = set()
        self._why_unknown: Fault | None = None

    def __repr__(self) -> str:
        return f"S3Store({str(self.location)!r})"

    async def get(self, key: str) -> bytes:
        answer = await self._send(Operation.GET, "GET", self._path(key), headers=_WITH_CHECKSUM)
        self._check_read(Operation.GET, key, answer)
        told = answer.headers.get(_CHECKSUM)
        # A checksum "…-n" is one of parts, not of the whole object.
        if told is not None and "-" not in told and told != _checksum_of(answer.body):
            raise self._error(f"{key}: the body does not match its checksum", Fault.CORRUPT)
        return answer.body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        pieces = await self.get_pieces(key, start, end, piece_bytes=max(1, end - start))
        return bytes(pieces[0]) if pieces else b""

    async def get_pieces(self, key: str, start: int, end: int, *, piece_bytes: int) -> Sequence[Buffer]:
        check_range(start, end)
        # No header can ask for nothing: an empty range asks for one byte, to learn whether the object exists.
        last = max(end - 1, start)
        answer = await self._ask_range(self._path(key), start, last, piece_bytes)
        if answer.status == 416:
            self._allowed.add(Operation.GET_RANGE)
            return ()
        self._check_read(Operation.GET_RANGE, key, answer)
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != start or not start <= int(found[2]) <= last:
            raise self._error(
                f"{key}: asked for bytes {start} to {last}, was sent "
                f"{answer.headers.get('content-range', 'an unknown range')!r}",
                Fault.CORRUPT,
            )
        whole = last + 1 if found[3] == "*" else int(found[3])
        size = sum(map(len, answer.pieces))
        if size != int(found[2]) - start + 1 or int(found[2]) < min(last, whole - 1):
            raise self._error(f"{key}: the body is not as long as its range", Fault.CORRUPT)
        return answer.pieces if start < end else ()

    async def put(self, key: str, data: Buffer) -> None:
        answer = await self._put(Operation.PUT, key, data, {})
        if not answer.is_good:
            raise self._refusal(Operation.PUT, answer)
        self._allowed.add(Operation.PUT)

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        operation = Operation.PUT_IF_ABSENT
        for attempt in range(self._conflict_tries):
            try:
                answer = await self._put(operation, key, data, _ONCE_IF_ABSENT)
            except StoreError as error:
                return self._unknown(error)
            if answer.is_good or answer.status == 412:
                self._allowed.add(operation)
                self._why_unknown = None
                return PutResult.WON if answer.is_good else PutResult.LOST
            refusal = self._refusal(operation, answer)
            if answer.status != 409 or attempt + 1 == self._conflict_tries:
                break
            # Another client is writing this key right now, so this request certainly did nothing.
            await asyncio.sleep(self._random.uniform(0, CONFLICT_PAUSE_S * 2**attempt))
        return self._unknown(refusal)

    async def list(self, prefix: str, *, after: str = "", at_most: int | None = None) -> list[ObjectInfo]:
        check_prefix(prefix)
        if after > prefix and not after.startswith(prefix):
            return []
        root = self.location.prefix
        query = {
            "list-type": "2",
            "prefix": root + prefix,
            "encoding-type": "url",
            "max-keys": str(LIST_PAGE_KEYS if at_most is None else min(at_most, LIST_PAGE_KEYS)),
        }
        # With a start before the prefix, older releases of MinIO answer with nothing.
        if after.startswith(prefix):
            query["start-after"] = root + after
        found: list[ObjectInfo] = []
        while True:
            page = await self._page(Operation.LIST, query)
            try:
                for row in _rows(page, "Contents"):
                    key = self._own_key(row["Key"])
                    if key is not None and key > after:
                        found.append(ObjectInfo(key, int(row["Size"]), _date_ms(row["LastModified"])))
                is_enough = at_most is not None and len(found) >= at_most
                if is_enough or page.findtext("{*}IsTruncated") != "true":
                    return sorted(found)[:at_most]
                query["continuation-token"] = _text(page, "NextContinuationToken")
            except ValueError as error:
                raise self._error(f"unreadable listing: {error}", Fault.CORRUPT) from error

    async def delete(self, key: str) -> None:
        answer = await self._send(Operation.DELETE, "DELETE", self._path(key))
        if not answer.is_good and not (answer.status == 404 and _problem(answer).code == "NoSuchKey"):
            raise self._refusal(Operation.DELETE, answer)
        self._allowed.add(Operation.DELETE)

    async def begin_upload(self, key: str) -> str:
        operation = Operation.BEGIN_UPLOAD
        answer = await self._send(
            operation, "POST", self._path(key), query="uploads=", headers=_CHECKSUM_ALGORITHM
        )
        if not answer.is_good:
            raise self._refusal(operation, answer)
        self._allowed.add(operation)
        try:
            return _text(_parse(answer.body), "UploadId")
        except ValueError as error:
            raise self._error(f"{key}: unreadable answer: {error}", Fault.CORRUPT) from error

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        check_part(number, start)
        query = encode_query({"partNumber": str(number), "uploadId": upload})
        answer = await self._put(Operation.PUT_PART, key, data, {}, query=query)
        self._check_upload(Operation.PUT_PART, key, answer)
        tag = answer.headers.get("etag", "")
        if not tag:
            raise self._error(f"{key}: part {number} was answered without its tag", Fault.CORRUPT)
        return f"{_checksum_of(data)} {tag}"

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        try:
            await self._complete(key, upload, parts)
        except NoSuchUpload:
            if await self._size(key) != size:
                raise

    async def abort_upload(self, key: str, upload: str) -> None:
        query = encode_query({"uploadId": upload})
        answer = await self._send(Operation.ABORT_UPLOAD, "DELETE", self._path(key), query=query)
        try:
            self._check_upload(Operation.ABORT_UPLOAD, key, answer)
        except NoSuchUpload:
            return

    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        query = {
            "uploads": "",
            "prefix": self.location.prefix + check_prefix(prefix),
            "encoding-type": "url",
            "max-uploads": str(LIST_PAGE_KEYS),
        }
        found: list[Upload] = []
        while True:
            page = await self._page(Operation.LIST_UPLOADS, query)
            try:
                last = ""
                for row in _rows(page, "Upload"):
                    last = row["Key"]
                    key = self._own_key(row["Key"])
                    if key is not None and key.startswith(prefix):
                        found.append(Upload(key, row["UploadId"], _date_ms(row["Initiated"])))
                if page.findtext("{*}IsTruncated") != "true":
                    return sorted(found)
                # MinIO leaves out the key where the next page begins, which is the last one of this page.
                query["key-marker"] = unquote(page.findtext("{*}NextKeyMarker") or last)
                query["upload-id-marker"] = _text(page, "NextUploadIdMarker")
            except ValueError as error:
                raise self._error(f"unreadable listing: {error}", Fault.CORRUPT) from error

    def local_path(self, key: str) -> str | None:
        return None

    async def create_bucket(self) -> None:
        """Create the bucket; one that is there already, and is ours, is left as it is."""
        operation, region, body = Operation.PUT, self.location.region, b""
        if region != "us-east-1":  # which S3 takes to be meant where nothing is said, and refuses by name
            body = _IN_REGION.format(escape(region)).encode()
        headers = {"content-length": str(len(body))}
        answer = await self._send(operation, "PUT", self._bucket_path, headers=headers, data=body)
        if not answer.is_good and _problem(answer).code != "BucketAlreadyOwnedByYou":
            raise self._refusal(operation, answer)

    async def close(self) -> None:
        self._is_closed = True
        session, self._session = self._session, None
        ranges, self._ranges = self._ranges, None
        if ranges is not None:
            await ranges.close()
        if session is not None:
            await session.close()

    async def _complete(self, key: str, upload: str, parts: Sequence[tuple[int, str]]) -> None:
        operation = Operation.COMPLETE_UPLOAD
        query = encode_query({"uploadId": upload})
        body = _encode_parts(parts)
        headers = {"content-length": str(len(body))}
        answer = await self._send(operation, "POST", self._path(key), query=query, headers=headers, data=body)
        code, message = _problem(answer)
        if code in _BAD_PARTS:
            raise self._error(f"{key}: {message} ({code})", Fault.REFUSED, permanent=True)
        # The store answers 200 before it has begun: what became of it is in the body alone.
        self._check_upload(operation, key, answer, says=b"CompleteMultipartUploadResult")

    async def _size(self, key: str) -> int | None:
        """Return the size of an object; None if there is none."""
        answer = await self._send(Operation.COMPLETE_UPLOAD, "HEAD", self._path(key))
        if answer.status == 404:
            return None
        if not answer.is_good:
            raise self._refusal(Operation.COMPLETE_UPLOAD, answer)
        return int(answer.headers.get("content-length", "-1"))

    async def _page(self, operation: Operation, query: Mapping[str, str]) -> ElementTree.Element:
        answer = await self._send(operation, "GET", self._bucket_path, query=encode_query(query))
        if not answer.is_good:
            raise self._refusal(operation, answer)
        self._allowed.add(operation)
        try:
            return _parse(answer.body)
        except ValueError as error:
            raise self._error(f"unreadable listing: {error}", Fault.CORRUPT) from error

    def _own_key(self, encoded: str) -> str | None:
        """Return the key that a listing names; None for what is no key: a browser can create "folders", whose
        names end with a slash.
        """
        name, root = unquote(encoded), self.location.prefix
        key = name.removeprefix(root)
        return key if name.startswith(root) and is_key(key) else None

    # --- requests ---

    def _path(self, key: str) -> str:
        return encode_path(f"{self._bucket_path}{self.location.prefix}{check_key(key)}")

    async def _put(
        self, operation: Operation, key: str, data: Buffer, headers: Mapping[str, str], *, query: str = ""
    ) -> _Answer:
        headers = {**headers, _CHECKSUM: _checksum_of(data), "content-length": str(len(data))}
        path = self._path(key)
        if self._is_lane and not query:
            return await self._at_the_right_time(lambda: self._put_once(operation, path, headers, data))
        return await self._send(operation, "PUT", path, query=query, headers=headers, data=data)

    async def _put_once(
        self, operation: Operation, path: str, headers: Mapping[str, str], data: Buffer
    ) -> _Answer:
        """Put in one piece over the connections for ranges, which costs half of what it costs by aiohttp."""
        signed = await self._signed("PUT", path, "", headers)
        ranges = self._ranges or self._connect_ranges()
        with self._said_by_the_store(operation, path):
            answer = await ranges.put(encode_request(path, signed, "PUT"), data)
        return _Answer(answer.status, answer.headers, answer.body)

    async def _send(
        self,
        operation: Operation,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        data: Buffer | None = None,
    ) -> _Answer:
        return await self._at_the_right_time(
            lambda: self._send_once(operation, method, path, query, headers or {}, data)
        )

    async def _at_the_right_time(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Send one request; again only after RequestTimeTooSkewed, a refusal that certainly did nothing."""
        answer = await ask()
        if answer.status == 403 and _problem(answer).code == "RequestTimeTooSkewed":
            self._clock_skew_ms = self._skew_to(answer)
            answer = await ask()
        return answer

    async def _send_once(
        self,
        operation: Operation,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        data: Buffer | None,
    ) -> _Answer:
        signed = await self._signed(method, path, query, headers)
        session = self._session or self._connect()
        url = URL(f"{self._origin}{path}?{query}" if query else f"{self._origin}{path}", encoded=True)
        body = _pieces(data, self._tempo) if data is not None and len(data) > PIECE_BYTES else data
        with self._said_by_the_store(operation, path):
            async with session.request(
                method,
                url,
                headers=signed,
                data=body,
                allow_redirects=False,
                timeout=_timeout(operation),
            ) as response:
                if operation is Operation.GET_RANGE and response.status == 200:
                    # Left unread: the whole object may be of any size.
                    raise self._error(f"{path}: asked for a range, was sent the whole object", Fault.CORRUPT)
                return _Answer(response.status, response.headers, await response.read())

    async def _signed(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> dict[str, str]:
        keys = await self._keys.current(self._error)
        return self._signer.sign(
            method,
            path,
            query,
            {**headers, "host": self.location.host},
            keys=keys,
            now_ms=self._now_ms() + self._clock_skew_ms,
        )

    async def _ask_range(self, path: str, start: int, last: int, piece_bytes: int) -> _Answer:
        """Ask for the bytes [start, last] as `_send` asks for the rest."""
        return await self._at_the_right_time(lambda: self._ask_range_once(path, start, last, piece_bytes))

    async def _ask_range_once(self, path: str, start: int, last: int, piece_bytes: int) -> _Answer:
        wanted = {"range": f"bytes={start}-{last}"}
        signed = await self._signed("GET", path, "", wanted)
        ranges = self._ranges or self._connect_ranges()
        with self._said_by_the_store(Operation.GET_RANGE, path):
            request = encode_request(path, signed)
            answer = await ranges.ask(request, piece_bytes=piece_bytes, size_max=last - start + 1)
        if answer.status == 200:
            # Left unread: the whole object may be of any size.
            raise self._error(f"{path}: asked for a range, was sent the whole object", Fault.CORRUPT)
        if answer.status == 206 and not answer.pieces:
            # In a form that says no length beforehand, as some proxies choose.
            other = await self._send_once(Operation.GET_RANGE, "GET", path, "", wanted, None)
            return other._replace(pieces=cut(other.body, piece_bytes))
        return _Answer(answer.status, answer.headers, answer.body, answer.pieces)

    @contextlib.contextmanager
    def _said_by_the_store(self, operation: Operation, path: str) -> Iterator[None]:
        """Raise what goes wrong on the way as StoreError."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(operation, error.certificate_error) from error
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(operation, error) from error
        except CannotConnect as error:
            raise self._error(f"cannot connect: {_in_one_line(str(error))}", Fault.CONNECTION) from error
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise self._error(f"cannot connect: {_in_one_line(reason)}", Fault.CONNECTION) from error
        except (aiohttp.ClientPayloadError, EndedEarly) as error:
            raise self._error(f"{path}: the body ended early", Fault.CORRUPT) from error
        except (aiohttp.ClientError, OSError) as error:
            fault = Fault.TIMEOUT if isinstance(error, TimeoutError) else Fault.CONNECTION
            raise self._error(_in_one_line(str(error) or type(error).__name__), fault) from error

    def _connect(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise self._error("the store is closed", Fault.CONNECTION)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_S, ssl=self._trusted()
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
        )
        # aiohttp sends a PUT again when its kept connection breaks, which would report a put that won as
        # lost. There is no public switch; tests/contracts/test_aiohttp.py holds this one.
        self._session._retry_connection = False
        return self._session

    def _connect_ranges(self) -> RangeClient:
        if self._is_closed:
            raise self._error("the store is closed", Fault.CONNECTION)
        origin = urlsplit(self._origin)
        tls: ssl.SSLContext | None = None
        if origin.scheme == "https":
            trusted = self._trusted()
            tls = trusted if isinstance(trusted, ssl.SSLContext) else ssl.create_default_context()
        assert origin.hostname is not None, origin
        self._ranges = RangeClient(
            origin.hostname,
            origin.port or (80 if tls is None else 443),
            tls=tls,
            connections_max=CONNECTIONS_MAX,
            connect_s=CONNECT_S,
            silence_s=SILENCE_S,
            idle_s=IDLE_S,
        )
        return self._ranges

    def _trusted(self) -> ssl.SSLContext | bool:
        """Return the authorities to trust: the system's, or those the environment names."""
        if self._ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            why = f"AWS_CA_BUNDLE {self._ca_file}: {error.strerror or error}"
            raise self._error(why, Fault.CONNECTION, permanent=True) from error

    # --- answers ---

    def _check_read(self, operation: Operation, key: str, answer: _Answer) -> None:
        if not answer.is_good:
            # Only the store's own code counts: a proxy's 404 says nothing about the object.
            if answer.status == 404 and _problem(answer).code == "NoSuchKey":
                self._allowed.add(operation)
                raise NoSuchObject(key)
            raise self._refusal(operation, answer)
        self._allowed.add(operation)

    def _check_upload(self, operation: Operation, key: str, answer: _Answer, *, says: bytes = b"") -> None:
        """Raise what an answer is that is not good, or does not say this."""
        is_done = answer.is_good and says in answer.body
        is_gone = answer.status in (200, 404) and _problem(answer).code == "NoSuchUpload"
        if not is_done and not is_gone:
            raise self._refusal(operation, answer)
        self._allowed.add(operation)
        if not is_done:
            raise NoSuchUpload(key)

    def _refusal(self, operation: Operation, answer: _Answer) -> StoreError:
        code, message = _problem(answer)
        fault = _fault_of(answer.status, code)
        if answer.status in (301, 307, 400) and (region := answer.headers.get("x-amz-bucket-region")):
            message = f"the bucket is in region {region}, not {self.location.region}"
        said = f"{message} ({code})" if message else code
        permanent = fault in (Fault.DENIED, Fault.REFUSED) and operation not in self._allowed
        return self._error(f"{operation} was answered {answer.status}: {said}", fault, permanent=permanent)

    def _error(self, what: str, fault: Fault, *, permanent: bool = False) -> StoreError:
        return StoreError(f"{self.location}: {what}", permanent=permanent, fault=fault)

    def _untrusted(self, operation: Operation, error: Exception) -> StoreError:
        why = f"its certificate is not trusted: {_in_one_line(str(error))}"
        return self._error(why, Fault.CONNECTION, permanent=operation not in self._allowed)

    def _unknown(self, why: StoreError) -> PutResult:
        """Log why a put is UNKNOWN, which carries no reason: when that begins and when the reason changes."""
        if why.permanent:
            raise why
        if self._why_unknown is not why.fault:
            self._why_unknown = why.fault
            logger.warning("outcome of a conditional put is unknown: %s", why)
        return PutResult.UNKNOWN

    def _skew_to(self, answer: _Answer) -> int:
        try:
            theirs = parsedate_to_datetime(answer.headers.get("date", ""))
        except ValueError:
            return self._clock_skew_ms
        return int(theirs.timestamp() * 1000) - self._now_ms()


async def _pieces(data: Buffer, tempo: Tempo) -> AsyncIterator[memoryview]:
    view, time = memoryview(data), asyncio.get_running_loop().time
    for at in range(0, len(data), PIECE_BYTES):
        begun_s = time()
        yield view[at : at + PIECE_BYTES]
        await tempo.rest(PIECE_BYTES, time() - begun_s)


def _timeout(operation: Operation) -> aiohttp.ClientTimeout:
    silence_s = COMPLETE_SILENCE_S if operation is Operation.COMPLETE_UPLOAD else SILENCE_S
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)


def _parse(body: bytes) -> ElementTree.Element:
    """Return the root of an answer in XML; ValueError if it is none."""
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error


def _text(element: ElementTree.Element, name: str) -> str:
    """Return the text of a child that must be there."""
    found = element.findtext(f"{{*}}{name}")
    if not found:
        raise ValueError(f"no {name}")
    return found


def _rows(page: ElementTree.Element, kind: str) -> Iterator[_Row]:
    for entry in page.iterfind(f"{{*}}{kind}"):
        yield _Row((child.tag.rpartition("}")[2], child.text or "") for child in entry)


def _date_ms(text: str) -> int:
    """Return a date of S3, as 2026-01-31T12:00:00.000Z."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _encode_parts(parts: Sequence[tuple[int, str]]) -> bytes:
    """Return the body that completes an upload; the tags are those of `put_part`."""
    rows = []
    for number, given in parts:
        checksum, _, tag = given.partition(" ")
        rows.append(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag>"
            f"<ChecksumCRC32C>{escape(checksum)}</ChecksumCRC32C></Part>"
        )
    return f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()


def _fault_of(status: int, code: str) -> Fault:
    if status == 200:  # a failure in the body of what began well
        return Fault.SERVER
    if status == 429 or code in _THROTTLES:
        return Fault.THROTTLED
    if status == 408 or code == "RequestTimeout":
        return Fault.TIMEOUT
    if status in (401, 403):
        return Fault.DENIED
    if status == 409:
        return Fault.CONFLICT
    if status < 500 or status == 501:
        return Fault.REFUSED
    return Fault.SERVER


def _problem(answer: _Answer) -> _Problem:
    try:
        root = ElementTree.fromstring(answer.body.strip())
        code, message = root.findtext("{*}Code"), root.findtext("{*}Message")
    except ElementTree.ParseError:
        code = message = None
    return _Problem(code or "no error code", _in_one_line(message or ""))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARS_MAX]


def _checksum_of(data: Buffer) -> str:
    return b64encode(crc32c(data).to_bytes(4, "big")).decode()


class KeySource:
    """The access keys: the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else botocore's chain:
    profiles, web identity, container and instance roles, renewed before they expire.

    Loading botocore takes 0.2 s of every start, so it is loaded only where its chain is needed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._fixed: Keys | None = None
        self._chain: Any = None
        access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        if access_key and secret_key:
            token = environ.get("AWS_SESSION_TOKEN") or None
            self._fixed = Keys(access_key=access_key, secret_key=secret_key, token=token)

    async def current(self, error: Callable[..., StoreError]) -> Keys:
        if self._fixed is not None:
            return self._fixed
        from aiobotocore.session import get_session
        from botocore.exceptions import BotoCoreError

        try:
            if self._chain is None:
                self._chain = await get_session().get_credentials()
        except BotoCoreError as problem:
            raise error(str(problem), Fault.DENIED, permanent=True) from problem
        if self._chain is None:
            raise error(
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a profile",
                Fault.DENIED,
                permanent=True,
            )
        try:
            frozen = await self._chain.get_frozen_credentials()
        except Exception as problem:  # a renewal fails with whatever its provider raises
            why = f"cannot renew the access keys: {_in_one_line(str(problem))}"
            raise error(why, Fault.DENIED) from problem
        return Keys(access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token)
