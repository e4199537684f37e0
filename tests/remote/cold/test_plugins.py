"""Managers by their import paths, and what is said of a name that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.cold.plugins import load_manager, load_metadata_manager
from remote.plugin import BadPlugin

SAMPLE = '''
class Manager:
    """Has all the methods, each of which does nothing."""
    def __init__(self, config):
        self.config = config
    async def copy_segment(self, *rest, **named): ...
    fetch_segment = fetch_index = fetch_header = delete_segment = close = copy_segment
    def local_path(self, segment): ...

class Needy(Manager):
    def __init__(self, config):
        config["the.key"]

class Half:
    def __init__(self, config): ...
    async def copy_segment(self): ...
    local_path = None

class Knows:
    def __init__(self, config):
        self.config = config
    async def stop(self): ...
    start = fold = follow = unfollow = renew = is_caught_up = wait_caught_up = submit = stop

A_NUMBER = 7
'''


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    for name, text in {
        "tier_sample": SAMPLE,
        "tier_lacks": "import not_installed_here\n",
        "tier_broken": "def\n",
        "tier_fails": "raise RuntimeError('two\\nlines')\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    before = list(sys.path)
    yield str(tmp_path)
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("tier_")]:
        del sys.modules[name]


@pytest.mark.requirement("X-7")
@pytest.mark.parametrize("name", ["tier_sample:Manager", "tier_sample.Manager"])
def test_a_manager_is_made_with_its_settings(folder: str, name: str) -> None:
    made = load_manager(name, {"a": "1"}, class_path=folder)
    assert type(made).__name__ == "Manager"
    assert made.config == {"a": "1"}  # type: ignore[attr-defined]


def test_a_folder_is_added_once(folder: str) -> None:
    for _ in range(2):
        load_manager("tier_sample:Manager", {}, class_path=f"{folder}:{folder}:")
    assert sys.path.count(folder) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
            "no Python module org; a class for Java",
        ),
        ("io.aiven.kafka.tieredstorage.RemoteStorageManager", "a class for Java cannot be used"),
        ("tier_absent:Manager", "no Python module tier_absent"),
        ("tier_sample.inner:Manager", "no Python module tier_sample.inner"),
        ("tier_sample:Absent", "AttributeError"),
        ("tier_sample:A_NUMBER", "TypeError"),
        ("tier_sample:Needy", "KeyError: 'the.key'"),
        ("tier_sample:Half", "it lacks fetch_segment, fetch_index, fetch_header, delete_segment, local_path"),
        ("tier_lacks:Manager", "ModuleNotFoundError: No module named 'not_installed_here'"),
        ("tier_broken:Manager", "SyntaxError"),
        ("tier_fails:Manager", "RuntimeError: two lines"),
        ("Manager", "give a Python class as package.module:Class"),
        ("", "give a Python class"),
        ("a b:C", "give a Python class"),
        ("../x:C", "give a Python class"),
        (".tier_sample:Manager", "give a Python class"),
    ],
)
def test_a_name_that_cannot_be_used_is_told_in_one_line(folder: str, name: str, says: str) -> None:
    with pytest.raises(BadPlugin, match=says) as caught:
        load_manager(name, {}, class_path=folder)
    line = str(caught.value)
    assert line.startswith(f"remote.log.storage.manager.class.name={name}: ")
    assert len(line.splitlines()) == 1


def test_a_metadata_manager_is_made_likewise(folder: str) -> None:
    made = load_metadata_manager("tier_sample:Knows", {"a": "1"}, class_path=folder)
    assert made.config == {"a": "1"}  # type: ignore[attr-defined]
    with pytest.raises(BadPlugin, match="it lacks start, stop, fold") as caught:
        load_metadata_manager("tier_sample:Manager", {}, class_path=folder)
    assert str(caught.value).startswith("remote.log.metadata.manager.class.name=tier_sample:Manager: ")
