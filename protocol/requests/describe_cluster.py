"""DescribeCluster requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DescribeClusterRequest(RequestStruct):
    __slots__ = (
        "endpoint_type",
        "include_cluster_authorized_operations",
        "include_fenced_brokers",
    )

    def __init__(
        self,
        *,
        include_cluster_authorized_operations: bool,
        endpoint_type: int = 1,  # from version 1
        include_fenced_brokers: bool = False,  # version 2
    ) -> None:
        self.include_cluster_authorized_operations: Final = include_cluster_authorized_operations
        self.endpoint_type: Final = endpoint_type
        self.include_fenced_brokers: Final = include_fenced_brokers
