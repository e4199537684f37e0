"""Settings as environment variables: Kafka's rules for names, files with values, levels, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.broker import BrokerConfig
from broker.config.tables import BROKER, TOPIC
from broker.config.values import ConfigError
from tools.broker_command import BrokerOptions, from_environment, read_config
from tools.console import Failure
from tools.environment import KAFKAS, OURS, Environment, over, property_of, read_environment, variable_of

SINGLE_NODE = {
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_HEAP_OPTS": "-Xmx1g",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT"
    ),
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
    "KAFKA_NODE_ID": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
}
"""A broker by itself as Kafka's image is told in its documentation."""


def no_file(path: str) -> str:
    raise ConfigError("No such file or directory")


def read(environ: Mapping[str, str]) -> Environment:
    return read_environment(environ, no_file)


def config_of(environ: Mapping[str, str], **options: object) -> BrokerConfig:
    return read_config(BrokerOptions(**options), from_environment(dict(environ)))  # type: ignore[arg-type]


def refusal(environ: Mapping[str, str]) -> str:
    with pytest.raises(Failure) as caught:
        config_of(environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- names ---


@pytest.mark.parametrize("prefix", [OURS, KAFKAS])
def test_every_property_has_a_variable_of_its_own(prefix: str) -> None:
    variables = {variable_of(name, prefix): name for name in BROKER}
    assert len(variables) == len(BROKER)
    assert {variable: property_of(variable, prefix) for variable in variables} == variables


@given(name=st.from_regex(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", fullmatch=True))
def test_a_name_comes_back_from_its_variable(name: str) -> None:
    assert property_of(variable_of(name, KAFKAS), KAFKAS) == name


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_LISTENER_NAME_TC___0_SASL__X", "listener.name.tc-0.sasl_x"),
        ("KAFKA_A____B", "a-.b"),
        ("KAFKA_KAFKA_METRICS_REPORTERS", "kafka.metrics.reporters"),
    ],
)
def test_underscores_are_read_as_in_kafkas_images(variable: str, name: str) -> None:
    assert property_of(variable, KAFKAS) == name


@given(
    environ=st.dictionaries(
        st.one_of(
            st.sampled_from([variable_of(name, prefix) for name in BROKER for prefix in (OURS, KAFKAS)]),
            st.sampled_from([*SINGLE_NODE, "KAFKA_OPTS", "KAFKA_JMX_PORT", "KAFKA_REST_LISTENERS", "PATH"]),
            st.from_regex(r"(?:KAFKA|TIDEWAL)_[A-Z_]{1,12}", fullmatch=True),
        ),
        st.text(min_size=1, max_size=5),
    )
)
def test_no_variable_is_lost_without_a_word(environ: dict[str, str]) -> None:
    try:
        found = read(environ)
    except ConfigError as error:
        assert str(error)
        return
    kept = {variable_of(name, OURS) for name in found.ours}
    kept |= {variable_of(name, KAFKAS) for name in found.kafkas}
    kept |= {f"TIDEWAL_{name.upper()}" for name in found.options}
    kept |= set(found.ignored)
    asked = {name for name in environ if name.startswith(("KAFKA_", "TIDEWAL_"))} | (
        {"CLUSTER_ID"} & environ.keys()
    )
    assert {name.strip("_") for name in asked} <= {name.strip("_") for name in kept}


def test_what_is_of_others_is_listed_and_what_nobody_set_is_not() -> None:
    found = read(
        {
            "CLUSTER_ID": "x",
            "KAFKA_JMX_PORT": "9101",
            "KAFKA_CONFLUENT_SUPPORT_METRICS_ENABLE": "false",
            "KAFKA_PORT": "tcp://10.0.0.1:9092",
            "KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
            "TIDEWAL_0_SERVICE_HOST": "10.0.0.2",
            "TIDEWAL_SERVICE_PORT_KAFKA": "9092",
            "HOME": "/root",
        }
    )
    assert found == Environment(
        ignored=("CLUSTER_ID", "KAFKA_CONFLUENT_SUPPORT_METRICS_ENABLE", "KAFKA_JMX_PORT")
    )


# --- files ---


def test_a_value_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_text("2048\n")
    (tmp_path / "key").write_text("secret\n")
    environ = {
        "KAFKA_MESSAGE_MAX_BYTES_FILE": str(tmp_path / "bytes"),
        "AWS_SECRET_ACCESS_KEY_FILE": str(tmp_path / "key"),
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/left/alone",
    }
    found = from_environment(environ)
    assert environ["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert read_config(BrokerOptions(), found).message_max_bytes == 2048
    assert "secret" not in str(found.kafkas)


def test_a_property_may_end_like_a_file() -> None:
    name = "sasl.oauthbearer.assertion.file"
    assert read({variable_of(name, KAFKAS): "/x"}).kafkas == {name: "/x"}


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"TIDEWAL_STORE_FILE": "/none/here"}, "TIDEWAL_STORE_FILE /none/here: No such file or directory"),
        ({"TIDEWAL_STORE_FILE": "/"}, "TIDEWAL_STORE_FILE /: Is a directory"),
        (
            {"AWS_ACCESS_KEY_ID": "a", "AWS_ACCESS_KEY_ID_FILE": "/b"},
            "AWS_ACCESS_KEY_ID and AWS_ACCESS_KEY_ID_FILE are both set: set one of them",
        ),
        (
            {"KAFKA_NODE_ID": "1", "KAFKA_NODE_ID_FILE": "/b"},
            "KAFKA_NODE_ID and KAFKA_NODE_ID_FILE are both set: set one of them",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line(environ: dict[str, str], line: str) -> None:
    assert refusal(environ) == line


# --- levels ---


LEVELS = ("kafka", "ours", "option")


@given(
    values=st.dictionaries(st.sampled_from(("file", *LEVELS)), st.integers(1, 1000), min_size=1),
)
def test_options_win_over_ours_over_kafkas_over_the_file(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, int]
) -> None:
    environ = {}
    options = BrokerOptions()
    if "file" in values:
        options.config = tmp_path_factory.getbasetemp() / "server.properties"
        options.config.write_text(f"num.partitions={values['file']}\nbroker.id={values['file']}\n")
    if "kafka" in values:
        environ |= {"KAFKA_NUM_PARTITIONS": str(values["kafka"]), "KAFKA_BROKER_ID": str(values["kafka"])}
    if "ours" in values:
        environ |= {"TIDEWAL_NUM_PARTITIONS": str(values["ours"]), "TIDEWAL_NODE_ID": str(values["ours"])}
    if "option" in values:
        options.settings.append(f"num.partitions={values['option']}")
        options.node_id = values["option"]
    config = read_config(options, from_environment(environ))
    winner = next(values[level] for level in ("option", "ours", "kafka", "file") if level in values)
    assert (config.num_partitions, config.node_id) == (winner, winner)


