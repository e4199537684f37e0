"""Transactions asked of Tidewal and of Apache Kafka by raw requests, in every version: those that are sound,
zombies, wrong ids and epochs, and what comes in the wrong order.

Owns which requests are sent. Does not own how answers are compared (differential), nor a producer's ids and
the wait for a transaction's end (twin_producers).
"""

from __future__ import annotations

from typing import Any

import pytest

from protocol.apis import SERVED, Api
from tests.compat.differential import (
    Twins,
    fetch_fields,
    join_fields,
    list_offsets_fields,
    offset_fetch_fields,
    produce_fields,
    records,
)
from tests.compat.peers import unique
from tests.compat.twin_producers import (
    Producer,
    add_fields,
    begun,
    end_fields,
    ended,
    init_fields,
    owned,
    same,
    settled,
    state,
    txn_commit_fields,
)

pytestmark = pytest.mark.kafka

PRODUCE_VERSIONS = (3, 5, 7, 8, 9, 11, 12, 13)
IMPLICIT_FROM = 12
"""From this version of Produce on, a partition joins the transaction by being written to."""
FIRST, IMPLICIT_COMMIT_FROM = 0, 5


def version_of(api: Api, index: int) -> int:
    """The index's version of this API, its newest where it has no more; AddPartitionsToTxn from version 4 on
    is for brokers."""
    newest = 3 if api == Api.ADD_PARTITIONS_TO_TXN else SERVED[api].max_version
    return min(max(index, SERVED[api].min_version), newest)


def produce(producer: Producer, name: str, sequence: int = 0, *, partition: int = 0, **of: Any) -> Any:
    fields = produce_fields(name, None, partition=partition)
    fields["topic_data"][0]["partition_data"][0]["records"] = producer.batch(sequence, **of)
    return {**fields, "transactional_id": producer.name}


def read(twins: Twins, name: str) -> None:
    """What readers are told of a partition while a transaction is open or after."""
    for isolation_level in (0, 1):
        twins.same(Api.FETCH, 12, **fetch_fields(name, 0, isolation_level=isolation_level))
        fields = {**list_offsets_fields(name, -1), "isolation_level": isolation_level}
        twins.same(Api.LIST_OFFSETS, 6, **fields)
    twins.same(Api.DESCRIBE_PRODUCERS, 0, topics=[{"name": name, "partition_indexes": [0]}])


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("index", range(len(PRODUCE_VERSIONS)))
def test_a_transaction_in_every_version(twins: Twins, index: int, committed: bool) -> None:
    name, group, producer = twins.topic(partitions=2), unique("group"), Producer(unique("txn"))
    begun(twins, producer, version_of(Api.INIT_PRODUCER_ID, index))
    version = PRODUCE_VERSIONS[index]
    for _ in range(2):
        if version < IMPLICIT_FROM:
            added = add_fields(producer, (name, (0, 1)))
            same(twins, Api.ADD_PARTITIONS_TO_TXN, version_of(Api.ADD_PARTITIONS_TO_TXN, index), **added)
        same(twins, Api.PRODUCE, version, **produce(producer, name))
        same(twins, Api.PRODUCE, version, **produce(producer, name, 1))
        commit_version = version_of(Api.TXN_OFFSET_COMMIT, index)
        if commit_version < IMPLICIT_COMMIT_FROM:
            offsets = owned(producer, group_id=group)
            same(twins, Api.ADD_OFFSETS_TO_TXN, version_of(Api.ADD_OFFSETS_TO_TXN, index), **offsets)
        same(twins, Api.TXN_OFFSET_COMMIT, commit_version, **txn_commit_fields(producer, group, name))
        twins.same(Api.OFFSET_FETCH, 7, **offset_fetch_fields(group, name))
        twins.same(Api.OFFSET_FETCH, 7, **{**offset_fetch_fields(group, name), "require_stable": False})
        assert state(twins, producer) == "Ongoing"
        read(twins, name)
        ended(twins, producer, version_of(Api.END_TXN, index), committed=committed)
        assert state(twins, producer) == ("CompleteCommit" if committed else "CompleteAbort")
        read(twins, name)
        fetched = twins.same(Api.OFFSET_FETCH, 7, **offset_fetch_fields(group, name))
        assert fetched["topics"][0]["partitions"][0]["committed_offset"] == (7 if committed else -1)
        if version_of(Api.END_TXN, index) < 5:
            begun(twins, producer, version_of(Api.INIT_PRODUCER_ID, index))


