"""Counters of the request path, and everything the broker tells about itself under the names Kafka exporters
use.

Owns: the numbers that no component keeps for itself, and the collection at scrape time. Does not own: serving
them (admin_http). Invariant: counting is an addition to a plain int; all other work happens when somebody
scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from protocol.apis import SERVED
from protocol.errors import error_code

if TYPE_CHECKING:
    from prometheus_client import Metric

    from broker.server import Components

_API_KEYS: Final = 128


class Metrics:
    def __init__(self) -> None:
        self.requests = [0] * _API_KEYS
        """By API key."""
        self.errors: Counter[int] = Counter()
        self.fetch_sessions_evicted = 0


def collect(components: Components) -> Iterator[Metric]:
    """Every family, computed now."""
    yield from _requests(components)
    yield from _topics(components)
    yield from _logs(components)
    yield from _replicas(components)
    yield from _sockets(components)
    yield from _controller(components)


def _requests(components: Components) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    requests = CounterMetricFamily(
        "kafka_network_requestmetrics_requests", "Requests by API.", labels=["request"]
    )
    for key, row in SERVED.items():
        requests.add_metric([row.name], components.metrics.requests[key])
    yield requests
    errors = CounterMetricFamily(
        "kafka_network_requestmetrics_errors", "Requests answered as a whole with an error.", labels=["error"]
    )
    for code, count in components.metrics.errors.items():
        errors.add_metric([error_code(code).name.upper()], count)
    yield errors


_TOPIC_FAMILIES: Final = (
    ("messagesin", "messages_in", "Records appended."),
    ("bytesin", "bytes_in", "Bytes of record batches appended."),
    ("bytesout", "bytes_out", "Bytes of record batches fetched by clients."),
    ("totalproducerequests", "produce", "Produce requests, by partition asked for."),
    ("failedproducerequests", "failed_produce", "Produce requests refused, by partition asked for."),
    ("totalfetchrequests", "fetch", "Fetch requests, by partition read."),
    ("failedfetchrequests", "failed_fetch", "Fetch requests refused, by partition asked for."),
)


def _topics(components: Components) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    stats = components.replicas.topic_stats
    for name, attribute, text in _TOPIC_FAMILIES:
        family = CounterMetricFamily(f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"])
        for topic, counted in stats.items():
            family.add_metric([topic], getattr(counted, attribute))
        yield family


def _logs(components: Components) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["topic", "partition"]
    size = GaugeMetricFamily("kafka_log_log_size", "Bytes of a log.", labels=labels)
    end = GaugeMetricFamily("kafka_log_log_logendoffset", "Log end offset.", labels=labels)
    start = GaugeMetricFamily("kafka_log_log_logstartoffset", "Log start offset.", labels=labels)
    segments = GaugeMetricFamily("kafka_log_log_numlogsegments", "Segments of a log.", labels=labels)
    high_watermark = GaugeMetricFamily(
        "kafka_cluster_partition_highwatermark", "High watermark.", labels=labels
    )
    for partition in components.replicas.partitions():
        values = [partition.topic, str(partition.index)]
        held = partition.log
        size.add_metric(values, held.size)
        end.add_metric(values, held.log_end_offset)
        start.add_metric(values, held.log_start_offset)
        segments.add_metric(values, held.statistics().segments)
        high_watermark.add_metric(values, held.high_watermark)
    yield from (size, end, start, segments, high_watermark)
    yield GaugeMetricFamily(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that failed.",
        value=len(components.logs.offline_dirs),
    )


def _replicas(components: Components) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    partitions = list(components.replicas.partitions())
    leaders = [partition for partition in partitions if partition.is_leader]
    name = "kafka_server_replicamanager"
    yield GaugeMetricFamily(f"{name}_partitioncount", "Partitions here.", value=len(partitions))
    yield GaugeMetricFamily(f"{name}_leadercount", "Partitions led here.", value=len(leaders))
    yield GaugeMetricFamily(
        f"{name}_underreplicatedpartitions",
        "Partitions led here with replicas out of sync.",
        value=sum(len(partition.isr) < len(partition.replicas) for partition in leaders),
    )
    yield GaugeMetricFamily(
        f"{name}_underminisrpartitioncount",
        "Partitions led here that refuse acks=all.",
        value=sum(not partition.acks_all_ok for partition in leaders),
    )
    yield GaugeMetricFamily(
        f"{name}_offlinereplicacount",
        "Replicas on failed directories.",
        value=components.replicas.offline_count,
    )
    sessions = components.fetch_sessions
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
    yield GaugeMetricFamily(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Requests that wait.",
        value=len(components.replicas.purgatory),
    )


def _sockets(components: Components) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    network = components.network
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


def _controller(components: Components) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    image = components.cluster.image
    name = "kafka_controller_kafkacontroller"
    is_controller = int(image.controller_id == components.config.node_id)
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    yield GaugeMetricFamily(f"{name}_activecontrollercount", "1 on the controller.", value=is_controller)
    yield GaugeMetricFamily(f"{name}_globaltopiccount", "Topics.", value=len(image.topics))
    yield GaugeMetricFamily(f"{name}_globalpartitioncount", "Partitions.", value=partitions)
    yield GaugeMetricFamily(
        f"{name}_activebrokercount", "Brokers that are not fenced.", value=len(image.live_brokers())
    )
