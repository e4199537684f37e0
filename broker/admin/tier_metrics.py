"""What a broker reports about the cold tier: Kafka's metrics of it under the names that exporters give them,
then those that Kafka does not have.

Owns: names, labels and what is added up for them during a scrape. Does not own: the numbers (the statistics
of topics, quotas, caches and the fold keep them). Invariant: all work happens during a scrape, in pieces
between which the loop may turn.

Kafka's RemoteLogSizeComputationTime is not here: the size of a partition in the tier is a running sum, so
nothing is computed that could take time. Idle shares are those of the moment, as in Kafka; what is idle is a
place for a turn or a load, not a thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broker.admin.pieces import pieces
from broker.coordinators.tier.metadata import TierMetadata
from protocol.errors import KafkaError
from remote.cold.segments import RemoteSegment, SegmentState

if TYPE_CHECKING:
    from prometheus_client import Metric

    from broker.replicas.partition import Partition, TopicStats
    from broker.replicas.replica_manager import ReplicaManager
    from broker.replicas.tier_reads import TierReads
    from broker.replicas.tiering import Tiering
    from remote.cold.fold import PartitionFold
    from remote.cold.pacing import PacerStatistics
    from remote.cold.tenure import Tenure
    from storage.log import AbstractLog

LOOKED_AT_ONCE: Final = 20
"""Partitions whose backlog is added up in one piece: each may have hundreds of segments that wait."""

_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_MANAGER: Final = "kafka_log_remote_remotelogmanager_"

_TOPIC_COUNTERS: Final[tuple[tuple[str, str, Callable[[TopicStats], int]], ...]] = (
    ("remotefetchbytes", "Bytes read from the tier.", lambda stats: stats.remote_fetch_bytes),
    ("remotefetchrequests", "Reads from the tier.", lambda stats: stats.remote_fetch),
    ("remotefetcherrors", "Reads from the tier that failed.", lambda stats: stats.failed_remote_fetch),
    ("remotecopybytes", "Bytes copied to the tier.", lambda stats: stats.remote_copy_bytes),
    ("remotecopyrequests", "Segments that were begun to be copied.", lambda stats: stats.remote_copy),
    (
        "remotecopyerrors",
        "Turns of copying that failed and are taken again.",
        lambda stats: stats.failed_remote_copy,
    ),
    ("remotedeleterequests", "Deletions of copies.", lambda stats: stats.remote_delete),
    (
        "remotedeleteerrors",
        "Turns of retention and deletion that failed and are taken again.",
        lambda stats: stats.failed_remote_delete,
    ),
    (
        "buildremotelogauxstaterequests",
        "Replicas that were begun to be brought up from the tier.",
        lambda stats: stats.aux_state_builds,
    ),
    (
        "buildremotelogauxstateerrors",
        "Attempts to bring a replica up from the tier that failed.",
        lambda stats: stats.failed_aux_state_builds,
    ),
)


class Backlog:
    """What the partitions of a topic that are led here have in the tier, and what they have to do there."""

    def __init__(self) -> None:
        self.copy_bytes = self.copy_segments = 0
        self.waiting_bytes = 0
        self.delete_bytes = self.delete_segments = 0
        self.unreferenced_bytes = 0
        self.size_bytes = 0
        self.count = 0

    def add(self, tiering: Tiering, tenure: Tenure) -> None:
        log = tenure.log
        waiting = tiering.copier.waiting(tenure)
        self.waiting_bytes += sum(segment.size for segment in waiting)
        due = tiering.copier.due(tenure)
        self.copy_bytes += sum(segment.size for segment in due)
        self.copy_segments += len(due)
        fold = tiering.metadata.fold(tenure.partition)
        if fold is None:
            return
        self.size_bytes += fold.finished_bytes
        self.count += fold.finished_count + fold.unfinished_count + fold.deleting_count
        if not tiering.metadata.is_caught_up(tenure.partition):
            return
        for segment in tiering.expirer.useless(tenure):
            self.unreferenced_bytes += segment.size_bytes
            if _is_to_go(segment, log):
                self.delete_bytes += segment.size_bytes
                self.delete_segments += 1


def _is_to_go(segment: RemoteSegment, log: AbstractLog) -> bool:
    """Whether retention or somebody is done with it; the others are remains of what went wrong."""
    return segment.state is SegmentState.DELETE_STARTED or segment.end_offset <= log.log_start_offset


_TOPIC_GAUGES: Final[tuple[tuple[str, str, Callable[[Backlog], int]], ...]] = (
    (
        f"{_TOPIC}remotecopylagbytes",
        "Bytes of segments that are due in the tier and not there.",
        lambda backlog: backlog.copy_bytes,
    ),
    (
        f"{_TOPIC}remotecopylagsegments",
        "Segments that are due in the tier and not there.",
        lambda backlog: backlog.copy_segments,
    ),
    (
        f"{_TOPIC}remotedeletelagbytes",
        "Bytes of copies that are to go and are not gone.",
        lambda backlog: backlog.delete_bytes,
    ),
    (
        f"{_TOPIC}remotedeletelagsegments",
        "Copies that are to go and are not gone.",
        lambda backlog: backlog.delete_segments,
    ),
    (f"{_TOPIC}remotelogsizebytes", "Bytes in the tier.", lambda backlog: backlog.size_bytes),
    (f"{_TOPIC}remotelogmetadatacount", "Copies that are known.", lambda backlog: backlog.count),
    (
        "tidewal_tier_waiting_bytes",
        "Bytes of closed segments that are not in the tier, due or not.",
        lambda backlog: backlog.waiting_bytes,
    ),
    (
        "tidewal_tier_unreferenced_bytes",
        "Bytes of copies that no reader is served from: to be deleted, abandoned or superseded.",
        lambda backlog: backlog.unreferenced_bytes,
    ),
)


def tier_families(replicas: ReplicaManager, tiering: Tiering, reads: TierReads) -> Iterator[Metric]:
    yield from _counted(replicas, reads)
    yield from _backlogs(tiering)
    yield from _retention(tiering)
    yield from _quotas(tiering, reads)
    yield from _places(tiering, reads)
    yield from _reading(reads)
    yield from _metadata(tiering)
    yield from _pressure(tiering)


def _counted(replicas: ReplicaManager, reads: TierReads) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    stats = list(replicas.topic_stats.items())
    for name, text, value in _TOPIC_COUNTERS:
        for rows in pieces(stats):
            family = CounterMetricFamily(f"{_TOPIC}{name}", text, labels=["topic"])
            for topic, counted in rows:
                family.add_metric([topic], value(counted))
            yield family
    yield CounterMetricFamily(
        "kafka_server_delayedremotefetchmetrics_expires",
        "Fetches answered before all was read that they wanted from the tier.",
        value=reads.expired,
    )
    yield CounterMetricFamily(
        "kafka_server_delayedremotelistoffsetsmetrics_expires",
        "Look-ups of times in the tier that were given up because they took too long.",
        value=reads.expired_lists,
    )


def _backlogs(tiering: Tiering) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)
    first, text, _ = _TOPIC_GAUGES[0]
    for rows in pieces(tiering.led(), LOOKED_AT_ONCE):
        for _, tenure in rows:
            if not tenure.is_over and tenure.log.offline is None:
                try:
                    backlogs[tenure.topic].add(tiering, tenure)
                except KafkaError:
                    continue  # its disk fails: the log says so
        yield GaugeMetricFamily(first, text, labels=["topic"])
    for name, text, value in _TOPIC_GAUGES:
        for topics in pieces(list(backlogs.items())):
            family = GaugeMetricFamily(name, text, labels=["topic"])
            for topic, backlog in topics:
                family.add_metric([topic], value(backlog))
            yield family


def _retention(tiering: Tiering) -> Iterator[Metric]:
    """How much of its limits each partition fills (KIP-1257); 0 without a limit."""
    from prometheus_client.core import GaugeMetricFamily

    def whole(partition: Partition, fold: PartitionFold | None) -> int:
        log = partition.log
        size = log.size_from(log.tiered_end) + (0 if fold is None else fold.finished_bytes)
        return _percent(size, log.config.retention_bytes)

    def local(partition: Partition, _: PartitionFold | None) -> int:
        return _percent(partition.log.size, partition.log.config.effective_local_retention[1])

    for name, text, value in (
        ("retentionsizeinpercent", "Size of a partition, of retention.bytes.", whole),
        ("localretentionsizeinpercent", "Size of a log, of local.retention.bytes.", local),
    ):
        for rows in pieces(tiering.led()):
            family = GaugeMetricFamily(f"{_MANAGER}{name}", text, labels=["topic", "partition"])
            for partition, tenure in rows:
                fold = tiering.metadata.fold(tenure.partition)
                family.add_metric([partition.topic, str(partition.index)], value(partition, fold))
            yield family


def _percent(size: int, limit: int) -> int:
    return 100 * size // limit if limit > 0 else 0


def _quotas(tiering: Tiering, reads: TierReads) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    quotas: tuple[tuple[str, PacerStatistics], ...] = (
        ("copy", tiering.copier.quota.statistics()),
        ("fetch", reads.reader.quota.statistics()),
    )
    for what, statistics in quotas:
        name = f"kafka_server_remotelogmanager_remote_{what}_throttle_time"
        yield GaugeMetricFamily(
            f"{name}_avg",
            "Milliseconds for which the quota held back.",
            value=statistics.throttled_ms_average,
        )
        yield GaugeMetricFamily(
            f"{name}_max",
            "The most milliseconds for which the quota held back.",
            value=statistics.throttled_ms_max,
        )
        yield GaugeMetricFamily(
            f"kafka_server_rlm{what}_byte_rate",
            "Bytes a second, over the window of the quota.",
            value=statistics.byte_rate,
        )


def _places(tiering: Tiering, reads: TierReads) -> Iterator[Metric]:
    """Turns of copiers, expirers and followers, and loads of readers."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    groups, chunks = tiering.groups, reads.reader.copies.chunks
    busy = sum(group.busy for group in groups)
    yield GaugeMetricFamily(
        f"{_MANAGER}remotelogmanagertasksavgidlepercent",
        "Share of the workers that have nothing to do now.",
        value=_idle(busy, sum(group.size for group in groups)),
    )
    turns = GaugeMetricFamily(
        "tidewal_tier_turns", "Partitions whose turn is taken or waited for.", labels=["work", "state"]
    )
    for group in groups:
        turns.add_metric([group.name, "busy"], group.busy)
        turns.add_metric([group.name, "waiting"], group.waiting)
    yield turns
    failing = GaugeMetricFamily(
        "tidewal_tier_failing_partitions", "Partitions whose last turn failed.", labels=["work"]
    )
    failing.add_metric(["copy"], len(tiering.copy_trouble))
    failing.add_metric(["expiration"], len(tiering.expiry_trouble))
    yield failing
    repair = tiering.index_repair
    yield CounterMetricFamily(
        "tidewal_tier_repaired_indexes",
        "Index objects that were lost and put back, made anew.",
        value=0 if repair is None else repair.repaired,
    )
    yield GaugeMetricFamily(
        "tidewal_tier_damaged_partitions",
        "Partitions led here that copy nothing as a segment on the disk is damaged; the log says what to do.",
        value=tiering.damaged_count,
    )
    pool = "kafka_log_remote_remotestoragethreadpool_remotelogreader"
    yield GaugeMetricFamily(
        f"{pool}taskqueuesize", "Chunks of copies that wait to be loaded.", value=chunks.waiting
    )
    yield GaugeMetricFamily(
        f"{pool}avgidlepercent",
        "Share of remote.log.reader.threads that load nothing now.",
        value=_idle(chunks.loading, chunks.parallel),
    )
    yield SummaryMetricFamily(
        f"{_MANAGER}remotelogreaderfetchrateandtimems",
        "Milliseconds that reads from the tier took.",
        count_value=reads.fills,
        sum_value=1000 * reads.fill_s,
    )


