"""Several real brokers of one cluster, each a process of its own, for tests that take some of them away.

Owns the processes through all their lives: start together, kill, stop, pause, come back on the same address
and data; and what can be seen from outside: leaders, in-sync replicas, the controller, the bytes on the
disks. Does not own the store they share, nor any load.
Invariant: an address and a data directory belong to one node id for good; every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic

from protocol.apis import Api
from tests.clients.blocking import BlockingClient
from tests.compat.peers import stable_port, unique, until
from tests.processes import TIDEWAL, BrokerProcess

QUICK: Mapping[str, str] = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "6"}
"""What only spares a test its time."""
LOOK_S = 2.0
SETTLE_S = 60.0
SAID_MAX = 20_000
"""How much of what a broker said a test that fails shows."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a process listens, where the others find it, and what its command is put behind."""

    listen: str
    found_at: str
    within: Sequence[str] = ()


def seat_here() -> Seat:
    address = f"127.0.0.1:{stable_port()}"
    return Seat(address, address)


class ClusterProcesses:
    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        store: str | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        store_of: Mapping[int, str] | None = None,
        arguments_of: Mapping[int, Sequence[str]] | None = None,
        seats: Mapping[int, Seat] | None = None,
    ) -> None:
        """What ends in `_of` is by node id: the store as one broker reaches it, further options of one."""
        self.folder = folder
        self.node_ids = tuple(range(1, brokers + 1))
        self.store = store or f"file://{folder}/store"
        self._env = env
        self._settings = {**QUICK, **(settings or {})}
        self._settings_of = settings_of or {}
        self._store_of = store_of or {}
        self._arguments_of = arguments_of or {}
        self._seats = seats or {node_id: seat_here() for node_id in self.node_ids}
        self._lives: dict[int, BrokerProcess] = {}
        self._ended: list[BrokerProcess] = []
        self._paused: set[int] = set()

    def __enter__(self) -> Self:
        self.rise(*self.node_ids)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said: dict[str, str] = {}
        for life in (*self._ended, *self._lives.values()):
            said[life.data.name] = said.get(life.data.name, "") + life.stderr
        for life in (*self._ended, *self._lives.values()):
            life.close()
        for name, text in said.items():
            logger.warning("what broker %s said:\n%s", name, text[-SAID_MAX:])
        failed = {name: text[-5000:] for name, text in said.items() if "Traceback" in text}
        assert not failed or error is not None, failed

    # --- lives ---

    @property
    def bootstrap(self) -> str:
        return ",".join(seat.found_at for seat in self._seats.values())

    @property
    def awake(self) -> list[int]:
        return [node_id for node_id in list(self._lives) if node_id not in self._paused]

    def address(self, node_id: int) -> str:
        return self._seats[node_id].found_at

    def data(self, node_id: int) -> Path:
        return self.folder / str(node_id)

    def life(self, node_id: int) -> BrokerProcess:
        return self._lives[node_id]

    def rise(self, *node_ids: int) -> None:
        """All at once; returns when each has said that it is ready."""
        with ThreadPoolExecutor(len(self.node_ids)) as pool:
            for node_id, life in zip(node_ids, pool.map(self._start, node_ids), strict=True):
                self._lives[node_id] = life

    def _start(self, node_id: int) -> BrokerProcess:
        seat = self._seats[node_id]
        settings = {**self._settings, **self._settings_of.get(node_id, {})}
        if seat.found_at != seat.listen:
            settings["advertised.listeners"] = f"PLAINTEXT://{seat.found_at}"
        return BrokerProcess(
            self.data(node_id),
            listen=seat.listen,
            arguments=(
                *("--node-id", str(node_id), "--store", self._store_of.get(node_id, self.store)),
                *self._arguments_of.get(node_id, ()),
            ),
            settings=settings,
            env=self._env,
            program=(*seat.within, *TIDEWAL),
        )

    def kill(self, *node_ids: int) -> None:
        """kill -9, all of them before the first is waited for."""
        for node_id in node_ids:
            self._lives[node_id].process.kill()
        for node_id in node_ids:
            self._lives[node_id].kill()
            self._ended.append(self._lives.pop(node_id))

    def stop(self, node_id: int) -> int:
        """SIGTERM; the exit code."""
        code = self._lives[node_id].terminate(timeout_s=SETTLE_S)
        self._ended.append(self._lives.pop(node_id))
        return code

    def stop_all(self) -> list[int]:
        """SIGTERM to all at once; their exit codes."""
        lives, self._lives = self._lives, {}
        self._ended += lives.values()
        for life in lives.values():
            life.process.send_signal(signal.SIGTERM)
        return [life.process.wait(timeout=SETTLE_S) for life in lives.values()]

    @contextlib.contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """SIGSTOP, then SIGCONT: a zombie that knows nothing of what happened meanwhile."""
        process = self._lives[node_id].process
        process.send_signal(signal.SIGSTOP)
        self._paused.add(node_id)
        try:
            yield
        finally:
            self._paused.discard(node_id)
            process.send_signal(signal.SIGCONT)

    def are_running(self) -> bool:
        return all(life.process.poll() is None for life in self._lives.values())

    # --- what is seen from outside ---

    def make_topic(
        self, partitions: int = 1, *, replicas: int = 3, config: Mapping[str, str] | None = None
    ) -> str:
        name = unique("topic")
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(name, partitions, replicas, config={"min.insync.replicas": "2", **(config or {})})
        admin.create_topics([new])[name].result(timeout=SETTLE_S)
        until(lambda: self.is_whole(name), "replicas in sync", timeout_s=SETTLE_S)
        return name

    def metadata(self, topic: str, *, seen_by: int | None = None) -> Any | None:
        """As one broker that is awake sees it; None when nobody can be asked."""
        for node_id in self.awake if seen_by is None else [seen_by]:
            address = self.address(node_id)
            with contextlib.suppress(OSError), BlockingClient(address, timeout_s=LOOK_S) as client:
                return client.call(
                    Api.METADATA,
                    12,
                    topics=[{"topic_id": None, "name": topic}],
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                )
        return None

    def partitions(self, topic: str, *, seen_by: int | None = None) -> list[Any]:
        seen = self.metadata(topic, seen_by=seen_by)
        if seen is None:
            return []
        return sorted(seen.topics[0].partitions, key=lambda each: int(each.partition_index))

    def listed(self) -> set[int]:
        """The brokers that clients are told of."""
        seen = self.metadata("")
        return set() if seen is None else {broker.node_id for broker in seen.brokers}

    def leader(self, topic: str, partition: int = 0, *, other_than: Sequence[int] = ()) -> int:
        """The leader, once there is one and it is none of those."""

        def found() -> list[int]:
            rows = self.partitions(topic)[partition : partition + 1]
            return [row.leader_id for row in rows if row.leader_id >= 0 and row.leader_id not in other_than]

        return until(found, f"a leader of {topic}-{partition}", timeout_s=SETTLE_S)[0]

    def is_whole(self, topic: str) -> bool:
        """Every replica in sync, and every broker that is awake knows it."""
        views = [self.partitions(topic, seen_by=node_id) for node_id in self.awake]
        return all(
            view and all(row.leader_id >= 0 and set(row.isr_nodes) == set(row.replica_nodes) for row in view)
            for view in views
        )

    def wait_whole(self, *topics: str) -> None:
        for topic in topics:
            until(lambda topic=topic: self.is_whole(topic), f"{topic} whole again", timeout_s=SETTLE_S)  # type: ignore[misc]

    def controller(self, *, other_than: Sequence[int] = ()) -> int:
        def found() -> list[int]:
            for node_id in self.awake:
                with (
                    contextlib.suppress(OSError),
                    BlockingClient(self.address(node_id), timeout_s=LOOK_S) as client,
                ):
                    answer = client.call(
                        Api.DESCRIBE_QUORUM,
                        2,
                        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
                    )
                    if answer.error_code or not answer.topics:
                        continue
                    row = answer.topics[0].partitions[0]
                    if row.error_code == 0 and row.leader_id not in (-1, *other_than):
                        return [int(row.leader_id)]
            return []

        return until(found, "a controller", timeout_s=SETTLE_S)[0]

    def read(self, topic: str, partition: int = 0) -> bytes:
        """All batches of a partition, from its leader."""
        with BlockingClient(self.address(self.leader(topic, partition))) as client:
            return client.read_bytes(topic, partition)

    def files(self, topic: str, partition: int = 0) -> dict[int, bytes]:
        """What each replica has on its disk."""
        return {
            node_id: b"".join(
                path.read_bytes() for path in sorted(self.data(node_id).glob(f"{topic}-{partition}/*.log"))
            )
            for node_id in self.node_ids
        }

    def check_replicas_are_alike(self, topic: str, partitions: int) -> None:
        """Byte for byte; the load must have ended."""
        self.wait_whole(topic)
        for partition in range(partitions):

            def are_alike(partition: int = partition) -> bool:
                return len(set(self.files(topic, partition).values())) == 1

            until(are_alike, f"alike replicas of {topic}-{partition}", timeout_s=SETTLE_S)
