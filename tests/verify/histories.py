"""What producers have done to one partition: batches over leader epochs, transactions, compaction.

Owns: the batches of a log that was never cut, and what follows from them: states of producers, aborted
transactions, epochs, indexes. Does not own where they lie (replicas, copies, slices). Invariant: all of it is
legal by Kafka's rules, so what a verifier finds was planted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tests.verify import kafka_bytes as kafka
from tests.verify.cluster import Topic
from tests.verify.kafka_bytes import Aborted, Batch, Producer, Rec
from tests.verify.page import encode

SEQUENCES = 1 << 31
OLDER_FIELDS = ("last_sequence", "last_offset", "offset_delta", "timestamp_ms")
VALUE_SIZES = (0, 1, 7, 40, 40, 90, 200)


@dataclass
class Sender:
    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    start: int = -1
    """The first offset of its open transaction."""
    coordinator_epoch: int = 0


@dataclass
class State:
    """What a log remembers, moved on batch by batch."""

    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    recent: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    """Up to five batches of each producer: last sequence and offset, their delta, time."""

    def append(self, batch: Batch) -> None:
        if batch.producer_id < 0:
            return
        old = self.producers.get(batch.producer_id)
        if old is None or old.epoch != batch.producer_epoch:
            start = -1 if old is None else old.transaction_start
            coordinator = -1 if old is None else old.coordinator_epoch
            old = Producer(
                batch.producer_id,
                batch.producer_epoch,
                coordinator_epoch=coordinator,
                transaction_start=start,
            )
            self.recent[batch.producer_id] = []
        if batch.marker is not None:
            if batch.marker == kafka.ABORT and old.transaction_start >= 0:
                others = [
                    each.transaction_start
                    for each in self.producers.values()
                    if each.producer_id != batch.producer_id and each.transaction_start >= 0
                ]
                stable = min(others, default=batch.end)
                self.aborted.append(Aborted(batch.producer_id, old.transaction_start, batch.base, stable))
            new = old._replace(
                timestamp=batch.max_time, coordinator_epoch=batch.coordinator_epoch, transaction_start=-1
            )
        else:
            start = old.transaction_start
            if batch.is_transactional and start < 0:
                start = batch.base
            new = old._replace(
                last_sequence=batch.last_sequence,
                last_offset=batch.last,
                offset_delta=batch.last - batch.base,
                timestamp=batch.max_time,
                transaction_start=start,
            )
            sent = batch.last_sequence, batch.last, batch.last - batch.base, batch.max_time
            self.recent[batch.producer_id] = [*self.recent[batch.producer_id][-4:], sent]
        self.producers[batch.producer_id] = new

    def snapshot(self, *, has_older: bool = False) -> bytes:
        """As Kafka writes it, or with the batches before the last of each producer behind it."""
        older = b""
        for producer_id, sent in self.recent.items():
            if has_older and len(sent) > 1:
                rows = [dict(zip(OLDER_FIELDS, each, strict=True)) for each in sent[:-1]]
                older += encode("older producer", {"producer_id": producer_id, "batches": rows})
        return kafka.producer_snapshot(list(self.producers.values()), b"OLD1" + older if older else b"")


@dataclass
class History:
    topic: Topic
    number: int
    batches: list[Batch] = field(default_factory=list)
    written: list[Batch] = field(default_factory=list)
    """Before compaction."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """Each leader epoch that ever was in force, with the end of the log then; some have no records."""
    is_compacted: bool = False
    log_start: int = 0
    end: int = 0
    high: int = 0
    """The watermark that is committed."""
    local_start: int = 0

    @property
    def id(self) -> tuple[str, int]:
        return self.topic.short_id, self.number

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Those with records."""
        found: list[tuple[int, int]] = []
        for batch in self.written:
            if not found or found[-1][0] != batch.epoch:
                found.append((batch.epoch, batch.base))
        return found

    def epochs_of(self, start: int, end: int) -> list[tuple[int, int]]:
        """The epochs of a range, the first cut to its start."""
        known = self.epochs
        at = bisect_right([first for _, first in known], start) - 1
        within = [each for each in known[max(at, 0) :] if each[1] < end]
        if within and within[0][1] < start:
            within[0] = within[0][0], start
        return within

    def between(self, start: int, end: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.last >= start and batch.base < end]

    def state_at(self, offset: int) -> State:
        state = State()
        for batch in self.written:
            if batch.base >= offset:
                break
            state.append(batch)
        return state

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        return [each for each in self.state_at(end).aborted if start <= each.last]

    def edges(self) -> list[int]:
        """Where a segment may begin."""
        return [batch.base for batch in self.written]

    def stable(self, end: int) -> int:
        open_ones = [each.transaction_start for each in self.state_at(end).producers.values()]
        return min((start for start in open_ones if start >= 0), default=end)


