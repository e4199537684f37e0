"""Several brokers as one cluster: started, stopped, killed and replaced, and what is seen of it from outside.

Owns the nodes together: when they are a cluster, which node leads and which controls, whether every replica
is in sync, and what a topic holds. Does not own a process (brokers) or any load. Invariant: "in sync" is what
every node that runs says; every wait has a deadline; no node outlives the block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka

from tools import bench
from tools.console import Failure
from tools.versus import brokers
from tools.versus.caller import Caller, until

LOOK_S = 2.0
SETTLE_S = 120.0
READ_S_MAX = 60.0
IN_SYNC_MIN = 2


class Cluster:
    """Nodes, numbered as they are given; a node id keeps its address for good."""

    def __init__(self, name: str, nodes: Sequence[brokers.Broker]) -> None:
        self.name = name
        self.nodes = {node.node_id: node for node in nodes}
        self._down: set[int] = set(self.nodes)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            self._stack.enter_context(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- lives ---

    @property
    def up(self) -> list[brokers.Broker]:
        return [node for node_id, node in self.nodes.items() if node_id not in self._down]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def rise(self) -> float:
        """Start all at once; return when the first was started."""
        for node in self.nodes.values():
            node.prepare()
        launched_s = [node.launch() for node in self.nodes.values()]
        self._down.clear()
        return launched_s[0]

    def stop(self) -> float:
        """Send SIGTERM to all at once; return how long the last one took."""
        started_s = time.perf_counter()
        for node in self.up:
            node.terminate()
        for node in self.up:
            node.wait_stopped()
        self._down = set(self.nodes)
        return time.perf_counter() - started_s

    def kill(self, node_id: int) -> float:
        """Kill it with -9; return when."""
        self._down.add(node_id)
        at_s = time.perf_counter()
        self.nodes[node_id].kill()
        return at_s

    def bring_back(self, node_id: int) -> None:
        self.nodes[node_id].launch()
        self._down.discard(node_id)

    def replace(self, node_id: int) -> float:
        """Kill it and start it on an empty disk, which was prepared before; return when it was killed."""
        old = self.nodes[node_id].renew()
        killed_s = self.kill(node_id)
        shutil.rmtree(old)
        self.bring_back(node_id)
        return killed_s

    # --- what is seen from outside ---

    def wait_member_of_all(self) -> None:
        """Wait until every node lists every node, and a topic with a replica on each can be made."""
        until(self._lists_all, f"cluster of {self.name}", SETTLE_S)
        attempts = iter(range(10_000))
        until(lambda: self._makes_topic(f"ready-{next(attempts)}"), f"first topic of {self.name}", SETTLE_S)

    def _lists_all(self) -> bool:
        return all(
            seen is not None and {row.node_id for row in seen.brokers} == self.nodes.keys()
            for seen in self._views(all_topics=False)
        )

    def _makes_topic(self, name: str) -> bool:
        """Try to make a topic: refused as long as the controller does not know them all."""
        with contextlib.suppress(OSError, Failure):
            self._create(name, self.assignment(1))
            return True
        return False

    def wait_whole(self) -> None:
        """Wait until every partition of every topic has a leader and all replicas in sync, and every node
        knows it."""
        until(self._is_whole, f"cluster of {self.name} with all replicas in sync", SETTLE_S)

    def _is_whole(self) -> bool:
        for seen in self._views(all_topics=True):
            if seen is None or {row.node_id for row in seen.brokers} != self.nodes.keys():
                return False
            rows = [row for topic in seen.topics for row in topic.partitions]
            if any(row.leader_id < 0 or {*row.isr_nodes} != {*row.replica_nodes} for row in rows):
                return False
        return True

    def _views(self, *, all_topics: bool) -> list[Any | None]:
        """Return each running node's metadata; None of one that does not answer."""
        return [self._view(node, all_topics=all_topics) for node in self.up]

    def _view(self, node: brokers.Broker, *, all_topics: bool) -> Any | None:
        node.check_running()
        with contextlib.suppress(OSError, Failure), Caller(node.port, deadline_s=LOOK_S) as caller:
            return caller.metadata(all_topics=all_topics)
        return None

    def controller(self) -> int:
        """Return the node that decides for all of them, as all of them see it."""
        return until(self._controllers, f"controller of {self.name}", SETTLE_S)[0]

    def _controllers(self) -> list[int]:
        seen = {self._controller_of(node) for node in self.up}
        return [*seen] if len(seen) == 1 and seen <= {node.node_id for node in self.up} else []

    def _controller_of(self, node: brokers.Broker) -> int:
        with contextlib.suppress(OSError, Failure), Caller(node.port, deadline_s=LOOK_S) as caller:
            return caller.quorum_leader()
        return -1

    def memory_mb(self) -> float:
        """Return the memory of one node, on average."""
        return sum(brokers.proportional_mb(node.pid) for node in self.up) / len(self.up)

    # --- topics ---

    def assignment(self, partitions: int, leader: int | None = None) -> list[list[int]]:
        """Assign each partition to all nodes; they lead in turn, beginning with `leader`."""
        node_ids = list(self.nodes)
        first = node_ids.index(leader) if leader is not None else 0
        starts = [(first + partition) % len(node_ids) for partition in range(partitions)]
        return [node_ids[start:] + node_ids[:start] for start in starts]

    def create(self, topic: str, partitions: int = 1, *, leader: int | None = None) -> None:
        """Make a topic with min.insync.replicas=2; known to all nodes when this returns."""
        self._create(topic, self.assignment(partitions, leader))
        self.wait_whole()

    def _create(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        with Caller(self.up[0].port) as caller:
            configs = {"min.insync.replicas": str(min(IN_SYNC_MIN, len(self.nodes)))}
            caller.create(topic, configs=configs, replicas=replicas)

    def delete(self, topic: str) -> None:
        with Caller(self.up[0].port) as caller:
            caller.delete(topic)

    def stored_bytes(self, node_id: int, topic: str) -> int:
        """Return the bytes in a node's log files of a topic."""
        return sum(size_of(path) for path in self.nodes[node_id].data.glob(f"{topic}-*/*.log"))

    def read(self, topic: str) -> list[bytes]:
        """Read every value of partition 0, by offset, through the C client."""
        where = confluent_kafka.TopicPartition(topic, 0, 0)
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "tidewal-bench", "log_level": 0}
        )
        values: list[bytes] = []
        deadline_s = time.perf_counter() + READ_S_MAX
        with contextlib.closing(reader), bench.refusals():
            _, end = reader.get_watermark_offsets(where, timeout=READ_S_MAX)
            reader.assign([where])
            while len(values) < end:
                found = reader.consume(10_000, timeout=0.2)
                values += [one.value() or b"" for one in found if one.error() is None]
                if time.perf_counter() > deadline_s:
                    raise Failure(f"{len(values)} of {end} records of {topic} within {READ_S_MAX:.0f} s")
        return values


