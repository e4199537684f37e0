"""What each API answers when a request fails as a whole.

Owns: where in its response an API has a place for the error, once or for each thing that was asked for. Does
not own: which error it is (handlers, dispatch), encoding. Invariant: a reply fits the request it answers, in
every version that is served, and is made in turns; an API without a place for an error has no reply, and its
connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from protocol.apis import SERVED, Api, PeerApi
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.messages import encode_response
from protocol.work import Work

if TYPE_CHECKING:
    from protocol.requests.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
    from protocol.requests.alter_configs import AlterConfigsRequest
    from protocol.requests.alter_partition_reassignments import AlterPartitionReassignmentsRequest
    from protocol.requests.alter_replica_log_dirs import AlterReplicaLogDirsRequest
    from protocol.requests.consumer_group_describe import ConsumerGroupDescribeRequest
    from protocol.requests.create_acls import CreateAclsRequest
    from protocol.requests.create_partitions import CreatePartitionsRequest
    from protocol.requests.create_topics import CreateTopicsRequest
    from protocol.requests.delete_acls import DeleteAclsRequest
    from protocol.requests.delete_groups import DeleteGroupsRequest
    from protocol.requests.delete_records import DeleteRecordsRequest
    from protocol.requests.delete_topics import DeleteTopicsRequest
    from protocol.requests.describe_configs import DescribeConfigsRequest
    from protocol.requests.describe_groups import DescribeGroupsRequest
    from protocol.requests.describe_producers import DescribeProducersRequest
    from protocol.requests.describe_transactions import DescribeTransactionsRequest
    from protocol.requests.elect_leaders import ElectLeadersRequest
    from protocol.requests.find_coordinator import FindCoordinatorRequest
    from protocol.requests.incremental_alter_configs import IncrementalAlterConfigsRequest
    from protocol.requests.list_offsets import ListOffsetsRequest
    from protocol.requests.metadata import MetadataRequest, MetadataRequestTopic
    from protocol.requests.offset_commit import OffsetCommitRequest
    from protocol.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest
    from protocol.requests.txn_offset_commit import TxnOffsetCommitRequest
    from protocol.requests.write_txn_markers import WriteTxnMarkersRequest

_API_VERSIONS_FALLBACK: Final = 0
_NULL_NAME_FROM: Final = 12
_ROWS_AT_ONCE: Final = 16
RowT = TypeVar("RowT")
Error: TypeAlias = dict[str, ErrorCode | str | None]
"""What every place for an error gets: `error_code` and `error_message`."""


def error_reply(
    api_key: int, version: int, request: object, code: ErrorCode, message: str | None = None
) -> Work[Fields | None]:
    """Return a response with nothing but the error, or None where this API has no place for it."""
    shape = _SHAPES.get(api_key)
    if shape is not None:
        return (yield from shape(version, request, {"error_code": code, "error_message": message}))
    return {"error_code": code, "error_message": message, "throttle_time": 0, **_EMPTY.get(api_key, {})}


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The answer to a version that is not served (KIP-511): version 0 with the ranges."""
    ranges = [
        {"api_key": int(key), "min_version": row.min_version, "max_version": row.max_version}
        for key, row in SERVED.items()
    ]
    fields = {"error_code": ErrorCode.unsupported_version, "api_keys": ranges}
    return encode_response(Api.API_VERSIONS, _API_VERSIONS_FALLBACK, correlation_id, fields)


def _each(rows: Iterable[RowT], reply: Callable[[RowT], Fields]) -> Work[list[Fields]]:
    """Return what `reply` makes of each row, a few at a time."""
    replies: list[Fields] = []
    for row in rows:
        replies.append(reply(row))
        if not len(replies) % _ROWS_AT_ONCE:
            yield
    return replies


