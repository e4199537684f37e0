"""BrokerRegistration requests, version 4.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class Feature(RequestStruct):
    __slots__ = ("max_supported_version", "min_supported_version", "name")

    def __init__(
        self,
        *,
        name: str,
        min_supported_version: int,
        max_supported_version: int,
    ) -> None:
        self.name: Final = name
        self.min_supported_version: Final = min_supported_version
        self.max_supported_version: Final = max_supported_version


class Listener(RequestStruct):
    __slots__ = ("host", "name", "port", "security_protocol")

    def __init__(
        self,
        *,
        name: str,
        host: str,
        port: int,
        security_protocol: int,
    ) -> None:
        self.name: Final = name
        self.host: Final = host
        self.port: Final = port
        self.security_protocol: Final = security_protocol


class BrokerRegistrationRequest(RequestStruct):
    __slots__ = (
        "broker_id",
        "cluster_id",
        "features",
        "incarnation_id",
        "is_migrating_zk_broker",
        "listeners",
        "log_dirs",
        "previous_broker_epoch",
        "rack",
    )

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        incarnation_id: UUID | None,
        listeners: tuple[Listener, ...],
        features: tuple[Feature, ...],
        rack: str | None,
        is_migrating_zk_broker: bool = False,
        log_dirs: tuple[UUID, ...] = (),
        previous_broker_epoch: int = -1,
    ) -> None:
        self.broker_id: Final = broker_id
        self.cluster_id: Final = cluster_id
        self.incarnation_id: Final = incarnation_id
        self.listeners: Final = listeners
        self.features: Final = features
        self.rack: Final = rack
        self.is_migrating_zk_broker: Final = is_migrating_zk_broker
        self.log_dirs: Final = log_dirs
        self.previous_broker_epoch: Final = previous_broker_epoch
