"""Clients that go on beside a measurement until they are told to stop, each a process of its own:
`python -m tools.versus.tier_clients SPEC`, and its samples on stdout once stdin is closed.

Owns a producer at a given rate, a consumer at the log's end, one who asks the same small thing again and
again, and many who read an old log. Does not own what goes on meanwhile, nor what the samples mean.
Invariant: a sample's time is the machine's monotonic clock, the same for all processes; a client that cannot
go on ends with exit code 1; a client ends with the one who started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import confluent_kafka

from protocol import messages
from protocol.apis import Api
from tools import bench
from tools.console import Failure, complain, emit, emit_json
from tools.versus import brokers
from tools.versus.caller import CLIENT_ID, FETCH_VERSION, fetch_request, open_socket, read_frame

TICK_S = 0.001
PING_S = 0.002
BEGIN_S_MAX = 30.0
STOP_S_MAX = 60.0
FLUSH_S = 10.0
BEHIND_S_MAX = 0.5
"""A producer that comes so late does not make up for it."""
API_VERSIONS_VERSION = 0
STAMP = struct.Struct(">d")
BATCH = struct.Struct(">qi")
LAST_OFFSET_DELTA = struct.Struct(">i")
LAST_OFFSET_DELTA_AT = 23
BATCH_OVERHEAD = 12
RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """`kind`: producer, tail, pings or readers. `mb_per_s` is of all readers together; 0: as fast as it goes.
    `end` is where readers begin again."""

    kind: str
    port: int
    pid: int
    topic: str = ""
    record_bytes: int = 1000
    mb_per_s: float = 0
    many: int = 1
    end: int = 0
    fetch_bytes: int = 1 << 20


@dataclass(slots=True, kw_only=True)
class Samples:
    """When each was begun, and what it took: `took_ms`. Of pings, `stood_ms` leaves out what the broker's
    main thread and the one who asked waited for a core. Of readers, `bytes` is what came in at that time."""

    at_s: list[float] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    stood_ms: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)


class Client:
    """A client that goes on until the block ends or `stop` is called. It has begun when this returns."""

    def __init__(self, spec: Spec, *, module: str = "tools.versus.tier_clients") -> None:
        self.spec = spec
        command = [sys.executable, "-m", module, json.dumps(dataclasses.asdict(spec))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=brokers.ROOT,
            env={**os.environ, "PYTHONPATH": str(brokers.ROOT)},
        )
        try:
            self._wait_begun()
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise

    def _wait_begun(self) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], BEGIN_S_MAX)[0]:
            raise Failure(f"a client ({self.spec.kind}) got no answer for {BEGIN_S_MAX:.0f} s")
        if not self._process.stdout.readline():
            self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> Samples:
        try:
            output, errors = self._process.communicate("", STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"a client ({self.spec.kind}) did not stop within {STOP_S_MAX:.0f} s") from None
        if self._process.returncode != 0:
            raise Failure(f"a client ({self.spec.kind}) failed: {errors.strip().rpartition(chr(10))[2]}")
        return Samples(**json.loads(output))


# --- what they do ---

Stop = threading.Event
SpecT = TypeVar("SpecT", bound=Spec)


def began(found: Samples) -> None:
    """Tell the one who waits for it, with the first sample."""
    if len(found.at_s) == 1:
        emit("begun")
        sys.stdout.flush()


def _produce(spec: Spec, stop: Stop) -> Samples:
    """Send records evenly, with the C client's defaults; what it takes to have each acknowledged."""
    found, failures = Samples(), list[str]()
    producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{spec.port}", "log_level": 0})
    values = bench.payloads_of(spec.record_bytes)
    clock = time.perf_counter

    def sampled(at_s: float) -> Callable[[Any, Any], None]:
        def done(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error.str())
            found.at_s.append(at_s)
            found.took_ms.append((clock() - at_s) * 1000)
            began(found)

        return done

    tick_records = max(1, round(spec.mb_per_s * 1e6 / spec.record_bytes * TICK_S))
    tick_s = tick_records * spec.record_bytes / spec.mb_per_s / 1e6
    due_s = clock()
    while not stop.is_set() and not failures:
        now_s = clock()
        if now_s < due_s:
            producer.poll(due_s - now_s)
            continue
        for at in range(tick_records):
            value = values[at % len(values)]
            if at:
                producer.produce(spec.topic, value, partition=0)
            else:
                producer.produce(spec.topic, value, partition=0, on_delivery=sampled(clock()))
        producer.poll(0)
        due_s = max(due_s + tick_s, now_s - BEHIND_S_MAX)
    producer.flush(FLUSH_S)
    if failures:
        raise Failure(f"a record was not delivered: {failures[0]}")
    return found


