"""Owns a member of a group that the server assigns (KIP-848): its heartbeats, what it owns, and what a user
does with it all day.

It gives up a partition before it says so, and takes one when it is told; what it is told of a member that is
none is believed, and it joins anew. Users commit, leave and come back at once, fall silent for longer than a
session, and go on as if nothing had been; static members keep their place meanwhile. Does not own single
operations (client.py) nor verdicts.

Invariant: every heartbeat that was asked for is in the history once, with what it claimed and was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim.client import RETRY_S, Lost, SimClient
from tests.sim.history import Beat, Result, TopicPartition, classify
from tests.sim.plan import OF_SUBSCRIBERS
from tests.sim.workload import LOADING, Committer, read_commit

SESSION_S = float(OF_SUBSCRIBERS["group.consumer.session.timeout.ms"]) / 1000
INTERVAL_S = float(OF_SUBSCRIBERS["group.consumer.heartbeat.interval.ms"]) / 1000
REBALANCE_TIMEOUT_MS = 4000
LEAVES, LEAVES_FOR_NOW = -1, -2
GONE = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.unreleased_instance_id,
        ErrorCode.fenced_instance_id,
    }
)


@dataclass(slots=True)
class Subscriber:
    """What a stock client keeps of its membership. An epoch of 0 means that it has to join."""

    client: SimClient
    group: str
    topics: Sequence[str]
    instance: str | None = None
    assignor: str | None = None
    member_id: str = ""
    epoch: int = 0
    owned: tuple[TopicPartition, ...] = ()
    committer: Committer = field(init=False)
    is_told: bool = False
    """Whether the coordinator has heard everything that a member says once."""

    def __post_init__(self) -> None:
        self.member_id = str(UUID(int=self.client.rng.getrandbits(128)))
        self.committer = Committer(client=self.client, group=self.group, version=9)

    @property
    def generation(self) -> int:
        return self.epoch

    async def join(self) -> tuple[TopicPartition, ...] | None:
        """What it owns once it is a member; None when it could not become one now."""
        if self.epoch > 0:
            return self.owned
        self.owned, self.is_told = (), False
        return self.owned if await self.heartbeat() else None

    async def heartbeat(self) -> bool:
        """Whether it is still a member; `owned` is what it owns from then on."""
        client = self.client
        is_whole = not self.is_told
        fields = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rack_id": None,
            "rebalance_timeout": REBALANCE_TIMEOUT_MS if is_whole else -1,
            "subscribed_topic_names": list(self.topics) if is_whole else None,
            "subscribed_topic_regex": None,
            "server_assignor": self.assignor if is_whole else None,
            "topic_partitions": self._claimed(),
        }
        self.is_told = False
        sent, claimed = self.epoch, self.owned
        line = await client.line_to_coordinator(self.group)
        invoked = client.now
        try:
            answer = await client.ask(Api.CONSUMER_GROUP_HEARTBEAT, fields, line=line)
        except Lost:
            self._record(sent, claimed, None, invoked, ErrorCode.network_exception)
            raise
        code = answer.error_code
        given = await self._take(answer) if code == ErrorCode.none and sent >= 0 else None
        self._record(sent, claimed, given, invoked, code)
        if code != ErrorCode.none:
            await self._refused(code)
            return False
        self.is_told = True
        return True

    def _claimed(self) -> list[dict[str, Any]]:
        """What it owns, by topic id."""
        client = self.client
        ids = {name: topic_id for topic_id, name in client.topic_names.items()}
        rows: dict[UUID, list[int]] = {}
        for topic, index in self.owned:
            rows.setdefault(ids[topic], []).append(index)
        return [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in rows.items()]

    async def _take(self, answer: Any) -> tuple[TopicPartition, ...] | None:
        """Become what the answer says; the partitions it gives, None when it does not say."""
        self.epoch, self.member_id = int(answer.member_epoch), answer.member_id or self.member_id
        if answer.assignment is None:
            return None
        client = self.client
        rows = answer.assignment.topic_partitions
        while any(row.topic_id not in client.topic_names for row in rows):
            try:
                await client.refresh(list(self.topics))
            except Lost:
                await client.pause(RETRY_S)
        self.owned = tuple(
            sorted((client.topic_names[row.topic_id], index) for row in rows for index in row.partitions)
        )
        client.env.loop.trace("owns", self.group, self.member_id, self.epoch, self.owned)
        return self.owned

    def _record(
        self,
        sent: int,
        claimed: tuple[TopicPartition, ...],
        given: tuple[TopicPartition, ...] | None,
        invoked: float,
        code: ErrorCode,
    ) -> None:
        result: Result = "unknown" if code in LOADING else classify(code)
        client = self.client
        client.env.loop.trace("beat", self.group, self.member_id, sent, self.epoch, code.name)
        client.env.history.beats.append(
            Beat(
                group=self.group,
                member=self.member_id,
                sent_epoch=sent,
                epoch=self.epoch,
                claimed=claimed,
                given=given,
                invoked=invoked,
                done=client.now,
                result=result,
                error="" if result == "ok" else code.name,
            )
        )

    async def _refused(self, code: ErrorCode) -> None:
        if code in LOADING:
            await self.client.find_coordinator(self.group)
        if code in GONE:
            self.epoch, self.owned = 0, ()
        await self.client.pause(RETRY_S if code != ErrorCode.unreleased_instance_id else RETRY_S * 10)

    async def leave(self, *, for_now: bool = False) -> None:
        """Go, or for a static member, go for now; what it owned it gives up first."""
        epoch = self.epoch
        self.epoch, self.owned = LEAVES_FOR_NOW if for_now else LEAVES, ()
        try:
            if epoch > 0:
                await self.heartbeat()
        finally:
            self.epoch, self.owned, self.is_told = 0, (), False


@dataclass(slots=True)
class SubscribedMember:
    """Owns, moves offsets on, falls silent, leaves, and comes back."""

    subscriber: Subscriber
    rounds: int
    leave_chance: float = 0.25
    silent_chance: float = 0.15
    vanish_chance: float = 0.1

    async def run(self) -> None:
        member, client = self.subscriber, self.subscriber.client
        for _ in range(self.rounds):
            if client.env.stopping:
                break
            try:
                if await member.join() is not None:
                    await self._work()
            except Lost:
                await client.pause(RETRY_S)

    async def _work(self) -> None:
        member, client = self.subscriber, self.subscriber.client
        for _ in range(client.rng.randrange(2, 7)):
            await client.pause(INTERVAL_S / 2)
            if client.env.stopping or not await member.heartbeat():
                return
            for tp in member.owned:
                if not await self._move(tp):
                    break
        roll = client.rng.random()
        if roll < self.leave_chance:
            await member.leave(for_now=member.instance is not None and client.rng.random() < 0.5)
        elif roll < self.leave_chance + self.silent_chance:
            await self._come_back_late()
        elif roll < self.leave_chance + self.silent_chance + self.vanish_chance:
            client.hang_up(await client.line_to_coordinator(member.group))
            member.epoch, member.owned, member.is_told = 0, (), False
            if member.instance is None:
                member.member_id = str(UUID(int=client.rng.getrandbits(128)))

    async def _come_back_late(self) -> None:
        """Longer than a session: others own by then what this one still thinks its own, and commits."""
        client, owned = self.subscriber.client, self.subscriber.owned
        await client.pause(SESSION_S * client.rng.choice((1.0, 2.0)))
        for tp in owned:
            if not await self._move(tp):
                break

    async def _move(self, tp: TopicPartition) -> bool:
        member = self.subscriber
        read = await read_commit(member.client, member.group, tp)
        if read is None:
            return False
        offset = max(0, read.offset) + member.client.rng.randrange(1, 4)
        code = await member.committer.commit(tp, offset, member=member.member_id, generation=member.epoch)
        if code in (ErrorCode.unknown_member_id, ErrorCode.stale_member_epoch):
            member.is_told = False
        return code == ErrorCode.none
