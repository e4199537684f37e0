"""Clients of the WAL tier's benchmark, each a process of its own: `python -m tools.versus.wal_clients SPEC`.

Owns a raw producer at a fixed rate, the C client at a fixed rate or as fast as it goes, one record at a time,
and a record every so often that is read from a follower. Does not own how such a process is started and ended
(tier_clients), nor what the samples mean.
Invariant: a paced request's time runs from the moment it was due, so that a broker that stands still is seen
by all that waited; a record read from a follower was read there: the C client says so, or the run fails.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import confluent_kafka

from protocol import messages, records
from protocol.apis import Api
from tools import bench
from tools.console import Failure
from tools.versus.caller import (
    CLIENT_ID,
    DEADLINE_S,
    PRODUCE_VERSION,
    open_socket,
    read_frame,
    until,
    wall_ms,
)
from tools.versus.tier_clients import (
    BEHIND_S_MAX,
    FLUSH_S,
    RECEIVE_BYTES,
    STAMP,
    Client,
    Samples,
    Spec,
    Stop,
    began,
    serve,
)

MODULE = "tools.versus.wal_clients"
IN_FLIGHT_MAX = 100
SAMPLES_PER_S = 1000
SHORT_OF_MEMORY_S = 0.01
STATISTICS_MS = 200
TICK_S = 0.001
"""The least that the C client waits: told to wait for less it returns at once, and a sender at a fixed rate
would take a whole core that brokers and store are to share."""
FOLLOWER_S_MAX = 30.0
PROBE_KEY = b"probe"
SPACING = (0.5, 1.5)
"""Of the mean: no phase in which an interval of the broker always finds a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSpec(Spec):
    """`kind`: paced, stock, single or far. A paced request holds a batch of `batch_records` for each of
    `at_once` partitions, and partitions take turns. A far client sends `per_s` records a second and reads
    them in the rack `rack`, from the broker `from_node`; a single one waits for each. 0 of `mb_per_s` or
    `per_s` is as fast as it goes (stock, single)."""

    partitions: int = 1
    batch_records: int = 1
    at_once: int = 1
    linger_ms: float = 20
    acks: str = "1"
    per_s: float = 0
    rack: str = ""
    from_node: int = -1


def client(spec: WalSpec) -> Client:
    return Client(spec, module=MODULE)


# --- raw requests at a fixed rate ---


def requests_of(spec: WalSpec) -> list[bytes]:
    """Return whole frames, all of one size, that write to all partitions in turn."""
    payloads = bench.payloads_of(spec.record_bytes)
    now_ms = wall_ms()
    rows = [(None, payloads[at % len(payloads)], (), now_ms) for at in range(spec.batch_records)]
    batch = bytes(records.build_batch(rows))
    return [
        messages.encode_request(
            Api.PRODUCE,
            PRODUCE_VERSION,
            1,
            CLIENT_ID,
            {
                "transactional_id": None,
                "acks": int(spec.acks),
                "timeout": int(DEADLINE_S * 1000),
                "topic_data": [
                    {
                        "name": spec.topic,
                        "partition_data": [
                            {"index": partition, "records": batch}
                            for partition in range(first, min(first + spec.at_once, spec.partitions))
                        ],
                    }
                ],
            },
        )
        for first in range(0, spec.partitions, spec.at_once)
    ]


