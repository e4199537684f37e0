"""`make bench-wal`: what the WAL tier saves and costs, with it and without it in turn, on a local store or
MinIO.

Owns the order of the measurement, its sizes, and what is done in each row. Does not own the brokers and the
windows in which they are watched (wal_system), the clients (wal_clients, load), rows and goals (wal_rows).
Invariant: runs without the tier and with it alternate, on brokers and a store of their own that have just
started; rates are fixed, so that the store's CPU does not decide; what was started or written is gone at the
end.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows, wal_rows, wal_system
from tools.versus.caller import Caller
from tools.versus.load import Load, run
from tools.versus.minio import EXECUTABLE
from tools.versus.rows import Figures
from tools.versus.tier_clients import Client, Samples
from tools.versus.tier_rows import percentile, within
from tools.versus.wal_clients import WalSpec, client
from tools.versus.wal_rows import FILE, MINIO, OFF, ON, Row, Runs
from tools.versus.wal_system import FOLLOWER, OF_TOPIC, Seen, System, figures, means_s, rack, watch

TOPIC = "busy"
SECONDS, PAIRS = 60.0, 2
WARM_S = 3.0
"""Connections, the first objects and the first pointers are not what a window is about."""
FEW, MANY = 12, 1000
PER_S = 50
CPU_ROUNDS_PER_S = 0.2
SMALL_OBJECTS = {"remote.wal.log.manager.combiner.task.upload.bytes": "300000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long each window lasts; `gb_max` ends one sooner, for the disk's sake."""

    seconds: float = SECONDS
    warm_s: float = WARM_S
    many: int = MANY
    gb_max: float = 4.0

    def window_s(self, mb_per_s: float) -> float:
        return min(self.seconds, self.gb_max * 1000 / mb_per_s)


# --- what is done in each row ---


def _spec(system: System, kind: str, **options: object) -> WalSpec:
    leader = system.leader
    return WalSpec(kind=kind, port=leader.port, pid=leader.pid, topic=TOPIC, **options)  # type: ignore[arg-type]


def _watched(system: System, sizes: Sizes, seconds: float, *specs: WalSpec) -> tuple[Seen, Samples]:
    """Watch while these clients go on; return the samples of the first one too."""
    clients: list[Client] = []
    try:
        clients += [client(spec) for spec in reversed(specs)]
        threading.Event().wait(sizes.warm_s)
        seen = watch(system, seconds)
        samples = clients[-1].stop()
        for each in clients[:-1]:
            each.stop()
    finally:
        for each in clients:
            each.__exit__(None, None, None)
    return seen, samples


def _acks(samples: Samples, seen: Seen) -> dict[str, float]:
    took_ms = within(samples.at_s, samples.took_ms, seen.start_s, seen.end_s)
    return {
        "p50_ms": percentile(took_ms, 0.5),
        "p99_ms": percentile(took_ms, 0.99),
        "max_ms": max(took_ms),
        "records": len(took_ms),
    }


def _steady(system: System, sizes: Sizes, mb_per_s: float, partitions: int, **options: int) -> Figures:
    """Write batches of 16 records of 1,000 bytes at a fixed rate."""
    system.create(TOPIC, partitions)
    options = {"batch_records": 16, "record_bytes": 1000, **options}
    spec = _spec(system, "paced", mb_per_s=mb_per_s, partitions=partitions, **options)
    seen, samples = _watched(system, sizes, sizes.window_s(mb_per_s), spec)
    return {**figures(seen, TOPIC, is_on=system.is_on), **_acks(samples, seen)}


def _bytes(system: System, sizes: Sizes) -> Figures:
    return _steady(system, sizes, 30, FEW)


def _bytes_of_many(system: System, sizes: Sizes) -> Figures:
    return _steady(system, sizes, 30, sizes.many, at_once=4)


def _cpu_30(system: System, sizes: Sizes) -> Figures:
    return _steady(system, sizes, 30, FEW)


def _cpu_100(system: System, sizes: Sizes) -> Figures:
    return _steady(system, sizes, 100, FEW)


def _partitions(system: System, sizes: Sizes) -> Figures:
    return _steady(system, sizes, 10, sizes.many, at_once=20, batch_records=1)


KIP_MB_PER_S, KIP_PARTITIONS = 39.2, 6


def _stock(system: System, mb_per_s: float) -> WalSpec:
    """The KIP's own run."""
    return _spec(
        system,
        "stock",
        record_bytes=2000,
        mb_per_s=mb_per_s,
        linger_ms=20,
        partitions=KIP_PARTITIONS,
    )


