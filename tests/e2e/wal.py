"""Three real brokers whose followers read from a real S3, each by a line of its own that has bad days.

Owns: the lines, one broker cut from the store or all of them, what the brokers say of the tier, and when all
followers are pointed to the store again. Does not own the load or the faults. Invariant: a wait has a
deadline, and names what was last seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from protocol.records import build_batch
from tests.clients.blocking import BlockingClient
from tests.clusters import SETTLE_S, ClusterProcesses
from tests.compat.peers import stable_port, unique, until
from tests.compat.samples import FIRST_MS
from tests.e2e.stock_load import Worker
from tests.e2e.storm import StormyStore, Weather
from tools.console import Failure
from tools.scrape import Scrape, look
from tools.versus.brokers import resident_mb
from tools.versus.minio import MinioServer

OF_TOPIC = "remote.wal.storage.enable"
WAL = {OF_TOPIC: "true"}
INTERVAL = {"remote.wal.log.manager.combiner.task.interval.ms": "50"}
HYDRATED, DIRECT_IN = "tidewal_wal_hydrated_bytes_total", "tidewal_wal_direct_bytes_in_total"
DIRECT_OUT, DIRECT = "tidewal_wal_direct_bytes_out_total", "tidewal_wal_direct_partitions"
UNSTORED = "tidewal_wal_unstored_bytes"
REPLICATED = "kafka_server_brokertopicmetrics_replicationbytesin_total"
SHRINKS = "kafka_server_replicamanager_isrshrinks_total"
BACK_S = 10.0
"""All followers read from the store again within that, once it is well."""
LOOK_EVERY_S = 0.5
NODES = (1, 2, 3)
HEADROOM_MB = 96
"""What a broker may take more than in good weather, however much waits for the store."""


class WalCluster:
    """Its `cluster` shares one bucket of a MinIO."""

    def __init__(
        self,
        folder: Path,
        minio: MinioServer,
        bucket: str,
        *,
        delay_s: float,
        settings: Mapping[str, str] = INTERVAL,
    ) -> None:
        self._folder = folder
        self._minio = minio
        self._bucket = bucket
        self._delay_s = delay_s
        self._settings = settings
        self._stack = ExitStack()
        self._admin = {node_id: stable_port() for node_id in NODES}
        self.lines: dict[int, StormyStore] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node_id in NODES:
                self.lines[node_id] = stack.enter_context(
                    StormyStore(self._minio.port, delay_s=self._delay_s)
                )
            prefix = unique("wal")
            urls = {
                node_id: self._minio.url(self._bucket, prefix, port=line.port)
                for node_id, line in self.lines.items()
            }
            self.cluster = stack.enter_context(
                ClusterProcesses(
                    self._folder,
                    env=self._minio.environ,
                    settings=self._settings,
                    store_of=urls,
                    arguments_of={
                        node_id: ("--admin", f"127.0.0.1:{port}") for node_id, port in self._admin.items()
                    },
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def weather(self, kind: Weather, *, only: str = "", of: Sequence[int] = NODES) -> Iterator[None]:
        with ExitStack() as stack:
            for node_id in of:
                stack.enter_context(self.lines[node_id].weather(kind, only=only))
            yield

    # --- what they say ---

    def told(self, *node_ids: int) -> Scrape:
        """Of those brokers, or of all that are awake."""
        return look(self._admin[node_id] for node_id in node_ids or self.cluster.awake)

    def wait_on_pointers(self, *topics: str, timeout_s: float = BACK_S) -> float:
        """Until each follower of these topics reads from the store and is sent nothing, over a while; how
        long that took. The load must go on meanwhile."""
        began_s = time.monotonic()
        rows = [row for topic in topics for row in self.cluster.partitions(topic)]
        followers = [
            node_id for node_id in self.cluster.awake if any(row.leader_id != node_id for row in rows)
        ]
        before: dict[int, Scrape] = {}
        seen: list[str] = []

        def is_so() -> bool:
            seen.clear()
            for node_id in followers:
                try:
                    now = self.told(node_id)
                except Failure as failure:
                    seen.append(str(failure))
                    continue
                moved, before[node_id] = now - before.get(node_id, now), now
                found = [moved.value(HYDRATED), moved.value(DIRECT_IN), now.value(DIRECT)]
                if not found[0] or any(found[1:]):
                    found.append(now.value(UNSTORED))
                    seen.append(f"{node_id}: hydrated, direct, direct partitions, unstored: {found}")
            return not seen

        try:
            until(is_so, "followers to be pointed to the store", timeout_s=timeout_s, pause_s=LOOK_EVERY_S)
        except AssertionError as error:
            raise AssertionError(f"{error} {seen}") from None
        return time.monotonic() - began_s

    def switch(self, topic: str, *, is_on: bool) -> None:
        """As an operator does, by a stock client."""
        value = "true" if is_on else "false"
        entry = ConfigEntry(OF_TOPIC, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(timeout=SETTLE_S)

    def wait_on_bytes(self) -> None:
        """Until nobody reads from the store any more, while the load goes on."""
        before = self.told()

        def is_so() -> bool:
            nonlocal before
            now = self.told()
            moved, before = now - before, now
            return not moved.value(HYDRATED) and moved.value(REPLICATED) > 0

        until(is_so, "followers to be sent everything", timeout_s=BACK_S, pause_s=LOOK_EVERY_S)

    def resident_mb(self) -> dict[int, float]:
        return {
            node_id: resident_mb(self.cluster.life(node_id).process.pid) for node_id in self.cluster.awake
        }

    def check_memory(self, before: Mapping[int, float]) -> None:
        grown = {node_id: now - before[node_id] for node_id, now in self.resident_mb().items()}
        assert max(grown.values()) <= HEADROOM_MB, grown


class Leadership(Worker):
    """Who led each partition of a topic and who was in sync, from when on."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        super().__init__(f"leaders of {topic}")
        self.topic = topic
        self._cluster = cluster
        self._seen: list[tuple[float, list[str]]] = []

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            rows = self._cluster.partitions(self.topic)
            told = [f"{row.leader_id} leads {sorted(row.isr_nodes)}" for row in rows]
            if told and (not self._seen or self._seen[-1][1] != told):
                self._seen.append((time.monotonic(), told))

    def during(self, partition: int, began_s: float, ended_s: float) -> str:
        before = [told for at_s, told in self._seen if at_s <= began_s]
        amid = [told for at_s, told in self._seen if began_s < at_s <= ended_s]
        rows = [told[partition] for told in (*before[-1:], *amid)]
        return ", then ".join(row for at, row in enumerate(rows) if at == 0 or rows[at - 1] != row)


class Bulk(Worker):
    """Batches at a fixed rate, so that much waits for a store that is away."""

    BATCH_BYTES, PAUSE_S = 60_000, 0.02

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        super().__init__(f"bulk of {topic}")
        self.topic = topic
        self.acknowledged = 0
        self._cluster = cluster

    def _run(self) -> None:
        batch = bytes(build_batch([(None, b"b" * self.BATCH_BYTES, (), FIRST_MS)]))
        with BlockingClient(
            self._cluster.address(self._cluster.leader(self.topic)), timeout_s=SETTLE_S
        ) as client:
            while not self._stop.wait(self.PAUSE_S):
                answer = client.produce(self.topic, 0, batch, acks=1)
                assert answer.error_code == 0, answer.error_code
                self.acknowledged += 1
