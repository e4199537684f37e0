"""The window of a stream: whatever order objects arrive in, what counts is a prefix, each object once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remote.wal.window import IN_FLIGHT_MAX, Window


class Windows(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window: Window[str] = Window()
        self.under_way: set[int] = set()
        self.in_store: set[int] = set()
        self.counted: list[int] = []
        self.sent = 0
        self.end: int | None = None

    @precondition(lambda self: self.window.has_room)
    @rule()
    def send(self) -> None:
        assert self.window.sent(f"object {self.sent}") == self.sent
        self.under_way.add(self.sent)
        self.sent += 1

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.under_way)))
        self.under_way.discard(seq)
        if self.end is None or seq < self.end:
            self.in_store.add(seq)
        for number, item in self.window.arrived(seq):
            assert item == f"object {number}"
            self.counted.append(number)

    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(len(self.counted), self.sent))
        self.end = at if self.end is None else min(at, self.end)
        void = self.window.sealed(at)
        expected = [seq for seq in range(self.end, self.sent) if seq in self.under_way or seq in self.held()]
        assert [seq for seq, _ in void] == expected
        self.in_store -= set(range(self.end, self.sent))

    @precondition(lambda self: self.end is not None and self.under_way)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.under_way)))
        self.window.gave_up(seq)
        self.under_way.discard(seq)

    def held(self) -> set[int]:
        """What arrived, and waits for an earlier one."""
        return self.in_store - set(self.counted)

    @invariant()
    def only_the_prefix_counts(self) -> None:
        assert self.counted == list(range(len(self.counted)))
        assert self.window.prefix == len(self.counted)
        below = range(self.sent if self.end is None else min(self.end, self.sent))
        expected = next((seq for seq in below if seq not in self.in_store), len(below))
        assert len(self.counted) == expected

    @invariant()
    def few_are_under_way(self) -> None:
        assert len(self.under_way | self.held()) <= IN_FLIGHT_MAX
        assert self.window.is_settled == (not self.under_way)
        if self.end is not None:
            assert not self.window.has_room


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=40)
