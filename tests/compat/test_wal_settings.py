"""The settings of the WAL tier (KIP-1176) as stock clients see them: described, altered, and refused by name
where they are misspelt. Kafka has none of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from confluent_kafka.admin import ResourceType as Resource

from protocol.apis import Api
from protocol.peers import STORED_END, STORED_END_FROM
from tests.clients.blocking import BlockingClient
from tests.compat.peers import unique, until
from tests.processes import BrokerProcess

SWITCH = "remote.wal.storage.enable"
SYSTEM = "remote.log.wal.storage.system.enable"
INTERVAL = "remote.wal.log.manager.combiner.task.interval.ms"
BYTES = "remote.wal.log.manager.combiner.task.upload.bytes"
FIXED = {
    SYSTEM: "true",
    "remote.log.wal.storage.manager.class.name": None,
    "remote.log.wal.storage.manager.class.path": None,
    "remote.log.wal.storage.manager.impl.prefix": "rwsm.config.",
    "remote.wal.local.sync": "false",
    "remote.wal.log.manager.combiner.queue.size": "16384",
    "remote.wal.log.manager.combiner.thread.pool.size": "4",
    "remote.wal.log.manager.thread.pool.size": "8",
}
DYNAMIC = {INTERVAL: "20", BYTES: "4194304"}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("wal") / "data") as running:
        yield running


@pytest.fixture
def admin(process: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": process.bootstrap})


def done(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(timeout=20)


def refusal(futures: dict[Any, Any]) -> str:
    with pytest.raises(KafkaException) as caught:
        done(futures)
    error: KafkaError = caught.value.args[0]
    # what a broker refuses of its own settings is an invalid request, as in Kafka
    assert error.code() in (KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST)
    return error.str()


def alter(admin: AdminClient, kind: Resource, name: str, setting: str, value: str | None) -> dict[Any, Any]:
    how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(setting, value, incremental_operation=how)
    return admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])])


def described(admin: AdminClient, kind: Resource, name: str) -> dict[str, Any]:
    found: dict[str, Any] = done(admin.describe_configs([ConfigResource(kind, name)]))
    return found


@pytest.mark.requirement(
    *("1176-02", "1176-03", "1176-04", "1176-05", "1176-06", "1176-07", "1176-08", "1176-09", "1176-10")
)
def test_a_brokers_settings_are_described_and_two_may_be_altered(admin: AdminClient) -> None:
    rows = described(admin, Resource.BROKER, "1")
    for name, value in {**FIXED, **DYNAMIC}.items():
        row = rows[name]
        assert (row.value, row.is_default, row.is_read_only) == (value, True, name in FIXED), name
    for name in FIXED:
        assert "Cannot update these configs dynamically" in refusal(
            alter(admin, Resource.BROKER, "1", name, "true")
        )
    for name, value in ((INTERVAL, "500"), (BYTES, "5000")):
        done(alter(admin, Resource.BROKER, "1", name, value))
        assert described(admin, Resource.BROKER, "1")[name].value == value
        assert "must be at least" in refusal(alter(admin, Resource.BROKER, "1", name, "0"))
        done(alter(admin, Resource.BROKER, "1", name, None))
        assert described(admin, Resource.BROKER, "1")[name].value == DYNAMIC[name]


@pytest.mark.requirement("1176-01")
def test_a_topics_switch_is_described_and_altered(admin: AdminClient) -> None:
    name = unique("wal")
    done(admin.create_topics([NewTopic(name, 1, config={SWITCH: "true", "cleanup.policy": "compact"})]))
    for value in ("true", "false", "true"):
        done(alter(admin, Resource.TOPIC, name, SWITCH, value))
        row = described(admin, Resource.TOPIC, name)[SWITCH]
        assert (row.value, row.is_default, row.is_read_only) == (value, False, False)
    done(alter(admin, Resource.TOPIC, name, SWITCH, None))
    row = described(admin, Resource.TOPIC, name)[SWITCH]
    assert (row.value, row.is_default) == ("false", True)


@pytest.mark.requirement("1176-01", "1176-02")
def test_misspelt_settings_are_refused_with_the_right_name(admin: AdminClient) -> None:
    name = unique("misspelt")
    said = f"Unknown topic config name: remote.wal.enable; did you mean {SWITCH}?"
    assert said in refusal(admin.create_topics([NewTopic(name, 1, config={"remote.wal.enable": "true"})]))
    done(admin.create_topics([NewTopic(name, 1)]))
    assert said in refusal(alter(admin, Resource.TOPIC, name, "remote.wal.enable", "true"))
    for setting, meant in (
        ("remote.wal.enable", f"did you mean {SWITCH}, a setting of topics?"),
        ("remote.wal.storage.system.enable", f"did you mean {SYSTEM}?"),
        (SWITCH, "it is a setting of topics"),
    ):
        assert meant in refusal(alter(admin, Resource.BROKER, "1", setting, "true"))


@pytest.mark.requirement("1176-01")
@pytest.mark.parametrize("topic", ["__consumer_offsets", "__remote_log_metadata"])
def test_of_internal_topics_the_brokers_decide(admin: AdminClient, topic: str) -> None:
    said = refusal(alter(admin, Resource.TOPIC, topic, SWITCH, "true"))
    assert "the brokers decide which of them are stored" in said


@pytest.mark.requirement("1176-02")
def test_no_topic_is_switched_on_while_the_system_is_off(tmp_path: Any) -> None:
    with BrokerProcess(tmp_path / "data", settings={SYSTEM: "false"}) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        said = refusal(admin.create_topics([NewTopic("t", 1, config={SWITCH: "true"})]))
        assert said == f"{SWITCH} cannot be switched on while {SYSTEM}=false in the brokers"
        done(admin.create_topics([NewTopic("t", 1)]))
        assert described(admin, Resource.BROKER, "1")[SYSTEM].value == "false"


def stored_end(client: BlockingClient, topic: str) -> int:
    row = {"partition_index": 0, "timestamp": STORED_END, "current_leader_epoch": -1}
    answer = client.call(
        Api.LIST_OFFSETS,
        STORED_END_FROM,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [row]}],
        timeout=1000,
    )
    end: int = answer.topics[0].partitions[0].offset
    return end


@pytest.mark.requirement("1176-09")
def test_the_interval_may_change_while_a_topic_is_stored(process: BrokerProcess, admin: AdminClient) -> None:
    topic = unique("paced")
    done(admin.create_topics([NewTopic(topic, 1, config={SWITCH: "true"})]))
    client = BlockingClient(process.bootstrap)
    producer = Producer({"bootstrap.servers": process.bootstrap, "linger.ms": 0})
    sent = 0

    def is_stored() -> bool:
        return stored_end(client, topic) == sent

    def seconds_of(records: int) -> float:
        """How long these take, of which each is sent when the one before it is stored."""
        nonlocal sent
        begun = time.monotonic()
        for _ in range(records):
            producer.produce(topic, b"v")
            assert producer.flush(20) == 0
            sent += 1
            until(is_stored, "the record is stored")
        return time.monotonic() - begun

    seconds_of(1)
    done(alter(admin, Resource.BROKER, "1", INTERVAL, "800"))
    seconds_of(1)  # cut in the interval before
    assert seconds_of(3) > 2 * 0.8
    done(alter(admin, Resource.BROKER, "1", INTERVAL, None))
    seconds_of(1)
    assert seconds_of(10) < 9 * 0.8
    client.socket.close()
