"""Owns the count of what a living broker holds once every client has gone: tasks, waiters, connections,
queues, open files, and whatever it keeps of partitions and topics that are no more.

Looks into the broker, as nobody else in the simulation does, because nothing it answers would tell of a leak.
Does not own what a broker may hold (leak_checks.py).

Invariant: looking changes nothing; what is counted is a plain value.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence

from broker.components import Components
from broker.config.values import ResourceType
from broker.control.image import Image
from broker.control.internal_topics import INTERNAL_TOPICS, REMOTE_LOG_METADATA
from broker.control.metadata_records import NO_LEADER
from broker.net.channel import Channel
from broker.server import Broker
from storage.maintenance import DELETE_SUFFIX
from tests.sim.disk import Disk, SimFiles
from tests.sim.history import Census, TopicPartition
from tests.sim.loop import Process
from tests.sim.net import Connection
from tests.sim.node import Node
from tests.sim.plan import WAL_ENABLE
from tests.sim.salvage import segments


def take(
    node: Node, truth: Image, connections: Sequence[Connection], *, at: float, has_used_wal: bool = False
) -> Census:
    """`has_used_wal` when some topic is or was in the WAL tier."""
    broker, process, files = node.broker, node.process, node.files
    assert broker is not None and process is not None and files is not None
    components = broker.components
    return Census(
        node=node.id,
        life=node.life,
        at=at,
        others=tuple(sorted(truth.brokers.keys() - {node.id})),
        followed=_followed(node.id, truth),
        is_controller=truth.controller_id == node.id,
        tasks=_tasks(process),
        waiters=_waiters(components),
        overdue=_overdue(components),
        connections=tuple(sorted(_connections(process, connections))),
        counted_connections=components.network.connection_count,
        silent_beats=_silent_beats(components),
        queues=_queues(components, _owed(process, connections)),
        no_more=tuple(sorted(_kept_of_no_more(node, broker, truth))),
        deleted=_deleted(files, node.disk),
        tier_leaders=_tier_leaders(truth),
        lanes=2 if any(is_in_wal(truth, name) for name in truth.topics) else 1,
        watched_lanes=2 if has_used_wal else 1,
    )


def _deleted(files: SimFiles, disk: Disk) -> tuple[str, ...]:
    """Open files without a name, by the name they were opened with."""
    named = disk.named()
    return tuple(file.path for file in files.open_handles() if id(file.inode) not in named)


def _followed(node_id: int, truth: Image) -> tuple[int, ...]:
    leaders = {
        partition.leader
        for topic in truth.topics.values()
        for partition in topic.partitions
        if node_id in partition.replicas
    }
    return tuple(sorted(leaders - {node_id, NO_LEADER}))


def _tier_leaders(truth: Image) -> tuple[int, ...]:
    topic = truth.topics.get(REMOTE_LOG_METADATA)
    return tuple(sorted({each.leader for each in topic.partitions} - {NO_LEADER})) if topic else ()


def is_in_wal(truth: Image, topic: str) -> bool:
    """Whether a topic uses the WAL tier."""
    return truth.config(ResourceType.TOPIC, topic).get(WAL_ENABLE) == "true"


def _tasks(process: Process) -> Counter[str]:
    return Counter(task.get_coro().__qualname__ for task in process.tasks if not task.done())


def _waiters(components: Components) -> dict[str, int]:
    waiters = Counter(type(waiter).__name__ for waiter in components.purgatory._watched.values())
    for partition in components.replicas.partitions():
        waiters["consumers"] += len(partition.data_waiters)
        waiters["commits"] += partition.commit_waits
        waiters["deletions"] += len(partition._low_waiters)
        watched = len(partition.replica_waiters)
        waiters["most watchers of a partition"] = max(waiters["most watchers of a partition"], watched)
    return {kind: count for kind, count in waiters.items() if count}


def _overdue(components: Components) -> int:
    purgatory = components.purgatory
    now = purgatory._loop.time()
    return sum(number in purgatory._watched and due < now - 1.0 for due, number in purgatory._heap)


def _connections(process: Process, connections: Sequence[Connection]) -> Iterator[tuple[str, str]]:
    """Those the broker accepted and has not lost."""
    for connection in connections:
        server, client = connection.server, connection.client
        if server.process is not process or server.is_lost:
            continue
        is_there = client.process.alive and not client.is_lost and not connection.frozen
        state = "open" if is_there else "untold" if connection.is_half_open else "gone"
        yield client.local[0], state


def _silent_beats(components: Components) -> tuple[int, ...]:
    """Brokers whose heartbeats count as coming over a connection that is lost."""
    attached = components.cluster.heartbeats._attached
    return tuple(sorted(number for number, held in attached.items() if held._transport is None))


def _owed(process: Process, connections: Sequence[Connection]) -> int:
    """Bytes of requests that are not whole, of clients that are gone and did not say so, and of those in
    work, whose tasks are counted."""
    mine = [each for each in connections if each.server.process is process and not each.server.is_lost]
    return sum(
        each.server.protocol._queued if each.is_half_open else each.server.protocol._kept_bytes
        for each in mine
    )


def _awaited(channel: Channel) -> int:
    """Questions somebody waits for; who gave up left the rest to their deadline."""
    return 0 if channel._wire is None else sum(not answer.done() for _, answer in channel._wire.asked)


def _queues(components: Components, owed: int) -> dict[str, int]:
    cluster, network, logs = components.cluster, components.network, components.logs
    lengths = {
        "commands": len(cluster.queue),
        "unpublished": len(cluster._unpublished),
        "ISR proposals": len(components.isr._waiting),
        "group commands": components.groups.statistics().waiting,
        "touched partitions": len(components.replicas.touched),
        "rounds": len(network._deferred),
        "waiting for room": network.frames.waiting,
        "flushing": len(logs._maintenance._flushing),
        "checkpoint writes": sum(
            len(each._writing) + len(each._write_again) for each in logs._checkpoints.values()
        ),
        "queued bytes": network.queued_bytes - owed,
        "wakes": len(components.purgatory._wakes),
        "in flight to a peer": max(map(_awaited, cluster.channels._channels.values()), default=0),
    }
    return {name: length for name, length in lengths.items() if length}


def _kept_of_no_more(node: Node, broker: Broker, truth: Image) -> Iterator[str]:
    """Whatever belongs to a replica this node does not have, to a topic or to a broker that is gone."""
    components = broker.components
    cluster, replicas, logs = components.cluster, components.replicas, components.logs
    fetchers = components.fetchers
    snapshot = node.disk.snapshot()
    due: set[TopicPartition] = {
        (topic.name, partition.index)
        for topic in truth.topics.values()
        for partition in topic.partitions
        if node.id in partition.replicas
    }
    partitions = {(each.topic, each.index) for each in replicas.partitions()}
    for what, held in (
        ("a log", logs.logs.keys()),
        ("a partition", partitions),
        ("a position to fetch from", {(each.topic, each.index) for each in fetchers._positions}),
        ("a directory", segments(snapshot, node.log_dirs).keys()),
        ("a cleaned offset", logs.cleaned_upto.keys()),
    ):
        yield from (f"{what} of {tp[0]}-{tp[1]}" for tp in sorted(held - due))
    doomed = {path for _, path in logs._maintenance._doomed}
    put_aside = {posixpath.dirname(path) for path in snapshot}
    yield from (f"{path}" for path in sorted(put_aside - doomed) if path.endswith(DELETE_SUFFIX))
    yield from (f"{tp[0]}-{tp[1]} is not open" for tp in sorted(due - partitions))
    for what, names in (
        ("statistics", replicas.topic_stats.keys()),
        ("log settings", cluster.settings.log_configs.keys()),
    ):
        left_over = names - truth.topics.keys() - INTERNAL_TOPICS.keys()
        yield from (f"{what} of {name}" for name in sorted(left_over))
    gone = {number for number, _ in cluster.channels._channels} - truth.brokers.keys()
    yield from (f"a channel to node {number}" for number in sorted(gone))
    idle = [fetcher.leader_id for fetcher in fetchers._fetchers.values() if not fetcher.positions]
    yield from (f"a fetcher from node {number} with nothing to fetch" for number in sorted(idle))
