"""Owns opening a broker's logs as its next start would: on a disk that nobody is at work on.

Does not own what is then looked at (inspection.py) nor the second opinion that shares no code with the broker
(salvage.py).
Invariant: a start is never tried on the disk of a node, only on a copy of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from broker.config.broker import BrokerConfig
from broker.config.topics import log_config
from storage.log_manager import LogManager
from tests.sim.disk import Disk
from tests.sim.history import TopicPartition

TopicConfigs = Callable[[str], Mapping[str, str]]
"""What a topic was told, by its name."""


def told_nothing(topic: str) -> Mapping[str, str]:
    return {}


def open_logs(
    copy: Disk, config: BrokerConfig, differences: list[str], topic_configs: TopicConfigs = told_nothing
) -> LogManager:
    """A directory that fails is one of the `differences`."""
    logs = LogManager(
        files=copy.mount(),
        dirs=config.log_dirs,
        now_ms=copy.now_ms,
        random=random.Random(0),
        defaults=log_config(config, {}),
        on_dir_failure=lambda path, error: differences.append(f"{path} failed: {error}"),
    )
    logs.lock_and_open()
    logs.load(lambda topic: log_config(config, topic_configs(topic)))
    return logs


def recovered_ends(
    disk: Disk, config: BrokerConfig, topic_configs: TopicConfigs = told_nothing
) -> dict[TopicPartition, int]:
    """Where the logs would end, were the broker started on this disk now."""
    logs = open_logs(disk.clone(), config, [], topic_configs)
    return {tp: log.log_end_offset for tp, log in logs.logs.items()}
