"""The fold: what records do to an image, that a snapshot of it says the same, and that records keep their
form.
"""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.values import ResourceType
from broker.control.image import Delta, Image, fold
from broker.control.metadata_records import (
    NO_LEADER,
    RECORD_TYPES,
    BrokerFenced,
    BrokerRegistered,
    BrokerStopping,
    BrokerUnregistered,
    ClusterBorn,
    ConfigChanged,
    ControllerElected,
    FeatureChanged,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    Record,
    TopicCreated,
    TopicDeleted,
    UnknownRecord,
    decode_record,
    encode_record,
    new_partition,
)
from broker.endpoint import Endpoint

DISK = UUID(int=100)
OTHER_DISK = UUID(int=101)
TOPIC = UUID(int=7)


def registered(broker_id: int, *, disk: UUID = DISK, clean_epoch: int = -1) -> BrokerRegistered:
    return BrokerRegistered(
        broker_id=broker_id,
        incarnation=UUID(int=broker_id),
        directories=(disk,),
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9092 + broker_id),),
        clean_epoch=clean_epoch,
    )


def topic(*assignments: tuple[int, ...], name: str = "t", topic_id: UUID = TOPIC) -> TopicCreated:
    partitions = tuple(new_partition(at, replicas, replicas) for at, replicas in enumerate(assignments))
    return TopicCreated(name=name, topic_id=topic_id, partitions=partitions)


def three_brokers(*more: Record) -> Image:
    first = [ClusterBorn(cluster_id="c"), ControllerElected(controller_id=1, controller_epoch=1)]
    slots: list[list[Record]] = [[*first, registered(1)], [registered(2)], [registered(3)]]
    return fold(enumerate([*slots, *([record] for record in more)], start=1))


def state(image: Image, index: int = 0) -> tuple[int, int, tuple[int, ...]]:
    partition = image.partition("t", index)
    assert partition is not None
    return partition.leader, partition.leader_epoch, partition.isr


# --- brokers and what they lead ---


def test_a_broker_epoch_is_the_slot_of_its_registration() -> None:
    image = three_brokers()
    assert {broker.id: broker.epoch for broker in image.brokers.values()} == {1: 1, 2: 2, 3: 3}


def test_a_clean_restart_changes_no_partition() -> None:
    image = three_brokers(topic((1,), (1, 2), (2, 1)))
    before = image.topics["t"]
    image.apply_slot(5, [registered(1, clean_epoch=1)])
    assert image.brokers[1].epoch == 5
    assert image.topics["t"] == before


def test_an_unclean_restart_starts_new_leader_epochs_in_one_record() -> None:
    image = three_brokers(topic((1,), (1, 2), (2, 1), (2, 3)))
    delta = image.apply_slot(5, [registered(1)])
    assert state(image, 0) == (1, 1, (1,))
    assert state(image, 1) == (2, 1, (2,))
    assert state(image, 2) == (2, 0, (2,))
    assert state(image, 3) == (2, 0, (2, 3))
    assert set(delta.topics_changed) == {"t"}


def test_an_old_clean_stop_is_none() -> None:
    image = three_brokers(topic((1,)))
    image.apply_slot(5, [registered(1, clean_epoch=1)])
    image.apply_slot(6, [registered(1, clean_epoch=1)])
    assert state(image) == (1, 1, (1,))


def test_a_sole_member_with_another_disk_stays_offline_for_good() -> None:
    image = three_brokers(topic((1,), (1, 2)))
    image.apply_slot(5, [registered(1, disk=OTHER_DISK, clean_epoch=1)])
    assert state(image, 0) == (NO_LEADER, 1, ())
    assert state(image, 1) == (2, 1, (2,))
    image.apply_slot(6, [registered(1, disk=OTHER_DISK, clean_epoch=5)])
    assert state(image, 0) == (NO_LEADER, 1, ())


def test_fencing_leaves_every_isr_that_has_another_member() -> None:
    image = three_brokers(topic((1, 2), (2, 1), (1,), (1, 2, 3)))
    image.apply_slot(5, [BrokerFenced(broker_id=1, broker_epoch=1, fenced=True)])
    assert not image.is_live(1)
    assert state(image, 0) == (2, 1, (2,))
    assert state(image, 1) == (2, 0, (2,))
    assert state(image, 2) == (NO_LEADER, 1, (1,))
    assert state(image, 3) == (2, 1, (2, 3))


