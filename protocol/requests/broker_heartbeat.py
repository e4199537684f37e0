"""BrokerHeartbeat requests, version 1.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class BrokerHeartbeatRequest(RequestStruct):
    __slots__ = (
        "broker_epoch",
        "broker_id",
        "current_metadata_offset",
        "offline_log_dirs",
        "want_fence",
        "want_shut_down",
    )

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: int = -1,
        current_metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool,
        offline_log_dirs: tuple[UUID, ...] = (),
    ) -> None:
        self.broker_id: Final = broker_id
        self.broker_epoch: Final = broker_epoch
        self.current_metadata_offset: Final = current_metadata_offset
        self.want_fence: Final = want_fence
        self.want_shut_down: Final = want_shut_down
        self.offline_log_dirs: Final = offline_log_dirs
