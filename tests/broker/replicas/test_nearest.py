"""KIP-392: the nearest replica that has what is asked for, and never one that may not."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.control.image import Image
from broker.control.metadata_records import BrokerRegistered
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.partition import Partition
from tests.broker.replicas.test_partition import FakeLog, FakePeers, lead, partition_of, view_of

RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: None}


def image_of(*fenced: int) -> Image:
    image = Image()
    for node_id, rack in RACKS.items():
        image.apply(
            BrokerRegistered(
                broker_id=node_id,
                incarnation=UUID(int=node_id),
                directories=(),
                endpoints=(),
                rack=rack,
                fenced=node_id in fenced,
            ),
            node_id,
        )
    return image


def led_by_1(peers: FakePeers) -> Partition:
    log = FakeLog()
    log.log_end_offset = 100
    partition = partition_of(log, (1, 2, 3, 4, 5), (1, 2, 3, 5), peers=peers)
    partition.follower_at(2, 90, log_start=5)
    peers.at += 1
    partition.follower_at(3, 90, log_start=0)
    partition.follower_at(4, 90, log_start=0)
    return partition


@pytest.mark.parametrize(
    ("rack", "offset", "fenced", "chosen"),
    [
        ("a", 50, (), -1),
        ("b", 50, (), 2),
        ("b", 50, (2,), 3),
        ("b", 3, (), 3),
        ("b", 95, (), -1),
        ("b", 50, (2, 3), -1),
        ("c", 50, (), -1),
        ("nowhere", 50, (), -1),
    ],
    ids=[
        "the leader is as near",
        "equally far: the lower id",
        "a fenced one",
        "deleted at one of them",
        "not there yet",
        "nobody left",
        "out of sync",
        "no such rack",
    ],
)
def test_who_is_named(rack: str, offset: int, fenced: tuple[int, ...], chosen: int) -> None:
    partition = led_by_1(FakePeers())
    partition.maximal_isr = frozenset((1, 2, 3, 5))
    for follower in partition.followers():
        follower.caught_up_at = 0.0
    selector = ReplicaSelector(lambda: image_of(*fenced))
    assert selector.select(partition, rack, offset) == chosen


def test_the_one_that_is_furthest_comes_first_and_then_the_one_in_time() -> None:
    partition = led_by_1(FakePeers())
    selector = ReplicaSelector(lambda: image_of())
    two, three = partition.follower(2), partition.follower(3)
    assert two is not None
    assert three is not None
    two.end_offset = 95
    assert selector.select(partition, "b", 50) == 2
    three.end_offset, three.caught_up_at, two.caught_up_at = 95, 7.0, 6.0
    assert selector.select(partition, "b", 50) == 3


def test_a_follower_sends_nobody_away() -> None:
    partition = led_by_1(FakePeers())
    partition.follow(view_of((1, 2, 3), leader=2, leader_epoch=4, partition_epoch=6))
    assert ReplicaSelector(lambda: image_of()).select(partition, "b", 50) == -1
    assert lead(partition, view_of((1, 2, 3), leader_epoch=5, partition_epoch=7))
