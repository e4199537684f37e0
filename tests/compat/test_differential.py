"""The same raw request to Tidewal and to Apache Kafka, and the same answer from both.

Every version of every API that is served, then the mistakes clients make. An answer is compared whole; only
what must differ between two clusters (ids, addresses, clocks, words of a message) is set aside.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from protocol.apis import SERVED, Api
from protocol.compression import Codec
from protocol.records import build_batch
from tests.broker.handlers.test_acls import ACL, FILTER
from tests.compat.differential import (
    SPOILED,
    Side,
    TopicId,
    Twins,
    commit_fields,
    fetch_fields,
    join_fields,
    list_offsets_fields,
    new_topic,
    offset_fetch_fields,
    produce_fields,
    records,
)
from tests.compat.peers import unique, until
from tests.compat.samples import FIRST_MS

pytestmark = pytest.mark.kafka


def requests(twins: Twins) -> dict[Api, dict[str, Any]]:
    """A sound request of every API with the fields of all its versions; encoding drops what one lacks."""
    name, group = twins.topic(partitions=2), unique("group")
    for side in twins.sides:
        side.put(name, records(b"first", b"second"))
    twins.same(Api.OFFSET_COMMIT, 8, **commit_fields(group, name, offset=1))
    resource = {"resource_type": 2, "resource_name": name}
    return {
        Api.PRODUCE: produce_fields(name, records(b"a", b"b")),
        Api.FETCH: fetch_fields(name, 0, high_watermark=0, replica_directory_id=UUID(int=0)),
        Api.LIST_OFFSETS: list_offsets_fields(name, -1),
        Api.METADATA: {
            "topics": [{"topic_id": None, "name": name}],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
        Api.OFFSET_COMMIT: commit_fields(group, name, offset=2),
        Api.OFFSET_FETCH: offset_fetch_fields(group, name),
        Api.FIND_COORDINATOR: {"key": group, "key_type": 0, "coordinator_keys": [group]},
        Api.JOIN_GROUP: join_fields(unique("group"), session_timeout=1),
        Api.HEARTBEAT: {
            "group_id": group,
            "generation_id": 1,
            "member_id": "nobody",
            "group_instance_id": None,
        },
        Api.LEAVE_GROUP: {
            "group_id": group,
            "member_id": "nobody",
            "members": [{"member_id": "nobody", "group_instance_id": None, "reason": None}],
        },
        Api.SYNC_GROUP: {
            "group_id": group,
            "generation_id": 1,
            "member_id": "nobody",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
        Api.DESCRIBE_GROUPS: {"groups": [group], "include_authorized_operations": False},
        Api.LIST_GROUPS: {"states_filter": ["no-such-state"], "types_filter": []},
        Api.API_VERSIONS: {"client_software_name": "twin", "client_software_version": "1"},
        Api.CREATE_TOPICS: {**new_topic(unique("topic")), "validate_only": True},
        Api.DELETE_TOPICS: {
            "topic_names": ["no-such-topic"],
            "topics": [{"name": "no-such-topic", "topic_id": None}],
            "timeout": 10_000,
        },
        Api.DELETE_RECORDS: {
            "topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}],
            "timeout": 10_000,
        },
        Api.INIT_PRODUCER_ID: {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        Api.ADD_PARTITIONS_TO_TXN: {
            "v3_and_below_transactional_id": "",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": name, "partitions": [0, 1]}],
            "transactions": [
                {
                    "transactional_id": "",
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "verify_only": False,
                    "topics": [{"name": name, "partitions": [0, 9]}],
                }
            ],
        },
        Api.ADD_OFFSETS_TO_TXN: {
            "transactional_id": "",
            "producer_id": 1,
            "producer_epoch": 0,
            "group_id": group,
        },
        Api.END_TXN: {"transactional_id": "", "producer_id": 1, "producer_epoch": 0, "committed": True},
        Api.WRITE_TXN_MARKERS: {
            "markers": [
                {
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "topics": [{"name": name, "partition_indexes": [9]}],
                    "coordinator_epoch": 0,
                    "transaction_version": 0,
                }
            ],
        },
        Api.TXN_OFFSET_COMMIT: {
            "transactional_id": "",
            "group_id": "",
            "producer_id": 1,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 1,
                            "committed_leader_epoch": -1,
                            "committed_metadata": None,
                        }
                    ],
                }
            ],
        },
        Api.DESCRIBE_TRANSACTIONS: {"transactional_ids": [""]},
        Api.LIST_TRANSACTIONS: {
            "state_filters": ["Dead", "Nothing"],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        },
        Api.OFFSET_FOR_LEADER_EPOCH: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": name,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        Api.DESCRIBE_ACLS: dict(FILTER),
        Api.CREATE_ACLS: {"creations": [ACL, ACL]},
        Api.DELETE_ACLS: {"filters": [FILTER, FILTER]},
        Api.DESCRIBE_CONFIGS: {
            "resources": [{**resource, "configuration_keys": ["cleanup.policy", "retention.ms", "no.such"]}],
            "include_synonyms": True,
            "include_documentation": False,
        },
        Api.ALTER_CONFIGS: {
            "resources": [{**resource, "configs": [{"name": "retention.ms", "value": "3600000"}]}],
            "validate_only": False,
        },
        Api.DESCRIBE_LOG_DIRS: {"topics": [{"topic": name, "partitions": [0]}]},
        Api.CREATE_PARTITIONS: {
            "topics": [{"name": name, "count": 3, "assignments": None}],
            "timeout": 10_000,
            "validate_only": True,
        },
        Api.DELETE_GROUPS: {"groups_names": ["no-such-group"]},
        Api.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [
                {**resource, "configs": [{"name": "segment.ms", "config_operation": 0, "value": "60000"}]}
            ],
            "validate_only": False,
        },
        Api.OFFSET_DELETE: {
            "group_id": group,
            "topics": [{"name": name, "partitions": [{"partition_index": 1}]}],
        },
        Api.CONSUMER_GROUP_HEARTBEAT: {
            "group_id": unique("group"),
            "member_id": "m",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 300_000,
            "subscribed_topic_names": ["no-such-topic"],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        },
        Api.CONSUMER_GROUP_DESCRIBE: {"group_ids": [group], "include_authorized_operations": True},
        Api.DESCRIBE_CLUSTER: {
            "include_cluster_authorized_operations": False,
            "endpoint_type": 1,
            "include_fenced_brokers": False,
        },
        Api.DESCRIBE_PRODUCERS: {"topics": [{"name": name, "partition_indexes": [0, 9]}]},
        Api.LIST_CONFIG_RESOURCES: {"resource_types": [16]},
        Api.DESCRIBE_TOPIC_PARTITIONS: {
            "topics": [{"name": name}],
            "response_partition_limit": 1,
            "cursor": None,
        },
        Api.ELECT_LEADERS: {
            "election_type": 0,
            "topic_partitions": [{"topic": name, "partitions": [0, 9]}],
            "timeout": 10_000,
        },
        Api.ALTER_PARTITION_REASSIGNMENTS: {
            "topics": [{"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
            "timeout": 10_000,
        },
        Api.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout": 10_000},
        Api.ALTER_REPLICA_LOG_DIRS: {
            "dirs": [{"path": "/nowhere", "topics": [{"name": name, "partitions": [0]}]}]
        },
        Api.DESCRIBE_QUORUM: {"topics": [{"topic_name": name, "partitions": [{"partition_index": 0}]}]},
        Api.UNREGISTER_BROKER: {"broker_id": 9},
        Api.UPDATE_FEATURES: {
            "feature_updates": [feature("transaction.version", 2), feature("group.version", 1)],
            "timeout": 10_000,
            "validate_only": False,
        },
    }


@pytest.mark.parametrize("api", list(SERVED), ids=lambda api: Api(api).name)
def test_every_version_answers_as_kafkas_does(twins: Twins, api: Api) -> None:
    row = SERVED[api]
    fields = requests(twins)[Api(api)]
    # Produce 0 to 2 is listed and not served; ListGroups below 4 tells what other tests left behind.
    first = {Api.PRODUCE: 3, Api.LIST_GROUPS: 4}.get(Api(api), row.min_version)
    for version in range(first, row.max_version + 1):
        twins.same(Api(api), version, **fields)


@pytest.mark.parametrize("version", range(SERVED[Api.LIST_GROUPS].max_version + 1))
def test_a_new_group_is_listed_alike(twins: Twins, version: int) -> None:
    group, name = unique("group"), twins.topic()
    twins.same(Api.OFFSET_COMMIT, 8, **commit_fields(group, name, offset=1))
    ours, theirs = (
        [entry for entry in answer["groups"] if entry["group_id"] == group]
        for answer in twins.both(Api.LIST_GROUPS, version, states_filter=[], types_filter=[])
    )
    assert ours == theirs
    assert len(ours) == 1


# --- mistakes ---------------------------------------------------------------------------------------------


ONE = records(b"value")
BAD_BATCHES: dict[str, bytes] = {
    **{name: spoil(ONE) for name, spoil in SPOILED.items()},
    "producer without sequence": records(b"v", producer_id=7, producer_epoch=0),
    "timestamp far ahead": bytes(build_batch([(None, b"v", (), FIRST_MS + 90_000_000)])),
}


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("bad", BAD_BATCHES)
def test_a_bad_batch_is_refused_alike(twins: Twins, bad: str, version: int) -> None:
    name = twins.topic()
    twins.same(Api.PRODUCE, version, **produce_fields(name, BAD_BATCHES[bad]))
    twins.same(Api.PRODUCE, version, **produce_fields(name, ONE))


def test_no_records_at_all_are_refused_where_kafka_does_not_answer(twins: Twins) -> None:
    name = twins.topic()
    for version in (3, 8, 9, 13):
        answer = twins.one(twins.ours, Api.PRODUCE, version, produce_fields(name, None))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 87


def test_produce_to_what_is_not_there(twins: Twins) -> None:
    name = twins.topic()
    for side in twins.sides:
        side.learn("__consumer_offsets", 5)
        side.topic_ids["no-such-topic"] = UUID(int=1234)
    for version in (3, 8, 9, 12, 13):
        twins.same(Api.PRODUCE, version, **produce_fields("no-such-topic", ONE))
        twins.same(Api.PRODUCE, version, **produce_fields(name, ONE, partition=7))
        twins.same(Api.PRODUCE, version, **produce_fields(name, ONE, acks=5))
        twins.same(
            Api.PRODUCE, version, **produce_fields("__consumer_offsets", ONE)
        ) if version < 13 else None


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_partition_named_twice_in_a_produce(twins: Twins, version: int) -> None:
    name = twins.topic()
    for given in (
        [records(b"first"), records(b"last")],
        [ONE, BAD_BATCHES["two batches"]],
        [BAD_BATCHES["two batches"], ONE],
        [ONE, BAD_BATCHES["length too small"]],
    ):
        fields = produce_fields(name, None)
        fields["topic_data"][0]["partition_data"] = [{"index": 0, "records": batch} for batch in given]
        twins.same(Api.PRODUCE, version, **fields)
        fields["topic_data"] = [
            {**fields["topic_data"][0], "partition_data": [{"index": 0, "records": batch}]} for batch in given
        ]
        twins.same(Api.PRODUCE, version, **fields)
        twins.same(Api.FETCH, 9, **fetch_fields(name, 0))
    for repeated in (Api.LIST_OFFSETS, Api.DELETE_RECORDS):
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1, "offset": 1}
        topics = [{"name": name, "partitions": [partition, {**partition, "offset": 2}]}]
        twins.same(repeated, 2, replica_id=-1, isolation_level=0, timeout=10_000, topics=[*topics, *topics])


def test_which_mistake_of_a_produce_is_answered(twins: Twins) -> None:
    name = twins.topic(partitions=2)
    for topic, batch, partition in [
        (name, BAD_BATCHES["two batches"], 0),
        (name, BAD_BATCHES["magic 1"], 0),
        ("no-such-topic", ONE, 0),
        ("no-such-topic", BAD_BATCHES["length too small"], 0),
        (name, ONE, 9),
        (name, ONE, 1),
    ]:
        fields = produce_fields(topic, batch, partition=partition, acks=7)
        twins.same(Api.PRODUCE, 9, **fields)
        both = {
            **fields,
            "acks": -1,
            "topic_data": [*fields["topic_data"], *produce_fields(name, ONE)["topic_data"]],
        }
        twins.same(Api.PRODUCE, 9, **both)
        twins.same(Api.LIST_OFFSETS, 5, **list_offsets_fields(name, -1))


def test_a_join_that_is_refused_leaves_an_empty_group(twins: Twins) -> None:
    group = unique("group")
    twins.same(Api.JOIN_GROUP, 5, **join_fields(group, protocols=[]))
    described = twins.same(Api.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
    assert described["groups"][0]["group_state"] == "Empty"
    twins.same(Api.DELETE_GROUPS, 2, groups_names=[group])


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_codecs_by_version(twins: Twins, codec: Codec) -> None:
    name = twins.topic()
    for version in (3, 6, 7, 13):
        twins.same(Api.PRODUCE, version, **produce_fields(name, records(b"v" * 500, codec=codec)))
    for version in (4, 9, 10, 17):
        twins.same(Api.FETCH, version, **fetch_fields(name, 0, high_watermark=0))


def test_sequences_of_an_idempotent_producer(twins: Twins) -> None:
    name = twins.topic()
    answers: list[Any] = []
    for sequence, epoch in [
        *((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)),
        # the last five again, one before them, a gap, an older and a newer epoch
        *((6, 0), (2, 0), (1, 0), (9, 0), (7, 0), (0, 1), (8, 0), (5, 2), (0, 2)),
    ]:
        batch = records(b"v", producer_id=4242, producer_epoch=epoch, base_sequence=sequence)
        answers.append(twins.same(Api.PRODUCE, 9, **produce_fields(name, batch)))
    codes = [answer["responses"][0]["partition_responses"][0]["error_code"] for answer in answers]
    assert {0, 45, 47} == {int(code) for code in codes}
    twins.same(Api.DESCRIBE_PRODUCERS, 0, topics=[{"name": name, "partition_indexes": [0]}])


def test_limits_and_policies_of_a_topic(twins: Twins) -> None:
    small = twins.topic(max_message_bytes="1000")
    twins.same(Api.PRODUCE, 9, **produce_fields(small, records(b"x" * 2000)))
    twins.same(Api.PRODUCE, 9, **produce_fields(small, records(b"x" * 900)))
    compacted = twins.topic(cleanup_policy="compact")
    for codec in Codec:
        twins.same(Api.PRODUCE, 9, **produce_fields(compacted, records(b"no key", codec=codec)))
        twins.same(Api.PRODUCE, 9, **produce_fields(compacted, records(b"v", key=b"k", codec=codec)))
    old = twins.topic(message_timestamp_before_max_ms="1000")
    twins.same(Api.PRODUCE, 9, **produce_fields(old, ONE))


@pytest.mark.parametrize("version", [4, 7, 9, 12, 13, 16, 17])
def test_fetches_that_miss(twins: Twins, version: int) -> None:
    name = twins.topic()
    for side in twins.sides:
        side.topic_ids["no-such-topic"] = UUID(int=1234)
        for _ in range(5):
            side.put(name, ONE)
        side.client.call(
            Api.DELETE_RECORDS,
            1,
            topics=[{"name": name, "partitions": [{"partition_index": 0, "offset": 2}]}],
            timeout=10_000,
        )
    for offset in (0, 1, 2, 4, 5, 6, -1):
        twins.same(Api.FETCH, version, **fetch_fields(name, offset, high_watermark=0))
    twins.same(Api.FETCH, version, **fetch_fields(name, 0, partition=9))
    twins.same(Api.FETCH, version, **fetch_fields("no-such-topic", 0))
    twins.same(Api.FETCH, version, **fetch_fields(name, 3, isolation_level=1))
    if version >= 9:
        twins.same(Api.FETCH, version, **fetch_fields(name, 3, current_leader_epoch=99))
    if version >= 12:
        twins.same(Api.FETCH, version, **fetch_fields(name, 3, last_fetched_epoch=99))
    if version >= 7:
        twins.same(Api.FETCH, version, **fetch_fields(name, 3, session_id=77, session_epoch=1))
        twins.same(Api.FETCH, version, **fetch_fields(name, 3, session_id=77, session_epoch=0))


@pytest.mark.requirement("1023-02")
@pytest.mark.parametrize("version", [1, 4, 7, 8, 9, 10, 11])
def test_list_offsets_by_special_time(twins: Twins, version: int) -> None:
    name = twins.topic()
    for side in twins.sides:
        for number in range(3):
            side.put(name, bytes(build_batch([(None, b"v", (), FIRST_MS + number)])))
    for timestamp in (-10_001, *range(-8, 3), FIRST_MS, FIRST_MS + 1, FIRST_MS + 2, FIRST_MS + 3):
        twins.same(Api.LIST_OFFSETS, version, **list_offsets_fields(name, timestamp))
    twins.same(Api.LIST_OFFSETS, version, **list_offsets_fields(name, -1, partition_index=9))
    twins.same(Api.LIST_OFFSETS, version, **list_offsets_fields("no-such-topic", -1))
    if version >= 4:
        twins.same(Api.LIST_OFFSETS, version, **list_offsets_fields(name, -1, current_leader_epoch=99))
    no_partitions = {"topics": [{"name": name, "partitions": []}]}
    for isolation_level in (-1, 0, 1, 2):
        for replica_id in (-1, -2, 5):
            fields = {
                **list_offsets_fields(name, -1),
                "replica_id": replica_id,
                "isolation_level": isolation_level,
            }
            twins.same(Api.LIST_OFFSETS, version, **fields)
            twins.same(Api.LIST_OFFSETS, version, **{**fields, **no_partitions})


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "."},
        {"name": ".."},
        {"name": "a" * 250},
        {"name": "sl/ash"},
        {"num_partitions": 0},
        {"num_partitions": -2},
        {"replication_factor": 0},
        {"replication_factor": 2},
        {"replication_factor": -2},
        {"num_partitions": -1, "replication_factor": -1},
        {"configs": [{"name": "no.such.config", "value": "1"}]},
        {"configs": [{"name": "retention.ms", "value": "soon"}]},
        {"configs": [{"name": "retention.ms", "value": "-2"}]},
        {"configs": [{"name": "cleanup.policy", "value": "burn"}]},
        {"configs": [{"name": "segment.bytes", "value": "1"}]},
        {"configs": [{"name": "compression.type", "value": "rar"}]},
        {"configs": [{"name": "min.insync.replicas", "value": "0"}]},
        {"configs": [{"name": "retention.ms", "value": None}]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [1])]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [9])]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [1, 1])]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [(1, [1])]},
        {"num_partitions": 1, "replication_factor": 1, "assignments": [(0, [1])]},
    ],
    ids=str,
)
def test_topics_that_cannot_be(twins: Twins, options: dict[str, Any]) -> None:
    given = {"name": unique("topic"), **options}
    given["assignments"] = [
        {"partition_index": index, "broker_ids": brokers} for index, brokers in given.get("assignments", [])
    ]
    for version in (2, 5, 7):
        twins.same(Api.CREATE_TOPICS, version, **{**new_topic("", **given), "validate_only": True})
    twins.same(Api.CREATE_TOPICS, 7, **new_topic("", **given))


def test_topics_twice_colliding_and_internal(twins: Twins) -> None:
    name = twins.topic()
    twins.same(Api.CREATE_TOPICS, 7, **new_topic(name))
    dotted = unique("dot.ted")
    twins.same(Api.CREATE_TOPICS, 7, **new_topic(dotted))
    twins.same(Api.CREATE_TOPICS, 7, **new_topic(dotted.replace(".", "_")))
    for too_many in (name, unique("topic"), "not/a/name"):
        asked = new_topic(too_many, num_partitions=2**31 - 1)
        twins.same(Api.CREATE_TOPICS, 7, **asked)
        asked = new_topic(too_many, num_partitions=10_001)
        asked["topics"] += new_topic(unique("topic"))["topics"]
        twins.same(Api.CREATE_TOPICS, 7, **asked)
    twice = new_topic(unique("topic"))
    twins.same(Api.CREATE_TOPICS, 7, **{**twice, "topics": twice["topics"] * 2})
    for count in (0, 1, -1, 5):
        counts = {"name": name, "count": count, "assignments": None}
        twins.same(Api.CREATE_PARTITIONS, 3, topics=[counts], timeout=10_000, validate_only=True)
    unknown = {"name": "no-such-topic", "count": 5, "assignments": None}
    twins.same(Api.CREATE_PARTITIONS, 3, topics=[unknown], timeout=10_000, validate_only=False)
    for topics in (
        [{"name": None, "topic_id": UUID(int=99)}],
        [{"name": "no-such-topic", "topic_id": None}],
        [{"name": name, "topic_id": UUID(int=99)}],
        [{"name": name, "topic_id": None}, {"name": name, "topic_id": None}],
    ):
        twins.same(Api.DELETE_TOPICS, 6, topics=topics, timeout=10_000)


@pytest.mark.parametrize("version", [0, 4, 9, 12, 13])
def test_metadata_of_what_is_not_there(twins: Twins, version: int) -> None:
    asked: list[list[dict[str, Any]]] = [
        [{"topic_id": None, "name": "no-such-topic"}],
        [{"topic_id": None, "name": "not/a/name"}],
        [{"topic_id": None, "name": ""}],
    ]
    if version >= 12:
        asked.append([{"topic_id": UUID(int=99), "name": None}])
    if version < 4:
        asked = asked[1:]
    for topics in asked:
        twins.same(
            Api.METADATA,
            version,
            topics=topics,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )


def test_configs_that_cannot_be(twins: Twins) -> None:
    name = twins.topic()
    for kind, resource, key, operation, value in [
        (2, name, "retention.ms", 0, "soon"),
        (2, name, "no.such", 0, "1"),
        (2, name, "no.such", 1, None),
        (2, name, "retention.ms", 2, "1"),
        (2, name, "retention.ms", 0, None),
        (2, name, "cleanup.policy", 2, "compact"),
        (2, name, "cleanup.policy", 3, "delete"),
        (2, "no-such-topic", "retention.ms", 0, "1"),
        (2, "", "retention.ms", 0, "1"),
        (4, "1", "log.cleaner.threads", 0, "-1"),
        (4, "1", "node.id", 0, "7"),
        (4, "1", "no.such", 0, "7"),
        (4, "99", "log.cleaner.threads", 0, "2"),
        (4, "x", "log.cleaner.threads", 0, "2"),
        (1, name, "retention.ms", 0, "1"),
        (77, name, "retention.ms", 0, "1"),
    ]:
        entry = {"name": key, "config_operation": operation, "value": value}
        altered = [{"resource_type": kind, "resource_name": resource, "configs": [entry]}]
        twins.same(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=altered, validate_only=True)
    for kind, resource in [(2, "no-such-topic"), (2, "not/a/name"), (4, "99"), (4, "x"), (77, "x")]:
        twins.same(
            Api.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": kind, "resource_name": resource, "configuration_keys": None}],
            include_synonyms=False,
            include_documentation=False,
        )


def test_all_configs_of_a_topic(twins: Twins) -> None:
    name = twins.topic(retention_ms="3600000", cleanup_policy="compact,delete")
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": None}
    described = twins.both(
        Api.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True, include_documentation=False
    )
    ours, theirs = (
        {entry["name"]: entry for entry in answer["results"][0]["configs"]} for answer in described
    )
    assert sorted(ours) == sorted(theirs)
    assert {key: (ours[key], theirs[key]) for key in theirs if ours[key] != theirs[key]} == {}


def test_configs_of_a_broker_have_kafkas_types_and_defaults(twins: Twins) -> None:
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    ours, theirs = (
        {entry["name"]: entry for entry in answer["results"][0]["configs"]}
        for answer in twins.both(
            Api.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
        )
    )
    assert set(theirs) >= {"log.retention.hours", "num.partitions", "message.max.bytes"} <= set(ours)
    different = {}
    meant = {
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "remote.log.storage.system.enable",
    }
    for name in (ours.keys() & theirs.keys()) - meant:
        our, their = dict(ours[name]), dict(theirs[name])
        if our["config_source"] != 5 or their["config_source"] != 5:
            for entry in (our, their):
                del entry["config_source"], entry["value"]
        if our != their:
            different[name] = (our, their)
    assert different == {}


@pytest.mark.parametrize("version", [7, 11, 12, 13, 17])
def test_a_fetch_sessions_life(twins: Twins, version: int) -> None:
    names = [twins.topic(), twins.topic()]
    for side in twins.sides:
        for name in names:
            side.put(name, ONE)

    def fetch(*wanted: tuple[str, int], epoch: int, forget: tuple[str, ...] = ()) -> Any:
        fields = fetch_fields(names[0], 0)
        fields["topics"] = [fetch_fields(name, offset)["topics"][0] for name, offset in wanted]
        fields["forgotten_topics_data"] = [
            {"topic": name, "topic_id": TopicId(name), "partitions": [0]} for name in forget
        ]
        fields["session_id"] = lambda side: side.remembered.get("session", 0) if epoch else 0
        fields["session_epoch"] = epoch
        for side in twins.sides:
            side.remembered.setdefault("session", 0)
        return fields

    for side in twins.sides:
        opened = side.client.call(
            Api.FETCH, version, **side.resolve(fetch((names[0], 0), (names[1], 0), epoch=0))
        )
        assert opened.session_id > 0
        side.remembered["session"] = opened.session_id
    twins.same(Api.FETCH, version, **fetch((names[0], 1), (names[1], 1), epoch=1))
    assert twins.same(Api.FETCH, version, **fetch(epoch=2))["responses"] == []
    for side in twins.sides:
        side.put(names[1], ONE)
    changed = twins.same(Api.FETCH, version, **fetch(epoch=3))
    assert len(changed["responses"]) == 1
    twins.same(Api.FETCH, version, **fetch(epoch=9))
    twins.same(Api.FETCH, version, **fetch((names[0], 0), epoch=4, forget=(names[1],)))
    twins.same(Api.FETCH, version, **fetch(epoch=5, forget=(names[0],)))
    twins.same(Api.FETCH, version, **fetch((names[0], 0), epoch=-1))
    twins.same(Api.FETCH, version, **fetch(epoch=6))


@pytest.mark.parametrize("max_bytes", [0, 1, 70, 80, 150, 1000])
def test_how_much_a_fetch_returns(twins: Twins, max_bytes: int) -> None:
    names = [twins.topic(), twins.topic()]
    for side in twins.sides:
        for name in names:
            for _ in range(3):
                side.put(name, ONE)
    for version in (4, 12):
        for whole, part in [(max_bytes, 1 << 20), (1 << 20, max_bytes), (max_bytes, max_bytes)]:
            fields = fetch_fields(names[0], 0)
            fields["topics"] = [
                fetch_fields(name, offset, partition_max_bytes=part)["topics"][0]
                for name, offset in zip(names, (1, 0), strict=True)
            ]
            fields["max_bytes"] = whole
            twins.same(Api.FETCH, version, **fields)


def test_acks_0_answers_nothing_and_closes_on_an_error(twins: Twins) -> None:
    name = twins.topic()
    for bad in (produce_fields("no-such-topic-0", ONE, acks=0), produce_fields(name, ONE[:-1], acks=0)):
        for side in twins.sides:
            side.topic_ids["no-such-topic-0"] = UUID(int=1)
            side.client.post(Api.PRODUCE, 9, **side.resolve(produce_fields(name, ONE, acks=0)))
            side.client.post(Api.PRODUCE, 9, **side.resolve({**bad}))
            with pytest.raises(ConnectionError):
                side.client.frame()
            side.reconnect()
    twins.same(Api.LIST_OFFSETS, 5, **list_offsets_fields(name, -1))


def test_records_that_cannot_be_deleted(twins: Twins) -> None:
    name = twins.topic()
    compacted = twins.topic(cleanup_policy="compact")
    for topic, partition, offset in [
        (name, 0, 5),
        (name, 0, -1),
        (name, 0, -2),
        (name, 9, 0),
        ("no-such-topic", 0, 0),
        (compacted, 0, 0),
    ]:
        partitions = [{"partition_index": partition, "offset": offset}]
        twins.same(Api.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partitions}], timeout=10_000)


# --- groups -----------------------------------------------------------------------------------------------


def test_a_members_life(twins: Twins) -> None:
    group, name = unique("group"), twins.topic()
    twins.same(Api.JOIN_GROUP, 7, **join_fields(group))
    for side in twins.sides:
        side.remembered["member"] = side.client.call(Api.JOIN_GROUP, 7, **join_fields(group)).member_id

    def member(side: Side) -> Any:
        return side.remembered["member"]

    joined = twins.same(Api.JOIN_GROUP, 7, **join_fields(group, member))
    assert (joined["error_code"], joined["generation_id"]) == (0, 1)
    at = {"group_id": group, "generation_id": 1, "member_id": member, "group_instance_id": None}
    twins.same(Api.HEARTBEAT, 4, **at)
    sync = {**at, "protocol_type": "consumer", "protocol_name": "range"}
    assignment = [{"member_id": member, "assignment": b"mine"}]
    twins.same(Api.SYNC_GROUP, 5, **{**sync, "protocol_name": "other"}, assignments=assignment)
    twins.same(Api.SYNC_GROUP, 5, **{**sync, "generation_id": 9}, assignments=assignment)
    synced = twins.same(Api.SYNC_GROUP, 5, **sync, assignments=assignment)
    assert synced["assignment"] == b"mine"
    twins.same(Api.SYNC_GROUP, 5, **sync, assignments=[])
    for version in range(5):
        twins.same(Api.HEARTBEAT, version, **at)
    for wrong in ({"generation_id": 2}, {"generation_id": 0}, {"member_id": "nobody"}, {"group_id": ""}):
        twins.same(Api.HEARTBEAT, 4, **{**at, **wrong})
    described = twins.same(Api.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
    assert described["groups"][0]["group_state"] == "Stable"
    inside = {"generation_id_or_member_epoch": 1, "member_id": member}
    for wrong_commit in (
        {},
        inside,
        {**inside, "generation_id_or_member_epoch": 7},
        {**inside, "member_id": "nobody"},
        {**inside, "group_instance_id": "stranger"},
    ):
        for version in (2, 7, 8, 9, 10):
            if version >= 7 or "group_instance_id" not in wrong_commit:
                twins.same(Api.OFFSET_COMMIT, version, **commit_fields(group, name, offset=3, **wrong_commit))
    for version in range(1, 11):
        twins.same(Api.OFFSET_FETCH, version, **offset_fetch_fields(group, name))
    twins.same(Api.DELETE_GROUPS, 2, groups_names=[group])
    twins.same(
        Api.OFFSET_DELETE,
        0,
        group_id=group,
        topics=[{"name": name, "partitions": [{"partition_index": 0}]}],
    )
    leaving = {"member_id": member, "group_instance_id": None, "reason": "done"}
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[{**leaving, "member_id": "nobody"}, leaving])
    twins.same(Api.HEARTBEAT, 4, **at)
    twins.same(Api.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
    twins.same(Api.OFFSET_FETCH, 9, **offset_fetch_fields(group, name))
    for deleted in (group, group, "no-such-group", ""):
        twins.same(Api.DELETE_GROUPS, 2, groups_names=[deleted])
    twins.same(Api.OFFSET_FETCH, 9, **offset_fetch_fields(group, name))
    for version in (5, 6):
        twins.same(Api.DESCRIBE_GROUPS, version, groups=[group, ""], include_authorized_operations=False)


def test_a_static_members_life(twins: Twins) -> None:
    group = unique("group")
    fixed = {"group_instance_id": "fixed"}
    joined = twins.same(Api.JOIN_GROUP, 7, **join_fields(group, **fixed))
    assert joined["error_code"] == 0
    for side in twins.sides:
        described = side.client.call(
            Api.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False
        )
        side.remembered["old"] = described.groups[0].members[0].member_id

    def old(side: Side) -> Any:
        return side.remembered["old"]

    at = {"group_id": group, "generation_id": 1, "member_id": old, **fixed}
    sync = {**at, "protocol_type": "consumer", "protocol_name": "range"}
    twins.same(Api.SYNC_GROUP, 5, **sync, assignments=[{"member_id": old, "assignment": b"mine"}])
    again = twins.same(Api.JOIN_GROUP, 7, **join_fields(group, **fixed))
    assert again["error_code"] == 0
    # The member id it had before is fenced wherever it is used with the instance id.
    twins.same(Api.HEARTBEAT, 4, **at)
    twins.same(Api.SYNC_GROUP, 5, **sync, assignments=[])
    twins.same(Api.JOIN_GROUP, 7, **join_fields(group, old, **fixed))
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[{"member_id": old, **fixed, "reason": None}])
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[{"member_id": "", **fixed, "reason": None}])
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[{"member_id": "", **fixed, "reason": None}])


@pytest.mark.parametrize("version", [0, 3, 4, 5, 7, 9])
@pytest.mark.parametrize(
    "wrong",
    [
        {"group_id": ""},
        {"member_id": "nobody"},
        {"session_timeout": 1},
        {"session_timeout": 10_000_000},
        {"protocols": []},
        {"protocol_type": ""},
    ],
    ids=str,
)
def test_joins_that_cannot_be(twins: Twins, wrong: dict[str, Any], version: int) -> None:
    twins.same(Api.JOIN_GROUP, version, **join_fields(unique("group"), **wrong))


def test_coordinators_of_all_kinds(twins: Twins) -> None:
    for version in range(7):
        for key_type in (0, 3, -1, 9):
            twins.same(
                Api.FIND_COORDINATOR,
                version,
                key="some-group",
                key_type=key_type,
                coordinator_keys=["a", "b"],
            )
    twins.same(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[""])


@pytest.mark.parametrize(
    ("api", "version"),
    [(key, SERVED[key].max_version + 1) for key in (Api.PRODUCE, Api.FETCH, Api.METADATA, Api.JOIN_GROUP)]
    + [(Api.FETCH, 3), (Api.OFFSET_COMMIT, 1), (Api.CREATE_TOPICS, 1)],
    ids=str,
)
def test_a_version_that_is_not_served_closes_the_connection(twins: Twins, api: Api, version: int) -> None:
    head = struct.pack(">hhi", api, version, 1) + struct.pack(">h", 4) + b"twin" + bytes(40)
    for side in twins.sides:
        side.client.socket.sendall(struct.pack(">i", len(head)) + head)
        with pytest.raises(ConnectionError):
            side.client.frame()
        side.reconnect()


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0(twins: Twins, version: int) -> None:
    head = struct.pack(">hhi", Api.API_VERSIONS, version, 77) + struct.pack(">h", 4) + b"twin\x00"
    answers = []
    for side in twins.sides:
        side.client.socket.sendall(struct.pack(">i", len(head)) + head)
        frame = side.client.frame()
        correlation_id, error, count = struct.unpack_from(">ihi", frame)
        rows = [struct.unpack_from(">hhh", frame, 10 + 6 * at) for at in range(count)]
        answers.append((correlation_id, error, [row for row in rows if row[0] == Api.API_VERSIONS]))
    assert answers[0] == answers[1]
    assert answers[0][1] == 35


def test_the_version_ranges_of_what_both_serve(twins: Twins) -> None:
    ours, theirs = (
        {
            row.api_key: (row.min_version, row.max_version)
            for row in side.client.call(
                Api.API_VERSIONS, 3, client_software_name="twin", client_software_version="1"
            ).api_keys
        }
        for side in twins.sides
    )
    assert ours == {key: theirs[key] for key in ours}
    for name, version in [("", "1"), ("bad name!", "1"), ("good", "bad version!")]:
        twins.same(Api.API_VERSIONS, 3, client_software_name=name, client_software_version=version)


# --- features ---------------------------------------------------------------------------------------------


def feature(name: str, level: int, upgrade_type: int = 1) -> dict[str, Any]:
    return {
        "feature": name,
        "max_version_level": level,
        "upgrade_type": upgrade_type,
        "allow_downgrade": upgrade_type != 1,
    }


SERVED_FEATURES = ("group.version", "metadata.version", "transaction.version")


def features_told(side: Side, version: int) -> tuple[list[Any], list[Any]]:
    """Kafka's other features set aside."""
    answer = side.client.call(
        Api.API_VERSIONS, version, client_software_name="twin", client_software_version="1"
    )
    supported, finalized = (
        sorted((row for row in rows if row.name in SERVED_FEATURES), key=lambda row: row.name)
        for rows in (answer.supported_features, answer.finalized_features)
    )
    return supported, finalized


