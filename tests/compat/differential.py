"""Two brokers side by side: one raw request to Tidewal and to Apache Kafka, and what their answers differ in.

Owns: starting the two, each side's memory of the ids it gave, the normal form in which answers are compared,
sound requests to vary. Does not own which requests are sent: test_differential (picked by hand),
sequences (generated).
Invariant: an answer is compared whole; only what must differ between two clusters (ids, addresses, clocks,
words of a message) is set aside, and by name.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient
from crc32c import crc32c

from broker.coordinators.topic_coordinator import partition_of
from protocol.apis import Api
from protocol.records import build_batch, iter_records, parse_header
from tests.clients import group_requests
from tests.clients.blocking import BlockingClient, batch_bounds
from tests.compat.peers import ApacheKafka, Java, has_leaders, unique, until
from tests.compat.samples import FIRST_MS
from tests.processes import BrokerProcess

NOT_COMPARED = frozenset(
    {
        *(
            "throttle_time",
            "error_message",
            "batch_index_error_message",
            "cluster_id",
            "host",
            "port",
            "rack",
            "brokers",
            "log_dir",
        ),
        *("total_bytes", "usable_bytes", "is_cordoned", "log_append_time"),
        *("topic_authorized_operations", "cluster_authorized_operations", "documentation"),
        # What only one of the two has (transactions, KRaft features) is told in ApiVersions.
        *("api_keys", "supported_features", "finalized_features", "finalized_features_epoch"),
    }
)
# Assigned by each cluster as it pleases: only whether there is one is compared.
NAMED_BY_CLUSTER = frozenset(
    {
        *("producer_id", "member_id", "leader", "session_id", "replica_directory_id"),
        *("transaction_start_time", "transaction_start_time_ms"),
    }
)

# Lists whose order means nothing, and what an entry is about.
UNORDERED = {
    "groups": "group_id",
    "synonyms": "source",
    "configs": "name",
    "config_resources": "resource_name",
    "members": "member_id",
    "topics": "name topic topic_id topic_name",
    "responses": "name topic topic_id resource_name",
    "results": "name group_id resource_name",
    "partitions": "partition_index partition",
    "partition_responses": "index",
    "active_producers": "producer_id",
    "transaction_states": "transactional_id",
    "results_by_transaction": "transactional_id",
    "topic_results": "name",
    "results_by_partition": "partition_index",
    "results_by_topic_v3_and_below": "name",
    "topic_partitions": "topic_id",
    "markers": "producer_id",
    "subscribed_topic_names": "",
    "unknown_state_filters": "",
}
HELD_BY_A_TOPIC = ("partitions", "partition_responses")
# Configurations that Apache Kafka does not have.
OURS_ONLY = frozenset(
    {
        "record.validation",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
        "remote.log.pressure.policy",
        "remote.wal.storage.enable",
    }
)
OFFSETS_PARTITIONS, TRANSACTIONS_PARTITIONS = 5, 3
SETTINGS = {
    "offsets.topic.num.partitions": f"{OFFSETS_PARTITIONS}",
    "transaction.state.log.num.partitions": f"{TRANSACTIONS_PARTITIONS}",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # An assignment at once: which heartbeat brings it would otherwise be a question of time.
    "group.consumer.assignment.interval.ms": "0",
}
ANSWER_S = 5.0
HALF_AN_HOUR_MS = 1_800_000


class Side:
    """One of the two brokers, with the ids it gave to what both know by the same name."""

    def __init__(self, bootstrap: str, data: Path = Path()) -> None:
        self.bootstrap = bootstrap
        self.data = data
        self.client = BlockingClient(bootstrap, timeout_s=ANSWER_S)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.topic_ids: dict[str, UUID] = {}
        self.remembered: dict[str, Any] = {}
        self.labels: dict[Any, str] = {}

    def close(self) -> None:
        self.client.socket.close()

    def reconnect(self) -> None:
        self.client.socket.close()
        self.client = BlockingClient(self.bootstrap, timeout_s=ANSWER_S)

    def learn(self, topic: str, partitions: int) -> None:
        until(lambda: has_leaders(self.admin, topic, partitions), "the new topic's leaders")
        answer = self.client.call(
            Api.METADATA,
            12,
            topics=[{"topic_id": None, "name": topic}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        self.topic_ids[topic] = answer.topics[0].topic_id

    def put(self, topic: str, batch: bytes) -> None:
        until(lambda: self.client.produce(topic, 0, batch).error_code == 0, "the partition's leader")

    def resolve(self, value: Any) -> Any:
        """A request may hold functions of the side it goes to."""
        if callable(value):
            return self.resolve(value(self))
        if isinstance(value, Mapping):
            return {name: self.resolve(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        return value

    def plain(self, value: Any, name: str = "") -> Any:
        """An answer as nested plain values that two clusters can agree on."""
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return {name: self.plain(item, name) for name, item in fields.items() if name not in NOT_COMPARED}
        if isinstance(value, tuple | list):
            items = [self.plain(item, name) for item in value]
            if name == "configs":
                items = [item for item in items if item["name"] not in OURS_ONLY]
            return in_order(items, UNORDERED[name].split()) if name in UNORDERED else items
        if isinstance(value, UUID):
            by_id = {topic_id: topic for topic, topic_id in self.topic_ids.items()}
            return by_id.get(value, "an id")
        if name == "last_timestamp" and FIRST_MS + HALF_AN_HOUR_MS < value < FIRST_MS + 3 * HALF_AN_HOUR_MS:
            return "now"  # of a marker; what tests write has times around FIRST_MS
        if name in NAMED_BY_CLUSTER:
            if value in self.labels:
                return self.labels[value]
            return "given" if value not in (-1, 0, "", None) else value
        if name == "records" and value is not None:
            # Kafka cuts a fetch anywhere, we cut it between batches: no client reads a part of one.
            data = bytes(value)
            return [self.batch(data[at : at + size]) for at, size in batch_bounds(data)]
        if isinstance(value, memoryview | bytearray):
            return bytes(value)
        if isinstance(value, timedelta | datetime):
            return str(value)
        return value

    def batch(self, batch: bytes) -> Any:
        """Its bytes; where a producer wrote it whose id the cluster gave, without the id, the checksum over
        it and, in a marker, the time of day."""
        header = parse_header(batch)
        if header.producer_id not in self.labels and not header.is_control:
            return batch
        fields = {
            name: value
            for name, value in header._asdict().items()
            if name not in ("crc", "producer_id") and not (header.is_control and "timestamp" in name)
        }
        rows = [(record.key, record.value, record.headers) for record in iter_records(batch, 0, header)]
        return {**fields, "producer": self.labels.get(header.producer_id, header.producer_id), "rows": rows}


def in_order(items: list[Any], names: Sequence[str]) -> list[Any]:
    """Sorted by what the entries are about; the entries of one topic as one."""

    def about(item: Any) -> str:
        return str([item.get(name) for name in names]) if isinstance(item, dict) else ""

    if not all(isinstance(item, Mapping) for item in items):
        return sorted(items)
    merged: list[Any] = []
    for item in sorted(items, key=lambda item: about(item) + str(item)):
        held = next((name for name in HELD_BY_A_TOPIC if isinstance(item, dict) and name in item), None)
        if held and merged and about(merged[-1]) == about(item):
            both = merged[-1][held] + item[held]
            merged[-1] = {**merged[-1], held: in_order(both, UNORDERED[held].split())}
        else:
            merged.append(item)
    return merged


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    path: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.path}: ours {self.ours!r}, theirs {self.theirs!r}"


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    """Every leaf in which the two answers differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(our, their, f"{path}[{at}]")
    elif ours != theirs:
        yield Difference(path, ours, theirs)


