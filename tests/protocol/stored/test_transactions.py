"""Records of __transaction_state in every version, and any bytes at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.schema import BadRecord
from protocol.stored.transactions import (
    TAGGED,
    UNTAGGED,
    Transaction,
    TransactionRecord,
    TransactionState,
    decode_transaction_record,
    encode_in_steps,
    encode_transaction_record,
    value_version,
)
from protocol.work import finish

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT16 = st.integers(-1, (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = st.integers(0, (1 << 63) - 1)


def normal(record: TransactionRecord) -> TransactionRecord:
    """Return it as it is stored: with no id before this one that is this one, EMPTY without partitions."""
    found = record.transaction
    if found is None:
        return record
    if found.previous_producer_id == found.producer_id:
        found = replace(found, previous_producer_id=-1)
    if found.state is TransactionState.EMPTY:
        found = replace(found, partitions={})
    return replace(record, transaction=found)


RECORDS = st.builds(
    TransactionRecord,
    transactional_id=TEXT,
    transaction=st.none()
    | st.builds(
        Transaction,
        producer_id=IDS,
        previous_producer_id=st.just(-1) | IDS,
        next_producer_id=st.just(-1) | IDS,
        producer_epoch=INT16,
        next_producer_epoch=INT16,
        timeout_ms=INT32,
        state=st.sampled_from(TransactionState),
        partitions=st.dictionaries(TEXT, st.frozensets(INT32, min_size=1, max_size=3), max_size=3),
        started_ms=INT64,
        updated_ms=INT64,
        client_version=st.integers(0, 2),
    ),
).map(normal)

KEY = b"\0\0\0\1x"
ONGOING = Transaction(
    producer_id=1000,
    producer_epoch=2,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions={"t": frozenset({0, 1}), "u": frozenset({3})},
    started_ms=5,
    updated_ms=6,
)
FIXED = bytes(6) + b"\x03\xe8\0\2\0\0\xea\x60\1"
"""Producer id and epoch, timeout, state."""
TIMES = bytes(7) + b"\6" + bytes(7) + b"\5"
V0 = b"\0\0" + FIXED + b"\0\0\0\2\0\1t\0\0\0\2" + bytes(7) + b"\1\0\1u\0\0\0\1\0\0\0\3" + TIMES
V1 = b"\0\1" + FIXED + b"\3\2t\3" + bytes(7) + b"\1\0\2u\2\0\0\0\3\0" + TIMES


def decoded(value: bytes | None) -> Transaction | None:
    record = decode_transaction_record(KEY, value)
    assert record is not None
    assert record.transactional_id == "x"
    return record.transaction


@given(RECORDS)
def test_there_and_back(record: TransactionRecord) -> None:
    assert decode_transaction_record(*encode_transaction_record(record)) == record


@given(RECORDS)
def test_version_0_keeps_all_but_what_version_1_tags(record: TransactionRecord) -> None:
    kept = record.transaction and replace(
        record.transaction,
        previous_producer_id=-1,
        next_producer_id=-1,
        next_producer_epoch=-1,
        client_version=0,
    )
    written = encode_transaction_record(record, UNTAGGED)
    assert written == finish(encode_in_steps(record, UNTAGGED))
    assert decode_transaction_record(*written) == replace(record, transaction=kept)


@given(st.binary(max_size=40), st.binary(max_size=80) | st.none())
def test_any_bytes_are_a_record_or_are_refused(key: bytes, value: bytes | None) -> None:
    try:
        record = decode_transaction_record(key, value)
    except BadRecord:
        return
    assert record is None or isinstance(record, TransactionRecord)


@pytest.mark.parametrize(
    ("tags", "changes"),
    [
        (b"\0", {}),
        (b"\1\2\2\0\2", {"client_version": 2}),
        (
            b"\3\0\x08" + bytes(7) + b"\7\1\x08" + bytes(7) + b"\x09\2\2\0\2",
            {"previous_producer_id": 7, "next_producer_id": 9, "client_version": 2},
        ),
        (b"\1\3\2\0\4", {"next_producer_epoch": 4}),
        (b"\1\0\x08" + bytes(6) + b"\x03\xe8", {}),
        (b"\1\x09\1z", {}),
    ],
    ids=["none", "version 2", "another id", "the epoch of a newer Kafka", "the same id", "an unknown tag"],
)
def test_version_1_is_read_with_every_tag(tags: bytes, changes: dict[str, int]) -> None:
    assert decoded(V1 + tags) == replace(ONGOING, **changes)  # type: ignore[arg-type]


def test_version_0_is_read() -> None:
    assert decoded(V0) == ONGOING


def test_version_1_is_written() -> None:
    record = TransactionRecord(transactional_id="x", transaction=ONGOING)
    same = b"\0\x08" + bytes(6) + b"\x03\xe8"
    assert encode_transaction_record(record) == (KEY, V1 + b"\1" + same)
    newer = replace(ONGOING, client_version=2, next_producer_id=9)
    assert encode_transaction_record(replace(record, transaction=newer)) == (
        KEY,
        V1 + b"\3" + same + b"\1\x08" + bytes(7) + b"\x09\2\2\0\2",
    )


def test_version_0_is_written() -> None:
    newer = replace(ONGOING, client_version=2, next_producer_id=9)
    record = TransactionRecord(transactional_id="x", transaction=newer)
    assert encode_transaction_record(record, UNTAGGED) == (KEY, V0)
    empty = replace(ONGOING, state=TransactionState.EMPTY, partitions={}, started_ms=-1)
    _, value = encode_transaction_record(replace(record, transaction=empty), UNTAGGED)
    assert value == b"\0\0" + FIXED[:-1] + b"\0" + b"\xff" * 4 + TIMES[:8] + b"\xff" * 8


def test_a_long_one_is_written_the_same_in_steps() -> None:
    topics = {f"t{number}": frozenset(range(number % 3 + 1)) for number in range(40)}
    record = TransactionRecord(transactional_id="x", transaction=replace(ONGOING, partitions=topics))
    for version in (TAGGED, UNTAGGED):
        assert finish(encode_in_steps(record, version)) == encode_transaction_record(record, version)


@pytest.mark.parametrize(("level", "version"), [(0, UNTAGGED), (1, TAGGED), (2, TAGGED)])
def test_the_level_asks_for_a_version(level: int, version: int) -> None:
    assert value_version(level) == version


def test_an_empty_one_has_null_for_partitions() -> None:
    empty = replace(ONGOING, state=TransactionState.EMPTY, partitions={}, started_ms=-1)
    _, value = encode_transaction_record(TransactionRecord(transactional_id="x", transaction=empty))
    assert (
        value
        == b"\0\1" + FIXED[:-1] + b"\0\0" + TIMES[:8] + b"\xff" * 8 + b"\1\0\x08" + bytes(6) + b"\x03\xe8"
    )
    assert decoded(value) == empty


def test_a_tombstone() -> None:
    assert encode_transaction_record(TransactionRecord(transactional_id="x", transaction=None)) == (KEY, None)
    assert decoded(None) is None


def test_what_is_not_stored_is_not_there_afterwards() -> None:
    fenced = replace(ONGOING, last_producer_epoch=1)
    record = TransactionRecord(transactional_id="x", transaction=fenced, host="h")
    assert decode_transaction_record(*encode_transaction_record(record)) == replace(
        record, transaction=ONGOING
    )


@pytest.mark.parametrize("status", [8, 127, 255])
def test_a_state_that_is_none_is_refused(status: int) -> None:
    with pytest.raises(BadRecord):
        decoded(V0[: 2 + len(FIXED) - 1] + bytes((status,)) + V0[2 + len(FIXED) :])


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(BadRecord):
        decoded(b"\0\2" + V1[2:] + b"\0")


def test_other_types_are_none_of_ours() -> None:
    for kind in (1, 2, 5, 17):
        assert decode_transaction_record(kind.to_bytes(2, "big") + KEY[2:], V1 + b"\0") is None


def test_states_have_the_names_that_tools_print() -> None:
    assert [state.title for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