def test_a_fenced_sole_member_leads_again_when_it_registers() -> None:
    fenced = BrokerFenced(broker_id=1, broker_epoch=1, fenced=True)
    clean = three_brokers(topic((1,)), fenced, registered(1, clean_epoch=1))
    assert state(clean) == (1, 2, (1,))
    unclean = three_brokers(topic((1,)), fenced, registered(1))
    assert state(unclean) == (1, 2, (1,))


def test_word_of_an_old_incarnation_is_ignored() -> None:
    image = three_brokers(topic((1,)), registered(1, clean_epoch=1))
    before = image.copy()
    image.apply(BrokerFenced(broker_id=1, broker_epoch=1, fenced=True), 5)
    image.apply(BrokerUnregistered(broker_id=1, broker_epoch=1), 5)
    assert image == before


def test_an_unregistered_broker_is_gone() -> None:
    image = three_brokers(topic((1, 2), (1,)), BrokerUnregistered(broker_id=1, broker_epoch=1))
    assert 1 not in image.brokers
    assert state(image, 0) == (2, 1, (2,))
    assert state(image, 1) == (NO_LEADER, 1, (1,))


# --- topics ---


def test_a_topic_goes_with_its_settings() -> None:
    setting = ConfigChanged(resource_type=2, resource_name="t", name="retention.ms", value="1")
    image = three_brokers(topic((1,)), setting)
    assert image.config(ResourceType.TOPIC, "t") == {"retention.ms": "1"}
    delta = image.apply_slot(6, [TopicDeleted(topic_id=TOPIC)])
    assert (image.topics, image.topic_names, image.configs) == ({}, {}, {})
    assert [topic.name for topic in delta.topics_deleted] == ["t"]
    assert delta.configs_changed == {(ResourceType.TOPIC, "t")}


def test_added_partitions_follow_the_others() -> None:
    image = three_brokers(topic((1,)))
    added = PartitionsAdded(topic_id=TOPIC, first=1, partitions=(new_partition(1, (2,), (2,)),))
    image.apply(added, 5)
    image.apply(added, 6)
    assert [partition.index for partition in image.topics["t"].partitions] == [0, 1]


def test_a_named_leader_starts_an_epoch_and_another_isr_does_not() -> None:
    image = three_brokers(topic((1, 2)))
    image.apply(PartitionChanged(topic_id=TOPIC, partition=0, isr=(1,)), 5)
    assert state(image) == (1, 0, (1,))
    image.apply(PartitionChanged(topic_id=TOPIC, partition=0, leader=1), 6)
    assert state(image) == (1, 1, (1,))
    partition = image.partition("t", 0)
    assert partition is not None
    assert partition.partition_epoch == 2


def test_a_delta_tells_what_a_slot_did_as_a_whole() -> None:
    image = three_brokers(topic((1,)), topic((1,), name="old", topic_id=UUID(int=8)))
    delta = image.apply_slot(
        6,
        [
            TopicDeleted(topic_id=TOPIC),
            topic((2,), topic_id=UUID(int=9)),
            topic((1,), name="brief", topic_id=UUID(int=10)),
            TopicDeleted(topic_id=UUID(int=10)),
            PartitionChanged(topic_id=UUID(int=9), partition=0, leader=2),
            PartitionChanged(topic_id=UUID(int=8), partition=0, leader=1),
            ConfigChanged(resource_type=4, resource_name="", name="a", value="b"),
            registered(3, clean_epoch=3),
        ],
    )
    assert [topic.id for topic in delta.topics_deleted] == [TOPIC]
    assert {name: topic.id.int for name, topic in delta.topics_created.items()} == {"t": 9}
    assert delta.topics_created["t"] is image.topics["t"]
    assert {name: topic.partitions[0].leader_epoch for name, topic in delta.topics_changed.items()} == {
        "old": 0
    }
    assert delta.configs_changed == {(ResourceType.BROKER, "")}
    assert delta.brokers_changed == {3}
    assert not image.apply_slot(7, [])


def test_a_delta_counts_elections_that_gave_a_partition_another_leader() -> None:
    image = three_brokers(topic((1, 2), (1, 2, 3), (3, 1), (1,)))
    elections = image.apply_slot(5, [BrokerFenced(broker_id=1, broker_epoch=1, fenced=True)])
    assert [state(image, index)[0] for index in range(4)] == [2, 2, 3, NO_LEADER]
    assert (elections.elections, elections.unclean_elections) == (2, 0)
    same = PartitionChanged(topic_id=TOPIC, partition=0, leader=2)
    unclean = PartitionChanged(topic_id=TOPIC, partition=1, leader=1, isr=(1,), unclean=True)
    elections = image.apply_slot(6, [same, unclean])
    assert (elections.elections, elections.unclean_elections) == (1, 1)


