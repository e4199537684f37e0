"""Owns what operators of a simulation do: they make topics, let them grow, move and change their settings,
delete them and make them anew with the same name, and look at what brokers tell, all while faults go on.

Several of them share the names of topics that come and go, so that their orders meet. Into those they write
marks, each bound to one incarnation. Does not own single orders (client.py) nor verdicts.

Invariant: a setting's value and a mark are given once in a run; what producers and consumers use is never
deleted, and only grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import ErrorCode
from tests.sim.client import RETRY_S, Lost, SimClient
from tests.sim.history import TopicPartition
from tests.sim.plan import WAL_ENABLE

COMING_AND_GOING = ("extra-0", "extra-1")
MOST_PARTITIONS = 3
PAUSE_S = 0.8
FIRST_SETTING_MS = 10_000_000_000  # so long that nothing is ever taken by it
KINDS = (
    *("create",) * 4,
    *("delete",) * 3,
    *("mark",) * 4,
    *("grow",) * 2,
    *("configure",) * 2,
    *("reassign",) * 2,
    *("elect", "look", "look", "look at a setting"),
)


@dataclass(slots=True)
class Operator:
    """`topics` are those that stay; `partitions` is what everybody uses, and gets the new ones of them;
    `made_with` are the settings of topics that come and go."""

    client: SimClient
    number: int
    rounds: int
    brokers: Sequence[int]
    replicas: int
    topics: Mapping[str, int]
    partitions: list[TopicPartition]
    made_with: Mapping[str, str]
    known: dict[str, int] = field(default_factory=dict)
    given: int = 0

    async def run(self) -> None:
        for _ in range(self.rounds):
            await self.client.pause(PAUSE_S)
            try:
                await self._order(self.client.rng.choice(KINDS))
            except Lost:
                await self.client.pause(RETRY_S)

    async def _order(self, kind: str) -> None:
        client, rng = self.client, self.client.rng
        passing = rng.choice(COMING_AND_GOING)
        any_topic = rng.choice((passing, *self.topics))
        match kind:
            case "create":
                op = await client.create_topic(
                    passing, rng.choice((1, 2)), self.made_with, replicas=self.replicas
                )
                if op.result == "ok" and rng.random() < 0.5:
                    await client.write_mark(passing, self._next())
            case "delete":
                await client.delete_topic(passing)
            case "mark":
                await client.write_mark(passing, self._next())
            case "grow":
                await self._grow(any_topic)
            case "configure":
                value = str(FIRST_SETTING_MS + self._next())
                needed = str(rng.randrange(1, min(2, self.replicas) + 1))
                others = {"min.insync.replicas": needed} if rng.random() < 0.5 else {}
                await client.configure_topic(any_topic, value, others)
            case "reassign":
                tp = (any_topic, rng.randrange(self.known.get(any_topic, 1)))
                await client.reassign(tp, rng.sample(list(self.brokers), self.replicas))
            case "elect":
                await client.elect_preferred(rng.choice(self.partitions))
            case "look at a setting":
                await client.describe_setting(any_topic)
            case _:
                answer = await client.refresh(None)
                self.known = {topic.name: len(topic.partitions) for topic in answer.topics}

    async def _grow(self, topic: str) -> None:
        count = self.known.get(topic, self.topics.get(topic, 1)) + 1
        if count > MOST_PARTITIONS:
            return
        op = await self.client.grow_topic(topic, count)
        if op.result == "ok":
            self.known[topic] = count
            if topic in self.topics:
                self._use(topic, count)
        elif op.error == ErrorCode.invalid_partitions.name:
            self.known[topic] = count

    def _use(self, topic: str, count: int) -> None:
        new = [(topic, index) for index in range(count) if (topic, index) not in self.partitions]
        self.partitions += new

    def _next(self) -> int:
        self.given += 1
        return self.number * 1000 + self.given


# the cold tier ----------------------------------------------------------------------------------------------

OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
ON = {"remote.storage.enable": "true", "remote.log.delete.on.disable": "false"}
NO_COPIES = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
COPIES = {"remote.log.copy.disable": "false", "local.retention.ms": "1"}


@dataclass(slots=True)
class TierOperator:
    """Switches the tier of topics off, with all that it has of them, and on again, or copying alone."""

    client: SimClient
    rounds: int
    topics: Sequence[str]

    async def run(self) -> None:
        for _ in range(self.rounds):
            await self.client.pause(PAUSE_S)
            topic = self.client.rng.choice(self.topics)
            settings = self.client.rng.choice((OFF, ON, ON, NO_COPIES, COPIES, COPIES))
            try:
                await self.client.set_tiering(topic, settings)
            except Lost:
                await self.client.pause(RETRY_S)


# the WAL tier -----------------------------------------------------------------------------------------------

OUT_OF_WAL = {WAL_ENABLE: "false"}
INTO_WAL = {WAL_ENABLE: "true"}


@dataclass(slots=True)
class WalOperator:
    """Takes topics out of the WAL tier and into it again."""

    client: SimClient
    rounds: int
    topics: Sequence[str]

    async def run(self) -> None:
        for number in range(self.rounds):
            await self.client.pause(PAUSE_S)
            topic = self.topics[number // 2 % len(self.topics)]
            try:
                await self.client.set_tiering(topic, INTO_WAL if number % 2 else OUT_OF_WAL)
            except Lost:
                await self.client.pause(RETRY_S)
