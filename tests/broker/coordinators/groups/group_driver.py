"""Drives a group machine as its shell does, but in plain calls: decide, keep the records, apply, hand out
replies.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from broker.coordinators.account import MemoryAccount
from broker.coordinators.groups.classic import Heartbeat, Join, Leave, Leaver, Sync
from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.membership import State
from broker.coordinators.groups.offsets import (
    Commit,
    DeleteGroups,
    DeleteOffsets,
    ExpireOffsets,
    ForgetTopics,
    OffsetToCommit,
)
from broker.coordinators.groups.shard import GroupConfig
from broker.coordinators.machine import DecisionDraft, Instant, in_steps
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.work import finish

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
EPOCH_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)

NO_ANSWER = object()


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription version 0 without user data."""
    out = bytearray((0).to_bytes(2, "big") + len(topics).to_bytes(4, "big"))
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    return bytes(out) + (-1).to_bytes(4, "big", signed=True)


@dataclass
class Driver:
    config: GroupConfig = field(default_factory=lambda: GroupConfig(initial_rebalance_delay_ms=0))
    now_ms: int = 1_000
    memory: MemoryAccount = field(default_factory=MemoryAccount)
    machine: GroupMachine = field(init=False)
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)
    tokens: int = 0
    ids: int = 0

    def __post_init__(self) -> None:
        self.machine = self.made()
        finish(self.machine.loaded(self.now))

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, EPOCH_MS + self.now_ms)

    @property
    def group(self) -> Any:
        return self.machine.groups[GROUP]

    def state(self) -> State:
        state: State = self.group.state
        return state

    def send(self, command: Any) -> int:
        """The token under which the answer is or will be in `answers`; an error is an answer too."""
        self.tokens += 1
        before = self.members()
        try:
            decision = finish(in_steps(self.machine.decide(command, DecisionDraft(self.now, self.tokens))))
        except KafkaError as error:
            self._answer(self.tokens, error.code)
        else:
            self._take(decision, before)
            if decision.response is not None:
                self._answer(self.tokens, decision.response)
        return self.tokens

    def ask(self, command: Any) -> Any:
        return self.answers.get(self.send(command), NO_ANSWER)

    def advance(self, ms: int) -> None:
        """Let time pass, striking every deadline when it comes."""
        end_ms = self.now_ms + ms
        while (at_ms := self.machine.next_deadline_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            before = self.members()
            self._take(finish(self.machine.tick(self.now)), before)
        self.now_ms = end_ms

    def crash(self) -> None:
        """Forget everything but the log."""
        before = self.machine.durable
        self.machine.memory.release()
        self.machine = self.replayed()
        assert self.machine.durable == before
        finish(self.machine.loaded(self.now))

    def made(self) -> GroupMachine:
        return GroupMachine(self.config, self.memory.share())

    def replayed(self) -> GroupMachine:
        machine = self.made()
        for offset, (key, value) in enumerate(self.log):
            record = machine.decode(key, value)
            assert record is not None
            machine.apply(record, offset=offset, producer_id=-1)
        return machine

    def members(self) -> dict[str, Any]:
        """Everything that memory alone knows of the groups, but for deadlines."""
        return {
            group_id: {name: deepcopy(getattr(group, name)) for name in group.__slots__}
            for group_id, group in self.machine.groups.items()
        }

    def _take(self, decision: Decision[Any, Any], before: dict[str, Any]) -> None:
        if decision.records and not decision.soft:
            assert self.members() == before, "it reckons with records that may be lost, and does not say so"
        for record in decision.records:
            offset = len(self.log)
            self.log.append(finish(in_steps(self.machine.encode(record))))
            self.machine.apply(record, offset=offset, producer_id=-1)
        for token, reply in decision.replies:
            self._answer(token, reply)

    def _answer(self, token: int, reply: Any) -> None:
        assert token not in self.answers, f"two answers for token {token}"
        self.answers[token] = reply

    # --- commands with the usual arguments ---

    def join_command(self, member_id: str = "", **changes: Any) -> Join:
        self.ids += 1
        prefix = changes.get("instance_id") or "m"
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "new_member_id": f"{prefix}-{self.ids}" if not member_id else "",
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("t")),),
        }
        return Join(**(values | changes))

    def join(self, member_id: str = "", **changes: Any) -> int:
        return self.send(self.join_command(member_id, **changes))

    def join_known(self, **changes: Any) -> tuple[str, int]:
        """A new member's two joins: for its id, and with it. Returns the id and the token of the second."""
        first = self.answers[self.join(**changes)]
        assert first["error_code"] is ErrorCode.member_id_required
        return first["member_id"], self.join(first["member_id"], **changes)

    def sync(self, member_id: str, assignments: Any = None, **changes: Any) -> int:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "generation": self.group.generation,
            "assignments": assignments or {},
        }
        return self.send(Sync(**(values | changes)))

    def heartbeat(self, member_id: str, **changes: Any) -> Any:
        values: dict[str, Any] = {"group_id": GROUP, "member_id": member_id}
        if "generation" not in changes:
            values["generation"] = self.group.generation
        return self.ask(Heartbeat(**(values | changes)))

    def leave(self, *leavers: tuple[str, str | None]) -> Any:
        return self.ask(Leave(group_id=GROUP, leavers=tuple(Leaver(*leaver) for leaver in leavers)))

    def commit(self, offset: int, **changes: Any) -> Any:
        topic, partition = changes.pop("topic", "t"), changes.pop("partition", 0)
        metadata = changes.pop("metadata", "")
        changes.setdefault("offsets", (OffsetToCommit(topic, partition, offset, metadata=metadata),))
        return self.ask(Commit(**({"group_id": GROUP} | changes)))

    def committed(self, topic: str = "t", partition: int = 0) -> int | None:
        found = self.machine.durable.get(GROUP, topic, partition)
        return None if found is None else found.offset

    def delete_offsets(self, *partitions: tuple[str, int]) -> Any:
        return self.ask(DeleteOffsets(group_id=GROUP, partitions=partitions))

    def delete_groups(self, *group_ids: str) -> Any:
        return self.ask(DeleteGroups(group_ids=group_ids))

    def forget_topics(self, *topics: str, topic_id: UUID = TOPIC_ID) -> Any:
        group_ids = (*self.machine.durable.offsets, *self.machine.durable.pending_groups())
        return self.ask(ForgetTopics(topics=dict.fromkeys(topics, topic_id), group_ids=group_ids))

    def expire(self) -> Any:
        return self.ask(ExpireOffsets(group_ids=tuple(self.machine.groups)))

    # --- whole scenes ---

    def stable(self, members: int = 1, **changes: Any) -> list[str]:
        """A stable group of that many dynamic members; the first leads. Each is assigned its own id as
        bytes.
        """
        tokens = [self.join_known(**changes)[1] for _ in range(members)]
        return self.settle(tokens)

    def stable_static(self, *instance_ids: str) -> list[str]:
        return self.settle([self.join(instance_id=instance_id) for instance_id in instance_ids])

    def settle(self, tokens: list[int]) -> list[str]:
        """Finish the join and the sync of everyone who waits in these joins."""
        self.advance(0)
        replies = [self.answers[token] for token in tokens]
        assert all(reply["error_code"] is ErrorCode.none for reply in replies), replies
        ids: list[str] = [reply["member_id"] for reply in replies]
        leader = replies[0]["leader"]
        followers = {member_id: self.sync(member_id) for member_id in ids if member_id != leader}
        lead = self.sync(leader, {member_id: member_id.encode() for member_id in self.group.members})
        for member_id, token in (followers | {leader: lead}).items():
            assert self.answers[token]["assignment"] == member_id.encode()
        assert self.state() is State.STABLE
        return ids
