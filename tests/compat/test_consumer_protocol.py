"""Groups whose partitions the broker assigns (`group.protocol=consumer`), as confluent-kafka uses them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.compat.conftest import MakeTopic
from tests.compat.peers import unique, until
from tests.compat.samples import samples
from tests.compat.test_confluent import consumer, done, produce, refused_with, take
from tests.processes import ROOT

BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "5000",
}
"""What only spares a test its time."""
SERVER_SIDE: dict[str, Any] = {"group.protocol": "consumer", "session.timeout.ms": None}
CLASSIC: dict[str, Any] = {"heartbeat.interval.ms": 200, "session.timeout.ms": 5000}
SETTLE_S = 30.0


class Member:
    """A subscribed consumer that notes what it was given and what was taken from it."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], group: str, stack: ExitStack, **config: Any
    ) -> None:
        self.reader: Consumer = stack.enter_context(
            consumer(bootstrap, group=group, **{**SERVER_SIDE, **config})
        )
        self.given: list[set[tuple[str, int]]] = []
        self.taken: list[set[tuple[str, int]]] = []
        self.seen: list[tuple[str, int, int]] = []
        self.reader.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self.given.append({(each.topic, each.partition) for each in partitions})

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.taken.append({(each.topic, each.partition) for each in partitions})

    def work(self) -> None:
        """Read what is there, and commit it."""
        messages = self.reader.consume(200, timeout=0.02)
        for message in messages:
            error = message.error()
            if error is None:
                self.seen.append((message.topic(), message.partition(), message.offset()))
            elif not error.retriable() and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)
        if messages:
            try:
                self.reader.commit(asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in NOT_NOW:
                    raise

    def owned(self) -> set[tuple[str, int]]:
        self.work()
        return {(each.topic, each.partition) for each in self.reader.assignment()}


NOT_NOW = frozenset(
    {
        KafkaError._NO_OFFSET,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
"""Why a commit of a member fails whose partitions change."""


def places(topic: str, partitions: int) -> list[tuple[str, int]]:
    return [(topic, partition) for partition in range(partitions)]


def shared(members: Sequence[Member], wanted: Sequence[tuple[str, int]]) -> Callable[[], bool]:
    """Whether each has some, and together they have all of them once."""

    def are_shared() -> bool:
        owned = [member.owned() for member in members]
        return all(owned) and sorted(each for own in owned for each in own) == sorted(wanted)

    return are_shared


def settle(members: Sequence[Member], wanted: Sequence[tuple[str, int]], what: str) -> None:
    until(shared(members, wanted), what, timeout_s=SETTLE_S)


# --- who gets what -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
def test_members_share_the_partitions_as_they_come_and_go(
    bootstrap: str, make_topic: MakeTopic, assignor: str | None
) -> None:
    topic, group = make_topic(partitions=6), unique("group")
    config = {"group.remote.assignor": assignor}
    with ExitStack() as stack:
        members = []
        for number in (1, 2, 3):
            members.append(Member(bootstrap, [topic], group, stack, **config))
            settle(members, places(topic, 6), f"{number} to share")
        assert [len(member.owned()) for member in members] == [2, 2, 2]
        members.pop(0).reader.close()
        settle(members, places(topic, 6), "the rest to take over")
        for partition in range(6):
            produce(bootstrap, topic, samples(10), partition=partition)
        seen = until(
            lambda: [member.work() for member in members] and collected(members, 60), "60 records", pause_s=0
        )
        assert sorted(seen) == [(topic, partition, offset) for partition in range(6) for offset in range(10)]


def collected(members: Sequence[Member], at_least: int) -> list[tuple[str, int, int]]:
    seen = [each for member in members for each in member.seen]
    return seen if len(seen) >= at_least else []


def test_range_gives_one_member_the_same_numbers_of_every_topic(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topics, group = [make_topic(partitions=4) for _ in range(2)], unique("group")
    config = {"group.remote.assignor": "range"}
    with ExitStack() as stack:
        members = [Member(bootstrap, topics, group, stack, **config) for _ in range(2)]
        settle(members, [each for topic in topics for each in places(topic, 4)], "both to share")
        for member in members:
            numbers = [{p for t, p in member.owned() if t == topic} for topic in topics]
            assert numbers[0] == numbers[1]
            assert numbers[0] in ({0, 1}, {2, 3})


def test_an_assignor_that_nobody_knows_is_refused(bootstrap: str, topic: str) -> None:
    with ExitStack() as stack:
        member = Member(bootstrap, [topic], unique("group"), stack, **{"group.remote.assignor": "none"})
        with pytest.raises(KafkaException) as refused:
            until(member.owned, "the refusal")
        assert refused.value.args[0].code() in (KafkaError.UNSUPPORTED_ASSIGNOR, KafkaError._FATAL)


def test_only_what_moves_is_taken_away(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=6), unique("group")
    with ExitStack() as stack:
        first = Member(bootstrap, [topic], group, stack)
        settle([first], places(topic, 6), "the first to own all")
        assert first.taken == []
        second = Member(bootstrap, [topic], group, stack)
        settle([first, second], places(topic, 6), "both to share")
        assert first.taken == [second.owned()]
        assert first.given == [set(places(topic, 6))]
        kept = first.owned()
        third = Member(bootstrap, [topic], group, stack)
        settle([first, second, third], places(topic, 6), "all three to share")
        assert [len(member.owned()) for member in (first, second, third)] == [2, 2, 2]
        assert first.owned() < kept
        assert third.owned() == first.taken[1] | second.taken[0]
        assert third.given == [third.owned()] or len(third.given) == 2


def test_a_topic_that_grows_is_followed(bootstrap: str, make_topic: MakeTopic, admin: AdminClient) -> None:
    topic, group = make_topic(partitions=2), unique("group")
    with ExitStack() as stack:
        members = [Member(bootstrap, [topic], group, stack) for _ in range(2)]
        settle(members, places(topic, 2), "both to share")
        done(admin.create_partitions([NewPartitions(topic, 6)]))
        settle(members, places(topic, 6), "the new partitions to be shared")
        assert [len(member.owned()) for member in members] == [3, 3]


def test_a_topic_that_goes_is_let_go(bootstrap: str, make_topic: MakeTopic, admin: AdminClient) -> None:
    kept, doomed, group = make_topic(partitions=2), make_topic(partitions=2), unique("group")
    with ExitStack() as stack:
        member = Member(bootstrap, [kept, doomed], group, stack)
        settle([member], [*places(kept, 2), *places(doomed, 2)], "the member to own all")
        done(admin.delete_topics([doomed]))
        settle([member], places(kept, 2), "what is gone to be taken away")


def test_a_subscription_may_change(bootstrap: str, make_topic: MakeTopic) -> None:
    old, new, group = make_topic(partitions=2), make_topic(partitions=3), unique("group")
    with ExitStack() as stack:
        member = Member(bootstrap, [old], group, stack)
        settle([member], places(old, 2), "the first topic")
        member.reader.subscribe([new])
        settle([member], places(new, 3), "the other topic")
        member.reader.unsubscribe()
        until(lambda: not member.owned(), "nothing to be owned")


def test_members_of_one_group_may_subscribe_to_different_topics(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    both, one, group = make_topic(partitions=4), make_topic(partitions=2), unique("group")
    with ExitStack() as stack:
        wide = Member(bootstrap, [both, one], group, stack)
        narrow = Member(bootstrap, [both], group, stack)
        settle([wide, narrow], [*places(both, 4), *places(one, 2)], "both to share")
        assert set(places(one, 2)) <= wide.owned()
        assert {topic for topic, _ in narrow.owned()} == {both}


# --- patterns ----------------------------------------------------------------------------------------------


def test_a_pattern_is_matched_by_the_broker_and_finds_what_comes_later(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    prefix, group = unique("matched"), unique("group")
    first, other = make_topic(partitions=2, prefix=f"{prefix}-a"), make_topic(prefix=unique("other"))
    with ExitStack() as stack:
        member = Member(bootstrap, [f"^{prefix}-[ab].*"], group, stack)
        settle([member], places(first, 2), "the topic that matches")
        second = make_topic(partitions=3, prefix=f"{prefix}-b")
        make_topic(prefix=f"{prefix}-c")
        settle([member], [*places(first, 2), *places(second, 3)], "the topic that came later")
        named = Member(bootstrap, [other, f"^{prefix}-b.*"], group, stack)
        settle(
            [member, named],
            [*places(first, 2), *places(second, 3), *places(other, 1)],
            "a name beside a pattern",
        )
        assert (other, 0) in named.owned()
        assert not {topic for topic, _ in named.owned()} - {other, second}


def test_a_pattern_that_is_none_is_refused(bootstrap: str) -> None:
    with ExitStack() as stack:
        member = Member(bootstrap, ["^a{1001}"], unique("group"), stack)
        with pytest.raises(KafkaException) as refused:
            until(member.owned, "the refusal")
        assert refused.value.args[0].code() in (KafkaError.INVALID_REGULAR_EXPRESSION, KafkaError._FATAL)


# --- offsets -----------------------------------------------------------------------------------------------


def test_a_committed_offset_with_metadata_is_where_the_group_resumes(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(40))
    group = unique("group")
    with consumer(bootstrap, group=group, **SERVER_SIDE) as reader:
        reader.subscribe([topic])
        taken = take(reader, 10)
        reader.commit(message=taken[6], asynchronous=False)
        (position,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert position.offset == 7
        reader.commit(offsets=[TopicPartition(topic, 0, 15, metadata="fifteen")], asynchronous=False)
    with consumer(bootstrap, group=group, **SERVER_SIDE) as reader:
        (position,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert (position.offset, position.metadata) == (15, "fifteen")
        reader.subscribe([topic])
        assert take(reader, 1)[0].offset() == 15


def test_auto_commit_is_kept_for_the_next_member(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(20))
    group = unique("group")
    with consumer(bootstrap, group=group, **{**SERVER_SIDE, "enable.auto.commit": True}) as reader:
        reader.subscribe([topic])
        assert len(take(reader, 20)) == 20
    produce(bootstrap, topic, samples(5))
    with consumer(bootstrap, group=group, **SERVER_SIDE) as reader:
        reader.subscribe([topic])
        assert take(reader, 1)[0].offset() == 20


def test_who_is_not_in_the_group_cannot_commit_for_it(bootstrap: str, topic: str) -> None:
    group = unique("group")
    with ExitStack() as stack:
        member = Member(bootstrap, [topic], group, stack)
        settle([member], places(topic, 1), "the member to join")
        with (
            consumer(bootstrap, group=group) as stranger,
            pytest.raises(KafkaException) as refused,
        ):
            stranger.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID


# --- static members ----------------------------------------------------------------------------------------


def test_a_static_member_comes_back_without_a_rebalance(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=4), unique("group")
    with ExitStack() as stack:
        first = Member(bootstrap, [topic], group, stack, **{"group.instance.id": "first"})
        with ExitStack() as shorter:
            second = Member(bootstrap, [topic], group, shorter, **{"group.instance.id": "second"})
            settle([first, second], places(topic, 4), "both static members to share")
            owned, kept = second.owned(), first.owned()
            before = (len(first.given), len(first.taken))
        again = Member(bootstrap, [topic], group, stack, **{"group.instance.id": "second"})
        until(lambda: (first.owned(), again.owned())[1], "the static member to return")
        assert (again.owned(), first.owned()) == (owned, kept)
        assert (len(first.given), len(first.taken)) == before


def test_an_instance_id_that_is_in_use_is_not_given_away(bootstrap: str, topic: str) -> None:
    group, config = unique("group"), {"group.instance.id": "only-one"}
    with ExitStack() as stack:
        older = Member(bootstrap, [topic], group, stack, **config)
        settle([older], places(topic, 1), "the first to join")
        newer = Member(bootstrap, [topic], group, stack, **config)

        def refused() -> bool:
            older.owned()
            try:
                newer.owned()
            except KafkaException as error:
                return error.args[0].code() in (KafkaError.UNRELEASED_INSTANCE_ID, KafkaError._FATAL)
            return False

        until(refused, "the second to be refused")
        assert older.owned() == set(places(topic, 1))


# --- members that end --------------------------------------------------------------------------------------


CHILD = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"})
reader.subscribe([topic], on_assign=lambda *_: print("joined", flush=True))
while True:
    reader.poll(0.1)
"""


@contextmanager
def child(bootstrap: str, group: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """A member in a process of its own, which has joined."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, bootstrap, group, topic],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_falls_silent_loses_what_it_had(
    bootstrap: str, make_topic: MakeTopic, fault: signal.Signals
) -> None:
    topic, group = make_topic(partitions=4), unique("group")
    with ExitStack() as stack, child(bootstrap, group, topic) as process:
        member = Member(bootstrap, [topic], group, stack)
        until(lambda: len(member.owned()) == 2, "both to share", timeout_s=SETTLE_S)
        process.send_signal(fault)
        settle([member], places(topic, 4), "the partitions of the silent one")
        process.send_signal(signal.SIGCONT)
        if fault is signal.SIGSTOP:
            until(lambda: len(member.owned()) == 2, "the other to join again", timeout_s=SETTLE_S)


def test_a_group_has_a_session_timeout_of_its_own(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic, group = make_topic(partitions=2), unique("group")
    entry = ConfigEntry("consumer.session.timeout.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))

    def described() -> str:
        found = done(admin.describe_configs([ConfigResource(ResourceType.GROUP, group)]))
        return str(found["consumer.session.timeout.ms"].value)

    until(lambda: described() == "1000", "the new value")
    with ExitStack() as stack, child(bootstrap, group, topic) as process:
        member = Member(bootstrap, [topic], group, stack)
        until(lambda: len(member.owned()) == 1, "both to share", timeout_s=SETTLE_S)
        process.kill()
        until(shared([member], places(topic, 2)), "the silent one to be gone", timeout_s=4)


# --- work that goes on -------------------------------------------------------------------------------------


class Source:
    """A producer that numbers what it sends to each partition, and how much was acknowledged of it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.acked: dict[int, int] = defaultdict(int)
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(self, records: int = 5) -> None:
        for partition in range(self._partitions):
            for _ in range(records):
                self._producer.produce(self.topic, b"v", partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        self.acked[message.partition()] += 1

    def end(self) -> set[tuple[str, int, int]]:
        """Where everything is that was sent."""
        assert self._producer.flush(SETTLE_S) == 0
        return {(self.topic, each, offset) for each, acked in self.acked.items() for offset in range(acked)}


def go_on(source: Source, members: Sequence[Member], wanted: Sequence[tuple[str, int]], what: str) -> None:
    """Work until the members share the partitions and each has read since."""
    source.send()
    settle(members, wanted, what)
    before = [len(member.seen) for member in members]

    def all_read() -> bool:
        source.send(1)
        for member in members:
            member.work()
        return all(len(member.seen) > had for member, had in zip(members, before, strict=True))

    until(all_read, f"everybody to read after {what}", timeout_s=SETTLE_S)


def check_all_is_read(source: Source, members: Sequence[Member], everybody: Sequence[Member]) -> None:
    wanted = source.end()

    def seen() -> set[tuple[str, int, int]]:
        for member in members:
            member.work()
        return {each for member in everybody for each in member.seen}

    until(lambda: seen() >= wanted, "everything to be read", timeout_s=SETTLE_S)
    assert seen() == wanted


def test_members_are_restarted_one_after_the_other(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(partitions=6), unique("group")
    source, wanted = Source(bootstrap, topic, 6), places(topic, 6)
    with ExitStack() as stack:
        members = [Member(bootstrap, [topic], group, stack) for _ in range(3)]
        everybody = list(members)
        go_on(source, members, wanted, "three members")
        for _ in range(3):
            members.pop(0).reader.close()
            go_on(source, members, wanted, "one less")
            members.append(Member(bootstrap, [topic], group, stack))
            everybody.append(members[-1])
            go_on(source, members, wanted, "it back")
        check_all_is_read(source, members, everybody)
        read = [each for member in everybody for each in member.seen]
        assert len(read) == len(set(read)), "members that left in peace had committed what they read"


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_group_moves_from_one_protocol_to_the_other_and_back_while_it_works(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, strategy: str
) -> None:
    """Not of cooperative-sticky, whose assignments have data of their own at times, which Kafka refuses."""
    topic, group = make_topic(partitions=6), unique("group")
    source, wanted = Source(bootstrap, topic, 6), places(topic, 6)
    classic = {**CLASSIC, "group.protocol": "classic", "partition.assignment.strategy": strategy}

    def type_of() -> ConsumerGroupType:
        listed = admin.list_consumer_groups().result(timeout=10).valid
        return next(entry.type for entry in listed if entry.group_id == group)

    with ExitStack() as stack:
        members = [Member(bootstrap, [topic], group, stack, **classic) for _ in range(2)]
        everybody = list(members)

        def replace_all(config: dict[str, Any]) -> None:
            for number in (1, 2):
                members.append(Member(bootstrap, [topic], group, stack, **config))
                everybody.append(members[-1])
                go_on(source, members, wanted, f"{number} of the new ones")
                members.pop(0).reader.close()
                go_on(source, members, wanted, f"{number} of the old ones gone")

        go_on(source, members, wanted, "two classic members")
        assert type_of() == ConsumerGroupType.CLASSIC
        replace_all({})
        assert type_of() == ConsumerGroupType.CONSUMER
        replace_all(classic)
        assert type_of() == ConsumerGroupType.CLASSIC
        check_all_is_read(source, members, everybody)


def test_offsets_of_a_classic_group_are_where_its_successor_begins(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, samples(40))
    group = unique("group")
    for turn, config in zip(count(0, 10), (CLASSIC, SERVER_SIDE, CLASSIC, SERVER_SIDE), strict=False):
        with consumer(bootstrap, group=group, **config) as reader:
            reader.subscribe([topic])
            taken = take(reader, 10)
            assert [message.offset() for message in taken] == list(range(turn, turn + 10))
            reader.commit(message=taken[-1], asynchronous=False)


# --- what an administrator sees ----------------------------------------------------------------------------


def test_groups_are_listed_described_moved_and_deleted(
    admin: AdminClient, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, group, old = make_topic(partitions=2), unique("group"), unique("group")
    produce(bootstrap, topic, samples(30))

    def listed(**which: Any) -> set[str]:
        return {entry.group_id for entry in admin.list_consumer_groups(**which).result(timeout=10).valid}

    with ExitStack() as stack:
        member = Member(
            bootstrap, [topic], group, stack, **{"client.id": "someone", "group.instance.id": "static"}
        )
        classic = Member(bootstrap, [topic], old, stack, **{"group.protocol": "classic", **CLASSIC})
        settle([member], places(topic, 2), "the member to own all")
        settle([classic], places(topic, 2), "the classic member to own all")
        assert {group, old} <= listed()
        of_type = listed(types={ConsumerGroupType.CONSUMER})
        assert group in of_type
        assert old not in of_type
        of_state = listed(states={ConsumerGroupState.STABLE})
        assert {group, old} <= of_state
        assert group not in listed(states={ConsumerGroupState.EMPTY})
        described = done(admin.describe_consumer_groups([group]))
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
        assert described.partition_assignor == "uniform"
        (who,) = described.members
        assert (who.client_id, who.group_instance_id) == ("someone", "static")
        assert sorted((tp.topic, tp.partition) for tp in who.assignment.topic_partitions) == places(topic, 2)
        assert refused_with(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
        moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 20)])
        (row,) = done(admin.alter_consumer_group_offsets([moved])).topic_partitions
        assert row.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    # a static member that leaves may come back, so its group is not yet empty
    dynamic = unique("group")
    with ExitStack() as stack:
        settle([Member(bootstrap, [topic], dynamic, stack)], places(topic, 2), "a member")
    until(lambda: done(admin.describe_consumer_groups([dynamic])).state == ConsumerGroupState.EMPTY, "nobody")
    assert dynamic in listed(states={ConsumerGroupState.EMPTY})
    moved = ConsumerGroupTopicPartitions(dynamic, [TopicPartition(topic, 0, 20)])
    done(admin.alter_consumer_group_offsets([moved]))
    offsets = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(dynamic)]))
    assert (topic, 0, 20) in [(tp.topic, tp.partition, tp.offset) for tp in offsets.topic_partitions]
    done(admin.delete_consumer_groups([dynamic]))
    assert refused_with(admin.delete_consumer_groups([dynamic])) == KafkaError.GROUP_ID_NOT_FOUND
