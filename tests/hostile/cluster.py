"""Three brokers under attack, with stock producers beside it: what changes, and how long they wait.

Owns the cluster, its clients at rest and under attack, and the comparison. Does not own the attack (crowd).
Invariant: the same clients are measured at rest first, on the same cluster; every change counts that a broker
tells in its log or its metrics until the attack is over.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clusters import ClusterProcesses
from tests.compat.peers import Java, stable_port, until
from tests.hostile.crowd import Crowd
from tests.hostile.ground import pause
from tests.hostile.memory import peak_bytes, reset_peak, rss_bytes
from tests.hostile.probe import Seen
from tests.hostile.stock import RATE, RECORD_BYTES, StockProducer
from tests.processes import ROOT

REST_S: Final = 60.0
P99_TIMES_MAX: Final = 5.0
_BEHIND_S: Final = 150.0
"""How far behind its rate a producer may be at the end: its own patience is two minutes."""
_LOOK_S: Final = 10.0
_SETTLE_S: Final = 300.0
"""How long a broker may be busy with what it was sent, once the attack is over, before this gives up."""
_SAID: Final = {
    "fencings": re.compile(r"fencing brokers"),
    "elections of a controller": re.compile(r"starts an election"),
    "ISR changes": re.compile(r"ISR is now"),
}
"""What a broker says when it happens."""
_COUNTED: Final = {
    "ISR changes": re.compile(r"_isr(shrinks|expands)_total$"),
    "elections of leaders": re.compile(r"_leaderelections_total$"),
}
_SHARES: Final = re.compile(r"(\d+) ms 99th")
_SENT: Final = re.compile(r"(\d+) records sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What stock producers saw."""

    librdkafka: Seen
    java_p99_ms: float
    java_asked: int
    java_sent: int
    """What was acknowledged of the records it was asked to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    seconds: float
    rest: Clients
    attacked: Clients
    changes: Mapping[str, int]
    controllers: tuple[int, ...]
    """Before and after."""
    peak_mb: float
    """The greatest memory of a broker above rest."""
    outcomes: Mapping[str, int]

    @property
    def is_within(self) -> bool:
        java = (
            self.attacked.java_p99_ms <= P99_TIMES_MAX * self.rest.java_p99_ms
            and self.attacked.java_sent == self.attacked.java_asked
        )
        ours = p99_ms(self.attacked) <= P99_TIMES_MAX * p99_ms(self.rest)
        refused = self.attacked.librdkafka.refused or self.attacked.librdkafka.lost
        steady = not any(self.changes.values()) and len(set(self.controllers)) == 1
        return java and ours and steady and not refused

    def __str__(self) -> str:
        rest, attacked = self.rest, self.attacked
        lines = [
            f"{self.seconds:.0f} s under attack by {sum(self.outcomes.values())} requests",
            *(f"{name}: {number}" for name, number in self.changes.items()),
            f"controller: {' then '.join(map(str, dict.fromkeys(self.controllers)))}",
            f"librdkafka p99: {p99_ms(rest):.0f} ms at rest, {p99_ms(attacked):.0f} ms, "
            f"longest {attacked.librdkafka.longest_ms:.0f} ms; {attacked.librdkafka.answers} acknowledged, "
            f"{attacked.librdkafka.refused + attacked.librdkafka.lost} not",
            f"Java p99: {rest.java_p99_ms:.0f} ms at rest, {attacked.java_p99_ms:.0f} ms; "
            f"{attacked.java_sent} of {attacked.java_asked} acknowledged",
            f"greatest memory of a broker above rest: {self.peak_mb:.0f} MB",
            *(f"  {name}: {number}" for name, number in self.outcomes.items()),
        ]
        return "\n".join(lines)


def p99_ms(clients: Clients) -> float:
    return clients.librdkafka.quantile_ms(0.99)


def prove(*, minutes: float, rest_s: float = REST_S) -> Proof:
    java = Java(ROOT / ".peers" / "kafka")
    admins = {node_id: f"127.0.0.1:{stable_port()}" for node_id in (1, 2, 3)}
    arguments_of = {node_id: ("--admin", address) for node_id, address in admins.items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        ClusterProcesses(Path(folder), brokers=3, arguments_of=arguments_of) as cluster,
    ):
        topic = cluster.make_topic(3)
        with StockProducer(cluster.bootstrap, topic) as stock:
            warm(java, cluster, topic, stock)
            rest = measured(java, cluster, topic, stock, rest_s)
            pids = [cluster.life(node_id).pid for node_id in cluster.node_ids]
            memory = {pid: rss_bytes(pid) for pid in pids}
            for pid in pids:
                reset_peak(pid)
            before, controller = told(cluster, admins), cluster.controller()
            addresses = [cluster.address(controller)]
            addresses += [cluster.address(each) for each in cluster.node_ids if each != controller]
            with Crowd(addresses, topic) as crowd:
                attacked = measured(java, cluster, topic, stock, minutes * 60)
            after = told(cluster, admins)
            return Proof(
                seconds=minutes * 60,
                rest=rest,
                attacked=attacked,
                changes={name: after[name] - before[name] for name in (*_SAID, "elections of leaders")},
                controllers=(controller, cluster.controller()),
                peak_mb=max(peak_bytes(pid) - memory[pid] for pid in pids) / 1e6,
                outcomes=crowd.outcomes,
            )


def warm(java: Java, cluster: ClusterProcesses, topic: str, stock: StockProducer) -> None:
    measured(java, cluster, topic, stock, 5.0)


def measured(
    java: Java, cluster: ClusterProcesses, topic: str, stock: StockProducer, seconds: float
) -> Clients:
    stock.tell()
    records = int(RATE * seconds)
    process = java.start(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", str(RATE), "--command-property", "acks=all"),
    )
    pause(seconds)
    try:
        said, _ = process.communicate(timeout=_BEHIND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    last = said.strip().splitlines()[-1] if said.strip() else ""
    found, sent = _SHARES.search(last), _SENT.search(last)
    return Clients(
        librdkafka=stock.tell(),
        java_p99_ms=float(found[1]) if found else float("inf"),
        java_asked=records,
        java_sent=int(sent[1]) if sent else 0,
    )


def told(cluster: ClusterProcesses, admins: Mapping[int, str]) -> Counter[str]:
    """How often each kind of change has happened so far, by the logs and metrics of all brokers."""
    logged: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for node_id in cluster.node_ids:
        text = cluster.life(node_id).stderr
        for name, pattern in _SAID.items():
            logged[name] += len(pattern.findall(text))
        samples = until(
            lambda address=admins[node_id]: samples_of(address),  # type: ignore[misc]
            f"metrics of broker {node_id}",
            timeout_s=_SETTLE_S,
        )
        for name, pattern in _COUNTED.items():
            counted[name] += sum(int(float(value)) for sample, value in samples if pattern.search(sample))
    return logged | counted


def samples_of(address: str) -> list[tuple[str, str]]:
    """(name and labels, value) of each sample; none when there is no answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_LOOK_S) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return []
    return [(name, value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")]
