"""`tidewal kafka-script NAME …`: what init containers, health checks and start scripts ask of Kafka's own.

Owns: which of Kafka's scripts have a stand-in, and the words they answer with. Does not own requests
(tools.topics) or records (console). What is not here is said, not imitated: Kafka's own scripts, run from
elsewhere, work against this broker as they are.
Invariant: a stand-in answers as Kafka's would, or ends with one line and exit code 1.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tools.asking import ask
from tools.console import Failure, emit
from tools.kafka_scripts.options import Given, parse

if TYPE_CHECKING:
    from tools.client import Client

TIMEOUT_S: Final = 60.0
"""Kafka's tools wait so long for an answer."""
PAUSE_S: Final = 0.5
_SERVERS: Final = "--bootstrap-server"


def run_script(arguments: Sequence[str]) -> None:
    """Run the stand-in of a script by its name, with or without `.sh` and folders."""
    if not arguments:
        raise Failure(f"kafka-script: name one of {', '.join(sorted(SCRIPTS))}", exit_code=2)
    name = os.path.basename(arguments[0]).removesuffix(".sh")
    script = SCRIPTS.get(name)
    if script is None:
        raise Failure(
            f"{name} has no stand-in here ({', '.join(sorted(SCRIPTS))} have): run Kafka's own "
            "from elsewhere against this broker"
        )
    script(name, arguments[1:])


def _topics(script: str, arguments: Sequence[str]) -> None:
    given = parse(
        script,
        arguments,
        flags=(*_WORK, "--if-exists", "--if-not-exists", "--exclude-internal"),
        valued=(_SERVERS, "--topic", "--partitions", "--replication-factor", "--config"),
    )
    actions = [action for action in _WORK if action in given.flags]
    if len(actions) != 1:
        raise Failure(f"{script}: give one of {', '.join(_WORK)}")
    work = _WORK[actions[0]]
    ask(given.need(_SERVERS), TIMEOUT_S, lambda client: work(client, given), named=_SERVERS)


async def _list(client: Client, given: Given) -> None:
    for name in await _named(client, given):
        emit(name)


async def _describe(client: Client, given: Given) -> None:
    from tools import topics

    for name in await _chosen(client, given):
        found = await topics.description(client, name)
        rows = found["partitions"]
        configs = ",".join(f"{key}={value}" for key, value in found["configs"].items())
        factor = len(rows[0]["replicas"]) if rows else 0
        emit(
            f"Topic: {name}\tTopicId: {found['id']}\tPartitionCount: {len(rows)}\tReplicationFactor: {factor}"
            f"\tConfigs: {configs}"
        )
        for row in rows:
            leader = "none" if row["leader"] is None else row["leader"]
            replicas, isr = (",".join(map(str, row[key])) for key in ("replicas", "isr"))
            emit(
                f"\tTopic: {name}\tPartition: {row['partition']}\tLeader: {leader}"
                f"\tReplicas: {replicas}\tIsr: {isr}\tElr: N/A\tLastKnownElr: N/A"
            )


async def _create(client: Client, given: Given) -> None:
    from protocol.errors import ErrorCode
    from tools import topics

    name = given.need("--topic")
    row = await topics.asked_for(
        client,
        name,
        partitions=given.number("--partitions", -1, least=1),
        replication=given.number("--replication-factor", -1, least=1),
        configs=given.pairs("--config"),
    )
    if row.error_code == ErrorCode.topic_already_exists and "--if-not-exists" in given.flags:
        return
    topics.check_row(row, f"topic {name}")
    emit(f"Created topic {name}.")


async def _delete(client: Client, given: Given) -> None:
    from tools import topics

    given.need("--topic")
    for name in await _chosen(client, given):
        await topics.delete_topic(client, name)


async def _alter(client: Client, given: Given) -> None:
    from tools import topics

    given.need("--topic")
    given.need("--partitions")
    count = given.number("--partitions", 0, least=1)
    for name in await _chosen(client, given):
        await topics.grow(client, name, count)


async def _named(client: Client, given: Given) -> list[str]:
    """Return the topics whose names the expression fits; all without one."""
    answer = await client.refresh()
    names = sorted(
        topic.name
        for topic in answer.topics
        if not (topic.is_internal and "--exclude-internal" in given.flags)
    )
    text = given.one("--topic")
    if text is None:
        return names
    try:
        wanted = re.compile(text.strip().replace(",", "|"))
    except re.error:
        raise Failure(f"{given.script}: --topic {text}: not a regular expression") from None
    return [name for name in names if wanted.fullmatch(name)]


