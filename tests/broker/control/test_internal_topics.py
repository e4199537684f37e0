"""What clients may do with the topics that belong to the brokers, and how brokers make them."""

from __future__ import annotations

import pytest

from broker.config.broker import from_properties
from broker.config.values import ResourceType
from broker.control.config_changes import AlterConfigs, ConfigOp, IncrementalAlterConfigs, Operation
from broker.control.image import Image
from broker.control.internal_topics import (
    BROKER_TOPICS,
    INTERNAL_TOPICS,
    REMOTE_LOG_METADATA,
    internal_defaults,
    is_of_the_brokers,
    may_client_write,
)
from broker.control.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicRef,
    internal_topic,
)
from protocol.errors import ErrorCode
from tests.broker.control.decisions import CONFIG, carry_out, cluster, code, create, decided

RESOURCE = (int(ResourceType.TOPIC), REMOTE_LOG_METADATA)


@pytest.fixture
def image() -> Image:
    image = cluster()
    topic = internal_topic(CONFIG, REMOTE_LOG_METADATA)
    assert topic is not None
    (made,) = create(image, topic)
    assert made.error is None
    return image


@pytest.mark.requirement("X-7")
def test_the_metadata_of_the_cold_tier_is_made_for_good(image: Image) -> None:
    topic = image.topics[REMOTE_LOG_METADATA]
    assert len(topic.partitions) == 50
    assert all(len(partition.replicas) == 3 for partition in topic.partitions)
    configs = image.config(ResourceType.TOPIC, REMOTE_LOG_METADATA)
    assert configs["cleanup.policy"] == "compact"
    assert configs["min.insync.replicas"] == "2"
    assert configs["unclean.leader.election.enable"] == "false"


@pytest.mark.parametrize(
    ("is_standalone", "given", "expected"),
    [
        (True, {}, (50, 1, "1")),
        (False, {"num.partitions": "7"}, (7, 3, "2")),
        (False, {"replication.factor": "1", "min.isr": "1"}, (50, 1, "1")),
    ],
)
def test_its_settings_are_those_of_the_metadata_manager(
    is_standalone: bool, given: dict[str, str], expected: tuple[int, int, str]
) -> None:
    prefix = "rlmm.config.remote.log.metadata.topic."
    config = from_properties(
        {prefix + name: value for name, value in given.items()}, standalone=is_standalone
    )
    defaults = internal_defaults(config, REMOTE_LOG_METADATA)
    assert defaults is not None
    min_isr = dict(defaults.configs)["min.insync.replicas"]
    assert (defaults.partitions, defaults.replication_factor, min_isr) == expected


def test_clients_are_not_told_that_it_is_internal(image: Image) -> None:
    assert not image.topics[REMOTE_LOG_METADATA].internal
    assert REMOTE_LOG_METADATA not in INTERNAL_TOPICS
    assert all(is_of_the_brokers(name) and not may_client_write(name) for name in BROKER_TOPICS)


def test_it_is_not_deleted(image: Image) -> None:
    topic_id = image.topics[REMOTE_LOG_METADATA].id
    carry_out(image, CreateTopics(topics=(NewTopic(name="t"),)), seed=1)
    refs = (TopicRef(name=REMOTE_LOG_METADATA), TopicRef(id=topic_id), TopicRef(name="t"))
    results = carry_out(image, DeleteTopics(topics=refs))
    refused = ErrorCode.topic_deletion_disabled
    assert [code(result.error) for result in results] == [refused, refused, ErrorCode.none]
    assert image.topics.keys() == {REMOTE_LOG_METADATA}


def test_it_gets_no_partitions(image: Image) -> None:
    more = (MorePartitions(name=REMOTE_LOG_METADATA, count=60),)
    ((_, error),) = carry_out(image, CreatePartitions(topics=more))
    assert code(error) is ErrorCode.invalid_partitions
    assert len(image.topics[REMOTE_LOG_METADATA].partitions) == 50


@pytest.mark.parametrize(
    "op",
    [
        ConfigOp(name="cleanup.policy", operation=Operation.SET, value="delete"),
        ConfigOp(name="cleanup.policy", operation=Operation.SET, value="compact,delete"),
        ConfigOp(name="cleanup.policy", operation=Operation.DELETE, value=None),
        ConfigOp(name="cleanup.policy", operation=Operation.APPEND, value="delete"),
        ConfigOp(name="remote.storage.enable", operation=Operation.SET, value="true"),
    ],
)
def test_it_is_cleaned_up_as_it_was_made(image: Image, op: ConfigOp) -> None:
    before = dict(image.config(ResourceType.TOPIC, REMOTE_LOG_METADATA))
    results = carry_out(image, IncrementalAlterConfigs(changes=((RESOURCE, (op,)),)))
    error = results[RESOURCE]
    assert code(error) is ErrorCode.invalid_config
    assert error is not None and "cleanup.policy" in str(error)
    assert image.config(ResourceType.TOPIC, REMOTE_LOG_METADATA) == before


def test_its_other_settings_are_an_operator_s(image: Image) -> None:
    op = ConfigOp(name="min.insync.replicas", operation=Operation.SET, value="1")
    assert carry_out(image, IncrementalAlterConfigs(changes=((RESOURCE, (op,)),))) == {RESOURCE: None}
    without = AlterConfigs(resources=((RESOURCE, (("segment.bytes", "1048576"),)),))
    assert code(carry_out(image, without)[RESOURCE]) is ErrorCode.invalid_config, "the policy would go"


def test_a_client_may_make_it_as_the_brokers_would() -> None:
    for configs, expected in (
        ((), ErrorCode.invalid_config),
        ((("cleanup.policy", "delete"),), ErrorCode.invalid_config),
        ((("cleanup.policy", "compact"),), ErrorCode.none),
    ):
        image = cluster()
        (result,) = create(image, NewTopic(name=REMOTE_LOG_METADATA, configs=configs))
        assert code(result.error) is expected


def test_names_of_the_tiers_are_reserved() -> None:
    image = cluster()
    decision = decided(image, CreateTopics(topics=(NewTopic(name="__remote_foo"),)))
    assert decision.response is not None
    assert code(decision.response[0].error) is ErrorCode.invalid_topic_exception
    assert not may_client_write("__remote_foo")


def test_the_topics_of_groups_and_transactions_are_made_as_the_brokers_are_told() -> None:
    config = from_properties(
        {
            "offsets.topic.num.partitions": "7",
            "offsets.topic.replication.factor": "2",
            "offsets.topic.segment.bytes": "2000000",
            "transaction.state.log.min.isr": "3",
            "transaction.state.log.num.partitions": "8",
            "transaction.state.log.replication.factor": "5",
            "transaction.state.log.segment.bytes": "3000000",
        }
    )
    offsets = internal_topic(config, "__consumer_offsets")
    transactions = internal_topic(config, "__transaction_state")
    assert offsets is not None
    assert transactions is not None
    assert (offsets.partitions, offsets.replication_factor) == (7, 2)
    assert dict(offsets.configs)["segment.bytes"] == "2000000"
    assert (transactions.partitions, transactions.replication_factor) == (8, 5)
    assert dict(transactions.configs)["min.insync.replicas"] == "3"
    assert dict(transactions.configs)["segment.bytes"] == "3000000"
