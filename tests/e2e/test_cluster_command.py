"""`tidewal cluster`: its lines and its exit codes, and what it does when one of its brokers ends."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.blocking import BlockingClient
from tests.compat.peers import stable_port, unique, until
from tests.e2e.load import values_at
from tests.e2e.stock_load import produce
from tests.processes import ROOT, STOP_S_MAX, TIDEWAL, signal_until_the_end

READY_S_MAX = 60.0


class ClusterCommand:
    """One running `tidewal cluster`; its stdout line by line."""

    def __init__(
        self,
        data: Path,
        stderr: IO[bytes],
        *arguments: str,
        program: Sequence[str] = TIDEWAL,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._started_s = time.monotonic()
        self._stderr = stderr
        self._rest = b""
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*program, "cluster", "--data", str(data), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=cwd,
            env=env,
        )

    def wait_ready(self) -> Self:
        self.wait_line("ready cluster")
        self.ready_s = time.monotonic() - self._started_s
        self.children = [int(child) for child in children_of(self.process.pid)]
        return self

    def wait_line(self, line: str, *, times: int = 1) -> None:
        def has_come() -> bool:
            self._read()
            return self.lines.count(line) >= times

        until(has_come, line, timeout_s=READY_S_MAX, pause_s=0.0)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if selector.select(0.2):
                chunk = os.read(self.process.stdout.fileno(), 4096)
                assert chunk, f"ended with {self.process.wait(timeout=10)}: {self.stderr}"
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                self.lines += [line.decode() for line in whole]

    def child(self, number: int) -> int:
        """The process of the broker with this node id."""
        self.children = [int(child) for child in children_of(self.process.pid)]
        for child in self.children:
            if f"--node-id\0{number}\0" in Path(f"/proc/{child}/cmdline").read_text():
                return child
        raise AssertionError(f"broker {number} has no process")

    @property
    def addresses(self) -> list[str]:
        """By node id."""
        told = (line.split()[1:] for line in self.lines if line != "ready cluster")
        rows = [dict(word.split("=", 1) for word in words) for words in told]
        by_node = {int(row["node"]): row["listen"] for row in rows}
        return [by_node[node] for node in sorted(by_node)]

    @property
    def stderr(self) -> list[str]:
        self._stderr.seek(0)
        return self._stderr.read().decode().splitlines()

    def ended(self) -> int:
        """The exit code; by then no broker is left."""
        code = self.process.wait(timeout=STOP_S_MAX)
        for child in getattr(self, "children", []):
            assert not is_running(child)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=STOP_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def memory_mb(pid: int) -> float:
    """Its share of what is in memory, pages that it has in common with others counted in part."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(rows["Pss"].split()[0]) / 1024


Start = Callable[..., ClusterCommand]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def run(*arguments: str, data: Path | None = None, listen: str = "127.0.0.1:0") -> ClusterCommand:
            stderr = stack.enter_context((tmp_path / unique("stderr")).open("w+b"))
            command = ClusterCommand(data or tmp_path / "data", stderr, "--listen", listen, *arguments)
            stack.callback(command.close)
            return command

        yield run


def make_topic(command: ClusterCommand, replicas: int) -> str:
    topic = unique("topic")
    admin = AdminClient({"bootstrap.servers": command.addresses[-1]})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(timeout=20)
    return topic


def read_in_a_group(
    command: ClusterCommand, topic: str, count: int, bootstrap: str | None = None
) -> list[int]:
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap or command.addresses[0],
            "group.id": unique("group"),
            "auto.offset.reset": "earliest",
        }
    )
    try:
        reader.subscribe([topic])
        found: list[int] = []

        def enough() -> bool:
            found.extend(int(one.value()) for one in reader.consume(count, timeout=0.2) if not one.error())
            return len(found) >= count

        until(enough, f"{count} records", timeout_s=30, pause_s=0.0)
        return found
    finally:
        reader.close()


@pytest.mark.parametrize("brokers", [1, 5])
def test_it_starts_from_nothing_serves_and_stops(start: Start, brokers: int) -> None:
    command = start("--brokers", str(brokers), "--set", "group.initial.rebalance.delay.ms=0").wait_ready()
    assert len(command.addresses) == len(set(command.addresses)) == len(command.children) == brokers
    assert all(not address.endswith(":0") for address in command.addresses)
    memory = ", ".join(f"{memory_mb(child):.0f}" for child in command.children)
    print(f"{brokers} brokers ready in {command.ready_s:.2f} s; MB at rest: {memory}")  # noqa: T201
    topic = make_topic(command, min(brokers, 3))
    produce(",".join(command.addresses), topic, range(100))
    assert read_in_a_group(command, topic, 100) == list(range(100))
    command.process.terminate()
    assert command.ended() == 0
    assert [line for line in command.stderr if " INFO " not in line and " WARNING " not in line] == []


