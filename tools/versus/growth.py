"""`make bench-growth`: what this broker costs as partitions, log and connections grow.

Owns the three parts and their tables. Does not own the load or the broker.
Invariant: disk space is checked before anything is written, and what was written is deleted at the end; a
restart counts only when the log ends where it did.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows
from tools.versus.caller import Caller, fetch_request, open_socket, read_frame
from tools.versus.load import Load, Measured, run

PARTITIONS = (10, 1000, 5000)
LOG_BYTES = 10_000_000_000
LOG_PARTITIONS = 4
LATE_BYTES = 256_000_000
CHECKPOINT_MS = 5000  # a minute by default: the tool would have to wait for one
PIECE_BYTES = 2_000_000_000
SPACE_FACTOR = 1.5
IDLE_CONNECTIONS = 5000
CONSUMERS = 1000
CONSUMER_WAIT_MS = 500
REST_S = 5.0
ROUNDS = 5
SPARE_FILES = 500
DEEP, WIDE = "deep", "wide"

Cells = dict[str, str]
Table = list[Cells]


def measure_partitions(folder: Path) -> Table:
    """Measure a broker of its own for each count of partitions: create, produce to and fetch from all, stop,
    start again."""
    return [_grown(folder / str(count), count) for count in PARTITIONS]


def _grown(folder: Path, count: int) -> Cells:
    core, client = brokers.two_cores()
    with brokers.Tidewal(folder, {core}) as broker:
        broker.start()
        with Caller(broker.port) as caller:
            started_s = time.perf_counter()
            caller.create(WIDE, count)
            created_s = time.perf_counter() - started_s
        produce = Load(kind="produce", record_bytes=1000, in_flight=100, partitions=count, seconds=3)
        fetch = dataclasses.replace(produce, kind="fetch", fetch_bytes=1)
        produced = _least_cpu(produce, broker, WIDE, client)
        fetched = _least_cpu(fetch, broker, WIDE, client)
        files = brokers.open_files(broker.pid)
        started_s = time.perf_counter()
        broker.stop()
        stopped_s = time.perf_counter() - started_s
        broker.start()
        start_cpu_s = brokers.cpu_s(broker.pid)
        _rest()
        cells = {
            "partitions": f"{count:,}",
            "made in": f"{created_s:.2f} s",
            "produce": f"{produced:.1f} µs CPU",
            "fetch": f"{fetched:.1f} µs CPU",
            "open files": f"{files:,}",
            "clean stop": f"{stopped_s:.2f} s",
            "ready again": f"{broker.ready_s:.2f} s",
            "CPU for that": f"{start_cpu_s:.2f} s",
            "memory at rest": f"{brokers.resident_mb(broker.pid):.0f} MB",
        }
    _tell(cells)
    return cells


def _least_cpu(load: Load, broker: brokers.Broker, topic: str, core: int) -> float:
    """Return µs a request, after a round that opens what is opened on first use."""
    if (first := run(load, broker, topic, core)).requests < load.partitions:
        raise Failure(f"{first.requests} requests in {load.seconds:g} s do not reach every partition")
    return min(rows.figures(run(load, broker, topic, core))["cpu_us"] for _ in range(3))


# --- a long log ---


def measure_log(folder: Path, log_bytes: int = LOG_BYTES) -> Table:
    """Measure many partitions, all of the log in a few of them; killed, stopped, and killed a little
    later."""
    check_space(shutil.disk_usage(folder).free, log_bytes)
    core, client = brokers.two_cores()
    table = []
    settings = {"log.flush.offset.checkpoint.interval.ms": str(CHECKPOINT_MS)}
    with brokers.Tidewal(folder / "log", {core}, settings=settings) as broker:
        broker.start()
        with Caller(broker.port) as caller:
            caller.create(WIDE, PARTITIONS[-1])
            caller.create(DEEP, LOG_PARTITIONS)
        small = Load(kind="produce", record_bytes=1000, in_flight=100, partitions=PARTITIONS[-1], seconds=3)
        run(small, broker, WIDE, client)
        _write(broker, log_bytes, client)
        threading.Event().wait(2 * CHECKPOINT_MS / 1000)
        title = f"{log_bytes / 1e9:.0f} GB, {PARTITIONS[-1]:,} partitions"
        table.append(_again(broker, broker.kill, f"{title}, kill -9"))
        table.append(_again(broker, broker.stop, f"{title}, clean stop"))
        _write(broker, LATE_BYTES, client)
        table.append(_again(broker, broker.kill, f"{LATE_BYTES / 1e6:.0f} MB more, kill -9"))
        table.append(_again(broker, broker.stop, f"{title}, clean stop again"))
    return table


def check_space(free_bytes: int, log_bytes: int) -> None:
    wanted = int((log_bytes + LATE_BYTES) * SPACE_FACTOR)
    if free_bytes < wanted:
        raise Failure(
            f"{free_bytes / 1e9:.0f} GB of disk are free, {wanted / 1e9:.0f} GB are needed: "
            "--folder names another place, --log-gb a shorter log"
        )


def pieces(total_bytes: int, piece_bytes: int = PIECE_BYTES) -> Iterable[int]:
    """Split a long log into runs of the load: each is bounded in time."""
    while total_bytes > 0:
        yield min(piece_bytes, total_bytes)
        total_bytes -= piece_bytes


def _write(broker: brokers.Broker, total_bytes: int, core: int) -> None:
    for size in pieces(total_bytes):
        load = Load(
            kind="produce",
            record_bytes=10_000,
            batch_records=100,
            in_flight=5,
            seconds=50,
            bytes_max=size,
            partitions=LOG_PARTITIONS,
        )
        measured = run(load, broker, DEEP, core)
        complain(
            f"wrote {measured.bytes / 1e9:.2f} GB at {measured.bytes / measured.seconds / 1e6:,.0f} MB/s"
        )


def _again(broker: brokers.Broker, end: Callable[[], None], title: str) -> Cells:
    ends = _log_ends(broker)
    started_s = time.perf_counter()
    end()
    ended_s = time.perf_counter() - started_s
    broker.start()
    at_ready, start_cpu_s = brokers.read_bytes(broker.pid), brokers.cpu_s(broker.pid)
    _rest()
    if _log_ends(broker) != ends:
        raise Failure(f"after {title} the log ends at {_log_ends(broker)}, not at {ends}")
    cells = {
        "log": title,
        "end took": f"{ended_s:.2f} s",
        "ready again": f"{broker.ready_s:.2f} s",
        "CPU for that": f"{start_cpu_s:.2f} s",
        "read until ready": f"{at_ready / 1e6:,.0f} MB",
        "read 5 s later": f"{brokers.read_bytes(broker.pid) / 1e6:,.0f} MB",
        "memory at rest": f"{brokers.resident_mb(broker.pid):.0f} MB",
    }
    _tell(cells)
    return cells


def _log_ends(broker: brokers.Broker) -> list[int]:
    with Caller(broker.port) as caller:
        return [caller.log_end(DEEP, partition) for partition in range(LOG_PARTITIONS)]


# --- many connections ---


def measure_connections(folder: Path) -> Table:
    """Measure a produce alone, beside idle connections, and beside consumers in long polls."""
    core, client = brokers.two_cores()
    limit = brokers.raise_file_limit()
    if limit < IDLE_CONNECTIONS + SPARE_FILES:
        raise Failure(f"only {limit} files may be open, {IDLE_CONNECTIONS + SPARE_FILES} are needed")
    table = []
    with brokers.Tidewal(folder / "connections", {core}) as broker:
        broker.start()
        with Caller(broker.port) as caller:
            caller.create("busy")
            caller.create("quiet")
        _produced(broker, client)
        table.append(_beside(broker, client, "nothing else", None, 0))
        with IdleConnections(broker.port, IDLE_CONNECTIONS) as idle:
            table.append(
                _beside(
                    broker, client, f"{IDLE_CONNECTIONS:,} idle connections", table_memory(table), idle.count
                )
            )
    with brokers.Tidewal(folder / "polls", {core}) as broker:
        broker.start()
        with Caller(broker.port) as caller:
            caller.create("busy")
            caller.create("quiet")
        _produced(broker, client)
        _rest()
        alone_mb = brokers.resident_mb(broker.pid)
        with WaitingConsumers(broker.port, CONSUMERS, client):
            title = f"{CONSUMERS:,} consumers in long polls of {CONSUMER_WAIT_MS} ms"
            table.append(_beside(broker, client, title, alone_mb, CONSUMERS))
    return table


def table_memory(table: Table) -> float:
    return float(table[-1]["memory"].removesuffix(" MB"))


def _beside(broker: brokers.Broker, core: int, title: str, alone_mb: float | None, many: int) -> Cells:
    _rest()  # codecs warm up in idle slices after a start
    before_s, started_s = brokers.cpu_s(broker.pid), time.perf_counter()
    _rest()
    use = (brokers.cpu_s(broker.pid) - before_s) / (time.perf_counter() - started_s)
    memory_mb = brokers.resident_mb(broker.pid)
    rounds = [_produced(broker, core).latency_us for _ in range(ROUNDS)]
    cells = {
        "beside": title,
        "memory": f"{memory_mb:.1f} MB",
        "a connection": "-" if alone_mb is None else f"{(memory_mb - alone_mb) * 1024 / many:.1f} KB",
        "CPU before the produce": f"{use:.1%} of a core",
        "produce p50": f"{statistics.median(each['p50'] for each in rounds):.0f} µs",
        "produce p99": f"{statistics.median(each['p99'] for each in rounds):.0f} µs",
    }
    _tell(cells)
    return cells


def _produced(broker: brokers.Broker, core: int) -> Measured:
    return run(Load(kind="produce", record_bytes=1000), broker, "busy", core)


class IdleConnections:
    """Connections that said one word each, as clients do when they connect, and then nothing."""

    def __init__(self, port: int, count: int) -> None:
        self.count = count
        self._port = port
        self._callers: list[Caller] = []

    def __enter__(self) -> Self:
        for _ in range(self.count):
            caller = Caller(self._port)
            self._callers.append(caller)
            caller.metadata()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for caller in self._callers:
            caller.socket.close()


class WaitingConsumers:
    """Consumers at the end of a quiet topic: each asks again as soon as it got its empty answer."""

    def __init__(self, port: int, count: int, core: int) -> None:
        self._request = fetch_request("quiet", 0, 0, bytes_max=1 << 20, wait_ms=CONSUMER_WAIT_MS)
        self._sockets = [open_socket(port) for _ in range(count)]
        self._core = core
        self._stopping = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._poll, name="consumers")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for each in self._sockets:
            each.close()
        if self._failure is not None and kind is None:
            raise Failure(self._failure)

    def _poll(self) -> None:
        os.sched_setaffinity(0, {self._core})  # this thread alone
        poll = select.epoll()
        by_file: dict[int, socket.socket] = {}
        for number, each in enumerate(self._sockets):
            by_file[each.fileno()] = each
            poll.register(each.fileno(), select.EPOLLIN)
            each.sendall(self._request)
            if number % 10 == 9:  # spread over a wait, as independent clients are
                self._stopping.wait(CONSUMER_WAIT_MS / 1000 / len(self._sockets) * 10)
        while not self._stopping.is_set():
            for file, _ in poll.poll(0.2):
                try:
                    read_frame(by_file[file])
                    by_file[file].sendall(self._request)
                except (OSError, Failure) as failure:
                    self._failure = f"a consumer lost its connection: {failure}"
                    return
        poll.close()


# --- all of it ---


def markdown(table: Table) -> str:
    heads = list(table[0])
    lines = [heads, ["---"] * len(heads), *([row[head] for head in heads] for row in table)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rest() -> None:
    threading.Event().wait(REST_S)


def _tell(cells: Cells) -> None:
    complain(", ".join(f"{name} {value}" for name, value in cells.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    parts: dict[str, Callable[[Path], Table]] = {
        "partitions": measure_partitions,
        "log": lambda folder: measure_log(folder, int(options.log_gb * 1e9)),
        "connections": measure_connections,
    }
    tables: dict[str, Table] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="tidewal-growth-", dir=options.folder) as name:
            for part in options.parts.split(","):
                if part not in parts:
                    raise Failure(f"no part {part}; there are {', '.join(parts)}")
                tables[part] = parts[part](Path(name))
    except Failure as failure:
        complain(f"bench-growth: {failure}")
        return 1
    finally:
        text = "\n".join(markdown(table) for table in tables.values())
        emit(text)
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.json is not None:
        options.json.write_text(json.dumps(tables, indent=2) + "\n")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-growth", description="What grows as this broker grows.")
    parser.add_argument("--parts", default="partitions,log,connections", metavar="NAME[,…]")
    parser.add_argument("--folder", type=Path, help="where the data goes; the system's temporary folder")
    parser.add_argument("--log-gb", type=float, default=LOG_BYTES / 1e9, metavar="GB")
    parser.add_argument(
        "--markdown", type=rows.report_file, metavar="FILE", help="write the tables there too"
    )
    parser.add_argument("--json", type=rows.report_file, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
