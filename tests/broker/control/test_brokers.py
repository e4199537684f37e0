"""How brokers join, are fenced and come back, stop and leave; and who gets which producer ids."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from broker.config.broker import from_properties
from broker.control.brokers import (
    AllocateProducerIds,
    ControlledShutdown,
    FenceBrokers,
    UnfenceBroker,
    UnregisterBroker,
)
from broker.control.image import Image, fold
from broker.control.metadata_records import (
    NO_LEADER,
    BrokerFenced,
    BrokerRegistered,
    ConfigChanged,
    PartitionChanged,
    new_partition,
)
from broker.control.topics import CreateTopics, NewTopic
from broker.endpoint import Endpoint
from protocol.errors import ErrorCode
from tests.broker.control.decisions import (
    CONFIG,
    carry_out,
    cluster,
    code,
    decided,
    refused,
    registration,
    topic,
)

UNCLEAN = ConfigChanged(
    resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"
)


def state(image: Image, index: int = 0, name: str = "t") -> tuple[int, int, tuple[int, ...]]:
    """(leader, leader epoch, ISR)"""
    partition = image.partition(name, index)
    assert partition is not None
    return partition.leader, partition.leader_epoch, partition.isr


def epoch(image: Image, broker_id: int) -> int:
    return image.brokers[broker_id].epoch


def fence(image: Image, *broker_ids: int) -> None:
    carry_out(image, FenceBrokers(brokers=tuple((id_, epoch(image, id_)) for id_ in broker_ids)))


# --- joining ---


def test_a_registration_is_for_this_cluster_and_a_free_id() -> None:
    image = cluster()
    assert carry_out(image, registration(4)) is None
    assert image.is_active(4)
    assert refused(image, replace(registration(5), cluster_id="other")) == (
        ErrorCode.inconsistent_cluster_id,
        "Expected cluster ID c, but got cluster ID other",
    )
    taken = replace(registration(4), incarnation=UUID(int=44), others_alive=frozenset({4}))
    assert refused(image, taken)[0] is ErrorCode.duplicate_broker_registration
    carry_out(image, replace(taken, others_alive=frozenset({1})))
    assert image.brokers[4].incarnation == UUID(int=44)


@pytest.mark.parametrize(
    ("directories", "message"),
    [
        ((), "No directories specified in request"),
        ((UUID(int=1),), "Reserved directory ID in request"),
        ((UUID(int=500), UUID(int=500)), "Duplicate directory ID in request"),
        ((UUID(int=102),), f"Broker 2 is already registered with directory {UUID(int=102)}"),
    ],
)
def test_a_registration_names_its_own_directories(directories: tuple[UUID, ...], message: str) -> None:
    command = replace(registration(4), directories=directories)
    assert refused(cluster(), command) == (ErrorCode.invalid_registration, message)


def test_an_incarnation_that_asks_again_keeps_its_epoch() -> None:
    image = cluster()
    carry_out(image, topic((1, 2)))
    again = replace(registration(1), others_alive=frozenset({1}))
    assert decided(image, again).records == ()
    fence(image, 2)
    before = image.copy()
    moved = Endpoint(listener="PLAINTEXT", host="elsewhere", port=1)
    carry_out(image, replace(registration(2), endpoints=(moved,)))
    assert image.brokers[2] == replace(before.brokers[2], endpoints=(moved,))
    assert image.topics == before.topics


def test_a_broker_that_was_unregistered_has_an_unknown_disk() -> None:
    image = cluster()
    carry_out(image, topic((2,), (2, 1)))
    carry_out(image, UnregisterBroker(broker_id=2))
    assert state(image, 0) == (NO_LEADER, 1, (2,))
    carry_out(image, registration(2))
    assert state(image, 0) == (NO_LEADER, 2, ())
    assert state(image, 1) == (1, 1, (1,))


def test_a_changed_disk_leads_nothing_even_where_losing_records_is_allowed() -> None:
    image = cluster()
    carry_out(image, topic((2, 3)), UNCLEAN)
    fence(image, 3)
    fence(image, 2)
    assert state(image) == (NO_LEADER, 1, (2,))
    other_disk = replace(registration(2), incarnation=UUID(int=22), directories=(UUID(int=200),))
    carry_out(image, other_disk)
    assert state(image) == (NO_LEADER, 2, ())
    carry_out(image, UnfenceBroker(broker_id=3, broker_epoch=epoch(image, 3)))
    # Once all are back, the first replica is as good as any.
    assert state(image) == (2, 3, (2,))


# --- fenced and back ---


def test_many_are_fenced_in_one_slot_and_their_partitions_follow() -> None:
    image = cluster(4)
    carry_out(image, topic((1, 2, 3), (2, 3, 1), (4,), (1, 2), (3, 4)))
    decision = decided(
        image, FenceBrokers(brokers=((1, epoch(image, 1)), (2, epoch(image, 2)), (3, 1), (9, 1)))
    )
    assert [record.broker_id for record in decision.records] == [1, 2]  # type: ignore[union-attr]
    fence(image, 1, 2)
    assert state(image, 0) == (3, 2, (3,))
    assert state(image, 1) == (3, 1, (3,))
    assert state(image, 2) == (4, 0, (4,))
    assert state(image, 3) == (NO_LEADER, 2, (2,))
    assert state(image, 4) == (3, 0, (3, 4))


def test_who_is_fenced_already_is_not_fenced_again() -> None:
    image = cluster()
    fence(image, 1)
    again = FenceBrokers(brokers=((1, epoch(image, 1)),) * 2)
    assert decided(image, again).records == ()


def test_the_next_leader_is_the_first_replica_in_sync() -> None:
    image = cluster(4)
    carry_out(image, topic((1, 4, 3, 2)))
    topic_id = image.topics["t"].id
    image.apply_slot(image.seq + 1, [PartitionChanged(topic_id=topic_id, partition=0, isr=(2, 1, 3))])
    fence(image, 1)
    assert state(image) == (3, 1, (2, 3))


def test_a_sole_member_leads_again_when_its_session_is_back() -> None:
    image = cluster()
    carry_out(image, topic((1,), (1, 2)))
    fence(image, 1)
    assert state(image, 0) == (NO_LEADER, 1, (1,))
    stale = UnfenceBroker(broker_id=1, broker_epoch=99)
    assert refused(image, stale)[0] is ErrorCode.stale_broker_epoch
    carry_out(image, UnfenceBroker(broker_id=1, broker_epoch=epoch(image, 1)))
    assert state(image, 0) == (1, 2, (1,))
    assert state(image, 1) == (2, 1, (2,))
    assert decided(image, UnfenceBroker(broker_id=1, broker_epoch=epoch(image, 1))).records == ()


@pytest.mark.parametrize("where", ["topic", "broker"])
def test_losing_records_is_better_than_waiting_where_the_owner_says_so(where: str) -> None:
    image = cluster()
    carry_out(image, topic((1, 2)), topic((1, 3), name="u"))
    fence(image, 2)
    carry_out(image, UnfenceBroker(broker_id=2, broker_epoch=epoch(image, 2)))
    config = CONFIG
    if where == "topic":
        image.apply_slot(image.seq + 1, [UNCLEAN])
    else:
        config = from_properties({"unclean.leader.election.enable": "true"})
        image.apply_slot(image.seq + 1, [replace(UNCLEAN, resource_name="u", value="false")])
    fence(image, 3)
    command = FenceBrokers(brokers=((1, epoch(image, 1)),))
    decision = decided(image, command, config=config)
    flagged = [record for record in decision.records if isinstance(record, PartitionChanged)]
    assert [(record.leader, record.isr, record.unclean) for record in flagged] == [(2, (2,), True)]
    image.apply_slot(image.seq + 1, decision.records)
    assert state(image) == (2, 2, (2,))
    assert state(image, name="u") == (NO_LEADER, 1, (1,))


def test_a_fence_of_five_thousand_partitions_is_one_record() -> None:
    image = cluster(3)
    partitions = tuple(
        new_partition(at, replicas, replicas)
        for at, replicas in enumerate([(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 1700)
    )
    made = decided(image, CreateTopics(topics=(NewTopic(name="t", partitions=1),))).records[0]
    image.apply_slot(image.seq + 1, [replace(made, partitions=partitions)])  # type: ignore[call-arg]
    decision = decided(image, FenceBrokers(brokers=((1, epoch(image, 1)),)))
    assert len(decision.records) == 1
    delta = image.apply_slot(image.seq + 1, decision.records)
    assert set(delta.topics_changed) == {"t"}
    assert all(1 not in partition.isr for partition in image.topics["t"].partitions)


# --- leaving ---


def stop(image: Image, broker_id: int) -> bool:
    answer = carry_out(image, ControlledShutdown(broker_id=broker_id, broker_epoch=epoch(image, broker_id)))
    assert isinstance(answer, bool)
    return answer


def test_a_stopping_broker_hands_over_what_it_leads_before_it_may_go() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (2, 1), (1,)))
    assert stop(image, 1) is False
    assert state(image, 0) == (2, 1, (2,))
    assert state(image, 1) == (2, 0, (2,))
    assert state(image, 2) == (1, 0, (1,))
    assert image.is_live(1)
    assert not image.is_active(1)
    assert stop(image, 1) is True


def test_a_broker_that_is_alone_comes_back_to_partitions_that_never_changed() -> None:
    image = cluster(1)
    carry_out(image, topic((1,), (1,)))
    before = image.topics["t"]
    assert stop(image, 1) is True
    back = replace(registration(1), incarnation=UUID(int=11), clean_epoch=epoch(image, 1))
    carry_out(image, back)
    assert image.is_active(1)
    assert image.topics["t"] is before


def test_a_stopping_broker_is_given_nothing_more() -> None:
    image = cluster(2)
    stop(image, 1)
    carry_out(image, CreateTopics(topics=(NewTopic(name="t", partitions=4, replication_factor=1),)))
    assert {partition.replicas for partition in image.topics["t"].partitions} == {(2,)}
    (too_many,) = carry_out(  # type: ignore[misc]
        image, CreateTopics(topics=(NewTopic(name="u", replication_factor=2),))
    )
    assert code(too_many.error) is ErrorCode.invalid_replication_factor
    manual = NewTopic(name="m", assignments=((0, (1, 2)), (1, (2, 1))))
    carry_out(image, CreateTopics(topics=(manual,)))
    assert state(image, 0, "m") == (2, 0, (2,))


def test_a_stopping_broker_that_was_fenced_may_go_and_does_not_come_back() -> None:
    image = cluster()
    carry_out(image, topic((1,)))
    stop(image, 1)
    fence(image, 1)
    assert state(image) == (NO_LEADER, 1, (1,))
    assert stop(image, 1) is True
    carry_out(image, UnfenceBroker(broker_id=1, broker_epoch=epoch(image, 1)))
    assert not image.is_live(1)
    clean = replace(registration(1), incarnation=UUID(int=11), clean_epoch=epoch(image, 1))
    carry_out(image, clean)
    assert state(image) == (1, 2, (1,))


def test_a_stopping_broker_is_not_brought_back_by_its_session() -> None:
    image = cluster()
    carry_out(image, topic((1,)))
    stop(image, 1)
    fence(image, 1)
    before = image.topics["t"]
    carry_out(image, BrokerFenced(broker_id=1, broker_epoch=epoch(image, 1), fenced=False))
    assert image.topics["t"] is before


def test_a_stop_is_asked_for_by_a_living_incarnation() -> None:
    for broker_id, broker_epoch in ((1, 99), (9, 1)):
        command = ControlledShutdown(broker_id=broker_id, broker_epoch=broker_epoch)
        assert refused(cluster(), command)[0] is ErrorCode.stale_broker_epoch


def test_unregistering_is_for_good_and_for_others() -> None:
    image = cluster()
    carry_out(image, topic((2, 3), (2,), (1, 2)))
    assert refused(image, UnregisterBroker(broker_id=9)) == (
        ErrorCode.broker_id_not_registered,
        "Broker ID 9 is not currently registered",
    )
    assert refused(image, UnregisterBroker(broker_id=1))[0] is ErrorCode.invalid_request
    image.apply_slot(image.seq + 1, [UNCLEAN])
    carry_out(image, UnregisterBroker(broker_id=2))
    assert 2 not in image.brokers
    assert state(image, 0) == (3, 1, (3,))
    assert state(image, 1) == (NO_LEADER, 1, (2,))
    assert state(image, 2) == (1, 0, (1,))


def test_a_snapshot_knows_who_is_stopping() -> None:
    image = cluster()
    stop(image, 2)
    assert fold([(image.seq, image.snapshot_records())]) == image


def test_a_fenced_registration_leads_nothing() -> None:
    image = cluster()
    carry_out(image, topic((1, 2), (1,)))
    record = registration(1).record()
    again = BrokerRegistered(
        broker_id=1,
        incarnation=UUID(int=11),
        directories=record.directories,
        endpoints=record.endpoints,
        clean_epoch=epoch(image, 1),
        fenced=True,
    )
    image.apply_slot(image.seq + 1, [again])
    assert state(image, 0) == (2, 1, (2,))
    assert state(image, 1) == (NO_LEADER, 1, (1,))


# --- producer ids ---


def test_producer_ids_are_handed_out_once() -> None:
    image = cluster()
    blocks = [
        carry_out(image, AllocateProducerIds(broker_id=broker, broker_epoch=broker + 1))
        for broker in (1, 2, 1)
    ]
    assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]


@pytest.mark.parametrize(
    "command",
    [
        AllocateProducerIds(broker_id=1, broker_epoch=1),
        AllocateProducerIds(broker_id=9, broker_epoch=1),
    ],
)
def test_an_old_incarnation_gets_no_ids(command: AllocateProducerIds) -> None:
    assert refused(cluster(), command)[0] is ErrorCode.stale_broker_epoch
