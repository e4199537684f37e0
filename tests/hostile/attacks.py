"""What one client can do to a broker, each way under a name.

Owns: what an attack prepares on its broker, what it sends, and what it tells of its outcome. Does not own the
measurement (ground), nor the requests of every other API and version (shapes).
Invariant: what an attack prepares is what any client could have done in peace before; all that it opens is on
the stack it is given, and is closed by whoever measures.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from struct import pack
from typing import Any, Final

from protocol import messages
from protocol.apis import Api
from protocol.compression import Codec
from protocol.records import build_batch, crc_of
from tests.clients.blocking import PRODUCE_VERSION, produce_fields
from tests.compat.samples import FIRST_MS
from tests.hostile.ground import ELSEWHERE, Ground, Hostile, hostile, pause
from tests.hostile.memory import cpu_s
from tests.hostile.shapes import Kind, Known, Shape, request

Run = Callable[[ExitStack], str]
"""What is measured; tells what became of it. What it tells begins with `WRONG` where that must not be."""

WRONG: Final = "WRONG: "
_HOLD_S: Final = 20.0
"""How long an attack that lasts is kept up."""
_MB: Final = 1_000_000
_SESSION_MS: Final = 6000
"""The shortest session that brokers allow."""
_INVALID_RECORD: Final = 87


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    what: str
    make: Callable[[Ground], Run]
    """Prepare it on a broker, unmeasured."""
    settings: Mapping[str, str] = field(default_factory=dict)
    has_large_probe: bool = False


# --- single requests --------------------------------------------------------------------------------------


def shaped(
    api: Api,
    version: int,
    path: str,
    rows: int,
    *,
    kind: Kind = Kind.DISTINCT,
    times: int = 1,
    fields: Mapping[str, Any] | None = None,
) -> Callable[[Ground], Run]:
    """Return an attack of one generated request, sent `times` one after the other on one connection."""

    def make(ground: Ground) -> Run:
        known = ground.known
        if fields:
            known = Known(
                topic_id=known.topic_id, log_dir=known.log_dir, batch=known.batch, fields=dict(fields)
            )
        shape = Shape(api=api, version=version, path=tuple(path.split(".")), kind=kind)
        frame, _ = request(shape, known, rows_max=rows)

        def run(stack: ExitStack) -> str:
            connection = hostile(ground, stack)
            told = f"{len(frame) / _MB:.1f} MB: "
            for _ in range(times):
                said = connection.ask(frame)
                if "answered" not in said:
                    return told + said
            return told + said

        return run

    return make


def requested(api: Api, version: int, **fields: Any) -> bytes:
    return messages.encode_request(api, version, 1, "hostile", fields)


# --- silence ----------------------------------------------------------------------------------------------


def silent_frames(ground: Ground) -> Run:
    frame, _ = request(
        Shape(api=Api.PRODUCE, version=9, path=("topic_data", "partition_data", "records"), kind=Kind.BLOB),
        ground.known,
        rows_max=1,
        bytes_max=99 * _MB,
    )
    part = memoryview(frame)[: 90 * _MB]

    def run(stack: ExitStack) -> str:
        connections = [hostile(ground, stack) for _ in range(6)]
        for connection in connections:
            connection.socket.settimeout(5.0)
        taken = sum(connection.send(part) for connection in connections)
        pause(_HOLD_S)
        closed = sum(is_closed(connection) for connection in connections)
        return f"{taken} of 6 taken, {closed} closed"

    return run


def many_silent_frames(ground: Ground) -> Run:
    """From another address than the honest clients', and with far more than there is memory for."""
    part = memoryview(pack(">ihhih", 99 * _MB, Api.PRODUCE, 9, 1, 0) + bytes(9 * _MB))

    def run(stack: ExitStack) -> str:
        connections = [stack.enter_context(Hostile(ground.dial(source=ELSEWHERE))) for _ in range(60)]
        for connection in connections:
            connection.socket.setblocking(False)
            connection.send(part)
        pause(_HOLD_S)
        return f"{sum(is_closed(connection) for connection in connections)} of {len(connections)} closed"

    return run


