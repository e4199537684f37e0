"""Who leads a partition and who replicates it: every check of AlterPartition, elections and reassignments in
Kafka's order; and what holds after any sequence of commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.config.broker import from_properties
from broker.control.brokers import ControlledShutdown, FenceBrokers, UnfenceBroker, UnregisterBroker
from broker.control.commands import ControllerCommand
from broker.control.image import Image, fold
from broker.control.leaders import (
    AlterPartition,
    AlterPartitionReassignments,
    ElectionType,
    ElectLeaders,
    ElectUncleanLeaders,
    IsrChange,
    Reassignment,
    RebalanceLeaders,
)
from broker.control.metadata_records import (
    NO_LEADER,
    BrokerStopping,
    ConfigChanged,
    PartitionChanged,
    PartitionImage,
    Record,
    decode_record,
    encode_record,
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
from tests.broker.control.decisions import (
    carry_out,
    cluster,
    code,
    decided,
    refused,
    registration,
    topic,
)


def part(image: Image, index: int = 0, name: str = "t") -> PartitionImage:
    found = image.partition(name, index)
    assert found is not None
    return found


def fence(image: Image, *broker_ids: int) -> None:
    carry_out(image, FenceBrokers(brokers=tuple((id_, image.brokers[id_].epoch) for id_ in broker_ids)))


def unfence(image: Image, broker_id: int) -> None:
    carry_out(image, UnfenceBroker(broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch))


def allow_unclean(image: Image, name: str = "t", value: str = "true") -> None:
    setting = "unclean.leader.election.enable"
    carry_out(image, ConfigChanged(resource_type=2, resource_name=name, name=setting, value=value))


# --- AlterPartition ---


def isr_change(image: Image, *isr: int, index: int = 0) -> IsrChange:
    partition = part(image, index)
    return IsrChange(
        topic_id=image.topics["t"].id,
        partition=index,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple((id_, image.brokers[id_].epoch if id_ in image.brokers else 1) for id_ in isr),
    )


def alter(image: Image, broker_id: int, *changes: IsrChange) -> list[PartitionImage | ErrorCode]:
    command = AlterPartition(
        broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch, changes=changes
    )
    results = carry_out(image, command)
    assert [(r.topic_id, r.partition) for r in results] == [(c.topic_id, c.partition) for c in changes]
    return [result.image or code(result.error) for result in results]


def three_replicas() -> Image:
    image = cluster(4)
    carry_out(image, topic((1, 2, 3), (2, 3, 1)))
    return image


def test_an_isr_shrinks_and_grows_in_the_same_leader_epoch() -> None:
    image = three_replicas()
    for isr in ((1, 2), (1,), (1, 3), (3, 1, 2)):
        (answer,) = alter(image, 1, isr_change(image, *isr))
        assert answer == part(image)
        assert part(image).isr == isr
    assert (part(image).leader, part(image).leader_epoch, part(image).partition_epoch) == (1, 0, 4)


def test_who_lost_its_log_leaves_and_hands_over_to_the_others_in_sync() -> None:
    image = three_replicas()
    assert alter(image, 1, isr_change(image, 3)) == [ErrorCode.invalid_request]
    assert alter(image, 1, isr_change(image, 3, 2)) == [ErrorCode.new_leader_elected]
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (2, 1, (3, 2))
    assert alter(image, 3, isr_change(image, 3)) == [ErrorCode.invalid_request]
    assert alter(image, 3, isr_change(image, 2)) == [part(image)]
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (2, 1, (2,))
    assert alter(image, 1, isr_change(image)) == [ErrorCode.invalid_request]
    assert alter(image, 3, isr_change(image, 2)) == [ErrorCode.invalid_request], "it left before"
    assert alter(image, 2, isr_change(image)) == [ErrorCode.new_leader_elected]
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (NO_LEADER, 2, ())
    assert alter(image, 2, isr_change(image)) == [ErrorCode.invalid_request]


def test_where_the_last_one_in_sync_lost_its_log_another_may_lead_if_losing_records_is_allowed() -> None:
    image = three_replicas()
    allow_unclean(image)
    alter(image, 1, isr_change(image, 1))
    assert alter(image, 1, isr_change(image)) == [ErrorCode.new_leader_elected]
    assert (part(image).leader, part(image).isr) == (2, (2,))
    fence(image, 1, 3)
    alter(image, 2, isr_change(image))
    assert (part(image).leader, part(image).isr) == (NO_LEADER, ()), "not by the one that has nothing"


def test_the_same_isr_again_changes_nothing() -> None:
    image = three_replicas()
    before = part(image)
    assert alter(image, 1, isr_change(image, 1, 2, 3)) == [before]
    assert part(image) is before


def test_one_bad_change_stops_no_other() -> None:
    image = three_replicas()
    bad = replace(isr_change(image, 1), topic_id=UUID(int=1))
    results = alter(image, 1, bad, isr_change(image, 1, 2), isr_change(image, 2, index=1))
    assert results == [ErrorCode.unknown_topic_id, part(image), ErrorCode.invalid_request]
    assert part(image).isr == (1, 2)


def test_a_partition_named_twice_is_decided_twice() -> None:
    image = three_replicas()
    first = isr_change(image, 1, 2)
    second = replace(first, partition_epoch=1, isr=((1, -1),))
    made, stale, made_again = alter(image, 1, first, first, second)
    assert (made, stale) == (
        replace(part(image), isr=(1, 2), partition_epoch=1),
        ErrorCode.invalid_update_version,
    )
    assert made_again == part(image)
    assert part(image).isr == (1,)


@pytest.mark.parametrize(
    ("asked_by", "change", "expected"),
    [
        (1, {"topic_id": UUID(int=1)}, ErrorCode.unknown_topic_id),
        (1, {"partition": 2}, ErrorCode.unknown_topic_or_partition),
        (1, {"partition": -1}, ErrorCode.unknown_topic_or_partition),
        (2, {"leader_epoch": 9}, ErrorCode.not_controller),
        (2, {"leader_epoch": 0, "partition_epoch": 9}, ErrorCode.not_controller),
        (2, {"leader_epoch": 0}, ErrorCode.fenced_leader_epoch),
        (2, {"partition_epoch": 0}, ErrorCode.invalid_request),
        (1, {"partition_epoch": 0, "isr": ()}, ErrorCode.invalid_update_version),
        (1, {"isr": ()}, ErrorCode.invalid_request),
        (1, {"isr": ((1, -1), (1, -1))}, ErrorCode.invalid_request),
        (1, {"isr": ((1, -1), (4, -1))}, ErrorCode.invalid_request),
        (1, {"isr": ((2, -1), (3, -1))}, ErrorCode.invalid_request),
        (1, {"isr": ((1, -1), (2, 77))}, ErrorCode.ineligible_replica),
        (1, {"isr": ((1, 77),)}, ErrorCode.ineligible_replica),
        (1, {"isr": ((1, -1), (2, -1))}, ErrorCode.none),
    ],
)
def test_the_checks_of_an_isr_come_in_kafkas_order(
    asked_by: int, change: dict[str, Any], expected: ErrorCode
) -> None:
    """Each case fails the check it is for, and those after it."""
    image = three_replicas()
    carry_out(image, PartitionChanged(topic_id=image.topics["t"].id, partition=0, leader=1, isr=(1, 2)))
    (answer,) = alter(image, asked_by, replace(isr_change(image, 1, 3), **change))
    assert answer == (part(image) if expected is ErrorCode.none else expected)


def test_a_replica_that_is_not_there_to_stay_joins_no_isr() -> None:
    image = three_replicas()
    alter(image, 1, isr_change(image, 1))
    fence(image, 2)
    assert alter(image, 1, isr_change(image, 1, 2)) == [ErrorCode.ineligible_replica]
    unfence(image, 2)
    carry_out(image, ControlledShutdown(broker_id=3, broker_epoch=image.brokers[3].epoch))
    assert alter(image, 1, isr_change(image, 1, 3)) == [ErrorCode.ineligible_replica]
    carry_out(image, UnregisterBroker(broker_id=3))
    assert alter(image, 1, isr_change(image, 1, 3)) == [ErrorCode.ineligible_replica]
    assert alter(image, 1, isr_change(image, 1, 2)) == [part(image)]


@pytest.mark.parametrize(("broker_id", "broker_epoch"), [(1, 99), (9, 1)])
def test_an_old_incarnation_alters_nothing(broker_id: int, broker_epoch: int) -> None:
    command = AlterPartition(broker_id=broker_id, broker_epoch=broker_epoch, changes=())
    assert refused(cluster(), command)[0] is ErrorCode.stale_broker_epoch


# --- elections ---


def elect(
    image: Image, kind: int, *refs: tuple[str, int], all_of_them: bool = False
) -> list[tuple[str, int, ErrorCode]]:
    results = carry_out(image, ElectLeaders(election_type=kind, partitions=None if all_of_them else refs))
    return [(result.topic, result.partition, code(result.error)) for result in results]


def test_the_preferred_leader_is_elected_where_it_can_be() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (1, 3), (2, 1), (1,)))
    fence(image, 1)
    unfence(image, 1)
    alter(image, 2, isr_change(image, 2, 1))
    assert elect(image, 0, *(("t", at) for at in range(5)), ("u", 0)) == [
        ("t", 0, ErrorCode.none),
        ("t", 1, ErrorCode.preferred_leader_not_available),
        ("t", 2, ErrorCode.election_not_needed),
        ("t", 3, ErrorCode.election_not_needed),
        ("t", 4, ErrorCode.unknown_topic_or_partition),
        ("u", 0, ErrorCode.unknown_topic_or_partition),
    ]
    assert (part(image, 0).leader, part(image, 0).leader_epoch, part(image, 0).isr) == (1, 2, (2, 1))
    assert part(image, 1).leader == 3


def test_of_all_partitions_those_that_need_it_are_elected_and_answered() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (2, 1)), topic((1, 3), name="u"))
    topic_id = image.topics["t"].id
    carry_out(image, PartitionChanged(topic_id=topic_id, partition=0, leader=2))
    fence(image, 1)
    assert elect(image, 0, all_of_them=True) == [
        ("t", 0, ErrorCode.preferred_leader_not_available),
        ("u", 0, ErrorCode.preferred_leader_not_available),
    ]
    unfence(image, 1)
    alter(image, 2, isr_change(image, 2, 1))
    assert elect(image, 0, all_of_them=True) == [
        ("t", 0, ErrorCode.none),
        ("u", 0, ErrorCode.preferred_leader_not_available),
    ]


def test_an_operator_may_elect_who_is_not_in_sync() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (1, 3), (1,), (2, 3)))
    alter(image, 1, isr_change(image, 1), isr_change(image, 1, index=1))
    fence(image, 1)
    assert [part(image, at).leader for at in range(3)] == [NO_LEADER] * 3
    fence(image, 3)
    assert elect(image, 1, *(("t", at) for at in range(4))) == [
        ("t", 0, ErrorCode.none),
        ("t", 1, ErrorCode.eligible_leaders_not_available),
        ("t", 2, ErrorCode.eligible_leaders_not_available),
        ("t", 3, ErrorCode.election_not_needed),
    ]
    assert (part(image, 0).leader, part(image, 0).isr) == (2, (2,))


def test_a_partition_named_twice_is_elected_once() -> None:
    image = cluster()
    carry_out(image, topic((1, 2)))
    carry_out(image, PartitionChanged(topic_id=image.topics["t"].id, partition=0, leader=2))
    assert elect(image, 0, ("t", 0), ("t", 0)) == [
        ("t", 0, ErrorCode.none),
        ("t", 0, ErrorCode.election_not_needed),
    ]
    assert part(image).leader_epoch == 2


def test_a_replaced_disk_is_brought_back_by_an_operator_alone() -> None:
    image = cluster()
    carry_out(image, topic((1,)))
    carry_out(image, replace(registration(1), incarnation=UUID(int=11), directories=(UUID(int=999),)))
    assert part(image).isr == ()
    assert elect(image, 0, ("t", 0)) == [("t", 0, ErrorCode.preferred_leader_not_available)]
    assert elect(image, 1, ("t", 0)) == [("t", 0, ErrorCode.none)]
    assert (part(image).leader, part(image).isr) == (1, (1,))


@pytest.mark.parametrize("kind", [-1, 2, 127])
def test_there_are_two_kinds_of_election(kind: int) -> None:
    command = ElectLeaders(election_type=kind, partitions=())
    assert refused(cluster(), command) == (ErrorCode.invalid_request, f"Unknown election type {kind}")


def test_a_stopping_broker_keeps_what_it_alone_is_in_sync_with() -> None:
    image = cluster()
    carry_out(image, topic((2, 1)))
    alter(image, 2, isr_change(image, 2))
    fence(image, 2)
    unfence(image, 2)
    carry_out(image, BrokerStopping(broker_id=2, broker_epoch=image.brokers[2].epoch))
    before = part(image)
    move = Reassignment(topic="t", partition=0, replicas=(1, 2))
    carry_out(image, AlterPartitionReassignments(reassignments=(move,)))
    assert elect(image, 0, ("t", 0)) == [("t", 0, ErrorCode.preferred_leader_not_available)]
    assert (part(image).leader, part(image).leader_epoch) == (2, before.leader_epoch)


def test_leaders_are_balanced_where_that_is_wanted() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (2, 1), (3, 1), (3,)))
    topic_id = image.topics["t"].id
    carry_out(image, *(PartitionChanged(topic_id=topic_id, partition=at, leader=1) for at in (1, 2)))
    fence(image, 3)
    off = from_properties({"auto.leader.rebalance.enable": "false"})
    assert decided(image, RebalanceLeaders(), config=off).records == ()
    assert carry_out(image, RebalanceLeaders()) is False
    assert [partition.leader for partition in image.topics["t"].partitions] == [1, 2, 1, NO_LEADER]
    assert decided(image, RebalanceLeaders()).records == ()


def test_a_round_of_elections_is_bounded() -> None:
    image = cluster(2)
    carry_out(image, topic(*[(1, 2)] * 1_500))
    topic_id = image.topics["t"].id
    stolen = [PartitionChanged(topic_id=topic_id, partition=at, leader=2) for at in range(1_500)]
    image.apply_slot(image.seq + 1, stolen)
    assert carry_out(image, RebalanceLeaders()) is True
    assert carry_out(image, RebalanceLeaders()) is False
    assert {partition.leader for partition in image.topics["t"].partitions} == {1}


def test_a_topic_that_comes_to_allow_it_is_elected_unclean() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (1, 3)), topic((1, 2), name="u"))
    alter(image, 1, isr_change(image, 1), isr_change(image, 1, index=1))
    fence(image, 1)
    assert carry_out(image, ElectUncleanLeaders()) is False
    assert part(image).leader == NO_LEADER
    allow_unclean(image)
    assert carry_out(image, ElectUncleanLeaders()) is False
    assert [(part(image, at).leader, part(image, at).isr) for at in (0, 1)] == [(2, (2,)), (3, (3,))]


# --- reassignments ---


def reassign(
    image: Image, *replicas: int, index: int = 0, name: str = "t", allow: bool = True
) -> tuple[ErrorCode, str | None]:
    return _reassign(image, Reassignment(topic=name, partition=index, replicas=replicas), allow)


def cancel(image: Image, index: int = 0) -> tuple[ErrorCode, str | None]:
    return _reassign(image, Reassignment(topic="t", partition=index, replicas=None), True)


def _reassign(image: Image, asked: Reassignment, allow: bool) -> tuple[ErrorCode, str | None]:
    command = AlterPartitionReassignments(reassignments=(asked,), allow_replication_factor_change=allow)
    (result,) = carry_out(image, command)
    return code(result.error), None if result.error is None else result.error.message


def moving(image: Image, index: int = 0) -> tuple[Iterable[int], Iterable[int], Iterable[int]]:
    partition = part(image, index)
    return partition.replicas, partition.adding, partition.removing


DONE = (ErrorCode.none, None)


def test_a_reassignment_ends_when_all_that_it_adds_are_in_sync() -> None:
    image = cluster(5)
    carry_out(image, topic((1, 2, 3)))
    assert reassign(image, 4, 5, 3) == DONE
    assert moving(image) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (1, 0, (1, 2, 3))
    assert alter(image, 1, isr_change(image, 1, 2, 3, 4)) == [part(image)]
    assert moving(image) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert alter(image, 1, isr_change(image, 1, 2, 3, 4, 5)) == [ErrorCode.new_leader_elected]
    assert moving(image) == ((4, 5, 3), (), ())
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (4, 1, (3, 4, 5))


def test_a_leader_that_stays_starts_an_epoch_when_replicas_go() -> None:
    image = cluster(4)
    carry_out(image, topic((1, 2, 3)))
    reassign(image, 1, 2, 4)
    (answer,) = alter(image, 1, isr_change(image, 1, 2, 4))
    assert answer == part(image)
    assert moving(image) == ((1, 2, 4), (), ())
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (1, 1, (1, 2, 4))


def test_a_reassignment_that_adds_nothing_is_done_at_once() -> None:
    image = cluster(4)
    carry_out(image, topic((1, 2, 3), (1, 2)))
    assert reassign(image, 3, 1) == DONE
    assert moving(image) == ((3, 1), (), ())
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (1, 1, (1, 3))
    assert reassign(image, 2, 1, index=1) == DONE
    assert moving(image, 1) == ((2, 1), (), ())
    assert (part(image, 1).leader, part(image, 1).leader_epoch, part(image, 1).partition_epoch) == (1, 0, 1)
    before = part(image, 1)
    assert reassign(image, 2, 1, index=1) == DONE
    assert part(image, 1) is before


def test_fewer_replicas_wait_until_all_that_stay_are_in_sync() -> None:
    image = cluster(4)
    carry_out(image, topic((1, 2, 3)))
    alter(image, 1, isr_change(image, 1, 3))
    assert reassign(image, 2, 1) == DONE
    assert moving(image) == ((2, 1, 3), (), (3,))
    alter(image, 1, isr_change(image, 1, 2, 3))
    assert moving(image) == ((2, 1), (), ())
    assert part(image).isr == (1, 2)


def test_a_new_target_replaces_the_one_under_way() -> None:
    image = cluster(5)
    carry_out(image, topic((1, 2)))
    reassign(image, 3, 4)
    assert reassign(image, 4, 5) == DONE
    assert moving(image) == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3))
    assert reassign(image, 1, 2, 4) == DONE
    assert moving(image) == ((1, 2, 4, 3, 5), (4,), (3, 5))
    alter(image, 1, isr_change(image, 1, 2, 4))
    assert moving(image) == ((1, 2, 4), (), ())


def test_a_reassignment_can_be_given_up() -> None:
    image = cluster(4)
    carry_out(image, topic((1, 2)))
    assert cancel(image) == (ErrorCode.no_reassignment_in_progress, None)
    reassign(image, 3, 4)
    alter(image, 1, isr_change(image, 1, 2, 3))
    assert cancel(image) == DONE
    assert moving(image) == ((1, 2), (), ())
    assert (part(image).leader, part(image).leader_epoch, part(image).isr) == (1, 1, (1, 2))


@pytest.mark.parametrize(("is_back", "leader"), [(False, 2), (True, 1)])
def test_giving_up_what_only_new_replicas_hold_loses_records(is_back: bool, leader: int) -> None:
    image = cluster(4)
    carry_out(image, topic((1, 2)))
    reassign(image, 3, 4)
    alter(image, 1, isr_change(image, 1, 3))
    fence(image, 1)
    if is_back:
        unfence(image, 1)
    assert (part(image).leader, part(image).isr) == (3, (3,))
    assert cancel(image) == (
        ErrorCode.invalid_replica_assignment,
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election.",
    )
    allow_unclean(image)
    command = AlterPartitionReassignments(
        reassignments=(Reassignment(topic="t", partition=0, replicas=None),)
    )
    (record,) = decided(image, command).records
    assert isinstance(record, PartitionChanged)
    assert record.unclean
    assert cancel(image) == DONE
    assert moving(image) == ((1, 2), (), ())
    assert (part(image).leader, part(image).isr) == (leader, (leader,))


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((), "The manual partition assignment includes an empty replica list."),
        ((9, 1), "The manual partition assignment includes broker 9, but no such broker is registered."),
        ((-1, 1), "The manual partition assignment includes broker -1, but no such broker is registered."),
        ((1, 1), "The manual partition assignment includes the broker 1 more than once."),
    ],
)
def test_an_assignment_that_cannot_be(replicas: tuple[int, ...], expected: str) -> None:
    image = cluster()
    carry_out(image, topic((1, 2)))
    assert reassign(image, *replicas) == (ErrorCode.invalid_replica_assignment, expected)


def test_what_is_not_there_is_not_reassigned() -> None:
    image = cluster()
    carry_out(image, topic((1, 2)))
    assert reassign(image, 1, name="u") == (
        ErrorCode.unknown_topic_or_partition,
        "Unable to find a topic named u.",
    )
    assert reassign(image, 1, index=3) == (
        ErrorCode.unknown_topic_or_partition,
        "Unable to find partition t:3.",
    )


def test_the_replication_factor_can_be_kept() -> None:
    image = cluster(5)
    carry_out(image, topic((1, 2)))
    more = (ErrorCode.invalid_replication_factor, "The replication factor is changed from 2 to 3")
    assert reassign(image, 1, 2, 3, allow=False) == more
    assert reassign(image, 3, 4, allow=False) == DONE
    assert reassign(image, 3, 4, 5, allow=False) == more
    assert reassign(image, 5, 4, allow=False) == DONE


def test_a_topic_can_go_while_it_is_reassigned() -> None:
    image = cluster()
    carry_out(image, topic((1,)))
    reassign(image, 2)
    carry_out(image, DeleteTopics(topics=(TopicRef(name="t"),)))
    assert image.topics == {}
    assert reassign(image, 2)[0] is ErrorCode.unknown_topic_or_partition


def test_a_fenced_broker_can_be_waited_for() -> None:
    image = cluster()
    carry_out(image, topic((1,)))
    fence(image, 2)
    assert reassign(image, 2) == DONE
    assert moving(image) == ((2, 1), (2,), (1,))
    unfence(image, 2)
    assert alter(image, 1, isr_change(image, 1, 2)) == [ErrorCode.new_leader_elected]
    assert (part(image).leader, part(image).isr) == (2, (2,))


def test_requests_are_bounded() -> None:
    image = cluster()
    many = 10_001
    commands: list[ControllerCommand[Any]] = [
        ElectLeaders(election_type=0, partitions=(("t", 0),) * many),
        AlterPartitionReassignments(
            reassignments=(Reassignment(topic="t", partition=0, replicas=None),) * many
        ),
    ]
    for command in commands:
        assert refused(image, command)[0] is ErrorCode.policy_violation
    carry_out(image, topic(*[(1, 2)] * many))
    topic_id = image.topics["t"].id
    stolen = [PartitionChanged(topic_id=topic_id, partition=at, leader=2) for at in range(many)]
    partitions = tuple(map(PartitionChanged.of, stolen, image.topics["t"].partitions))
    image.topics["t"] = replace(image.topics["t"], partitions=partitions)
    command = ElectLeaders(election_type=ElectionType.PREFERRED, partitions=None)
    assert refused(image, command)[0] is ErrorCode.policy_violation


# --- any sequence ---

BROKERS = st.integers(1, 4)
NAMES = st.sampled_from(["t", "u"])
INDEXES = st.integers(0, 2)
REPLICAS = st.lists(BROKERS, unique=True, min_size=1, max_size=4).map(tuple)


class Replication(RuleBasedStateMachine):
    """Everything that may happen to leaders and replicas, in any order, on one image."""

    def __init__(self) -> None:
        super().__init__()
        self.image = cluster(4)
        self.log: list[tuple[int, tuple[Record, ...]]] = [
            (self.image.seq, tuple(self.image.snapshot_records()))
        ]
        self.steps = 0
        self.lives = 100
        self.replaced: set[tuple[str, int]] = set()
        self.do(topic((1, 2, 3), (2, 3, 4), (3, 1)))
        self.do(topic((1,), (4, 2), name="u"))

    def do(self, step: ControllerCommand[Any] | Record) -> Any:
        before = self.image.copy()
        self.steps += 1
        try:
            decision = decided(self.image, step, seed=self.steps) if not isinstance(step, Record) else None
        except KafkaError:
            assert self.image == before
            return None
        assert self.image == before, "deciding changed the image"
        made = (step,) if decision is None else decision.records
        records = tuple(decode_record(encode_record(record)) for record in made)  # type: ignore[arg-type]
        seq = self.image.seq + 1
        self.image.apply_slot(seq, records)
        self.log.append((seq, records))
        self.check(before, records, step)
        return None if decision is None else decision.response

    def check(
        self, before: Image, records: tuple[Record, ...], step: ControllerCommand[Any] | Record
    ) -> None:
        flagged = {
            (record.topic_id, record.partition)
            for record in records
            if isinstance(record, PartitionChanged) and record.unclean
        }
        asked = (
            {(change.topic_id, change.partition): {id_ for id_, _ in change.isr} for change in step.changes}
            if isinstance(step, AlterPartition)
            else {}
        )
        for name, now in self.image.topics.items():
            was = before.topics.get(name)
            if was is None or was.id != now.id:
                continue
            for old, new in zip(was.partitions, now.partitions, strict=False):
                key = now.id, new.index
                assert new.leader_epoch >= old.leader_epoch
                assert new.partition_epoch >= old.partition_epoch
                assert new == old or new.partition_epoch > old.partition_epoch
                assert new.leader == old.leader or new.leader_epoch > old.leader_epoch
                if new.leader not in (old.leader, NO_LEADER) and key not in flagged:
                    assert new.leader in {*old.isr, *asked.get(key, ())}
                if not set(new.isr) <= set(old.isr) and key not in flagged:
                    assert set(new.isr) <= asked[key]
                if old.isr and not new.isr:
                    self.replaced.add((name, new.index))

    def epoch(self, broker_id: int) -> int:
        broker = self.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    @rule(brokers=st.lists(BROKERS, max_size=3))
    def fence(self, brokers: list[int]) -> None:
        self.do(FenceBrokers(brokers=tuple((id_, self.epoch(id_)) for id_ in brokers)))

    @rule(broker=BROKERS)
    def unfence(self, broker: int) -> None:
        self.do(UnfenceBroker(broker_id=broker, broker_epoch=self.epoch(broker)))

    @rule(broker=BROKERS)
    def stop(self, broker: int) -> None:
        may_go = self.do(ControlledShutdown(broker_id=broker, broker_epoch=self.epoch(broker)))
        if may_go is not None:
            for found in self.image.topics.values():
                for partition in found.partitions:
                    assert partition.leader != broker or partition.isr == (broker,)

    @rule(broker=BROKERS)
    def unregister(self, broker: int) -> None:
        self.do(UnregisterBroker(broker_id=broker))

    @rule(broker=BROKERS, clean=st.booleans(), same_disk=st.booleans())
    def register(self, broker: int, clean: bool, same_disk: bool) -> None:
        self.lives += 1
        known = self.image.brokers.get(broker)
        disks = (UUID(int=1000 + self.lives),)
        if same_disk and known is not None:
            disks = known.directories
        self.do(
            replace(
                registration(broker),
                incarnation=UUID(int=self.lives),
                directories=disks,
                clean_epoch=self.epoch(broker) if clean else -1,
            )
        )

    @rule(name=NAMES, index=INDEXES, isr=REPLICAS, stale=st.booleans(), honest=st.booleans())
    def alter(self, name: str, index: int, isr: tuple[int, ...], stale: bool, honest: bool) -> None:
        partition = self.image.partition(name, index)
        if partition is None or partition.leader == NO_LEADER:
            return
        if honest:
            isr = tuple({partition.leader: 0, **dict.fromkeys(set(isr) & set(partition.replicas))})
        change = IsrChange(
            topic_id=self.image.topics[name].id,
            partition=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch - stale,
            isr=tuple((id_, self.epoch(id_)) for id_ in isr),
        )
        leader = partition.leader
        (result,) = self.do(
            AlterPartition(broker_id=leader, broker_epoch=self.epoch(leader), changes=(change,))
        )
        if result.image is not None:
            assert result.image == self.image.partition(name, index)

    @rule(
        kind=st.sampled_from(ElectionType), refs=st.none() | st.lists(st.tuples(NAMES, INDEXES), max_size=3)
    )
    def elect(self, kind: ElectionType, refs: list[tuple[str, int]] | None) -> None:
        self.do(ElectLeaders(election_type=kind, partitions=None if refs is None else tuple(refs)))

    @rule()
    def rebalance(self) -> None:
        self.do(RebalanceLeaders())

    @rule()
    def elect_unclean(self) -> None:
        self.do(ElectUncleanLeaders())

    @rule(name=NAMES, value=st.sampled_from(["true", "false"]))
    def allow(self, name: str, value: str) -> None:
        setting = "unclean.leader.election.enable"
        self.do(ConfigChanged(resource_type=2, resource_name=name, name=setting, value=value))

    @rule(name=NAMES, index=INDEXES, replicas=st.none() | REPLICAS, allow=st.booleans())
    def reassign(self, name: str, index: int, replicas: tuple[int, ...] | None, allow: bool) -> None:
        asked = Reassignment(topic=name, partition=index, replicas=replicas)
        self.do(AlterPartitionReassignments(reassignments=(asked,), allow_replication_factor_change=allow))

    @rule(name=NAMES, factor=st.integers(1, 4))
    def create(self, name: str, factor: int) -> None:
        self.do(CreateTopics(topics=(NewTopic(name=name, partitions=2, replication_factor=factor),)))

    @rule(name=NAMES)
    def grow(self, name: str) -> None:
        self.do(CreatePartitions(topics=(MorePartitions(name=name, count=3),)))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.do(DeleteTopics(topics=(TopicRef(name=name),)))
        if name not in self.image.topics:
            self.replaced = {key for key in self.replaced if key[0] != name}

    @invariant()
    def the_log_and_a_snapshot_of_it_are_the_state(self) -> None:
        assert fold(self.log) == self.image
        assert fold([(self.image.seq, self.image.snapshot_records())]) == self.image

    @invariant()
    def every_partition_is_in_order(self) -> None:
        image = self.image
        for found in image.topics.values():
            for partition in found.partitions:
                assert len(set(partition.replicas)) == len(partition.replicas) > 0
                assert set(partition.isr) <= set(partition.replicas)
                assert len(set(partition.isr)) == len(partition.isr)
                assert partition.isr or (found.name, partition.index) in self.replaced
                assert partition.leader in (*partition.isr, NO_LEADER)
                assert set(partition.adding) | set(partition.removing) <= set(partition.replicas)
                assert not set(partition.adding) & set(partition.removing)
                assert set(partition.replicas) - set(partition.removing)
                if partition.leader != NO_LEADER:
                    assert image.is_live(partition.leader)
                else:
                    assert not any(map(image.is_active, partition.isr))
                if len(partition.isr) > 1:
                    assert all(map(image.is_active, partition.isr))


TestReplication = Replication.TestCase
TestReplication.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