def _idle(busy: int, size: int) -> float:
    return max(0.0, 1 - busy / size)


def _reading(reads: TierReads) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    reader = reads.reader
    chunks, indexes = reader.copies.chunks, reader.copies.indexes
    for what, cache in (("chunk", chunks), ("index", indexes)):
        name = f"tidewal_tier_{what}_cache"
        yield CounterMetricFamily(f"{name}_hits", "Found in the cache.", value=cache.hits)
        yield CounterMetricFamily(f"{name}_misses", "Fetched from the store.", value=cache.misses)
        yield CounterMetricFamily(f"{name}_evictions", "Made room for others.", value=cache.evictions)
        yield GaugeMetricFamily(f"{name}_bytes", "Bytes in the cache.", value=cache.size_bytes)
    yield CounterMetricFamily(
        "tidewal_tier_damaged_reads",
        "Times that bytes or indexes were missing or not what was copied; they were fetched again.",
        value=reader.damaged,
    )
    yield CounterMetricFamily(
        "tidewal_tier_refused_reads",
        "Times that this was so again, and KAFKA_STORAGE_ERROR was answered.",
        value=reader.refused,
    )
    rebuilder = reads.rebuilder
    yield CounterMetricFamily(
        "tidewal_tier_lost_indexes",
        "Times that an index object was missing or damaged, also when it was asked for again.",
        value=rebuilder.lost,
    )
    yield CounterMetricFamily(
        "tidewal_tier_rebuilt_indexes",
        "Index objects whose content was made anew from the data of their copies.",
        value=rebuilder.rebuilt,
    )
    yield CounterMetricFamily(
        "tidewal_tier_failed_rebuilds",
        "Times that this could not be done, or not all of it.",
        value=rebuilder.failed,
    )
    yield CounterMetricFamily(
        "tidewal_tier_rebuild_read_bytes", "Bytes read from the store for this.", value=rebuilder.read_bytes
    )
    yield CounterMetricFamily(
        "tidewal_tier_unavailable_reads",
        "Times that the store did not answer or the metadata was behind.",
        value=reader.unavailable,
    )


