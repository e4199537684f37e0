"""Which transactions of a request are asked about together."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.handlers.transactions import IDS_AT_ONCE, TRANSACTIONS_AT_ONCE, at_once


@given(st.lists(st.sampled_from([1, 20, 300, IDS_AT_ONCE - 1, IDS_AT_ONCE, 32_767]), max_size=300))
def test_all_are_asked_about_in_order_and_few_long_ids_at_once(lengths: list[int]) -> None:
    asked: list[Any] = [SimpleNamespace(transactional_id="x" * length) for length in lengths]
    rows = list(at_once(asked))
    assert [each for row in rows for each in row] == asked
    for row in rows:
        length = sum(len(each.transactional_id) for each in row)
        assert 1 <= len(row) <= TRANSACTIONS_AT_ONCE
        assert length <= IDS_AT_ONCE or len(row) == 1
    for row, following in pairwise(rows):
        length = sum(len(each.transactional_id) for each in [*row, following[0]])
        assert len(row) == TRANSACTIONS_AT_ONCE or length > IDS_AT_ONCE
