"""An export has each record once, whoever is killed at whatever request and whoever runs beside."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remote.store.memory_store import MemoryStore
from remote.store.object_store import ObjectStore
from remote.store.wrapper import Call, StoreWrapper
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.sim.loop import SimLoop
from tests.tools.pipelines.topic import MemoryTopic
from tools.console import Failure
from tools.pipelines import parquet_files
from tools.pipelines.export import EMPTIED_KEPT_MS, Exporter, ExportOptions
from tools.pipelines.parquet_files import ABOUT, FILES_MERGED, counting, parse_claim, parse_file

T = TypeVar("T")
Row = tuple[int, int, bytes | None, bytes | None, int]


class Killed(BaseException):
    """The exporter is dead."""


class Mortal(StoreWrapper):
    """Dies before or after its n-th request."""

    def __init__(self, inner: ObjectStore, dies_at: int, *, is_done: bool) -> None:
        super().__init__(inner)
        self._left = dies_at
        self._is_done = is_done

    async def _ask(self, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left == 0 and not self._is_done:
            raise Killed
        answer = await send()
        if self._left <= 0:
            raise Killed
        return answer


async def inline(call: Callable[[], Any]) -> Any:
    return call()


def exporter(topic: MemoryTopic, store: ObjectStore, **options: Any) -> Exporter:
    options = {"file_bytes": 600, "compression": "none", **options}
    return Exporter(
        topic,
        store,
        ExportOptions(topic="t", bootstrap="", url="memory", **options),
        now_ms=options.pop("now_ms", lambda: 0),
        offload=inline,
    )


def run(coro: Any) -> Any:
    return SimLoop().run(coro)


async def export(topic: MemoryTopic, store: ObjectStore, **options: Any) -> Exporter:
    one = exporter(topic, store, **options)
    await one.check_about()
    await one.round()
    return one


def exported(store: MemoryStore) -> list[Row]:
    """What a plain reader of the folder sees."""
    rows: list[Row] = []
    for key, data in store.objects.items():
        if parse_file(key) is not None:
            for row in pq.read_table(pa.BufferReader(data)).to_pylist():
                time = round(row["timestamp"].timestamp() * 1000)
                rows.append((row["partition"], row["offset"], row["key"], row["value"], time))
    return sorted(rows, key=lambda row: row[:2])


def wanted(topic: MemoryTopic) -> list[Row]:
    return sorted(topic.rows, key=lambda row: row[:2])


def test_everything_is_exported_once_and_small_files_become_large_ones() -> None:
    topic, store = MemoryTopic(3, seed=1), MemoryStore()

    async def main() -> None:
        for _ in range(FILES_MERGED * 2):
            topic.grow(4)
            await export(topic, store, file_bytes=20_000)

    run(main())
    assert exported(store) == wanted(topic)
    files = [file for key in store.objects if (file := parse_file(key)) is not None]
    kept = [
        file for part in topic.partitions for file in counting([f for f in files if f.partition == part])[0]
    ]
    assert len(kept) < 2 * FILES_MERGED, "nothing was merged"


@pytest.mark.parametrize("is_done", [False, True])
def test_it_may_be_killed_at_any_request(is_done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter dies at its n-th request, for every n there is; the next one ends its work."""

    few = 6
    monkeypatch.setattr(parquet_files, "FILES_MERGED", few)

    async def prepare() -> None:
        for _ in range(few - 1):  # so that the round that dies merges
            begun.grow(2)
            await export(begun, held, file_bytes=1 << 20)
        begun.grow(10)

    async def die(topic: MemoryTopic, store: MemoryStore) -> bool:
        died = False
        try:
            await export(topic, Mortal(store, dies_at, is_done=is_done), file_bytes=1500)
        except Killed:
            died = True
        topic.grow(3)
        await export(topic, store, file_bytes=700)
        return died

    begun, held = MemoryTopic(2, seed=1), MemoryStore()
    run(prepare())
    dies_at, died = 1, True
    while died:
        topic, store = begun.copy(), copy.deepcopy(held)
        died = run(die(topic, store))
        assert exported(store) == wanted(topic), f"killed at request {dies_at}"
        dies_at += 1
    assert dies_at > 20


