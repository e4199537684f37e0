"""Clients that ask the wrong broker are told the right one."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.control.metadata_records import BrokerRegistered
from broker.endpoint import Endpoint
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import batch_of, fetch_fields, produce_fields
from tests.broker.replication_driver import LISTENER, PORT, Replicas


def advertise(world: Replicas, node_id: int, *endpoints: Endpoint) -> None:
    broker = world.controller.image.brokers[node_id]
    world.controller.publish(
        BrokerRegistered(
            broker_id=broker.id,
            incarnation=broker.incarnation,
            directories=broker.directories,
            endpoints=endpoints,
            rack=broker.rack,
            epoch=broker.epoch,
        )
    )


def hint_of(response: Any) -> tuple[Any, ...]:
    """Leader and epoch of the first partition, and the addresses told, of a Produce or a Fetch."""
    topic = response.responses[0]
    (answer,) = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    assert answer.error_code is ErrorCode.not_leader_or_follower
    leader = answer.current_leader
    return (
        (leader.leader_id, leader.leader_epoch),
        *((node.node_id, node.host, node.port) for node in response.node_endpoints),
    )


def test_who_asks_the_wrong_broker_is_told_the_right_one_on_its_own_listener() -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        node, outside = world.nodes[2], Endpoint(listener="OUTSIDE", host="public", port=443)
        await node.run(node.server.listen("OUTSIDE", "0.0.0.0", 9093))
        inside = Endpoint(listener=LISTENER, host="node1", port=PORT)
        requests: list[tuple[Api, int, dict[str, Any]]] = [
            (Api.PRODUCE, 10, produce_fields("t", batch_of(b"x"), acks=-1)),
            (Api.FETCH, 16, fetch_fields("t", 0, topic_id=Replicas.id_of("t"))),
        ]
        for endpoints, port, told in (
            ((inside,), PORT, [(1, "node1", PORT)]),
            ((outside, inside), PORT, [(1, "node1", PORT)]),
            ((outside, inside), 9093, [(1, "public", 443)]),
        ):
            advertise(world, 1, *endpoints)
            for api, version, fields in requests:
                response = await world.ask(2, api, version, port=port, **fields)
                assert hint_of(response) == ((1, 0), *told)
        advertise(world, 1, inside)
        for api, version, fields in requests:
            response = await world.ask(2, api, version, port=9093, **fields)
            assert hint_of(response) == ((1, 0),), "a leader without this listener"
        world.change(leader=-1)
        for api, version, fields in requests:
            response = await world.ask(2, api, version, **fields)
            assert hint_of(response) == ((-1, 1),), "nobody leads, in an epoch of its own"

    Replicas(2).run(main)


def test_who_waits_when_leadership_moves_is_told_where_it_went() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"x")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        produce = produce_fields("t", batch_of(b"y"), acks=-1)
        fetch = fetch_fields("t", 1, topic_id=Replicas.id_of("t"), min_bytes=1, max_wait=10_000)
        waiting = [
            asyncio.ensure_future(world.ask(1, Api.PRODUCE, 10, **produce)),
            asyncio.ensure_future(world.ask(1, Api.FETCH, 16, **fetch)),
        ]
        await world.until(lambda: world.nodes[1].partition().commit_waits)
        await world.until(lambda: world.nodes[1].partition().data_waiters)
        world.change(leader=2, replicas=(2,), isr=(2,))
        for answer in waiting:
            assert hint_of(await answer) == ((2, 1), (2, "node2", PORT))

    Replicas(2).run(main)
