"""What is read and packed by hand is what the generated message types read and write."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import hot
from protocol.apis import Api
from protocol.errors import ErrorCode, MalformedRequest
from protocol.messages import decode_request, decode_response, encode_request, encode_response
from protocol.records import HEADER_SIZE, OVERHEAD, parse_header
from protocol.wire import parse_head

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)
ids = st.uuids().filter(lambda value: value.int != 0)
indexes = st.integers(0, 2**31 - 1)
int64s = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 2**31 - 1)
produce_versions = st.integers(3, 13)
fetch_versions = st.integers(4, 18)


def request_of(api: Api, version: int, fields: dict[str, Any]) -> tuple[memoryview, int, Any]:
    frame = memoryview(bytearray(encode_request(api, version, 5, "client", fields)))[4:]
    body_at = parse_head(frame).body_at
    return frame, body_at, decode_request(api, version, frame[body_at:])


produce_partitions = st.lists(st.tuples(indexes, st.none() | st.binary(max_size=300)), min_size=1, max_size=3)
produce_topics = st.lists(st.tuples(names, ids, produce_partitions), max_size=3)


@given(produce_versions, st.none() | names, st.integers(-2, 2), indexes, produce_topics)
def test_produce_requests_are_read_as_the_generated_reader_does(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Sequence[Any]
) -> None:
    frame, body_at, expected = request_of(
        Api.PRODUCE,
        version,
        {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": timeout_ms,
            "topic_data": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_data": [{"index": index, "records": records} for index, records in partitions],
                }
                for name, topic_id, partitions in topics
            ],
        },
    )
    found = hot.parse_produce(frame, body_at, version)
    assert found.transactional_id == expected.transactional_id
    assert found.acks == expected.acks
    assert found.timeout_ms == timeout_ms
    assert [
        (topic, [(index, None if records is None else bytes(records)) for index, records in partitions])
        for topic, partitions in found.topics
    ] == [
        (
            topic.topic_id if version >= 13 else topic.name,
            [
                (each.index, None if each.records is None else bytes(each.records))
                for each in topic.partition_data
            ],
        )
        for topic in expected.topic_data
    ]
    if found.single_at >= 0:
        shape = hot.ProduceShape(bytes(frame[8 : found.single_at]), version >= hot.PRODUCE_FLEXIBLE)
        records = topics[0][2][0][1]
        if shape.fit(frame):
            assert bytes(frame[shape.start : shape.stop]) == records
        else:
            assert len(records) < HEADER_SIZE


@given(produce_versions, names, ids, indexes, st.binary(min_size=1, max_size=20_000))
def test_every_plain_single_partition_produce_can_be_a_template(
    version: int, name: str, topic_id: UUID, index: int, records: bytes
) -> None:
    fields = {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1000,
        "topic_data": [
            {"name": name, "topic_id": topic_id, "partition_data": [{"index": index, "records": records}]}
        ],
    }
    frame, body_at, _ = request_of(Api.PRODUCE, version, fields)
    found = hot.parse_produce(frame, body_at, version)
    assert found.single_at > body_at
    shape = hot.ProduceShape(bytes(frame[8 : found.single_at]), version >= hot.PRODUCE_FLEXIBLE)
    assert shape.fit(frame) == (len(records) >= HEADER_SIZE)
    if len(records) >= HEADER_SIZE:
        assert bytes(frame[shape.start : shape.stop]) == records
        assert frame[shape.stop :] == shape.tail
        fields = shape.unpack(frame)
        lead = pack(">qi", 0, len(records) - OVERHEAD)
        assert fields[0] == version
        assert fields[2] == shape.prefix == bytes(frame[8 : shape.start]) + lead
        assert fields[3:] == parse_header(records)[3:]


results = st.builds(
    hot.ProduceResult,
    index=indexes,
    error=st.sampled_from([0, 3, 6, 45, 87]),
    base_offset=int64s,
    append_time=st.just(-1) | st.integers(0, 2**40),
    start=int64s,
    message=st.none() | names,
    record_errors=st.lists(st.tuples(indexes, st.none() | names), max_size=2),
)


@given(produce_versions, epochs, st.lists(st.tuples(names, ids, st.lists(results, max_size=3)), max_size=3))
def test_produce_responses_are_the_generated_ones(
    version: int, correlation_id: int, topics: Sequence[Any]
) -> None:
    packed = hot.encode_produce(
        version,
        correlation_id,
        [(topic_id if version >= 13 else name, partitions) for name, topic_id, partitions in topics],
    )
    assert packed == encode_response(
        Api.PRODUCE,
        version,
        correlation_id,
        {
            "throttle_time": 0,
            "responses": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_responses": [
                        {
                            "index": result.index,
                            "error_code": result.error,
                            "base_offset": result.base_offset,
                            "log_append_time": result.append_time,
                            "log_start_offset": result.start,
                            "record_errors": [
                                {"batch_index": at, "batch_index_error_message": why}
                                for at, why in result.record_errors
                            ],
                            "error_message": result.message,
                        }
                        for result in partitions
                    ],
                }
                for name, topic_id, partitions in topics
            ],
        },
    )


@given(produce_versions, names, ids, indexes, st.lists(st.tuples(epochs, int64s)), int64s)
def test_the_prepared_answers_are_the_packed_ones(
    version: int, name: str, topic_id: UUID, index: int, asked: list[tuple[int, int]], start: int
) -> None:
    topic = topic_id if version >= 13 else name
    prepared = hot.ProduceAnswer(version, topic, index).encode_run(
        [correlation_id for correlation_id, _ in asked], [offset for _, offset in asked], start
    )
    assert prepared == b"".join(
        hot.encode_produce(
            version, correlation_id, [(topic, [hot.ProduceResult(index, 0, offset, -1, start)])]
        )
        for correlation_id, offset in asked
    )


fetch_partitions = st.lists(st.tuples(indexes, epochs, int64s, epochs, int64s, indexes), max_size=4)
fetch_topics = st.lists(st.tuples(names, ids, fetch_partitions), max_size=3)
forgotten_topics = st.lists(st.tuples(names, ids, st.lists(indexes, max_size=3)), max_size=2)


@given(
    fetch_versions,
    st.tuples(indexes, indexes, indexes, indexes, epochs),
    fetch_topics,
    forgotten_topics,
    epochs,
    int64s,
)
def test_fetch_requests_are_read_as_the_generated_reader_does(
    version: int,
    numbers: tuple[int, ...],
    topics: Sequence[Any],
    forgotten: Sequence[Any],
    replica_id: int,
    replica_epoch: int,
) -> None:
    max_wait, min_bytes, max_bytes, session_id, session_epoch = numbers
    frame, body_at, expected = request_of(
        Api.FETCH,
        version,
        {
            "replica_id": replica_id,
            "replica_state": {"replica_id": replica_id, "replica_epoch": replica_epoch},
            "cluster_id": "c",
            "max_wait": max_wait,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": 1,
            "session_id": session_id,
            "session_epoch": session_epoch,
            "topics": [
                {
                    "topic": name,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition": index,
                            "current_leader_epoch": epoch,
                            "fetch_offset": offset,
                            "last_fetched_epoch": last_epoch,
                            "log_start_offset": start,
                            "partition_max_bytes": size,
                        }
                        for index, epoch, offset, last_epoch, start, size in partitions
                    ],
                }
                for name, topic_id, partitions in topics
            ],
            "forgotten_topics_data": [
                {"topic": name, "topic_id": topic_id, "partitions": partitions}
                for name, topic_id, partitions in forgotten
            ],
            "rack_id": "rack",
        },
    )
    found = hot.parse_fetch(frame, body_at, version)

    def key(topic: Any) -> Any:
        return topic.topic_id if version >= 13 else topic.topic

    assert (found.max_wait_ms, found.min_bytes, found.max_bytes) == (max_wait, min_bytes, max_bytes)
    assert found.isolation == expected.isolation_level
    assert found.session_id == expected.session_id
    assert found.session_epoch == expected.session_epoch
    assert found.rack == expected.rack_id
    assert found.replica_id == (expected.replica_id if version < 15 else expected.replica_state.replica_id)
    assert found.replica_epoch == expected.replica_state.replica_epoch
    assert found.items == [
        hot.FetchItem(
            topic=key(topic),
            partition=each.partition,
            leader_epoch=each.current_leader_epoch,
            offset=each.fetch_offset,
            last_epoch=each.last_fetched_epoch,
            max_bytes=each.partition_max_bytes,
            log_start=each.log_start_offset,
        )
        for topic in expected.topics
        for each in topic.partitions
    ]
    assert found.forgotten == [
        (key(topic), index) for topic in expected.forgotten_topics_data for index in topic.partitions
    ]


shaped_versions = st.integers(hot.FETCH_SHAPES_FROM, 18)
item_numbers = st.tuples(epochs, int64s, epochs, int64s, indexes)


def fetch_frame(
    version: int,
    correlation_id: int,
    session: tuple[int, int],
    partitions: Sequence[Any],
    rack: str,
    wait: int,
) -> memoryview:
    """`partitions`: (topic's number, index, numbers), grouped by topic where neighbours have the same one."""
    topics: list[dict[str, Any]] = []
    for topic, index, (epoch, offset, last_epoch, start, size) in partitions:
        if not topics or topics[-1]["topic"] != f"topic-{topic}":
            topics.append({"topic": f"topic-{topic}", "topic_id": UUID(int=topic), "partitions": []})
        topics[-1]["partitions"].append(
            {
                "partition": index,
                "current_leader_epoch": epoch,
                "fetch_offset": offset,
                "last_fetched_epoch": last_epoch,
                "log_start_offset": start,
                "partition_max_bytes": size,
            }
        )
    fields = {
        "replica_id": -1,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
        "max_wait": wait,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": rack,
    }
    return memoryview(bytearray(encode_request(Api.FETCH, version, correlation_id, "c", fields)))[4:]


asked_partitions = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=4)
kept_or_not = st.sampled_from([True, True, True, False])


