"""Drives a group machine with members that the server assigns: consumers as they behave, and the topics they
read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from broker.control.image import Image
from broker.control.metadata_records import PartitionImage, PartitionsAdded, TopicCreated, TopicDeleted
from broker.coordinators.groups.consumer_group import ConsumerGroup
from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.modern.heartbeat import (
    ConsumerHeartbeat,
    ResolveRegexes,
    heartbeat_in_full,
)
from broker.coordinators.groups.modern.reconcile import Claim
from broker.coordinators.groups.modern.regexes import matching
from broker.coordinators.groups.offsets import ExpireOffsets
from broker.coordinators.groups.shard import ConsumerSettings
from broker.coordinators.groups.topics import Topics
from broker.coordinators.machine import DecisionDraft, in_steps
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import ResolvedRegex
from protocol.stored.offsets import CoordinatorRecord
from protocol.work import finish
from tests.broker.coordinators.groups.group_driver import GROUP, Driver

SESSION_MS = 45_000
REBALANCE_MS = 300_000
INTERVAL_MS = 1_000
JOINING: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE_MS, "topics": ("t",), "claims": ()}


@dataclass
class ConsumerDriver(Driver):
    image: Image = field(default_factory=Image)
    settings: ConsumerSettings = field(default_factory=ConsumerSettings)
    topics: Topics = field(init=False)
    next_id: int = 0
    steady: int = 0
    """How many heartbeats went the short way."""
    together: int = 0
    """How often several of them were on their way into the log at once."""

    def __post_init__(self) -> None:
        self.topics = Topics(lambda: self.image)
        super().__post_init__()

    def made(self) -> GroupMachine:
        return GroupMachine(
            self.config,
            self.memory.share(),
            topics=self.topics,
            settings_of=lambda group_id: self.settings,
        )

    @property
    def consumers(self) -> ConsumerGroup:
        return self.machine.consumers[GROUP]

    # --- topics ---

    def create(self, name: str, partitions: int) -> UUID:
        self.next_id += 1
        topic_id = UUID(int=self.next_id)
        self._apply(TopicCreated(name=name, topic_id=topic_id, partitions=_rows(0, partitions)))
        self.topics.created_in = self.image.seq
        return topic_id

    def add_partitions(self, name: str, count: int) -> None:
        topic = self.image.topics[name]
        first = len(topic.partitions)
        self._apply(PartitionsAdded(topic_id=topic.id, first=first, partitions=_rows(first, count)))

    def delete(self, name: str) -> None:
        self._apply(TopicDeleted(topic_id=self.image.topics[name].id))

    def _apply(self, record: Any) -> None:
        self.image.apply_slot(self.image.seq + 1, [record])
        for group in self.machine.consumers.values():
            group.checked_in_epoch = None

    def partitions(self, *names: str) -> set[tuple[UUID, int]]:
        topics = [self.image.topics[name] for name in names if name in self.image.topics]
        return {(topic.id, index) for topic in topics for index in range(len(topic.partitions))}

    # --- members ---

    def command(self, member_id: str, member_epoch: int, **changes: Any) -> ConsumerHeartbeat:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "member_epoch": member_epoch,
            "client_id": "c",
            "client_host": "/127.0.0.1",
        }
        return ConsumerHeartbeat(**(values | changes))

    def beat(self, member_id: str, member_epoch: int, **changes: Any) -> Any:
        command = self.command(member_id, member_epoch, **changes)
        self.check_short(command)
        answer = self.ask(command)
        self.look_up()
        return answer

    def check_short(self, command: ConsumerHeartbeat) -> None:
        """Check that what is decided the short way is what the long way leads to."""
        if command.steady_group(self.machine) is None:
            return
        self.steady += 1
        long, short = (DecisionDraft[CoordinatorRecord](self.now, -1) for _ in range(2))
        reply = finish(heartbeat_in_full(self.machine, command, long))
        expected = long.decision(reply, soft=self.machine.is_converting(command.group_id))
        assert finish(in_steps(command.decide(self.machine, short))) == expected

    def ask_together(self, commands: list[ConsumerHeartbeat]) -> list[Any]:
        """Decide what the shell may before any of it is in the log; return the answers."""
        tokens: list[int] = []
        kind: str | None = None
        parts: set[object] = set()
        held: list[tuple[int, Decision[Any, Any]]] = []

        def settle() -> None:
            for token, decision in held:
                self._take(decision, self.members())
                self._answer(token, decision.response)
            held.clear()
            parts.clear()

        for command in commands:
            self.check_short(command)
            share = self.machine.share(command)
            if held and (share is None or share.kind != kind or share.part in parts):
                settle()
            self.tokens += 1
            tokens.append(self.tokens)
            try:
                decision = finish(
                    in_steps(self.machine.decide(command, DecisionDraft(self.now, self.tokens)))
                )
            except KafkaError as error:
                self._answer(self.tokens, error.code)
                continue
            if not decision.records:
                self._answer(self.tokens, decision.response)
                continue
            held.append((self.tokens, decision))
            kind = share.kind if share is not None else None
            parts.add(share.part if share is not None else None)
            if share is None:
                settle()
        self.together += len(held) > 1
        settle()
        self.look_up()
        return [self.answers[token] for token in tokens]

    def join(self, member_id: str = "m", **changes: Any) -> Any:  # type: ignore[override]
        return self.beat(member_id, 0, **(JOINING | changes))

    def ask_expiry(self) -> Any:
        return self.ask(ExpireOffsets(group_ids=(*self.machine.groups, *self.machine.consumers)))

    def look_up(self) -> None:
        """Look through the topics for the groups that want it, as the coordinator does."""
        for group_id in list(self.machine.to_resolve):
            self.machine.to_resolve.remove(group_id)
            group = self.machine.consumers.get(group_id)
            found = (
                {} if group is None else finish(matching(group.member_regexes(), self.machine.topics.names()))
            )
            resolved = {
                regex: ResolvedRegex(topics=topics, version=self.image.seq, timestamp_ms=self.now.wall_ms)
                for regex, topics in found.items()
            }
            self.ask(ResolveRegexes(group_id=group_id, resolved=resolved))


def _rows(first: int, count: int) -> tuple[PartitionImage, ...]:
    return tuple(
        PartitionImage(index=index, leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
        for index in range(first, first + count)
    )


def claims_of(owned: Collection[tuple[UUID, int]]) -> tuple[Claim, ...]:
    by_topic: dict[UUID, set[int]] = {}
    for topic_id, partition in owned:
        by_topic.setdefault(topic_id, set()).add(partition)
    return tuple(Claim(topic_id, frozenset(some)) for topic_id, some in by_topic.items())


def flat(assignment: Mapping[UUID, Collection[int]]) -> set[tuple[UUID, int]]:
    return {(topic_id, partition) for topic_id, some in assignment.items() for partition in some}


@dataclass
class Consumer:
    """A client of the protocol: it owns what it was given until it has given it up, and says so."""

    driver: ConsumerDriver
    member_id: str
    subscription: dict[str, Any] = field(default_factory=lambda: {"topics": ("t",)})
    instance_id: str | None = None
    epoch: int = 0
    owned: set[tuple[UUID, int]] = field(default_factory=set)
    wanted: set[tuple[UUID, int]] = field(default_factory=set)
    """What it was told to own last."""
    is_member: bool = False
    has_missed: bool = False
    """Whether an answer did not arrive; the next heartbeat says all anew, so that its answer does too."""
    last_beat_ms: int = 0

    def beat(self, **changes: Any) -> Any:
        """Send a heartbeat and do what the answer says, but for giving up partitions, which takes time."""
        command = self.next_beat(**changes)
        self.driver.check_short(command)
        answer = self.driver.ask(command)
        self.driver.look_up()
        self.answered(answer)
        return answer

    def next_beat(self, **changes: Any) -> ConsumerHeartbeat:
        driver = self.driver
        if not self.is_member:
            self.epoch, self.owned, self.wanted = 0, set(), set()
            said = JOINING | self.subscription | {"instance_id": self.instance_id}
        else:
            said = {"claims": claims_of(self.owned), "instance_id": self.instance_id}
            if self.has_missed:
                said |= {"regex": "", **self.subscription, "rebalance_timeout_ms": REBALANCE_MS}
        self.has_missed = False
        self.last_beat_ms = driver.now_ms
        return driver.command(self.member_id, self.epoch, **(said | changes))

    def answered(self, answer: Any) -> None:
        if isinstance(answer, ErrorCode):
            self.is_member = False
            self.owned, self.wanted = set(), set()
            return
        self.is_member, self.epoch = True, answer["member_epoch"]
        if answer["assignment"] is not None:
            self.wanted = flat(answer["assignment"])
        if self.owned <= self.wanted:
            self.owned = set(self.wanted)

    def revoke(self) -> None:
        """Give up what it must."""
        self.owned = set(self.wanted)

    def leave(self) -> None:
        if self.is_member:
            self.driver.beat(self.member_id, -1, instance_id=self.instance_id)
        self.is_member, self.owned, self.wanted = False, set(), set()

    @property
    def may_be_fenced(self) -> bool:
        """Whether its session is over: from then on it reads nothing, as clients do."""
        return self.driver.now_ms - self.last_beat_ms >= SESSION_MS
