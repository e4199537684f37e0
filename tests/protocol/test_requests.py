"""The generated request classes: current, complete, and with Kafka's defaults for what a version lacks."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from protocol.apis import KNOWN, Api, PeerApi
from protocol.coding.schema import struct_schema
from protocol.messages import codec, decode_request, encode_request, message_class
from protocol.requests.fetch import DEFAULT_REPLICA_STATE
from protocol.requests.metadata import MetadataRequest, MetadataRequestTopic
from protocol.wire import parse_head
from tests.protocol.generate import smallest
from tools import generate_requests


def of_version(api: Api | PeerApi, version: int, **fields: Any) -> Any:
    schema = struct_schema(message_class(api, version, "request"))
    frame = memoryview(encode_request(api, version, 1, None, smallest(schema) | fields))[4:]
    return decode_request(api, version, frame[parse_head(frame).body_at :])


def test_the_modules_are_what_the_schemas_give() -> None:
    assert not generate_requests.stale(), "stale: make requests"


@pytest.mark.parametrize("key", KNOWN)
def test_a_request_of_any_version_has_every_field_of_every_version(key: int) -> None:
    row = KNOWN[key]
    module = import_module(f"protocol.requests.{row.kio_name}")
    for version in range(row.served_from, row.max_version + 1):
        request = codec(key, version, "request").decode(
            codec(key, version, "request").encode(
                smallest(struct_schema(message_class(key, version, "request")))
            )
        )
        assert type(request) is getattr(module, f"{row.name}Request")
        for other in range(row.served_from, row.max_version + 1):
            schema = struct_schema(message_class(key, other, "request"))
            for field in (*schema.fields, *schema.tagged):
                assert hasattr(request, field.name)


def test_a_field_that_the_version_lacks_has_its_declared_default() -> None:
    assert of_version(Api.METADATA, 0).allow_auto_topic_creation is True
    assert of_version(Api.FETCH, 4).session_epoch == -1
    assert of_version(Api.FETCH, 14).replica_state is DEFAULT_REPLICA_STATE
    assert of_version(Api.OFFSET_COMMIT, 5).retention_time == timedelta(milliseconds=-1)
    assert of_version(Api.OFFSET_FOR_LEADER_EPOCH, 2).replica_id == -2
    assert of_version(Api.DESCRIBE_CLUSTER, 0).endpoint_type == 1
    assert of_version(Api.JOIN_GROUP, 4).group_instance_id is None


def test_a_field_that_the_version_lacks_and_has_no_default_is_zero() -> None:
    assert of_version(Api.METADATA, 0).include_topic_authorized_operations is False
    assert of_version(Api.LIST_OFFSETS, 9).timeout == timedelta(0)
    assert of_version(Api.OFFSET_FETCH, 8).group_id == ""
    assert of_version(Api.OFFSET_FETCH, 8).topics == ()
    assert of_version(Api.OFFSET_FETCH, 7).groups == ()
    assert of_version(Api.METADATA, 9, topics=[{"name": "t"}]).topics[0].topic_id is None


def test_requests_compare_and_show_by_their_fields() -> None:
    topics = (MetadataRequestTopic(name="t"),)
    request = MetadataRequest(topics=topics)
    assert request == MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
    assert request != MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    assert request != topics[0]
    assert repr(topics[0]) == "MetadataRequestTopic(name='t', topic_id=None)"
