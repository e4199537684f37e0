"""Who may read on and who loses when requests that are not whole take too much memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.net.frames import FREE_BYTES, QUIET_S, FrameAccount, address_of

KIB, MIB = 1 << 10, 1 << 20
BOUND = 64 * MIB
"""Small requests have 24 MiB of it, large ones 32 MiB, each address half of those."""
FRAME = 10 * MIB


@dataclass(eq=False, slots=True)
class FakeClient:
    address: str = "a"
    is_peer: bool = False
    is_at_work: bool = False


Account = FrameAccount[FakeClient]


def account() -> Account:
    return FrameAccount(BOUND)


def begin(frames: Account, client: FakeClient, frame: int = FRAME) -> bool:
    """What the server learns when the buffer of an idle connection is full, and whether it is read on."""
    return frames.hold(client, FREE_BYTES, open_frame=frame) or client in frames.admit()


def pass_s(frames: Account, seconds: int) -> None:
    for _ in range(seconds):
        frames.tick()


def test_what_fits_the_buffer_of_an_idle_connection_is_always_read() -> None:
    frames = account()
    for _ in range(100):
        begin(frames, FakeClient())
    assert frames.hold(FakeClient(), FREE_BYTES - 1, open_frame=FREE_BYTES)
    assert frames.hold(FakeClient(), 10, open_frame=FRAME)


def test_large_requests_leave_room_for_those_of_stock_clients_of_the_same_address() -> None:
    frames = account()
    assert [begin(frames, FakeClient()) for _ in range(3)] == [True, False, False]
    assert begin(frames, FakeClient(), frames.small_max)


def test_an_address_takes_half_and_no_more() -> None:
    frames = account()
    greedy = [FakeClient() for _ in range(3)]
    assert [begin(frames, client) for client in greedy] == [True, False, False]
    assert begin(frames, FakeClient("b"))
    frames.forget(greedy[0])
    assert frames.admit() == [greedy[1]]


def test_addresses_have_their_turns_one_after_the_other() -> None:
    frames = account()
    first, second = FakeClient("a"), FakeClient("b")
    assert begin(frames, first, 16 * MIB)
    assert begin(frames, second, 16 * MIB)
    of_c, of_d = [FakeClient("c") for _ in range(3)], FakeClient("d")
    assert not any(begin(frames, client) for client in (*of_c, of_d))
    frames.forget(first)
    assert frames.admit() == [of_c[0]]
    frames.forget(second)
    assert frames.admit() == [of_d]


def test_a_large_request_is_not_passed_for_ever_by_those_that_take_less() -> None:
    frames = account()
    holders = [FakeClient(name) for name in "abcd"]
    assert all(begin(frames, holder, 8 * MIB) for holder in holders)
    large, less = FakeClient("e"), FakeClient("f")
    assert not begin(frames, large, 30 * MIB)
    frames.forget(holders[0])
    assert not begin(frames, less, 8 * MIB)
    assert frames.admit() == []
    for holder in holders[1:]:
        frames.forget(holder)
    assert frames.admit() == [large]


def test_who_reads_on_behind_a_request_in_work_does_not_wait_when_that_ends() -> None:
    """What a request in work and the next one have reserved together is the next one's afterwards."""
    frames = account()
    client, other = FakeClient(), FakeClient("b")
    assert frames.hold(client, FRAME // 2, open_frame=0)
    assert frames.hold(client, FRAME // 2 + FREE_BYTES, open_frame=FRAME), "half of it is in work"
    assert begin(frames, FakeClient("c"), FRAME)
    assert begin(frames, FakeClient("d"), FRAME)
    assert not begin(frames, other, FRAME // 2)
    assert frames.hold(client, FREE_BYTES, open_frame=FRAME // 2)
    assert frames.admit() == [other], "nobody else had a claim to the rest"
    assert frames.hold(client, 0, open_frame=0)
    frames.forget(other)
    assert [pool.used for pool in frames._pools if pool.reserved] == [2 * FRAME]


def test_one_request_may_be_larger_than_everything() -> None:
    frames: Account = FrameAccount(200_000)
    first, second = FakeClient(), FakeClient("b")
    assert begin(frames, first)
    assert not begin(frames, second)
    frames.forget(first)
    assert frames.admit() == [second]


def test_brokers_never_wait_for_clients() -> None:
    frames = account()
    while begin(frames, FakeClient()):
        pass
    while begin(frames, FakeClient(), frames.small_max):
        pass
    assert begin(frames, FakeClient(is_peer=True), MIB)


def test_who_makes_no_progress_loses_once_somebody_waits_and_not_before() -> None:
    frames = account()
    silent = FakeClient()
    begin(frames, silent)
    pass_s(frames, 1000)
    assert frames.losers() == []
    waits = FakeClient()
    assert not begin(frames, waits)
    assert frames.losers() == [silent]
    frames.forget(silent)
    assert frames.admit() == [waits]
    pass_s(frames, QUIET_S)
    assert not begin(frames, FakeClient())
    assert frames.losers() == [], "it has its time from its turn on"


def test_a_byte_now_and_then_is_no_progress_and_a_slow_link_is() -> None:
    frames = account()
    trickles, honest = FakeClient("a"), FakeClient("b")
    begin(frames, trickles)
    begin(frames, honest)
    assert not begin(frames, FakeClient("a"))
    assert not begin(frames, FakeClient("b"))
    for second in range(1, 3 * QUIET_S):
        frames.hold(trickles, FREE_BYTES + second, open_frame=FRAME)
        frames.hold(honest, FREE_BYTES + second * (FRAME // 50), open_frame=FRAME)
        frames.tick()
        assert honest not in frames.losers()
    assert frames.losers() == [trickles]


def test_the_one_that_holds_most_of_those_without_progress_goes_first() -> None:
    frames = account()
    sizes = [2 * MIB, 7 * MIB, 4 * MIB]
    clients = [FakeClient() for _ in sizes]
    assert all(begin(frames, *pair) for pair in zip(clients, sizes, strict=True))
    pass_s(frames, QUIET_S + 1)
    assert not begin(frames, FakeClient(), 4 * MIB)
    assert frames.losers() == [clients[1]]
    assert frames.closed == 1


def test_nobody_loses_for_those_who_wait_for_others_of_their_own_address() -> None:
    frames = account()
    begin(frames, FakeClient("a"))
    begin(frames, FakeClient("b"))
    pass_s(frames, QUIET_S + 1)
    assert not begin(frames, other := FakeClient("b"))
    (loser,) = frames.losers()
    assert loser.address == other.address


def test_many_that_hold_little_lose_together_when_many_wait() -> None:
    frames = account()
    silent = [FakeClient() for _ in range(12)]
    assert all(begin(frames, client, MIB) for client in silent)
    pass_s(frames, QUIET_S + 1)
    assert not any(begin(frames, FakeClient(), MIB) for _ in range(5))
    assert len(frames.losers()) == 5


def test_a_whole_request_that_waits_behind_an_answer_counts_as_well() -> None:
    frames = account()
    holds = FakeClient()
    assert frames.hold(holds, FRAME, open_frame=0)
    pass_s(frames, QUIET_S + 1)
    assert not begin(frames, FakeClient())
    assert frames.losers() == [holds]


def test_time_does_not_run_while_the_broker_works_on_a_request() -> None:
    frames = account()
    works = FakeClient(is_at_work=True)
    assert frames.hold(works, FRAME, open_frame=0)
    pass_s(frames, 1000)
    assert not begin(frames, FakeClient())
    assert frames.losers() == []
    works.is_at_work = False
    pass_s(frames, QUIET_S + 1)
    assert frames.losers() == [works]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2::1", "20010db800010002/64"),
        ("2001:db8:1:2:ffff::9", "20010db800010002/64"),
        ("fe80::1%eth0", "fe80000000000000/64"),
        ("", ""),
        ("broker-1", "broker-1"),
        ("no:address", "no:address"),
    ],
)
def test_all_that_one_host_may_call_its_own_is_one_address(host: str, address: str) -> None:
    assert address_of(host) == address


class Accounts(RuleBasedStateMachine):
    """Whatever happens in whatever order, what is counted is what the connections hold."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: Account = FrameAccount(BOUND)
        self.held: dict[FakeClient, int] = {}
        self.frame_of: dict[FakeClient, int] = {}
        self.paused: dict[FakeClient, None] = {}

    @rule(address=st.sampled_from("abc"), is_peer=st.booleans())
    def come(self, address: str, is_peer: bool) -> None:
        self.held[FakeClient(address, is_peer)] = 0

    @precondition(lambda self: set(self.held) - set(self.paused))
    @rule(data=st.data(), frame=st.sampled_from([100, 20 * KIB, MIB, 7 * MIB, 20 * MIB, 90 * MIB]))
    def receive(self, data: st.DataObject, frame: int) -> None:
        client = data.draw(st.sampled_from([each for each in self.held if each not in self.paused]))
        if client not in self.frame_of:
            self.held[client] = 0
            assert self.frames.hold(client, 0, open_frame=0)
        frame = self.frame_of.setdefault(client, frame)
        size = data.draw(st.integers(self.held[client], frame - 1))
        if not self.frames.hold(client, size, open_frame=frame):
            self.paused[client] = None
        self.held[client] = size
        self._admit()

    @precondition(lambda self: set(self.held) - set(self.paused))
    @rule(data=st.data(), is_held=st.booleans())
    def complete(self, data: st.DataObject, is_held: bool) -> None:
        client = data.draw(st.sampled_from([each for each in self.held if each not in self.paused]))
        self.held[client] = self.frame_of.pop(client, 0) if is_held else 0
        assert self.frames.hold(client, self.held[client], open_frame=0)
        self._admit()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._forget(data.draw(st.sampled_from(list(self.held))))

    @rule()
    def a_second_passes(self) -> None:
        self.frames.tick()
        for loser in self.frames.losers():
            assert loser not in self.paused, "who waits does not lose"
            self._forget(loser)

    def _forget(self, client: FakeClient) -> None:
        del self.held[client]
        self.paused.pop(client, None)
        self.frame_of.pop(client, None)
        self.frames.forget(client)
        self._admit()

    def _admit(self) -> None:
        if self.frames.has_changed:
            for client in self.frames.admit():
                del self.paused[client]

    @invariant()
    def the_sums_are_right(self) -> None:
        frames = self.frames
        assert frames.bytes == sum(self.held.values())
        for pool in frames._pools:
            assert pool.used == sum(each.size for each in pool.reserved.values())
            assert pool._by_address.total() == pool.used
            assert 0 not in pool._by_address.values()
        waiting = [client for pool in frames._pools for asked in pool.waiting.values() for client in asked]
        assert sorted(map(id, waiting)) == sorted(map(id, self.paused))
        assert set(frames.holders()) == {
            client for pool in frames._pools for client in (*pool.reserved, *waiting)
        }

    @invariant()
    def somebody_can_go_on_where_somebody_waits(self) -> None:
        assert all(pool.reserved for pool in self.frames._pools if pool.waiting)

    def teardown(self) -> None:
        for client in list(self.held):
            self._forget(client)
        assert self.frames.bytes == 0
        assert self.frames.is_idle
        assert all(pool.used == 0 and not pool.waiting for pool in self.frames._pools)


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=20, stateful_step_count=30)


@given(st.integers(20_000, 1 << 33))
def test_pools_add_up_to_the_bound(bound: int) -> None:
    assert sum(pool.bound for pool in FrameAccount[FakeClient](bound)._pools) == bound
