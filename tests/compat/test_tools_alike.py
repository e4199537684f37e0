"""What Kafka's tools print of the same scenario on Kafka and on ours: groups of both protocols, transactions
of every state and one that hangs, offsets, features, ACLs; what the dump tool reads in the internal topics.

Owns the scenario, the commands and the form in which two prints are compared. Does not own what they mean.
Invariant: only what each cluster names as it pleases (ids, ports, clocks) is masked, by column or by look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from protocol.apis import Api
from tests.compat.differential import Side, Twins, produce_fields, records, started_twins
from tests.compat.jvm import Clients, Said, Tools
from tests.compat.peers import Java
from tests.compat.test_interchange import DUMP

pytestmark = pytest.mark.kafka

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
OFFSETS = f"{TOOLS}.GetOffsetShell"
FEATURES = f"{TOOLS}.FeatureCommand"
ACLS = f"{TOOLS}.AclCommand"

MASKED_COLUMNS = frozenset(
    {"ProducerId", "LastTimestamp", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "Duration(min)"}
)
JAVA_ID, UUID_TEXT = re.compile(r"[\w-]{22}"), re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SPACES_OF_A_TABLE = re.compile(r"\s*\t\s*|  +")
LOGGED = re.compile(r"^\[[^\]]*\] (\w+) \[AdminClient clientId=adminclient-\d+\]")
SILENT = frozenset({"aborted", "ended by force", "offsets at -5"})
"""Commands that say nothing where all is well."""
PARTITIONS = 2
CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the scenario is about, by the same names on both sides."""

    topic: str
    classic: str
    consumer: str
    empty: str
    open: str
    done: str
    aborted: str


def group(names: Names, what: str) -> str:
    return str(getattr(names, what))


