"""`make bench-verify`: what a proof from the bytes costs, by processes and by Spark, beside the bare reading.

Owns the rows, their goals and the table. Does not own the data (verify_data), the runs (verify_runs), or how
executors are added and killed (verify_scale).
Invariant: what a ratio compares was measured in one run over the same bytes, in the page cache; CPU is that
of all processes, the JVM's included; of several rounds the one with the least CPU counts, of each alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.console import Failure, complain, emit
from tools.versus import rows, verify_data, verify_runs, verify_scale
from tools.versus.minio import EXECUTABLE
from tools.versus.verify_data import DataSet, Made
from tools.versus.verify_runs import LOCAL, SPARK, Verified

FOLDER = Path("build") / "bench-verify"
LARGE_BYTES, FIRST_BYTES = 4_000_000_000, 1_000_000_000
RECORDS = 20_000_000
MINIO_BYTES = 1_000_000_000
FIRST = ("first",)
BOTH = ("first", "rest")
ENGINES = (LOCAL, SPARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    what: str
    value: float
    limit: float
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.is_least else self.value <= self.limit

    def told(self) -> str:
        verdict = "met" if self.is_met else "**missed**"
        return f"{self.what} {'≥' if self.is_least else '≤'} {self.limit:g} {verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of the table."""

    row: str
    raw: str = "-"
    local: str = "-"
    spark: str = "-"
    goals: tuple[Goal, ...] = ()

    def markdown(self) -> str:
        goals = "; ".join(goal.told() for goal in self.goals) or "-"
        return f"| {self.row} | {self.raw} | {self.local} | {self.spark} | {goals} |\n"


HEAD = "| row | raw | processes | Spark | goals |\n| --- | --- | --- | --- | --- |\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A little and all of a set, by one engine: what a start costs falls out of their difference."""

    first: Verified
    whole: Verified

    @property
    def rate(self) -> float:
        """Bytes a CPU second."""
        return self.whole.size / self.whole.ran.cpu_s

    @property
    def start_s(self) -> float:
        """CPU that does not grow with the bytes; nan where that is not known."""
        return self.first.ran.cpu_s - self.first.size / self.marginal_rate

    @property
    def marginal_rate(self) -> float:
        """That of what the first has not; nan where too little was read for a difference."""
        cpu_s = self.whole.ran.cpu_s - self.first.ran.cpu_s
        return (self.whole.size - self.first.size) / cpu_s if cpu_s > 0 else math.nan

    def told(self, raw_rate: float) -> str:
        ratio, marginal = self.rate / raw_rate, self.marginal_rate / raw_rate
        return (
            f"{_mb(self.rate)} ({ratio:.2f} of raw), {_mb(self.marginal_rate)} marginal ({marginal:.2f}): "
            f"{1e9 / self.marginal_rate:.2f} s CPU a GB and {self.start_s:.1f} s for the start; "
            f"{self.whole.ran.cpu_s:.1f} s CPU, {self.whole.ran.wall_s:.1f} s"
        )


def _mb(rate: float) -> str:
    return f"{rate / 1e6:,.0f} MB/s"