class Twins:
    def __init__(self, ours: Side, theirs: Side) -> None:
        self.ours = ours
        self.theirs = theirs

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.theirs

    def both(self, api: Api, version: int, **fields: Any) -> tuple[Any, Any]:
        """The answer of each side, as plain values; a closed connection is an answer as well."""
        ours, theirs = (self.one(side, api, version, fields) for side in self.sides)
        return ours, theirs

    def same(self, api: Api, version: int, **fields: Any) -> Any:
        ours, theirs = self.both(api, version, **fields)
        found = list(differences(ours, theirs))
        assert not found, "\n".join([f"{api.name} v{version}", *map(str, found), str(fields)])
        return ours

    @staticmethod
    def one(side: Side, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
        try:
            return side.plain(side.client.call(api, version, **side.resolve(fields)))
        except (ConnectionError, TimeoutError) as error:
            side.reconnect()
            return "no answer" if isinstance(error, TimeoutError) else "closed"

    def topic(self, partitions: int = 1, prefix: str = "topic", **configs: str) -> str:
        name = unique(prefix)
        self.same(
            Api.CREATE_TOPICS,
            4,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [
                        {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
                    ],
                }
            ],
            timeout=10_000,
            validate_only=False,
        )
        for side in self.sides:
            side.learn(name, partitions)
        return name


