"""Load through a stock client (confluent-kafka) against any Kafka-compatible broker, and what it measured.

Owns the three runs, their numbers and how they are shown. Does not own the broker under test.
Invariant: a number is printed only for records that were acknowledged or received; a failed delivery ends the
run.
"""

from __future__ import annotations

import contextlib
import math
import queue
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tools.console import Failure, emit

Progress = Callable[[int], None]
Result = dict[str, object]

REACH_S = 10.0
SILENCE_S_MAX = 30.0
PAYLOAD_BYTES = 1 << 20
PAYLOADS_BYTES_MAX = 64 << 20
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
PROGRESS_EVERY = 1000
POLL_EVERY = 256
QUEUE_KB_MAX = 32 << 10  # as the Java producer's buffer.memory: more only makes records wait in the client
WARM_UP_RECORDS = 20
"""Connections, metadata and the first long poll are not what a latency run is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    bootstrap: str
    topic: str
    records: int
    record_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    batch_size_bytes: int
    linger_ms: float
    acks: str
    compression: str
    in_flight: int


# --- the runs ---


def produce(
    load: Load, batching: Batching, *, partitions: int, progress: Progress, manifest: Path | None = None
) -> Result:
    """Keep the client's queue full until every record is sent, then wait for the last acknowledgement."""
    _ensure_topic(load, partitions)
    deliveries = _Deliveries(progress)
    with _producer(
        {
            **_common(load),
            "acks": batching.acks,
            "batch.size": batching.batch_size_bytes,
            "message.max.bytes": max(batching.batch_size_bytes, load.record_size_bytes + 1000),
            "linger.ms": batching.linger_ms,
            "compression.type": batching.compression,
            "max.in.flight.requests.per.connection": batching.in_flight,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": max(QUEUE_KB_MAX, 2 * load.record_size_bytes >> 10),
        },
        load,
        manifest,
    ) as producer:
        payloads = payloads_of(load.record_size_bytes)
        send, poll, delivered, topic = producer.produce, producer.poll, deliveries.delivered, load.topic
        started_s = time.perf_counter()
        for number in range(load.records):
            while True:
                try:
                    send(topic, payloads[number % len(payloads)], on_delivery=delivered)
                    break
                except BufferError:
                    poll(0.05)
                    deliveries.check_silence()
            if number % POLL_EVERY == 0:
                poll(0)
                deliveries.check_silence()
        while len(producer):
            poll(0.1)
            deliveries.check_silence()
        elapsed_s = time.perf_counter() - started_s
        deliveries.check_silence()
    return {
        "run": "produce",
        **asdict(load),
        **asdict(batching),
        **_rates(deliveries.count, deliveries.count * load.record_size_bytes, elapsed_s),
        "latency_ms": summary(deliveries.latencies_ms),
    }


@contextlib.contextmanager
def _producer(config: dict[str, Any], load: Load, manifest: Path | None) -> Iterator[Any]:
    """Make a producer; with a manifest one that notes each record there, and ends it after a failure too."""
    if manifest is None:
        yield confluent_kafka.Producer(config)
        return
    from tools.verify.manifest.confluent_producer import ManifestProducer

    try:
        producer = ManifestProducer(config, manifest, topic_ids=_topic_ids(load))
    except OSError as error:
        raise Failure(f"--manifest {manifest}: {error.strerror or error}") from None
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def consume(load: Load, *, fetch_size_bytes: int, progress: Progress) -> Result:
    """Read every partition from its start, up to `load.records` (0: what is there when the run starts)."""
    consumer = confluent_kafka.Consumer(
        {
            **_common(load),
            "group.id": "tidewal-bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": False,
            "max.partition.fetch.bytes": fetch_size_bytes,
            "fetch.max.bytes": max(fetch_size_bytes, 50 << 20),
            "message.max.bytes": 50 << 20,
            "receive.message.max.bytes": max(100 << 20, fetch_size_bytes + (1 << 20)),
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 10,  # the default of 1 s measures the client's full queue
        }
    )
    try:
        wanted = _assign_all(consumer, load)
        return {"run": "consume", **asdict(load), **_read(consumer, wanted, progress)}
    finally:
        consumer.close()


def latency(load: Load, *, acks: str, compression: str, partitions: int, progress: Progress) -> Result:
    """Send one record at a time, nothing else in flight; measure the time to its acknowledgement, and to a
    consumer that waits for it."""
    _ensure_topic(load, partitions)
    producer = confluent_kafka.Producer(
        {
            **_common(load),
            "acks": acks,
            "linger.ms": 0,
            "compression.type": compression,
            "message.max.bytes": load.record_size_bytes + 1000,
        }
    )
    acknowledged, received = array("d"), array("d")
    payloads = payloads_of(load.record_size_bytes)
    with _Receiver(load) as receiver:
        for number in range(-WARM_UP_RECORDS, 0):
            _one(producer, receiver, load, payloads[0], number)
        started_s = time.perf_counter()
        for number in range(load.records):
            acknowledged_s, received_s = _one(
                producer, receiver, load, payloads[number % len(payloads)], number
            )
            acknowledged.append(acknowledged_s * 1000)
            received.append(received_s * 1000)
            progress(1)
        elapsed_s = time.perf_counter() - started_s
    return {
        "run": "latency",
        **asdict(load),
        "acks": acks,
        "compression": compression,
        **_rates(load.records, load.records * load.record_size_bytes, elapsed_s),
        "acknowledged_ms": summary(acknowledged),
        "received_ms": summary(received),
    }