def _answered(
    topics: Iterable[tuple[str, UUID | None, Iterable[int]]], error: Error, **rest: object
) -> Work[Fields]:
    """Topics with partitions, each with the error and what else its schema requires."""

    def reply(index: int) -> Fields:
        return {"partition_index": index, "partition": index, **error, **rest}

    answered: list[Fields] = []
    for name, topic_id, indexes in topics:
        partitions = yield from _each(indexes, reply)
        answered.append({"name": name, "topic": name, "topic_id": topic_id, "partitions": partitions})
        if not len(answered) % _ROWS_AT_ONCE:
            yield
    return {"topics": answered, "throttle_time": 0, "error_code": error["error_code"]}


def _list_offsets(version: int, request: ListOffsetsRequest, error: Error) -> Work[Fields]:
    topics = (
        (topic.name, None, (each.partition_index for each in topic.partitions)) for topic in request.topics
    )
    return _answered(topics, error)


def _offset_commit(version: int, request: OffsetCommitRequest, error: Error) -> Work[Fields]:
    topics = (
        (topic.name, topic.topic_id, (each.partition_index for each in topic.partitions))
        for topic in request.topics
    )
    return _answered(topics, error)


def _txn_offset_commit(version: int, request: TxnOffsetCommitRequest, error: Error) -> Work[Fields]:
    topics = (
        (topic.name, None, (each.partition_index for each in topic.partitions)) for topic in request.topics
    )
    return _answered(topics, error)


def _write_txn_markers(version: int, request: WriteTxnMarkersRequest, error: Error) -> Work[Fields]:
    markers: list[Fields] = []
    for marker in request.markers:
        topics = ((topic.name, None, topic.partition_indexes) for topic in marker.topics)
        answered = yield from _answered(topics, error)
        markers.append({"producer_id": marker.producer_id, "topics": answered["topics"]})
    return {"markers": markers}


def _delete_records(version: int, request: DeleteRecordsRequest, error: Error) -> Work[Fields]:
    topics = (
        (topic.name, None, (each.partition_index for each in topic.partitions)) for topic in request.topics
    )
    return _answered(topics, error, low_watermark=-1)


def _offset_for_leader_epoch(
    version: int, request: OffsetForLeaderEpochRequest, error: Error
) -> Work[Fields]:
    topics = ((topic.topic, None, (each.partition for each in topic.partitions)) for topic in request.topics)
    return _answered(topics, error, leader_epoch=-1, end_offset=-1)


def _describe_producers(version: int, request: DescribeProducersRequest, error: Error) -> Work[Fields]:
    topics = ((topic.name, None, topic.partition_indexes) for topic in request.topics)
    return _answered(topics, error, active_producers=[])


def _metadata(version: int, request: MetadataRequest, error: Error) -> Work[Fields]:
    # the response takes null for a name two versions later than the request
    no_name = "" if version < _NULL_NAME_FROM else None

    def reply(topic: MetadataRequestTopic) -> Fields:
        return {
            "name": topic.name or no_name,
            "topic_id": topic.topic_id,
            "is_internal": False,
            "partitions": [],
            "error_code": error["error_code"],
        }

    return {
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": (yield from _each(request.topics or (), reply)),
        "throttle_time": 0,
        "error_code": error["error_code"],
    }


def _find_coordinator(version: int, request: FindCoordinatorRequest, error: Error) -> Work[Fields]:
    nowhere = {"node_id": -1, "host": "", "port": -1, **error}
    found = yield from _each(request.coordinator_keys, lambda key: {"key": key, **nowhere})
    return {**nowhere, "coordinators": found, "throttle_time": 0}


def _delete_topics(version: int, request: DeleteTopicsRequest, error: Error) -> Work[Fields]:
    by_id = yield from _each(
        request.topics, lambda topic: {"name": topic.name, "topic_id": topic.topic_id, **error}
    )
    by_name = yield from _each(request.topic_names, lambda name: {"name": name, "topic_id": None, **error})
    return {"responses": by_id + by_name, "throttle_time": 0}


def _create_topics(version: int, request: CreateTopicsRequest, error: Error) -> Work[Fields]:
    topics = yield from _each(
        request.topics, lambda topic: {"name": topic.name, **error, "topic_id": None, "configs": []}
    )
    return {"topics": topics, "throttle_time": 0}


