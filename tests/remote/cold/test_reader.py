"""Reading from the tier: the right batches, read ahead, damage, stores that fail, times, aborted lists."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode, KafkaError
from protocol.records import iter_records, parse_header
from remote.cold.copies import LocalSource
from remote.cold.storage_manager import IndexKind
from remote.store.local_store import LocalStore
from remote.store.memory_store import MemoryStore
from remote.store.object_store import Fault, ObjectStore, Operation, StoreError
from remote.store.wrapper import Call, StoreWrapper
from storage.files import DiskFiles
from storage.index import AbortedTxn
from storage.log import LogSlice
from tests.remote.cold.read_driver import EPOCHS, PARTITION, START_MS, Tier, again, batch, headers_of, inline

T = TypeVar("T")


class Store(StoreWrapper):
    """Counts requests and may spoil, hold or refuse them."""

    def __init__(self, inner: ObjectStore | None = None) -> None:
        super().__init__(inner or MemoryStore())
        self.calls: list[tuple[Operation, str]] = []
        self.spoil: Callable[[bytes], bytes] | None = None
        self.spoils = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.only = ""

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((call.operation, call.key))
        if call.operation in (Operation.GET, Operation.GET_RANGE) and call.key.endswith(self.only):
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            answer = await ask()
            if self.spoil is not None and self.spoils:
                self.spoils -= 1
                if isinstance(answer, bytes):
                    return self.spoil(answer)  # type: ignore[return-value]
                return [self.spoil(bytes(b"".join(answer)))]  # type: ignore[arg-type, return-value]
            return answer
        return await ask()

    def gets(self, suffix: str = "") -> int:
        return sum(operation is Operation.GET_RANGE and key.endswith(suffix) for operation, key in self.calls)


def local_store(path: Path) -> LocalStore:
    return LocalStore(str(path / "store"), files=DiskFiles(), offload=inline)


async def tier_of(path: Path, *, store: ObjectStore | None = None, **options: Any) -> Tier:
    tier = Tier(store or Store(), path, **options)
    await tier.indexes.open()
    return tier


def naive(
    batches: list[bytes], segment_ends: list[int], offset: int, max_bytes: int, bound: int, *, min_one: bool
) -> list[bytes]:
    """What may be given at most: whole batches of the segment that holds the first of them."""
    given: list[bytes] = []
    size = 0
    end: int | None = None
    for data in batches:
        header = parse_header(data)
        if header.last_offset < offset:
            continue
        if header.next_offset > bound:
            break  # a bound is where a batch ends, or else before the batch that it is in
        if end is None:
            end = next(stop for stop in segment_ends if header.base_offset < stop)
        if header.base_offset >= end or (size + len(data) > max_bytes and not (min_one and not given)):
            break
        given.append(data)
        size += len(data)
    return given


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[list[tuple[int, int]]], int, int, bool, int | None, int]:
    """Segments of (records, bytes a record), where to read from, how much, how far, chunk size."""
    rows = st.tuples(st.integers(1, 4), st.integers(0, 300))
    segments = draw(st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=3))
    end = sum(count for segment in segments for count, _ in segment)
    offset = draw(st.integers(0, end - 1))
    max_bytes = draw(st.one_of(st.integers(0, 3000), st.just(1 << 20)))
    bound = draw(st.one_of(st.none(), st.integers(offset + 1, end)))
    return segments, offset, max_bytes, draw(st.booleans()), bound, draw(st.sampled_from([64, 256, 4096]))


@pytest.mark.parametrize("kind", ["memory", "local"])
@settings(max_examples=80)
@given(layout=layouts())
def test_a_read_gives_what_a_naive_reader_gives(
    kind: str, tmp_path_factory: pytest.TempPathFactory, layout: Any
) -> None:
    """Fewer only where the cut falls on an indexed batch before the limit, as in a local log."""
    segments, offset, max_bytes, min_one, bound, chunk_bytes = layout

    async def main() -> None:
        path = tmp_path_factory.mktemp("t")
        store: ObjectStore = MemoryStore() if kind == "memory" else local_store(path)
        tier = await tier_of(path, store=store, chunk_bytes=chunk_bytes, cache_bytes=1 << 16)
        ends = []
        for rows in segments:
            await tier.copy([batch(count, value_bytes=size) for count, size in rows])
            ends.append(tier.end)
        read = await tier.read(offset, max_bytes, bound=bound, min_one=min_one)
        wanted = naive(tier.batches, ends, offset, max_bytes, bound or tier.end, min_one=min_one)
        if not wanted:
            assert read.part is None
            assert offset <= read.next_offset <= (bound or tier.end)
            return
        given = read.part.read()
        assert b"".join(wanted).startswith(given)
        assert len(given) >= len(wanted[0])
        assert read.next_offset == headers_of(given)[-1].next_offset or read.next_offset == bound
        if sum(map(len, wanted)) - len(given):
            assert sum(map(len, wanted)) - len(given) <= 200 + 2 * 4 * 310, "more than an index interval"
        await tier.spawn.finish()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "local"])
@settings(max_examples=30)
@given(
    segments=st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=20), min_size=1, max_size=4),
    max_bytes=st.integers(1, 5000),
    cache_chunks=st.integers(6, 30),
)
def test_reading_on_gives_every_batch_once(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    segments: list[list[int]],
    max_bytes: int,
    cache_chunks: int,
) -> None:
    async def main() -> None:
        path = tmp_path_factory.mktemp("t")
        store: ObjectStore = MemoryStore() if kind == "memory" else local_store(path)
        tier = await tier_of(path, store=store, chunk_bytes=256, cache_bytes=cache_chunks * 256)
        for sizes in segments:
            await tier.copy([batch(value_bytes=size) for size in sizes])
        offset, got = 0, b""
        while offset < tier.end:
            read = await tier.read(offset, max_bytes)
            assert read.part is not None
            got += read.part.read()
            offset = read.next_offset
        assert got == b"".join(tier.batches)
        await tier.spawn.finish()

    asyncio.run(main())


async def test_the_segment_of_a_read_is_never_left(tmp_path: Path) -> None:
    """As Kafka: what comes behind is the next Fetch's."""
    tier = await tier_of(tmp_path)
    for _ in range(3):
        await tier.copy([batch() for _ in range(14)])
    read = await tier.read(3)
    assert [header.base_offset for header in headers_of(read.part.read())] == list(range(3, 14))