def _paced(spec: WalSpec, stop: Stop) -> Samples:
    """Send each request when it is due, however late the answers are, up to a bound."""
    found, clock = Samples(), time.perf_counter
    requests = requests_of(spec)
    if len({len(each) for each in requests}) != 1 or spec.partitions % spec.at_once:
        raise Failure("the partitions do not share out evenly")
    every_s = spec.record_bytes * spec.batch_records * spec.at_once / spec.mb_per_s / 1e6
    with contextlib.closing(open_socket(spec.port)) as connection:
        answer_bytes = _check(connection, requests[0])
        poll = select.epoll()
        poll.register(connection.fileno(), select.EPOLLIN)
        waiting: collections.deque[float] = collections.deque()
        due_s, number, received = clock(), 0, 0
        while waiting or not stop.is_set():
            while not stop.is_set() and due_s <= clock() and len(waiting) < IN_FLIGHT_MAX:
                connection.sendall(requests[number % len(requests)])
                waiting.append(due_s)
                number, due_s = number + 1, max(due_s + every_s, clock() - BEHIND_S_MAX)
            wait_s = due_s - clock() if len(waiting) < IN_FLIGHT_MAX and not stop.is_set() else DEADLINE_S
            if not poll.poll(max(0.0, wait_s)):
                if wait_s == DEADLINE_S:
                    raise Failure(f"no answer for {DEADLINE_S:.0f} s")
                continue
            piece = connection.recv(RECEIVE_BYTES)
            if not piece:
                raise Failure("the broker closed a connection in the middle of a measurement")
            received += len(piece)
            now_s = clock()
            while received >= answer_bytes and waiting:
                received -= answer_bytes
                found.at_s.append(waiting.popleft())
                found.took_ms.append((now_s - found.at_s[-1]) * 1000)
                began(found)
        if received:
            raise Failure("answers had another size than the first: some of them are errors")
    return found


def _check(connection: Any, request: bytes) -> int:
    """Read the first answer in full; return how long every answer is."""
    connection.sendall(request)
    frame = read_frame(connection)
    _, answer = messages.decode_response(Api.PRODUCE, PRODUCE_VERSION, frame)
    for row in answer.responses[0].partition_responses:
        if row.error_code:
            raise Failure(f"the broker answered with error {int(row.error_code)}")
    return len(frame) + 4


# --- the C client ---


def _stock(spec: WalSpec, stop: Stop) -> Samples:
    """Send records evenly to all partitions in turn; what it takes to have some of each tick acknowledged."""
    found, failures, clock = Samples(), list[str](), time.perf_counter
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{spec.port}",
            "acks": spec.acks,
            "linger.ms": spec.linger_ms,
            "queue.buffering.max.kbytes": 64 << 10,
            "log_level": 0,
        }
    )
    values = bench.payloads_of(spec.record_bytes)
    producer.list_topics(spec.topic, timeout=DEADLINE_S)

    def sampled(at_s: float) -> Callable[[Any, Any], None]:
        def done(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error.str())
            found.at_s.append(at_s)
            found.took_ms.append((clock() - at_s) * 1000)
            began(found)

        return done

    rate = spec.mb_per_s * 1e6 / spec.record_bytes or float("inf")
    started_s, number, sampled_s = clock(), 0, 0.0
    while not stop.is_set() and not failures:
        now_s = clock()
        due = (now_s - started_s) * rate - number
        if due < 1:
            producer.poll(max((1 - due) / rate, TICK_S))
            continue
        if due > BEHIND_S_MAX * rate and rate != float("inf"):
            started_s += due / rate
            continue
        report: dict[str, Any] = {}
        if now_s - sampled_s >= 1 / SAMPLES_PER_S:
            report, sampled_s = {"on_delivery": sampled(now_s)}, now_s
        try:
            producer.produce(
                spec.topic,
                values[number % len(values)],
                partition=number % spec.partitions,
                **report,
            )
        except BufferError:
            producer.poll(SHORT_OF_MEMORY_S)
            continue
        number += 1
        producer.poll(0)
    producer.flush(FLUSH_S)
    if failures:
        raise Failure(f"a record was not delivered: {failures[0]}")
    return found


