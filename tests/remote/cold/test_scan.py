"""What is said of a segment before it is copied, and that nothing else is sent afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import crc32c
from protocol.records import INT64
from remote.cold.scan import SegmentChanged, SegmentScan, read_again
from tests.broker.raw_client import batch_of


class Bytes:
    """A segment's file, in memory."""

    path = "00000000000000000000.log"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def fileno(self) -> int:
        return -1

    def pread(self, size: int, offset: int) -> bytes:
        return self.data[offset : offset + size]

    def preadv(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)


def segment(*sizes: int, base: int = 0) -> bytes:
    """Batches of one record each, with values of these sizes."""
    data = bytearray()
    for offset, size in enumerate(sizes, base):
        batch = bytearray(batch_of(bytes(size)))
        INT64.pack_into(batch, 0, offset)
        data += batch
    return bytes(data)


def scanned(data: bytes, *, base: int = 0, end: int = 1_000, block_bytes: int = 64) -> SegmentScan:
    scan = SegmentScan(Bytes(data), len(data), base_offset=base, end_offset=end, block_bytes=block_bytes)
    while not scan.is_done:
        scan.go_on()
    return scan


@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=20), block_bytes=st.sampled_from([17, 64, 4096])
)
def test_counts_batches_and_sums_every_block(sizes: list[int], block_bytes: int) -> None:
    data = segment(*sizes)
    scan = scanned(data, block_bytes=block_bytes)
    assert scan.batch_count == len(sizes)
    assert scan.crc32c == crc32c(data)
    assert scan.block_crcs == [crc32c(data[at : at + block_bytes]) for at in range(0, len(data), block_bytes)]


@given(cut=st.integers(1, 10_000))
def test_a_segment_that_does_not_end_with_a_batch_is_refused(cut: int) -> None:
    data = segment(10, 20, 30)
    short = data[: cut % len(data)]
    whole = {len(segment(*sizes)) for sizes in ([], [10], [10, 20])}
    if len(short) not in whole:
        with pytest.raises(SegmentChanged):
            scanned(short)
    else:
        assert scanned(short).batch_count < 3


def test_a_file_that_is_shorter_than_its_segment_is_refused() -> None:
    data = segment(10, 20)
    scan = SegmentScan(Bytes(data[:-1]), len(data), base_offset=0, end_offset=2)
    with pytest.raises(SegmentChanged, match="ends at"):
        scan.go_on()


@pytest.mark.parametrize(("base", "end"), [(1, 9), (0, 2)])
def test_batches_outside_of_the_segments_offsets_are_refused(base: int, end: int) -> None:
    with pytest.raises(SegmentChanged, match="no batch of this segment"):
        scanned(segment(1, 2, 3), base=base, end=end)


def test_offsets_that_go_back_are_refused_and_gaps_are_not() -> None:
    assert scanned(segment(1, base=5) + segment(1, base=9)).batch_count == 2
    with pytest.raises(SegmentChanged):
        scanned(segment(1, base=9) + segment(1, base=5))


@given(start=st.integers(0, 300), size=st.integers(0, 300))
def test_what_is_read_again_is_what_was_scanned(start: int, size: int) -> None:
    data = segment(100, 100, 100)
    crcs = scanned(data).block_crcs
    start = min(start, len(data))
    end = min(start + size, len(data))
    assert (
        read_again(Bytes(data), start, end, size=len(data), block_crcs=crcs, block_bytes=64)
        == data[start:end]
    )


@given(at=st.integers(0, 10_000), part=st.sampled_from([64, 128, 100_000]))
def test_a_byte_that_changed_meanwhile_is_noticed(at: int, part: int) -> None:
    data = segment(100, 100, 100)
    crcs = scanned(data).block_crcs
    changed = bytearray(data)
    changed[at % len(data)] ^= 1
    with pytest.raises(SegmentChanged, match="other bytes"):
        for start in range(0, len(data), part):
            end = min(start + part, len(data))
            read_again(Bytes(bytes(changed)), start, end, size=len(data), block_crcs=crcs, block_bytes=64)


def test_a_file_that_was_cut_meanwhile_is_noticed() -> None:
    data = segment(100)
    with pytest.raises(SegmentChanged, match="ends at"):
        read_again(Bytes(data[:50]), 0, len(data), size=len(data), block_crcs=[crc32c(data)])
