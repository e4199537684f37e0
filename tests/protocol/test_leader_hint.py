"""The new leader, in the responses that tell it to a client."""

from __future__ import annotations

from uuid import UUID

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.fetch import (
    fetch_head,
    fetch_partition_head,
    fetch_partition_tail,
    fetch_tail,
    fetch_topic_head,
    fetch_topic_tail,
)
from protocol.leader_hint import Address, Hint
from protocol.messages import decode_response
from protocol.produce import ProduceResult, encode_produce


@pytest.mark.parametrize("version", [10, 11, 13])
def test_a_produce_hint_tells_the_new_leader(version: int) -> None:
    hint = Hint(3, 7, Address("host", 9092, None))
    result = ProduceResult(0, ErrorCode.not_leader_or_follower.value, hint=hint)
    packed = encode_produce(version, 1, [(UUID(int=5) if version >= 13 else "t", [result])])
    response = decode_response(Api.PRODUCE, version, memoryview(packed)[4:])[1]
    leader = response.responses[0].partition_responses[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (3, 7)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack) == (3, "host", 9092, None)


def test_a_fetch_hint_tells_the_new_leader() -> None:
    hint = Hint(3, 7, Address("host", 9092, "r"))
    pieces = [
        fetch_head(17, 1, 0, 0, 1),
        fetch_topic_head(17, UUID(int=5), 1),
        fetch_partition_head(17, 0, 6, -1, -1, -1, None, 0),
        fetch_partition_tail(17, (2, 40), hint),
        fetch_topic_tail(17),
        fetch_tail(17, {3: Address("host", 9092, "r")}),
    ]
    response = decode_response(Api.FETCH, 17, memoryview(b"".join(pieces)))[1]
    partition = response.responses[0].partitions[0]
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (3, 7)
    assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (2, 40)
    assert response.node_endpoints[0].rack == "r"