def _latency(system: System, sizes: Sizes) -> Figures:
    system.create(TOPIC, KIP_PARTITIONS)
    seen, samples = _watched(system, sizes, sizes.window_s(KIP_MB_PER_S), _stock(system, KIP_MB_PER_S))
    return {**figures(seen, TOPIC, is_on=system.is_on), **_acks(samples, seen)}


def _rate(system: System, sizes: Sizes) -> Figures:
    system.create(TOPIC, KIP_PARTITIONS)
    seen, _ = _watched(system, sizes, sizes.seconds, _stock(system, 0))
    return figures(seen, TOPIC, is_on=system.is_on)


def _far(system: System) -> WalSpec:
    return _spec(system, "far", record_bytes=1600, per_s=PER_S, rack=rack(FOLLOWER), from_node=FOLLOWER)


def _end_to_end(system: System, sizes: Sizes) -> Figures:
    return _to_a_follower(system, sizes, sizes.seconds)


def _end_to_end_under_load(system: System, sizes: Sizes) -> Figures:
    return _to_a_follower(system, sizes, sizes.window_s(KIP_MB_PER_S), _stock(system, KIP_MB_PER_S))


def _to_a_follower(system: System, sizes: Sizes, seconds: float, *beside: WalSpec) -> Figures:
    system.create(TOPIC, KIP_PARTITIONS)
    seen, samples = _watched(system, sizes, seconds, _far(system), *beside)
    found = {**figures(seen, TOPIC, is_on=system.is_on), **_acks(samples, seen)}
    if system.is_on:
        took_ms = within(samples.at_s, samples.took_ms, seen.start_s, seen.end_s)
        found |= wal_rows.stages(means_s(seen), sum(took_ms) / len(took_ms))
    return found


def _acks_all(system: System, sizes: Sizes) -> Figures:
    return _one_at_a_time(system, sizes, PER_S)


def _acks_all_at_once(system: System, sizes: Sizes) -> Figures:
    return _one_at_a_time(system, sizes, 0)


def _one_at_a_time(system: System, sizes: Sizes, per_s: float) -> Figures:
    system.create(TOPIC, 1)
    spec = _spec(system, "single", record_bytes=1600, acks="all", per_s=per_s)
    seen, samples = _watched(system, sizes, sizes.seconds, spec)
    return {**figures(seen, TOPIC, is_on=system.is_on), **_acks(samples, seen)}


Work = Callable[[System, Sizes], Figures]
WORK: dict[str, Work] = {
    "bytes-12": _bytes,
    "bytes-1000": _bytes_of_many,
    "acks1-latency": _latency,
    "acks1-rate": _rate,
    "e2e-alone": _end_to_end,
    "e2e-load": _end_to_end_under_load,
    "acks-all-50": _acks_all,
    "acks-all-next": _acks_all_at_once,
    "cpu-30": _cpu_30,
    "cpu-100": _cpu_100,
    "cpu-300k": _cpu_30,
    "partitions": _partitions,
}
REFUSED = "acks1-cpu"
SETTINGS = {"cpu-300k": SMALL_OBJECTS}

SHORT_S = 3.0
"""No run is that long: each ends after its requests, of which both kinds get as many."""
ONE = Load(kind="produce", record_bytes=1000, seconds=SHORT_S, bytes_max=6_000_000)
PRODUCED: dict[str, tuple[Load, str]] = {
    "one_us": (ONE, "cpu_us"),
    "many_us": (dataclasses.replace(ONE, connections=50, bytes_max=20_000_000), "cpu_us"),
    "deep_us": (dataclasses.replace(ONE, in_flight=100, bytes_max=100_000_000), "cpu_us"),
    "large_s_per_gb": (
        Load(
            kind="produce",
            record_bytes=2000,
            batch_records=8,
            in_flight=20,
            seconds=SHORT_S,
            bytes_max=300_000_000,
        ),
        "cpu_s_per_gb",
    ),
}
ALIKE = 2
"""So many brokers of each kind: equal ones differ too, by where their memory lies."""