def of_tidewal(
    folder: Path,
    count: int,
    *,
    store: str,
    name: str = "Tidewal",
    settings: Mapping[str, str] | None = None,
    admin_ports: Sequence[int] = (),
) -> Cluster:
    """Make a cluster of ours; it shares all cores. With admin ports, one each, brokers tell their metrics."""
    cores = os.sched_getaffinity(0)
    admin: list[tuple[str, ...]] = [("--admin", f"127.0.0.1:{port}") for port in admin_ports] or [()] * count
    return Cluster(
        name,
        [
            brokers.Tidewal(
                folder / str(each),
                cores,
                name=f"Tidewal {each}",
                node_id=each,
                store=store,
                settings=settings,
                arguments=arguments,
            )
            for each, arguments in enumerate(admin, 1)
        ],
    )


def of_kafka(
    folder: Path, count: int, *, name: str = "Kafka", settings: Mapping[str, str] | None = None
) -> Cluster:
    """Make one of Kafka's, each node broker and controller."""
    cores, quorum = os.sched_getaffinity(0), brokers.Quorum.of(range(1, count + 1))
    return Cluster(
        name,
        [
            brokers.Kafka(
                folder / str(each),
                cores,
                name=f"Kafka {each}",
                node_id=each,
                quorum=quorum,
                settings=settings,
            )
            for each in range(1, count + 1)
        ],
    )


def size_of(path: Path) -> int:
    """Return its size, 0 of a file that is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
