"""Damage with right checksums: what is told of the tiers, and objects that lie about what they hold.

Owns: faults of the topics about the tiers, of the metadata log with a right chain, of tables and index
objects that fit each other but not the data, of checkpoints that are no text. Does not own how faults are
chosen (faults). Invariant: every checksum beside the damage is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verify import kafka_bytes as kafka
from tests.verify.cluster import record
from tests.verify.cold import COPY_FINISHED, Copy
from tests.verify.faults import EVERYWHERE, META, Expected, Plan, Planted, about, in_files, in_model
from tests.verify.faults_tiers import (
    at_key,
    counting,
    finished,
    hidden,
    of_copy,
    rewrite,
    take_copy,
    take_object,
    valid_slots,
)
from tests.verify.histories import History
from tests.verify.kafka_bytes import Batch
from tests.verify.page import encode
from tests.verify.stores import COLD_TOLD, WAL_TOLD
from tests.verify.wal import SLICES
from tests.verify.world import STORE

TOLD_BAD = "tier-record-bad"


# --- the topics about the tiers ---


def told_otherwise(plan: Plan, topic: str, number: int, key: bytes, value: bytes | None) -> Planted:
    """Add a record that no broker writes; it is to be found at its offset."""
    plan.made.more_told.append((topic, number, key, value))

    def where() -> list[Expected]:
        (history,) = (
            each for each in plan.world.histories if each.topic.name == topic and each.number == number
        )
        offset = max(
            batch.base + each.delta
            for batch in history.batches
            for each in batch.records
            if (each.key, each.value) == (key, value)
        )
        return [about(history, TOLD_BAD, first=offset, end=offset + 1)]

    return Planted("", [], late=where)


def some_partition(plan: Plan, topic: str) -> int:
    return plan.rng.randrange(len(plan.world.cluster.topics[topic].partitions))


@in_model
def told_rubbish(plan: Plan) -> Planted | None:
    """A key or a value that no layout has."""
    topic = plan.rng.choice([COLD_TOLD, WAL_TOLD])
    number = some_partition(plan, topic)
    key = plan.rng.choice([b"", b"\0\7" + bytes(20), plan.rng.randbytes(38), b"\1" + bytes(37)])
    if plan.take(("told", topic, key)):
        return told_otherwise(plan, topic, number, key, plan.rng.choice([b"", b"?", bytes(60)]))
    return None


@in_model
def told_half_a_copy(plan: Plan) -> Planted | None:
    """The end of a copy of which no start is told."""
    for history in plan.candidates(plan.users()):
        ids = {
            "topic": history.topic.name,
            "topic_id": history.topic.id,
            "partition": history.number,
            "segment_id": plan.rng.randbytes(16),
        }
        value = encode(
            "copy updated",
            {**ids, "broker_id": 1, "event_timestamp_ms": 1, "custom": None, "state": COPY_FINISHED},
        )
        count = len(plan.world.cluster.topics[COLD_TOLD].partitions)
        number = kafka.tier_partition(history.topic.id, history.number, count)
        key = encode("copy key", {"version": 0, "kind": 1, **ids})
        return told_otherwise(plan, COLD_TOLD, number, key, value)
    return None


@in_model
def told_in_another_partition(plan: Plan) -> Planted | None:
    """Where nobody looks for it."""
    topic = plan.world.cluster.topics[COLD_TOLD]
    if len(topic.partitions) < 2 or not plan.users():
        return None
    history = plan.rng.choice(plan.users())
    ids = {"topic_id": history.topic.id, "partition": history.number}
    right = kafka.tier_partition(history.topic.id, history.number, len(topic.partitions))
    key = encode("partition key", {"version": 0, "kind": 2, **ids})
    if not plan.take(("told", COLD_TOLD, key)):
        return None
    return told_otherwise(plan, COLD_TOLD, 1 - right, key, None)


@in_model
def copy_untold(plan: Plan) -> Planted | None:
    """The objects of a copy of which the topic says nothing."""
    copies = [copy for copy in plan.made.cold.copies if copy.state == COPY_FINISHED]
    for copy in plan.candidates(copies):
        if plan.take(copy.key + ".idx", copy.key + ".log", history=copy.history):
            copy.is_untold = True
            found = [at_key(f"{copy.key}.{end}", "cold-orphan") for end in ("idx", "log")]
            return Planted("", found, [about(copy.history, "gap")])
    return None


# --- index objects and tables that fit themselves ---


def rewrite_index(plan: Plan, copy: Copy) -> None:
    plan.files[f"{STORE}{copy.key}.idx"] = copy.index_object(plan.world)


@in_files
def cold_head_lies(plan: Plan) -> Planted | None:
    """An index object that counts its batches wrongly."""
    for copy in finished(plan):
        if take_copy(plan, copy):
            copy.head["batch_count"] = len(copy.segment.batches) + plan.rng.choice([-1, 1, 1000])
            rewrite_index(plan, copy)
            return Planted("", [of_copy(copy, "idx", "cold-metadata-differs", "cold-bad-index")])
    return None


@in_files
def cold_of_another_cluster(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy, data=False):
            copy.head["cluster_id"] = "another-cluster"
            rewrite_index(plan, copy)
            return Planted("", [of_copy(copy, "idx", "cold-swapped")])
    return None


@in_files
def cold_block_sums_lie(plan: Plan) -> Planted | None:
    """The sum of all the data is right, that of a block is not."""
    for copy in finished(plan):
        if take_copy(plan, copy):
            size = len(copy.segment.data)
            copy.head |= {"block_size": size + 7, "block_crcs": [plan.rng.randrange(1 << 32)]}
            rewrite_index(plan, copy)
            return Planted("", [of_copy(copy, "idx", "cold-bad-index", "cold-range-crc")])
    return None


@in_files
def cold_epochs_section_lies(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        if take_copy(plan, copy):
            lines = copy.section(4).decode().splitlines()
            epoch, start = lines[-1].split()
            lines[-1] = f"{int(epoch) + 7} {start}"
            copy.sections[4] = ("\n".join(lines) + "\n").encode()
            rewrite_index(plan, copy)
            return Planted("", [of_copy(copy, "idx", "cold-section-differs")])
    return None


@in_files
def cold_aborted_section_lies(plan: Plan) -> Planted | None:
    """It leaves out what was aborted, or names another producer."""
    for copy in finished(plan):
        data = copy.section(3)
        if data and not copy.history.is_compacted and take_copy(plan, copy):
            other = data[:2] + (int.from_bytes(data[2:10], "big") + 1).to_bytes(8, "big") + data[10:]
            begins_inside = int.from_bytes(data[10:18], "big") >= copy.segment.base
            copy.sections[3] = data[34:] if begins_inside and plan.rng.random() < 0.5 else other
            rewrite_index(plan, copy)
            codes = ("cold-section-differs", "aborted-index-differs")
            if not copy.sections[3]:
                codes += ("cold-metadata-differs",)  # the record of the copy says that there are some
            found = of_copy(copy, "idx", *codes)
            told = Expected(("cold-metadata-differs",), copy.history.topic.short_id, beside=copy.key)
            return Planted("", [found], [told])
    return None


@in_files
def cold_producers_section_lies(plan: Plan) -> Planted | None:
    """A producer whose last batch is in the data has another sequence there."""
    for copy in finished(plan):
        state = copy.history.state_at(copy.segment.end)
        inside = [
            number
            for number, each in enumerate(state.producers.values())
            if each.last_offset >= copy.segment.base and each.last_sequence >= 0
        ]
        if inside and not copy.history.is_compacted and take_copy(plan, copy):
            data = bytearray(copy.section(2))
            row = 10 + plan.rng.choice(inside) * 46
            data[row + 13] ^= 1
            data[2:6] = kafka.crc32c(bytes(data[6:])).to_bytes(4, "big")
            copy.sections[2] = bytes(data)
            rewrite_index(plan, copy)
            return Planted("", [of_copy(copy, "idx", "cold-section-differs")])
    return None


@in_files
def wal_of_another_cluster(plan: Plan) -> Planted | None:
    for _, each in counting(plan):
        if take_object(plan, each):
            each.head["cluster_id"] = "another-cluster"
            plan.files[STORE + each.key] = each.data("another-cluster")
            return Planted(
                "", [at_key(each.key, "wal-swapped")], [*hidden(each), Expected(("wal-index-differs",))]
            )
    return None


@in_files
def wal_epoch_lies(plan: Plan) -> Planted | None:
    """The table names another epoch than is stamped on the batches."""
    for _, each in counting(plan):
        pieces = [piece for piece in each.slices if not piece.told]
        if each.kind == SLICES and pieces and take_object(plan, each):
            piece = plan.rng.choice(pieces)
            piece.told["batch_epoch"] = piece.batches[0].epoch + 1
            plan.files[STORE + each.key] = each.data(plan.world.cluster.id)
            return Planted(
                "",
                [about(piece.history, "epoch-mismatch", place=each.key)],
                [*hidden(each), Expected(("wal-index-differs", "wal-metadata-differs"))],
            )
    return None


# --- another value, with every checksum beside it ---


def another_value(batch: Batch) -> Batch | None:
    plain = next((each for each in batch.records if each.value), None)
    if plain is None or plain.value is None or batch.codec != kafka.NONE or batch.marker is not None:
        return None
    data = bytearray(batch.data)
    if plain.value not in data:
        return None  # it holds something else already
    data[data.rindex(plain.value)] ^= 0x55
    kafka.recheck(data)
    return replace(batch, data=bytes(data))


def copies_elsewhere(plan: Plan, history: History, batch: Batch, place: str) -> list[str]:
    """Other places of the batch in which it counts."""
    return [
        other
        for other, _ in plan.places_of(history, batch)
        if other != place and not other.startswith("wal/") and not _is_gone(plan, other)
    ]


def differs(plan: Plan, history: History, batch: Batch, place: str) -> Expected:
    """Another tier tells which copy is wrong, or only another place of the same tier."""
    tier = place.partition("/")[0]
    same = [other for other, _ in plan.places_of(history, batch) if other.startswith(f"{tier}/")]
    codes = ("copies-differ", "overlap") if same else ("copies-differ",)
    return about(history, *codes, within=(batch.base, batch.end))


def _is_gone(plan: Plan, place: str) -> bool:
    if place.startswith("tier/"):
        return not any(
            copy.state == COPY_FINISHED and f"{copy.key}.log" == place for copy in plan.made.cold.copies
        )
    return any(
        replica.is_diverged
        for replica in plan.world.replicas
        if place.startswith(plan.world.place(f"{replica.folder}/"))
    )


@in_files
def cold_value_altered(plan: Plan) -> Planted | None:
    for copy in finished(plan):
        for at, batch in enumerate(copy.segment.batches):
            new = another_value(batch)
            history, key = copy.history, f"{copy.key}.log"
            if new is None or batch.base < history.log_start or history.is_compacted:
                continue
            if batch.end > history.high or not copies_elsewhere(plan, history, batch, key):
                continue
            if not take_copy(plan, copy):
                continue
            copy.segment.batches[at] = new
            plan.files[STORE + key] = copy.segment.data
            rewrite_index(plan, copy)
            return Planted("", [differs(plan, history, batch, key)])
    return None


@in_files
def wal_value_altered(plan: Plan) -> Planted | None:
    for _, each in counting(plan):
        for piece in each.slices:
            history = piece.history
            for at, batch in enumerate(piece.batches):
                new = another_value(batch)
                if new is None or piece.is_void or history.is_compacted or batch.base < history.log_start:
                    continue
                if batch.end > history.high or not copies_elsewhere(plan, history, batch, each.key):
                    continue
                if not take_object(plan, each):
                    continue
                piece.batches[at] = new
                plan.files[STORE + each.key] = each.data(plan.world.cluster.id)
                found = differs(plan, history, batch, each.key)
                return Planted("", [found], [Expected(("wal-index-differs",))])
    return None


# --- the metadata log, with a right chain ---


@in_files
def record_of_no_meaning(plan: Plan) -> Planted | None:
    """A field that is not of its type."""
    found = valid_slots(plan)
    if not found or not plan.take(*META):
        return None
    seq = plan.rng.choice(found)
    bad: list[Any] = plan.rng.choice(
        [
            record("TopicDeleted", topic_id="not an id"),
            ["TopicDeleted", 0, {}],
            record("ProducerIdsAllocated", broker_id="1", broker_epoch=1, next_producer_id=1),
            record("ConfigChanged", resource_type=2, resource_name=[], name="a", value="b"),
            record("BrokerFenced", broker_id=1, broker_epoch=1, fenced=1),
        ]
    )
    rewrite(plan, seq, [bad])
    key = f"meta/{seq:020d}"
    return Planted("", [at_key(key, "meta-bad-object")])


@in_files
def epoch_of_nobody(plan: Plan) -> Planted | None:
    """A slot of a controller epoch in which nobody was elected."""
    cluster = plan.world.cluster
    seq = len(cluster.slots)
    if seq not in valid_slots(plan) or not plan.take(*META):
        return None
    rewrite(plan, seq, cluster.slots[seq - 1].records, cluster.controller_epoch + 3)
    return Planted("", [at_key(f"meta/{seq:020d}", "meta-two-writers")])


@in_files
def boundary_with_bytes(plan: Plan) -> Planted | None:
    key = f"meta/boundary/{plan.world.cluster.boundary:020d}"
    if not plan.world.cluster.boundary or not plan.take(*META):
        return None
    plan.files[STORE + key] = b"?"
    return Planted("", [at_key(key, "meta-bad-object")])


# --- files that are no text ---


@in_files
def epochs_that_are_no_text(plan: Plan) -> Planted | None:
    for replica in plan.candidates(list(plan.world.replicas)):
        path = f"{replica.folder}/leader-epoch-checkpoint"
        if plan.take(path):
            old = plan.files[path]
            plan.files[path] = plan.rng.choice(
                [old[:-1] + b"x\n", b"1" + old[1:], b"\xff\xfe", b"0\n5\n0 0\n"]
            )
            place = plan.world.place(path)
            return Planted("", [about(replica.history, "epochs-differ", place=place)])
    return None


@in_files
def checkpoint_that_is_no_text(plan: Plan) -> Planted | None:
    number = plan.rng.randrange(len(plan.world.directories))
    name = plan.rng.choice(["replication-offset-checkpoint", "recovery-point-offset-checkpoint"])
    path = f"d{number}/{name}"
    own = [each.history for each in plan.world.replicas if each.directory == number]
    if not all(plan.is_clear(history, *EVERYWHERE) for history in own) or not plan.is_free(path):
        return None  # without a watermark nobody knows what is committed
    if not plan.take(path, *((path, key) for key in _lines(plan.files[path]))):
        return None
    for history in own:
        plan.take(history=history)
    plan.files[path] = plan.rng.choice([b"7\n", b"\xff", b"0\nx\n", plan.files[path] + b"more\n"])
    return Planted("", [Expected(("checkpoint-outside-log",), place=plan.world.place(path))])


def _lines(data: bytes) -> list[str]:
    return [" ".join(line.split()[:2]) + " " for line in data.decode().splitlines()[2:]]
