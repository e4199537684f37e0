"""Owns what a seed decides before anything runs: brokers, topics, clients, faults.

Faults are chosen swarm-wise: each run allows itself a few kinds, and one run in six none, because many
faults at once hide each other. Does not own how faults are committed (nemesis.py).

Invariant: a plan is a function of the seed and the number of brokers alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.sim.net import NetworkProfile

GROUP = "group"
WAL_ENABLE = "remote.wal.storage.enable"
WAL_UPLOADS = "remote.wal.log.manager.combiner.thread.pool.size"
RACKS = ("a", "b", "c")
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

# What any broker can meet, alone or not.
KINDS = (
    "kill",
    "kill-in-write",
    "power",
    "power-in-write",
    "restart",
    "kill-while-starting",
    "cut",
    "one-way",
    "reset",
    "freeze",
    "stall",
    "disk-error",
    "disk-full",
    "store-down",
    "store-hangs",
    "store-lossy",
    "kill-client",
    "hold",
    "hold-answers",
)
# What takes several.
CLUSTER_KINDS = (
    *KINDS,
    "kill-all",
    "new-disk",
    "pause",
    "cut-from-peers",
    "cut-pair",
    "one-way-pair",
    "isolate",
    "flap",
    "zombie",
    "die-alone",
    "no-store",
    "no-store-answers",
    "store-stale",
    "store-late",
    "clock",
)
# What only a plan of tiered topics asks for.
LONE_LEADER = "lone-leader"
PARTING_SHARE = 0.15
LONE_S = 9.0
"""Of a leader that its followers do not reach: long enough for it to be alone in the ISR and to tier what it
takes alone."""
WALK_SHARE = 0.3
WALKED_MORE = 2
"""Partitions, so that some broker leads two of them, one of which is walked after the other."""
WALK_HOLD_S = 25.0
"""Long enough for another to be elected meanwhile, and for the one that was replaced to follow it."""
WAL_SHARE = 1 / 3
WAL_RESTS_SHARE = 0.1
"""Of those: minutes in which nothing happens but that."""
WAL_KINDS = ("wal-down", "wal-hangs", "wal-slow", "wal-late", "wal-lossy")
"""What only a plan of topics that use the WAL tier asks for: it comes to the lane of one broker."""
TRANSACTIONS_SHARE = SUBSCRIBERS_SHARE = 0.25
COPIERS_SHARE = TWIN_SHARE = 1 / 3
COPY_TIMEOUT_MS = 4000
"""Of a copier's transaction."""
CLEANUP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
OF_SUBSCRIBERS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "1000",
}
"""What brokers are told, so that sessions of members end while a run lasts."""
AT_THE_END = "kill-at-an-end", "power-at-an-end"
"""Some steps after the end of a transaction is asked for: between append and apply, between the record that
prepares it and its markers, between those and the record that completes it."""
AT_A_LONE_COORDINATOR = (*AT_THE_END, *AT_THE_END, "kill", "restart", "pause-client", "disk-full")
AT_COORDINATORS = (*AT_A_LONE_COORDINATOR, "pause", "cut-from-peers", "zombie", "move-leader")
# What ends a life of the broker, or a connection under way, finds the most.
HEAVY = {
    **dict.fromkeys(("kill", "kill-in-write", "power", "power-in-write", "reset"), 3),
    **dict.fromkeys(("pause", "cut-from-peers"), 3),
    **dict.fromkeys(("zombie", "die-alone"), 6),
    **dict.fromkeys(("hold", "hold-answers"), 4),
}
# What comes to a broker while its background jobs or the store's answers are held. Nothing may come, too.
INTO_A_HOLD = ("", "kill", "power", "power", "restart", "reset")
INTO_A_HOLD_OF_A_CLUSTER = (*INTO_A_HOLD, "cut-from-peers", "zombie", "zombie", "pause", "cut-pair")