@dataclass(slots=True, kw_only=True)
class Bench:
    folder: Path
    scale: float = 1.0
    rounds: int = 2
    engines: Sequence[str] = ENGINES

    @property
    def report(self) -> Path:
        return (self.folder / "report.json").resolve()

    def verify(self, made: Made, engine: str, topics: Sequence[str] = (), **more: Any) -> Verified:
        options = {"url": made.url, "data": made.data, "report": self.report, "topics": topics, **more}
        rounds = [verify_runs.verify(engine, **options) for _ in range(self.rounds)]
        found = min(rounds, key=lambda each: each.ran.cpu_s)
        complain(
            f"{engine}, {found.size / 1e9:.2f} GB: {found.ran.cpu_s:.2f} s CPU, {found.ran.wall_s:.2f} s"
        )
        return found

    def raw_rate(self, made: Made) -> float:
        rounds = [verify_runs.raw([made.objects, made.data]) for _ in range(self.rounds)]
        rate = max(size / cpu_s for size, cpu_s in rounds)
        complain(f"raw: {_mb(rate)}")
        return rate

    # --- rows ---

    def large(self) -> list[Line]:
        wanted = verify_data.large(int(LARGE_BYTES * self.scale), int(FIRST_BYTES * self.scale))
        return self._batches(wanted, "batches of 16 KiB", {LOCAL: 0.65, SPARK: 0.4})

    def small(self) -> list[Line]:
        wanted = verify_data.small(int(RECORDS * self.scale))
        return self._batches(wanted, "batches of 1.1 KiB", {LOCAL: 0.3, SPARK: 0.2})

    def _batches(self, wanted: DataSet, title: str, least: Mapping[str, float]) -> list[Line]:
        made = verify_data.make(wanted, self.folder)
        raw_rate = self.raw_rate(made)
        pairs = {
            engine: Pair(first=self.verify(made, engine, FIRST), whole=self.verify(made, engine))
            for engine in self.engines
        }
        size = max(pair.whole.size for pair in pairs.values())
        lines = [
            Line(
                row=f"{title}, {size / 1e9:.1f} GB, MB/s a core",
                raw=_mb(raw_rate),
                **{engine: pair.told(raw_rate) for engine, pair in pairs.items()},
                goals=tuple(
                    Goal(what=f"{engine}, of raw", value=pair.rate / raw_rate, limit=least[engine])
                    for engine, pair in pairs.items()
                ),
            )
        ]
        if wanted.name == "large":
            lines.append(_start(pairs))
        return lines

    def records(self) -> list[Line]:
        wanted = verify_data.small(int(RECORDS * self.scale))
        made = verify_data.make(wanted, self.folder)
        counts = self._counts(made, wanted)
        cells, goals = {}, []
        for engine in self.engines:
            both = []
            for topics in (FIRST, BOTH):
                rounds = [
                    verify_runs.records(engine, made.url, made.data, topics) for _ in range(self.rounds)
                ]
                both.append(min(rounds, key=lambda ran: ran.cpu_s))
                complain(f"{engine}, records of {topics}: {both[-1].cpu_s:.2f} s CPU")
            few, many = counts["first"], sum(counts.values())
            more_s = both[1].cpu_s - both[0].cpu_s
            marginal = (many - few) / more_s / 1e6 if more_s > 0 else math.nan
            rate = many / both[1].cpu_s / 1e6
            cells[engine] = f"{rate:.2f} M/s, {marginal:.2f} marginal; {both[1].cpu_s:.1f} s CPU"
            goals.append(Goal(what=f"{engine}, M/s", value=rate, limit=2.5 if engine == LOCAL else 1.0))
        title = f"{sum(counts.values()) / 1e6:.0f} M records of 100 B, hashed or as rows of Spark, M/s a core"
        return [Line(row=title, **cells, goals=tuple(goals))]

    def _counts(self, made: Made, wanted: DataSet) -> dict[str, int]:
        ends = verify_runs.verify(LOCAL, made.url, made.data, self.report).ends()
        return {
            topic.name: sum(ends[topic.name, each] for each in range(topic.partitions))
            for topic in wanted.topics
        }

    def manifest(self) -> list[Line]:
        wanted = verify_data.small(int(RECORDS * self.scale))
        made = verify_data.make(wanted, self.folder)
        without = self.verify(made, LOCAL)
        sent = verify_data.write_manifest(made, wanted, without.ends())
        noted = self.verify(made, LOCAL, manifest=sent)
        hashed = min(verify_runs.records(LOCAL, made.url, made.data, BOTH).cpu_s for _ in range(self.rounds))
        more_s = noted.ran.cpu_s - without.ran.cpu_s
        told = f"{noted.ran.cpu_s:.1f} s CPU, {without.ran.cpu_s:.1f} without; records alone {hashed:.1f}"
        besides_s = more_s - hashed
        count = sum(without.ends()[topic, each] for topic in BOTH for each in range(4))
        return [
            Line(
                row=f"{count / 1e6:.0f} M rows of a manifest against their records",
                local=f"{told}; besides both {besides_s:.1f} s",
                goals=(Goal(what="besides the scan, s", value=besides_s, limit=8, is_least=False),),
            )
        ]

    def minio(self) -> list[Line]:
        if not EXECUTABLE.exists():
            raise Failure("MinIO is not here: make minio")
        size = int(MINIO_BYTES * self.scale)
        files = verify_data.make(verify_data.alike(size, is_minio=False), self.folder)
        made = verify_data.make(verify_data.alike(size, is_minio=True), self.folder)
        cells, goals = {}, []
        with verify_data.serving(made) as server:
            url = server.url(verify_data.BUCKET)
            for engine in self.engines:
                here = self.verify(files, engine)
                there = self.verify(made, engine, url=url, environ=server.environ)
                rates = [each.size / each.ran.cpu_s for each in (there, here)]
                ratio = rates[0] / rates[1]
                cells[engine] = f"{_mb(rates[0])}, {_mb(rates[1])} from files ({ratio:.2f})"
                goals.append(Goal(what=f"{engine}, of files", value=ratio, limit=0.6))
        return [
            Line(row=f"{size / 1e9:.1f} GB in MinIO, without MinIO's own CPU", **cells, goals=tuple(goals))
        ]

    def scaled_out(self) -> list[Line]:
        return [
            Line(
                row=each.row,
                spark=each.told,
                goals=tuple(
                    Goal(what=what, value=value, limit=most, is_least=False)
                    for what, value, most in each.most
                ),
            )
            for each in verify_scale.measure(self.folder, self.scale, self.rounds)
        ]


