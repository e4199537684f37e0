"""What every object store must be seen to do, asked of each of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.store.local_store import LocalStore
from remote.store.location import FileLocation, StoreLocation, parse_store_url
from remote.store.memory_store import MemoryStore
from remote.store.metered import MeteredStore, StoreStats
from remote.store.object_store import (
    KEY_MAX_CHARS,
    NoSuchObject,
    ObjectStore,
    PutResult,
    check_key,
    check_prefix,
)
from remote.store.stores import harden, open_store
from remote.store.wrapper import StoreWrapper
from storage.files import DiskFiles
from tests.compat.peers import unique
from tests.minio import MinioServer
from tests.remote.store.bare import bare_s3, wall_ms
from tests.remote.store.faulty_store import FaultProfile, FaultyStore

T = TypeVar("T")


async def in_a_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


# --- the stores ---------------------------------------------------------------------------------------------


def opened(location: StoreLocation, environ: dict[str, str]) -> ObjectStore:
    return open_store(
        location,
        files=DiskFiles(),
        offload=in_a_thread,
        now_ms=wall_ms,
        rng=random.Random(1),
        environ=environ,
    )


WRAPPERS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "bare": lambda store: store,
    "passing": StoreWrapper,
    "metered": lambda store: MeteredStore(store, StoreStats()),
    "hardened": lambda store: harden(store, stats=StoreStats(), rng=random.Random(1)),
    "calm": lambda store: FaultyStore(store, FaultProfile(), random.Random(1)),
    "slow": lambda store: FaultyStore(store, FaultProfile(latency_max_s=0.002), random.Random(1)),
}
KINDS = [
    *(f"{wrapper} {kind}" for kind in ("memory", "local") for wrapper in WRAPPERS),
    *(pytest.param(f"{wrapper} s3", marks=pytest.mark.minio) for wrapper in ("bare", "hardened", "calm")),
    "opened local",
    pytest.param("opened s3", marks=pytest.mark.minio),
]


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    wrapper, kind = request.param.split()
    made: ObjectStore
    if kind == "s3":
        server: MinioServer = request.getfixturevalue("minio_server")
        url = server.url(request.getfixturevalue("bucket"), unique("contract"))
        made = (
            opened(parse_store_url(url, {}), server.environ) if wrapper == "opened" else bare_s3(server, url)
        )
    elif kind == "local":
        root = str(tmp_path / "store")
        made = (
            opened(FileLocation(root), {})
            if wrapper == "opened"
            else LocalStore(root, files=DiskFiles(), offload=in_a_thread)
        )
    else:
        made = MemoryStore()
    yield WRAPPERS.get(wrapper, WRAPPERS["bare"])(made)
    await made.close()


# --- what they all do ---------------------------------------------------------------------------------------


async def test_what_was_put_is_what_is_read(store: ObjectStore) -> None:
    await store.put("a/b", b"hello")
    assert await store.get("a/b") == b"hello"
    await store.put("a/b", b"other")
    assert await store.get("a/b") == b"other"


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert await store.put_if_absent("empty", b"") is PutResult.WON
    assert await store.get("empty") == b""
    assert await store.list("") == ["empty"]


async def test_ranges_are_cut_at_the_end(store: ObjectStore) -> None:
    await store.put("k", b"0123456789")
    assert await store.get_range("k", 2, 5) == b"234"
    assert await store.get_range("k", 8, 100) == b"89"
    assert await store.get_range("k", 4, 4) == b""
    assert await store.get_range("k", 50, 60) == b""
    with pytest.raises(ValueError, match="range"):
        await store.get_range("k", 5, 2)


@pytest.mark.parametrize("key", ["nothing", "a/nothing"])
async def test_a_missing_object_says_so(store: ObjectStore, key: str) -> None:
    with pytest.raises(NoSuchObject):
        await store.get(key)
    with pytest.raises(NoSuchObject):
        await store.get_range(key, 0, 1)
    await store.delete(key)


async def test_a_folder_is_no_object(store: ObjectStore) -> None:
    await store.put("a/b/c", b"x")
    with pytest.raises(NoSuchObject):
        await store.get("a/b")
    with pytest.raises(NoSuchObject):
        await store.get("a/b/c/d")


async def test_put_if_absent_keeps_the_first(store: ObjectStore) -> None:
    assert await store.put_if_absent("k", b"first") is PutResult.WON
    assert await store.put_if_absent("k", b"second") is PutResult.LOST
    assert await store.put_if_absent("k", b"first") is PutResult.LOST
    assert await store.get("k") == b"first"


async def test_a_deleted_key_can_be_won_again(store: ObjectStore) -> None:
    await store.put("k", b"x")
    await store.delete("k")
    with pytest.raises(NoSuchObject):
        await store.get("k")
    assert await store.put_if_absent("k", b"y") is PutResult.WON


async def test_of_many_at_once_exactly_one_wins(store: ObjectStore) -> None:
    for race in range(20):
        bodies = [f"{race}/{rival}".encode() for rival in range(8)]
        results = await asyncio.gather(*(store.put_if_absent(f"race/{race}", body) for body in bodies))
        assert sorted(result.value for result in results) == ["lost"] * 7 + ["won"]
        assert await store.get(f"race/{race}") == bodies[results.index(PutResult.WON)]


async def test_lists_are_sorted_and_bounded_below(store: ObjectStore) -> None:
    keys = ["meta/00", "meta/01", "meta/10", "meta/boundary/01", "meta/snapshot/01", "metal", "other"]
    for key in reversed(keys):
        await store.put(key, b"")
    assert await store.list("") == keys
    assert await store.list("meta/") == keys[:5]
    assert await store.list("meta") == keys[:6]
    assert await store.list("meta/0") == keys[:2]
    assert await store.list("meta/", after="meta/01") == keys[2:5]
    assert await store.list("meta/boundary/", after="meta/boundary/01") == []
    assert await store.list("nothing/") == []


async def test_lists_are_whole_and_start_anywhere(store: ObjectStore) -> None:
    keys = [f"p/{n:03d}" for n in range(1, 30)]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    assert await store.list("p/", after="a") == keys
    assert await store.list("p/", after="p") == keys
    assert await store.list("p/", after="p/") == keys
    assert await store.list("p/", after="p/014x") == keys[14:]
    assert await store.list("p/", after="q") == []
    assert await store.list("", after="p/028") == keys[28:]


async def test_a_large_object_is_whole(store: ObjectStore) -> None:
    data = random.Random(1).randbytes(8 << 20)
    assert await store.put_if_absent("large", data) is PutResult.WON
    assert await store.get("large") == data
    assert await store.get_range("large", 5_000_000, 7_000_000) == data[5_000_000:7_000_000]
    await store.put("large", data[::-1])
    assert await store.get("large") == data[::-1]


async def test_every_character_of_a_key_is_kept(store: ObjectStore) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_=-."
    key = f"={letters}/-/_./{'long' * 50}"
    await store.put(key, b"x")
    assert await store.get(key) == b"x"
    assert await store.list("=a") == [key]
    await store.delete(key)
    assert await store.list("") == []


async def test_reads_and_writes_do_not_wait_for_each_other(store: ObjectStore) -> None:
    """More of them at once than there are connections."""
    keys = [f"k/{n}" for n in range(100)]
    await asyncio.gather(*(store.put(key, key.encode()) for key in keys))
    assert await asyncio.gather(*(store.get(key) for key in keys)) == [key.encode() for key in keys]
    assert await asyncio.gather(*(store.get_range(key, 2, 99) for key in keys)) == [
        key[2:].encode() for key in keys
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put_if_absent", "delete", "list"]),
            st.sampled_from(["a", "b/1", "b/2", "b/c/1", "d-e_f=g"]),
            st.binary(max_size=4),
        ),
        max_size=30,
    )
)
def test_a_local_store_does_what_memory_does(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, bytes]]
) -> None:
    async def here(call: Callable[[], T]) -> T:
        return call()

    offload: Callable[[Callable[[], T]], Awaitable[T]] = here
    root = str(tmp_path_factory.mktemp("store"))
    stores: list[ObjectStore] = [MemoryStore(), LocalStore(root, files=DiskFiles(), offload=offload)]

    async def run(store: ObjectStore) -> list[object]:
        seen: list[object] = []
        for what, key, data in operations:
            match what:
                case "put":
                    await store.put(key, data)
                case "put_if_absent":
                    seen.append(await store.put_if_absent(key, data))
                case "delete":
                    await store.delete(key)
                case _:
                    seen.append(await store.list("", after=key))
        found = await store.list("")
        return [*seen, *found, *[await store.get(key) for key in found]]

    expected, actual = (asyncio.run(run(store)) for store in stores)
    assert actual == expected


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", "..", "a/../b", "a/.b", ".tmp/x", "a b", "ü", "a\n", "x" * 600]
)
async def test_what_is_no_key_is_refused(store: ObjectStore, key: str) -> None:
    for call in (store.get(key), store.put(key, b""), store.put_if_absent(key, b""), store.delete(key)):
        with pytest.raises(ValueError, match="key"):
            await call
    if key:
        with pytest.raises(ValueError, match="prefix"):
            await store.list(f"{key}/../")


@given(st.text(max_size=40))
def test_keys_are_plain_paths(text: str) -> None:
    try:
        key = check_key(text)
    except ValueError:
        return
    assert 0 < len(key) <= KEY_MAX_CHARS
    parts = key.split("/")
    assert all(part and part[0] != "." for part in parts)
    assert check_prefix(key) == key


# --- several processes and connections ----------------------------------------------------------------------

RIVALS = 3
SLOTS = 40


def _race(url: str, environ: dict[str, str], rival: int, wins: multiprocessing.Queue[list[int]]) -> None:
    async def run() -> list[int]:
        store = opened(parse_store_url(url, {}), environ)
        try:
            results = [await store.put_if_absent(f"race/{slot}", b"%d" % rival) for slot in range(SLOTS)]
        finally:
            await store.close()
        return [slot for slot, result in enumerate(results) if result is PutResult.WON]

    wins.put(asyncio.run(run()))


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.minio)])
def test_processes_race_to_one_winner_each(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    if kind == "s3":
        server: MinioServer = request.getfixturevalue("minio_server")
        url, environ = server.url(request.getfixturevalue("bucket"), unique("race")), server.environ
    else:
        url = f"file://{tmp_path}/store"
    context = multiprocessing.get_context("spawn")
    wins: multiprocessing.Queue[list[int]] = context.Queue()
    rivals = [context.Process(target=_race, args=(url, environ, n, wins)) for n in range(RIVALS)]
    for rival in rivals:
        rival.start()
    won = [slot for _ in rivals for slot in wins.get(timeout=120)]
    for rival in rivals:
        rival.join()
    assert sorted(won) == list(range(SLOTS))


@pytest.mark.minio
async def test_connections_race_to_one_winner_each(minio_server: MinioServer, bucket: str) -> None:
    url = minio_server.url(bucket, unique("race"))
    rivals = [bare_s3(minio_server, url) for _ in range(4)]
    try:
        for slot in range(25):
            key = f"race/{slot}"
            results = await asyncio.gather(
                *(rival.put_if_absent(key, b"%d" % n) for n, rival in enumerate(rivals))
            )
            assert results.count(PutResult.WON) == 1
            assert results.count(PutResult.LOST) == len(rivals) - 1
            winner = b"%d" % results.index(PutResult.WON)
            assert [await rival.get(key) for rival in rivals] == [winner] * len(rivals)
    finally:
        for rival in rivals:
            await rival.close()