async def test_one_byte_gives_one_whole_batch(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path)
    await tier.copy([batch(5, value_bytes=100) for _ in range(10)])
    assert headers_of((await tier.read(7, 1)).part.read())[0].base_offset == 5
    assert len(headers_of((await tier.read(7, 1)).part.read())) == 1
    assert (await tier.read(7, 1, min_one=False)).part is None


async def test_a_gap_at_the_end_of_a_segment_is_jumped(tmp_path: Path) -> None:
    """A log that was compacted once."""
    tier = await tier_of(tmp_path)
    await tier.copy([batch() for _ in range(5)], end=9)
    await tier.copy([], end=12)
    await tier.copy([batch(base_offset=14) for _ in range(1)])
    assert headers_of((await tier.read(6)).part.read())[0].base_offset == 14
    assert headers_of((await tier.read(10)).part.read())[0].base_offset == 14
    read = await tier.read(6, bound=8)
    assert (read.part, read.next_offset) == (None, 8)


async def test_what_is_behind_the_last_copy_is_read_elsewhere(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path)
    await tier.copy([batch() for _ in range(5)], end=9)
    read = await tier.read(6, bound=50)
    assert (read.part, read.next_offset) == (None, 9)


async def test_a_copy_is_not_read_past_where_the_lineage_parts_from_it(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path)
    segment = await tier.copy([batch() for _ in range(10)])
    whole = tier.known.segment
    tier.known.segments = [replace(segment, end_offset=6)]
    tier.known.segment = lambda _: segment  # type: ignore[method-assign, assignment]
    assert [header.base_offset for header in headers_of((await tier.read(2)).part.read())] == [2, 3, 4, 5]
    assert (
        await tier.reader.find_timestamp(PARTITION, EPOCHS, START_MS, log_start=0, local_start=6)
    ) is not None
    tier.known.segment = whole  # type: ignore[method-assign]


# --- what the store is asked ---


async def test_a_small_segment_costs_two_requests_and_then_none(tmp_path: Path) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(50)])
    store.calls.clear()
    for _ in range(5):
        await tier.read(20)
    assert (store.gets(".idx"), store.gets(".log")) == (1, 1)


