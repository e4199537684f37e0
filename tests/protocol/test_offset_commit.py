"""OffsetCommits that are read and packed by hand, held against the general codec."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.messages import codec, decode_request, encode_request, encode_response
from protocol.offset_commit import (
    SHORT_ROWS_MAX,
    Row,
    ShortCommit,
    encode_commit,
    parse_short_commit,
)
from protocol.primitives import INT32
from protocol.shapes import FrameShape, correlated
from protocol.wire import parse_head

VERSIONS = st.integers(2, 10)
TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
PARTITION = st.fixed_dictionaries(
    {
        "partition_index": st.integers(-(1 << 31), (1 << 31) - 1),
        "committed_offset": st.integers(-(1 << 63), (1 << 63) - 1),
        "committed_leader_epoch": st.integers(-(1 << 31), (1 << 31) - 1),
        "committed_metadata": st.none() | TEXT,
    }
)
TOPIC = st.fixed_dictionaries(
    {"name": TEXT, "topic_id": st.uuids(), "partitions": st.lists(PARTITION, min_size=1, max_size=4)}
)
REQUEST = st.fixed_dictionaries(
    {
        "group_id": TEXT,
        "generation_id_or_member_epoch": st.integers(-(1 << 31), (1 << 31) - 1),
        "member_id": TEXT,
        "group_instance_id": st.none() | TEXT,
        "retention_time": st.integers(-1, 1 << 40).map(lambda ms: timedelta(milliseconds=ms)),
        "topics": st.lists(TOPIC, min_size=1, max_size=3),
    }
)


def frame_of(version: int, fields: dict[str, Any]) -> bytes:
    """A request without its size."""
    names = {field.name for field in codec(Api.OFFSET_COMMIT, version, "request").schema.fields}
    known = {name: value for name, value in fields.items() if name in names}
    topic_fields = {"topic_id"} if version >= 10 else {"name"}
    known["topics"] = [
        {
            **{name: topic[name] for name in topic_fields},
            "partitions": [
                {
                    name: value
                    for name, value in one.items()
                    if version >= 6 or name != "committed_leader_epoch"
                }
                for one in topic["partitions"]
            ],
        }
        for topic in fields["topics"]
    ]
    return encode_request(Api.OFFSET_COMMIT, version, 7, "c", known)[4:]


def generally(version: int, body: memoryview) -> ShortCommit:
    """What the general codec reads, as the hand-written reader puts it."""
    asked = decode_request(Api.OFFSET_COMMIT, version, body)
    return ShortCommit(
        asked.group_id,
        asked.generation_id_or_member_epoch,
        asked.member_id,
        asked.group_instance_id,
        asked.retention_time // timedelta(milliseconds=1),
        [
            (
                topic.name if version < 10 else topic.topic_id,
                [
                    (
                        one.partition_index,
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.committed_metadata,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in asked.topics
        ],
    )


@given(VERSIONS, REQUEST)
def test_a_short_request_is_read_as_the_codec_reads_it(version: int, fields: dict[str, Any]) -> None:
    frame = memoryview(frame_of(version, fields))
    at = parse_head(frame).body_at
    found = parse_short_commit(frame, at, version)
    assert found is not None
    assert found[:-1] == generally(version, frame[at:])[:-1]


@settings(max_examples=500)
@given(VERSIONS, REQUEST, st.data())
def test_whatever_bytes_are_read_are_read_as_the_codec_reads_them(
    version: int, fields: dict[str, Any], data: st.DataObject
) -> None:
    frame = bytearray(frame_of(version, fields))
    at = parse_head(frame).body_at
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(at, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(at, len(frame))) :]
    found = parse_short_commit(memoryview(frame), at, version)
    if found is not None:
        assert found[:-1] == generally(version, memoryview(frame)[at:])[:-1]


@given(VERSIONS, REQUEST, st.data())
def test_a_request_of_the_same_shape_is_read_as_if_it_were_the_first(
    version: int, fields: dict[str, Any], data: st.DataObject
) -> None:
    frame = frame_of(version, fields)
    asked = parse_short_commit(memoryview(frame), parse_head(frame).body_at, version)
    assert asked is not None
    shape = FrameShape(frame, asked.places, "q")
    assert shape.read(frame) == asked.offsets
    other = bytearray(frame)
    for place in (INT32.size, *asked.places):
        size = INT32.size if place == INT32.size else 8
        other[place : place + size] = data.draw(st.binary(min_size=size, max_size=size))
    again = parse_short_commit(memoryview(other), parse_head(other).body_at, version)
    assert again is not None
    assert shape.read(other) == again.offsets
    assert [rows_without_offsets(topic) for topic in again.topics] == [
        rows_without_offsets(topic) for topic in asked.topics
    ]


def rows_without_offsets(topic: tuple[Any, list[Row]]) -> tuple[Any, list[tuple[Any, ...]]]:
    key, rows = topic
    return key, [(index, *others) for index, _, *others in rows]


@given(VERSIONS, REQUEST, st.data())
def test_a_request_that_differs_in_anything_else_is_of_another_shape(
    version: int, fields: dict[str, Any], data: st.DataObject
) -> None:
    frame = frame_of(version, fields)
    asked = parse_short_commit(memoryview(frame), parse_head(frame).body_at, version)
    assert asked is not None
    free = {at for place in asked.places for at in range(place, place + 8)} | {4, 5, 6, 7}
    at = data.draw(st.sampled_from([at for at in range(len(frame)) if at not in free]))
    other = bytearray(frame)
    other[at] ^= data.draw(st.integers(1, 255))
    shape = FrameShape(frame, asked.places, "q")
    assert shape.read(other) is None
    assert shape.read(frame + b"\0") is None
    assert shape.read(frame[:-1]) is None


@given(VERSIONS, st.binary(max_size=60))
def test_any_bytes_are_refused_by_both_or_left_to_the_codec(version: int, body: bytes) -> None:
    found = parse_short_commit(memoryview(body), 0, version)
    try:
        expected = generally(version, memoryview(body))
    except MalformedRequest:
        assert found is None
    else:
        assert found is None or found[:-1] == expected[:-1]


def test_a_long_request_is_left_to_the_codec() -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    for count in (0, 1, SHORT_ROWS_MAX, SHORT_ROWS_MAX + 1):
        topic = {"name": "t", "partitions": [partition] * count}
        fields = {
            "group_id": "g",
            "generation_id_or_member_epoch": 1,
            "member_id": "m",
            "group_instance_id": None,
            "topics": [topic],
        }
        frame = memoryview(frame_of(8, fields))
        found = parse_short_commit(frame, parse_head(frame).body_at, 8)
        assert (found is not None) == (1 <= count <= SHORT_ROWS_MAX)


@given(VERSIONS, REQUEST, st.integers(-(1 << 31), (1 << 31) - 1), st.data())
def test_a_response_is_packed_as_the_codec_packs_it(
    version: int, fields: dict[str, Any], correlation_id: int, data: st.DataObject
) -> None:
    topics, rows, errors = [], [], []
    for topic in fields["topics"]:
        codes = [data.draw(st.integers(-1, 130)) for _ in topic["partitions"]]
        errors += codes
        topics.append(
            (
                topic["name"] if version < 10 else topic["topic_id"],
                [(one["partition_index"], 1, -1, "") for one in topic["partitions"]],
            )
        )
        rows.append(
            {
                **topic,
                "partitions": [
                    {"partition_index": one["partition_index"], "error_code": code}
                    for one, code in zip(topic["partitions"], codes, strict=True)
                ],
            }
        )
    expected = encode_response(
        Api.OFFSET_COMMIT, version, correlation_id, {"throttle_time": 0, "topics": rows}
    )
    assert encode_commit(version, correlation_id, topics, errors) == expected
    assert correlated(encode_commit(version, 0, topics, errors), correlation_id) == expected