@pytest.mark.parametrize("version", range(SERVED[Api.INIT_PRODUCER_ID].max_version + 1))
def test_producer_ids_that_cannot_be(twins: Twins, version: int) -> None:
    for timeout in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
        given = init_fields(Producer(unique("txn")), transaction_timeout=timeout)
        same(twins, Api.INIT_PRODUCER_ID, version, **given)
    same(twins, Api.INIT_PRODUCER_ID, version, **init_fields(Producer("")))
    for options in (
        {"producer_id": 4711},
        {"producer_epoch": 3},
        {"producer_id": 4711, "producer_epoch": 0},
        {"producer_id": -2, "producer_epoch": -2},
        {"enable2_pc": True},
        {"keep_prepared_txn": True},
    ):
        same(twins, Api.INIT_PRODUCER_ID, version, **init_fields(Producer(unique("txn")), **options))
        if version >= 3:
            same(twins, Api.INIT_PRODUCER_ID, version, **init_fields(None, **options))


@pytest.mark.parametrize("version", range(3, SERVED[Api.INIT_PRODUCER_ID].max_version + 1))
def test_a_producer_goes_on_where_it_was(twins: Twins, version: int) -> None:
    producer = Producer(unique("txn"))
    begun(twins, producer, version)
    begun(twins, producer, version, producer_id=producer.id, producer_epoch=producer.epoch)
    for more in (-1, -2, 1, 5):
        begun(twins, producer, version, producer_id=producer.id, producer_epoch=producer.plus(more))
    begun(twins, producer, version, producer_id=4711, producer_epoch=0)
    begun(twins, producer, version)


@pytest.mark.parametrize("index", range(6))
def test_a_zombie_is_fenced_wherever_it_comes(twins: Twins, index: int) -> None:
    name, group, producer = twins.topic(), unique("group"), Producer(unique("txn"))
    begun(twins, producer)
    same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(producer, (name, (0,))))
    same(twins, Api.PRODUCE, 9, **produce(producer, name))
    begun(twins, producer)
    settled(twins, producer)
    zombie = {"producer_epoch": producer.plus(-1)}
    for wrong in (zombie, {"producer_epoch": producer.plus(3)}, {"producer_id": 4711}):
        for api, fields in (
            (Api.ADD_PARTITIONS_TO_TXN, add_fields(producer, (name, (0,)), **wrong)),
            (Api.ADD_OFFSETS_TO_TXN, owned(producer, **{"group_id": group, **wrong})),
            (Api.TXN_OFFSET_COMMIT, txn_commit_fields(producer, group, name, **wrong)),
            (Api.END_TXN, end_fields(producer, **wrong)),
            (Api.END_TXN, end_fields(producer, committed=False, **wrong)),
        ):
            fields = {**fields, **{key: value for key, value in wrong.items() if key in fields}}
            same(twins, api, version_of(api, index), **fields)
    for version in (9, 11, 12):
        same(twins, Api.PRODUCE, version, **produce(producer, name, 1, producer_epoch=producer.plus(-1)))
    read(twins, name)


