"""Answers about the cluster grow with the request and with the cluster: they are made in turns."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from broker.control.cluster import Cluster
from broker.control.image import LOOKED_AT_ONCE
from broker.control.metadata_records import PartitionChanged, TopicCreated, new_partition
from broker.handlers.dispatch import Context
from broker.handlers.log_dirs import LogDirHandlers
from broker.handlers.peers import PeerHandlers
from broker.handlers.replicas import ReplicaHandlers
from broker.handlers.results import ROWS_AT_ONCE, distinct, rows
from broker.turns import Turns
from protocol.apis import KNOWN, Api, PeerApi
from protocol.codec import Fields
from protocol.messages import encode_response, entity
from protocol.work import Work, finish, in_order
from tests.broker.control.cluster_driver import Site
from tests.broker.handlers.cluster_client import handlers
from tests.broker.handlers.test_acls import ACL, FILTER
from tests.broker.requests import NOT_ASKED_FOR

T = TypeVar("T")

ROWS = 600
SOON = timedelta(seconds=5)
NAMES = [f"nowhere-{at}" for at in range(ROWS)]
BOTH = {"include_synonyms": True, "include_documentation": True}
FEATURE = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}

REQUESTS: list[tuple[Api | PeerApi, Fields]] = [
    (Api.METADATA, {"topics": [{"name": name, "topic_id": None} for name in NAMES]}),
    (Api.METADATA, {"topics": [{"name": None, "topic_id": UUID(int=at + 99)} for at in range(ROWS)]}),
    (Api.METADATA, {"topics": None}),
    (Api.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": name} for name in NAMES], "cursor": None}),
    (Api.DESCRIBE_TOPIC_PARTITIONS, {"topics": [], "cursor": None}),
    (
        Api.CREATE_TOPICS,
        {
            "topics": [
                {
                    "name": f"{name}!",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in NAMES
            ],
            "timeout": SOON,
        },
    ),
    (Api.DELETE_TOPICS, {"topics": [{"name": name, "topic_id": None} for name in NAMES], "timeout": SOON}),
    (
        Api.CREATE_PARTITIONS,
        {
            "topics": [{"name": name, "count": 3, "assignments": None} for name in NAMES],
            "timeout": SOON,
            "validate_only": True,
        },
    ),
    (
        Api.DESCRIBE_CONFIGS,
        {
            "resources": [
                {"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in NAMES
            ],
            **BOTH,
        },
    ),
    (
        Api.INCREMENTAL_ALTER_CONFIGS,
        {
            "resources": [{"resource_type": 2, "resource_name": name, "configs": []} for name in NAMES],
            "validate_only": True,
        },
    ),
    (
        Api.ALTER_CONFIGS,
        {
            "resources": [{"resource_type": 2, "resource_name": name, "configs": []} for name in NAMES],
            "validate_only": True,
        },
    ),
    (
        Api.DESCRIBE_CONFIGS,
        {
            "resources": [{"resource_type": 2, "resource_name": "t1", "configuration_keys": NAMES}],
            **BOTH,
        },
    ),
    (
        Api.INCREMENTAL_ALTER_CONFIGS,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "t1",
                    "configs": [{"name": name, "config_operation": 0, "value": "1"} for name in NAMES],
                }
            ],
            "validate_only": True,
        },
    ),
    (
        Api.ALTER_CONFIGS,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "t1",
                    "configs": [{"name": name, "value": "1"} for name in NAMES],
                }
            ],
            "validate_only": True,
        },
    ),
    (Api.LIST_CONFIG_RESOURCES, {"resource_types": []}),
    (Api.UPDATE_FEATURES, {"feature_updates": [FEATURE] * ROWS, "timeout": SOON}),
    (Api.CREATE_ACLS, {"creations": [ACL] * ROWS}),
    (Api.DELETE_ACLS, {"filters": [FILTER] * ROWS}),
    (
        Api.ELECT_LEADERS,
        {
            "election_type": 0,
            "topic_partitions": [{"topic": "t", "partitions": [*range(ROWS)]}],
            "timeout": SOON,
        },
    ),
    (Api.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None, "timeout": SOON}),
    (
        Api.ALTER_PARTITION_REASSIGNMENTS,
        {
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": at, "replicas": [9]} for at in range(ROWS)],
                }
            ],
            "timeout": SOON,
        },
    ),
    (
        Api.LIST_PARTITION_REASSIGNMENTS,
        {"topics": [{"name": "wide", "partition_indexes": [*range(ROWS)]}], "timeout": SOON},
    ),
    (Api.LIST_PARTITION_REASSIGNMENTS, {"topics": None, "timeout": SOON}),
    (
        Api.ALTER_REPLICA_LOG_DIRS,
        {"dirs": [{"path": "/d", "topics": [{"name": "t", "partitions": [*range(ROWS)]}]}]},
    ),
    (Api.DESCRIBE_LOG_DIRS, {"topics": None}),
    (Api.DESCRIBE_LOG_DIRS, {"topics": [{"topic": "t", "partitions": [*range(ROWS)]}]}),
    (
        Api.DESCRIBE_QUORUM,
        {"topics": [{"topic_name": "t", "partitions": [{"partition_index": at} for at in range(ROWS)]}]},
    ),
    (
        PeerApi.ALTER_PARTITION,
        {
            "broker_id": 1,
            "broker_epoch": 1,
            "topics": [
                {
                    "topic_id": UUID(int=7),
                    "partitions": [
                        {
                            "partition_index": at,
                            "leader_epoch": 0,
                            "partition_epoch": 0,
                            "new_isr_with_epochs": [{"broker_id": 1}],
                        }
                        for at in range(ROWS)
                    ],
                }
            ],
        },
    ),
]


class Counted(Turns):
    """Counts the pieces of all work, and ends it at once."""

    def __init__(self) -> None:
        self.pieces = 0

    async def run(self, work: Work[T]) -> T:
        while True:
            try:
                next(work)
            except StopIteration as end:
                return cast(T, end.value)
            self.pieces += 1


def all_handlers(member: Cluster) -> dict[int, Any]:
    held = SimpleNamespace(log_dir="/d", size=1, high_watermark=0, log_end_offset=0)
    logs: Any = SimpleNamespace(dirs=["/d"], offline_dirs=(), logs={("t", at): held for at in range(ROWS)})
    files: Any = SimpleNamespace(free_bytes=lambda path: (1, 1))
    return {
        **handlers(member),
        **PeerHandlers(cluster=member).routes(),
        **ReplicaHandlers(cluster=member, logs=logs, now_ms=lambda: 0, absolute_path=str).routes(),
        **LogDirHandlers(logs=logs, files=files, log_dirs=["/d"], absolute_path=str).routes(),
    }


def add_many(member: Cluster) -> None:
    """Topics enough, and one with a partition that moves."""
    for at in range(ROWS):
        member.image.apply(
            TopicCreated(
                name=f"t{at}", topic_id=UUID(int=1000 + at), partitions=(new_partition(0, (1,), (1,)),)
            ),
            100,
        )
    wide = tuple(new_partition(at, (1,), (1,)) for at in range(ROWS))
    member.image.apply(TopicCreated(name="wide", topic_id=UUID(int=7), partitions=wide), 100)
    moving = PartitionChanged(topic_id=UUID(int=7), partition=0, replicas=(1, 2), adding=(2,))
    member.image.apply(moving, 100)


@pytest.mark.parametrize(
    ("api", "fields"), REQUESTS, ids=[f"{at}-{KNOWN[api].name}" for at, (api, _) in enumerate(REQUESTS)]
)
def test_an_answer_of_many_rows_is_made_in_many_turns(api: Api | PeerApi, fields: Fields) -> None:
    site = Site()

    async def story() -> None:
        member = await site.started(ports={"PLAINTEXT": 9092})
        add_many(member)
        counted = member.turns = Counted()
        version = KNOWN[api].max_version if api is not Api.DESCRIBE_LOG_DIRS else 4
        context = Context(
            api_key=api,
            api_version=version,
            correlation_id=1,
            client_id=None,
            connection=cast(Any, SimpleNamespace(listener="PLAINTEXT")),
        )
        request = entity(api, version, {**NOT_ASKED_FOR, **fields})
        answer = all_handlers(member)[api](context, request)
        answer = await (counted.run(answer) if isinstance(answer, Generator) else answer)
        assert encode_response(api, version, 1, answer)
        assert counted.pieces >= ROWS // LOOKED_AT_ONCE

    site.run(story())


def test_rows_are_sorted_in_turns_into_one_order() -> None:
    names = [f"{at * 7919 % 1000}" for at in range(1000)]
    assert [*finish(in_order(names))] == sorted(names)
    assert [*finish(in_order(()))] == []
    assert [*finish(distinct(names + names))] == list(dict.fromkeys(names))
    assert sum(1 for _ in distinct(names)) >= len(names) // LOOKED_AT_ONCE
    assert sum(1 for _ in rows(str, names)) == len(names) // ROWS_AT_ONCE
