"""`tidewal broker`: from options, the environment and a properties file to a running broker.

Owns which option stands for which property and what wins. Does not own what a variable of the environment
means (tools.environment), nor help and complaints about options:
those are typer's (tools.commands), which costs 0.08 s to load, so a plain command line is read here without
it and anything else is left to typer.
Invariant: `read_plainly` takes no command line that typer would refuse or read differently.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tools.console import Failure, check_address, complain, read_pairs
from tools.plain_options import spelt_out

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig
    from tools.environment import Environment

FILE_BYTES_MAX = 1 << 20
"""Of a file with settings, or with the value of one."""
LISTEN = "127.0.0.1:9092"
DATA = ".tidewal"
READY_AS_KAFKA = (
    "in the words of Kafka's log, for what waits for them: Kafka Server started, "
    "[KafkaServer id={node}] started, Transitioning from RECOVERY to RUNNING"
)
"""Testcontainers and scripts written for Kafka's images take a broker for ready by one of these."""
EXIT_WITH_STDIN = "--exit-with-stdin"
STDIN = 0


@dataclass(slots=True, kw_only=True)
class BrokerOptions:
    config: Path | None = None
    node_id: int | None = None
    listen: str | None = None
    data: Path | None = None
    store: str | None = None
    admin: str | None = None
    from_env: bool = False
    settings: list[str] = field(default_factory=list)
    exit_with_stdin: bool = False


def read_plainly(arguments: list[str]) -> BrokerOptions | None:
    """Return the options, if each is spelt out with its value; None for help, mistakes and abbreviations."""
    given = spelt_out(arguments, flags=("--from-env", EXIT_WITH_STDIN))
    if given is None:
        return None
    options = BrokerOptions()
    for name, value in given:
        match name:
            case "--from-env":
                options.from_env = True
            case _ if name == EXIT_WITH_STDIN:
                options.exit_with_stdin = True
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
    """Run the broker until a signal, or until the end of standard input."""
    environment = from_environment(os.environ) if options.from_env else None
    config = read_config(options, environment, tell=complain)
    end = check_end(options.exit_with_stdin)
    from broker import process
    from broker.config.values import ConfigError
    from broker.control.directories import StartupError

    if environment is not None:
        options = settled(options, environment)

    def announce(line: str) -> None:
        print_ready(line)
        if environment is not None:
            print_ready(READY_AS_KAFKA.format(node=config.node_id))

    try:
        process.run(
            config,
            options.store,
            options.admin,
            announce,
            ignored=() if environment is None else environment.ignored,
            end=end,
        )
    except (ConfigError, StartupError) as error:
        raise Failure(str(error)) from None


def from_environment(environ: MutableMapping[str, str]) -> Environment:
    """Read the variables, and put the credentials that are in files where the store's client looks for them;
    Failure for a variable that cannot be meant."""
    from broker.config.values import ConfigError
    from tools.environment import read_environment

    try:
        environment = read_environment(environ, _read_text)
    except ConfigError as error:
        raise Failure(str(error)) from None
    environ.update(environment.credentials)
    return environment


def settled(options: BrokerOptions, environment: Environment) -> BrokerOptions:
    """Return the options with what the environment says where they are silent. Those which stand for a
    property are left: what wins there depends on more."""
    said = environment.options
    config = said.get("config")
    return replace(
        options,
        config=options.config or (None if config is None else Path(config)),
        store=options.store or said.get("store"),
        admin=options.admin or said.get("admin"),
    )


def check_end(exit_with_stdin: bool) -> int | None:
    """Return the descriptor whose end is the end of the process; Failure when it is none that lasts."""
    if not exit_with_stdin:
        return None
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:
        mode = 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(STDIN)):
        why = "standard input is no pipe; whatever starts this keeps one open for as long as it is to run"
        raise Failure(f"{EXIT_WITH_STDIN}: {why}", exit_code=2)
    return STDIN


