"""aiokafka: a broker that is restarted under a client has lost nothing, and the client goes on."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from pytest_tidewal import TidewalBroker


def test_a_restart_loses_nothing(tidewal_broker: TidewalBroker, tidewal_topic: str) -> None:
    async def run() -> list[bytes]:
        at = tidewal_broker.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=at, acks="all") as producer:
            await producer.send_and_wait(tidewal_topic, b"before")
            await asyncio.to_thread(tidewal_broker.restart)
            await producer.send_and_wait(tidewal_topic, b"after")
        consumer = AIOKafkaConsumer(tidewal_topic, bootstrap_servers=at, auto_offset_reset="earliest")
        async with consumer:
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(2)]

    assert asyncio.run(run()) == [b"before", b"after"]
