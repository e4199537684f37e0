"""What every object store must be seen to do, asked of each of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remote.store.local_store import LocalStore
from remote.store.location import FileLocation, StoreLocation, parse_store_url
from remote.store.memory_store import MemoryStore
from remote.store.metered import MeteredStore, StoreStats
from remote.store.object_store import (
    KEY_MAX_CHARS,
    NoSuchObject,
    NoSuchUpload,
    ObjectStore,
    PutResult,
    StoreError,
    check_key,
    check_prefix,
)
from remote.store.stores import harden, open_lane, open_store
from remote.store.upload import put_from, remove
from remote.store.wrapper import StoreWrapper
from storage.files import DiskFiles
from tests.compat.peers import unique
from tests.remote.store.bare import bare_s3, wall_ms
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.remote.store.listing import listed
from tools.versus.minio import MinioServer

T = TypeVar("T")


async def in_a_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


# --- the stores ---------------------------------------------------------------------------------------------


def opened(location: StoreLocation, environ: dict[str, str], way: str = "opened") -> ObjectStore:
    return (open_lane if way == "lane" else open_store)(
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
    "lane local",
    pytest.param("lane s3", marks=pytest.mark.minio),
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
            opened(parse_store_url(url, {}), server.environ, wrapper)
            if wrapper in ("opened", "lane")
            else bare_s3(server, url)
        )
    elif kind == "local":
        root = str(tmp_path / "store")
        made = (
            opened(FileLocation(root), {}, wrapper)
            if wrapper in ("opened", "lane")
            else LocalStore(root, files=DiskFiles(), offload=in_a_thread)
        )
    else:
        made = MemoryStore(now_ms=wall_ms)
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
    assert await listed(store) == ["empty"]


async def test_ranges_are_cut_at_the_end(store: ObjectStore) -> None:
    await store.put("k", b"0123456789")
    assert await store.get_range("k", 2, 5) == b"234"
    assert await store.get_range("k", 8, 100) == b"89"
    assert await store.get_range("k", 4, 4) == b""
    assert await store.get_range("k", 50, 60) == b""
    for start, end, piece_bytes in ((0, 10, 3), (2, 5, 8), (4, 4, 2), (8, 100, 1), (50, 60, 4), (0, 10, 5)):
        pieces = await store.get_pieces("k", start, end, piece_bytes=piece_bytes)
        assert b"".join(pieces) == b"0123456789"[start:end]
        assert [len(piece) for piece in pieces[:-1]] == [piece_bytes] * (len(pieces) - 1)
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
    assert await listed(store) == keys
    assert await listed(store, "meta/") == keys[:5]
    assert await listed(store, "meta") == keys[:6]
    assert await listed(store, "meta/0") == keys[:2]
    assert await listed(store, "meta/", after="meta/01") == keys[2:5]
    assert await listed(store, "meta/boundary/", after="meta/boundary/01") == []
    assert await listed(store, "nothing/") == []


async def test_lists_tell_sizes_and_dates(store: ObjectStore) -> None:
    begun_ms = wall_ms()
    for size in range(3):
        await store.put(f"s/{size}", bytes(size))
    found = await store.list("s/")
    assert [(info.key, info.size) for info in found] == [("s/0", 0), ("s/1", 1), ("s/2", 2)]
    for info in found:  # of some stores in seconds, and of some disks a tick old
        assert begun_ms - 2_000 <= info.modified_ms <= wall_ms() + 1_000


async def test_lists_are_whole_and_start_anywhere(store: ObjectStore) -> None:
    keys = [f"p/{n:03d}" for n in range(1, 30)]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    assert await listed(store, "p/", after="a") == keys
    assert await listed(store, "p/", after="p") == keys
    assert await listed(store, "p/", after="p/") == keys
    assert await listed(store, "p/", after="p/014x") == keys[14:]
    assert await listed(store, "p/", after="q") == []
    assert await listed(store, "", after="p/028") == keys[28:]


async def test_lists_end_after_so_many_keys(store: ObjectStore) -> None:
    keys = [f"p/{n:03d}" for n in range(30)]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    for after, at_most, found in (("", 1, keys[:1]), ("p/003", 4, keys[4:8]), ("p/028", 4, keys[29:])):
        assert [info.key for info in await store.list("p/", after=after, at_most=at_most)] == found


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
    assert await listed(store, "=a") == [key]
    await store.delete(key)
    assert await listed(store) == []


async def test_reads_and_writes_do_not_wait_for_each_other(store: ObjectStore) -> None:
    """More of them at once than there are connections."""
    keys = [f"k/{n}" for n in range(100)]
    await asyncio.gather(*(store.put(key, key.encode()) for key in keys))
    assert await asyncio.gather(*(store.get(key) for key in keys)) == [key.encode() for key in keys]
    assert await asyncio.gather(*(store.get_range(key, 2, 99) for key in keys)) == [
        key[2:].encode() for key in keys
    ]


# --- uploads in parts ---------------------------------------------------------------------------------------

PART_BYTES_MIN = 5 << 20
"""S3 refuses an object with a smaller part before its last."""


def parts_of(*sizes: int) -> list[bytes]:
    return [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]


async def put_parts(store: ObjectStore, key: str, upload: str, parts: list[bytes]) -> list[tuple[int, str]]:
    """The last part first, and two at once."""
    starts = [sum(map(len, parts[:number])) for number in range(len(parts))]
    tags: dict[int, str] = {}

    async def put(number: int) -> None:
        part, start = parts[number - 1], starts[number - 1]
        tags[number] = await store.put_part(key, upload, number, part, start=start)

    await put(len(parts))
    await asyncio.gather(*(put(number) for number in range(1, len(parts))))
    return sorted(tags.items())


async def test_parts_are_an_object_once_the_upload_is_complete(store: ObjectStore) -> None:
    key, parts = "tier/t/0/1.log", parts_of(PART_BYTES_MIN, PART_BYTES_MIN, 100)
    whole = b"".join(parts)
    upload = await store.begin_upload(key)
    tags = await put_parts(store, key, upload, parts)
    with pytest.raises(NoSuchObject):
        await store.get(key)
    assert await listed(store) == []
    ((found_key, found_upload, begun_ms),) = await store.list_uploads(key)
    assert (found_key, found_upload) == (key, upload)
    assert abs(begun_ms - wall_ms()) < 60_000
    await store.complete_upload(key, upload, tags, len(whole))
    assert await store.list_uploads(key) == []
    assert await store.get(key) == whole
    border = PART_BYTES_MIN
    assert await store.get_range(key, border - 5, border + 5) == whole[border - 5 : border + 5]
    assert [info[:2] for info in await store.list("tier/")] == [(key, len(whole))]


async def test_a_part_may_be_put_again(store: ObjectStore) -> None:
    """What was sent before may have been cut on its way."""
    (part,) = parts_of(1000)
    upload = await store.begin_upload("k")
    first = await store.put_part("k", upload, 1, part, start=0)
    again = await store.put_part("k", upload, 1, part, start=0)
    assert first == again
    await store.complete_upload("k", upload, [(1, again)], len(part))
    assert await store.get("k") == part


async def test_an_upload_replaces_an_object(store: ObjectStore) -> None:
    await store.put("k", b"old and longer")
    upload = await store.begin_upload("k")
    tags = await put_parts(store, "k", upload, [b"new"])
    assert await store.get("k") == b"old and longer"
    await store.complete_upload("k", upload, tags, 3)
    assert await store.get("k") == b"new"


async def test_completing_again_finds_that_it_was_done(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    tags = await put_parts(store, "k", upload, [b"0123456789"])
    for _ in range(2):
        await store.complete_upload("k", upload, tags, 10)
    assert await store.get("k") == b"0123456789"
    await store.delete("k")
    with pytest.raises(NoSuchUpload):
        await store.complete_upload("k", upload, tags, 10)
    await store.put("k", b"another")
    with pytest.raises(NoSuchUpload):
        await store.complete_upload("k", upload, tags, 10)
    assert await store.get("k") == b"another"


async def test_of_an_aborted_upload_nothing_is_left(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    tags = await put_parts(store, "k", upload, [b"x"])
    for _ in range(2):
        await store.abort_upload("k", upload)
    assert await store.list_uploads("k") == []
    with pytest.raises(NoSuchUpload):
        await store.put_part("k", upload, 1, b"x", start=0)
    with pytest.raises(NoSuchUpload):
        await store.complete_upload("k", upload, tags, 1)
    assert await listed(store) == []


async def test_uploads_of_one_key_are_apart(store: ObjectStore) -> None:
    uploads = [await store.begin_upload("a/k") for _ in range(3)]
    other = await store.begin_upload("a/other")
    tags = [await put_parts(store, "a/k", upload, [upload.encode()]) for upload in uploads]
    assert {found.upload for found in await store.list_uploads("a/k")} == set(uploads)
    await store.complete_upload("a/k", uploads[1], tags[1], len(uploads[1]))
    assert await store.get("a/k") == uploads[1].encode()
    for found in await store.list_uploads("a/k"):
        await store.abort_upload(found.key, found.upload)
    assert await store.list_uploads("a/k") == []
    assert [found.upload for found in await store.list_uploads("a/other")] == [other]


async def test_an_object_that_is_read_piece_by_piece_is_whole(store: ObjectStore) -> None:
    whole = random.Random(1).randbytes(2 * PART_BYTES_MIN + 100)

    async def read(start: int, end: int) -> bytes:
        return whole[start:end]

    for size in (0, 1, PART_BYTES_MIN, len(whole)):
        await put_from(store, f"k/{size}", size, read, part_bytes=PART_BYTES_MIN)
        assert await store.get(f"k/{size}") == whole[:size]
        assert await store.list_uploads(f"k/{size}") == []
    for size in (0, 1, PART_BYTES_MIN, len(whole)):
        await remove(store, f"k/{size}")
    assert await listed(store) == []


async def test_parts_that_do_not_make_the_object_are_refused(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    ((number, tag),) = await put_parts(store, "k", upload, [b"0123456789"])
    with pytest.raises(StoreError):
        await store.complete_upload("k", upload, [(number, f"{tag}0")], 10)
    assert await listed(store) == []


async def test_the_file_of_an_object_is_the_object(store: ObjectStore) -> None:
    await store.put("a/b", b"hello")
    path = store.local_path("a/b")
    assert path is None or DiskFiles().read(path) == b"hello"
    with pytest.raises(NoSuchObject):
        await store.get("a/c")
    assert (store.local_path("a/c") is None) is (path is None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["put", "put_if_absent", "delete", "list", "begin", "part", "complete", "abort", "uploads"]
            ),
            st.sampled_from(["a", "b/1", "b/2", "b/c/1", "d-e_f=g"]),
            st.binary(max_size=4),
        ),
        max_size=30,
    )
)
@example([("begin", "a", b""), ("abort", "a", b""), ("complete", "a", b"")])
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
        begun: dict[str, str] = {}
        parts: dict[str, list[tuple[int, str]]] = {}
        sizes: dict[str, int] = {}
        for what, key, data in operations:
            match what:
                case "put":
                    await store.put(key, data)
                case "put_if_absent":
                    seen.append(await store.put_if_absent(key, data))
                case "delete":
                    await store.delete(key)
                case "begin":
                    begun[key], parts[key], sizes[key] = await store.begin_upload(key), [], 0
                case "part" | "complete" | "abort" if key not in begun:
                    pass
                case "part":
                    number, start = len(parts[key]) + 1, sizes[key]
                    try:
                        tag = await store.put_part(key, begun[key], number, data, start=start)
                    except NoSuchUpload:
                        seen.append("no such upload")
                    else:
                        parts[key].append((number, tag))
                        sizes[key] += len(data)
                case "complete":
                    try:
                        await store.complete_upload(key, begun[key], parts[key], sizes[key])
                    except NoSuchUpload:
                        seen.append("no such upload")
                case "abort":
                    await store.abort_upload(key, begun[key])
                case "uploads":
                    seen.append([found.key for found in await store.list_uploads(key)])
                case _:
                    seen.append([info[:2] for info in await store.list("", after=key)])
        found = await listed(store)
        return [*seen, *found, *[await store.get(key) for key in found]]

    expected, actual = (asyncio.run(run(store)) for store in stores)
    assert actual == expected


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", "..", "a/../b", "a/.b", ".tmp/x", "a b", "ü", "a\n", "x" * 600]
)
async def test_what_is_no_key_is_refused(store: ObjectStore, key: str) -> None:
    for call in (
        store.get(key),
        store.put(key, b""),
        store.put_if_absent(key, b""),
        store.delete(key),
        store.begin_upload(key),
        store.put_part(key, "a-1", 1, b"", start=0),
        store.complete_upload(key, "a-1", [], 0),
        store.abort_upload(key, "a-1"),
    ):
        with pytest.raises(ValueError, match="key"):
            await call
    if key:
        with pytest.raises(ValueError, match="prefix"):
            await store.list(f"{key}/../")
        with pytest.raises(ValueError, match="prefix"):
            await store.list_uploads(f"{key}/../")


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