UPDATES = [
    *(("transaction.version", level, kind) for level in (-1, 0, 1, 2, 3, 32_767) for kind in (1, 2, 3)),
    *(("group.version", level, kind) for level in (0, 1, 2) for kind in (1, 2, 0)),
    *(("metadata.version", level, kind) for level in (0, 6, 7, 29, 30, 31) for kind in (1, 2, 3)),
    *((name, level, kind) for name in ("no.such", "") for level in (0, 1) for kind in (1, 2, 99)),
]


@pytest.mark.parametrize("version", range(3))
def test_features_change_alike(twins: Twins, version: int) -> None:
    def same(*updates: dict[str, Any], validate_only: bool = False) -> None:
        fields = {"feature_updates": [*updates], "timeout": 10_000, "validate_only": validate_only}
        ours, theirs = (str(side.client.call(Api.UPDATE_FEATURES, version, **fields)) for side in twins.sides)
        assert ours == theirs
        until(
            lambda: [features_told(side, 4) for side in twins.sides][1] == features_told(twins.ours, 4),
            "the same levels on both sides",
        )
        assert features_told(twins.ours, 3) == features_told(twins.theirs, 3)

    for name, level, kind in UPDATES:
        same(feature(name, level, kind), validate_only=True)
        same(feature(name, level, kind))
    same()
    same(feature("transaction.version", 1, 2), feature("transaction.version", 2, 1))
    same(feature("transaction.version", 2, 1), feature("group.version", 1, 1))


