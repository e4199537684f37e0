"""Owns one run: what one seed means. A plan of topics, clients and faults, carried out against a broker,
then healed and judged.

Faults are chosen swarm-wise: each run allows itself a few kinds, and one run in six none, because many
faults at once hide each other. Does not own the verdicts (checks) nor the machine (node).

Invariant: everything random comes from the seed, through generators of their own for plan, network, disk,
store and each client, so that a change in one of them leaves the others' choices alone.
"""

from __future__ import annotations

import asyncio
import errno
import random
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from remote.object_store import MemoryStore
from tests.sim import inspection
from tests.sim.checks import Verdict, Violation, judge
from tests.sim.client import (
    RETRY_S,
    Consumer,
    Env,
    Lost,
    Member,
    Producer,
    SimClient,
    read_commit,
)
from tests.sim.history import FinalLog, History, TopicPartition
from tests.sim.loop import SimFailure, SimLoop
from tests.sim.net import Fabric, NetworkProfile
from tests.sim.node import Node
from tests.sim.store import StoreProfile

BROKER = "broker-1"
GROUP = "group"
FAULTS_LAST_S = 5.0
SETTLE_S = 90.0
QUIESCE_S = 5.0

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
)

# What ends a life of the broker, or a connection under way, finds the most.
WEIGHTS = [
    3 if kind in ("kill", "kill-in-write", "power", "power-in-write", "reset") else 1 for kind in KINDS
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at_s: float
    kind: str
    amount: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    acks: int
    window: int
    is_idempotent: bool
    batches: int
    pause_s: float
    codec: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed decides before anything runs."""

    properties: dict[str, str]
    topics: dict[str, int]
    topic_configs: dict[str, str]
    producers: tuple[ProducerPlan, ...]
    consumers: int
    members: int
    deletes: int
    extra_topics: int
    faults: tuple[Fault, ...]
    network: NetworkProfile
    ends_with_kill: bool

    @property
    def fault_names(self) -> str:
        return "+".join(fault.kind for fault in self.faults) or "none"


def plan_of(seed: int) -> Plan:
    rng = random.Random(f"{seed}/plan")
    two_dirs = rng.random() < 0.3
    properties = {
        "log.dirs": "/data/a,/data/b" if two_dirs else "/data/a",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.flush.single.replica": rng.choice(("true", "false")),
        "log.index.interval.bytes": rng.choice(("0", "100", "4096")),
        "log.flush.offset.checkpoint.interval.ms": rng.choice(("500", "60000")),
    }
    if rng.random() < 0.3:
        properties["log.flush.interval.messages"] = rng.choice(("1", "5"))
    topic_configs: dict[str, str] = {}
    if rng.random() < 0.6:
        topic_configs["segment.ms"] = rng.choice(("300", "1500"))
    if rng.random() < 0.2:
        topic_configs["message.timestamp.type"] = "LogAppendTime"
    if rng.random() < 0.15:
        topic_configs["compression.type"] = rng.choice(("gzip", "uncompressed", "zstd"))
    producers = tuple(
        ProducerPlan(
            acks=acks,
            window=rng.choice((1, 1, 3, 5)),
            is_idempotent=acks == -1 and rng.random() < 0.7,
            batches=rng.randrange(8, 32),
            pause_s=rng.choice((0.0, 0.1, 0.3)),
            codec=rng.choice((0, 0, 0, 1, 4)),
        )
        for acks in [rng.choice((-1, -1, -1, 1, 0)) for _ in range(rng.choice((1, 2, 2, 3)))]
    )
    return Plan(
        properties=properties,
        topics={"t": rng.choice((1, 2)), "d": 1},
        topic_configs=topic_configs,
        producers=producers,
        consumers=rng.choice((1, 1, 2)),
        members=rng.choice((0, 0, 1, 2, 3)),
        deletes=rng.choice((0, 1, 3)),
        extra_topics=rng.choice((0, 0, 1, 2)),
        faults=_faults(rng),
        network=NetworkProfile(
            split_chance=rng.choice((0.0, 0.05, 0.3)),
            spike_chance=rng.choice((0.0, 0.0, 0.05)),
            window_bytes=rng.choice((2000, 65536, 262144)),
        ),
        ends_with_kill=rng.random() < 0.7,
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    if rng.random() < 1 / 6:
        return ()
    allowed = sorted(set(rng.choices(KINDS, WEIGHTS, k=rng.choice((1, 2, 3)))))
    faults = [
        Fault(
            at_s=rng.random() * FAULTS_LAST_S,
            kind=rng.choice(allowed),
            amount=rng.choice((rng.randrange(1, 12), rng.randrange(1, 100))),
            seconds=rng.choice((0.05, 0.5, 2.0, 7.0)),
        )
        for _ in range(rng.choice((1, 2, 3, 4, 6)))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    plan: Plan
    history: History
    verdict: Verdict
    trace: str
    steps: int
    error: str = ""
    trace_lines: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        return not self.error and self.verdict.clean

    def line(self) -> str:
        lost = f" lost-to-power={self.verdict.lost_to_power}" if self.verdict.lost_to_power else ""
        verdict = (
            "ok" if self.passed else f"FAIL {self.error or '; '.join(map(str, self.verdict.violations))}"
        )
        return (
            f"seed={self.seed} faults={self.plan.fault_names} ops={self.history.operations()}"
            f" steps={self.steps} trace={self.trace}{lost} {verdict}"
        )


def simulate(seed: int, *, keep_trace: bool = False) -> Outcome:
    simulation = Simulation(seed, keep_trace=keep_trace)
    error = ""
    try:
        simulation.loop.run(simulation.run())
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        if keep_trace:
            raise_lines = simulation.loop.trace_lines
            assert raise_lines is not None
            raise_lines.append(_traceback(problem))
    history = simulation.history
    verdict = judge(history) if not error else Verdict(violations=(), lost_to_power=0)
    if simulation.stuck:
        stuck = tuple(Violation(rule="20 liveness", what=what) for what in simulation.stuck)
        verdict = Verdict(violations=verdict.violations + stuck, lost_to_power=verdict.lost_to_power)
    return Outcome(
        seed=seed,
        plan=simulation.plan,
        history=history,
        verdict=verdict,
        trace=simulation.loop.trace_digest(),
        steps=simulation.loop.steps,
        error=error,
        trace_lines=simulation.loop.trace_lines or (),
    )


def _traceback(problem: BaseException) -> str:
    return "".join(traceback.format_exception(problem))


class Simulation:
    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.plan = plan_of(seed)
        self.loop = SimLoop(keep_trace=keep_trace)
        self.history = History(
            single_replica_flush=self.plan.properties["log.flush.single.replica"] == "true"
        )
        self.fabric = Fabric(self.loop, random.Random(f"{seed}/network"), self.plan.network)
        self.store_profile = StoreProfile()
        self.rng = random.Random(f"{seed}/nemesis")
        self.stuck: list[str] = []
        self.node = Node(
            loop=self.loop,
            fabric=self.fabric,
            history=self.history,
            bucket=MemoryStore(),
            store_profile=self.store_profile,
            name=BROKER,
            node_id=1,
            seed=str(seed),
            properties=self.plan.properties,
        )
        self.env = Env(
            loop=self.loop,
            fabric=self.fabric,
            history=self.history,
            broker_host=BROKER,
            now_ms=self.node.now_ms,
        )
        self.partitions = [
            (topic, index) for topic, count in self.plan.topics.items() for index in range(count)
        ]
        self._workers: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._mortal: list[tuple[SimClient, Callable[[], None]]] = []  # clients and how to replace them
        self._producers = self._members = 0

    # the run ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        if not await self.node.start():
            raise SimFailure("the broker did not start in a healthy world")
        admin = self._client("admin")
        for topic, count in self.plan.topics.items():
            await self._in(admin, admin.create_topic_surely(topic, count, self.plan.topic_configs))
        self._start_clients()
        nemesis = self.loop.create_task(self._nemesis(), name="nemesis")
        keeper = self.loop.create_task(self._keep_alive(), name="keeper")
        await nemesis
        await self._heal()
        await self._wait_for(self._workers)
        self.env.stopping = True
        await self._wait_for(self._readers)
        final = await self._final_state()
        keeper.cancel()
        await self._end()
        self.history.logs = final

    def _start_clients(self) -> None:
        plan = self.plan
        for one in plan.producers:
            self._start_producer(one)
        for _ in range(plan.members):
            self._start_member()
        if plan.deletes:
            client = self._client("deleter")
            self._workers.append(client.start(self._delete_now_and_then(client)))
        if plan.extra_topics:
            client = self._client("creator")
            self._workers.append(client.start(self._create_now_and_then(client)))
        for number in range(plan.consumers):
            client = self._client(f"consumer-{number}")
            consumer = Consumer(client=client, partitions=self.partitions, pause_s=0.4)
            self._readers.append(client.start(consumer.run()))

    def _start_producer(self, one: ProducerPlan) -> None:
        self._producers += 1
        client = self._client(f"producer-{self._producers}")
        producer = Producer(
            client=client,
            number=self._producers,
            partitions=self.partitions,
            batches=one.batches,
            acks=one.acks,
            window=one.window,
            is_idempotent=one.is_idempotent,
            pause_s=one.pause_s,
            codec=one.codec,
        )
        self._workers.append(client.start(producer.run()))
        self._mortal.append((client, lambda: self._start_producer(one)))

    def _start_member(self) -> None:
        self._members += 1
        client = self._client(f"member-{self._members}")
        member = Member(client=client, group=GROUP, partitions=self.partitions, rounds=3)
        self._workers.append(client.start(member.run()))
        self._mortal.append((client, self._start_member))

    async def _delete_now_and_then(self, client: SimClient) -> None:
        for _ in range(self.plan.deletes):
            await client.pause(1.5)
            seen = max((f.high_watermark for f in self.history.fetches if f.tp == ("d", 0)), default=0)
            if seen > 0:
                await client.delete_records(("d", 0), client.rng.randrange(seen + 1))

    async def _create_now_and_then(self, client: SimClient) -> None:
        for number in range(self.plan.extra_topics):
            await client.pause(1.5)
            await client.create_topic(f"extra-{number}", client.rng.choice((1, 2)), {})
            if client.rng.random() < 0.4:
                await client.pause(0.5)
                await client.delete_topic(f"extra-{number}")

    def _client(self, name: str) -> SimClient:
        return SimClient(self.env, name, random.Random(f"{self.seed}/{name}"))

    async def _in(self, client: SimClient, coro: Coroutine[Any, Any, None]) -> None:
        await self._wait_for([client.start(coro)])

    async def _wait_for(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Liveness: after healing everybody who lives comes to an end."""
        dead = {
            task for client, _ in self._mortal if not client.process.alive for task in client.process.tasks
        }
        tasks = [task for task in tasks if task not in dead]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=SETTLE_S)
        self.stuck += sorted(f"{task.get_name()} did not finish within {SETTLE_S} s" for task in late)
        for task in tasks:
            if task not in late:
                task.result()
        if late:
            raise _Stuck("; ".join(self.stuck))

    # faults -------------------------------------------------------------------------------------------------

    async def _nemesis(self) -> None:
        begun = self.loop.now
        for fault in self.plan.faults:
            await asyncio.sleep(max(0.0, begun + fault.at_s - self.loop.now))
            self.loop.trace("fault", fault.kind, fault.amount, fault.seconds)
            await self._commit_fault(fault)
        await asyncio.sleep(max(0.0, begun + min(FAULTS_LAST_S, 1.0 + len(self.plan.faults)) - self.loop.now))

    async def _commit_fault(self, fault: Fault) -> None:
        node, process, files = self.node, self.node.process, self.node.files
        assert process is not None and files is not None
        match fault.kind:
            case "kill" | "power":
                process.die_in_steps(fault.amount, power=fault.kind == "power")
            case "kill-in-write" | "power-in-write":
                files.die_in_changes(fault.amount, power=fault.kind == "power-in-write")
            case "kill-while-starting":
                await self._kill_while_starting(fault)
            case "restart":
                if node.is_alive and node.broker is not None:
                    await node.stop()
            case "cut" | "one-way":
                ends = [self._some_client(), BROKER]
                self.rng.shuffle(ends)
                self.fabric.cut(*ends, both=fault.kind == "cut")
                self._later(fault.seconds, self.fabric.heal)
            case "reset":
                self.fabric.reset_some(0.7)
            case "freeze":
                for connection in self.fabric.connections:
                    if self.rng.random() < 0.5:
                        connection.freeze()
            case "stall":
                self.loop.stall(fault.seconds)
            case "disk-error":
                node.may_break = True
                operation = self.rng.choice(
                    ("write", "write", "fsync", "create", "rename", "fsync_dir", "read")
                )
                node.disk.fail(operation, errno.EIO, skip=fault.amount % 5)
            case "disk-full":
                node.may_break = True
                node.disk.capacity = node.disk.used + fault.amount
                self._later(fault.seconds, node.disk.disarm)
            case "store-down" | "store-hangs":
                self.store_profile.down = fault.kind == "store-down"
                self.store_profile.hang = not self.store_profile.down
                self._later(fault.seconds, self.store_profile.heal)
            case "store-lossy":
                self.store_profile.error_before_chance = self.store_profile.error_after_chance = 0.3
                self._later(fault.seconds, self.store_profile.heal)
            case "kill-client":
                self._kill_client()
            case _:
                raise AssertionError(fault.kind)

    def _kill_client(self) -> None:
        living = [entry for entry in self._mortal if entry[0].process.alive]
        if living:
            client, replace = self.rng.choice(living)
            client.process.die()
            replace()

    async def _kill_while_starting(self, fault: Fault) -> None:
        self.node.kill(power=fault.amount % 2 == 1)
        if not self.node.is_alive:
            self.node.begin()
        process, files = self.node.process, self.node.files
        assert process is not None and files is not None
        if fault.amount % 3:
            process.die_in_steps(fault.amount, power=fault.amount % 2 == 0)
        else:
            files.die_in_changes(fault.amount, power=fault.amount % 2 == 0)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.loop.call_later(seconds, act)

    def _some_client(self) -> str:
        names = sorted(name for name in self.fabric.hosts if name != BROKER)
        return self.rng.choice(names)

    async def _keep_alive(self) -> None:
        """The supervisor: a broker that died is started again after a moment."""
        while True:
            await asyncio.sleep(0.05 + self.rng.random())
            if not self.node.is_alive:
                await self.node.start()

    async def _heal(self) -> None:
        self.loop.trace("healing")
        self.fabric.heal()
        self.store_profile.heal()
        node = self.node
        node.disk.disarm()
        if node.process is not None and node.files is not None:
            node.process.die_at_step = None
            node.files.die_at_change = None
        if node.may_break:
            # A failed log directory stays failed until somebody looks after it and restarts the broker.
            node.kill()
            node.may_break = False

    # the end ------------------------------------------------------------------------------------------------

    async def _final_state(self) -> dict[TopicPartition, FinalLog]:
        """Read everything once more as a client, then look at the files themselves, before and after a
        restart."""
        await asyncio.sleep(QUIESCE_S)
        reader = self._client("reader")
        served: dict[TopicPartition, tuple[tuple[int, int], ...]] = {}

        async def read() -> None:
            for tp in self.partitions:
                served[tp] = await self._read_all(reader, tp)
                if self.plan.members:
                    while await _tried(read_commit(reader, GROUP, tp)) is None:
                        await reader.pause(RETRY_S)
            while (answer := await _tried(reader.refresh(None))) is None:
                await reader.pause(RETRY_S)
            self.history.topics = frozenset(topic.name for topic in answer.topics)

        await self._in(reader, read())
        marks = {
            tp: [f for f in self.history.fetches if f.client == "reader" and f.tp == tp][-1] for tp in served
        }
        found, recovery = inspection.inspect(self.node.disk, self.node.config, self.partitions)
        self.history.recoveries.append(recovery)
        return {
            tp: FinalLog(
                log_start_offset=marks[tp].log_start_offset,
                last_stable_offset=marks[tp].last_stable_offset,
                high_watermark=marks[tp].high_watermark,
                log_end_offset=found[tp].log_end_offset,
                batches=found[tp].batches,
                served=served[tp],
                epochs=found[tp].epochs,
            )
            for tp in self.partitions
        }

    async def _read_all(self, reader: SimClient, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        at = begin = await reader.first_offset(tp)
        pairs: list[tuple[int, int]] = []
        is_seek = True
        while True:
            try:
                fetch = await reader.fetch(tp, at, max_bytes=1 << 20, max_wait_ms=0, seek=is_seek)
            except Lost:
                await reader.pause(RETRY_S)
                continue
            if fetch.result != "ok":
                await reader.pause(RETRY_S)
                continue
            is_seek = False
            for batch in fetch.batches:
                pairs += [pair for pair in batch.pairs() if pair[0] >= begin]
                at = batch.next_offset
            if at >= fetch.high_watermark:
                return tuple(pairs)

    async def _end(self) -> None:
        """A last life: whatever the end of this one, the next comes up; its files are looked at again."""
        if self.node.is_alive:
            if self.plan.ends_with_kill:
                self.node.kill()
            else:
                await self.node.stop()
        _, recovery = inspection.inspect(self.node.disk, self.node.config, self.partitions)
        self.history.recoveries.append(recovery)


class _Stuck(SimFailure):
    """Somebody did not come to an end; said by name in Simulation.stuck."""


async def _tried(asking: object) -> object:
    try:
        return await asking  # type: ignore[misc]
    except Lost:
        return None
