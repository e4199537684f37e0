"""A member that is the controller, other brokers only known to it, and a topic across all of them: what tests
of handlers drive when it takes several brokers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from os.path import abspath
from typing import Any, cast
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.metadata_records import BrokerRegistered, TopicCreated, new_partition
from broker.endpoint import Endpoint
from broker.handlers.dispatch import Handler
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.peers import PeerHandlers
from broker.handlers.replicas import ReplicaHandlers
from tests.broker.control.cluster_driver import Site
from tests.broker.requests import Client

NOW_MS = 1_234_567
TOPIC = UUID(int=9)
GONE = UUID(int=77)

Story = Callable[[Client, Cluster], Awaitable[None]]


def run(story: Story, *, brokers: int = 3, down: bool = False, listener: str = "PLAINTEXT") -> None:
    """A member that is the controller, the others only known to it, and a topic across all of them."""
    site = Site()

    async def whole() -> None:
        member = await site.started(ports={"PLAINTEXT": 9092})
        for broker_id in range(2, brokers + 1):
            add_broker(member, broker_id)
        assignments = [(1, 2, 3), (2, 1), (1,)]
        partitions = tuple(new_partition(at, each, each) for at, each in enumerate(assignments))
        if brokers >= 3:
            apply(member, TopicCreated(name="t", topic_id=TOPIC, partitions=partitions))
        site.profile.down = down
        await story(Client(handlers(member), listener=listener), member)
        site.profile.heal()

    site.run(whole())


def handlers(member: Cluster) -> dict[int, Handler]:
    operators = ReplicaHandlers(
        cluster=member, logs=cast(Any, None), now_ms=lambda: NOW_MS, absolute_path=abspath
    )
    return {
        **operators.routes(),
        **PeerHandlers(cluster=member).routes(),
        **MetadataHandlers(cluster=member).routes(),
    }


def add_broker(member: Cluster, broker_id: int, *, listener: str = "PLAINTEXT") -> None:
    endpoint = Endpoint(listener=listener, host=f"host-{broker_id}", port=9000 + broker_id)
    record = BrokerRegistered(
        broker_id=broker_id,
        incarnation=UUID(int=broker_id),
        directories=(UUID(int=1000 + broker_id),),
        endpoints=(endpoint,),
        rack=f"rack-{broker_id}",
        epoch=100 + broker_id,
    )
    apply(member, record)


def apply(member: Cluster, *records: Any) -> None:
    """Into the image alone: what another controller may have committed."""
    for record in records:
        member.image.apply(record, member.image.seq)
