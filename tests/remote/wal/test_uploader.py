"""The uploader over real logs: every byte once and in order, whatever the store does and whoever seals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.keys import WalPart, parse_wal_key, wal_key
from remote.store.object_store import StoreError
from remote.wal.combined_object import (
    HEAD_READ_BYTES,
    INDEXED_OBJECTS,
    ObjectKind,
    decode_index,
    decode_table,
)
from remote.wal.cutter import READ_AGAIN_S
from remote.wal.storage_manager import CombinedMetadata, CopiedObject
from remote.wal.uploader import STOP_S
from storage.log import NoDescriptor
from storage.segmented_log import SegmentedLog
from tests.remote.wal.upload_rig import BATCH_MAX, EPOCH, IN_FLIGHT, NODE, OBJECT_BYTES, Rig
from tests.remote.wal.wal_samples import some_object

PARTITIONS = 3

APPENDS = st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1), st.integers(1, BATCH_MAX - 100))
STEPS = st.lists(
    st.one_of(
        APPENDS,
        APPENDS,
        APPENDS,
        st.tuples(st.just("wait"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("seal"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("image"), st.just(0), st.just(0)),
        st.tuples(st.just("tear"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("lossy"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("down"), st.just(0), st.just(0)),
        st.tuples(st.just("heal"), st.just(0), st.just(0)),
        st.tuples(st.just("direct"), st.integers(0, PARTITIONS - 1), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.requirement("1176-08", "1176-16", "1176-19")
@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_every_byte_is_stored_once_and_in_order_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    async def main(rig: Rig) -> None:
        for index in range(PARTITIONS):
            rig.lead(index)
        for kind, first, second in steps:
            match kind:
                case "append":
                    rig.append(first, second)
                case "wait":
                    await asyncio.sleep(first / 1000)
                case "seal":
                    rig.seal(first, asked_by=rig.metadata_seq + second)
                case "tear":
                    await rig.tear(first)
                case "image":
                    rig.image_comes()
                case "lossy":
                    rig.profile.error_before_chance = first / 10
                    rig.profile.error_after_chance = second / 10
                case "down":
                    rig.profile.down = True
                case "heal":
                    rig.profile.heal()
                case "direct":
                    tail = rig.led[first].tail
                    tail.is_direct = not tail.is_direct
        rig.profile.heal()
        # whoever asked for a seal goes on until everybody's image has come so far
        finish = asyncio.get_running_loop().create_task(rig.all_stored())
        while not finish.done():
            rig.image_comes()
            await asyncio.sleep(0.05)
        await finish
        for index in range(PARTITIONS):
            data, end = rig.stored_bytes(index)
            assert data == rig.log_bytes(index)
            assert end in (-1, rig.led[index].log.log_end_offset)
            told = rig.led[index].stored_to
            assert told == sorted(told)
        assert rig.manager.most <= IN_FLIGHT
        assert rig.manager.most_bytes <= IN_FLIGHT * (OBJECT_BYTES + BATCH_MAX + 2000)
        assert [each.place for each in rig.counted] == [place for place, _, _ in rig.valid_objects()]
        assert not rig.failures

    Rig().run(main)


MOVES = st.tuples(st.just("move"), st.integers(0, PARTITIONS - 1), st.integers(0, 5))
MANY = st.lists(
    st.one_of(
        APPENDS,
        APPENDS,
        MOVES,
        st.tuples(st.just("wait"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("seal"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("direct"), st.integers(0, PARTITIONS - 1), st.just(0)),
        st.tuples(st.just("lossy"), st.integers(0, 5), st.integers(0, 5)),
    ),
    max_size=40,
)


@pytest.mark.requirement("1176-44")
@given(MANY)
@settings(max_examples=150, deadline=None)
def test_what_moved_is_whole_without_all_that_lies_before_it(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is appended, sealed or lost meanwhile."""

    async def main(rig: Rig) -> None:
        asked: dict[int, set[int]] = {index: set() for index in range(PARTITIONS)}
        for index in range(PARTITIONS):
            rig.lead(index)
        for kind, first, second in steps:
            match kind:
                case "append":
                    rig.append(first, second)
                case "move":
                    asked[first].add(second)
                    rig.move(first, second)
                case "wait":
                    await asyncio.sleep(first / 1000)
                case "seal":
                    rig.seal(first, asked_by=rig.metadata_seq + second)
                case "direct":
                    rig.led[first].tail.is_direct = not rig.led[first].tail.is_direct
                case "lossy":
                    rig.profile.error_before_chance = first / 10
                    rig.profile.error_after_chance = second / 10
        rig.profile.heal()
        finish = asyncio.get_running_loop().create_task(rig.all_stored())
        while not finish.done():
            rig.image_comes()
            await asyncio.sleep(0.05)
        await finish
        for index, led in rig.led.items():
            if led.tail.moved is not None:
                start, data = rig.moved_bytes(index)
                assert start in asked[index]
                assert data == rig.log_bytes(index, start)
        assert not rig.failures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remote.wal.cutter.READ_HERE_BYTES", 0)
        Rig().run(main)


