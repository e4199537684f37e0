"""`tidewal broker`: from options and a properties file to a running broker.

Owns which option stands for which property and what wins. Does not own help and complaints about options:
those are typer's (tools.commands), which costs 0.08 s to load, so a plain command line is read here without
it and anything else is left to typer.
Invariant: `read_plainly` takes no command line that typer would refuse or read differently.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tools.console import Failure, check_address, read_pairs

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig

LISTEN = "127.0.0.1:9092"
DATA = ".tidewal"


@dataclass(slots=True, kw_only=True)
class BrokerOptions:
    config: Path | None = None
    node_id: int | None = None
    listen: str | None = None
    data: Path | None = None
    store: str | None = None
    admin: str | None = None
    settings: list[str] = field(default_factory=list)


def read_plainly(arguments: list[str]) -> BrokerOptions | None:
    """Return the options, if each is spelt out with its value; None for help, mistakes and abbreviations."""
    options = BrokerOptions()
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not equals:
            value = next(rest, "-")
        if not value or value.startswith("-"):
            return None
        match name:
            case "--config":
                options.config = Path(value)
            case "--node-id" if value.isascii() and value.isdigit() and len(value) <= 10:
                options.node_id = int(value)
            case "--listen":
                options.listen = value
            case "--data":
                options.data = Path(value)
            case "--store":
                options.store = value
            case "--admin":
                options.admin = value
            case "--set":
                options.settings.append(value)
            case _:
                return None
    return options


def run_broker(options: BrokerOptions) -> None:
    """Run the broker until a signal."""
    config = read_config(options)
    from broker import process
    from broker.config.values import ConfigError
    from broker.control.directories import StartupError

    try:
        process.run(config, options.store, options.admin, print_ready)
    except (ConfigError, StartupError) as error:
        raise Failure(str(error)) from None


def read_config(options: BrokerOptions) -> BrokerConfig:
    """Return what the options and the file say together; Failure when they cannot be meant."""
    from broker.config.broker import from_properties
    from broker.config.properties import parse_properties
    from broker.config.values import ConfigError

    try:
        properties = parse_properties(_text_of(options.config)) if options.config is not None else {}
        _apply(options, properties)
        properties.update(read_pairs(options.settings, "--set"))
        if options.admin is not None:
            check_address(options.admin, "--admin", port_min=0)
        return from_properties(
            properties, standalone=options.store is None, plain_s3=_is_plain_s3(options.store)
        )
    except ConfigError as error:
        raise Failure(str(error)) from None


def _is_plain_s3(url: str | None) -> bool:
    if url is None or not url.startswith("s3:"):
        return False
    from remote.store.location import BadStoreUrl, S3Location, parse_store_url

    try:
        location = parse_store_url(url, os.environ)
    except BadStoreUrl:
        return False  # refused with one line when the store is opened
    return isinstance(location, S3Location) and location.is_plain_s3


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise Failure(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Failure(f"--config {path}: not a text file") from None


def _apply(options: BrokerOptions, properties: dict[str, str]) -> None:
    """Put the options over the file; our defaults fill in only what it leaves open."""
    if options.node_id is not None:
        properties["node.id"] = str(options.node_id)
        properties.pop("broker.id", None)
    elif "broker.id" not in properties:
        properties.setdefault("node.id", "1")
    if options.listen is not None:
        address = check_address(options.listen, "--listen", port_min=0)
        properties["listeners"] = f"PLAINTEXT://{address}"
        properties.pop("advertised.listeners", None)
    else:
        properties.setdefault("listeners", f"PLAINTEXT://{LISTEN}")
    if options.data is not None:
        properties["log.dirs"] = str(options.data)
        properties.pop("log.dir", None)
    elif "log.dir" not in properties:
        properties.setdefault("log.dirs", DATA)


def print_ready(line: str) -> None:
    sys.stdout.write(line.rstrip("\n") + "\n")
    sys.stdout.flush()
