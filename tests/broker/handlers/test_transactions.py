"""Requests of transactional producers as bytes in every version, and what becomes of their transactions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from broker.control.feature_levels import TRANSACTION_VERSION
from broker.control.metadata_records import FeatureChanged, PartitionChanged, TopicDeleted
from broker.coordinators.groups.coordinator import OFFSETS_TOPIC
from broker.coordinators.patterns import compiled
from broker.coordinators.topic_coordinator import partition_of
from broker.coordinators.transactions import coordinator
from broker.coordinators.transactions.marker_writer import Marker
from broker.handlers import transactions
from broker.handlers.results import ROWS_AT_ONCE
from broker.handlers.transactions import _topic_rows
from protocol import records as batches
from protocol.apis import SERVED, Api
from protocol.errors import ErrorCode, KafkaError
from protocol.work import finish
from tests.broker.coordinators.fake_log import settle
from tests.broker.handlers.transaction_client import ID, NOW_MS, Client

NONE = ErrorCode.none
MISSING = ErrorCode.unknown_topic_or_partition
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available
T0 = ("t", 0)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with asyncio.TaskGroup() as tasks:
        made = Client(tasks)
        await made.transactions.start(tasks)
        await made.groups.start(tasks)
        yield made
        await made.transactions.stop()
        await made.groups.stop()


def versions(api: Api) -> list[int]:
    return list(range(SERVED[api].min_version, SERVED[api].max_version + 1))


async def refusal(asked: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await asked
    return refused.value.code


# --- finding ---


@pytest.mark.parametrize("version", versions(Api.FIND_COORDINATOR)[1:])
async def test_the_coordinator_is_found(client: Client, version: int) -> None:
    reply = await client.find(version)
    found = reply if version < 4 else reply.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (NONE, 1, "broker.example", 9093)
    assert client.cluster.created == 1


# --- producers ---


@pytest.mark.parametrize("version", versions(Api.INIT_PRODUCER_ID))
async def test_a_producer_begins_in_every_version(client: Client, version: int) -> None:
    await client.find()
    reply = await client.init(version)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (NONE, 1001, 0)
    reply = await client.init(version)
    assert (reply.error_code, reply.producer_id, reply.producer_epoch) == (NONE, 1001, 1)
    plain = await client.init(version, transactional_id=None)
    assert (plain.error_code, plain.producer_id, plain.producer_epoch) == (NONE, 1002, 0)


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_fenced_producer_is_told_so_as_its_version_knows(client: Client, version: int) -> None:
    producer_id, _ = await client.begin()
    await client.begin()
    code = await refusal(client.init(version, producer_id=producer_id, producer_epoch=0))
    old, new = ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced
    assert code is (old if version < 4 else new)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.invalid_request),
        ({"producer_id": 4}, ErrorCode.invalid_request),
        ({"producer_epoch": 4}, ErrorCode.invalid_request),
        ({"transactional_id": None, "producer_epoch": 4}, ErrorCode.invalid_request),
        ({"transaction_timeout": 0}, ErrorCode.invalid_transaction_timeout),
        ({"transaction_timeout": -1}, ErrorCode.invalid_transaction_timeout),
        ({"transaction_timeout": 900_001}, ErrorCode.invalid_transaction_timeout),
        ({"transactional_id": "é" * 16_384}, None),
    ],
)
async def test_what_no_producer_may_ask(
    client: Client, fields: dict[str, Any], code: ErrorCode | None
) -> None:
    await client.find()
    if code is None:
        with pytest.raises(Exception, match="string of 32768 bytes"):
            await client.init(**fields)
    else:
        assert await refusal(client.init(**fields)) is code


async def test_an_id_of_the_longest_length(client: Client) -> None:
    assert await client.begin(transactional_id="y" * 32_767) == (1001, 0)


async def test_another_broker_coordinates(client: Client) -> None:
    producer = await client.begin()
    client.replicas.lead(partition_of(ID, 50), None)
    code = ErrorCode.not_coordinator
    assert await refusal(client.init()) is code
    assert await refusal(client.end(producer)) is code
    assert await client.add(producer) == {T0: code}
    assert (await client.describe())[0].error_code is code


async def test_while_it_loads(client: Client) -> None:
    producer = await client.begin()
    client.replicas.logs[partition_of(ID, 50)].is_on_all = False
    client.replicas.lead(partition_of(ID, 50), 1)
    code = ErrorCode.coordinator_load_in_progress
    assert await refusal(client.init()) is code
    assert await client.add(producer) == {T0: code}
    assert (
        await refusal(
            client.call(
                Api.LIST_TRANSACTIONS,
                2,
                state_filters=[],
                producer_id_filters=[],
                duration_filter=-1,
                transactional_id_pattern=None,
            )
        )
        is code
    )


# --- whole transactions ---


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("version", versions(Api.END_TXN))
async def test_a_transaction_in_every_version(client: Client, version: int, committed: bool) -> None:
    producer = await client.begin()
    assert await client.add(producer, T0, ("t", 1), version=min(version, 5)) == {T0: NONE, ("t", 1): NONE}
    assert await client.state() == "Ongoing"
    reply = await client.end(producer, committed=committed, version=version)
    assert reply.error_code is NONE
    if version >= 5:
        assert (reply.producer_id, reply.producer_epoch) == (producer[0], 1)
    await client.wait_state("CompleteCommit" if committed else "CompleteAbort")
    (marker,) = client.markers.written
    assert marker == Marker(
        producer_id=producer[0],
        producer_epoch=1 if version >= 5 else 0,
        coordinator_epoch=0,
        committed=committed,
        transaction_version=2 if version >= 5 else 0,
        partitions=marker.partitions,
    )
    assert set(marker.partitions) == {T0, ("t", 1)}


async def test_the_answer_does_not_wait_for_markers(client: Client) -> None:
    producer = await client.begin()
    await client.add(producer, version=5)
    client.markers.gate.clear()
    reply = await client.end(producer)
    assert reply.error_code is NONE
    assert await client.state() == "PrepareCommit"
    assert await refusal(client.end(producer)) is ErrorCode.concurrent_transactions
    assert await refusal(client.end(producer, committed=False)) is ErrorCode.invalid_txn_state
    assert await refusal(client.init()) is ErrorCode.concurrent_transactions
    client.markers.gate.set()
    await client.wait_state("CompleteCommit")
    again = await client.end(producer)
    assert (again.error_code, again.producer_epoch) == (NONE, 1)


async def test_the_next_transaction_waits_for_the_last(client: Client) -> None:
    producer = await client.begin()
    await client.add(producer, version=3)
    client.markers.gate.clear()
    await client.end(producer, version=4)
    adding = asyncio.ensure_future(client.add(producer, ("t", 1)))
    await settle()
    assert not adding.done()
    client.markers.gate.set()
    assert await adding == {("t", 1): NONE}
    assert await client.state() == "Ongoing"


async def test_but_not_for_ever(client: Client) -> None:
    producer = await client.begin()
    await client.add(producer)
    client.markers.gate.clear()
    await client.end(producer, version=4)
    assert await client.add(producer) == {T0: ErrorCode.concurrent_transactions}
    client.markers.gate.set()


async def test_who_no_longer_waits_for_the_end_leaves_nothing_behind(client: Client) -> None:
    producer = await client.begin()
    await client.add(producer)
    client.markers.gate.clear()
    reply = await client.end(producer)
    next_one = (reply.producer_id, reply.producer_epoch)
    asked = asyncio.ensure_future(client.add(next_one, version=5))
    await settle()
    assert client.transactions._held
    asked.cancel()
    await asyncio.wait((asked,))
    assert not client.transactions._held
    client.markers.gate.set()
    await client.wait_state("CompleteCommit")


async def test_an_open_transaction_is_aborted_for_the_next_producer(client: Client) -> None:
    producer = await client.begin()
    await client.add(producer)
    reply = await client.init()
    assert (reply.error_code, reply.producer_id) == (ErrorCode.concurrent_transactions, -1)
    await client.wait_state("CompleteAbort")
    assert not client.markers.written[0].committed
    assert await client.begin() == (producer[0], 2)
    assert await client.add(producer) == {T0: ErrorCode.producer_fenced}
    assert await client.add(producer, version=1) == {T0: ErrorCode.invalid_producer_epoch}
    assert await refusal(client.end(producer, version=2)) is ErrorCode.producer_fenced
    assert await refusal(client.end(producer, version=1)) is ErrorCode.invalid_producer_epoch


async def test_a_transaction_of_nothing(client: Client) -> None:
    producer = await client.begin()
    reply = await client.end(producer, committed=False)
    assert (reply.error_code, reply.producer_epoch) == (NONE, 1)
    await client.wait_state("CompleteAbort")
    assert client.markers.written == []


async def test_what_ends_right_after_the_end_of_another(client: Client) -> None:
    """The next end is decided before anybody could look at the last."""
    producer = await client.begin()
    await client.add(producer, version=5)
    log = client.replicas.logs[partition_of(ID, 50)]
    reply = await client.end(producer)
    log.gate.clear()
    await settle()
    assert await client.state() == "PrepareCommit"
    following = asyncio.ensure_future(client.end((reply.producer_id, reply.producer_epoch), committed=False))
    await settle()
    log.gate.set()
    assert (await following).producer_epoch == reply.producer_epoch + 1
    await client.wait_state("CompleteAbort")


async def test_a_partition_without_a_leader_holds_up_no_other_transaction(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENDINGS_AT_ONCE", "SLOW_MAX"):
        monkeypatch.setattr(coordinator, name, 2)
    monkeypatch.setattr(coordinator, "SLOW_S", 0.02)
    away = UUID(int=13)
    client.cluster.create("away", away, partitions=1)
    client.cluster.apply(PartitionChanged(topic_id=away, partition=0, leader=-1))
    await client.find()

    async def end(name: str, topic: str) -> None:
        reply = await client.init(transactional_id=name)
        producer = (reply.producer_id, reply.producer_epoch)
        assert await client.add(producer, (topic, 0), transactional_id=name, version=5) == {(topic, 0): NONE}
        assert (await client.end(producer, transactional_id=name)).error_code is NONE

    for number in range(7):
        await end(f"held up {number}", "away")
    await end(ID, "t")
    await client.wait_state("CompleteCommit")
    statistics = client.transactions.statistics()
    assert 1 <= statistics.ending <= 7
    assert sum(machine.committed for machine in statistics.machines) == 1


async def test_a_log_that_takes_no_record_holds_up_no_transaction_of_another(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENDINGS_AT_ONCE", "SLOW_MAX"):
        monkeypatch.setattr(coordinator, name, 2)
    monkeypatch.setattr(coordinator, "SLOW_S", 0.02)
    monkeypatch.setattr(coordinator, "PAUSE_S", 0.01)
    await client.find()
    here = partition_of(ID, 50)
    named: dict[int, list[str]] = {}
    for number in range(1_000):
        named.setdefault(partition_of(f"id {number}", 50), []).append(f"id {number}")
    index, names = next(each for each in named.items() if each[0] != here and len(each[1]) >= 7)
    client.markers.gate.clear()

    async def end(name: str) -> None:
        reply = await client.init(transactional_id=name)
        producer = (reply.producer_id, reply.producer_epoch)
        await client.add(producer, T0, transactional_id=name, version=5)
        assert (await client.end(producer, transactional_id=name)).error_code is NONE

    for name in names[:7]:
        await end(name)
    client.replicas.logs[index].failures = [(ErrorCode.not_enough_replicas, False)] * 10_000
    client.markers.gate.set()
    await end(ID)
    await client.wait_state("CompleteCommit")
    assert client.replicas.logs[index].failures


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out])
async def test_markers_are_written_again_until_they_are_there(client: Client, code: ErrorCode) -> None:
    producer = await client.begin()
    await client.add(producer)
    client.markers.errors = [code, code]
    await client.end(producer)
    await client.wait_state("CompleteCommit")
    assert len(client.markers.written) == 3
    await settle()
    assert client.transactions.statistics().ending == 0


async def test_partitions_that_are_gone_hold_up_nothing(client: Client) -> None:
    client.cluster.create("gone", UUID(int=9), partitions=1)
    producer = await client.begin()
    await client.add(producer, ("gone", 0), T0)
    client.cluster.apply(TopicDeleted(topic_id=UUID(int=9)))
    await client.end(producer)
    await client.wait_state("CompleteCommit")
    assert [marker.partitions for marker in client.markers.written] == [(T0,)]


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_new_leader_goes_on_with_what_is_decided(client: Client, is_loaded: bool) -> None:
    producer = await client.begin()
    await client.add(producer)
    client.markers.gate.clear()
    await client.end(producer)
    index = partition_of(ID, 50)
    client.replicas.lead(index, None)
    client.replicas.lead(index, 7)
    if is_loaded:
        await settle()
        assert await client.state() == "PrepareCommit"
    client.markers.gate.set()
    await client.wait_state("CompleteCommit")
    assert client.markers.written[-1].coordinator_epoch == 7
    assert client.markers.written[-1].producer_epoch == 1


async def test_what_could_not_be_noted_is_noted_later(client: Client) -> None:
    producer = await client.begin()
    await client.add(producer)
    log = client.replicas.logs[partition_of(ID, 50)]
    client.markers.gate.clear()
    await client.end(producer)
    log.failures = [(ErrorCode.not_enough_replicas, False), (ErrorCode.request_timed_out, True)]
    client.markers.gate.set()
    await client.wait_state("CompleteCommit")


@pytest.fixture
async def hasty() -> AsyncIterator[Client]:
    async with asyncio.TaskGroup() as tasks:
        made = Client(tasks, transaction_abort_timed_out_transaction_cleanup_interval_ms="50")
        await made.transactions.start(tasks)
        yield made
        await made.transactions.stop()


async def test_a_timeout_that_could_not_be_written_is_tried_again(hasty: Client) -> None:
    producer = await hasty.begin(transaction_timeout=5)
    log = hasty.replicas.logs[partition_of(ID, 50)]
    await hasty.add(producer)
    log.failures = [(ErrorCode.not_enough_replicas, False)]
    hasty.now_ms += 100
    await hasty.wait_state("CompleteAbort")
    assert not log.failures


# --- partitions ---


async def test_partitions_that_are_not_there(client: Client) -> None:
    producer = await client.begin()
    assert await client.add(producer, T0, ("t", 3), ("other", 0)) == {
        T0: ErrorCode.operation_not_attempted,
        ("t", 3): ErrorCode.unknown_topic_or_partition,
        ("other", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert await client.state() == "Empty"


async def test_clients_do_not_name_internal_topics(client: Client) -> None:
    producer = await client.begin()
    internal = ("__transaction_state", 0)
    assert await client.add(producer, T0, internal) == {
        T0: ErrorCode.operation_not_attempted,
        internal: ErrorCode.topic_authorization_failed,
    }
    assert await client.state() == "Empty"


async def test_several_transactions_in_one_request(client: Client) -> None:
    await client.find()
    producers = {}
    for name in ("a", "b"):
        reply = await client.init(transactional_id=name)
        producers[name] = (reply.producer_id, reply.producer_epoch)
    topics = [{"name": "t", "partitions": [0, 1]}]
    rows = [
        {
            "transactional_id": name,
            "producer_id": producers.get(name, (5, 0))[0],
            "producer_epoch": 0,
            "verify_only": name == "b",
            "topics": topics,
        }
        for name in ("a", "b", "nobody", "")
    ]
    reply = await client.call(Api.ADD_PARTITIONS_TO_TXN, 5, transactions=rows)
    assert reply.error_code is NONE
    codes = {
        result.transactional_id: {
            row.partition_error_code for topic in result.topic_results for row in topic.results_by_partition
        }
        for result in reply.results_by_transaction
    }
    assert codes == {
        "a": {NONE},
        "b": {ErrorCode.transaction_abortable},
        "nobody": {ErrorCode.invalid_producer_id_mapping},
        "": {ErrorCode.invalid_request},
    }


def test_an_answer_about_many_topics_is_made_in_steps() -> None:
    named = tuple((f"t{at}", 0) for at in range(1_600))
    assert sum(1 for _ in _topic_rows(named, lambda _: NONE)) == 2 * len(named) // ROWS_AT_ONCE
    made = finish(_topic_rows((("a", 1), ("b", 0), ("a", 0)), lambda each: NONE if each[1] else MISSING))
    assert made == [
        {
            "name": "a",
            "results_by_partition": [
                {"partition_index": 1, "partition_error_code": NONE},
                {"partition_index": 0, "partition_error_code": MISSING},
            ],
        },
        {"name": "b", "results_by_partition": [{"partition_index": 0, "partition_error_code": MISSING}]},
    ]


async def test_a_thousand_partitions(client: Client) -> None:
    client.cluster.create("wide", UUID(int=11), partitions=1_000)
    producer = await client.begin()
    wide = [("wide", index) for index in range(1_000)]
    assert set((await client.add(producer, *wide)).values()) == {NONE}
    await client.end(producer)
    await client.wait_state("CompleteCommit")
    assert set(client.markers.written[0].partitions) == set(wide)


@pytest.mark.parametrize("version", versions(Api.ADD_OFFSETS_TO_TXN))
async def test_offsets_are_part_of_a_transaction(client: Client, version: int) -> None:
    producer_id, epoch = await client.begin()

    async def add(epoch: int) -> Any:
        return await client.call(
            Api.ADD_OFFSETS_TO_TXN,
            version,
            transactional_id=ID,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id="g",
        )

    assert (await add(epoch)).error_code is NONE
    (row,) = await client.describe()
    assert [(topic.topic, topic.partitions) for topic in row.topics] == [
        (OFFSETS_TOPIC, (partition_of("g", 50),))
    ]
    old, new = ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced
    assert await refusal(add(9)) is (old if version < 2 else new)


@pytest.mark.parametrize(("version", "expected"), [(0, 0), (3, 0), (4, 2), (5, 2)])
async def test_a_transaction_is_of_the_version_by_which_it_was_begun(
    client: Client, version: int, expected: int
) -> None:
    await client.add(await client.begin(), version=version)
    found = client.transactions.transaction(ID)
    assert found is not None
    assert found.client_version == expected


async def test_the_level_of_the_cluster_says_how_records_are_written(client: Client) -> None:
    producer = await client.begin()
    client.cluster.apply(FeatureChanged(name=TRANSACTION_VERSION, level=0))
    await client.add(producer)
    client.cluster.apply(FeatureChanged(name=TRANSACTION_VERSION, level=1))
    await client.add(producer, ("t", 1))
    log = client.replicas.logs[partition_of(ID, 50)]
    rows = [
        row.value
        for batch in log.batches
        for at, header in batches.iter_batches(batch)
        for row in batches.iter_records(batch, at, header)
    ]
    assert [value and int.from_bytes(value[:2], "big") for value in rows] == [1, 0, 1]


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_the_level_of_the_cluster_says_how_a_producer_is_fenced(client: Client, level: int) -> None:
    client.cluster.apply(FeatureChanged(name=TRANSACTION_VERSION, level=level))
    producer = await client.begin()
    await client.add(producer)
    assert (await client.init()).error_code is ErrorCode.concurrent_transactions
    await client.wait_state("CompleteAbort")
    (marker,) = client.markers.written
    assert (marker.producer_epoch, marker.transaction_version) == (1, 2 if level == 2 else 0)


async def test_offsets_are_added_where_they_will_be(client: Client) -> None:
    """Which partition is the group's, and that it is told how the transaction ended, depends on the topic."""
    client.cluster.offsets_partitions = 7
    producer_id, epoch = producer = await client.begin()
    asked = {"transactional_id": ID, "producer_id": producer_id, "producer_epoch": epoch, "group_id": "g"}
    client.cluster.refuses = True
    assert await refusal(client.call(Api.ADD_OFFSETS_TO_TXN, 3, **asked)) is COORDINATOR_NOT_AVAILABLE
    assert await client.state() == "Empty"
    client.cluster.refuses = False
    assert (await client.call(Api.ADD_OFFSETS_TO_TXN, 3, **asked)).error_code is NONE
    await client.end(producer)
    await client.wait_state("CompleteCommit")
    assert [each.partitions for each in client.markers.written] == [((OFFSETS_TOPIC, partition_of("g", 7)),)]


