"""Apache Kafka's own Java clients and tools, straight from the jars: one broker for all of them.

A JVM starts in one to two seconds, so each test tells a story with few tools rather than one tool per test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import MakeTopic
from tests.compat.peers import Java, unique, until

pytestmark = pytest.mark.kafka

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"


def events(lines: str | Iterable[str]) -> list[dict[str, Any]]:
    """The verifiable clients print one JSON object a line."""
    given = lines.splitlines() if isinstance(lines, str) else lines
    return [json.loads(line) for line in given if line.startswith("{")]


def named(said: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in said if event["name"] == name]


def table(text: str) -> list[dict[str, str]]:
    """A tool's table: the row that starts with GROUP names the columns."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    at = next(index for index, row in enumerate(rows) if row[0] == "GROUP")
    return [dict(zip(rows[at], row, strict=False)) for row in rows[at + 1 :]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_consumer_prints_what_the_console_producer_was_given(
    java: Java, bootstrap: str, topic: str, codec: str
) -> None:
    lines = [f"key {n}\tvalue {n} of {codec}" for n in range(200)]
    java.run(
        f"{TOOLS}.ConsoleProducer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec),
        *("--reader-property", "parse.key=true"),
        stdin="\n".join(lines) + "\n",
    )
    got = java.run(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--max-messages", "200"),
        *("--formatter-property", "print.key=true", "--timeout-ms", "20000"),
    )
    assert got.splitlines() == lines


@pytest.mark.parametrize("acks", ["-1", "1"])
def test_the_verifiable_consumer_counts_what_the_verifiable_producer_sent(
    java: Java, bootstrap: str, topic: str, acks: str
) -> None:
    said = events(
        java.run(
            f"{TOOLS}.VerifiableProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", "2000", "--acks", acks),
        )
    )
    sent = named(said, "producer_send_success")
    assert [event["offset"] for event in sent] == list(range(2000))
    assert named(said, "producer_send_error") == []
    said = events(
        java.run(
            f"{TOOLS}.VerifiableConsumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", unique("group")),
            *("--max-messages", "2000", "--reset-policy", "earliest", "--verbose"),
        )
    )
    data = named(said, "record_data")
    assert [(event["offset"], event["value"]) for event in data] == [(n, str(n)) for n in range(2000)]
    assert all(event["success"] for event in named(said, "offsets_committed"))


@pytest.mark.parametrize(
    "assignor", ["RangeAssignor", "CooperativeStickyAssignor"], ids=["eager", "cooperative"]
)
def test_java_members_share_a_group_as_they_come_and_go(
    java: Java, bootstrap: str, make_topic: MakeTopic, assignor: str
) -> None:
    topic, group = make_topic(partitions=4), unique("group")
    arguments = (
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group),
        *("--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}"),
        *("--reset-policy", "earliest"),
    )

    def owners() -> dict[str, int]:
        done = java.attempt(
            GROUPS, "--bootstrap-server", bootstrap, "--describe", "--group", group, "--members"
        )
        if done.returncode != 0 or "GROUP " not in done.stdout:
            return {}
        return {row["CONSUMER-ID"]: int(row["#PARTITIONS"]) for row in table(done.stdout)}

    with java.start(f"{TOOLS}.VerifiableConsumer", *arguments) as first:
        try:
            until(lambda: list(owners().values()) == [4], "one member to own all")
            with java.start(f"{TOOLS}.VerifiableConsumer", *arguments) as second:
                try:
                    until(lambda: list(owners().values()) == [2, 2], "two members to share")
                finally:
                    second.terminate()
            until(lambda: list(owners().values()) == [4], "the first to own all again")
        finally:
            first.terminate()


def test_topics_as_an_operator_handles_them(java: Java, bootstrap: str) -> None:
    name = unique("topic")
    server = ("--bootstrap-server", bootstrap)
    made = ("--topic", name, "--partitions", "3", "--config", "retention.ms=3600000")
    assert f"Created topic {name}." in java.run(TOPICS, *server, "--create", *made)
    again = java.attempt(TOPICS, *server, "--create", *made)
    assert again.returncode != 0
    assert "already exists" in again.stdout + again.stderr
    java.run(TOPICS, *server, "--alter", "--topic", name, "--partitions", "5")
    described = java.run(TOPICS, *server, "--describe", "--topic", name).splitlines()
    assert re.search(
        r"PartitionCount: 5\s+ReplicationFactor: 1\s+Configs: .*retention.ms=3600000", described[0]
    )
    assert [re.search(r"Partition: (\d+)\s+Leader: (\d+)", line).group(1) for line in described[1:]] == [  # type: ignore[union-attr]
        str(index) for index in range(5)
    ]
    assert name in java.run(TOPICS, *server, "--list").split()
    java.run(TOPICS, *server, "--delete", "--topic", name)
    assert name not in java.run(TOPICS, *server, "--list").split()