def test_started_again_it_goes_on_where_it_was(start: Start) -> None:
    port = stable_port()
    first = start(listen=f"127.0.0.1:{port}").wait_ready()
    assert first.addresses == [f"127.0.0.1:{port + number}" for number in range(3)]
    topic = make_topic(first, 3)
    produce(",".join(first.addresses), topic, range(50))
    first.process.send_signal(signal.SIGINT)
    assert first.ended() == 0
    second = start(listen=f"127.0.0.1:{port}").wait_ready()
    produce(",".join(second.addresses), topic, range(50, 80))

    def values() -> list[int]:
        """Of whichever replica answers with the most: a follower may not know yet what is committed."""
        logs = []
        for address in second.addresses:
            with BlockingClient(address) as client:
                if client.fetch(topic, 0, 0).error_code == 0:
                    logs.append(values_at(client.read_bytes(topic, 0)))
        return [int(value) for _, value in sorted(max(logs, key=len).items())]

    until(lambda: values() == list(range(80)), "all that was acknowledged")


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_however_many_signals_come_a_clean_stop_is_one(start: Start, kind: signal.Signals) -> None:
    command = start("--brokers", "2").wait_ready()
    signal_until_the_end(command.process, kind)
    assert command.ended() == 0
    assert not any("Traceback" in line for line in command.stderr), "\n".join(command.stderr)


def wait_stderr(command: ClusterCommand, line: str, *, times: int = 1) -> None:
    until(lambda: command.stderr.count(line) >= times, line, timeout_s=READY_S_MAX)


def write_and_read(command: ClusterCommand, topic: str, offset: int, count: int) -> None:
    """All that was acknowledged is there, whoever was killed before."""
    produce(",".join(command.addresses), topic, range(offset, offset + count))
    bootstrap = ",".join(command.addresses)
    assert read_in_a_group(command, topic, offset + count, bootstrap) == list(range(offset + count))


def test_the_others_go_on_without_one_that_is_killed(start: Start) -> None:
    command = start("--set", "group.initial.rebalance.delay.ms=0").wait_ready()
    topic = make_topic(command, 3)
    write_and_read(command, topic, 0, 50)
    os.kill(command.child(2), signal.SIGKILL)
    wait_stderr(command, "tidewal: broker 2 ended with SIGKILL; 2 of 3 go on")
    write_and_read(command, topic, 50, 50)
    command.process.terminate()
    assert command.ended() == 1
    assert command.stderr[-1] == "tidewal: not every broker ended cleanly: broker 2 (SIGKILL)"


def test_one_that_is_stopped_alone_is_no_error(start: Start) -> None:
    command = start("--restart", "--brokers", "2").wait_ready()
    os.kill(command.child(2), signal.SIGTERM)
    wait_stderr(command, "tidewal: broker 2 ended with exit code 0; 1 of 2 go on")
    command.process.terminate()
    assert command.ended() == 0


@pytest.mark.parametrize(
    ("kill", "code", "how"),
    [(signal.SIGKILL, 1, "SIGKILL"), (signal.SIGTERM, 0, "exit code 0")],
    ids=["killed", "stopped"],
)
def test_it_ends_with_the_last_broker(start: Start, kill: signal.Signals, code: int, how: str) -> None:
    command = start("--brokers", "2").wait_ready()
    for number, follows in ((1, "1 of 2 go on"), (2, "none is running")):
        os.kill(command.child(number), kill)
        wait_stderr(command, f"tidewal: broker {number} ended with {how}; {follows}")
    assert command.ended() == code


def test_a_killed_broker_is_started_again_where_clients_look_for_it(start: Start) -> None:
    command = start("--restart", "--set", "group.initial.rebalance.delay.ms=0").wait_ready()
    topic = make_topic(command, 3)
    write_and_read(command, topic, 0, 50)
    lines, killed = command.lines[:], command.child(2)
    (ready,) = [line for line in lines if " node=2 " in line]
    os.kill(killed, signal.SIGKILL)
    command.wait_line(ready, times=2)
    assert command.lines == [*lines, ready]
    assert command.child(2) != killed
    with BlockingClient(ready.split()[2].removeprefix("listen=")) as client:
        until(lambda: client.fetch(topic, 0, 0).error_code in (0, 6), "the replica that came back")
    write_and_read(command, topic, 50, 50)
    command.process.terminate()
    assert command.ended() == 1
    assert command.stderr[-1] == "tidewal: not every broker ended cleanly: broker 2 (SIGKILL)"