async def _chosen(client: Client, given: Given) -> list[str]:
    """Return the topics to work on; Failure when there is none, unless that is allowed for."""
    names = await _named(client, given)
    topic = given.one("--topic")
    if topic is not None and not names and "--if-exists" not in given.flags:
        raise Failure(f"Error while executing topic command : Topic '{topic}' does not exist as expected")
    return names


_WORK: Final = {
    "--list": _list,
    "--describe": _describe,
    "--create": _create,
    "--delete": _delete,
    "--alter": _alter,
}


def _api_versions(script: str, arguments: Sequence[str]) -> None:
    given = parse(script, arguments, valued=(_SERVERS,))

    async def show(client: Client) -> None:
        from protocol.apis import Api

        names = {api.value: api.name.title().replace("_", "") for api in Api}
        answer = await client.refresh([])
        for broker in answer.brokers:
            versions = (await client.connection_to(broker.node_id)).versions
            rows = [
                f"\t{names.get(key, 'UNKNOWN')}({key}): {low} to {high} [usable: {high}]"
                for key, (low, high) in sorted(versions.items())
            ]
            emit(f"{broker.host}:{broker.port} (id: {broker.node_id} rack: {broker.rack or 'null'}) -> (")
            emit(",\n".join(rows))
            emit(")")

    ask(given.need(_SERVERS), TIMEOUT_S, show, named=_SERVERS)


def _get_offsets(script: str, arguments: Sequence[str]) -> None:
    from tools.topics import EARLIEST, LATEST

    given = parse(script, arguments, valued=(_SERVERS, "--broker-list", "--topic", "--time"))
    named = {"latest": LATEST, "earliest": EARLIEST, "-1": LATEST, "-2": EARLIEST}
    time = given.one("--time") or "latest"
    if time not in named:
        raise Failure(f"{script}: --time {time}: this stand-in knows {', '.join(named)}")

    async def show(client: Client) -> None:
        for topic in await _chosen(client, given):
            for partition in client.known.partitions[topic]:
                _, offset, _ = await client.list_offset(topic, partition, named[time])
                emit(f"{topic}:{partition}:{offset}")

    ask(given.one("--broker-list") or given.need(_SERVERS), TIMEOUT_S, show, named=_SERVERS)


def _storage(script: str, arguments: Sequence[str]) -> None:
    """Answer start scripts, which format a folder before a broker: ours needs no formatting."""
    if list(arguments) == ["random-uuid"]:
        emit(base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("="))
    elif "--add-scram" in arguments or "-S" in arguments:
        raise Failure(f"{script}: --add-scram: this release serves no SASL listener")
    elif arguments[:1] == ["format"]:
        emit("nothing to format: a broker makes its folders by itself")
    else:
        raise Failure(f"{script}: this stand-in knows random-uuid and format")


def _ready(script: str, arguments: Sequence[str]) -> None:
    """Wait for so many brokers, as Confluent's `cub` and `ub` do for their images."""
    if arguments[:1] == ["kafka-ready"]:
        arguments = arguments[1:]
    given = parse(script, arguments, valued=("-b", _SERVERS), words=2)
    if len(given.words) != 2 or not all(word.isascii() and word.isdigit() for word in given.words):
        raise Failure(
            f"{script}: kafka-ready needs -b HOST:PORT, a number of brokers and a number of seconds"
        )
    count, seconds = (int(word) for word in given.words)

    async def wait(client: Client) -> None:
        from tools.client import RequestFailed

        seen = 0
        try:
            async with asyncio.timeout(seconds):
                while seen < count:
                    try:
                        seen = len((await client.refresh([])).brokers)
                    except RequestFailed:
                        seen = 0
                    if seen < count:
                        await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            raise Failure(f"{script}: {seen} of {count} brokers after {seconds} s") from None

    ask(given.one("-b") or given.need(_SERVERS), max(1.0, float(seconds)), wait, named="-b")


def _producer(script: str, arguments: Sequence[str]) -> None:
    from tools.kafka_scripts import console

    console.produce(script, arguments)


def _consumer(script: str, arguments: Sequence[str]) -> None:
    from tools.kafka_scripts import console

    console.consume(script, arguments)


SCRIPTS: Final[dict[str, Callable[[str, Sequence[str]], None]]] = {
    "cub": _ready,
    "kafka-broker-api-versions": _api_versions,
    "kafka-console-consumer": _consumer,
    "kafka-console-producer": _producer,
    "kafka-get-offsets": _get_offsets,
    "kafka-storage": _storage,
    "kafka-topics": _topics,
    "ub": _ready,
}
