"""Verifications that are measured, each a process of its own, and the bare reading beside them.

Owns the commands, the bare reading, and the reading of records alone: `python -m tools.versus.verify_runs
records ENGINE STORE DATA`. Does not own what is read (verify_data) or how CPU is counted (whole_cpu).
Invariant: a verification that finds something, or leaves something unread, is a failure and no figure.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c

from tools.console import Failure
from tools.verify.core.stores import open_source
from tools.verify.core.topic import ClusterBytes
from tools.verify.manifest.check import columns_of
from tools.versus import whole_cpu
from tools.versus.whole_cpu import Ran

PIECE_BYTES = 8 << 20
TASK_BYTES = 256 << 20
"""A few tasks a core: each costs as much as some megabytes do."""
LOCAL, SPARK = "local", "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    ran: Ran
    document: dict[str, Any]
    """The report."""

    @property
    def size(self) -> int:
        return int(self.document["figures"]["scanned_bytes"])

    @property
    def records(self) -> int:
        return int(self.document["figures"]["records"])

    def ends(self) -> dict[tuple[str, int], int]:
        return {(each["topic"], each["partition"]): each["log_end"] for each in self.document["coverage"]}


def verify(
    engine: str,
    url: str,
    data: Path,
    report: Path,
    *,
    topics: Sequence[str] = (),
    manifest: Path | None = None,
    master: str = "",
    environ: Mapping[str, str] | None = None,
) -> Verified:
    options = [
        *("--engine", engine, "--store", url, "--data", f"{data}", "--json", f"{report}"),
        *(word for topic in topics for word in ("--topic", topic)),
        *(("--manifest", f"{manifest}") if manifest else ()),
        *(("--master", master) if master else ()),
    ]
    report.unlink(missing_ok=True)
    ran = whole_cpu.run(command(options), environ)
    return judged(ran, report)


def command(options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tools.cli", "verify", *options]


def judged(ran: Ran, report: Path) -> Verified:
    if ran.exit_code:
        why = f"see {report}" if report.exists() else "it wrote no report"
        raise Failure(f"a verification ended with exit code {ran.exit_code}: {why}")
    return Verified(ran=ran, document=json.loads(report.read_text()))


def raw(folders: Sequence[Path]) -> tuple[int, float]:
    """Read every file below the folders piece by piece and sum its bytes. Return how many, and CPU s."""
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    size, began = 0, time.process_time()
    buffer = bytearray(PIECE_BYTES)
    view = memoryview(buffer)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            crc = 0
            while many := file.readinto(view):
                crc = crc32c(view[:many], crc)
                size += many
    return size, time.process_time() - began


# --- records alone ---


def records(engine: str, url: str, data: Path, topics: Sequence[str]) -> Ran:
    """Read all records of the topics: hashed one by one, or as rows of Spark whose values are summed up."""
    words = [sys.executable, "-m", "tools.versus.verify_runs", engine, url, f"{data}", *topics]
    ran = whole_cpu.run(words)
    if ran.exit_code:
        raise Failure(f"records were not read by {engine}: exit code {ran.exit_code}")
    return ran


def _hash_all(url: str, data: str, topics: Sequence[str]) -> None:
    found = ClusterBytes([open_source(url), open_source(data)]).open(topics)
    for name in topics:
        for number in found[name].partitions():
            log = found[name].partition(number)
            start, end = log.to_its_end()
            hashed = sum(len(columns[0]) for columns in columns_of(log, start, end))
            if hashed != end - start:
                raise Failure(f"{name}-{number}: {hashed} records of {end - start}")


def _sum_all(url: str, data: str, topics: Sequence[str]) -> None:
    from tools.spark_session import HOT_JVM, open_session, quick_jvm

    settings = {"spark.driver.extraJavaOptions": quick_jvm(HOT_JVM)}
    spark = open_session("local[*]", name="records of 100 bytes", settings=settings, is_quick=True)
    reader = spark.read.format("tidewal").option("store", url).option("data", data)
    reader = reader.option("maxTaskBytes", TASK_BYTES)
    rows = reader.option("subscribe", ",".join(topics)).load()
    found = rows.selectExpr(
        "count(*) as n", "sum(octet_length(value)) as size", "max(offset) as last"
    ).first()
    spark.stop()
    if not found.n:
        raise Failure("no records")


READERS: Mapping[str, Callable[[str, str, Sequence[str]], None]] = {LOCAL: _hash_all, SPARK: _sum_all}


def has_spark() -> bool:
    from importlib.util import find_spec
    from shutil import which

    return find_spec("pyspark") is not None and (which("java") is not None or "JAVA_HOME" in os.environ)


if __name__ == "__main__":
    READERS[sys.argv[1]](sys.argv[2], sys.argv[3], sys.argv[4:])
