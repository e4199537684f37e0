"""Listeners, and settings that contradict each other."""

from __future__ import annotations

import pytest

from broker.config.broker import from_properties
from broker.config.values import ConfigError


def test_several_listeners_each_with_its_name() -> None:
    config = from_properties(
        {
            "listeners": "INTERNAL://127.0.0.1:9092,external://0.0.0.0:0,V6://[::1]:9094",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,V6:PLAINTEXT",
            "advertised.listeners": "EXTERNAL://broker.example:443,INTERNAL://10.0.0.1:9092",
            "inter.broker.listener.name": "INTERNAL",
        }
    )
    assert [(listener.name, listener.host, listener.port) for listener in config.listeners] == [
        ("INTERNAL", "127.0.0.1", 9092),
        ("EXTERNAL", "0.0.0.0", 0),
        ("V6", "::1", 9094),
    ]
    assert [listener.is_wildcard for listener in config.listeners] == [False, True, False]
    assert [listener.name for listener in config.advertised] == ["EXTERNAL", "INTERNAL"]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "Expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:70000"}, "Expected NAME://HOST:PORT"),
        ({"listeners": ""}, "no listener for clients"),
        ({"listeners": "FOO://h:1"}, "No security protocol defined for listener FOO"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "different name"),
        ({"listeners": "SSL://a:1", "security.inter.broker.protocol": "SSL"}, "serves PLAINTEXT only"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable"),
        (
            {
                "advertised.listeners": "OTHER://h:9092",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            },
            "subset",
        ),
        ({"inter.broker.listener.name": "OTHER"}, "must be a listener name defined in advertised.listeners"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "Expected LISTENER:PROTOCOL"),
        ({"process.roles": "controller"}, "must contain broker"),
        ({"node.id": "1", "broker.id": "2"}, "same value"),
        ({"node.id": "-1"}, "node.id: Value must be at least 0"),
        ({"log.dirs": "a,,b"}, "'log.dirs' values must not be empty"),
        ({"log.dirs": ""}, "'log.dirs' must not be empty"),
        ({"log.dirs": "", "log.dir": "a"}, "'log.dirs' must not be empty"),
        ({"log.dirs": "a,a"}, "twice"),
        ({"max.connections.per.ip.overrides": "host"}, "HOST:COUNT"),
        (
            {
                "listeners": "A://127.0.0.1:9092,B://0.0.0.0:9092",
                "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
                "inter.broker.listener.name": "A",
            },
            "different port",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        from_properties(properties)
    assert "\n" not in str(caught.value)


def test_brokers_talk_on_the_listener_of_their_protocol_unless_one_is_named() -> None:
    named_alike = {
        "listeners": "SSL://:1,PLAINTEXT://:2",
        "listener.security.protocol.map": "SSL:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
    assert from_properties(named_alike).inter_broker_listener == "PLAINTEXT"
    assert (
        from_properties({**named_alike, "security.inter.broker.protocol": "SSL"}).inter_broker_listener
        == "SSL"
    )
