"""Everything a broker reports about itself, under the names that Kafka exporters use.

Owns: names, labels and the collection at scrape time. Does not own: the numbers (the parts and `counters`
keep them) or serving them (http). Invariant: all work happens during a scrape, in pieces between which the
loop may turn.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from broker.admin.histograms import buckets_of
from broker.admin.pieces import pieces
from broker.admin.tier_metrics import tier_families
from broker.admin.transaction_metrics import transaction_families
from broker.admin.wal_metrics import wal_families
from broker.control.metadata_records import NO_LEADER
from broker.coordinators.groups.consumer_group import GroupState
from broker.coordinators.groups.membership import State
from broker.loop_monitor import BOUNDS_S
from protocol.apis import KNOWN
from protocol.errors import error_code
from remote.store.metered import LATENCY_BOUNDS_S
from remote.store.object_store import Operation

if TYPE_CHECKING:
    from prometheus_client import Metric

    from broker.admin.counters import Counters
    from broker.control.cluster import Cluster
    from broker.coordinators.groups.coordinator import GroupCoordinator
    from broker.coordinators.transactions.coordinator import TransactionCoordinator
    from broker.loop_monitor import LoopMonitor
    from broker.net.server import NetworkServer
    from broker.replicas.fetch_sessions import FetchSessions
    from broker.replicas.isr import IsrChanges
    from broker.replicas.partition import Partition
    from broker.replicas.purgatory import Purgatory
    from broker.replicas.replica_manager import ReplicaManager
    from broker.replicas.tier_reads import TierReads
    from broker.replicas.tiering import Tiering
    from remote.store.metered import StoreStats
    from remote.wal.stats import WalStats
    from storage.log_manager import LogManager


def collect(
    *,
    counters: Counters,
    loop_monitor: LoopMonitor,
    replicas: ReplicaManager,
    logs: LogManager,
    isr: IsrChanges,
    fetch_sessions: FetchSessions,
    network: NetworkServer,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    now_ms: int,
    cluster: Cluster,
    store_stats: StoreStats,
    tiering: Tiering | None,
    tier_reads: TierReads | None,
    wal_stats: WalStats | None,
    wal_store_stats: StoreStats,
) -> Iterator[Metric]:
    """Every family, a large one in several pieces that follow each other."""
    yield from _requests(counters)
    yield from _topics(replicas)
    yield from _logs(replicas, logs)
    yield from _replicas(replicas, isr)
    yield from _fetch_sessions(fetch_sessions)
    yield from _sockets(network)
    yield from _groups(groups)
    yield from transaction_families(
        transactions, replicas, now_ms=now_ms, longest_ms=cluster.broker_config.transaction_max_timeout_ms
    )
    yield from _memory(network, groups, transactions, replicas, fetch_sessions)
    yield from _controller(cluster, counters)
    yield from _process()
    yield from _loop(loop_monitor)
    yield from _store("tidewal_object_store", store_stats)
    if tiering is not None and tier_reads is not None:
        yield from tier_families(replicas, tiering, tier_reads)
    if wal_stats is not None:
        yield from wal_families(replicas, wal_stats)
        yield from _store("tidewal_wal_store", wal_store_stats)


def _requests(counters: Counters) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    requests = CounterMetricFamily(
        "kafka_network_requestmetrics_requests", "Requests by API.", labels=["request"]
    )
    for key, row in KNOWN.items():
        requests.add_metric([row.name], counters.requests[key])
    yield requests
    errors = CounterMetricFamily(
        "kafka_network_requestmetrics_errors", "Requests answered as a whole with an error.", labels=["error"]
    )
    for code, count in counters.errors.items():
        errors.add_metric([error_code(code).name.upper()], count)
    yield errors


_TOPIC_FAMILIES: Final = (
    ("messagesin", "messages_in", "Records appended."),
    ("bytesin", "bytes_in", "Bytes of record batches appended."),
    ("bytesout", "bytes_out", "Bytes of record batches fetched by clients."),
    ("replicationbytesin", "replication_bytes_in", "Bytes of record batches fetched from leaders."),
    ("replicationbytesout", "replication_bytes_out", "Bytes of record batches fetched by followers."),
    ("totalproducerequests", "produce", "Produce requests, by partition asked for."),
    ("failedproducerequests", "failed_produce", "Produce requests refused, by partition asked for."),
    ("totalfetchrequests", "fetch", "Fetch requests, by partition read."),
    ("failedfetchrequests", "failed_fetch", "Fetch requests refused, by partition asked for."),
)


def _topics(replicas: ReplicaManager) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    stats = list(replicas.topic_stats.items())
    for name, attribute, text in _TOPIC_FAMILIES:
        for rows in pieces(stats):
            family = CounterMetricFamily(f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"])
            for topic, counted in rows:
                family.add_metric([topic], getattr(counted, attribute))
            yield family


_PARTITION_FAMILIES: Final[tuple[tuple[str, str, Callable[[Partition], int]], ...]] = (
    ("kafka_log_log_size", "Bytes of a log.", lambda partition: partition.log.size),
    ("kafka_log_log_logendoffset", "Log end offset.", lambda partition: partition.log.log_end_offset),
    ("kafka_log_log_logstartoffset", "Log start offset.", lambda partition: partition.log.log_start_offset),
    (
        "kafka_log_log_numlogsegments",
        "Segments of a log.",
        lambda partition: partition.log.statistics().segments,
    ),
    (
        "kafka_cluster_partition_highwatermark",
        "High watermark.",
        lambda partition: partition.log.high_watermark,
    ),
)


def _logs(replicas: ReplicaManager, logs: LogManager) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    partitions = list(replicas.partitions())
    for name, text, value in _PARTITION_FAMILIES:
        for rows in pieces(partitions):
            family = GaugeMetricFamily(name, text, labels=["topic", "partition"])
            for partition in rows:
                family.add_metric([partition.topic, str(partition.index)], value(partition))
            yield family
    yield GaugeMetricFamily(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that failed.",
        value=len(logs.offline_dirs),
    )
    yield GaugeMetricFamily(
        "kafka_log_logmanager_logstobedeleted",
        "Logs of deleted partitions whose files are still there.",
        value=logs.to_be_deleted,
    )


def _replicas(replicas: ReplicaManager, isr: IsrChanges) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    partitions = list(replicas.partitions())
    leaders = [partition for partition in partitions if partition.is_leader and not partition.offline]
    name = "kafka_server_replicamanager"
    yield GaugeMetricFamily(f"{name}_partitioncount", "Partitions here.", value=len(partitions))
    yield GaugeMetricFamily(f"{name}_leadercount", "Partitions led here.", value=len(leaders))
    yield CounterMetricFamily(f"{name}_isrexpands", "In-sync replicas that grew.", value=isr.expands)
    yield CounterMetricFamily(f"{name}_isrshrinks", "In-sync replicas that shrank.", value=isr.shrinks)
    yield CounterMetricFamily(
        f"{name}_failedisrupdates",
        "Changes of in-sync replicas that the controller refused.",
        value=isr.refusals,
    )
    yield GaugeMetricFamily(
        f"{name}_underreplicatedpartitions",
        "Partitions led here with replicas out of sync.",
        value=sum(len(partition.isr) < partition.replication_factor for partition in leaders),
    )
    yield GaugeMetricFamily(
        f"{name}_underminisrpartitioncount",
        "Partitions led here that refuse acks=all.",
        value=sum(not partition.acks_all_ok for partition in leaders),
    )
    yield GaugeMetricFamily(
        f"{name}_atminisrpartitioncount",
        "Partitions led here that would refuse acks=all with one in-sync replica less.",
        value=sum(len(partition.isr) == partition.min_isr for partition in leaders),
    )
    yield GaugeMetricFamily(
        f"{name}_offlinereplicacount",
        "Replicas on failed directories.",
        value=replicas.offline_count,
    )
    yield GaugeMetricFamily(
        f"{name}_produceridcount",
        "Producers that the partitions here remember.",
        value=sum(partition.log.producer_table.count for partition in partitions),
    )
    yield from _waiting(replicas.purgatory, partitions)


def _fetch_sessions(sessions: FetchSessions) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = "kafka_server_fetchsessioncache"
    yield GaugeMetricFamily(f"{name}_numincrementalfetchsessions", "Fetch sessions.", value=len(sessions))
    yield GaugeMetricFamily(
        f"{name}_numincrementalfetchpartitionscached",
        "Partitions in fetch sessions.",
        value=sessions.partition_count,
    )
    yield CounterMetricFamily(
        f"{name}_incrementalfetchsessionevictions", "Fetch sessions evicted.", value=sessions.evictions
    )


def _waiting(purgatory: Purgatory, partitions: Sequence[Partition]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    name = "kafka_server_delayedoperationpurgatory"
    yield GaugeMetricFamily(f"{name}_purgatorysize", "Requests that wait.", value=len(purgatory))
    watched = GaugeMetricFamily(
        f"{name}_watched", "Waits at partitions, one for each partition.", labels=["delayedOperation"]
    )
    watched.add_metric(["Fetch"], sum(len(partition.data_waiters) for partition in partitions))
    watched.add_metric(["Produce"], sum(partition.commit_waits for partition in partitions))
    yield watched


def _sockets(network: NetworkServer) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = "kafka_server_socketservermetrics"
    connections = GaugeMetricFamily(f"{name}_connection_count", "Open connections.", labels=["listener"])
    for listener, count in network.connections_by_listener().items():
        connections.add_metric([listener], count)
    yield connections
    stats = network.stats
    yield CounterMetricFamily(f"{name}_connection_creation", "Connections accepted.", value=stats.accepted)
    yield CounterMetricFamily(f"{name}_connection_rejected", "Connections refused.", value=stats.rejected)
    yield CounterMetricFamily(
        f"{name}_connection_idle_close", "Connections closed idle.", value=stats.closed_idle
    )
    yield GaugeMetricFamily(
        f"{name}_memorypoolused", "Bytes of requests that wait in memory.", value=network.queued_bytes
    )


def _memory(
    network: NetworkServer,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    replicas: ReplicaManager,
    sessions: FetchSessions,
) -> Iterator[Metric]:
    """What clients make the broker keep; the names are ours, since Kafka has no such accounts."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    held = GaugeMetricFamily(
        "tidewal_memory_bytes", "Bytes that clients make the broker keep.", labels=["account"]
    )
    refused = CounterMetricFamily(
        "tidewal_memory_refused", "Requests refused because there was no room.", labels=["account"]
    )
    closed = CounterMetricFamily(
        "tidewal_memory_closed",
        "Connections closed because they held memory and made no progress.",
        labels=["account"],
    )
    for name, account in (("frames", network.frames), ("answers", network.answers)):
        held.add_metric([name], account.bytes)
        closed.add_metric([name], account.closed)
    producers = sum(partition.log.producer_table.size_bytes for partition in replicas.partitions())
    held.add_metric(["group_metadata"], groups.memory.held_bytes)
    held.add_metric(["transactional_ids"], transactions.memory.held_bytes)
    held.add_metric(["producer_ids"], producers)
    held.add_metric(["fetch_sessions"], sessions.bytes)
    refused.add_metric(["group_metadata"], groups.memory.refused)
    refused.add_metric(["transactional_ids"], transactions.memory.refused)
    refused.add_metric(["fetch_sessions"], sessions.refusals)
    yield held
    yield refused
    yield closed
    yield GaugeMetricFamily(
        "tidewal_memory_waiting", "Connections not read until there is room.", value=network.frames.waiting
    )


