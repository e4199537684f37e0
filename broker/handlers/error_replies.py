"""What each API answers when a request fails as a whole.

Owns: where in its response an API has a place for the error, once or for each thing that was asked for. Does
not own: which error it is (handlers, dispatch), encoding. Invariant: a reply fits the request it answers, in
every version that is served; an API without a place for an error has no reply, and its connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from protocol.apis import SERVED, Api, PeerApi
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.messages import encode_response, get

_API_VERSIONS_FALLBACK: Final = 0
_Error: TypeAlias = dict[str, Any]


def error_reply(
    api_key: int, version: int, request: Any, code: ErrorCode, message: str | None = None
) -> Fields | None:
    """A response that says nothing but the error, where this API has a place for it, else None."""
    shape = _SHAPES.get(api_key)
    if shape is not None:
        return shape(version, request, {"error_code": code, "error_message": message})
    return {"error_code": code, "error_message": message, "throttle_time": 0, **_EMPTY.get(api_key, {})}


def unsupported_api_versions(correlation_id: int) -> bytes:
    """KIP-511: version 0 with the ranges, whatever version was asked."""
    ranges = [
        {"api_key": int(key), "min_version": row.min_version, "max_version": row.max_version}
        for key, row in SERVED.items()
    ]
    fields = {"error_code": ErrorCode.unsupported_version, "api_keys": ranges}
    return encode_response(Api.API_VERSIONS, _API_VERSIONS_FALLBACK, correlation_id, fields)


def _by_partition(topics: str, index: str, **rest: Any) -> Callable[[int, Any, _Error], Fields]:
    """Topics with partitions, each with the error and what else the schema requires."""

    def shape(version: int, request: Any, error: _Error) -> Fields:
        answered = []
        for topic in get(request, "topics", ()) or ():
            partitions = []
            for asked in get(topic, "partitions", None) or get(topic, "partition_indexes", ()):
                number = asked if isinstance(asked, int) else get(asked, index, None)
                if number is None:
                    number = get(asked, "partition", 0)
                partitions.append({"partition_index": number, "partition": number, **error, **rest})
            name = get(topic, "name", get(topic, "topic", ""))
            answered.append(
                {"name": name, "topic": name, "topic_id": get(topic, "topic_id"), "partitions": partitions}
            )
        return {topics: answered, "throttle_time": 0, "error_code": error["error_code"]}

    return shape


def _by_item(items: str, answered: str, *names: str, **rest: Any) -> Callable[[int, Any, _Error], Fields]:
    """One error for each thing asked for, named as it was."""

    def shape(version: int, request: Any, error: _Error) -> Fields:
        out = []
        for item in get(request, items, ()) or ():
            named = {name: get(item, name) for name in names} if names else {"group_id": item}
            out.append({**named, **error, **rest})
        return {answered: out, "throttle_time": 0, "error_code": error["error_code"]}

    return shape


def _delete_topics(version: int, request: Any, error: _Error) -> Fields:
    names = [{"name": topic.name, "topic_id": topic.topic_id} for topic in get(request, "topics", ()) or ()]
    names += [{"name": name, "topic_id": None} for name in get(request, "topic_names", ()) or ()]
    return {"responses": [{**name, **error} for name in names], "throttle_time": 0}


def _metadata(version: int, request: Any, error: _Error) -> Fields:
    topics = [
        {
            # the response takes null for a name two versions later than the request
            "name": topic.name or ("" if version < 12 else None),
            "topic_id": get(topic, "topic_id"),
            "is_internal": False,
            "partitions": [],
            "error_code": error["error_code"],
        }
        for topic in get(request, "topics", ()) or ()
    ]
    return {
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": topics,
        "throttle_time": 0,
        "error_code": error["error_code"],
    }


def _find_coordinator(version: int, request: Any, error: _Error) -> Fields:
    nowhere = {"node_id": -1, "host": "", "port": -1, **error}
    keys = get(request, "coordinator_keys", ()) or ()
    return {**nowhere, "coordinators": [{"key": key, **nowhere} for key in keys], "throttle_time": 0}


def _elect_leaders(version: int, request: Any, error: _Error) -> Fields:
    results = [
        {
            "topic": topic.topic,
            "partition_result": [{"partition_id": index, **error} for index in topic.partitions],
        }
        for topic in request.topic_partitions or ()
    ]
    return {"replica_election_results": results, "throttle_time": 0, "error_code": error["error_code"]}


def _alter_partition_reassignments(version: int, request: Any, error: _Error) -> Fields:
    responses = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": each.partition_index, **error} for each in topic.partitions],
        }
        for topic in request.topics
    ]
    return {"responses": responses, "throttle_time": 0, **error}


def _alter_replica_log_dirs(version: int, request: Any, error: _Error) -> Fields:
    results = [
        {
            "topic_name": topic.name,
            "partitions": [{"partition_index": index, **error} for index in topic.partitions],
        }
        for chosen in request.dirs
        for topic in chosen.topics
    ]
    return {"results": results, "throttle_time": 0}


_SHAPES: Final[Mapping[int, Callable[[int, Any, _Error], Fields]]] = {
    Api.LIST_OFFSETS: _by_partition("topics", "partition_index"),
    Api.OFFSET_COMMIT: _by_partition("topics", "partition_index"),
    Api.DELETE_RECORDS: _by_partition("topics", "partition_index", low_watermark=-1),
    Api.OFFSET_FOR_LEADER_EPOCH: _by_partition("topics", "partition", leader_epoch=-1, end_offset=-1),
    Api.DESCRIBE_PRODUCERS: _by_partition("topics", "partition_index", active_producers=[]),
    Api.METADATA: _metadata,
    Api.FIND_COORDINATOR: _find_coordinator,
    Api.DELETE_TOPICS: _delete_topics,
    Api.CREATE_TOPICS: _by_item("topics", "topics", "name", topic_id=None, configs=[]),
    Api.CREATE_PARTITIONS: _by_item("topics", "results", "name"),
    Api.DELETE_GROUPS: _by_item("groups_names", "results"),
    Api.DESCRIBE_GROUPS: _by_item(
        "groups", "groups", group_state="", protocol_type="", protocol_data="", members=[]
    ),
    Api.DESCRIBE_CONFIGS: _by_item("resources", "results", "resource_type", "resource_name", configs=[]),
    Api.ALTER_CONFIGS: _by_item("resources", "responses", "resource_type", "resource_name"),
    Api.INCREMENTAL_ALTER_CONFIGS: _by_item("resources", "responses", "resource_type", "resource_name"),
    Api.ELECT_LEADERS: _elect_leaders,
    Api.ALTER_PARTITION_REASSIGNMENTS: _alter_partition_reassignments,
    Api.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
}

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
    Api.LIST_GROUPS: {"groups": []},
    Api.INIT_PRODUCER_ID: {"producer_id": -1, "producer_epoch": -1},
    Api.DESCRIBE_LOG_DIRS: {"results": []},
    Api.OFFSET_DELETE: {"topics": []},
    Api.DESCRIBE_CLUSTER: {"cluster_id": "", "controller_id": -1, "brokers": []},
    Api.DESCRIBE_TOPIC_PARTITIONS: {"topics": []},
    Api.LIST_CONFIG_RESOURCES: {"config_resources": []},
    Api.LIST_PARTITION_REASSIGNMENTS: {"topics": []},
    Api.DESCRIBE_QUORUM: {"topics": [], "nodes": []},
    PeerApi.ALTER_PARTITION: {"topics": []},
    PeerApi.ALLOCATE_PRODUCER_IDS: {"producer_id_start": 0, "producer_id_len": 0},
}
