"""Timers of a state machine: each deadline once and in order, and nothing kept of what was cancelled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.machine import Timers

KEYS = st.integers(0, 9).map(lambda number: (f"key-{number}",))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 1000)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("go to"), st.just(("",)), st.integers(0, 1000)),
    ),
    max_size=300,
)


@given(STEPS)
def test_timers_are_a_dictionary_of_deadlines(steps: list[tuple[str, tuple[str, ...], int]]) -> None:
    timers, expected = Timers(), dict[tuple[str, ...], int]()
    for what, key, at_ms in steps:
        if what == "set":
            timers.set(key, at_ms)
            expected[key] = at_ms
        elif what == "cancel":
            timers.cancel(key)
            expected.pop(key, None)
        else:
            due = {each for each, deadline_ms in expected.items() if deadline_ms <= at_ms}
            found = list(timers.due(at_ms))
            assert sorted(found) == sorted(due)
            for each in due:
                del expected[each]
        earliest = timers.next_ms()
        assert (earliest is None) == (not expected)
        assert earliest is None or earliest <= min(expected.values())


def test_what_was_cancelled_is_not_kept_until_its_time() -> None:
    """A member may name any time-out; one that left long before it must not be remembered so long."""
    timers = Timers()
    timers.set(("stays",), 10**12)
    for number in range(10_000):
        timers.set((f"member-{number}",), 10**12)
        timers.cancel((f"member-{number}",))
    assert len(timers) == 1
    assert len(timers._heap) < 100
    assert len(timers._queued) < 100
    assert list(timers.due(10**12)) == [("stays",)]
