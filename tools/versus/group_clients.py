"""What coordinators are asked to do, in a process of its own on the client's core: `python -m
tools.versus.group_clients SPEC`, JSON both ways.

Owns the members of groups of both protocols, transactional producers and committers, on plain sockets with
requests that are laid out once; an answer is read at fixed places. Does not own the brokers, nor what the
figures are compared with.
Invariant: a rebalance counts once everybody holds its share, a transaction once its end was answered without
an error, a commit once every one of its answers was; the log's end proves the transactions.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import select
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from protocol import messages, records
from protocol.apis import Api
from protocol.checksum import crc32c
from tools.console import Failure, complain, emit_json
from tools.versus import brokers
from tools.versus.caller import CLIENT_ID, Caller, open_socket, read_frame, until, wall_ms

RUN_S_MAX = 90.0
POLL_S_MAX = 20.0
RECEIVE_BYTES = 1 << 18
MEMBERS, PARTITIONS = 50, 100
RECORD_BYTES = 100
SESSION_MS, REBALANCE_MS = 45_000, 60_000
PRODUCE_VERSION, END_TXN_VERSION, INIT_VERSION = 12, 5, 4
COMMIT_VERSION, JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 8, 5, 3, 3, 3
CONSUMER_VERSION, FIND_VERSION = 1, 4
GROUP_KEY, TRANSACTION_KEY = 0, 1
CRC_AT, CRC_FROM, PRODUCER_AT = 17, 21, 43
NOT_LEADER, NOT_ENOUGH_REPLICAS, REBALANCING, CONCURRENT, MEMBER_ID_REQUIRED = 6, 19, 27, 51, 79
"""Error codes that a client answers by going on. Kafka says the first of a new partition, the second to
a producer whose last transaction is not over yet."""
UNKNOWN_MEMBER = 25
"""What a coordinator says that has loaded its groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """`kind`: transactions, commits, classic or consumer. `clients` is how many producers, committers or
    members; a run of rebalances ends after `rebalances`, the others after `seconds`. Committers are of
    `groups`, and each commits a partition of its own.
    """

    kind: str
    clients: int
    seconds: float = 3.0
    rebalances: int = 15
    groups: int = 1


Figures = dict[str, float]


