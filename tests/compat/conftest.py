"""The broker under test: a Tidewal of its own, or whichever broker TIDEWAL_TEST_BOOTSTRAP names.

`TIDEWAL_TEST_BOOTSTRAP=HOST:PORT` points every client test at a running broker; the value `kafka` starts
Apache Kafka from its jars. That is how these tests are checked: what passes there is a sound oracle.
"""

from __future__ import annotations

import gc
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.differential import Twins, started_twins
from tests.compat.jvm import compiled
from tests.compat.peers import ApacheKafka, Java, has_leaders, unique, until
from tests.processes import BrokerProcess

with warnings.catch_warnings():
    # kafka-python reads its schemas through an importlib function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

MakeTopic = Callable[..., str]


@pytest.fixture
def collected() -> Iterator[None]:
    """kafka-python leaves sockets to the collector, which would tell of them in the test of somebody else."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def java(kafka_home: Path) -> Java:
    return Java(kafka_home)


@pytest.fixture(scope="session")
def our_java(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Java:
    """Kafka's jars and our programs beside them."""
    if shutil.which("javac") is None:
        pytest.skip("the Java programs of the tests need a JDK on PATH")
    return compiled(java, tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, java: Java) -> Iterator[Twins]:
    with started_twins(tmp_path_factory.mktemp("twins"), java) as pair:
        yield pair


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with the module's BROKER_SETTINGS; one that was given is as it is."""
    given = os.environ.get("TIDEWAL_TEST_BOOTSTRAP")
    settings: Mapping[str, str] = getattr(request.module, "BROKER_SETTINGS", {})
    if given == "kafka":
        java = request.getfixturevalue("java")
        with ApacheKafka(tmp_path_factory.mktemp("kafka"), java, settings=settings) as kafka:
            yield kafka.start().bootstrap
    elif given:
        yield given
    else:
        with BrokerProcess(tmp_path_factory.mktemp("tidewal"), settings=settings) as broker:
            yield broker.bootstrap
            assert "Traceback" not in broker.stderr, broker.stderr[-5000:]


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def make_topic(admin: AdminClient) -> MakeTopic:
    def make(partitions: int = 1, config: Mapping[str, str] | None = None, prefix: str = "topic") -> str:
        name = unique(prefix)
        created = admin.create_topics([NewTopic(name, num_partitions=partitions, config=dict(config or {}))])
        created[name].result(timeout=20)
        until(lambda: has_leaders(admin, name, partitions), "the new topic's leaders")
        return name

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic()