def test_a_level_speaks_for_all_names_of_a_thing() -> None:
    assert over(
        {"log.retention.ms": "1", "log.dir": "/a"}, {"log.retention.hours": "2", "log.dirs": "/b"}
    ) == {
        "log.retention.hours": "2",
        "log.dirs": "/b",
    }
    assert over({"listeners": "x", "log.dir": "/a"}, {"node.id": "1"}) == {
        "listeners": "x",
        "log.dir": "/a",
        "node.id": "1",
    }


def test_the_environment_is_not_read_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    assert read_config(BrokerOptions()).num_partitions == 1


# --- listeners ---


def addresses(config: BrokerConfig) -> tuple[list[str], list[str]]:
    return tuple(  # type: ignore[return-value]
        [f"{one.name}://{one.host}:{one.port}" for one in listeners]
        for listeners in (config.listeners, config.advertised)
    )


def test_a_broker_of_kafkas_image_starts_as_ours() -> None:
    config = config_of(SINGLE_NODE)
    assert addresses(config) == (
        ["PLAINTEXT_HOST://:9092", "PLAINTEXT://:19092"],
        ["PLAINTEXT_HOST://localhost:9092", "PLAINTEXT://broker:19092"],
    )
    assert config.inter_broker_listener == "PLAINTEXT"
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)
    assert config.ignored == ("controller.quorum.voters",)


