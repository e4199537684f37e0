"""Stock clients against three brokers: librdkafka, aiokafka and kafka-python by any of them, Java's tools as
an operator uses them, and a consumer that reads from the replica next to it.
"""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import Java, unique, until
from tests.compat.samples import FIRST_MS, Sample, samples
from tests.compat.test_confluent import as_sample, consumer, produce, take
from tests.compat.test_java import CONFIGS, CONSOLE_CONSUMER, GROUPS, TOOLS, TOPICS, table

with warnings.catch_warnings():
    # kafka-python reads its schemas through an importlib function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonPartition
    from kafka.admin import NewTopic as PythonTopic

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(
        tmp_path_factory.mktemp("cluster"),
        settings={"replica.selector.class": RACK_AWARE},
        settings_of={node_id: {"broker.rack": f"rack-{node_id}"} for node_id in (1, 2, 3)},
    ) as running:
        yield running


@pytest.fixture
def follower(cluster: ClusterProcesses) -> str:
    """The address of a broker that is not the controller."""
    controller = cluster.controller()
    return cluster.address(next(node_id for node_id in cluster.node_ids if node_id != controller))


@pytest.fixture
def tool(java: Java, follower: str) -> Tool:
    """Runs a tool of Kafka's against a broker that is not the controller."""

    def run(main: str, *arguments: str) -> str:
        return java.run(main, "--bootstrap-server", follower, *arguments)

    return run


# --- clients ------------------------------------------------------------------------------------------------


def test_librdkafka_by_any_of_them(cluster: ClusterProcesses) -> None:
    topic, sent = cluster.make_topic(3), samples()
    for partition in range(3):
        for node_id in cluster.node_ids:
            produce(cluster.address(node_id), topic, sent, partition=partition, acks="all")
    with consumer(cluster.address(2)) as reader:
        reader.subscribe([topic])
        got = take(reader, 9 * len(sent), timeout_s=60)
    for partition in range(3):
        assert [as_sample(one) for one in got if one.partition() == partition] == sent * 3


def test_configs_change_through_any_of_them(cluster: ClusterProcesses, follower: str) -> None:
    topic = cluster.make_topic()
    admin = AdminClient({"bootstrap.servers": follower})
    entry = ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)

    def seen_by(node_id: int) -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        asking = AdminClient({"bootstrap.servers": cluster.address(node_id)})
        found = asking.describe_configs([asked])[asked]
        return bool(found.result(timeout=20)["retention.ms"].value == "123456")

    for node_id in cluster.node_ids:
        until(lambda node_id=node_id: seen_by(node_id), f"broker {node_id} to know")  # type: ignore[misc]


async def test_aiokafka_across_them(cluster: ClusterProcesses) -> None:
    topic = await asyncio.get_running_loop().run_in_executor(None, cluster.make_topic, 3)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.address(1), enable_idempotence=True)
    await producer.start()
    try:
        for number in range(300):
            await producer.send(topic, b"%d" % number, partition=number % 3)
        await producer.flush()
    finally:
        await producer.stop()
    reader = AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.address(3), group_id=unique("group"), auto_offset_reset="earliest"
    )
    await reader.start()
    try:
        got = [await asyncio.wait_for(reader.getone(), SETTLE_S) for _ in range(300)]
    finally:
        await reader.stop()
    for partition in range(3):
        values = [int(one.value) for one in got if one.partition == partition]
        assert values == list(range(partition, 300, 3))


def test_kafka_python_across_them(cluster: ClusterProcesses, follower: str) -> None:
    topic = unique("topic")
    admin = KafkaAdminClient(bootstrap_servers=follower)
    try:
        admin.create_topics([PythonTopic(topic, 3, 3)])
    finally:
        admin.close()
    cluster.wait_whole(topic)
    producer = KafkaProducer(bootstrap_servers=cluster.address(1), acks="all")
    try:
        for number in range(300):
            producer.send(topic, b"%d" % number, partition=number % 3)
        producer.flush(30)
    finally:
        producer.close()
    reader = KafkaConsumer(bootstrap_servers=cluster.address(2), consumer_timeout_ms=20_000)
    try:
        reader.assign([PythonPartition(topic, partition) for partition in range(3)])
        reader.seek_to_beginning()
        got = [next(reader) for _ in range(300)]
    finally:
        reader.close()
    for partition in range(3):
        values = [int(one.value) for one in got if one.partition == partition]
        assert values == list(range(partition, 300, 3))


