"""The settings that a live broker described, and the settings made for a test."""

from __future__ import annotations

from pathlib import Path

import broker
from broker.config.broker import BrokerConfig, from_properties

ROOT = Path(broker.__file__).parent.parent

DATA = Path(broker.__file__).parent / "config" / "data"


def table(name: str) -> list[list[str]]:
    lines = (DATA / f"{name}-configs.tsv").read_text().splitlines()[1:]
    return [line.split("\t") for line in lines]


def made(**properties: str) -> BrokerConfig:
    return from_properties({name.replace("_", "."): value for name, value in properties.items()})


def described_server() -> BrokerConfig:
    """The settings of the server whose description the tables are."""
    static = {row[0]: row[2] for row in table("broker") if row[3] == "static"}
    static["listeners"] = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    cluster = {row[0]: row[2] for row in table("broker") if row[3] == "cluster-dynamic"}
    return from_properties(static).with_dynamic(default=cluster, broker={})