async def test_a_reader_that_goes_on_finds_the_next_chunks_there(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path, chunk_bytes=10_000)
    await tier.copy([batch(value_bytes=4000) for _ in range(40)])
    offset = (await tier.read(0, 10_000)).next_offset
    await tier.spawn.finish()
    misses = tier.chunks.misses
    for _ in range(8):
        offset = (await tier.read(offset, 10_000)).next_offset
        await tier.spawn.finish()
    assert tier.chunks.misses == misses, "each was there before it was wanted"


async def test_who_jumps_about_reads_nothing_ahead(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path, chunk_bytes=10_000)
    await tier.copy([batch(value_bytes=4000) for _ in range(40)])
    for offset in (5, 30, 11):
        await tier.read(offset, 5000)
    assert tier.chunks.read_ahead == 0


async def test_the_next_segment_is_opened_before_its_reader_comes(tmp_path: Path) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(5)])
    await tier.copy([batch() for _ in range(5)])
    await tier.read(0)
    await tier.spawn.finish()
    store.calls.clear()
    await tier.read(5)
    assert store.gets() == 0


async def test_a_hundred_readers_at_one_place_ask_once(tmp_path: Path) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(50)])
    store.calls.clear()
    reads = await asyncio.gather(*(tier.read(20) for _ in range(100)))
    assert len({read.part.read() for read in reads}) == 1
    assert (store.gets(".idx"), store.gets(".log")) == (1, 1)


async def test_a_read_that_was_given_up_goes_on_and_stays(tmp_path: Path) -> None:
    """Or a store slower than any reader's patience never gets one of them on."""
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(50)])
    store.calls.clear()
    for _ in range(3):
        store.gate.clear()
        reader = asyncio.ensure_future(tier.read(20))
        await asyncio.sleep(0.001)
        reader.cancel()
        await asyncio.wait((reader,))
        store.gate.set()
        await tier.spawn.finish()
    store.gate.clear()
    assert (await tier.read(20)).part is not None
    assert (store.gets(".idx"), store.gets(".log")) == (1, 1)


async def test_indexes_survive_a_restart(tmp_path: Path) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    segment = await tier.copy([batch() for _ in range(50)])
    await tier.read(20)
    await tier.spawn.finish()
    later = await tier_of(tmp_path, store=store)
    later.end = tier.end
    later.known.add(segment)
    store.calls.clear()
    await later.read(20)
    assert (store.gets(".idx"), store.gets(".log")) == (0, 1)


async def test_a_local_store_is_read_from_its_own_file(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path, store=local_store(tmp_path))
    await tier.copy([batch() for _ in range(50)])
    read = await tier.read(20)
    assert isinstance(read.part, LogSlice)
    assert read.part.file.fileno() >= 0
    assert len(tier.chunks._chunks) == 0


# --- what is damaged ---


def flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def cut(data: bytes) -> bytes:
    return data[:-1]


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("spoil", [flip, cut])
async def test_what_was_damaged_on_its_way_is_read_again(
    tmp_path: Path, suffix: str, spoil: Callable[[bytes], bytes]
) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(50)])
    store.only, store.spoil, store.spoils = suffix, spoil, 1
    assert (await tier.read(20)).part.read() == b"".join(tier.batches[20:])
    assert tier.reader.refused == 0


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone", "of another", "empty"])
@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_what_is_damaged_is_never_served_and_others_are(
    tmp_path: Path, suffix: str, how: str, kind: str
) -> None:
    inner: ObjectStore = MemoryStore() if kind == "memory" else local_store(tmp_path)
    tier = await tier_of(tmp_path, store=inner)
    bad = await tier.copy([batch() for _ in range(20)])
    other = await tier.copy([batch() for _ in range(20)])
    key = tier.key(bad, suffix)
    data = await inner.get(key)
    if how == "gone":
        await inner.delete(key)
    else:
        changed = {"flip": flip(data), "cut": cut(data), "empty": b""}
        await inner.put(key, changed.get(how) or await inner.get(tier.key(other, suffix)))
    with pytest.raises(KafkaError) as failure:
        await tier.read(5)
    assert failure.value.code is ErrorCode.kafka_storage_error
    assert tier.reader.refused == 1
    assert (await tier.read(25)).part.read() == b"".join(tier.batches[25:])
    await inner.put(key, data)
    assert (await tier.read(5)).part.read() == b"".join(tier.batches[5:20])


