"""A Spark session with the settings that short tasks in Python need.

Owns those settings, and where workers find Python and this project. Does not own what runs in a session.
Invariant: what the caller sets wins; what only one machine can bear is set only there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tidewal import FOLDER

WORKER: Final = Path(__file__).resolve().with_name("spark_worker.sh")
PYTHON_VARIABLE: Final = "SPARK_TIDEWAL_PYTHON"
QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""For short runs: what is compiled further never pays within a minute."""
SETTINGS: Final[Mapping[str, str]] = {
    # over TCP a task in Python may wait 30 ms for nothing; releases before 4.1 do not know it
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


class NoSpark(Exception):
    """There is no session to be had. One line says why."""


def there_is_a_session() -> bool:
    """Whether this process has one, which whoever came second must not stop."""
    if find_spec("pyspark") is None:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def open_session(
    master: str = "local[*]",
    *,
    name: str = "tidewal",
    settings: Mapping[str, str] | None = None,
    jars: Sequence[Path] = (),
    is_quick: bool = False,
) -> Any:
    """Return the session that there is, or a new one. `is_quick`: for a run of at most a minute or so."""
    if find_spec("pyspark") is None:
        raise NoSpark("PySpark is not installed: pip install 'tidewal[spark]'")
    from pyspark.sql import SparkSession

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
        chosen |= {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK_JVM}
    if jars:
        chosen["spark.jars"] = ",".join(map(str, jars))
    builder: Any = SparkSession.builder
    builder = builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        text = next(iter(f"{error}".splitlines()), type(error).__name__)
        raise NoSpark(f"Spark does not start: {text}") from None
