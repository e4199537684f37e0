"""`make soak MINUTES=30`: one broker process under mixed load, and the verdict on what grew.

Owns the processes, the sampling and the verdict. Does not own what the clients do (clients, visits) nor what
the broker says of itself (figures). Every sample is written to a file as it is taken.
Invariant: whatever this starts has ended when it ends, and its data is deleted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO

from tests.processes import ROOT, BrokerProcess
from tests.soak.clients import ROLES, make_topics
from tests.soak.figures import Figures, scrape
from tools.console import complain, emit
from tools.ports import free_port

SETTINGS = {
    "connections.max.idle.ms": "30000",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "log.cleaner.backoff.ms": "1000",
    "log.retention.check.interval.ms": "2000",
    "log.segment.delete.delay.ms": "1000",
    "max.incremental.fetch.session.cache.slots": "100",
    "offsets.retention.check.interval.ms": "10000",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.segment.bytes": "1048576",
    "producer.id.expiration.ms": "60000",
}
SAMPLE_S = 5.0
CLIENT_S_MAX = 120.0
REST_S_MAX = 90.0
STEADY_S, STEADY_BLOCKS = 2.0, 200
SETTLED_MINUTE = 10
"""What is filled up to its bound (fetch sessions, cached configurations) is full by then."""
WINDOW = 1 / 6
"""Of the time: the samples at a moment, as long as the load is too uneven for one."""
TITLES = (1 / 6, 1 / 2, 1.0)
BLOCKS_GROWTH_MAX = 0.03
RESIDENT_GROWTH_MAX_MB = 8.0
FILES_GROWTH_MAX = 8
TASKS_GROWTH_MAX = 3


@dataclass(frozen=True, slots=True)
class Sample:
    minute: float
    figures: Figures


class Failed(Exception):
    """The soak cannot go on: a client or the broker found something wrong."""


class Soak:
    def __init__(self, minutes: float, folder: Path, figures: Path) -> None:
        self.minutes = minutes
        self.samples: list[Sample] = []
        self.done: dict[str, dict[str, int]] = {}
        self.after: Figures | None = None
        self._folder = folder
        self._figures = figures
        self._admin = f"127.0.0.1:{free_port()}"
        self._started_s = 0.0

    def run(self) -> list[str]:
        """What is wrong; nothing when all is well."""
        arguments = ("--admin", self._admin)
        with ExitStack() as stack:
            broker = stack.enter_context(
                BrokerProcess(self._folder / "data", settings=SETTINGS, arguments=arguments)
            )
            try:
                make_topics(broker.bootstrap)
                self._await_codecs()
                self._started_s = time.monotonic()
                clients = [stack.enter_context(self._client(role, broker.bootstrap)) for role in ROLES]
                self._watch(broker, clients)
                for client in clients:
                    client.join()
                    self.done[client.role] = client.done
                self.after = self._rest()
            except Failed as failure:
                return [str(failure)]
            finally:
                errors = self._folder / "broker.txt"
                errors.write_text(broker.stderr)
            wrong = [*verdict(self.samples, self.minutes), *left(self.after)]
            if "Traceback" in broker.stderr or " ERROR " in broker.stderr:
                wrong.append("the broker logged an error: " + first_error(broker.stderr))
            if broker.terminate() != 0:
                wrong.append("the broker did not stop cleanly")
            return wrong

    def _client(self, role: str, bootstrap: str) -> Client:
        return Client(role, bootstrap, self.minutes * 60, self._folder / f"{role}.txt")

    def _await_codecs(self) -> None:
        """They load in idle moments after the start. Under load that takes half an hour, and would be all
        that the figures show."""
        pause, end_s, before = threading.Event(), time.monotonic() + REST_S_MAX, 0
        while time.monotonic() < end_s:
            blocks = scrape(self._admin).blocks
            if abs(blocks - before) < STEADY_BLOCKS:
                return
            before = blocks
            pause.wait(STEADY_S)
        raise Failed("the broker does not come to rest after its start")

    def _watch(self, broker: BrokerProcess, clients: Sequence[Client]) -> None:
        pause, end_s = threading.Event(), self._started_s + self.minutes * 60
        told = 0
        while time.monotonic() < end_s:
            pause.wait(SAMPLE_S)
            if broker.process.poll() is not None:
                raise Failed(f"the broker ended: {broker.stderr[-2000:]}")
            for client in clients:
                client.check()
            sample = self._sample()
            if sample.minute >= told + 1:
                told = int(sample.minute)
                complain(line(sample))

    def _sample(self) -> Sample:
        sample = Sample(round((time.monotonic() - self._started_s) / 60, 2), scrape(self._admin))
        self.samples.append(sample)
        with self._figures.open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")
        return sample

    def _rest(self) -> Figures:
        """The figures once all clients have gone, when what may take its time has had it."""
        pause, end_s = threading.Event(), time.monotonic() + REST_S_MAX
        while left(figures := self._sample().figures) and time.monotonic() < end_s:
            pause.wait(1)
        complain(line(self.samples.pop()))
        return figures


class Client:
    """A client process; what it writes goes to a file of its own."""

    def __init__(self, role: str, bootstrap: str, seconds: float, output: Path) -> None:
        self.role = role
        self.done: dict[str, int] = {}
        self._output = output
        self._file: IO[bytes] = output.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.clients", role, bootstrap, str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._file,
            cwd=ROOT,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._file.close()

    def check(self) -> None:
        if self._process.poll() not in (None, 0):
            raise Failed(f"{self.role} failed: {self._output.read_text(errors='replace')[-3000:].strip()}")

    def join(self) -> None:
        try:
            told, _ = self._process.communicate(timeout=CLIENT_S_MAX)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.role} does not come to an end") from None
        self.check()
        self.done = json.loads(told)


# ---- the verdict -------------------------------------------------------------------------------------------


def verdict(samples: Sequence[Sample], minutes: float) -> list[str]:
    """What grew between the settled broker and the end."""
    early, late = around(samples, settled(minutes), minutes), around(samples, minutes, minutes)
    wrong = []

    def compare(what: str, of: Callable[[Figures], float], growth_max: float) -> None:
        before, now = (median(of(sample.figures) for sample in each) for each in (early, late))
        if now - before > growth_max:
            wrong.append(f"{what} grew from {before:,.1f} to {now:,.1f}, allowed is {growth_max:,.1f}")

    blocks = median(sample.figures.blocks for sample in early)
    compare("resident memory (MB)", lambda each: each.resident_bytes / 1e6, RESIDENT_GROWTH_MAX_MB)
    compare("heap blocks", lambda each: each.blocks, blocks * BLOCKS_GROWTH_MAX)
    compare("open files", lambda each: each.held["open files"], FILES_GROWTH_MAX)
    compare("tasks", lambda each: each.held["tasks"], TASKS_GROWTH_MAX)
    return wrong


def settled(minutes: float) -> float:
    return min(max(SETTLED_MINUTE, minutes / 3), minutes * 2 / 3)


def around(samples: Sequence[Sample], minute: float, minutes: float) -> list[Sample]:
    """A window that ends at or before the last sample."""
    half = WINDOW * minutes / 2
    middle = min(minute, minutes - half)
    return [sample for sample in samples if abs(sample.minute - middle) <= half] or list(samples[-1:])


def left(figures: Figures) -> list[str]:
    """What clients left behind. Sessions that were not closed stay until another one needs their place."""
    nothing = ("connections", "bytes queued", "waiting requests", "waits at partitions")
    of_groups = ("waiting group requests", "groups", "members", "offsets")
    wrong = [
        f"{figures.held[what]} {what} are left when all clients have gone"
        for what in (*nothing, *of_groups, "logs to be deleted")
        if figures.held[what]
    ]
    if figures.held["topics counted"] > figures.held["topics"]:
        wrong.append("deleted topics are still counted")
    return wrong


def first_error(text: str) -> str:
    return next(line for line in text.splitlines() if " ERROR " in line or "Traceback" in line)


def table(samples: Sequence[Sample], minutes: float, after: Figures | None) -> str:
    heads = ("after", "memory", "heap blocks", "open files", "tasks", "threads", "connections", "requests")
    rows: list[Sequence[str]] = [heads, ["---"] * len(heads)]
    for part in TITLES:
        window = around(samples, part * minutes, minutes)
        rows.append([f"{part * minutes:.0f} min", *cells([sample.figures for sample in window])])
    if after is not None:
        rows.append(["all have left", *cells([after])])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cells(figures: Sequence[Figures]) -> list[str]:
    held = {what: median(each.held[what] for each in figures) for what in figures[0].held}
    return [
        f"{median(each.resident_bytes for each in figures) / 1e6:.1f} MB",
        f"{median(each.blocks for each in figures):,.0f}",
        *(f"{held[what]:,.0f}" for what in ("open files", "tasks", "threads", "connections")),
        f"{figures[-1].requests / 1e6:.2f} M",
    ]


def line(sample: Sample) -> str:
    figures = sample.figures
    held = ", ".join(f"{what} {count}" for what, count in figures.held.items())
    return (
        f"minute {sample.minute:.1f}: resident {figures.resident_bytes / 1e6:.1f} MB, "
        f"blocks {figures.blocks:,}, {held}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description="One broker under mixed load.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--folder", type=Path, help="where the data goes; the system's temporary folder")
    parser.add_argument("--figures", type=Path, default=Path("build/soak.jsonl"), help="every sample")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args(arguments)
    options.figures.parent.mkdir(parents=True, exist_ok=True)
    options.figures.write_text("")
    with tempfile.TemporaryDirectory(prefix="tidewal-soak-", dir=options.folder) as name:
        soak = Soak(options.minutes, Path(name), options.figures)
        wrong = soak.run()
    if soak.samples:
        text = table(soak.samples, options.minutes, soak.after)
        emit(text)
        if options.markdown is not None:
            options.markdown.write_text(text)
    for role, done in soak.done.items():
        complain(f"{role}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(done.items())))
    for each in wrong:
        complain(f"soak: {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
