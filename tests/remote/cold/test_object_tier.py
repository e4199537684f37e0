"""Which objects a copied segment has, in which order they come and go, and damaged ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from remote.bad_object import BadObject
from remote.cold.index_object import HEAD_READ_BYTES, decode_index_object
from remote.cold.object_tier import HEADS_KEPT_MAX, ObjectTier, key_of
from remote.cold.storage_manager import (
    IndexKind,
    header_of,
)
from remote.keys import SegmentPart, parse_tier_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import NoSuchObject, Operation, StoreError
from remote.store.wrapper import Call, StoreWrapper
from tests.remote.cold.segment_samples import Copy

T = TypeVar("T")


class Watched(StoreWrapper):
    """Remembers what was asked, and may damage or refuse an answer."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        super().__init__(self.memory)
        self.calls: list[tuple[Operation, str]] = []
        self.damage: list[Callable[[bytes], bytes]] = []
        self.refuse: str | None = None

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((call.operation, call.key.rpartition(".")[2]))
        if self.refuse is not None and call.key.endswith(self.refuse):
            raise StoreError("refused", permanent=True)
        answer = await ask()
        if call.operation is Operation.GET_RANGE and self.damage and isinstance(answer, bytes):
            return self.damage.pop(0)(answer)  # type: ignore[return-value]
        return answer

    def take_calls(self) -> list[tuple[Operation, str]]:
        calls, self.calls = self.calls, []
        return calls


async def at_once(size: int) -> None:
    assert size >= 0


async def copied(store: Watched, what: Copy) -> ObjectTier:
    tier = ObjectTier(store)
    await tier.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=at_once)
    store.take_calls()
    return tier


def flip(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


async def test_a_segment_is_two_objects_of_which_the_index_comes_first_and_goes_last() -> None:
    store, what = Watched(), Copy()
    tier = ObjectTier(store)
    await tier.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=at_once)
    assert store.take_calls() == [(Operation.PUT, "idx"), (Operation.PUT, "log")]
    data_key, index_key = (key_of(what.segment, part) for part in SegmentPart)
    assert store.memory.objects[data_key] == what.bytes
    head, indexes = decode_index_object(store.memory.objects[index_key])
    assert head.header == header_of(what.segment, what.data, cluster_id="c", leader_epoch=3)
    assert indexes == what.indexes
    for key in (data_key, index_key):
        named = parse_tier_key(key)
        assert named is not None
        assert (named.topic_id, named.partition) == what.segment.partition
        assert (named.segment_id, named.base_offset) == (what.segment.id, what.segment.base_offset)
    await tier.delete_segment(what.segment)
    deleted = [name for operation, name in store.take_calls() if operation is Operation.DELETE]
    assert deleted == ["log", "idx"]
    assert not store.memory.objects


@pytest.mark.parametrize("part", SegmentPart)
async def test_a_failure_at_either_object_can_be_cleaned_up(part: SegmentPart) -> None:
    store, what = Watched(), Copy()
    store.refuse = part
    tier = ObjectTier(store)
    with pytest.raises(StoreError):
        await tier.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=at_once)
    store.refuse = None
    await tier.delete_segment(what.segment)
    assert not store.memory.objects


async def test_a_small_index_object_is_read_at_once_with_its_head() -> None:
    store, what = Watched(), Copy()
    tier = await copied(store, what)
    await tier.fetch_header(what.segment)
    for kind in IndexKind:
        assert await tier.fetch_index(what.segment, kind) == what.indexes[kind]
    assert store.take_calls() == [(Operation.GET_RANGE, "idx")]


async def test_a_large_index_is_read_by_its_range_alone() -> None:
    store, what = Watched(), Copy()
    large = bytes(range(256)) * 1000
    what.data = replace(what.data, offset_index=large)
    tier = await copied(store, what)
    assert await tier.fetch_index(what.segment, IndexKind.OFFSET) == large
    assert await tier.fetch_index(what.segment, IndexKind.PRODUCER_SNAPSHOT) == what.data.producers
    assert len(store.take_calls()) == 2


async def test_a_head_longer_than_the_first_read_is_read_to_its_end() -> None:
    store, what = Watched(), Copy()
    what.segment = replace(what.segment, epochs=tuple((n, 100 + n) for n in range(HEAD_READ_BYTES // 12)))
    tier = await copied(store, what)
    assert (await tier.fetch_header(what.segment)).epochs == what.segment.epochs
    assert await tier.fetch_index(what.segment, IndexKind.OFFSET) == what.data.offset_index
    assert len(store.take_calls()) == 3


async def test_what_is_damaged_on_its_way_is_read_again() -> None:
    store, what = Watched(), Copy()
    tier = await copied(store, what)
    store.damage = [flip]
    assert (await tier.fetch_header(what.segment)).size_bytes == len(what.bytes)
    tier = ObjectTier(store)
    store.damage = [lambda data: data[:-1]]
    assert await tier.fetch_index(what.segment, IndexKind.OFFSET) == what.data.offset_index


@pytest.mark.parametrize(
    "damage", [flip, lambda data: data[:40], lambda data: b"", lambda data: b"<html>" + data]
)
async def test_what_stays_damaged_is_bad(damage: Callable[[bytes], bytes]) -> None:
    store, what = Watched(), Copy()
    tier = await copied(store, what)
    key = key_of(what.segment, SegmentPart.INDEX)
    store.memory.objects[key] = damage(store.memory.objects[key])
    with pytest.raises(BadObject):
        await tier.fetch_header(what.segment)
    with pytest.raises(BadObject):
        await tier.fetch_index(what.segment, IndexKind.OFFSET)
    del store.memory.objects[key]
    with pytest.raises(NoSuchObject):
        await tier.fetch_header(what.segment)


async def test_an_index_object_of_another_segment_is_bad() -> None:
    store, what = Watched(), Copy()
    other = what.again(seed=2)
    tier = await copied(store, what)
    await copied(store, other)
    objects = store.memory.objects
    objects[key_of(what.segment, SegmentPart.INDEX)] = objects[key_of(other.segment, SegmentPart.INDEX)]
    with pytest.raises(BadObject, match="another segment"):
        await tier.fetch_header(what.segment)


async def test_data_that_is_too_short_is_bad() -> None:
    store, what = Watched(), Copy()
    tier = await copied(store, what)
    store.memory.objects[key_of(what.segment, SegmentPart.DATA)] = what.bytes[:-1]
    assert await tier.fetch_segment(what.segment, 0, 10) == what.bytes[:10]
    with pytest.raises(BadObject, match="ends at 2999, it should have 3000 bytes"):
        await tier.fetch_segment(what.segment, 2000, 5000)


async def test_few_heads_are_kept() -> None:
    store, copies = Watched(), [Copy(seed=seed) for seed in range(HEADS_KEPT_MAX + 1)]
    for what in copies:
        await copied(store, what)
    tier = ObjectTier(store)
    for what in copies:
        await tier.fetch_header(what.segment)
    store.take_calls()
    await tier.fetch_header(copies[-1].segment)
    assert not store.take_calls()
    await tier.fetch_header(copies[0].segment)
    assert len(store.take_calls()) == 1