_GROUP_STATES: Final = {state: f"numgroups{state.value.lower()}" for state in State}
_GROUP_EVENTS: Final = (
    ("group_completed_rebalance_count", "completed_rebalances", "Rebalances of classic groups completed."),
    (
        "consumer_group_rebalance_count",
        "consumer_rebalances",
        "Rebalances of groups that the broker assigns.",
    ),
    ("offset_commit_count", "committed_offsets", "Offsets committed."),
    ("offset_expiration_count", "expired_offsets", "Offsets expired."),
)
"""Since the partition was loaded."""


def _groups(groups: GroupCoordinator) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    statistics = groups.statistics()
    machines = statistics.machines
    states: Counter[State] = Counter()
    consumers: Counter[GroupState] = Counter()
    for machine in machines:
        states.update(machine.groups)
        consumers.update(machine.consumers)
    name = "kafka_coordinator_group_groupmetadatamanager"
    yield GaugeMetricFamily(f"{name}_numgroups", "Classic groups.", value=states.total())
    for state, suffix in _GROUP_STATES.items():
        yield GaugeMetricFamily(
            f"{name}_{suffix}", f"Classic groups in state {state.value}.", value=states[state]
        )
    members = sum(machine.members for machine in machines)
    yield GaugeMetricFamily(f"{name}_nummembers", "Members of groups.", value=members)
    offsets = sum(machine.offsets for machine in machines)
    yield GaugeMetricFamily(f"{name}_numoffsets", "Committed offsets that are kept.", value=offsets)
    name = "kafka_server_group_coordinator_metrics"
    counts = GaugeMetricFamily(f"{name}_group_count", "Groups, by their protocol.", labels=["protocol"])
    counts.add_metric(["classic"], states.total())
    counts.add_metric(["consumer"], consumers.total())
    yield counts
    by_state = GaugeMetricFamily(
        f"{name}_consumer_group_count", "Groups that the broker assigns, by state.", labels=["state"]
    )
    for consumer_state in GroupState:
        by_state.add_metric([consumer_state.value.lower()], consumers[consumer_state])
    yield by_state
    partitions = GaugeMetricFamily(f"{name}_num_partitions", "Partitions coordinated.", labels=["state"])
    partitions.add_metric(["loading"], statistics.loading)
    partitions.add_metric(["active"], len(machines))
    yield partitions
    yield GaugeMetricFamily(f"{name}_waiting", "Group requests that wait.", value=statistics.waiting)
    for suffix, attribute, text in _GROUP_EVENTS:
        total = sum(getattr(machine, attribute) for machine in machines)
        yield CounterMetricFamily(f"{name}_{suffix}", text, value=total)


