"""Transactional producers of three libraries behind one face, and what readers of either isolation see.

Owns how each library begins, sends, commits and aborts, which of its errors says that another producer has
taken its transactional id, and reading a partition up to its end. Does not own what a test asserts.
Run as `python -m tests.compat.transactional LIBRARY BOOTSTRAP ID TOPIC TIMEOUT_MS VALUE…` it is a producer
that sends the values in a transaction, prints `open` and does what the next line of its input says: `commit`
or `abort`, after which it prints `over`. Without one it waits for ever.
Invariant: what `send` returns was acknowledged by the broker; nothing waits without a deadline.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Protocol, TypeVar

import aiokafka
import aiokafka.errors
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.compat.peers import unique, until
from tests.processes import ROOT

with warnings.catch_warnings():
    # kafka-python reads its schemas through an importlib function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

T = TypeVar("T")

LATER: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""Of a partition whose leader changes."""

ANSWER_S: Final = 30.0
TIMEOUT_MS: Final = 60_000
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


class Transactional(Protocol):
    """A producer whose transactional id was initialized."""

    fenced: ClassVar[frozenset[str]]
    """What its errors say when another producer has the id."""

    def __init__(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: str = "none"
    ) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, *values: bytes, partition: int = 0) -> list[int]: ...
    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Librdkafka:
    fenced = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_STATE"})

    def __init__(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: str = "none"
    ) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "compression.type": codec,
                "linger.ms": 5,
                "message.max.bytes": 10_000_000,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(ANSWER_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> list[int]:
        offsets: list[int] = []
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failed.append(error)

        for value in values:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
        assert self._producer.flush(ANSWER_S) == 0
        if failed:
            raise KafkaException(failed[0])
        return offsets

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        wanted = [TopicPartition(*where, offset) for where, offset in offsets.items()]
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            self._producer.send_offsets_to_transaction(wanted, reader.consumer_group_metadata(), ANSWER_S)
        finally:
            reader.close()

    def commit(self) -> None:
        self._producer.commit_transaction(ANSWER_S)

    def abort(self) -> None:
        self._producer.abort_transaction(ANSWER_S)

    def close(self) -> None:
        self._producer.purge()


class Aiokafka:
    fenced = frozenset({"ProducerFenced", "InvalidProducerEpoch", "IllegalOperation"})

    def __init__(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: str = "none"
    ) -> None:
        self._runner = asyncio.Runner()

        async def started() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                compression_type=None if codec == "none" else codec,
                linger_ms=5,
                max_request_size=10_000_000,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            return producer

        try:
            self._producer = self._run(started())
        except BaseException:
            self._runner.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def within() -> T:
            async with asyncio.timeout(ANSWER_S):
                return await work

        return self._runner.run(within())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> list[int]:
        async def sent() -> list[int]:
            acks = [await self._producer.send(topic, value, partition=partition) for value in values]
            answers = await asyncio.gather(*acks, return_exceptions=True)
            failed = [answer for answer in answers if isinstance(answer, BaseException)]
            if failed:
                raise failed[0]
            return [answer.offset for answer in answers if not isinstance(answer, BaseException)]

        return self._run(sent())

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        wanted = {aiokafka.TopicPartition(*where): offset for where, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(wanted, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._runner.close()


class KafkaPython:
    fenced = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})

    def __init__(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, codec: str = "none"
    ) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            max_request_size=10_000_000,
        )
        try:
            self._producer.init_transactions()
        except BaseException:
            self._producer.close(timeout=0)
            raise

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> list[int]:
        acks = [self._producer.send(topic, value, partition=partition) for value in values]
        self._producer.flush(timeout=ANSWER_S)
        return [ack.get(timeout=ANSWER_S).offset for ack in acks]

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        wanted = {
            kafka.TopicPartition(*where): kafka.OffsetAndMetadata(offset, "", -1)
            for where, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(wanted, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=ANSWER_S)


LIBRARIES: Mapping[str, type[Transactional]] = {
    "confluent": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}


def names_of(error: BaseException) -> set[str]:
    """What an error of any of the libraries is called, with the errors it was raised for."""
    found: set[str] = set()
    at: BaseException | None = error
    while at is not None:
        found.add(type(at).__name__)
        for argument in at.args:
            if isinstance(argument, KafkaError):
                found.add(argument.name())
            elif isinstance(argument, BaseException):
                found |= names_of(argument)
        at = at.__cause__ or at.__context__
    return found


# --- what a reader sees ------------------------------------------------------------------------------------


def read_to_end(bootstrap: str, topic: str, isolation: str, *partitions: int) -> dict[int, list[bytes]]:
    """The values of each partition, from its start to what is its end for that reader."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    found: dict[int, list[bytes]] = {partition: [] for partition in partitions or (0,)}
    ended: set[int] = set()

    def all_ended() -> bool:
        while ended != set(found) and (message := reader.poll(0.2)) is not None:
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif not error.retriable():
                raise KafkaException(error)
        return ended == set(found)

    try:
        reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        until(all_ended, f"the end of {topic} for {isolation}", timeout_s=ANSWER_S, pause_s=0.0)
    finally:
        reader.close()
    return found


def committed(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    return read_to_end(bootstrap, topic, COMMITTED, partition)[partition]


def uncommitted(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    return read_to_end(bootstrap, topic, UNCOMMITTED, partition)[partition]


def ends(admin: AdminClient, topic: str, partition: int = 0) -> tuple[int, int]:
    """Where a reader of committed records must stop, and where the partition ends."""

    def end(isolation: IsolationLevel) -> int:
        where = TopicPartition(topic, partition)

        def found() -> list[int]:
            asked = admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=isolation)
            try:
                return [int(asked[where].result(timeout=ANSWER_S).offset)]
            except KafkaException as error:
                if error.args[0].code() not in LATER:
                    raise
            return []

        return until(found, f"the end of {topic}-{partition}", timeout_s=ANSWER_S)[0]

    return end(IsolationLevel.READ_COMMITTED), end(IsolationLevel.READ_UNCOMMITTED)


# --- a producer in a process of its own ---------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    library, bootstrap, transactional_id, topic, timeout_ms, *values = arguments
    producer = LIBRARIES[library](bootstrap, transactional_id, timeout_ms=int(timeout_ms))
    producer.begin()
    producer.send(topic, *(value.encode() for value in values))
    print("open", flush=True)  # noqa: T201
    match sys.stdin.readline():
        case "commit\n":
            producer.commit()
        case "abort\n":
            producer.abort()
    print("over", flush=True)  # noqa: T201


@contextmanager
def left_open(
    library: str,
    bootstrap: str,
    transactional_id: str,
    topic: str,
    *values: str,
    timeout_ms: int = TIMEOUT_MS,
) -> Iterator[subprocess.Popen[str]]:
    """A producer in a process of its own with a transaction open; it is killed at the end."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.compat.transactional"),
            *(library, bootstrap, transactional_id, topic, str(timeout_ms), *values),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
