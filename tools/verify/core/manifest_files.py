"""The files of a manifest, read block by block.

Owns their layout, as FORMAT.md tells it, and what is legal of a file whose writer was killed. Does not own
what the rows mean (manifest, manifest_rules). Invariant: never more than one block in memory, no size is
believed before it is bounded, and what follows a damaged block is read as long as heads can be.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

SUFFIX: Final = ".manifest"
FILE_MAGIC: Final = b"TWMF"
BLOCK_MAGIC: Final = b"TWMB"
VERSION: Final = 1
HEAD_BYTES_MAX: Final = 64 << 10
BLOCK_BYTES_MAX: Final = 16 << 20
HEAD_START: Final = struct.Struct(">4sHI")
HEAD_REST: Final = struct.Struct(">Bq")
BLOCK_HEAD: Final = struct.Struct(">4sIIIIII")
TOPIC_START: Final = struct.Struct(">H16s")
END: Final = struct.Struct(">QQQQ")

ROW: Final = np.dtype(
    [
        ("offset", ">i8"),
        ("key_hash", ">u8"),
        ("value_hash", ">u8"),
        ("order", ">u8"),
        ("batch", ">u8"),
        ("partition", ">i4"),
        ("topic", ">u2"),
        ("acks", "i1"),
        ("outcome", "u1"),
    ]
)
DIGEST: Final = np.dtype(
    [
        ("bucket", ">i8"),
        ("low", ">u8"),
        ("high", ">u8"),
        ("records", ">u4"),
        ("partition", ">i4"),
        ("topic", ">u2"),
        ("acks", "i1"),
        ("zero", "u1"),
    ]
)

Rows = npt.NDArray[Any]
"""Of `ROW` or `DIGEST`."""


class Outcome(IntEnum):
    OK = 0
    FAIL = 1
    """Refused: it was never appended."""
    UNKNOWN = 2


class Guarantee(IntFlag):
    IDEMPOTENT = 1
    """No send is stored twice."""
    ORDERED = 2
    """Within a partition, in the order of the sends."""
    UNIQUE = 4
    """No two sends have the same key and value."""
    DIGESTS_ONLY = 8
    """Of sends with outcome ok and an offset there are sums, not rows."""


class Kind(IntEnum):
    TOPICS = 1
    ROWS = 2
    DIGESTS = 3
    END = 4


class Head(NamedTuple):
    guarantees: Guarantee
    started_ms: int
    writer: str
    cluster_id: str


class Topic(NamedTuple):
    number: int
    topic_id: bytes
    """Zeros: the writer did not know it."""
    name: str


class End(NamedTuple):
    rows: int
    ok: int
    fail: int
    unknown: int


class Block(NamedTuple):
    kind: Kind
    position: int
    rows: Rows
    """Of rows or digests, else empty."""
    topics: tuple[Topic, ...] = ()
    end: End | None = None


class Damage(NamedTuple):
    """Bytes that no writer leaves behind, killed or not."""

    position: int
    expected: str
    actual: str


class BadFile(Exception):
    """It is no manifest, or its head is damaged; as a `Damage`."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage)
        self.damage = damage


def manifest_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX) and path.is_file())


