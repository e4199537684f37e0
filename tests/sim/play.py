"""Owns a play: a named scenario on a Stage, with a load under way and a script instead of a nemesis.

The script cuts, kills and waits; then everything heals, every replica is read and the history judged by the
same rules as any seed's. Does not own the scripts (test_scenarios.py).

Invariant: a play ends with a verdict over everything its clients did, whatever its script looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.sim.client import SimClient
from tests.sim.history import Send, TopicPartition
from tests.sim.net import Cut
from tests.sim.node import Node
from tests.sim.stage import Stage
from tests.sim.verdict import Verdict, judge
from tests.sim.workload import Producer

TP = ("t", 0)
PROPERTIES = {
    "log.dirs": "/data",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": "4000",
}
WITHIN_S = 40.0
ENOUGH = 5


@dataclass(slots=True)
class Load:
    """One producer that goes on until it is stopped."""

    client: SimClient
    producer: Producer
    task: asyncio.Task[None]
    sends: list[Send]

    @property
    def acked(self) -> list[Send]:
        return [send for send in self.sends if send.client == self.client.name and send.result == "ok"]

    @property
    def name(self) -> str:
        return self.client.name

    def stop(self) -> None:
        self.producer.batches = self.producer.sent


class Play:
    def __init__(
        self,
        name: str,
        *,
        brokers: int = 3,
        replicas: int = 3,
        min_isr: int = 2,
        configs: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        keep_trace: bool = False,
    ) -> None:
        self.stage = Stage(
            name, brokers=brokers, properties={**PROPERTIES, **(properties or {})}, keep_trace=keep_trace
        )
        self.replicas = replicas
        self.configs = {"min.insync.replicas": str(min_isr), **(configs or {})}
        self.loads: list[Load] = []

    def perform(self, script: Script) -> Verdict:
        """Cluster, topic, load, script; then heal, finish, read everything, judge."""
        self.stage.loop.run(self._perform(script))
        return judge(self.stage.history)

    async def _perform(self, script: Script) -> None:
        stage = self.stage
        await stage.start()
        admin = stage.client("admin")
        making = admin.create_topic_surely(TP[0], 1, self.configs, replicas=self.replicas)
        await stage.finish([admin.start(making)])
        load = self.load("load")
        await self.progress(load)
        await script(self)
        stage.sample([TP])
        stage.heal()
        for node in self.nodes:
            if not node.is_alive:
                node.begin()
        await stage.become_whole()
        await self.end_loads()
        await stage.final_state([TP])

    # the cast -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        return list(self.stage.nodes.values())

    @property
    def leader(self) -> Node:
        leader = self.stage.leader(TP)
        assert leader is not None, "nobody leads"
        return leader

    @property
    def controller(self) -> Node:
        controller = self.stage.controller()
        assert controller is not None, "there is no controller"
        return controller

    @property
    def isr(self) -> set[int]:
        return set(self.stage.isr(TP))

    @property
    def controller_epoch(self) -> int:
        return self.stage.truth.image.controller_epoch

    @property
    def leader_epoch(self) -> int:
        partition = self.stage.truth.image.partition(*TP)
        assert partition is not None
        return partition.leader_epoch

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.nodes if node not in nodes]

    def load(
        self, name: str, *, acks: int = -1, tp: TopicPartition = TP, is_idempotent: bool = False
    ) -> Load:
        client = self.stage.client(name)
        producer = Producer(
            client=client,
            number=len(self.loads) + 1,
            partitions=[tp],
            batches=1 << 30,
            acks=acks,
            window=1,
            is_idempotent=is_idempotent,
            pause_s=0.2,
        )
        task = client.start(producer.run())
        load = Load(client=client, producer=producer, task=task, sends=self.stage.history.sends)
        self.loads.append(load)
        return load

    async def end_loads(self) -> None:
        """Have nobody write any more: what follows takes minutes, and asks for nothing new."""
        for each in self.loads:
            each.stop()
        await self.stage.finish([each.task for each in self.loads])

    # what a script does -------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        """Virtual seconds."""
        await asyncio.sleep(seconds)

    async def until(self, what: str, is_so: Callable[[], object], *, seconds: float = WITHIN_S) -> None:
        await self.stage.eventually(what, is_so, seconds=seconds)

    async def progress(self, load: Load, *, seconds: float = WITHIN_S) -> None:
        """Some more sends of this load are acknowledged."""
        wanted = len(load.acked) + ENOUGH
        await self.until(f"{load.name} goes on", lambda: len(load.acked) >= wanted, seconds=seconds)

    def cut(self, node: Node, *others: Node | str) -> list[Cut]:
        """Both ways, from each of these."""
        names = [other if isinstance(other, str) else other.name for other in others]
        return [self.stage.fabric.cut(node.name, name) for name in names]

    def mend(self, cuts: list[Cut]) -> None:
        for cut in cuts:
            self.stage.fabric.mend(cut)

    async def restart(self, node: Node) -> None:
        await node.stop()
        await node.start()

    async def delete_before(self, offset: int) -> None:
        """DeleteRecords, asked again until it is answered well."""
        client = self.stage.client(f"deletion before {offset}")
        deletes = self.stage.history.deletes

        async def delete() -> None:
            while not deletes or (deletes[-1].before, deletes[-1].result) != (offset, "ok"):
                await client.delete_records(TP, offset)

        await self.stage.finish([client.start(delete())])

    async def create_topic(self, topic: str) -> None:
        admin = self.stage.client(f"admin of {topic}")
        await self.stage.finish([admin.start(admin.create_topic_surely(topic, 1, {}, replicas=1))])

    async def delete_topic(self, topic: str) -> None:
        admin = self.stage.client(f"end of {topic}")
        await self.stage.finish([admin.start(admin.delete_topic(topic))])


Script = Callable[[Play], Awaitable[None]]