@contextmanager
def started_twins(folder: Path, java: Java, *, settings: Mapping[str, str] | None = None) -> Iterator[Twins]:
    """A Tidewal and an Apache Kafka of the same settings, ready; ours must not have logged a stack trace.

    With TIDEWAL_TEST_BOOTSTRAP=kafka both are Apache Kafka: what differs then is no difference of ours.
    """
    alike = {**SETTINGS, **(settings or {})}
    with ExitStack() as stack:
        theirs = stack.enter_context(ApacheKafka(folder / "theirs", java, settings=alike)).start()
        ours: ApacheKafka | BrokerProcess
        if os.environ.get("TIDEWAL_TEST_BOOTSTRAP") == "kafka":
            ours = stack.enter_context(ApacheKafka(folder / "ours", java, settings=alike)).start()
        else:
            ours = stack.enter_context(BrokerProcess(folder / "ours", settings=alike))
        pair = Twins(*(Side(one.bootstrap, one.data) for one in (ours, theirs)))
        for side in pair.sides:
            stack.callback(side.close)
            ready(side)
        yield pair
        if isinstance(ours, BrokerProcess):
            assert "Traceback" not in ours.stderr, ours.stderr[-5000:]


def ready(side: Side) -> None:
    """Coordinators answer 14 to 16 until their topic is there, each of its partitions is led and loaded by
    itself; wait that out once.
    """
    groups = {
        partition_of(group, OFFSETS_PARTITIONS): group for group in map("warm-up-{}".format, range(100))
    }
    assert len(groups) == OFFSETS_PARTITIONS

    def coordinated(group: str) -> bool:
        found = side.client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group]).coordinators[
            0
        ]
        if found.error_code != 0:
            return False
        committed = side.client.call(Api.OFFSET_COMMIT, 8, **commit_fields(group, "none", offset=1))
        return bool(committed.topics[0].partitions[0].error_code not in (14, 15, 16))

    for group in groups.values():
        until(partial(coordinated, group), f"the coordinator of {group}")
    until(
        lambda: (
            side.client.call(
                Api.INIT_PRODUCER_ID, 2, transactional_id=None, transaction_timeout=60_000
            ).error_code
            == 0
        ),
        "producer ids",
    )
    ready_for_transactions(side)


def ready_for_transactions(side: Side) -> None:
    """As `ready`, for the coordinators of transactions."""
    ids = {partition_of(name, TRANSACTIONS_PARTITIONS): name for name in map("warm-up-{}".format, range(100))}
    assert len(ids) == TRANSACTIONS_PARTITIONS

    def coordinated(name: str) -> bool:
        keys = {"key_type": 1, "coordinator_keys": [name]}
        if side.client.call(Api.FIND_COORDINATOR, 4, **keys).coordinators[0].error_code != 0:
            return False
        given = side.client.call(Api.INIT_PRODUCER_ID, 2, transactional_id=name, transaction_timeout=60_000)
        return bool(given.error_code == 0)

    for name in ids.values():
        until(partial(coordinated, name), f"the coordinator of {name}")


