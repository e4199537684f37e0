"""A plugin that fails, as its callers see it."""

from __future__ import annotations

from typing import Any

import pytest

from remote.bad_object import BadObject
from remote.cold.guard import GuardedManager
from remote.cold.storage_manager import (
    IndexKind,
    StorageManager,
)
from remote.store.object_store import NoSuchObject, StoreError
from tests.remote.cold.copies import copy_of

COPY = copy_of(((0, 0),), 0, 2, number=1)


class Failing:
    """Every method raises `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def fetch_segment(self, *rest: Any, **named: Any) -> Any:
        raise self.error

    copy_segment = fetch_index = fetch_header = delete_segment = close = fetch_segment

    def local_path(self, segment: Any) -> Any:
        raise self.error


def guarded(error: Exception) -> GuardedManager:
    plugin: StorageManager = Failing(error)
    return GuardedManager(plugin)


@pytest.mark.parametrize("error", [ValueError("odd"), TimeoutError(), KeyError(1)])
async def test_what_a_plugin_raises_is_a_failure_of_the_store(error: Exception) -> None:
    manager = guarded(error)
    for ask in (
        manager.fetch_segment(COPY, 0, 1),
        manager.fetch_index(COPY, IndexKind.OFFSET),
        manager.fetch_header(COPY),
        manager.delete_segment(COPY),
        manager.close(),
    ):
        with pytest.raises(StoreError, match="the storage manager failed"):
            await ask
    assert manager.local_path(COPY) is None


@pytest.mark.parametrize("error", [StoreError("503"), NoSuchObject("key"), BadObject("torn")])
async def test_what_callers_know_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        await guarded(error).fetch_index(COPY, IndexKind.OFFSET)
    assert caught.value is error


async def test_the_errors_of_a_copy_are_left_to_the_copier() -> None:
    with pytest.raises(ZeroDivisionError):
        nothing: Any = None
        await guarded(ZeroDivisionError()).copy_segment(
            COPY, nothing, cluster_id="c", leader_epoch=0, pace=nothing
        )
