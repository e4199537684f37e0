"""Three real brokers under load, of which some die, stand still or stop, and whose store goes away.

What was acknowledged is there afterwards, once and in order; groups go on where they committed; replicas are
alike, byte for byte. How long acknowledgements stood still is printed, not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaException

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import unique, until
from tests.e2e.load import RawLoad, check, values_at
from tests.e2e.stock_load import GroupLoad, IdempotentLoad
from tests.e2e.stores import DirectoryStore, MinioStore, SharedStore
from tools.versus.minio import MinioServer

PARTITIONS = 3
STEP = 150
"""Acknowledged by each partition between two faults."""
SHORT_SESSION = {"broker.session.timeout.ms": "3000"}
SHORT_OUTAGE_S = 12.0
LONG_OUTAGE_S = 60.0


BOTH = pytest.mark.parametrize(
    "store", ["directory", pytest.param("minio", marks=pytest.mark.minio)], indirect=True
)
DIRECTORY_FIRST = pytest.mark.parametrize(
    "store",
    ["directory", pytest.param("minio", marks=[pytest.mark.minio, pytest.mark.chaos])],
    indirect=True,
)
"""What depends on the store but little; MinIO's turn comes with the long rounds."""


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedStore]:
    if request.param == "directory":
        yield DirectoryStore(tmp_path / "shared")
        return
    server = MinioServer(request.getfixturevalue("minio"), tmp_path / "minio")
    try:
        server.make_bucket("brokers")
        yield MinioStore(server, "brokers")
    finally:
        server.close()


@pytest.fixture
def make_cluster(store: SharedStore, tmp_path: Path) -> Iterator[Callable[..., ClusterProcesses]]:
    with ExitStack() as stack:

        def make(**options: Any) -> ClusterProcesses:
            cluster = ClusterProcesses(tmp_path / "brokers", store=store.url, env=store.env, **options)
            return stack.enter_context(cluster)

        yield make


@dataclass(slots=True)
class Work:
    """What goes on while brokers come and go, and the judgement at the end."""

    cluster: ClusterProcesses
    topic: str
    raw_topic: str
    stock: IdempotentLoad
    raw: RawLoad
    group: GroupLoad
    told: list[str] = field(default_factory=list)

    def go_on(self, step: int = STEP) -> None:
        """Until every partition and the raw client were acknowledged so many more."""
        goals = self.stock.progress() + step, self.raw.acknowledged() + step // 5
        until(
            lambda: self.stock.progress() >= goals[0] and self.raw.acknowledged() >= goals[1],
            f"progress after {self.told}",
            timeout_s=SETTLE_S,
        )

    @contextmanager
    def through(self, name: str) -> Iterator[None]:
        """A fault and what mends it; afterwards all is well again."""
        self.told.append(name)
        since_s = time.monotonic()
        yield
        self.go_on()
        self.cluster.wait_whole(self.topic, self.raw_topic)
        self.told[-1] = f"{name}: acknowledgements stood still for {self.stock.silence_s(since_s):.1f} s"
        print(self.told[-1])  # noqa: T201

    def member_that_is(self, role: str) -> int:
        leader, controller = self.cluster.leader(self.topic), self.cluster.controller()
        match role:
            case "leader":
                return leader
            case "controller":
                return controller
            case "coordinator":
                return self._coordinator()
            case "leader, not controller":
                rows = self.cluster.partitions(self.topic)
                return next(row.leader_id for row in rows if row.leader_id != controller)
            case _:
                return next(node for node in self.cluster.node_ids if node not in (leader, controller))

    def _coordinator(self) -> int:
        with BlockingClient(self.cluster.address(self.cluster.awake[0])) as client:

            def found() -> list[int]:
                answer = client.call(
                    Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group.group]
                ).coordinators[0]
                return [answer.node_id] if answer.error_code == 0 else []

            return until(found, "the coordinator", timeout_s=SETTLE_S)[0]


