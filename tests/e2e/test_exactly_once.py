"""Consume, transform, produce in transactions, while copiers and brokers are killed with -9: whoever reads
what is committed finds every record once and in order, at the end and at every moment before.

`TIDEWAL_TEST_BOOTSTRAP=kafka` asks the same of one node of Apache Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.clusters import ClusterProcesses
from tests.compat.peers import ApacheKafka, Java
from tests.e2e.copying import Copying, KafkaSite, Plan, Site, settings_for
from tests.e2e.tiered import FACTOR, QUICK, TIERED

BROKERS = pytest.mark.parametrize("brokers", [1, 3], ids=["one", "three"])
SHORT = Plan(records=3000, copiers=2, batch=50, faults=("broker", "copier", "broker"))
RECORDS, KILLS, BATCH = 100_000, 40, 50
KAFKAS_TRANSACTION_MS = 120_000
"""Longer than Apache Kafka takes to come back. A transaction whose time is over while it starts is noted as
aborted though partitions which it does not know yet never get the marker ("likely deleted already"): their
records are committed with the next transaction of the producer, which sends them once more."""
KINDS = ("broker", "broker", "broker", "brokers", "brokers", "copier", "copier", "copier", "copier", "zombie")
SHORT_SESSION = {"broker.session.timeout.ms": "3000"}
TIERS: Mapping[str, Mapping[str, str]] = {
    "cold": {**TIERED, "internal.segment.bytes": "65536"},
    "wal": {"remote.wal.storage.enable": "true"},
    "both": {
        **TIERED,
        "internal.segment.bytes": "65536",
        "remote.wal.storage.enable": "true",
    },
}


@contextmanager
def site_of(
    brokers: int, folder: Path, request: pytest.FixtureRequest, settings: Mapping[str, str] | None = None
) -> Iterator[Site]:
    wanted = {**settings_for(brokers), **(settings or {})}
    if os.environ.get("TIDEWAL_TEST_BOOTSTRAP") == "kafka":
        if brokers > 1 or settings:
            pytest.skip("Apache Kafka is one node without tiers here")
        java: Java = Java(request.getfixturevalue("kafka_home"))
        with ApacheKafka(folder / "kafka", java, settings=wanted) as kafka:
            yield KafkaSite(kafka.start())
        return
    with ClusterProcesses(
        folder / "brokers", brokers=brokers, settings={**SHORT_SESSION, **wanted}
    ) as cluster:
        yield cluster


def whole(seed: int) -> Plan:
    faults = tuple(Random(seed).choices(KINDS, k=KILLS))
    return Plan(records=RECORDS, copiers=3, batch=BATCH, faults=faults)


def prove(site: Site, plan: Plan, seed: int) -> None:
    if isinstance(site, KafkaSite):
        plan = replace(plan, transaction_ms=KAFKAS_TRANSACTION_MS)
    copying = Copying(site, plan, seed)
    try:
        copying.run()
    finally:
        lives = [copier.lives for copier in copying.copiers]
        print(f"seed {seed}: {plan.records} records, lives {lives}, {copying.told}")  # noqa: T201


@pytest.mark.parametrize(
    ("brokers", "protocol"),
    [
        pytest.param(1, "classic", id="one"),
        pytest.param(3, "classic", id="three"),
        pytest.param(1, "consumer", id="one, assigned by the broker"),
    ],
)
def test_every_record_is_copied_once(
    brokers: int, protocol: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with site_of(brokers, tmp_path, request) as site:
        prove(site, replace(SHORT, protocol=protocol), seed=brokers)


@BROKERS
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.chaos
def test_every_record_of_100_000_is_copied_once(
    brokers: int, protocol: str, chaos_seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with site_of(brokers, tmp_path, request) as site:
        prove(site, replace(whole(chaos_seed), protocol=protocol), chaos_seed)


def with_tiers(brokers: int) -> dict[str, str]:
    copies = {FACTOR: str(min(brokers, 3)), "rlmm.config.remote.log.metadata.topic.min.isr": "1"}
    return {**QUICK, **copies, "remote.wal.log.manager.combiner.task.interval.ms": "50"}


@pytest.mark.requirement("X-7")
def test_every_record_is_copied_once_to_both_tiers(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with site_of(3, tmp_path, request, with_tiers(3)) as site:
        prove(site, replace(SHORT, config=TIERS["both"]), seed=5)


@pytest.mark.parametrize(("tier", "brokers"), [("cold", 1), ("cold", 3), ("wal", 3), ("both", 3)])
@pytest.mark.chaos
def test_every_record_of_100_000_is_copied_once_to_a_tier(
    brokers: int, tier: str, chaos_seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with site_of(brokers, tmp_path, request, with_tiers(brokers)) as site:
        prove(site, replace(whole(chaos_seed), config=TIERS[tier]), chaos_seed)