BROKERS = (1, 1, 2, 3, 3, 3, 3, 3, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`target` says at which broker: any, the controller, or the leader of some partition."""

    at_s: float
    kind: str
    amount: int
    seconds: float
    target: str = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    acks: int
    window: int
    is_idempotent: bool
    batches: int
    pause_s: float
    codec: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkerPlan:
    requests: int
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactorPlan:
    """A producer with transactions; `twin_at_s` is when another begins with the same transactional id."""

    count: int
    pause_s: float
    version: int
    timeout_ms: int
    twin_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopierPlan:
    version: int
    is_subscriber: bool
    twin_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberPlan:
    """A member of a group that the server assigns; `instance` is its static name."""

    rounds: int
    instance: str | None
    assignor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`consumers` are the racks they are in, `operators` how many orders each of them gives. `quiet` are the
    times (from, for how long) in which nobody produces; `ends_quietly` that the end is looked at in quiet.
    `copied_to` is how many partitions copiers write to. `tier_orders` is how often somebody switches the
    tier of a topic off or on, `wal_orders` the same of the WAL tier; `wal_rests` that the end is looked at
    once what nothing needs is gone from it."""

    brokers: int
    replicas: int
    properties: dict[str, str]
    topics: dict[str, int]
    topic_configs: dict[str, str]
    producers: tuple[ProducerPlan, ...]
    walkers: tuple[WalkerPlan, ...]
    consumers: tuple[str, ...]
    members: int
    transactors: tuple[TransactorPlan, ...]
    copiers: tuple[CopierPlan, ...]
    copied_to: int
    subscribers: tuple[SubscriberPlan, ...]
    deletes: int
    quiet: tuple[tuple[float, float], ...]
    operators: tuple[int, ...]
    tier_orders: int
    wal_orders: int
    wal_rests: bool
    faults: tuple[Fault, ...]
    faults_last_s: float
    network: NetworkProfile
    ends_quietly: bool
    ends_with_kill: bool

    @property
    def is_unclean(self) -> bool:
        return self.topic_configs.get("unclean.leader.election.enable") == "true"

    @property
    def configs_of_copies(self) -> dict[str, str]:
        """How the topic that copiers write to is made: as the others, but nothing of it ever goes."""
        kept = "min.insync.replicas", "unclean.leader.election.enable"
        return {name: self.topic_configs[name] for name in kept if name in self.topic_configs}

    @property
    def transactions_last_s(self) -> float:
        """When every transaction has ended for certain, once all is well."""
        cleanup_ms = self.properties.get(CLEANUP, "0")
        timeouts_ms = [COPY_TIMEOUT_MS, *(each.timeout_ms for each in self.transactors)]
        return (int(cleanup_ms) + max(timeouts_ms)) / 1000 + 10.0

    @property
    def is_tiered(self) -> bool:
        return self.topic_configs.get("remote.storage.enable") == "true"

    @property
    def is_in_wal(self) -> bool:
        return WAL_ENABLE in self.topic_configs

    @property
    def is_calm(self) -> bool:
        """Whether nothing makes a leader send what its followers could read in the WAL tier."""
        return not (self.faults or self.operators or self.tier_orders or self.wal_orders or self.walkers)

    @property
    def fault_names(self) -> str:
        return "+".join(fault.kind for fault in self.faults) or "none"


def brokers_of(seed: int) -> int:
    return random.Random(f"{seed}/brokers").choice(BROKERS)


def plan_of(seed: int, *, brokers: int = 1) -> Plan:
    """The plan of one broker's run and of a cluster's differ in what is in it, not in how it is made."""
    rng = random.Random(f"{seed}/plan")
    is_cluster = brokers > 1
    replicas = min(brokers, rng.choice((1, 2, 3, 3, 3, 3))) if is_cluster else 1
    last_s = rng.choice((10.0, 20.0, 30.0)) if is_cluster else 5.0
    of_brokers, of_topics = _upkeep(random.Random(f"{seed}/upkeep"))
    tier_of_brokers, tier_of_topics = _tiering(
        random.Random(f"{seed}/tier"), brokers, int(of_topics.get("retention.ms", 4_000))
    )
    of_parting, parted = (
        _parting(random.Random(f"{seed}/parting"), brokers, last_s) if tier_of_topics else ({}, ())
    )
    if parted:
        replicas = 2
        tier_of_brokers["replica.lag.time.max.ms"] = "3000"
    of_wal = random.Random(f"{seed}/wal")
    wal_of_brokers, wal_of_topics = _in_wal(of_wal, brokers)
    of_quiet = random.Random(f"{seed}/quiet")
    exactly = _exactly_once(random.Random(f"{seed}/transactions"), brokers, last_s)
    subscribers = _subscribers(random.Random(f"{seed}/subscribers"))
    of_walks = random.Random(f"{seed}/walks")
    walkers, packing = _walkers(of_walks, last_s)
    return Plan(
        brokers=brokers,
        replicas=replicas,
        properties={
            **_properties(rng, brokers),
            **of_brokers,
            **wal_of_brokers,
            **tier_of_brokers,
            **exactly.properties,
            **(OF_SUBSCRIBERS if subscribers or any(one.is_subscriber for one in exactly.copiers) else {}),
        },
        topics={"t": rng.choice((1, 2)) + (WALKED_MORE if walkers else 0), "d": 1},
        topic_configs={
            **_topic_configs(rng, replicas),
            **of_topics,
            **packing,
            **tier_of_topics,
            **of_parting,
            **wal_of_topics,
        },
        producers=_producers(rng, last_s, is_cluster=is_cluster),
        walkers=walkers,
        consumers=tuple(rng.choice(RACKS) for _ in range(rng.choice((1, 1, 2)))),
        members=rng.choice((0, 0, 1, 2, 3)),
        transactors=exactly.transactors,
        copiers=exactly.copiers,
        copied_to=exactly.copied_to,
        subscribers=subscribers,
        deletes=rng.choice((0, 1, 3)),
        quiet=_quiet(of_quiet, last_s),
        operators=tuple(rng.choice((3, 8, 14)) for _ in range(rng.choice((0, 0, 1, 2, 2)))),
        tier_orders=_tier_orders(random.Random(f"{seed}/tier orders")) if tier_of_topics else 0,
        wal_orders=_tier_orders(of_wal) if wal_of_topics else 0,
        wal_rests=bool(wal_of_topics) and of_wal.random() < WAL_RESTS_SHARE,
        faults=_in_order(
            *_faults_of(rng, of_walks, last_s, is_cluster=is_cluster, has_walkers=bool(walkers)),
            *parted,
            *(_wal_faults(of_wal, last_s) if wal_of_topics else ()),
            *exactly.faults,
        ),
        faults_last_s=last_s,
        network=NetworkProfile(
            split_chance=rng.choice((0.0, 0.05, 0.3)),
            spike_chance=rng.choice((0.0, 0.0, 0.05)),
            window_bytes=rng.choice((2000, 65536, 262144)),
        ),
        ends_quietly=of_quiet.random() < 0.5,
        ends_with_kill=rng.random() < 0.7,
    )


def _quiet(rng: random.Random, last_s: float) -> tuple[tuple[float, float], ...]:
    if rng.random() < 0.6:
        return ()
    return ((rng.random() * last_s, rng.choice((2.0, 6.0, 12.0)) if last_s > 5.0 else 1.0),)


def _properties(rng: random.Random, brokers: int) -> dict[str, str]:
    two_dirs = rng.random() < 0.3
    properties = {
        "log.dirs": "/data/a,/data/b" if two_dirs else "/data/a",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(min(3, brokers)),
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.flush.single.replica": rng.choice(("true", "false")),
        "log.index.interval.bytes": rng.choice(("0", "100", "4096")),
        "log.flush.offset.checkpoint.interval.ms": rng.choice(("500", "60000")),
        "log.segment.delete.delay.ms": rng.choice(("500", "60000")),
        # longer than clocks are set ahead: a producer forgotten between two attempts is doubled, as by Kafka
        "producer.id.expiration.ms": str(7 * 86_400_000),
    }
    if rng.random() < 0.3:
        properties["log.flush.interval.messages"] = rng.choice(("1", "5"))
    if brokers > 1:
        properties["replica.lag.time.max.ms"] = rng.choice(("3000", "10000"))
        if rng.random() < 0.4:
            properties["replica.selector.class"] = RACK_AWARE
    return properties


def _topic_configs(rng: random.Random, replicas: int) -> dict[str, str]:
    configs: dict[str, str] = {}
    if rng.random() < 0.6:
        configs["segment.ms"] = rng.choice(("300", "1500"))
    if rng.random() < 0.2:
        configs["message.timestamp.type"] = "LogAppendTime"
    if rng.random() < 0.15:
        configs["compression.type"] = rng.choice(("gzip", "uncompressed", "zstd"))
    if replicas > 1:
        configs["min.insync.replicas"] = rng.choice(("1", "2", "2"))
        if rng.random() < 0.1:
            configs["unclean.leader.election.enable"] = "true"
    return configs


def _upkeep(rng: random.Random) -> tuple[dict[str, str], dict[str, str]]:
    """Logs that lose their old segments while others fetch them, and offsets that are compacted all the time:
    what brokers, and what topics are told."""
    of_brokers: dict[str, str] = {}
    of_topics: dict[str, str] = {}
    if rng.random() < 0.25:
        of_brokers["log.retention.check.interval.ms"] = rng.choice(("500", "2000"))
        of_topics["segment.ms"] = "300"
        of_topics["retention.ms"] = rng.choice(("1000", "4000"))
    if rng.random() < 0.25:
        of_brokers["log.roll.ms"] = rng.choice(("300", "1500"))
        of_brokers["log.cleaner.backoff.ms"] = "200"
        of_brokers["log.cleaner.min.cleanable.ratio"] = "0.01"
    return of_brokers, of_topics


def _tiering(rng: random.Random, brokers: int, retention_ms: int) -> tuple[dict[str, str], dict[str, str]]:
    """In half of all runs topics are tiered, in small segments that leave the disk soon: what brokers, and
    what topics are told."""
    if rng.random() < 0.5:
        return {}, {}
    of_brokers = {
        "remote.log.manager.task.interval.ms": rng.choice(("300", "1000")),
        "log.retention.check.interval.ms": rng.choice(("300", "1000")),
        "rlmm.config.remote.log.metadata.topic.num.partitions": rng.choice(("1", "2")),
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, brokers)),
        "rlmm.config.remote.log.metadata.topic.min.isr": str(min(2, brokers)),
        "follower.fetch.last.tiered.offset.enable": rng.choice(("true", "true", "false")),
    }
    if rng.random() < 0.2:
        of_brokers["remote.log.manager.copy.max.bytes.per.second"] = "20000"
    if rng.random() < 0.2:
        of_brokers["remote.log.manager.fetch.max.bytes.per.second"] = "20000"
    of_topics = {
        "remote.storage.enable": "true",
        "segment.ms": "300",
        "local.retention.ms": str(min(rng.choice((1, 500, 1_500)), retention_ms)),
    }
    if rng.random() < 0.2:
        of_topics["remote.copy.lag.ms"] = rng.choice(("1", "500", "-1"))
        of_topics["local.retention.ms"] = str(min(1_500, retention_ms))
    return of_brokers, of_topics


