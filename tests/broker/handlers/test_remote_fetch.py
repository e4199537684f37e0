"""Fetch on a running broker of what only the tier has: limits, order, waits, faults, the read quota."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import Api
from protocol.checksum import Buffer
from protocol.errors import ErrorCode
from protocol.primitives import ROWS_AT_ONCE
from protocol.records import end_txn_marker, iter_batches
from remote.cold.index_object import decode_index_object
from remote.cold.object_tier import ObjectTier, key_of
from remote.cold.segments import RemoteSegment, TieredPartition
from remote.keys import SegmentPart
from remote.store.object_store import StoreError
from storage.producers import UNASKED
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields
from tests.broker.replication_driver import Replicas
from tests.broker.tiered import TIERED, log_of, roll, tier

if TYPE_CHECKING:
    from broker.replicas.tier_reads import TierReads
    from broker.server import Broker
    from tests.conftest import MakeBroker

PATIENT = {"remote.fetch.max.wait.ms": "60000"}


def reads_of(broker: Broker) -> TierReads:
    found = broker.components.tier_reads
    assert found is not None
    return found


class Store:
    """Stands between the reads and the store: without files of this machine, perhaps slow or down."""

    def __init__(self, broker: Broker) -> None:
        copies = reads_of(broker).reader.copies
        storage: Any = copies._storage
        self._fetch: Callable[..., Awaitable[Sequence[Buffer]]] = storage.fetch_pieces
        storage.local_path = lambda segment: None
        storage.fetch_pieces = self.fetch
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.only: RemoteSegment | None = None
        self.asked = 0

    async def fetch(
        self, segment: RemoteSegment, start: int, end: int, *, piece_bytes: int
    ) -> Sequence[Buffer]:
        self.asked += 1
        if self.only in (None, segment):
            await self.gate.wait()
            if self.error is not None:
                raise self.error
        return await self._fetch(segment, start, end, piece_bytes=piece_bytes)


async def fill(
    broker: Broker, topic: str, *, segments: int = 2, batches: int = 5, size: int = 100, index: int = 0
) -> list[RemoteSegment]:
    """Closed segments in the tier, and as many batches behind them in the local log."""
    async with await RawClient.open(broker) as client:
        for _ in range(segments):
            for at in range(batches):
                await client.produce(topic, batch_of(b"%d" % at * size), index=index)
            roll(broker, topic, index)
        for at in range(batches):
            await client.produce(topic, batch_of(b"%d" % at * size), index=index)
    return await tier(broker, topic, index)


def offsets_in(records: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_batches(records)]


def of_partitions(*items: tuple[str, int, int], **limits: Any) -> dict[str, Any]:
    """A request for (topic, offset, max bytes)."""
    fields = fetch_fields("x", 0, **limits)
    fields["topics"] = [
        {
            "topic": topic,
            "partitions": [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": size}],
        }
        for topic, offset, size in items
    ]
    return fields


async def ask(client: RawClient, *items: tuple[str, int, int], version: int = 11, **limits: Any) -> list[Any]:
    response = await client.call(Api.FETCH, version, **of_partitions(*items, **limits))
    return [topic.partitions[0] for topic in response.responses]


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    return await make_broker(**PATIENT)


@pytest.fixture(params=["local file", "chunks"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def store_of(broker: Broker, kind: str) -> Store | None:
    return Store(broker) if kind == "chunks" else None


# --- what is read ---


@pytest.mark.parametrize("isolation", [0, 1])
async def test_a_consumer_reads_over_the_border_as_if_there_were_none(
    broker: Broker, kind: str, isolation: int
) -> None:
    topic_id = await create_topic(broker, "t", **TIERED)
    async with await RawClient.open(broker) as client:
        store_of(broker, kind)
        await fill(broker, "t", segments=3)
        for version in range(4, 19):
            got: list[int] = []
            while len(got) < 20:
                answer = await client.fetch(
                    "t", len(got), version=version, topic_id=topic_id, isolation_level=isolation
                )
                assert answer.error_code is ErrorCode.none
                assert (answer.high_watermark, answer.last_stable_offset) == (20, 20)
                assert answer.aborted_transactions == (None if isolation == 0 else ())
                offsets = offsets_in(answer.records)
                assert len(offsets) <= 5, "one segment at a time"
                got += offsets
            assert got == list(range(20))


async def test_large_answers_leave_whole(broker: Broker, kind: str) -> None:
    """By sendfile from the object's file, or in pieces from memory, beside local ones."""
    await create_topic(broker, "a", **TIERED)
    await create_topic(broker, "b")
    store_of(broker, kind)
    async with await RawClient.open(broker) as client:
        value = bytes(range(256)) * 1600
        batches = [batch_of(value + b"%d" % at) for at in range(5)]
        for batch in batches:
            await client.produce("a", batch)
            await client.produce("b", batch)
        roll(broker, "a")
        await client.produce("a", batch_of(b"local"))
        await tier(broker, "a")
        for order in (("a", "b"), ("b", "a"), ("a",)):
            answers = await ask(client, *((topic, 0, 1 << 22) for topic in order))
            for answer in answers:
                assert [len(answer.records), offsets_in(answer.records)] == [
                    sum(map(len, batches)),
                    list(range(5)),
                ]
        small, large = await ask(client, ("a", 0, 1), ("b", 0, 1 << 22))
        assert (len(offsets_in(small.records)), len(offsets_in(large.records))) == (1, 5)