def _metadata(tiering: Tiering) -> Iterator[Metric]:
    """What only the brokers' own manager of the metadata can tell."""
    from prometheus_client.core import GaugeMetricFamily

    metadata = tiering.metadata
    if not isinstance(metadata, TierMetadata):
        return
    name = "tidewal_tier_metadata"
    yield GaugeMetricFamily(
        f"{name}_topic_absent",
        "1 while the metadata topic is needed and cannot be made; nothing is copied.",
        value=metadata.is_without_topic,
    )
    yield GaugeMetricFamily(
        f"{name}_waiting_partitions",
        "Tiered partitions here whose metadata is not read up to its end; they copy and delete nothing.",
        value=metadata.waiting,
    )
    yield GaugeMetricFamily(
        f"{name}_reader_lag_seconds",
        "The longest time since metadata led elsewhere was read up to its end.",
        value=metadata.reader_lag_s,
    )
    yield GaugeMetricFamily(
        "tidewal_tier_sweep_left",
        "Partitions of deleted topics whose copies are not gone yet.",
        value=metadata.sweep.left,
    )


def _pressure(tiering: Tiering) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name, pressure = "tidewal_tier", tiering.pressure
    yield CounterMetricFamily(f"{name}_copied_segments", "Segments copied.", value=tiering.copier.copied)
    yield CounterMetricFamily(f"{name}_deleted_segments", "Copies deleted.", value=tiering.removal.deleted)
    yield CounterMetricFamily(
        f"{name}_dropped_bytes",
        "Bytes never copied that remote.log.pressure.policy=drop gave up.",
        value=pressure.dropped_bytes,
    )
    missing = GaugeMetricFamily(
        "tidewal_log_dir_missing_bytes",
        "Bytes a log directory has less than log.dir.min.free.bytes.",
        labels=["directory"],
    )
    for path, size in pressure.missing.items():
        missing.add_metric([path], size)
    yield missing
