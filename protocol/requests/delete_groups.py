"""DeleteGroups requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DeleteGroupsRequest(RequestStruct):
    __slots__ = ("groups_names",)

    def __init__(
        self,
        *,
        groups_names: tuple[str, ...] = (),
    ) -> None:
        self.groups_names: Final = groups_names