@given(
    shaped_versions,
    asked_partitions,
    st.lists(
        st.tuples(epochs, epochs, st.lists(item_numbers, min_size=4, max_size=4), kept_or_not, kept_or_not),
        min_size=2,
        max_size=5,
    ),
    asked_partitions,
)
def test_a_fetch_of_a_known_shape_is_read_as_any_other(
    version: int, asked: list[Any], requests: list[Any], other: list[Any]
) -> None:
    known: Any = None
    for correlation_id, session_epoch, numbers, keeps_partitions, keeps_wait in requests:
        partitions = asked if keeps_partitions else other
        wait_ms = 500 if keeps_wait else 501
        items = [(topic, index, found) for (topic, index), found in zip(partitions, numbers, strict=False)]
        frame = fetch_frame(version, correlation_id, (7, session_epoch), items, "r", wait_ms)
        body_at = parse_head(frame).body_at
        expected = hot.parse_fetch(frame, body_at, version)
        found = None if known is None else known[0].read(frame)
        if found is None:
            assert known is None or known[2:] != (wait_ms, partitions)
            known = hot.FetchShape(frame, body_at, version, expected), expected.items, wait_ms, partitions
        else:
            assert known[2:] == (wait_ms, partitions)
            known = known[0], known[1] if found[2] is None else found[2], wait_ms, partitions
            assert (found[0], found[1], known[1]) == (correlation_id, session_epoch, expected.items)


