"""Messages of every version: there and back, byte for byte as kio writes them, and hostile bytes."""

from __future__ import annotations

import ctypes
import io
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from protocol.apis import SERVED, Api
from protocol.codec import EntityCodec
from protocol.coding.writing import MissingField
from protocol.coding.writing_in_turns import PIECE_BYTES
from protocol.errors import ErrorCode, MalformedRequest, TooManyRows
from protocol.messages import (
    Kind,
    codec,
    decode_request,
    encode_request,
    encode_response,
    encode_response_in_turns,
    entity,
)
from protocol.wire import parse_head
from protocol.work import Work, finish, let_go
from tests.protocol.generate import KINDS, classes_of, decoded, fields_of, smallest, versions

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


def written_by_kio(value: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(value))(out, value)
    return out.getvalue()


def codecs(key: int) -> Iterator[EntityCodec]:
    row = SERVED[key]
    for version in range(row.served_from, row.max_version + 1):
        for kind in KINDS:
            yield codec(key, version, kind)


def decoded_in_turns(one: EntityCodec, body: bytes | bytearray) -> Any:
    """Return the value or the error, as `outcome` does."""
    return outcome(lambda: finish(one.decode_in_turns(body, rows_max=1 << 30, kept=[])))


def outcome(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except MalformedRequest as error:
        return str(error)


def read_by_kio(cls: Any, data: bytes) -> Any:
    return entity_reader(cls)(data, 0)[0]


def assert_equal_fields(by_kio: Any, value: Any) -> None:
    """Compare every field of kio's dataclass; `value` may have more, of other versions."""
    if isinstance(by_kio, tuple):
        assert len(by_kio) == len(value)
        for one, other in zip(by_kio, value, strict=True):
            assert_equal_fields(one, other)
    elif is_dataclass(by_kio):
        assert type(by_kio).__name__ == type(value).__name__
        for field in dataclass_fields(by_kio):
            assert_equal_fields(getattr(by_kio, field.name), getattr(value, field.name))
    else:
        assert by_kio == value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("key", "version"), list(versions()))
def test_every_version_there_and_back(key: int, version: int, kind: Kind) -> None:
    one, classes = codec(key, version, kind), classes_of(key, kind)

    @settings(max_examples=4)
    @given(fields_of(one.schema))
    def there_and_back(fields: dict[str, Any]) -> None:
        data = one.encode(fields)
        value = one.decode(data)
        assert value == decoded(one.schema, fields, classes)
        assert one.encode(value) == data
        assert decoded_in_turns(one, data) == value
        assert b"".join(finish(one.encode_in_turns(fields, []))) == data
        assert b"".join(finish(one.encode_in_turns(value, []))) == data
        assert written_by_kio(decoded(one.schema, fields)) == data
        assert_equal_fields(read_by_kio(one.schema.cls, data), value)

    there_and_back()


@pytest.mark.parametrize("key", SERVED)
def test_the_least_of_every_version_and_every_cut_of_it(key: int) -> None:
    for one in codecs(key):
        data = one.encode(smallest(one.schema))
        assert one.encode(one.decode(data)) == data
        assert one.schema.size_min <= len(data)
        for size in range(len(data)):
            with pytest.raises(MalformedRequest):
                one.decode(data[:size])


@pytest.mark.parametrize("key", SERVED)
def test_mutated_messages_give_a_value_or_malformed(key: int) -> None:
    @settings(max_examples=25)
    @given(st.sampled_from(list(codecs(key))), st.data())
    def mutate(one: EntityCodec, data: st.DataObject) -> None:
        body = bytearray(one.encode(data.draw(fields_of(one.schema))))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(body)))
            body[at : at + data.draw(st.integers(0, 2))] = data.draw(
                st.binary(max_size=2) | st.just(b"\xff\xff\xff\xff\x0f")
            )
        value = outcome(lambda: one.decode(body))
        assert decoded_in_turns(one, body) == value
        assert type(value).__name__ in (one.schema.cls.__name__, "str")

    mutate()


@pytest.mark.parametrize("key", SERVED)
def test_unknown_tagged_fields_are_skipped(key: int) -> None:
    for one in codecs(key):
        if not one.schema.is_flexible:
            continue
        data = one.encode(smallest(one.schema))
        assert data[-1] == 0, "the message's own tagged fields come last and there are none"
        tagged = data[:-1] + b"\x02" + b"\x63\x03abc" + b"\xe4\x07\x00"
        assert one.decode(tagged) == one.decode(data)
        for size in range(len(data) - 1, len(tagged)):
            with pytest.raises(MalformedRequest):
                one.decode(tagged[:size])


