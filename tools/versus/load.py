"""The load, in a process of its own on the client's core: `python -m tools.versus.load SPEC`, JSON both ways.

Owns the raw generator (prebuilt requests over plain sockets) and the runs of the C client. Does not own the
broker, nor what its figures are compared with.
Invariant: a figure counts only requests that were answered; the log's end proves what was produced, and the
first and last answers are read for their error codes.
"""

from __future__ import annotations

import array
import dataclasses
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol import messages, records
from protocol.apis import Api
from protocol.checksum import crc32c
from tools import bench
from tools.console import Failure, complain, emit_json
from tools.versus import brokers
from tools.versus.caller import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Caller,
    fetch_request,
    open_socket,
    produce_request,
    read_frame,
    wall_ms,
)

RUN_S_MAX = 60.0
RECEIVE_BYTES = 4 << 20
POLL_S_MAX = 30.0
QUEUE_BYTES_MAX = 64 << 20
CALL_RECORDS = 1000
CRC_AT, CRC_FROM, PRODUCER_AT = 17, 21, 43
CRC, PRODUCER = struct.Struct(">I"), struct.Struct(">qhi")
NUMBERED_REQUESTS_MAX, NUMBERED_BYTES_MAX = 150_000, 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send to a topic that exists.

    `idempotent` numbers the batches of a raw produce to one partition, from sequence 0 of a new topic: one
    producer for each connection. The C client does it by itself.
    `kind`: produce and fetch are raw and ask for acks=1; client-produce, client-latency (one record at a
    time) and client-consume go through the C client. A raw run ends after `seconds` or `bytes_max`, whichever
    comes first; a run of the C client after `records`.
    """

    kind: str
    record_bytes: int
    batch_records: int = 1
    connections: int = 1
    in_flight: int = 1
    seconds: float = 1.5
    bytes_max: int = 1_000_000_000
    records: int = 0
    linger_ms: float = 20
    partitions: int = 1
    fetch_bytes: int = 1 << 20
    idempotent: bool = False
    acks: str = "1"

    @property
    def batch_bytes(self) -> int:
        return self.record_bytes * self.batch_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    requests: int
    records: int
    bytes: int
    seconds: float
    broker_cpu_s: float
    client_cpu_s: float
    latency_us: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic and the brokers that serve it: the first is asked about it, the CPU of all counts."""

    topic: str
    ports: Sequence[int]
    pids: Sequence[int]

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def cpu_s(self) -> float:
        return sum(map(brokers.cpu_s, self.pids))


def run(
    load: Load, broker: brokers.Broker, topic: str, core: int | None, *, peers: Iterable[brokers.Broker] = ()
) -> Measured:
    """Run in a process of its own, which is killed when it takes too long. Without a `core` it may run on
    any."""
    members = (broker, *peers)
    target = Target(topic=topic, ports=[each.port for each in members], pids=[each.pid for each in members])
    spec = {"load": dataclasses.asdict(load), "target": dataclasses.asdict(target), "core": core}
    command = [sys.executable, "-m", "tools.versus.load", json.dumps(spec)]
    environment = {**os.environ, "PYTHONPATH": str(brokers.ROOT)}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            cwd=brokers.ROOT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{broker.name}: {load.kind} took more than {RUN_S_MAX:.0f} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise Failure(f"{broker.name}: {load.kind} {load.record_bytes} bytes: {last}")
    return Measured(**json.loads(done.stdout))


# --- the raw generator ---


@dataclass(slots=True)
class _Requests:
    """Requests of one size, end to end, and once more a window's worth so that any run of them is one
    slice.
    """

    view: memoryview
    size: int
    count: int
    response_bytes: int

    def slice(self, first: int, many: int) -> memoryview:
        at = first % self.count * self.size
        return self.view[at : at + many * self.size]


Answered = tuple[int, list[int]]
"""How many requests, and each one's nanoseconds where only one is in flight."""