@pytest.mark.parametrize("version", [9, 12, 18])
def test_of_a_large_fetch_only_its_repetition_is_known(version: int) -> None:
    def frame_at(offset: int, correlation_id: int) -> memoryview:
        numbers = (-1, offset, -1, -1, 1000)
        partitions = [(1, index, numbers) for index in range(hot.FETCH_ITEMS_SHAPED + 1)]
        return fetch_frame(version, correlation_id, (0, -1), partitions, "", 1)

    frame = frame_at(5, 1)
    body_at = parse_head(frame).body_at
    shape = hot.FetchShape(frame, body_at, version, hot.parse_fetch(frame, body_at, version))
    assert shape.read(frame_at(5, 2)) == (2, -1, None)
    assert shape.read(frame_at(6, 3)) is None


aborted_lists = st.none() | st.lists(st.tuples(int64s, int64s), max_size=3)
fetched_partitions = st.tuples(
    indexes,
    st.sampled_from([0, 1, 6, 74]),
    int64s,
    int64s,
    int64s,
    aborted_lists,
    st.binary(max_size=200),
    st.none() | st.tuples(indexes, int64s),
    st.integers(-1, 5),
)


@given(
    fetch_versions,
    epochs,
    st.sampled_from([0, 70, 71]),
    epochs,
    st.lists(st.tuples(names, ids, st.lists(fetched_partitions, max_size=3)), max_size=3),
)
def test_fetch_responses_are_the_generated_ones(
    version: int, correlation_id: int, error: int, session_id: int, topics: Sequence[Any]
) -> None:
    pieces = [hot.fetch_head(version, correlation_id, error, session_id, len(topics))]
    for name, topic_id, partitions in topics:
        pieces.append(hot.fetch_topic_head(version, topic_id if version >= 13 else name, len(partitions)))
        for index, code, high, stable, start, aborted, records, diverging, preferred in partitions:
            pieces.append(
                hot.fetch_partition_head(
                    version, index, code, high, stable, start, aborted, len(records), preferred
                )
            )
            pieces.append(records)
            pieces.append(hot.fetch_partition_tail(version, diverging))
        pieces.append(hot.fetch_topic_tail(version))
    pieces.append(hot.fetch_tail(version))
    expected = encode_response(
        Api.FETCH,
        version,
        correlation_id,
        {
            "throttle_time": 0,
            "error_code": error,
            "session_id": session_id,
            "responses": [
                {
                    "topic": name,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": index,
                            "error_code": code,
                            "high_watermark": high,
                            "last_stable_offset": stable,
                            "log_start_offset": start,
                            "aborted_transactions": None
                            if aborted is None
                            else [{"producer_id": pid, "first_offset": first} for pid, first in aborted],
                            "preferred_read_replica": preferred,
                            "records": records,
                            **(
                                {}
                                if diverging is None
                                else {"diverging_epoch": {"epoch": diverging[0], "end_offset": diverging[1]}}
                            ),
                        }
                        for (
                            index,
                            code,
                            high,
                            stable,
                            start,
                            aborted,
                            records,
                            diverging,
                            preferred,
                        ) in partitions
                    ],
                }
                for name, topic_id, partitions in topics
            ],
        },
    )
    assert b"".join(pieces) == expected[4:]


