"""Stand-ins for Kafka's console producer and consumer: lines to a topic, and its records as lines.

Owns: their options and loops. Does not own: requests (tools.client) and batches (protocol.records). Both are
for trying a broker out: no keys are written, no group is joined.
Invariant: the producer ends with exit code 0 only when each line is acknowledged by all replicas in sync; the
consumer prints each record of a partition once and in order.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tools.asking import ask
from tools.console import Failure, emit
from tools.kafka_scripts.options import Given, parse

if TYPE_CHECKING:
    from protocol.records import Record
    from tools.client import Client

TIMEOUT_S: Final = 60.0
CHUNK_BYTES: Final = 256 << 10
WAIT_MS: Final = 500
_SERVERS: Final = "--bootstrap-server"


def produce(script: str, arguments: Sequence[str]) -> None:
    given = parse(script, arguments, valued=(_SERVERS, "--broker-list", "--topic"))
    topic = given.need("--topic")

    async def send(client: Client) -> None:
        from protocol.errors import ErrorCode, KafkaError
        from protocol.records import build_batch
        from tools.patience import patiently

        await _known(client, topic, create=True)
        count = len(client.known.partitions[topic])
        number = 0
        source = _Lines()
        while lines := await asyncio.get_running_loop().run_in_executor(None, source.read):
            now_ms = time.time_ns() // 1_000_000  # noqa: TID251
            batch = bytes(build_batch([(None, line, (), now_ms) for line in lines]))
            partition = number % count
            number += 1

            async def put(partition: int = partition, batch: bytes = batch) -> None:
                answer = await client.produce(topic, partition, batch)
                if answer.error_code != ErrorCode.none:
                    raise KafkaError(answer.error_code, f"partition {topic}-{partition}")

            await patiently(client, topic, put, patience_s=TIMEOUT_S)

    ask(given.one("--broker-list") or given.need(_SERVERS), TIMEOUT_S, send, named=_SERVERS)


class _Lines:
    """The lines of stdin, as many at a time as are there: a terminal gives one, a file a whole batch."""

    def __init__(self) -> None:
        self._begun = b""

    def read(self) -> list[bytes]:
        """Return the next lines; none at the end."""
        while data := os.read(sys.stdin.fileno(), CHUNK_BYTES):
            *lines, self._begun = (self._begun + data).split(b"\n")
            if lines:
                return [line.removesuffix(b"\r") for line in lines]
        rest, self._begun = self._begun, b""
        return [rest] if rest else []


def consume(script: str, arguments: Sequence[str]) -> None:
    given = parse(
        script,
        arguments,
        flags=("--from-beginning", "--skip-message-on-error"),
        valued=(
            _SERVERS,
            "--topic",
            "--partition",
            "--max-messages",
            "--timeout-ms",
            "--property",
            "--formatter-property",
        ),
    )
    topic = given.need("--topic")
    left = given.number("--max-messages", -1, least=1)
    idle_ms = given.number("--timeout-ms", -1, least=1)
    line = _Line(given)

    async def show(client: Client) -> None:
        from tools.topics import EARLIEST, LATEST

        await _known(client, topic, create=False)
        partitions: Sequence[int] = client.known.partitions[topic]
        if given.one("--partition") is not None:
            partitions = [given.number("--partition", 0)]
        start = EARLIEST if "--from-beginning" in given.flags else LATEST
        records: asyncio.Queue[Record] = asyncio.Queue(maxsize=1000)
        shown = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                readers = [
                    tasks.create_task(_read(client, topic, partition, start, records))
                    for partition in partitions
                ]
                while shown != left:
                    try:
                        async with asyncio.timeout(None if idle_ms < 0 else idle_ms / 1000):
                            record = await records.get()
                    except TimeoutError:
                        break
                    line.emit(record)
                    shown += 1
                    if records.empty():
                        sys.stdout.flush()
                for reader in readers:
                    reader.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        sys.stderr.write(f"Processed a total of {shown} messages\n")

    ask(given.need(_SERVERS), TIMEOUT_S, show, named=_SERVERS)


class _Line:
    """How a record is printed."""

    def __init__(self, given: Given) -> None:
        properties = given.pairs("--property") | given.pairs("--formatter-property")
        known = {"print.key", "print.value", "print.partition", "print.offset", "key.separator"}
        for name in properties.keys() - known:
            raise Failure(
                f"{given.script}: --property {name}: this stand-in knows {', '.join(sorted(known))}"
            )
        self._separator = properties.get("key.separator", "\t")
        self._has_key = properties.get("print.key") == "true"
        self._has_value = properties.get("print.value", "true") == "true"
        self._has_offset = properties.get("print.offset") == "true"

    def emit(self, record: Record) -> None:
        cells = [f"Offset:{record.offset}"] if self._has_offset else []
        cells += [_text(record.key)] if self._has_key else []
        cells += [_text(record.value)] if self._has_value else []
        emit(self._separator.join(cells))


def _text(data: bytes | None) -> str:
    return "null" if data is None else bytes(data).decode(errors="replace")


async def _known(client: Client, topic: str, *, create: bool) -> None:
    """Learn the partitions of a topic; Failure when it does not exist, or does not appear in time."""
    from protocol.errors import ErrorCode, KafkaError
    from tools.patience import patiently

    async def look() -> None:
        row = (await client.refresh([topic], create=create)).topics[0]
        if row.error_code != ErrorCode.none or not client.known.partitions.get(topic):
            code = row.error_code
            if create and code == ErrorCode.unknown_topic_or_partition:
                code = ErrorCode.leader_not_available  # it is being created
            raise KafkaError(code, f"topic {topic}")
        for partition in client.known.partitions[topic]:
            await client.leader(topic, partition)

    await patiently(client, topic, look, patience_s=TIMEOUT_S)


async def _read(
    client: Client, topic: str, partition: int, start: int, records: asyncio.Queue[Record]
) -> None:
    """Put the committed records of one partition into the queue, without an end."""
    from protocol.errors import ErrorCode, KafkaError
    from protocol.records import iter_records
    from tools.patience import patiently
    from tools.topic_source import Aborted, pieces

    _, at, _ = await client.list_offset(topic, partition, start)

    async def fetch() -> bytes:
        answer = await client.fetch(topic, partition, at, max_wait_ms=WAIT_MS)
        if answer.error_code != ErrorCode.none:
            raise KafkaError(answer.error_code, f"partition {topic}-{partition}")
        return bytes(answer.records or b"")

    while True:
        data = await patiently(client, topic, fetch, patience_s=TIMEOUT_S)
        for piece in pieces(data, at, Aborted(())):
            if piece.batch is not None:
                for record in iter_records(piece.batch, 0, piece.header):
                    if record.offset >= at:
                        await records.put(record)
            at = piece.end
