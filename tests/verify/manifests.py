"""What producers noted of what they sent: the files of a manifest, right in every row.

Owns: which producer sent which batch, what it was told, and the bytes of its file. Does not own the batches
(histories) or what is wrong with a file (faults_manifest). Invariant: what is noted is what the page allows
of a log without loss, until a fault is planted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from tests.verify.histories import History
from tests.verify.kafka_bytes import Batch, Rec
from tests.verify.page import encode
from tests.verify.world import MANIFEST, World

OK, FAIL, UNKNOWN = range(3)
TOPICS, ROWS, DIGESTS, END = range(1, 5)
IDEMPOTENT, ORDERED, UNIQUE, DIGESTS_ONLY = 1, 2, 4, 8
ALL = -1
NOWHERE = -1
BUCKET = 16_384
WORD = (1 << 64) - 1

Word = tuple[int, int]
"""The hashes of key and value."""


def hashed(data: bytes | None) -> int:
    return 0 if data is None else int(xxh3_64_intdigest(data)) or 1


def word_of(record: Rec) -> Word:
    return hashed(record.key), hashed(record.value)


@dataclass
class Row:
    history: History
    word: Word
    order: int
    offset: int = NOWHERE
    batch: int = 0
    outcome: int = OK
    acks: int = ALL
    is_anywhere: bool = False
    """Its producer does not know to which partition it went."""

    @property
    def is_placed(self) -> bool:
        return self.outcome == OK and self.offset >= 0


@dataclass
class Notes:
    """One file."""

    name: str
    cluster_id: str
    acks: int
    is_ordered: bool
    is_idempotent: bool
    keeps_rows: bool
    knows_ids: bool
    per_block: int
    is_killed: bool = False
    is_unique: bool = False
    rows: list[Row] = field(default_factory=list)
    """In the order in which outcomes became known."""
    totals: dict[str, int] = field(default_factory=dict)
    """What its end says otherwise: for faults."""
    digest: dict[str, int] = field(default_factory=dict)
    """What its first sum says otherwise: for faults."""

    @property
    def path(self) -> str:
        return f"{MANIFEST}{self.name}.manifest"

    @property
    def place(self) -> str:
        return f"manifest:{self.name}.manifest"

    def next_order(self) -> int:
        return max((row.order for row in self.rows), default=0) + 1

    def next_batch(self) -> int:
        return max((row.batch for row in self.rows), default=0) + 1

    # --- bytes ---

    def data(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> list[bytes]:
        """The head, then each block."""
        numbers: dict[str, int] = {}
        blocks: list[tuple[int, int, bytes]] = []
        for at in range(0, len(self.rows), self.per_block):
            part = self.rows[at : at + self.per_block]
            new = {row.history.topic.name: row.history.topic for row in part}
            topics = []
            for name, topic in new.items():
                if name not in numbers:
                    numbers[name] = len(numbers)
                    known = topic.id if self.knows_ids else bytes(16)
                    topics.append({"number": numbers[name], "topic_id": known, "name": name})
            if topics:
                blocks.append((TOPICS, len(topics), encode("manifest topics", {"topics": topics})))
            rows = [row for row in part if self.keeps_rows or not row.is_placed]
            sums = [] if self.keeps_rows else self._sums([row for row in part if row.is_placed], numbers)
            if sums:
                if self.digest and not any(kind == DIGESTS for kind, _, _ in blocks):
                    sums[0] = {key: value + self.digest.get(key, 0) for key, value in sums[0].items()}
                blocks.append((DIGESTS, len(sums), encode("manifest digests", {"digests": sums})))
            if rows:
                values = [self._row(row, numbers) for row in rows]
                blocks.append((ROWS, len(rows), encode("manifest rows", {"rows": values})))
        if not self.is_killed:
            count = Counter(row.outcome for row in self.rows)
            totals = {"ok": count[OK], "fail": count[FAIL], "unknown": count[UNKNOWN]}
            totals["rows"] = sum(totals.values())
            blocks.append((END, 0, encode("manifest end", totals | self.totals)))
        return [self._head(), *(block(number, *each) for number, each in enumerate(blocks))]

    def _head(self) -> bytes:
        guarantees = IDEMPOTENT * self.is_idempotent + ORDERED * self.is_ordered
        guarantees += UNIQUE * self.is_unique + DIGESTS_ONLY * (not self.keeps_rows)
        values = {
            "head_size": 0,
            "guarantees": guarantees,
            "started_ms": 1,
            "writer": self.name,
            "cluster_id": self.cluster_id,
        }
        values["head_size"] = len(encode("manifest head", values))
        return encode("manifest head", values)

    def _row(self, row: Row, numbers: dict[str, int]) -> dict[str, int]:
        return {
            "offset": row.offset,
            "key_hash": row.word[0],
            "value_hash": row.word[1],
            "order": row.order,
            "batch": row.batch,
            "partition": -1 if row.is_anywhere else row.history.number,
            "topic": numbers[row.history.topic.name],
            "acks": row.acks,
            "outcome": row.outcome,
        }

    def _sums(self, rows: list[Row], numbers: dict[str, int]) -> list[dict[str, int]]:
        found: dict[tuple[int, int, int, int], dict[str, int]] = {}
        for row in rows:
            topic, number = numbers[row.history.topic.name], row.history.number
            bucket = row.offset // BUCKET
            digest = found.setdefault(
                (topic, number, row.acks, bucket),
                {"bucket": bucket, "low": 0, "high": 0, "records": 0, "partition": number}
                | {"topic": topic, "acks": row.acks, "zero": 0},
            )
            mixed = fmix64(fmix64(row.offset * 0x9E3779B97F4A7C15 + row.word[0]) + row.word[1])
            digest["low"] += mixed & 0xFFFFFFFF
            digest["high"] += mixed >> 32
            digest["records"] += 1
        return list(found.values())


def fmix64(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word &= WORD
        word = (word ^ word >> 33) * factor & WORD
    return word ^ word >> 33


def block(number: int, kind: int, rows: int, content: bytes) -> bytes:
    values = {
        "number": number,
        "kind": kind,
        "rows": rows,
        "size": len(content),
        "content_crc": crc32c(content),
    }
    return encode("manifest block head", values) + content


@dataclass
class Manifest:
    """All files of a store's producers."""

    world: World
    rng: Random
    notes: list[Notes] = field(default_factory=list)
    noted: list[History] = field(default_factory=list)
    shared: set[tuple[str, int]] = field(default_factory=set)
    """Partitions to which others send too."""
    is_answered: bool = False
    """Every send that is in the log was acknowledged with its offset."""
    _words: Counter[Word] = field(default_factory=Counter)

    def note_all(self, histories: list[History]) -> None:
        """Note most of what is in most of the logs, and some sends that need not be there."""
        rng = self.rng
        self.noted = [each for each in histories if rng.random() < 0.8]
        self.shared = {each.id for each in self.noted if rng.random() < 0.3}
        self.is_answered = rng.random() < 0.4
        for number in range(rng.randint(1, 3)):
            self.notes.append(self._new(f"p{number}"))
        sent = {each.id: [batch for batch in each.written if batch.marker is None] for each in self.noted}
        self._words = Counter(
            word_of(record) for batches in sent.values() for batch in batches for record in batch.records
        )
        left = [(each, iter(sent[each.id])) for each in self.noted]
        while left:  # each partition in its order, the partitions in turns
            at = rng.randrange(len(left))
            history, batches = left[at]
            batch = next(batches, None)
            if batch is None:
                del left[at]
            else:
                self._note(history, batch)
        for notes in self.notes:
            for history in self.noted:
                if rng.random() < 0.3:
                    self._unsent(notes, history)
            for _ in range(rng.randrange(4)):  # answers that came late
                if len(notes.rows) > 1:
                    one = rng.randrange(len(notes.rows) - 1)
                    notes.rows[one], notes.rows[one + 1] = notes.rows[one + 1], notes.rows[one]
            notes.is_unique = all(self._words[row.word] <= 1 for row in notes.rows)

    def is_single(self, word: Word) -> bool:
        """Whether no other record of the noted logs has this key and value."""
        return self._words[word] <= 1

    def _new(self, name: str) -> Notes:
        rng = self.rng
        acks = rng.choice([ALL, ALL, ALL, 1, 0])
        return Notes(
            name,
            rng.choice(["", self.world.cluster.id]),
            acks,
            is_ordered=rng.random() < 0.7,
            is_idempotent=acks == ALL and rng.random() < 0.7,
            keeps_rows=rng.random() < 0.75,
            knows_ids=rng.random() < 0.6,
            per_block=rng.choice([3, 20, 1000]),
            is_killed=rng.random() < 0.2,
        )

    def _is_gone(self, history: History, batch: Batch) -> bool:
        """Whether compaction may have taken it without a later record of its keys: it was aborted."""
        aborted = history.state_at(history.end).aborted if history.is_compacted else []
        return any(
            each.producer_id == batch.producer_id and each.first <= batch.base <= each.last
            for each in aborted
        )

    def _note(self, history: History, batch: Batch) -> None:
        rng = self.rng
        notes = rng.choice(self.notes)
        number = rng.choice([0, notes.next_batch()])
        is_committed = batch.end <= history.high or notes.acks != ALL
        is_left_out = history.id in self.shared or (self.is_answered and not is_committed)
        if is_left_out and all(self.is_single(word_of(each)) for each in batch.records):
            return  # another has sent it; what both had sent alike would look like sent twice
        is_sure = history.is_compacted or self.is_answered
        outcome = OK if is_committed and (is_sure or rng.random() < 0.9) else UNKNOWN
        if self._is_gone(history, batch):
            outcome = UNKNOWN
        has_offset = is_sure or rng.random() < 0.95
        for record in batch.records:
            row = Row(history, word_of(record), notes.next_order(), batch=number, acks=notes.acks)
            row.outcome = outcome
            if outcome == OK and has_offset:
                row.offset = batch.base + record.delta
            row.is_anywhere = outcome == UNKNOWN and number == 0 and rng.random() < 0.2
            notes.rows.append(row)

    def _unsent(self, notes: Notes, history: History) -> None:
        """What is not in the log, and need not be."""
        rng, batch = self.rng, notes.next_batch()
        outcome = rng.choice([FAIL, UNKNOWN, OK] if notes.acks != ALL else [FAIL, UNKNOWN])
        for at in range(rng.randint(1, 3)):
            row = Row(history, self.fresh(), notes.next_order(), outcome=outcome, acks=notes.acks)
            if outcome == OK:
                row.offset = history.end + at  # lost with its leader
            elif outcome == UNKNOWN:
                row.batch = batch
            notes.rows.append(row)

    def fresh(self) -> Word:
        """Of a record like no other."""
        return self.rng.getrandbits(63) + 1, self.rng.getrandbits(63) + 1

    def is_summed(self, history: History) -> bool:
        """Whether some of it is only in sums."""
        return any(
            row.history is history and row.is_placed
            for notes in self.notes
            if not notes.keeps_rows
            for row in notes.rows
        )

    def write(self) -> None:
        for notes in self.notes:
            self.world.files[notes.path] = notes.data()
        if self.notes and self.rng.random() < 0.3:  # a producer that was killed at any byte
            notes = self.rng.choice(self.notes)
            if notes.is_killed:
                data = self.world.files[notes.path]
                self.world.files[notes.path] = data[: self.rng.randrange(len(data))]
