"""What confluent-kafka reports is in the manifest, and agrees with the log, through kills of either side."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.peers import stable_port, unique, until
from tests.processes import BrokerProcess
from tests.tools.verify.manifest.against_log import judged
from tools.cli import run
from tools.verify.core.manifest import open_rows, read_manifests
from tools.verify.core.manifest_files import Guarantee, Outcome
from tools.verify.manifest.confluent_producer import ManifestProducer

StartBroker = Callable[..., BrokerProcess]
ROOT = Path(__file__).resolve().parents[4]


def make_topic(bootstrap: str, partitions: int = 1, **config: str) -> str:
    name = unique("noted")
    options = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, config=options)])[name].result(timeout=20)
    return name


def producer(bootstrap: str, folder: Path, **config: Any) -> ManifestProducer:
    options = {key.replace("_", "."): value for key, value in config.items()}
    quiet = {"log_level": 0, "error_cb": lambda _: None}
    return ManifestProducer(
        {"bootstrap.servers": bootstrap, "linger.ms": 1, **quiet, **options}, folder, is_unique=True
    )


def test_every_record_is_noted_and_is_where_it_was_acknowledged(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker_process.bootstrap, 3)
    told: list[int] = []
    with producer(broker_process.bootstrap, tmp_path / "m", enable_idempotence=True) as client:
        for number in range(2000):
            key = None if number % 3 == 0 else f"k{number % 50}"
            value = None if number == 7 else f"value {number}".encode()
            client.produce(
                topic, value, key, on_delivery=lambda error, message: told.append(message.offset())
            )
            client.poll(0)
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 3)
    assert (found.findings, found.counted) == ([], {})
    assert found.outcomes == {Outcome.OK: 2000} and len(told) == found.log_records == 2000
    (file,) = found.manifest.files
    assert file.is_whole and file.head.guarantees == Guarantee(7)
    rows = np.concatenate([rows for _, rows in open_rows(file)])
    assert sorted(rows["order"].tolist()) == list(range(1, 2001))
    assert set(rows["acks"].tolist()) == {-1} and set(rows["partition"].tolist()) == {0, 1, 2}


def test_a_record_that_the_log_lacks_is_a_loss(broker_process: BrokerProcess, tmp_path: Path) -> None:
    topic = make_topic(broker_process.bootstrap)
    with producer(broker_process.bootstrap, tmp_path / "m") as client:
        for number in range(10):
            client.produce(topic, f"{number}")
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 1, lost=3)
    assert [(each.code, each.first, each.end) for each in found.findings] == [("manifest-loss", 0, 3)]


def test_a_refused_record_is_noted_as_failed_and_one_that_raises_is_no_send(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker_process.bootstrap, max_message_bytes="500")
    errors: list[Any] = []
    with producer(broker_process.bootstrap, tmp_path / "m", message_max_bytes=100_000) as client:
        client.produce(topic, b"small")
        client.flush(20)
        client.produce(topic, b"x" * 2000, callback=lambda error, message: errors.append(error))
        client.flush(20)
        with pytest.raises(KafkaException):
            client.produce(topic, b"y" * 1_000_000)
        with pytest.raises(TypeError, match="use produce"):
            client.produce_batch(topic, [{"value": b"1"}])
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 1)
    assert found.findings == [] and found.outcomes == {Outcome.OK: 1, Outcome.FAIL: 1}
    assert errors[0] is not None and found.manifest.files[0].is_whole


def test_what_has_no_answer_at_the_end_is_unknown(start_broker: StartBroker, tmp_path: Path) -> None:
    """The broker is killed and does not come back before `close`; then it does, and either is legal."""
    address = f"127.0.0.1:{stable_port()}"
    broker = start_broker(listen=address)
    topic = make_topic(address)
    client = producer(address, tmp_path / "m", acks="1")
    for number in range(100):
        client.produce(topic, f"before {number}")
    client.flush(20)
    broker.kill()
    for number in range(50):
        client.produce(topic, f"after {number}")
    client.close(timeout=0.2)
    broker.close()
    start_broker(listen=address)
    found = judged(tmp_path / "m", address, topic, 1)
    assert found.findings == []
    assert found.outcomes == {Outcome.OK: 100, Outcome.UNKNOWN: 50} and found.manifest.files[0].is_whole
    assert found.counted["unknown-present"] + found.counted["unknown-absent"] == 50


def test_kills_of_the_broker_lose_nothing_that_is_noted(start_broker: StartBroker, tmp_path: Path) -> None:
    address = f"127.0.0.1:{stable_port()}"
    broker = start_broker(listen=address)
    topic = make_topic(address, 2)
    delivered, stop = [0], threading.Event()

    def load(name: str, client: ManifestProducer) -> None:
        def count(error: Any, message: Any) -> None:
            delivered[0] += error is None

        number = 0
        while not stop.is_set():
            number += 1
            try:
                client.produce(topic, f"{name} {number}", f"{number % 7}", on_delivery=count)
            except BufferError:
                client.poll(0.05)
            if number % 20 == 0:
                client.poll(0.005)
        client.close()

    careful = producer(
        address,
        tmp_path / "m",
        client_id="careful",
        enable_idempotence=True,
        queue_buffering_max_messages=500,
    )
    hasty = producer(
        address,
        tmp_path / "m",
        client_id="hasty",
        acks="1",
        message_timeout_ms=300,
        queue_buffering_max_messages=500,
    )
    threads = [
        threading.Thread(target=load, args=("careful", careful)),
        threading.Thread(target=load, args=("hasty", hasty)),
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            goal = delivered[0] + 300
            until(lambda goal=goal: delivered[0] >= goal, "deliveries after a start", timeout_s=60)  # type: ignore[misc]
            broker.kill()
            broker.close()
            broker = start_broker(listen=address)
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    found = judged(tmp_path / "m", address, topic, 2)
    assert found.findings == [] and all(file.is_whole for file in found.manifest.files)
    assert len(found.manifest.files) == 2 and found.outcomes[Outcome.OK] >= 900


WRITER = """
import sys
from tools.verify.manifest.confluent_producer import ManifestProducer
address, topic, folder = sys.argv[1:]
client = ManifestProducer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1}, folder)
delivered = 0

