"""A real broker that is told everything by variables, as containers are."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.compat.peers import stable_port
from tests.e2e.test_start import advertised
from tests.processes import ROOT, TIDEWAL, BrokerProcess

StartBroker = Callable[..., BrokerProcess]


def test_a_broker_starts_by_variables_alone(start_broker: StartBroker, tmp_path: Path) -> None:
    port = stable_port()
    (tmp_path / "node_id").write_text("7\n")
    broker = start_broker(
        listen=None,
        arguments=["--from-env"],
        env={
            "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
            "KAFKA_NODE_ID_FILE": str(tmp_path / "node_id"),
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "7@localhost:9093",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_LISTENERS": f"HOST://127.0.0.1:{port},CONTROLLER://:9093",
            "KAFKA_ADVERTISED_LISTENERS": f"HOST://broker.example:{port}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,HOST:PLAINTEXT",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "HOST",
            "KAFKA_LOG_DIRS": "/proc/not/written/as/the/option/wins",
            "KAFKA_OPTS": "-Dx=y",
        },
    )
    assert broker.ready_line.startswith(
        f"ready node=7 listen=127.0.0.1:{port} store=file://{broker.data}/store"
    )
    assert advertised(broker.bootstrap) == [("broker.example", port)]
    assert broker.terminate() == 0
    (line,) = [line for line in broker.stderr.splitlines() if "accepted without effect" in line]
    assert line.endswith("controller.quorum.voters, CLUSTER_ID, KAFKA_OPTS")
    assert b"Transitioning from RECOVERY to RUNNING" in broker.rest_of_stdout()


def health(*arguments: str, **environ: str) -> tuple[int, str]:
    """Run the check in a process of its own, without the variables of this one."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TIDEWAL_", "KAFKA_"))}
    ended = subprocess.run(
        [*TIDEWAL, "health", *arguments],
        env=kept | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert len((ended.stdout + ended.stderr).splitlines()) == 1, ended.stderr
    return ended.returncode, (ended.stdout or ended.stderr).strip()


def test_the_health_check_finds_the_broker_and_its_end(start_broker: StartBroker) -> None:
    port, admin = stable_port(), f"127.0.0.1:{stable_port()}"
    variables = {
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port}",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka:1",
    }
    broker = start_broker(listen=None, arguments=["--from-env", "--admin", admin], env=variables)
    assert health(**variables) == (0, f"127.0.0.1:{port} is ready")
    assert health(**variables, TIDEWAL_ADMIN=admin) == (0, f"{admin} is ready")
    assert health("--bootstrap", f"localhost:{port}") == (0, f"localhost:{port} is ready")
    broker.process.send_signal(signal.SIGSTOP)
    try:
        assert health("--timeout", "0.5", **variables)[0] == 1
        assert health("--timeout", "0.5", **variables, TIDEWAL_ADMIN=admin)[0] == 1
    finally:
        broker.process.send_signal(signal.SIGCONT)
    assert broker.terminate() == 0
    assert health(**variables) == (1, f"tidewal: 127.0.0.1:{port}: Connection refused")


def test_three_brokers_without_a_store_are_refused(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*TIDEWAL, "broker", "--from-env", "--data", str(tmp_path)],
        env={**os.environ, "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:9093,2@b:9093,3@c:9093"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("tidewal: KAFKA_CONTROLLER_QUORUM_VOTERS names other nodes")
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
