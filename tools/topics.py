"""`tidewal topics` and `tidewal offsets`: what a cluster's topics are, and how far each partition has come.

Owns the admin requests and how their answers are shown. Does not own the connection (tools.client) nor
options (tools.cli).
Invariant: a broker's refusal reaches the user with Kafka's name for it and the broker's own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol import messages
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.ids import encode_id
from protocol.peers import STORED_END
from tools.client import Client
from tools.console import Failure, emit, emit_json, emit_table

LATEST, EARLIEST, EARLIEST_LOCAL, LAST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
TOPIC_RESOURCE = 2
SET = 0
DELETE = 1
DYNAMIC_TOPIC_CONFIG = 1
TIMEOUT_MS = 30_000


async def create(
    client: Client,
    topic: str,
    *,
    partitions: int,
    replication: int,
    configs: Mapping[str, str],
    if_absent: bool,
) -> None:
    row = await asked_for(client, topic, partitions=partitions, replication=replication, configs=configs)
    if if_absent and row.error_code == ErrorCode.topic_already_exists:
        emit(f"topic {topic} is there already")
        return
    check_row(row, f"topic {topic}")
    made = messages.get(row, "num_partitions", partitions)
    emit(f"created topic {topic} with {made} partition{'s' if made != 1 else ''}")


async def asked_for(
    client: Client, topic: str, *, partitions: int, replication: int, configs: Mapping[str, str]
) -> Any:
    """Ask for a topic; return the row that answers it."""
    answer = await client.request_controller(
        Api.CREATE_TOPICS,
        {
            "topics": [
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": replication,
                    "assignments": [],
                    "configs": [{"name": name, "value": value} for name, value in configs.items()],
                }
            ],
            "timeout": TIMEOUT_MS,
            "validate_only": False,
        },
    )
    return answer.topics[0]


async def delete(client: Client, topics: Sequence[str]) -> None:
    for topic in topics:
        await delete_topic(client, topic)
        emit(f"deleted topic {topic}")


async def delete_topic(client: Client, topic: str) -> None:
    answer = await client.request_controller(
        Api.DELETE_TOPICS,
        {"topics": [{"name": topic, "topic_id": None}], "topic_names": [topic], "timeout": TIMEOUT_MS},
    )
    check_row(answer.responses[0], f"topic {topic}")


async def list_topics(client: Client, *, internal: bool, as_json: bool) -> None:
    answer = await client.refresh()
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replicas": len(topic.partitions[0].replica_nodes) if topic.partitions else 0,
            "internal": topic.is_internal,
        }
        for topic in sorted(answer.topics, key=lambda topic: topic.name)
        if internal or not topic.is_internal
    ]
    if as_json:
        emit_json(rows)
        return
    emit_table(("topic", "partitions", "replicas"), rows)


async def describe(client: Client, topics: Sequence[str], *, as_json: bool) -> None:
    described = [await description(client, topic) for topic in topics or await _all_topics(client)]
    if as_json:
        emit_json(described)
        return
    for position, topic in enumerate(described):
        if position:
            emit("")
        emit(f"{topic['topic']}  id {topic['id']}  partitions {len(topic['partitions'])}")
        for name, value in topic["configs"].items():
            emit(f"  {name}={value}")
        emit_table(("partition", "leader", "leader_epoch", "replicas", "isr", "offline"), topic["partitions"])


async def alter(
    client: Client,
    topic: str,
    *,
    partitions: int | None,
    configs: Mapping[str, str],
    remove: Sequence[str],
) -> None:
    if partitions is None and not configs and not remove:
        raise Failure("nothing to alter: give --partitions, --config or --remove", exit_code=2)
    if configs or remove:
        await _alter_configs(client, topic, configs, remove)
    if partitions is not None:
        await grow(client, topic, partitions)
        emit(f"topic {topic} has {partitions} partitions")


async def offsets(client: Client, topics: Sequence[str], *, as_json: bool) -> None:
    rows = [row for topic in topics for row in await offset_rows(client, topic)]
    if as_json:
        emit_json(rows)
        return
    names = (
        "log_start",
        "local_start",
        "last_tiered",
        "pending_upload",
        "high_watermark",
        "last_stable",
        "log_end",
        "stored",
        "followers",
    )
    shown = [row | {"followers": _shown(row["followers"])} for row in rows]
    head = ("topic", "partition") if len(topics) > 1 else ("partition",)
    emit_table((*head, *names), shown)


def _shown(followers: Mapping[str, str] | None) -> list[str] | None:
    return None if followers is None else [f"{node}:{mode}" for node, mode in followers.items()]


async def _all_topics(client: Client) -> list[str]:
    answer = await client.refresh()
    return sorted(topic.name for topic in answer.topics if not topic.is_internal)


async def description(client: Client, topic: str) -> dict[str, Any]:
    """Return a topic's id, own configurations and partitions."""
    found = await _metadata_of(client, topic)
    topic_id = messages.get(found, "topic_id", None)
    return {
        "topic": topic,
        "id": None if topic_id is None else encode_id(topic_id),
        "internal": found.is_internal,
        "configs": await configs_of(client, topic),
        "partitions": [
            {
                "partition": row.partition_index,
                "leader": None if row.leader_id < 0 else row.leader_id,
                "leader_epoch": messages.get(row, "leader_epoch", None),
                "replicas": list(row.replica_nodes),
                "isr": list(row.isr_nodes),
                "offline": list(messages.get(row, "offline_replicas", ())),
            }
            for row in sorted(found.partitions, key=lambda row: row.partition_index)
        ],
    }


