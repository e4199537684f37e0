"""Which clients lose when answers that nobody takes are too much memory."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.net.answers import COUNTED_BYTES, LARGE_BYTES, QUIET_S, AnswerAccount
from tests.broker.net.test_frames import FakeClient

MIB = 1 << 20
BOUND, SHARE = 64 * MIB, 32 * MIB

Account = AnswerAccount[FakeClient]


def account() -> Account:
    return AnswerAccount(BOUND, SHARE)


def pass_s(answers: Account, seconds: int) -> None:
    for _ in range(seconds):
        answers.tick()


def test_over_the_share_of_an_address_its_largest_goes_at_once() -> None:
    answers = account()
    other, small, large, middle = FakeClient("b"), FakeClient(), FakeClient(), FakeClient()
    answers.note(other, 30 * MIB)
    for client, size in ((small, 5), (large, 15), (middle, 12)):
        answers.note(client, size * MIB)
        assert not answers.is_full
    answers.note(middle, 13 * MIB)
    assert answers.is_full
    assert answers.losers() == [large]
    assert answers.closed == 1


def test_who_took_nothing_goes_before_who_has_more_and_takes_some() -> None:
    answers = account()
    deaf, reads = FakeClient(), FakeClient()
    answers.note(deaf, 10 * MIB)
    answers.note(reads, 21 * MIB)
    answers.tick()
    answers.note(reads, 20 * MIB)
    answers.note(FakeClient(), 3 * MIB)
    assert answers.losers() == [deaf]


def test_over_the_bound_the_address_that_has_most_gives_way() -> None:
    answers = account()
    clients = {name: FakeClient(name) for name in "abc"}
    for name, size in (("a", 20), ("b", 30), ("c", 14)):
        answers.note(clients[name], size * MIB)
    assert not answers.is_full
    answers.note(FakeClient("d"), MIB)
    assert answers.losers() == [clients["b"]]


def test_one_large_answer_alone_may_exceed_a_share() -> None:
    answers = account()
    answers.note(FakeClient(), SHARE + MIB)
    assert answers.losers() == []


def test_large_answers_have_a_deadline_once_there_are_many() -> None:
    answers = account()
    deaf, takes, busy = FakeClient(), FakeClient(), FakeClient()
    answers.note(deaf, 8 * MIB)
    answers.note(takes, 10 * MIB)
    answers.note(busy, LARGE_BYTES - 1)
    for _ in range(QUIET_S + 1):
        assert answers.quiet() == []
        answers.tick()
        answers.note(takes, answers._unread[takes].size - MIB // 4)
    assert answers.quiet() == [deaf]
    answers.forget(deaf)
    pass_s(answers, 100)
    assert answers.quiet() == [], "few answers have no deadline"


def test_what_any_slow_reader_has_is_not_counted() -> None:
    answers = account()
    client = FakeClient()
    answers.note(client, COUNTED_BYTES - 1)
    assert answers.is_idle
    answers.note(client, COUNTED_BYTES)
    assert answers.bytes == COUNTED_BYTES
    answers.note(client, 0)
    assert answers.is_idle


class Accounts(RuleBasedStateMachine):
    """Whatever happens in whatever order, what is counted is what the connections have, and is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = account()
        self.sizes: dict[FakeClient, int] = {}

    @rule(address=st.sampled_from("abc"), size=st.integers(0, SHARE))
    def answer_a_new_one(self, address: str, size: int) -> None:
        self._note(FakeClient(address), size)

    @precondition(lambda self: self.sizes)
    @rule(data=st.data(), size=st.integers(0, SHARE))
    def answer_or_take(self, data: st.DataObject, size: int) -> None:
        self._note(data.draw(st.sampled_from(list(self.sizes))), size)

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._forget(data.draw(st.sampled_from(list(self.sizes))))

    @rule()
    def a_second_passes(self) -> None:
        self.answers.tick()
        for client in self.answers.quiet():
            self._forget(client)

    def _note(self, client: FakeClient, size: int) -> None:
        self.answers.note(client, size)
        self.sizes[client] = size
        if self.answers.is_full:
            for loser in self.answers.losers():
                self._forget(loser)

    def _forget(self, client: FakeClient) -> None:
        del self.sizes[client]
        self.answers.forget(client)

    @invariant()
    def the_sums_are_right(self) -> None:
        counted = {client: size for client, size in self.sizes.items() if size >= COUNTED_BYTES}
        assert self.answers.bytes == sum(counted.values()) <= BOUND
        assert set(self.answers.holders()) == set(counted)
        for address in "abc":
            held = sum(size for client, size in counted.items() if client.address == address)
            assert self.answers._by_address.get(address, 0) == held <= SHARE

    def teardown(self) -> None:
        for client in list(self.sizes):
            self._forget(client)
        assert self.answers.is_idle
        assert self.answers.bytes == 0
        assert not self.answers._by_address


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=20, stateful_step_count=30)
