"""A broker's settings as environment variables, by the rules of Kafka's container images.

Owns: which variable stands for which option or property, `*_FILE`, what means nothing here, and the refusal
of names that nobody knows. Does not own: the variables themselves and files (both are passed in), or which
level wins in the end (tools.broker_command).
Invariant: every variable that starts with TIDEWAL_ or KAFKA_ is an option, a property or listed as without
effect, or the broker does not start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.config.tables import ALIASES, BROKER, BROKER_DEFAULTS, CHAINS, TOPIC, check_known, nearest
from broker.config.values import ConfigError, parse_list

OURS: Final = "TIDEWAL_"
KAFKAS: Final = "KAFKA_"
FILE: Final = "_FILE"
STORE: Final = "TIDEWAL_STORE"
_OPTIONS: Final = {
    f"{OURS}{name.upper()}": name for name in ("config", "node_id", "listen", "data", "store", "admin")
}
_CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_SAME_AS: Final = {
    "TIDEWAL_NODE_ID": ("TIDEWAL_BROKER_ID",),
    "TIDEWAL_LISTEN": ("TIDEWAL_LISTENERS",),
    "TIDEWAL_DATA": ("TIDEWAL_LOG_DIRS", "TIDEWAL_LOG_DIR"),
}
"""Options and the variables of the properties behind them: two that are both set contradict each other."""
_WITHOUT_EFFECT: Final = frozenset(
    KAFKAS + name
    for name in (
        # of the JVM and its logs: Kafka's image makes no property of these
        "GC_LOG_OPTS",
        "HEAP_OPTS",
        "JMX_HOSTNAME",
        "JMX_OPTS",
        "JMX_PORT",
        "JVM_PERFORMANCE_OPTS",
        "LOG4J_LOGGERS",
        "LOG4J_OPTS",
        "LOG4J_ROOT_LOGLEVEL",
        "OPTS",
        "TOOLS_LOG4J_LOGLEVEL",
        "VERSION",
        # of the start scripts
        "CLUSTER_ID",
        "DATA_DIRS",
        "SSL_KEYSTORE_CREDENTIALS",
        "SSL_KEYSTORE_FILENAME",
        "SSL_KEY_CREDENTIALS",
        "SSL_TRUSTSTORE_CREDENTIALS",
        "SSL_TRUSTSTORE_FILENAME",
        # of Kafka's authorizer, and of producers: much-used compose files give them to brokers
        "ALLOW_EVERYONE_IF_NO_ACL_FOUND",
        "MAX_REQUEST_SIZE",
        "SUPER_USERS",
        # properties of brokers before Kafka 4
        "BROKER_ID_GENERATION_ENABLE",
        "INTER_BROKER_PROTOCOL_VERSION",
        "LOG_MESSAGE_FORMAT_VERSION",
    )
)
_OF_OTHERS: Final = tuple(KAFKAS + name for name in ("CONFLUENT_", "REST_", "ZOOKEEPER_"))
"""What begins so is for Confluent's own server, the REST proxy in its images, or a client of ZooKeeper."""
_CLUSTER_ID: Final = "CLUSTER_ID"
_ZOOKEEPER: Final = "KAFKA_ZOOKEEPER_CONNECT"
_OF_SERVICES = re.compile(
    r"(?:TIDEWAL|KAFKA)(?:_[A-Z0-9_]+)?"
    r"_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
"""What a pod is told of each service beside it; nobody set these. One that ends with _PORT holds a URL."""
_ALIKE: Final = (("node.id", "broker.id"), ("log.dirs", "log.dir"), *CHAINS)
"""Properties of which one stands for the others: a level that sets any of them speaks for all."""
_ADVERTISED = re.compile(r"://(?:\[[^\]]*\]|[^:/,]*):")
_VOTERS: Final = "controller.quorum.voters"
_BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"
_ROLES: Final = "process.roles"
_LOCAL = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the variables say."""

    options: Mapping[str, str] = field(default_factory=dict)
    """By the name of the option, with underscores."""
    ours: Mapping[str, str] = field(default_factory=dict)
    """Properties that TIDEWAL_ variables set."""
    kafkas: Mapping[str, str] = field(default_factory=dict)
    """Properties that KAFKA_ variables set; `ours` win over them."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Variables of the object store's client whose values were in files."""
    ignored: tuple[str, ...] = ()
    """Variables that were set and mean nothing here."""
    zookeeper: str = ""

    def named(self, name: str) -> str:
        """Return what the operator knows a property by: its variable, or its name in the file."""
        for prefix, properties in ((OURS, self.ours), (KAFKAS, self.kafkas)):
            if name in properties:
                return variable_of(name, prefix)
        return name


def read_environment(environ: Mapping[str, str], read_file: Callable[[str], str]) -> Environment:
    """Sort the variables; ConfigError for one that cannot be meant. `read_file` returns the text of a file,
    or raises ConfigError without saying which variable named it."""
    values, credentials = _values(environ, read_file)
    options: dict[str, str] = {}
    ours: dict[str, str] = {}
    kafkas: dict[str, str] = {}
    ignored = [_CLUSTER_ID] if environ.get(_CLUSTER_ID) else []
    for variable, text in sorted(values.items()):
        if variable in _OPTIONS:
            if not text.strip():
                raise ConfigError(f"{variable} is empty: give it a value or leave it out")
            options[_OPTIONS[variable]] = text.strip()
        elif variable in _WITHOUT_EFFECT or variable.startswith(_OF_OTHERS):
            ignored.append(variable)
        else:
            properties, prefix = (ours, OURS) if variable.startswith(OURS) else (kafkas, KAFKAS)
            properties[property_of(variable, prefix)] = text
    for variable, others in _SAME_AS.items():
        other = next((other for other in others if variable in values and other in values), None)
        if other is not None:
            raise ConfigError(f"{variable} and {other} say the same: set one of them")
    return Environment(
        options=options,
        ours=ours,
        kafkas=kafkas,
        credentials=credentials,
        ignored=tuple(ignored),
        zookeeper=values.get(_ZOOKEEPER, ""),
    )


def _values(
    environ: Mapping[str, str], read_file: Callable[[str], str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of a broker and those of its store's client, files read."""
    values: dict[str, str] = {}
    credentials: dict[str, str] = {}
    for variable, given in environ.items():
        text = given
        is_credential = variable.removesuffix(FILE) in _CREDENTIALS
        if not is_credential and not variable.startswith((OURS, KAFKAS)):
            continue
        if _OF_SERVICES.fullmatch(variable) or (variable.endswith("_PORT") and given.startswith("tcp://")):
            continue
        if variable.endswith(FILE) and not _is_known(variable):
            name = variable.removesuffix(FILE)
            if name in environ:
                raise ConfigError(f"{name} and {variable} are both set: set one of them")
            try:
                text = read_file(given).removesuffix("\n").removesuffix("\r")
            except ConfigError as error:
                raise ConfigError(f"{variable} {given}: {error}") from None
        elif is_credential:
            continue  # where the store's client looks for it anyway
        else:
            name = variable
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ConfigError(f"{variable}: not a text in UTF-8")
        if is_credential:
            credentials[name] = text
        else:
            values[name] = text
    return values, credentials


def _is_known(variable: str) -> bool:
    """Whether a whole name is that of a property, so that its end means nothing else."""
    return any(
        variable.startswith(prefix) and property_of(variable, prefix) in BROKER for prefix in (OURS, KAFKAS)
    )


def property_of(variable: str, prefix: str) -> str:
    """Return the property: `_` stands for a dot, `__` for `_` and `___` for `-`, as in Kafka's images."""
    name = variable.removeprefix(prefix).lower().replace("_", ".")
    return name.replace("...", "-").replace("..", "_")


def variable_of(name: str, prefix: str) -> str:
    """Return the variable of a property: the inverse."""
    letters = {".": "_", "_": "__", "-": "___"}
    return prefix + "".join(letters.get(letter, letter.upper()) for letter in name)


def over(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of two levels, of which `upper` wins."""
    spoken_for = {name for group in _ALIKE if upper.keys() & set(group) for name in group}
    return {**{name: text for name, text in lower.items() if name not in spoken_for}, **upper}


def check_names(environment: Environment, properties: Mapping[str, str]) -> None:
    """ConfigError for a variable of which no property is known; `properties` are those of all levels, which
    name the plugins."""
    plugins = tuple(
        properties.get(name) or BROKER_DEFAULTS[name] or ""
        for name in BROKER
        if name.endswith(".impl.prefix")
    )
    for prefix, given in ((OURS, environment.ours), (KAFKAS, environment.kafkas)):
        for name in given:
            if name in ALIASES:
                continue
            try:
                check_known(name, plugins)
            except ConfigError:
                raise ConfigError(_unknown(variable_of(name, prefix), name, prefix)) from None


def _unknown(variable: str, name: str, prefix: str) -> str:
    known = {variable_of(name, prefix) for name in BROKER}
    if name in TOPIC:
        synonym = next((name for name in TOPIC[name].synonyms if name in BROKER), None)
        hint = f"; {variable_of(synonym, prefix)} is its default for all topics" if synonym else ""
        return f"Unknown environment variable {variable}: {name} is a setting of topics{hint}"
    if prefix == OURS:
        known |= _OPTIONS.keys()
    guess = nearest(variable, sorted(known))
    return f"Unknown environment variable {variable}" + (f"; did you mean {guess}?" if guess else "")


def fill_listeners(properties: dict[str, str], *, has_store: bool) -> None:
    """Add where to listen, if no level says so: where it is advertised, else for everybody. Without a store
    there is no other broker, and who runs one container of it asks for localhost."""
    for name in ("listeners", "advertised.listeners"):
        if not properties.get(name, "-"):
            del properties[name]  # as the start scripts of Kafka's images
    if "listeners" in properties:
        return
    advertised = properties.get("advertised.listeners")
    if advertised is not None:
        properties["listeners"] = _ADVERTISED.sub("://0.0.0.0:", advertised)
        return
    properties["listeners"] = "PLAINTEXT://0.0.0.0:9092"
    if not has_store:
        properties["advertised.listeners"] = "PLAINTEXT://localhost:9092"


def check_alone(environment: Environment, properties: Mapping[str, str]) -> None:
    """ConfigError when the settings speak of other nodes: without a store that they share, each broker would
    be a cluster of its own and say nothing of it."""
    why = next(_signs_of_others(environment, properties), None)
    if why is not None:
        raise ConfigError(
            f"{why}, and {STORE} is not set: give every broker the same {STORE} (s3://BUCKET/PREFIX, "
            "or file:///DIR on a volume that all of them mount), which makes them one cluster"
        )


def _signs_of_others(environment: Environment, properties: Mapping[str, str]) -> Iterator[str]:
    own = properties.get("node.id") or properties.get("broker.id") or "1"
    voters = {voter.partition("@")[0] for voter in _items(properties, _VOTERS)}
    others = sorted(voters - {own})
    if others:
        yield f"{environment.named(_VOTERS)} names other nodes than this one ({', '.join(others)})"
    if len(_items(properties, _BOOTSTRAP)) > 1:
        yield f"{environment.named(_BOOTSTRAP)} names several nodes"
    if _items(properties, _ROLES) == ("broker",):
        yield f"{environment.named(_ROLES)} speaks of a controller elsewhere"
    if any(_LOCAL.fullmatch(host.strip()) is None for host in environment.zookeeper.split(",") if host):
        yield f"{_ZOOKEEPER} speaks of a ZooKeeper elsewhere, which a broker that is alone does not need"


def _items(properties: Mapping[str, str], name: str) -> tuple[str, ...]:
    return parse_list({name: properties.get(name)}, name)
