"""The typed view of a broker's settings, and settings that mean nothing."""

from __future__ import annotations

import re

import pytest

from broker.config.broker import BrokerConfig, from_properties
from broker.config.properties import parse_properties
from broker.config.tables import BROKER
from storage.policy import LogConfig
from tests.broker.config.described import DATA, ROOT, made
from tests.server_properties import STOCK_KRAFT


def test_a_stock_kraft_file_starts_unchanged() -> None:
    config = from_properties(parse_properties(STOCK_KRAFT))
    assert [(listener.name, listener.host, listener.port) for listener in config.listeners] == [
        ("PLAINTEXT", "", 9092)
    ]
    assert [(listener.name, listener.host, listener.port) for listener in config.advertised] == [
        ("PLAINTEXT", "localhost", 9092)
    ]
    assert config.inter_broker_listener == "PLAINTEXT"
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)
    assert "controller.quorum.bootstrap.servers" in config.ignored
    assert "num.io.threads" in config.ignored
    one_listener = from_properties({"listener.name.plaintext.max.connections": "7"})
    assert one_listener.ignored == ("listener.name.plaintext.max.connections",)
    assert "log.retention.hours" not in config.ignored


@pytest.mark.parametrize(
    "name",
    [
        "connection.failed.authentication.delay.ms",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.preallocate",
        "offsets.load.buffer.size",
        "queued.max.requests",
        "transaction.state.log.load.buffer.size",
    ],
)
def test_a_setting_that_nothing_reads_is_listed(name: str) -> None:
    assert from_properties({name: BROKER[name].default or ""}).ignored == (name,)


@pytest.mark.parametrize(
    "name",
    [
        "controlled.shutdown.enable",
        "log.flush.scheduler.interval.ms",
        "log.segment.delete.delay.ms",
        "min.insync.replicas",
        "record.validation",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ],
)
def test_a_setting_that_something_reads_is_not_listed(name: str) -> None:
    assert from_properties({name: BROKER[name].default or ""}).ignored == ()


CODE = [
    path.read_text()
    for package in ("broker", "remote", "storage")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.parent != DATA.parent
]


def is_read(field: str) -> bool:
    return any(re.search(rf"\.{field}\b", text) for text in CODE)


@pytest.mark.parametrize("field", sorted(BrokerConfig.__annotations__))
def test_each_field_of_a_brokers_settings_is_read_somewhere(field: str) -> None:
    assert is_read(field), f"no `.{field}` in broker or storage: nothing happens when it is set"


@pytest.mark.parametrize("field", sorted(LogConfig.__annotations__))
def test_each_field_of_a_logs_settings_is_read_somewhere(field: str) -> None:
    assert is_read(field), f"no `.{field}` in broker or storage: nothing happens when it is set"


def test_no_field_of_a_broker_is_mistaken_for_one_of_its_logs() -> None:
    """They would hide from the search above that nothing reads the broker's."""
    shared = BrokerConfig.__annotations__.keys() & LogConfig.__annotations__.keys()
    assert shared == {"unclean_leader_election_enable"}


def test_buffers_are_left_to_the_kernel_unless_they_are_set() -> None:
    assert (made().socket_send_buffer_bytes, made().socket_receive_buffer_bytes) == (-1, -1)
    config = made(socket_send_buffer_bytes="5000", socket_receive_buffer_bytes="102400")
    assert (config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes) == (5000, 102400)


@pytest.mark.parametrize(
    "name",
    [
        "alter.config.policy.class.name",
        "authorizer.class.name",
        "client.quota.callback.class",
        "create.topic.policy.class.name",
    ],
)
def test_what_would_guard_something_is_not_passed_over_in_a_list(name: str) -> None:
    assert made().warnings == ()
    config = from_properties({name: "org.example.Guard"})
    assert config.ignored == (name,)
    (line,) = config.warnings
    assert line.startswith(f"{name} is set, and nothing here asks it")


def test_a_broker_may_go_by_its_older_id() -> None:
    assert made(broker_id="7").node_id == 7
    assert made(node_id="8").node_id == 8


def test_the_directories_are_those_of_the_list_before_the_single_one() -> None:
    assert made(log_dir="/a").log_dirs == ("/a",)
    assert made(log_dir="/a", log_dirs="/b,/c").log_dirs == ("/b", "/c")
