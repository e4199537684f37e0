"""Managers of combined objects by their import paths, and what is said of one that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from broker.config.broker import from_properties
from broker.control.directories import StartupError
from broker.process import real_world
from broker.wal_tier import make_wal_manager
from remote.plugin import BadPlugin
from remote.store.memory_store import MemoryStore
from remote.store.object_store import NoSuchObject, StoreError
from remote.wal.managers import LocalWalStorageManager
from remote.wal.object_wal import ObjectWal
from remote.wal.plugins import load_wal_manager
from remote.wal.storage_manager import SlotTaken
from tests.conftest import MakeBroker
from tests.remote.wal.wal_samples import SOME_PLACE, some_object

SAMPLE = '''
from remote.store.memory_store import MemoryStore

class Manager:
    """Has all that is needed, and does nothing."""
    def __init__(self, config):
        self.config = config
        self.store = MemoryStore()
        self.store.config = config
    async def copy(self, metadata, data): ...
    fetch = close = copy

class NoStore(Manager):
    def __init__(self, config):
        self.store = None

class Half:
    def __init__(self, config):
        self.store = MemoryStore()
    async def copy(self, metadata, data): ...
'''
NAME = "remote.log.wal.storage.manager.class.name"


class Failing:
    """Every method raises `error`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.error = config.get("error", KeyError("missing"))
        self.store = MemoryStore()

    async def copy(self, *rest: Any) -> Any:
        raise self.error

    fetch = close = copy


class Closing(LocalWalStorageManager):
    """Says when it is closed, then fails at it."""

    closed: ClassVar[list[str]] = []

    async def close(self) -> None:
        await super().close()
        self.closed.append("closed")
        raise KeyError("missing")


@pytest.mark.requirement("1176-11")
async def test_a_broker_closes_its_manager_when_it_stops(make_broker: MakeBroker, tmp_path: Path) -> None:
    config = {"rwsm.config.dir": str(tmp_path / "objects")}
    broker = await make_broker(**{NAME: "tests.remote.wal.test_plugins:Closing"}, **config)
    assert not Closing.closed
    await broker.stop()
    assert Closing.closed == ["closed"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "wal_sample.py").write_text(SAMPLE)
    before = list(sys.path)
    yield str(tmp_path)
    sys.path[:] = before
    sys.modules.pop("wal_sample", None)


@pytest.mark.requirement("1176-03", "1176-04", "1176-05")
async def test_a_broker_has_the_manager_that_is_named(folder: str) -> None:
    config = from_properties(
        {
            "log.dirs": folder,
            NAME: "wal_sample:Manager",
            "remote.log.wal.storage.manager.class.path": f"/nowhere:{folder}",
            "remote.log.wal.storage.manager.impl.prefix": "mine.",
            "mine.bucket.name": "b",
        }
    )
    manager = make_wal_manager(config, real_world(config, None))
    assert manager.store.config == {"bucket.name": "b"}  # type: ignore[attr-defined]


@pytest.mark.requirement("1176-03")
async def test_a_broker_has_a_lane_to_its_own_store_where_none_is_named(tmp_path: Path) -> None:
    config = from_properties({"log.dirs": str(tmp_path)})
    world = real_world(config, None)
    manager = make_wal_manager(config, world)
    assert isinstance(manager, ObjectWal)
    assert manager.store is world.wal_store is not None
    metadata, data = some_object()
    await manager.copy(metadata, data)
    assert world.wal_store_stats.bytes_written == len(data)
    assert world.store_stats.bytes_written == 0
    assert await world.store.get_range("wal/1/00000000000000000007-0000000000/00000000000000000003", 0, 9999)


def test_a_broker_without_the_tier_has_no_lane(tmp_path: Path) -> None:
    off = {"log.dirs": str(tmp_path), "remote.log.wal.storage.system.enable": "false"}
    assert real_world(from_properties(off), None).wal_store is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("wal_sample:NoStore", "its store is none: it lacks get_range"),
        ("wal_sample:Half", "it is no such manager: it lacks fetch, close"),
        ("wal_sample:Nobody", "AttributeError"),
        ("org.example.Java", "there is no Python module org; a class for Java cannot be used"),
        ("remote.wal.managers:LocalWalStorageManager", "the setting dir is missing"),
        ("remote.wal.managers:RemoteWalStorageManager", "the setting url is missing"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(folder: str, name: str, why: str) -> None:
    with pytest.raises(BadPlugin, match=why) as caught:
        load_wal_manager(name, {}, class_path=folder)
    assert str(caught.value).startswith(f"{NAME}={name}: ")
    assert len(str(caught.value).splitlines()) == 1
    config = from_properties(
        {"log.dirs": folder, NAME: name, "remote.log.wal.storage.manager.class.path": folder}
    )
    with pytest.raises(StartupError, match=why):
        make_wal_manager(config, real_world(config, None))


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        ("Local", {"dir": "relative"}, "give an absolute path"),
        ("Local", {"dir": "/d", "sync": "yes"}, "give true or false"),
        ("Local", {"dir": "/d", "dri": "/e"}, "no such setting: dri"),
        ("Remote", {"url": "ftp://host"}, "give file:///DIR or s3://"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: str, config: dict[str, str], why: str) -> None:
    with pytest.raises(BadPlugin, match=why):
        load_wal_manager(f"remote.wal.managers:{kind}WalStorageManager", config)


async def test_what_a_manager_raises_is_something_that_its_callers_know() -> None:
    metadata, data = some_object()
    known = (StoreError("x"), NoSuchObject("x"), SlotTaken(metadata.head))
    for error in (*known, KeyError("missing"), TimeoutError()):
        wal = load_wal_manager("tests.remote.wal.test_plugins:Failing", {"error": error})  # type: ignore[dict-item]
        expected: Any = type(error) if error in known else StoreError
        with pytest.raises(expected):
            await wal.copy(metadata, data)
        with pytest.raises(expected):
            await wal.fetch(SOME_PLACE, 0, 1)
        with pytest.raises(expected):
            await wal.close()
