"""Requests by which topics come, grow and go, in every version: CreateTopics, DeleteTopics, CreatePartitions.

Owns: these requests as commands, and the shapes of their responses. Does not own: the rules
(control/topics.py), the commit (control/cluster.py). Invariant: each topic of a request is answered by
itself, and only once its slot is won.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.describe import describe_topic
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
from broker.handlers.results import decision_timeout_ms, error_fields
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.create_partitions import CreatePartitionsRequest
    from protocol.requests.create_topics import CreateTopicsRequest
    from protocol.requests.delete_topics import DeleteTopicsRequest


_NO_ID: Final = UUID(int=0)


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
        topics = tuple(
            NewTopic(
                name=topic.name,
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments=tuple((a.partition_index, tuple(a.broker_ids)) for a in topic.assignments),
                configs=tuple((config.name, config.value) for config in topic.configs),
            )
            for topic in request.topics
        )
        command = CreateTopics(topics=topics, validate_only=request.validate_only)
        results = await self._cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        with_configs = ctx.api_version >= 5
        return {
            "throttle_time": 0,
            "topics": [_created(self._cluster.broker_config, result, with_configs) for result in results],
        }

    async def delete_topics(self, ctx: Context, request: DeleteTopicsRequest) -> Fields:
        if not self._cluster.broker_config.delete_topic_enable:
            if ctx.api_version < 3:
                raise KafkaError(ErrorCode.invalid_request, "Topic deletion is disabled.")
            raise KafkaError(ErrorCode.topic_deletion_disabled)
        refs = [TopicRef(name=name) for name in request.topic_names]
        refs += [
            TopicRef(name=topic.name, id=None if topic.topic_id == _NO_ID else topic.topic_id)
            for topic in request.topics
        ]
        command = DeleteTopics(topics=tuple(refs))
        results = await self._cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        return {"throttle_time": 0, "responses": list(map(_deleted, results))}

    async def create_partitions(self, ctx: Context, request: CreatePartitionsRequest) -> Fields:
        topics = tuple(
            MorePartitions(
                name=topic.name,
                count=topic.count,
                assignments=None
                if topic.assignments is None
                else tuple(tuple(assignment.broker_ids) for assignment in topic.assignments),
            )
            for topic in request.topics
        )
        command = CreatePartitions(topics=topics, validate_only=request.validate_only)
        results = await self._cluster.submit(command, timeout_ms=self._timeout_ms(request.timeout))
        return {
            "throttle_time": 0,
            "results": [{"name": name, **error_fields(error)} for name, error in results],
        }


def _created(config: BrokerConfig, result: TopicResult, with_configs: bool) -> Fields:
    if result.topic is None:
        return {"name": result.name, "topic_id": None, **error_fields(result.error), "configs": []}
    rows = describe_topic(config, result.configs) if with_configs else ()
    return {
        "name": result.name,
        "topic_id": result.topic.id,
        **error_fields(None),
        "num_partitions": len(result.topic.partitions),
        "replication_factor": len(result.topic.partitions[0].replicas),
        "configs": [
            {
                "name": row.name,
                "value": row.value,
                "read_only": row.read_only,
                "config_source": row.source,
                "is_sensitive": row.sensitive,
            }
            for row in rows
        ],
    }


def _deleted(result: DeleteResult) -> Fields:
    return {"name": result.name, "topic_id": result.id, **error_fields(result.error)}