def _start(pairs: Mapping[str, Pair]) -> Line:
    limits = {LOCAL: 1.5, SPARK: 12.0}
    firsts = {engine: pair.first for engine, pair in pairs.items()}
    size = max(each.size for each in firsts.values())
    return Line(
        row=f"{size / 1e9:.1f} GB from a cold start of the command, seconds",
        **{engine: f"{each.ran.wall_s:.2f} s, {each.ran.cpu_s:.2f} s CPU" for engine, each in firsts.items()},
        goals=tuple(
            Goal(what=f"{engine}, s", value=each.ran.wall_s, limit=limits[engine], is_least=False)
            for engine, each in firsts.items()
        ),
    )


ROWS: Mapping[str, Callable[[Bench], list[Line]]] = {
    "large": Bench.large,
    "small": Bench.small,
    "records": Bench.records,
    "manifest": Bench.manifest,
    "minio": Bench.minio,
    "scale": Bench.scaled_out,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    names = [name for names in options.rows for name in names.split(",")] or list(ROWS)
    if unknown := set(names) - ROWS.keys():
        complain(f"bench-verify: no row {min(unknown)}: there are {', '.join(ROWS)}")
        return 1
    engines = [engine for engine in ENGINES if engine in options.engines.split(",")]
    if SPARK in engines and not verify_runs.has_spark():
        complain("Spark is not here (make spark, Java 17): processes alone")
        engines.remove(SPARK)
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder=options.folder, scale=options.scale, rounds=options.rounds, engines=engines)
    lines: list[Line] = []
    failed = False
    for name in names:
        try:
            lines += ROWS[name](bench)
        except Failure as failure:
            complain(f"bench-verify: {name}: {failure}")
            failed = True
    table = HEAD + "".join(line.markdown() for line in lines)
    emit(table)
    if options.markdown is not None:
        options.markdown.write_text(table)
    return 1 if failed else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-verify", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--rows", action="append", default=[], metavar="NAME[,…]", help=f"only these: {', '.join(ROWS)}"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of the sizes")
    parser.add_argument(
        "--rounds", type=int, default=2, help="the one with the least CPU counts (default: 2)"
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help="local, spark or both (default)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of the data, kept (default: {FOLDER})")
    parser.add_argument("--markdown", type=rows.report_file, metavar="FILE", help="write the table there too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
