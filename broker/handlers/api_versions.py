"""ApiVersions: what this broker speaks.

Owns: the answer to a client's first question. Does not own: which versions are served (protocol/apis.py),
which features there are (control/feature_levels.py) and which levels they have (`Image.features`), the answer
to a version that is not served (dispatch.py). Invariant: a name that could not be a client's is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.control.cluster import Cluster
from broker.control.feature_levels import SUPPORTED
from protocol.apis import SERVED, Api
from protocol.codec import Fields
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.api_versions import ApiVersionsRequest


_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_NAMES_SOFTWARE_FROM: Final = 3
_FROM_LEVEL_0: Final = 4
"""Clients of earlier versions cannot read the range of a feature that begins at 0."""


class ApiVersionsHandler:
    def __init__(self, *, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {Api.API_VERSIONS: self.api_versions}

    def api_versions(self, ctx: Context, request: ApiVersionsRequest) -> Fields:
        if ctx.api_version >= _NAMES_SOFTWARE_FROM and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return {"error_code": ErrorCode.invalid_request, "api_keys": [], "throttle_time": 0}
        image = self._cluster.image
        return {
            "error_code": ErrorCode.none,
            "api_keys": [
                {"api_key": key, "min_version": row.min_version, "max_version": row.max_version}
                for key, row in sorted(SERVED.items())
            ],
            "throttle_time": 0,
            "supported_features": [
                {"name": name, "min_version": levels.least, "max_version": levels.most}
                for name, levels in SUPPORTED.items()
                if levels.least > 0 or ctx.api_version >= _FROM_LEVEL_0
            ],
            "finalized_features_epoch": image.seq,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in image.features.items()
                if level > 0 and name in SUPPORTED
            ],
        }
