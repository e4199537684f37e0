"""What a follower asks its leader beside records: where its log begins and ends, and its epochs.

Owns: the questions and reading their answers. Does not own: what follows from them (fetcher, restore).
Invariant: each question names the leader epoch of the position it is for, so that no other leader answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from broker.config.broker import BrokerConfig
from broker.net.channel import Channel
from broker.replicas.fetch_position import Key, Position
from broker.replicas.restore import OffsetAndEpoch
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, error_code

LIST_OFFSETS_VERSION: Final = 11
EPOCH_VERSION: Final = 4
LATEST, EARLIEST = -1, -2


class PeerChannels(Protocol):
    """Channels, as far as fetching needs them."""

    def to(self, node_id: int, purpose: str) -> Channel: ...


class LeaderQuestions:
    """Questions to leaders, each on the connection of its purpose."""

    def __init__(self, *, node_id: int, channels: PeerChannels, config: Callable[[], BrokerConfig]) -> None:
        self._node_id = node_id
        self._channels = channels
        self._config = config

    async def offsets(
        self, leader_id: int, positions: Iterable[Position], timestamp: int, *, purpose: str
    ) -> dict[Key, int | ErrorCode]:
        """Ask where logs begin or end; the leader's refusal stands in the place of an offset."""
        topics: dict[str, list[Fields]] = {}
        names: dict[tuple[str, int], Key] = {}
        for position in positions:
            partition = position.partition
            names[partition.topic, partition.index] = position.key
            topics.setdefault(partition.topic, []).append(
                {
                    "partition_index": partition.index,
                    "current_leader_epoch": position.leader_epoch,
                    "timestamp": timestamp,
                }
            )
        fields: Fields = {
            "isolation_level": 0,
            "timeout": 0,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }
        response = await self.ask(leader_id, Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, fields, purpose=purpose)
        found: dict[Key, int | ErrorCode] = {}
        for topic in response.topics:
            for each in topic.partitions:
                key = names.get((topic.name, each.partition_index))
                if key is not None:
                    found[key] = each.error_code or each.offset
        return found

    async def ask(self, leader_id: int, api: Api, version: int, fields: Fields, *, purpose: str) -> Any:
        channel = self._channels.to(leader_id, purpose)
        timeout_s = self._config().replica_socket_timeout_ms / 1000
        return await channel.ask(api, version, {**fields, "replica_id": self._node_id}, timeout_s=timeout_s)


class AskedLeader:
    """The leader of one position, asked about its log."""

    def __init__(self, questions: LeaderQuestions, position: Position, *, purpose: str) -> None:
        self._questions = questions
        self._position = position
        self._purpose = purpose

    async def offset(self, timestamp: int) -> OffsetAndEpoch:
        row = {"timestamp": timestamp, "partition_index": self._position.partition.index}
        fields = {"isolation_level": 0, "timeout": 0}
        found = await self._ask(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, "name", row, fields)
        return OffsetAndEpoch(found.offset, found.leader_epoch)

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        row = {"leader_epoch": epoch, "partition": self._position.partition.index}
        found = await self._ask(Api.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, "topic", row, {})
        return found.leader_epoch, found.end_offset

    async def _ask(self, api: Api, version: int, topic_key: str, row: Fields, fields: Fields) -> Any:
        """Ask about the one partition; KafkaError with the leader's code."""
        position = self._position
        row = {**row, "current_leader_epoch": position.leader_epoch}
        topics = [{topic_key: position.partition.topic, "partitions": [row]}]
        asked = {**fields, "topics": topics}
        answer = await self._questions.ask(position.leader_id, api, version, asked, purpose=self._purpose)
        found = next((each for topic in answer.topics for each in topic.partitions), None)
        if found is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "the leader left the partition out")
        if found.error_code:
            raise KafkaError(error_code(found.error_code), f"the leader answered {found.error_code}")
        return found