@pytest.mark.parametrize("version", [10, 11, 13])
def test_a_produce_hint_tells_the_new_leader(version: int) -> None:
    hint = hot.Hint(3, 7, hot.Address("host", 9092, None))
    result = hot.ProduceResult(0, ErrorCode.not_leader_or_follower.value, hint=hint)
    packed = hot.encode_produce(version, 1, [(UUID(int=5) if version >= 13 else "t", [result])])
    response = decode_response(Api.PRODUCE, version, memoryview(packed)[4:])[1]
    leader = response.responses[0].partition_responses[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (3, 7)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack) == (3, "host", 9092, None)


def test_a_fetch_hint_tells_the_new_leader() -> None:
    hint = hot.Hint(3, 7, hot.Address("host", 9092, "r"))
    pieces = [
        hot.fetch_head(17, 1, 0, 0, 1),
        hot.fetch_topic_head(17, UUID(int=5), 1),
        hot.fetch_partition_head(17, 0, 6, -1, -1, -1, None, 0),
        hot.fetch_partition_tail(17, (2, 40), hint),
        hot.fetch_topic_tail(17),
        hot.fetch_tail(17, {3: hot.Address("host", 9092, "r")}),
    ]
    response = decode_response(Api.FETCH, 17, memoryview(b"".join(pieces)))[1]
    partition = response.responses[0].partitions[0]
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (3, 7)
    assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (2, 40)
    assert response.node_endpoints[0].rack == "r"


@settings(max_examples=300)
@given(st.sampled_from([3, 8, 9, 13]), st.binary(max_size=200))
def test_produce_garbage_is_malformed_or_read(version: int, data: bytes) -> None:
    try:
        hot.parse_produce(memoryview(data), 0, version)
    except MalformedRequest:
        pass


@settings(max_examples=300)
@given(st.sampled_from([4, 7, 11, 12, 13, 15, 18]), st.binary(max_size=200))
def test_fetch_garbage_is_malformed_or_read(version: int, data: bytes) -> None:
    try:
        hot.parse_fetch(memoryview(data), 0, version)
    except MalformedRequest:
        pass


@given(st.integers(0, 2**32 - 1))
def test_varints_come_back(value: int) -> None:
    packed = hot.uvarint(value)
    assert hot.read_uvarint(memoryview(packed), 0) == (value, len(packed))
