"""The rule about leaks is checked: a clean count passes, whatever is held beside it is named, and a broker
that lets go of nothing is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.handlers.follower_fetch import FollowerSession
from broker.net.server import NetworkServer
from broker.replicas.fetcher import Fetcher
from broker.replicas.replica_manager import ReplicaManager
from tests.sim.history import Census, History
from tests.sim.leak_checks import RULES, STANDING, leaks
from tests.sim.node import Node
from tests.sim.play import Play
from tests.sim.verdict import judge

pytestmark = pytest.mark.usefixtures("quiet")
RULE = "20 nothing leaked"

CLEAN = Census(
    node=1,
    life=2,
    at=50.0,
    others=(2, 3),
    followed=(2,),
    is_controller=True,
    tasks={**dict.fromkeys(STANDING, 1), "Fetcher._run": 1, "Dispatcher._finish": 2},
    waiters={"FollowerFetchWait": 2, "most watchers of a partition": 2},
    connections=(("broker-2", "open"), ("broker-2", "open"), ("broker-3", "untold"), ("broker-1", "open")),
    counted_connections=4,
    queues={"in flight to a peer": 1},
)


def test_what_a_broker_needs_is_no_leak() -> None:
    assert judge(History(censuses=[CLEAN])).clean
    assert list(RULES) == [RULE]


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("a task too many", {"tasks": {**CLEAN.tasks, "Broker._maintain": 2}}),
        ("a task that ended", {"tasks": dict.fromkeys(STANDING[1:], 1)}),
        ("an unknown task", {"tasks": {**CLEAN.tasks, "Heartbeats._look_after": 1}}),
        ("a fetcher too many", {"tasks": {**CLEAN.tasks, "Fetcher._run": 2}}),
        ("a fetcher that ended", {"followed": (2, 3)}),
        ("a held heartbeat too many", {"tasks": {**CLEAN.tasks, "Dispatcher._finish": 3}}),
        ("heartbeats for another controller", {"is_controller": False}),
        ("a consumer that waits", {"waiters": {"FetchWait": 1, "consumers": 1}}),
        ("a producer that waits", {"waiters": {"commits": 1}}),
        ("a deletion that waits", {"waiters": {"deletions": 1}}),
        ("watchers of lost sessions", {"waiters": {"most watchers of a partition": 3}}),
        ("a deadline that passed", {"overdue": 1}),
        ("a client", {"connections": (("consumer-1", "open"),), "counted_connections": 1}),
        ("a peer that left", {"connections": (("broker-2", "gone"),), "counted_connections": 1}),
        ("a peer's many", {"connections": (("broker-2", "open"),) * 60, "counted_connections": 60}),
        ("a connection forgotten", {"counted_connections": 5}),
        ("the dead's heartbeat", {"silent_beats": (3,)}),
        ("a queue", {"queues": {"commands": 1}}),
        ("a pipe that fills", {"queues": {"in flight to a peer": 2}}),
        ("what is of a deleted topic", {"no_more": ("a log of t-0",)}),
        ("a deleted file", {"deleted": ("/data/t-0/00000000000000000000.log",)}),
    ],
)
def test_whatever_else_is_held_is_named(what: str, changes: dict[str, Any]) -> None:
    spoiled = replace(CLEAN, **changes)
    assert list(leaks(spoiled)), what
    assert judge(History(censuses=[CLEAN, spoiled])).rules() == {RULE}


# --- a broken broker is caught ------------------------------------------------------------------------------


async def _die_and_come_back(play: Play, node: Node) -> None:
    node.kill()
    await play.until("it is missed", lambda: node.id not in play.isr)
    node.begin()
    await play.until("it is back", lambda: node.id in play.isr)


async def _brokers_and_a_topic_come_and_go(play: Play) -> None:
    """A leader and then a follower die and come back as followers; a topic comes and goes."""
    await _die_and_come_back(play, play.leader)
    await _die_and_come_back(play, play.others(play.leader)[0])
    await play.create_topic("gone")
    await play.delete_topic("gone")


def test_brokers_and_topics_that_come_and_go_leave_nothing() -> None:
    verdict = Play("tidy").perform(_brokers_and_a_topic_come_and_go)
    assert verdict.clean, "\n".join(map(str, verdict.violations))


def _nothing(*_: object, **__: object) -> tuple[()]:
    return ()


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Fetcher, "stop", _nothing),
        (NetworkServer, "forget", _nothing),
        (FollowerSession, "close", _nothing),
        (ReplicaManager, "_drop_topic", _nothing),
    ],
)
def test_a_broker_that_does_not_let_go_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., object]
) -> None:
    assert hasattr(owner, name)
    monkeypatch.setattr(owner, name, broken)
    assert RULE in Play("untidy").perform(_brokers_and_a_topic_come_and_go).rules()
