"""The configuration a broker goes by: which change reaches which view, and what an invalid one leaves."""

from __future__ import annotations

import random

import pytest

from broker.config.broker import from_properties
from broker.config.values import ResourceType
from broker.control.feature_levels import GROUP_VERSION
from broker.control.image import Delta, Image
from broker.control.metadata_records import (
    ConfigChanged,
    FeatureChanged,
    TopicCreated,
    TopicDeleted,
    new_partition,
)
from broker.control.settings import TOLD_AT_ONCE, Settings

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


class Node:
    """Settings that follow an image."""

    def __init__(self, **properties: str) -> None:
        props = {name.replace("_", "."): value for name, value in properties.items()}
        self.image = Image()
        config = from_properties({"node.id": "1", **props}, standalone=True)
        self.settings = Settings(config, self.image, random.Random(0))

    def apply(self, *records: ConfigChanged | TopicCreated | TopicDeleted) -> Delta:
        delta = self.image.apply_slot(self.image.seq + 1, records)
        self.settings.follow(delta)
        return delta

    def set(self, resource: ResourceType, name: str, key: str, value: str | None) -> None:
        self.apply(ConfigChanged(resource_type=resource, resource_name=name, name=key, value=value))

    def create(self, name: str) -> None:
        topic_id = self.settings.rules().new_id()
        partitions = (new_partition(0, (1,), (1,)),)
        self.apply(TopicCreated(name=name, topic_id=topic_id, partitions=partitions))


def test_a_view_is_kept_until_its_topic_changes() -> None:
    node = Node(log_retention_ms="1000")
    node.create("a")
    node.create("b")
    a, b = node.settings.log_config("a"), node.settings.log_config("b")
    assert (a.retention_ms, sorted(node.settings.log_configs)) == (1000, ["a", "b"])
    node.set(TOPIC, "a", "retention.ms", "5")
    assert node.settings.log_config("a").retention_ms == 5
    assert node.settings.log_config("b") is b
    node.set(TOPIC, "a", "retention.ms", None)
    assert node.settings.log_config("a").retention_ms == 1000


def test_a_topic_of_the_same_name_starts_anew() -> None:
    node = Node(log_retention_ms="1000")
    node.create("a")
    node.create("plain")
    node.set(TOPIC, "a", "retention.ms", "5")
    assert node.settings.log_config("a").retention_ms == 5
    assert node.settings.log_config("plain").retention_ms == 1000
    for name in ("a", "plain"):
        node.apply(TopicDeleted(topic_id=node.image.topics[name].id))
    assert not node.settings.log_configs
    node.create("a")
    assert node.settings.log_config("a").retention_ms == 1000


def test_a_brokers_own_value_wins_over_the_default_for_all() -> None:
    node = Node(log_retention_ms="1000", message_max_bytes="1111")
    node.create("a")
    assert node.settings.log_config("a").retention_ms == 1000
    node.set(BROKER, "1", "log.retention.ms", "3")
    node.set(BROKER, "", "log.retention.ms", "2")
    node.set(BROKER, "2", "log.retention.ms", "4")
    assert node.settings.log_config("a").retention_ms == 3
    node.set(BROKER, "1", "log.retention.ms", None)
    assert node.settings.log_config("a").retention_ms == 2
    node.set(BROKER, "", "message.max.bytes", "2222")
    assert node.settings.broker_config.message_max_bytes == 2222
    assert node.settings.rules().config is node.settings.broker_config


def test_what_is_in_the_image_at_a_start_is_taken_at_once() -> None:
    node = Node()
    records = [ConfigChanged(resource_type=BROKER, resource_name="", name="message.max.bytes", value="2222")]
    node.image.apply_slot(1, records)
    assert node.settings.broker_config.message_max_bytes != 2222
    node.settings.load()
    assert node.settings.broker_config.message_max_bytes == 2222


def test_what_cannot_be_read_leaves_the_last_good_view(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.create("a")
    node.set(BROKER, "", "log.retention.ms", "2")
    view = node.settings.log_config("a")
    node.set(BROKER, "", "num.io.threads", "4")
    node.set(BROKER, "1", "message.max.bytes", "as much as you like")
    assert "the committed one is not valid" in caplog.text
    assert node.settings.log_config("a").retention_ms == view.retention_ms == 2
    node.set(BROKER, "1", "message.max.bytes", "3333")
    assert node.settings.broker_config.message_max_bytes == 3333


def test_what_is_set_in_vain_while_it_runs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(background_threads="5")
    node.create("a")
    node.set(TOPIC, "a", "retention.ms", "5")
    node.set(TOPIC, "a", "internal.segment.bytes", "500")
    node.set(BROKER, "", "log.retention.ms", "5")
    assert not caplog.records, "these mean something"
    node.set(BROKER, "", "num.io.threads", "5")
    node.set(TOPIC, "a", "preallocate", "true")
    node.set(ResourceType.GROUP, "g", "share.session.timeout.ms", "50000")
    assert [record.message for record in caplog.records] == [
        "this broker: accepted without effect: num.io.threads",
        "topic a: accepted without effect: preallocate",
        "group g: accepted without effect: share.session.timeout.ms",
    ]
    node.set(BROKER, "", "log.retention.ms", "6")
    node.set(ResourceType.GROUP, "g", "share.session.timeout.ms", None)
    node.set(ResourceType.GROUP, "g", "consumer.session.timeout.ms", "50000")
    assert len(caplog.records) == 3, "told once"


def test_a_change_of_many_topics_is_told_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.apply(
        *(
            ConfigChanged(resource_type=kind, resource_name=f"{at}", name="preallocate", value="true")
            for kind in (TOPIC, ResourceType.GROUP)
            for at in range(100)
        )
    )
    *first, last = [record.message for record in caplog.records]
    assert len(first) == TOLD_AT_ONCE
    assert last == f"{200 - TOLD_AT_ONCE} more like these came with the same change"


def test_groups_that_the_broker_assigns_are_served_unless_settings_or_features_turn_them_off() -> None:
    assert not Node(group_coordinator_rebalance_protocols="classic,streams").settings.serves_consumer_groups
    node = Node(group_coordinator_rebalance_protocols="classic,consumer")
    for level in (1, 0, 1):
        node.image.apply_slot(node.image.seq + 1, [FeatureChanged(name=GROUP_VERSION, level=level)])
        assert node.settings.serves_consumer_groups is (level == 1)