def test_internal_topics_are_known_by_name() -> None:
    image = three_brokers(
        topic((1,), name="__consumer_offsets"), topic((1,), name="__mine", topic_id=UUID(int=8))
    )
    assert [topic.name for topic in image.topics.values() if topic.internal] == ["__consumer_offsets"]


# --- any log ---

ids = st.sampled_from([UUID(int=number) for number in (20, 21, 22)])
brokers = st.integers(1, 3)
members = st.lists(brokers, unique=True, min_size=1, max_size=3).map(tuple)
optional_members = st.none() | members
partitions = st.lists(
    members.map(lambda replicas: new_partition(0, replicas, replicas)), min_size=1, max_size=3
)
records = st.one_of(
    st.builds(ClusterBorn, cluster_id=st.just("c")),
    st.builds(ControllerElected, controller_id=brokers, controller_epoch=st.integers(1, 9)),
    st.builds(registered, brokers, disk=st.sampled_from([DISK, OTHER_DISK]), clean_epoch=st.integers(-1, 30)),
    st.builds(BrokerFenced, broker_id=brokers, broker_epoch=st.integers(1, 30), fenced=st.booleans()),
    st.builds(BrokerStopping, broker_id=brokers, broker_epoch=st.integers(1, 30)),
    st.builds(BrokerUnregistered, broker_id=brokers, broker_epoch=st.integers(1, 30)),
    st.builds(
        lambda topic_id, assignments: topic(*assignments, name=f"t{topic_id.int}", topic_id=topic_id),
        ids,
        st.lists(members, min_size=1, max_size=3),
    ),
    st.builds(
        lambda topic_id, first, replicas: PartitionsAdded(
            topic_id=topic_id, first=first, partitions=(new_partition(first, replicas, replicas),)
        ),
        ids,
        st.integers(1, 4),
        members,
    ),
    st.builds(
        PartitionChanged,
        topic_id=ids,
        partition=st.integers(0, 4),
        leader=st.none() | st.integers(-1, 3),
        isr=optional_members,
        replicas=optional_members,
        adding=st.none() | st.just(()) | members,
        removing=st.none() | st.just(()) | members,
        unclean=st.booleans(),
    ),
    st.builds(TopicDeleted, topic_id=ids),
    st.builds(
        ConfigChanged,
        resource_type=st.sampled_from([2, 4, 32]),
        resource_name=st.sampled_from(["", "1", "t20", "ünï"]),
        name=st.sampled_from(["a", "b"]),
        value=st.none() | st.text(max_size=5),
    ),
    st.builds(
        ProducerIdsAllocated,
        broker_id=brokers,
        broker_epoch=st.integers(1, 30),
        next_producer_id=st.integers(0, 10**6),
    ),
    st.builds(
        FeatureChanged,
        name=st.sampled_from(["transaction.version", "group.version", "a.later.one"]),
        level=st.integers(0, 3),
    ),
)
logs = st.lists(st.lists(records, max_size=4), max_size=20)