@pytest.mark.requirement("1176-09", "1176-43")
def test_the_first_record_after_a_pause_leaves_at_once_and_others_wait_for_the_interval() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        for begun in (0.0, 5.0):
            await asyncio.sleep(begun)
            at = rig.loop.now
            before = len(rig.bucket.objects)
            for _ in range(3):
                rig.append(0)
                await asyncio.sleep(0.04)
            await rig.all_stored()
            # after a pause the next few leave sooner too
            assert len(rig.bucket.objects) - before == (3 if begun else 2)
            assert rig.stats.wait_s.sum_s < 0.25
            assert rig.loop.now - at < 0.3

    Rig(interval_s=0.1).run(main)


def test_small_records_without_end_make_no_more_objects_than_the_interval_allows() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        for _ in range(500):
            rig.append(0, 1)
            await asyncio.sleep(0.004)
        await rig.all_stored()
        assert 80 <= len(rig.bucket.objects) <= 112  # of 500, in 2.1 s

    Rig(interval_s=0.02).run(main)


@pytest.mark.requirement("1176-10")
def test_what_does_not_fit_in_an_object_does_not_wait_for_the_interval() -> None:
    async def main(rig: Rig) -> None:
        for index in range(2):
            rig.lead(index)
            for _ in range(20):
                rig.append(index, 300)
        at = rig.loop.now
        await rig.all_stored()
        assert rig.loop.now - at < 5.0
        assert all(
            sum(row.size for row in rows) <= OBJECT_BYTES for _place, rows, _data in rig.valid_objects()
        )

    Rig(interval_s=5.0).run(main)


def test_a_batch_above_the_limit_is_an_object_of_its_own() -> None:
    async def main(rig: Rig) -> None:
        for index in range(2):
            rig.lead(index, segment_bytes=1 << 20)
            rig.append(index, 100)
        rig.append(0, 3 * OBJECT_BYTES)
        await rig.all_stored()
        large = [rows for _, rows, _ in rig.valid_objects() if sum(row.size for row in rows) > OBJECT_BYTES]
        assert [len(rows) for rows in large] == [1]

    Rig().run(main)


@pytest.mark.requirement("1176-31")
def test_a_store_that_is_away_costs_no_memory_and_everything_is_stored_once_it_is_back() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.profile.hang = True
        for _ in range(400):
            rig.append(0, 500)
            await asyncio.sleep(0.05)
        assert rig.manager.under_way <= IN_FLIGHT
        assert rig.manager.bytes_under_way <= IN_FLIGHT * (OBJECT_BYTES + 2000)
        assert not rig.counted
        rig.profile.heal()
        await rig.all_stored()
        assert rig.stored_bytes(0)[0] == rig.log_bytes(0)

    Rig().run(main)


def test_a_backlog_is_read_away_from_the_loop_behind_what_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.wal.cutter.BACKLOG_BYTES_PER_S", 20_000)
    monkeypatch.setattr("remote.wal.cutter.READ_HERE_BYTES", 0)

    async def main(rig: Rig) -> None:
        backlog = rig.lead(0)
        backlog.tail.is_direct = True
        for _ in range(100):
            rig.append(0, 500)
        live = rig.lead(1)
        began = rig.loop.now
        while rig.loop.now - began < 1.0:
            rig.append(1, 50)
            await asyncio.sleep(0.02)
        stored, _ = rig.stored_bytes(0)
        assert 10_000 < len(stored) < 30_000
        assert rig.offloaded >= 5
        assert live.tail.stored_to >= live.log.log_end_offset - 3
        backlog.tail.is_direct = False

    Rig().run(main)


def test_a_log_that_could_not_be_read_is_read_again_although_nothing_is_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(rig: Rig) -> None:
        led = rig.lead(0)
        tries = []

        def short_of_descriptors(self: SegmentedLog, *args: Any, **named: Any) -> Any:
            tries.append(rig.loop.now)
            raise NoDescriptor("too many open files")

        with monkeypatch.context() as short:
            short.setattr(SegmentedLog, "read_on", short_of_descriptors)
            rig.append(0)
            await asyncio.sleep(5 * READ_AGAIN_S)
        assert 4 <= len(tries) <= 6
        assert len(led.errors) == len(tries)
        await rig.all_stored(2 * READ_AGAIN_S)

    Rig().run(main)


