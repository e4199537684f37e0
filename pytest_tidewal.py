"""A Kafka for tests: pytest fixtures that start Tidewal in processes of its own, on free ports.

Owns the processes, their data and logs, the topics of a test, and what is shown when a test fails. Does not
own clients: a test brings its own. Invariant: no process outlives the run, however it ends, for each reads a
pipe whose other end is held here; every wait has a deadline; nothing is imported but the standard library and
pytest, so that a run which uses none of it pays nothing.

Fixtures: `tidewal_broker` and `tidewal_cluster`, one for the session, in each worker of pytest-xdist;
`tidewal_topic_prefix` and `tidewal_topic`, new for each test. Settings: `tidewal_properties` in the ini file,
one KEY=VALUE a line, and `--tidewal-set KEY=VALUE`, which wins.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

QUICK: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
}
"""What spares a test its time where Kafka's defaults are for production; whatever is set wins."""
READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 30.0
ANSWER_S_MAX: Final = 30.0
LOG_CHARACTERS_MAX: Final = 20_000
"""Of each broker, below a test that failed; the end of what it wrote."""
CREATE_TOPICS: Final = 19
CREATE_TOPICS_VERSION: Final = 4


class TidewalError(Exception):
    """A broker did not start or refused a request. The message says why, with the log where that helps."""


# --- processes ---


def find_command() -> list[str]:
    """Return the command `tidewal`: TIDEWAL_COMMAND, or the one beside this Python, or the one on PATH."""
    if given := os.environ.get("TIDEWAL_COMMAND"):
        return shlex.split(given)
    beside = Path(sys.executable).with_name("tidewal")
    found = str(beside) if beside.exists() else shutil.which("tidewal")
    if found is None:
        raise TidewalError("no command `tidewal` beside this Python nor on PATH: pip install tidewal")
    return [found]


class TidewalBroker:
    """A broker in a process of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        node_id: int = 1,
        properties: Mapping[str, str] | None = None,
        store: str | None = None,
    ) -> None:
        """`store`: what the brokers of a cluster share; one that is alone keeps its objects with its data."""
        self.node_id = node_id
        self.data = folder / str(node_id)
        self.bootstrap_servers = ""
        self._properties = {**QUICK, **(properties or {})}
        self._store = store
        self._log = folder / f"broker-{node_id}.log"
        self._log_seen_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_by_s = 0.0

    def __repr__(self) -> str:
        pid = self._process.pid if self._process is not None else None
        return f"<TidewalBroker {self.node_id} at {self.bootstrap_servers or 'no address'} pid={pid}>"

    @property
    def admin(self) -> Admin:
        """What a test does to topics without a client."""
        return Admin(self.bootstrap_servers)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def logs(self) -> str:
        """Return all that the broker has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the process; on the address that it had before, if any. Returns when clients may connect."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process, and do not wait."""
        if self._process is not None:
            raise TidewalError(f"broker {self.node_id} runs already")
        command = [*find_command(), "broker", "--exit-with-stdin", "--node-id", str(self.node_id)]
        command += ["--listen", self.bootstrap_servers or "127.0.0.1:0", "--data", str(self.data)]
        if self._store is not None:
            command += ["--store", self._store]
        for name, value in self._properties.items():
            command += ["--set", f"{name}={value}"]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            # in a session of its own, so that Ctrl-C ends the tests first, and the broker with its fixture
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise TidewalError(f"cannot run {shlex.join(command[:2])}: {error}") from None
        self._ready_by_s = time.monotonic() + READY_S_MAX

    def wait_ready(self) -> None:
        """Return when clients may connect; TidewalError, with the log, when that does not come."""
        assert self._process is not None and self._process.stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left_s = self._ready_by_s - time.monotonic()
                chunk = b""
                if left_s > 0 and selector.select(left_s):
                    chunk = os.read(self._process.stdout.fileno(), 4096)
                if not chunk:
                    raise self._did_not_start()
                line += chunk
        words = dict(word.split("=", 1) for word in line.decode().split() if "=" in word)
        self.bootstrap_servers = words["listen"]

    def _did_not_start(self) -> TidewalError:
        assert self._process is not None
        silent = self._process.poll() is None and time.monotonic() >= self._ready_by_s
        why = f"is not ready after {READY_S_MAX:.0f} s" if silent else "ended before it was ready"
        self.kill()
        return TidewalError(f"broker {self.node_id} {why}; it logged:\n{self.logs()[-LOG_CHARACTERS_MAX:]}")

    def stop(self) -> None:
        """Stop cleanly; one that does not is killed after half a minute."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._release()

    def kill(self) -> None:
        """End it as kill -9 does: nothing is flushed, and nobody is told."""
        if self._process is not None:
            self._process.kill()
            self._release()

    def restart(self) -> None:
        """Stop cleanly and start again, with the same data, on the same address."""
        self.stop()
        self.start()

    def _release(self) -> None:
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def skip_logs(self) -> None:
        """Take what is logged so far for told."""
        self._log_seen_bytes = self._log.stat().st_size if self._log.exists() else 0

    def recent_logs(self) -> str:
        """Return the end of what was logged since `skip_logs`."""
        if not self._log.exists():
            return ""
        recent = self._log.read_bytes()[self._log_seen_bytes :]
        return recent.decode(errors="replace")[-LOG_CHARACTERS_MAX:]


class TidewalCluster:
    """Brokers of one cluster, which share an object store; any of them may be killed and started again."""

    def __init__(
        self, folder: Path, *, brokers: int = 3, properties: Mapping[str, str] | None = None
    ) -> None:
        store = f"file://{folder.absolute()}/store"
        self.brokers = tuple(
            TidewalBroker(folder, node_id=number + 1, properties=properties, store=store)
            for number in range(brokers)
        )

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    @property
    def admin(self) -> Admin:
        """What a test does to topics without a client."""
        return Admin(self.bootstrap_servers, replication_factor=len(self.brokers))

    def logs(self) -> str:
        """Return all that the brokers have logged, one after the other."""
        return "".join(broker.logs() for broker in self.brokers)

    def start(self) -> None:
        """Start all at once; returns when clients may connect to each."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()


