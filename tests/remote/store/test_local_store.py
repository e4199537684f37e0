"""The local store where it differs from memory: crashes, disks that fail, and files that are no objects."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from remote.store.local_store import LocalStore
from remote.store.object_store import NoSuchObject, NoSuchUpload, PutResult, StoreError
from storage.files import DiskFiles, File
from tests.remote.store.listing import listed
from tests.sim.disk import Disk

T = TypeVar("T")


async def here(call: Callable[[], T]) -> T:
    return call()


class Recording(DiskFiles):
    """A disk that remembers the order of what must be in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}

    def note(self, what: str, path: str) -> None:
        self.calls.append(f"{what} {os.path.basename(path)}")
        if what in self.fail:
            raise OSError(self.fail[what], os.strerror(self.fail[what]))

    def open(self, path: str, *, create: bool = False) -> File:
        self.note("open", path)
        return super().open(path, create=create)

    def fsync_dir(self, path: str) -> None:
        self.note("fsync_dir", path)
        super().fsync_dir(path)

    def unlink(self, path: str) -> None:
        self.note("unlink", path)
        super().unlink(path)

    def rename(self, src: str, dst: str) -> None:
        self.note("rename", src)
        super().rename(src, dst)


def make(path: Path, files: DiskFiles | None = None, **kwargs: Callable[[str, str], None]) -> LocalStore:
    return LocalStore(str(path / "store"), files=files or DiskFiles(), offload=here, instance="t", **kwargs)


async def test_new_folders_are_durable_before_what_is_in_them(tmp_path: Path) -> None:
    files = Recording()
    await make(tmp_path, files).put_if_absent("meta/1", b"x")
    syncs = [call for call in files.calls if call.startswith("fsync_dir")]
    assert syncs == [
        f"fsync_dir {tmp_path.name}",
        "fsync_dir store",
        "fsync_dir store",
        "fsync_dir meta",
    ]


@pytest.mark.parametrize("syncs", [True, False])
async def test_without_syncs_a_conditional_put_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: bool
) -> None:
    """The folder's name is synced once; what is put unconditionally, a boundary or floors, always is."""
    store = LocalStore(str(tmp_path), files=DiskFiles(), offload=here, syncs=syncs)
    await store.put_if_absent("wal/1", b"x")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert await store.put_if_absent("wal/2", b"x") is PutResult.WON
    assert bool(synced) is syncs
    synced.clear()
    await store.put("wal/3", b"x")
    assert synced


async def test_a_second_put_costs_one_folder_sync(tmp_path: Path) -> None:
    files = Recording()
    store = make(tmp_path, files)
    await store.put_if_absent("meta/1", b"x")
    files.calls.clear()
    await store.put_if_absent("meta/2", b"x")
    assert [call for call in files.calls if call.startswith("fsync_dir")] == ["fsync_dir meta"]


async def test_a_leftover_temporary_may_be_the_object_itself(tmp_path: Path) -> None:
    """After a crash between link and unlink the temporary name is the object's own file."""
    store = make(tmp_path)
    await store.put_if_absent("k", b"committed")
    os.link(tmp_path / "store" / "k", tmp_path / "store" / ".tmp" / "t-1")
    restarted = make(tmp_path)
    assert await restarted.put_if_absent("other", b"new") is PutResult.WON
    assert await restarted.get("k") == b"committed"
    assert await restarted.get("other") == b"new"
    assert list((tmp_path / "store" / ".tmp").iterdir()) == []