@contextmanager
def work(cluster: ClusterProcesses, *, config: Mapping[str, str] | None = None) -> Iterator[Work]:
    """All of it on topics with that configuration."""
    topic, raw_topic = cluster.make_topic(PARTITIONS, config=config), cluster.make_topic(config=config)

    def raw_leader() -> str:
        row = next(iter(cluster.partitions(raw_topic)), None)
        if row is None or row.leader_id < 0:
            raise ConnectionError("no leader")
        return cluster.address(row.leader_id)

    stock = IdempotentLoad(cluster.bootstrap, topic, PARTITIONS)
    raw = RawLoad("raw", "", raw_topic, 1, locate=raw_leader)
    group = GroupLoad(cluster.bootstrap, topic, unique("group"))
    done = Work(cluster, topic, raw_topic, stock, raw, group)
    with group:
        with stock, raw:
            until(lambda: group.commits, "the group to commit", timeout_s=SETTLE_S)
            done.go_on()
            yield done
            done.go_on()
        until(lambda: group.lag(stock) == 0, "the group to read everything", timeout_s=SETTLE_S)
    cluster.wait_whole(topic, raw_topic)
    for partition in range(PARTITIONS):
        stock.check(partition, cluster.read(topic, partition))
    verdict = check([raw], {0: values_at(cluster.read(raw_topic))})
    assert verdict["acknowledged"]
    cluster.check_replicas_are_alike(topic, PARTITIONS)
    cluster.check_replicas_are_alike(raw_topic, 1)


@DIRECTORY_FIRST
def test_whoever_is_killed_nothing_acknowledged_is_lost(
    make_cluster: Callable[..., ClusterProcesses],
) -> None:
    cluster = make_cluster()
    with work(cluster) as load:
        for role in ("leader", "controller", "coordinator", "follower"):
            with load.through(f"kill -9 of the {role}"):
                victim = load.member_that_is(role)
                cluster.kill(victim)
                load.go_on()
                cluster.rise(victim)
        with load.through("kill -9 of all"):
            cluster.kill(*cluster.node_ids)
            cluster.rise(*cluster.node_ids)


@DIRECTORY_FIRST
@pytest.mark.parametrize("role", ["leader, not controller", "controller"])
def test_who_stood_still_and_was_replaced_does_no_harm(
    make_cluster: Callable[..., ClusterProcesses], role: str
) -> None:
    cluster = make_cluster(settings=SHORT_SESSION)
    with work(cluster) as load, load.through(f"SIGSTOP of the {role}"):
        victim = load.member_that_is(role)
        with cluster.paused(victim):
            cluster.controller(other_than=[victim])
            for partition in range(PARTITIONS):
                cluster.leader(load.topic, partition, other_than=[victim])
            load.go_on()


@DIRECTORY_FIRST
def test_a_rolling_restart_is_hardly_noticed(make_cluster: Callable[..., ClusterProcesses]) -> None:
    cluster = make_cluster()
    with work(cluster) as load:
        for node_id in cluster.node_ids:
            with load.through(f"SIGTERM of broker {node_id}"):
                assert cluster.stop(node_id) == 0
                until(lambda node_id=node_id: node_id not in cluster.listed(), "it to be listed no more")  # type: ignore[misc]
                cluster.rise(node_id)
    assert cluster.stop_all() == [0] * len(cluster.node_ids)


def live_through_an_outage(cluster: ClusterProcesses, store: SharedStore, outage_s: float) -> None:
    """Appends and groups go on, those of acks=all too while every replica in sync is there; what needs the
    store waits for it."""
    lax_topic = cluster.make_topic()
    lax = IdempotentLoad(cluster.bootstrap, lax_topic, 1, acks="1")
    with work(cluster) as load, lax:
        since_s = time.monotonic()
        with store.outage():
            newcomer = GroupLoad(cluster.bootstrap, load.topic, unique("group"))
            with newcomer:
                load.go_on()
                until(
                    lambda: newcomer.commits and time.monotonic() >= since_s + outage_s,
                    "a new group to commit, and the outage to be over",
                    timeout_s=outage_s + SETTLE_S,
                )
            goal, commits = lax.progress() + STEP, load.group.commits
            load.go_on()
            until(lambda: lax.progress() >= goal, "acks=1 in the outage")
            until(lambda: load.group.commits > commits, "commits in the outage")
            assert cluster.are_running()
        stood_still_s = load.stock.silence_s(since_s)
        load.told.append(f"store away for {outage_s:.0f} s: acks=all stood still for {stood_still_s:.1f} s")
        print(load.told[-1])  # noqa: T201
        until(lambda: can_make_a_topic(cluster), "metadata to be written again", timeout_s=SETTLE_S)
        assert cluster.are_running()
        with load.through("kill -9 of the leader after the outage"):
            victim = load.member_that_is("leader")
            cluster.kill(victim)
            load.go_on()
            cluster.rise(victim)


