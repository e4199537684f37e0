"""Ids as text: there and back, and one text for each."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import decode_id, encode_id


@given(st.uuids())
def test_ids_there_and_back(value: UUID) -> None:
    assert decode_id(encode_id(value)) == value
    assert len(encode_id(value)) == 22


def test_an_id_is_written_as_kafka_writes_it() -> None:
    assert encode_id(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    "text", ["", "AAAAAAAAAAAAAAAAAAAAAR", "AAAAAAAAAAAAAAAAAAAAAQ==", "AAAA", "ä" * 22, "A" * 23, " " * 22]
)
def test_another_text_is_no_id(text: str) -> None:
    with pytest.raises(ValueError):
        decode_id(text)