def _parting(rng: random.Random, brokers: int, last_s: float) -> tuple[dict[str, str], tuple[Fault, ...]]:
    """In some clusters with tiered topics a leader of two replicas goes on alone, which another broker's
    metadata lets it tier, and dies; what it had alone is lost, and its log parts from the next leader's."""
    if brokers < 3 or rng.random() >= PARTING_SHARE:
        return {}, ()
    told = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    return told, (
        Fault(at_s=rng.random() * last_s / 3, kind=LONE_LEADER, amount=1, seconds=LONE_S, target="leader"),
    )


def _in_wal(rng: random.Random, brokers: int) -> tuple[dict[str, str], dict[str, str]]:
    """In a third of all clusters topics use the WAL tier: what brokers, and what topics are told."""
    if brokers < 2 or rng.random() >= WAL_SHARE:
        return {}, {}
    of_brokers = {
        "remote.wal.log.manager.combiner.task.interval.ms": rng.choice(("20", "100", "100", "250", "500")),
        # the least that is allowed, so that a batch may be larger, and what is not reached
        "remote.wal.log.manager.combiner.task.upload.bytes": rng.choice(("1024", "4096", str(4 << 20))),
        WAL_UPLOADS: rng.choice(("1", "4", "4")),
    }
    of_metadata = {
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, brokers)),
        "rlmm.config.remote.log.metadata.topic.min.isr": str(min(2, brokers)),
    }
    return of_brokers | of_metadata, {WAL_ENABLE: "true"}