def is_closed(connection: Hostile) -> bool:
    connection.socket.setblocking(False)
    try:
        return connection.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def trickling(ground: Ground) -> Run:
    """Three hundred connections that send a byte at a time."""
    frame = requested(Api.DESCRIBE_GROUPS, 5, groups=["g" * 1000] * 20, include_authorized_operations=False)

    def run(stack: ExitStack) -> str:
        connections = [hostile(ground, stack) for _ in range(300)]
        until_s = time.monotonic() + _HOLD_S
        sent = 0
        for at in range(len(frame)):
            for connection in connections:
                connection.send(frame[at : at + 1])
            sent += 1
            if time.monotonic() > until_s:
                break
            pause(0.02)
        return f"{sent} bytes on each"

    return run


# --- repetition -------------------------------------------------------------------------------------------


def repeated_group(ground: Ground) -> Run:
    ground.make_topic("offsets", partitions=1000)
    commits = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": "m" * 200}
        for index in range(1000)
    ]
    with ground.client() as client:
        topics = [{"name": "offsets", "partitions": commits}]
        answer = client.call(Api.OFFSET_COMMIT, 8, group_id="known", member_id="", topics=topics)
        assert not any(row.error_code for row in answer.topics[0].partitions)
    group = {"group_id": "known", "topics": None}
    frame = requested(Api.OFFSET_FETCH, 8, groups=[group] * 300, require_stable=False)
    return lambda stack: f"{len(frame)} bytes: " + hostile(ground, stack).ask(frame)


def repeated_small_group(ground: Ground) -> Run:
    group = {"group_id": "known", "topics": None}
    frame = requested(Api.OFFSET_FETCH, 8, groups=[group] * 262_143, require_stable=False)
    return lambda stack: f"{len(frame) / _MB:.1f} MB: " + hostile(ground, stack).ask(frame)


def producer_batches(number: int, *, first_id: int = 1_000_000) -> Iterator[bytes]:
    for producer_id in range(first_id, first_id + number):
        yield bytes(
            build_batch(
                [(None, b"v", (), FIRST_MS)], producer_id=producer_id, producer_epoch=0, base_sequence=0
            )
        )


def produced(topic: str, batch: bytes) -> bytes:
    return requested(Api.PRODUCE, PRODUCE_VERSION, **produce_fields(topic, 0, batch, acks=1))


def pipelined(connection: Hostile, frames: list[bytes], *, at_once: int = 100) -> str:
    """Send them, `at_once` at a time, and read as many answers."""
    done = 0
    for start in range(0, len(frames), at_once):
        part = frames[start : start + at_once]
        if not connection.send(b"".join(part)):
            return f"closed after {done}"
        for _ in part:
            if connection.answer_bytes() is None:
                return f"closed after {done}"
            done += 1
    return f"{done} answered"


def repeated_partition(ground: Ground) -> Run:
    ground.make_topic("producers")
    with ExitStack() as stack:
        frames = [produced("producers", batch) for batch in producer_batches(2000)]
        assert pipelined(hostile(ground, stack), frames) == "2000 answered"
    frame = requested(
        Api.DESCRIBE_PRODUCERS, 0, topics=[{"name": "producers", "partition_indexes": [0] * 500}]
    )
    return lambda stack: f"{len(frame)} bytes: " + hostile(ground, stack).ask(frame)


