"""UpdateFeatures requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class FeatureUpdateKey(RequestStruct):
    __slots__ = ("allow_downgrade", "feature", "max_version_level", "upgrade_type")

    def __init__(
        self,
        *,
        feature: str,
        max_version_level: int,
        allow_downgrade: bool = False,  # version 0
        upgrade_type: int = 1,  # from version 1
    ) -> None:
        self.feature: Final = feature
        self.max_version_level: Final = max_version_level
        self.allow_downgrade: Final = allow_downgrade
        self.upgrade_type: Final = upgrade_type


class UpdateFeaturesRequest(RequestStruct):
    __slots__ = ("feature_updates", "timeout", "validate_only")

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(milliseconds=60000),
        feature_updates: tuple[FeatureUpdateKey, ...],
        validate_only: bool = False,  # from version 1
    ) -> None:
        self.timeout: Final = timeout
        self.feature_updates: Final = feature_updates
        self.validate_only: Final = validate_only
