"""A real broker that is told everything by variables, as containers are."""

from __future__ import annotations

import os
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
    assert broker.process.stdout is not None
    assert b"Transitioning from RECOVERY to RUNNING" in broker.process.stdout.read()


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