def zeros_by_time(ground: Ground) -> Run:
    """ListOffsets by time over 500 batches which say that they hold what they do not, each 12 MB of zeros."""
    partitions = 500
    ground.make_topic("zeros", partitions=partitions)
    batch = bytes(build_batch([(None, bytes(12 * _MB), (), FIRST_MS)], codec=Codec.ZSTD))
    with ground.client() as client:
        for index in range(partitions):
            assert client.produce("zeros", index, batch, acks=1).error_code == 0
    rows = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": FIRST_MS}
        for index in range(partitions)
    ]
    frame = requested(
        Api.LIST_OFFSETS,
        8,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": "zeros", "partitions": rows}],
    )
    return lambda stack: f"batches of {len(batch)} bytes: " + hostile(ground, stack).ask(frame)


# --- what stays -------------------------------------------------------------------------------------------


def long_lists_of_protocols(ground: Ground) -> Run:
    """Six members of one group, then honest ones which each join it."""
    shape = Shape(api=Api.JOIN_GROUP, version=3, path=("protocols",), kind=Kind.DISTINCT)
    fields = {"group_id": "crowded", "metadata": b"", "session_timeout": 1_800_000}
    frame, _ = request(shape, Known(fields=fields), rows_max=200_001)
    honest = requested(
        Api.JOIN_GROUP,
        3,
        group_id="crowded",
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )

    def run(stack: ExitStack) -> str:
        members = [hostile(ground, stack) for _ in range(6)]
        taken = sum(member.send(frame) for member in members)
        for _ in range(20):
            hostile(ground, stack).send(honest)
        pause(5.0)
        closed = sum(is_closed(member) for member in members)
        return f"{len(frame) / _MB:.1f} MB each: {taken} of 6 taken, {closed} closed"

    return run