# --- ACLs, without an authorizer --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 0, 1, 4, 99])
@pytest.mark.parametrize("element", ["resource_type", "pattern_type", "operation", "permission_type"])
def test_an_acl_is_refused_alike_whatever_it_is_about(twins: Twins, element: str, value: int) -> None:
    acl_name = {"pattern_type": "resource_pattern_type"}.get(element, element)
    filter_name = {"resource_type": "resource_type_filter", "pattern_type": "pattern_type_filter"}.get(
        element, element
    )
    acl, asked = {**ACL, acl_name: value}, {**FILTER, filter_name: value}
    for version in (1, 3):
        said = twins.same(Api.CREATE_ACLS, version, creations=[ACL, acl])
        assert twins.same(Api.DELETE_ACLS, version, filters=[FILTER, asked])
        assert twins.same(Api.DESCRIBE_ACLS, version, **asked)
        assert (said == "closed") is (value == 0)


def test_acls_are_refused_in_the_same_words(twins: Twins) -> None:
    for version in (1, 3):
        for api, fields in (
            (Api.DESCRIBE_ACLS, FILTER),
            (Api.CREATE_ACLS, {"creations": [ACL]}),
            (Api.DELETE_ACLS, {"filters": [FILTER]}),
        ):
            ours, theirs = (str(side.client.call(api, version, **fields)) for side in twins.sides)
            assert ours == theirs
