"""What a broker reports about the WAL tier: how long each stage of a record's way takes, what would be lost
with this machine, and what followers get from where.

Owns: names, labels and what is added up for them during a scrape. Does not own: the numbers (WalStats, the
tails of partitions). Invariant: all work happens during a scrape, in pieces between which the loop may turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broker.admin.histograms import buckets_of
from broker.admin.pieces import pieces
from protocol.errors import KafkaError
from remote.wal.stats import BOUNDS_S

if TYPE_CHECKING:
    from prometheus_client import Metric

    from broker.replicas.partition import Partition
    from broker.replicas.replica_manager import ReplicaManager
    from remote.wal.stats import WalStats
    from remote.wal.tail import Tail
    from storage.log import AbstractLog

LOOKED_AT_ONCE: Final = 40
"""Partitions in one piece: to find where the rest of one begins may mean to scan some batches, 20 µs."""
_WHOLE: Final = 1 << 62

_STAGES: Final = (
    ("wait", "From the first append of a slice to its cut."),
    ("copy", "From the cut to the moment the object counts: it and all before it are stored."),
    ("told", "From there to the answer that points a follower to a slice."),
    ("get", "One ranged read of a follower, from its pointer to the last byte."),
    ("append", "Checking and appending one slice at a follower."),
    ("report", "From the answer with a pointer to the Fetch that reports the slice's end."),
    ("cut_loop", "How long one turn of a cut held the loop."),
)
"""In the order of a record's way."""
_COUNTERS: Final = (
    ("objects", "Objects stored that count."),
    ("slices", "Slices in them."),
    ("stored_bytes", "Bytes of them."),
    ("moves", "Partitions stored once more, because what little is needed of them held back a stream."),
    ("void_objects", "Objects sent in vain, to a stream that had been sealed."),
    ("generations", "Streams opened after a seal."),
    ("mode_changes", "Partitions that began to be sent directly, or ended it."),
    ("pointed_bytes", "Bytes that followers were pointed to."),
    ("direct_bytes_out", "Bytes sent to followers of partitions that use the tier."),
    ("hydrated_slices", "Slices that were read from the store and appended."),
    ("hydrated_bytes", "Bytes of them."),
    ("hydration_failures", "Slices that were asked of the leader instead."),
    ("direct_bytes_in", "Bytes fetched from leaders for partitions that use the tier."),
    ("events", "Records written to the metadata topic."),
)
_GAUGES: Final = (
    ("events_waiting", "Records that wait to be written to the metadata topic."),
    ("unreferenced_bytes", "Bytes of objects that nothing needs and that are not deleted yet."),
    ("held_back_objects", "Objects that wait for the oldest of their stream that is needed, with those."),
)


class Risk:
    """What of the partitions of a topic that are led here is not stored."""

    def __init__(self) -> None:
        self.partitions = self.direct_partitions = 0
        self.unstored_bytes = 0
        self.unstored_seconds = 0.0

    def add(self, partition: Partition, tail: Tail, now: float) -> None:
        log = partition.log
        self.partitions += 1
        self.direct_partitions += tail.is_direct
        self.unstored_seconds = max(self.unstored_seconds, tail.unstored_s(log.log_end_offset, now))
        self.unstored_bytes += bytes_from(log, max(tail.stored_to, log.local_log_start_offset))


def bytes_from(log: AbstractLog, offset: int) -> int:
    """Return the bytes of all batches from that which holds `offset` on."""
    size, end = 0, log.log_end_offset
    while offset < end:
        found = log.read(offset, _WHOLE, bound=end, min_one=True)
        if found is None or found.next_offset <= offset:
            break
        size += found.size
        offset = found.next_offset
    return size


_TOPIC_GAUGES: Final[tuple[tuple[str, str, Callable[[Risk], float]], ...]] = (
    ("partitions", "Partitions led here that use the tier.", lambda risk: risk.partitions),
    (
        "direct_partitions",
        "Of these, partitions whose followers are sent what is not stored.",
        lambda risk: risk.direct_partitions,
    ),
    (
        "unstored_bytes",
        "Bytes that are on the disks of brokers alone.",
        lambda risk: risk.unstored_bytes,
    ),
    (
        "unstored_seconds",
        "For how long the oldest of these has waited; infinite when that is longer than is remembered.",
        lambda risk: risk.unstored_seconds,
    ),
)


def wal_families(replicas: ReplicaManager, stats: WalStats) -> Iterator[Metric]:
    yield from _stages(stats)
    yield from _counted(stats)
    yield from _risks(replicas)
    yield from _offsets(replicas, "stored_offset", "Up to where a log that is led here is stored.", _stored)
    yield from _offsets(replicas, "floor", "Below which nothing is needed from the store.", _floor)


def _stages(stats: WalStats) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for stage, text in _STAGES:
        times = getattr(stats, f"{stage}_s")
        family = HistogramMetricFamily(f"tidewal_wal_{stage}_seconds", text)
        family.add_metric([], buckets_of(BOUNDS_S, times.counts), times.sum_s)
        yield family


def _counted(stats: WalStats) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text in _COUNTERS:
        yield CounterMetricFamily(f"tidewal_wal_{name}", text, value=getattr(stats, name))
    for name, text in _GAUGES:
        yield GaugeMetricFamily(f"tidewal_wal_{name}", text, value=getattr(stats, name))


def _risks(replicas: ReplicaManager) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    risks: defaultdict[str, Risk] = defaultdict(Risk)
    first, text, _ = _TOPIC_GAUGES[0]
    using = [partition for partition in replicas.partitions() if partition.tail is not None]
    for rows in pieces(using, LOOKED_AT_ONCE):
        now = replicas.now()
        for partition in rows:
            if partition.tail is None or partition.offline:
                continue  # since the scrape began
            try:
                risks[partition.topic].add(partition, partition.tail, now)
            except KafkaError:
                continue  # its disk fails: the log says so
        yield GaugeMetricFamily(f"tidewal_wal_{first}", text, labels=["topic"])
    for name, text, value in _TOPIC_GAUGES:
        for topics in pieces(list(risks.items())):
            family = GaugeMetricFamily(f"tidewal_wal_{name}", text, labels=["topic"])
            for topic, risk in topics:
                family.add_metric([topic], value(risk))
            yield family


def _stored(tail: Tail) -> int:
    return tail.stored_to


def _floor(tail: Tail) -> int:
    return tail.floor


def _offsets(
    replicas: ReplicaManager, name: str, text: str, value: Callable[[Tail], int]
) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    tails = [
        ([partition.topic, str(partition.index)], value(partition.tail))
        for partition in replicas.partitions()
        if partition.tail is not None and value(partition.tail) >= 0
    ]
    for rows in pieces(tails):
        family = GaugeMetricFamily(
            f"tidewal_wal_{name}",
            text,
            labels=["topic", "partition"],
        )
        for labels, offset in rows:
            family.add_metric(labels, offset)
        yield family