def _create_partitions(version: int, request: CreatePartitionsRequest, error: Error) -> Work[Fields]:
    results = yield from _each(request.topics, lambda topic: {"name": topic.name, **error})
    return {"results": results, "throttle_time": 0}


def _delete_groups(version: int, request: DeleteGroupsRequest, error: Error) -> Work[Fields]:
    results = yield from _each(request.groups_names, lambda group_id: {"group_id": group_id, **error})
    return {"results": results, "throttle_time": 0}


def _describe_groups(version: int, request: DescribeGroupsRequest, error: Error) -> Work[Fields]:
    unknown = {"group_state": "", "protocol_type": "", "protocol_data": "", "members": []}
    groups = yield from _each(request.groups, lambda group_id: {"group_id": group_id, **error, **unknown})
    return {"groups": groups, "throttle_time": 0}


def _add_partitions_to_txn(version: int, request: AddPartitionsToTxnRequest, error: Error) -> Work[Fields]:
    code = error["error_code"]

    def topics(named: Iterable[AddPartitionsToTxnTopic]) -> Work[list[Fields]]:
        answered: list[Fields] = []
        for topic in named:
            rows = yield from _each(
                topic.partitions, lambda index: {"partition_index": index, "partition_error_code": code}
            )
            answered.append({"name": topic.name, "results_by_partition": rows})
            yield
        return answered

    results: list[Fields] = []
    for each in request.transactions:
        rows = yield from topics(each.topics)
        results.append({"transactional_id": each.transactional_id, "topic_results": rows})
    return {
        "error_code": code,
        "results_by_topic_v3_and_below": (yield from topics(request.v3_and_below_topics)),
        "results_by_transaction": results,
        "throttle_time": 0,
    }


def _describe_transactions(version: int, request: DescribeTransactionsRequest, error: Error) -> Work[Fields]:
    unknown = {
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }
    rows = yield from _each(
        request.transactional_ids,
        lambda transactional_id: {"transactional_id": transactional_id, **error, **unknown},
    )
    return {"transaction_states": rows, "throttle_time": 0}


def _consumer_group_describe(
    version: int, request: ConsumerGroupDescribeRequest, error: Error
) -> Work[Fields]:
    unknown = {
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }
    groups = yield from _each(request.group_ids, lambda group_id: {"group_id": group_id, **error, **unknown})
    return {"groups": groups, "throttle_time": 0}


def _describe_configs(version: int, request: DescribeConfigsRequest, error: Error) -> Work[Fields]:
    results = yield from _each(request.resources, lambda each: {**_resource(each), **error, "configs": []})
    return {"results": results, "throttle_time": 0}


def _alter_configs(
    version: int, request: AlterConfigsRequest | IncrementalAlterConfigsRequest, error: Error
) -> Work[Fields]:
    resources: Iterable[Resource] = request.resources
    responses = yield from _each(resources, lambda each: {**_resource(each), **error})
    return {"responses": responses, "throttle_time": 0}


class Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


def _resource(resource: Resource) -> Fields:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _elect_leaders(version: int, request: ElectLeadersRequest, error: Error) -> Work[Fields]:
    results: list[Fields] = []
    for topic in request.topic_partitions or ():
        partitions = yield from _each(topic.partitions, lambda index: {"partition_id": index, **error})
        results.append({"topic": topic.topic, "partition_result": partitions})
        yield
    return {"replica_election_results": results, "throttle_time": 0, "error_code": error["error_code"]}


def _alter_partition_reassignments(
    version: int, request: AlterPartitionReassignmentsRequest, error: Error
) -> Work[Fields]:
    responses: list[Fields] = []
    for topic in request.topics:
        partitions = yield from _each(
            topic.partitions, lambda each: {"partition_index": each.partition_index, **error}
        )
        responses.append({"name": topic.name, "partitions": partitions})
        yield
    return {"responses": responses, "throttle_time": 0, **error}


def _alter_replica_log_dirs(version: int, request: AlterReplicaLogDirsRequest, error: Error) -> Work[Fields]:
    results: list[Fields] = []
    for chosen in request.dirs:
        for topic in chosen.topics:
            partitions = yield from _each(topic.partitions, lambda index: {"partition_index": index, **error})
            results.append({"topic_name": topic.name, "partitions": partitions})
            yield
    return {"results": results, "throttle_time": 0}


