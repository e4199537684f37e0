"""A real broker whose metadata is in a real MinIO: it survives a kill, waits for a store that is away, and
says what is wrong with one that refuses.
"""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.peers import stable_port, unique, until
from tests.e2e.stock_load import produce
from tests.processes import ROOT, TIDEWAL, BrokerProcess, DidNotStart
from tools.versus.minio import MinioServer

pytestmark = pytest.mark.minio

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def url(minio_server: MinioServer, bucket: str) -> str:
    return minio_server.url(bucket, unique("broker"))


def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("group"), "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=20)
            assert messages, f"{len(found)} of {count} records"
            assert [message.error() for message in messages] == [None] * len(messages)
            found += [int(message.value()) for message in messages]
        return found
    finally:
        consumer.close()


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(timeout=20)


def topics_of(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics)


def test_nothing_is_lost_when_it_is_killed(
    start_broker: StartBroker, minio_server: MinioServer, url: str
) -> None:
    topic = unique("topic")

    def start() -> BrokerProcess:
        return start_broker(arguments=("--store", url), env=minio_server.environ)

    broker = start()
    assert broker.ready_line.endswith(f"store={url}")
    make_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, range(500))
    assert consume(broker.bootstrap, topic, 500) == list(range(500))
    broker.kill()
    broker = start()
    assert consume(broker.bootstrap, topic, 500) == list(range(500))
    produce(broker.bootstrap, topic, range(500, 700))
    assert broker.terminate() == 0
    assert "Unclosed" not in broker.stderr
    assert "Traceback" not in broker.stderr
    broker = start()
    assert consume(broker.bootstrap, topic, 700) == list(range(700))
    assert topic in topics_of(broker.bootstrap)


def test_the_local_directory_holds_no_metadata(
    start_broker: StartBroker, minio_server: MinioServer, url: str, tmp_path: Path
) -> None:
    start_broker(arguments=("--store", url), env=minio_server.environ)
    assert not (tmp_path / "data" / "store").exists()


@pytest.mark.parametrize("missing", ["bucket", "secret"])
def test_a_store_that_refuses_is_one_line_and_an_end(
    minio_server: MinioServer, bucket: str, tmp_path: Path, missing: str
) -> None:
    environ = dict(minio_server.environ)
    if missing == "secret":
        environ["AWS_SECRET_ACCESS_KEY"] = "wrong"
    url = minio_server.url("no-such-bucket" if missing == "bucket" else bucket)
    with pytest.raises(DidNotStart) as caught:
        BrokerProcess(tmp_path / "data", arguments=("--store", url), env=environ)
    assert caught.value.returncode == 1
    (line,) = caught.value.stderr.splitlines()
    assert line.startswith(f"tidewal: s3://{url.split('/')[2]}/")
    assert {"bucket": "NoSuchBucket", "secret": "SignatureDoesNotMatch"}[missing] in line


@pytest.fixture
def own_minio(minio: Path, tmp_path: Path) -> Iterator[Callable[[], MinioServer]]:
    """A MinIO that may be killed, and comes back on the same port and data."""
    started: list[MinioServer] = []
    port = stable_port()

    def start() -> MinioServer:
        started.append(MinioServer(minio, tmp_path / "minio", port=port))
        return started[-1]

    yield start
    for server in started:
        server.close()


def test_a_store_that_is_away_at_the_start_is_waited_for(
    own_minio: Callable[[], MinioServer], tmp_path: Path
) -> None:
    server = own_minio()
    server.close()
    command = [*TIDEWAL, "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    admin = f"127.0.0.1:{stable_port()}"
    command += ["--admin", admin]
    said = tmp_path / "stderr"
    with (
        said.open("wb") as stderr,
        subprocess.Popen(
            [*command, "--store", server.url("ready", "broker")],
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=ROOT,
            env={**os.environ, **server.environ},
        ) as broker,
    ):
        try:
            until(lambda: "trying until it does" in said.read_text(), "a word about the store")
            assert f"127.0.0.1:{server.port}: cannot connect" in said.read_text()
            assert [status_of(admin, page) for page in ("healthz", "readyz", "metrics")] == [200, 503, 200]
            own_minio()
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith(b"ready node=1 ")
            assert status_of(admin, "readyz") == 200
            assert "the object store answers again" in said.read_text()
            broker.terminate()
            assert broker.wait(timeout=20) == 0
        finally:
            broker.kill()


def status_of(admin: str, page: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{admin}/{page}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_what_was_led_is_served_while_the_store_is_away(
    own_minio: Callable[[], MinioServer], start_broker: StartBroker
) -> None:
    server = own_minio()
    broker = start_broker(arguments=("--store", server.url("ready", "broker")), env=server.environ)
    before, after = unique("before"), unique("after")
    make_topic(broker.bootstrap, before)
    produce(broker.bootstrap, before, range(10))  # the first to ask for a producer id asks the store for many
    server.close()
    produce(broker.bootstrap, before, range(10, 100))
    assert consume(broker.bootstrap, before, 100) == list(range(100))
    own_minio()
    make_topic(broker.bootstrap, after)
    produce(broker.bootstrap, after, range(10))
    assert broker.terminate() == 0
