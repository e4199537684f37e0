"""What tests of the cold tier in real processes look at: a tiered topic, what a producer was told, the store.

Owns: waiting until a topic is at rest (all of it is copied and gone from the disk, nothing is half done),
reading it through the tier, comparing that with what was acknowledged, and the lives of a broker, each of
which may end at a step that is named. Does not own which faults there are.
Invariant: a reader is never told that an offset between log start and end is out of range.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from broker.process import offload, wall_clock_ms
from protocol.apis import Api
from protocol.errors import KafkaError
from protocol.records import build_batch, iter_batches, iter_records
from remote.cold.segments import TieredPartition
from remote.store.location import parse_store_url
from remote.store.metered import StoreStats
from remote.store.object_store import ObjectStore
from remote.store.stores import open_store
from storage.files import DiskFiles
from tests.clients.blocking import BlockingClient, batch_bounds
from tests.compat.peers import stable_port, unique, until
from tests.compat.samples import FIRST_MS
from tests.e2e.mortal import SMALL_PARTS, STEP_FILE, Step
from tests.processes import BrokerProcess, DidNotStart
from tools.client import Address, Client, RequestFailed
from tools.tier.check import Report, report_on
from tools.tier.reader import TierReader, copies_of, partitions_of

T = TypeVar("T")

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5
SETTLE_S = 60.0
LATER = frozenset({3, 5, 6, 9, 56, 74, 78})
"""Codes of a broker that cannot answer yet."""

QUICK: Mapping[str, str] = {
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "remote.log.manager.task.interval.ms": "200",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
}
"""What only spares a test its time."""

FACTOR = "rlmm.config.remote.log.metadata.topic.replication.factor"
ALONE: Mapping[str, str] = {FACTOR: "1"}
IN_PAIRS: Mapping[str, str] = {
    FACTOR: "2",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "follower.fetch.last.tiered.offset.enable": "true",
    "replica.fetch.backoff.ms": "100",
}
MORTAL = (sys.executable, "-m", "tests.e2e.mortal")

TIERED: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "16384",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}


def ask(bootstrap: str, work: Callable[[Client], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Client([Address.parse(one) for one in bootstrap.split(",")], deadline_s=10) as client:
            return await work(client)

    return asyncio.run(run())


def check_tier(bootstrap: str, url: str, *topics: str, env: Mapping[str, str] | None = None) -> Report:
    """What `tidewal tier check --deep` finds."""

    async def work(client: Client) -> Report:
        await client.refresh([])
        store = store_at(url, env)
        try:
            return await report_on(client, topics, store, is_deep=True)
        finally:
            await store.close()

    return ask(bootstrap, work)


def uploads_left(url: str, keys: Iterable[str], *, env: Mapping[str, str] | None = None) -> list[str]:
    """Those of the keys for which the store still has parts of an upload."""

    async def look() -> list[str]:
        store = store_at(url, env)
        try:
            return [begun.key for key in keys for begun in await store.list_uploads(key)]
        finally:
            await store.close()

    return asyncio.run(look())


def store_at(url: str, env: Mapping[str, str] | None) -> ObjectStore:
    return open_store(
        parse_store_url(url, {}),
        files=DiskFiles(),
        offload=offload,
        now_ms=wall_clock_ms,
        rng=random.Random(),
        environ=env or {},
        stats=StoreStats(),
    )


def alter(bootstrap: str, topic: str, changes: Mapping[str, str]) -> None:
    """Change settings of a topic; the broker may end over it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    with contextlib.suppress(KafkaException):
        admin.incremental_alter_configs([resource])[resource].result(timeout=SETTLE_S)


