"""Topics come, grow and go as Kafka decides it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.values import ResourceType
from broker.control.metadata_records import BrokerFenced
from broker.control.placement import place
from broker.control.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicRef,
    invalid_topic_name,
)
from protocol.errors import ErrorCode, KafkaError
from tests.broker.control.decisions import carry_out, cluster, code, create, decided

# --- CreateTopics ---


def test_defaults_come_from_the_broker() -> None:
    image = cluster()
    (result,) = create(image, NewTopic(name="t"))
    topic = image.topics["t"]
    assert result.topic == topic
    assert len(topic.partitions) == 2
    for partition in topic.partitions:
        assert len(partition.replicas) == 2
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)


def test_validate_only_says_what_would_be_and_does_nothing() -> None:
    image = cluster()
    good, bad = create(image, NewTopic(name="t", partitions=5), NewTopic(name="no way"), validate_only=True)
    assert good.topic is not None
    assert len(good.topic.partitions) == 5
    assert code(bad.error) is ErrorCode.invalid_topic_exception
    assert image.topics == {}


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (NewTopic(name=""), ErrorCode.invalid_topic_exception),
        (NewTopic(name="."), ErrorCode.invalid_topic_exception),
        (NewTopic(name=".."), ErrorCode.invalid_topic_exception),
        (NewTopic(name="x" * 250), ErrorCode.invalid_topic_exception),
        (NewTopic(name="a b"), ErrorCode.invalid_topic_exception),
        (NewTopic(name="ü"), ErrorCode.invalid_topic_exception),
        (NewTopic(name="there"), ErrorCode.topic_already_exists),
        (NewTopic(name="is.there"), ErrorCode.invalid_topic_exception),
        (NewTopic(name="__cluster_metadata"), ErrorCode.invalid_request),
        (NewTopic(name="t", partitions=0), ErrorCode.invalid_partitions),
        (NewTopic(name="t", partitions=-2), ErrorCode.invalid_partitions),
        (NewTopic(name="t", replication_factor=0), ErrorCode.invalid_replication_factor),
        (NewTopic(name="t", replication_factor=4), ErrorCode.invalid_replication_factor),
        (NewTopic(name="t", configs=(("nonsense", "1"),)), ErrorCode.invalid_config),
        (NewTopic(name="t", configs=(("retention.ms", "soon"),)), ErrorCode.invalid_config),
        (NewTopic(name="t", configs=(("retention.ms", None),)), ErrorCode.invalid_config),
        (NewTopic(name="t", partitions=1, assignments=((0, (1,)),)), ErrorCode.invalid_request),
        (NewTopic(name="t", replication_factor=1, assignments=((0, (1,)),)), ErrorCode.invalid_request),
        (NewTopic(name="t", assignments=((0, ()),)), ErrorCode.invalid_replica_assignment),
        (NewTopic(name="t", assignments=((0, (1, 1)),)), ErrorCode.invalid_replica_assignment),
        (NewTopic(name="t", assignments=((0, (9,)),)), ErrorCode.invalid_replica_assignment),
        (NewTopic(name="t", assignments=((1, (1,)),)), ErrorCode.invalid_replica_assignment),
        (NewTopic(name="t", assignments=((0, (1,)), (0, (2,)))), ErrorCode.invalid_replica_assignment),
        (NewTopic(name="t", assignments=((0, (1,)), (1, (1, 2)))), ErrorCode.invalid_replica_assignment),
    ],
)
def test_a_topic_that_cannot_be_is_refused_alone(topic: NewTopic, expected: ErrorCode) -> None:
    image = cluster()
    create(image, NewTopic(name="there"), NewTopic(name="is_there"))
    refused, made = create(image, topic, NewTopic(name="other"))
    assert code(refused.error) is expected
    assert refused.error is not None
    assert refused.error.message
    assert made.error is None
    assert set(image.topics) == {"there", "is_there", "other"}


def test_a_topic_named_twice_is_not_made_at_all() -> None:
    image = cluster()
    results = create(image, NewTopic(name="t"), NewTopic(name="o"), NewTopic(name="t", partitions=5))
    assert [(result.name, code(result.error)) for result in results] == [
        ("o", ErrorCode.none),
        ("t", ErrorCode.invalid_request),
    ]
    assert set(image.topics) == {"o"}


def test_many_partitions_in_one_request_are_refused_as_a_whole() -> None:
    image = cluster()
    with pytest.raises(KafkaError) as caught:
        create(image, *(NewTopic(name=f"t{at}", partitions=4000) for at in range(3)))
    assert caught.value.code is ErrorCode.policy_violation
    assert image.topics == {}


def test_more_partitions_are_bounded_as_new_ones_are() -> None:
    image = cluster()
    names = ("a", "b", "c")
    carry_out(image, CreateTopics(topics=tuple(NewTopic(name=name, partitions=1) for name in names)))
    more = tuple(MorePartitions(name=name, count=4_001) for name in names)
    carry_out(image, CreatePartitions(topics=more[:2], validate_only=True))
    with pytest.raises(KafkaError) as caught:
        decided(image, CreatePartitions(topics=more))
    assert caught.value.code is ErrorCode.policy_violation


def test_too_many_partitions_are_not_made_before_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[int] = []

    def counted(*args: Any, partitions: int, **kwargs: Any) -> Iterator[tuple[int, ...]]:
        placed.append(partitions)
        return place(*args, partitions=partitions, **kwargs)

    monkeypatch.setattr("broker.control.placement.place", counted)
    topics = tuple(NewTopic(name=f"t{at}", partitions=9_000) for at in range(20))
    with pytest.raises(KafkaError):
        decided(cluster(), CreateTopics(topics=topics))
    with pytest.raises(KafkaError):
        decided(cluster(), CreateTopics(topics=(NewTopic(name="t", partitions=1),) * 10_001))
    assert placed == []


def test_an_assignment_is_taken_as_it_is() -> None:
    image = cluster()
    image.apply(BrokerFenced(broker_id=2, broker_epoch=image.brokers[2].epoch, fenced=True), 9)
    create(image, NewTopic(name="t", assignments=((1, (2, 3)), (0, (3, 1)))))
    first, second = image.topics["t"].partitions
    assert (first.replicas, first.isr, first.leader) == ((3, 1), (3, 1), 3)
    assert (second.replicas, second.isr, second.leader) == ((2, 3), (3,), 3)
    (refused,) = create(image, NewTopic(name="u", assignments=((0, (2,)),)))
    assert code(refused.error) is ErrorCode.invalid_replica_assignment


def test_settings_are_kept_and_described() -> None:
    image = cluster()
    (result,) = create(
        image, NewTopic(name="t", configs=(("retention.ms", "5"), ("cleanup.policy", "compact")))
    )
    assert image.config(ResourceType.TOPIC, "t") == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert result.configs == image.config(ResourceType.TOPIC, "t")


@given(st.text(max_size=12) | st.text(alphabet="ab._-", max_size=6))
def test_a_name_is_safe_as_a_folder_or_refused(name: str) -> None:
    if invalid_topic_name(name) is None:
        assert name.strip("/\0") == name
        assert name not in (".", "..")
        assert name.isascii()


# --- DeleteTopics, CreatePartitions ---


def test_topics_go_by_name_or_by_id() -> None:
    image = cluster()
    create(image, *(NewTopic(name=name) for name in ("a", "b", "c")))
    ids = {name: topic.id for name, topic in image.topics.items()}
    gone = UUID(int=5)
    results = carry_out(
        image,
        DeleteTopics(
            topics=(
                TopicRef(name="a"),
                TopicRef(id=ids["b"]),
                TopicRef(name="nowhere"),
                TopicRef(id=gone),
                TopicRef(),
                TopicRef(name="c", id=ids["c"]),
                TopicRef(name="b"),
                TopicRef(name="c"),
                TopicRef(name="c"),
            )
        ),
    )
    assert isinstance(results, list)
    assert [(result.name, result.id, code(result.error)) for result in results] == [
        ("a", ids["a"], ErrorCode.none),
        ("b", ids["b"], ErrorCode.none),
        ("nowhere", None, ErrorCode.unknown_topic_or_partition),
        (None, gone, ErrorCode.unknown_topic_id),
        (None, None, ErrorCode.invalid_request),
        ("c", ids["c"], ErrorCode.invalid_request),
        ("b", None, ErrorCode.invalid_request),
        ("c", None, ErrorCode.invalid_request),
    ]
    assert set(image.topics) == {"c"}


def test_partitions_are_added_at_the_end() -> None:
    image = cluster()
    create(image, NewTopic(name="t"), NewTopic(name="u"))
    response = carry_out(
        image,
        CreatePartitions(
            topics=(
                MorePartitions(name="t", count=4),
                MorePartitions(name="u", count=3, assignments=((3, 1),)),
            )
        ),
    )
    assert response == [("t", None), ("u", None)]
    assert [partition.index for partition in image.topics["t"].partitions] == [0, 1, 2, 3]
    assert image.topics["u"].partitions[2].replicas == (3, 1)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (MorePartitions(name="nowhere", count=3), ErrorCode.unknown_topic_or_partition),
        (MorePartitions(name="t", count=2), ErrorCode.invalid_partitions),
        (MorePartitions(name="t", count=1), ErrorCode.invalid_partitions),
        (MorePartitions(name="t", count=4, assignments=((1, 2),)), ErrorCode.invalid_replica_assignment),
        (MorePartitions(name="t", count=3, assignments=((1,),)), ErrorCode.invalid_replica_assignment),
        (MorePartitions(name="t", count=3, assignments=((1, 9),)), ErrorCode.invalid_replica_assignment),
    ],
)
def test_partitions_that_cannot_be_added(more: MorePartitions, expected: ErrorCode) -> None:
    image = cluster()
    create(image, NewTopic(name="t"))
    before = image.topics["t"]
    response = carry_out(image, CreatePartitions(topics=(more,)))
    assert isinstance(response, list)
    assert code(response[0][1]) is expected
    assert image.topics["t"] == before


def test_adding_partitions_can_be_tried() -> None:
    image = cluster()
    create(image, NewTopic(name="t"))
    command = CreatePartitions(topics=(MorePartitions(name="t", count=3),), validate_only=True)
    assert carry_out(image, command) == [("t", None)]
    assert len(image.topics["t"].partitions) == 2