async def test_limits_hold_in_the_order_of_the_request(broker: Broker, kind: str) -> None:
    await create_topic(broker, "a", **TIERED)
    await create_topic(broker, "b", **TIERED)
    await create_topic(broker, "c")
    store_of(broker, kind)
    for topic in ("a", "b"):
        await fill(broker, topic, segments=1)
    async with await RawClient.open(broker) as client:
        batch = batch_of(b"0" * 100)
        for _ in range(5):
            await client.produce("c", batch)
        size = len(batch)

        async def counts(order: str, *, of_partition: int = 1 << 20, **limits: Any) -> list[int]:
            answers = await ask(client, *((topic, 0, of_partition) for topic in order), **limits)
            return [len(offsets_in(answer.records)) for answer in answers]

        assert await counts("abc") == [5, 5, 5]
        assert await counts("abc", of_partition=1) == [1, 0, 0]
        assert await counts("cab", of_partition=1) == [1, 0, 0]
        assert await counts("abc", max_bytes=1) == [1, 0, 0]
        assert await counts("abc", of_partition=2 * size, max_bytes=5 * size) == [2, 2, 1]
        assert await counts("cab", of_partition=2 * size, max_bytes=5 * size) == [2, 2, 1]
        # a read from the tier has its share set aside, whether it needs it or not
        assert await counts("ac", of_partition=10 * size, max_bytes=10 * size) == [5, 0]


