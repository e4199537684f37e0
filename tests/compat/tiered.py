"""Tidewal and Apache Kafka with a cold tier each: the same records in the same segments, part of them tiered.

Owns: the settings under which both tier within a second, topics filled alike on both, waiting until both have
tiered the same offsets and let go of them locally. Does not own what is asked of them (test_tiered).
Invariant: Kafka tiers to a directory by the one storage manager it is delivered with, for tests; nothing here
depends on how either lays out its tier.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.apis import Api
from protocol.records import build_batch
from tests.compat.differential import Side, Twins, list_offsets_fields, ready
from tests.compat.peers import ApacheKafka, Java, until
from tests.compat.samples import FIRST_MS
from tests.processes import BrokerProcess

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "0",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "300",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
}
KAFKA_SETTINGS = {
    **SETTINGS,
    "log.initial.task.delay.ms": "300",
    "remote.log.storage.manager.class.name": (
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "300",
}
SEGMENT_BYTES = 16_384
BATCH_RECORDS = 5
RECORD_BYTES = 200
BATCH_MS = 1_000
TIERED_WITHIN_S = 60.0
SETTLED_POLLS = 10

EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -2, -4, -5, -6


@dataclass(frozen=True, slots=True)
class TieredTopic:
    name: str
    end: int
    local_start: int
    tiered: int
    """The last offset in the tier."""


def kafka_settings(tier: Path) -> dict[str, str]:
    return {**KAFKA_SETTINGS, "rsm.config.dir": str(tier)}


@contextmanager
def started_tiered_twins(folder: Path, java: Java) -> Iterator[Twins]:
    """A Tidewal and an Apache Kafka with a tier each; ours must not have logged a stack trace."""
    with ExitStack() as stack:
        tier = folder / "tier"
        tier.mkdir()
        theirs = ApacheKafka(folder / "theirs", java, settings=kafka_settings(tier))
        stack.enter_context(theirs).start()
        ours = stack.enter_context(BrokerProcess(folder / "ours", settings=SETTINGS))
        pair = Twins(Side(ours.bootstrap), Side(theirs.bootstrap))
        for side in pair.sides:
            stack.callback(side.close)
            ready(side)
        yield pair
        assert "Traceback" not in ours.stderr, ours.stderr[-5000:]


def offset_of(side: Side, topic: str, timestamp: int) -> int:
    answer = side.client.call(Api.LIST_OFFSETS, 11, **list_offsets_fields(topic, timestamp))
    partition = answer.topics[0].partitions[0]
    assert not partition.error_code, partition
    return int(partition.offset)


def fill(side: Side, topic: str, batches: int, *, codec: int = 0) -> None:
    for at in range(batches):
        side.put(topic, batch_of(at, codec=codec))


def batch_of(at: int, *, codec: int = 0) -> bytes:
    """The batch of that number. Its records tell the number; timestamps rise from batch to batch, but for
    every seventh, which is late."""
    at_ms = FIRST_MS + at * BATCH_MS - (20 * BATCH_MS if at % 7 == 6 else 0)
    rows = [(None, _value(at, each), (), at_ms + each * 10) for each in range(BATCH_RECORDS)]
    return bytes(build_batch(rows, codec=codec))


def _value(at: int, each: int) -> bytes:
    """Bytes that hardly compress, so that a codec does not make one segment of everything."""
    return f"{at}-{each}.".encode() + random.Random(at * BATCH_RECORDS + each).randbytes(RECORD_BYTES)


def tiered_topic(twins: Twins, batches: int, *, codec: int = 0, **configs: str) -> TieredTopic:
    """A topic of one partition on both, tiered but for its last segments and gone locally likewise."""
    settings = {
        "remote_storage_enable": "true",
        "internal_segment_bytes": str(SEGMENT_BYTES),
        "local_retention_bytes": "1",
        "file_delete_delay_ms": "0",
        **configs,
    }
    name = twins.topic(prefix="tiered", **settings)
    for side in twins.sides:
        fill(side, name, batches, codec=codec)
    return settled(twins, name)


def settled(twins: Twins, name: str) -> TieredTopic:
    """Wait until both have tiered the same and let go of it."""

    def bounds(side: Side) -> tuple[int, ...]:
        return tuple(offset_of(side, name, each) for each in (-1, EARLIEST_LOCAL, LATEST_TIERED))

    last: list[tuple[int, ...]] = []

    def is_settled() -> tuple[int, ...] | None:
        ours, theirs = (bounds(side) for side in twins.sides)
        last.append(ours)
        agreed = ours == theirs and ours[2] >= 0 and ours[1] > 0
        return ours if agreed and last[-SETTLED_POLLS:].count(ours) == SETTLED_POLLS else None

    found: Any = until(is_settled, f"both to have tiered {name}", timeout_s=TIERED_WITHIN_S, pause_s=0.1)
    return TieredTopic(name, *found)
