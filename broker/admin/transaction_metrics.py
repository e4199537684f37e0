"""What a scrape tells of transactions: those coordinated here, and what open ones do to the partitions here.

Owns: names, labels and the collection at scrape time. Does not own: the numbers (the coordinator and the logs
keep them), nor the other families (metrics). Invariant: as of `metrics`: all work is done during a scrape, in
pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.admin.pieces import pieces
from protocol.stored.transactions import TransactionState

if TYPE_CHECKING:
    from prometheus_client import Metric

    from broker.coordinators.transactions.coordinator import TransactionCoordinator
    from broker.replicas.partition import Partition
    from broker.replicas.replica_manager import ReplicaManager

LATE_AFTER_MS: Final = 5 * 60 * 1000
"""How much longer than any transaction may last one is open before it is called late, as in Kafka."""
_NEVER_KEPT: Final = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
_EVENTS: Final = (
    ("transactions_timed_out", "timed_out", "Transactions aborted because their time was over."),
    ("transactional_ids_expired", "expired", "Transactional ids forgotten because nobody used them."),
)
"""Since the partition was loaded; likewise how transactions ended."""


def transaction_families(
    transactions: TransactionCoordinator, replicas: ReplicaManager, *, now_ms: int, longest_ms: int
) -> Iterator[Metric]:
    """`longest_ms` is transaction.max.timeout.ms. Where Kafka has no such metric, the name is ours."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    statistics = transactions.statistics()
    machines = statistics.machines
    states: Counter[TransactionState] = Counter()
    for machine in machines:
        states.update(machine.states)
    ids = GaugeMetricFamily(
        "tidewal_transactional_ids", "Transactional ids, by the state of their transaction.", labels=["state"]
    )
    for state in TransactionState:
        if state not in _NEVER_KEPT:
            ids.add_metric([state.title], states[state])
    yield ids
    partitions = GaugeMetricFamily(
        "tidewal_transaction_partitions", "Partitions of transactions coordinated.", labels=["state"]
    )
    partitions.add_metric(["loading"], statistics.loading)
    partitions.add_metric(["active"], len(machines))
    yield partitions
    yield GaugeMetricFamily(
        "tidewal_transaction_waiting", "Requests about transactions that wait.", value=statistics.waiting
    )
    yield GaugeMetricFamily(
        "tidewal_transactions_ending",
        "Transactions that are decided, and whose partitions are being told.",
        value=statistics.ending,
    )
    yield GaugeMetricFamily(
        "tidewal_transaction_markers_queued",
        "Transactions that wait for a request with markers to another broker.",
        value=statistics.queued_markers,
    )
    yield CounterMetricFamily(
        "tidewal_transaction_markers_retried",
        "Partitions that were told again how a transaction ended.",
        value=statistics.retried_markers,
    )
    ended = CounterMetricFamily("tidewal_transactions_ended", "Transactions decided.", labels=["outcome"])
    ended.add_metric(["committed"], sum(machine.committed for machine in machines))
    ended.add_metric(["aborted"], sum(machine.aborted for machine in machines))
    yield ended
    for name, attribute, text in _EVENTS:
        total = sum(getattr(machine, attribute) for machine in machines)
        yield CounterMetricFamily(f"tidewal_{name}", text, value=total)
    yield from _open_in_logs(replicas, now_ms - longest_ms - LATE_AFTER_MS)


def _open_in_logs(replicas: ReplicaManager, late_before_ms: int) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    partitions = list(replicas.partitions())
    for rows in pieces(partitions):
        family = GaugeMetricFamily(
            "kafka_cluster_partition_laststableoffsetlag",
            "Committed records that readers of committed transactions have to wait for.",
            labels=["topic", "partition"],
        )
        for partition in rows:
            lag = partition.log.high_watermark - partition.log.last_stable_offset
            family.add_metric([partition.topic, str(partition.index)], max(0, lag))
        yield family
    yield GaugeMetricFamily(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "Partitions led here with a transaction that is open for much longer than any may be.",
        value=sum(
            _oldest_open_ms(partition) < late_before_ms
            for partition in partitions
            if partition.is_leader and not partition.offline
        ),
    )


def _oldest_open_ms(partition: Partition) -> float:
    """When the producer whose transaction is open for longest last wrote; infinite where none is."""
    table = partition.log.producer_table
    producer_id = next(iter(table.ongoing.values()), None)
    entry = None if producer_id is None else table.known(producer_id)
    return float("inf") if entry is None or entry.last_timestamp <= 0 else entry.last_timestamp