@pytest.mark.parametrize(
    ("environ", "listeners", "advertised"),
    [
        ({}, "PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://localhost:9092"),
        ({"TIDEWAL_STORE": "file:///x"}, "PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://0.0.0.0:9092"),
        ({"TIDEWAL_LISTEN": "10.0.0.1:19"}, "PLAINTEXT://10.0.0.1:19", "PLAINTEXT://10.0.0.1:19"),
        (
            {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://[::1]:7", "KAFKA_LISTENERS": ""},
            "PLAINTEXT://0.0.0.0:7",
            "PLAINTEXT://::1:7",
        ),
        (
            {
                "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka:7",
                "KAFKA_LISTENERS": "PLAINTEXT://:7",
                "TIDEWAL_LISTEN": "0.0.0.0:8",
                "TIDEWAL_ADVERTISED_LISTENERS": "PLAINTEXT://broker-1:8",
            },
            "PLAINTEXT://0.0.0.0:8",
            "PLAINTEXT://broker-1:8",
        ),
    ],
)
def test_where_it_listens_and_what_it_tells(environ: dict[str, str], listeners: str, advertised: str) -> None:
    assert addresses(config_of(environ)) == ([listeners], [advertised])


# --- refusals ---


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"KAFKA_NUM_PARTITION": "3"},
            "Unknown environment variable KAFKA_NUM_PARTITION; did you mean KAFKA_NUM_PARTITIONS?",
        ),
        (
            {"TIDEWAL_STOER": "x"},
            "Unknown environment variable TIDEWAL_STOER; did you mean TIDEWAL_STORE?",
        ),
        (
            {"KAFKA_CFG_NODE_ID": "1"},
            "Unknown environment variable KAFKA_CFG_NODE_ID; did you mean KAFKA_NODE_ID?",
        ),
        (
            {"KAFKA_CLEANUP_POLICY": "compact"},
            "Unknown environment variable KAFKA_CLEANUP_POLICY: cleanup.policy is a setting of topics; "
            "KAFKA_LOG_CLEANUP_POLICY is its default for all topics",
        ),
        ({"TIDEWAL_STORE": " "}, "TIDEWAL_STORE is empty: give it a value or leave it out"),
        ({"TIDEWAL_NODE_ID": "one"}, "TIDEWAL_NODE_ID one: not a number"),
        ({"TIDEWAL_LISTEN": "9092"}, "TIDEWAL_LISTEN 9092: not HOST:PORT"),
        ({"TIDEWAL_ADMIN": "9644"}, "TIDEWAL_ADMIN 9644: not HOST:PORT"),
        ({"TIDEWAL_CONFIG": "/none"}, "TIDEWAL_CONFIG /none: No such file or directory"),
        ({"KAFKA_LOG_DIRS": "\udcff"}, "KAFKA_LOG_DIRS: not a text in UTF-8"),
        (
            {"TIDEWAL_DATA": "/a", "TIDEWAL_LOG_DIRS": "/b"},
            "TIDEWAL_DATA and TIDEWAL_LOG_DIRS say the same: set one of them",
        ),
        (
            {"TIDEWAL_STORE": "ftp://x"},
            "TIDEWAL_STORE ftp://x: give file:///DIR or s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=NAME",
        ),
    ],
)
def test_a_mistake_is_one_line_with_the_name_of_the_variable(environ: dict[str, str], line: str) -> None:
    assert refusal(environ) == line


def test_settings_of_topics_are_refused_or_are_of_brokers_too() -> None:
    for name in TOPIC.keys() - BROKER.keys():
        assert f"{name} is a setting of topics" in refusal({variable_of(name, KAFKAS): "1"})


# --- other nodes ---


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:9093,2@b:9093,3@c:9093"},
            "KAFKA_CONTROLLER_QUORUM_VOTERS names other nodes than this one (2, 3)",
        ),
        (
            {"KAFKA_NODE_ID": "2", "KAFKA_PROCESS_ROLES": "broker"},
            "KAFKA_CONTROLLER_QUORUM_VOTERS names other nodes than this one (1)",
        ),
        ({"KAFKA_PROCESS_ROLES": "broker"}, "KAFKA_PROCESS_ROLES speaks of a controller elsewhere"),
        (
            {"TIDEWAL_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": "a:1,b:1"},
            "TIDEWAL_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS names several nodes",
        ),
        ({"KAFKA_ZOOKEEPER_CONNECT": "zk-1:2181,zk-2:2181/kafka"}, "KAFKA_ZOOKEEPER_CONNECT speaks of"),
    ],
)
def test_brokers_that_should_be_one_cluster_need_a_store(changes: dict[str, str], why: str) -> None:
    line = refusal(SINGLE_NODE | changes)
    assert line.startswith(why)
    assert "TIDEWAL_STORE is not set: give every broker the same TIDEWAL_STORE" in line
    config = config_of(SINGLE_NODE | changes | {"TIDEWAL_STORE": "s3://bucket?region=eu-west-1"})
    assert config.node_id == int(changes.get("KAFKA_NODE_ID", "1"))


def test_a_zookeeper_in_the_same_container_is_no_cluster() -> None:
    assert config_of({"KAFKA_ZOOKEEPER_CONNECT": "localhost:2181", "KAFKA_BROKER_ID": "1"}).node_id == 1
