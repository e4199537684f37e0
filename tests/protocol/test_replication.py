"""A follower's Fetch by hand is what the generated message types write and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.hot import FetchItem
from protocol.messages import decode_response, encode_request, encode_response
from protocol.replication import (
    REPLICA_FETCH_VERSION,
    FetchedPartition,
    encode_replica_fetch,
    parse_replica_fetch,
)

ids = st.uuids().filter(lambda value: value.int != 0)
indexes = st.integers(0, 2**31 - 1)
int64s = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 2**31 - 1)


def grouped(rows: Sequence[Any]) -> list[tuple[UUID, list[Any]]]:
    topics: list[tuple[UUID, list[Any]]] = []
    for row in rows:
        if not topics or topics[-1][0] != row[0]:
            topics.append((row[0], []))
        topics[-1][1].append(row)
    return topics


two_ids = st.sampled_from([UUID(int=1), UUID(int=2)])
items = st.lists(st.builds(FetchItem, two_ids, indexes, epochs, int64s, epochs, indexes, int64s), max_size=5)


@given(
    st.tuples(indexes, st.integers(0, 9), int64s, indexes, indexes, indexes, indexes, epochs),
    items,
    st.lists(st.tuples(two_ids, indexes), max_size=5),
)
def test_requests_are_the_generated_ones(
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
def test_responses_are_read_as_the_generated_reader_does(
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
def test_a_response_cut_short_or_garbled_is_malformed_or_read(
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