class _Deliveries:
    """Counter of acknowledgements and of how long each took; the first failure stops the run."""

    def __init__(self, progress: Progress) -> None:
        self.count = 0
        self.latencies_ms = array("d")
        self._failure: str | None = None
        self._progress = progress
        self._last_s = time.perf_counter()

    def delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failure = self._failure or error.str()
            return
        self.count += 1
        self.latencies_ms.append(message.latency() * 1000)
        self._last_s = time.perf_counter()
        if self.count % PROGRESS_EVERY == 0:
            self._progress(PROGRESS_EVERY)

    def check_silence(self) -> None:
        if self._failure is not None:
            raise Failure(f"a record was not delivered: {self._failure}")
        if time.perf_counter() - self._last_s > SILENCE_S_MAX:
            raise Failure(f"no record was acknowledged for {SILENCE_S_MAX:.0f} s")


def _assign_all(consumer: Any, load: Load) -> int:
    """Assign every partition from its start; return how many records to read."""
    available = 0
    partitions = []
    for partition in _partitions(consumer, load):
        here = confluent_kafka.TopicPartition(load.topic, partition)
        low, high = consumer.get_watermark_offsets(here, timeout=REACH_S)
        available += high - low
        partitions.append(confluent_kafka.TopicPartition(load.topic, partition, low))
    if available < max(1, load.records):
        raise Failure(
            f"topic {load.topic} holds {available} records, fewer than the {max(1, load.records)} asked for"
        )
    consumer.assign(partitions)
    return load.records or available


def _read(consumer: Any, wanted: int, progress: Progress) -> Result:
    count = size = 0
    first_s = last_s = started_s = time.perf_counter()
    while count < wanted:
        messages = consumer.consume(min(10_000, wanted - count), timeout=0.5)
        now_s = time.perf_counter()
        if not messages:
            if now_s - last_s > SILENCE_S_MAX:
                raise Failure(f"{count} of {wanted} records, then none for {SILENCE_S_MAX:.0f} s")
            continue
        if count == 0:
            first_s = now_s
        for message in messages:
            if message.error() is not None:
                raise Failure(f"cannot read: {message.error().str()}")
            size += len(message.value() or b"")
        count += len(messages)
        last_s = now_s
        progress(len(messages))
    return {
        **_rates(count, size, last_s - started_s),
        "first_record_ms": round((first_s - started_s) * 1000, 3),
    }


