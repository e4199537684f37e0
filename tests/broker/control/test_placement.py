"""Replicas go to brokers fairly, and across racks."""

from __future__ import annotations

from collections import Counter, defaultdict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.brokers import FenceBrokers, UnregisterBroker
from broker.control.image import BrokerImage
from broker.control.placement import place
from broker.control.topics import (
    CreatePartitions,
    MorePartitions,
    NewTopic,
)
from protocol.errors import ErrorCode, KafkaError
from tests.broker.control.decisions import carry_out, cluster, create


def some_broker(broker_id: int, rack: str | None, fenced: bool) -> BrokerImage:
    return BrokerImage(
        id=broker_id,
        epoch=broker_id,
        incarnation=UUID(int=broker_id),
        directories=(),
        endpoints=(),
        rack=rack,
        fenced=fenced,
    )


racks = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9
).filter(lambda brokers: any(not fenced for _, fenced in brokers))


@given(racks, st.integers(1, 40), st.data())
def test_placement_is_fair_and_spreads_over_racks(
    described: list[tuple[str | None, bool]], partitions: int, data: st.DataObject
) -> None:
    brokers = [some_broker(at, rack, fenced) for at, (rack, fenced) in enumerate(described)]
    factor = data.draw(st.integers(1, len(brokers)))
    start = data.draw(st.integers(0, 20))
    placed = [*place(brokers, partitions=partitions, replication_factor=factor, start=start)]
    live = {broker.id for broker in brokers if not broker.fenced}
    by_rack: dict[str | None, set[int]] = defaultdict(set)
    for broker in brokers:
        by_rack[broker.rack].add(broker.id)
    leaders = Counter(replicas[0] for replicas in placed)
    assert set(leaders) <= live
    assert max(leaders.values()) - min((leaders[broker] for broker in live), default=0) <= 1
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        for rack, members in by_rack.items():
            used = members.intersection(replicas)
            # A rack has fewer than another only when it has no more, and a fenced one when no other is left.
            assert used == members or all(
                len(by_rack[other].intersection(replicas)) <= len(used) + 1 for other in by_rack
            ), rack
            assert used <= live or live & members <= used


def test_second_replicas_move_on_after_each_round() -> None:
    brokers = [some_broker(at, None, False) for at in range(4)]
    placed = [*place(brokers, partitions=8, replication_factor=2, start=0)]
    assert placed[:4] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert placed[4:] == [(0, 2), (1, 3), (2, 0), (3, 1)]


@pytest.mark.parametrize("fenced", [True, False])
def test_placement_needs_brokers(fenced: bool) -> None:
    with pytest.raises(KafkaError) as caught:
        place([some_broker(1, None, fenced)], partitions=1, replication_factor=1 + (not fenced), start=0)
    assert caught.value.code is ErrorCode.invalid_replication_factor


def test_too_few_brokers_are_named_as_kafka_does() -> None:
    image = cluster(2)
    (result,) = create(image, NewTopic(name="t", partitions=1, replication_factor=3))
    assert result.error is not None
    few = (
        "The target replication factor of {} cannot be reached because only {} broker(s) are registered or "
        "some brokers have all their log directories cordoned."
    )
    assert result.error.message == f"Unable to replicate the partition 3 time(s): {few.format(3, 2)}"
    create(image, NewTopic(name="t", partitions=1, replication_factor=2))
    carry_out(image, UnregisterBroker(broker_id=2))
    more = CreatePartitions(topics=(MorePartitions(name="t", count=2),))
    ((_, error),) = carry_out(image, more)
    assert error is not None
    assert error.message == few.format(2, 1)
    carry_out(image, FenceBrokers(brokers=((1, image.brokers[1].epoch),)))
    ((_, error),) = carry_out(image, more)
    assert error is not None
    assert error.message == "All brokers are currently fenced."


def test_a_rack_whose_brokers_are_fenced_gets_its_replica() -> None:
    brokers = [some_broker(1, "a", False), some_broker(2, "a", False), some_broker(3, "b", True)]
    placed = [*place(brokers, partitions=4, replication_factor=2, start=0)]
    assert placed == [(1, 3), (2, 3), (1, 3), (2, 3)]
