"""Manifests that the log does not bear out, and files of theirs that are damaged.

Owns: rows that say what the log does not, sums that do not add up, blocks that are no blocks. Does not own
what is right of them (manifests) or how faults are chosen (faults). Invariant: a row is changed only where
nothing else makes its absence legal, and a file either in its rows or in its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.verify import kafka_bytes as kafka
from tests.verify.faults import Expected, Plan, Planted, about, in_files, in_model
from tests.verify.histories import History
from tests.verify.kafka_bytes import Batch
from tests.verify.manifests import (
    ALL,
    BUCKET,
    END,
    FAIL,
    NOWHERE,
    OK,
    ROWS,
    TOPICS,
    UNKNOWN,
    Notes,
    Row,
    block,
    word_of,
)
from tests.verify.page import encode
from tests.verify.world import MANIFEST

BAD_FILE = "manifest-bad-file"
RUBBISH = f"{MANIFEST}rubbish.manifest"


def files(plan: Plan) -> list[Notes]:
    """Those that are there to their last byte."""
    return [
        notes
        for notes in plan.candidates(list(plan.made.manifest.notes))
        if plan.files.get(notes.path) == notes.data() and plan.is_free(notes.path)
    ]


def is_all_told(plan: Plan) -> bool:
    """Whether no send is untold: of one that is untold may be what a rule would be broken by."""
    manifest = plan.made.manifest
    return (
        RUBBISH not in plan.files
        and len(files(plan)) == len(manifest.notes)
        and all(notes.is_unique or not notes.is_killed for notes in manifest.notes)
    )


def say(plan: Plan, notes: Notes) -> None:
    plan.files[notes.path] = notes.data()


def take_rows(plan: Plan, notes: Notes, history: History, first: int, end: int) -> bool:
    """Claim these offsets, of a file whose bytes nobody has touched."""
    return plan.take(("rows", notes.path, first, history.id), history=history, first=first, end=end)


def in_log(history: History) -> dict[int, Batch]:
    """The batch of each offset that the log must have."""
    return {
        batch.base + each.delta: batch
        for batch in history.batches
        for each in batch.records
        if batch.marker is None and history.log_start <= batch.base + each.delta < history.high
    }


def placed(plan: Plan, *, is_single: bool = False) -> Iterator[tuple[Notes, Row]]:
    """Rows of records that the log has, acknowledged by all, out of files that keep rows."""
    manifest = plan.made.manifest
    for notes in files(plan):
        if not notes.keeps_rows or notes.acks != ALL:
            continue
        there = {each.id: in_log(each) for each in manifest.noted}
        rows = [row for row in notes.rows if row.is_placed and row.offset in there[row.history.id]]
        for row in plan.candidates(rows):
            if not is_single or (manifest.is_single(row.word) and not manifest.is_summed(row.history)):
                yield notes, row


def at_row(row: Row, code: str) -> Expected:
    return about(row.history, code, first=row.offset, end=row.offset + 1)


@in_files
def manifest_lost(plan: Plan) -> Planted | None:
    """The log lost its end, and looks whole without it; damage of what is before it would be told with it."""
    manifest = plan.made.manifest
    for notes in files(plan):
        if notes.acks != ALL or not notes.keeps_rows:
            continue
        for history in plan.candidates([each for each in manifest.noted if not manifest.is_summed(each)]):
            count = plan.rng.randint(1, 4)
            if not take_rows(plan, notes, history, history.end - 1, history.end + count):
                continue
            for at in range(count):
                row = Row(history, manifest.fresh(), notes.next_order(), history.end + at)
                notes.rows.append(row)
            say(plan, notes)
            found = about(history, "manifest-loss", first=history.end, end=history.end + count)
            return Planted("", [found])
    return None


@in_files
def manifest_lost_without_offset(plan: Plan) -> Planted | None:
    """A record that was acknowledged, nobody knows where, and is nowhere."""
    manifest = plan.made.manifest
    for notes in files(plan):
        for history in plan.candidates([each for each in manifest.noted if not manifest.is_summed(each)]):
            if notes.acks != ALL or history.is_compacted or history.log_start or history.local_start:
                continue
            if plan.take(("rows", notes.path, -1, history.id), history=history):
                notes.rows.append(Row(history, manifest.fresh(), notes.next_order()))
                say(plan, notes)
                return Planted("", [about(history, "manifest-loss", first=-1)])
    return None


@in_files
def manifest_altered(plan: Plan) -> Planted | None:
    for notes, row in placed(plan):
        if take_rows(plan, notes, row.history, row.offset, row.offset + 1):
            row.word = row.word[0], row.word[1] ^ 1 << plan.rng.randrange(64)
            say(plan, notes)
            return Planted("", [at_row(row, "manifest-altered")])
    return None


@in_files
def manifest_phantom(plan: Plan) -> Planted | None:
    """Its producer was told that it was refused."""
    for notes, row in placed(plan, is_single=True):
        if take_rows(plan, notes, row.history, row.offset, row.offset + 1):
            found = at_row(row, "manifest-phantom")
            row.outcome, row.offset = FAIL, NOWHERE
            say(plan, notes)
            return Planted("", [found])
    return None


@in_files
def manifest_order(plan: Plan) -> Planted | None:
    for notes, row in placed(plan):
        own = sorted(
            (each for each in notes.rows if each.history is row.history and each.is_placed),
            key=lambda each: each.order,
        )
        later = next((each for each in own if each.order > row.order), None)
        if not notes.is_ordered or later is None or later.offset <= row.offset:
            continue
        if take_rows(plan, notes, row.history, row.offset, later.offset + 1):
            row.order, later.order = later.order, row.order
            say(plan, notes)
            return Planted("", [at_row(row, "manifest-order")._replace(place=notes.place)])
    return None


@in_files
def manifest_torn_batch(plan: Plan) -> Planted | None:
    """Of a batch without an answer a part is in the log."""
    manifest = plan.made.manifest
    for notes, row in placed(plan, is_single=True) if is_all_told(plan) else ():
        history, batch = row.history, in_log(row.history)[row.offset]
        own = [each for each in notes.rows if each.is_placed and each.offset in range(batch.base, batch.end)]
        own = [each for each in own if each.history is history]
        if history.is_compacted or batch.base <= history.log_start or len(own) != len(batch.records):
            continue
        if not all(manifest.is_single(each.word) for each in own):
            continue
        told = [("rows", each.path, batch.base, history.id, "torn") for each in manifest.notes]
        if plan.take(*told, history=history, first=batch.base - 1, end=batch.end + 1):
            number = notes.next_batch()
            for each in own:
                each.outcome, each.offset, each.batch = UNKNOWN, NOWHERE, number
            more = Row(history, manifest.fresh(), notes.next_order(), batch=number, outcome=UNKNOWN)
            notes.rows.append(more)
            say(plan, notes)
            found = about(history, "manifest-torn-batch", first=batch.base, end=batch.end)
            return Planted("", [found])
    return None


@in_files
def manifest_offset_twice(plan: Plan) -> Planted | None:
    """One offset was acknowledged for two sends."""
    for notes, row in placed(plan):
        if notes.is_ordered or not take_rows(plan, notes, row.history, row.offset, row.offset + 1):
            continue
        notes.rows.append(replace(row, order=notes.next_order()))
        say(plan, notes)
        return Planted("", [at_row(row, "manifest-duplicate")])
    return None


@in_model
def manifest_stored_twice(plan: Plan) -> Planted | None:
    """The log has a record of an idempotent producer again, in a later batch."""
    manifest = plan.made.manifest
    if not all(notes.is_idempotent and not notes.is_killed for notes in manifest.notes):
        return None
    for history in plan.candidates(list(manifest.noted)):
        if history.is_compacted or history.id in manifest.shared or manifest.is_summed(history):
            continue
        rows = {
            row.offset: (notes, row)
            for notes in manifest.notes
            for row in notes.rows
            if row.history is history and row.is_placed
        }
        there = in_log(history)
        batches = [
            batch
            for at, batch in there.items()
            if at == batch.base and all(batch.base + each.delta in rows for each in batch.records)
        ]
        singles = [
            (batch, each)
            for batch in batches
            for each in batch.records
            if manifest.is_single(word_of(each)) and batch.base >= history.log_start
        ]
        later = [batch for batch in batches if singles and batch.base > singles[0][0].base]
        names = [("rows", notes.path, 0, history.id) for notes in manifest.notes]
        if not later or not plan.take(("twice", history.id), *names, history=history):
            continue
        batch, again = plan.rng.choice(later), singles[0][1]
        records = tuple(each._replace(key=again.key, value=again.value) for each in batch.records)
        new = replace(batch, records=records)
        plan.replace_batch(history, batch, replace(new, data=kafka.encode_batch(new)))
        found = []
        for at in range(batch.base, batch.end):
            notes, row = rows[at]
            notes.rows.remove(row)
            found.append(about(history, "manifest-duplicate", first=at, end=at + 1))
        return Planted("", found)
    return None


# --- sums ---


@in_files
def manifest_sum_lies(plan: Plan) -> Planted | None:
    """A sum, or the number of its records, is not that of the log. What another file does not tell any more
    would look like sent by others."""
    manifest = plan.made.manifest
    whole = files(plan)
    for notes in whole if len(whole) == len(manifest.notes) else ():
        row = next((row for row in notes.rows if row.is_placed), None)
        if notes.keeps_rows or row is None or notes.digest:
            continue
        history = row.history
        open_words = {
            each.word
            for other in manifest.notes
            for each in other.rows
            if not each.is_placed and each.outcome != FAIL
        }
        is_weak = any(
            not other.keeps_rows and other.acks != ALL and any(each.history is history for each in other.rows)
            for other in manifest.notes
        )
        words = {word_of(each) for batch in history.written for each in batch.records}
        if history.is_compacted or history.log_start or history.local_start or words & open_words or is_weak:
            continue
        if history.id in manifest.shared or history.high < history.end:
            continue
        told = [("rows", each.path, 0, history.id) for each in manifest.notes]
        if plan.take(*told, history=history):
            what = plan.rng.choice(["low", "high", "records"])
            notes.digest = {what: 1}
            if what == "records":
                count = [sum(row.outcome == outcome for row in notes.rows) for outcome in (OK, FAIL, UNKNOWN)]
                notes.totals = {"ok": count[OK] + 1, "rows": sum(count) + 1}
            say(plan, notes)
            code = "manifest-loss" if what == "records" else "manifest-altered"
            return Planted("", [about(history, code, first=0, end=BUCKET)])
    return None


# --- files ---


def whole_file(plan: Plan) -> Iterator[tuple[Notes, list[bytes]]]:
    """A file whose rows nobody has touched, with its pieces."""
    for notes in files(plan):
        touched = any(thing[:2] == ("rows", notes.path) for thing in plan.taken if isinstance(thing, tuple))
        if not touched and plan.take(notes.path):
            yield notes, notes.pieces()


def bad_file(notes: Notes, position: int | None) -> Planted:
    return Planted("", [Expected((BAD_FILE,), place=notes.place, position=position)])


@in_files
def manifest_block_flipped(plan: Plan) -> Planted | None:
    for notes, pieces in whole_file(plan):
        if len(pieces) > 1:
            number = plan.rng.randrange(1, len(pieces))
            start = sum(map(len, pieces[:number]))
            data = bytearray(plan.files[notes.path])
            data[start + plan.rng.randrange(len(pieces[number]))] ^= 1 << plan.rng.randrange(8)
            plan.files[notes.path] = bytes(data)
            return bad_file(notes, start)
    return None


@in_files
def manifest_head_flipped(plan: Plan) -> Planted | None:
    for notes, pieces in whole_file(plan):
        if len(pieces) > 1:
            data = bytearray(plan.files[notes.path])
            data[plan.rng.randrange(len(pieces[0]))] ^= 1 << plan.rng.randrange(8)
            plan.files[notes.path] = bytes(data)
            return bad_file(notes, None)
    return None


@in_files
def manifest_block_missing(plan: Plan) -> Planted | None:
    for notes, pieces in whole_file(plan):
        if len(pieces) > 2:
            number = plan.rng.randrange(1, len(pieces) - 1)
            plan.files[notes.path] = b"".join(pieces[:number] + pieces[number + 1 :])
            return bad_file(notes, sum(map(len, pieces[:number])) + 4)
    return None


@in_files
def manifest_goes_on_after_its_end(plan: Plan) -> Planted | None:
    for notes, pieces in whole_file(plan):
        if not notes.is_killed:
            start = len(plan.files[notes.path])
            plan.files[notes.path] += block(len(pieces) - 1, ROWS, 0, b"")
            return bad_file(notes, start)
    return None


@in_files
def manifest_totals_lie(plan: Plan) -> Planted | None:
    for notes, pieces in whole_file(plan):
        if not notes.is_killed:
            what = plan.rng.choice(["rows", "ok", "fail", "unknown"])
            notes.totals = {what: plan.rng.choice([77_777, 1 << 63])}
            say(plan, notes)
            return bad_file(notes, sum(map(len, pieces[:-1])))
    return None


@in_files
def manifest_block_lies(plan: Plan) -> Planted | None:
    """A block with right checksums that is not what its head tells."""
    for notes, pieces in whole_file(plan):
        if not notes.is_killed:
            start = sum(map(len, pieces[:-1]))
            kind, count, content = plan.rng.choice(
                [
                    (ROWS, 2, bytes(48)),
                    (ROWS, 1, bytes(47) + b"\3"),
                    (TOPICS, 1, bytes(17)),
                    (TOPICS, 1, encode("manifest topics", {"topics": []})),
                    (END, 0, bytes(31)),
                    (9, 0, b""),
                ]
            )
            plan.files[notes.path] = b"".join(pieces[:-1]) + block(len(pieces) - 2, kind, count, content)
            return bad_file(notes, start)
    return None


@in_files
def manifest_rubbish(plan: Plan) -> Planted | None:
    """Of which nobody knows what it told: it may be what is stored twice, or a part of a batch."""
    need_all = {manifest_stored_twice.__name__, manifest_torn_batch.__name__}
    is_told_all = any(each.name in need_all for each in plan.planted)
    if is_told_all or not plan.world.has_manifest or not plan.take(RUBBISH):
        return None
    data = plan.rng.choice([b"?" * 10, bytes(200), plan.rng.randbytes(40), b"TWMB" + bytes(60)])
    plan.files[RUBBISH] = data
    return Planted("", [Expected((BAD_FILE,), place="manifest:rubbish.manifest", position=0)])
