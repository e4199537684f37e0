"""UpdateFeatures: which change of a feature's level is allowed, by Kafka's rules and in its words.

Owns: the command and its refusals. Does not own: names and ranges (feature_levels.py), the fold (image.py).
Invariant: all updates of a request happen, or none. A level goes down only if the request says so, and
metadata.version never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from broker.control.commands import Rules
from broker.control.feature_levels import METADATA_VERSION, ONLY_KAFKAS, SUPPORTED
from broker.control.image import Image
from broker.control.metadata_records import FeatureChanged, Record
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    level: int
    upgrade_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeatures:
    updates: Mapping[str, FeatureUpdate]
    """By the name of the feature."""
    validate_only: bool = False

    def decide(self, image: Image, rules: Rules) -> Decision[Record, None]:
        records: list[Record] = []
        for name, update in self.updates.items():
            problem = _problem(image, name, update)
            if problem is not None:
                raise KafkaError(
                    ErrorCode.invalid_update_version,
                    "The update failed for all features since the following feature had an error: " + problem,
                )
            if update.level != image.features.get(name, 0):
                records.append(FeatureChanged(name=name, level=update.level))
        return Decision(records=() if self.validate_only else tuple(records))


def _problem(image: Image, name: str, update: FeatureUpdate) -> str | None:
    """Return why a level cannot be had, or None."""
    level, upgrade_type = update
    current = image.features.get(name, 0)
    is_upgrade = upgrade_type == UpgradeType.UPGRADE
    invalid = f"Invalid update version {level} for feature {name}. "
    if upgrade_type not in list(UpgradeType):
        return invalid + "The controller does not support the given upgrade type."
    if level < 0:
        return invalid + "A feature version cannot be less than 0."
    reason = _unsupported(image, name, level)
    if reason is not None:
        return invalid + reason
    if level < current and is_upgrade:
        return (
            invalid
            + "Can't downgrade the version of this feature without setting the upgrade type to either "
            "safe or unsafe downgrade."
        )
    if level > current and not is_upgrade:
        return invalid + "Can't downgrade to a newer version."
    if name == METADATA_VERSION and level < current:
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if upgrade_type == UpgradeType.UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        return f"Unsupported metadata.version downgrade from {current} to {level}. {why}"
    return None


def _unsupported(image: Image, name: str, level: int) -> str | None:
    supported = SUPPORTED.get(name)
    if supported is None:
        if level > 0:
            return f"Local controller {image.controller_id} does not support this feature."
        return None if name in ONLY_KAFKAS else f"Feature {name} not found."
    if level not in supported:
        return (
            f"Local controller {image.controller_id} only supports versions "
            f"{supported.least}-{supported.most}"
        )
    return None