def _single(spec: WalSpec, stop: Stop) -> Samples:
    """Send one record at a time, so many a second or the next at once; what it takes to have each
    acknowledged."""
    found, clock, chosen = Samples(), time.perf_counter, random.Random(1)
    filling = b"\0" * spec.record_bytes
    acknowledged: list[Any] = []

    def done(error: Any, message: Any) -> None:
        acknowledged.append(error)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{spec.port}",
            "log_level": 0,
            "acks": spec.acks,
            "linger.ms": 0,
            "on_delivery": done,
        }
    )
    due_s = clock()
    while not stop.wait(max(0.0, due_s - clock())):
        at_s = clock()
        producer.produce(spec.topic, filling, partition=0)
        while not acknowledged:
            producer.poll(DEADLINE_S)
            if clock() - at_s > DEADLINE_S:
                raise Failure(f"no answer for {DEADLINE_S:.0f} s")
        if (error := acknowledged.pop()) is not None:
            raise Failure(f"a record was not delivered: {error.str()}")
        found.at_s.append(at_s)
        found.took_ms.append((clock() - at_s) * 1000)
        began(found)
        due_s = max(at_s + chosen.uniform(*SPACING) / spec.per_s, clock()) if spec.per_s else clock()
    return found


class _FollowerReader:
    """Reads partition 0 at its end, from the replica in a rack."""

    def __init__(self, spec: WalSpec) -> None:
        self.spec = spec
        self.read_from = -1
        self.reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{spec.port}",
                "log_level": 0,
                "group.id": CLIENT_ID,
                "enable.auto.commit": False,
                "client.rack": spec.rack,
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._told,
                "fetch.queue.backoff.ms": 10,  # a second by default: what is behind would stay so
            }
        )
        where = confluent_kafka.TopicPartition(spec.topic, 0, confluent_kafka.OFFSET_END)
        self.reader.assign([where])

    def _told(self, text: str) -> None:
        partitions = json.loads(text)["topics"].get(self.spec.topic, {}).get("partitions", {})
        self.read_from = partitions.get("0", {}).get("broker", -1)

    @property
    def is_at_follower(self) -> bool:
        return self.read_from == self.spec.from_node

    def wait_at_follower(self) -> None:
        def is_there() -> bool:
            self.reader.poll(0.01)
            return self.is_at_follower

        until(is_there, f"consumer at broker {self.spec.from_node}", FOLLOWER_S_MAX)


def _far(spec: WalSpec, stop: Stop) -> Samples:
    """Send a record every so often, and read it from a follower: what it takes from one to the other."""
    found, failures, clock = Samples(), list[str](), time.perf_counter
    chosen = random.Random(1)

    def refused(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error.str())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{spec.port}",
            "log_level": 0,
            "acks": spec.acks,
            "linger.ms": 0,
            "on_delivery": refused,
        }
    )
    filling = b"\0" * (spec.record_bytes - STAMP.size)

    def send() -> None:
        producer.produce(spec.topic, STAMP.pack(clock()) + filling, key=PROBE_KEY, partition=0)
        producer.poll(0)

    def send_on() -> None:
        due_s = clock()
        while not stop.wait(max(0.0, due_s - clock())):
            send()
            due_s = max(due_s + chosen.uniform(*SPACING) / spec.per_s, clock() - BEHIND_S_MAX)
        producer.flush(FLUSH_S)

    there = _FollowerReader(spec)
    sender = threading.Thread(target=send_on)
    try:
        send()  # a consumer is sent to a follower by the answer to a Fetch at the leader
        there.wait_at_follower()
        sender.start()
        while not stop.is_set() and not failures:
            message = there.reader.poll(0.1)
            if message is None or message.error() is not None or message.key() != PROBE_KEY:
                continue
            now_s = clock()
            (at_s,) = STAMP.unpack_from(message.value() or b"")
            found.at_s.append(at_s)
            found.took_ms.append((now_s - at_s) * 1000)
            began(found)
    finally:
        stop.set()
        if sender.ident is not None:
            sender.join()
        there.reader.close()
    if failures:
        raise Failure(f"a record was not delivered: {failures[0]}")
    if not there.is_at_follower:
        raise Failure(f"the consumer has left broker {spec.from_node} for {there.read_from}")
    return found


KINDS: dict[str, Callable[[WalSpec, Stop], Samples]] = {
    "paced": _paced,
    "stock": _stock,
    "single": _single,
    "far": _far,
}


if __name__ == "__main__":
    sys.exit(serve(WalSpec(**json.loads(sys.argv[1])), KINDS))