def commands(names: Names) -> Iterator[tuple[str, str, Sequence[str]]]:
    """In the order in which they are run: a label, the tool, its arguments."""

    def of(label: str, main: str, *args: str) -> tuple[str, str, Sequence[str]]:
        return label, main, args

    yield of("groups", GROUPS, "--list")
    yield of("groups and states", GROUPS, "--list", "--state")
    yield of("groups of one state", GROUPS, "--list", "--state", "Empty")
    yield of("groups and types", GROUPS, "--list", "--type")
    yield of("groups of one type", GROUPS, "--list", "--type", "consumer", "--state")
    yield of("all groups", GROUPS, "--describe", "--all-groups", "--state")
    for kind in (CLASSIC, CONSUMER, "empty"):
        told = ("--describe", "--group", group(names, kind))
        yield of(f"{kind}: described", GROUPS, *told)
        for what in ("--offsets", "--members", "--state"):
            yield of(f"{kind}: {what}", GROUPS, *told, what)
            yield of(f"{kind}: {what} in words", GROUPS, *told, what, "--verbose")
    yield of("a group that is not there", GROUPS, "--describe", "--group", "no-such-group")
    for kind in (CLASSIC, CONSUMER, "empty"):
        chosen = ("--reset-offsets", "--group", group(names, kind), "--topic", names.topic)
        yield of(f"{kind}: to earliest, only said", GROUPS, *chosen, "--to-earliest", "--dry-run")
        yield of(f"{kind}: one further", GROUPS, *chosen, "--shift-by", "1", "--execute")
        yield of(f"{kind}: exported", GROUPS, *chosen, "--to-current", "--export", "--dry-run")
        yield of(f"{kind}: described after that", GROUPS, "--describe", "--group", group(names, kind))
    for kind in (CLASSIC, CONSUMER, "empty"):
        gone = ("--delete-offsets", "--group", group(names, kind), "--topic", f"{names.topic}:1")
        yield of(f"{kind}: offsets deleted", GROUPS, *gone)
        yield of(f"{kind}: deleted", GROUPS, "--delete", "--group", group(names, kind))
    yield of("groups after that", GROUPS, "--list", "--state")
    yield of("deleting what is not there", GROUPS, "--delete", "--group", "no-such-group")

    yield of("transactions", TRANSACTIONS, "list")
    yield of("transactions that last", TRANSACTIONS, "list", "--duration-filter", "86400000")
    yield of(
        "transactions by pattern", TRANSACTIONS, "list", "--transactional-id-pattern", f"{names.done}|nobody"
    )
    yield of("transactions by no pattern", TRANSACTIONS, "list", "--transactional-id-pattern", "(open")
    for what in ("open", "done", "aborted"):
        yield of(
            f"{what} transaction", TRANSACTIONS, "describe", "--transactional-id", str(getattr(names, what))
        )
    yield of("a transaction that is not there", TRANSACTIONS, "describe", "--transactional-id", "nobody")
    producers = ("describe-producers", "--topic", names.topic, "--partition")
    for partition in range(PARTITIONS):
        yield of(f"producers of partition {partition}", TRANSACTIONS, *producers, str(partition))
    find = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "15")
    yield of("hanging ones", TRANSACTIONS, *find)
    abort = ("abort", "--topic", names.topic, "--partition", "1", "--start-offset")
    yield of("aborted where there is none", TRANSACTIONS, *abort, "1000")
    yield of("aborted", TRANSACTIONS, *abort, str(HANGING_AT))
    yield of("hanging ones after that", TRANSACTIONS, *find)
    yield of("producers after that", TRANSACTIONS, *producers, "1")
    yield of("ended by force", TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", names.open)
    yield of("transactions after that", TRANSACTIONS, "list")

    for time in ("-1", "-2", "-3", "-4", "-5", "0", "earliest", "latest", "max-timestamp", "soon"):
        yield of(f"offsets at {time}", OFFSETS, "--topic", names.topic, "--time", time)
    yield of("offsets of one partition", OFFSETS, "--topic-partitions", f"{names.topic}:1")
    yield of("offsets of all but internal topics", OFFSETS, "--exclude-internal-topics")
    yield of("offsets of nothing", OFFSETS, "--topic", "no-such-topic")

    yield of("features", FEATURES, "describe")
    change = ("--feature", "transaction.version=1", "--dry-run")
    yield of("a feature lowered, only said", FEATURES, "downgrade", *change)
    yield of("a feature raised to less, only said", FEATURES, "upgrade", *change)
    yield of("a feature nobody knows", FEATURES, "upgrade", "--feature", "no.such=1", "--dry-run")
    yield of("a level nobody knows", FEATURES, "upgrade", "--feature", "group.version=99", "--dry-run")

    yield of("ACLs", ACLS, "--list")
    grant = ("--allow-principal", "User:somebody", "--operation", "Read", "--topic", names.topic)
    yield of("an ACL added", ACLS, "--add", *grant)
    yield of("an ACL removed", ACLS, "--remove", "--force", *grant)


NAMES = Names(
    topic="told",
    classic="g-classic",
    consumer="g-consumer",
    empty="g-empty",
    open="t-open",
    done="t-done",
    aborted="t-aborted",
)
HANGING_AT = 5
"""Where the hanging transaction begins in partition 1."""
LABELS = [label for label, _main, _args in commands(NAMES)]


# --- the scenario -----------------------------------------------------------------------------------------


def play(side: Side, clients: Clients, prefix: str) -> None:
    """Groups with two members each, offsets without a member, transactions in every state."""
    topic = {"topic": NAMES.topic}

    def producer(name: str, **config: Any) -> str:
        full = f"{prefix}-{name}"
        clients.done(
            full,
            "producer",
            config={"bootstrap.servers": side.bootstrap, "client.id": name, "linger.ms": "0", **config},
        )
        return full

    plain = producer("plain", **{"enable.idempotence": "false"})
    for number in range(5):
        for partition in range(PARTITIONS):
            clients.done(plain, "send", **topic, partition=partition, value=str(number))
    hang(side)
    for name, ends in ((NAMES.done, "commit"), (NAMES.aborted, "abort"), (NAMES.open, None)):
        full = producer(name, **{"transactional.id": name})
        clients.done(full, "init")
        clients.done(full, "begin")
        clients.done(full, "send", **topic, partition=0, value=name)
        clients.done(
            full,
            "offsets",
            **topic,
            partition=0,
            offset=3,
            config=member_config(side, NAMES.empty, "classic"),
        )
        if ends is not None:
            clients.done(full, ends)
    for name, protocol in ((NAMES.classic, CLASSIC), (NAMES.consumer, CONSUMER)):
        started: list[str] = []
        for number in range(2):
            member = f"{prefix}-{name}-{number}"
            config = member_config(side, name, protocol, **{"client.id": f"client-{number}"})
            clients.consume(member, config, topics=[NAMES.topic])
            started.append(member)
            share = PARTITIONS // len(started)
            clients.await_(
                lambda started=tuple(started), share=share: (
                    [len(held) for held in clients.holding(*started)] == [share] * len(started)
                ),
                f"members of {name} to share",
            )
        clients.await_(lambda started=tuple(started): len(clients.records(*started)) >= 10, "all records")


def member_config(side: Side, name: str, protocol: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": side.bootstrap,
        "group.id": name,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        **({"heartbeat.interval.ms": "200"} if protocol == CLASSIC else {}),
        **more,
    }


def hang(side: Side) -> None:
    """Transactional records that no coordinator knows of, which the settings let in."""
    answer = side.client.call(Api.INIT_PRODUCER_ID, 2, transactional_id=None, transaction_timeout=60_000)
    batch = records(
        b"hangs", producer_id=answer.producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    fields = {**produce_fields(NAMES.topic, batch, partition=1), "transactional_id": "t-hanging"}
    written = side.client.call(Api.PRODUCE, 11, **side.resolve(fields)).responses[0].partition_responses[0]
    assert (written.error_code, written.base_offset) == (0, HANGING_AT)


# --- what was printed -------------------------------------------------------------------------------------


Lines = list[tuple[str, ...]]
Dump = dict[str, list[str]]
"""By key, its names masked: the last payload of each key that looks so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    printed: dict[str, tuple[Lines, Lines]]
    """By label: the lines on ours and on theirs."""
    dumped: dict[str, tuple[Dump, Dump]]
    """By internal topic: what the dump tool read there."""


@pytest.fixture(scope="module")
def world(our_java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("alike")
    hanging = {"transaction.partition.verification.enable": "false"}
    with (
        started_twins(folder, our_java, settings=hanging) as twins,
        Clients(our_java, folder / "clients.txt") as clients,
        Tools(our_java, folder / "tools.txt") as tools,
    ):
        create(twins)
        sides = dict(zip(("ours", "theirs"), twins.sides, strict=True))
        for prefix, side in sides.items():
            play(side, clients, prefix)
        printed = {}
        for label, main, args in commands(NAMES):
            ours, theirs = (
                lines_of(tools.attempt(main, "--bootstrap-server", side.bootstrap, *args), side)
                for side in twins.sides
            )
            printed[label] = (ours, theirs)
        dumped = {}
        for topic, option in DECODERS.items():
            ours_read, theirs_read = (dump_of(tools, side, topic, option) for side in twins.sides)
            dumped[topic] = (ours_read, theirs_read)
        yield World(printed=printed, dumped=dumped)


def create(twins: Twins) -> None:
    twins.same(
        Api.CREATE_TOPICS,
        4,
        topics=[
            {
                "name": NAMES.topic,
                "num_partitions": PARTITIONS,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
        ],
        timeout=10_000,
        validate_only=False,
    )
    for side in twins.sides:
        side.learn(NAMES.topic, PARTITIONS)


def lines_of(said: Said, side: Side) -> Lines:
    """The exit code, then the lines in order of their text: a table's rows come as each cluster likes."""
    found: Lines = []
    masked: list[int] = []
    for line in said.all.replace(side.bootstrap, "BROKER").splitlines():
        if not line.strip() or line.startswith("\tat ") or re.match(r"\s+\.\.\. \d+ more", line):
            continue
        line = LOGGED.sub(r"\1", line)
        cells = SPACES_OF_A_TABLE.split(line.strip())
        if MASKED_COLUMNS & set(cells):
            masked = [at for at, cell in enumerate(cells) if cell in MASKED_COLUMNS]
        cells = ["#" if at in masked and cell.isdigit() else cell for at, cell in enumerate(cells)]
        found.append(tuple(" ".join(map(masked_word, cell.split())) for cell in cells))
    return [(f"exit {said.code}",), *sorted(found)]


def masked_word(word: str) -> str:
    return "<id>" if JAVA_ID.fullmatch(word) else UUID_TEXT.sub("<id>", word)


@pytest.mark.parametrize("label", [label for label in LABELS if label != "features"])
def test_a_tool_prints_the_same(world: World, label: str) -> None:
    ours, theirs = world.printed[label]
    assert ours == theirs
    assert (len(theirs) == 1) == (label in SILENT), "a tool that says nothing shows nothing"


def test_features_are_kafkas(world: World) -> None:
    """Ours are fewer: those of KRaft itself are not here."""
    ours, theirs = ({line[0]: line[1:] for line in lines} for lines in world.printed["features"])
    epoch = re.compile(r"Epoch: \d+")
    ours, theirs = (
        {name: [epoch.sub("Epoch", cell) for cell in cells] for name, cells in found.items()}
        for found in (ours, theirs)
    )
    assert {
        f"Feature: {name}" for name in ("group.version", "metadata.version", "transaction.version")
    } <= set(ours)
    assert ours == {name: theirs.get(name) for name in ours}


# --- what the dump tool reads -----------------------------------------------------------------------------

DECODERS = {"__transaction_state": "--transaction-log-decoder", "__consumer_offsets": "--offsets-decoder"}
ENTRY = re.compile(r"^\| offset: \d+ .*? key: (\{.*?\}) payload: (.*)$", re.MULTILINE)
CLOCKS = re.compile(r"(?i)timestamp(ms)?$")
OF_A_CLUSTER = frozenset({"producerId", "nextProducerId", "metadataHash"})
LEFT_OUT = frozenset({"previousProducerId"})
"""Kafka names the producer id itself after a transaction; ours one that was another. What is null, empty or
not there is the same to whoever reads it.
"""
KINDS = {"__transaction_state": {"0"}, "__consumer_offsets": set("1235678")}
"""The types of keys that the scenario leaves: commits, classic groups, and five of groups that the broker
assigns."""


def dump_of(tools: Tools, side: Side, topic: str, option: str) -> Dump:
    logs = sorted(side.data.glob(f"{topic}-*/*.log"))
    said = tools.attempt(DUMP, "--files", ",".join(map(str, logs)), option)
    assert said.code == 0, said.all[-4000:]
    last = dict(ENTRY.findall(said.out))
    assert "isvalid: false" not in said.out
    found: Dump = {}
    for key, payload in last.items():
        found.setdefault(masked_json(key), []).append(masked_json(payload))
    return {key: sorted(payloads) for key, payloads in found.items() if "warm-up" not in key}


def masked_json(text: str) -> str:
    return json.dumps(masked(json.loads(text)), sort_keys=True) if text.startswith("{") else text


def masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        rows = {each: masked(item, each) for each, item in value.items() if each not in LEFT_OUT}
        return {each: item for each, item in rows.items() if item not in (None, "")}
    if isinstance(value, list):
        return sorted((masked(item) for item in value), key=str)
    if CLOCKS.search(name) or name in OF_A_CLUSTER:
        return "none" if value in (-1, "-1", 0, "0") else "#"
    return masked_word(value) if isinstance(value, str) else value


@pytest.mark.parametrize("topic", list(DECODERS))
def test_the_dump_tool_reads_the_same_in_an_internal_topic(world: World, topic: str) -> None:
    ours, theirs = world.dumped[topic]
    assert {json.loads(key)["type"] for key in theirs} == KINDS[topic]
    assert sorted(ours) == sorted(theirs)
    different = [f"{key}\n  {ours[key]}\n  {theirs[key]}" for key in theirs if ours[key] != theirs[key]]
    assert not different, "\n".join(different)
