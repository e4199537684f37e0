"""A Spark session with the settings that short tasks in Python need. `python -m tools.spark_session` makes an
archive of classes, with which its JVM starts in half the CPU.

Owns those settings, the archive, and where workers find Python and this project. Does not own what runs in a
session.
Invariant: what the caller sets wins; what only one machine can bear is set only there.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tidewal import FOLDER

WORKER: Final = Path(__file__).resolve().with_name("spark_worker.sh")
PYTHON_VARIABLE: Final = "SPARK_TIDEWAL_PYTHON"
QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For short runs: what is compiled further never pays within a minute."""
HOT_JVM: Final = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""For short runs over many rows: ten times as much as usual must be done in a loop before it is compiled
further, which pays for the few that see every row."""
QUIET_JVM: Final = "-Xlog:disable -Xlog:all=error:stderr"
ARCHIVED_JVM: Final = f"-Xshare:auto {QUIET_JVM} -XX:SharedArchiveFile="
"""An archive of another Java or of other jars is passed over, without a word on stdout."""
LAUNCHER_VARIABLE: Final = "SPARK_LAUNCHER_OPTS"
"""Of the JVM that only finds out how to start the other."""
END_S_MAX: Final = 120.0
SETTINGS: Final[Mapping[str, str]] = {
    # over TCP a task in Python may wait 30 ms for nothing; releases before 4.1 do not know it
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


class NoSpark(Exception):
    """There is no session to be had. One line says why."""


def is_running() -> bool:
    """Whether this process has a context of Spark, which whoever came second must not stop."""
    if find_spec("pyspark") is None:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def open_context(
    master: str, *, name: str, settings: Mapping[str, str] | None = None, is_quick: bool = False
) -> Any:
    """Return the context that there is, or a new one, for jobs without SQL: a session is a third more of what
    the JVM takes to start."""
    chosen = _chosen(master, name, settings or {}, (), is_quick=is_quick)
    from pyspark import SparkConf, SparkContext

    return _opened(lambda: SparkContext.getOrCreate(SparkConf().setAll(list(chosen.items()))))


def open_session(
    master: str = "local[*]",
    *,
    name: str = "tidewal",
    settings: Mapping[str, str] | None = None,
    jars: Sequence[Path] = (),
    is_quick: bool = False,
) -> Any:
    """Return the session that there is, or a new one. `is_quick`: for a run of at most a minute or so."""
    chosen = _chosen(master, name, settings or {}, jars, is_quick=is_quick)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return _opened(builder.getOrCreate)


def _chosen(
    master: str, name: str, settings: Mapping[str, str], jars: Sequence[Path], *, is_quick: bool
) -> dict[str, str]:
    """Return all settings, and set what has its place in the environment."""
    if find_spec("pyspark") is None:
        raise NoSpark("PySpark is not installed: pip install 'tidewal[spark]'")
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if master.startswith("local["):
        os.environ.setdefault(PYTHON_VARIABLE, sys.executable)
        os.environ.setdefault("PYSPARK_PYTHON", f"{WORKER}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    path = os.pathsep.join([FOLDER, *(each for each in sys.path if each and each != FOLDER)])
    # the current folder may hold other people's packages of the same names
    found = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    os.environ.update(found)  # of whoever plans a read beside this process
    chosen = {**SETTINGS, **{f"spark.executorEnv.{name}": value for name, value in found.items()}}
    if is_quick:
        os.environ.setdefault(LAUNCHER_VARIABLE, QUICK_JVM)
        chosen["spark.driver.extraJavaOptions"] = quick_jvm()
        chosen["spark.sql.shuffle.partitions"] = "2"
    if jars:
        chosen["spark.jars"] = ",".join(map(str, jars))
    chosen["spark.app.name"] = name
    if master:
        chosen["spark.master"] = master
    return {**chosen, **settings}


def quick_jvm(options: str = QUICK_JVM) -> str:
    """Return the options of a driver's JVM for a run of at most a minute or so, the archive among them."""
    classes = archive()
    is_usable = classes.exists() and " " not in f"{classes}"
    return f"{options} {ARCHIVED_JVM}{classes}" if is_usable else options


def _opened(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        text = next(iter(f"{error}".splitlines()), type(error).__name__)
        raise NoSpark(f"Spark does not start: {text}") from None


# --- the archive of classes ---


def archive() -> Path:
    """Where it lies in this environment, once it was made."""
    from pyspark import __version__

    return Path(sys.prefix) / "share" / "tidewal" / f"spark-{__version__}.jsa"


def make_archive(path: Path) -> None:
    """Keep the classes that small jobs load as a JVM has them in memory. Raise NoSpark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".tmp")
    made.unlink(missing_ok=True)
    settings = {"spark.driver.extraJavaOptions": f"{QUICK_JVM} {QUIET_JVM} -XX:ArchiveClassesAtExit={made}"}
    spark = open_session("local[2]", name="classes", settings=settings, is_quick=True)
    context = spark.sparkContext
    shared = context.broadcast(1)
    rows = context.parallelize(range(8), 4).mapPartitions(lambda part: [(each % 2, each) for each in part])
    rows.persist().collect()
    rows.groupByKey(2).map(lambda pair: (pair[0], len(pair[1]) + shared.value)).collect()
    _use_sql(spark, path.parent)
    process = context._gateway.proc
    spark.stop()
    context._gateway.shutdown()
    process.stdin.close()
    process.wait(END_S_MAX)
    if not made.exists():
        raise NoSpark("the JVM made no archive of its classes")
    made.rename(path)


def _use_sql(spark: Any, folder: Path) -> None:
    """Have it load what queries, Parquet and sources in Python take."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):  # type: ignore[misc]
        def read(self, partition: Any) -> Iterator[tuple[int, bytes]]:
            yield 1, b"v"

    class Source(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "classes"

        def schema(self) -> str:
            return "n bigint, v binary"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    spark.dataSource.register(Source)
    spark.read.format("classes").load().createOrReplaceTempView("classes")
    spark.sql("select n % 2 as k, count(*), max(v) from classes where v is not null group by 1").collect()
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        spark.range(8).selectExpr("cast(id as string) as k", "id").write.parquet(f"{kept}/rows")
        spark.read.parquet(f"{kept}/rows").sort("id").collect()


if __name__ == "__main__":
    make_archive(archive())
