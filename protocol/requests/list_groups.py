"""ListGroups requests, versions 0 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class ListGroupsRequest(RequestStruct):
    __slots__ = ("states_filter", "types_filter")

    def __init__(
        self,
        *,
        states_filter: tuple[str, ...] = (),  # from version 4
        types_filter: tuple[str, ...] = (),  # version 5
    ) -> None:
        self.states_filter: Final = states_filter
        self.types_filter: Final = types_filter