async def test_offsets_out_of_range_are_what_they_were(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    moved: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log_of(broker, "t").advance_log_start(3, moved.set_result)
    assert await moved is None
    async with await RawClient.open(broker) as client:
        for offset in (-1, 0, 2, 16, 1000):
            answer = await client.fetch("t", offset)
            assert answer.error_code is ErrorCode.offset_out_of_range
        assert offsets_in((await client.fetch("t", 3)).records) == [3, 4]
        assert (await client.fetch("t", 15)).records == b""


async def test_a_session_is_told_of_what_comes_from_the_tier(broker: Broker, kind: str) -> None:
    await create_topic(broker, "t", **TIERED)
    store_of(broker, kind)
    await fill(broker, "t")
    async with await RawClient.open(broker) as client:
        fields = fetch_fields("t", 0, session_epoch=0)
        first = await client.call(Api.FETCH, 12, **fields)
        assert offsets_in(first.responses[0].partitions[0].records) == [0, 1, 2, 3, 4]
        got = 5
        for epoch in range(1, 4):
            fields = fetch_fields("t", got, session_id=first.session_id, session_epoch=epoch)
            answer = await client.call(Api.FETCH, 12, **fields)
            if answer.responses:
                got += len(offsets_in(answer.responses[0].partitions[0].records))
        assert got == 15


async def test_what_cannot_be_read_stands_in_nobodys_way_within_a_session(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many partitions of a Fetch are read from the tier, and a session has its own order of them."""
    monkeypatch.setattr("broker.replicas.read.REMOTE_READS_MAX", 1)
    for topic in ("a", "b"):
        await create_topic(broker, topic, **TIERED)
    store = Store(broker)
    store.only, _ = await fill(broker, "a")
    store.error = StoreError("503")
    await fill(broker, "b")
    async with await RawClient.open(broker) as client:
        fields = of_partitions(("a", 0, 1 << 20), ("b", 0, 1 << 20), session_epoch=0)
        answer = await client.call(Api.FETCH, 12, **fields)
        got: dict[str, Any] = {}
        for epoch in range(1, 4):
            fields = of_partitions(session_id=answer.session_id, session_epoch=epoch)
            again = await client.call(Api.FETCH, 12, **fields)
            for topic in again.responses:
                got.setdefault(topic.topic, []).append(topic.partitions[0])
        assert ErrorCode.offset_not_available in {each.error_code for each in got["a"]}
        assert next(offsets_in(each.records) for each in got["b"] if each.records) == [0, 1, 2, 3, 4]


async def test_without_room_left_the_tier_is_not_asked(broker: Broker) -> None:
    for topic in ("a", "b"):
        await create_topic(broker, topic, **TIERED)
        await fill(broker, topic)
    async with await RawClient.open(broker) as client:
        first, second = await ask(client, ("a", 0, 1 << 20), ("b", 0, 1 << 20), max_bytes=10)
        assert offsets_in(first.records) == [0]
        assert (second.error_code, second.records, second.high_watermark) == (ErrorCode.none, b"", 15)
    assert broker.components.replicas.partition("b", 0).stats.remote_fetch == 0


async def test_a_repeated_fetch_reads_on_from_the_tier(broker: Broker, kind: str) -> None:
    """The short way of a Fetch that is like the connection's last one."""
    await create_topic(broker, "t", **TIERED)
    store_of(broker, kind)
    await fill(broker, "t", segments=4, batches=3)
    async with await RawClient.open(broker) as client:
        got: list[int] = []
        while len(got) < 15:
            got += offsets_in((await client.fetch("t", len(got))).records)
        assert got == list(range(15))


async def test_aborted_transactions_are_named_over_segments_and_the_border(broker: Broker, kind: str) -> None:
    """Transactions and markers are put below the handlers."""
    await create_topic(broker, "t", **TIERED)
    store_of(broker, kind)
    log = log_of(broker, "t")

    def put(data: Any) -> None:
        log.append_records(bytearray(data), leader_epoch=0, now_ms=1, origin="coordinator", verified=UNASKED)
        log.set_high_watermark(log.log_end_offset)

    def send(producer_id: int, sequence: int) -> None:
        put(
            batch_of(
                b"x", producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
            )
        )

    def end(producer_id: int, *, commit: bool) -> None:
        put(
            end_txn_marker(
                commit=commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=1_700_000_000_000,
            )
        )

    send(1, 0)  # 0, aborted in the segment behind it
    send(2, 0)  # 1, committed
    roll(broker, "t")
    end(1, commit=False)  # 2
    end(2, commit=True)  # 3
    send(3, 0)  # 4, aborted in the local part
    roll(broker, "t")
    end(3, commit=False)  # 5
    put(batch_of(b"plain"))  # 6
    await tier(broker, "t")
    assert log.local_log_start_offset == 5
    async with await RawClient.open(broker) as client:

        async def aborted(offset: int) -> tuple[list[int], list[tuple[int, int]]]:
            answer = await client.fetch("t", offset, isolation_level=1)
            named = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
            return offsets_in(answer.records), named

        assert await aborted(0) == ([0, 1], [(1, 0)])
        assert await aborted(2) == ([2, 3, 4], [(1, 0), (3, 4)])
        assert await aborted(4) == ([4], [(3, 4)])
        assert await aborted(5) == ([5, 6], [(3, 4)])


# --- waiting ---


async def test_a_slow_store_gives_an_empty_answer_in_time_and_its_data_next_time(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker(**{"remote.fetch.max.wait.ms": "50"})
    await create_topic(broker, "t", **TIERED)
    await create_topic(broker, "local")
    await fill(broker, "t")
    store = Store(broker)
    async with await RawClient.open(broker) as client:
        await client.produce("local", batch_of(b"here"))
        store.gate.clear()
        for _ in range(3):
            cold, here = await ask(client, ("t", 0, 1 << 20), ("local", 0, 1 << 20), max_wait=60_000)
            assert (cold.error_code, cold.records, cold.high_watermark) == (ErrorCode.none, b"", 15)
            assert offsets_in(here.records) == [0]
        assert store.asked == 1, "what was begun is waited for"
        assert reads_of(broker).expired == 3
        store.gate.set()
        cold, here = await ask(client, ("t", 0, 1 << 20), ("local", 0, 1 << 20))
        assert offsets_in(cold.records) == [0, 1, 2, 3, 4]
        assert store.asked == 1
    assert not broker.components.replicas.partition("t", 0).data_waiters


async def test_several_partitions_are_read_at_once(broker: Broker) -> None:
    for topic in ("a", "b", "c"):
        await create_topic(broker, topic, **TIERED)
        await fill(broker, topic, segments=1)
    store = Store(broker)
    store.gate.clear()
    async with await RawClient.open(broker) as client:
        waiting = asyncio.create_task(ask(client, *((topic, 0, 1 << 20) for topic in "abc")))
        async with asyncio.timeout(5):
            while store.asked < 3:  # noqa: ASYNC110 - the broker's own state
                await asyncio.sleep(0.001)
        store.gate.set()
        assert [offsets_in(answer.records) for answer in await waiting] == [[0, 1, 2, 3, 4]] * 3


async def test_an_answer_of_many_partitions_is_packed_in_turns(
    broker: Broker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(*_: Any) -> None:
        raise AssertionError("it is packed at once")

    await create_topic(broker, "t", **TIERED)
    store_of(broker, kind)
    await fill(broker, "t", segments=1)
    missing = [(f"no{at}", 0, 1) for at in range(ROWS_AT_ONCE)]
    fetch = broker.components.network.service._fetch  # type: ignore[attr-defined]
    monkeypatch.setattr(fetch.remote, "respond", at_once)
    async with await RawClient.open(broker) as client:
        *others, answer = await ask(client, *missing, ("t", 0, 1 << 20))
        assert offsets_in(answer.records) == [0, 1, 2, 3, 4]
        assert {each.error_code for each in others} == {ErrorCode.unknown_topic_or_partition}
    assert fetch._places.taken == 0


async def test_a_partition_that_is_lost_ends_the_wait(broker: Broker) -> None:
    topic_id = await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    store = Store(broker)
    store.gate.clear()
    async with await RawClient.open(broker) as client:
        waiting = asyncio.create_task(client.fetch("t", 0, version=13, topic_id=topic_id))
        await _asked(store)
        async with await RawClient.open(broker) as admin:
            await admin.call(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=5000)
        answer = await waiting
        assert answer.error_code in (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)


async def test_a_client_that_goes_away_leaves_nothing(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    store = Store(broker)
    store.gate.clear()
    partition = broker.components.replicas.partition("t", 0)
    client = await RawClient.open(broker)
    waiting = asyncio.create_task(client.fetch("t", 0))
    await _asked(store)
    assert partition.data_waiters
    waiting.cancel()
    client.writer.close()
    async with asyncio.timeout(5):
        while partition.data_waiters:  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0.001)
    store.gate.set()


async def test_a_broker_stops_while_the_tier_is_read(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    store = Store(broker)
    store.gate.clear()
    client = await RawClient.open(broker)
    waiting = asyncio.create_task(client.fetch("t", 0))
    await _asked(store)
    async with asyncio.timeout(5):
        await broker.stop()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await waiting
    client.writer.close()


async def _asked(store: Store) -> None:
    async with asyncio.timeout(5):
        while not store.asked:  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0.001)


# --- faults ---


async def test_a_store_that_is_away_resets_no_consumer(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    await create_topic(broker, "local")
    await fill(broker, "t")
    store = Store(broker)
    store.error = StoreError("503")
    async with await RawClient.open(broker) as client:
        await client.produce("local", batch_of(b"here"))
        for version, code in ((10, ErrorCode.none), (11, ErrorCode.offset_not_available)):
            cold, here = await ask(client, ("t", 0, 1 << 20), ("local", 0, 1 << 20), version=version)
            assert (cold.error_code, cold.records) == (code, b"")
            assert offsets_in(here.records) == [0]
        store.error = None
        assert offsets_in((await client.fetch("t", 0)).records) == [0, 1, 2, 3, 4]


async def test_a_damaged_copy_costs_its_partition_alone(broker: Broker, kind: str) -> None:
    for topic in ("a", "b"):
        await create_topic(broker, topic, **TIERED)
    store_of(broker, kind)
    bad, _ = await fill(broker, "a")
    await fill(broker, "b")
    await spoil(broker, key_of(bad, SegmentPart.DATA))
    async with await RawClient.open(broker) as client:
        spoilt, sound = await ask(client, ("a", 0, 1 << 20), ("b", 0, 1 << 20))
        assert (spoilt.error_code, spoilt.records) == (ErrorCode.kafka_storage_error, b"")
        assert offsets_in(sound.records) == [0, 1, 2, 3, 4]
        assert offsets_in((await client.fetch("a", 5)).records) == [5, 6, 7, 8, 9], "the next copy"
    stats = broker.components.replicas.partition("a", 0).stats
    assert (stats.remote_fetch, stats.failed_remote_fetch) == (2, 1)
    assert stats.remote_fetch_bytes > 0


async def spoil(broker: Broker, key: str) -> None:
    store = broker.components.world.store
    data = await store.get(key)
    await store.put(key, data[:70] + bytes([data[70] ^ 1]) + data[71:])


@pytest.mark.parametrize("is_missing", [True, False])
async def test_lost_index_objects_are_made_anew_from_the_data(
    broker: Broker, kind: str, *, is_missing: bool
) -> None:
    """To a consumer from 0 that reads committed records alone nothing has changed."""
    await create_topic(broker, "t", **TIERED)
    store_of(broker, kind)
    log = log_of(broker, "t")
    await abort_over_segments(broker, 4)
    copies = await tier(broker, "t")

    async def consumed(client: RawClient) -> tuple[bytes, list[tuple[int, int]]]:
        records, at = b"", 0
        aborted: list[tuple[int, int]] = []
        while at < log.log_end_offset:
            answer = await client.fetch("t", at, isolation_level=1)
            assert answer.error_code is ErrorCode.none, at
            records += answer.records
            aborted += [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
            at = offsets_in(answer.records)[-1] + 1
        return records, aborted

    reads = reads_of(broker)
    async with await RawClient.open(broker) as client:
        before = await consumed(client)
        assert len(before[1]) > len(copies)
        for copy in copies:
            key = key_of(copy, SegmentPart.INDEX)
            if is_missing:
                await broker.components.world.store.delete(key)
            else:
                await spoil(broker, key)
            await reads.reader.copies.forget(copy.id)
        reads.reader.copies._storage._inner._heads.clear()  # type: ignore[attr-defined]
        assert await consumed(client) == before
    assert reads.rebuilder.rebuilt >= len(copies)
    assert reads.rebuilder.failed == reads.reader.refused == 0
    tiering = broker.components.tiering
    assert tiering is not None
    assert tiering.index_repair is not None
    async with asyncio.timeout(10):
        while tiering.index_repair.repaired < len(copies):  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0.01)
    for copy in copies:
        head, _ = decode_index_object(
            await broker.components.world.store.get(key_of(copy, SegmentPart.INDEX))
        )
        assert head.header.segment_id == copy.id


async def abort_over_segments(broker: Broker, segments: int) -> None:
    """Each segment has a transaction that is aborted in the next one, and a committed one."""
    log = log_of(broker, "t")

    def put(data: Any) -> None:
        log.append_records(bytearray(data), leader_epoch=0, now_ms=1, origin="coordinator", verified=UNASKED)
        log.set_high_watermark(log.log_end_offset)

    def end(producer_id: int, *, commit: bool) -> None:
        put(
            end_txn_marker(
                commit=commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=1_700_000_000_000,
            )
        )

    for at in range(segments):
        for producer_id in (at, 100 + at):
            put(
                batch_of(
                    b"x%d" % at,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )
        end(100 + at, commit=True)
        if at:
            end(at - 1, commit=False)
        roll(broker, "t")
    end(segments - 1, commit=False)
    put(batch_of(b"plain"))


async def test_an_object_that_cannot_be_read_costs_no_disk(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    async with await RawClient.open(broker) as client:
        assert (await client.fetch("t", 0)).error_code is ErrorCode.none
        for copy in reads_of(broker).reader.copies._copies.values():
            copy.file = Unreadable(copy.file)  # type: ignore[assignment]
        answer = await client.fetch("t", 0)
        assert (answer.error_code, answer.records) == (ErrorCode.kafka_storage_error, b"")
        assert offsets_in((await client.fetch("t", 10)).records) == [10, 11, 12, 13, 14]


class Unreadable:
    """A file whose headers can be read, and nothing longer."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.path = file.path
        self.fails = False

    def fileno(self) -> int:
        return int(self._file.fileno())

    def pread(self, size: int, offset: int) -> bytes:
        if self.fails:
            raise OSError(5, "damaged")
        self.fails = True
        return bytes(self._file.pread(size, offset))


async def test_what_is_deleted_while_it_is_read_is_out_of_range(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    first, _ = await fill(broker, "t")
    store = Store(broker)
    store.gate.clear()
    async with await RawClient.open(broker) as client:
        waiting = asyncio.create_task(client.fetch("t", 0))
        await _asked(store)
        moved: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log_of(broker, "t").advance_log_start(5, moved.set_result)
        assert await moved is None
        await ObjectTier(broker.components.world.store).delete_segment(first)
        store.gate.set()
        assert (await waiting).error_code is ErrorCode.offset_out_of_range


async def test_a_log_that_was_cut_meanwhile_gives_nothing(broker: Broker) -> None:
    """What was read may be of what was cut off."""
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    store = Store(broker)
    store.gate.clear()
    async with await RawClient.open(broker) as client:
        waiting = asyncio.create_task(client.fetch("t", 0))
        await _asked(store)
        log_of(broker, "t").truncate_to(12)
        store.gate.set()
        answer = await waiting
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")
        assert offsets_in((await client.fetch("t", 0)).records) == [0, 1, 2, 3, 4]


async def test_with_the_tiers_switched_off_what_is_there_is_not_available(broker: Broker) -> None:
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    broker.components.network.service._fetch.read.__self__._tier = None  # type: ignore[attr-defined]
    async with await RawClient.open(broker) as client:
        assert (await client.fetch("t", 0)).error_code is ErrorCode.offset_not_available
        assert offsets_in((await client.fetch("t", 10)).records) == [10, 11, 12, 13, 14]


# --- the read quota ---


@pytest.mark.requirement("956-13", "956-18")
async def test_a_spent_quota_leaves_other_partitions_served(make_broker: MakeBroker) -> None:
    broker = await make_broker(**{"remote.log.manager.fetch.max.bytes.per.second": "1000", **PATIENT})
    await create_topic(broker, "t", **TIERED)
    await create_topic(broker, "local")
    await fill(broker, "t", size=300)
    async with await RawClient.open(broker) as client:
        await client.produce("local", batch_of(b"here"))
        assert offsets_in((await client.fetch("t", 0)).records) == [0, 1, 2, 3, 4]
        cold, here = await ask(client, ("t", 5, 1 << 20), ("local", 0, 1 << 20), max_wait=60_000)
        assert (cold.error_code, cold.records, cold.high_watermark) == (ErrorCode.none, b"", 15)
        assert offsets_in(here.records) == [0]
        assert offsets_in((await client.fetch("t", 10)).records) == [10, 11, 12, 13, 14]
        statistics = reads_of(broker).reader.quota.statistics()  # type: ignore[attr-defined]
        assert statistics.throttled_ms_max > 0


@pytest.mark.requirement("956-13", "956-18")
async def test_who_waits_is_served_when_the_quota_allows_it(make_broker: MakeBroker) -> None:
    broker = await make_broker(**{"remote.log.manager.fetch.max.bytes.per.second": "4000", **PATIENT})
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t", size=300)
    async with await RawClient.open(broker) as client:
        await client.fetch("t", 0)
        answer = await client.fetch("t", 5, max_wait=60_000)
        assert offsets_in(answer.records) == [5, 6, 7, 8, 9]


async def test_a_wait_for_the_quota_ends_in_its_time(make_broker: MakeBroker) -> None:
    broker = await make_broker(**{"remote.log.manager.fetch.max.bytes.per.second": "1", **PATIENT})
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t", size=300)
    async with await RawClient.open(broker) as client:
        await client.fetch("t", 0)
        answer = await client.fetch("t", 5, max_wait=50)
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")


# --- followers ---


@pytest.mark.requirement("1023-17")
def test_a_follower_that_serves_consumers_reads_the_tier_itself() -> None:
    """KIP-392: its own local log may begin elsewhere than the leader's."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, topic="__remote_log_metadata")
        world.create(1, 2, **TIERED)
        for _ in range(3):
            for at in range(3):
                await world.append(1, b"%d" % at)
            await world.agree(1, 2)
            for node in world.nodes.values():
                log: Any = node.partition().log
                node.here(log.roll, log.log_end_offset, world.now_ms())
        await world.append(1, b"last")
        await world.agree(1, 2)
        held = world.nodes[2].partition().log
        await world.until(lambda: held.tiered_end == 9)

        def is_freed() -> bool:
            world.nodes[2].here(held.free_tiered, world.now_ms())
            return held.local_log_start_offset == 9

        await world.until(is_freed)
        assert world.nodes[1].partition().log.local_log_start_offset == 0
        got: list[int] = []
        while len(got) < 10:
            response = await world.ask(2, Api.FETCH, 12, **fetch_fields("t", len(got)))
            answer = response.responses[0].partitions[0]
            assert answer.error_code is ErrorCode.none
            assert answer.high_watermark == 10
            got += offsets_in(answer.records)
        assert got == list(range(10))
        stats = world.nodes[2].partition().stats
        assert stats.remote_fetch >= 3

    Replicas(2).run(main)


async def test_what_a_client_never_takes_keeps_nobody_from_reading_for_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replicas.tier_reads.HELD_MAX_BYTES", 10)
    monkeypatch.setattr("broker.replicas.tier_reads.UNTAKEN_S", 0.1)
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    Store(broker)
    log = log_of(broker, "t")
    partition = TieredPartition(log.topic_id, 0)
    held = await reads_of(broker).reader.read(partition, log.epochs, 0, 1 << 20, bound=15, min_one=True)
    assert held.part is not None
    async with await RawClient.open(broker) as client, asyncio.timeout(10):
        answer = await client.fetch("t", 0, max_wait=9_000)
        assert offsets_in(answer.records) == [0, 1, 2, 3, 4]
    with pytest.raises(OSError):
        held.part.read()


async def test_while_clients_hold_too_much_nothing_is_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replicas.tier_reads.HELD_MAX_BYTES", 10)
    await create_topic(broker, "t", **TIERED)
    await fill(broker, "t")
    Store(broker)
    log = log_of(broker, "t")
    partition = TieredPartition(log.topic_id, 0)
    held = await reads_of(broker).reader.read(partition, log.epochs, 0, 1 << 20, bound=15, min_one=True)
    assert held.part is not None
    async with await RawClient.open(broker) as client:
        answer = await client.fetch("t", 0, max_wait=20)
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")
        waiting = asyncio.create_task(client.fetch("t", 0, max_wait=60_000))
        del held
        assert offsets_in((await waiting).records) == [0, 1, 2, 3, 4]
