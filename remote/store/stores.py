"""Opening of the store that a location names, with the wrappers that belong around it.

Owns the one order in which wrappers are put together, and what the WAL tier's lane to a store does without.
Does not own what each wrapper does. Invariant: a process without S3 never loads what S3 needs.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from remote.store.local_store import LocalStore
from remote.store.location import FileLocation, StoreLocation
from remote.store.metered import MeteredStore, StoreStats
from remote.store.object_store import ObjectStore
from remote.store.resilient import DeadlineStore, HedgedStore, RetryStore
from remote.store.tempo import Tempo
from storage.files import Files

LANE_DEADLINE_S: Final = 1.0
LANE_BYTES_PER_S_MIN: Final = 16 << 20
"""A lane that is slower with a large object counts as hanging."""


def open_store(
    location: StoreLocation,
    *,
    files: Files,
    offload: Callable[[Callable[[], Any]], Awaitable[Any]],
    now_ms: Callable[[], int],
    rng: random.Random,
    environ: Mapping[str, str],
    stats: StoreStats | None = None,
    tempo: Tempo | None = None,
) -> ObjectStore:
    """Return the store, which the caller must close. Nothing is sent before the first call; OSError when a
    local directory cannot be created. Uploads keep to `tempo`.
    """
    stats = stats or StoreStats()
    if isinstance(location, FileLocation):
        files.makedirs(location.path)
        # No deadline, no retry: a thread that hangs in the kernel can neither be ended nor sped up.
        return MeteredStore(LocalStore(location.path, files=files, offload=offload, tempo=tempo), stats)
    from remote.store.s3_store import S3Store

    return harden(
        S3Store(location, environ=environ, now_ms=now_ms, rng=rng, tempo=tempo), stats=stats, rng=rng
    )


def open_lane(
    location: StoreLocation,
    *,
    files: Files,
    offload: Callable[[Callable[[], Any]], Awaitable[Any]],
    now_ms: Callable[[], int],
    rng: random.Random,
    environ: Mapping[str, str],
    stats: StoreStats | None = None,
    syncs: bool = False,
) -> ObjectStore:
    """Return the same store by connections of its own, for the WAL tier; the caller must close it.

    Without `syncs` a local store does not sync what is put if absent: broker and store are one machine with
    one fate, and its page cache holds what the log's does.
    """
    stats = stats or StoreStats()
    if isinstance(location, FileLocation):
        files.makedirs(location.path)
        return limit_attempts(LocalStore(location.path, files=files, offload=offload, syncs=syncs), stats)
    from remote.store.s3_store import S3Store

    return limit_attempts(S3Store(location, environ=environ, now_ms=now_ms, rng=rng, is_lane=True), stats)


def limit_attempts(store: ObjectStore, stats: StoreStats) -> ObjectStore:
    """Give each attempt a short deadline and count it. Nothing is asked twice: who asks has other ways, and
    another place where the same bytes are."""
    limited = DeadlineStore(store, limit_s=LANE_DEADLINE_S, bytes_per_s=LANE_BYTES_PER_S_MIN)
    return MeteredStore(limited, stats)


def harden(store: ObjectStore, *, stats: StoreStats, rng: random.Random) -> ObjectStore:
    """Wrap a store behind a network. From the inside: each attempt has its deadline and is counted, a slow
    read is sent twice, and what failed is retried.
    """
    attempts = MeteredStore(DeadlineStore(store), stats)
    return RetryStore(HedgedStore(attempts, stats=stats), rng=rng, stats=stats)
