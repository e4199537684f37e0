"""Produce as it is read and packed by hand is what the generated message types read and write."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.messages import encode_response
from protocol.primitives import BYTES_A_STEP, ROWS_A_STEP
from protocol.produce import (
    PRODUCE_FLEXIBLE,
    ProduceAnswer,
    ProduceResult,
    ProduceShape,
    encode_produce,
    encoding_produce,
    parse_produce,
)
from protocol.records import HEADER_SIZE, OVERHEAD, parse_header
from protocol.work import finish
from tests.protocol.strategies import epochs, ids, indexes, int64s, names, produce_versions, request_of

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
    found = parse_produce(frame, body_at, version)
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
        shape = ProduceShape(bytes(frame[8 : found.single_at]), version >= PRODUCE_FLEXIBLE)
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
    found = parse_produce(frame, body_at, version)
    assert found.single_at > body_at
    shape = ProduceShape(bytes(frame[8 : found.single_at]), version >= PRODUCE_FLEXIBLE)
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
    ProduceResult,
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
    packed = encode_produce(
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
    prepared = ProduceAnswer(version, topic, index).encode_run(
        [correlation_id for correlation_id, _ in asked], [offset for _, offset in asked], start
    )
    assert prepared == b"".join(
        encode_produce(version, correlation_id, [(topic, [ProduceResult(index, 0, offset, -1, start)])])
        for correlation_id, offset in asked
    )


@settings(max_examples=300)
@given(st.sampled_from([3, 8, 9, 13]), st.binary(max_size=200))
def test_produce_garbage_is_malformed_or_read(version: int, data: bytes) -> None:
    try:
        parse_produce(memoryview(data), 0, version)
    except MalformedRequest:
        pass


def test_a_long_answer_is_packed_in_pieces_and_steps() -> None:
    """A partition has several pieces, and a name may be long: what 100,000 of them or 100 MB of names are
    answered is not joined in a step of its own.
    """

    def asked() -> list[tuple[str | UUID, list[ProduceResult]]]:
        topics: list[tuple[str | UUID, list[ProduceResult]]] = [
            (f"t{at}", [ProduceResult(0, 3)]) for at in range(3_000)
        ]
        topics.append(("u", [ProduceResult(at, 3) for at in range(3_000)]))
        return topics + [(chr(97 + at) * 30_000, [ProduceResult(0, 3)]) for at in range(20)]

    topics = asked()
    steps = sum(1 for _ in encoding_produce(12, 7, topics))
    assert steps > 6_000 / ROWS_A_STEP
    assert not topics
    pieces = finish(encoding_produce(12, 7, asked()))
    assert b"".join(pieces) == encode_produce(12, 7, asked())
    assert max(map(len, pieces)) < 2 * BYTES_A_STEP + 40_000
    assert len(pieces) < 4 + sum(map(len, pieces)) / BYTES_A_STEP
