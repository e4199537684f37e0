"""Damage that all copies agree on, or that brokers tell: what no checksum can show.

Owns: faults that change what is written before it is. Does not own how faults are chosen (faults).
Invariant: everything that is derived from what was changed (indexes, snapshots, tables) fits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.verify import kafka_bytes as kafka
from tests.verify.faults import Expected, Plan, Planted, about, in_model
from tests.verify.histories import History
from tests.verify.kafka_bytes import Batch, short_id
from tests.verify.world import Segment


def everywhere(plan: Plan, history: History, batch: Batch, *codes: str) -> list[Expected]:
    return [
        about(history, *codes, place=place, position=position)
        for place, position in plan.places_of(history, batch)
    ]


def local_batches(plan: Plan, *, first_at: int = 1) -> Iterator[tuple[History, Batch]]:
    """Batches that every replica has, behind the start of each."""
    found = []
    for history in plan.users():
        if history.is_compacted:
            continue
        start = max(replica.start for replica in plan.world.of(history))
        end = min(replica.end for replica in plan.world.of(history))
        own = [
            batch for batch in history.batches if start <= batch.base and batch.end <= min(end, history.high)
        ]
        found += [(history, batch) for batch in own[first_at:]]
    yield from plan.candidates(found)


@in_model
def wrong_count(plan: Plan) -> Planted | None:
    """A batch whose head has more records than it holds, wherever it lies."""
    for history, batch in local_batches(plan):
        if batch.marker is None and plan.take(history=history, first=batch.base, end=batch.end):
            # one more than there are: the last offset stays, as of a batch that was compacted
            data = kafka.encode_batch(batch, count=len(batch.records) + plan.rng.choice([-1, 1]))
            new = replace(batch, data=data)
            plan.replace_batch(history, batch, new)
            return Planted("", everywhere(plan, history, new, "count-mismatch"))
    return None


def runs(plan: Plan) -> Iterator[tuple[History, Batch, list[Batch]]]:
    """Batches that go on where one of their producer stopped, with those that follow in its epoch."""
    for history, batch in local_batches(plan):
        if batch.producer_id < 0 or batch.marker is not None:
            continue
        start = max(replica.start for replica in plan.world.of(history))
        same = [
            each
            for each in history.written
            if each.producer_id == batch.producer_id
            and each.producer_epoch == batch.producer_epoch
            and each.marker is None
        ]
        if any(start <= each.base < batch.base for each in same):
            yield history, batch, [each for each in same if each.base >= batch.base]


@in_model
def sequences_missing(plan: Plan) -> Planted | None:
    return _shifted(plan, "sequence-gap", 1)


@in_model
def sequences_again(plan: Plan) -> Planted | None:
    return _shifted(plan, "sequence-duplicate", -1)


def _shifted(plan: Plan, code: str, sign: int) -> Planted | None:
    for history, batch, following in runs(plan):
        by = batch.last - batch.base + 1 if sign < 0 else 3
        if batch.sequence - by < 0 or any(each.sequence > 1 << 30 for each in following):
            continue
        if not plan.take(history=history):
            continue
        for each in following:
            moved = replace(each, sequence=each.sequence + sign * by)
            plan.replace_batch(history, each, replace(moved, data=kafka.encode_batch(moved)))
        return Planted(
            "",
            [about(history, code, "sequence-gap", within=(0, batch.end))],
            [about(history, "sequence-gap", "sequence-duplicate")],
        )
    return None


@in_model
def producer_epoch_back(plan: Plan) -> Planted | None:
    for history, batch, following in runs(plan):
        later = [each for each in history.written if each.producer_id == batch.producer_id]
        if batch.producer_epoch < 1 or batch.is_transactional or later[-1] is not batch:
            continue
        if plan.take(history=history):
            older = replace(batch, producer_epoch=batch.producer_epoch - 1)
            assert following == [batch]
            plan.replace_batch(history, batch, replace(older, data=kafka.encode_batch(older)))
            return Planted(
                "",
                [about(history, "producer-epoch-back")],
                [about(history, "sequence-gap", "sequence-duplicate")],
            )
    return None


@in_model
def marker_of_nothing(plan: Plan) -> Planted | None:
    """The marker of a transaction that has no records."""
    for history, batch in local_batches(plan):
        single = batch.base == batch.last and batch.producer_id < 0
        is_whole = any(replica.start == 0 for replica in plan.world.of(history))
        if single and is_whole and plan.take(history=history):
            marker = replace(
                batch,
                records=(kafka.marker_record(kafka.COMMIT, 4),),
                codec=kafka.NONE,
                max_time=batch.base_time,
                producer_id=770_000,
                producer_epoch=0,
                attributes=kafka.TRANSACTIONAL | kafka.CONTROL,
                marker=kafka.COMMIT,
                coordinator_epoch=4,
            )
            plan.replace_batch(history, batch, replace(marker, data=kafka.encode_batch(marker)))
            return Planted("", [about(history, "marker-without-transaction", first=batch.base)])
    return None


@in_model
def lost_everywhere(plan: Plan) -> Planted | None:
    """Offsets that are in no place at all."""
    for history, batch in local_batches(plan):
        slices = [
            piece
            for life in plan.made.wal.streams
            for each in [*life.objects, *life.late]
            for piece in each.slices
            if batch in piece.batches
        ]
        copied = any(
            copy.history is history and copy.segment.base <= batch.base < copy.segment.end
            for copy in plan.made.cold.copies
        )
        edges = {each.base for replica in plan.world.of(history) for each in replica.segments}
        if (
            slices
            or copied
            or batch.producer_id >= 0
            or batch.base in edges
            or batch.base < history.log_start
        ):
            continue
        if (batch.epoch, batch.base) in history.epochs:
            continue  # an epoch would begin elsewhere
        if plan.take(history=history):
            plan.replace_batch(history, batch, None)
            gap = about(history, "gap", first=batch.base, end=batch.end)
            outside = about(history, "checkpoint-outside-log", "replica-short")
            if any(replica.is_leader and replica.end == batch.end for replica in plan.world.of(history)):
                return Planted("", [gap._replace(codes=("gap", "checkpoint-outside-log"))], [outside])
            return Planted("", [gap], [outside])
    return None


@in_model
def replica_short(plan: Plan) -> Planted | None:
    """A replica in sync that ends below what is committed."""
    for replica in plan.candidates(list(plan.world.replicas)):
        history, segment = replica.history, replica.segments[-1]
        ends = [batch.base for batch in segment.batches if batch.base < history.high]
        if replica.is_leader or not replica.is_in_sync or not ends or history.log_start >= ends[-1]:
            continue
        if plan.take(("short", replica.folder), history=history):
            end = plan.rng.choice([each for each in ends if each > history.log_start] or ends[-1:])
            kept = [batch for batch in segment.batches if batch.base < end]
            end = kept[-1].end if kept else segment.base  # compaction may have taken what was there before
            replica.segments[-1] = Segment(segment.base, end, kept)
            replica.high = replica.recovery = min(replica.high, end)
            replica.epochs = [each for each in replica.epochs if each[1] < end]
            return Planted("", [about(history, "replica-short")])
    return None


# --- what is told ---


@in_model
def cold_told_otherwise(plan: Plan) -> Planted | None:
    """The record of a copy does not say what its objects do."""
    for copy in plan.candidates([copy for copy in plan.made.cold.copies if copy.state == 1]):
        if plan.take(copy.key + ".idx"):
            field = plan.rng.choice(["max_timestamp_ms", "epochs"])
            if field == "epochs":
                copy.told["epochs"] = [
                    {"epoch": epoch + 1, "start_offset": start} for epoch, start in copy.epochs
                ]
                plan.take(history=copy.history)
            else:
                copy.told[field] = copy.max_time + 5
            found = Expected(
                ("cold-metadata-differs",), copy.history.topic.short_id, copy.history.number, beside=copy.key
            )
            shadows = [about(copy.history, "epoch-mismatch", "gap", beside=copy.key)]
            return Planted("", [found], shadows if field == "epochs" else [])
    return None


@in_model
def wal_told_otherwise(plan: Plan) -> Planted | None:
    """The record of an object of the WAL tier does not say what its table does."""
    for life in plan.candidates(list(plan.made.wal.streams)):
        for each in plan.candidates(list(life.counting)):
            told = not each.is_young and each is not life.objects[-1]
            if told and each.slices and plan.take(each.key):
                piece = each.slices[0]
                changed = plan.rng.choice(
                    [{"end_offset": piece.end + 1}, {"leader_epoch": piece.leader_epoch + 1}]
                )
                plan.made.wal.entry_faults[each.stream, each.seq] = changed
                return Planted("", [Expected(("wal-metadata-differs",), place=each.key)])
    return None


@in_model
def wal_table_lies(plan: Plan) -> Planted | None:
    """A slice whose table names another checksum, in a table with a fitting one."""
    for life in plan.candidates(list(plan.made.wal.streams)):
        for each in plan.candidates(list(life.counting)):
            pieces = [piece for piece in each.slices if not piece.told]
            if each.is_young or not pieces:
                continue
            piece = plan.rng.choice(pieces)
            if plan.take(each.key, history=piece.history, first=piece.start, end=piece.end):
                piece.told["data_crc"] = 12345
                return Planted(
                    "",
                    [about(piece.history, "wal-slice-crc", place=each.key)],
                    [about(piece.history, "gap", within=(piece.start, piece.end))],
                )
    return None


@in_model
def cold_says_another_topic(plan: Plan) -> Planted | None:
    """An index object that says another copy's id than its key."""
    for copy in plan.candidates([copy for copy in plan.made.cold.copies if copy.state == 1]):
        if plan.take(copy.key + ".idx"):
            copy.head["segment_id"] = bytes(range(16))
            key = f"{copy.key}.idx"
            assert short_id(copy.id) in key
            return Planted("", [about(copy.history, "cold-swapped", place=key)])
    return None
