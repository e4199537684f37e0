"""Commands against an image, decided and folded without a cluster around them."""

from __future__ import annotations

import random
from typing import Any, TypeVar
from uuid import UUID

from broker.config.broker import BrokerConfig, from_properties
from broker.control.brokers import RegisterBroker, election
from broker.control.commands import ControllerCommand, Rules, deciding
from broker.control.image import Image, fold
from broker.control.metadata_records import (
    ClusterBorn,
    Record,
    TopicCreated,
    decode_record,
    encode_record,
    new_partition,
)
from broker.control.topics import CreateTopics, NewTopic, TopicResult
from broker.decisions import Decision, Refusal
from broker.endpoint import Endpoint
from protocol.errors import ErrorCode, KafkaError
from protocol.work import finish

R = TypeVar("R")

CONFIG = from_properties({"num.partitions": "2", "default.replication.factor": "2"})


def rules(seed: int = 0, config: BrokerConfig = CONFIG) -> Rules:
    rng = random.Random(seed)
    return Rules(config=config, new_id=lambda: UUID(int=rng.getrandbits(128)), pick=rng.randrange)


def registration(broker_id: int, rack: str | None = None) -> RegisterBroker:
    return RegisterBroker(
        cluster_id="c",
        broker_id=broker_id,
        incarnation=UUID(int=broker_id),
        directories=(UUID(int=100 + broker_id),),
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=9092),),
        rack=rack,
        clean_epoch=-1,
    )


def cluster(count: int = 3) -> Image:
    slots: list[list[Record]] = [[ClusterBorn(cluster_id="c"), election(Image(), 1)]]
    slots += [[registration(broker_id).record()] for broker_id in range(1, count + 1)]
    return fold(enumerate(slots, start=1))


def decided(
    image: Image, command: ControllerCommand[R], *, seed: int = 0, config: BrokerConfig = CONFIG
) -> Decision[Record, R]:
    return finish(deciding(command, image, rules(seed, config)))


def carry_out(image: Image, *steps: ControllerCommand[Any] | Record, seed: int = 0) -> Any:
    """Decide each against the image, then fold what was decided, as a slot would have it; the last answer."""
    response: Any = None
    for step in steps:
        before = image.copy()
        decision = (
            Decision(response=None, records=(step,))
            if isinstance(step, Record)
            else decided(image, step, seed=seed)
        )
        assert image == before, "deciding changed the image"
        written = [decode_record(encode_record(record)) for record in decision.records]
        image.apply_slot(image.seq + 1, written)
        response = decision.response
    return response


def code(error: Refusal | None) -> ErrorCode:
    return ErrorCode.none if error is None else error.code


def refused(image: Image, command: ControllerCommand[Any]) -> tuple[ErrorCode, str | None]:
    """How a command is refused as a whole."""
    before = image.copy()
    try:
        decided(image, command)
    except KafkaError as error:
        assert image == before, "deciding changed the image"
        return error.code, error.message
    raise AssertionError(f"not refused: {command}")


def topic(*assignments: tuple[int, ...], name: str = "t") -> TopicCreated:
    """A topic with all its replicas in sync."""
    partitions = tuple(new_partition(at, replicas, replicas) for at, replicas in enumerate(assignments))
    topic_id = UUID(int=int.from_bytes(name.encode()))
    return TopicCreated(name=name, topic_id=topic_id, partitions=partitions)


def create(image: Image, *topics: NewTopic, validate_only: bool = False) -> list[TopicResult]:
    response = carry_out(image, CreateTopics(topics=topics, validate_only=validate_only))
    assert isinstance(response, list)
    return response