def _controller(cluster: Cluster, counters: Counters) -> Iterator[Metric]:
    """What this broker's own image says: any broker may become the controller."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    image = cluster.image
    name = "kafka_controller_kafkacontroller"
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    yield GaugeMetricFamily(
        f"{name}_activecontrollercount", "1 on the controller.", value=cluster.is_controller
    )
    yield GaugeMetricFamily(f"{name}_globaltopiccount", "Topics.", value=len(image.topics))
    yield GaugeMetricFamily(f"{name}_globalpartitioncount", "Partitions.", value=len(partitions))
    yield GaugeMetricFamily(
        f"{name}_offlinepartitionscount",
        "Partitions without a leader.",
        value=sum(partition.leader == NO_LEADER for partition in partitions),
    )
    yield GaugeMetricFamily(
        f"{name}_activebrokercount", "Brokers that are not fenced.", value=len(image.live_brokers())
    )
    name = "kafka_controller_controllerstats"
    yield CounterMetricFamily(
        f"{name}_leaderelections", "Partitions that got another leader.", value=counters.elections
    )
    yield CounterMetricFamily(
        f"{name}_uncleanleaderelections",
        "Partitions that got a leader that was not in sync.",
        value=counters.unclean_elections,
    )


def _process() -> Iterator[Metric]:
    """The process under the names that Prometheus' own clients use; memory and open files where known."""
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.process_collector import ProcessCollector

    yield from ProcessCollector(registry=None).collect()
    yield GaugeMetricFamily("process_threads", "Threads.", value=threading.active_count())
    yield GaugeMetricFamily("asyncio_tasks", "Tasks of the event loop.", value=len(asyncio.all_tasks()))
    yield GaugeMetricFamily(
        "python_allocated_blocks",
        "Blocks of memory that Python's allocator has given out and not got back.",
        value=sys.getallocatedblocks(),
    )


