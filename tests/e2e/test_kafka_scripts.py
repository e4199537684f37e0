"""What runs inside containers written for Kafka's images: start scripts, and Kafka's scripts by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.peers import stable_port
from tests.processes import ROOT, BrokerProcess

StartBroker = Callable[..., BrokerProcess]
IMAGE = ROOT / "tools" / "images" / "kafka"
BIN = IMAGE / "opt" / "kafka" / "bin"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which `tidewal` is this checkout's."""
    command = tmp_path / "bin" / "tidewal"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tools.cli "$@"\n')
    command.chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("KAFKA_", "TIDEWAL_"))}
    yield kept | {"PATH": f"{command.parent}:{IMAGE / 'usr' / 'local' / 'bin'}:{os.environ['PATH']}"}


def run(env: dict[str, str], *command: str | Path, given: str = "") -> tuple[int, str, str]:
    """The exit code, stdout and stderr."""
    ended = subprocess.run(
        [str(word) for word in command],
        env=env,
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_topics_and_records_by_kafkas_scripts(start_broker: StartBroker, path: dict[str, str]) -> None:
    broker = start_broker()
    server = ("--bootstrap-server", broker.bootstrap)
    topics = (BIN / "kafka-topics.sh", *server)
    create = (*topics, "--create", "--topic", "a", "--partitions", "2", "--config", "retention.ms=1000000")
    assert run(path, *create) == (0, "Created topic a.\n", "")
    assert run(path, *create, "--if-not-exists") == (0, "", "")
    code, out, err = run(path, *create)
    assert (code, out) == (1, "")
    assert "TOPIC_ALREADY_EXISTS" in err
    assert run(path, *topics, "--list") == (0, "a\n", "")
    code, out, _ = run(path, *topics, "--describe", "--topic", "a|b")
    head, *rows = out.splitlines()
    assert code == 0
    assert head.startswith("Topic: a\tTopicId: ")
    assert head.endswith("\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=1000000")
    assert rows[1].startswith("\tTopic: a\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1")
    assert run(path, *topics, "--alter", "--topic", "a", "--partitions", "3") == (0, "", "")
    lines = "one\ntwo\nthree\n"
    assert run(path, "kafka-console-producer", *server, "--topic", "a", given=lines) == (0, "", "")
    assert run(path, BIN / "kafka-get-offsets.sh", *server, "--topic", "a")[1] == "a:0:3\na:1:0\na:2:0\n"
    consumer = (BIN / "kafka-console-consumer.sh", *server, "--topic", "a", "--from-beginning")
    assert run(path, *consumer, "--max-messages", "3") == (
        0,
        "one\ntwo\nthree\n",
        "Processed a total of 3 messages\n",
    )
    code, out, _ = run(path, "kafka-broker-api-versions", *server)
    assert code == 0
    assert out.startswith(f"{broker.bootstrap} (id: 1 rack: null) -> (\n\tProduce(0): 0 to ")
    assert run(path, "cub", "kafka-ready", "-b", broker.bootstrap, "1", "20")[0] == 0
    assert run(path, "ub", "kafka-ready", "2", "1", "-b", broker.bootstrap)[0] == 1
    host, _, port = broker.bootstrap.rpartition(":")
    assert run(path, "nc", "-z", host, port) == (0, "", "")
    assert run(path, *topics, "--delete", "--topic", "a") == (0, "", "")
    assert run(path, *topics, "--list") == (0, "", "")
    assert run(path, *topics, "--delete", "--topic", "a", "--if-exists") == (0, "", "")
    assert broker.terminate() == 0
    assert run(path, "nc", "-z", "-w", "2", host, port)[0] == 1


@pytest.mark.parametrize("image", ["kafka", "confluent"])
def test_a_start_script_becomes_the_broker(path: dict[str, str], tmp_path: Path, image: str) -> None:
    port = stable_port()
    command = [
        str(IMAGE / "usr" / "local" / "bin" / "container-entrypoint"),
        str(IMAGE / "etc" / image / "docker" / "run"),
        "KAFKA_NODE_ID=3",
        f"KAFKA_LISTENERS=PLAINTEXT://127.0.0.1:{port}",
        f"KAFKA_LOG_DIRS={tmp_path / 'data'}",
    ]
    with subprocess.Popen(
        command, env=path, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"ready node=3 listen=127.0.0.1:{port} ".encode())
            process.terminate()
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_the_first_process_runs_commands_of_ours_and_programs(path: dict[str, str]) -> None:
    entry = IMAGE / "usr" / "local" / "bin" / "container-entrypoint"
    assert run(path, entry, "sh", "-c", "echo $0 here", "x") == (0, "x here\n", "")
    assert run(path, entry, "kafka-storage", "format", "-t", "x")[0] == 0
    assert run(path, entry, "export", "--nope")[2].startswith("tidewal: No such option: --nope")