def _wal_faults(rng: random.Random, last_s: float) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            at_s=rng.random() * last_s,
            kind=rng.choice(WAL_KINDS),
            amount=1,
            seconds=rng.choice((0.5, 2.0, 5.0)),
            target=rng.choice(("any", "leader", "leader")),
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """What a plan has of transactions."""

    properties: Mapping[str, str]
    transactors: tuple[TransactorPlan, ...] = ()
    copiers: tuple[CopierPlan, ...] = ()
    copied_to: int = 0
    faults: tuple[Fault, ...] = ()


def _exactly_once(rng: random.Random, brokers: int, last_s: float) -> ExactlyOnce:
    """In some runs producers have transactions, and in some of those there are copiers."""
    if rng.random() >= TRANSACTIONS_SHARE:
        return ExactlyOnce(properties={})
    properties = {
        "transaction.state.log.num.partitions": rng.choice(("1", "2")),
        "transaction.state.log.replication.factor": str(min(3, brokers)),
        "transaction.state.log.min.isr": str(min(2, brokers)),
        CLEANUP: rng.choice(("300", "1000", "5000")),
    }
    transactors = tuple(
        TransactorPlan(
            count=rng.choice((4, 8, 14)),
            pause_s=rng.choice((0.0, 0.2, last_s / 20)),
            version=rng.choice((1, 2, 2)),
            timeout_ms=rng.choice((1500, 4000, 8000)),
            twin_at_s=rng.random() * last_s if rng.random() < TWIN_SHARE else None,
        )
        for _ in range(rng.choice((1, 1, 2)))
    )
    copiers: tuple[CopierPlan, ...] = ()
    if rng.random() < COPIERS_SHARE:
        is_subscriber = rng.random() < 0.5
        copiers = tuple(
            CopierPlan(
                version=rng.choice((1, 2, 2)),
                is_subscriber=is_subscriber,
                twin_at_s=rng.random() * last_s if rng.random() < TWIN_SHARE else None,
            )
            for _ in range(rng.choice((1, 2)))
        )
    faults = tuple(
        Fault(
            at_s=rng.random() * last_s,
            kind=rng.choice(AT_COORDINATORS if brokers > 1 else AT_A_LONE_COORDINATOR),
            amount=rng.choice((rng.randrange(1, 30), rng.randrange(1, 200))),
            seconds=rng.choice((0.5, 2.0, 9.0) if brokers > 1 else (0.05, 0.5, 2.0)),
            target="coordinator",
        )
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    )
    return ExactlyOnce(
        properties=properties,
        transactors=transactors,
        copiers=copiers,
        copied_to=rng.choice((1, 2)) if copiers else 0,
        faults=faults,
    )