def _loop(monitor: LoopMonitor) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, text, durations in (
        ("tidewal_loop_stall_seconds", "How late the loop came to a timer.", monitor.stalls),
        (
            "tidewal_loop_stall_processor_seconds",
            "How much of that time the loop's thread was on the processor.",
            monitor.held,
        ),
    ):
        family = HistogramMetricFamily(name, text)
        family.add_metric([], buckets_of(BOUNDS_S, durations.counts), sum_value=durations.sum_s)
        yield family


_STORE_COUNTERS: Final = (
    ("bytes_read", "Bytes of objects read."),
    ("bytes_written", "Bytes of objects written."),
    ("retries", "Requests that were sent again after a failure."),
    ("hedges", "Reads that were asked a second time because the first was slow."),
    ("hedges_won", "Second reads that answered before the first."),
)


def _store(name: str, stats: StoreStats) -> Iterator[Metric]:
    """The object store by one lane; the names are ours, since Kafka has no such part."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily(f"{name}_requests", "Requests by operation.", labels=["operation"])
    latency = HistogramMetricFamily(f"{name}_request_seconds", "Time to an answer.", labels=["operation"])
    for operation in Operation:
        requests.add_metric([operation], stats.requests[operation])
        buckets = buckets_of(LATENCY_BOUNDS_S, stats.latency_counts[operation])
        latency.add_metric([operation], buckets, stats.latency_sums_s[operation])
    yield requests
    yield latency
    errors = CounterMetricFamily(
        f"{name}_errors", "Requests without an answer, by what went wrong.", labels=["operation", "error"]
    )
    for (operation, fault), count in stats.errors.items():
        errors.add_metric([operation, fault], count)
    yield errors
    for attribute, text in _STORE_COUNTERS:
        yield CounterMetricFamily(f"{name}_{attribute}", text, value=getattr(stats, attribute))
