"""What is where, looked at once a second: offsets as the leaders tell them, bytes as the folders have them.

Owns these looks. Does not own the facts' form (state) nor what follows from them (steps).
Invariant: a look that fails changes nothing, and the next one is a second later: while leaders change the
picture is as old as that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from protocol.apis import Api
from protocol.errors import KafkaError
from protocol.ids import encode_id
from tools import topics
from tools.client import Client, RequestFailed
from tools.demo.brokers import Brokers, size_of
from tools.demo.judgement import RECORD_BYTES
from tools.demo.load import Producer
from tools.demo.state import DemoState, PartitionState

LOOK_EVERY_S: Final = 1.0


class Watcher:
    def __init__(self, state: DemoState, brokers: Brokers, client: Client, names: Sequence[str]) -> None:
        self.state = state
        self.producers: Sequence[Producer] = ()
        self._brokers = brokers
        self._client = client
        self._names = names
        self._counted = (time.perf_counter(), 0)

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            with contextlib.suppress(KafkaError, RequestFailed):
                await self.look()
            self._count()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> list[PartitionState]:
        """Look now. Raise KafkaError or RequestFailed when a leader does not answer."""
        found: list[PartitionState] = []
        for name in self._names:
            answer = await self._client.refresh([name])
            rows = {row.partition_index: row for row in answer.topics[0].partitions}
            offsets = await topics.offset_rows(self._client, name)
            found += [self._partition(name, each, rows[each["partition"]]) for each in offsets]
        self.state.partitions = found
        store = self._brokers.store
        self.state.store.wal_bytes = size_of(store, "wal/**/*")
        self.state.store.cold_bytes = size_of(store, "tier/**/*")
        for broker in self.state.brokers:
            broker.disk_bytes = size_of(self._brokers.data(broker.node_id), "*/*.log")
        return found

    def _partition(self, name: str, offsets: Mapping[str, Any], row: Any) -> PartitionState:
        number = offsets["partition"]
        topic_id = self._client.known.topic_ids.get(name)
        cold = Path("tier") / (encode_id(topic_id) if topic_id is not None else "-") / str(number)
        last_tiered = offsets["last_tiered"]
        log_start = offsets["log_start"] or 0
        leader = row.leader_id if row.leader_id >= 0 else None
        return PartitionState(
            topic=name,
            number=number,
            leader=leader,
            in_sync=tuple(sorted(row.isr_nodes)),
            log_start=log_start,
            local_start=max(log_start, offsets["local_start"] or 0),
            log_end=offsets["high_watermark"] or 0,
            cold_end=None if last_tiered is None else last_tiered + 1,
            wal_end=offsets["stored"],
            disk_bytes=0 if leader is None else size_of(self._brokers.data(leader), f"{name}-{number}/*.log"),
            cold_bytes=size_of(self._brokers.store / cold, "*"),
        )

    def _count(self) -> None:
        records = sum(producer.sums.records for producer in self.producers)
        before_s, before = self._counted
        now_s = time.perf_counter()
        self._counted = now_s, records
        state = self.state
        state.records = records
        state.records_per_s = (records - before) / max(now_s - before_s, 0.001)
        state.bytes_per_s = state.records_per_s * RECORD_BYTES


async def is_whole(client: Client, nodes: int) -> bool:
    """Return whether every broker says of every partition that it is led and all its replicas are in sync."""
    try:
        await client.refresh([])
        if len(client.known.nodes) != nodes:
            return False
        for node in client.known.nodes:
            answer = await client.request(
                Api.METADATA,
                {
                    "topics": None,
                    "allow_auto_topic_creation": False,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                },
                node=node,
            )
            rows = [row for topic in answer.topics for row in topic.partitions]
            if any(row.leader_id < 0 or {*row.isr_nodes} != {*row.replica_nodes} for row in rows):
                return False
    except (KafkaError, RequestFailed):
        return False
    return True
