"""Starting and stopping a real `tidewal broker`: ready line, exit code, addresses, data directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.compat.peers import stable_port, unique, until
from tests.e2e.load import batch_of, values_at
from tests.processes import ROOT, TIDEWAL, BrokerProcess, DidNotStart, signal_until_the_end
from tests.server_properties import STOCK_KRAFT

StartBroker = Callable[..., BrokerProcess]


def metadata(bootstrap: str, *topics: str) -> Any:
    with BlockingClient(bootstrap) as client:
        return client.call(
            Api.METADATA,
            12,
            topics=[{"topic_id": None, "name": topic} for topic in topics],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )


def advertised(bootstrap: str) -> list[tuple[str, int]]:
    return [(broker.host, broker.port) for broker in metadata(bootstrap).brokers]


def test_it_is_ready_serves_and_stops_cleanly(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    assert broker.ready_line.startswith(f"ready node=1 listen={broker.bootstrap} store=")
    assert broker.port != 0
    assert advertised(broker.bootstrap) == [("127.0.0.1", broker.port)]
    print(f"ready in {broker.ready_s:.3f} s")  # noqa: T201
    assert broker.terminate() == 0
    assert list(tmp_path.rglob(".kafka_cleanshutdown"))
    assert "Traceback" not in broker.stderr


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_however_many_signals_come_a_clean_stop_is_one(
    start_broker: StartBroker, tmp_path: Path, kind: signal.Signals
) -> None:
    broker = start_broker()
    signal_until_the_end(broker.process, kind)
    assert broker.process.returncode == 0
    assert list(tmp_path.rglob(".kafka_cleanshutdown"))
    assert "Traceback" not in broker.stderr


def test_a_stop_waits_for_no_client(start_broker: StartBroker) -> None:
    broker = start_broker()
    with BlockingClient(broker.bootstrap) as idle, BlockingClient(broker.bootstrap) as halfway:
        halfway.socket.sendall((1000).to_bytes(4, "big") + b"half a frame")
        assert broker.terminate(timeout_s=10) == 0
        with pytest.raises(ConnectionError):
            idle.frame()


def test_everything_is_there_after_a_clean_restart(start_broker: StartBroker) -> None:
    topic = unique("topic")
    first = start_broker()
    before = metadata(first.bootstrap, topic)
    with BlockingClient(first.bootstrap) as client:
        assert client.produce(topic, 0, bytes(batch_of(b"a", b"b"))).base_offset == 0
    assert first.terminate() == 0
    second = start_broker()
    after = metadata(second.bootstrap, topic)
    assert after.cluster_id == before.cluster_id
    assert after.topics[0].topic_id == before.topics[0].topic_id
    with BlockingClient(second.bootstrap) as client:
        assert client.produce(topic, 0, bytes(batch_of(b"c"))).base_offset == 2
        assert values_at(client.read_bytes(topic, 0)) == {0: b"a", 1: b"b", 2: b"c"}


def test_a_second_process_on_the_same_data_is_refused_with_one_line(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    first = start_broker()
    with pytest.raises(DidNotStart) as refused:
        start_broker()
    assert refused.value.returncode not in (None, 0)
    (line,) = refused.value.stderr.strip().splitlines()
    assert str(tmp_path / "data") in line
    assert advertised(first.bootstrap) == [("127.0.0.1", first.port)]
    first.kill()
    assert advertised(start_broker().bootstrap)


def test_a_port_that_is_taken_is_refused_with_one_line(start_broker: StartBroker) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(DidNotStart) as refused:
            start_broker(listen=address)
        assert refused.value.returncode not in (None, 0)
        (line,) = refused.value.stderr.strip().splitlines()
        assert line == f"tidewal: cannot listen on {address}: Address already in use"


def test_an_admin_port_that_is_taken_is_refused_with_one_line_before_anything_is_ready(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(DidNotStart) as refused:
            start_broker(arguments=("--admin", address))
        assert refused.value.returncode not in (None, 0)
        (line,) = refused.value.stderr.strip().splitlines()
        assert line == f"tidewal: cannot listen on {address}: Address already in use"
    assert not list((tmp_path / "data").rglob("meta.properties"))


def test_a_stop_waits_for_no_reader_of_the_admin_pages(start_broker: StartBroker) -> None:
    address = f"127.0.0.1:{stable_port()}"
    broker = start_broker(arguments=("--admin", address))
    with BlockingClient(broker.bootstrap) as client:
        client.call(
            Api.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": unique("topic"),
                    "num_partitions": 3000,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
            ],
            timeout=30_000,
            validate_only=False,
        )
    host, _, port = address.rpartition(":")
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((host, int(port)))
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reader.recv(1) == b"H"  # and no more: the rest does not fit into what lies between
        assert broker.terminate(timeout_s=20) == 0


@pytest.mark.parametrize(
    ("setting", "told"),
    [(("log.retention.hour", "1"), "log.retention.hours"), (("num.partitions", "many"), "num.partitions")],
    ids=["unknown", "not-a-number"],
)
def test_a_wrong_property_is_refused_with_one_line(
    start_broker: StartBroker, setting: tuple[str, str], told: str
) -> None:
    with pytest.raises(DidNotStart) as refused:
        start_broker(settings=dict([setting]))
    assert refused.value.returncode not in (None, 0)
    (line,) = refused.value.stderr.strip().splitlines()
    assert told in line


def test_a_stock_server_properties_starts_unchanged(start_broker: StartBroker, tmp_path: Path) -> None:
    # Its ports and its log directory belong to the whole machine: only those are other ones here.
    port, controller_port, logs = stable_port(), stable_port(), tmp_path / "kraft-combined-logs"
    text = STOCK_KRAFT.replace("9092", str(port)).replace("9093", str(controller_port))
    config = tmp_path / "server.properties"
    config.write_text(text.replace("/tmp/kraft-combined-logs", str(logs)))
    start_broker(tmp_path / "data", listen=None, arguments=("--config", str(config)))
    assert advertised(f"127.0.0.1:{port}") == [("localhost", port)]
    with pytest.raises(ConnectionRefusedError), BlockingClient(f"127.0.0.1:{controller_port}"):
        pass


def test_each_listener_advertises_its_own_address(start_broker: StartBroker, tmp_path: Path) -> None:
    inside, outside = stable_port(), stable_port()
    start_broker(
        listen=None,
        settings={
            "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://0.0.0.0:{outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        },
    )
    assert advertised(f"127.0.0.1:{inside}") == [("127.0.0.1", inside)]
    ((host, port),) = advertised(f"127.0.0.1:{outside}")
    assert port == outside
    assert host not in ("", "0.0.0.0", "127.0.0.1", "::")


def test_advertised_listeners_are_what_clients_are_told(start_broker: StartBroker) -> None:
    port = stable_port()
    start_broker(
        listen=None,
        settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": "PLAINTEXT://broker.example:19092",
        },
    )
    assert advertised(f"127.0.0.1:{port}") == [("broker.example", 19092)]


def test_a_stop_is_heard_while_the_store_does_not_answer(start_broker: StartBroker, tmp_path: Path) -> None:
    topic = unique("topic")
    first = start_broker()
    metadata(first.bootstrap, topic)
    with BlockingClient(first.bootstrap) as client:
        assert client.produce(topic, 0, bytes(batch_of(b"a"))).base_offset == 0
    assert first.terminate() == 0
    marker = tmp_path / "data" / ".kafka_cleanshutdown"
    notes = json.loads(marker.read_text())["logs"]
    newest = max((tmp_path / "data" / "store" / "meta").iterdir())
    newest.rename(tmp_path / "aside")
    os.mkfifo(newest)  # whoever opens it waits for a writer
    port = stable_port()
    command = [*TIDEWAL, "broker", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
        until(lambda: is_listening(port), "the listener")
        process.terminate()
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert json.loads(marker.read_text())["logs"] == notes
    newest.unlink()
    (tmp_path / "aside").rename(newest)
    with BlockingClient(start_broker().bootstrap) as client:
        assert client.produce(topic, 0, bytes(batch_of(b"b"))).base_offset == 1


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