def test_unknown_tagged_fields_inside_structs_are_skipped() -> None:
    one = codec(Api.METADATA, 13, "request")
    # one topic (id, name "t", two tagged fields), two flags, one tagged field
    body = b"\x02" + bytes(16) + b"\x02t" + b"\x02\x05\x01x\x06\x00" + b"\x01\x00" + b"\x01\x00\x02yy"
    value = one.decode(body)
    assert [topic.name for topic in value.topics] == ["t"]
    assert value.allow_auto_topic_creation
    assert not value.include_topic_authorized_operations


def test_a_tagged_field_of_the_wrong_size_is_malformed() -> None:
    one = codec(Api.FETCH, 16, "request")
    body = one.encode(smallest(one.schema))[:-1]
    epoch = b"\x00\x00\x00\x05" + bytes(8) + b"\x00"
    assert one.decode(body + b"\x01\x01\x0d" + epoch).replica_state.replica_id == 5
    for size in (12, 14):
        with pytest.raises(MalformedRequest):
            one.decode(body + b"\x01\x01" + bytes([size]) + epoch + b"\x00")


def test_bytes_after_the_message_are_ignored() -> None:
    for version in (1, 13):
        one = codec(Api.METADATA, version, "request")
        data = one.encode(smallest(one.schema) | {"topics": [{"name": "t", "topic_id": None}]})
        assert one.decode(data + b"tail") == one.decode(data)


def test_text_that_is_no_utf8_is_read_as_java_does() -> None:
    one = codec(Api.METADATA, 1, "request")
    assert one.decode(b"\0\0\0\1" + b"\0\2a\xff").topics[0].name == "a�"


# --- in turns ---


def offsets(*, topics: int, partitions: int) -> dict[str, Any]:
    partition = {"partition_index": 1, "committed_offset": 5, "committed_metadata": "m"}
    return {
        "group_id": "g",
        "member_id": "m",
        "generation_id_or_member_epoch": 1,
        "topics": [
            {"name": f"t{n}", "topic_id": None, "partitions": [partition] * partitions} for n in range(topics)
        ],
    }


def steps_of(work: Work[Any]) -> int:
    return sum(1 for _ in work)


@pytest.mark.parametrize(("topics", "partitions"), [(3000, 1), (1, 3000), (300, 10), (750, 3)])
def test_rows_are_read_and_written_a_few_at_a_time_at_any_depth(topics: int, partitions: int) -> None:
    one = codec(Api.OFFSET_COMMIT, 9, "request")
    fields = offsets(topics=topics, partitions=partitions)
    rows = topics + topics * partitions
    data = one.encode(fields)
    assert steps_of(one.encode_in_turns(fields, [])) >= rows // 17
    assert steps_of(one.decode_in_turns(data, rows_max=rows, kept=[])) >= rows // 17
    assert finish(one.decode_in_turns(data, rows_max=rows, kept=[])) == one.decode(data)