def cpu_of_requests(sizes: Sizes, folder: Path) -> Iterator[tuple[str, Figures]]:
    """Measure what a produce request costs while the store refuses. All brokers run side by side and are
    asked in turn, off, on, off, on, each round from another one on: what the machine does meanwhile meets all
    of them. What is told is each broker's median over the rounds."""
    _, core = brokers.two_cores()
    kinds = [OFF, ON] * ALIKE
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(wal_system.refused(which, _of(folder, f"{which}-{number}")))
            for number, which in enumerate(kinds)
        ]
        costs: list[dict[str, list[float]]] = [{name: [] for name in PRODUCED} for _ in kinds]
        for number in range(max(2, int(sizes.seconds * CPU_ROUNDS_PER_S))):
            for name, (load, figure) in PRODUCED.items():
                for turn in range(len(kinds)):
                    at = (number + turn) % len(kinds)
                    cost = _cost_of(load, figure, running[at], f"{name}-{number}", core, kinds[at])
                    costs[at][name].append(cost)
    for which, found in zip(kinds, costs, strict=True):
        yield which, {name: statistics.median(each) for name, each in found.items()}


def _of(folder: Path, which: str) -> Path:
    return folder.with_name(f"{folder.name}-{which}")


def _cost_of(load: Load, figure: str, broker: brokers.Broker, topic: str, core: int, which: str) -> float:
    with Caller(broker.port) as caller:
        caller.create(topic, configs={OF_TOPIC: "true"} if which == ON else {})
        cost = rows.figures(run(load, broker, topic, core))[figure]
        caller.delete(topic)
    return cost


# --- all of it ---


def measure(chosen: Sequence[Row], store: str, pairs: int, sizes: Sizes, folder: Path) -> dict[str, Runs]:
    """Measure row by row. A row that cannot be measured leaves the others alone."""
    found: dict[str, Runs] = {}
    for row in chosen:
        runs = found.setdefault(row.name, Runs())
        try:
            for number in range(pairs):
                for which, one in _pair(row, store, sizes, folder / f"{row.name}-{number}"):
                    runs.add(which, one)
                    told = ", ".join(f"{name} {rows.number(value)}" for name, value in one.items())
                    complain(f"{row.name}: {which}: {told}")
        except (Failure, OSError) as failure:
            complain(f"bench-wal: {row.name}: {failure}")
            runs.failure = str(failure)
    return found


def _pair(row: Row, store: str, sizes: Sizes, folder: Path) -> Iterator[tuple[str, Figures]]:
    if row.name == REFUSED:
        yield from cpu_of_requests(sizes, folder)
        return
    for which in (OFF, ON):
        with wal_system.running(store, which, _of(folder, which), SETTINGS.get(row.name)) as system:
            found = WORK[row.name](system, sizes)
        yield which, found


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    started_s = time.perf_counter()
    try:
        chosen = wal_rows.select(name for names in options.rows for name in names.split(","))
    except ValueError as failure:
        complain(f"bench-wal: {failure}")
        return 1
    if options.store == MINIO and not EXECUTABLE.is_file():
        complain("bench-wal: MinIO is not here (make minio)")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tidewal-wal-", dir=options.folder) as folder:
            found = measure(
                chosen, options.store, options.pairs, Sizes(seconds=options.seconds), Path(folder)
            )
    except KeyboardInterrupt:
        complain("bench-wal: stopped")
        return 130
    text = wal_rows.markdown(chosen, options.store, found)
    if stages := wal_rows.stages_markdown(chosen, found):
        text += "\n" + stages
    emit(text)
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.json is not None:
        runs = {name: dataclasses.asdict(each) for name, each in found.items()}
        options.json.write_text(json.dumps(runs, indent=2) + "\n")
    emit(
        f"{time.perf_counter() - started_s:.0f} s; store: {options.store}; {options.pairs} pairs; windows of "
        f"{options.seconds:.0f} s; bytes between brokers are the kernel's count at their sockets"
    )
    return 1 if any(each.failure for each in found.values()) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-wal", description="The WAL tier: bytes between brokers, latency, CPU."
    )
    parser.add_argument(
        "--store", choices=(FILE, MINIO), default=FILE, help="where its objects are (default: file)"
    )
    parser.add_argument(
        "--rows", action="append", default=[], metavar="NAME[,…]", help="only these rows or groups of rows"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"of a window (default: {SECONDS:.0f})"
    )
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, metavar="N", help=f"of runs, off and on (default: {PAIRS})"
    )
    parser.add_argument(
        "--folder",
        type=lambda text: Path(text).resolve(),
        help="where the data goes; the system's temporary folder",
    )
    parser.add_argument("--markdown", type=rows.report_file, metavar="FILE", help="write the table there too")
    parser.add_argument(
        "--json", type=rows.report_file, metavar="FILE", help="write every run's figures there"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