async def test_it_is_told_once_of_a_damaged_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    tier = await tier_of(tmp_path, store=store)
    bad = await tier.copy([batch() for _ in range(20)])
    await store.delete(tier.key(bad, ".log"))
    for _ in range(3):
        with pytest.raises(KafkaError):
            await tier.read(5)
    assert len([record for record in caplog.records if "tier check" in record.message]) == 1


async def test_a_copy_that_is_replaced_while_it_is_read_costs_nothing(tmp_path: Path) -> None:
    """Of the copies of two leaders one is deleted."""
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    first = await tier.copy([batch() for _ in range(20)])
    data = {suffix: await store.get(tier.key(first, suffix)) for suffix in (".log", ".idx")}
    second = again(first, 5)
    await store.put(tier.key(second, ".log"), data[".log"])
    store.only = ".log"
    store.gate.clear()
    reader = asyncio.ensure_future(tier.read(3))
    await asyncio.sleep(0.001)
    await store.inner.delete(tier.key(first, ".log"))
    tier.known.segments = []
    store.gate.set()
    with pytest.raises(KafkaError) as failure:
        await reader
    assert failure.value.code is ErrorCode.offset_not_available


@pytest.mark.parametrize(
    "error",
    [
        StoreError("503"),
        StoreError("denied", permanent=True, fault=Fault.DENIED),
        OSError(5, "io"),
        ValueError("a storage manager of others"),
    ],
)
async def test_a_store_that_is_away_is_never_out_of_range(tmp_path: Path, error: Exception) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(20)])
    store.error = error
    with pytest.raises(KafkaError) as failure:
        await tier.read(3)
    assert failure.value.code is ErrorCode.offset_not_available
    store.error = None
    assert (await tier.read(3)).part is not None


async def test_a_fold_that_is_behind_is_waited_for_and_never_out_of_range(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path, barrier_wait_s=0.01)
    segment = await tier.copy([batch() for _ in range(20)])
    tier.known.remove(segment)
    with pytest.raises(KafkaError) as failure:
        await tier.read(3)
    assert failure.value.code is ErrorCode.offset_not_available
    tier.known.caught_up.clear()
    with pytest.raises(KafkaError) as failure:
        await tier.read(3)
    assert failure.value.code is ErrorCode.offset_not_available
    tier.reader._barrier_wait_s = lambda: 5.0
    reader = asyncio.ensure_future(tier.read(3))
    await asyncio.sleep(0.001)
    tier.known.add(segment)
    tier.known.caught_up.set()
    assert (await reader).part is not None


async def test_what_is_deleted_is_forgotten(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path)
    segment = await tier.copy([batch() for _ in range(20)])
    await tier.read(3)
    await tier.spawn.finish()
    assert len(tier.indexes)
    tier.known.remove(segment)
    await tier.spawn.finish()
    assert (len(tier.indexes), len(tier.copies), tier.chunks.size_bytes) == (0, 0, 0)


# --- times ---


@settings(max_examples=60)
@given(
    segments=st.lists(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60)), min_size=1, max_size=8),
        min_size=1,
        max_size=3,
    ),
    wanted=st.integers(-2, 70),
    log_start=st.integers(0, 30),
)
def test_a_time_leads_to_the_first_record_at_or_after_it(
    tmp_path_factory: pytest.TempPathFactory,
    segments: list[list[tuple[int, int]]],
    wanted: int,
    log_start: int,
) -> None:
    async def main() -> None:
        tier = await tier_of(tmp_path_factory.mktemp("t"), chunk_bytes=256)
        for rows in segments:
            await tier.copy([batch(count, timestamp=START_MS + at) for count, at in rows], index_interval=100)
        start = min(log_start, tier.end)
        records = [record for data in tier.batches for record in iter_records(data)]
        first = next(
            (
                (record.timestamp, record.offset, 0)
                for record in records
                if record.timestamp >= START_MS + wanted and record.offset >= start
            ),
            None,
        )
        found = await tier.reader.find_timestamp(
            PARTITION, EPOCHS, START_MS + wanted, log_start=start, local_start=tier.end
        )
        assert found == first

    asyncio.run(main())