# --- topics ---


class Admin:
    """Requests about topics to the first broker that can be reached."""

    def __init__(self, bootstrap_servers: str, *, replication_factor: int = 1) -> None:
        self._addresses = bootstrap_servers.split(",")
        self._replication_factor = replication_factor

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; in a cluster, with a replica on each broker. TidewalError when it is refused."""
        factor = self._replication_factor if replication_factor is None else replication_factor
        configs = [_string(key) + _string(value) for key, value in (config or {}).items()]
        topic = _string(name) + struct.pack(">ihi", partitions, factor, 0) + _array(configs)
        body = _array([topic]) + struct.pack(">i?", int(ANSWER_S_MAX * 1000), False)
        answer = self._ask(CREATE_TOPICS, CREATE_TOPICS_VERSION, body)
        # throttle time, count and name come before the error
        (name_bytes,) = struct.unpack_from(">h", answer, 8)
        error, why_bytes = struct.unpack_from(">hh", answer, 10 + name_bytes)
        if error:
            why = answer[14 + name_bytes :][: max(0, why_bytes)].decode(errors="replace")
            raise TidewalError(
                f"topic {name} was not created: {why or 'no reason given'} (Kafka's error {error})"
            )

    def _ask(self, api_key: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhi", api_key, version, 1) + _string("pytest-tidewal") + body
        failures = []
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            try:
                with socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX) as connection:
                    connection.sendall(struct.pack(">i", len(request)) + request)
                    with connection.makefile("rb") as answer:
                        (size,) = struct.unpack(">i", answer.read(4))
                        return answer.read(size)[4:]  # the correlation id
            except (OSError, struct.error, ValueError) as error:
                failures.append(f"{address}: {error}")
        raise TidewalError(f"no broker answers: {'; '.join(failures)}")


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


# --- pytest ---

_RUNNING: Final = pytest.StashKey[list[TidewalBroker]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidewal", "a Kafka for tests (tidewal)")
    group.addoption(
        "--tidewal-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Set a property of the brokers that fixtures start, in Kafka's names; may be repeated.",
    )
    parser.addini(
        "tidewal_properties",
        "Properties of the brokers that fixtures start, in Kafka's names, one KEY=VALUE a line.",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RUNNING] = []
    config.addinivalue_line(
        "markers",
        "tidewal_topic(partitions=1, config={}): how the topic of the fixture tidewal_topic is made",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for broker in item.config.stash[_RUNNING]:
        broker.skip_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what brokers logged during a test that failed and could have used them."""
    report = yield
    if report.failed and any(name.startswith("tidewal_") for name in getattr(item, "fixturenames", ())):
        for broker in item.config.stash[_RUNNING]:
            if recent := broker.recent_logs():
                report.sections.append((f"log of tidewal broker {broker.node_id}", recent))
    return report


def _properties(config: pytest.Config) -> dict[str, str]:
    found = {}
    for where, lines in (
        ("tidewal_properties", config.getini("tidewal_properties")),
        ("--tidewal-set", config.getoption("tidewal_set")),
    ):
        for line in lines:
            name, equals, value = line.partition("=")
            if not equals:
                raise pytest.UsageError(f"{where} {line}: not KEY=VALUE")
            found[name.strip()] = value.strip()
    return found


@contextlib.contextmanager
def _running(config: pytest.Config, started: TidewalBroker | TidewalCluster) -> Iterator[None]:
    brokers = started.brokers if isinstance(started, TidewalCluster) else (started,)
    config.stash[_RUNNING].extend(brokers)
    try:
        started.start()
        yield
    finally:
        for broker in brokers:
            broker.kill()
            config.stash[_RUNNING].remove(broker)
            shutil.rmtree(broker.data, ignore_errors=True)


@pytest.fixture(scope="session")
def tidewal_broker(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TidewalBroker]:
    """A broker for all tests of this process, with `bootstrap_servers`, `admin`, `logs()` and `restart()`."""
    broker = TidewalBroker(tmp_path_factory.mktemp("tidewal"), properties=_properties(pytestconfig))
    with _running(pytestconfig, broker):
        yield broker


@pytest.fixture(scope="session")
def tidewal_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TidewalCluster]:
    """Three brokers for all tests of this process; `brokers[0].kill()` and `.start()` are those of one."""
    cluster = TidewalCluster(tmp_path_factory.mktemp("tidewal"), properties=_properties(pytestconfig))
    with _running(pytestconfig, cluster):
        yield cluster


@pytest.fixture
def tidewal_topic_prefix(request: pytest.FixtureRequest) -> str:
    """What names of topics and groups of this test begin with, so that no other test meets them."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:80].strip("-")
    return f"{name}-{os.urandom(4).hex()}-"


@pytest.fixture
def tidewal_topic(
    request: pytest.FixtureRequest, tidewal_broker: TidewalBroker, tidewal_topic_prefix: str
) -> str:
    """A topic of this test alone, on `tidewal_broker`; the mark `tidewal_topic` says how it is made."""
    name = f"{tidewal_topic_prefix}topic"
    mark = request.node.get_closest_marker("tidewal_topic")
    tidewal_broker.admin.create_topic(name, **(mark.kwargs if mark is not None else {}))
    return name
