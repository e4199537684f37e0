"""FindCoordinator requests, versions 0 to 6.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class FindCoordinatorRequest(RequestStruct):
    __slots__ = ("coordinator_keys", "key", "key_type")

    def __init__(
        self,
        *,
        key: str = "",  # up to version 3
        key_type: int = 0,  # from version 1
        coordinator_keys: tuple[str, ...] = (),  # from version 4
    ) -> None:
        self.key: Final = key
        self.key_type: Final = key_type
        self.coordinator_keys: Final = coordinator_keys
