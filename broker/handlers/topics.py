"""Requests by which topics come, grow and go, in every version: CreateTopics, DeleteTopics, CreatePartitions.

Owns: these requests as commands, and the shapes of their responses. Does not own: the rules
(control/topics.py), the commit (control/cluster.py). Invariant: each topic of a request is answered by
itself, and only once its slot is won.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.describe import ConfigRow, describe_topic
from broker.control.cluster import Cluster
from broker.control.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteResult,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicRef,
    TopicResult,
)
from broker.decisions import Refusal
from broker.handlers.results import decision_timeout_ms, error_fields, rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.create_partitions import CreatePartitionsRequest
    from protocol.requests.create_topics import CreateTopicsRequest
    from protocol.requests.delete_topics import DeleteTopicsRequest, DeleteTopicState


_NO_ID: Final = UUID(int=0)
_SETTINGS_ALIKE_MAX: Final = 2_000


class TopicHandlers:
    def __init__(self, *, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.CREATE_TOPICS: self.create_topics,
            Api.DELETE_TOPICS: self.delete_topics,
            Api.CREATE_PARTITIONS: self.create_partitions,
        }

    def _timeout_ms(self, timeout: timedelta) -> int:
        return decision_timeout_ms(timeout, self._cluster.broker_config)

    async def create_topics(self, ctx: Context, request: CreateTopicsRequest) -> Fields:
        cluster = self._cluster
        topics = await cluster.turns.run(_new_topics(request))
        command = CreateTopics(topics=topics, validate_only=request.validate_only)
        results = await cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        described = _Described(cluster.broker_config) if ctx.api_version >= 5 else None
        made = await cluster.turns.run(rows(lambda result: _created(result, described), results))
        return {"throttle_time": 0, "topics": made}

    async def delete_topics(self, ctx: Context, request: DeleteTopicsRequest) -> Fields:
        if not self._cluster.broker_config.delete_topic_enable:
            if ctx.api_version < 3:
                raise KafkaError(ErrorCode.invalid_request, "Topic deletion is disabled.")
            raise KafkaError(ErrorCode.topic_deletion_disabled)
        turns = self._cluster.turns
        refs = await turns.run(rows(lambda name: TopicRef(name=name), request.topic_names))
        refs += await turns.run(rows(_ref, request.topics))
        command = DeleteTopics(topics=tuple(refs))
        results = await self._cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        return {"throttle_time": 0, "responses": await turns.run(rows(_deleted, results))}

    async def create_partitions(self, ctx: Context, request: CreatePartitionsRequest) -> Fields:
        turns = self._cluster.turns
        topics = await turns.run(_more_partitions(request))
        command = CreatePartitions(topics=topics, validate_only=request.validate_only)
        results = await self._cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        return {"throttle_time": 0, "results": await turns.run(rows(_grown, results))}


def _new_topics(request: CreateTopicsRequest) -> Work[tuple[NewTopic, ...]]:
    topics: list[NewTopic] = []
    for topic in request.topics:
        assignments = yield from rows(
            lambda each: (each.partition_index, tuple(each.broker_ids)), topic.assignments
        )
        configs = yield from rows(lambda each: (each.name, each.value), topic.configs)
        topics.append(
            NewTopic(
                name=topic.name,
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments=tuple(assignments),
                configs=tuple(configs),
            )
        )
        yield
    return tuple(topics)


def _more_partitions(request: CreatePartitionsRequest) -> Work[tuple[MorePartitions, ...]]:
    topics: list[MorePartitions] = []
    for topic in request.topics:
        assignments = None
        if topic.assignments is not None:
            assignments = tuple((yield from rows(lambda each: tuple(each.broker_ids), topic.assignments)))
        topics.append(MorePartitions(name=topic.name, count=topic.count, assignments=assignments))
        yield
    return tuple(topics)


def _ref(topic: DeleteTopicState) -> TopicRef:
    return TopicRef(name=topic.name, id=None if topic.topic_id == _NO_ID else topic.topic_id)


class _Described:
    """The settings of new topics as CreateTopics tells them; those of equal topics are the same rows."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._known: dict[frozenset[tuple[str, str]], list[Fields]] = {}

    def settings(self, configs: Mapping[str, str]) -> list[Fields]:
        key = frozenset(configs.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = list(map(_setting, describe_topic(self._config, configs)))
        return found


@lru_cache(maxsize=_SETTINGS_ALIKE_MAX)
def _setting(row: ConfigRow) -> Fields:
    return {
        "name": row.name,
        "value": row.value,
        "read_only": row.read_only,
        "config_source": row.source,
        "is_sensitive": row.sensitive,
    }


def _created(result: TopicResult, described: _Described | None) -> Fields:
    if result.topic is None:
        return {"name": result.name, "topic_id": None, **error_fields(result.error), "configs": []}
    return {
        "name": result.name,
        "topic_id": result.topic.id,
        **error_fields(None),
        "num_partitions": len(result.topic.partitions),
        "replication_factor": len(result.topic.partitions[0].replicas),
        "configs": [] if described is None else described.settings(result.configs),
    }


def _grown(result: tuple[str, Refusal | None]) -> Fields:
    name, error = result
    return {"name": name, **error_fields(error)}


def _deleted(result: DeleteResult) -> Fields:
    return {"name": result.name, "topic_id": result.id, **error_fields(result.error)}
