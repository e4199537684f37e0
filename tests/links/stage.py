"""Three real brokers, each at its end of the links, their store, and clients at work on all of it.

Owns building that, who plays which role, one fault with the silence around it, and the proof at the end. Does
not own the faults (faults) nor the limits (report). Invariant: a fault begins when all replicas are in sync
and every partition is led by its preferred leader, and is over when that is so again.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import until
from tests.e2e.proof import verified
from tests.e2e.stock_load import GroupLoad
from tests.links import namespaces
from tests.links.faults import CALM, Scene, Strike, happen
from tests.links.load import AioProducer, Partition, Reader, StockProducer, Times, ends_of
from tests.links.namespaces import Namespaces
from tests.links.proxies import Proxies
from tests.links.report import Outcome, Round
from tests.links.rules import CLIENTS, STORE, End, Links
from tools.versus.minio import MinioServer

NODES = (1, 2, 3)
WIDE, PAIRS = "wide", "pairs"
PLACES: Mapping[str, list[list[int]]] = {
    WIDE: [[1, 2, 3], [2, 3, 1], [3, 1, 2]],
    PAIRS: [[1, 2], [2, 3], [3, 1]],
}
"""Each broker leads one partition of each topic, and has no replica of one partition."""
MIN_ISR = {WIDE: "2", PAIRS: "1"}
TIERS = {
    "remote.wal.storage.enable": "true",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "file.delete.delay.ms": "1000",
}
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "log.retention.check.interval.ms": "2000",
    "remote.wal.log.manager.combiner.task.interval.ms": "100",
}
STEP = 25
"""Acknowledged and read of every partition before a fault, and after it."""
GROUP = "members"
BUCKET = "links"


@contextlib.contextmanager
def links(*, has_store: bool, seed: int = 0, kind: str = "") -> Iterator[Links]:
    """Of packets between namespaces where that can be had, else of streams through proxies; or as named."""
    ends: list[End] = [*NODES, STORE, CLIENTS] if has_store else [*NODES, CLIENTS]
    missing = namespaces.why_not() if kind in ("", Namespaces.kind) else "proxies are asked for"
    assert missing is None or kind != Namespaces.kind, missing
    if missing is not None:
        print(f"links are TCP proxies: {missing}")  # noqa: T201
    with (Namespaces if missing is None else Proxies)(ends, seed=seed) as made:
        yield made


class Stage:
    """All of it, as long as its block."""

    def __init__(
        self,
        folder: Path,
        links: Links,
        *,
        minio: Path | None = None,
        tiers: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`minio` is the executable; without one the store is a directory, which no fault can strike."""
        self._folder = folder
        self.sent = folder / "sent"
        self.links = links
        self.tiers = tiers
        self.partitions = [(topic, at) for topic, of in PLACES.items() for at in range(len(of))]
        self._minio = minio
        self._settings = {**SETTINGS, **(settings or {})}
        self._env: Mapping[str, str] = {}
        """What a client of the store needs."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as stack:
            urls = {} if self._minio is None else self._start_minio(self._minio, stack)
            self.cluster = stack.enter_context(
                ClusterProcesses(
                    self._folder / "brokers",
                    brokers=len(NODES),
                    store=urls.get(CLIENTS),
                    store_of={node_id: urls[node_id] for node_id in NODES} if urls else {},
                    env=self._env,
                    settings=self._settings,
                    seats={node_id: self.links.seat(node_id) for node_id in NODES},
                )
            )
            self.scene = Scene(self.cluster, self.links)
            self._make_topics()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _start_minio(self, executable: Path, stack: contextlib.ExitStack) -> dict[Any, str]:
        """Where each end reaches it."""
        seat = self.links.seat(STORE)
        host, _, port = seat.listen.rpartition(":")
        server = MinioServer(
            executable, self._folder / "minio", host=host, port=int(port), within=seat.within
        )
        stack.callback(server.close)
        server.make_bucket(BUCKET)
        self._env = server.environ
        ports = {CLIENTS: int(port), **{node_id: self.links.store_port(node_id) for node_id in NODES}}
        return {end: server.url(BUCKET, "cluster", port=port) for end, port in ports.items()}

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        config = TIERS if self.tiers else {}
        new = [
            NewTopic(
                topic,
                num_partitions=len(placed),
                replica_assignment=placed,
                config={"min.insync.replicas": MIN_ISR[topic], **config},
            )
            for topic, placed in PLACES.items()
        ]
        for made in admin.create_topics(new).values():
            made.result(timeout=SETTLE_S)
        self.cluster.wait_whole(*PLACES)

    def proof(self) -> dict[str, Any]:
        """What `tidewal verify` says of the stopped cluster and its producers' manifests."""
        self.cluster.check_replicas_are_alike(WIDE, len(PLACES[WIDE]))
        assert self.cluster.stop_all() == [0] * len(NODES)
        return verified(self.cluster, self.sent, self._folder / "proof.json", env=self._env)

    # --- who is what ---

    def leaders(self) -> dict[Partition, int]:
        return {
            (topic, int(row.partition_index)): int(row.leader_id)
            for topic in PLACES
            for row in self.cluster.partitions(topic)
        }

    def victim(self, role: str, seed: int) -> int:
        controller = self.cluster.controller()
        if role == "controller":
            return controller
        others = [node_id for node_id in NODES if node_id != controller]
        return others[seed % len(others)]

    def where(self, partition: Partition, leaders: Mapping[Partition, int], victim: int) -> str:
        topic, at = partition
        if leaders[partition] == victim:
            return "led"
        return "followed" if victim in PLACES[topic][at] else "elsewhere"

    def prefer(self) -> None:
        """Every partition is led by the first of its replicas."""
        wanted = {(topic, at): nodes[0] for topic, of in PLACES.items() for at, nodes in enumerate(of)}
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})

        def is_so() -> bool:
            if self.leaders() == wanted:
                return True
            with contextlib.suppress(KafkaException):
                moved = [TopicPartition(*each) for each in wanted]
                admin.elect_leaders(ElectionType.PREFERRED, moved).result(timeout=SETTLE_S)
            return False

        until(is_so, "preferred leaders", timeout_s=SETTLE_S, pause_s=0.2)