class _Receiver:
    """A consumer at the end of the topic, in a thread of its own so that neither side waits for the other's
    poll.
    """

    def __init__(self, load: Load) -> None:
        self._received: queue.SimpleQueue[tuple[bytes | None, float]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                **_common(load),
                "group.id": "tidewal-bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 500,
                "message.max.bytes": max(1_000_000, load.record_size_bytes + 1000),
            }
        )
        partitions = _partitions(self._consumer, load)
        self._consumer.assign([_end_of(self._consumer, load.topic, partition) for partition in partitions])
        self._thread = threading.Thread(target=self._receive, name="receiver")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def wait_received(self, key: bytes, deadline_s: float) -> float:
        """Return when the record of this key arrived."""
        while True:
            try:
                found, at_s = self._received.get(timeout=max(0.0, deadline_s - time.perf_counter()))
            except queue.Empty:
                raise Failure(f"a record did not come back within {SILENCE_S_MAX:.0f} s") from None
            if found == key:
                return at_s

    def _receive(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._received.put((message.key(), time.perf_counter()))


def _one(producer: Any, receiver: _Receiver, load: Load, payload: bytes, number: int) -> tuple[float, float]:
    """Return the seconds until one record was acknowledged, and until the consumer had it."""
    key = f"{number}".encode()
    done: list[float] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise Failure(f"a record was not delivered: {error.str()}")
        done.append(time.perf_counter())

    started_s = time.perf_counter()
    producer.produce(load.topic, payload, key=key, on_delivery=delivered)
    deadline_s = started_s + SILENCE_S_MAX
    while not done:
        producer.poll(0.5)
        if time.perf_counter() > deadline_s:
            raise Failure(f"a record was not acknowledged within {SILENCE_S_MAX:.0f} s")
    return done[0] - started_s, receiver.wait_received(key, deadline_s) - started_s


# --- topics and payloads ---


def _common(load: Load) -> dict[str, Any]:
    return {
        "bootstrap.servers": load.bootstrap,
        "client.id": "tidewal-bench",
        "socket.connection.setup.timeout.ms": int(REACH_S * 1000),
        "log_level": 0,
        "error_cb": _ignore,
    }


def _ignore(error: object) -> None:
    """Drop a notice of librdkafka: what ends a run is a delivery, a read or a deadline; its own notices are
    noise beside that."""


def _ensure_topic(load: Load, partitions: int) -> None:
    admin = AdminClient(_common(load))
    _reach(admin, load.bootstrap)
    future = admin.create_topics(
        [NewTopic(load.topic, num_partitions=partitions)], operation_timeout=REACH_S, request_timeout=REACH_S
    )[load.topic]
    try:
        future.result()
    except confluent_kafka.KafkaException as error:
        reason = error.args[0]
        if reason.code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise Failure(f"cannot create topic {load.topic}: {reason.str()}") from None


def _topic_ids(load: Load) -> dict[str, bytes]:
    """Ask for the topic's id; a cluster that has none is no error."""
    admin = AdminClient(_common(load))  # by name: without it the answer is lost
    asked = admin.describe_topics(confluent_kafka.TopicCollection([load.topic]), request_timeout=REACH_S)
    try:
        found = asked[load.topic].result().topic_id
    except confluent_kafka.KafkaException:
        return {}
    halves = found.get_most_significant_bits(), found.get_least_significant_bits()
    return {load.topic: b"".join(half.to_bytes(8, "big", signed=True) for half in halves)}


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn what librdkafka refuses or gives up into a Failure, in its own words."""
    try:
        yield
    except confluent_kafka.KafkaException as error:
        raise Failure(error.args[0].str().strip()) from None


def _reach(client: Any, bootstrap: str, topic: str | None = None) -> Any:
    try:
        return client.list_topics(topic, timeout=REACH_S)
    except confluent_kafka.KafkaException:
        raise Failure(f"cannot reach {bootstrap}: no answer within {REACH_S:.0f} s") from None


def _partitions(consumer: Any, load: Load) -> list[int]:
    found = _reach(consumer, load.bootstrap, load.topic).topics[load.topic]
    if found.error is not None:
        raise Failure(f"topic {load.topic}: {found.error.str()}")
    return sorted(found.partitions)


def _end_of(consumer: Any, topic: str, partition: int) -> Any:
    here = confluent_kafka.TopicPartition(topic, partition)
    _, high = consumer.get_watermark_offsets(here, timeout=REACH_S)
    return confluent_kafka.TopicPartition(topic, partition, high)


def payloads_of(size: int) -> list[bytes]:
    """Make a few distinct values that neither repeat inside a batch nor compress to nothing, the same in
    every run."""
    block = random.Random(1).randbytes(min(PAYLOAD_BYTES, max(size * 16, 4096)))
    text = block.hex().encode()  # half the entropy: compresses about 2:1, as logs and JSON do at least
    text *= max(1, -(-2 * size // len(text)))
    count = max(2, min(64, PAYLOADS_BYTES_MAX // size))
    step = max(1, (len(text) - size) // count)
    return [text[at : at + size] for at in range(0, max(1, len(text) - size), step)][:count]


# --- numbers ---


def summary(samples_ms: Sequence[float]) -> dict[str, float]:
    """Return mean, percentiles (the smallest sample not below the share) and extremes, to the microsecond."""
    if not samples_ms:
        return {}
    ranked = sorted(samples_ms)
    shares = {name: ranked[max(0, math.ceil(share * len(ranked)) - 1)] for name, share in PERCENTILES}
    found = {"mean": math.fsum(ranked) / len(ranked), "min": ranked[0], **shares, "max": ranked[-1]}
    return {name: round(value, 3) for name, value in found.items()}


def _rates(records: int, size_bytes: int, elapsed_s: float) -> Result:
    elapsed_s = max(elapsed_s, 1e-9)
    return {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(elapsed_s, 6),
        "records_per_s": round(records / elapsed_s, 1),
        "mb_per_s": round(size_bytes / elapsed_s / 1e6, 3),
    }


# --- showing it ---


@contextlib.contextmanager
def progress_bar(total: int | None, *, quiet: bool) -> Iterator[Progress]:
    """Show a bar on stderr when that is a terminal; the run itself only calls a function with how many
    more."""
    if quiet or not sys.stderr.isatty():
        yield _no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} records/s")

    columns = (BarColumn(), MofNCompleteColumn(), Rate(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.advance(task, more)


def _no_progress(more: int) -> None:
    pass


def emit_result(result: Result) -> None:
    emit(
        f"{result['run']}: {result['records']:,} records, {result['bytes']:,} bytes "
        f"in {result['seconds']:.3f} s: "
        f"{result['records_per_s']:,.0f} records/s, {result['mb_per_s']:,.2f} MB/s"
    )
    for name, value in result.items():
        if isinstance(value, dict) and value:
            emit(
                f"  {name.removesuffix('_ms')} ms: " + "  ".join(f"{key} {ms:g}" for key, ms in value.items())
            )
