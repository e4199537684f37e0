"""Configurations change as Kafka decides it."""

from __future__ import annotations

import pytest

from broker.config.values import ResourceType
from broker.control.config_changes import AlterConfigs, ConfigOp, IncrementalAlterConfigs, Operation
from broker.control.image import Image
from broker.control.topics import (
    NewTopic,
)
from protocol.errors import ErrorCode
from tests.broker.control.decisions import carry_out, cluster, code, create

TOPIC = (int(ResourceType.TOPIC), "t")


def op(name: str, operation: Operation, value: str | None = None) -> ConfigOp:
    return ConfigOp(name=name, operation=operation, value=value)


def change(image: Image, resource: tuple[int, str], *ops: ConfigOp, validate_only: bool = False) -> ErrorCode:
    command = IncrementalAlterConfigs(changes=((resource, ops),), validate_only=validate_only)
    response = carry_out(image, command)
    assert isinstance(response, dict)
    return code(response[resource])


def test_incremental_changes_add_up() -> None:
    image = cluster()
    create(image, NewTopic(name="t", configs=(("retention.ms", "5"),)))
    assert change(image, TOPIC, op("segment.ms", Operation.SET, "7")) is ErrorCode.none
    assert change(image, TOPIC, op("cleanup.policy", Operation.APPEND, "compact")) is ErrorCode.none
    assert image.config(ResourceType.TOPIC, "t") == {
        "retention.ms": "5",
        "segment.ms": "7",
        "cleanup.policy": "delete,compact",
    }
    assert change(image, TOPIC, op("cleanup.policy", Operation.SUBTRACT, "delete,nope")) is ErrorCode.none
    assert change(image, TOPIC, op("retention.ms", Operation.DELETE)) is ErrorCode.none
    assert image.config(ResourceType.TOPIC, "t") == {"segment.ms": "7", "cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("resource", "change_op", "expected"),
    [
        (TOPIC, op("retention.ms", Operation.APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, op("nonsense", Operation.APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, op("nonsense", Operation.SET, "1"), ErrorCode.invalid_config),
        (TOPIC, op("retention.ms", Operation.SET, "-7"), ErrorCode.invalid_config),
        (TOPIC, ConfigOp(name="retention.ms", operation=9, value="1"), ErrorCode.invalid_request),
        ((2, "nowhere"), op("retention.ms", Operation.SET, "1"), ErrorCode.unknown_topic_or_partition),
        ((2, ""), op("retention.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((2, "a b"), op("retention.ms", Operation.SET, "1"), ErrorCode.invalid_topic_exception),
        ((4, "x"), op("log.retention.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((4, "-1"), op("log.retention.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((4, "9"), op("log.retention.ms", Operation.SET, "1"), ErrorCode.broker_id_not_registered),
        ((32, ""), op("consumer.session.timeout.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((32, "g"), op("consumer.session.timeout.ms", Operation.SET, "1"), ErrorCode.invalid_config),
        ((16, "m"), op("interval.ms", Operation.SET, "1"), ErrorCode.invalid_request),
        ((99, "m"), op("interval.ms", Operation.SET, "1"), ErrorCode.invalid_request),
    ],
)
def test_changes_that_cannot_be(resource: tuple[int, str], change_op: ConfigOp, expected: ErrorCode) -> None:
    image = cluster()
    create(image, NewTopic(name="t"))
    assert change(image, resource, change_op) is expected
    assert image.configs == {}


def test_the_older_request_replaces_everything() -> None:
    image = cluster()
    create(image, NewTopic(name="t", configs=(("retention.ms", "5"), ("segment.ms", "7"))))
    command = AlterConfigs(resources=((TOPIC, (("retention.ms", "6"),)),))
    assert carry_out(image, command) == {TOPIC: None}
    assert image.config(ResourceType.TOPIC, "t") == {"retention.ms": "6"}


def test_one_bad_value_keeps_a_resource_as_it_was_and_others_go_on() -> None:
    image = cluster()
    create(image, NewTopic(name="t"), NewTopic(name="u"))
    command = IncrementalAlterConfigs(
        changes=(
            (TOPIC, (op("retention.ms", Operation.SET, "1"), op("segment.ms", Operation.SET, "x"))),
            ((2, "u"), (op("retention.ms", Operation.SET, "1"),)),
        )
    )
    response = carry_out(image, command)
    assert isinstance(response, dict)
    assert [code(error) for error in response.values()] == [ErrorCode.invalid_config, ErrorCode.none]
    assert image.configs == {(ResourceType.TOPIC, "u"): {"retention.ms": "1"}}


def test_a_change_can_be_tried() -> None:
    image = cluster()
    create(image, NewTopic(name="t"))
    assert change(image, TOPIC, op("retention.ms", Operation.SET, "1"), validate_only=True) is ErrorCode.none
    assert image.configs == {}
