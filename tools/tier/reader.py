"""What the brokers say of tiered segments, read from `__remote_log_metadata` as any client reads a topic.

Owns: which of its partitions are read, and how far. Does not own: what the records mean together
(remote.cold.fold), the connection (tools.client). Invariant: after `read` the folds know all that was
committed when it was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import iter_batches, iter_records
from protocol.stored.schema import BadRecord
from remote.cold.events import decode_event
from remote.cold.fold import PartitionFold, TierFold
from remote.cold.partitioner import metadata_partition
from remote.cold.segments import RemoteSegment, TieredPartition
from tools.client import Client, RequestFailed
from tools.patience import patiently

METADATA_TOPIC: Final = "__remote_log_metadata"
FETCH_BYTES: Final = 4 << 20
ELECTION_S: Final = 10.0
HIGH_WATERMARK, LOG_START, LOCAL_START, PENDING_UPLOAD = -1, -2, -4, -6


class TierReader:
    """Folds what the brokers said about some partitions, up to the end of the topic at each `read`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._count = 0
        self._folds: dict[int, TierFold] = {}
        self._read_to: dict[int, int] = {}

    async def open(self) -> None:
        """Ask how the topic is divided; there is none before the first tiered topic."""
        answer = await self._client.refresh([METADATA_TOPIC])
        code = answer.topics[0].error_code
        if code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            raise KafkaError(code, f"topic {METADATA_TOPIC}")
        self._count = len(answer.topics[0].partitions)

    async def read(self, partitions: Iterable[TieredPartition]) -> None:
        if self._count:
            for number in sorted({metadata_partition(each, self._count) for each in partitions}):
                await self._read_to_end(number)

    def get(self, partition: TieredPartition) -> PartitionFold | None:
        fold = self._folds.get(metadata_partition(partition, self._count)) if self._count else None
        return None if fold is None else fold.get(partition)

    async def _read_to_end(self, number: int) -> None:
        fold = self._folds.setdefault(number, TierFold())

        def apply(key: bytes | None, value: bytes | None) -> None:
            fold.apply(decode_event(key, value))

        self._read_to[number] = await read_on(
            self._client, METADATA_TOPIC, number, self._read_to.get(number), apply
        )


async def read_on(
    client: Client,
    topic: str,
    number: int,
    at: int | None,
    apply: Callable[[bytes | None, bytes | None], None],
) -> int:
    """Apply the keys and values of one partition from offset `at` on, from its beginning without one, to its
    end; return where that is."""
    end = await offset_of(client, topic, number, HIGH_WATERMARK)
    if at is None:
        at = await offset_of(client, topic, number, LOG_START)
    while at < end:
        fetched = await client.fetch(topic, number, at, max_bytes=FETCH_BYTES)
        if fetched.error_code != ErrorCode.none:
            raise KafkaError(fetched.error_code, f"partition {topic}-{number}")
        data = bytes(fetched.records or b"")
        if not data:
            raise RequestFailed(f"{topic}-{number} ends at {end} and gives nothing from {at} on")
        try:
            at = _apply(apply, data, at)
        except (BadRecord, CorruptBatch) as error:
            raise RequestFailed(f"{topic}-{number} from {at} on: {error}") from None
    return at


def _apply(apply: Callable[[bytes | None, bytes | None], None], data: bytes, at: int) -> int:
    """Apply the records from offset `at` on; return the offset after them."""
    for position, header in iter_batches(data):
        for record in iter_records(data, position, header):
            if record.offset >= at:
                apply(record.key, record.value)
        at = header.last_offset + 1
    return at


async def offset_of(client: Client, topic: str, partition: int, name: int) -> int:
    """Return the offset of that name; wait for a leader that has just been elected or started."""

    async def ask() -> int:
        code, offset, _ = await client.list_offset(topic, partition, name)
        if code != ErrorCode.none:
            raise KafkaError(code, f"partition {topic}-{partition}")
        return offset

    return await patiently(client, topic, ask, patience_s=ELECTION_S)


async def partitions_of(client: Client, topic: str) -> list[TieredPartition]:
    answer = await client.refresh([topic])
    code = answer.topics[0].error_code
    if code != ErrorCode.none:
        raise KafkaError(code, f"topic {topic}")
    topic_id = client.known.topic_ids[topic]
    return [TieredPartition(topic_id, number) for number in client.known.partitions[topic]]


def copies_of(fold: PartitionFold | None) -> list[RemoteSegment]:
    """All that may have objects, by their base offsets."""
    if fold is None:
        return []
    return sorted(
        (*fold.finished(), *fold.unfinished(), *fold.deleting()), key=lambda copy: (copy.base_offset, copy.id)
    )


def time_text(at_ms: int) -> str | None:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds") if at_ms >= 0 else None
    except (ValueError, OverflowError, OSError):
        return None


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
