"""Requests and responses as frames, in every version and under its header."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from protocol import messages
from protocol.apis import SERVED, Api
from protocol.codec import EntityCodec
from protocol.errors import MalformedRequest
from protocol.messages import (
    codec,
    decode_request,
    decode_response,
    decode_response_in_turns,
    encode_request,
    encode_request_in_turns,
    encode_response,
    get,
    unknown_fields,
)
from protocol.wire import parse_head
from protocol.work import finish
from tests.protocol.generate import schema_of, smallest, versions

PARTITION = {
    "error_code": 0,
    "partition_index": 0,
    "leader_id": 1,
    "replica_nodes": [1],
    "isr_nodes": [1],
    "offline_replicas": [],
}
METADATA = {
    "brokers": [{"node_id": 1, "host": "h", "port": 9092}],
    "topics": [{"error_code": 0, "name": "t", "topic_id": UUID(int=9), "partitions": [PARTITION]}],
    "error_code": 0,
}


def test_one_dictionary_serves_every_version() -> None:
    for version in range(14):
        frame = encode_response(Api.METADATA, version, 77, METADATA)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, value = decode_response(Api.METADATA, version, frame[4:])
        assert correlation_id == 77
        assert value.brokers[0].port == 9092
        assert value.topics[0].partitions[0].leader_id == 1
        assert get(value.topics[0], "topic_id", "absent") == (UUID(int=9) if version >= 10 else "absent")
        assert get(value, "throttle_time", None) == (timedelta(0) if version >= 3 else None)


def test_apiversions_is_answered_with_header_0_in_every_version() -> None:
    for version in range(5):
        frame = encode_response(Api.API_VERSIONS, version, 5, {"error_code": 0, "api_keys": []})
        assert decode_response(Api.API_VERSIONS, version, frame[4:])[0] == 5
        assert frame[4:10] == b"\0\0\0\5\0\0"


def test_requests_carry_the_header_of_their_version() -> None:
    for key, version in versions():
        fields = smallest(schema_of(key, version, "request"))
        for client_id in (None, "", "kölsch"):
            frame = encode_request(key, version, -3, client_id, fields)[4:]
            head = parse_head(frame)
            assert head[:4] == (key, version, -3, client_id)
            assert decode_request(key, version, memoryview(frame)[head.body_at :])


def test_in_turns_requests_are_packed_and_answers_read_as_at_once() -> None:
    resources = [
        {"resource_type": 2, "resource_name": f"t{at}", "configs": [{"name": "n", "value": "v" * at}]}
        for at in range(300)
    ]
    fields = {"validate_only": False, "resources": resources}
    answers = [
        {"error_code": at % 2, "error_message": None, "resource_type": 2, "resource_name": f"t{at}"}
        for at in range(300)
    ]
    for version in (1, 2):
        kept: list[Any] = []
        packing = encode_request_in_turns(Api.ALTER_CONFIGS, version, 7, "client", fields, kept)
        pieces = finish(packing)
        assert b"".join(pieces) == encode_request(Api.ALTER_CONFIGS, version, 7, "client", fields)[4:]
        answer = {"throttle_time": 0, "responses": answers}
        frame = encode_response(Api.ALTER_CONFIGS, version, 7, answer)[4:]
        read = finish(decode_response_in_turns(Api.ALTER_CONFIGS, version, frame, kept))
        assert read == decode_response(Api.ALTER_CONFIGS, version, frame)
        assert len(kept) >= 600
    with pytest.raises(MalformedRequest):
        finish(decode_response_in_turns(Api.ALTER_CONFIGS, 2, b"\0\0\0", []))


def test_unknown_fields_are_those_of_no_version() -> None:
    good = METADATA | {"cluster_id": "c", "cluster_authorized_operations": 0}
    assert unknown_fields(Api.METADATA, "response", good) == []
    bad = good | {"topics": [{"topik_id": None, "partitions": [{"isr": []}]}], "x": 1}
    assert unknown_fields(Api.METADATA, "response", bad) == ["topics.topik_id", "topics.partitions.isr", "x"]


def test_a_version_that_is_not_served_is_malformed() -> None:
    for key, version in ((Api.PRODUCE, 2), (Api.FETCH, 99), (99, 0), (Api.INIT_PRODUCER_ID, 6)):
        with pytest.raises(MalformedRequest):
            decode_request(key, version, memoryview(b""))


def test_codecs_show_what_they_are() -> None:
    one = codec(Api.METADATA, 13, "request")
    assert repr(one) == "EntityCodec(kio.schema.metadata.v13.request.MetadataRequest)"
    assert isinstance(one, EntityCodec)
    messages.load(Api.METADATA, 13)
    assert codec(Api.METADATA, 13, "request") is one
    assert SERVED[Api.METADATA].name == "Metadata"
