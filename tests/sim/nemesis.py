"""Owns the faults of a planned run: what each kind does to which broker, and how it ends.

Keeps losses decidable: what takes unsynced bytes or a disk away never has more than a minority of the
brokers in its hands at once, and takes no disk that holds the last in-sync copy. Does not own which faults a
seed chooses (plan.py) nor healing.

Invariant: every fault ends by itself or by healing; who is chosen depends on the seed and the run so far.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import replace

from tests.sim.client import Lost, SimClient
from tests.sim.history import TopicPartition
from tests.sim.node import Node, node_of
from tests.sim.plan import INTO_A_HOLD, INTO_A_HOLD_OF_A_CLUSTER, LONE_LEADER, Fault, Plan
from tests.sim.stage import Stage

FLAPS = 4
ZOMBIE_SHARE = 0.5
"""Of a hold: for the rest of it, whoever was replaced follows, and still has not heard of what was held."""
RESTART_DELAYS_S = (0.3, 1.0, 4.0, 12.0)
AWAY_S = 14.0
"""Longer than a session."""
PAUSED_S = 5.0
"""Of a client; with what the plan adds, about as long as sessions and transactions last."""
COORDINATED = "__consumer_offsets", "__transaction_state"


class Nemesis:
    def __init__(self, stage: Stage, plan: Plan, rng: random.Random) -> None:
        self.stage = stage
        self.plan = plan
        self.rng = rng
        self.mortal: list[tuple[SimClient, Callable[[], None]]] = []  # clients and how to replace them
        self._lossy: dict[int, Node] = {}  # who may have lost bytes and is not back in every ISR
        self._back_at: dict[int, float] = {}
        self._partitions = [(topic, index) for topic, count in plan.topics.items() for index in range(count)]
        self._is_over = False
        self._moves = 0
        self._at_the_end: list[Fault] = []
        """What waits for the end of a transaction to be asked for."""

    async def run(self) -> None:
        loop, plan = self.stage.loop, self.plan
        begun = loop.now
        for fault in plan.faults:
            await asyncio.sleep(max(0.0, begun + fault.at_s - loop.now))
            loop.trace("fault", fault.kind, fault.amount, fault.seconds)
            if plan.brokers > 1:
                self.stage.sample(self._partitions)
            await self._commit(fault)
        last_s = min(plan.faults_last_s, 1.0 + len(plan.faults))
        if plan.brokers > 1 and plan.faults:
            last_s = plan.faults[-1].at_s + plan.faults[-1].seconds
            last_s = max(
                [
                    last_s,
                    *(it.at_s + it.seconds for it in plan.faults if it.kind == "hold-zombie"),
                    *(it.at_s + it.seconds + AWAY_S for it in plan.faults if it.kind == LONE_LEADER),
                ]
            )
        await asyncio.sleep(max(0.0, begun + last_s - loop.now))
        self._is_over = True

    async def keep_alive(self) -> None:
        """The supervisor: a broker that died is started again, after a moment or after a while."""
        loop = self.stage.loop
        while True:
            await asyncio.sleep(0.05 + self.rng.random())
            for number, node in self.stage.nodes.items():
                if node.is_alive:
                    self._back_at.pop(number, None)
                elif self.plan.brokers == 1:
                    await node.start()
                elif number not in self._back_at:
                    self._back_at[number] = loop.now + self.rng.choice(RESTART_DELAYS_S)
                elif loop.now >= self._back_at[number]:
                    node.begin()

    # whom ---------------------------------------------------------------------------------------------------

    def _target(self, fault: Fault) -> Node:
        stage = self.stage
        node = None
        if fault.target == "controller":
            node = stage.controller()
        elif fault.target == "coordinator":
            node = self._some_coordinator()
        elif fault.target == "leader":
            topic = self.rng.choice(sorted(self.plan.topics))
            node = stage.leader((topic, self.rng.randrange(self.plan.topics[topic])))
        return node or self.rng.choice(list(stage.nodes.values()))

    def _coordinated(self) -> list[TopicPartition]:
        """The partitions in which coordinators keep what they know."""
        topics = self.stage.truth.image.topics
        return self.stage.partitions_of(name for name in COORDINATED if name in topics)

    def _some_coordinator(self) -> Node | None:
        partitions = self._coordinated()
        return self.stage.leader(self.rng.choice(partitions)) if partitions else None

    def at_an_end(self, host: str) -> None:
        """Told when the end of a transaction is asked for, and of whom."""
        node = self.stage.nodes.get(node_of(host))
        if node is not None and self._at_the_end and not self._is_over:
            fault = self._at_the_end.pop(0)
            self.stage.loop.trace("fault at an end", fault.kind, node.name, fault.amount)
            self._arm_death(node, fault)

    def _may_lose(self, node: Node) -> bool:
        """Whether this node's unsynced bytes may go now, and if so, that they are on their way."""
        stage = self.stage
        whole = {
            number
            for number, lossy in self._lossy.items()
            if lossy.is_ready and self._is_in_sync(number) and lossy.process and not lossy.process.die_at_step
        }
        self._lossy = {number: lossy for number, lossy in self._lossy.items() if number not in whole}
        others = [number for number in self._lossy if number != node.id]
        if others and len(others) >= max(1, (len(stage.nodes) - 1) // 2):
            return False
        if len(stage.nodes) > 2 and self._holds_a_last_copy(node, of_at_least=2):
            return False
        self._lossy[node.id] = node
        return True

    def _is_in_sync(self, number: int) -> bool:
        return all(
            number in partition.isr
            for topic in self.stage.truth.image.topics.values()
            for partition in topic.partitions
            if number in partition.replicas
        )

    def _holds_a_last_copy(self, node: Node, *, of_at_least: int) -> bool:
        """Whether it is the only living member of an ISR, of a partition with at least so many replicas."""
        ready = {other.id for other in self.stage.ready()} - {node.id}
        return any(
            node.id in partition.isr
            and len(partition.replicas) >= of_at_least
            and not ready & set(partition.isr)
            for topic in self.stage.truth.image.topics.values()
            for partition in topic.partitions
        )

    def _peers(self, node: Node) -> list[Node]:
        return [other for other in self.stage.nodes.values() if other is not node]

    def _some_client(self) -> str:
        idle = {"admin", *(node.name for node in self.stage.nodes.values())}
        return self.rng.choice(sorted(name for name in self.stage.fabric.hosts if name not in idle))

    # what ---------------------------------------------------------------------------------------------------

    async def _commit(self, fault: Fault, node: Node | None = None) -> None:
        stage, node = self.stage, node or self._target(fault)
        fabric, kind = stage.fabric, fault.kind
        match kind:
            case "kill" | "power" | "kill-in-write" | "power-in-write":
                self._arm_death(node, fault)
            case "kill-at-an-end" | "power-at-an-end":
                self._at_the_end.append(fault)
            case "move-leader":
                self._move_leader(node)
            case "pause-client":
                self._pause_client(fault)
            case "kill-all":
                for each in stage.nodes.values():
                    each.kill()
            case "kill-while-starting":
                await self._kill_while_starting(node, fault)
            case "new-disk":
                is_safe = len(stage.nodes) > 2 and not self._holds_a_last_copy(node, of_at_least=1)
                if is_safe and self._may_lose(node):
                    node.replace_disk()
            case "restart":
                if node.is_ready and not node.is_paused and not node.is_stopping:
                    stage.loop.create_task(node.stop(), name=f"stop {node.name}")
            case "pause":
                if node.process is not None:
                    node.process.pause()
                    self._later(fault.seconds, node.process.resume)
            case "cut" | "one-way":
                ends = [self._some_client(), node.name]
                self.rng.shuffle(ends)
                self._cut(ends, fault)
            case "cut-pair" | "one-way-pair":
                ends = [node.name, self.rng.choice(self._peers(node)).name]
                self._cut(ends, fault)
            case "cut-from-peers":
                for other in self._peers(node):
                    self._cut([node.name, other.name], fault)
            case "zombie":
                for other in self._peers(node):
                    self._cut([node.name, other.name], fault)
                node.line.down = True
                self._later(fault.seconds, node.line.heal)
            case "die-alone":
                for other in self._peers(node):
                    self._cut([node.name, other.name], fault, seconds=fault.amount / 20)
                is_power = fault.amount % 2 == 1 and self._may_lose(node)
                process = node.process
                if process is not None:
                    self._later(fault.amount / 20, lambda: process.die(power=is_power))
            case "lone-leader":
                self._leave_alone(node, fault)
            case "isolate":
                for name in sorted(fabric.hosts):
                    if name != node.name:
                        self._cut([node.name, name], fault)
            case "flap":
                other = self.rng.choice(self._peers(node))
                for number in range(FLAPS):
                    self._later(2.0 * number, lambda: self._cut([node.name, other.name], fault, seconds=1.0))
            case "reset":
                fabric.reset_some(0.7)
            case "freeze":
                for connection in fabric.connections:
                    if self.rng.random() < 0.5:
                        connection.freeze()
            case "stall":
                stage.loop.stall(fault.seconds)
            case "clock":
                hour_ms = 3_600_000
                node.step_clock(self.rng.choice((-hour_ms, -1000, 1000, hour_ms, 26 * hour_ms)))
            case "disk-error" | "disk-full":
                self._break_disk(node, fault)
            case "kill-client":
                self._kill_client()
            case "hold":
                node.hold.begin()
                self._later(fault.seconds, node.hold.let_go)
                self._strike_into_hold(node, fault)
            case "hold-zombie":
                for other in self._peers(node):
                    self._cut([node.name, other.name], fault, seconds=fault.seconds * ZOMBIE_SHARE)
                node.line.down = True
                self._later(fault.seconds * ZOMBIE_SHARE, node.line.heal)
                node.hold.begin()
                self._later(fault.seconds, node.hold.let_go)
            case "hold-answers":
                node.line.holds_answers = True
                self._later(fault.seconds, node.line.heal)
                self._strike_into_hold(node, fault)
            case _:
                self._spoil_store(node, fault)

    def _leave_alone(self, node: Node, fault: Fault) -> None:
        """Cut it from whoever follows one of its partitions, and from nobody else; then it is away for so
        long that another is elected."""
        image = self.stage.truth.image
        led = [tp for tp in self._partitions if self.stage.leader(tp) is node]
        found = image.partition(*self.rng.choice(led)) if led else None
        if found is None or node.process is None:
            return
        for number in found.replicas:
            if number != node.id:
                self._cut([node.name, self.stage.nodes[number].name], fault)
        process = node.process

        def die() -> None:
            if process.alive:
                process.die()
                self._back_at.setdefault(node.id, self.stage.loop.now + AWAY_S)

        self._later(fault.seconds, die)

    def _arm_death(self, node: Node, fault: Fault) -> None:
        is_power = fault.kind.startswith("power") and self._may_lose(node)
        if not node.is_alive or node.process is None or node.files is None:
            return
        if fault.kind.endswith("-in-write"):
            node.files.die_in_changes(fault.amount, power=is_power)
        else:
            node.process.die_in_steps(fault.amount, power=is_power)

    async def _kill_while_starting(self, node: Node, fault: Fault) -> None:
        may_lose = self._may_lose(node)
        node.kill(power=fault.amount % 2 == 1 and may_lose)
        if not node.is_alive:
            node.begin()
        process, files = node.process, node.files
        assert process is not None and files is not None
        if fault.amount % 3:
            process.die_in_steps(fault.amount, power=fault.amount % 2 == 0 and may_lose)
        else:
            files.die_in_changes(fault.amount, power=fault.amount % 2 == 0 and may_lose)

    def _strike_into_hold(self, node: Node, fault: Fault) -> None:
        """Something happens to the broker between what was done and the news of it."""
        is_cluster = len(self.stage.nodes) > 1
        kind = self.rng.choice(INTO_A_HOLD_OF_A_CLUSTER if is_cluster else INTO_A_HOLD)
        if not kind:
            return
        strike = replace(fault, kind=kind, seconds=fault.seconds * self.rng.random())

        async def commit() -> None:
            await asyncio.sleep(self.rng.random() * fault.seconds)
            if not self._is_over:
                self.stage.loop.trace("fault in a hold", kind, node.name)
                await self._commit(strike, node)

        self.stage.loop.create_task(commit(), name=f"into the hold of {node.name}")

    def _break_disk(self, node: Node, fault: Fault) -> None:
        node.may_break = True
        if fault.kind == "disk-full":
            node.disk.capacity = node.disk.used + fault.amount
            self._later(fault.seconds, node.disk.disarm)
            return
        operation = self.rng.choice(("write", "write", "fsync", "create", "rename", "fsync_dir", "read"))
        node.disk.fail(operation, errno.EIO, skip=fault.amount % 5)

    def _spoil_store(self, node: Node, fault: Fault) -> None:
        """The store as a whole, or as one broker sees it, or one broker's lane for the WAL tier."""
        profile = node.line if fault.kind.startswith("no-") else self.stage.store
        if fault.kind.startswith("wal-"):
            profile = node.wal_line
        match fault.kind:
            case "store-down" | "no-store" | "wal-down":
                profile.down = True
            case "store-hangs" | "no-store-answers" | "wal-hangs":
                profile.hang = True
            case "store-lossy" | "wal-lossy":
                profile.error_before_chance = profile.error_after_chance = 0.3
            case "store-stale":
                profile.stale_chance = 0.3
            case "wal-slow":
                profile.delay_of = self._now_and_then_slow
            case "store-late" | "wal-late":
                profile.late_chance = 0.2
            case _:
                raise AssertionError(fault.kind)
        self._later(fault.seconds, profile.heal)

    def _now_and_then_slow(self, kind: str, key: str) -> float:
        """One request in four, so that it ends after those that follow it."""
        return self.rng.random() if self.rng.random() < 0.25 else 0.0

    def _move_leader(self, node: Node) -> None:
        """What an operator does who rebalances: another replica of what this one coordinates leads."""
        led = [tp for tp in self._coordinated() if self.stage.leader(tp) is node]
        found = self.stage.truth.image.partition(*self.rng.choice(led)) if led else None
        if found is None or len(found.replicas) < 2:
            return
        tp = next(tp for tp in led if self.stage.truth.image.partition(*tp) is found)
        others = [number for number in found.replicas if number != node.id]
        self._moves += 1
        operator = self.stage.client(f"mover-{self._moves}")

        async def move() -> None:
            try:
                await operator.reassign(tp, [*others, node.id])
                await operator.elect_preferred(tp)
            except Lost:
                self.stage.loop.trace("not moved", *tp)

        operator.start(move())

    def _pause_client(self, fault: Fault) -> None:
        """One that comes back as a zombie, if it was away for longer than it may be."""
        living = [client.process for client, _ in self.mortal if client.process.alive]
        if living:
            process = self.rng.choice(living)
            process.pause()
            self._later(PAUSED_S + fault.seconds, process.resume)

    def _kill_client(self) -> None:
        living = [entry for entry in self.mortal if entry[0].process.alive]
        if living:
            client, start_another = self.rng.choice(living)
            client.process.die()
            start_another()

    def _cut(self, ends: list[str], fault: Fault, *, seconds: float | None = None) -> None:
        if self._is_over:
            return
        fabric = self.stage.fabric
        cut = fabric.cut(ends[0], ends[1], both=not fault.kind.startswith("one-way"))
        self._later(fault.seconds if seconds is None else seconds, lambda: fabric.mend(cut))

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self.stage.loop.call_later(seconds, act)
