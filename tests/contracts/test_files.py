"""What the log layer relies on in a file system. Another implementation joins
by subclassing `FilesContract` with its own `make_files` and `root` fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.files import DiskFiles, Files, write_replacing, write_whole


class FilesContract:
    @pytest.fixture
    def make_files(self) -> Files:
        raise NotImplementedError

    @pytest.fixture
    def root(self, make_files: Files) -> str:
        raise NotImplementedError

    def test_open_needs_the_file_or_create(self, make_files: Files, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            make_files.open(f"{root}/missing")
        file = make_files.open(f"{root}/new", create=True)
        assert file.path == f"{root}/new"
        assert file.size() == 0
        assert make_files.exists(f"{root}/new")

    def test_writev_appends_every_buffer(self, make_files: Files, root: str) -> None:
        file = make_files.open(f"{root}/file", create=True)
        assert file.writev([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]]) == 6
        many = [b"%d," % index for index in range(3000)]
        assert file.writev(many) == sum(map(len, many))
        assert make_files.read(f"{root}/file") == b"abcdef" + b"".join(many)
        assert file.writev([]) == 0

    def test_appends_go_to_the_end_whatever_was_read_or_overwritten(
        self, make_files: Files, root: str
    ) -> None:
        file = make_files.open(f"{root}/file", create=True)
        file.writev([b"0123456789"])
        assert file.pread(4, 2) == b"2345"
        assert file.pwrite(b"AB", 3) == 2
        file.writev([b"end"])
        again = make_files.open(f"{root}/file")
        again.writev([b"!"])
        assert again.pread(100, 0) == b"012AB56789end!"

    def test_pread_is_short_only_at_the_end(self, make_files: Files, root: str) -> None:
        file = make_files.open(f"{root}/file", create=True)
        file.writev([b"0123456789"])
        assert file.pread(100, 8) == b"89"
        assert file.pread(5, 10) == b""
        buffer = bytearray(4)
        assert file.preadv(memoryview(buffer), 7) == 3
        assert bytes(buffer[:3]) == b"789"

    def test_truncate_cuts_and_the_next_append_follows(self, make_files: Files, root: str) -> None:
        file = make_files.open(f"{root}/file", create=True)
        file.writev([b"0123456789"])
        file.truncate(4)
        assert file.size() == make_files.size(f"{root}/file") == 4
        file.writev([b"x"])
        assert file.pread(10, 0) == b"0123x"

    def test_an_open_file_outlives_rename_and_unlink(self, make_files: Files, root: str) -> None:
        file = make_files.open(f"{root}/file", create=True)
        file.writev([b"bytes"])
        make_files.rename(f"{root}/file", f"{root}/moved")
        assert file.pread(5, 0) == b"bytes"
        make_files.unlink(f"{root}/moved")
        assert file.pread(5, 0) == b"bytes"
        assert not make_files.exists(f"{root}/moved")

    def test_rename_replaces_a_file_and_moves_a_directory(self, make_files: Files, root: str) -> None:
        write_replacing(make_files, f"{root}/one", b"1")
        write_replacing(make_files, f"{root}/two", b"2")
        make_files.rename(f"{root}/one", f"{root}/two")
        assert make_files.read(f"{root}/two") == b"1"
        assert not make_files.exists(f"{root}/one")
        make_files.makedirs(f"{root}/dir/deep")
        write_replacing(make_files, f"{root}/dir/deep/file", b"3")
        make_files.rename(f"{root}/dir", f"{root}/other")
        assert make_files.read(f"{root}/other/deep/file") == b"3"
        assert not make_files.exists(f"{root}/dir")
        with pytest.raises(FileNotFoundError):
            make_files.rename(f"{root}/missing", f"{root}/anything")

    def test_listing_is_sorted_and_removing_is_forgiving(self, make_files: Files, root: str) -> None:
        for name in ("b", "c", "a"):
            write_replacing(make_files, f"{root}/{name}", b"")
        make_files.makedirs(f"{root}/d")
        make_files.makedirs(f"{root}/d")
        assert make_files.listdir(root) == ["a", "b", "c", "d"]
        make_files.unlink(f"{root}/a")
        make_files.unlink(f"{root}/a")
        write_replacing(make_files, f"{root}/d/file", b"")
        make_files.rmtree(f"{root}/d")
        make_files.rmtree(f"{root}/d")
        assert make_files.listdir(root) == ["b", "c"]
        with pytest.raises(FileNotFoundError):
            make_files.listdir(f"{root}/missing")
        with pytest.raises(FileNotFoundError):
            make_files.read(f"{root}/missing")
        with pytest.raises(FileNotFoundError):
            make_files.size(f"{root}/missing")

    def test_a_file_appears_whole(self, make_files: Files, root: str) -> None:
        for data in (b"first", b"second, longer", b""):
            write_whole(make_files, f"{root}/file", data)
            assert make_files.read(f"{root}/file") == data
        assert make_files.listdir(root) == ["file"]

    def test_a_lock_is_held_until_closed(self, make_files: Files, root: str) -> None:
        lock = make_files.lock(f"{root}/.lock")
        with pytest.raises(BlockingIOError):
            make_files.lock(f"{root}/.lock")
        lock.close()
        lock.close()
        make_files.lock(f"{root}/.lock").close()

    def test_space_and_time(self, make_files: Files, root: str) -> None:
        total, usable = make_files.free_bytes(root)
        assert 0 <= usable <= total
        write_replacing(make_files, f"{root}/file", b"x")
        assert make_files.mtime_ms(f"{root}/file") >= 0
        make_files.fsync_dir(root)
        file = make_files.open(f"{root}/file")
        file.fsync()
        file.close()
        file.close()


class TestDiskFiles(FilesContract):
    @pytest.fixture
    def make_files(self) -> Files:
        return DiskFiles()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)

    def test_short_writes_are_completed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import os

        real = os.writev
        monkeypatch.setattr(os, "writev", lambda fd, buffers: real(fd, [memoryview(b"".join(buffers))[:5]]))
        file = DiskFiles().open(str(tmp_path / "file"), create=True)
        assert file.writev([b"abc", b"", b"defg", b"hij"]) == 10
        assert file.pread(100, 0) == b"abcdefghij"