@given(records)
def test_records_survive_their_encoding(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


@given(logs)
def test_a_snapshot_folds_to_the_image_it_was_taken_of(log: list[list[Record]]) -> None:
    image = fold(enumerate(log, start=1))
    again = fold([(image.seq, map(decode_record, map(encode_record, image.snapshot_records())))])
    assert again == image


@given(logs, st.integers(0, 20))
def test_a_snapshot_and_the_tail_are_the_whole_log(log: list[list[Record]], cut: int) -> None:
    slots = list(enumerate(log, start=1))
    head = fold(slots[:cut])
    image = fold([(head.seq, head.snapshot_records())] if head.seq else [])
    assert fold(slots[cut:], image) == fold(slots)


@given(logs)
def test_a_slot_does_what_its_records_do_one_by_one(log: list[list[Record]]) -> None:
    image, one_by_one = Image(), Image()
    for seq, slot in enumerate(log, start=1):
        delta, expected = image.apply_slot(seq, slot), Delta(seq=seq)
        one_by_one.seq = seq
        for record in slot:
            one_by_one.apply(record, seq, expected)
        assert (image, delta) == (one_by_one, expected)


@given(logs)
def test_a_copy_lives_its_own_life(log: list[list[Record]]) -> None:
    image, copies = Image(), []
    for seq, slot in enumerate(log, start=1):
        copies.append(image.copy())
        image.apply_slot(seq, slot)
    for seq, copy in enumerate(copies):
        assert copy == fold(enumerate(log[:seq], start=1))


@given(logs)
def test_what_always_holds(log: list[list[Record]]) -> None:
    image = Image()
    for seq, slot in enumerate(log, start=1):
        before = image.copy()
        delta = image.apply_slot(seq, slot)
        assert {name for name in image.topics if name not in before.topics} <= set(delta.topics_created)
        assert image.topic_names == {topic.id: name for name, topic in image.topics.items()}
        assert image.next_producer_id >= before.next_producer_id
        for name, found in image.topics.items():
            assert [partition.index for partition in found.partitions] == list(range(len(found.partitions)))
            old = before.topics.get(name)
            if old is None or old.id != found.id or name in delta.topics_created:
                continue
            for was, now in zip(old.partitions, found.partitions, strict=False):
                assert now.leader_epoch >= was.leader_epoch
                assert now.leader_epoch > was.leader_epoch or now.leader == was.leader
                assert now.partition_epoch > was.partition_epoch or now == was


# --- the form, for ever ---


def test_the_written_form_does_not_change() -> None:
    """One of each as a past release wrote it. A line may be added here, none may change."""
    written = [
        '["ClusterBorn",0,{"cluster_id":"c"}]',
        '["ControllerElected",0,{"controller_id":1,"controller_epoch":2}]',
        '["BrokerRegistered",0,{"broker_id":1,"incarnation":"00000000000000000000000000000001",'
        '"directories":["00000000000000000000000000000064"],"endpoints":[["PLAINTEXT","h",9093,"PLAINTEXT"]]}]',
        '["BrokerFenced",0,{"broker_id":1,"broker_epoch":2,"fenced":true}]',
        '["BrokerStopping",0,{"broker_id":1,"broker_epoch":2}]',
        '["BrokerUnregistered",0,{"broker_id":1,"broker_epoch":2}]',
        '["TopicCreated",0,{"name":"t","topic_id":"00000000000000000000000000000007",'
        '"partitions":[[1,0,0,[1,2],[1,2]]]}]',
        '["PartitionsAdded",0,{"topic_id":"00000000000000000000000000000007","first":1,'
        '"partitions":[[2,0,0,[2],[2]]]}]',
        '["PartitionChanged",0,{"topic_id":"00000000000000000000000000000007","partition":0,"leader":2,"isr":[2]}]',
        '["TopicDeleted",0,{"topic_id":"00000000000000000000000000000007"}]',
        '["ConfigChanged",0,{"resource_type":2,"resource_name":"t","name":"a","value":"b"}]',
        '["ProducerIdsAllocated",0,{"broker_id":1,"broker_epoch":2,"next_producer_id":1000}]',
        '["FeatureChanged",0,{"name":"transaction.version","level":1}]',
        '["SnapshotTaken",0,{"at_ms":5}]',
    ]
    assert [json.loads(text)[0] for text in written] == list(RECORD_TYPES)
    grown = [
        '["BrokerRegistered",0,{"broker_id":1,"incarnation":"00000000000000000000000000000001",'
        '"directories":["00000000000000000000000000000064"],"endpoints":[["PLAINTEXT","h",9093,"PLAINTEXT"]],'
        '"rack":"r","clean_epoch":3,"fenced":true,"epoch":4,"stopping":true}]',
        '["TopicCreated",0,{"name":"t","topic_id":"00000000000000000000000000000007",'
        '"partitions":[[1,2,3,[2,3,1],[1],[2,3],[1]],[1,0,0,[1],[1]]]}]',
        '["PartitionChanged",0,{"topic_id":"00000000000000000000000000000007","partition":0,"leader":2,"isr":[2],'
        '"replicas":[2,3,1],"adding":[2,3],"removing":[1],"unclean":true}]',
    ]
    for text in (*written, *grown):
        assert encode_record(decode_record(text.encode())).decode() == text


@pytest.mark.parametrize("text", ['["Surprise",0,{}]', '["TopicDeleted",1,{}]'])
def test_a_record_of_a_newer_release_is_not_guessed_at(text: str) -> None:
    with pytest.raises(UnknownRecord, match="newer release"):
        decode_record(text.encode())


def test_a_field_of_a_newer_release_is_skipped() -> None:
    assert decode_record(b'["ClusterBorn",0,{"cluster_id":"c","colour":"red"}]') == ClusterBorn(
        cluster_id="c"
    )