# --- Java's tools -------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_java_creates_describes_and_configures(tool: Tool, cluster: ClusterProcesses) -> None:
    topic = unique("topic")
    made = ("--partitions", "4", "--replication-factor", "3", "--config", "min.insync.replicas=2")
    assert f"Created topic {topic}." in tool(TOPICS, "--create", "--topic", topic, *made)
    cluster.wait_whole(topic)
    head, *rows = tool(TOPICS, "--describe", "--topic", topic).splitlines()
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 3\s+Configs: .*min.insync.replicas=2", head)
    for row in rows:
        found = re.search(r"Leader: (\d)\s+Replicas: (\S+)\s+Isr: (\S+)", row)
        assert found is not None
        assert found[1] == found[2].split(",")[0]
        assert sorted(found[2].split(",")) == sorted(found[3].split(",")) == ["1", "2", "3"]
    assert tool(TOPICS, "--describe", "--under-replicated-partitions").strip() == ""
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tool(CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=7200000")
    assert "retention.ms=7200000" in tool(CONFIGS, "--describe", *of_topic)
    of_broker = ("--entity-type", "brokers", "--entity-name", "3")
    tool(CONFIGS, "--alter", *of_broker, "--add-config", "log.cleaner.backoff.ms=14000")
    assert "log.cleaner.backoff.ms=14000" in tool(CONFIGS, "--describe", *of_broker)
    tool(TOPICS, "--delete", "--topic", topic)


@pytest.mark.kafka
def test_java_reassigns_partitions(tool: Tool, cluster: ClusterProcesses, tmp_path: Path) -> None:
    topic = cluster.make_topic(2, replicas=1, config={"min.insync.replicas": "1"})
    before = {row.partition_index: row.leader_id for row in cluster.partitions(topic)}
    for partition in before:
        produce(cluster.bootstrap, topic, samples(200), partition=partition, acks="all")
    held = {partition: cluster.read(topic, partition) for partition in before}
    others = {
        partition: [node_id for node_id in cluster.node_ids if node_id != leader]
        for partition, leader in before.items()
    }
    plan = tmp_path / "plan.json"
    moves = [
        {"topic": topic, "partition": partition, "replicas": replicas, "log_dirs": ["any", "any"]}
        for partition, replicas in others.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    reassign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    said = tool(reassign, "--reassignment-json-file", str(plan), "--execute", "--throttle", "50000000")
    assert "Successfully started partition reassignments" in said

    def is_over() -> bool:
        seen = tool(reassign, "--reassignment-json-file", str(plan), "--verify")
        return seen.count("is completed.") == 2

    until(is_over, "the reassignment", timeout_s=SETTLE_S)
    assert "No partition reassignments found." in tool(reassign, "--list")
    cluster.wait_whole(topic)
    for row in cluster.partitions(topic):
        assert list(row.replica_nodes) == others[row.partition_index]
        assert row.leader_id != before[row.partition_index]
        assert cluster.read(topic, row.partition_index) == held[row.partition_index]
        gone = cluster.data(before[row.partition_index]) / f"{topic}-{row.partition_index}"
        until(lambda gone=gone: not gone.exists(), "the old replica's files to go", timeout_s=120)  # type: ignore[misc]


@pytest.mark.kafka
def test_java_moves_leaders_back(tool: Tool, cluster: ClusterProcesses) -> None:
    topic = cluster.make_topic(3)
    preferred = {row.partition_index: row.replica_nodes[0] for row in cluster.partitions(topic)}
    cluster.stop(2)
    until(
        lambda: all(row.leader_id not in (2, -1) for row in cluster.partitions(topic)),
        "leaders elsewhere",
        timeout_s=SETTLE_S,
    )
    cluster.rise(2)
    cluster.wait_whole(topic)
    moved = [row.partition_index for row in cluster.partitions(topic) if preferred[row.partition_index] == 2]
    said = tool(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    assert all(f"{topic}-{partition}" in said for partition in moved)
    until(
        lambda: {row.partition_index: row.leader_id for row in cluster.partitions(topic)} == preferred,
        "the preferred leaders everywhere",
    )


@pytest.mark.kafka
def test_java_is_told_of_quorum_brokers_and_log_dirs(
    java: Java, tool: Tool, cluster: ClusterProcesses
) -> None:
    status = tool(f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
    leader = re.search(r"LeaderId:\s+(\d)", status)
    assert leader is not None
    assert int(leader[1]) == cluster.controller()
    replication = tool(f"{TOOLS}.MetadataQuorumCommand", "describe", "--replication")
    assert f"{leader[1]}" in replication
    (endpoints,) = (
        java.run(f"{TOOLS}.ClusterTool", command, "--bootstrap-server", cluster.address(2))
        for command in ("list-endpoints",)
    )
    for node_id in cluster.node_ids:
        host, port = cluster.address(node_id).split(":")
        assert re.search(rf"^{node_id}\s+{host}\s+{port}\s+rack-{node_id}", endpoints, re.MULTILINE)
    topic = cluster.make_topic()
    produce(cluster.bootstrap, topic, samples(10), acks="all")
    said = tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    ((brokers),) = [json.loads(line)["brokers"] for line in said.splitlines() if line.startswith("{")]
    sizes = {each["broker"]: each["logDirs"][0]["partitions"][0]["size"] for each in brokers}
    assert set(sizes) == set(cluster.node_ids)
    assert len(set(sizes.values())) == 1


@pytest.mark.kafka
def test_java_groups_across_brokers(java: Java, tool: Tool, cluster: ClusterProcesses) -> None:
    topic, groups = cluster.make_topic(3), [unique("group") for _ in range(4)]
    sent = [Sample(key=None, value=b"text", timestamp_ms=FIRST_MS)] * 20
    for partition in range(3):
        produce(cluster.bootstrap, topic, sent, partition=partition)
    for group in groups:
        tool(
            CONSOLE_CONSUMER,
            *("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "60"),
        )
    listed = tool(GROUPS, "--list").split()
    assert set(groups) <= set(listed)
    for group in groups:
        rows = table(tool(GROUPS, "--describe", "--group", group))
        assert sum(int(row["CURRENT-OFFSET"]) for row in rows) == 60


@pytest.mark.kafka
def test_java_unregisters_a_broker_that_is_gone(java: Java, tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path) as small:
        gone = next(node_id for node_id in small.node_ids if node_id != small.controller())
        small.make_topic(3)
        small.stop(gone)
        asked = small.address(small.awake[0])
        cluster_tool = f"{TOOLS}.ClusterTool"

        def endpoints() -> str:
            return java.run(
                cluster_tool, "list-endpoints", "--include-fenced-brokers", "--bootstrap-server", asked
            )

        assert re.search(rf"^{gone}\s.*\sfenced", endpoints(), re.MULTILINE)
        java.run(cluster_tool, "unregister", "--bootstrap-server", asked, "--id", str(gone))
        until(lambda: not re.search(rf"^{gone}\s", endpoints(), re.MULTILINE), "the broker to be forgotten")
        small.rise(gone)
        again = small.make_topic(3)
        assert any(gone in row.replica_nodes for row in small.partitions(again))


# --- the nearest replica ------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: ClusterProcesses, node_id: int) -> None:
    topic, sent = cluster.make_topic(), samples(100)
    read_from: list[int] = []

    def told(statistics: str) -> None:
        partition = json.loads(statistics)["topics"].get(topic, {}).get("partitions", {}).get("0")
        read_from.append(-1 if partition is None else partition["broker"])

    rack = {"client.rack": f"rack-{node_id}", "statistics.interval.ms": 100, "stats_cb": told}
    produce(cluster.bootstrap, topic, sent, acks="all")
    with consumer(cluster.bootstrap, **rack) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        got = [as_sample(one) for one in take(reader, len(sent))]
        until(lambda: reader.poll(0.05) or read_from[-1:] == [node_id], "the replica of its own rack")
        produce(cluster.bootstrap, topic, sent, acks="all")
        got += [as_sample(one) for one in take(reader, len(sent))]
        assert read_from[-1] == node_id
    assert got == sent * 2
