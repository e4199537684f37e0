"""The look at a dead broker's files is checked: it finds what recovery forgot, and not what it may forget."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from broker.config.broker import from_properties
from protocol import records
from storage.log_manager import LogManager
from storage.policy import LogConfig
from tests.sim.disk import Disk
from tests.sim.inspection import inspect

TP = ("t", 0)
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
FORGOTTEN, KNOWN = 5, 6


def disk_whose_producer_is_forgotten() -> Disk:
    disk = Disk(random.Random(0), lambda: NOW_MS)
    files = disk.mount()
    files.makedirs("/data")
    logs = LogManager(
        files=files,
        dirs=["/data"],
        now_ms=lambda: NOW_MS,
        random=random.Random(1),
        defaults=LogConfig(),
        on_dir_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
    )
    logs.lock_and_open()
    logs.load()
    log = logs.create("t", UUID(int=7), 0, LogConfig())
    for producer_id in (FORGOTTEN, KNOWN):
        batch = records.build_batch(
            [(None, b"value", (), NOW_MS)], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        log.append_records(batch, leader_epoch=1, now_ms=NOW_MS, origin="client")
    del log.producer_table._unpacked[FORGOTTEN]
    logs.close(clean=True)
    return disk


@pytest.mark.parametrize(
    ("latest_ms", "is_found"), [(NOW_MS, True), (NOW_MS + DAY_MS, True), (NOW_MS + DAY_MS + 1, False)]
)
def test_a_producer_is_owed_until_the_clock_has_shown_that_it_expired(latest_ms: int, is_found: bool) -> None:
    config = from_properties({"node.id": "1", "log.dirs": "/data", "listeners": "PLAINTEXT://:9092"})
    disk = disk_whose_producer_is_forgotten()
    _, recovery = inspect(disk, config, [TP], latest_ms=latest_ms)
    assert any(f"producer {FORGOTTEN}: the log says" in what for what in recovery.differences) == is_found
    assert not any(f"producer {KNOWN}:" in what for what in recovery.differences)
