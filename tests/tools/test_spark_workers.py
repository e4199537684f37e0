"""A worker's next task does not read archives on its path anew, and what was in them is still found."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from tools import spark_workers
from tools.spark_workers import settle


def test_archives_are_not_read_again_and_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_an_archive_first.py", "N = 1\n")
        file.writestr("in_an_archive_second.py", "N = 2\n")
    monkeypatch.syspath_prepend(str(archive))
    first = importlib.import_module("in_an_archive_first")
    read: list[str] = []
    real = zipimport._read_directory  # type: ignore[attr-defined]

    def noted(path: str) -> object:
        read.append(path)
        return real(path)

    monkeypatch.setattr(zipimport, "_read_directory", noted)
    monkeypatch.setattr(spark_workers, "_frozen", spark_workers.FREEZES)
    importlib.invalidate_caches()
    assert str(archive) in read, "as a worker of PySpark does before every task"
    settle()
    read.clear()
    importlib.invalidate_caches()
    assert str(archive) not in read
    second = importlib.import_module("in_an_archive_second")
    assert (first.N, second.N) == (1, 2)
    for name in ("in_an_archive_first", "in_an_archive_second"):
        sys.modules.pop(name)
