"""confluent-kafka: what is sent to a topic comes back in order, and the group knows how far it has read."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from pytest_tidewal import TidewalBroker


def read(broker: TidewalBroker, topic: str, group: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, timeout=30)
        consumer.commit(asynchronous=False)
        return [message.value() for message in messages]
    finally:
        consumer.close()


@pytest.mark.tidewal_topic(partitions=1, config={"retention.ms": "60000"})
def test_orders_arrive_once_and_in_order(
    tidewal_broker: TidewalBroker, tidewal_topic: str, tidewal_topic_prefix: str
) -> None:
    producer = Producer({"bootstrap.servers": tidewal_broker.bootstrap_servers, "enable.idempotence": True})
    for number in range(10):
        producer.produce(tidewal_topic, f"order {number}".encode())
    assert producer.flush(30) == 0
    group = f"{tidewal_topic_prefix}billing"
    assert read(tidewal_broker, tidewal_topic, group, 6) == [f"order {n}".encode() for n in range(6)]
    assert read(tidewal_broker, tidewal_topic, group, 4) == [f"order {n}".encode() for n in range(6, 10)]