# --- reading ---


async def test_what_is_described(client: Client) -> None:
    producer = await client.begin(transaction_timeout=5_000)
    await client.add(producer, T0, ("t", 2))
    row, missing, empty = await client.describe(ID, "nobody", "")
    assert row.error_code is NONE
    assert (row.transactional_id, row.transaction_state) == (ID, "Ongoing")
    assert (row.producer_id, row.producer_epoch) == producer
    assert row.transaction_timeout.total_seconds() == 5
    assert row.transaction_start_time.timestamp() * 1000 == NOW_MS
    assert [(topic.topic, topic.partitions) for topic in row.topics] == [("t", (0, 2))]
    assert missing.error_code is ErrorCode.transactional_id_not_found
    assert empty.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(Api.LIST_TRANSACTIONS))
async def test_what_is_listed(client: Client, version: int) -> None:
    producer = await client.begin()
    await client.add(producer)
    await client.init(transactional_id="other")

    async def listed(**changes: Any) -> tuple[set[str], tuple[str, ...]]:
        fields = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        reply = await client.call(Api.LIST_TRANSACTIONS, version, **(fields | changes))
        assert reply.error_code is NONE
        return {row.transactional_id for row in reply.transaction_states}, reply.unknown_state_filters

    assert await listed() == ({ID, "other"}, ())
    assert await listed(state_filters=["Ongoing"]) == ({ID}, ())
    assert await listed(state_filters=["Empty", "nothing", "nothing"]) == ({"other"}, ("nothing",))
    assert await listed(state_filters=["nothing"]) == (set(), ("nothing",))
    assert await listed(producer_id_filters=[producer[0]]) == ({ID}, ())
    if version >= 1:
        client.now_ms += 1_000
        assert await listed(duration_filter=999, state_filters=["Ongoing"]) == ({ID}, ())
        assert await listed(duration_filter=1_000, state_filters=["Ongoing"]) == (set(), ())
    if version >= 2:
        assert await listed(transactional_id_pattern="oth.*") == ({"other"}, ())
        assert await listed(transactional_id_pattern="oth") == (set(), ())
        assert await listed(transactional_id_pattern="") == ({ID, "other"}, ())