@pytest.mark.parametrize("index", range(6))
def test_what_nobody_knows(twins: Twins, index: int) -> None:
    name, group = twins.topic(), unique("group")
    for producer in (Producer(unique("txn")), Producer("")):
        for api, fields in (
            (Api.ADD_PARTITIONS_TO_TXN, add_fields(producer, (name, (0,)))),
            (Api.ADD_OFFSETS_TO_TXN, owned(producer, group_id=group)),
            (Api.TXN_OFFSET_COMMIT, txn_commit_fields(producer, group, name)),
            (Api.END_TXN, end_fields(producer)),
        ):
            same(twins, api, version_of(api, index), **fields)
    producer = Producer(unique("txn"))
    begun(twins, producer)
    for topics in (
        [("no-such-topic", (0,))],
        [(name, (0,)), ("no-such-topic", (0, 1))],
        [(name, (9,))],
        [(name, (-1,))],
        [("", (0,))],
        [("__consumer_offsets", (0,))],
        [],
    ):
        version = version_of(Api.ADD_PARTITIONS_TO_TXN, index)
        same(twins, Api.ADD_PARTITIONS_TO_TXN, version, **add_fields(producer, *topics))
    same(
        twins,
        Api.ADD_OFFSETS_TO_TXN,
        version_of(Api.ADD_OFFSETS_TO_TXN, index),
        **owned(producer, group_id=""),
    )
    for options in (
        {"group_id": ""},
        {"partition": 9},
        {"offset": -1},
        {"generation_id": 3},
        {"generation_id": 3, "member_id": "nobody"},
        {"member_id": "nobody"},
        {"group_instance_id": "fixed"},
    ):
        if {"generation_id", "member_id", "group_instance_id"} & set(options) and index < 3:
            continue
        fields = {**txn_commit_fields(producer, group, name, **options)}
        same(twins, Api.TXN_OFFSET_COMMIT, version_of(Api.TXN_OFFSET_COMMIT, index), **fields)
    same(
        twins,
        Api.TXN_OFFSET_COMMIT,
        version_of(Api.TXN_OFFSET_COMMIT, index),
        **txn_commit_fields(producer, group, "no-such-topic"),
    )


@pytest.mark.parametrize("version", range(SERVED[Api.END_TXN].max_version + 1))
def test_ends_that_come_twice_or_without_a_beginning(twins: Twins, version: int) -> None:
    name, producer = twins.topic(), Producer(unique("txn"))
    for committed in (True, False):
        begun(twins, producer)
        same(twins, Api.END_TXN, version, **end_fields(producer, committed=committed))
        settled(twins, producer)
    for committed in (True, False):
        begun(twins, producer)
        same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(producer, (name, (0,))))
        before = {"producer_id": producer.id, "producer_epoch": producer.epoch}
        kept = {name: [side.resolve(value) for side in twins.sides] for name, value in before.items()}
        ended(twins, producer, version, committed=committed)
        again = {
            name: (lambda side, values=values: values[twins.sides.index(side)])
            for name, values in kept.items()
        }
        for other in (committed, not committed):
            same(twins, Api.END_TXN, version, **end_fields(producer, **{**again, "committed": other}))
            settled(twins, producer)
    read(twins, name)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_records_outside_their_transaction(twins: Twins, version: int) -> None:
    name, producer = twins.topic(partitions=2), Producer(unique("txn"))
    begun(twins, producer)
    plain = {**produce_fields(name, records(b"plain")), "transactional_id": producer.name}
    same(twins, Api.PRODUCE, version, **plain)
    unflagged = produce(producer, name, transactional=False)
    same(twins, Api.PRODUCE, version, **unflagged)
    same(twins, Api.PRODUCE, version, **{**produce(producer, name, partition=1), "transactional_id": None})
    same(twins, Api.PRODUCE, version, **produce(producer, name, partition=1))
    same(twins, Api.PRODUCE, version, **{**produce(producer, name), "transactional_id": unique("other")})
    same(twins, Api.PRODUCE, version, **{**produce(producer, name), "transactional_id": ""})
    for wrong in ({"producer_id": 4711}, {"producer_epoch": producer.plus(2)}, {"producer_id": -1}):
        same(twins, Api.PRODUCE, version, **produce(producer, name, partition=1, **wrong))
    same(twins, Api.PRODUCE, version, **produce(producer, name, 5))
    read(twins, name)


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_that_brokers_add_or_verify(twins: Twins, version: int) -> None:
    name = twins.topic(partitions=2)
    first, second, stranger = (Producer(unique(name)) for name in ("first", "second", "stranger"))
    for producer in (first, second):
        begun(twins, producer)

    def asks(*rows: dict[str, Any]) -> Any:
        return same(
            twins,
            Api.ADD_PARTITIONS_TO_TXN,
            version,
            transactions=[row["transactions"][0] for row in rows],
        )

    asks(add_fields(first, (name, (0,)), verify_only=True))
    asks(add_fields(first, (name, (0,))), add_fields(second, (name, (1,))))
    asks(add_fields(first, (name, (0, 1)), verify_only=True), add_fields(stranger, (name, (0,))))
    asks(
        add_fields(first, (name, (0,)), verify_only=True, producer_epoch=first.plus(1)),
        add_fields(second, (name, (1,)), verify_only=True, producer_id=4711),
        add_fields(stranger, (name, (0,)), verify_only=True),
    )
    asks(add_fields(first, ("no-such-topic", (0,))), add_fields(second, (name, (7,)), verify_only=True))
    # Kafka does not answer one that names no transaction.
    empty = twins.one(twins.ours, Api.ADD_PARTITIONS_TO_TXN, version, {"transactions": []})
    assert (empty["error_code"], empty["results_by_transaction"]) == (0, [])
    for producer in (first, second):
        ended(twins, producer)
        asks(add_fields(producer, (name, (0,)), verify_only=True))


