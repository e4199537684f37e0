"""The location of a store, read from its URL.

Owns: reading file:///DIR and s3://BUCKET/PREFIX?endpoint=URL&region=NAME, and what is wrong with any other
URL. Does not own opening the store (remote.store.stores).
Invariant: a location never holds a secret, because URLs are printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from remote.store.object_store import check_key

FORMS: Final = "file:///DIR or s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=NAME"
DEFAULT_REGION: Final = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


class BadStoreUrl(ValueError):
    """A URL that names no store. The message is one line: the URL, what is wrong, what to give instead."""


@dataclass(frozen=True, slots=True)
class FileLocation:
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    bucket: str
    prefix: str
    """Empty, or ends with a slash."""
    scheme: str
    host: str
    """The Host header: with the port, unless that is the scheme's default."""
    region: str
    in_host: bool
    """Whether the bucket's name is part of the host name."""

    @property
    def is_plain_s3(self) -> bool:
        """Whether it is S3 itself, and not a store nearby that speaks as it does: its Express buckets answer
        in milliseconds."""
        return self.host.endswith(".amazonaws.com") and not self.bucket.endswith("--x-s3")

    def __str__(self) -> str:
        where = "" if self.in_host else f" at {self.scheme}://{self.host}"
        return f"s3://{self.bucket}/{self.prefix}{where}"


StoreLocation = FileLocation | S3Location


def parse_store_url(url: str, environ: Mapping[str, str]) -> StoreLocation:
    """Return the location. What the URL leaves open comes from the usual AWS_* variables."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            return _file(url)
        if parts.scheme == "s3":
            return _s3(url, environ)
    except BadStoreUrl:
        raise
    except ValueError as error:
        raise BadStoreUrl(f"{url}: {error}: give {FORMS}") from None
    raise BadStoreUrl(f"{url}: give {FORMS}")


def _file(url: str) -> FileLocation:
    parts = urlsplit(url)
    if not parts.path or parts.netloc:
        raise BadStoreUrl(f"{url}: give a directory as file:///DIR")
    return FileLocation(parts.path)


def _s3(url: str, environ: Mapping[str, str]) -> S3Location:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise BadStoreUrl(
            "s3://…@…: credentials do not belong in the URL: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or configure a profile"
        )
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise BadStoreUrl(f"{url}: {parts.netloc!r} is not a bucket name: give {FORMS}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    unknown = options.keys() - {"endpoint", "region"}
    if unknown or parts.fragment:
        raise BadStoreUrl(f"{url}: unknown option {min(unknown, default='#')}: give {FORMS}")
    prefix = unquote(parts.path).strip("/")
    region = options.get("region") or _first(environ, _REGION_VARIABLES) or DEFAULT_REGION
    if _REGION.fullmatch(region) is None:
        raise BadStoreUrl(f"{url}: {region!r} is not a region: give one like eu-central-1")
    endpoint = options.get("endpoint") or _first(environ, _ENDPOINT_VARIABLES)
    in_host = endpoint is None and "." not in parts.netloc
    scheme, host = _endpoint(url, endpoint or f"https://s3.{region}.amazonaws.com")
    return S3Location(
        bucket=parts.netloc,
        prefix=f"{check_key(prefix)}/" if prefix else "",
        scheme=scheme,
        host=f"{parts.netloc}.{host}" if in_host else host,
        region=region,
        in_host=in_host,
    )


def _endpoint(url: str, endpoint: str) -> tuple[str, str]:
    parts = urlsplit(endpoint)
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise BadStoreUrl(f"{url}: {endpoint!r} is not an endpoint: give http://HOST:PORT")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_usual = parts.port in (None, 443 if parts.scheme == "https" else 80)
    return parts.scheme, name if is_usual else f"{name}:{parts.port}"


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
