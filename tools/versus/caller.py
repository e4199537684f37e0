"""One blocking socket to one broker, one request at a time: what a measurement needs around its load.

Owns topics made and deleted, log ends, and frames read off a socket. Does not own the load itself, nor
retries beyond the wait for a new topic's leaders.
Invariant: every wait is bounded by the socket's deadline or by `until`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

from protocol import messages
from protocol.apis import Api
from tools.console import Failure

CLIENT_ID = "tidewal-bench"
DEADLINE_S = 30.0
READY_S_MAX = 60.0
POLL_S = 0.02
LATEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -4, -5
TOPIC, BROKER = 2, 4
"""Kinds of resources with a configuration."""
CREATE_TOPICS_VERSION, DELETE_TOPICS_VERSION, LIST_OFFSETS_VERSION, METADATA_VERSION = 5, 5, 6, 9
TIERED_OFFSETS_VERSION = 9
INCREMENTAL_ALTER_CONFIGS_VERSION = 1
DESCRIBE_QUORUM_VERSION = 0
PRODUCE_VERSION, FETCH_VERSION = 9, 12
METADATA_TOPIC = "__cluster_metadata"

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, timeout_s: float = READY_S_MAX) -> T:
    """Return the first truthy value of `condition`."""
    deadline_s = time.perf_counter() + timeout_s
    while not (value := condition()):
        if time.perf_counter() > deadline_s:
            raise Failure(f"no {what} within {timeout_s:.0f} s")
        threading.Event().wait(POLL_S)
    return value


def wall_ms() -> int:
    """A client's clock, outside every seam."""
    return time.time_ns() // 1_000_000  # noqa: TID251


class Caller:
    def __init__(self, port: int, *, deadline_s: float = DEADLINE_S) -> None:
        self.socket = open_socket(port, deadline_s=deadline_s)
        self._correlation_ids = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def call(self, api: Api, version: int, fields: dict[str, Any]) -> Any:
        self.socket.sendall(
            messages.encode_request(api, version, next(self._correlation_ids), CLIENT_ID, fields)
        )
        return messages.decode_response(api, version, read_frame(self.socket))[1]

    def metadata(self, *topics: str, all_topics: bool = False) -> Any:
        fields = {
            "topics": None if all_topics else [{"topic_id": None, "name": topic} for topic in topics],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        return self.call(Api.METADATA, METADATA_VERSION, fields)

    def create(
        self,
        topic: str,
        partitions: int = 1,
        configs: dict[str, str] | None = None,
        *,
        replicas: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make a topic and wait until every partition has a leader. `replicas` names each partition's, the
        leader first; without it there is one of each.
        """
        partitions = len(replicas) or partitions
        row = {
            "name": topic,
            "num_partitions": -1 if replicas else partitions,
            "replication_factor": -1 if replicas else 1,
            "assignments": [
                {"partition_index": partition, "broker_ids": list(node_ids)}
                for partition, node_ids in enumerate(replicas)
            ],
            "configs": [{"name": name, "value": value} for name, value in (configs or {}).items()],
        }
        answer = self.call(
            Api.CREATE_TOPICS,
            CREATE_TOPICS_VERSION,
            {"topics": [row], "timeout": int(DEADLINE_S * 1000), "validate_only": False},
        )
        if answer.topics[0].error_code:
            raise Failure(f"cannot create topic {topic}: error {int(answer.topics[0].error_code)}")
        until(lambda: self._has_leaders(topic, partitions), f"leaders of topic {topic}")

    def delete(self, topic: str) -> None:
        fields = {"topic_names": [topic], "timeout": int(DEADLINE_S * 1000)}
        self.call(Api.DELETE_TOPICS, DELETE_TOPICS_VERSION, fields)

    def configure(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Set some of the configuration of a topic or a broker."""
        rows = [{"name": each, "config_operation": 0, "value": value} for each, value in configs.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        answer = self.call(
            Api.INCREMENTAL_ALTER_CONFIGS,
            INCREMENTAL_ALTER_CONFIGS_VERSION,
            {"resources": [resource], "validate_only": False},
        )
        if answer.responses[0].error_code:
            raise Failure(f"cannot configure {name}: {answer.responses[0].error_message}")

    def log_end(self, topic: str, partition: int = 0) -> int:
        return self.offset(topic, partition, LATEST)

    def offset(self, topic: str, partition: int, which: int) -> int:
        """Return the offset of a special timestamp, -1 if there is none."""
        fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": partition, "current_leader_epoch": -1, "timestamp": which}
                    ],
                }
            ],
        }
        version = LIST_OFFSETS_VERSION if which == LATEST else TIERED_OFFSETS_VERSION
        answer = self.call(Api.LIST_OFFSETS, version, fields)
        return int(answer.topics[0].partitions[0].offset)

    def all_log_ends(self, topic: str) -> int:
        """Return the sum over the topic's partitions, each asked of its leader."""
        found = self.metadata(topic)
        ports = {broker.node_id: broker.port for broker in found.brokers}
        total = 0
        for row in found.topics[0].partitions:
            with Caller(ports[row.leader_id]) as leader:
                total += leader.log_end(topic, row.partition_index)
        return total

    def quorum_leader(self) -> int:
        """Return the controller that is active; -1 when this broker knows of none."""
        topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        answer = self.call(Api.DESCRIBE_QUORUM, DESCRIBE_QUORUM_VERSION, {"topics": topics})
        if answer.error_code or not answer.topics:
            return -1
        return int(answer.topics[0].partitions[0].leader_id)

    def produce(self, topic: str, batch: bytes | bytearray, *, acks: int) -> int:
        """Produce to partition 0; return the error code."""
        self.socket.sendall(produce_request(topic, 0, batch, acks=acks))
        answer = messages.decode_response(Api.PRODUCE, PRODUCE_VERSION, read_frame(self.socket))[1]
        return int(answer.responses[0].partition_responses[0].error_code)

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        found = self.metadata(topic).topics[0]
        return len(found.partitions) == partitions and all(row.leader_id >= 0 for row in found.partitions)


def open_socket(port: int, *, deadline_s: float = DEADLINE_S) -> socket.socket:
    """Open a blocking socket with the kernel's own time limits: Python's would cost a poll before every
    call."""
    opened = socket.create_connection(("127.0.0.1", port), timeout=deadline_s)
    opened.settimeout(None)
    limit = struct.pack("ll", int(deadline_s), 0)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def read_frame(source: socket.socket) -> bytes:
    """Read one response without its size."""
    return _exactly(source, int.from_bytes(_exactly(source, 4), "big"))


def _exactly(source: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = source.recv(size - len(got))
        if not piece:
            raise Failure("the broker closed a connection in the middle of a measurement")
        got += piece
    return bytes(got)


def answers(port: int) -> bool:
    """Return whether a broker behind this port would serve a client that connects now."""
    with contextlib.suppress(OSError, Failure), Caller(port) as caller:
        return bool(caller.metadata().brokers)
    return False


def produce_request(topic: str, partition: int, batch: bytes | bytearray, *, acks: int = 1) -> bytes:
    """Return the whole frame."""
    fields = {
        "transactional_id": None,
        "acks": acks,
        "timeout": int(DEADLINE_S * 1000),
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }
    return messages.encode_request(Api.PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID, fields)


def fetch_request(topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int) -> bytes:
    """Return the whole frame, outside any fetch session."""
    row = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": bytes_max,
    }
    fields = {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": bytes_max,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [row]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return messages.encode_request(Api.FETCH, FETCH_VERSION, 1, CLIENT_ID, fields)