def read_config(
    options: BrokerOptions,
    environment: Environment | None = None,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> BrokerConfig:
    """Return what options, environment and file say together; Failure when they cannot be meant. What may be
    meant, and is likely a mistake, is a line for `tell`."""
    from broker.config.broker import from_properties
    from broker.config.properties import contradictions, parse_properties
    from broker.config.values import ConfigError, shown
    from tools.environment import check_alone, check_names, fill_listeners, over

    if environment is not None:
        options = settled(options, environment)
    try:
        properties: dict[str, str] = {}
        if options.config is not None:
            named = f"{_spelt('config', environment, str(options.config))} {options.config}"
            text = _text_of(options.config, named)
            properties = parse_properties(text)
            for name in contradictions(text):
                tell(f"{named}: sets {shown(name)} more than once, and the last value counts: leave one")
        if environment is not None:
            properties = over(properties, environment.kafkas)
            _apply(_options_in(environment), properties, "TIDEWAL_")
            properties = over(properties, environment.ours)
            check_names(environment, properties)
        _apply(options, properties)
        properties = over(properties, read_pairs(options.settings, "--set"))
        if options.admin is not None:
            check_address(options.admin, _spelt("admin", environment, options.admin), port_min=0)
        if environment is not None:
            _check_store(environment)
            fill_listeners(properties, has_store=options.store is not None)
            if options.store is None:
                check_alone(environment, properties)
        _fill(properties)
        return from_properties(
            properties, standalone=options.store is None, plain_s3=_is_plain_s3(options.store)
        )
    except ConfigError as error:
        raise Failure(str(error)) from None


def _spelt(name: str, environment: Environment | None, value: str) -> str:
    """Return the name of an option, as a variable if that is where its value is from."""
    from_variable = environment is not None and environment.options.get(name) == value
    return f"TIDEWAL_{name.upper()}" if from_variable else f"--{name}"


def _check_store(environment: Environment) -> None:
    """Failure, by the name of the variable, for a store that cannot be one."""
    from remote.store.location import BadStoreUrl, parse_store_url

    url = environment.options.get("store")
    try:
        if url is not None:
            parse_store_url(url, os.environ)
    except BadStoreUrl as error:
        raise Failure(f"TIDEWAL_STORE {error}") from None


def _options_in(environment: Environment) -> BrokerOptions:
    said = environment.options
    node_id, data = said.get("node_id"), said.get("data")
    if node_id is not None and not (node_id.isascii() and node_id.isdigit() and len(node_id) <= 10):
        raise Failure(f"TIDEWAL_NODE_ID {node_id}: not a number")
    return BrokerOptions(
        node_id=None if node_id is None else int(node_id),
        listen=said.get("listen"),
        data=None if data is None else Path(data),
    )


def _is_plain_s3(url: str | None) -> bool:
    if url is None or not url.startswith("s3:"):
        return False
    from remote.store.location import BadStoreUrl, S3Location, parse_store_url

    try:
        location = parse_store_url(url, os.environ)
    except BadStoreUrl:
        return False  # refused with one line when the store is opened
    return isinstance(location, S3Location) and location.is_plain_s3


def _text_of(path: Path, named: str) -> str:
    from broker.config.values import ConfigError

    try:
        return _read_text(str(path))
    except ConfigError as error:
        raise Failure(f"{named}: {error}") from None


def _read_text(path: str) -> str:
    """Return the text of a file; ConfigError, without its name, for one that cannot be read."""
    from broker.config.values import ConfigError

    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"larger than {FILE_BYTES_MAX} bytes, which no file of settings is")
        # some editors begin a file with a byte order mark
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not a text in UTF-8, as its byte {error.start} tells: save it as UTF-8") from None
    except ValueError:
        raise ConfigError("no file has such a name") from None
    if "\0" in text:
        raise ConfigError("not a text file: it has NUL bytes")
    return text


def _apply(options: BrokerOptions, properties: dict[str, str], spelt: str = "--") -> None:
    """Put the options over the properties; `spelt` is what their names begin with where they were given."""
    if options.node_id is not None:
        properties["node.id"] = str(options.node_id)
        properties.pop("broker.id", None)
    if options.listen is not None:
        name = "--listen" if spelt == "--" else f"{spelt}LISTEN"
        address = check_address(options.listen, name, port_min=0)
        properties["listeners"] = f"PLAINTEXT://{address}"
        properties.pop("advertised.listeners", None)
    if options.data is not None:
        properties["log.dirs"] = str(options.data)
        properties.pop("log.dir", None)


def _fill(properties: dict[str, str]) -> None:
    """Add our defaults where nothing else is said."""
    if "broker.id" not in properties:
        properties.setdefault("node.id", "1")
    properties.setdefault("listeners", f"PLAINTEXT://{LISTEN}")
    if "log.dir" not in properties:
        properties.setdefault("log.dirs", DATA)


def print_ready(line: str) -> None:
    sys.stdout.write(line.rstrip("\n") + "\n")
    sys.stdout.flush()
