"""`tidewal store create`: the bucket that a cluster will keep its objects in.

Owns one request to a store that speaks S3. Does not own what a bucket is set to beyond the server's defaults.
Invariant: a bucket that is there already is left as it is, and one of somebody else ends with exit code 1.
"""

from __future__ import annotations

import asyncio
import os
import random

from broker.process import wall_clock_ms
from remote.store.location import BadStoreUrl, S3Location, parse_store_url
from remote.store.object_store import StoreError
from remote.store.s3_store import S3Store
from tools.console import Failure, emit


def run(url: str) -> None:
    try:
        location = parse_store_url(url, os.environ)
    except BadStoreUrl as error:
        raise Failure(str(error), exit_code=2) from None
    if not isinstance(location, S3Location):
        raise Failure(f"{url}: a broker makes its directory by itself; this is for s3:// alone", exit_code=2)
    try:
        asyncio.run(_create(location))
    except StoreError as error:
        raise Failure(str(error)) from None
    emit(f"bucket {location.bucket} is there")


async def _create(location: S3Location) -> None:
    store = S3Store(location, environ=os.environ, now_ms=wall_clock_ms, rng=random.Random())
    try:
        await store.create_bucket()
    finally:
        await store.close()