def _subscribers(rng: random.Random) -> tuple[SubscriberPlan, ...]:
    """In some runs members of the group let the server assign it, beside those that do not."""
    if rng.random() >= SUBSCRIBERS_SHARE:
        return ()
    return tuple(
        SubscriberPlan(
            rounds=rng.choice((2, 3)),
            instance=f"instance-{number}" if rng.random() < 0.3 else None,
            assignor=rng.choice((None, "uniform", "range")),
        )
        for number in range(rng.choice((1, 2, 3)))
    )


def _tier_orders(rng: random.Random) -> int:
    return rng.choice((0, 0, 0, 4, 10))


def tiering_of(topic_configs: Mapping[str, str]) -> dict[str, str]:
    """What of these settings is about a tier; nothing for topics that are in none."""
    of_wal = {name: value for name, value in topic_configs.items() if name == WAL_ENABLE}
    if "remote.storage.enable" not in topic_configs:
        return of_wal
    return {
        name: value
        for name, value in topic_configs.items()
        if name.startswith(("remote.", "local.")) or name == "segment.ms"
    }


def _producers(rng: random.Random, last_s: float, *, is_cluster: bool) -> tuple[ProducerPlan, ...]:
    """In a cluster they go on for as long as the faults do, which wait for sessions to end."""
    batches = 8, int(32 if not is_cluster else 24 + last_s)
    pauses = (0.0, 0.1, 0.3) if not is_cluster else (0.1, 0.3, last_s / 40)
    return tuple(
        ProducerPlan(
            acks=acks,
            window=rng.choice((1, 1, 3, 5)),
            is_idempotent=acks == -1 and rng.random() < 0.7,
            batches=rng.randrange(*batches),
            pause_s=rng.choice(pauses),
            codec=rng.choice((0, 0, 0, 1, 4)),
        )
        for acks in [
            rng.choice((-1, -1, -1, 1, 1, 0) if is_cluster else (-1, -1, -1, 1, 0))
            for _ in range(rng.choice((1, 2, 2, 3)))
        ]
    )


