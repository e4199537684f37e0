"""A request that fails as a whole is answered with its error, by every API that can carry one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.handlers.error_replies import error_reply
from protocol.apis import SERVED, Api
from protocol.errors import ErrorCode
from protocol.messages import decode_request, decode_response, encode_request, encode_response
from protocol.wire import parse_head
from protocol.work import finish
from tests.broker.handlers.test_acls import ACL, FILTER
from tests.protocol.generate import classes_of, decoded, fields_of, schema_of

CASES: dict[Api, dict[str, Any]] = {
    Api.METADATA: {
        "topics": [{"name": "t", "topic_id": None}],
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    },
    Api.LIST_OFFSETS: {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [{"partition_index": 3, "timestamp": -1}]}],
        "timeout": 0,
    },
    Api.DELETE_RECORDS: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 3, "offset": 1}]}],
        "timeout": 0,
    },
    Api.OFFSET_FOR_LEADER_EPOCH: {
        "topics": [{"topic": "t", "partitions": [{"partition": 3, "leader_epoch": 1}]}],
    },
    Api.DESCRIBE_PRODUCERS: {"topics": [{"name": "t", "partition_indexes": [3]}]},
    Api.CREATE_ACLS: {"creations": [ACL]},
    Api.DELETE_ACLS: {"filters": [FILTER]},
    Api.DESCRIBE_ACLS: FILTER,
    Api.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 1},
    Api.ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 1,
        "v3_and_below_topics": [{"name": "t", "partitions": [3]}],
        "transactions": [
            {
                "transactional_id": "x",
                "producer_id": 1,
                "producer_epoch": 1,
                "topics": [{"name": "t", "partitions": [3]}],
            }
        ],
    },
    Api.ADD_OFFSETS_TO_TXN: {
        "transactional_id": "x",
        "producer_id": 1,
        "producer_epoch": 1,
        "group_id": "g",
    },
    Api.END_TXN: {"transactional_id": "x", "producer_id": 1, "producer_epoch": 1, "committed": True},
    Api.WRITE_TXN_MARKERS: {
        "markers": [
            {
                "producer_id": 1,
                "producer_epoch": 1,
                "transaction_result": True,
                "topics": [{"name": "t", "partition_indexes": [3]}],
                "coordinator_epoch": 1,
            }
        ],
    },
    Api.TXN_OFFSET_COMMIT: {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": 1,
        "producer_epoch": 1,
        "topics": [
            {
                "name": "t",
                "partitions": [{"partition_index": 3, "committed_offset": 1, "committed_metadata": None}],
            }
        ],
    },
    Api.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["x"]},
    Api.LIST_TRANSACTIONS: {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": None},
    Api.CREATE_PARTITIONS: {
        "topics": [{"name": "t", "count": 3, "assignments": None}],
        "timeout": 1,
        "validate_only": False,
    },
    Api.HEARTBEAT: {"group_id": "g", "generation_id": 1, "member_id": "m"},
    Api.LIST_GROUPS: {},
    Api.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": False, "include_fenced_brokers": False},
}


@pytest.mark.parametrize("api", list(CASES), ids=lambda api: api.name)
def test_the_error_of_a_whole_request_reads_as_such_in_every_version(api: Api) -> None:
    row = SERVED[api]
    for version in range(row.min_version, row.max_version + 1):
        frame = memoryview(encode_request(api, version, 1, "c", CASES[api]))[4:]
        request = decode_request(api, version, frame[parse_head(frame).body_at :])
        fields = finish(error_reply(api, version, request, ErrorCode.kafka_storage_error, "why"))
        assert fields is not None
        data = encode_response(api, version, 1, fields)
        response = decode_response(api, version, memoryview(data)[4:])[1]
        assert "kafka_storage_error" in repr(response)


@pytest.mark.parametrize("api", [api for api in Api if api not in (Api.PRODUCE, Api.FETCH)])
@settings(max_examples=20)
@given(data=st.data())
def test_every_api_has_an_error_reply_for_any_request(api: Api, data: st.DataObject) -> None:
    row = SERVED[api]
    version = data.draw(st.integers(row.served_from, row.max_version))
    schema = schema_of(api, version, "request")
    request = decoded(schema, data.draw(fields_of(schema)), classes_of(api, "request"))
    fields = finish(error_reply(api, version, request, ErrorCode.unknown_server_error, "why"))
    assert fields is not None
    encode_response(api, version, 1, fields)
