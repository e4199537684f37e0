"""Replicas over a network in memory: what one leads the others have, and what they have they may lead."""

import asyncio
from typing import Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from tests.broker.replication_driver import Replicas


def test_what_is_acknowledged_by_all_is_on_every_replica() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(20):
            appended = await world.append(1, b"%d" % at)
            assert appended.first_offset == at
            for node in world.nodes.values():
                assert node.partition().log.log_end_offset > at
        await world.agree(1, 2, 3)
        assert world.nodes[3].values() == [b"%d" % at for at in range(20)]
        assert world.isr() == (1, 2, 3)

    Replicas().run(main)
