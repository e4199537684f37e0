"""A manifest as it is written: every send, and what became of it.

Owns the file, its blocks and when they leave memory. Does not own what an outcome is (outcomes) nor clients
(confluent, aiokafka). Invariant: memory is bounded by one block and by the topics; a block is written whole
by one call, so what a killed writer leaves is readable up to the last one.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from crc32c import crc32c

from tools.verify.manifest.outcomes import Outcome

ROWS_PER_BLOCK: Final = 16_384
FLUSH_S: Final = 1.0
TOPICS_MAX: Final = 1 << 16
NO_OFFSET: Final = -1
NO_ID: Final = bytes(16)

_ROW: Final = struct.Struct(">qQQQQiHbB")
_DIGEST: Final = struct.Struct(">qQQIiHbB")
_BLOCK: Final = struct.Struct(">4sIIIII")
_TOPICS, _ROWS, _DIGESTS, _END = 1, 2, 3, 4


class ManifestWriter:
    """One file of a manifest, for one producer; may be used from several threads.

    `is_idempotent` and `is_ordered` are what the producer promises: no send twice, and within a partition in
    the order of the sends. `is_unique` is what the application promises: no two sends have the same key and
    value. With `keeps_rows` false, what was acknowledged is written as sums over 16,384 offsets alone.
    """

    def __init__(
        self,
        path: Path,
        *,
        started_ms: int,
        clock: Callable[[], float],
        writer: str = "",
        cluster_id: str = "",
        is_idempotent: bool = False,
        is_ordered: bool = False,
        is_unique: bool = False,
        keeps_rows: bool = True,
    ) -> None:
        self._clock = clock
        self._keeps_rows = keeps_rows
        self._lock = threading.Lock()
        self._topics: dict[str, int] = {}
        self._rows = bytearray(_ROW.size * ROWS_PER_BLOCK)
        self._count = 0
        self._oldest_s = 0.0
        self._block_number = 0
        self._sent = 0
        self._totals = [0, 0, 0]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        flags = is_idempotent | is_ordered << 1 | is_unique << 2 | (not keeps_rows) << 3
        rest = struct.pack(">Bq", flags, started_ms) + _text(writer) + _text(cluster_id)
        head = struct.pack(">4sHI", b"TWMF", 1, 10 + len(rest) + 4) + rest
        self._write(head + crc32c(head).to_bytes(4, "big"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self) -> int:
        """Number the next send, in the order in which they are handed to the producer."""
        with self._lock:
            self._sent += 1
            return self._sent

    def topic(self, name: str, topic_id: bytes = NO_ID) -> int:
        """Return the number of a topic in this file; its id is what the first call says."""
        number = self._topics.get(name)
        if number is not None:
            return number
        with self._lock:
            if name in self._topics:
                return self._topics[name]
            number = len(self._topics)
            if number == TOPICS_MAX:
                raise ValueError(f"a manifest file takes {TOPICS_MAX} topics")
            self._write_block(_TOPICS, 1, struct.pack(">H16s", number, topic_id) + _text(name))
            self._topics[name] = number
            return number

    def note(
        self,
        topic: int,
        partition: int,
        *,
        order: int,
        key_hash: int,
        value_hash: int,
        outcome: Outcome,
        offset: int = NO_OFFSET,
        acks: int = -1,
        batch: int = 0,
    ) -> None:
        """Note what became of a send. Without an answer that names them, partition and offset are -1."""
        with self._lock:
            if self._file < 0:
                return  # a callback after the end: as if killed before it came
            _ROW.pack_into(
                self._rows,
                self._count * _ROW.size,
                offset,
                key_hash,
                value_hash,
                order,
                batch,
                partition,
                topic,
                acks,
                outcome,
            )
            self._totals[outcome] += 1
            if not self._count:
                self._oldest_s = self._clock()
            self._count += 1
            if self._count == ROWS_PER_BLOCK:
                self._flush()

    def flush_old(self) -> None:
        """Write what has waited for a second; for whoever sends so little that blocks do not fill."""
        if self._count and self._clock() - self._oldest_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write the rest and the end; a file without it says that its writer was killed."""
        with self._lock:
            if self._file < 0:
                return
            self._flush()
            self._write_block(_END, 0, struct.pack(">QQQQ", sum(self._totals), *self._totals))
            os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        if not self._count or self._file < 0:
            return
        rows, count = bytes(memoryview(self._rows)[: self._count * _ROW.size]), self._count
        self._count = 0
        if not self._keeps_rows:
            digests, rows = sums_of(rows)
            count = len(rows) // _ROW.size
            if digests:
                self._write_block(_DIGESTS, len(digests) // _DIGEST.size, digests)
        if count:
            self._write_block(_ROWS, count, rows)

    def _write_block(self, kind: int, rows: int, content: bytes) -> None:
        head = _BLOCK.pack(b"TWMB", self._block_number, kind, rows, len(content), crc32c(content))
        self._block_number += 1
        self._write(head + crc32c(head).to_bytes(4, "big") + content)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]


def sums_of(rows: bytes) -> tuple[bytes, bytes]:
    """Sum what was acknowledged with an offset by topic, partition, acks and bucket; return the other rows as
    they are.
    """
    import numpy as np

    from tools.verify.core.manifest_digests import record_digests
    from tools.verify.core.manifest_files import ROW

    table: Any = np.frombuffer(rows, ROW)
    is_summed = (table["outcome"] == Outcome.OK) & (table["offset"] >= 0)
    summed = table[is_summed]
    places = np.stack([summed["topic"].astype(np.int64), summed["partition"], summed["acks"]], axis=1)
    found = bytearray()
    for topic, partition, acks in np.unique(places, axis=0).tolist():
        own = summed[(places == (topic, partition, acks)).all(axis=1)]
        for digest in record_digests(
            "",
            own["offset"].astype(np.int64),
            own["key_hash"].astype(np.uint64),
            own["value_hash"].astype(np.uint64),
        ):
            found += _DIGEST.pack(
                digest.bucket, digest.low, digest.high, digest.records, partition, topic, acks, 0
            )
    return bytes(found), table[~is_summed].tobytes()


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data