async def test_a_time_is_not_looked_up_in_a_fold_that_is_behind(tmp_path: Path) -> None:
    """A copy it does not know yet may hold an earlier record: a consumer would miss what is before it."""
    tier = await tier_of(tmp_path, barrier_wait_s=0.01)
    await tier.copy([batch() for _ in range(20)])
    tier.known.caught_up.clear()
    with pytest.raises(KafkaError) as failure:
        await tier.reader.find_timestamp(PARTITION, EPOCHS, START_MS, log_start=0, local_start=20)
    assert failure.value.code is ErrorCode.offset_not_available


async def test_a_time_in_what_is_missing_is_not_answered(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path)
    first = await tier.copy([batch() for _ in range(20)])
    await tier.copy([batch() for _ in range(20)])
    tier.known.remove(first)
    with pytest.raises(KafkaError) as failure:
        await tier.reader.find_timestamp(PARTITION, EPOCHS, START_MS, log_start=0, local_start=40)
    assert failure.value.code is ErrorCode.offset_not_available


# --- aborted transactions ---


@settings(max_examples=100)
@given(
    ends=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    picks=st.randoms(use_true_random=False),
)
def test_aborted_transactions_are_those_that_overlap(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int], picks: random.Random
) -> None:
    """Each is in the index of the segment that holds its marker, the last ones in the local log's."""

    async def main() -> None:
        tier = await tier_of(tmp_path_factory.mktemp("t"))
        total = sum(ends)
        aborted = []
        for producer_id, last in enumerate(picks.sample(range(total + 10), min(6, total))):
            aborted.append((producer_id, picks.randrange(last + 1), last))
        entries = []
        for producer_id, first, last in sorted(aborted, key=lambda each: each[2]):
            open_firsts = [begin for _, begin, stop in aborted if begin <= last < stop]
            entries.append(AbortedTxn(producer_id, first, last, min([last + 1, *open_firsts])))
        at = 0
        for count in ends:
            mine = [entry for entry in entries if at <= entry.last_offset < at + count]
            await tier.copy([batch() for _ in range(count)], aborted=mine)
            at += count
        start = picks.randrange(total)
        end = picks.randrange(start + 1, total + 5)
        local = [entry for entry in entries if entry.last_offset >= total]

        def of_local(begin: int, stop: int) -> list[tuple[int, int]]:
            return [
                (entry.producer_id, entry.first_offset)
                for entry in local
                if entry.last_offset >= begin and entry.first_offset < stop
            ]

        found = await tier.reader.aborted(
            PARTITION, EPOCHS, start, end, local_start=lambda: total, local=of_local
        )
        overlapping = {
            (producer_id, first) for producer_id, first, last in aborted if last >= start and first < end
        }
        assert set(found) == overlapping
        assert len(found) == len(set(found))

    asyncio.run(main())


async def test_segments_without_aborted_transactions_are_not_asked(tmp_path: Path) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    for _ in range(30):
        await tier.copy([batch()])
    marker = AbortedTxn(7, 0, 30, 31)
    await tier.copy([batch()], aborted=[marker])
    store.calls.clear()
    found = await tier.reader.aborted(
        PARTITION,
        EPOCHS,
        2,
        5,
        local_start=lambda: 31,
        local=lambda start, end: pytest.fail("nothing more is needed"),
    )
    assert found == [(7, 0)]
    assert store.gets() == 1


async def test_an_aborted_list_waits_for_the_fold(tmp_path: Path) -> None:
    """A marker in a copy that it does not know would turn aborted records into committed ones."""
    tier = await tier_of(tmp_path, barrier_wait_s=0.01)
    await tier.copy([batch() for _ in range(20)])
    tier.known.caught_up.clear()
    with pytest.raises(KafkaError) as failure:
        await tier.reader.aborted(
            PARTITION, EPOCHS, 0, 5, local_start=lambda: 20, local=lambda start, end: []
        )
    assert failure.value.code is ErrorCode.offset_not_available