def _walkers(rng: random.Random, last_s: float) -> tuple[tuple[WalkerPlan, ...], dict[str, str]]:
    """Return the walkers, and the setting by which brokers pack their batches anew."""
    if rng.random() >= WALK_SHARE:
        return (), {}
    walkers = tuple(
        WalkerPlan(requests=rng.choice((3, 6, 10)), pause_s=rng.choice((0.2, last_s / 20, last_s / 8)))
        for _ in range(rng.choice((1, 2, 3)))
    )
    return walkers, {"compression.type": rng.choice(("gzip", "lz4", "zstd"))}


def _faults_of(
    rng: random.Random, of_walks: random.Random, last_s: float, *, is_cluster: bool, has_walkers: bool
) -> tuple[Fault, ...]:
    """Return the faults; where records are walked, a leader is often replaced during a walk as well."""
    faults = _faults(rng, CLUSTER_KINDS if is_cluster else KINDS, last_s)
    if not (is_cluster and has_walkers) or of_walks.random() < 0.4:
        return faults
    walk = Fault(
        at_s=of_walks.random() * last_s / 2,
        kind="hold-zombie",
        amount=1,
        seconds=WALK_HOLD_S,
        target="leader",
    )
    return _in_order(*faults, walk)


def _faults(rng: random.Random, kinds: tuple[str, ...], last_s: float) -> tuple[Fault, ...]:
    if rng.random() < 1 / 6:
        return ()
    weights = [HEAVY.get(kind, 1) for kind in kinds]
    allowed = sorted(set(rng.choices(kinds, weights, k=rng.choice((1, 2, 3)))))
    faults = [
        Fault(
            at_s=rng.random() * last_s,
            kind=rng.choice(allowed),
            amount=rng.choice((rng.randrange(1, 12), rng.randrange(1, 100))),
            seconds=rng.choice((0.05, 0.5, 2.0, 7.0) if last_s <= 5.0 else (0.5, 2.0, 9.0, 15.0)),
            target=rng.choice(("any", "controller", "leader", "leader")),
        )
        for _ in range(rng.choice((1, 2, 3, 4, 6)))
    ]
    return _in_order(*faults)


def _in_order(*faults: Fault) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
