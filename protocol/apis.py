"""The APIs we serve, one row each: those of clients, and those only brokers ask of each other.

Owns: names, version ranges, which versions are flexible, what an API needs to be allowed and how it is
throttled.
Does not own: handlers (broker/handlers).
Invariant: the ranges of client APIs are those a live Kafka 4.3.1 answers
(data/kafka-4.3.1-api-versions.txt); an API without a row is not advertised, and nothing of it is half-there.
Peer APIs are never advertised.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class PeerApi(IntEnum):
    """Requests between brokers, on the inter-broker listener alone; Kafka's own messages."""

    ALTER_PARTITION = 56
    ENVELOPE = 58
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    ALLOCATE_PRODUCER_IDS = 67


class Resource(Enum):
    """What an ACL is about."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CONFIG = "config"
    """DESCRIBE_CONFIGS on the topic or the cluster, after the resource asked for."""
    NONE = "none"


class Operation(Enum):
    """What an ACL allows, by Kafka's names."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    NONE = "NONE"


class Throttle(Enum):
    """Which quota a request is charged to; all of them count as request time too."""

    PRODUCE = "produce"
    FETCH = "fetch"
    MUTATION = "controller mutation"
    REQUEST = "request"


NEVER = 1 << 15
"""Above every int16 version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRow:
    """`min_version` to `max_version` is what ApiVersions lists; below `served_from` the connection is
    closed.
    """

    api: Api | PeerApi
    name: str
    kio_name: str
    min_version: int
    max_version: int
    served_from: int
    flexible_from: int
    resource: Resource
    operation: Operation
    throttle: Throttle


# key: (flexible from, ACL resource, ACL operation, quota)
_ROWS: dict[Api, tuple[int, Resource, Operation, Throttle]] = {
    Api.PRODUCE: (9, Resource.TOPIC, Operation.WRITE, Throttle.PRODUCE),
    Api.FETCH: (12, Resource.TOPIC, Operation.READ, Throttle.FETCH),
    Api.LIST_OFFSETS: (6, Resource.TOPIC, Operation.DESCRIBE, Throttle.REQUEST),
    Api.METADATA: (9, Resource.TOPIC, Operation.DESCRIBE, Throttle.REQUEST),
    Api.OFFSET_COMMIT: (8, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.OFFSET_FETCH: (6, Resource.GROUP, Operation.DESCRIBE, Throttle.REQUEST),
    Api.FIND_COORDINATOR: (3, Resource.GROUP, Operation.DESCRIBE, Throttle.REQUEST),
    Api.JOIN_GROUP: (6, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.HEARTBEAT: (4, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.LEAVE_GROUP: (4, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.SYNC_GROUP: (4, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.DESCRIBE_GROUPS: (5, Resource.GROUP, Operation.DESCRIBE, Throttle.REQUEST),
    Api.LIST_GROUPS: (3, Resource.GROUP, Operation.DESCRIBE, Throttle.REQUEST),
    Api.API_VERSIONS: (3, Resource.NONE, Operation.NONE, Throttle.REQUEST),
    Api.CREATE_TOPICS: (5, Resource.TOPIC, Operation.CREATE, Throttle.MUTATION),
    Api.DELETE_TOPICS: (4, Resource.TOPIC, Operation.DELETE, Throttle.MUTATION),
    Api.DELETE_RECORDS: (2, Resource.TOPIC, Operation.DELETE, Throttle.REQUEST),
    Api.INIT_PRODUCER_ID: (2, Resource.CLUSTER, Operation.IDEMPOTENT_WRITE, Throttle.REQUEST),
    Api.OFFSET_FOR_LEADER_EPOCH: (4, Resource.TOPIC, Operation.DESCRIBE, Throttle.REQUEST),
    Api.ADD_PARTITIONS_TO_TXN: (3, Resource.TRANSACTIONAL_ID, Operation.WRITE, Throttle.REQUEST),
    Api.ADD_OFFSETS_TO_TXN: (3, Resource.TRANSACTIONAL_ID, Operation.WRITE, Throttle.REQUEST),
    Api.END_TXN: (3, Resource.TRANSACTIONAL_ID, Operation.WRITE, Throttle.REQUEST),
    Api.WRITE_TXN_MARKERS: (1, Resource.CLUSTER, Operation.CLUSTER_ACTION, Throttle.REQUEST),
    Api.TXN_OFFSET_COMMIT: (3, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.DESCRIBE_ACLS: (2, Resource.CLUSTER, Operation.DESCRIBE, Throttle.REQUEST),
    Api.CREATE_ACLS: (2, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.DELETE_ACLS: (2, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.DESCRIBE_CONFIGS: (4, Resource.CONFIG, Operation.DESCRIBE_CONFIGS, Throttle.REQUEST),
    Api.ALTER_CONFIGS: (2, Resource.CONFIG, Operation.ALTER_CONFIGS, Throttle.REQUEST),
    Api.ALTER_REPLICA_LOG_DIRS: (2, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.DESCRIBE_LOG_DIRS: (2, Resource.CLUSTER, Operation.DESCRIBE, Throttle.REQUEST),
    Api.CREATE_PARTITIONS: (2, Resource.TOPIC, Operation.ALTER, Throttle.MUTATION),
    Api.DELETE_GROUPS: (2, Resource.GROUP, Operation.DELETE, Throttle.REQUEST),
    Api.ELECT_LEADERS: (2, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.INCREMENTAL_ALTER_CONFIGS: (1, Resource.CONFIG, Operation.ALTER_CONFIGS, Throttle.REQUEST),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, Resource.CLUSTER, Operation.DESCRIBE, Throttle.REQUEST),
    Api.OFFSET_DELETE: (NEVER, Resource.GROUP, Operation.DELETE, Throttle.REQUEST),
    Api.DESCRIBE_QUORUM: (0, Resource.CLUSTER, Operation.DESCRIBE, Throttle.REQUEST),
    Api.UPDATE_FEATURES: (0, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.DESCRIBE_CLUSTER: (0, Resource.CLUSTER, Operation.DESCRIBE, Throttle.REQUEST),
    Api.DESCRIBE_PRODUCERS: (0, Resource.TOPIC, Operation.READ, Throttle.REQUEST),
    Api.UNREGISTER_BROKER: (0, Resource.CLUSTER, Operation.ALTER, Throttle.REQUEST),
    Api.DESCRIBE_TRANSACTIONS: (0, Resource.TRANSACTIONAL_ID, Operation.DESCRIBE, Throttle.REQUEST),
    Api.LIST_TRANSACTIONS: (0, Resource.TRANSACTIONAL_ID, Operation.DESCRIBE, Throttle.REQUEST),
    Api.CONSUMER_GROUP_HEARTBEAT: (0, Resource.GROUP, Operation.READ, Throttle.REQUEST),
    Api.CONSUMER_GROUP_DESCRIBE: (0, Resource.GROUP, Operation.DESCRIBE, Throttle.REQUEST),
    Api.LIST_CONFIG_RESOURCES: (0, Resource.CLUSTER, Operation.DESCRIBE_CONFIGS, Throttle.REQUEST),
    Api.DESCRIBE_TOPIC_PARTITIONS: (0, Resource.TOPIC, Operation.DESCRIBE, Throttle.REQUEST),
}

# key: (name, oldest and newest version, flexible from)
_PEER_ROWS: dict[PeerApi, tuple[str, int, int, int]] = {
    PeerApi.ALTER_PARTITION: ("AlterPartition", 3, 3, 0),
    PeerApi.ENVELOPE: ("Envelope", 0, 0, 0),
    PeerApi.BROKER_REGISTRATION: ("BrokerRegistration", 4, 4, 0),
    PeerApi.BROKER_HEARTBEAT: ("BrokerHeartbeat", 1, 1, 0),
    PeerApi.ALLOCATE_PRODUCER_IDS: ("AllocateProducerIds", 0, 0, 0),
}

# Kafka lists Produce 0–2 only because librdkafka before 2.8 concludes from a range that starts at 3 that
# the broker cannot take compressed batches (KAFKA-18659); it closes the connection when one is used.
_SERVED_FROM = {Api.PRODUCE: 3}

_RANGE = re.compile(r"^(\w+)\((\d+)\): (\d+)(?: to (\d+))?$", re.MULTILINE)


def _load() -> Mapping[int, ApiRow]:
    data = pkgutil.get_data(__package__, "data/kafka-4.3.1-api-versions.txt")
    assert data is not None
    served = {}
    for name, key, low, high in _RANGE.findall(data.decode()):
        if int(key) not in _ROWS:
            continue
        api = Api(int(key))
        flexible_from, resource, operation, throttle = _ROWS[api]
        served[int(api)] = ApiRow(
            api=api,
            name=name,
            kio_name=api.name.lower(),
            min_version=int(low),
            max_version=int(high or low),
            served_from=max(int(low), _SERVED_FROM.get(api, 0)),
            flexible_from=flexible_from,
            resource=resource,
            operation=operation,
            throttle=throttle,
        )
    assert served.keys() == _ROWS.keys(), "an API we serve is missing from Kafka's range table"
    return MappingProxyType(served)


def _peer_row(api: PeerApi) -> ApiRow:
    name, low, high, flexible_from = _PEER_ROWS[api]
    return ApiRow(
        api=api,
        name=name,
        kio_name=api.name.lower(),
        min_version=low,
        max_version=high,
        served_from=low,
        flexible_from=flexible_from,
        resource=Resource.CLUSTER,
        operation=Operation.CLUSTER_ACTION,
        throttle=Throttle.REQUEST,
    )


SERVED: Mapping[int, ApiRow] = _load()
"""What clients may ask: the list that ApiVersions answers."""

PEER: Mapping[int, ApiRow] = MappingProxyType({int(api): _peer_row(api) for api in _PEER_ROWS})

KNOWN: Mapping[int, ApiRow] = MappingProxyType({**SERVED, **PEER})


def is_supported(api_key: int, version: int) -> bool:
    """Whether a request of this version is read and answered (Produce 0 to 2 is listed and not served)."""
    row = KNOWN.get(api_key)
    return row is not None and row.served_from <= version <= row.max_version


def request_header_version(api_key: int, version: int) -> int:
    return 2 if version >= KNOWN[api_key].flexible_from else 1


def response_header_version(api_key: int, version: int) -> int:
    """ApiVersions always has header 0, so that a client can read the answer to a version the broker lacks."""
    if api_key == Api.API_VERSIONS:
        return 0
    return 1 if version >= KNOWN[api_key].flexible_from else 0
