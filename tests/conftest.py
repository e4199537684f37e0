"""What every test may ask for: a broker in this process, a broker in its own, real peers, hypothesis
profiles.

Owns fixtures and the collection of requirement marks. A fixture that needs a peer which is not there skips
and names the command that brings it.
Invariant: whatever a fixture starts is stopped when its test ends, whether the test passed or not.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

from tests.processes import BrokerProcess
from tools.versus.minio import MinioServer

if TYPE_CHECKING:
    from broker.server import Broker

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"

# Examples are the same on every CI run; at home each run explores others, and a failure prints the blob
# that replays it.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("home", settings.get_profile("ci"), derandomize=False)
settings.load_profile("ci" if os.environ.get("CI") else "home")


# --- brokers ------------------------------------------------------------------------------------------------


class MakeBroker(Protocol):
    def __call__(self, /, **properties: str) -> Awaitable[Broker]: ...


@pytest.fixture
async def make_broker(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Callable[..., Awaitable[Broker]]]:
    """Starts in-process brokers with real files and sockets on free ports.

    Properties are Kafka's, with `_` for `.`. All brokers of one test share one data directory, so a second
    one is a restart of the first: stop that before.
    """
    from broker import process, server
    from broker.config import broker as config

    started: list[Broker] = []

    async def make(**properties: str) -> Broker:
        properties = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "data"),
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        parsed = config.from_properties(properties, standalone=True)
        broker = server.Broker(parsed, process.real_world(parsed, None))
        await broker.start()
        started.append(broker)
        return broker

    yield make
    for broker in reversed(started):
        await broker.stop()
    most_ms = request.config.getoption("--loop-held-max-ms")
    if most_ms is not None:
        held_ms = [round(broker.components.loop_monitor.held.worst_s * 1000, 1) for broker in started]
        assert max(held_ms, default=0) <= most_ms, f"the loops were held for {held_ms} ms"


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    """One broker in this process, started."""
    return await make_broker()


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    """host:port of `broker`."""
    listener = next(iter(broker.listeners.values()))
    return f"{listener.host}:{listener.port}"


@pytest.fixture
def heard_signals() -> Iterator[None]:
    """Give the processes that a test starts every signal: those that a background shell or nohup has this
    one ignore would be ignored there as well."""
    ignored = [
        number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts real broker processes; without `data` they share one data directory, one after the other."""
    started: list[BrokerProcess] = []

    def start(data: Path | None = None, **options: object) -> BrokerProcess:
        process = BrokerProcess(data or tmp_path / "data", **options)  # type: ignore[arg-type]
        started.append(process)
        return process

    yield start
    for process in reversed(started):
        process.close()


@pytest.fixture
def broker_process(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """One real broker process, ready."""
    return start_broker()


# --- peers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka_home() -> Path:
    """Apache Kafka's home: the class path is `HOME/config:HOME/libs/*` (the first holds log4j2.xml)."""
    home = PEERS / "kafka"
    if not (home / ".stamp").exists():
        pytest.skip("Apache Kafka is not here: make kafka")
    if shutil.which("java") is None:
        pytest.skip("Apache Kafka needs Java 17 on PATH")
    return home


@pytest.fixture(scope="session")
def minio() -> Path:
    """The MinIO server's executable."""
    executable = PEERS / "minio" / "minio"
    if not executable.exists():
        pytest.skip("MinIO is not here: make minio")
    return executable


@pytest.fixture(scope="session")
def minio_server(minio: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """One running MinIO for all tests of this process."""
    server = MinioServer(minio, tmp_path_factory.mktemp("minio"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def bucket(minio_server: MinioServer) -> str:
    """A bucket of `minio_server`; each test takes a prefix of its own."""
    minio_server.make_bucket("tidewal")
    return "tidewal"


@pytest.fixture
def spark(spark_session: Any) -> Iterator[Any]:
    """The one Spark session, with Spark's own Kafka connector."""
    yield spark_session
    gc.collect()  # PySpark leaves its sockets to the garbage collector, which the next test must not pay for


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Started once for all tests of a run."""
    jars = sorted((PEERS / "spark" / "jars").glob("*.jar"))
    if find_spec("pyspark") is None or not jars:
        pytest.skip("PySpark or its Kafka connector is not here: make spark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 on PATH")
    from tools.spark_session import open_session

    folder = tmp_path_factory.mktemp("spark")
    settings = {"spark.local.dir": f"{folder}", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    session = open_session("local[2,4]", settings=settings, jars=jars, is_quick=True)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


# --- generated sequences of requests ------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "differential_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--differential-from")
        seeds = metafunc.config.getoption("--differential-seeds")
        metafunc.parametrize("differential_seed", range(first, first + seeds))
    if "chaos_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--chaos-from")
        rounds = metafunc.config.getoption("--chaos-rounds")
        metafunc.parametrize("chaos_seed", range(first, first + rounds))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told = [
        dict(report.user_properties)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call" and report.user_properties
    ]
    played = [properties for properties in told if "sequences" in properties]
    if played:
        sequences, requests = (sum(one[name] for one in played) for name in ("sequences", "requests"))
        terminalreporter.write_line(
            f"differential: {sequences} generated sequences, {requests} requests answered alike"
        )


# --- chaos: only when asked for by its mark, and each round once -------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    journal = config.getoption("--chaos-journal")
    done = set(journal.read_text().splitlines()) if journal is not None and journal.exists() else set()
    is_wanted = "chaos" in config.option.markexpr
    left_out = [
        item
        for item in items
        if item.get_closest_marker("chaos") is not None and (not is_wanted or item.nodeid in done)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # The first tests of a run go to one worker and are not stolen from it: so all share one session of Spark.
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    journal = item.config.getoption("--chaos-journal")
    if journal is not None and report.when == "call" and report.passed and item.get_closest_marker("chaos"):
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("a") as lines:
            lines.write(f"{item.nodeid}\n")
    return report


# --- requirement marks --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--differential-from", type=int, default=0, help="the first seed of generated sequences")
    parser.addoption("--differential-seeds", type=int, default=1, help="how many seeds, 50 sequences each")
    parser.addoption(
        "--loop-held-max-ms",
        type=float,
        help="fail a test whose loop was held for longer; what other processes took is not counted",
    )
    parser.addoption("--chaos-from", type=int, default=0, help="the first round of faults")
    parser.addoption("--chaos-rounds", type=int, default=1, help="how many rounds, on each store")
    parser.addoption(
        "--chaos-journal",
        metavar="FILE",
        type=Path,
        help="what passed is noted there, and left out the next time",
    )
    parser.addoption(
        "--requirements-to",
        metavar="FILE",
        help="write {requirement id: [test, …]} of what was collected, as JSON",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    target = session.config.getoption("--requirements-to")
    if target is not None:
        Path(target).write_text(json.dumps(requirement_marks(session)))


def requirement_marks(session: pytest.Session) -> dict[str, list[str]]:
    """{requirement id: [test, …]} of what was collected."""
    marked: dict[str, set[str]] = {}
    for item in session.items:
        test = item.nodeid.split("[", 1)[0]
        for mark in item.iter_markers("requirement"):
            for requirement in mark.args:
                marked.setdefault(requirement, set()).add(test)
    return {key: sorted(tests) for key, tests in sorted(marked.items())}


def has_collected_all(config: pytest.Config) -> bool:
    """Whether nobody asked for less than every test."""
    narrowing = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf")
    is_narrowed = any(config.getoption(name, None) for name in narrowing)
    return not is_narrowed and [Path(arg).resolve() for arg in config.args] == [ROOT / "tests"]
