"""Names of exported files, and which of them count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.pipelines.parquet_files import (
    FILES_MERGED,
    Claim,
    ParquetFile,
    claim_bytes,
    counting,
    parse_claim,
    parse_file,
    read_claim,
    to_merge,
)

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=80)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(1, 2**61))
def test_a_key_says_what_is_in_the_file(partition: int, first: int, span: int) -> None:
    file = ParquetFile(partition, first, first + span)
    assert parse_file(file.key, 7, 9) == file._replace(size=7, modified_ms=9)
    assert parse_claim(file.key) is None
    claim = Claim(1, partition, first)
    assert parse_claim(claim.key) == claim
    assert parse_file(claim.key) is None
    assert read_claim(claim_bytes(file.end), claim) == file.end


@pytest.mark.parametrize("key", ["", "_export", "0-1-2.parquet", f"01-{0:020}-{1:020}.parquet", "a/b"])
def test_other_keys_are_no_files(key: str) -> None:
    assert parse_file(key) is None
    assert parse_claim(key) is None


def test_a_file_without_offsets_is_none() -> None:
    assert parse_file(f"0-{5:020}-{5:020}.parquet") is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"end":3}', b'{"end":"9"}', b"\xff"])
def test_a_claim_that_says_no_end_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_claim(data, Claim(0, 0, 3))


@given(sizes, st.integers(1, 200), st.randoms(use_true_random=False))
def test_files_that_count_hold_each_offset_once_through_all_merges(
    spans: list[int], target: int, rng: object
) -> None:
    files, at = [], 0
    for span in spans:
        files.append(ParquetFile(0, at, at + span, size=span))
        at += span
    merged_to = 0
    while group := to_merge(counting(files)[0], merged_to, at, target):
        assert group[0].first == merged_to
        assert len(group) <= FILES_MERGED
        merged_to = group[-1].end
        if len(group) > 1:
            files.append(ParquetFile(0, group[0].first, merged_to, size=sum(each.size for each in group)))
        kept, superseded = counting(files)
        assert [each.first for each in kept] == [0, *(each.end for each in kept[:-1])]
        assert kept[-1].end == at
        assert sorted([*kept, *superseded]) == sorted(files)
    assert merged_to <= at


def test_too_little_is_not_merged() -> None:
    files = [ParquetFile(0, at, at + 1, size=1) for at in range(FILES_MERGED - 1)]
    assert to_merge(files, 0, 1000, 100) == []
    files.append(ParquetFile(0, FILES_MERGED - 1, FILES_MERGED, size=1))
    assert to_merge(files, 0, 1000, 100) == files
    assert to_merge(files, 0, FILES_MERGED - 1, 100) == []
    assert to_merge(files, 0, 1000, 3) == files[:3]