async def test_a_marker_that_leaves_the_local_log_meanwhile_is_found_in_the_tier(tmp_path: Path) -> None:
    """Or a reader of what is committed would be given what was aborted."""
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    await tier.copy([batch() for _ in range(5)], aborted=[AbortedTxn(1, 0, 2, 3)])
    await tier.copy([batch() for _ in range(5)], aborted=[AbortedTxn(2, 4, 7, 8)])
    local_start = 5

    def local(start: int, end: int) -> list[tuple[int, int]]:
        return [(2, 4)] if local_start == 5 else []

    store.gate.clear()
    waiting = asyncio.create_task(
        tier.reader.aborted(PARTITION, EPOCHS, 0, 5, local_start=lambda: local_start, local=local)
    )
    while not store.gets():  # noqa: ASYNC110 - the store's own state
        await asyncio.sleep(0)
    local_start = 10
    store.gate.set()
    assert await waiting == [(1, 0), (2, 4)]


async def test_while_clients_hold_much_a_read_gives_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.reader.HELD_MANY_BYTES", 1 << 10)
    tier = await tier_of(tmp_path, chunk_bytes=1 << 10)
    await tier.copy([batch() for _ in range(100)])
    held = (await tier.read(0)).part
    assert held is not None and held.size > 4 << 10
    for offset in (0, 50):
        part = (await tier.read(offset)).part
        assert part is not None and 0 < part.size <= 1 << 10
    del held, part
    await asyncio.sleep(0)
    again = (await tier.read(0)).part
    assert again is not None and again.size > 4 << 10


async def test_reads_that_begin_at_once_give_little_each_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.reader.HELD_MANY_BYTES", 16 << 10)
    store = Store()
    tier = await tier_of(tmp_path, store=store, chunk_bytes=1 << 10)
    await tier.copy([batch() for _ in range(500)])
    reads = await asyncio.gather(*(tier.read(0, 8 << 10) for _ in range(20)))
    assert sum(read.part.size for read in reads) <= (24 << 10) + 20 * (1 << 10)
    del reads
    gc.collect()
    await asyncio.sleep(0)
    assert (await tier.read(0, 8 << 10)).part.size > 4 << 10


async def test_what_was_read_is_held_by_who_is_sent_it_alone(tmp_path: Path) -> None:
    """Not by the chunks that are on their way meanwhile."""
    store = Store()
    tier = await tier_of(tmp_path, store=store, chunk_bytes=1 << 10)
    await tier.copy([batch() for _ in range(200)])
    part = (await tier.read(0, max_bytes=1 << 10)).part
    store.only = ".log"
    held = (await tier.read(part.next_offset, max_bytes=1 << 10)).part
    store.gate.clear()
    reading = asyncio.ensure_future(tier.read(held.next_offset, max_bytes=1 << 10))
    for _ in range(20):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait((reading,))
    del part, held, reading
    gc.collect()
    await asyncio.sleep(0)
    assert tier.reader.held_bytes == 0
    store.gate.set()
    await tier.spawn.finish()


async def test_a_large_list_of_aborted_transactions_is_read_in_turns_of_the_loop(tmp_path: Path) -> None:
    store = Store()
    tier = await tier_of(tmp_path, store=store)
    many = [AbortedTxn(at, 0, 3, 4) for at in range(5000)]
    segment = await tier.copy([batch() for _ in range(5)], aborted=many)
    copy = await tier.copies.open(segment)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await tier.copies._index(segment, IndexKind.TRANSACTION)
    counting = asyncio.ensure_future(count())
    found = await tier.copies.aborted(copy)
    counting.cancel()
    assert found == many
    assert turns >= 5


async def test_a_hundred_readers_of_a_file_prove_it_once(tmp_path: Path) -> None:
    tier = await tier_of(tmp_path, store=local_store(tmp_path), chunk_bytes=1 << 10)
    segment = await tier.copy([batch() for _ in range(200)])
    copy = await tier.copies.open(segment)
    assert copy.file is not None
    read: list[tuple[int, int]] = []
    whole, pread = segment.size_bytes, copy.file.pread

    class Counting:
        path = "counted"

        def pread(self, size: int, offset: int) -> bytes:
            read.append((offset, size))
            return pread(size, offset)

    async def offload(call: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return call()

    sources = [LocalSource(copy, Counting(), 1 << 10, offload) for _ in range(100)]  # type: ignore[arg-type]
    last = -(-whole // (1 << 10))
    await asyncio.gather(
        *(each.load(at % last, min(last, at % last + 3), run=at % 3) for at, each in enumerate(sources))
    )
    assert sum(size for _, size in read) == whole
    assert sum(size for _, size in {*read}) == whole, "each byte once"
    assert not copy.proving
