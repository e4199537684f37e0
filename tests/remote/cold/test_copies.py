"""Proving what was copied: checksums by block, there and back, and open copies that stay few."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import crc32c
from remote.bad_object import BadObject
from remote.cold.copies import HINTS_MAX, BlockSums, OpenCopies
from remote.store.memory_store import MemoryStore
from tests.remote.cold.read_driver import Tier, batch, inline


def sums_of(data: bytes, block_bytes: int) -> BlockSums:
    crcs = [crc32c(data[at : at + block_bytes]) for at in range(0, len(data), block_bytes)]
    return BlockSums(size_bytes=len(data), block_bytes=block_bytes, crcs=crcs)


@given(st.binary(max_size=100), st.integers(1, 30))
def test_sums_read_back_as_they_were(data: bytes, block_bytes: int) -> None:
    sums = sums_of(data, block_bytes)
    again = BlockSums.decode(sums.encode())
    assert (again.size_bytes, again.block_bytes, again.crcs) == (len(data), block_bytes, sums.crcs)


@given(st.binary(min_size=1, max_size=100), st.integers(1, 30), st.data())
def test_every_changed_byte_is_found(data: bytes, block_bytes: int, draw: st.DataObject) -> None:
    sums = sums_of(data, block_bytes)
    sums.check(0, data)
    first = draw.draw(st.integers(0, (len(data) - 1) // block_bytes))
    part = bytearray(data[first * block_bytes :])
    sums.check(first * block_bytes, bytes(part))
    at = draw.draw(st.integers(0, len(part) - 1))
    part[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(BadObject, match="other bytes"):
        sums.check(first * block_bytes, bytes(part))


@pytest.mark.parametrize(("start", "size"), [(1, 9), (0, 9), (10, 5), (20, 6)])
def test_what_is_no_whole_block_is_not_believed(start: int, size: int) -> None:
    sums = sums_of(bytes(25), 10)
    with pytest.raises(BadObject, match="whole blocks"):
        sums.check(start, bytes(size))


@pytest.mark.parametrize("data", [b"", bytes(11), bytes(12) + b"1", bytes(16)])
def test_sums_that_do_not_add_up_are_refused(data: bytes) -> None:
    with pytest.raises(BadObject):
        BlockSums.decode(data)


async def test_open_copies_stay_few(tmp_path: Path) -> None:
    tier = Tier(MemoryStore(), tmp_path)
    segments = [await tier.copy([batch()]) for _ in range(5)]
    copies = OpenCopies(
        storage=tier.storage,
        chunks=tier.chunks,
        indexes=tier.indexes,
        files=tier.files,
        offload=inline,
        copies_max=2,
    )
    for segment in segments:
        await copies.open(segment)
    assert [segment.id in copies for segment in segments] == [False] * 3 + [True] * 2


async def test_hints_stay_few(tmp_path: Path) -> None:
    tier = Tier(MemoryStore(), tmp_path)
    copy = await tier.copies.open(await tier.copy([batch()]))
    for at in range(HINTS_MAX + 10):
        copy.remember(at, at)
    assert len(copy.hints) == HINTS_MAX
    assert 0 not in copy.hints
