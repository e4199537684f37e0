"""Large commands and large slots: others get the loop in between, and nothing is half done meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.control.cluster import Cluster
from broker.control.commands import RECORDS_MAX_PER_COMMAND, ControllerCommand, deciding
from broker.control.config_changes import AlterConfigs
from broker.control.image import LOOKED_AT_ONCE, Image
from broker.control.leaders import (
    AlterPartition,
    AlterPartitionReassignments,
    ElectLeaders,
    IsrChange,
    Reassignment,
)
from broker.control.metadata_log import parse_slot
from broker.control.metadata_records import (
    PARTITIONS_PER_RECORD,
    BrokerFenced,
    ControllerElected,
    PartitionsAdded,
    TopicCreated,
    encode_record,
    new_partition,
)
from broker.control.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicRef,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.slots import Slot, encode_slot
from protocol.work import Work, finish
from tests.broker.at_once import AtOnce
from tests.broker.control.cluster_driver import Site, recorded
from tests.broker.control.decisions import carry_out, cluster, decided, rules, topic

T = TypeVar("T")

MANY = 1_000

REFUSED: dict[str, ControllerCommand[object]] = {
    "create": CreateTopics(topics=tuple(NewTopic(name=f"no way {at}") for at in range(MANY))),
    "create with settings": CreateTopics(
        topics=(NewTopic(name="s", configs=tuple((f"no.{at}", "1") for at in range(MANY))),)
    ),
    "create again": CreateTopics(topics=(NewTopic(name="t"),) * MANY),
    "delete": DeleteTopics(topics=tuple(TopicRef(name=f"nowhere-{at}") for at in range(MANY))),
    "grow": CreatePartitions(topics=tuple(MorePartitions(name=f"no-{at}", count=2) for at in range(MANY))),
    "elect": ElectLeaders(election_type=0, partitions=tuple(("t", at) for at in range(MANY))),
    "reassign": AlterPartitionReassignments(
        reassignments=tuple(Reassignment(topic="t", partition=at, replicas=(9,)) for at in range(MANY))
    ),
    "shrink": AlterPartition(
        broker_id=1,
        broker_epoch=2,
        changes=tuple(
            IsrChange(topic_id=UUID(int=at), partition=0, leader_epoch=0, partition_epoch=0, isr=((1, -1),))
            for at in range(MANY)
        ),
    ),
    "configure": AlterConfigs(resources=tuple(((2, f"nowhere-{at}"), ()) for at in range(MANY))),
}


def pieces(work: Work[object]) -> int:
    """How many turns it takes at most."""
    count = 1
    while True:
        try:
            next(work)
        except StopIteration:
            return count
        count += 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_is_decided_in_turns_and_what_it_refuses_keeps_nothing_alive(name: str) -> None:
    image, command = cluster(), REFUSED[name]
    carry_out(image, topic((1, 2)))
    if isinstance(command, AlterPartition):
        assert image.brokers[1].epoch == command.broker_epoch
    assert pieces(deciding(command, image, rules())) > MANY // LOOKED_AT_ONCE or name == "create again"
    gc.collect()
    gc.disable()
    try:
        looked_at = image.copy()
        gone = weakref.ref(looked_at)
        decision = decided(looked_at, command)
        del looked_at
        assert decision.response
        assert gone() is None, "an error holds the frames that raised it"
    finally:
        gc.enable()


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 3 * PARTITIONS_PER_RECORD), more=st.integers(1, 2 * PARTITIONS_PER_RECORD))
def test_a_large_topic_takes_several_records_and_is_the_same_topic(count: int, more: int) -> None:
    image = cluster()
    made = decided(image, CreateTopics(topics=(NewTopic(name="t", partitions=count),)))
    image.apply_slot(image.seq + 1, made.records)
    assert [(each.name, each.topic) for each in made.response or ()] == [("t", image.topics["t"])]
    grown = decided(image, CreatePartitions(topics=(MorePartitions(name="t", count=count + more),)))
    image.apply_slot(image.seq + 1, grown.records)
    assert [each.index for each in image.topics["t"].partitions] == list(range(count + more))
    records = [*made.records, *grown.records, *image.snapshot_records()]
    sizes = [len(each.partitions) for each in records if isinstance(each, TopicCreated | PartitionsAdded)]
    assert max(sizes) <= PARTITIONS_PER_RECORD
    again = Image()
    again.apply_slot(image.seq, image.snapshot_records())
    assert again == image


def test_more_topics_than_a_slot_holds_are_not_deleted_at_once() -> None:
    image = cluster()
    partition = (new_partition(0, (1,), (1,)),)
    names = [f"t{at}" for at in range(RECORDS_MAX_PER_COMMAND + 1)]
    for at, name in enumerate(names):
        image.apply(TopicCreated(name=name, topic_id=UUID(int=at + 1), partitions=partition), 9)
    decision = decided(image, DeleteTopics(topics=tuple(TopicRef(name=name) for name in names)))
    assert len(decision.records) == RECORDS_MAX_PER_COMMAND
    assert decision.response is not None
    refused = [each for each in decision.response if each.error is not None]
    assert [(each.name, each.error and each.error.code) for each in refused] == [
        (names[-1], ErrorCode.policy_violation)
    ]


def test_an_image_that_is_kept_does_not_see_what_comes() -> None:
    image = cluster()
    kept, before = image.kept(), image.copy()
    ahead = image.copy()
    fence = BrokerFenced(broker_id=1, broker_epoch=2, fenced=True)
    finish(ahead.folding(image.seq + 1, [topic((1, 2)), fence]))
    image.become(ahead)
    assert image == ahead != kept
    assert kept == before


def run(story: Callable[[Site], Coroutine[None, None, None]]) -> None:
    site = Site()
    site.turn_steps = 2
    site.run(story(site))


async def until_decided_in_part(member: Cluster, command: ControllerCommand[object]) -> asyncio.Task[object]:
    """Submit a command, and return while it is being decided."""
    asked = asyncio.ensure_future(member.submit(command))
    for _ in range(5):
        await asyncio.sleep(0)
    assert member.turns.in_work
    return asked


def test_others_have_the_loop_while_the_controller_decides() -> None:
    async def story(site: Site) -> None:
        member = await site.started()
        asked = asyncio.ensure_future(member.submit(REFUSED["delete"]))
        turns = 0
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        results = asked.result()
        assert isinstance(results, list)
        assert len(results) == MANY
        assert turns > MANY // LOOKED_AT_ONCE

    run(story)


def test_what_was_decided_before_another_won_the_slot_is_not_committed() -> None:
    async def story(site: Site) -> None:
        member = await site.started()
        doomed = CreateTopics(topics=tuple(NewTopic(name=f"t{at}", partitions=1) for at in range(100)))
        asked = await until_decided_in_part(member, doomed)
        epoch = member.image.controller_epoch
        bump = ControllerElected(controller_id=2, controller_epoch=epoch + 1)
        theirs = Slot(
            seq=member.image.seq + 1,
            controller_epoch=epoch + 1,
            put_id=bytes(16),
            previous_hash=member.ledger.last_hash,
            records=(encode_record(bump),),
        )
        before = site.slots()
        await member._follow_deltas(await member.ledger.take([parse_slot(encode_slot(theirs))]))
        with pytest.raises(KafkaError) as refused:
            await asked
        assert refused.value.code is ErrorCode.not_controller
        assert not member.is_controller
        assert site.slots() == before, "nothing was written either"

    run(story)


def test_a_decision_begins_with_the_image_of_when_it_begins() -> None:
    """It may wait for its first turn, while others apply what was won before."""

    class Late(AtOnce):
        def __init__(self, member: Cluster, slot: bytes) -> None:
            self.member, self.slots = member, [slot]

        async def run(self, work: Work[T]) -> T:
            if self.slots:
                deltas = await self.member.ledger.take([parse_slot(self.slots.pop())])
                await self.member._follow_deltas(deltas)
            return finish(work)

    async def story(site: Site) -> None:
        member = await site.started()
        slot = Slot(
            seq=member.image.seq + 1,
            controller_epoch=member.image.controller_epoch,
            put_id=bytes(16),
            previous_hash=member.ledger.last_hash,
        )
        member.queue._turns = Late(member, encode_slot(slot))
        (made,) = await member.submit(CreateTopics(topics=(NewTopic(name="t"),)))
        assert made.error is None
        assert member.image.seq == slot.seq + 1
        assert member.is_controller

    run(story)


def test_a_refused_command_leaves_no_frame_of_its_decision_in_the_error() -> None:
    async def story(site: Site) -> None:
        member = await site.started()
        with pytest.raises(KafkaError) as refused:
            await member.submit(ElectLeaders(election_type=7, partitions=()))
        names = [each.name for each in refused.traceback]
        assert "decide" not in names
        assert names[-1] == "submit"

    run(story)


def test_a_slot_shows_only_when_all_of_it_is_applied_and_is_told_in_its_order() -> None:
    async def story(site: Site) -> None:
        members = await site.trio()
        follower = members[2]
        await asyncio.sleep(1)
        seen = recorded(follower)
        sizes: set[int] = set()
        names = [f"t{at}" for at in range(50)]
        made = CreateTopics(topics=tuple(NewTopic(name=name, partitions=1) for name in names))
        asked = asyncio.ensure_future(members[0].submit(made))
        while "t49" not in follower.image.topics:
            sizes.add(len(follower.image.topics))
            await asyncio.sleep(0)
        await asked
        assert sizes == {0}
        await asyncio.sleep(1)
        assert [delta.seq for delta in seen] == sorted(delta.seq for delta in seen)
        assert sum(len(delta.topics_created) for delta in seen) == 50

    run(story)