def _create_acls(version: int, request: CreateAclsRequest, error: Error) -> Work[Fields]:
    return {"results": (yield from _each(request.creations, lambda _: {**error})), "throttle_time": 0}


def _delete_acls(version: int, request: DeleteAclsRequest, error: Error) -> Work[Fields]:
    results = yield from _each(request.filters, lambda _: {**error, "matching_acls": []})
    return {"filter_results": results, "throttle_time": 0}


_SHAPES: Final[Mapping[int, Callable[[int, Any, Error], Work[Fields]]]] = {
    Api.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    Api.DESCRIBE_TRANSACTIONS: _describe_transactions,
    Api.LIST_OFFSETS: _list_offsets,
    Api.OFFSET_COMMIT: _offset_commit,
    Api.TXN_OFFSET_COMMIT: _txn_offset_commit,
    Api.WRITE_TXN_MARKERS: _write_txn_markers,
    Api.DELETE_RECORDS: _delete_records,
    Api.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    Api.DESCRIBE_PRODUCERS: _describe_producers,
    Api.METADATA: _metadata,
    Api.FIND_COORDINATOR: _find_coordinator,
    Api.DELETE_TOPICS: _delete_topics,
    Api.CREATE_TOPICS: _create_topics,
    Api.CREATE_PARTITIONS: _create_partitions,
    Api.DELETE_GROUPS: _delete_groups,
    Api.DESCRIBE_GROUPS: _describe_groups,
    Api.CREATE_ACLS: _create_acls,
    Api.DELETE_ACLS: _delete_acls,
    Api.CONSUMER_GROUP_DESCRIBE: _consumer_group_describe,
    Api.DESCRIBE_CONFIGS: _describe_configs,
    Api.ALTER_CONFIGS: _alter_configs,
    Api.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    Api.ELECT_LEADERS: _elect_leaders,
    Api.ALTER_PARTITION_REASSIGNMENTS: _alter_partition_reassignments,
    Api.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
}
"""The reply of each API that names in its answer what it was asked for."""

_EMPTY: Final[Mapping[int, Fields]] = {
    Api.API_VERSIONS: {"api_keys": []},
    Api.OFFSET_FETCH: {"topics": [], "groups": []},
    Api.JOIN_GROUP: {
        "generation_id": -1,
        "protocol_name": "",
        "protocol_type": "",
        "leader": "",
        "member_id": "",
        "members": [],
    },
    Api.SYNC_GROUP: {"assignment": b""},
    Api.LEAVE_GROUP: {"members": []},
    Api.CONSUMER_GROUP_HEARTBEAT: {"member_epoch": 0, "heartbeat_interval": 0},
    Api.LIST_GROUPS: {"groups": []},
    Api.ADD_OFFSETS_TO_TXN: {},
    Api.END_TXN: {"producer_id": -1, "producer_epoch": -1},
    Api.LIST_TRANSACTIONS: {"unknown_state_filters": [], "transaction_states": []},
    Api.INIT_PRODUCER_ID: {"producer_id": -1, "producer_epoch": -1},
    Api.DESCRIBE_ACLS: {"resources": []},
    Api.DESCRIBE_LOG_DIRS: {"results": []},
    Api.OFFSET_DELETE: {"topics": []},
    Api.DESCRIBE_CLUSTER: {"cluster_id": "", "controller_id": -1, "brokers": []},
    Api.DESCRIBE_TOPIC_PARTITIONS: {"topics": []},
    Api.LIST_CONFIG_RESOURCES: {"config_resources": []},
    Api.LIST_PARTITION_REASSIGNMENTS: {"topics": []},
    Api.DESCRIBE_QUORUM: {"topics": [], "nodes": []},
    Api.UPDATE_FEATURES: {"results": []},
    PeerApi.ALTER_PARTITION: {"topics": []},
    PeerApi.ALLOCATE_PRODUCER_IDS: {"producer_id_start": 0, "producer_id_len": 0},
}
