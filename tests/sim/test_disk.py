"""The disk: what a kill keeps, what a power cut may and may not take, and errors that leave short writes."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from storage.files import write_whole
from tests.sim.disk import Disk
from tests.sim.loop import Killed, Process, SimLoop

MODES = ["nothing", "prefix", "subset", "all"]


@pytest.fixture
def make_disk() -> Callable[[int], Disk]:
    return lambda seed: Disk(random.Random(seed), lambda: 1_700_000_000_000)


def process() -> Process:
    return Process(SimLoop(), "p")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_keeps_what_was_synced_and_some_of_the_rest(
    make_disk: Callable[[int], Disk], mode: str, seed: int
) -> None:
    disk = make_disk(seed)
    files = disk.mount(process())
    files.makedirs("/data/t-0")
    files.fsync_dir("/")
    files.fsync_dir("/data")
    file = files.open("/data/t-0/log", create=True)
    files.fsync_dir("/data/t-0")
    file.writev([b"synced", b"!"])
    file.fsync()
    for index in range(5):
        file.writev([b"%d" % index * 10])
    cut = disk.power_cut(mode)
    assert cut.synced_bytes["/data/t-0/log"] == 7
    after = disk.mount(process()).read("/data/t-0/log")
    assert after.startswith(b"synced!")
    rest, full = after[7:], b"".join(b"%d" % index * 10 for index in range(5))
    if mode == "nothing":
        assert not rest
    elif mode == "prefix":
        assert full.startswith(rest)
    elif mode == "subset":
        assert all(got in (0, want) for got, want in zip(rest, full, strict=False))
    else:
        assert rest == full
    assert disk.mount(process()).read("/data/t-0/log") == after
    assert disk.power_cut("nothing") and disk.mount(process()).read("/data/t-0/log") == after


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(10))
def test_a_file_written_whole_is_old_or_new_after_a_power_cut_at_any_change(
    make_disk: Callable[[int], Disk], mode: str, seed: int
) -> None:
    disk = make_disk(seed)
    files = disk.mount(process())
    files.makedirs("/d")
    files.fsync_dir("/")
    write_whole(files, "/d/f", b"old")
    doomed = process()
    files = disk.mount(doomed)
    files.die_in_changes(1 + seed % 7, power=True)
    finished = False
    try:
        write_whole(files, "/d/f", b"new")
        finished = True
    except Killed:
        pass
    disk.power_cut(mode)
    content = disk.mount(process()).read("/d/f")
    assert content == b"new" if finished else content in (b"old", b"new")


def test_unsynced_names_may_vanish_and_renames_are_all_or_nothing(make_disk: Callable[[int], Disk]) -> None:
    outcomes = set()
    for seed in range(40):
        disk = make_disk(seed)
        files = disk.mount(process())
        files.makedirs("/a")
        files.makedirs("/b")
        files.fsync_dir("/")
        files.open("/a/x", create=True).fsync()
        files.fsync_dir("/a")
        files.rename("/a/x", "/b/y")
        disk.power_cut("subset")
        outcomes.add((files_at(disk, "/a"), files_at(disk, "/b")))
    assert outcomes == {(("x",), ()), ((), ("y",))}


def files_at(disk: Disk, path: str) -> tuple[str, ...]:
    return tuple(disk.mount(process()).listdir(path))


def test_a_kill_keeps_every_written_byte_and_frees_the_lock(make_disk: Callable[[int], Disk]) -> None:
    disk = make_disk(0)
    first = process()
    files = disk.mount(first)
    files.lock("/lock")
    with pytest.raises(BlockingIOError):
        disk.mount(process()).lock("/lock")
    file = files.open("/f", create=True)
    file.writev([b"abc"])
    first.die()
    with pytest.raises(Killed):
        file.writev([b"d"])
    with pytest.raises(Killed):
        files.exists("/f")
    second = disk.mount(process())
    assert second.read("/f") == b"abc"
    second.lock("/lock")


@pytest.mark.parametrize("seed", range(10))
def test_dying_in_a_write_leaves_a_prefix(make_disk: Callable[[int], Disk], seed: int) -> None:
    disk = make_disk(seed)
    victim = process()
    files = disk.mount(victim)
    file = files.open("/f", create=True)
    files.die_in_changes(1, power=False)
    with pytest.raises(Killed):
        file.writev([b"abc", b"def"])
    assert b"abcdef".startswith(disk.mount(process()).read("/f"))
    assert not victim.alive


def test_errors_come_where_they_were_armed_and_a_full_disk_writes_short(
    make_disk: Callable[[int], Disk],
) -> None:
    disk = make_disk(3)
    files = disk.mount(process())
    file = files.open("/f", create=True)
    disk.fail("write", errno.EIO, skip=1)
    file.writev([b"one"])
    with pytest.raises(OSError) as caught:
        file.writev([b"two"])
    assert caught.value.errno == errno.EIO
    assert b"onetwo".startswith(files.read("/f"))
    disk.capacity = disk.used + 1
    with pytest.raises(OSError) as caught:
        file.writev([b"three"])
    assert caught.value.errno == errno.ENOSPC
    disk.disarm()
    file.writev([b"four"])


def test_after_a_failed_fsync_a_later_one_makes_nothing_durable_that_was_dropped(
    make_disk: Callable[[int], Disk],
) -> None:
    disk = make_disk(0)
    files = disk.mount(process())
    file = files.open("/f", create=True)
    files.fsync_dir("/")
    file.writev([b"gone"])
    disk.fail("fsync", errno.EIO)
    with pytest.raises(OSError, match="error"):
        file.fsync()
    assert files.read("/f") == b"gone"
    file.fsync()
    disk.power_cut("all")
    assert disk.mount(process()).read("/f") == b""


def test_an_unlinked_file_stays_readable_through_its_handle(make_disk: Callable[[int], Disk]) -> None:
    files = make_disk(0).mount(process())
    file = files.open("/f", create=True)
    file.writev([b"abc"])
    files.unlink("/f")
    assert file.pread(3, 0) == b"abc"
    assert not files.exists("/f")
