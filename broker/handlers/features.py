"""UpdateFeatures in every version; which features there are, ApiVersions tells.

Owns: the request as a command, and the shape of its response. Does not own: the rules (control/features.py),
the commit (control/cluster.py), the list of features (api_versions.py). Invariant: a level is answered as
changed once its slot is won.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.control.cluster import Cluster
from broker.control.features import FeatureUpdate, UpdateFeatures
from broker.handlers.results import ROWS_AT_ONCE, decision_timeout_ms, rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode
from protocol.work import Work

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_TELLS_EACH_TO: Final = 1
"""The last version whose response has a row for each feature."""


class FeatureHandlers:
    def __init__(self, *, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {Api.UPDATE_FEATURES: self.update_features}

    async def update_features(self, ctx: Context, request: UpdateFeaturesRequest) -> Fields:
        """A feature that is named twice counts as it is named last; allow_downgrade of version 0 has no
        effect. Both is as in Kafka."""
        cluster = self._cluster
        updates = await cluster.turns.run(_updates(request))
        command = UpdateFeatures(updates=updates, validate_only=request.validate_only)
        await cluster.submit(command, timeout_ms=decision_timeout_ms(request.timeout, cluster.broker_config))
        told = request.feature_updates if ctx.api_version <= _TELLS_EACH_TO else ()
        results = await cluster.turns.run(rows(_updated, told))
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "error_message": None,
            "results": results,
        }


def _updates(request: UpdateFeaturesRequest) -> Work[dict[str, FeatureUpdate]]:
    updates: dict[str, FeatureUpdate] = {}
    for at, each in enumerate(request.feature_updates, 1):
        updates[each.feature] = FeatureUpdate(each.max_version_level, each.upgrade_type)
        if at % ROWS_AT_ONCE == 0:
            yield
    return updates


def _updated(each: FeatureUpdateKey) -> Fields:
    return {"feature": each.feature, "error_code": ErrorCode.none, "error_message": "NONE"}