class Author:
    """Writes a history: `rng` decides what happens."""

    def __init__(self, rng: Random, history: History, *, batches: int, now_ms: int, is_plain: bool = False):
        self.rng = rng
        self.history = history
        self.wanted = batches
        self.time = now_ms - 3_600_000 * rng.randint(3, 40)
        first_id = rng.randrange(0, 5000)
        has_producers = not is_plain and rng.random() < 0.8
        count = rng.randint(1, 3) if has_producers else 0
        self.senders = [
            Sender(
                first_id + at,
                rng.choice([0, 0, 0, 3]),
                rng.choice([0, 0, 0, 17, SEQUENCES - 9]),
                rng.random() < 0.6,
            )
            for at in range(count)
        ]
        self.codecs = rng.choice([[0], [0, 1, 2, 3, 4], [rng.randrange(5)], [0, 0, 4]])

    def write(self, leader_epochs: Sequence[int]) -> None:
        """The batches of these epochs in turn; the last begins with the newest leader."""
        rng, history = self.rng, self.history
        shares = [rng.choice([0, 1, 1, 2]) for _ in leader_epochs]
        total = sum(shares) or 1
        for leader_epoch, share in zip(leader_epochs, shares, strict=True):
            history.starts.append((leader_epoch, history.end))
            for _ in range(round(self.wanted * share / total)):
                self._step(leader_epoch)
        if not history.written:
            for _ in range(self.wanted):
                self._step(leader_epochs[-1])
        if rng.random() < 0.6:
            for sender in self.senders:
                if sender.start >= 0:
                    self._marker(sender, leader_epochs[-1])
        history.batches = list(history.written)

    def _step(self, leader_epoch: int) -> None:
        rng = self.rng
        sender = rng.choice(self.senders) if self.senders and rng.random() < 0.8 else None
        if sender is not None and sender.start >= 0 and rng.random() < 0.3:
            self._marker(sender, leader_epoch)
            return
        if sender is not None and sender.start < 0 and rng.random() < 0.05:
            sender.epoch += 1
            sender.sequence = 0
        self._data(sender, leader_epoch)

    def _data(self, sender: Sender | None, leader_epoch: int) -> None:
        rng = self.rng
        records = list(self._records(rng.choice([1, 1, 2, 3, 5, 9])))
        is_append_time = rng.random() < 0.1
        batch = Batch(
            base=self.history.end,
            last=self.history.end + len(records) - 1,
            epoch=leader_epoch,
            records=tuple(records),
            base_time=self.time,
            max_time=self.time + max(each.time_delta for each in records),
            codec=rng.choice(self.codecs),
            attributes=kafka.LOG_APPEND_TIME if is_append_time else 0,
        )
        if sender is not None:
            batch = replace(
                batch,
                producer_id=sender.producer_id,
                producer_epoch=sender.epoch,
                sequence=sender.sequence,
                attributes=batch.attributes | (kafka.TRANSACTIONAL if sender.is_transactional else 0),
            )
            sender.sequence = (batch.last_sequence + 1) % SEQUENCES
            if sender.is_transactional and sender.start < 0:
                sender.start = batch.base
        self.add(batch)

    def _records(self, count: int) -> Iterator[Rec]:
        rng = self.rng
        for at in range(count):
            key = rng.choice([None, b"", b"key-%d" % rng.randrange(40), rng.randbytes(rng.randrange(12))])
            if self.history.is_compacted:
                key = b"key-%d" % rng.randrange(40)
            size = rng.choice(VALUE_SIZES)
            value = rng.choice([None, rng.randbytes(size), b"v" * size, rng.randbytes(size)])
            headers = (
                ((("h", rng.choice([None, b"", b"x"])),) * rng.choice([1, 2])) if rng.random() < 0.1 else ()
            )
            yield Rec(at, rng.randrange(0, 50), key, value, headers)

    def _marker(self, sender: Sender, leader_epoch: int) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            sender.coordinator_epoch += 1
        marker = rng.choice([kafka.COMMIT, kafka.ABORT])
        self.add(
            Batch(
                base=self.history.end,
                last=self.history.end,
                epoch=leader_epoch,
                records=(kafka.marker_record(marker, sender.coordinator_epoch),),
                base_time=self.time,
                max_time=self.time,
                producer_id=sender.producer_id,
                producer_epoch=sender.epoch,
                attributes=kafka.TRANSACTIONAL | kafka.CONTROL,
                marker=marker,
                coordinator_epoch=sender.coordinator_epoch,
            )
        )
        sender.start = -1

    def add(self, batch: Batch) -> None:
        self.time += self.rng.choice([0, 1, 50, 1000])
        self.history.written.append(replace(batch, data=kafka.encode_batch(batch)))
        self.history.end = batch.end


