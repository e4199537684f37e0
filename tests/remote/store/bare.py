"""An S3Store with nothing around it, on a MinIO or on what stands before it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from remote.store.location import S3Location, parse_store_url
from remote.store.s3_store import S3Store
from tools.versus.minio import MinioServer


def wall_ms() -> int:
    """A server compares what was signed with its own clock."""
    return time.time_ns() // 1_000_000  # noqa: TID251


def bare_s3(
    server: MinioServer, url: str, environ: Mapping[str, str] | None = None, *, is_lane: bool = False
) -> S3Store:
    location = parse_store_url(url, {})
    assert isinstance(location, S3Location)
    return S3Store(
        location,
        environ=environ or server.environ,
        now_ms=wall_ms,
        rng=random.Random(1),
        is_lane=is_lane,
    )