def _tail(spec: Spec, stop: Stop) -> Samples:
    """Send records evenly, and read them at the log's end: what it takes from one to the other."""
    found, clock = Samples(), time.perf_counter
    where = confluent_kafka.TopicPartition(spec.topic, 0, confluent_kafka.OFFSET_END)
    common = {"bootstrap.servers": f"127.0.0.1:{spec.port}", "log_level": 0}
    reader = confluent_kafka.Consumer({**common, "group.id": CLIENT_ID, "enable.auto.commit": False})
    reader.assign([where])

    def produce() -> None:
        producer = confluent_kafka.Producer({**common, "linger.ms": 0})
        filling = b"\0" * (spec.record_bytes - STAMP.size)
        every_s, due_s = spec.record_bytes / spec.mb_per_s / 1e6, clock()
        while not stop.wait(max(0.0, due_s - clock())):
            producer.produce(spec.topic, STAMP.pack(clock()) + filling, partition=0)
            producer.poll(0)
            due_s = max(due_s + every_s, clock() - BEHIND_S_MAX)
        producer.flush(FLUSH_S)

    sender = threading.Thread(target=produce)
    sender.start()
    try:
        while not stop.is_set():
            message = reader.poll(0.1)
            if message is None or message.error() is not None:
                continue
            (at_s,) = STAMP.unpack_from(message.value() or b"")
            found.at_s.append(at_s)
            found.took_ms.append((clock() - at_s) * 1000)
            began(found)
    finally:
        stop.set()
        sender.join()
        reader.close()
    return found


def _ping(spec: Spec, stop: Stop) -> Samples:
    """Ask for the versions again and again: an answer comes as soon as the loop of the broker turns."""
    found, clock = Samples(), time.perf_counter
    request = messages.encode_request(Api.API_VERSIONS, API_VERSIONS_VERSION, 1, CLIENT_ID, {})
    with (
        contextlib.closing(open_socket(spec.port)) as connection,
        Path(f"/proc/{spec.pid}/task/{spec.pid}/schedstat").open("rb", buffering=0) as theirs,
        Path("/proc/thread-self/schedstat").open("rb", buffering=0) as ours,
    ):

        def waited_ns() -> int:
            """What both threads have waited for a core so far."""
            return sum(int(os.pread(each.fileno(), 128, 0).split()[1]) for each in (theirs, ours))

        while not stop.wait(PING_S):
            before_ns, at_s = waited_ns(), clock()
            connection.sendall(request)
            read_frame(connection)
            took_ms = (clock() - at_s) * 1000
            found.at_s.append(at_s)
            found.took_ms.append(took_ms)
            found.stood_ms.append(max(0.0, took_ms - (waited_ns() - before_ns) / 1e6))
            began(found)
    return found


@dataclass(slots=True, eq=False)
class _Reader:
    connection: socket.socket
    offset: int
    got: bytearray = field(default_factory=bytearray)


def _read(spec: Spec, stop: Stop) -> Samples:
    """Read the topic on many connections, which begin at places of their own, one fetch at a time on each."""
    found, clock = Samples(), time.perf_counter
    poll = select.epoll()
    readers: dict[int, _Reader] = {}
    due: list[tuple[float, int]] = []
    for number in range(spec.many):
        connection = open_socket(spec.port)
        readers[connection.fileno()] = _Reader(connection, spec.end * number // spec.many)
        poll.register(connection.fileno(), select.EPOLLIN)
        due.append((clock() + number * TICK_S, connection.fileno()))
    while not stop.is_set():
        while due and due[0][0] <= clock():
            _, file = heapq.heappop(due)
            one = readers[file]
            one.connection.sendall(
                fetch_request(spec.topic, 0, one.offset, bytes_max=spec.fetch_bytes, wait_ms=500)
            )
        wait_s = min(max(0.0, due[0][0] - clock()), 0.1) if due else 0.1
        for file, _ in poll.poll(wait_s):
            one = readers[file]
            piece = one.connection.recv(RECEIVE_BYTES)
            if not piece:
                raise Failure("the broker closed a connection in the middle of a measurement")
            one.got += piece
            if len(one.got) < 4 or len(one.got) < 4 + int.from_bytes(one.got[:4], "big"):
                continue
            read, one.offset = _next_offset(memoryview(one.got)[4:], one.offset)
            one.got = bytearray()
            if one.offset >= spec.end:
                one.offset = 0
            found.at_s.append(clock())
            found.bytes.append(read)
            began(found)
            pause_s = read * spec.many / spec.mb_per_s / 1e6 if spec.mb_per_s else 0.0
            heapq.heappush(due, (clock() + pause_s, file))
    return found


def _next_offset(frame: memoryview, offset: int) -> tuple[int, int]:
    """Return the bytes of records in an answer, and the offset after their last whole batch."""
    _, answer = messages.decode_response(Api.FETCH, FETCH_VERSION, frame)
    row = answer.responses[0].partitions[0]
    if row.error_code:
        raise Failure(f"a fetch at {offset} was answered with error {int(row.error_code)}")
    data = memoryview(row.records or b"")
    at = 0
    while at + BATCH_OVERHEAD <= len(data):
        base, size = BATCH.unpack_from(data, at)
        if at + BATCH_OVERHEAD + size > len(data):
            break
        (delta,) = LAST_OFFSET_DELTA.unpack_from(data, at + LAST_OFFSET_DELTA_AT)
        offset = base + delta + 1
        at += BATCH_OVERHEAD + size
    return len(data), offset


KINDS: dict[str, Callable[[Spec, Stop], Samples]] = {
    "producer": _produce,
    "tail": _tail,
    "pings": _ping,
    "readers": _read,
}


def serve(spec: SpecT, kinds: Mapping[str, Callable[[SpecT, Stop], Samples]]) -> int:
    """Do what is asked until stdin ends, and write the samples; return the exit code."""
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        found = kinds[spec.kind](spec, stop)
    except (Failure, OSError) as failure:
        complain(str(failure))
        return 1
    emit_json(dataclasses.asdict(found))
    return 0


if __name__ == "__main__":
    sys.exit(serve(Spec(**json.loads(sys.argv[1])), KINDS))
