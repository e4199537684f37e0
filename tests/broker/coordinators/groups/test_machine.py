"""Whole lives of groups: any sequence of commands, time and crashes keeps what a group promises."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.coordinators.groups.classic import Heartbeat, Sync
from broker.coordinators.groups.membership import State
from broker.coordinators.groups.offsets import Commit, OffsetToCommit
from broker.coordinators.groups.shard import EXPECTED_BYTES, GROUP_BYTES, GroupConfig
from protocol.errors import ErrorCode
from tests.broker.coordinators.groups.group_driver import GROUP, Driver, subscription

CLIENTS = 4
PARTITIONS = 3
CLIENT = st.integers(0, CLIENTS - 1)


class Client:
    """What one consumer knows. It may be wrong: answers may be old, and it may not have heard of a crash."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.instance_id = f"static-{number}" if number == 0 else None
        self.member_id = ""
        self.generation = -1
        self.joining: int | None = None
        self.syncing: int | None = None
        self.asked_generation = -1
        self.members: list[str] = []
        self.is_leader = False


class Lives(RuleBasedStateMachine):
    """Invariant 16: one owner a partition and generation; stale generations refused; offsets move by
    commits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.owners: dict[tuple[int, int], str] = {}
        self.instances: dict[str, str] = {}
        self.expected: dict[int, int] = {}
        self.next_offset = 0
        self.former: list[tuple[str, str, int]] = []
        """Instance, member and generation of members that were left behind."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, max_size: int) -> None:
        self.d = Driver(
            GroupConfig(
                initial_rebalance_delay_ms=delay_ms, max_size=max_size, offsets_retention_ms=10_000_000
            )
        )

    @rule(number=CLIENT, changed=st.booleans())
    def join(self, number: int, changed: bool) -> None:
        client = self.clients[number]
        topics = ("t", "u") if changed else ("t",)
        client.joining = self.d.join(
            client.member_id,
            instance_id=client.instance_id,
            protocols=(("range", subscription(*topics)),),
        )
        self.hear()

    @rule(number=CLIENT, age=st.sampled_from([0, 0, 1]))
    def sync(self, number: int, age: int = 0) -> None:
        """A leader gives out every partition, each to one of the members it was told of."""
        client = self.clients[number]
        assignments: dict[str, bytes] = {}
        if client.is_leader:
            for partition in range(PARTITIONS):
                member_id = client.members[partition % len(client.members)]
                assignments[member_id] = assignments.get(member_id, b"") + bytes([partition])
        client.syncing = self.d.send(
            Sync(
                group_id=GROUP,
                member_id=client.member_id,
                instance_id=client.instance_id,
                generation=client.generation - age,
                assignments=assignments,
            )
        )
        client.asked_generation = client.generation - age
        self.hear()

    @rule(number=CLIENT, age=st.integers(0, 1))
    def heartbeat(self, number: int, age: int) -> None:
        client = self.clients[number]
        code = self.d.ask(
            Heartbeat(
                group_id=GROUP,
                member_id=client.member_id,
                generation=client.generation - age,
                instance_id=client.instance_id,
            )
        )
        if code is ErrorCode.none or code is ErrorCode.rebalance_in_progress:
            assert client.member_id in self.d.group.members
            assert client.generation - age == self.d.group.generation
        self.hear()

    @rule()
    def haunt(self) -> None:
        """What was replaced under its instance id is fenced for good."""
        for instance_id, member_id, generation in self.former:
            group = self.d.machine.groups.get(GROUP)
            if group is not None and group.static_members.get(instance_id) == member_id:
                continue
            beat = Heartbeat(
                group_id=GROUP, member_id=member_id, generation=generation, instance_id=instance_id
            )
            is_fenced = group is not None and instance_id in group.static_members
            expected = ErrorCode.fenced_instance_id if is_fenced else ErrorCode.unknown_member_id
            assert self.d.ask(beat) is expected

    @rule()
    def cooperate(self) -> None:
        """Everyone does what a good client does, until all are settled."""
        for _ in range(2):
            for number, client in enumerate(self.clients):
                if client.joining is None:
                    self.join(number, False)
        self.d.advance(3_000)
        self.hear()
        for number, client in sorted(enumerate(self.clients), key=lambda one: one[1].is_leader):
            if client.joining is None and client.syncing is None:
                self.sync(number)

    @rule(number=CLIENT, partition=st.integers(0, PARTITIONS - 1), age=st.integers(0, 2))
    def commit(self, number: int, partition: int, age: int) -> None:
        client = self.clients[number]
        self.next_offset += 1
        answer = self.d.ask(
            Commit(
                group_id=GROUP,
                member_id=client.member_id,
                generation=client.generation - age,
                instance_id=client.instance_id,
                offsets=(OffsetToCommit("t", partition, self.next_offset),),
            )
        )
        if answer == (ErrorCode.none,):
            self.expected[partition] = self.next_offset
            group = self.d.group
            is_member = client.member_id in group.members and client.generation - age == group.generation
            assert is_member or (group.state is State.EMPTY and client.generation - age < 0)
        self.hear()

    @rule(number=CLIENT)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if GROUP in self.d.machine.groups:
            self.d.leave((client.member_id, client.instance_id))
        client.member_id, client.generation, client.is_leader = "", -1, False
        self.hear()

    @rule(number=CLIENT)
    def forget(self, number: int) -> None:
        """The client restarts."""
        client = self.clients[number]
        if client.instance_id is not None and client.member_id:
            self.former.append((client.instance_id, client.member_id, client.generation))
        self.clients[number] = Client(number)

    @rule(ms=st.sampled_from([1, 500, 5_000, 9_999, 60_000, 400_000]))
    def wait(self, ms: int) -> None:
        self.d.advance(ms)
        self.hear()

    @rule()
    def expire(self) -> None:
        self.d.expire()
        if GROUP not in self.d.machine.groups:
            self.owners.clear()

    @precondition(lambda self: GROUP in self.d.machine.groups)
    @rule()
    def delete(self) -> None:
        if self.d.delete_groups(GROUP) == (ErrorCode.none,):
            self.expected.clear()
            self.owners.clear()

    @rule()
    def crash(self) -> None:
        """Every question on its way is lost; what the log holds is not."""
        self.d.crash()
        for client in self.clients:
            client.joining = client.syncing = None
        durable = self.d.machine.durable.groups.get(GROUP)
        generation = durable.generation if durable is not None else 0
        self.owners = {key: owner for key, owner in self.owners.items() if key[0] <= generation}

    @invariant()
    def committed_offsets_are_those_accepted(self) -> None:
        found = self.d.machine.durable.offsets.get(GROUP, {}).get("t", {})
        assert {index: offset.offset for index, offset in found.items()} == self.expected

    @invariant()
    def a_replay_says_the_same(self) -> None:
        assert self.d.replayed().durable == self.d.machine.durable

    @invariant()
    def every_deadline_is_of_a_group_that_is_here(self) -> None:
        assert {key[1] for key in self.d.machine.timers._deadlines} <= self.d.machine.groups.keys()

    @invariant()
    def memory_is_counted(self) -> None:
        held = 0
        for group in self.d.machine.groups.values():
            held += GROUP_BYTES if group.begun_by is not None else 0
            held += sum(EXPECTED_BYTES + len(member_id) for member_id in group.pending_join)
            held += sum(member.held_bytes for member in group.members.values())
        assert self.d.memory.held_bytes == held

    @invariant()
    def the_group_adds_up(self) -> None:
        group = self.d.machine.groups.get(GROUP)
        if group is None:
            return
        if not group.members:
            is_initial = self.d.machine.timers.at(("join", GROUP, "")) is not None
            assert group.state is State.EMPTY or is_initial
        assert not (group.members and group.state is State.EMPTY)
        assert (group.leader in group.members) or not group.members
        statics = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
        assert statics == group.static_members
        assert group.awaiting_join == sum(m.join_token is not None for m in group.members.values())
        assert not group.pending_join.keys() & group.members.keys()
        assert group.pending_sync <= group.members.keys()
        if group.state is not State.COMPLETING_REBALANCE:
            assert all(member.sync_token is None for member in group.members.values())
        if group.state is not State.PREPARING_REBALANCE:
            assert all(member.join_token is None for member in group.members.values())
        # Nobody is forgotten: whoever is in or coming in has a deadline, or waits with a group that has one.
        timers = self.d.machine.timers
        for member_id in group.pending_join:
            assert timers.at(("session", GROUP, member_id)) is not None
        for member in group.members.values():
            has_session = timers.at(("session", GROUP, member.member_id)) is not None
            assert has_session or member.is_waiting
            if member.join_token is not None:
                assert timers.at(("join", GROUP, "")) is not None
            if member.sync_token is not None:
                assert timers.at(("sync", GROUP, "")) is not None or group.pending_sync == set()

    def hear(self) -> None:
        for client in self.clients:
            if client.joining in self.d.answers:
                self.joined(client, self.d.answers[client.joining])
                client.joining = None
            if client.syncing in self.d.answers:
                self.synced(client, self.d.answers[client.syncing])
                client.syncing = None

    def joined(self, client: Client, reply: Any) -> None:
        if reply["error_code"] is ErrorCode.member_id_required:
            client.member_id = reply["member_id"]
        elif reply["error_code"] is ErrorCode.none:
            client.member_id, client.generation = reply["member_id"], reply["generation_id"]
            client.members = [member["member_id"] for member in reply["members"]]
            client.is_leader = reply["leader"] == client.member_id and bool(client.members)
            assert reply["generation_id"] <= self.d.group.generation
        else:
            client.member_id, client.generation, client.is_leader = "", -1, False

    def synced(self, client: Client, reply: Any) -> None:
        if reply is ErrorCode.unknown_member_id or reply is ErrorCode.fenced_instance_id:
            client.member_id, client.generation, client.is_leader = "", -1, False
        if not isinstance(reply, dict) or reply["error_code"] is not ErrorCode.none:
            return
        durable = self.d.machine.durable.groups[GROUP]
        assert durable.generation >= client.asked_generation, "handed out before it was durable"
        if durable.generation == client.asked_generation:
            held = {member.member_id: member.assignment for member in durable.members}
            assert held.get(client.member_id, reply["assignment"]) == reply["assignment"]
        owner = client.instance_id or client.member_id
        for partition in reply["assignment"]:
            assert self.owners.setdefault((client.asked_generation, partition), owner) == owner


def test_any_life_of_a_group_keeps_its_promises() -> None:
    run_state_machine_as_test(
        Lives, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )


def test_the_same_commands_give_the_same_answers() -> None:
    def life() -> tuple[dict[int, Any], list[tuple[bytes, bytes | None]]]:
        d = Driver()
        first, second = d.stable(2)
        d.commit(3, member_id=first, generation=1)
        d.leave((second, None))
        d.join(first)
        d.advance(100_000)
        return d.answers, d.log

    assert life() == life()


def test_the_names_of_a_member_are_counted() -> None:
    """Each may be of 32 KB, which is more than all else that a member takes."""
    d = Driver()
    before = d.memory.held_bytes
    d.join(new_member_id="m" * 30_000, client_id="c" * 30_000)
    assert d.memory.held_bytes - before > 30_000, "while it is expected"
    d.join(new_member_id="n" * 30_000, instance_id="i" * 30_000, client_id="c" * 30_000)
    assert d.memory.held_bytes - before > 120_000