def _raw(load: Load, caller: Caller, target: Target) -> Measured:
    topic, port = target.topic, target.port
    prebuilt, api, version = _prebuild(load, topic)
    before = caller.log_end(topic)
    first = open_socket(port)
    requests = _learn_response(prebuilt, load, first, api, version)
    connections = [first, *(open_socket(port) for _ in range(load.connections - 1))]
    limit = max(load.in_flight, load.bytes_max // max(1, _moved_bytes(load, requests)))
    if load.idempotent:
        limit = min(limit, requests.count - 1)
    broker_s, client_s, started_s = target.cpu_s(), time.process_time(), time.perf_counter()
    if load.connections > 1:
        each = requests.count // load.connections if load.idempotent else limit
        answered, waits_ns = _spread(connections, requests, limit, each, started_s + load.seconds)
    elif load.in_flight > 1:
        answered, waits_ns = _pipelined(first, requests, load.in_flight, limit, started_s + load.seconds)
    else:
        answered, waits_ns = _ping_pong(first, requests, limit, started_s + load.seconds)
    elapsed_s = time.perf_counter() - started_s
    broker_s, client_s = target.cpu_s() - broker_s, time.process_time() - client_s
    for connection in connections:
        connection.close()
    if load.kind == "produce" and load.partitions == 1:
        _check_end(caller, topic, before + (answered + 1) * load.batch_records)
    return Measured(
        requests=answered,
        records=answered * load.batch_records if load.kind == "produce" else 0,
        bytes=answered * _moved_bytes(load, requests),
        seconds=elapsed_s,
        broker_cpu_s=broker_s,
        client_cpu_s=client_s,
        latency_us=_in_us(bench.summary([ns / 1e6 for ns in waits_ns])),
    )


def _check_end(caller: Caller, topic: str, wanted: int) -> None:
    """Check that the log has all that was acknowledged, and nothing else; replicas may have it later."""
    deadline_s = time.perf_counter() + POLL_S_MAX
    while (end := caller.log_end(topic)) != wanted:
        if end > wanted or time.perf_counter() > deadline_s:
            raise Failure(f"what was acknowledged ends at {wanted}, the log at {end}")


def _in_us(latency_ms: Mapping[str, float]) -> dict[str, float]:
    return {name: value * 1000 for name, value in latency_ms.items()}


def _moved_bytes(load: Load, requests: _Requests) -> int:
    """Return the bytes of payload in one exchange."""
    return load.batch_bytes if load.kind == "produce" else requests.response_bytes


def _prebuild(load: Load, topic: str) -> tuple[list[bytes], Api, int]:
    if load.kind == "fetch":
        return (
            [
                fetch_request(topic, partition, 0, bytes_max=load.fetch_bytes, wait_ms=0)
                for partition in range(load.partitions)
            ],
            Api.FETCH,
            FETCH_VERSION,
        )
    payloads = bench.payloads_of(load.record_bytes)
    now_ms = wall_ms()
    rows = [(None, payloads[at % len(payloads)], (), now_ms) for at in range(load.batch_records)]
    if load.idempotent:
        return _numbered(load, topic, rows), Api.PRODUCE, PRODUCE_VERSION
    batch = records.build_batch(rows)
    return (
        [produce_request(topic, partition, batch) for partition in range(load.partitions)],
        Api.PRODUCE,
        PRODUCE_VERSION,
    )


def _numbered(load: Load, topic: str, rows: list[Any]) -> list[bytes]:
    """Each sequence number is sent once, so all requests of the run are built before it, the connections'
    producers in turn: from one request, because 150,000 built one by one would take longer than their run.
    """
    batch = records.build_batch(rows, producer_id=0, producer_epoch=0, base_sequence=0)
    request = bytearray(produce_request(topic, 0, batch))
    batch_at = request.index(batch)
    summed = memoryview(request)[batch_at + CRC_FROM : batch_at + len(batch)]
    least = load.connections * (load.in_flight + 1)
    requests = []
    for number in range(max(least, min(NUMBERED_REQUESTS_MAX, NUMBERED_BYTES_MAX // load.batch_bytes))):
        turn, producer_id = divmod(number, load.connections)
        PRODUCER.pack_into(request, batch_at + PRODUCER_AT, producer_id, 0, turn * load.batch_records)
        CRC.pack_into(request, batch_at + CRC_AT, crc32c(summed))
        requests.append(bytes(request))
    return requests


def _learn_response(
    prebuilt: list[bytes], load: Load, connection: socket.socket, api: Api, version: int
) -> _Requests:
    """Read the first exchange in full: whether it works, and how long every answer is."""
    connection.sendall(prebuilt[0])
    frame = read_frame(connection)
    _, answer = messages.decode_response(api, version, frame)
    topic = answer.responses[0]
    row = (topic.partition_responses if api is Api.PRODUCE else topic.partitions)[0]
    if row.error_code:
        raise Failure(f"the broker answered with error {int(row.error_code)}")
    if len({len(request) for request in prebuilt}) != 1:
        raise Failure("prebuilt requests differ in size")
    end_to_end = b"".join(prebuilt)
    repeats = 1 + -(-load.in_flight // len(prebuilt))
    return _Requests(memoryview(end_to_end * repeats), len(prebuilt[0]), len(prebuilt), len(frame) + 4)


def _pipelined(
    connection: socket.socket, requests: _Requests, in_flight: int, limit: int, deadline_s: float
) -> Answered:
    """Keep the window full: as many requests as were answered go out in one call."""
    response_bytes, buffer, now = requests.response_bytes, bytearray(RECEIVE_BYTES), time.perf_counter
    receive, send = connection.recv_into, connection.sendall
    sent, answered, received = min(in_flight, limit), 0, 0
    send(requests.slice(1, sent))
    while answered < sent:
        size = receive(buffer)
        if not size:
            raise Failure("the broker closed a connection in the middle of a measurement")
        received += size
        done = received // response_bytes
        more = min(done - answered, limit - sent)
        answered = done
        if more > 0 and now() < deadline_s:
            send(requests.slice(1 + sent, more))
            sent += more
    if received != sent * response_bytes:
        raise Failure("answers had another size than the first: some of them are errors")
    return answered, []


def _ping_pong(connection: socket.socket, requests: _Requests, limit: int, deadline_s: float) -> Answered:
    buffer, now = bytearray(RECEIVE_BYTES), time.perf_counter_ns
    receive, send = connection.recv_into, connection.sendall
    waits_ns, deadline_ns, answered = array.array("q"), int(deadline_s * 1e9), 0
    while answered < limit:
        started_ns, missing = now(), requests.response_bytes
        if started_ns > deadline_ns:
            break
        send(requests.slice(1 + answered, 1))
        while missing > 0:
            size = receive(buffer)
            if not size:
                raise Failure("the broker closed a connection in the middle of a measurement")
            missing -= size
        waits_ns.append(now() - started_ns)
        answered += 1
        if missing:
            raise Failure("answers had another size than the first: some of them are errors")
    return answered, waits_ns.tolist()


def _spread(
    connections: list[socket.socket], requests: _Requests, limit: int, each: int, deadline_s: float
) -> Answered:
    """Keep one request in flight on each of many connections, by epoll; no connection sends more than `each`.

    They take turns in the requests, and the first one has sent its first already.
    """
    response_bytes, now = requests.response_bytes, time.perf_counter
    read, write, answered, many = os.read, os.write, 0, len(connections)
    poll = select.epoll()
    missing, ahead = {}, {}
    for number, connection in enumerate(connections):
        poll.register(connection.fileno(), select.EPOLLIN)
        missing[connection.fileno()] = response_bytes
        first = number or many
        connection.sendall(requests.slice(first, 1))
        ahead[connection.fileno()] = iter(range(first + many, each * many, many))
    sent = many
    while answered < sent:
        ready = poll.poll(POLL_S_MAX)
        if not ready:
            raise Failure(f"no answer for {POLL_S_MAX:.0f} s")
        going = sent < limit and now() < deadline_s
        for file, _ in ready:
            size = len(read(file, RECEIVE_BYTES))
            if size == response_bytes or _is_whole(missing, file, size, response_bytes):
                answered += 1
                if going and (number := next(ahead[file], 0)):
                    write(file, requests.slice(number, 1))
                    sent += 1
    poll.close()
    return answered, []


def _is_whole(missing: dict[int, int], file: int, size: int, response_bytes: int) -> bool:
    """Return whether an answer that came in parts is whole; with one in flight there is never more than
    one."""
    if not size:
        raise Failure("the broker closed a connection in the middle of a measurement")
    missing[file] -= size
    if missing[file] < 0:
        raise Failure("answers had another size than the first: some of them are errors")
    if missing[file]:
        return False
    missing[file] = response_bytes
    return True


# --- the C client ---


def _client_produce(load: Load, caller: Caller, target: Target) -> Measured:
    """Produce to the partitions in turn, a call's worth of records each."""
    import confluent_kafka

    topic = target.topic
    failures: list[str] = []

    def refused(error: Any, message: Any) -> None:
        failures.append(error.str())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "acks": load.acks,
            "enable.idempotence": load.idempotent,
            "linger.ms": load.linger_ms,
            "message.max.bytes": max(1_000_000, load.record_bytes + 1000),
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,
            "on_delivery": refused,
            "log_level": 0,
        }
    )
    producer.list_topics(topic, timeout=POLL_S_MAX)
    before = caller.all_log_ends(topic)
    values = [{"value": value} for value in bench.payloads_of(load.record_bytes)]
    call_records = max(1, min(CALL_RECORDS, QUEUE_BYTES_MAX // 8 // load.record_bytes))
    rows = [values[at % len(values)] for at in range(call_records)]
    queue_max = max(2, QUEUE_BYTES_MAX // load.record_bytes)
    broker_s, client_s, started_s = target.cpu_s(), time.process_time(), time.perf_counter()
    deadline_s = started_s + RUN_S_MAX
    sent = 0
    while sent < load.records and not failures and time.perf_counter() < deadline_s:
        if len(producer) > queue_max:
            producer.poll(0.001)
            continue
        _enqueue(producer, topic, sent // len(rows) % load.partitions, rows)
        sent += len(rows)
    producer.flush(RUN_S_MAX)
    elapsed_s = time.perf_counter() - started_s
    broker_s, client_s = target.cpu_s() - broker_s, time.process_time() - client_s
    if failures:
        raise Failure(f"a record was not delivered: {failures[0]}")
    appended = caller.all_log_ends(topic) - before
    if appended != sent:
        raise Failure(f"{sent} records were sent, the log grew by {appended}")
    return Measured(
        requests=0,
        records=sent,
        bytes=sent * load.record_bytes,
        seconds=elapsed_s,
        broker_cpu_s=broker_s,
        client_cpu_s=client_s,
        latency_us={},
    )


def _enqueue(producer: Any, topic: str, partition: int, rows: list[dict[str, bytes]]) -> None:
    """Enqueue by the batch call where the installed client has it: twice as fast, and small records need
    it."""
    if hasattr(producer, "produce_batch"):
        if producer.produce_batch(topic, rows, partition=partition) != len(rows):
            raise Failure("the client's queue is full below its bound")
        return
    for row in rows:
        producer.produce(topic, row["value"], partition=partition)


def _client_latency(load: Load, caller: Caller, target: Target) -> Measured:
    """Measure with a consumer that waits for each record; what is reported is the time to its
    acknowledgement."""

    def measure() -> Any:
        return bench.latency(
            _bench_load(load, target, load.records),
            acks=load.acks,
            compression="none",
            partitions=load.partitions,
            progress=_no_progress,
        )

    return _of_bench(measure, target)


def _client_consume(load: Load, caller: Caller, target: Target) -> Measured:
    """Read the topic from its start; connecting and metadata are in the figures of both brokers."""
    wanted = _bench_load(load, target, caller.log_end(target.topic))
    return _of_bench(
        lambda: bench.consume(wanted, fetch_size_bytes=load.fetch_bytes, progress=_no_progress), target
    )


def _bench_load(load: Load, target: Target, records: int) -> bench.Load:
    return bench.Load(
        bootstrap=target.bootstrap, topic=target.topic, records=records, record_size_bytes=load.record_bytes
    )


def _of_bench(measure: Callable[[], Any], target: Target) -> Measured:
    """Return what `tidewal bench` measures, and the CPU beside it."""
    broker_s, client_s = target.cpu_s(), time.process_time()
    result = measure()
    return Measured(
        requests=0,
        records=int(result["records"]),
        bytes=int(result["bytes"]),
        seconds=float(result["seconds"]),
        broker_cpu_s=target.cpu_s() - broker_s,
        client_cpu_s=time.process_time() - client_s,
        latency_us=_in_us(result.get("acknowledged_ms", {})),
    )


def _no_progress(more: int) -> None:
    pass


RUNS: dict[str, Callable[[Load, Caller, Target], Measured]] = {
    "produce": _raw,
    "fetch": _raw,
    "client-produce": _client_produce,
    "client-latency": _client_latency,
    "client-consume": _client_consume,
}


def main() -> int:
    spec = json.loads(sys.argv[1])
    if spec["core"] is not None:
        os.sched_setaffinity(0, {spec["core"]})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    load, target = Load(**spec["load"]), Target(**spec["target"])
    try:
        with Caller(target.port) as caller:
            measured = RUNS[load.kind](load, caller, target)
    except (Failure, OSError) as failure:
        complain(str(failure))
        return 1
    emit_json(dataclasses.asdict(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