async def test_temporaries_are_no_objects(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.put("k", b"x")
    (tmp_path / "store" / ".tmp" / "left").write_bytes(b"half")
    assert await listed(store) == ["k"]


async def test_an_answer_that_was_lost_after_the_link_is_unknown(tmp_path: Path) -> None:
    files = Recording()
    store = make(tmp_path, files)
    await store.put("meta/1", b"x")
    files.fail = {"fsync_dir": errno.EIO}
    assert await store.put_if_absent("meta/2", b"mine") is PutResult.UNKNOWN
    files.fail = {}
    assert await store.get("meta/2") == b"mine"


async def test_an_object_whose_name_is_not_durable_is_not_yet_read(tmp_path: Path) -> None:
    """Who reads the key after UNKNOWN takes what is there for committed."""
    files = Recording()
    store = make(tmp_path, files)
    await store.put("meta/1", b"x")
    files.fail = {"fsync_dir": errno.EIO}
    assert await store.put_if_absent("meta/2", b"mine") is PutResult.UNKNOWN
    for _ in range(2):
        with pytest.raises(StoreError):
            await store.get("meta/2")
    files.fail = {}
    files.calls.clear()
    for _ in range(2):
        assert await store.get("meta/2") == b"mine"
    assert files.calls.count("fsync_dir meta") == 1


async def test_a_full_disk_is_unknown_said_once_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = make(tmp_path, link=full)
    for _ in range(2):
        assert await store.put_if_absent("k", b"x") is PutResult.UNKNOWN
    (line,) = caplog.messages
    assert "No space left on device" in line
    with pytest.raises(NoSuchObject):
        await store.get("k")
    assert list((tmp_path / "store" / ".tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("code", "permanent"), [(errno.EACCES, True), (errno.EROFS, True), (errno.EIO, False)]
)
async def test_what_asking_again_cannot_mend_is_said(tmp_path: Path, code: int, permanent: bool) -> None:
    files = Recording()
    store = make(tmp_path, files)
    files.fail = {"open": code}
    with pytest.raises(StoreError) as caught:
        await store.put("k", b"x")
    assert caught.value.permanent is permanent
    assert os.strerror(code) in str(caught.value)


async def test_a_disk_without_permission_is_not_asked_for_ever(tmp_path: Path) -> None:
    files = Recording()
    files.fail = {"open": errno.EACCES}
    with pytest.raises(StoreError):
        await make(tmp_path, files).put_if_absent("k", b"x")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
async def test_what_was_allowed_before_may_be_again(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that turns read-only under a cluster must not end one broker after the other."""
    files = Recording()
    store = make(tmp_path, files)
    await store.put("a", b"x")
    assert await store.put_if_absent("b", b"x") is PutResult.WON
    files.fail = {"open": code}
    with pytest.raises(StoreError) as caught:
        await store.put("a", b"y")
    assert not caught.value.permanent
    for _ in range(2):
        assert await store.put_if_absent("c", b"x") is PutResult.UNKNOWN
    (line,) = caplog.messages
    assert os.strerror(code) in line
    files.fail = {}
    assert await store.put_if_absent("c", b"x") is PutResult.WON


async def test_who_only_lost_was_not_allowed_to_write(tmp_path: Path) -> None:
    await make(tmp_path).put("taken", b"x")
    files = Recording()
    store = make(tmp_path, files)
    assert await store.put_if_absent("taken", b"y") is PutResult.LOST
    files.fail = {"open": errno.EROFS}
    with pytest.raises(StoreError) as caught:
        await store.put_if_absent("free", b"y")
    assert caught.value.permanent


async def test_who_was_told_that_nothing_is_there_may_read(tmp_path: Path) -> None:
    files = Recording()
    store = make(tmp_path, files)
    await store.put("k", b"x")
    with pytest.raises(NoSuchObject):
        await store.get_range("missing", 0, 1)
    files.fail = {"open": errno.EACCES}
    with pytest.raises(StoreError) as caught:
        await store.get_range("k", 0, 1)
    assert not caught.value.permanent


# --- uploads in parts ---

UPLOAD = ".tmp/t-1"
"""What the first upload of a store calls its files."""


async def uploaded(store: LocalStore) -> tuple[str, list[tuple[int, str]]]:
    upload = await store.begin_upload("tier/k")
    tags = [(2, await store.put_part("tier/k", upload, 2, b"56789", start=5))]
    return upload, [(1, await store.put_part("tier/k", upload, 1, b"01234", start=0)), *tags]


async def test_an_upload_is_found_whenever_the_process_dies(tmp_path: Path) -> None:
    """Each step of an upload fails in turn, and a later process cleans up what is left."""
    for step in range(100):
        root = tmp_path / str(step)
        died = Dying(step)
        store = LocalStore(str(root), files=died, offload=here, instance="t")
        try:
            upload, parts = await uploaded(store)
            await store.complete_upload("tier/k", upload, parts, 10)
        except StoreError:
            pass
        after = LocalStore(str(root), files=DiskFiles(), offload=here)
        for left in await after.list_uploads("") if root.exists() else ():
            assert left.key == "tier/k"
            await after.abort_upload(left.key, left.upload)
        assert await listed(after) in ([], ["tier/k"])
        if await listed(after):
            assert await after.get("tier/k") == b"0123456789"
        names = DiskFiles().listdir(str(root / ".tmp")) if (root / ".tmp").exists() else []
        # The file that says which key it is may be there before it says so: it is empty, and one of very few.
        assert all(DiskFiles().read(str(root / ".tmp" / name)) == b"" for name in names)
        if not died.has_died:
            assert await listed(after) == ["tier/k"]
            assert names == []
            return
    raise AssertionError("it never came to its end")


class Dying(DiskFiles):
    """Files of a process that dies before its change number `step`."""

    def __init__(self, step: int) -> None:
        self.steps = step
        self.has_died = False

    def change(self) -> None:
        self.has_died = self.has_died or self.steps == 0
        self.steps -= 1
        if self.has_died:
            raise OSError(errno.EIO, "the process is dead")

    def open(self, path: str, *, create: bool = False) -> File:
        self.change()
        return super().open(path, create=create)

    def rename(self, src: str, dst: str) -> None:
        self.change()
        super().rename(src, dst)

    def unlink(self, path: str) -> None:
        self.change()
        super().unlink(path)

    def fsync_dir(self, path: str) -> None:
        self.change()
        super().fsync_dir(path)


async def test_an_upload_is_named_before_it_has_bytes_and_the_object_after(tmp_path: Path) -> None:
    files = Recording()
    store = make(tmp_path, files)
    await store.put("tier/first", b"")
    files.calls.clear()
    upload, parts = await uploaded(store)
    assert upload == "t-2"
    assert files.calls == [
        *("unlink t-2.key", "open t-2.key", "unlink t-2.parts", "open t-2.parts", "fsync_dir .tmp"),
        *("open t-2.parts", "open t-2.parts"),
    ]
    files.calls.clear()
    await store.complete_upload("tier/k", upload, parts, 10)
    assert files.calls == ["rename t-2.parts", "fsync_dir tier", "unlink t-2.key"]


async def test_each_part_is_durable_by_itself(tmp_path: Path) -> None:
    disk = Disk(random.Random(1), lambda: 0)
    store = LocalStore("/store", files=disk.mount(), offload=here, instance="t")
    upload, parts = await uploaded(store)
    disk.power_cut()
    restarted = LocalStore("/store", files=disk.mount(), offload=here)
    assert [left[:2] for left in await restarted.list_uploads("tier/")] == [("tier/k", upload)]
    await restarted.complete_upload("tier/k", upload, parts, 10)
    disk.power_cut()
    restarted = LocalStore("/store", files=disk.mount(), offload=here)
    assert await restarted.get("tier/k") == b"0123456789"


async def test_a_completion_whose_name_may_not_be_durable_is_asked_again(tmp_path: Path) -> None:
    files = Recording()
    store = make(tmp_path, files)
    upload, parts = await uploaded(store)
    files.fail = {"fsync_dir": errno.EIO}
    for _ in range(2):
        with pytest.raises(StoreError):
            await store.complete_upload("tier/k", upload, parts, 10)
    files.fail = {}
    files.calls.clear()
    await store.complete_upload("tier/k", upload, parts, 10)
    assert "fsync_dir tier" in files.calls
    assert await store.get("tier/k") == b"0123456789"
    assert await store.list_uploads("") == []


async def test_what_is_not_as_long_as_its_parts_is_no_object(tmp_path: Path) -> None:
    store = make(tmp_path)
    upload, parts = await uploaded(store)
    for wrong, size in (
        (parts, 9),
        (parts[1:], 10),
        (parts[:1], 10),
        ([*parts, parts[1]], 10),
        ([(1, "x")], 10),
    ):
        with pytest.raises(StoreError) as caught:
            await store.complete_upload("tier/k", upload, wrong, size)
        assert caught.value.permanent
    os.truncate(tmp_path / "store" / f"{UPLOAD}.parts", 9)
    with pytest.raises(StoreError, match="not 10 bytes long"):
        await store.complete_upload("tier/k", upload, parts, 10)
    assert await listed(store) == []


@pytest.mark.parametrize("upload", ["", "..", "../k", "a/b", "t-1.key", "t"])
async def test_what_is_no_upload_names_no_file(tmp_path: Path, upload: str) -> None:
    store = make(tmp_path)
    for call in (
        store.put_part("k", upload, 1, b"x", start=0),
        store.complete_upload("k", upload, [], 0),
        store.abort_upload("k", upload),
    ):
        with pytest.raises(ValueError, match="not an upload"):
            await call


async def test_uploads_are_no_objects_and_what_is_no_upload_is_not_listed(tmp_path: Path) -> None:
    store = make(tmp_path)
    upload, _ = await uploaded(store)
    for name, content in (("x.key", b"k"), ("t-7.key", b""), ("t-8.key", b"a b"), ("t-9.key", b"\xff")):
        (tmp_path / "store" / ".tmp" / name).write_bytes(content)
    assert await listed(store) == []
    assert [left.upload for left in await store.list_uploads("")] == [upload]
    assert await store.list_uploads("tiers/") == []


async def test_a_full_disk_fails_a_part_and_the_upload_goes_on(tmp_path: Path) -> None:
    files = Recording()
    store = make(tmp_path, files)
    upload = await store.begin_upload("k")
    files.fail = {"open": errno.ENOSPC}
    with pytest.raises(StoreError, match="No space") as caught:
        await store.put_part("k", upload, 1, b"x", start=0)
    assert not caught.value.permanent
    files.fail = {}
    await store.complete_upload("k", upload, [(1, await store.put_part("k", upload, 1, b"x", start=0))], 1)
    assert await store.get("k") == b"x"


# --- a store that vanishes ---


def unmount(root: Path) -> None:
    """What it leaves: the directory it was mounted on."""
    root.rename(root.with_name("aside"))
    root.mkdir()


def mount(root: Path) -> None:
    root.rmdir()
    root.with_name("aside").rename(root)


def delete(root: Path) -> None:
    root.rename(root.with_name("aside"))


def bring_back(root: Path) -> None:
    root.with_name("aside").rename(root)


async def test_a_store_that_another_thread_makes_meanwhile_has_not_vanished(tmp_path: Path) -> None:
    class Meanwhile(Recording):
        work: Callable[[], object] | None = None

        def exists(self, path: str) -> bool:
            found = super().exists(path)
            if path.endswith(".tmp") and self.work is not None:
                work, self.work = self.work, None
                work()
            return found

    files = Meanwhile()
    store = make(tmp_path, files)
    other = store.put("a", b"x")
    files.work = lambda: next(other.__await__(), None)  # it ends without a pause: nothing here is offloaded
    await store.put("b", b"x")
    assert await listed(store) == ["a", "b"]


Act = Callable[[LocalStore], Awaitable[object]]
ACTS: dict[str, Act] = {
    "get": lambda store: store.get("meta/1"),
    "get another": lambda store: store.get("meta/2"),
    "get a range": lambda store: store.get_range("meta/1", 0, 1),
    "put": lambda store: store.put("meta/2", b"x"),
    "list": lambda store: store.list(""),
    "list a folder": lambda store: store.list("meta/"),
    "delete": lambda store: store.delete("meta/1"),
    "begin an upload": lambda store: store.begin_upload("meta/2"),
    "put a part": lambda store: gone(store.put_part("meta/2", "t-9", 1, b"x", start=0)),
    "complete an upload": lambda store: gone(store.complete_upload("meta/2", "t-9", [], 0)),
    "abort an upload": lambda store: store.abort_upload("meta/2", "t-9"),
    "list uploads": lambda store: store.list_uploads(""),
}
FIRST: dict[str, Act] = {
    "put": lambda store: store.put("meta/0", b"x"),
    "put if absent": lambda store: store.put_if_absent("meta/0", b"x"),
    "get": lambda store: store.get("meta/1"),
    "get a missing one": lambda store: absent(store, "meta/0"),
    "list": lambda store: store.list(""),
}


async def gone(asked: Awaitable[object]) -> None:
    """An upload that never was, while the store is there."""
    with suppress(NoSuchUpload):
        await asked


async def absent(store: LocalStore, key: str) -> None:
    with pytest.raises(NoSuchObject):
        await store.get(key)


@pytest.mark.parametrize(
    ("vanish", "come_back"), [(unmount, mount), (delete, bring_back)], ids=["unmounted", "deleted"]
)
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
async def test_a_store_that_vanished_is_no_empty_one(
    tmp_path: Path, first: Act, act: Act, vanish: Callable[[Path], None], come_back: Callable[[Path], None]
) -> None:
    root = tmp_path / "store"
    await make(tmp_path).put("meta/1", b"x")
    store = make(tmp_path)
    await first(store)
    vanish(root)
    for _ in range(2):
        with pytest.raises(StoreError, match="the store is gone") as caught:
            await act(store)
        assert not caught.value.permanent
    assert not root.exists() or list(root.iterdir()) == [], "nothing is made where it was"
    come_back(root)
    assert await store.get("meta/1") == b"x"
    await act(store) if act is not ACTS["get another"] else await absent(store, "meta/2")


@pytest.mark.parametrize("vanish", [unmount, delete])
async def test_no_slot_is_won_where_a_store_was(tmp_path: Path, vanish: Callable[[Path], None]) -> None:
    store = make(tmp_path)
    await store.put_if_absent("meta/1", b"x")
    vanish(tmp_path / "store")
    for key in ("meta/1", "meta/2"):
        assert await store.put_if_absent(key, b"y") is PutResult.UNKNOWN
        with pytest.raises(StoreError):
            await store.get(key)
    bring_back(tmp_path / "store") if vanish is delete else mount(tmp_path / "store")
    await absent(store, "meta/2")
    assert await store.put_if_absent("meta/2", b"y") is PutResult.WON


async def test_a_store_that_was_copied_without_its_empty_folders_is_one(tmp_path: Path) -> None:
    await make(tmp_path).put("meta/1", b"x")
    (tmp_path / "store" / ".tmp").rmdir()
    store = make(tmp_path)
    assert await listed(store) == ["meta/1"]
    assert await store.get("meta/1") == b"x"
    assert await store.put_if_absent("meta/2", b"y") is PutResult.WON


def _race(root: str, rival: int, wins: multiprocessing.Queue[int]) -> None:

    store = LocalStore(root, files=DiskFiles(), offload=here)

    async def run() -> int:
        won = 0
        for slot in range(50):
            won += await store.put_if_absent(f"race/{slot}", str(rival).encode()) is PutResult.WON
        return won

    wins.put(asyncio.run(run()))


def test_processes_race_to_one_winner_each(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    wins = context.Queue()
    rivals = [
        context.Process(target=_race, args=(str(tmp_path / "store"), rival, wins)) for rival in range(3)
    ]
    for rival in rivals:
        rival.start()
    assert sum(wins.get(timeout=60) for _ in rivals) == 50
    for rival in rivals:
        rival.join()
