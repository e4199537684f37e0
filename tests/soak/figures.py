"""What a broker says of itself on its admin page, at one moment.

Owns the names that are read there and what counts as held: everything that must be gone when every client
has left and every topic and group was deleted. Does not own the load, nor any judgement over time.
"""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

SCRAPE_S_MAX = 30.0

_PURGATORY = "kafka_server_delayedoperationpurgatory"
_GROUPS = "kafka_coordinator_group_groupmetadatamanager"
_SESSIONS = "kafka_server_fetchsessioncache"
HELD = {
    "tasks": "asyncio_tasks",
    "open files": "process_open_fds",
    "threads": "process_threads",
    "connections": "kafka_server_socketservermetrics_connection_count",
    "bytes queued": "kafka_server_socketservermetrics_memorypoolused",
    "fetch sessions": f"{_SESSIONS}_numincrementalfetchsessions",
    "partitions in fetch sessions": f"{_SESSIONS}_numincrementalfetchpartitionscached",
    "waiting requests": f"{_PURGATORY}_purgatorysize",
    "waits at partitions": f"{_PURGATORY}_watched",
    "waiting group requests": "kafka_server_group_coordinator_metrics_waiting",
    "groups": f"{_GROUPS}_numgroups",
    "members": f"{_GROUPS}_nummembers",
    "offsets": f"{_GROUPS}_numoffsets",
    "topics": "kafka_controller_kafkacontroller_globaltopiccount",
    "partitions": "kafka_server_replicamanager_partitioncount",
    "producer ids": "kafka_server_replicamanager_produceridcount",
    "logs to be deleted": "kafka_log_logmanager_logstobedeleted",
    "topics counted": "kafka_server_brokertopicmetrics_messagesin_total",
}
RESIDENT, BLOCKS = "process_resident_memory_bytes", "python_allocated_blocks"
REQUESTS = "kafka_network_requestmetrics_requests_total"


@dataclass(frozen=True, slots=True)
class Figures:
    held: dict[str, int]
    resident_bytes: int
    blocks: int
    requests: int


def scrape(admin: str) -> Figures:
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=SCRAPE_S_MAX) as answer:
        return read(answer.read().decode())


def read(text: str) -> Figures:
    """Samples of one name are added up, but for those by topic, which are counted."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
            counts[sample.name] = counts.get(sample.name, 0) + 1
    held = {title: int(sums.get(name, 0)) for title, name in HELD.items()}
    held["topics counted"] = counts.get(HELD["topics counted"], 0)
    return Figures(
        held=held,
        resident_bytes=int(sums[RESIDENT]),
        blocks=int(sums[BLOCKS]),
        requests=int(sums[REQUESTS]),
    )
