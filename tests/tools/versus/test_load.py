"""The prebuilt requests of the load, and how their answers are told apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages, records
from protocol.apis import Api
from tools.versus import caller, load


def fields_of(api: Api, version: int, frame: bytes) -> Any:
    """A request whose header is size, key, version, correlation id, client id and no tags."""
    head = 4 + 8 + 2 + len(caller.CLIENT_ID) + 1
    return messages.codec(api, version, "request").decode(memoryview(frame)[head:])


def test_a_prebuilt_produce_holds_one_good_batch_for_each_partition() -> None:
    wanted = load.Load(kind="produce", record_bytes=100, batch_records=8, partitions=3)
    prebuilt, api, version = load._prebuild(wanted, "topic")
    assert len(prebuilt) == 3
    assert len({len(request) for request in prebuilt}) == 1
    for partition, request in enumerate(prebuilt):
        row = fields_of(api, version, request).topic_data[0].partition_data[0]
        assert row.index == partition
        [(_, header)] = records.check_produced(row.records, walk=True)
        assert header.count == 8


def test_numbered_requests_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "NUMBERED_REQUESTS_MAX", 5)
    wanted = load.Load(kind="produce", record_bytes=10, batch_records=2, idempotent=True)
    prebuilt, api, version = load._prebuild(wanted, "topic")
    rows_of = [fields_of(api, version, one).topic_data[0].partition_data[0] for one in prebuilt[:3]]
    assert [records.parse_header(row.records).base_sequence for row in rows_of] == [0, 2, 4]
    assert all(records.check_produced(row.records, walk=True) for row in rows_of)


def test_numbered_requests_of_connections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "NUMBERED_REQUESTS_MAX", 6)
    wanted = load.Load(kind="produce", record_bytes=10, connections=3, idempotent=True)
    prebuilt, api, version = load._prebuild(wanted, "topic")
    rows_of = [fields_of(api, version, one).topic_data[0].partition_data[0] for one in prebuilt]
    headers = [records.parse_header(row.records) for row in rows_of]
    assert [(header.producer_id, header.base_sequence) for header in headers] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_a_prebuilt_fetch_asks_for_its_partition() -> None:
    prebuilt, api, version = load._prebuild(load.Load(kind="fetch", record_bytes=0, partitions=2), "topic")
    rows_of = [fields_of(api, version, one).topics[0].partitions[0] for one in prebuilt]
    assert [row.partition for row in rows_of] == [0, 1]


@given(first=st.integers(0, 1000), many=st.integers(1, 5), count=st.integers(1, 7))
def test_any_run_of_requests_up_to_the_window_is_one_slice(first: int, many: int, count: int) -> None:
    one = [bytes([number]) * 3 for number in range(count)]
    repeats = 1 + -(-5 // count)
    requests = load._Requests(memoryview(b"".join(one) * repeats), 3, count, 10)
    expected = b"".join(one[(first + at) % count] for at in range(many))
    assert bytes(requests.slice(first, many)) == expected


def test_an_answer_in_parts_is_one_answer() -> None:
    missing = {7: 10}
    assert not load._is_whole(missing, 7, 4, 10)
    assert load._is_whole(missing, 7, 6, 10)
    assert missing == {7: 10}
    with pytest.raises(load.Failure, match="another size"):
        load._is_whole(missing, 7, 11, 10)
    with pytest.raises(load.Failure, match="closed"):
        load._is_whole(missing, 7, 0, 10)
