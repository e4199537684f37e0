"""A topic with copies in the store of a running broker, and what the brokers would say of them.

The records are written to a topic of another name: a broker keeps clients from writing the real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from protocol import records
from protocol.errors import ErrorCode
from remote.cold.events import encode_event, tombstones, updated
from remote.cold.object_tier import ObjectTier, key_of
from remote.cold.partitioner import metadata_partition
from remote.cold.segments import (
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    TieredPartition,
    TierEvent,
)
from remote.keys import SegmentPart
from remote.store.local_store import LocalStore
from storage.files import DiskFiles
from tests.contracts.test_object_store import in_a_thread
from tests.processes import BrokerProcess
from tests.remote.cold.segment_samples import Copy
from tools import cli
from tools.client import Address, Client

NOW_MS = 1_700_000_000_000
METADATA_PARTITIONS = 3
STATES_OF = {
    SegmentState.COPY_STARTED: (),
    SegmentState.COPY_FINISHED: (SegmentState.COPY_FINISHED,),
    SegmentState.DELETE_STARTED: (SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED),
    SegmentState.DELETE_FINISHED: (
        SegmentState.COPY_FINISHED,
        SegmentState.DELETE_STARTED,
        SegmentState.DELETE_FINISHED,
    ),
}


def store_of(process: BrokerProcess) -> str:
    return process.ready_line.rpartition("store=")[2]


class Tier:
    """One topic with a name of its own on a running broker, its records, the broker's store."""

    def __init__(self, process: BrokerProcess, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = process.bootstrap
        self.topic = topic
        self.metadata = f"{topic}-records"
        self.capsys = capsys
        self.url = store_of(process)
        self.root = Path(self.url.removeprefix("file://"))
        for name, partitions in ((topic, 1), (self.metadata, METADATA_PARTITIONS)):
            assert cli.run(["topics", "create", name, "-p", str(partitions), "-b", self.bootstrap]) == 0
        self.topic_id = self._ask(self._find_id)
        self.capsys.readouterr()

    def _ask(self, work: Callable[[Client], Any]) -> Any:
        async def asked() -> Any:
            async with Client([Address.parse(self.bootstrap)]) as client:
                return await work(client)

        return asyncio.run(asked())

    async def _find_id(self, client: Client) -> UUID:
        await client.refresh([self.topic])
        found = client.known.topic_ids[self.topic]
        assert isinstance(found, UUID)
        return found

    def copy(self, seed: int = 1, *, base: int = 0, of: UUID | None = None) -> Copy:
        what = Copy(3000, seed=seed, base_offset=base, block_bytes=1000)
        partition = TieredPartition(of or self.topic_id, 0)
        what.segment = replace(what.segment, partition=partition, topic=self.topic)
        return what

    def put(self, what: Copy) -> None:
        """Into the store, as the copier does."""

        async def at_once(size: int) -> None:
            assert size >= 0

        async def put() -> None:
            store = LocalStore(str(self.root), files=DiskFiles(), offload=in_a_thread)
            tier = ObjectTier(store)
            await tier.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=at_once)

        asyncio.run(put())

    def say(self, segment: RemoteSegment, state: SegmentState) -> None:
        """Write all records that bring a copy to the state."""
        events: list[TierEvent] = [SegmentStarted(segment=segment)]
        events += [updated(segment, each, broker_id=1, now_ms=NOW_MS) for each in STATES_OF[state]]
        self.produce(segment.partition, [encode_event(event) for event in events])

    def forget(self, segment: RemoteSegment) -> None:
        self.produce(segment.partition, [(key, None) for key in tombstones(segment.partition, segment.id)])

    def produce(self, partition: TieredPartition, rows: list[tuple[bytes, bytes | None]]) -> None:
        batch = bytes(records.build_batch([(key, value, (), NOW_MS) for key, value in rows]))

        async def produced(client: Client) -> None:
            number = metadata_partition(partition, METADATA_PARTITIONS)
            answer = await client.produce(self.metadata, number, batch)
            assert answer.error_code == ErrorCode.none

        self._ask(produced)

    def file(self, segment: RemoteSegment, part: SegmentPart) -> Path:
        return self.root / key_of(segment, part)

    def check(self, *arguments: str, code: int) -> list[tuple[str, str]]:
        """What is wrong: (problem, where)."""
        command = ["tier", "check", *(arguments or (self.topic,)), "--store", self.url, "--json"]
        assert cli.run([*command, "-b", self.bootstrap]) == code
        found = json.loads(self.capsys.readouterr().out)
        assert found["sound"] is (code == 0)
        return [(problem["problem"], problem["where"]) for problem in found["problems"]]