def test_one_that_fails_at_its_start_is_tried_again_less_and_less_often(start: Start, tmp_path: Path) -> None:
    command = start("--restart", "--brokers", "2").wait_ready()
    meta = tmp_path / "data" / "2" / "meta.properties"
    right = meta.read_text()
    meta.write_text(right.replace("cluster.id=", "cluster.id=another-"))
    os.kill(command.child(2), signal.SIGKILL)
    wait_stderr(command, "tidewal: broker 2 ended with SIGKILL; it is started again in 0.5 s")
    for pause in ("1", "2"):
        wait_stderr(command, f"tidewal: broker 2 ended with exit code 1; it is started again in {pause} s")
    meta.write_text(right)
    (ready,) = [line for line in command.lines if " node=2 " in line]
    command.wait_line(ready, times=2)
    command.process.terminate()
    assert command.ended() == 1
    says = "tidewal: not every broker ended cleanly: broker 2 (SIGKILL), broker 2 (exit code 1)"
    assert command.stderr[-1] == says


def test_one_that_fails_before_all_are_ready_ends_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "2").write_text("in the way")
    command = start("--restart")
    assert command.ended() == 1
    assert command.stderr[-1] == "tidewal: broker 2 ended with exit code 1; the others are stopped"


def test_a_second_one_on_the_same_data_is_refused_with_one_line(start: Start, tmp_path: Path) -> None:
    first = start("--brokers", "1").wait_ready()
    second = start("--brokers", "1")
    assert second.ended() == 1
    assert second.stderr == [f"tidewal: --data {tmp_path / 'data'}: in use by another `tidewal cluster`"]
    produce(",".join(first.addresses), make_topic(first, 1), range(10))


@pytest.mark.parametrize("number", range(3))
def test_a_port_that_is_taken_is_one_line_and_no_broker_starts(
    start: Start, tmp_path: Path, number: int
) -> None:
    port = stable_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port + number))
        holder.listen()
        command = start(listen=f"127.0.0.1:{port}")
        assert command.ended() == 1
    assert command.stderr == [f"tidewal: cannot listen on 127.0.0.1:{port + number}: Address already in use"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "log.retention.hour=1"], "did you mean log.retention.hours?"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "num.partitions"], "not KEY=VALUE"),
        (["--listen", "127.0.0.1"], "not HOST:PORT"),
        (["--listen", "127.0.0.1:65535"], "no room for 3 ports"),
        (["--brokers", "0"], "--brokers"),
        (["--store", "gs://bucket"], "--store gs://bucket: give file:///DIR"),
        (["--set", "node.id=7"], "--set node.id: each broker of a cluster has its own"),
        (["--data", "/proc/nothing"], "--data /proc/nothing: No such file or directory"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(start: Start, arguments: list[str], says: str) -> None:
    command = start(*arguments)
    assert command.ended() in (1, 2)
    (line,) = command.stderr
    assert says in line


def test_with_the_pipe_it_reads_it_ends_and_with_it_its_brokers(tmp_path: Path) -> None:
    """The first end is that of whatever started it; the second is its own, too sudden to stop anything."""
    for end in ("pipe", "kill"):
        with (tmp_path / "stderr").open("w+b") as stderr:
            cluster = ClusterCommand(
                tmp_path / "data",
                stderr,
                *("--brokers", "2", "--listen", "127.0.0.1:0", "--exit-with-stdin"),
                stdin=subprocess.PIPE,
            )
            try:
                cluster.wait_ready()
                assert cluster.process.stdin is not None
                if end == "pipe":
                    cluster.process.stdin.close()
                    assert cluster.ended() == 0
                else:
                    cluster.process.kill()
                    left = cluster.children
                    until(lambda left=left: not any(map(is_running, left)), "their end")  # type: ignore[misc]
            finally:
                cluster.close()


@pytest.mark.parametrize("command", ["broker", "cluster"])
def test_what_has_no_pipe_to_read_does_not_start(command: str) -> None:
    done = subprocess.run(
        [*TIDEWAL, command, "--exit-with-stdin"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READY_S_MAX,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tidewal: --exit-with-stdin: standard input is no pipe")
    assert done.stderr.count("\n") == 1
