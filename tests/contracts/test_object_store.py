"""What every object store must be seen to do, asked of each of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.object_store import (
    KEY_MAX_CHARS,
    LocalStore,
    MemoryStore,
    NoSuchObject,
    ObjectStore,
    PutResult,
    check_key,
    check_prefix,
)
from storage.files import DiskFiles

T = TypeVar("T")


async def in_a_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


def memory(path: Path) -> ObjectStore:
    return MemoryStore()


def local(path: Path) -> ObjectStore:
    return LocalStore(str(path / "store"), files=DiskFiles(), offload=in_a_thread)


@pytest.fixture(params=[memory, local])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: Callable[[Path], ObjectStore] = request.param
    return made(tmp_path)


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