def read_head(file: BufferedReader) -> Head | None:
    """Read up to the first block; None for a writer killed before there was one."""
    start = file.read(HEAD_START.size)
    if len(start) < HEAD_START.size:
        if (FILE_MAGIC + VERSION.to_bytes(2, "big")).startswith(start[:6]):
            return None
        raise BadFile(Damage(0, "the head of a manifest", start.hex()))
    magic, version, size = HEAD_START.unpack(start)
    if (magic, version) != (FILE_MAGIC, VERSION):
        raise BadFile(Damage(0, f"{FILE_MAGIC.hex()} version {VERSION}", f"{magic.hex()} version {version}"))
    if not HEAD_START.size + HEAD_REST.size + 8 <= size <= HEAD_BYTES_MAX:
        raise BadFile(Damage(6, f"a head of at most {HEAD_BYTES_MAX} bytes", f"{size} bytes"))
    rest = file.read(size - HEAD_START.size)
    if len(rest) < size - HEAD_START.size:
        if BLOCK_MAGIC in rest:  # a head that is cut has none after it
            raise BadFile(
                Damage(6, f"a head of at most {rest.index(BLOCK_MAGIC) + 10} bytes", f"{size} bytes")
            )
        return None
    told, found = int.from_bytes(rest[-4:], "big"), crc32c(start + rest[:-4])
    if told != found:
        raise BadFile(Damage(size - 4, f"{found:08x}", f"{told:08x}"))
    try:
        guarantees, started_ms = HEAD_REST.unpack_from(rest)
        writer, at = _text(rest, HEAD_REST.size)
        cluster_id, at = _text(rest, at)
        if at != len(rest) - 4:
            raise ValueError(f"{len(rest) - 4 - at} bytes too many")
    except (ValueError, struct.error) as error:
        raise BadFile(Damage(HEAD_START.size, "a head", str(error))) from None
    return Head(Guarantee(guarantees & 15), started_ms, writer, cluster_id)


def read_blocks(file: BufferedReader) -> Iterator[Block | Damage]:
    """Yield whole blocks, and what is damaged between them; a cut at the end of the file is none."""
    number = 0
    size_of_file = os.fstat(file.fileno()).st_size
    while True:
        position = file.tell()
        head = file.read(BLOCK_HEAD.size)
        if len(head) < BLOCK_HEAD.size:
            if not BLOCK_MAGIC.startswith(head[:4]):
                yield Damage(position, BLOCK_MAGIC.hex(), head[:4].hex())
            return
        magic, told_number, kind, rows, size, content_crc, head_crc = BLOCK_HEAD.unpack(head)
        found = crc32c(head[:-4])
        if magic != BLOCK_MAGIC or head_crc != found or size > BLOCK_BYTES_MAX:
            yield Damage(position, f"the head of block {number}", head.hex())
            return
        if told_number != number:
            yield Damage(position + 4, f"block {number}", f"block {told_number}")
        number = told_number + 1
        if position + BLOCK_HEAD.size + size > size_of_file:
            return
        content = file.read(size)
        if len(content) < size:
            return
        if (found := crc32c(content)) != content_crc:
            yield Damage(position, f"{content_crc:08x}", f"{found:08x}")
            continue
        try:
            yield _block(Kind(kind), position, rows, content)
        except (ValueError, struct.error) as error:
            yield Damage(position, "a block as its head tells", str(error))


def _block(kind: Kind, position: int, rows: int, content: bytes) -> Block:
    if kind in (Kind.ROWS, Kind.DIGESTS):
        found = np.frombuffer(content, ROW if kind is Kind.ROWS else DIGEST)
        if len(found) != rows:
            raise ValueError(f"{len(found)} rows instead of {rows}")
        if kind is Kind.ROWS and len(found) and int(found["outcome"].max()) > Outcome.UNKNOWN:
            raise ValueError(f"outcome {int(found['outcome'].max())}")
        return Block(kind, position, found)
    none = np.empty(0, ROW)
    if kind is Kind.END:
        return Block(kind, position, none, end=End._make(END.unpack(content)))
    topics, at = [], 0
    while at < len(content):
        number, topic_id = TOPIC_START.unpack_from(content, at)
        name, at = _text(content, at + TOPIC_START.size)
        topics.append(Topic(number, topic_id, name))
    if len(topics) != rows:
        raise ValueError(f"{len(topics)} topics instead of {rows}")
    return Block(kind, position, none, tuple(topics))


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">H", data, at)
    end = at + 2 + size
    if end > len(data):
        raise ValueError(f"a text of {size} bytes")
    return data[at + 2 : end].decode(), end
