"""What this broker asks of the controller, wherever that is: one client, one rule for asking again.

Owns: the requests of this broker's own, when one may be put a second time, and waiting for the image to show
what was done. Does not own: how the controller decides (commands.py), clients' requests (forwarding.py), a
registration (joining.py), heartbeats (cluster.py).

Invariants: a request is put again only while it certainly was not heard, because nothing listened there or
what listened was not the controller; and only for as long as the caller says. Where the caller says nothing
it asks anew itself, with what is true then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from broker.control.brokers import AllocateProducerIds
from broker.control.command_queue import CommandQueue
from broker.control.image import TopicImage
from broker.control.member import Member
from broker.control.settings import Settings
from broker.control.topics import CreateTopics, NewTopic, TopicResult, internal_topic
from broker.decisions import Refusal
from broker.net.channel import PeerLost
from protocol.apis import Api, PeerApi
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, error_code

ANSWER_S: Final = 5.0
"""How long a question to the controller may take, elections included."""
ASK_AGAIN_S: Final = 0.2


class ControllerClient:
    def __init__(self, member: Member, queue: CommandQueue, settings: Settings) -> None:
        self._member = member
        self._queue = queue
        self._settings = settings

    def __repr__(self) -> str:
        return f"ControllerClient(node={self._member.node_id})"

    async def ask(
        self,
        api: Api | PeerApi,
        version: int,
        fields: Fields,
        *,
        connection: str,
        timeout_s: float,
        again_for_s: float = 0.0,
    ) -> Any:
        """Return the controller's answer, which may be NOT_CONTROLLER when the time to ask again is over.

        `connection` names the one that is used: answers on one come in order. Raise PeerLost without an
        answer, and KafkaError while there is no controller to ask.
        """
        member = self._member
        give_up_s = member.now_s() + again_for_s
        while True:
            try:
                channel = member.channels.to(member.controller_to_ask(), connection)
                answer = await channel.ask(api, version, fields, timeout_s=timeout_s)
            except PeerLost as lost:
                if not lost.refused or member.now_s() >= give_up_s:
                    raise
            else:
                code = getattr(answer, "error_code", ErrorCode.none)  # CreateTopics has one for each topic
                if code != ErrorCode.not_controller or member.now_s() >= give_up_s:
                    return answer
            await asyncio.sleep(ASK_AGAIN_S)

    async def alter_partition(self, fields: Fields, *, timeout_s: float) -> Any:
        """Return the controller's answer to changes of in-sync replicas."""
        return await self.ask(PeerApi.ALTER_PARTITION, 3, fields, connection="isr", timeout_s=timeout_s)

    async def create_topics(
        self, topics: Iterable[NewTopic], *, timeout_ms: int | None = None
    ) -> list[TopicResult]:
        """Create topics, and return when this broker sees them, or at the timeout."""
        command = CreateTopics(topics=tuple(topics))
        if self._member.is_controller:
            return await self._queue.submit(command, timeout_ms=timeout_ms)
        return await self._create_elsewhere(command, ANSWER_S if timeout_ms is None else timeout_ms / 1000)

    async def _create_elsewhere(self, command: CreateTopics, timeout_s: float) -> list[TopicResult]:
        fields = _creation_fields(command, int(timeout_s * 1000))
        try:
            answer = await self.ask(Api.CREATE_TOPICS, 7, fields, connection="control", timeout_s=timeout_s)
        except PeerLost as lost:
            raise KafkaError(ErrorCode.request_timed_out, str(lost)) from lost
        results = []
        for row in answer.topics:
            code = error_code(int(row.error_code))
            failed = None if code is ErrorCode.none else Refusal(code, row.error_message)
            results.append(TopicResult(name=row.name, error=failed))
        made = {result.name for result in results if result.error is None}
        image = self._member.image
        await self._member.wait_until(lambda: made <= image.topics.keys(), timeout_s)
        return results

    async def ensure_internal(self, name: str, *, timeout_ms: int | None = None) -> TopicImage:
        """Return the internal topic, created if it is not there; raise COORDINATOR_NOT_AVAILABLE while it
        cannot be."""
        image = self._member.image
        found = image.topics.get(name)
        if found is not None:
            return found
        wanted = internal_topic(self._settings.broker_config, name)
        if wanted is None:
            raise ValueError(f"not a topic that a broker creates for itself: {name}")
        try:
            (result,) = await self.create_topics([wanted], timeout_ms=timeout_ms)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, error.message) from error
        found = image.topics.get(name)
        if found is None:
            reason = None if result.error is None else result.error.message
            raise KafkaError(ErrorCode.coordinator_not_available, reason)
        return found

    async def allocate_producer_ids(self) -> range:
        """Return a block of producer ids that no other broker has."""
        member = self._member
        if member.is_controller:
            command = AllocateProducerIds(broker_id=member.node_id, broker_epoch=member.broker_epoch)
            return await self._queue.submit(command)
        fields = {"broker_id": member.node_id, "broker_epoch": member.broker_epoch}
        answer = await self.ask(
            PeerApi.ALLOCATE_PRODUCER_IDS, 0, fields, connection="control", timeout_s=ANSWER_S
        )
        if answer.error_code != ErrorCode.none:
            raise KafkaError(error_code(int(answer.error_code)))
        first = int(answer.producer_id_start)
        return range(first, first + answer.producer_id_len)


def _creation_fields(command: CreateTopics, timeout_ms: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "assignments": [
                    {"partition_index": index, "broker_ids": list(replicas)}
                    for index, replicas in topic.assignments
                ],
                "configs": [{"name": name, "value": value} for name, value in topic.configs],
            }
            for topic in command.topics
        ],
        "timeout": timeout_ms,
        "validate_only": False,
    }