def can_make_a_topic(cluster: ClusterProcesses) -> bool:
    try:
        cluster.make_topic()
    except KafkaException:
        return False
    return True


@BOTH
def test_without_the_store_appends_and_groups_go_on(
    make_cluster: Callable[..., ClusterProcesses], store: SharedStore
) -> None:
    live_through_an_outage(make_cluster(), store, SHORT_OUTAGE_S)


@BOTH
@pytest.mark.chaos
def test_without_the_store_for_a_minute(
    make_cluster: Callable[..., ClusterProcesses], store: SharedStore
) -> None:
    live_through_an_outage(make_cluster(), store, LONG_OUTAGE_S)


# --- rounds of faults, each from a seed ---------------------------------------------------------------------


FAULTS_PER_ROUND = 6
ROLES = ("leader", "controller", "coordinator", "follower")
Fault = Callable[[Work, SharedStore, Random], None]


def kill_some(load: Work, store: SharedStore, random: Random) -> None:
    victims = random.sample(load.cluster.node_ids, random.randint(2, 3))
    with load.through(f"kill -9 of {victims}"):
        load.cluster.kill(*victims)
        load.cluster.rise(*victims)


def kill_one(load: Work, store: SharedStore, random: Random) -> None:
    role = random.choice(ROLES)
    with load.through(f"kill -9 of the {role}"):
        victim = load.member_that_is(role)
        load.cluster.kill(victim)
        load.go_on()
        load.cluster.rise(victim)


def kill_again_and_again(load: Work, store: SharedStore, random: Random) -> None:
    role = random.choice(ROLES)
    with load.through(f"kill -9 of the {role}, three times without a pause"):
        victim = load.member_that_is(role)
        for _ in range(3):
            load.cluster.kill(victim)
            load.cluster.rise(victim)


def stop_one(load: Work, store: SharedStore, random: Random) -> None:
    role = random.choice(ROLES)
    with load.through(f"SIGTERM of the {role}"):
        victim = load.member_that_is(role)
        assert load.cluster.stop(victim) == 0
        load.cluster.rise(victim)


def pause_one(load: Work, store: SharedStore, random: Random) -> None:
    role = random.choice(("leader", "controller"))
    with load.through(f"SIGSTOP of the {role}"):
        victim = load.member_that_is(role)
        with load.cluster.paused(victim):
            load.cluster.leader(load.topic, other_than=[victim])
            load.go_on()


def lose_the_store_and_a_broker(load: Work, store: SharedStore, random: Random) -> None:
    role = random.choice(ROLES)
    with load.through(f"no store, and kill -9 of the {role}"):
        victim = load.member_that_is(role)
        with store.outage():
            load.go_on()
            load.cluster.kill(victim)
        load.cluster.rise(victim)


FAULTS: tuple[Fault, ...] = (
    kill_some,
    kill_one,
    kill_again_and_again,
    stop_one,
    pause_one,
    lose_the_store_and_a_broker,
)


@BOTH
@pytest.mark.chaos
def test_a_round_of_faults(
    chaos_seed: int, make_cluster: Callable[..., ClusterProcesses], store: SharedStore
) -> None:
    random = Random(chaos_seed)
    with work(make_cluster(settings=SHORT_SESSION)) as load:
        for fault in random.sample(FAULTS, FAULTS_PER_ROUND):
            fault(load, store, random)