# --- requests ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class TopicId:
    """The id a side gave to the topic of this name."""

    name: Any

    def __call__(self, side: Side) -> UUID:
        return side.topic_ids.get(side.resolve(self.name), UUID(int=1234))

    def __repr__(self) -> str:
        return f"<id of {self.name}>"


def records(*values: bytes, key: bytes | None = None, **options: Any) -> bytes:
    return bytes(build_batch([(key, value, (), FIRST_MS) for value in values], **options))


def produce_fields(name: str, batch: bytes | None, *, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [
            {
                "name": name,
                "topic_id": TopicId(name),
                "partition_data": [{"index": partition, "records": batch}],
            }
        ],
    }


def fetch_fields(name: str, offset: int, *, partition: int = 0, **options: Any) -> dict[str, Any]:
    return {
        "cluster_id": None,
        "replica_id": -1,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": options.pop("isolation_level", 0),
        "session_id": options.pop("session_id", 0),
        "session_epoch": options.pop("session_epoch", -1),
        "topics": [
            {
                "topic": name,
                "topic_id": TopicId(name),
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                        **options,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def list_offsets_fields(name: str, timestamp: int, **options: Any) -> dict[str, Any]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp, **options}
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [{"name": name, "partitions": [partition]}],
    }


def commit_fields(group: str, name: str, *, offset: int, **options: Any) -> dict[str, Any]:
    topic = group_requests.topic_row(name, TopicId(name), [group_requests.offset_row(0, offset, "noted")])
    return group_requests.commit_fields(group, [topic], **options)


def offset_fetch_fields(group: str, name: str) -> dict[str, Any]:
    topics = [{"name": name, "topic_id": TopicId(name), "partition_indexes": [0]}]
    return {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": True,
    }


def join_fields(group: str, member_id: Any = "", **options: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}],
        "reason": None,
        **options,
    }


def new_topic(name: str, /, **options: Any) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [{**topic, **options}], "timeout": 10_000, "validate_only": False}


def patched(batch: bytes, at: int, layout: str, value: int, *, seal: bool = True) -> bytes:
    """The batch with one header field set to nonsense; `seal` makes the CRC right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, at, value)
    if seal:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


SPOILED: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda batch: b"",
    "cut short": lambda batch: batch[:-3],
    "only a header": lambda batch: batch[:61],
    "less than a header": lambda batch: batch[:30],
    "two batches": lambda batch: batch + batch,
    "magic 0": lambda batch: patched(batch, 16, ">b", 0),
    "magic 1": lambda batch: patched(batch, 16, ">b", 1),
    "magic 3": lambda batch: patched(batch, 16, ">b", 3),
    "magic -1": lambda batch: patched(batch, 16, ">b", -1),
    "crc": lambda batch: patched(batch, 17, ">I", 1, seal=False),
    "length too small": lambda batch: patched(batch, 8, ">i", 10),
    "length negative": lambda batch: patched(batch, 8, ">i", -1),
    "length beyond": lambda batch: patched(batch, 8, ">i", len(batch)),
    "base offset 5": lambda batch: patched(batch, 0, ">q", 5),
    "no records": lambda batch: patched(batch, 57, ">i", 0),
    "negative count": lambda batch: patched(batch, 57, ">i", -1),
    "count above the last delta": lambda batch: patched(batch, 57, ">i", 2),
    "control": lambda batch: patched(batch, 21, ">h", 1 << 5),
    "transactional": lambda batch: patched(batch, 21, ">h", 1 << 4),
    "trailing bytes": lambda batch: batch + b"\x00\x01\x02",
}
