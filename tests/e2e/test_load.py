"""The check behind the kill tests catches each fault it exists for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.load import RawLoad, Sent, check

Log = dict[int, bytes]


def history() -> tuple[RawLoad, Log]:
    load = RawLoad("raw", "nowhere:1", "topic", 1)
    load.sent = [Sent(partition=0, value=b"%d" % n, offset=n) for n in range(6)]
    load.sent[4].offset = None
    load.sent.append(Sent(partition=0, value=b"refused", failed=87))
    return load, {n: b"%d" % n for n in range(6)}


def test_a_sound_history_passes_with_and_without_the_unknown() -> None:
    load, log = history()
    assert check([load], {0: log}) == {"acknowledged": 5, "unknown, kept": 1, "failed": 1}
    load.sent[5].offset = 4
    assert check([load], {0: {0: b"0", 1: b"1", 2: b"2", 3: b"3", 4: b"5"}})["unknown, gone"] == 1


def lose_the_last(log: Log) -> None:
    del log[5]


def lose_in_the_middle(log: Log) -> None:
    del log[2]


def double(log: Log) -> None:
    log[6] = log[3]


def swap(log: Log) -> None:
    log[1], log[2] = log[2], log[1]


def invent(log: Log) -> None:
    log[6] = b"never sent"


def keep_what_was_refused(log: Log) -> None:
    log[6] = b"refused"


@pytest.mark.parametrize(
    "fault", [lose_the_last, lose_in_the_middle, double, swap, invent, keep_what_was_refused]
)
def test_each_fault_is_caught(fault: Callable[[Log], None]) -> None:
    load, log = history()
    fault(log)
    with pytest.raises(AssertionError):
        check([load], {0: log})


def test_an_unknown_value_out_of_order_is_caught() -> None:
    load, _ = history()
    moved = {0: b"0", 1: b"1", 2: b"2", 3: b"3", 4: b"5", 5: b"4"}
    load.sent[5].offset = 4
    with pytest.raises(AssertionError):
        check([load], {0: moved})
