"""A member of its own and a client of its handlers: what the tests of cluster handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.metadata_records import BrokerFenced, BrokerRegistered, TopicCreated, new_partition
from broker.endpoint import Endpoint
from broker.handlers.acls import AclHandlers
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.configs import ConfigHandlers
from broker.handlers.dispatch import Handler
from broker.handlers.features import FeatureHandlers
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.topics import TopicHandlers
from tests.broker.control.cluster_driver import Site
from tests.broker.requests import Client

TOPIC_OPERATIONS = 0b1101_1111_1000
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
NOT_ASKED = -(2**31)
GONE = UUID(int=77)

Story = Callable[[Client, Cluster], Awaitable[None]]


def run(story: Story, *, listener: str = "PLAINTEXT", down: bool = False, **properties: str) -> None:
    site = Site()

    async def whole() -> None:
        member = await site.started(ports={"PLAINTEXT": 9092}, **properties)
        site.profile.down = down
        await story(Client(handlers(member), listener=listener), member)
        site.profile.heal()

    site.run(whole())


def handlers(member: Cluster) -> dict[int, Handler]:
    return {
        **AclHandlers().routes(),
        **FeatureHandlers(cluster=member).routes(),
        **ApiVersionsHandler(cluster=member).routes(),
        **MetadataHandlers(cluster=member).routes(),
        **TopicHandlers(cluster=member).routes(),
        **ConfigHandlers(cluster=member).routes(),
    }


def add_brokers(member: Cluster) -> None:
    """Brokers 2 (alive), 3 (fenced) and 4 (alive, without this listener), and a topic across all of them."""
    for broker_id, listener in ((2, "PLAINTEXT"), (3, "PLAINTEXT"), (4, "OTHER")):
        endpoint = Endpoint(listener=listener, host=f"host-{broker_id}", port=9000 + broker_id)
        record = BrokerRegistered(
            broker_id=broker_id,
            incarnation=UUID(int=broker_id),
            directories=(UUID(int=broker_id),),
            endpoints=(endpoint,),
            rack=f"rack-{broker_id}",
        )
        member.image.apply(record, 100 + broker_id)
    partitions = tuple(
        new_partition(index, replicas, replicas)
        for index, replicas in enumerate([(1, 2), (3, 1), (3,), (4, 1), (1,)])
    )
    member.image.apply(TopicCreated(name="wide", topic_id=UUID(int=9), partitions=partitions), 105)
    member.image.apply(BrokerFenced(broker_id=3, broker_epoch=103, fenced=True), 106)


def asked(version: int, *names: str) -> list[dict[str, Any]]:
    return [{"name": name, "topic_id": None} for name in names]
