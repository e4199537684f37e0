"""Keys are read as FORMAT.md's table says, and no text raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.format_page import PAGE, FormatPage
from tests.golden.samples import FOLDER
from tools.verify.core.keys import (
    MetaBoundary,
    MetaSlot,
    MetaSnapshot,
    StreamKey,
    TierData,
    TierIndex,
    WalBoundary,
    WalFloors,
    WalIndex,
    WalObject,
    parse_key,
    slot_key,
    snapshot_key,
    tier_key,
    topic_bytes,
    topic_text,
    wal_key,
)

FORMAT = FormatPage(PAGE.read_text())
KINDS = dict(
    zip(
        (kind.name for kind in FORMAT.kinds),
        (
            MetaSlot,
            MetaSnapshot,
            MetaBoundary,
            TierData,
            TierIndex,
            WalObject,
            WalIndex,
            WalBoundary,
            WalFloors,
        ),
        strict=True,
    )
)
ID = "8YyoNsrWSdOeH4H8dfwiqg"


@given(st.one_of([st.from_regex(kind.key.pattern, fullmatch=True) for kind in FORMAT.kinds]))
def test_each_key_of_the_page_is_read_as_its_kind(key: str) -> None:
    if key.endswith("\n"):  # `$` takes it, and it is no part of a key
        assert parse_key(key) is None
    else:
        assert type(parse_key(key)) is KINDS[FORMAT.kind_of(key).name]


@given(st.text() | st.from_regex(r"(meta|tier|wal)/[\w/.-]*", fullmatch=True))
@example(f"tier/{ID}/0٣/{0:020d}-{ID}.log")
@example("meta/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠")
@example(f"tier/{ID}/00/{0:020d}-{ID}.log")
@example("wal/1/floors/")
@example("meta/snapshot/" + "1" * 19)
@example("wal/1/floors\n")
def test_what_no_row_of_the_page_matches_is_no_key(key: str) -> None:
    rows = [kind for kind in FORMAT.kinds if kind.key.fullmatch(key)]
    assert (parse_key(key) is not None) == bool(rows)


def test_the_parts_of_a_key_are_what_they_name() -> None:
    stream = StreamKey(1, 40, 2)
    told = {
        file.stem: parse_key(key)
        for file in Path(FOLDER).glob("*.json")
        if (key := json.loads(file.read_text())["key"]) is not None
    }
    segment = (ID, 7, 100, "A6XqWvXGRsqpH9OtO7OpyQ")
    assert told == {
        "slot-birth": MetaSlot(1),
        "slot": MetaSlot(2),
        "slot-features": MetaSlot(3),
        "snapshot": MetaSnapshot(2),
        "boundary": MetaBoundary(2),
        "segment-data": TierData(*segment),
        "segment-index": TierIndex(*segment),
        "wal-object": WalObject(stream, 3),
        "wal-seal": WalObject(stream, 4),
        "wal-index": WalIndex(stream, 2),
        "wal-boundary": WalBoundary(stream, 1),
        "wal-floors": WalFloors(1),
        "wal-floors-2": WalFloors(1),
    }


@given(st.binary(min_size=16, max_size=16))
def test_ids_there_and_back(raw: bytes) -> None:
    text = topic_text(raw)
    assert topic_bytes(text) == raw
    assert parse_key(tier_key(text, 3, 17, text, "idx")) == TierIndex(text, 3, 17, text)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (slot_key(7), MetaSlot(7)),
        (snapshot_key(7), MetaSnapshot(7)),
        (wal_key(StreamKey(1, 2, 3), 4), WalObject(StreamKey(1, 2, 3), 4)),
        (tier_key(ID, 0, 0, ID, "log"), TierData(ID, 0, 0, ID)),
    ],
)
def test_keys_there_and_back(key: str, named: object) -> None:
    assert parse_key(key) == named