def test_what_was_deleted_before_it_was_stored_is_passed_over() -> None:
    async def main(rig: Rig) -> None:
        led = rig.lead(0)
        rig.profile.down = True
        for _ in range(20):
            rig.append(0, 300)
        await asyncio.sleep(1.0)
        cut = led.tail.cut_to
        assert 0 < cut < 18
        led.log.set_high_watermark(20)
        led.log.advance_log_start(18)
        rig.profile.heal()
        await rig.all_stored()
        starts = [row.start for _, rows, _ in rig.valid_objects() for row in rows]
        assert 18 in starts
        assert not [start for start in starts if cut <= start < 18]

    Rig().run(main)


def test_a_slice_holds_one_epoch_and_ends_with_its_segment() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0, segment_bytes=600)
        rig.profile.down = True
        for _ in range(9):
            rig.append(0, 100)
        await asyncio.sleep(0.5)
        rig.lead_again(0)
        for _ in range(2):
            rig.append(0, 100)
        rig.profile.heal()
        await rig.all_stored()
        rows = [row for _, rows, _ in rig.valid_objects() for row in rows if row.leader_epoch == 1]
        assert {row.batch_epoch for row in rows} == {0, 1}
        assert all((row.end <= 9) is (row.batch_epoch == 0) for row in rows)
        assert {row.epoch_start for row in rows} == {9}

    Rig().run(main)


def test_a_sealed_stream_goes_on_in_the_next_generation_once_the_image_has_come_and_says_live() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.append(0)
        await rig.all_stored()
        rig.seal(0, asked_by=120)
        rig.append(0)
        await asyncio.sleep(5.0)
        assert rig.led[0].tail.stored_to == 1
        assert [(stream.generation, began) for stream, began in rig.streams] == [(0, True), (0, False)]
        rig.metadata_seq, rig.is_live = 120, False
        rig.uploader.look_again()
        await asyncio.sleep(5.0)
        assert rig.led[0].tail.stored_to == 1, "a fenced broker may have been replaced"
        rig.image_comes()
        await rig.all_stored()
        assert [(stream.generation, began) for stream, began in rig.streams[2:]] == [(1, True)]
        assert (rig.stats.generations, rig.stats.void_objects) == (1, 1)
        assert rig.stored_bytes(0)[0] == rig.log_bytes(0)

    Rig().run(main)


def test_what_cannot_be_read_in_this_stream_is_gone_around_in_the_next_one() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.append(0)
        await rig.all_stored()
        stream = rig.uploader.stream
        assert stream is not None
        await rig.tear(1)
        rig.append(0)
        await asyncio.sleep(0.1)
        rig.append(0)  # lies above it
        await rig.all_stored(10.0)
        assert [(each.generation, began) for each, began in rig.streams] == [
            (0, True),
            (0, False),
            (1, True),
        ]
        assert not rig.failures
        assert rig.stored_bytes(0)[0] == rig.log_bytes(0)
        seal = decode_table(rig.bucket.objects[wal_key(stream, 3)]).head
        assert (seal.kind, seal.writer, seal.metadata_seq) == (ObjectKind.SEAL, (NODE, EPOCH), 100)

    Rig().run(main)


def test_a_stop_ends_while_its_own_stream_is_being_sealed() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.append(0)
        await rig.all_stored()
        await rig.tear(0)
        rig.append(0)
        async with asyncio.timeout(10.0):
            while not rig.uploader._writer.is_ending:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        rig.profile.down = True
        begun_s = rig.loop.now
        await rig.uploader.stop()
        assert rig.loop.now - begun_s <= STOP_S + 0.1

    Rig().run(main)


@pytest.mark.requirement("1176-21")
def test_what_its_manager_says_too_much_of_is_dropped_and_nothing_more_is_stored() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.manager.custom = b"c" * 128
        rig.append(0)
        await rig.all_stored()
        stream = rig.uploader.stream
        assert stream is not None
        rig.manager.custom = b"c" * 129
        rig.append(0)
        rig.append(0)
        await asyncio.sleep(10.0)
        assert (rig.led[0].tail.stored_to, len(rig.counted)) == (1, 1)
        assert [place for place, _, _ in rig.valid_objects()] == [(stream, 0)]
        assert decode_table(rig.bucket.objects[wal_key(stream, 1)]).head.kind is ObjectKind.SEAL
        assert rig.streams == [(stream, True), (stream, False)]
        assert not rig.failures

    Rig().run(main)


