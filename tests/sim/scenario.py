"""Owns one planned run: a seed's plan carried out against brokers, then healed and judged.

Does not own the plan, the faults, the stage nor the rules.
Invariant: the outcome is a function of the seed, the number of brokers and the code.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from remote.wal.window import IN_FLIGHT_MAX
from tests.sim.client import RETRY_S, Lost, SimClient
from tests.sim.copier import Copier, Membership
from tests.sim.history import History, TopicPartition
from tests.sim.nemesis import Nemesis
from tests.sim.operators import Operator, TierOperator, WalOperator
from tests.sim.plan import (
    COPY_TIMEOUT_MS,
    GROUP,
    WAL_UPLOADS,
    CopierPlan,
    Plan,
    ProducerPlan,
    SubscriberPlan,
    TransactorPlan,
    WalkerPlan,
    brokers_of,
    plan_of,
    tiering_of,
)
from tests.sim.stage import Stage
from tests.sim.subscriber import SubscribedMember, Subscriber
from tests.sim.transactor import TransactionalProducer, Transactor
from tests.sim.verdict import Verdict, Violation, judge
from tests.sim.walker import Walker
from tests.sim.workload import Consumer, Member, Producer, read_commit

REWIND_CHANCE = 0.1
UNSTABLE_S = 10.0
"""How long what a group has committed may be held by a transaction, when all of them have had their time."""
COPY, COPIERS = "o", "copiers"
DELETED = ("d", 0)
"""The partition whose records are deleted now and then."""


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
        counts = (
            ("lost-by-all", self.verdict.lost_by_all),
            ("lost-by-last", self.verdict.lost_by_last),
            ("lost-with-leader", self.verdict.lost_with_leader),
        )
        lost = "".join(f" {name}={count}" for name, count in counts if count)
        if self.plan.is_unclean:
            lost += " unclean"
        verdict = (
            "ok" if self.passed else f"FAIL {self.error or '; '.join(map(str, self.verdict.violations))}"
        )
        return (
            f"seed={self.seed} brokers={self.plan.brokers} rf={self.plan.replicas}"
            f" faults={self.plan.fault_names} ops={self.history.operations()}"
            f" steps={self.steps} trace={self.trace}{lost} {verdict}"
        )


def simulate(seed: int, *, brokers: int | None = 1, keep_trace: bool = False) -> Outcome:
    """One run; without a number of brokers the seed decides that too."""
    plan = plan_of(seed, brokers=brokers_of(seed) if brokers is None else brokers)
    simulation = Simulation(seed, plan, keep_trace=keep_trace)
    stage, error = simulation.stage, ""
    try:
        stage.loop.run(simulation.run())
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        if stage.loop.trace_lines is not None:
            stage.loop.trace_lines.append("".join(traceback.format_exception(problem)))
    verdict = judge(stage.history) if not error else Verdict()
    if stage.stuck:
        stuck = tuple(Violation(rule="20 liveness", what=what) for what in stage.stuck)
        verdict = replace(verdict, violations=verdict.violations + stuck)
    return Outcome(
        seed=seed,
        plan=plan,
        history=stage.history,
        verdict=verdict,
        trace=stage.loop.trace_digest(),
        steps=stage.loop.steps,
        error=error,
        trace_lines=stage.loop.trace_lines or (),
    )


class Simulation:
    def __init__(self, seed: int, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.stage = Stage(
            str(seed),
            brokers=plan.brokers,
            properties=plan.properties,
            network=plan.network,
            keep_trace=keep_trace,
        )
        self.rng = random.Random(f"{seed}/nemesis")
        self.nemesis = Nemesis(self.stage, plan, self.rng)
        self.partitions = [(topic, index) for topic, count in plan.topics.items() for index in range(count)]
        self.sources = tuple(self.partitions)
        self.targets = [(COPY, index) for index in range(plan.copied_to)]
        if plan.copiers:
            self.stage.history.copies_of[COPIERS] = self.sources
        self.stage.history.forgets = "retention.ms" in plan.topic_configs or plan.tier_orders > 0
        # what is collected may have been in a tier that the log has left since
        self.stage.wal.is_toggled = plan.wal_orders > 0 or plan.tier_orders > 0
        self.stage.wal.rests = plan.wal_rests
        self.stage.history.wal_window = int(plan.properties.get(WAL_UPLOADS, IN_FLIGHT_MAX))
        self.stage.history.is_calm = plan.is_in_wal and plan.is_calm
        if plan.is_unclean:
            self.stage.history.unclean_topics.update((*plan.topics, COPY))
        self._workers: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._producers = self._members = self._transactors = self._copiers = self._subscribers = 0

    async def run(self) -> None:
        stage, plan = self.stage, self.plan
        await stage.start()
        admin = stage.client("admin")
        for topic, count in plan.topics.items():
            creating = admin.create_topic_surely(topic, count, plan.topic_configs, replicas=plan.replicas)
            await stage.finish([admin.start(creating)])
        if plan.copied_to:
            creating = admin.create_topic_surely(
                COPY, plan.copied_to, plan.configs_of_copies, replicas=plan.replicas
            )
            await stage.finish([admin.start(creating)])
        self._start_clients()
        nemesis = stage.loop.create_task(self.nemesis.run(), name="nemesis")
        keeper = stage.loop.create_task(self.nemesis.keep_alive(), name="keeper")
        quiet = stage.loop.create_task(self._be_quiet(), name="quiet")
        await nemesis
        quiet.cancel()
        stage.env.is_quiet = False
        stage.sample(self.partitions)
        stage.heal()
        await stage.become_whole()
        await stage.finish(self._alive(self._workers))
        stage.env.stopping = True
        await stage.finish(self._alive(self._readers))
        self.partitions[:] = stage.partitions_of(plan.topics)
        if plan.transactors:
            await stage.end_transactions([*self.partitions, *self.targets], seconds=plan.transactions_last_s)
        if plan.ends_quietly:
            await self._end_quietly()
        if plan.members or plan.subscribers:
            await self._read_commits(GROUP)
        if plan.copiers:
            await self._read_commits(COPIERS)
        if stage.history.forgets:
            await stage.finish([admin.start(self._keep_all(admin))])
        await stage.final_state([*self.partitions, *self.targets])
        keeper.cancel()
        await self._end()

    # clients ------------------------------------------------------------------------------------------------

    def _start_clients(self) -> None:
        plan, stage = self.plan, self.stage
        for one in plan.producers:
            self._start_producer(one)
        for walks in plan.walkers:
            self._start_walker(walks)
        for _ in range(plan.members):
            self._start_member()
        for number, transacts in enumerate(plan.transactors, 1):
            self._start_transactor(transacts, f"transactor-{number}")
        for number, copies in enumerate(plan.copiers, 1):
            self._start_copier(copies, f"{COPIERS}-{number}")
        for subscribes in plan.subscribers:
            self._start_subscriber(subscribes)
        if plan.deletes:
            client = stage.client("deleter")
            self._workers.append(client.start(self._delete_now_and_then(client)))
        for number, rounds in enumerate(plan.operators, 1):
            client = stage.client(f"operator-{number}")
            operator = Operator(
                client=client,
                number=number,
                rounds=rounds,
                brokers=tuple(stage.nodes),
                replicas=plan.replicas,
                topics=plan.topics,
                partitions=self.partitions,
                made_with=tiering_of(plan.topic_configs),
            )
            self._workers.append(client.start(operator.run()))
        if plan.tier_orders:
            client = stage.client("tier operator")
            switcher = TierOperator(client=client, rounds=plan.tier_orders, topics=tuple(plan.topics))
            self._workers.append(client.start(switcher.run()))
        if plan.wal_orders:
            client = stage.client("WAL operator")
            of_wal = WalOperator(client=client, rounds=plan.wal_orders, topics=tuple(plan.topics))
            self._workers.append(client.start(of_wal.run()))
        for number, rack in enumerate(plan.consumers):
            client = stage.client(f"consumer-{number}")
            client.rack = rack
            consumer = Consumer(
                client=client,
                partitions=self.partitions,
                pause_s=0.4,
                rewind_chance=REWIND_CHANCE if plan.is_tiered else 0.0,
            )
            self._readers.append(client.start(consumer.run()))
        if plan.transactors:
            client = stage.client("consumer of what is committed")
            consumer = Consumer(
                client=client,
                partitions=[*self.partitions, *self.targets],
                pause_s=0.5,
                rewind_chance=REWIND_CHANCE,
                is_committed=True,
            )
            self._readers.append(client.start(consumer.run()))

    def _start_producer(self, one: ProducerPlan) -> None:
        self._producers += 1
        client = self.stage.client(f"producer-{self._producers}")
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
        self.nemesis.mortal.append((client, lambda: self._start_producer(one)))

    def _start_walker(self, one: WalkerPlan) -> None:
        self._producers += 1
        client = self.stage.client(f"walker-{self._producers}")
        walker = Walker(
            client=client,
            number=self._producers,
            partitions=self.partitions,
            requests=one.requests,
            pause_s=one.pause_s,
        )
        self._workers.append(client.start(walker.run()))
        self.nemesis.mortal.append((client, lambda: self._start_walker(one)))

    def _start_member(self) -> None:
        self._members += 1
        client = self.stage.client(f"member-{self._members}")
        member = Member(client=client, group=GROUP, partitions=self.partitions, rounds=3)
        self._workers.append(client.start(member.run()))
        self.nemesis.mortal.append((client, self._start_member))

    def _transactional(
        self, client: SimClient, transactional_id: str, version: int, timeout_ms: int
    ) -> TransactionalProducer:
        self._producers += 1
        return TransactionalProducer(
            client=client,
            number=self._producers,
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            version=version,
            on_end=self.nemesis.at_an_end,
        )

    def _start_transactor(self, one: TransactorPlan, transactional_id: str, *, after_s: float = 0.0) -> None:
        """And one more under the same id later, if that is planned: the first is a zombie from then on."""
        self._transactors += 1
        client = self.stage.client(f"{transactional_id}#{self._transactors}")
        transactor = Transactor(
            producer=self._transactional(client, transactional_id, one.version, one.timeout_ms),
            partitions=self.partitions,
            count=one.count,
            pause_s=one.pause_s,
        )
        self._workers.append(client.start(_after(after_s, transactor.run)))
        self.nemesis.mortal.append((client, lambda: self._start_transactor(alone, transactional_id)))
        alone = replace(one, twin_at_s=None)
        if one.twin_at_s is not None:
            self._start_transactor(alone, transactional_id, after_s=one.twin_at_s)

    def _start_copier(self, one: CopierPlan, transactional_id: str, *, after_s: float = 0.0) -> None:
        self._copiers += 1
        client = self.stage.client(f"{transactional_id}#{self._copiers}")
        membership: Membership
        if one.is_subscriber:
            topics = tuple(self.plan.topics)
            membership = Subscriber(client=client, group=COPIERS, topics=topics)
        else:
            membership = Member(client=client, group=COPIERS, partitions=self.sources, rounds=0)
        copier = Copier(
            producer=self._transactional(client, transactional_id, one.version, COPY_TIMEOUT_MS),
            membership=membership,
            targets=self.targets,
        )
        self._readers.append(client.start(_after(after_s, copier.run)))
        alone = replace(one, twin_at_s=None)
        self.nemesis.mortal.append((client, lambda: self._start_copier(alone, transactional_id)))
        if one.twin_at_s is not None:
            self._start_copier(alone, transactional_id, after_s=one.twin_at_s)

    def _start_subscriber(self, one: SubscriberPlan) -> None:
        self._subscribers += 1
        client = self.stage.client(f"subscriber-{self._subscribers}")
        subscriber = Subscriber(
            client=client,
            group=GROUP,
            topics=tuple(self.plan.topics),
            instance=one.instance,
            assignor=one.assignor,
        )
        member = SubscribedMember(subscriber=subscriber, rounds=one.rounds)
        self._workers.append(client.start(member.run()))
        self.nemesis.mortal.append((client, lambda: self._start_subscriber(one)))

    async def _delete_now_and_then(self, client: SimClient) -> None:
        for _ in range(self.plan.deletes):
            await client.pause(1.5)
            await self._delete_once(client)

    def _seen(self, tp: TopicPartition) -> int:
        """The highest high watermark that a consumer was shown."""
        fetches = self.stage.history.fetches
        return max((fetch.high_watermark for fetch in fetches if fetch.tp == tp), default=0)

    # quiet --------------------------------------------------------------------------------------------------

    async def _be_quiet(self) -> None:
        """Nobody produces for a while; deletions, changes of roles and whatever the nemesis does go on, and
        nothing but themselves makes anyone look."""
        env, begun = self.stage.env, self.stage.loop.now
        for at_s, seconds in self.plan.quiet:
            await asyncio.sleep(max(0.0, begun + at_s - env.now))
            env.is_quiet = True
            client = self.stage.client(f"quiet-{at_s:.3f}")
            self._workers.append(client.start(self._delete_once(client)))
            await asyncio.sleep(seconds)
            env.is_quiet = False

    async def _delete_once(self, client: SimClient) -> None:
        seen = self._seen(DELETED)
        if seen > 0:
            await client.delete_records(DELETED, client.rng.randrange(seen + 1))

    async def _end_quietly(self) -> None:
        """After healing, while nobody produces: a deletion is answered in time by whoever leads, before and
        after the leader has changed."""
        stage = self.stage
        client = stage.client("quiet end")
        start, end = stage.log_range(DELETED)

        async def delete() -> None:
            for share in (1, 2, 3):
                await client.elect_preferred(DELETED)
                await stage.quietly_deleted(client, DELETED, start + (end - start) * share // 3)

        await stage.settled("every replica has everything", lambda: stage.uneven([DELETED]))
        await stage.finish([client.start(delete())])

    async def _keep_all(self, admin: SimClient) -> None:
        """What is read in the end is still there when the files are looked at."""
        for topic in self.plan.topics:
            while (await admin.configure_topic(topic, "-1", {})).result != "ok":
                await admin.pause(RETRY_S)
        last = self.stage.truth.image.seq
        while any((image := node.image()) is None or image.seq < last for node in self.stage.ready()):
            await admin.pause(RETRY_S)

    def _alive(self, tasks: Sequence[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
        dead = {
            task
            for client, _ in self.nemesis.mortal
            if not client.process.alive
            for task in client.process.tasks
        }
        return [task for task in tasks if task not in dead]

    async def _read_commits(self, group: str) -> None:
        reader = self.stage.client(f"committed by {group}")

        async def read() -> None:
            for tp in self.partitions:
                give_up = self.stage.loop.now + UNSTABLE_S
                while True:
                    is_late = self.stage.loop.now > give_up
                    try:
                        if await read_commit(reader, group, tp, is_stable=not is_late) is not None:
                            break
                    except Lost:
                        await reader.pause(RETRY_S)
                if is_late:
                    self.stage.history.unstable.append((group, tp))

        await self.stage.finish([reader.start(read())])

    # the end ------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """A last life: whatever the end of this one, the next comes up; its files are looked at again."""
        node = self.rng.choice(list(self.stage.nodes.values()))
        if node.is_alive:
            if self.plan.ends_with_kill:
                node.kill()
            else:
                await node.stop()
        self.stage.inspect([*self.partitions, *self.targets], [node])


async def _after(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(seconds)
    await work()
