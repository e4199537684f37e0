"""What long polls without a session hold: bounded, and given up by whoever holds most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.handlers.long_polls import LongPolls

BYTES_MAX = 100


def polls() -> LongPolls[int]:
    return LongPolls(BYTES_MAX)


def test_a_newcomer_does_not_wait_where_its_address_holds_most() -> None:
    account = polls()
    assert account.enter(1, "a", 60) == []
    assert account.enter(2, "b", 40) == []
    assert account.enter(3, "a", 10) == [3]
    assert (account.bytes, len(account), account.cut_short) == (100, 2, 1)


def test_the_last_of_the_address_that_holds_most_makes_room() -> None:
    account = polls()
    for number in range(10):
        account.enter(number, "a", 10)
    assert account.enter(10, "b", 15) == [9, 8]
    assert account.bytes == 95


def test_nobody_ends_for_an_equal() -> None:
    account = polls()
    account.enter(1, "a", 60)
    assert account.enter(2, "b", 60) == [2]


def test_one_that_is_too_large_alone_does_not_wait() -> None:
    account = polls()
    account.enter(1, "a", 10)
    assert account.enter(2, "b", 101) == [2]
    assert account.bytes == 10


def test_who_left_is_counted_no_longer_and_may_leave_again() -> None:
    account = polls()
    account.enter(1, "a", 60)
    account.leave(1)
    account.leave(1)
    assert (account.bytes, len(account)) == (0, 0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave"]), st.integers(0, 20), st.sampled_from("abc"), st.integers(1, 120)
    )
)


@given(steps)
def test_the_account_is_the_sum_of_those_that_wait(asked: list[tuple[str, int, str, int]]) -> None:
    account = polls()
    waiting: dict[int, tuple[str, int]] = {}
    for number, (step, which, address, size) in enumerate(asked):
        if step == "enter":
            held = {each: sum(s for a, s in waiting.values() if a == each) for each in "abc"}
            waiting[number] = (address, size)
            ended = account.enter(number, address, size)
            for each in ended:
                assert number == each or held[waiting[each][0]] > held[address]
                del waiting[each]
        elif waiting:
            gone = list(waiting)[which % len(waiting)]
            del waiting[gone]
            account.leave(gone)
        assert account.bytes == sum(size for _, size in waiting.values()) <= BYTES_MAX
        assert len(account) == len(waiting)