def refused_transactions(ground: Ground) -> Run:
    batch = bytes(
        build_batch(
            [(None, bytes(60_000), (), FIRST_MS)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    fields = {**produce_fields("known", 0, batch, acks=-1), "transactional_id": "nobody"}
    frame = requested(Api.PRODUCE, 11, **fields)

    def run(stack: ExitStack) -> str:
        connection = hostile(ground, stack)
        until_s, refused = time.monotonic() + _HOLD_S, 0
        while time.monotonic() < until_s:
            if "answered" not in (said := connection.ask(frame)):
                return said
            refused += 1
        return f"{refused} refused"

    return run


def forgotten_sessions(ground: Ground) -> Run:
    shape = Shape(api=Api.FETCH, version=12, path=("topics", "partitions"), kind=Kind.DISTINCT)
    frame, _ = request(
        shape, Known(fields={"session_epoch": 0, "max_wait": 0, "min_bytes": 0}), rows_max=250_001
    )

    def run(stack: ExitStack) -> str:
        said = [hostile(ground, stack).ask(frame) for _ in range(4)]
        return f"{len(frame) / _MB:.1f} MB, 4 times: " + ", ".join(sorted(set(said)))

    return run


def large_metadata(ground: Ground) -> Run:
    def frame(number: int) -> bytes:
        return requested(
            Api.JOIN_GROUP,
            3,
            group_id=f"large-{number}",
            session_timeout=1_800_000,
            rebalance_timeout=1_800_000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": bytes(60 * _MB)}],
        )

    def run(stack: ExitStack) -> str:
        said = []
        for number in range(3):
            with Hostile(ground.dial()) as connection:
                said.append(connection.ask(frame(number)))
        return ", ".join(sorted(set(said)))

    return run


def many_producers(ground: Ground) -> Run:
    ground.make_topic("producers", config={"segment.bytes": "1048576"})
    frames = [produced("producers", batch) for batch in producer_batches(200_000)]
    return lambda stack: pipelined(hostile(ground, stack), frames)


def many_groups(ground: Ground) -> Run:
    frames = [
        requested(
            Api.JOIN_GROUP,
            3,
            group_id=f"group-{number}",
            session_timeout=_SESSION_MS,
            rebalance_timeout=_SESSION_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": bytes(100)}],
        )
        for number in range(20_000)
    ]
    return lambda stack: pipelined(hostile(ground, stack), frames)


def lying_counts(ground: Ground) -> Run:
    """Batches without a record which say that they hold 2**31-1, and such as say one too many."""
    topics = ["lies", "one-too-many"]
    for topic in topics:
        ground.make_topic(topic)
    empty = recounted(bytes(build_batch([(None, b"v", (), FIRST_MS)]))[:61], 2**31 - 1)
    more = recounted(bytes(build_batch([(None, b"v", (), FIRST_MS)])), 2)

    def run(stack: ExitStack) -> str:
        codes: dict[str, set[int]] = {}
        with ground.client() as client:
            for topic, batch in zip(topics, (empty, more), strict=True):
                codes[topic] = {int(client.produce(topic, 0, batch).error_code) for _ in range(50)}
        is_refused = all(each == {_INVALID_RECORD} for each in codes.values())
        told = f"errors {sorted(codes[topics[0]])}, {sorted(codes[topics[1]])}"
        return told if is_refused else WRONG + told

    return run


def recounted(batch: bytes, records: int) -> bytes:
    """Return it with another count of records, and all else as it should be."""
    changed = bytearray(batch)
    changed[8:12] = pack(">i", len(batch) - 12)
    changed[23:27] = pack(">i", records - 1)
    changed[57:61] = pack(">i", records)
    changed[17:21] = pack(">I", crc_of(changed, 0, len(changed)))
    return bytes(changed)


# --- what is not read, and what never ends -----------------------------------------------------------------


def unread(ground: Ground, frame: bytes, *, connections: int, path: str = "") -> Run:
    """Pipeline a request on many connections and read nothing, for as long as the attack is kept up."""

    def run(stack: ExitStack) -> str:
        host, _, port = (path or ground.bootstrap).rpartition(":")
        opened = []
        for _ in range(connections):
            one = socket.create_connection((host, int(port)), timeout=10)
            opened.append(stack.enter_context(one))
            one.setblocking(False)
        data = frame * max(1, 65536 // len(frame))
        began_s, busy_s = time.monotonic(), cpu_s(ground.pid)
        selector = stack.enter_context(DefaultSelector())
        at = dict.fromkeys(opened, 0)
        for one in opened:
            selector.register(one, EVENT_WRITE)
        while (left_s := began_s + _HOLD_S - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    at[one] = (at[one] + one.send(data[at[one] :])) % len(data)
                except OSError:
                    selector.unregister(one)
        closed = connections - len(selector.get_map())
        return f"{closed} closed, loop busy {(cpu_s(ground.pid) - busy_s) / _HOLD_S:.0%}"

    return run


def unread_configs(ground: Ground) -> Run:
    shape = Shape(api=Api.DESCRIBE_CONFIGS, version=4, path=("resources",), kind=Kind.REPEATED)
    frame = bytes(request(shape, ground.known, rows_max=16_000)[0])
    return unread(ground, frame, connections=20)


def unread_fetches(ground: Ground) -> Run:
    with ground.client() as client:
        for _ in range(8):
            batch = bytes(build_batch([(None, bytes(900_000), (), FIRST_MS)]))
            assert client.produce("known", 0, batch).error_code == 0
    frame = fetch_frame("known", range(1), offset=0, max_wait=0, max_bytes=8 << 20)
    return unread(ground, frame, connections=50)


def unread_metrics(ground: Ground) -> Run:
    frame = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"
    return unread(ground, frame, connections=20, path=ground.admin)


def fetch_frame(topic: str, partitions: range, *, offset: int, max_wait: int, max_bytes: int) -> bytes:
    rows = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": max_bytes} for index in partitions
    ]
    return requested(
        Api.FETCH,
        12,
        replica_id=-1,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": rows}],
        forgotten_topics_data=[],
        rack_id="",
    )


def long_polls(ground: Ground) -> Run:
    """A hundred clients, each of which polls for two thousand partitions in which nothing happens."""
    partitions = 2000
    ground.make_topic("quiet", partitions=partitions)
    with ground.client() as client:
        empty = bytes(build_batch([(None, b"v", (), FIRST_MS)]))
        for index in range(partitions - 1):
            assert client.produce("quiet", index, empty, acks=1).error_code == 0
    frame = fetch_frame("quiet", range(partitions), offset=1, max_wait=500, max_bytes=1 << 20)

    def run(stack: ExitStack) -> str:
        selector = stack.enter_context(DefaultSelector())
        for _ in range(100):
            connection = hostile(ground, stack)
            connection.send(frame)
            selector.register(connection.socket, EVENT_READ, connection)
        began_s, busy_s, answers = time.monotonic(), cpu_s(ground.pid), 0
        while (left_s := began_s + _HOLD_S - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                key.data.answer_bytes()
                key.data.send(frame)
                answers += 1
        return f"{answers} polls, loop busy {(cpu_s(ground.pid) - busy_s) / _HOLD_S:.0%}"

    return run


def come_and_go(ground: Ground) -> Run:
    """Connections that are made, begin a request, and are closed."""

    def run(stack: ExitStack) -> str:
        until_s, made = time.monotonic() + _HOLD_S / 2, 0
        while time.monotonic() < until_s:
            with ground.dial() as one:
                one.sendall(b"\0\0")
            made += 1
        return f"{made} connections"

    return run


# --- the table ---------------------------------------------------------------------------------------------

ATTACKS: Final = (
    Attack(
        name="silent-frames",
        what="six connections send 90 of 99 announced MB and fall silent",
        make=silent_frames,
        has_large_probe=True,
    ),
    Attack(
        name="silent-frames-many",
        what="60 connections announce 99 MB, send what is taken at once, and fall silent",
        make=many_silent_frames,
        has_large_probe=True,
    ),
    Attack(
        name="describe-groups",
        what="DescribeGroups with 2 M names",
        make=shaped(Api.DESCRIBE_GROUPS, 5, "groups", 2_000_000),
    ),
    Attack(
        name="delete-groups",
        what="DeleteGroups with 2 M names",
        make=shaped(Api.DELETE_GROUPS, 2, "groups_names", 2_000_000),
    ),
    Attack(
        name="find-coordinator",
        what="FindCoordinator with 2 M names",
        make=shaped(Api.FIND_COORDINATOR, 4, "coordinator_keys", 2_000_000),
    ),
    Attack(
        name="delete-topics",
        what="DeleteTopics with 2 M names",
        make=shaped(Api.DELETE_TOPICS, 4, "topic_names", 2_000_000),
    ),
    Attack(
        name="offset-fetch",
        what="OffsetFetch with 2 M indexes",
        make=shaped(Api.OFFSET_FETCH, 8, "groups.topics.partition_indexes", 2_000_000),
    ),
    Attack(
        name="describe-producers",
        what="DescribeProducers with 2 M indexes",
        make=shaped(Api.DESCRIBE_PRODUCERS, 0, "topics.partition_indexes", 2_000_000),
    ),
    Attack(
        name="alter-replica-log-dirs",
        what="AlterReplicaLogDirs with 2 M indexes",
        make=shaped(Api.ALTER_REPLICA_LOG_DIRS, 2, "dirs.topics.partitions", 2_000_000),
    ),
    Attack(
        name="elect-leaders",
        what="ElectLeaders with 2 M indexes",
        make=shaped(Api.ELECT_LEADERS, 2, "topic_partitions.partitions", 2_000_000),
    ),
    Attack(
        name="offset-commit",
        what="OffsetCommit with 260,000 rows",
        make=shaped(Api.OFFSET_COMMIT, 8, "topics.partitions", 260_000),
    ),
    Attack(
        name="describe-configs",
        what="DescribeConfigs with 260,000 rows",
        make=shaped(Api.DESCRIBE_CONFIGS, 4, "resources", 260_000),
    ),
    Attack(
        name="create-topics",
        what="CreateTopics with 260,000 rows",
        make=shaped(Api.CREATE_TOPICS, 7, "topics", 260_000),
    ),
    Attack(
        name="create-partitions",
        what="CreatePartitions with 260,000 rows",
        make=shaped(Api.CREATE_PARTITIONS, 3, "topics", 260_000),
    ),
    Attack(
        name="metadata",
        what="Metadata with 260,000 rows",
        make=shaped(Api.METADATA, 12, "topics", 260_000),
    ),
    Attack(
        name="list-offsets",
        what="ListOffsets with 260,000 rows",
        make=shaped(Api.LIST_OFFSETS, 8, "topics.partitions", 260_000),
    ),
    Attack(
        name="fetch",
        what="Fetch with 260,000 rows, without a session",
        make=shaped(Api.FETCH, 12, "topics.partitions", 260_000, fields={"session_epoch": -1}),
    ),
    Attack(
        name="offset-fetch-repeated",
        what="OffsetFetch that names one group 300 times",
        make=repeated_group,
    ),
    Attack(
        name="offset-fetch-repeated-most",
        what="OffsetFetch that names one group 262,143 times",
        make=repeated_small_group,
    ),
    Attack(
        name="describe-producers-repeated",
        what="DescribeProducers with a partition of 2,000 producers named 500 times",
        make=repeated_partition,
    ),
    Attack(
        name="zeros-by-time",
        what="500 stored zstd batches of 12 MB zeros each, then one ListOffsets by time over them",
        make=zeros_by_time,
    ),
    Attack(
        name="protocols",
        what="six members that list 200,000 protocols each, then twenty honest ones",
        make=long_lists_of_protocols,
    ),
    Attack(
        name="refused-transactions",
        what="transactional Produce v11 refused again and again, for 20 s",
        make=refused_transactions,
    ),
    Attack(
        name="delete-topics-again",
        what="DeleteTopics of 250,000 unknown names, six times",
        make=shaped(Api.DELETE_TOPICS, 4, "topic_names", 250_000, times=6),
    ),
    Attack(
        name="long-names",
        what="CreateTopics with 12,700 names of 8 KB, twice",
        make=shaped(Api.CREATE_TOPICS, 7, "topics", 100_000, kind=Kind.LONGEST, times=2),
    ),
    Attack(
        name="forgotten-sessions",
        what="full Fetch of 250,000 partitions that do not exist, in four sessions",
        make=forgotten_sessions,
    ),
    Attack(
        name="group-metadata",
        what="JoinGroup with 60 MB of metadata, then close, three times",
        make=large_metadata,
    ),
    Attack(
        name="unread-configs",
        what="DescribeConfigs of 8,000 names on 20 connections that never read",
        make=unread_configs,
    ),
    Attack(
        name="producer-ids",
        what="200,000 producer ids on one partition, segments of 1 MB",
        make=many_producers,
    ),
    Attack(
        name="lying-counts",
        what="batches whose count of records is not what they hold",
        make=lying_counts,
    ),
    Attack(
        name="long-polls",
        what="100 long polls over 2,000 partitions each",
        make=long_polls,
    ),
    Attack(
        name="unread-metrics",
        what="20 clients that pipeline /metrics and do not read",
        make=unread_metrics,
    ),
    Attack(
        name="unread-fetches",
        what="50 clients that pipeline Fetches of 8 MB and do not read",
        make=unread_fetches,
    ),
    Attack(
        name="many-groups",
        what="20,000 groups of one member each",
        make=many_groups,
        settings={"offsets.retention.check.interval.ms": "1000"},
    ),
    Attack(
        name="trickling",
        what="300 connections that send a byte at a time",
        make=trickling,
    ),
    Attack(
        name="come-and-go",
        what="connections that begin a request and close, as fast as they can",
        make=come_and_go,
    ),
)
