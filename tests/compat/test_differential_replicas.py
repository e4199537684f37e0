"""What operators ask about leaders and replicas, to Tidewal and to Apache Kafka: the same answers, word for
word, in every version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from protocol.apis import SERVED, Api
from tests.compat.differential import Side, Twins, differences, ready
from tests.compat.peers import ApacheKafka, Java
from tests.processes import BrokerProcess

pytestmark = pytest.mark.kafka

METADATA_TOPIC = "__cluster_metadata"
# Slots are not records, elections not counted alike, and the clocks of two brokers differ.
SET_ASIDE = frozenset(
    {
        *("high_watermark", "log_end_offset", "leader_epoch", "listeners", "throttle_time"),
        *("last_fetch_timestamp", "last_caught_up_timestamp"),
    }
)
# Kafka groups by hash.
ORDERED_BY = {"results": "topic_name", "partitions": "partition_index", "replica_election_results": "topic"}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, java: Java) -> Iterator[Twins]:
    with ExitStack() as stack:
        theirs = stack.enter_context(ApacheKafka(tmp_path_factory.mktemp("theirs"), java)).start()
        ours = stack.enter_context(
            BrokerProcess(tmp_path_factory.mktemp("ours"), settings={"offsets.topic.num.partitions": "5"})
        )
        pair = Twins(Side(ours.bootstrap), Side(theirs.bootstrap))
        for side in pair.sides:
            stack.callback(side.client.socket.close)
            ready(side)
        yield pair
        assert "Traceback" not in ours.stderr, ours.stderr[-5000:]


def plain(side: Side, value: Any, name: str = "") -> Any:
    """As Side has it, but with the words of messages."""
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        kept = [field for field in fields if field not in SET_ASIDE]
        return {field: plain(side, getattr(value, field), field) for field in kept}
    if isinstance(value, tuple):
        items = [plain(side, item) for item in value]
        by = ORDERED_BY.get(name)
        return items if by is None else sorted(items, key=lambda item: str(item[by]))
    return side.plain(value, name)


def same(twins: Twins, api: Api, **fields: Any) -> list[Any]:
    """Our answer of each version, which was found to be Kafka's."""
    answers = []
    for version in range(SERVED[api].min_version, SERVED[api].max_version + 1):
        ours, theirs = (
            plain(side, side.client.call(api, version, **side.resolve(fields))) for side in twins.sides
        )
        found = [str(one) for one in differences(ours, theirs)]
        assert not found, "\n".join([f"{api.name} v{version}", *found, str(fields)])
        answers.append(ours)
    return answers


# --- elections ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1, 2, -1])
def test_elections_that_are_not_needed_or_cannot_be(twins: Twins, kind: int) -> None:
    name = twins.topic(partitions=2)
    asked = [
        {"topic": name, "partitions": [0, 1, 9]},
        {"topic": "no-such-topic", "partitions": [0]},
        {"topic": "nothing-of-it", "partitions": []},
        {"topic": name, "partitions": [0, 0]},
    ]
    # Version 0 knows the preferred leader alone.
    answers = same(twins, Api.ELECT_LEADERS, election_type=kind, topic_partitions=asked, timeout=10_000)
    assert answers[-1]["error_code"] == (0 if kind in (0, 1) else 42)


def test_no_elections_at_all(twins: Twins) -> None:
    same(twins, Api.ELECT_LEADERS, election_type=0, topic_partitions=[], timeout=10_000)


def test_all_elections(twins: Twins) -> None:
    twins.topic(partitions=2)
    same(twins, Api.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout=10_000)


# --- reassignments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [None, [], [1], [1, 1], [9], [-1], [9, 1], [1, 9, 9]], ids=str)
@pytest.mark.parametrize("allows", [True, False])
def test_reassignments_of_a_lone_broker(twins: Twins, replicas: list[int] | None, allows: bool) -> None:
    name = twins.topic()
    topics = [
        {"name": name, "partitions": [{"partition_index": at, "replicas": replicas} for at in (0, 9, 0)]},
        {"name": "no-such-topic", "partitions": [{"partition_index": 0, "replicas": replicas}]},
        {"name": "nothing-of-it", "partitions": []},
    ]
    same(
        twins,
        Api.ALTER_PARTITION_REASSIGNMENTS,
        topics=topics,
        timeout=10_000,
        allow_replication_factor_change=allows,
    )


def test_no_reassignments_at_all(twins: Twins) -> None:
    same(twins, Api.ALTER_PARTITION_REASSIGNMENTS, topics=[], timeout=10_000)


@pytest.mark.parametrize("which", ["all", "none", "some"])
def test_nothing_is_under_way(twins: Twins, which: str) -> None:
    some = [
        {"name": twins.topic(), "partition_indexes": [0, 9, -1]},
        {"name": "no-such-topic", "partition_indexes": [0]},
    ]
    topics = {"all": None, "none": [], "some": some}[which]
    same(twins, Api.LIST_PARTITION_REASSIGNMENTS, topics=topics, timeout=10_000)


# --- directories, the quorum, brokers ----------------------------------------------------------------------


def own_directory(side: Side) -> str:
    (result,) = side.client.call(Api.DESCRIBE_LOG_DIRS, 2, topics=None).results
    return str(result.log_dir)


@pytest.mark.parametrize(
    "path", [own_directory, "/nowhere", "", "relative"], ids=["its own", "another", "none", "relative"]
)
def test_a_replica_asked_to_move(twins: Twins, path: str | Callable[[Side], str]) -> None:
    topics = [
        {"name": twins.topic(), "partitions": [0, 5]},
        {"name": "no-such-topic", "partitions": [0]},
    ]
    same(twins, Api.ALTER_REPLICA_LOG_DIRS, dirs=[{"path": path, "topics": topics}])


def test_the_last_directory_that_is_named_counts(twins: Twins) -> None:
    topics = [{"name": twins.topic(), "partitions": [0]}]
    dirs = [{"path": path, "topics": topics} for path in ("/nowhere", own_directory)]
    same(twins, Api.ALTER_REPLICA_LOG_DIRS, dirs=dirs)
    same(twins, Api.ALTER_REPLICA_LOG_DIRS, dirs=dirs[::-1])
    same(twins, Api.ALTER_REPLICA_LOG_DIRS, dirs=[])


@pytest.mark.parametrize(
    "asked",
    [
        [(METADATA_TOPIC, [0])],
        [(METADATA_TOPIC, [1])],
        [(METADATA_TOPIC, [0, 0])],
        [(METADATA_TOPIC, [])],
        [(METADATA_TOPIC, [0]), ("no-such-topic", [0])],
        [("no-such-topic", [0, 1])],
        [],
    ],
    ids=str,
)
def test_the_quorum(twins: Twins, asked: list[tuple[str, list[int]]]) -> None:
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in asked
    ]
    answer = same(twins, Api.DESCRIBE_QUORUM, topics=topics)[-1]
    if asked == [(METADATA_TOPIC, [0])]:
        (quorum,) = answer["topics"][0]["partitions"]
        assert [voter["replica_id"] for voter in quorum["current_voters"]] == [1]


@pytest.mark.parametrize("broker_id", [9, -1, 2**31 - 1])
def test_a_broker_that_is_not_there_cannot_leave(twins: Twins, broker_id: int) -> None:
    (answer,) = same(twins, Api.UNREGISTER_BROKER, broker_id=broker_id)
    assert answer["error_message"] == f"Broker ID {broker_id} is not currently registered"
