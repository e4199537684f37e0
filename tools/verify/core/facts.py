"""What a scan of bytes tells about them, small enough to send to whoever judges.

Owns the rows that travel from scans to judges. Does not own how they come about (batches, directory) or what
they mean together (judge). Invariant: their number grows with objects, epochs, transactions and buckets
of offsets, not with batches; each is a plain tuple, so every engine can send it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BUCKET_BITS: Final = 14
"""Digests are over the batches whose base offsets agree but for so many bits."""


class Run(NamedTuple):
    """Consecutive batches of one leader epoch in one place."""

    place: str
    position: int
    size: int
    first: int
    end: int
    """Exclusive, with the offsets that compaction left out at the end of its last batch."""
    leader_epoch: int
    batches: int
    records: int
    control: int
    """Batches with markers."""
    max_timestamp: int
    has_gaps: bool
    """Offsets are missing within its batches, or between them where a place has too many holes: the first
    256 end a run each."""


class ProducerRun(NamedTuple):
    """Batches of one producer and producer epoch whose sequences follow each other, in one place."""

    place: str
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    first: int
    end: int
    last_timestamp: int


class Mark(NamedTuple):
    """The first offset of a producer's part of a transaction in this place, or the marker that ends it."""

    place: str
    producer_id: int
    producer_epoch: int
    offset: int
    kind: int
    """0 transactional data begins, 1 commit, 2 abort."""
    coordinator_epoch: int = -1


class Digest(NamedTuple):
    """Sums over the batches of one bucket in one place, to compare copies: equal batches give equal sums."""

    place: str
    bucket: int
    first: int
    end: int
    """Of the batches of this bucket in this place."""
    batches: int
    low: int
    high: int
    """Sums modulo 2^63 of the halves of a 64-bit mix of base offset, length, leader epoch and CRC."""


class RecordDigest(NamedTuple):
    """Sums over the records of one bucket in one place, markers left out, to compare with a manifest."""

    place: str
    bucket: int
    first: int
    end: int
    """After the last record of this bucket in this place."""
    records: int
    low: int
    high: int
    """Sums of the halves of a mix of offset, key hash and value hash."""


class Fault(NamedTuple):
    """Bytes that are not what they should be: becomes a finding once topic and partition are known.

    A batch that is named here is in no run, mark or digest. The offsets that it leaves without bytes are
    [first, end): a gap there is explained. At the end of a place `end` is -1: nobody knows how far it went.
    """

    code: str
    place: str
    position: int
    first: int = -1
    end: int = -1
    expected: str = ""
    actual: str = ""


class Piece(NamedTuple):
    """One place that holds offsets of one partition, by what it says itself: a copy or a slice."""

    tier: str
    """`local`, `wal` or `cold`."""
    place: str
    position: int
    size: int
    first: int
    end: int
    """Exclusive."""
    leader_epoch: int = -1
    """In which its writer led, of a copy or slice."""
    epoch_start: int = -1
    """Where that epoch began, -1: the place does not say."""
    log_start: int = -1
    stream: tuple[int, int, int] = (-1, -1, -1)
    """Of a slice: node, broker epoch, generation."""
    seq: int = -1
    is_bad: bool = False
    """Its bytes are not what its writer put there, and why is a fault of its own: nothing but its range is
    known."""


class LocalLog(NamedTuple):
    """A replica's log as its directory tells of it."""

    place: str
    """`<number of the data directory>:<name of the log>`; the places of its segments begin with it and a
    slash."""
    node: int
    """Of the broker, -1 unknown."""
    log_start: int
    """By the checkpoint, -1 without one."""
    first: int
    """Base offset of its first segment."""
    end: int
    high_watermark: int
    """By the checkpoint, -1 without one."""
    epochs: tuple[tuple[int, int], ...]
    """Epoch and first offset, by the checkpoint."""
    is_live: bool = False
    """Its broker may be running: retention may have gone on since the checkpoint of log starts."""


class Vanished(NamedTuple):
    """A place that was listed and was gone when it was read: retention, or loss if something still counts on
    it."""

    place: str
    first: int
    end: int


class StreamObject(NamedTuple):
    """What matters of an object of the WAL tier beyond its partitions: seals, and objects that cannot be
    read."""

    place: str
    stream: tuple[int, int, int]
    seq: int
    is_seal: bool
    metadata_seq: int
    """-1 of a bad object."""


class Tally(NamedTuple):
    """What was read of one place."""

    place: str
    size: int
    """Bytes that were judged; requests and what they brought are effort, and differ from run to run."""
    batches: int
    records: int
    requests: int = 0
    received: int = 0


class NotRead(NamedTuple):
    """What the store or the disk did not give."""

    place: str
    why: str


class NotChecked(NamedTuple):
    """What was read and could not be judged whole."""

    place: str
    why: str


class Skipped(NamedTuple):
    """A place that is there and whose batches nobody knows: left out of the sample, or not read."""

    place: str
    first: int
    end: int
    what: str = "sampled"
    """As what it is counted."""


class BatchRow(NamedTuple):
    """One batch, for the second pass."""

    place: str
    position: int
    base: int
    end: int
    size: int
    leader_epoch: int
    crc: int
    records: int


PartitionFact = (
    Run | ProducerRun | Mark | Digest | RecordDigest | Fault | Piece | LocalLog | Vanished | Skipped
)
GlobalFact = StreamObject | Tally | NotRead | NotChecked | Fault | Vanished
Fact = PartitionFact | GlobalFact

Row = tuple[str, int, Fact]
"""Topic id as text and partition, or "" and -1: not about one partition."""
GENERAL: Final = ("", -1)
