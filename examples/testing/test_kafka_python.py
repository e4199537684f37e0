"""kafka-python: what all replicas have is there when a broker is killed, and more is taken without it."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer

from pytest_tidewal import TidewalCluster


def test_a_killed_broker_loses_nothing(tidewal_cluster: TidewalCluster, tidewal_topic_prefix: str) -> None:
    topic = f"{tidewal_topic_prefix}payments"
    tidewal_cluster.admin.create_topic(topic, partitions=3, config={"min.insync.replicas": "2"})
    producer = KafkaProducer(bootstrap_servers=tidewal_cluster.bootstrap_servers.split(","), acks="all")
    for number in range(30):
        producer.send(topic, f"{number}".encode(), partition=number % 3).get(timeout=30)
    tidewal_cluster.brokers[0].kill()
    for number in range(30, 60):
        producer.send(topic, f"{number}".encode(), partition=number % 3).get(timeout=30)
    producer.close()
    tidewal_cluster.brokers[0].start()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=tidewal_cluster.bootstrap_servers.split(","),
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    found = sorted(int(next(consumer).value) for _ in range(60))
    consumer.close()
    assert found == list(range(60))
