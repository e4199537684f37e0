"""What consumers say of their subscriptions and assignments, in every version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.consumer import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from protocol.stored.schema import BadRecord
from protocol.work import finish

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


TOPICS = st.lists(st.tuples(TEXT, st.lists(INT32, max_size=3).map(tuple)), max_size=3).map(tuple)


@given(
    st.builds(
        Subscription,
        topics=st.lists(TEXT, max_size=3).map(tuple),
        user_data=st.none() | st.binary(max_size=5),
        owned_partitions=TOPICS,
        generation_id=INT32,
        rack_id=st.none() | TEXT,
    ),
    st.integers(0, 3),
)
def test_subscriptions_there_and_back(subscription: Subscription, version: int) -> None:
    data = encode_subscription(subscription, version)
    back = decode_subscription(data)
    assert back == replace(
        subscription,
        owned_partitions=subscription.owned_partitions if version >= 1 else (),
        generation_id=subscription.generation_id if version >= 2 else -1,
        rack_id=subscription.rack_id if version >= 3 else None,
    )
    assert finish(subscribed_topics(data)) == subscription.topics
    assert decode_subscription(b"\0\x09" + data[2:] + b"news") == back if version == 3 else True


@given(TOPICS, st.none() | st.binary(max_size=5), st.integers(0, 3))
def test_assignments_there_and_back(partitions: Any, user_data: bytes | None, version: int) -> None:
    assignment = Assignment(partitions=partitions, user_data=user_data)
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


def test_a_subscription_kafka_python_made() -> None:
    data = b"\0\0\0\0\0\1\0\5topic\xff\xff\xff\xff"
    assert decode_subscription(data) == Subscription(topics=("topic",))
    assert encode_subscription(Subscription(topics=("topic",)), version=0) == data


@given(st.binary(max_size=40))
def test_any_bytes_give_a_subscription_or_bad(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except BadRecord:
            pass
    topics = finish(subscribed_topics(data))
    assert topics is None or isinstance(topics, tuple)