async def listed_by(client: Client, pattern: str) -> Any:
    fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    return await client.call(Api.LIST_TRANSACTIONS, 2, transactional_id_pattern=pattern, **fields)


@pytest.mark.parametrize("pattern", ["(", "a**", "[z", r"\1", "(?=a)", "((((a{1,1000}){1,1000})))", "(?<"])
async def test_what_is_no_pattern(client: Client, pattern: str) -> None:
    assert await refusal(listed_by(client, pattern)) is ErrorCode.invalid_regular_expression


async def test_a_long_id_is_matched_in_a_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short pattern may take a quarter of a second for it, and there may be many."""
    threads: dict[int, int] = {}

    class Noting:
        def __init__(self, pattern: str) -> None:
            self._compiled = compiled(pattern)
            self.programsize = self._compiled.programsize

        def fullmatch(self, text: str) -> Any:
            threads[len(text)] = threading.get_ident()
            return self._compiled.fullmatch(text)

    monkeypatch.setattr(transactions, "compiled", Noting)
    for length in (10, 30_000):
        await client.begin(transactional_id="a" * length)
    pattern = ".*(?:a.{0,900}a.{0,900})"
    assert len((await listed_by(client, pattern)).transaction_states) == 2
    assert threads[10] == threading.get_ident() != threads[30_000]
    assert not (await listed_by(client, pattern + "b")).transaction_states


async def test_a_pattern_that_explodes_elsewhere(client: Client) -> None:
    await client.begin(transactional_id="a" * 30_000 + "b")
    async with asyncio.timeout(5):
        assert not (await listed_by(client, "(a*)*(a*)*(a*)*c")).transaction_states
        assert len((await listed_by(client, "(a*)*(a*)*(a*)*b")).transaction_states) == 1