def test_numbers_and_long_fields_are_read_and_written_in_pieces() -> None:
    indexes = {"topics": [{"name": "t", "partition_indexes": list(range(100_000))}]}
    metadata = bytes(range(256)) * 4096
    joined = {
        "group_id": "g",
        "session_timeout": 1,
        "rebalance_timeout": 1,
        "member_id": "m",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    for one, fields in (
        (codec(Api.DESCRIBE_PRODUCERS, 0, "request"), indexes),
        (codec(Api.JOIN_GROUP, 9, "request"), joined),
    ):
        data = one.encode(fields)
        assert b"".join(finish(one.encode_in_turns(fields, []))) == data
        assert finish(one.decode_in_turns(data, rows_max=1 << 20, kept=[])) == one.decode(data)
        assert steps_of(one.decode_in_turns(data, rows_max=1 << 20, kept=[])) >= 16


def is_hashed(text: str) -> bool:
    """Whether CPython has noted its hash in it, behind the count of references, the type and the length."""
    return ctypes.c_ssize_t.from_address(id(text) + 3 * ctypes.sizeof(ctypes.c_ssize_t)).value != -1


def test_names_that_take_long_to_hash_are_hashed_one_by_one_as_they_are_read() -> None:
    """Whoever looks up thousands of them in one step has nothing left to read."""
    names = [f"{at:030000}" for at in range(40)]
    assert not is_hashed(names[0])
    topics = [{"name": name, "topic_id": None} for name in names]
    for one, fields in (
        (codec(Api.DESCRIBE_GROUPS, 5, "request"), {"groups": names, "include_authorized_operations": False}),
        (
            codec(Api.METADATA, 13, "request"),
            {
                "topics": topics,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        ),
    ):
        work = one.decode_in_turns(one.encode(fields), rows_max=1 << 20, kept=[])
        assert steps_of(work) >= len(names)
        read = finish(one.decode_in_turns(one.encode(fields), rows_max=1 << 20, kept=[]))
        assert all(map(is_hashed, getattr(read, "groups", None) or [each.name for each in read.topics]))


def test_a_row_too_many_is_refused_before_it_is_made() -> None:
    one = codec(Api.OFFSET_COMMIT, 9, "request")
    data = one.encode(offsets(topics=10, partitions=10))
    assert finish(one.decode_in_turns(data, rows_max=110, kept=[])) == one.decode(data)
    kept: list[Any] = []
    with pytest.raises(TooManyRows) as caught:
        finish(one.decode_in_turns(data, rows_max=109, kept=kept))
    assert caught.value.rows == 110
    assert len(kept) == 90 + 9, "what was made before it is there to be let go of"


def test_what_is_decoded_can_be_let_go_of_bit_by_bit() -> None:
    one = codec(Api.OFFSET_COMMIT, 9, "request")
    kept: list[Any] = []
    request = finish(
        one.decode_in_turns(one.encode(offsets(topics=2, partitions=2000)), rows_max=5000, kept=kept)
    )
    rows = {id(row) for topic in request.topics for row in (topic, *topic.partitions)}
    assert rows == {id(row) for row in kept}
    del request
    assert steps_of(let_go(kept)) >= 10
    assert kept == []


def test_long_rows_are_written_one_or_two_at_a_time() -> None:
    topics = [{"name": "t" * 30_000, "topic_id": UUID(int=0)}] * 100
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    one = codec(Api.METADATA, 13, "request")
    assert b"".join(finish(one.encode_in_turns(fields, []))) == one.encode(fields)
    assert steps_of(one.encode_in_turns(fields, [])) >= 3_000_000 // (64 << 10) - 15


def test_a_large_answer_comes_in_pieces() -> None:
    topics = [{"error_code": 0, "name": "t" * 200, "topic_id": UUID(int=9), "partitions": []}] * 5000
    fields = METADATA | {"topics": topics}
    pieces = finish(encode_response_in_turns(Api.METADATA, 13, 7, fields, []))
    assert b"".join(pieces) == encode_response(Api.METADATA, 13, 7, fields)
    assert len(pieces) >= 4
    assert max(map(len, pieces)) < 2 * PIECE_BYTES


def test_errors_of_writing_in_turns_say_where_too() -> None:
    with pytest.raises(MissingField, match=r"MetadataResponseBroker\.host of version 13") as caught:
        finish(encode_response_in_turns(Api.METADATA, 13, 0, METADATA | {"brokers": [{"node_id": 1}]}, []))
    assert "in MetadataResponse, version 13, field brokers" in caught.value.__notes__


def test_a_string_of_a_request_is_as_long_as_in_kafka() -> None:
    for size, is_read in ((0x7FFF, True), (0x8000, False)):
        one = codec(Api.DELETE_GROUPS, 2, "request")
        data = one.encode({"groups_names": ["g" * size]})
        assert (type(outcome(lambda: one.decode(data))) is not str) is is_read  # noqa: B023


def test_tagged_fields_without_end_are_refused() -> None:
    body = codec(Api.DELETE_GROUPS, 2, "request").encode({"groups_names": []})[:-1]
    for count, is_read in ((64, True), (65, False)):
        data = body + bytes([count]) + b"\x63\x00" * count
        value = outcome(lambda: codec(Api.DELETE_GROUPS, 2, "request").decode(data))  # noqa: B023
        assert (type(value) is not str) is is_read


# --- memory ---

HOSTILE = {
    "count of 2^31-1": (Api.METADATA, 1, b"\x7f\xff\xff\xff"),
    "compact count of 2^31-1": (Api.METADATA, 13, b"\xff\xff\xff\xff\x07"),
    "compact count of 2^35-1": (Api.METADATA, 13, b"\xff\xff\xff\xff\x7f"),
    "varint of 6 bytes": (Api.METADATA, 13, b"\x81\x80\x80\x80\x80\x00"),
    "negative count": (Api.METADATA, 0, b"\xff\xff\xff\xfe"),
    "string beyond the end": (Api.METADATA, 1, b"\0\0\0\1\x7f\xff"),
    "string of -2": (Api.METADATA, 1, b"\0\0\0\1\xff\xfe"),
    "null string": (Api.METADATA, 1, b"\0\0\0\1\xff\xff"),
    "tagged fields of 2^31-1": (Api.METADATA, 13, b"\x01\0\0\xff\xff\xff\xff\x07"),
    "tagged field beyond the end": (Api.METADATA, 13, b"\x01\0\0\x01\x63\xff\xff\xff\xff\x07"),
    "count as large as the body, too small for the items": (
        Api.METADATA,
        13,
        b"\x80\x80\x80\x01" + bytes(2 << 20),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sizes_are_malformed_and_cheap(name: str) -> None:
    key, version, body = HOSTILE[name]
    codec(key, version, "request")
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            decode_request(key, version, memoryview(body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_body_of_honest_tiny_elements_is_bounded() -> None:
    count = 1 << 19
    body = count.to_bytes(4, "big") + bytes(2 * count)
    with pytest.raises(MalformedRequest, match="elements"):
        decode_request(Api.METADATA, 1, memoryview(body))


def test_large_bodies_of_few_elements_are_read() -> None:
    metadata = b"m" * (1 << 20)
    fields = {
        "group_id": "g",
        "session_timeout": 1,
        "rebalance_timeout": 1,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
        "reason": None,
    }
    value = entity(Api.JOIN_GROUP, 9, fields)
    assert value.protocols[0].metadata == metadata
    assert value.session_timeout == timedelta(milliseconds=1)


def test_record_sets_are_views_on_the_frame() -> None:
    fields = {
        "acks": -1,
        "timeout": 1500,
        "topic_data": [{"name": "t", "partition_data": [{"index": 3, "records": b"batch"}]}],
    }
    frame = memoryview(bytearray(encode_request(Api.PRODUCE, 9, 1, "me", fields)))[4:]
    head = parse_head(frame)
    request = decode_request(head.api_key, head.api_version, frame[head.body_at :])
    records = request.topic_data[0].partition_data[0].records
    records[:1] = b"B"
    assert b"Batch" in bytes(frame)


# --- writing ---


def test_a_missing_required_field_is_a_bug_and_says_which() -> None:
    with pytest.raises(MissingField, match=r"MetadataResponseBroker\.host of version 13"):
        encode_response(Api.METADATA, 13, 0, METADATA | {"brokers": [{"node_id": 1, "port": 1}]})


def test_null_where_none_is_allowed_is_a_bug_and_says_where() -> None:
    with pytest.raises(TypeError) as caught:
        encode_response(Api.METADATA, 13, 0, METADATA | {"topics": None})
    assert caught.value.__notes__ == ["in MetadataResponse, version 13, field topics"]


def test_times_and_enums_in_any_form() -> None:
    def produced(**values: Any) -> bytes:
        partition = {
            "index": 0,
            "error_code": 0,
            "base_offset": 1,
            "record_errors": [],
            "error_message": None,
            "log_append_time": None,
        } | values
        return encode_response(
            Api.PRODUCE, 8, 0, {"responses": [{"name": "t", "partition_responses": [partition]}]}
        )

    assert produced(log_append_time=None) == produced(log_append_time=-1)
    assert produced(log_append_time=1500) == produced(
        log_append_time=datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)
    )
    assert produced(error_code=87) == produced(error_code=ErrorCode.invalid_record)
    assert encode_response(Api.HEARTBEAT, 1, 0, {"error_code": 0, "throttle_time": 7}) == encode_response(
        Api.HEARTBEAT, 1, 0, {"error_code": 0, "throttle_time": timedelta(milliseconds=7)}
    )


def test_tagged_fields_at_their_default_are_left_out() -> None:
    one = codec(Api.FETCH, 16, "response")
    bare = smallest(one.schema)
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 0,
        "aborted_transactions": [],
        "records": None,
    }

    def fetched(**tagged: Any) -> bytes:
        topic = {"topic_id": UUID(int=1), "partitions": [partition | tagged]}
        return one.encode(bare | {"responses": [topic]})

    assert one.encode(bare | {"node_endpoints": []}) == one.encode(bare)
    assert fetched(current_leader={"leader_id": -1, "leader_epoch": -1}) == fetched()
    assert fetched(current_leader={}) == fetched()
    leader = one.decode(fetched(current_leader={"leader_id": 4})).responses[0].partitions[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (4, -1)


def test_an_unknown_error_code_from_a_peer_is_unknown_server_error() -> None:
    one = codec(Api.HEARTBEAT, 0, "response")
    assert one.decode(b"\x7f\xff").error_code is ErrorCode.unknown_server_error


@pytest.mark.parametrize("retention_ms", [-(2**63), -1, 0, 2**63 - 1])
def test_a_retention_longer_than_a_timedelta_is_the_longest(retention_ms: int) -> None:
    body = b"\x00\x01g" + b"\x00\x00\x00\x01" + b"\x00\x01m" + retention_ms.to_bytes(8, "big", signed=True)
    request = decode_request(Api.OFFSET_COMMIT, 2, memoryview(body + b"\x00\x00\x00\x00"))
    assert request.retention_time / timedelta(milliseconds=1) == pytest.approx(
        max(-86_399_999_913_600_000, min(retention_ms, 86_399_999_913_600_000))
    )