@pytest.mark.parametrize("version", range(1, SERVED[Api.WRITE_TXN_MARKERS].max_version + 1))
def test_markers_by_hand(twins: Twins, version: int) -> None:
    """As kafka-transactions.sh writes them; where nothing is open they are written as well."""
    name, producer = twins.topic(partitions=2), Producer(unique("txn"))
    for _ in range(3):
        begun(twins, producer)
    same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(producer, (name, (0,))))
    same(twins, Api.PRODUCE, 9, **produce(producer, name))

    def mark(*partitions: int, topic: str = name, **options: Any) -> None:
        marker = {
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": list(partitions)}],
            "coordinator_epoch": 3,
            "transaction_version": 0,
            **options,
        }
        same(twins, Api.WRITE_TXN_MARKERS, version, markers=[marker])
        read(twins, name)

    mark(0, producer_epoch=producer.plus(-1))
    mark(9)
    mark(0, topic="no-such-topic")
    mark(0)
    mark(0)
    mark(0, 1, transaction_result=True)
    mark(0, coordinator_epoch=2)
    mark(0, producer_epoch=producer.plus(1), coordinator_epoch=4)
    mark(0, producer_id=4711, producer_epoch=0)
    mark(0, transaction_version=2, coordinator_epoch=5)
    same(twins, Api.WRITE_TXN_MARKERS, version, markers=[])


@pytest.mark.parametrize("version", range(SERVED[Api.LIST_TRANSACTIONS].max_version + 1))
def test_transactions_are_listed_alike(twins: Twins, version: int) -> None:
    name, prefix = twins.topic(), unique("listed")
    producers = {state: Producer(f"{prefix}-{state}") for state in ("new", "open", "done", "undone")}
    for label, producer in producers.items():
        begun(twins, producer)
        if label != "new":
            same(twins, Api.ADD_PARTITIONS_TO_TXN, 3, **add_fields(producer, (name, (0,))))
        if label in ("done", "undone"):
            ended(twins, producer, committed=label == "done")

    def listed(**filters: Any) -> list[Any]:
        fields = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
            **filters,
        }
        ours, theirs = twins.both(Api.LIST_TRANSACTIONS, version, **fields)
        mine = [
            [row for row in answer.pop("transaction_states") if row["transactional_id"].startswith(prefix)]
            for answer in (ours, theirs)
        ]
        assert ours == theirs
        assert mine[0] == mine[1]
        return mine[0]

    assert len(listed()) == 4
    for states in (
        ["Ongoing"],
        ["Empty", "CompleteAbort"],
        ["ongoing"],
        ["NoSuch", "Ongoing"],
        ["PrepareEpochFence"],
    ):
        listed(state_filters=states)
    assert len(listed(producer_id_filters=[producers["open"].id, 4711])) == 1
    if version >= 1:
        for duration in (0, 1, 86_400_000, -2):
            listed(duration_filter=duration)
    if version >= 2:
        for pattern in (f"{prefix}-(new|open)", f"{prefix}", ".*done", "", "(open", "[", "a{2000}"):
            listed(transactional_id_pattern=pattern)
    known = [producer.name for producer in producers.values()]
    twins.same(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=known)
    twins.same(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[*known[:1], "nobody", ""])
    twins.same(Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[])
    ended(twins, producers["open"])


