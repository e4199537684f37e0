"""Whatever commands come in whatever order: deciding changes nothing, and the log they leave is the state."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.config.values import ResourceType
from broker.control.brokers import AllocateProducerIds
from broker.control.commands import ControllerCommand
from broker.control.config_changes import ConfigOp, IncrementalAlterConfigs, Operation
from broker.control.image import fold
from broker.control.metadata_records import Record, decode_record, encode_record
from broker.control.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicRef,
)
from protocol.errors import KafkaError
from tests.broker.control.decisions import cluster, decided, registration


class Commands(RuleBasedStateMachine):
    """Commands in any order, on one image; the log they leave is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.image = cluster()
        self.log: list[tuple[int, tuple[Record, ...]]] = [
            (self.image.seq, tuple(self.image.snapshot_records()))
        ]
        self.steps = 0

    def run(self, command: ControllerCommand) -> None:  # type: ignore[type-arg]
        self.steps += 1
        before = self.image.copy()
        try:
            decision = decided(self.image, command, seed=self.steps)
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
        change = ConfigOp(name=setting, operation=operation, value=value)
        self.run(IncrementalAlterConfigs(changes=(((2, name), (change,)),)))

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
