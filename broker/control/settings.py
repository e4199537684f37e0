"""The configuration this broker goes by now: its own file, and what the image changes of it.

Owns: the typed views of dynamic broker settings and of each topic's log settings, and the rules by which the
controller decides. Does not own: names, types and values (config/), changing them (config_changes.py).
Invariant: a value that cannot be read leaves the last good view in force.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence, Set
from typing import Final

from broker.config.broker import BrokerConfig
from broker.config.groups import EFFECTIVE_GROUP
from broker.config.tables import HIDDEN_TOPIC
from broker.config.tiering import copy_lag_warning
from broker.config.topics import LOG_FIELDS, log_config
from broker.config.values import ConfigError, ResourceType, shown
from broker.control.commands import Rules
from broker.control.directories import new_id
from broker.control.feature_levels import GROUP_VERSION
from broker.control.image import Delta, Image
from storage.policy import LogConfig

logger = logging.getLogger(__name__)

TOLD_AT_ONCE: Final = 20
"""A change may concern a hundred thousand topics, and a line takes as long as ten of them."""
_OF_TOPICS = LOG_FIELDS.keys() | HIDDEN_TOPIC.keys()


class Settings:
    def __init__(self, config: BrokerConfig, image: Image, rng: random.Random) -> None:
        self.broker_config = config
        self._file = config
        self._image = image
        self._random = rng
        self._log_configs: dict[str, LogConfig] = {}

    def __repr__(self) -> str:
        return f"Settings(node={self._file.node_id}, {len(self._log_configs)} topics)"

    @property
    def log_configs(self) -> Mapping[str, LogConfig]:
        """The log settings at hand, by topic."""
        return self._log_configs

    def log_config(self, topic: str) -> LogConfig:
        """The settings a topic's logs go by now."""
        found = self._log_configs.get(topic)
        if found is None:
            overrides = self._image.config(ResourceType.TOPIC, topic)
            found = self._log_configs[topic] = log_config(self.broker_config, overrides)
        return found

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether members may join groups that the broker assigns (KIP-848), by this broker's settings and by
        the feature of the cluster."""
        served = self.broker_config.group_coordinator_rebalance_protocols
        return "consumer" in served and self._image.features[GROUP_VERSION] > 0

    def rules(self) -> Rules:
        return Rules(
            config=self.broker_config,
            new_id=lambda: new_id(self._random),
            pick=self._random.randrange,
        )

    def follow(self, delta: Delta) -> None:
        """Bring the views up to date with a change of the image."""
        for topic in (*delta.topics_deleted, *delta.topics_created.values()):
            self._log_configs.pop(topic.name, None)
        warnings: list[str] = []
        for resource, name in delta.configs_changed:
            if resource is ResourceType.TOPIC:
                self._log_configs.pop(name, None)
                warnings += self._warnings_of_lag(name)
                names = self._image.config(resource, name).keys() - _OF_TOPICS
                warnings += _ignored(f"topic {name}", names)
            elif resource is ResourceType.GROUP:
                names = self._image.config(resource, name).keys() - EFFECTIVE_GROUP
                warnings += _ignored(f"group {name}", names)
        _tell(warnings)
        if any(resource is ResourceType.BROKER for resource, _ in delta.configs_changed):
            self.load()

    def _warnings_of_lag(self, topic: str) -> list[str]:
        if any(name.startswith("remote.copy.lag.") for name in self._image.config(ResourceType.TOPIC, topic)):
            config = self.log_config(topic)
            warning = copy_lag_warning(config, "") if config.remote_storage_enable else None
            if warning is not None:
                return [f"topic {topic}: {warning}"]
        return []

    def load(self) -> None:
        """Take the broker settings from the image as it is."""
        before, ignored = self.broker_config.warnings, self.broker_config.ignored
        try:
            self.broker_config = self._file.with_dynamic(
                default=self._image.config(ResourceType.BROKER, ""),
                broker=self._image.config(ResourceType.BROKER, str(self._file.node_id)),
            )
        except ConfigError as error:
            # Committed by a release that allowed it.
            logger.error("kept the last broker configuration, the committed one is not valid: %s", error)
            return
        warnings = [warning for warning in self.broker_config.warnings if warning not in before]
        _tell(warnings + _ignored("this broker", set(self.broker_config.ignored).difference(ignored)))
        self._log_configs.clear()


def _ignored(whose: str, names: Set[str]) -> list[str]:
    return [f"{whose}: accepted without effect: {shown(', '.join(sorted(names)))}"] if names else []


def _tell(warnings: Sequence[str]) -> None:
    """Log the first of what one change brought, and how many there were."""
    for warning in warnings[:TOLD_AT_ONCE]:
        logger.warning("%s", warning)
    if len(warnings) > TOLD_AT_ONCE:
        logger.warning("%d more like these came with the same change", len(warnings) - TOLD_AT_ONCE)