def run(load: GroupLoad, broker: brokers.Broker, topic: str, core: int | None) -> Figures:
    """Run in a process of its own, which is killed when it takes too long."""
    spec = {
        "load": dataclasses.asdict(load),
        "port": broker.port,
        "pid": broker.pid,
        "topic": topic,
        "core": core,
    }
    command = [sys.executable, "-m", "tools.versus.group_clients", json.dumps(spec)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            cwd=brokers.ROOT,
            env={**os.environ, "PYTHONPATH": str(brokers.ROOT)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{broker.name}: {load.kind} took more than {RUN_S_MAX:.0f} s") from None
    if done.returncode != 0:
        raise Failure(f"{broker.name}: {load.kind}: {done.stderr.strip().rpartition(chr(10))[2]}")
    found: Figures = json.loads(done.stdout)
    return found


class Line:
    """One connection with at most one request under way, read by whoever polls."""

    def __init__(self, port: int) -> None:
        self.socket = open_socket(port)
        self.file = self.socket.fileno()
        self._got = b""

    def send(self, request: bytes | bytearray) -> None:
        self.socket.sendall(request)

    def take(self) -> bytes | None:
        """What has come: an answer without its size once it is whole."""
        piece = os.read(self.file, RECEIVE_BYTES)
        if not piece:
            raise Failure("the broker closed a connection in the middle of a measurement")
        self._got = self._got + piece if self._got else piece
        got = self._got
        if len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            return None
        self._got = b""
        return got[4:]

    def ask(self, request: bytes | bytearray) -> bytes:
        self.send(request)
        return read_frame(self.socket)


class Lines:
    """Many connections, by what is behind each; all are closed at its end."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._of: dict[int, tuple[Line, Any]] = {}
        self._known: dict[int, Line] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._poll.close()
        for line in self._known.values():
            line.socket.close()

    def add(self, line: Line, owner: Any) -> None:
        self._of[line.file] = (line, owner)
        self._known[line.file] = line
        self._poll.register(line.file, select.EPOLLIN)

    def remove(self, line: Line) -> None:
        del self._of[line.file]
        self._poll.unregister(line.file)

    def answers(self) -> Iterator[tuple[Any, bytes]]:
        """What comes next; a wait that is too long is a Failure."""
        ready = self._poll.poll(POLL_S_MAX)
        if not ready:
            raise Failure(f"no answer for {POLL_S_MAX:.0f} s")
        for file, _ in ready:
            line, owner = self._of[file]
            answer = line.take()
            if answer is not None:
                yield owner, answer


def request(api: Api, version: int, fields: dict[str, Any]) -> bytes:
    return messages.encode_request(api, version, 1, CLIENT_ID, fields)


def find(caller: Caller, kind: int, *names: str) -> None:
    """Wait until each has a coordinator, whose topic is made by the first question."""

    def is_found() -> bool:
        fields = {"key_type": kind, "coordinator_keys": list(names)}
        found = caller.call(Api.FIND_COORDINATOR, FIND_VERSION, fields)
        return all(row.error_code == 0 for row in found.coordinators)

    until(is_found, "coordinator")
    if kind == GROUP_KEY:
        for name in names:
            fields = {"group_id": name, "generation_id": 0, "member_id": "nobody", "group_instance_id": None}
            until(
                partial(_answers, caller, fields),
                f"coordinator of {name}",
            )


# --- transactions ---


class Producer:
    """Produces one record and commits it, for ever: each transaction has an epoch of its own, which the
    answer to the one before names (transaction version 2)."""

    def __init__(self, port: int, caller: Caller, name: str, topic: str, partition: int) -> None:
        self.line = Line(port)
        self._name = name
        fields = {
            "transactional_id": name,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }

        def given() -> Any:
            answer = caller.call(Api.INIT_PRODUCER_ID, INIT_VERSION, fields)
            return answer if answer.error_code == 0 else None

        answer = until(given, "producer id")
        self._producer_id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)
        batch = records.build_batch(
            [(None, bytes(RECORD_BYTES), (), wall_ms())],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=0,
            transactional=True,
        )
        rows = [{"index": partition, "records": batch}]
        self._produce = bytearray(
            request(
                Api.PRODUCE,
                PRODUCE_VERSION,
                {
                    "transactional_id": name,
                    "acks": -1,
                    "timeout": 30_000,
                    "topic_data": [{"name": topic, "partition_data": rows}],
                },
            )
        )
        self._batch_at = self._produce.index(batch)
        self._summed = memoryview(self._produce)[self._batch_at + CRC_FROM : self._batch_at + len(batch)]
        # header, its tags, how many topics, the name, how many partitions, the index
        self._error_at = 4 + 1 + 1 + (1 + len(topic)) + 1 + 4
        self._ending = False
        self.committed = 0
        self.again = 0
        self.started_ns = 0
        self.took_ns: list[int] = []
        self._number()

    def begin(self) -> None:
        self.started_ns = time.perf_counter_ns()
        self.line.send(self._produce)

    def answered(self, answer: bytes) -> bool:
        """Go on; whether a transaction is over."""
        if self._ending:
            _, _, _, error, producer_id, epoch = struct.unpack_from(">ibihqh", answer)
            if error:
                raise Failure(f"the end of a transaction was answered with error {error}")
            self._ending = False
            if producer_id >= 0:
                self._producer_id, self._epoch = producer_id, epoch
            self._number()
            self.committed += 1
            self.took_ns.append(time.perf_counter_ns() - self.started_ns)
            return True
        (error,) = struct.unpack_from(">h", answer, self._error_at)
        if error in (CONCURRENT, NOT_ENOUGH_REPLICAS, NOT_LEADER):
            self.again += 1
            self.line.send(self._produce)
            return False
        if error:
            raise Failure(f"a record of a transaction was answered with error {error}")
        self._ending = True
        self.line.send(self._end)
        return False

    def _number(self) -> None:
        struct.pack_into(
            ">qhi", self._produce, self._batch_at + PRODUCER_AT, self._producer_id, self._epoch, 0
        )
        struct.pack_into(">I", self._produce, self._batch_at + CRC_AT, crc32c(self._summed))
        self._end = request(
            Api.END_TXN,
            END_TXN_VERSION,
            {
                "transactional_id": self._name,
                "producer_id": self._producer_id,
                "producer_epoch": self._epoch,
                "committed": True,
            },
        )


def transactions(load: GroupLoad, caller: Caller, lines: Lines, port: int, pid: int, topic: str) -> Figures:
    names = [f"{topic}-{number:03d}" for number in range(load.clients)]
    find(caller, TRANSACTION_KEY, *names)
    producers = [Producer(port, caller, name, topic, number) for number, name in enumerate(names)]
    for producer in producers:
        lines.add(producer.line, producer)
    broker_s, client_s, started_s = brokers.cpu_s(pid), time.process_time(), time.perf_counter()
    deadline_s = started_s + load.seconds
    running = len(producers)
    for producer in producers:
        producer.begin()
    while running:
        for producer, answer in lines.answers():
            if producer.answered(answer):
                if time.perf_counter() < deadline_s:
                    producer.begin()
                else:
                    running -= 1
    elapsed_s = time.perf_counter() - started_s
    broker_s, client_s = brokers.cpu_s(pid) - broker_s, time.process_time() - client_s
    committed = sum(producer.committed for producer in producers)
    _check_log(caller, topic, producers)
    took = sorted(ns for producer in producers for ns in producer.took_ns)
    return {
        "per_s": committed / elapsed_s,
        "cpu_us": broker_s / committed * 1e6,
        "p50_ms": took[len(took) // 2] / 1e6,
        "p99_ms": took[len(took) * 99 // 100] / 1e6,
        "again": sum(producer.again for producer in producers) / committed,
        "client_use": client_s / elapsed_s,
    }


def _ends_at(caller: Caller, topic: str, partition: int, end: int) -> bool:
    return caller.log_end(topic, partition) == end


def _answers(caller: Caller, heartbeat: dict[str, Any]) -> bool:
    """Whether the group is coordinated, and has no such member."""
    return bool(caller.call(Api.HEARTBEAT, HEARTBEAT_VERSION, heartbeat).error_code == UNKNOWN_MEMBER)


def _check_log(caller: Caller, topic: str, producers: list[Producer]) -> None:
    """Each transaction is a record and a marker, and nothing else."""
    for partition, producer in enumerate(producers):
        wanted = 2 * producer.committed
        until(
            partial(_ends_at, caller, topic, partition, wanted),
            f"log of partition {partition} that ends at {wanted}",
            timeout_s=POLL_S_MAX,
        )


# --- commits ---


def commits(load: GroupLoad, caller: Caller, lines: Lines, port: int, pid: int, topic: str) -> Figures:
    """Each committer has one request under way."""
    names = [f"{topic}-{number:03d}" for number in range(load.groups)]
    find(caller, GROUP_KEY, *names)
    asked = []
    for number in range(load.clients):
        line = Line(port)
        partition = {
            "partition_index": number,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": names[number % len(names)],
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        frame = request(Api.OFFSET_COMMIT, COMMIT_VERSION, fields)

        def first(line: Line = line, frame: bytes = frame) -> bytes | None:
            answer = line.ask(frame)
            _, decoded = messages.decode_response(Api.OFFSET_COMMIT, COMMIT_VERSION, answer)
            return answer if decoded.topics[0].partitions[0].error_code == 0 else None

        expected = until(first, "first commit")
        lines.add(line, (line, frame, expected))
        asked.append((line, frame))
    broker_s, client_s, started_s = brokers.cpu_s(pid), time.process_time(), time.perf_counter()
    deadline_s, answered, running = started_s + load.seconds, 0, len(asked)
    for line, frame in asked:
        line.send(frame)
    while running:
        going = time.perf_counter() < deadline_s
        for (line, frame, expected), answer in lines.answers():
            if answer != expected:
                raise Failure("a commit was answered otherwise than the first")
            answered += 1
            if going:
                line.send(frame)
            else:
                running -= 1
    elapsed_s = time.perf_counter() - started_s
    broker_s, client_s = brokers.cpu_s(pid) - broker_s, time.process_time() - client_s
    return {
        "per_s": answered / elapsed_s,
        "cpu_us": broker_s / answered * 1e6,
        "client_use": client_s / elapsed_s,
    }


# --- members ---


def text(value: str | None) -> bytes:
    encoded = b"" if value is None else value.encode()
    return struct.pack(">h", -1 if value is None else len(encoded)) + encoded


def head(api: Api, version: int) -> bytes:
    return struct.pack(">hhi", api, version, 1) + text(CLIENT_ID)


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Classic:
    """A member of the classic protocol: told to join again, it does at once."""

    def __init__(self, port: int, group: str, topic: str) -> None:
        self.line = Line(port)
        self._group = text(group)
        # version, one topic, no user data
        subscription = struct.pack(">hi", 1, 1) + text(topic) + struct.pack(">ii", 0, 0)
        self._protocols = (
            text("consumer")
            + struct.pack(">i", 1)
            + text("range")
            + struct.pack(">i", len(subscription))
            + subscription
        )
        self._member = text("")
        self._heartbeat = self._leave = b""
        self.generation = -1
        self.share = 0
        self.stage = "none"
        self._shares: dict[bytes, bytes] = {}
        self._topic = topic

    def act(self) -> None:
        """Send what comes next; nothing is under way."""
        if self.stage == "none":
            body = (
                head(Api.JOIN_GROUP, JOIN_VERSION)
                + self._group
                + struct.pack(">ii", SESSION_MS, REBALANCE_MS)
                + self._member
                + text(None)
                + self._protocols
            )
            self.stage = "joining"
            self.line.send(sized(body))
        else:
            self.stage = "asking"
            self.line.send(
                sized(
                    head(Api.HEARTBEAT, HEARTBEAT_VERSION)
                    + self._group
                    + struct.pack(">i", self.generation)
                    + self._member
                    + text(None)
                )
            )

    def answered(self, answer: bytes) -> None:
        if self.stage == "joining":
            self._joined(answer)
        elif self.stage == "syncing":
            error, size = struct.unpack_from(">hi", answer, 8)
            self._expect(error)
            self.stage = "none" if error else "stable"
            self.share = 0 if error or size <= 0 else self._count(answer[14 : 14 + size])
        else:
            (error,) = struct.unpack_from(">h", answer, 8)
            self._expect(error)
            self.stage = "none" if error else "stable"

    def _joined(self, answer: bytes) -> None:
        error, self.generation = struct.unpack_from(">hi", answer, 8)
        _, at = _text_at(answer, 14)
        leader, at = _text_at(answer, at)
        member, at = _text_at(answer, at)
        if member:
            self._member = struct.pack(">h", len(member)) + member
        self._expect(error)
        if error:
            self.stage = "none"
            return
        self.share = 0
        rows = b"\x00\x00\x00\x00"
        if leader == member:
            (count,) = struct.unpack_from(">i", answer, at)
            at += 4
            names = []
            for _ in range(count):
                name, at = _text_at(answer, at)
                _, at = _text_at(answer, at)
                (size,) = struct.unpack_from(">i", answer, at)
                at += 4 + size
                names.append(name)
            rows = struct.pack(">i", count) + b"".join(
                struct.pack(">h", len(name)) + name + self._assignment(number, count)
                for number, name in enumerate(sorted(names))
            )
        self.stage = "syncing"
        self.line.send(
            sized(
                head(Api.SYNC_GROUP, SYNC_VERSION)
                + self._group
                + struct.pack(">i", self.generation)
                + self._member
                + text(None)
                + rows
            )
        )

    def _assignment(self, number: int, count: int) -> bytes:
        mine = range(number, PARTITIONS, count)
        found = (
            struct.pack(">hi", 1, 1)
            + text(self._topic)
            + struct.pack(f">i{len(mine)}i", len(mine), *mine)
            + struct.pack(">i", 0)
        )
        return struct.pack(">i", len(found)) + found

    def _count(self, assignment: bytes) -> int:
        (count,) = struct.unpack_from(">i", assignment, 6 + 2 + len(self._topic))
        return int(count)

    def leave(self) -> None:
        """Leave, with nothing under way."""
        body = (
            head(Api.LEAVE_GROUP, LEAVE_VERSION)
            + self._group
            + struct.pack(">i", 1)
            + self._member
            + text(None)
        )
        (error,) = struct.unpack_from(">h", self.line.ask(sized(body)), 8)
        if error:
            raise Failure(f"leaving was answered with error {error}")
        self._member, self.stage, self.generation, self.share = text(""), "none", -1, 0

    @staticmethod
    def _expect(error: int) -> None:
        if error not in (0, REBALANCING, MEMBER_ID_REQUIRED):
            raise Failure(f"a member was answered with error {error}")

    def is_settled(self, others: list[Any]) -> bool:
        """Whether it has its share of the generation that counts everybody."""
        return self.stage in ("stable", "asking") and self.generation == max(
            other.generation for other in others
        )

    def must_act(self, others: list[Any]) -> bool:
        return True


def _text_at(answer: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">h", answer, at)
    at += 2
    return (answer[at : at + size], at + size) if size > 0 else (b"", at)


class Consumer:
    """A member that the broker assigns: told to hold something else, it says at once that it does."""

    def __init__(self, port: int, group: str, topic: str) -> None:
        self.line = Line(port)
        self._member = secrets.token_hex(11)
        self._group, self._topic = group, topic
        self.epoch = 0
        self.owned = b"\x01"
        self.share = 0
        self.stage = "none"
        self.knows = False
        """Whether the last answer told nothing new of what it holds."""
        self._rebuild()

    def _rebuild(self) -> None:
        """What is the same in all requests, once with the subscription, once without."""
        marker_epoch = 0x5AA55AA5
        fields: dict[str, Any] = {
            "group_id": self._group,
            "member_id": self._member,
            "member_epoch": marker_epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": REBALANCE_MS,
            "subscribed_topic_names": [self._topic],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        }
        self._full = self._parts(fields, marker_epoch)
        self._brief = self._parts(
            {**fields, "rebalance_timeout": -1, "subscribed_topic_names": None}, marker_epoch
        )

    @staticmethod
    def _parts(fields: dict[str, Any], epoch: int) -> tuple[bytes, bytes]:
        """Before and after the epoch; the empty list of what it holds and the tags are taken off the end."""
        frame = request(Api.CONSUMER_GROUP_HEARTBEAT, CONSUMER_VERSION, fields)
        before, after = frame[4:].split(struct.pack(">i", epoch))
        if after[-2:] != b"\x01\x00":
            raise Failure("a heartbeat does not end as it should")
        return before, after[:-2]

    def act(self) -> None:
        before, after = self._full if self.epoch <= 0 else self._brief
        self.stage = "asking"
        self.line.send(sized(before + struct.pack(">i", self.epoch) + after + self.owned + b"\x00"))

    def answered(self, answer: bytes) -> None:
        """The answer: header 4, tags 1, throttle 4, error 2, its text, the member, epoch 4, interval 4, then
        whether there is an assignment and its list."""
        (error,) = struct.unpack_from(">h", answer, 9)
        if error:
            raise Failure(f"a member was answered with error {error}")
        at = 11
        for _ in range(2):
            at += max(1, answer[at])
        (self.epoch,) = struct.unpack_from(">i", answer, at)
        at += 8
        self.stage = "idle"
        self.knows = answer[at] != 1
        if not self.knows:
            self.owned = answer[at + 1 : len(answer) - 2]
            self.share = self._count(self.owned)

    def _count(self, owned: bytes) -> int:
        """How many partitions of the one topic: fewer than 127, so that a byte says it."""
        return 0 if owned[0] <= 1 else owned[17] - 1

    def leave(self) -> None:
        self.epoch = -1
        self.act()
        self.answered(read_frame(self.line.socket))
        self.epoch, self.owned, self.share, self.stage, self.knows = 0, b"\x01", 0, "none", False

    def is_settled(self, others: list[Any]) -> bool:
        return self.knows and self.epoch == max(other.epoch for other in others)

    def must_act(self, others: list[Any]) -> bool:
        """A heartbeat that would tell nothing new is not sent."""
        return not self.is_settled(others) or self.share < PARTITIONS // len(others)


Member = Classic | Consumer


UNDER_WAY = ("joining", "syncing", "asking")


def settle(lines: Lines, members: list[Any]) -> None:
    """Until everybody has its share of one and the same rebalance, and nothing is under way."""
    deadline_s = time.perf_counter() + POLL_S_MAX
    while True:
        if time.perf_counter() > deadline_s:
            raise Failure(f"a rebalance took more than {POLL_S_MAX:.0f} s")
        is_over = sum(member.share for member in members) == PARTITIONS and all(
            member.is_settled(members) for member in members
        )
        if not is_over:
            free = [member for member in members if member.stage not in UNDER_WAY]
            acting = [member for member in free if member.must_act(members)]
            # Where nobody has a reason to ask, all do so, as they would in the end.
            for member in acting or (free if len(free) == len(members) else ()):
                member.act()
        if any(member.stage in UNDER_WAY for member in members):
            for member, answer in lines.answers():
                member.answered(answer)
        elif is_over:
            return


def rebalances(load: GroupLoad, caller: Caller, lines: Lines, port: int, pid: int, topic: str) -> Figures:
    """All members join a group that is empty; then, again and again, one leaves and comes back."""
    of: Callable[[int, str, str], Member] = Classic if load.kind == "classic" else Consumer
    find(caller, GROUP_KEY, topic)
    members: list[Any] = [of(port, topic, topic) for _ in range(load.clients)]
    for member in members:
        lines.add(member.line, member)
    broker_s, client_s, began_s = brokers.cpu_s(pid), time.process_time(), time.perf_counter()
    settle(lines, members)
    joined_s = time.perf_counter() - began_s
    joined_cpu_s = brokers.cpu_s(pid) - broker_s
    took_s, broker_used_s, client_used_s = [], 0.0, 0.0
    for number in range(load.rebalances):
        leaving = members[1 + number % (len(members) - 1)]
        lines.remove(leaving.line)
        leaving.leave()
        settle(lines, [member for member in members if member is not leaving])
        lines.add(leaving.line, leaving)
        broker_s, client_s, started_s = brokers.cpu_s(pid), time.process_time(), time.perf_counter()
        settle(lines, members)
        took_s.append(time.perf_counter() - started_s)
        broker_used_s += brokers.cpu_s(pid) - broker_s
        client_used_s += time.process_time() - client_s
    for member in members:
        lines.remove(member.line)
        member.leave()
    return {
        "joined_ms": joined_s * 1000,
        "joined_cpu_ms": joined_cpu_s * 1000,
        "one_ms": statistics.median(took_s) * 1000,
        "one_cpu_ms": broker_used_s / load.rebalances * 1000,
        "client_use": client_used_s / sum(took_s),
    }


RUNS: dict[str, Callable[[GroupLoad, Caller, Lines, int, int, str], Figures]] = {
    "transactions": transactions,
    "commits": commits,
    "classic": rebalances,
    "consumer": rebalances,
}


def act(load: GroupLoad, port: int, pid: int, topic: str) -> Figures:
    with Caller(port) as caller, Lines() as lines:
        return RUNS[load.kind](load, caller, lines, port, pid, topic)


def main() -> int:
    spec = json.loads(sys.argv[1])
    if spec["core"] is not None:
        os.sched_setaffinity(0, {spec["core"]})
    load = GroupLoad(**spec["load"])
    try:
        found = act(load, spec["port"], spec["pid"], spec["topic"])
    except (Failure, OSError) as failure:
        complain(str(failure))
        return 1
    emit_json(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
