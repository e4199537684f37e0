"""Groups that the broker assigns, as the Java client takes part in them: members that are restarted in turn,
a group that goes from the classic protocol to the new one and back while it works, patterns, static members.

Owns one JVM for all members. Does not own the rules of assignment (pure tests of the machine).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.compat.conftest import MakeTopic
from tests.compat.jvm import Clients
from tests.compat.peers import Java, unique

pytestmark = pytest.mark.kafka

PARTITIONS = 6
BROKER_SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}
"""As quick as they go: a member learns what it holds by its heartbeats."""


@pytest.fixture(scope="module")
def clients(our_java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with Clients(our_java, tmp_path_factory.mktemp("clients") / "stderr.txt") as program:
        yield program


def config(bootstrap: str, group: str, protocol: str = "consumer", **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "metadata.max.age.ms": "1000",
        **({"heartbeat.interval.ms": "200"} if protocol == "classic" else {}),
        **more,
    }


def all_of(topic: str, partitions: int = PARTITIONS) -> list[str]:
    return [f"{topic}-{partition}" for partition in range(partitions)]


def is_shared(clients: Clients, wanted: list[str], *names: str) -> bool:
    """Whether these hold all of it, each partition once, in shares that differ by one at most."""
    shares = clients.holding(*names)
    sizes = [len(share) for share in shares]
    return sorted(one for share in shares for one in share) == sorted(wanted) and max(sizes) - min(sizes) <= 1


class Feed:
    """Numbered values over all partitions of a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.topic = topic
        self.sent = 0

    def send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self.producer.produce(self.topic, str(number), partition=number % PARTITIONS)
        self.sent += count
        assert self.producer.flush(20) == 0


def got_once(clients: Clients, feed: Feed, names: list[str]) -> None:
    """Waits until these got all that was sent, and nothing twice: each committed before it let go."""
    wanted = {str(number) for number in range(feed.sent)}
    clients.await_(lambda: {each["value"] for each in clients.records(*names)} >= wanted, "all records")
    counted = Counter(each["value"] for each in clients.records(*names))
    assert counted == Counter(wanted)


def test_members_are_restarted_in_turn_while_records_come(
    clients: Clients, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    feed, everyone = Feed(bootstrap, topic), []
    running: list[str] = []

    def start() -> None:
        name = unique("member")
        clients.consume(name, config(bootstrap, group), topics=[topic])
        running.append(name)
        everyone.append(name)

    for _ in range(3):
        start()
    feed.send(60)
    clients.await_(lambda: is_shared(clients, all_of(topic), *running), "three members to share")
    for _ in range(3):
        feed.send(30)
        left = running.pop(0)
        assert clients.leave(left)["error"] is None
        feed.send(30)
        clients.await_(lambda: is_shared(clients, all_of(topic), *running), "two members to share")
        start()
        feed.send(30)
        clients.await_(lambda: is_shared(clients, all_of(topic), *running), "three members to share again")
    got_once(clients, feed, everyone)
    for name in running:
        assert clients.leave(name)["error"] is None


def test_a_group_goes_over_to_the_new_protocol_and_back_while_it_works(
    clients: Clients, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    feed, everyone = Feed(bootstrap, topic), []
    running: list[str] = []

    def start(protocol: str) -> None:
        name = unique(protocol)
        more = (
            {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}
            if protocol == "classic"
            else {}
        )
        clients.consume(name, config(bootstrap, group, protocol, **more), topics=[topic])
        running.append(name)
        everyone.append(name)

    def shared() -> None:
        clients.await_(lambda: is_shared(clients, all_of(topic), *running), f"{running} to share")

    for _ in range(2):
        start("classic")
    shared()
    for protocol in ("consumer", "classic"):
        feed.send(60)
        for _ in range(2):
            start(protocol)
            shared()
            feed.send(30)
            assert clients.leave(running.pop(0))["error"] is None
            shared()
            feed.send(30)
    got_once(clients, feed, everyone)
    for name in running:
        assert clients.leave(name)["error"] is None


def test_a_pattern_is_resolved_by_the_broker_and_follows_new_topics(
    clients: Clients, bootstrap: str, make_topic: MakeTopic
) -> None:
    prefix, group, name = unique("pat"), unique("group"), unique("member")
    first = make_topic(prefix=f"{prefix}-a")
    make_topic(prefix=f"{prefix}-b")
    make_topic(prefix=f"other-{prefix}-a")
    clients.consume(name, config(bootstrap, group), re2=f"{prefix}-a.*")
    clients.await_(lambda: clients.holding(name) == [tuple(all_of(first, 1))], "what matches")
    second = make_topic(prefix=f"{prefix}-ab")
    wanted = tuple(sorted(all_of(first, 1) + all_of(second, 1)))
    clients.await_(lambda: clients.holding(name) == [wanted], "the topic that was made later")
    assert clients.leave(name)["error"] is None


def test_a_pattern_that_is_none_is_refused(clients: Clients, bootstrap: str) -> None:
    name = unique("member")
    clients.consume(name, config(bootstrap, unique("group")), re2="(unclosed")
    assert clients.closed(name)["error"] == "InvalidRegularExpression"


def test_a_static_member_that_comes_back_disturbs_nobody(
    clients: Clients, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique("group")
    fixed, other, again, double = (unique("member") for _ in range(4))
    static = config(bootstrap, group, **{"group.instance.id": "fixed"})
    clients.consume(fixed, static, topics=[topic])
    clients.consume(other, config(bootstrap, group), topics=[topic])
    clients.await_(lambda: is_shared(clients, all_of(topic), fixed, other), "two members to share")
    held, calls = clients.holding(fixed, other), list(clients.members[other].calls)
    clients.consume(double, static, topics=[topic])
    assert clients.closed(double)["error"] == "UnreleasedInstanceIdException"
    assert clients.leave(fixed)["error"] is None
    clients.consume(again, static, topics=[topic])
    clients.await_(lambda: clients.holding(again) == held[:1], "the same partitions as before")
    assert clients.holding(other) == held[1:]
    assert clients.members[other].calls == calls
    for name in (again, other):
        assert clients.leave(name)["error"] is None