@pytest.mark.parametrize("seed", range(25))
def test_exporters_beside_each_other_over_a_store_that_fails(seed: int) -> None:
    rng = random.Random(seed)
    topic, store = MemoryTopic(2, seed=seed), MemoryStore()
    profile = FaultProfile(latency_max_s=0.5, error_before_chance=0.02, error_after_chance=0.02)

    async def one(number: int) -> None:
        faulty = FaultyStore(store, profile, random.Random(seed * 10 + number))
        for _ in range(6):
            topic.grow(rng.randint(0, 8))
            try:
                await export(topic, faulty, file_bytes=rng.choice((200, 700, 5000)))
            except Exception:
                await asyncio.sleep(0.1)  # started anew, as by whoever runs it

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(one(number))
        for _ in range(2):
            await export(topic, store)

    run(main())
    assert exported(store) == wanted(topic), f"seed {seed}"


def test_offsets_that_are_gone_are_told_and_not_passed_over_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, store = MemoryTopic(1, seed=3), MemoryStore()

    async def main() -> Exporter:
        topic.grow(10)
        await export(topic, store)
        first_end = topic.logs[0][-1].end
        topic.grow(20)
        topic.delete_below(0, first_end + 40)
        with pytest.raises(Failure, match="--allow-loss"):
            await export(topic, store)
        done = await export(topic, store, allow_loss=True)
        assert done.done.lost == {0: [(first_end, first_end + 40)]}
        return done

    run(main())
    assert "were deleted before they were exported" in capsys.readouterr().err
    lost = {row[1] for row in wanted(topic)} - {row[1] for row in exported(store)}
    assert lost
    assert len(lost) <= 40
    assert max(Counter(row[1] for row in exported(store)).values()) == 1


def test_another_topic_is_not_mixed_in() -> None:
    topic, other, store = MemoryTopic(1, seed=1), MemoryTopic(1, seed=2), MemoryStore()
    other.topic_id = "ffffffffffffffffffffffffffffffff"
    topic.grow(3)
    other.grow(3)

    async def main() -> None:
        await export(topic, store)
        with pytest.raises(Failure, match="topic_id"):
            await export(other, store)
        with pytest.raises(Failure, match="isolation"):
            await export(topic, store, read_committed=False)

    run(main())
    assert ABOUT in store.objects


def test_a_file_that_somebody_deleted_is_missed() -> None:
    topic, store = MemoryTopic(1, seed=5), MemoryStore()

    async def main() -> None:
        for _ in range(3):
            topic.grow(5)
            await export(topic, store)
        files = sorted(key for key in store.objects if parse_file(key) is not None)
        await store.delete(files[1])
        with pytest.raises(Failure, match="no file holds offsets"):
            await export(topic, store)

    run(main())


def test_a_log_that_was_cut_is_not_exported_over() -> None:
    topic, store = MemoryTopic(1, seed=5), MemoryStore()

    async def main() -> None:
        topic.grow(5)
        await export(topic, store)
        topic.logs[0].pop()
        with pytest.raises(Failure, match="unclean election"):
            await export(topic, store)

    run(main())


def test_a_sleeper_puts_nothing_back_that_was_merged() -> None:
    """It read a small file's claim before the merge and puts the file after it: the name is still taken."""
    topic, store = MemoryTopic(1, seed=7), MemoryStore()

    async def main() -> None:
        for _ in range(FILES_MERGED):
            topic.grow(2)
            await export(topic, store, file_bytes=1 << 20)
        emptied = [file for key in store.objects if (file := parse_file(key)) is not None]
        kept, superseded = counting(emptied)
        assert len(kept) == 1
        assert superseded
        sleeper = exporter(topic, store)
        columns = pq.read_table(pa.BufferReader(store.objects[kept[0].key]))
        await sleeper.put_file(superseded[0], columns)

    run(main())
    assert exported(store) == wanted(topic)


def test_emptied_files_go_after_a_day() -> None:
    now = 0
    topic, store = MemoryTopic(1, seed=7), MemoryStore(now_ms=lambda: now)

    async def main() -> None:
        nonlocal now
        for _ in range(FILES_MERGED + 1):
            topic.grow(2)
            one = await export(topic, store, file_bytes=1 << 20)
        before = len(store.objects)
        now = EMPTIED_KEPT_MS + 1
        one = Exporter(topic, store, one.options, now_ms=lambda: now, offload=inline)
        await one.round()
        assert len(store.objects) == before - FILES_MERGED
        await one.round()
        assert len(store.objects) == before - FILES_MERGED

    run(main())
    assert exported(store) == wanted(topic)
    assert any(parse_claim(key) for key in store.objects)