def count(error, message):
    global delivered
    delivered += error is None
    if delivered == 40_000:
        print("go", flush=True)

number = 0
while True:
    number += 1
    try:
        client.produce(topic, f"{number}", on_delivery=count)
    except BufferError:
        client.poll(0.05)
    client.poll(0)
"""


def test_a_killed_writer_leaves_a_manifest_that_agrees_with_the_log(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker_process.bootstrap)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, broker_process.bootstrap, topic, str(tmp_path / "m")],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"go\n"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        writer.stdout.close()
    found = judged(tmp_path / "m", broker_process.bootstrap, topic, 1)
    assert found.findings == [] and not found.manifest.files[0].is_whole
    assert found.counted["manifest-unfinished"] == 1
    assert 16_384 <= found.outcomes[Outcome.OK] <= found.log_records


@pytest.mark.parametrize(
    ("config", "guarantees"),
    [
        ({"enable.idempotence": True}, Guarantee.IDEMPOTENT | Guarantee.ORDERED),
        ({"enable.idempotence": "true"}, Guarantee.IDEMPOTENT | Guarantee.ORDERED),
        ({"transactional.id": "t"}, Guarantee.IDEMPOTENT | Guarantee.ORDERED),
        ({"max.in.flight.requests.per.connection": 1, "retries": 0}, Guarantee(0)),
        ({}, Guarantee(0)),
    ],
)
def test_a_producer_promises_what_its_configuration_does(
    config: dict[str, Any], guarantees: Guarantee, tmp_path: Path
) -> None:
    quiet = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": lambda _: None}
    with ManifestProducer({**quiet, **config}, tmp_path):
        pass
    (file,) = read_manifests([str(tmp_path)], {}).files
    assert file.head.guarantees == guarantees and file.is_whole


def test_bench_produce_writes_a_manifest(broker_process: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    command = ["bench", "produce", "-q", "-b", broker_process.bootstrap, "--topic", "b", "--records", "3000"]
    assert run([*command, "--record-size", "100", "--acks", "all", "--manifest", str(folder)]) == 0
    (file,) = read_manifests([str(folder)], {}).files
    assert list(file.topics.values()) != [] and "A" * 22 not in file.topics.values(), (
        "it knows the topic's id"
    )
    with_id = read_manifests([str(folder)], {})
    assert with_id.partitions() == {(file.topics[0], 0)}
    assert judged(folder, broker_process.bootstrap, "b", 1, file.topics[0]).findings == []
    assert judged(folder, broker_process.bootstrap, "b", 1, file.topics[0], lost=1).findings != []


def test_a_manifest_that_cannot_be_written_is_one_line(
    broker_process: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    command = ["bench", "produce", "-q", "-b", broker_process.bootstrap, "--records", "1"]
    assert run([*command, "--manifest", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.splitlines() == [f"tidewal: --manifest {tmp_path / 'file'}: File exists"]


def test_what_a_callback_raises_comes_out_as_it_is(tmp_path: Path) -> None:
    """The binding loses it below Python 3.12, unless somebody caught it before."""
    nobody = f"127.0.0.1:{stable_port()}"
    with producer(nobody, tmp_path / "m", message_timeout_ms=50) as client:
        client.produce("never", b"x", on_delivery=lambda *_: int("no number"))
        with pytest.raises(ValueError, match="no number"):
            client.flush(20)


def test_what_was_acknowledged_without_an_offset_is_noted_without_one(
    broker_process: BrokerProcess, tmp_path: Path
) -> None:
    """As with acks=0, and of a send whose acknowledgement was lost and is told by a later one's."""
    topic = make_topic(broker_process.bootstrap)
    with producer(broker_process.bootstrap, tmp_path / "m", acks="0") as client:
        client.produce(topic, b"x")
    (file,) = read_manifests([str(tmp_path / "m")], {}).files
    ((_, rows),) = open_rows(file)
    assert rows["offset"].tolist() == [-1] and rows["outcome"].tolist() == [Outcome.OK]