def test_configs_as_an_operator_handles_them(java: Java, bootstrap: str, topic: str) -> None:
    server = ("--bootstrap-server", bootstrap)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    java.run(CONFIGS, *server, "--alter", *of_topic, "--add-config", "max.message.bytes=2000000")
    described = java.run(CONFIGS, *server, "--describe", *of_topic)
    assert (
        "max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, "
        "DEFAULT_CONFIG:message.max.bytes=1048588}" in described
    )
    java.run(CONFIGS, *server, "--alter", *of_topic, "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in java.run(CONFIGS, *server, "--describe", *of_topic)
    of_all = ("--entity-type", "brokers", "--entity-default")
    java.run(CONFIGS, *server, "--alter", *of_all, "--add-config", "log.cleaner.backoff.ms=14000")
    assert "log.cleaner.backoff.ms=14000" in java.run(CONFIGS, *server, "--describe", *of_all)
    java.run(CONFIGS, *server, "--alter", *of_all, "--delete-config", "log.cleaner.backoff.ms")
    refused = java.attempt(CONFIGS, *server, "--alter", *of_topic, "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in refused.stdout + refused.stderr


def test_groups_offsets_and_records_as_an_operator_handles_them(
    java: Java, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    server, group = ("--bootstrap-server", bootstrap), unique("group")
    java.run(f"{TOOLS}.VerifiableProducer", *server, "--topic", topic, "--max-messages", "100")
    java.run(
        CONSOLE_CONSUMER,
        *server,
        "--topic",
        topic,
        "--group",
        group,
        "--from-beginning",
        "--max-messages",
        "40",
    )

    def lag() -> tuple[str, str, str]:
        (row,) = table(java.run(GROUPS, *server, "--describe", "--group", group))
        return row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]

    assert group in java.run(GROUPS, *server, "--list").split()
    assert lag() == ("40", "100", "60")
    java.run(
        GROUPS,
        *server,
        "--group",
        group,
        "--topic",
        topic,
        "--reset-offsets",
        "--to-offset",
        "7",
        "--execute",
    )
    assert lag() == ("7", "100", "93")

    wanted = tmp_path / "delete.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 25}]})
    )
    deleted = java.run(f"{TOOLS}.DeleteRecordsCommand", *server, "--offset-json-file", str(wanted))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 25", deleted)
    for time, offset in {"earliest": 25, "latest": 100, "-4": 25}.items():
        got = java.run(f"{TOOLS}.GetOffsetShell", *server, "--topic", topic, "--time", time)
        assert got.split() == [f"{topic}:0:{offset}"], time

    assert "successful" in java.run(GROUPS, *server, "--delete", "--group", group)
    assert group not in java.run(GROUPS, *server, "--list").split()


def test_the_broker_tells_its_log_dirs_and_its_api_versions(java: Java, bootstrap: str, topic: str) -> None:
    java.run(
        f"{TOOLS}.VerifiableProducer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--max-messages",
        "9",
    )
    said = java.run(
        f"{TOOLS}.LogDirsCommand", "--bootstrap-server", bootstrap, "--describe", "--topic-list", topic
    )
    ((broker,),) = [json.loads(line)["brokers"] for line in said.splitlines() if line.startswith("{")]
    (log_dir,) = broker["logDirs"]
    assert log_dir["error"] is None
    (partition,) = log_dir["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 0
    ranges = java.run(f"{TOOLS}.BrokerApiVersionsCommand", "--bootstrap-server", bootstrap)
    assert "Produce(0): 0 to 13 [usable: 13]" in ranges
    assert "Fetch(1): 4 to 18 [usable: 18]" in ranges
    assert "ListOffsets(2): 1 to 11 [usable: 11]" in ranges


def test_the_performance_tools_run_through(java: Java, bootstrap: str, topic: str) -> None:
    produced = java.run(
        f"{TOOLS}.ProducerPerformance",
        *(
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--num-records",
            "20000",
            "--record-size",
            "200",
        ),
        *("--throughput", "-1", "--command-property", "compression.type=lz4"),
    )
    assert "20000 records sent" in produced
    consumed = java.run(
        f"{TOOLS}.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "20000"),
    )
    columns = [cell.strip() for cell in consumed.splitlines()[-1].split(",")]
    assert int(columns[4]) == 20000
