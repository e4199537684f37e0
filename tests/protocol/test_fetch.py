"""Fetch as it is read and packed by hand, on both sides, is what the generated types read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.fetch import (
    FETCH_ITEMS_SHAPED,
    FETCH_REPLICA_TAG,
    FETCH_SHAPES_FROM,
    REPLICA_FETCH_VERSION,
    FetchedPartition,
    FetchItem,
    FetchShape,
    asks_for_replica,
    encode_replica_fetch,
    fetch_head,
    fetch_partition_head,
    fetch_partition_tail,
    fetch_tail,
    fetch_topic_head,
    fetch_topic_tail,
    parse_fetch,
    parse_replica_fetch,
)
from protocol.messages import decode_response, encode_request, encode_response
from protocol.pointers import FROM_OFFSET
from protocol.wire import parse_head
from tests.protocol.strategies import epochs, fetch_versions, ids, indexes, int64s, names, request_of

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
    found = parse_fetch(frame, body_at, version)
    if found.replica_id < 0 or version < FETCH_REPLICA_TAG:
        assert asks_for_replica(frame, body_at, version) == (found.replica_id >= 0)

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
        FetchItem(
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


shaped_versions = st.integers(FETCH_SHAPES_FROM, 18)
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
        expected = parse_fetch(frame, body_at, version)
        found = None if known is None else known[0].read(frame)
        if found is None:
            assert known is None or known[2:] != (wait_ms, partitions)
            known = FetchShape(frame, body_at, version, expected), expected.items, wait_ms, partitions
        else:
            assert known[2:] == (wait_ms, partitions)
            known = known[0], known[1] if found[2] is None else found[2], wait_ms, partitions
            assert (found[0], found[1], known[1]) == (correlation_id, session_epoch, expected.items)


@pytest.mark.parametrize("version", [9, 12, 18])
def test_of_a_large_fetch_only_its_repetition_is_known(version: int) -> None:
    def frame_at(offset: int, correlation_id: int) -> memoryview:
        numbers = (-1, offset, -1, -1, 1000)
        partitions = [(1, index, numbers) for index in range(FETCH_ITEMS_SHAPED + 1)]
        return fetch_frame(version, correlation_id, (0, -1), partitions, "", 1)

    frame = frame_at(5, 1)
    body_at = parse_head(frame).body_at
    shape = FetchShape(frame, body_at, version, parse_fetch(frame, body_at, version))
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
    pieces = [fetch_head(version, correlation_id, error, session_id, len(topics))]
    for name, topic_id, partitions in topics:
        pieces.append(fetch_topic_head(version, topic_id if version >= 13 else name, len(partitions)))
        for index, code, high, stable, start, aborted, records, diverging, preferred in partitions:
            pieces.append(
                fetch_partition_head(
                    version, index, code, high, stable, start, aborted, len(records), preferred
                )
            )
            pieces.append(records)
            pieces.append(fetch_partition_tail(version, diverging))
        pieces.append(fetch_topic_tail(version))
    pieces.append(fetch_tail(version))
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


@settings(max_examples=300)
@given(st.sampled_from([4, 7, 11, 12, 13, 15, 18]), st.binary(max_size=200))
def test_fetch_garbage_is_malformed_or_read(version: int, data: bytes) -> None:
    try:
        parse_fetch(memoryview(data), 0, version)
    except MalformedRequest:
        pass


# --- what followers ask and are answered ---


def grouped(rows: Sequence[Any]) -> list[tuple[UUID, list[Any]]]:
    topics: list[tuple[UUID, list[Any]]] = []
    for row in rows:
        if not topics or topics[-1][0] != row[0]:
            topics.append((row[0], []))
        topics[-1][1].append(row)
    return topics


two_ids = st.sampled_from([UUID(int=1), UUID(int=2)])
items = st.lists(
    st.builds(
        FetchItem, two_ids, indexes, epochs, int64s, epochs, indexes, int64s, pointed=st.just(FROM_OFFSET)
    ),
    max_size=5,
)


@given(
    st.tuples(indexes, st.integers(0, 9), int64s, indexes, indexes, indexes, indexes, epochs),
    items,
    st.lists(st.tuples(two_ids, indexes), max_size=5),
)
def test_requests_of_followers_are_the_generated_ones(
    numbers: tuple[int, ...], asked: list[FetchItem], forgotten: list[tuple[UUID, int]]
) -> None:
    correlation_id, replica_id, replica_epoch, max_wait, least, most, session_id, session_epoch = numbers
    frame = encode_replica_fetch(
        correlation_id,
        "broker-1-fetch",
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        max_wait_ms=max_wait,
        min_bytes=least,
        max_bytes=most,
        session_id=session_id,
        session_epoch=session_epoch,
        items=asked,
        forgotten=forgotten,
    )
    fields = {
        "max_wait": max_wait,
        "min_bytes": least,
        "max_bytes": most,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "replica_state": {"replica_id": replica_id, "replica_epoch": replica_epoch},
        "topics": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition": row.partition,
                        "current_leader_epoch": row.leader_epoch,
                        "fetch_offset": row.offset,
                        "last_fetched_epoch": row.last_epoch,
                        "log_start_offset": row.log_start,
                        "partition_max_bytes": row.max_bytes,
                    }
                    for row in rows
                ],
            }
            for topic_id, rows in grouped(asked)
        ],
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": [index for _, index in rows]}
            for topic_id, rows in grouped(forgotten)
        ],
        "rack_id": "",
    }
    body_at = 8 + 2 + len("broker-1-fetch") + 1
    assert asks_for_replica(memoryview(frame), body_at, REPLICA_FETCH_VERSION)
    version = REPLICA_FETCH_VERSION
    assert frame == encode_request(Api.FETCH, version, correlation_id, "broker-1-fetch", fields)[4:]


fetched = st.tuples(
    indexes,
    st.sampled_from([0, 1, 6, 74]),
    int64s,
    int64s,
    st.none() | st.lists(st.tuples(int64s, int64s), max_size=3),
    st.none() | st.binary(max_size=300),
    st.none() | st.tuples(indexes, indexes),
    st.booleans(),
)
responses = st.lists(st.tuples(ids, st.lists(fetched, max_size=3)), max_size=3)


def response_of(correlation_id: int, error: int, session_id: int, topics: Sequence[Any]) -> memoryview:
    fields = {
        "throttle_time": 7,
        "error_code": error,
        "session_id": session_id,
        "node_endpoints": [{"node_id": 1, "host": "h", "port": 1, "rack": None}] if error else [],
        "responses": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": code,
                        "high_watermark": high,
                        "last_stable_offset": high,
                        "log_start_offset": start,
                        "aborted_transactions": None
                        if aborted is None
                        else [{"producer_id": pid, "first_offset": first} for pid, first in aborted],
                        "preferred_read_replica": -1,
                        "records": records,
                        **(
                            {"diverging_epoch": {"epoch": diverging[0], "end_offset": diverging[1]}}
                            if diverging
                            else {}
                        ),
                        **({"current_leader": {"leader_id": 3, "leader_epoch": 4}} if has_hint else {}),
                    }
                    for index, code, high, start, aborted, records, diverging, has_hint in partitions
                ],
            }
            for topic_id, partitions in topics
        ],
    }
    return memoryview(encode_response(Api.FETCH, REPLICA_FETCH_VERSION, correlation_id, fields))[4:]


@given(indexes, st.sampled_from([0, 70, 71]), indexes, responses)
def test_responses_to_followers_are_read_as_the_generated_reader_does(
    correlation_id: int, error: int, session_id: int, topics: Sequence[Any]
) -> None:
    frame = response_of(correlation_id, error, session_id, topics)
    found = parse_replica_fetch(frame)
    _, expected = decode_response(Api.FETCH, REPLICA_FETCH_VERSION, frame)
    assert (found.correlation_id, found.error, found.session_id) == (correlation_id, error, session_id)
    assert found.throttle_ms == 7
    assert [each._replace(records=memoryview(bytes(each.records))) for each in found.partitions] == [
        FetchedPartition(
            topic.topic_id,
            each.partition_index,
            each.error_code,
            each.high_watermark,
            each.log_start_offset,
            (each.diverging_epoch.epoch, each.diverging_epoch.end_offset)
            if each.diverging_epoch.end_offset >= 0
            else None,
            memoryview(bytes(each.records or b"")),
        )
        for topic in expected.responses
        for each in topic.partitions
    ]


@given(responses, st.data())
def test_a_response_to_a_follower_cut_short_or_garbled_is_malformed_or_read(
    topics: Sequence[Any], data: st.DataObject
) -> None:
    whole = bytearray(response_of(1, 0, 5, topics))
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRequest):
        parse_replica_fetch(memoryview(whole[:at]))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        parse_replica_fetch(memoryview(whole))
    except MalformedRequest:
        return