@dataclass(slots=True)
class Work:
    """Clients that go on through every fault, and what they saw of each."""

    stage: Stage
    acknowledged: Times
    stock: Sequence[StockProducer]
    aio: AioProducer
    reader: Reader
    group: GroupLoad

    def go_on(self) -> None:
        """Until every partition was acknowledged and read so many more."""
        seen: tuple[Times, ...] = self.acknowledged, self.reader.served
        goals = [(times, each, times.count(each) + STEP) for times in seen for each in self.stage.partitions]

        def has_gone_on() -> bool:
            for worker in (*self.stock, self.aio, self.reader, self.group):
                worker.check_alive()
            return all(times.count(each) >= goal for times, each, goal in goals)

        until(has_gone_on, "progress of every partition", timeout_s=SETTLE_S)

    def through(self, strike: Strike, seed: int) -> Outcome:
        """One fault, from before it until all is well again."""
        stage = self.stage
        victim, leaders = stage.victim(strike.role, seed), stage.leaders()
        began_s = time.monotonic()
        happen(strike, stage.scene, victim)
        ended_s = time.monotonic()
        stage.cluster.wait_whole(*PLACES)
        whole_s = time.monotonic() - ended_s
        self.go_on()
        acks, reads = (
            self._silences(times, began_s, strike, leaders, victim)
            for times in (self.acknowledged, self.reader.served)
        )
        stage.prefer()
        self.go_on()
        return Outcome(
            kind=strike.kind,
            role=strike.role,
            seconds=strike.seconds,
            acks=acks,
            reads=reads,
            whole_s=round(whole_s, 1),
        )

    def _silences(
        self,
        times: Times,
        since_s: float,
        strike: Strike,
        leaders: Mapping[Partition, int],
        victim: int,
    ) -> dict[str, float]:
        """The longest of any partition, by where the victim was."""
        found: dict[str, float] = {}
        for partition in self.stage.partitions:
            where = "elsewhere" if strike.kind == CALM else self.stage.where(partition, leaders, victim)
            found[where] = max(found.get(where, 0.0), round(times.silence_s(partition, since_s), 2))
        return found


@contextlib.contextmanager
def work(stage: Stage) -> Iterator[Work]:
    bootstrap, partitions = stage.cluster.bootstrap, stage.partitions
    acknowledged = Times()
    stock = [
        StockProducer(bootstrap, [each for each in partitions if each[0] == topic], stage.sent, acknowledged)
        for topic in PLACES
    ]
    aio = AioProducer(bootstrap, partitions, stage.sent)
    reader = Reader(bootstrap, partitions)
    group = GroupLoad(bootstrap, WIDE, GROUP)
    done = Work(stage, acknowledged, stock, aio, reader, group)
    with reader, group:
        with contextlib.ExitStack() as producers:
            for each in (*stock, aio):
                producers.enter_context(each)
            done.go_on()
            yield done
        ends = ends_of(bootstrap, partitions)
        until(lambda: reader.has_read(ends), "the reader to be at the end", timeout_s=SETTLE_S)
        ends_wide = {at: end for (topic, at), end in ends.items() if topic == WIDE}
        until(
            lambda: all(len(group.read.get(at, ())) == end for at, end in ends_wide.items()),
            "the group to be at the end",
            timeout_s=SETTLE_S,
        )


def play(done: Round, strikes: Sequence[Strike], stage: Stage) -> dict[str, Any]:
    """All faults one after the other, noted in `done`; the proof of what is there in the end."""
    with work(stage) as at_work:
        for number, strike in enumerate(strikes):
            done.outcomes.append(at_work.through(strike, done.seed + number))
            print(done.outcomes[-1].told())  # noqa: T201
    done.acknowledged = at_work.acknowledged.total() + at_work.aio.acknowledged.total()
    done.read = at_work.reader.served.total()
    document = stage.proof()
    done.findings = dict(Counter(each["code"] for each in document["findings"]))
    return document