async def _metadata_of(client: Client, topic: str) -> Any:
    answer = await client.refresh([topic])
    found = answer.topics[0]
    if found.error_code != ErrorCode.none:
        raise KafkaError(found.error_code, f"topic {topic}")
    return found


async def configs_of(client: Client, topic: str) -> dict[str, str | None]:
    """Return only what this topic itself sets."""
    return {
        config.name: config.value
        for config in sorted(await _described(client, topic, None), key=lambda config: config.name)
        if config.config_source == DYNAMIC_TOPIC_CONFIG
    }


async def config_of(client: Client, topic: str, name: str) -> str | None:
    """Return what holds for the topic; None where the brokers do not know the name."""
    return next((config.value for config in await _described(client, topic, [name])), None)


async def _described(client: Client, topic: str, names: list[str] | None) -> Any:
    answer = await client.request(
        Api.DESCRIBE_CONFIGS,
        {
            "resources": [
                {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": names}
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
    )
    row = answer.results[0]
    check_row(row, f"topic {topic}")
    return row.configs


async def _alter_configs(
    client: Client, topic: str, configs: Mapping[str, str], remove: Sequence[str]
) -> None:
    changes = [{"name": name, "config_operation": SET, "value": value} for name, value in configs.items()]
    changes += [{"name": name, "config_operation": DELETE, "value": None} for name in remove]
    answer = await client.request_controller(
        Api.INCREMENTAL_ALTER_CONFIGS,
        {
            "resources": [{"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": changes}],
            "validate_only": False,
        },
    )
    check_row(answer.responses[0], f"topic {topic}")
    for name, value in configs.items():
        emit(f"set {name}={value} on topic {topic}")
    for name in remove:
        emit(f"removed {name} from topic {topic}")


async def grow(client: Client, topic: str, partitions: int) -> None:
    """Add partitions to a topic, up to so many."""
    answer = await client.request_controller(
        Api.CREATE_PARTITIONS,
        {
            "topics": [{"name": topic, "count": partitions, "assignments": None}],
            "timeout": TIMEOUT_MS,
            "validate_only": False,
        },
    )
    check_row(answer.results[0], f"topic {topic}")


async def offset_rows(client: Client, topic: str) -> list[dict[str, Any]]:
    """Return how far each partition has come, by the columns of `tidewal offsets`."""
    await _metadata_of(client, topic)
    return [await _offset_row(client, topic, partition) for partition in client.known.partitions[topic]]


async def _offset_row(client: Client, topic: str, partition: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "log_start": await _offset(client, topic, partition, EARLIEST),
        "local_start": await _offset(client, topic, partition, EARLIEST_LOCAL),
        "last_tiered": await _offset(client, topic, partition, LAST_TIERED),
        "pending_upload": await _offset(client, topic, partition, EARLIEST_PENDING_UPLOAD),
        "high_watermark": await _offset(client, topic, partition, LATEST),
        "last_stable": await _offset(client, topic, partition, LATEST, read_committed=True),
        "log_end": await _log_end(client, topic, partition),
        **await _stored(client, topic, partition),
    }


async def _stored(client: Client, topic: str, partition: int) -> dict[str, Any]:
    """Ask how far the WAL tier reaches and what each follower reads from; None for each where the broker has
    no such tier, where the topic does not use it, or where no follower has asked lately.
    """
    row = await client.listed_offset(topic, partition, STORED_END)
    if row.error_code not in (ErrorCode.none, ErrorCode.unsupported_version):
        raise KafkaError(row.error_code, f"partition {topic}-{partition}")
    modes = {
        **dict.fromkeys(messages.get(row, "pointed_followers", ()), "pointers"),
        **dict.fromkeys(messages.get(row, "direct_followers", ()), "direct"),
    }
    return {
        "stored": None if row.offset < 0 else row.offset,
        "followers": {str(node): modes[node] for node in sorted(modes)} or None,
    }


async def _offset(
    client: Client, topic: str, partition: int, timestamp: int, *, read_committed: bool = False
) -> int | None:
    """Return the offset; None where the broker knows no such offset, or does not know the name of it."""
    code, offset, _ = await client.list_offset(topic, partition, timestamp, read_committed=read_committed)
    if code == ErrorCode.unsupported_version:
        return None
    if code != ErrorCode.none:
        raise KafkaError(code, f"partition {topic}-{partition}")
    return None if offset < 0 else offset


async def _log_end(client: Client, topic: str, partition: int) -> int | None:
    """Ask for the end of the leader's current epoch: the one request by which a client may see past the high
    watermark.
    """
    epoch = client.known.leader_epochs.get((topic, partition), -1)
    answer = await client.request(
        Api.OFFSET_FOR_LEADER_EPOCH,
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": partition, "current_leader_epoch": epoch, "leader_epoch": epoch}
                    ],
                }
            ],
        },
        node=await client.leader(topic, partition),
    )
    row = answer.topics[0].partitions[0]
    if row.error_code != ErrorCode.none:
        raise KafkaError(row.error_code, f"partition {topic}-{partition}")
    return None if row.end_offset < 0 else row.end_offset


def check_row(row: Any, what: str) -> None:
    """KafkaError, in the broker's words, for a row with an error."""
    if row.error_code != ErrorCode.none:
        raise KafkaError(row.error_code, messages.get(row, "error_message", None) or what)
