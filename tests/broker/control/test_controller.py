"""What the controller decides, command by command, as Kafka does; and that deciding and folding agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.config.broker import ResourceType
from broker.control.brokers import AllocateProducerIds, FenceBrokers, UnregisterBroker
from broker.control.controller import (
    AlterConfigs,
    Command,
    ConfigOp,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    MorePartitions,
    NewTopic,
    Operation,
    TopicRef,
    TopicResult,
    invalid_topic_name,
    place,
)
from broker.control.image import BrokerFenced, BrokerImage, Image, Record, decode_record, encode_record, fold
from protocol.errors import ErrorCode, KafkaError
from tests.broker.control.decisions import carry_out, cluster, code, registration, rules


def create(image: Image, *topics: NewTopic, validate_only: bool = False) -> list[TopicResult]:
    response = carry_out(image, CreateTopics(topics=topics, validate_only=validate_only))
    assert isinstance(response, list)
    return response


# --- CreateTopics ------------------------------------------------------------------------------------------


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
        CreatePartitions(topics=more).decide(image, rules())
    assert caught.value.code is ErrorCode.policy_violation


def test_too_many_partitions_are_not_made_before_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[int] = []

    def counted(*args: Any, partitions: int, **kwargs: Any) -> list[tuple[int, ...]]:
        placed.append(partitions)
        return place(*args, partitions=partitions, **kwargs)

    monkeypatch.setattr("broker.control.controller.place", counted)
    topics = tuple(NewTopic(name=f"t{at}", partitions=9_000) for at in range(20))
    with pytest.raises(KafkaError):
        CreateTopics(topics=topics).decide(cluster(), rules())
    with pytest.raises(KafkaError):
        CreateTopics(topics=(NewTopic(name="t", partitions=1),) * 10_001).decide(cluster(), rules())
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


# --- placement ---------------------------------------------------------------------------------------------


def some_broker(broker_id: int, rack: str | None, fenced: bool) -> BrokerImage:
    return BrokerImage(
        id=broker_id,
        epoch=broker_id,
        incarnation=UUID(int=broker_id),
        directories=(),
        endpoints=(),
        rack=rack,
        fenced=fenced,
    )


racks = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9
).filter(lambda brokers: any(not fenced for _, fenced in brokers))


@given(racks, st.integers(1, 40), st.data())
def test_placement_is_fair_and_spreads_over_racks(
    described: list[tuple[str | None, bool]], partitions: int, data: st.DataObject
) -> None:
    brokers = [some_broker(at, rack, fenced) for at, (rack, fenced) in enumerate(described)]
    factor = data.draw(st.integers(1, len(brokers)))
    start = data.draw(st.integers(0, 20))
    placed = place(brokers, partitions=partitions, replication_factor=factor, start=start)
    live = {broker.id for broker in brokers if not broker.fenced}
    by_rack: dict[str | None, set[int]] = defaultdict(set)
    for broker in brokers:
        by_rack[broker.rack].add(broker.id)
    leaders = Counter(replicas[0] for replicas in placed)
    assert set(leaders) <= live
    assert max(leaders.values()) - min((leaders[broker] for broker in live), default=0) <= 1
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        for rack, members in by_rack.items():
            used = members.intersection(replicas)
            # A rack has fewer than another only when it has no more, and a fenced one when no other is left.
            assert used == members or all(
                len(by_rack[other].intersection(replicas)) <= len(used) + 1 for other in by_rack
            ), rack
            assert used <= live or live & members <= used


def test_second_replicas_move_on_after_each_round() -> None:
    brokers = [some_broker(at, None, False) for at in range(4)]
    placed = place(brokers, partitions=8, replication_factor=2, start=0)
    assert placed[:4] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert placed[4:] == [(0, 2), (1, 3), (2, 0), (3, 1)]


@pytest.mark.parametrize("fenced", [True, False])
def test_placement_needs_brokers(fenced: bool) -> None:
    with pytest.raises(KafkaError) as caught:
        place([some_broker(1, None, fenced)], partitions=1, replication_factor=1 + (not fenced), start=0)
    assert caught.value.code is ErrorCode.invalid_replication_factor


def test_too_few_brokers_are_named_as_kafka_does() -> None:
    image = cluster(2)
    (result,) = create(image, NewTopic(name="t", partitions=1, replication_factor=3))
    assert result.error is not None
    few = (
        "The target replication factor of {} cannot be reached because only {} broker(s) are registered or "
        "some brokers have all their log directories cordoned."
    )
    assert result.error.message == f"Unable to replicate the partition 3 time(s): {few.format(3, 2)}"
    create(image, NewTopic(name="t", partitions=1, replication_factor=2))
    carry_out(image, UnregisterBroker(broker_id=2))
    more = CreatePartitions(topics=(MorePartitions(name="t", count=2),))
    ((_, error),) = carry_out(image, more)
    assert error is not None
    assert error.message == few.format(2, 1)
    carry_out(image, FenceBrokers(brokers=((1, image.brokers[1].epoch),)))
    ((_, error),) = carry_out(image, more)
    assert error is not None
    assert error.message == "All brokers are currently fenced."


def test_a_rack_whose_brokers_are_fenced_gets_its_replica() -> None:
    brokers = [some_broker(1, "a", False), some_broker(2, "a", False), some_broker(3, "b", True)]
    placed = place(brokers, partitions=4, replication_factor=2, start=0)
    assert placed == [(1, 3), (2, 3), (1, 3), (2, 3)]


# --- DeleteTopics, CreatePartitions ------------------------------------------------------------------------


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


# --- settings ----------------------------------------------------------------------------------------------

TOPIC = (int(ResourceType.TOPIC), "t")


def op(name: str, operation: Operation, value: str | None = None) -> ConfigOp:
    return ConfigOp(name=name, operation=operation, value=value)


def change(image: Image, resource: tuple[int, str], *ops: ConfigOp, validate_only: bool = False) -> ErrorCode:
    command = IncrementalAlterConfigs(changes=((resource, ops),), validate_only=validate_only)
    response = carry_out(image, command)
    assert isinstance(response, dict)
    return code(response[resource])


def test_incremental_changes_add_up() -> None:
    image = cluster()
    create(image, NewTopic(name="t", configs=(("retention.ms", "5"),)))
    assert change(image, TOPIC, op("segment.ms", Operation.SET, "7")) is ErrorCode.none
    assert change(image, TOPIC, op("cleanup.policy", Operation.APPEND, "compact")) is ErrorCode.none
    assert image.config(ResourceType.TOPIC, "t") == {
        "retention.ms": "5",
        "segment.ms": "7",
        "cleanup.policy": "delete,compact",
    }
    assert change(image, TOPIC, op("cleanup.policy", Operation.SUBTRACT, "delete,nope")) is ErrorCode.none
    assert change(image, TOPIC, op("retention.ms", Operation.DELETE)) is ErrorCode.none
    assert image.config(ResourceType.TOPIC, "t") == {"segment.ms": "7", "cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("resource", "change_op", "expected"),
    [
        (TOPIC, op("retention.ms", Operation.APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, op("nonsense", Operation.APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, op("nonsense", Operation.SET, "1"), ErrorCode.invalid_config),
        (TOPIC, op("retention.ms", Operation.SET, "-7"), ErrorCode.invalid_config),
        (TOPIC, ConfigOp(name="retention.ms", operation=9, value="1"), ErrorCode.invalid_request),
        ((2, "nowhere"), op("retention.ms", Operation.SET, "1"), ErrorCode.unknown_topic_or_partition),
        ((2, ""), op("retention.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((2, "a b"), op("retention.ms", Operation.SET, "1"), ErrorCode.invalid_topic_exception),
        ((4, "x"), op("log.retention.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((4, "-1"), op("log.retention.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((4, "9"), op("log.retention.ms", Operation.SET, "1"), ErrorCode.broker_id_not_registered),
        ((32, ""), op("consumer.session.timeout.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((32, "g"), op("consumer.session.timeout.ms", Operation.SET, "1"), ErrorCode.invalid_config),
        ((16, "m"), op("interval.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((99, "m"), op("interval.ms", Operation.SET, "1"), ErrorCode.invalid_request),
    ],
)
def test_changes_that_cannot_be(resource: tuple[int, str], change_op: ConfigOp, expected: ErrorCode) -> None:
    image = cluster()
    create(image, NewTopic(name="t"))
    assert change(image, resource, change_op) is expected
    assert image.configs == {}


def test_the_older_request_replaces_everything() -> None:
    image = cluster()
    create(image, NewTopic(name="t", configs=(("retention.ms", "5"), ("segment.ms", "7"))))
    command = AlterConfigs(resources=((TOPIC, (("retention.ms", "6"),)),))
    assert carry_out(image, command) == {TOPIC: None}
    assert image.config(ResourceType.TOPIC, "t") == {"retention.ms": "6"}


def test_one_bad_value_keeps_a_resource_as_it_was_and_others_go_on() -> None:
    image = cluster()
    create(image, NewTopic(name="t"), NewTopic(name="u"))
    command = IncrementalAlterConfigs(
        changes=(
            (TOPIC, (op("retention.ms", Operation.SET, "1"), op("segment.ms", Operation.SET, "x"))),
            ((2, "u"), (op("retention.ms", Operation.SET, "1"),)),
        )
    )
    response = carry_out(image, command)
    assert isinstance(response, dict)
    assert [code(error) for error in response.values()] == [ErrorCode.invalid_config, ErrorCode.none]
    assert image.configs == {(ResourceType.TOPIC, "u"): {"retention.ms": "1"}}


def test_a_change_can_be_tried() -> None:
    image = cluster()
    create(image, NewTopic(name="t"))
    assert change(image, TOPIC, op("retention.ms", Operation.SET, "1"), validate_only=True) is ErrorCode.none
    assert image.configs == {}


# --- any sequence ------------------------------------------------------------------------------------------


class Commands(RuleBasedStateMachine):
    """Commands in any order, on one image; the log they leave is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.image = cluster()
        self.log: list[tuple[int, tuple[Record, ...]]] = [
            (self.image.seq, tuple(self.image.snapshot_records()))
        ]
        self.steps = 0

    def run(self, command: Command) -> None:  # type: ignore[type-arg]
        self.steps += 1
        before = self.image.copy()
        try:
            decision = command.decide(self.image, rules(self.steps))
        except KafkaError:
            assert self.image == before
            return
        assert self.image == before
        records = tuple(decode_record(encode_record(record)) for record in decision.records)
        seq = self.image.seq + 1
        self.image.apply_slot(seq, records)
        self.log.append((seq, records))

    names = st.sampled_from(["a", "b.c", "b_c", "d"])

    @rule(name=names, partitions=st.integers(-1, 3), factor=st.integers(-1, 4), validate_only=st.booleans())
    def create(self, name: str, partitions: int, factor: int, validate_only: bool) -> None:
        topic = NewTopic(
            name=name, partitions=partitions, replication_factor=factor, configs=(("retention.ms", "1"),)
        )
        self.run(CreateTopics(topics=(topic,), validate_only=validate_only))

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.run(DeleteTopics(topics=(TopicRef(name=name),)))

    @rule(name=names, count=st.integers(1, 6))
    def grow(self, name: str, count: int) -> None:
        self.run(CreatePartitions(topics=(MorePartitions(name=name, count=count),)))

    @rule(
        name=names,
        operation=st.sampled_from(list(Operation)),
        setting=st.sampled_from(["retention.ms", "cleanup.policy", "nonsense"]),
        value=st.sampled_from(["1", "compact", "delete"]),
    )
    def alter(self, name: str, operation: Operation, setting: str, value: str) -> None:
        self.run(IncrementalAlterConfigs(changes=(((2, name), (op(setting, operation, value),)),)))

    @rule(broker=st.integers(1, 3))
    def allocate(self, broker: int) -> None:
        self.run(AllocateProducerIds(broker_id=broker, broker_epoch=self.image.brokers[broker].epoch))

    @rule(broker=st.integers(1, 3))
    def register(self, broker: int) -> None:
        self.run(registration(broker))

    @invariant()
    def the_log_is_the_state(self) -> None:
        assert fold(self.log) == self.image

    @invariant()
    def names_do_not_collide(self) -> None:
        assert len({name.replace(".", "_") for name in self.image.topics}) == len(self.image.topics)

    @invariant()
    def settings_belong_to_topics(self) -> None:
        assert {name for kind, name in self.image.configs if kind is ResourceType.TOPIC} <= set(
            self.image.topics
        )

    @invariant()
    def leaders_are_in_sync_replicas(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                assert set(partition.isr) <= set(partition.replicas)
                assert partition.leader in (*partition.isr, -1)


TestCommands = Commands.TestCase
TestCommands.settings = settings(max_examples=40, stateful_step_count=25)