def test_offsets_of_a_member_within_a_transaction(twins: Twins) -> None:
    name, group, producer = twins.topic(), unique("group"), Producer(unique("txn"))
    for side in twins.sides:
        joined = side.client.call(Api.JOIN_GROUP, 7, **join_fields(group))
        side.remembered["member"] = joined.member_id
    twins.same(Api.JOIN_GROUP, 7, **join_fields(group, lambda side: side.remembered["member"]))
    member = {"member_id": lambda side: side.remembered["member"], "generation_id": 1}
    twins.same(
        Api.SYNC_GROUP,
        5,
        group_id=group,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
        **member,
    )
    begun(twins, producer)
    same(twins, Api.ADD_OFFSETS_TO_TXN, 3, **owned(producer, group_id=group))
    for options in (
        {},
        member,
        {**member, "generation_id": 2},
        {**member, "generation_id": -1},
        {**member, "member_id": "nobody"},
        {**member, "group_instance_id": "fixed"},
        {"generation_id": 1},
    ):
        for version in (3, 4, 5):
            fields = txn_commit_fields(producer, group, name, **options)
            same(twins, Api.TXN_OFFSET_COMMIT, version, **fields)
    ended(twins, producer)
    twins.same(Api.OFFSET_FETCH, 7, **offset_fetch_fields(group, name))


def test_coordinators_of_transactions(twins: Twins) -> None:
    for version in range(SERVED[Api.FIND_COORDINATOR].max_version + 1):
        for key in ("some-transaction", ""):
            twins.same(Api.FIND_COORDINATOR, version, key=key, key_type=1, coordinator_keys=[key, "another"])


# --- what is asked of features and ACLs -------------------------------------------------------------------


@pytest.mark.parametrize("version", range(SERVED[Api.UPDATE_FEATURES].max_version + 1))
@pytest.mark.parametrize(
    ("feature", "level", "kind"),
    [
        ("transaction.version", 2, 1),
        ("transaction.version", 1, 1),
        ("transaction.version", 1, 2),
        ("transaction.version", 3, 1),
        ("group.version", 1, 1),
        ("group.version", 9, 1),
        ("group.version", 0, 2),
        ("metadata.version", 1, 3),
        ("no.such", 1, 1),
        ("", 1, 1),
        ("transaction.version", 1, 0),
        ("transaction.version", 1, 9),
    ],
)
def test_features_that_are_only_tried(
    twins: Twins, version: int, feature: str, level: int, kind: int
) -> None:
    update = {
        "feature": feature,
        "max_version_level": level,
        "upgrade_type": kind,
        "allow_downgrade": kind > 1,
    }
    tried = {"timeout": 10_000, "validate_only": True}
    if version >= 1:
        twins.same(Api.UPDATE_FEATURES, version, feature_updates=[update], **tried)
        twins.same(Api.UPDATE_FEATURES, version, feature_updates=[update, update], **tried)
    elif level > 2:  # version 0 cannot only try, so what is refused anyway
        twins.same(Api.UPDATE_FEATURES, version, feature_updates=[update], timeout=10_000)


def test_acls_without_an_authorizer(twins: Twins) -> None:
    row = {
        "resource_type": 2,
        "resource_name": "topic",
        "resource_pattern_type": 3,
        "principal": "User:somebody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    wanted = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    for version in range(1, 4):
        for many in (1, 0, 3):
            twins.same(Api.CREATE_ACLS, version, creations=[row] * many)
            twins.same(Api.DELETE_ACLS, version, filters=[wanted] * many)
        twins.same(Api.DESCRIBE_ACLS, version, **wanted)
        for odd in ({"resource_type_filter": 0}, {"operation": 99}, {"pattern_type_filter": -1}):
            twins.same(Api.DESCRIBE_ACLS, version, **{**wanted, **odd})
        for odd in ({"resource_type": 0}, {"operation": 1}, {"host": ""}, {"principal": "nobody"}):
            twins.same(Api.CREATE_ACLS, version, creations=[{**row, **odd}])