def compact(rng: Random, history: History, up_to: int, now_ms: int) -> None:
    """Leave out records that later ones with their keys replace, and with them whole batches; what is left
    of a producer may be an empty batch. Aborted data goes, its marker may stay."""
    aborted = history.state_at(history.end).aborted
    kept: list[Batch] = []
    gone = {
        batch.base
        for batch in history.written
        if batch.is_transactional and batch.marker is None
        for each in aborted
        if each.producer_id == batch.producer_id and each.first <= batch.base <= each.last
    }
    newest = {
        each.key: (batch.base, each.delta)
        for batch in history.written
        if batch.marker is None and batch.base not in gone
        for each in batch.records
    }
    newest_of = {
        batch.producer_id: batch.base
        for batch in history.written
        if batch.marker is None and batch.producer_id >= 0
    }
    for batch in history.written:
        if batch.base >= up_to:
            kept.append(batch)
            continue
        if batch.marker is not None:
            if _holds_transaction(kept, batch) or rng.random() < 0.7:
                marker = replace(
                    batch, base_time=now_ms + 86_400_000, attributes=batch.attributes | kafka.HAS_HORIZON
                )
                kept.append(rng.choice([batch, replace(marker, data=encode_horizon(marker))]))
            continue
        records = tuple(
            each
            for each in batch.records
            if batch.base not in gone and newest.get(each.key) == (batch.base, each.delta)
        )
        if len(records) == len(batch.records):
            kept.append(batch)
        elif records or (batch.producer_id in newest_of and newest_of[batch.producer_id] == batch.base):
            smaller = replace(batch, records=records, codec=batch.codec if records else kafka.NONE)
            kept.append(replace(smaller, data=kafka.encode_batch(smaller)))
    history.batches = kept


def _holds_transaction(kept: Sequence[Batch], marker: Batch) -> bool:
    """Whether anything is left of the transaction that a marker ends: the marker then stays."""
    for batch in reversed(kept):
        if batch.producer_id == marker.producer_id:
            return batch.marker is None
    return False


def encode_horizon(batch: Batch) -> bytes:
    """With a delete horizon the base timestamp is that, and the deltas are relative to it."""
    shifted = tuple(each._replace(time_delta=batch.max_time - batch.base_time) for each in batch.records)
    return kafka.encode_batch(replace(batch, records=shifted))
