"""The brokers' own topics, read from a running cluster.

Owns reading a topic from where a reader stopped to its high watermarks. Does not own what the records say
(tier_topics) or reading them out of data directories (told_records).
Invariant: either all that was committed when it began is taken, each record once and in order, or
`SourceFailed` is raised: silence is never taken for an empty topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from tools.client import Address, Client, RequestFailed
from tools.console import Failure
from tools.topic_source import BrokerSource, OffsetsGone
from tools.verify.core.heads import head
from tools.verify.core.keys import topic_text
from tools.verify.core.records import BadRecords, read_records
from tools.verify.core.stores import SourceFailed

Take = Callable[[int, int, bytes | None, bytes | None], None]
"""Partition, offset, key and value."""


class TopicRead(NamedTuple):
    """What was read of a topic."""

    cluster_id: str
    topic_id: str
    """As Kafka shows it; empty: there is no such topic."""
    ends: dict[int, int]
    """Of each partition, where to go on."""


def read_topic(bootstrap: str, topic: str, take: Take, starts: Mapping[int, int] | None = None) -> TopicRead:
    """Give each committed record of the topic from `starts` on to `take`. Raise SourceFailed."""
    try:
        return asyncio.run(_read(Address.parse(bootstrap), topic, take, starts or {}))
    except (Failure, KafkaError, RequestFailed, OffsetsGone, BadRecords, CorruptBatch, ValueError) as error:
        raise SourceFailed(f"{bootstrap}: {topic}: {error}") from None


async def _read(address: Address, topic: str, take: Take, starts: Mapping[int, int]) -> TopicRead:
    async with Client([address]) as client:
        answer = await client.refresh([topic])
        if answer.topics[0].error_code == ErrorCode.unknown_topic_or_partition:
            return TopicRead(client.known.cluster_id or "", "", {})
        source = await BrokerSource(client, topic).open()
        ends = {}
        for partition in source.partitions:
            start, end = await source.bounds(partition)
            start = max(start, starts.get(partition, 0))
            async for piece in source.read(partition, start, end):
                if piece.batch is not None:
                    for record in read_records(piece.batch, head(piece.batch, 0)):
                        if start <= record.offset < end:
                            take(partition, record.offset, record.key, record.value)
            ends[partition] = max(start, end)
        return TopicRead(source.cluster_id, topic_text(bytes.fromhex(source.topic_id)), ends)
