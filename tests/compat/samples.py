"""Records that a client must get back exactly as they were sent, whatever the codec.

Owns the shapes worth trying: null and empty keys and values, headers that repeat or are empty, a value larger
than a batch, odd timestamps. Does not own sending them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# An hour ago: older records fall to retention while a test still reads them, and records from the future are
# refused.
FIRST_MS = int(time.time() * 1000) - 3_600_000  # noqa: TID251


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int


# What librdkafka and Kafka allow and the Python clients refuse to send.
NOTHING = Sample(key=None, value=None, headers=(("nothing", None),), timestamp_ms=FIRST_MS)


def samples(count: int = 60) -> list[Sample]:
    odd = [
        Sample(key=None, value=b"no key", timestamp_ms=FIRST_MS),
        Sample(key=b"", value=b"", timestamp_ms=FIRST_MS + 1),
        Sample(key=b"tombstone", value=None, timestamp_ms=FIRST_MS + 1),
        Sample(key=None, value=b"\x00\xff" * 40_000, timestamp_ms=FIRST_MS - 5_000),
        Sample(
            key="ключ".encode(),
            value="värde".encode(),
            headers=(("h", b"1"), ("h", b"2"), ("empty", b""), ("名", b"\x00")),
            timestamp_ms=FIRST_MS + 2,
        ),
    ]
    plain = [
        Sample(key=b"k%d" % (n % 7), value=b"value %d " % n * (1 + n % 13), timestamp_ms=FIRST_MS + 10 + n)
        for n in range(count - len(odd))
    ]
    return (odd + plain)[:count]