def test_a_foreign_object_in_this_stream_ends_the_process() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.append(0)
        await rig.all_stored()
        assert rig.uploader.stream is not None
        foreign = bytes(rig.bucket.objects[wal_key(rig.uploader.stream, 0)])
        head = decode_table(foreign).head
        _, data = some_object()
        rig.bucket.objects[wal_key(rig.uploader.stream, 1)] = data
        assert head.put_id != decode_table(data[:HEAD_READ_BYTES]).head.put_id
        rig.append(0)
        await asyncio.sleep(1.0)
        assert len(rig.failures) == 1
        assert len(rig.counted) == 1

    Rig().run(main)


def test_an_index_object_repeats_the_tables_of_256() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0, segment_bytes=1 << 20)
        for _ in range(INDEXED_OBJECTS + 3):
            rig.append(0, 10)
            await rig.all_stored()
        await asyncio.sleep(1.0)
        index = [key for key in rig.bucket.objects if parse_wal_key(key).part is WalPart.INDEX]  # type: ignore[union-attr]
        assert len(index) == 1
        head, tables = decode_index(rig.bucket.objects[index[0]])
        assert (head.place.seq, len(tables)) == (0, INDEXED_OBJECTS)

    Rig(interval_s=0.001).run(main)


def test_a_stop_stores_what_is_there() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        for _ in range(10):
            rig.append(0, 500)
        await rig.uploader.stop()
        assert rig.stored_bytes(0)[0] == rig.log_bytes(0)

    Rig(interval_s=2.0).run(main)


def test_a_stop_does_not_wait_for_a_store_that_hangs_and_leaves_no_task() -> None:
    async def main(rig: Rig) -> None:
        rig.lead(0)
        rig.profile.hang = True
        for _ in range(10):
            rig.append(0, 500)
        await asyncio.sleep(0.5)
        at = rig.loop.now
        await rig.uploader.stop()
        assert rig.loop.now - at < STOP_S + 0.1
        assert len(asyncio.all_tasks()) == 1

    Rig().run(main)


@given(st.integers(0, 120))
@settings(max_examples=60, deadline=None)
def test_a_stop_at_any_moment_leaves_nothing_twice_and_no_task(moment: int) -> None:
    async def main(rig: Rig) -> None:
        for index in range(PARTITIONS):
            rig.lead(index)
            for _ in range(8):
                rig.append(index, 300)
            rig.led[index].tail.is_direct = True
        await asyncio.sleep(moment / 2500)
        await rig.uploader.stop()
        for index in range(PARTITIONS):
            data, _ = rig.stored_bytes(index)
            assert rig.log_bytes(index).startswith(data)
        assert len(asyncio.all_tasks()) == 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remote.wal.cutter.READ_HERE_BYTES", 0)
        Rig().run(main)


def test_more_slices_than_may_wait_for_the_store_are_not_cut() -> None:
    async def main(rig: Rig) -> None:
        rig.settings = replace(rig.settings, slices=2)
        rig.profile.down = True
        for index in range(5):
            rig.lead(index)
            rig.append(index)
        await asyncio.sleep(1.0)
        assert sum(led.tail.cut_to > 0 for led in rig.led.values()) == 2
        rig.profile.heal()
        await rig.all_stored()

    Rig().run(main)


@pytest.mark.requirement("1176-08")
def test_an_object_that_nobody_takes_is_tried_again_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[bytes, bytes]] = []

    async def main(rig: Rig) -> None:
        copy = rig.manager.copy

        async def refused(metadata: CombinedMetadata, data: bytes) -> CopiedObject:
            sent.append((metadata.head.put_id, data))
            if len(sent) < 4:
                raise StoreError("403", permanent=True)
            return await copy(metadata, data)

        monkeypatch.setattr(rig.manager, "copy", refused)
        rig.lead(0)
        rig.append(0)
        await rig.all_stored()
        assert len(set(sent)) == 1

    Rig().run(main)


@pytest.mark.requirement("1176-20")
@pytest.mark.parametrize("mb_per_s", [15, 25])
def test_what_brokers_are_meant_for_makes_objects_of_some_hundred_kilobytes_each_interval(
    mb_per_s: int,
) -> None:
    """The proposal's 30 MB/s make 300 KB in 10 ms, and 600 in the interval that is used here."""

    async def main(rig: Rig) -> None:
        for index in range(10):
            rig.lead(index, segment_bytes=1 << 24)
        for _ in range(100):
            for index in range(10):
                rig.append(index, mb_per_s * 1000)
            await asyncio.sleep(0.01)
        await rig.all_stored()
        stored = [decode_table(data).size_bytes for _, _, data in rig.valid_objects()]
        assert 45 <= len(stored) <= 60, "one each 20 ms"
        steady = sorted(stored)[5:-5]
        assert steady[0] >= 100_000
        assert steady[-1] <= 550_000

    Rig(interval_s=0.02, object_bytes=4 << 20).run(main)
