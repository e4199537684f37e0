"""The command line: help for each command, and one clear line for each mistake."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, BrokerProcess, DidNotStart
from tools import cli, commands

COMMANDS = (
    (),
    ("broker",),
    ("cluster",),
    ("health",),
    ("topics",),
    ("topics", "create"),
    ("topics", "delete"),
    ("topics", "list"),
    ("topics", "describe"),
    ("topics", "alter"),
    ("offsets",),
    ("bench",),
    ("bench", "produce"),
    ("bench", "consume"),
    ("bench", "latency"),
    ("dump-log",),
    ("store",),
    ("store", "probe"),
)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the one line on stderr."""
    code = cli.run(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("tidewal: ")
    return code, lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    assert cli.run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: " in text
    assert "--help" in text


@pytest.mark.parametrize("command", ["produce", "consume", "latency"])
def test_without_its_client_bench_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    code, line = complaint(capsys, "bench", command)
    assert code == 1
    assert line == "tidewal: bench needs a client, which is not installed: pip install 'tidewal[bench]'"


@pytest.mark.parametrize("command", ["produce", "consume", "latency"])
def test_the_help_of_bench_needs_no_client(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    assert cli.run(["bench", command, "--help"]) == 0
    assert "--bootstrap" in capsys.readouterr().out


def test_only_what_is_there_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    there = (
        "broker",
        "cluster",
        "topics",
        "offsets",
        "bench",
        "dump-log",
        "store",
        "verify",
        "export",
        "demo",
    )
    assert all(command in text for command in there)
    assert not any(command in text for command in ("recover", "cost"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["brokr"], "No such command 'brokr'"),
        (["broker", "--prot", "9092"], "No such option"),
        (["broker", "--listen", "9092"], "--listen 9092: not HOST:PORT"),
        (["broker", "--listen", "127.0.0.1:\u00b2"], "not HOST:PORT"),
        (["broker", "--listen", "127.0.0.1:" + "1" * 5000], "not HOST:PORT"),
        (["broker", "--admin", "127.0.0.1:\u00b2"], "not HOST:PORT"),
        (["broker", "--node-id", "one"], "--node-id"),
        (["broker", "--node-id", "1" * 5000], "--node-id"),
        (["broker", "--set", "num.partitions"], "--set num.partitions: not KEY=VALUE"),
        (["broker", "--set", "num.partition=3"], "num.partitions"),
        (["broker", "--set", "num.partitions=three"], "num.partitions"),
        (["broker", "--config", "/nowhere/server.properties"], "No such file"),
        (["broker", "--store", "gopher://x", "--data", "/proc/nowhere"], "--store gopher://x"),
        (["broker", "--store", "s3://Bucket"], "--store s3://Bucket: 'Bucket' is not a bucket name"),
        (["broker", "--store", "s3://bucket?endpont=http://x"], "unknown option endpont"),
        (["store", "probe"], "Missing argument"),
        (["store", "probe", "gopher://x"], "gopher://x: give file:///DIR or s3://BUCKET"),
        (["store", "probe", "file:///proc/nowhere"], "/proc/nowhere: No such file"),
        (["store", "probe", "file:///x", "--json", "/nowhere/at/all.json"], "no such directory"),
        (["broker", "--admin", "9090"], "--admin 9090: not HOST:PORT"),
        (["broker", "--data", "/proc/nowhere"], "/proc/nowhere"),
        (["topics", "list", "--bootstrap", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["topics", "list", "--bootstrap", "127.0.0.1:\u00b2"], "is not HOST:PORT"),
        (["topics", "alter", "t", "--partitions", "0"], "--partitions"),
        (["topics", "alter", "t", "--partitions", "3000000000"], "--partitions"),
        (["topics", "create", "t", "--partitions", "3000000000"], "--partitions"),
        (["topics", "create", "t", "--replication", "70000"], "--replication"),
        (["topics", "create"], "Missing argument"),
        (["topics", "create", "t", "--config", "a"], "--config a: not KEY=VALUE"),
        (["offsets"], "Missing argument"),
        (["bench", "produce", "--acks", "2"], "--acks"),
        (["bench", "produce", "--bootstrap", "nowhere"], "--bootstrap nowhere: not HOST:PORT"),
        (["bench", "latency", "--records", "0"], "--records"),
        (["bench", "produce", "--linger-ms", "1e9"], "--linger-ms"),
        (["bench", "produce", "--batch-size", "3000000000"], "--batch-size"),
        (["bench", "produce", "--in-flight", "99999999"], "--in-flight"),
        (["bench", "produce", "--partitions", "99999999999"], "--partitions"),
        (["bench", "produce", "--record-size", "900000000"], "--record-size"),
        (["bench", "consume", "--fetch-size", "3000000000"], "--fetch-size"),
        (["dump-log", "/nowhere/0.log"], "no such file"),
        (["dump-log"], "Missing argument"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    code, line = complaint(capsys, *arguments)
    assert code != 0
    assert says in line


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("command", [("topics", "list"), ("topics", "create", "t"), ("offsets", "t")])
def test_nobody_at_the_bootstrap_address(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    code, line = complaint(capsys, *command, "--bootstrap", f"127.0.0.1:{free_port()}")
    assert code == 1
    assert "connection refused" in line


def test_no_trace_from_the_real_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", "broker", "--set", "num.partition=3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode != 0
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


def test_broken_pipe_is_no_complaint(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text(
        "0\n20000\n" + "".join(f"{n} {n}\n" for n in range(20000))
    )
    reader = subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "dump-log", str(tmp_path / "leader-epoch-checkpoint")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.readline()
        reader.stdout.close()
        assert reader.stderr.read() == b""
    assert reader.returncode not in (0, None)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n0\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tools.cli", "dump-log", str(tmp_path / "leader-epoch-checkpoint")],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
        )
    assert done.returncode == 1
    assert done.stderr == "tidewal: No space left on device\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_the_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xc3\xa9.log"
    with open(path, "wb"):
        pass
    for option in ((), ("--json",)):
        done = subprocess.run(
            [sys.executable, "-m", "tools.cli", "dump-log", *option, path],
            cwd=ROOT,
            env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
            capture_output=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        if option:
            assert json.loads(done.stdout)["file"] == os.fsdecode(path)


# --- tidewal broker ---


def test_ready_line_and_clean_stop(broker_process: BrokerProcess) -> None:
    words = broker_process.ready_line.split()
    assert [word.split("=")[0] for word in words] == ["ready", "node", "listen", "store"]
    assert words[1] == "node=1"
    assert broker_process.port > 0
    assert words[3].startswith("store=file://")
    assert broker_process.terminate() == 0
    markers = list(broker_process.data.rglob(".kafka_cleanshutdown"))
    assert len(markers) == 1


def test_a_second_process_on_the_same_data_is_refused(broker_process: BrokerProcess) -> None:
    with pytest.raises(DidNotStart) as caught:
        BrokerProcess(broker_process.data)
    assert caught.value.returncode not in (None, 0)
    assert len(caught.value.stderr.splitlines()) == 1, caught.value.stderr
    assert "lock" in caught.value.stderr.lower()


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DidNotStart) as caught:
            BrokerProcess(tmp_path / "data", listen=f"127.0.0.1:{other.getsockname()[1]}")
    assert caught.value.returncode not in (None, 0)
    assert "in use" in caught.value.stderr
    assert len(caught.value.stderr.splitlines()) == 1, caught.value.stderr


def test_the_properties_file_and_what_wins_over_it(tmp_path: Path) -> None:
    """A stock KRaft file starts unchanged; options win over it and --set wins over both."""
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker,controller\n"
        "node.id=7\n"
        "controller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
        "inter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL\n"
        "num.network.threads=3\n"
        "num.partitions=2\n"
        "log.dirs=/nowhere/at/all\n"
    )
    arguments = ("--config", str(config))
    with BrokerProcess(tmp_path / "data", arguments=arguments, settings={"num.partitions": "5"}) as process:
        assert process.ready_line.split()[1] == "node=7"
        assert cli_json("topics", "create", "t", "--bootstrap", process.bootstrap) is None
        described = cli_json("topics", "describe", "t", "--json", "--bootstrap", process.bootstrap)
        assert len(described[0]["partitions"]) == 5


def cli_json(*arguments: str) -> object:
    """Run a command in a process of its own; its JSON when it printed any."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else None