@dataclass(slots=True)
class TieredTopic:
    """One partition. `bootstrap` tells where its leader is now."""

    bootstrap: Callable[[], str]
    name: str = field(default_factory=lambda: unique("tiered"))
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    """What may be there, acknowledged or not."""

    def append(self, batches: int, *, size: int = 5000) -> None:
        """Send so many batches of two records, or fewer if the broker ends over it. Nothing is sent twice."""
        with contextlib.suppress(OSError), BlockingClient(self.bootstrap()) as client:
            for _ in range(batches):
                number = len(self.sent)
                values = [b"%d " % n + b"x" * (size // 2) for n in (number, number + 1)]
                self.sent.update(values)
                batch = build_batch([(None, value, (), FIRST_MS) for value in values])
                answer = client.produce(self.name, 0, bytes(batch))
                assert answer.error_code == 0, answer.error_code
                for offset, value in enumerate(values, answer.base_offset):
                    self.acknowledged[offset] = value

    def offset(self, timestamp: int) -> int | None:
        """None while nobody can tell."""

        async def work(client: Client) -> int | None:
            code, offset, _ = await client.list_offset(self.name, 0, timestamp)
            return offset if code == 0 else None

        try:
            return ask(self.bootstrap(), work)
        except (OSError, RequestFailed, KafkaError):
            return None

    def known_offset(self, timestamp: int) -> int:
        def found() -> list[int]:
            offset = self.offset(timestamp)
            return [] if offset is None else [offset]

        return until(found, f"offset {timestamp} of {self.name}", timeout_s=SETTLE_S)[0]

    def wait_tiered(self) -> None:
        """Until nothing is left on the disk that the tier has not."""
        offsets: list[int | None] = []

        def is_alone() -> bool:
            offsets[:] = [self.offset(which) for which in (LATEST, EARLIEST_LOCAL, LATEST_TIERED)]
            end, local_start, tiered_last = offsets
            return end is not None and local_start == end == (tiered_last or 0) + 1

        try:
            until(is_alone, "all of it to be in the tier alone", timeout_s=SETTLE_S, pause_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"end, local start, last in the tier: {offsets}") from error

    def states(self) -> Counter[str]:
        """How many copies are in which state."""

        async def work(client: Client) -> Counter[str]:
            reader = TierReader(client)
            await reader.open()
            partitions = await partitions_of(client, self.name)
            await reader.read(partitions)
            return Counter(copy.state.name for each in partitions for copy in copies_of(reader.get(each)))

        return ask(self.bootstrap(), work)

    def partition(self) -> TieredPartition:
        async def work(client: Client) -> TieredPartition:
            (only,) = await partitions_of(client, self.name)
            return only

        return ask(self.bootstrap(), work)

    def wait_no_loose_ends(self) -> None:
        """Until no copy is under way and none is being deleted."""
        until(
            lambda: self.states().keys() <= {"COPY_FINISHED"},
            f"the copies of {self.name} to be finished or gone",
            timeout_s=SETTLE_S,
            pause_s=0.1,
        )

    def read(self, start: int | None = None) -> bytes:
        """Every whole batch from there, or from the start, to the end, through whatever tier it is in."""
        at = self.known_offset(EARLIEST) if start is None else start
        return read_from(self.bootstrap(), self.name, at)

    def check(self, batches: bytes, log_start: int) -> str:
        """Nothing acknowledged is lost or moved, nothing is twice or invented; the digest of all values."""
        found = values_by_offset(batches)
        offsets = sorted(offset for offset in found if offset >= log_start)
        assert offsets == list(range(log_start, offsets[-1] + 1 if offsets else log_start)), offsets
        for offset, value in self.acknowledged.items():
            assert offset < log_start or found[offset] == value, f"offset {offset}"
        assert set(found.values()) <= self.sent
        assert len(set(found.values())) == len(found)
        return sha256(b"".join(found[offset] for offset in offsets)).hexdigest()


def values_by_offset(batches: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for at, header in iter_batches(batches):
        for record in iter_records(memoryview(batches)[at : at + header.size]):
            assert record.offset not in found, f"offset {record.offset} twice"
            assert record.value is not None
            found[record.offset] = bytes(record.value)
    return found


def read_from(bootstrap: str, topic: str, offset: int) -> bytes:
    """All batches from the one with `offset` to the high watermark. What cannot be read yet is asked for
    again; an answer that would have a consumer begin elsewhere fails at once."""
    read = bytearray()
    with BlockingClient(bootstrap) as client:

        def more() -> bool:
            nonlocal offset
            part = client.fetch(topic, 0, offset, wait_ms=500)
            assert part.error_code == 0 or part.error_code in LATER, (part.error_code, offset)
            if part.error_code:
                return False
            for at, size in batch_bounds(part.records or b""):
                batch = part.records[at : at + size]
                read.extend(batch)
                last = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")
                assert last >= offset, (last, offset)
                offset = last + 1
            return bool(offset >= part.high_watermark)

        def is_done() -> bool:
            before = offset
            while not (done := more()) and offset > before:
                before = offset
            return done

        until(is_done, f"{topic} to be read, from {offset} on", timeout_s=SETTLE_S)
    return bytes(read)


def is_forgotten(bootstrap: str, partition: TieredPartition) -> bool:
    """Whether nothing is said of it any more."""

    async def work(client: Client) -> bool:
        reader = TierReader(client)
        await reader.open()
        await reader.read([partition])
        return reader.get(partition) is None

    return ask(bootstrap, work)


def metadata_ends(bootstrap: str, partitions: int = 2) -> list[int]:
    """How much the brokers have ever said of the tier."""
    with BlockingClient(bootstrap) as client:
        answer = client.call(
            Api.LIST_OFFSETS,
            5,
            replica_id=-1,
            isolation_level=0,
            topics=[
                {
                    "name": "__remote_log_metadata",
                    "partitions": [
                        {"partition_index": index, "current_leader_epoch": -1, "timestamp": LATEST}
                        for index in range(partitions)
                    ],
                }
            ],
        )
        return [int(row.offset) for row in answer.topics[0].partitions]


def in_sync(bootstrap: str, topic: str) -> set[int]:
    with BlockingClient(bootstrap) as client:
        answer = client.call(
            Api.METADATA,
            12,
            topics=[{"topic_id": None, "name": topic}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        return set(answer.topics[0].partitions[0].isr_nodes)


def files_below(folder: Path) -> dict[str, str]:
    """The digest of every file, by its path."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class TieredBroker:
    """One broker after another on the same address, data and store."""

    def __init__(
        self,
        folder: Path,
        *,
        node_id: int = 1,
        settings: Mapping[str, str] = ALONE,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.node_id = node_id
        self.data = folder / f"data-{node_id}"
        self.url = url or f"file://{folder}/store"
        self.env = env or {SMALL_PARTS: "yes"}
        self.objects = folder / "store" / "tier"
        self.bootstrap = f"127.0.0.1:{stable_port()}"
        self._settings = {**QUICK, **settings}
        self._step = folder / f"step-{node_id}"
        self._is_closed = True
        self.process = self._start()

    def _start(self) -> BrokerProcess:
        process = BrokerProcess(
            self.data,
            listen=self.bootstrap,
            arguments=("--node-id", str(self.node_id), "--store", self.url),
            settings=self._settings,
            env={STEP_FILE: str(self._step), **self.env},
            program=MORTAL,
        )
        self._is_closed = False
        return process

    def arm(self, step: Step) -> None:
        step.write(self._step)
        self.process.process.send_signal(signal.SIGUSR1)
        until(lambda: not self._step.exists(), f"{self.process.stderr} to know where to die")

    def wait_dead(self, step: Step) -> None:
        until(lambda: self.process.process.poll() is not None, f"death {step}", timeout_s=SETTLE_S)
        assert self.process.process.returncode == -signal.SIGKILL, self.process.stderr
        self.close()

    def rise(self) -> None:
        self.process = self._start()

    def rise_and_die(self, step: Step) -> None:
        """Start, and come as far as that step, be it before the ready line."""
        step.write(self._step)
        try:
            self.rise()
        except DidNotStart as error:
            assert error.returncode == -signal.SIGKILL, error
        else:
            self.wait_dead(step)

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End it, if that is still to be done."""
        if self._is_closed:
            return
        self._is_closed = True
        said = self.process.stderr
        self.process.close()
        assert "Traceback" not in said, said[-5000:]

    def make_topic(
        self, replicas: Sequence[int] = (1,), *, config: Mapping[str, str] = TIERED, name: str | None = None
    ) -> TieredTopic:
        topic = TieredTopic(lambda: self.bootstrap, name or unique("tiered"))
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(topic.name, 1, replica_assignment=[list(replicas)], config=dict(config))
        admin.create_topics([new])[topic.name].result(timeout=20)
        return topic

    def delete_topic(self, topic: TieredTopic) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        with contextlib.suppress(KafkaException):
            admin.delete_topics([topic.name])[topic.name].result(timeout=20)
